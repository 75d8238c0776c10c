"""What one model on one data set will take: jobs, tokens, bytes and seconds, from sizes and shapes alone."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from semcal.errors import SemcalError
from semcal.experiment.grid_blocks import (
    FITTED,
    candidates_of,
    expected_blocks,
    fits_of,
    labelled_beside,
    nothing_to_choose,
)
from semcal.experiment.grid_settings import CALIBRATED, DataSet, GridSettings, Model
from semcal.experiment.question_sets import PARTS, Parts, load_parts, sizes_of_built_in
from semcal.hub_names import LANGUAGE_MODEL, NLI_MODEL, locate
from semcal.workers import cores, has_gpu, on_disk


@dataclass(frozen=True)
class Assumed:
    """What the settings do not say."""

    question: int = 25  # tokens, with what the prompt puts around it
    passage: int = 160  # tokens
    answer: int = 6  # tokens
    characters: int = 4  # of a token
    references: int = 3  # answers to a calibration question, where neither the data nor `REFERENCES` say
    sharing: float = 3.0  # calibration questions about one passage
    chosen: int = 5  # candidates of a method that are chosen for some measure or loss
    used: int = 4  # and for some measure
    distinct: float = 0.15  # share of the drawn tokens that the model runs for: draws share their beginnings
    asked: float = 0.03  # share of the ordered pairs of answers that the NLI model is asked about
    parameters: float = 7.5e9  # of a model whose name says nothing
    nli_parameters: float = 1.5e9
    width: int = 4096  # of a model that is not here
    vocabulary: int = 128_000
    layers: int = 32
    row: int = 2500  # bytes of a finished row


ASSUMED = Assumed()
#: Answers to a calibration question in public data sets (tests/experiment/test_forecast.py counts them).
REFERENCES = {"triviaqa": 14, "nq-open": 1, "squad": 1}


def parts_here(dataset: DataSet) -> Parts | None:
    """The questions of a data set that need not be fetched."""
    sources = [dataset.source, dataset.test_source or dataset.source]
    built_in = sizes_of_built_in(dataset.source) is not None
    return load_parts(dataset) if built_in or all(Path(one).exists() for one in sources) else None


@dataclass(frozen=True)
class Shape:
    """Of a language model: parameters, widths of states and vocabulary, layers, bytes of a number."""

    parameters: float = ASSUMED.parameters
    width: int = ASSUMED.width
    vocabulary: int = ASSUMED.vocabulary
    layers: int = ASSUMED.layers
    bytes: int = 2

    @property
    def block(self) -> float:
        """Parameters of one layer, which is what ATS has."""
        return (self.parameters - 2 * self.width * self.vocabulary) / self.layers


#: Of a model behind a server, which takes nothing here.
ELSEWHERE = Shape(0.0, 0, 0, 1, 0)


@dataclass(frozen=True)
class CellForecast:
    """One model on one data set; `parts` is None where its questions are not here."""

    settings: GridSettings
    dataset: DataSet
    parts: Parts | None
    shape: Shape

    def size(self, part: str) -> int:
        if self.parts is not None:
            return len(self.parts.part(part))
        return int(getattr(self.dataset, part) or 60_000)

    @property
    def removes(self) -> bool:
        """Whether features and recalibrators go when they are done with."""
        return self.settings.keep == "chosen"

    @cached_property
    def passage(self) -> int:
        """Tokens of a passage."""
        if self.parts is None:
            return ASSUMED.passage * ("squad" in self.dataset.source.lower())
        contexts = [len(question.context or "") for question in self.parts.calibration_train]
        return sum(contexts) // ASSUMED.characters // max(1, len(contexts))

    @property
    def own(self) -> int:
        """Tokens of a prompt that are a question's own."""
        return ASSUMED.question + self.passage

    @cached_property
    def references(self) -> float:
        """Answers to a calibration question."""
        if self.parts is None:
            return REFERENCES.get(self.dataset.source.lower(), ASSUMED.references)
        questions = self.parts.calibration_train
        return sum(len(question.answers) for question in questions) / max(1, len(questions))

    @cached_property
    def sharing(self) -> float:
        """Calibration questions about one passage."""
        if self.parts is None:
            return ASSUMED.sharing
        questions = self.parts.calibration_train
        return len(questions) / max(1, len({question.context for question in questions}))

    def jobs(self) -> Counter[str]:
        sizes = {part: self.size(part) for part in PARTS}
        found = expected_blocks(self.settings, sizes)
        if self.settings.runs.refit:
            found["fit"] += (self.settings.runs.count - 1) * self._chosen(fitted=True)
        return found

    def _chosen(self, *, fitted: bool = False) -> int:
        """Candidates that are asked the test questions."""
        given = candidates_of(self.settings)
        counts = {m: min(len(of), ASSUMED.chosen) for m, of in given.items() if m in FITTED or not fitted}
        moved = 0 if fitted or not self.settings.extras.transfer else len(self.settings.datasets) - 1
        return sum(counts.values()) + moved

    def answers(self) -> int:
        """Answers that are drawn, or greedy."""
        return sum(self._answers().values()) + self.size("test")

    def _answers(self) -> dict[str, int]:
        """Answers that are drawn to all questions of a part."""
        settings, sampling = self.settings, self.settings.sampling
        candidates = candidates_of(settings)
        tried = len({one.name for given in candidates.values() for one in given})
        if nothing_to_choose(settings, candidates):
            tried = 0
        more = max([0, *(count - sampling.m for count in settings.counts)]) * sampling.counts_runs
        test = self._chosen() * (settings.runs.count * sampling.m + more)
        return {
            "validation": self.size("validation") * tried * max([sampling.m, *settings.chosen_at]),
            "labelled": self._labelled() * sampling.m,
            "test": self.size("test") * test,
        }

    def _labelled(self) -> int:
        """Questions of calibration-train that Calibrated has asked."""
        settings = self.settings
        if CALIBRATED not in settings.methods:
            return 0
        unasked = nothing_to_choose(settings, candidates_of(settings))
        further = labelled_beside(settings, 0 if unasked else self.size("validation"))
        return min(further, self.size("calibration_train"))

    def read(self) -> Counter[str]:
        fitted = bool(set(self.settings.methods) & set(FITTED))
        calibration = self.size("calibration_train") * (self.own + self.references * ASSUMED.answer)
        twice = self.removes and "TS" in self.settings.methods and self.dataset != self.settings.datasets[0]
        asked = (self.size("validation") + self._labelled() + 2 * self.size("test")) * self.own
        here = self.shape is not ELSEWHERE
        return Counter({"features": round(calibration) * fitted * (1 + twice), "prompts": asked * here})

    def drawn(self) -> Counter[str]:
        answers = sum(self._answers().values()) * (self.shape is not ELSEWHERE)
        return Counter({"draw": round(answers * ASSUMED.answer * ASSUMED.distinct)})

    def pairs(self) -> int:
        m = self.settings.sampling.m
        twice = (
            self.size("test") * m * self.settings.extras.without_normal_forms
        )  # clustered without number and date forms as well
        return (sum(self._answers().values()) + twice) * (m - 1)

    def seconds(self, machine: Machine) -> Counter[str]:
        """By stage, the NLI model's left out."""
        per_token = 2 * self.shape.parameters / machine.peak
        found: Counter[str] = Counter(
            {stage: per_token * count / machine.reading for stage, count in self.read().items()}
        )
        drawn, answers = self.drawn()["draw"], sum(self._answers().values())
        found["draw"] = per_token * drawn / machine.drawing + answers * machine.per_answer  # type: ignore[assignment]
        found["fit"] = self.fitting(machine)  # type: ignore[assignment]
        return found

    def features(self) -> Counter[str]:
        """Bytes of the states of calibration questions: whole sequences for ATS, passages once."""
        own = self.own - self.passage + self.passage / self.sharing if "ATS" in self.settings.methods else 1
        states = self.size("calibration_train") * (own + self.references * (ASSUMED.answer - 1))
        fitted = bool(set(self.settings.methods) & set(FITTED))
        return Counter({"features": round(states * self.shape.width * self.shape.bytes) * fitted})

    def _vectors(self) -> dict[str, float]:
        """Bytes of a recalibrator of each method."""
        every = {"TS": 500, "ATS": 4 * self.shape.block, "Platt": 8 * self.shape.vocabulary}
        return {method: size for method, size in every.items() if method in self.settings.methods}

    def recalibrators(self, at_most: int | None = None, runs: int = 1) -> Counter[str]:
        """Bytes of the candidates of each method, or of so many of them, fitted in so many runs."""
        count = {method: len(given) for method, given in candidates_of(self.settings).items()}
        sizes = [
            size * min(count[method], at_most or count[method]) for method, size in self._vectors().items()
        ]
        return Counter({"recalibrators": round(sum(sizes) * runs)})

    @property
    def _fits(self) -> int:
        """Runs that have fits of their own."""
        return self.settings.runs.count if self.settings.runs.refit else 1

    def training(self) -> Counter[str]:
        """Bytes of the state of a training of the largest method while it takes the place of the last."""
        return Counter({"trainings": round(6 * max(self._vectors().values(), default=0))})

    def blocks(self) -> Counter[str]:
        """Bytes of finished rows, in blocks and in files."""
        rows = self._answers()["test"] // self.settings.sampling.m * ASSUMED.row
        return Counter({"blocks": sum(self._answers().values()) * 60 + rows, "samples": rows})

    def left(self) -> Counter[str]:
        """Bytes on disk when it is done."""
        if self.removes:
            return self.recalibrators(ASSUMED.used) + self.blocks()
        refits = self.recalibrators(ASSUMED.chosen, self._fits - 1)
        return self.features() + self.recalibrators() + refits + self.blocks()

    def moments(self) -> Iterator[Counter[str]]:
        """Bytes on disk while its candidates are fitted, while the chosen ones are, and while it is asked."""
        yield self.features() + self.recalibrators() + self.training()
        chosen = self.recalibrators(ASSUMED.chosen, self._fits)
        yield self.features() + chosen + self.training()
        yield chosen + self.blocks()

    def fitting(self, machine: Machine) -> float:
        """Seconds of the fits: ATS is a block of the model at every token, Platt and TS the head alone."""
        questions, epochs = self.size("calibration_train"), 2
        head = self.shape.width * self.shape.vocabulary
        answer = ASSUMED.answer * questions * epochs
        works = {
            "TS": 2 * head * answer,
            "ATS": 6 * self.shape.block * (self.own + ASSUMED.answer) * questions * epochs,
            "Platt": 6 * head * answer,
        }
        methods = [one.method for one in fits_of(self.settings, FITTED)]
        if self.settings.runs.refit:
            methods += (self._fits - 1) * ASSUMED.chosen * [one for one in works if one in methods]
        flops = sum(works[method] for method in methods)
        each = machine.per_step * questions * epochs
        return flops / (machine.peak * machine.training) + each * len(methods)


def shape_of(model: Model) -> Shape:
    """From the model's directory if it is here, or else from a name such as "7B", or assumed."""
    if model.is_server:
        return ELSEWHERE
    named = re.search(r"(\d+(?:\.\d+)?)B\b", model.path)
    shape = Shape(parameters=float(named[1]) * 1e9) if named else Shape()
    try:
        place = locate(model.path, LANGUAGE_MODEL)
    except SemcalError:
        return shape
    if place.on_hub:
        return shape
    try:
        config = json.loads((Path(place.source) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # a run says what is wrong with it
        return shape
    size = on_disk(Path(place.source)) / 4
    given = config if isinstance(config, dict) else {}
    width, vocabulary, layers = (
        found if type(found := given.get(key)) is int and found > 0 else 0
        for key in ("hidden_size", "vocab_size", "num_hidden_layers")
    )
    return Shape(size, width, vocabulary, layers, 4) if size and width and vocabulary and layers else shape


def nli_parameters(equivalence: str) -> float:
    """Of the NLI model, where it is here, or assumed."""
    if equivalence == "exact":
        return 0.0
    try:
        place = locate(equivalence, NLI_MODEL)
    except SemcalError:
        return ASSUMED.nli_parameters
    return ASSUMED.nli_parameters if place.on_hub else on_disk(Path(place.source)) / 4


#: Side of the square matrices, and products, that processors are measured by: some 20 ms.
SIDE, PRODUCTS = 512, 5
#: Seconds of one processor for each answer, NLI call and question of an epoch, so that `configs/atlas.yaml`
#: is forecast as docs/grid.md has measured it.
PER_ANSWER, PER_CALL, PER_STEP = 2.5e-4, 5e-4, 1.5e-3


@dataclass(frozen=True)
class Machine:
    """What work costs on a machine."""

    name: str  # what it is, and how that is known
    peak: float  # floating-point operations per second
    reading: float  # the share of them that each kind of work reaches
    drawing: float
    training: float
    per_answer: float = 0.0  # seconds of a drawn answer that do not shrink with the model
    per_call: float = 0.0  # of an NLI call
    per_step: float = 0.0  # of a calibration question in an epoch


H100 = Machine("one NVIDIA H100 (989 TFLOP/s in bfloat16)", 989e12, reading=0.4, drawing=0.05, training=0.2)


def this_machine(device: str | None = None) -> Machine:
    """The processors of this machine, measured by float32 matrix products of numpy.

    What does not shrink with the model is what the embedded models cost beside their products (docs/grid.md,
    Costs), shared among the processors.
    """
    count = cores()
    each = _products_per_second() * 2 * SIDE**3
    gpu = ", without its GPU, whose speed is not measured" if device != "cpu" and has_gpu() else ""
    each_does = f"{each / 1e9:.0f} GFLOP/s each in float32 products of numpy, measured now"
    return Machine(
        f"this machine ({count} processor{'s' * (count > 1)}, {each_does}{gpu})",
        each * count,
        reading=0.5,
        drawing=0.2,
        training=0.3,
        per_answer=PER_ANSWER / count,
        per_call=PER_CALL / count,
        per_step=PER_STEP / count,
    )


def _products_per_second() -> float:
    """Products of two matrices that one thread does in a second: the fastest of a few."""
    import numpy as np

    matrix = np.ones((SIDE, SIDE), np.float32)
    matrix @ matrix  # the first one starts the library
    seconds = []
    for _ in range(PRODUCTS):
        begun = time.perf_counter()
        matrix @ matrix
        seconds.append(time.perf_counter() - begun)
    asked = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or ""
    threads = int(asked) if asked.isdecimal() else cores()
    return 1 / min(seconds) / max(1, min(threads, cores()))
