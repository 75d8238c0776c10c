"""What a grid will take, before it is begun: jobs, tokens, NLI calls, disk, and time on a stated GPU.

Models and data need not be there. What is not in the settings is assumed, and the assumptions are printed;
the shares of drawn tokens that run and of pairs that are asked about were measured on the embedded world.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semcal.errors import SemcalError
from semcal.experiment.expected import expected_blocks
from semcal.experiment.grid_candidates import FITTED, candidates_of, fits_of
from semcal.experiment.grid_settings import DataSet, GridSettings, Model
from semcal.pipeline.sharing import on_disk
from semcal.recalibration.places import LANGUAGE_MODEL, place_of

__all__ = ["ASSUMED", "Forecast", "forecast"]


@dataclass(frozen=True)
class Assumed:
    """What the settings do not say.

    Attributes
    ----------
    question, passage, answer : int
        Tokens.
    references : int
        Answers to a calibration question.
    chosen : int
        Candidates of a method that are chosen for some measure or loss.
    distinct : float
        Share of the drawn tokens that the model runs for: draws of a question share their beginnings.
    asked : float
        Share of the ordered pairs of answers that the NLI model is asked about.
    parameters, nli_parameters : float
        Of a model whose name says nothing.
    width, vocabulary, layers : int
        Of a model that is not here.
    row : int
        Bytes of a finished row.
    peak, reading, drawing, training : float
        Floating-point operations per second of the GPU, and the share of them that each kind of work reaches.
    """

    question: int = 25
    passage: int = 180
    answer: int = 6
    references: int = 3
    chosen: int = 5
    distinct: float = 0.15
    asked: float = 0.03
    parameters: float = 7.5e9
    nli_parameters: float = 1.5e9
    width: int = 4096
    vocabulary: int = 128_000
    layers: int = 32
    row: int = 2500
    peak: float = 989e12
    reading: float = 0.4
    drawing: float = 0.05
    training: float = 0.2


ASSUMED = Assumed()
GPU = "one NVIDIA H100 (989 TFLOP/s in bfloat16)"


@dataclass(frozen=True)
class Forecast:
    """What a grid will take.

    Attributes
    ----------
    jobs : Counter
        By stage.
    questions : dict
        By part, over all data sets.
    tokens : Counter
        That language models read or draw, by stage.
    nli_calls, nli_calls_at_most : int
        Typical, and if every ordered pair were asked about.
    bytes : Counter
        On disk, by what it is.
    seconds : Counter
        On the GPU, by stage.
    """

    jobs: Counter[str]
    questions: dict[str, int]
    tokens: Counter[str]
    nli_calls: int
    nli_calls_at_most: int
    bytes: Counter[str]
    seconds: Counter[str]

    def tree(self) -> dict[str, Any]:
        """As plain data."""
        return {**vars(self), "gpu": GPU, "assumed": vars(ASSUMED)}

    def lines(self) -> Iterator[str]:
        """In words."""
        jobs = ", ".join(f"{count} {stage}" for stage, count in self.jobs.items())
        yield f"jobs: {self.jobs.total()} ({jobs})"
        yield "questions: " + ", ".join(f"{count} {part}" for part, count in self.questions.items())
        tokens = ", ".join(f"{stage} {_short(count)}" for stage, count in self.tokens.items())
        yield f"model forwards: {_short(self.tokens.total())} tokens ({tokens})"
        yield (
            f"NLI calls: about {_short(self.nli_calls)}, at most {_short(self.nli_calls_at_most)} "
            f"({ASSUMED.asked:.0%} of the ordered pairs are asked about)"
        )
        disk = ", ".join(f"{name} {_short(size)}B" for name, size in self.bytes.items())
        yield f"disk: {_short(self.bytes.total())}B ({disk})"
        hours = ", ".join(f"{stage} {seconds / 3600:.1f}" for stage, seconds in self.seconds.items())
        yield f"time on {GPU}: {self.seconds.total() / 3600:.1f} hours ({hours})"
        a = ASSUMED
        yield (
            f"assumed: {a.reading:.0%} of the peak when reading, {a.drawing:.0%} when drawing, "
            f"{a.training:.0%} when fitting; {a.question} tokens a question, {a.passage} a passage, "
            f"{a.answer} an answer, {a.references} references; {a.chosen} candidates of a method chosen for "
            f"some measure; {a.distinct:.0%} of the drawn tokens run through the model, for draws share "
            "beginnings"
        )


def forecast(settings: GridSettings) -> Forecast:
    """Estimate what a grid takes.

    Parameters
    ----------
    settings : GridSettings
        Resolved; a calibration-train part without a size counts as 60 000 questions.
    """
    jobs: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    disk: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    pairs = 0
    for model in settings.models:
        shape = _shape_of(model)
        for dataset in settings.datasets:
            cell = _Cell(settings, dataset, shape)
            jobs += cell.jobs()
            read, drawn = cell.read(), cell.drawn()
            tokens += read + drawn
            pairs += cell.pairs()
            disk += cell.disk()
            for stage, count in read.items():
                seconds[stage] += round(2 * shape.parameters * count / (ASSUMED.peak * ASSUMED.reading))
            seconds["draw"] += round(2 * shape.parameters * drawn["draw"] / (ASSUMED.peak * ASSUMED.drawing))
            seconds["fit"] += round(cell.fitting())
    asked = round(pairs * ASSUMED.asked)
    each = 2 * ASSUMED.nli_parameters * 2 * (ASSUMED.question + ASSUMED.answer)
    seconds["cluster"] += round(asked * each / (ASSUMED.peak * ASSUMED.reading))
    parts = {
        part: sum(_Cell(settings, one).size(part) for one in settings.datasets)
        for part in ("calibration_train", "validation", "test")
    }
    return Forecast(jobs, parts, tokens, asked, pairs, disk, seconds)


@dataclass(frozen=True)
class _Shape:
    """Of a language model: parameters, size of a state, of the vocabulary, and number of layers."""

    parameters: float = ASSUMED.parameters
    width: int = ASSUMED.width
    vocabulary: int = ASSUMED.vocabulary
    layers: int = ASSUMED.layers

    @property
    def block(self) -> float:
        """Parameters of one layer, which is what ATS has."""
        return (self.parameters - 2 * self.width * self.vocabulary) / self.layers


@dataclass(frozen=True)
class _Cell:
    settings: GridSettings
    dataset: DataSet
    shape: _Shape = _Shape()

    def size(self, part: str) -> int:
        return int(getattr(self.dataset, part) or 60_000)

    @property
    def own(self) -> int:
        """Tokens of a prompt that are a question's own."""
        open_book = "squad" in self.dataset.source.lower() or "reading" in self.dataset.source.lower()
        return ASSUMED.question + ASSUMED.passage * open_book

    def jobs(self) -> Counter[str]:
        sizes = {part: self.size(part) for part in ("calibration_train", "validation", "test")}
        found = expected_blocks(self.settings, sizes)
        if self.settings.runs.refit:
            found["fit"] += (self.settings.runs.count - 1) * self._chosen(fitted=True)
        return found

    def _chosen(self, *, fitted: bool = False) -> int:
        """Candidates that are asked the test questions."""
        given = candidates_of(self.settings)
        counts = {m: min(len(of), ASSUMED.chosen) for m, of in given.items() if m in FITTED or not fitted}
        return sum(counts.values()) + (0 if fitted else len(self.settings.datasets) - 1)

    def _answers(self) -> dict[str, int]:
        """Answers that are drawn to all questions of a part."""
        settings, sampling = self.settings, self.settings.sampling
        tried = len({one.name for given in candidates_of(settings).values() for one in given})
        more = max([0, *(count - sampling.m for count in settings.counts)]) * sampling.counts_runs
        test = self._chosen() * (settings.runs.count * sampling.m + more)
        return {
            "validation": self.size("validation") * tried * max([sampling.m, *settings.chosen_at]),
            "test": self.size("test") * test,
        }

    def read(self) -> Counter[str]:
        fitted = bool(set(self.settings.methods) & set(FITTED))
        calibration = self.size("calibration_train") * (self.own + ASSUMED.references * ASSUMED.answer)
        asked = (self.size("validation") + 2 * self.size("test")) * self.own
        return Counter({"features": calibration * fitted, "prompts": asked})

    def drawn(self) -> Counter[str]:
        answers = sum(self._answers().values())
        return Counter({"draw": round(answers * ASSUMED.answer * ASSUMED.distinct)})

    def pairs(self) -> int:
        m = self.settings.sampling.m
        twice = self.size("test") * m  # clustered without number and date forms as well
        return (sum(self._answers().values()) + twice) * (m - 1)

    def disk(self) -> Counter[str]:
        settings = self.settings
        states = self.read()["features"] if "ATS" in settings.methods else self.size("calibration_train") * 20
        rows = self._answers()["test"] // settings.sampling.m
        draws = sum(self._answers().values())
        vectors = {"TS": 500, "ATS": 4 * self.shape.block, "Platt": 8 * self.shape.vocabulary}
        jobs = fits_of(settings, FITTED)
        kept = round(sum(vectors[one.method] * len(one.losses) for one in jobs))
        if settings.runs.refit:
            kept = round(
                kept * (1 + (settings.runs.count - 1) * self._chosen(fitted=True) / max(1, len(jobs)))
            )
        return Counter(
            {
                "features": states * self.shape.width * 2,
                "recalibrators": kept,
                "blocks": draws * 60 + rows * ASSUMED.row,
                "samples": rows * ASSUMED.row,
            }
        )

    def fitting(self) -> float:
        """Seconds of the fits: ATS is a block of the model at every token, Platt and TS the head alone."""
        questions, epochs = self.size("calibration_train"), 2
        head = self.shape.width * self.shape.vocabulary
        answer = ASSUMED.answer * questions * epochs
        works = {
            "TS": 2 * head * answer,
            "ATS": 6 * self.shape.block * (self.own + ASSUMED.answer) * questions * epochs,
            "Platt": 6 * head * answer,
        }
        flops = sum(works[one.method] for one in fits_of(self.settings, FITTED))
        if self.settings.runs.refit:
            flops += (self.settings.runs.count - 1) * ASSUMED.chosen * sum(works.values())
        return flops / (ASSUMED.peak * ASSUMED.training)


def _shape_of(model: Model) -> _Shape:
    """From the model's directory if it is here, or else from a name such as "7B", or assumed."""
    named = re.search(r"(\d+(?:\.\d+)?)B\b", model.path)
    shape = _Shape(parameters=float(named[1]) * 1e9) if named else _Shape()
    try:
        place = place_of(model.path, LANGUAGE_MODEL)
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
    sizes = [given.get(key) for key in ("hidden_size", "vocab_size", "num_hidden_layers")]
    whole = [one for one in sizes if type(one) is int and one > 0]
    return _Shape(size, *whole) if size and len(whole) == len(sizes) else shape


def _short(number: float) -> str:
    """A large number as people write it.

    >>> _short(1_234_567), _short(999)
    ('1.2 M', '999 ')
    """
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f} "
