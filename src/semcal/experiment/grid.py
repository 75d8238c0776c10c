"""The grid in a run folder: every model on every data set, block by block, resumable at any time.

A cell is one model on one data set: fits, choices on validation questions, and rows of test questions. It
defines the stages (`steps.run_stages`), their inputs and their order; their steps are in `grid_steps`.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from itertools import chain, product
from pathlib import Path
from threading import Lock
from typing import Any

from semcal.data.question import Question, data_hash, group_ties, several
from semcal.errors import FitError, SemcalWarning, StoreError
from semcal.experiment.finished import (
    QUESTIONS,
    SCRATCH,
    calibrated_path,
    calibration_folder,
    read_environment,
    recalibrator_folder,
    rows_path,
    selection_path,
)
from semcal.experiment.grid_plan import (
    Choices,
    Parts,
    Problem,
    Selected,
    candidates_of,
    essentials,
    expected_blocks,
    fits_of,
    grid_temperatures,
    known_temperatures,
    labelled_beside,
    load_parts,
    nothing_to_choose,
    only_choices,
    refits_of,
)
from semcal.experiment.grid_settings import CALIBRATED, PARTS, GridSettings, Model, claim_folder, slug
from semcal.experiment.grid_steps import (
    ApplyStep,
    CalibrateStep,
    CalibrationSource,
    CheckStep,
    DiagnoseStep,
    EntailmentStep,
    FeaturesStep,
    FitStep,
    GradeMeaningsStep,
    GreedyPass,
    GreedyStep,
    GridMeasureStep,
    GridState,
    IdentifyStep,
    Identities,
    KeptFit,
    SamplePasses,
    SelectStep,
    cut_to_counts,
)
from semcal.files import dumps, read_object, remove_leftovers, write_rows
from semcal.meaning.answer import AnswerFormat
from semcal.models.clustering import ClusterStep
from semcal.models.sample import SampleStep, Sampling, SamplingConfig
from semcal.recalibration.methods import FITTED, FROM_SAMPLES, RECALIBRATORS, keeps_top
from semcal.recalibration.records import check_enough, warn_if_few
from semcal.recalibration.select import Candidate, CandidateFit
from semcal.rows import FAILED, PER_SAMPLE, Json, Row, count_ends, warn_of_cut_draws
from semcal.steps import Block, RecalibratorSource, Stage, StageJob, Step, run_stages
from semcal.store import Store, digest, write_if_new
from semcal.workers import Executor, environment, versions

#: Default parameters of T-SC and G-SC.
DEFAULT_ALPHA = 0.5
#: Stage → the keys that it adds to its input rows; other stages make new rows.
ADDS = {
    "sample": ("id", "candidate", "run", "counts", FAILED, *PER_SAMPLE),
    "cluster": ("id", "normal_forms", "clusters"),
    "grade": ("id", "correct", "rule"),
    "nli": ("id", "correct_nli"),
}


@dataclass
class GridCell:
    """A model on a data set."""

    settings: GridSettings
    model: Model
    parts: Parts
    identities: Identities  # identities of the models
    store: Store  # store of the run folder
    executor: Executor[Any]
    on_block: Callable[[Block, int], None] = lambda *_: None  # as in `run_stages`
    priority: int = 0  # priority of its jobs
    not_served: Sequence[str] = ()  # methods and extras of the run that the model does not support
    problems: list[Problem] = field(default_factory=list)  # too long, or not answered by a server
    prompt: str = ""  # prompt of the first test question
    has_features: bool = False  # whether the model has read the calibration questions in this session
    fitted: dict[tuple[str, int], KeptFit] = field(default_factory=dict)  # fits by candidate and run
    left_out: set[tuple[str, str]] = field(default_factory=set)  # parts and ids of the problems
    ends: list[tuple[int, int, int]] = field(default_factory=list)  # numbers of `count_ends`

    @property
    def names(self) -> tuple[str, str]:
        """The names of the model and the data set."""
        return self.model.name, self.parts.name

    @property
    def root(self) -> Path:
        """The run folder."""
        return self.store.root

    @cached_property
    def calibration(self) -> CalibrationSource:
        """The source of calibration questions and their features."""
        return CalibrationSource(
            self.parts.asking,
            questions=f"{SCRATCH}/questions/{slug(self.parts.name)}.jsonl",
            features=f"{SCRATCH}/features/{slug(self.model.name)}/{slug(self.parts.name)}",
            data_hash=data_hash(self.parts.calibration_train),
            whole=any(RECALIBRATORS[name].reads_sequences for name in self.settings.methods),
        )

    @property
    def max_new_tokens(self) -> int:
        """The maximum length of generations."""
        return self.settings.max_new_tokens(open_book=self.parts.open_book)

    @property
    def temperature(self) -> float | None:
        """The temperature of TS with NLL, None if it is not fitted."""
        fit = self.fitted.get(("TS NLL", 0))
        return None if fit is None else fit.temperature

    def questions(self, part: str) -> tuple[Question, ...]:
        """Return the questions of a part that fit the model."""
        return tuple(q for q in self.parts.part(part) if (part, q.id) not in self.left_out)

    def asked(self, part: str, first: int | None = None) -> list[list[Row]]:
        """Return the questions of a part, or its first questions, as blocks of rows.

        Blocks are cut by place in the data, and then questions that do not fit the model are left out.
        """
        size, questions = self.settings.block, self.parts.part(part)[:first]
        blocks = (
            [Row.of(essentials(q)) for q in questions[at : at + size] if (part, q.id) not in self.left_out]
            for at in range(0, len(questions), size)
        )
        return [block for block in blocks if block]

    def block(
        self,
        step: Step,
        rows: Sequence[Row],
        part: str,
        place: int | str,
        *,
        files: tuple[Path, ...] = (),
    ) -> Block:
        """Return rows of a part of the questions, at a place in it, for a step with its models."""
        revisions: dict[str, object] = {}
        if "model" in step.needs:
            revisions["model"] = (self.identities.revision, self.identities.prompts[self.parts.name])
            revisions["memory"] = self.settings.memory
        elif "equivalence" in step.needs:
            revisions["judge"] = self.identities.equivalence
        models = self.model, self.settings.equivalence
        stage = Stage((step,), revisions, ADDS.get(step.name, ()), files, models)
        label = {"model": self.model.name, "dataset": self.parts.name, "part": part, "block": place}
        return Block(stage, rows, label)

    def run(self, part: str, blocks: Iterable[Block]) -> list[list[Row]]:
        """Find or make the rows of each block.

        Questions that a server did not answer are left out of later blocks.
        """
        found = []
        for outcome in run_stages(
            blocks,
            workers=self.executor,
            store=self.store,
            priority=self.priority,
            on_block=self.on_block,
        ):
            for row, reason in outcome.failures:
                self.left_out.add((part, row.id))
                self.refuse(row.id, reason)
            found.append(list(outcome.rows))
        return found

    def refuse(self, question: str, reason: str) -> None:
        """Record a question that the model does not answer."""
        text = f"question {question!r}: {reason}"
        self.problems.append(Problem(self.parts.name, None, text, self.model.name))

    def run_on(
        self, part: str, step: Step, blocks: Iterable[Sequence[Row]], *, files: tuple[Path, ...] = ()
    ) -> list[list[Row]]:
        """Find or make the result of a step for each block of a part."""
        return self.run(part, [self.block(step, rows, part, n, files=files) for n, rows in enumerate(blocks)])

    def source(self, name: str, run: int = 0) -> RecalibratorSource:
        """Return the source of a recalibrator: the fit of this run, if runs have separate fits."""
        fit = self.fitted.get((name, run)) or self.fitted.get((name, 0))
        if fit is None:
            return RecalibratorSource(name, grid_temperatures().get(name))
        return RecalibratorSource(name, folder=fit.folder, fingerprint=fit.fingerprint)

    def sample_pass(
        self, sources: Sequence[RecalibratorSource], runs: Sequence[int] = (0,), counts: tuple[int, ...] = ()
    ) -> SampleStep:
        """Return candidates and runs that share a pass of the model, with these numbers of samples."""
        settings, sampling = self.settings, self.settings.sampling
        m, seeds = max(sampling.m, *counts, 0), tuple(settings.seeds[run] for run in runs)
        config = SamplingConfig(m, max_new_tokens=self.max_new_tokens, answer_format=sampling.answer_format)
        return SampleStep(
            Sampling((), self.parts.asking, config, seeds),
            sources=tuple(sources),
            runs=tuple(runs),
            counts=counts,
        )

    def answered(self, part: str, passes: Sequence[SampleStep], first: int | None = None) -> list[list[Row]]:
        """Sample and cluster answers to the questions of a part, or to its first questions."""
        sampled = self.run_on(part, SamplePasses(tuple(passes)), self.asked(part, first))
        self.ends.append(count_ends(chain.from_iterable(sampled)))
        m, settings = self.settings.sampling.m, self.settings.clustering
        step = ClusterStep(settings.linkage, settings.merge_refusals)
        return self.run_on(part, step, [cut_to_counts(rows, m) for rows in sampled])

    def graded(self, part: str, blocks: Sequence[list[Row]]) -> list[list[Row]]:
        """Grade the meanings of answers."""
        return self.run_on(part, GradeMeaningsStep(self.settings.grading, self.settings.seeds), blocks)


# ---- The first half: check the questions, fit every candidate, and diagnose the fits


def prepare(cell: GridCell) -> None:
    """Check the questions, let the model read the calibration questions, and fit the temperatures."""
    rows = [Row.of(essentials(q)).set(part=part) for part in PARTS for q in cell.parts.part(part)]
    ((first, *refused),) = cell.run_on("all", CheckStep(cell.parts.asking, cell.max_new_tokens), [rows])
    cell.prompt = first["prompt"]
    for row in refused:
        cell.left_out.add((row["part"], row["id"]))
        cell.refuse(row["id"], row["reason"])
    for part in ("validation", "test"):
        if not cell.questions(part):
            raise FitError(
                f"no {part} question fits {' on '.join(cell.names)}; the first reason: {cell.problems[0]}"
            )
    if fits := fits_of(cell.settings, FITTED):
        _read_for(cell, [_fit_block(cell, fit) for fit in fits])
        if not cell.has_features:
            cell.on_block(_features_block(cell), 0)
        _fit(cell, [fit for fit in fits if "exact" in FITTED[fit.method].solvers])


def _features_block(cell: GridCell) -> Block:
    files = (cell.root / cell.calibration.features / "manifest.json",)
    return cell.block(FeaturesStep(cell.calibration), (), "calibration_train", 0, files=files)


def _read_for(cell: GridCell, blocks: Sequence[Block]) -> None:
    """Let the model read the calibration questions, once, unless these blocks exist."""
    if not cell.has_features and not all(block.is_in(cell.store) for block in blocks):
        cell.run("calibration_train", [_features_block(cell)])
        cell.has_features = True


def _fit(cell: GridCell, fits: Sequence[CandidateFit]) -> None:
    blocks = [_fit_block(cell, fit) for fit in fits]
    _read_for(cell, blocks)
    for row in chain.from_iterable(cell.run("calibration_train", blocks)):
        fit = KeptFit(**row)
        cell.fitted[fit.candidate, fit.run] = fit


def _fit_block(cell: GridCell, fits: CandidateFit) -> Block:
    fitting = cell.settings.fitting
    folders = {name: recalibrator_folder(*cell.names, name, fits.run) for name in fits.names}
    step = FitStep(
        cell.calibration,
        cell.parts.name,
        fits,
        fitting.learning_rate,
        cell.settings.seeds[fits.run],
        folders,
    )
    files = tuple(cell.root / folder / "recalibrator.json" for folder in folders.values())
    place = f"{', '.join(fits.names)} (run {fits.run})"
    return cell.block(step, (), "calibration_train", place, files=files)


def diagnose(cell: GridCell) -> list[Json]:
    """Return the effects of each candidate on the tokens of validation answers, with the data of its fit."""
    trained = [name for name, method in FITTED.items() if "exact" not in method.solvers]
    _fit(cell, fits_of(cell.settings, trained))
    if not cell.fitted:
        return []
    candidates = {
        candidate.name: (method, candidate)
        for method, tried in candidates_of(cell.settings).items()
        if method not in FROM_SAMPLES
        for candidate in tried
    }
    effects: dict[str, Json] = {name: {} for name in candidates}
    if cell.settings.extras.token_losses:
        unfitted = tuple(name for name in candidates if (name, 0) not in cell.fitted)
        step = DiagnoseStep(cell.calibration, tuple(map(cell.source, candidates)), unfitted)
        questions = [Row.of(essentials(question)) for question in cell.parts.validation]
        block = cell.block(step, questions, "validation", "all candidates")
        _read_for(cell, [block])
        (rows,) = cell.run("validation", [block])
        effects = {row["candidate"]: row for row in rows}
    return [_described(cell, effects[name], *candidates[name]) for name in candidates]


def _described(cell: GridCell, effects: Json, method: str, candidate: Candidate) -> Json:
    name, fit = candidate.name, cell.fitted.get((candidate.name, 0))
    return {
        "candidate": name,
        "method": method,
        **{key: value for key, value in asdict(candidate).items() if key != "name"},
        "temperature": known_temperatures().get(name) if fit is None else fit.temperature,
        "at_bound": None if fit is None else fit.at_bound,
        "parameters": 0 if fit is None else fit.parameters,
        "train_nll": effects.get("train_nll") if fit is None else fit.train_nll,
        **{key: effects.get(key) for key in ("validation_nll", "top_changed", "order_changed")},
    }


# ---- The second half: choices on validation, then the rows of the test questions


def answer(cell: GridCell, temperatures: Mapping[str, float]) -> None:
    """Choose on validation questions, answer the test questions, and write the rows and the selection.

    `temperatures` of other data sets are also used here.
    """
    temperatures = {name: t for name, t in temperatures.items() if name != cell.parts.name}
    fits = diagnose(cell)
    if nothing_to_choose(cell.settings):
        validation, selected = [], only_choices(cell.settings)
    else:
        tried = chain.from_iterable(candidates_of(cell.settings).values())
        sources = [cell.source(name) for name in dict.fromkeys(candidate.name for candidate in tried)]
        sampling = cell.sample_pass(sources, counts=cell.settings.chosen_at)
        validation = cell.answered("validation", [sampling])
        selected = _choose(cell, validation)
    names = _names(selected.methods, *selected.by_draws.values(), *selected.by_loss.values())
    _fit(cell, refits_of(cell.settings, names))
    labelled = _labelled(cell, validation) if CALIBRATED in cell.settings.methods else []
    moved = {f"T of {name}": temperature for name, temperature in temperatures.items()}
    files = _test_rows(cell, selected, _passes(cell, selected, moved))
    if labelled:
        with_se = "SE" in cell.settings.methods and labelled is validation
        files |= _calibrated_rows(cell, labelled, files, with_se=with_se)
    for path, blocks in files.items():
        lines = (dumps(row.json) + "\n" for row in chain.from_iterable(blocks))
        write_if_new(cell.root / path, "".join(lines))
    content = _selection(cell, selected, temperatures, fits)
    write_if_new(cell.root / selection_path(*cell.names), dumps(content, indent=1) + "\n")


def _selection(
    cell: GridCell, selected: Selected, temperatures: Mapping[str, float], fits: Sequence[Json]
) -> Json:
    groups = several(map(group_ties, cell.questions("test")))
    temperature_of = {**known_temperatures(), **{fit["candidate"]: fit["temperature"] for fit in fits}}
    refitted: dict[str, list[float | None]] = {fit["candidate"]: [] for fit in fits}
    for (name, _), kept in sorted(cell.fitted.items()):
        refitted[name].append(kept.temperature)

    def described(choices: Choices) -> Json:
        """Return choices by method and measure, each with its temperature, null if it has none."""
        return {
            method: {
                measure: {**choice.model_dump(), "temperature": temperature_of.get(choice.candidate)}
                for measure, choice in of_method.items()
            }
            for method, of_method in choices.items()
        }

    content = {
        "model": cell.model.name,
        "dataset": cell.parts.name,
        "open_book": cell.parts.open_book,
        "sizes": {part: len(cell.questions(part)) for part in PARTS},
        "test_groups": None if groups is None else int(groups.max()) + 1,
        "prompt": cell.prompt,
        "left_out": list(cell.not_served) or None,
        "methods": described(selected.methods),
        "by_loss": {loss: described(choices) for loss, choices in selected.by_loss.items()},
        "by_draws": {draws: described(choices) for draws, choices in selected.by_draws.items()},
        "transfer": {
            name: {"candidate": f"T of {name}", "temperature": temperature}
            for name, temperature in temperatures.items()
        },
        "table": selected.table,
        "fits": [
            {**fit, "temperature_of_run": of_runs} if len(of_runs := refitted[fit["candidate"]]) > 1 else fit
            for fit in fits
        ],
    }
    return {key: value for key, value in content.items() if value is not None}


def _choose(cell: GridCell, validation: Sequence[list[Row]]) -> Selected:
    settings = cell.settings
    step = SelectStep(
        candidates_of(settings),
        settings.sampling.m,
        settings.chosen_at,
        settings.selection.measure_alphas,
        settings.selection.by,
        ties=settings.clustering.ties,
    )
    graded = list(chain.from_iterable(cell.graded("validation", validation)))
    ((row,),) = cell.run_on("validation", step, [graded])
    return Selected(**row)


def _names(*choices: Choices) -> list[str]:
    """Return the distinct candidates of choices by method and measure."""
    names = (
        choice.candidate for part in choices for of_method in part.values() for choice in of_method.values()
    )
    return list(dict.fromkeys(names))


def _passes(cell: GridCell, selected: Selected, moved: Mapping[str, float]) -> list[SampleStep]:
    """Return the passes of the test questions: groups of candidates and runs that share a pass of the model.

    In run 0, the candidates of the methods get more samples for comparisons of numbers of samples,
    with the candidates that are chosen at other numbers. All other rows have m samples. Runs with separate
    fits have separate passes.
    """
    settings = cell.settings
    main = _names(selected.methods, *selected.by_draws.values())
    at_m = [*_names(selected.methods, *selected.by_loss.values()), *moved]
    at_m_alone = [name for name in at_m if name not in main]
    counts, runs = settings.counts, list(range(settings.runs.count))
    plan: list[tuple[Sequence[str], Sequence[int], tuple[int, ...]]] = []
    for group in [[run] for run in runs] if settings.runs.refit else [runs]:
        if counts and 0 in group:
            plan += [(main, (0,), counts), (at_m_alone, (0,), ()), (at_m, group[1:], ())]
        else:
            plan.append((at_m, group, ()))

    def source(name: str, run: int) -> RecalibratorSource:
        return RecalibratorSource(name, moved[name]) if name in moved else cell.source(name, run)

    return [
        cell.sample_pass([source(name, of_runs[0]) for name in names], of_runs, numbers)
        for names, of_runs, numbers in plan
        if names and of_runs
    ]


Files = dict[str, list[list[Row]]]
"""File → its rows, one list for each block."""


def _test_rows(cell: GridCell, selected: Selected, passes: Sequence[SampleStep]) -> Files:
    greedy = _greedy(cell, passes)
    graded = cell.graded("test", cell.answered("test", passes))
    names = {source.name for sample_pass in passes for source in sample_pass.sources}
    alphas = _alphas(selected, names)
    alphas_at = {
        draws: _alphas(Selected(methods=methods), names) for draws, methods in selected.by_draws.items()
    }
    step = GridMeasureStep(alphas, alphas_at, *cell.names, cell.settings.clustering.ties)
    measured = cell.run_on("test", step, [[*first, *rows] for first, rows in zip(greedy, graded)])
    files: Files = {
        rows_path(*cell.names, source.name, run, count): []
        for sample_pass in passes
        for run in sample_pass.runs
        for source in sample_pass.sources
        for count in (None, *sample_pass.counts)
    }
    for rows in measured:
        for of_file, part in zip(files.values(), _equal_parts(rows, len(files))):
            of_file.append(part)
    base = rows_path(*cell.names, "Base", 0)
    if base in files and cell.settings.extras.entailment:
        judging = EntailmentStep(cell.settings.grading, cell.settings.seeds[0])
        files[base] = cell.run_on("test", judging, files[base])
    return files


def _equal_parts(rows: list[Row], count: int) -> list[list[Row]]:
    size = len(rows) // count
    return [rows[place * size : (place + 1) * size] for place in range(count)]


def _greedy(cell: GridCell, passes: Sequence[SampleStep]) -> list[list[Row]]:
    """Return greedy and beam answers; methods that keep the argmax share Base's."""
    settings, base = cell.settings, RecalibratorSource("Base")
    beams = settings.grading.vanilla == "beam"
    kinds = ("greedy",) + ("beam",) * (beams or settings.extras.beams)
    greedy = {("Base", 0): GreedyPass(base, 0, kinds)}
    for sample_pass in passes:
        run = sample_pass.runs[0] if settings.runs.refit else 0
        for source in sample_pass.sources:
            kinds = ("greedy",) * (not keeps_top(source.name)) + ("beam",) * beams
            if kinds:
                greedy.setdefault((source.name, run), GreedyPass(source, run, kinds))
    answer_format = AnswerFormat(settings.sampling.answer_format)
    of_all = tuple(greedy.values())
    step = GreedyStep(cell.parts.asking, of_all, settings.grading, cell.max_new_tokens, answer_format)
    return cell.run_on("test", step, cell.asked("test"))


def _alphas(selected: Selected, names: Iterable[str]) -> dict[str, list[float]]:
    """Return candidate → the parameters of T-SC and G-SC, as chosen with it or else by its method."""
    alphas: dict[str, list[float]] = {}
    for name in sorted(names):
        method = name.partition(" ")[0]
        method = "TS" if name.startswith("T of ") else "TS-grid" if method == "T" else method
        alphas[name] = [_alpha(selected, method, name, measure) for measure in ("T-SC", "G-SC")]
    return alphas


def _alpha(selected: Selected, method: str, name: str, measure: str) -> float:
    of_method = [selected.methods[method], *(of.get(method, {}) for of in selected.by_loss.values())]
    choices = [choices[measure] for choices in of_method if measure in choices]
    exact = [choice for choice in choices if choice.candidate == name]
    alpha = next((choice.measure_alpha for choice in [*exact, *choices]), None)
    return DEFAULT_ALPHA if alpha is None else alpha


# ---- The method Calibrated: learned from labeled questions, applied to Base's answers of every run


def _labelled(cell: GridCell, validation: list[list[Row]]) -> list[list[Row]]:
    """Return the labeled questions, answered and clustered.

    They are those of `validation`, if these questions are asked anyway, and then the first of
    calibration-train, which only Base answers.
    """
    more = labelled_beside(cell.settings, len(cell.questions("validation")) if validation else 0)
    if not more:
        return validation
    return [*validation, *cell.answered("calibration_train", [cell.sample_pass([cell.source("Base")])], more)]


def _calibrated_rows(
    cell: GridCell, labelled: Sequence[list[Row]], files: Mapping[str, Sequence[list[Row]]], *, with_se: bool
) -> Files:
    """Learn a calibration once, and compute the probabilities of Base's test answers of every run.

    `with_se`: the labeled questions also have samples at the temperature of SE.
    """
    settings, known, identities = cell.settings, known_temperatures(), cell.identities
    temperatures = {name: known[name] for name in ("Base", *["SE"] * with_se)}
    folder, runs = calibration_folder(*cell.names), range(settings.runs.count)
    step = CalibrateStep(
        m=settings.sampling.m,
        temperatures=temperatures,
        settings=settings.calibrated,
        grading=settings.grading,
        clustering=settings.clustering,
        equivalence=settings.equivalence,
        seed=settings.seeds[0],
        revision=identities.revision,
        prompt_hash=identities.prompts[cell.parts.name],
        asking=cell.parts.asking,
        dataset=cell.parts.name,
        max_new_tokens=cell.max_new_tokens,
        folder=folder,
    )
    files_beside = (cell.root / folder / "calibration.json",)
    rows = list(chain.from_iterable(labelled))
    (learned,) = cell.run_on("calibration_train", step, [rows], files=files_beside)
    answers = [files[rows_path(*cell.names, name, run)] for run in runs for name in temperatures]
    apply = ApplyStep(folder, digest([row.json for row in learned]), temperatures, settings.grading)
    blocks = cell.run_on("test", apply, [list(chain.from_iterable(of_block)) for of_block in zip(*answers)])
    by_run = zip(*(_equal_parts(rows, len(runs)) for rows in blocks))
    return {calibrated_path(*cell.names, run): list(of_run) for run, of_run in zip(runs, by_run)}


#: Packages whose versions change the last digits, or more.
NUMERIC = ("semcal", "torch", "transformers", "numpy", "rapidfuzz")
ProgressFactory = Callable[[str, int | None], AbstractContextManager[Callable[[int], None]]]


class Clock:
    """CPU seconds by stage, of this process and its workers, and elapsed seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}  # CPU seconds, in the order of first use
        self._begun = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds since the clock was created."""
        return time.perf_counter() - self._begun

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the CPU time of this process during the block to the stage `name`."""
        start = time.process_time()
        try:
            yield
        finally:
            self.add({name: time.process_time() - start})

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add CPU time of other processes."""
        for name, more in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + more


@dataclass
class Grid:
    """One run folder in progress; its finished blocks are reused."""

    settings: GridSettings  # with all defaults
    folder: Path
    executor: Executor[GridState]  # executor whose workers have a `GridState` of the folder
    #: (label, total) → context manager of a function of the number of finished blocks
    progress: ProgressFactory
    on_problem: Callable[[Problem], None] = lambda _: None  # called with each problem
    clock: Clock = field(default_factory=Clock)

    def run(self) -> list[Problem]:
        """Do the remaining work; return the rejected rows of the data and the rejected questions.

        UsageError if the folder holds a run with other settings. StoreError if a block is damaged, or the
        data differ from those at the start of the run.
        """
        claim_folder(self.folder, self.settings)
        self._check_versions()
        remove_leftovers(self.folder, deep=True)
        sets = [load_parts(dataset) for dataset in self.settings.datasets]
        self._check_enough(sets)
        problems = [problem for parts in sets for problem in parts.problems]
        for problem in problems:
            self.on_problem(problem)
        self._claim_questions(sets)
        settings_of_models = [self.settings.of_model(model) for model in self.settings.models]
        n_blocks = sum(
            expected_blocks(settings, parts.sizes()).total()
            for settings, parts in product(settings_of_models, sets)
        )
        for model in self.settings.models:
            if gone := self.settings.left_out(model):
                warnings.warn(
                    f"{model.name} is behind a server, which has no states, logits or beams; left out for "
                    f"it: {', '.join(gone)}",
                    SemcalWarning,
                    stacklevel=2,
                )
        ends: list[tuple[int, int, int]] = []
        with self.progress("run", n_blocks) as update:
            on_block = BlockCount(update, n_blocks)
            for model, settings in zip(self.settings.models, settings_of_models):
                cells = self._cells(model, settings, sets, on_block)
                self._work(cells)
                for cell in cells:
                    for problem in cell.problems:
                        self.on_problem(problem)
                    problems += cell.problems
                    ends += cell.ends
        if problems:
            lines = (dumps(problem.row()) + "\n" for problem in problems)
            write_if_new(self.folder / "problems.jsonl", "".join(lines))
        warn_of_cut_draws(*map(sum, zip(*ends)))
        return problems

    def _check_enough(self, sets: Sequence[Parts]) -> None:
        """Reject data sets with too few questions before a model is loaded, and warn of few."""
        counts: dict[str, int] = {}
        for parts in sets if set(FITTED) & set(self.settings.methods) else ():
            counts[f"for fits in {parts.name} (calibration_train)"] = len(parts.calibration_train)
        for parts in sets if CALIBRATED in self.settings.methods else ():
            validation = 0 if nothing_to_choose(self.settings) else len(parts.validation)
            available = len(parts.calibration_train) + validation
            counts[f"for the calibration in {parts.name}"] = min(
                self.settings.calibrated.questions, available
            )
        for of, count in counts.items():
            check_enough(count, of=of)
            warn_if_few(count, of=of)

    def _check_versions(self) -> None:
        """Warn of a run that was begun with other versions of packages that its numbers depend on."""
        before = self._before.get("versions", {})
        differing = [
            f"{name} {before[name]}, now {installed}"
            for name, installed in versions().items()
            if name in NUMERIC and before.get(name, installed) != installed
        ]
        if differing:
            warnings.warn(
                f"{self.folder} was begun with {'; '.join(differing)}: new results may differ in the last "
                "digits. Pass --fresh to start again.",
                SemcalWarning,
                stacklevel=2,
            )

    @cached_property
    def _before(self) -> Json:
        return read_environment(self.folder)

    def _claim_questions(self, sets: Sequence[Parts]) -> None:
        """Record the questions; reject a folder that was begun with others."""
        path = self.folder / QUESTIONS
        described = {parts.name: parts.described() for parts in sets}
        if path.exists():
            before = read_object(path, remedy="delete it and run the same command again")
            changed = [name for name, content in described.items() if before.get(name) != content]
            if changed:
                raise StoreError(
                    f"{self.folder} was begun with other questions of {', '.join(changed)}, because the data "
                    "have changed. Pass --fresh to start again, or another --out."
                )
        write_if_new(path, dumps(described, indent=1) + "\n")
        for parts in sets:
            write_rows(
                self.folder / SCRATCH / "questions" / f"{slug(parts.name)}.jsonl",
                (essentials(question).row() for question in parts.calibration_train),
            )

    def _cells(
        self, model: Model, settings: GridSettings, sets: Sequence[Parts], on_block: BlockCount
    ) -> list[GridCell]:
        asking = {parts.name: parts.asking for parts in sets}
        stage = Stage((IdentifyStep(asking),), models=(model, self.settings.equivalence))
        identified = self.executor.submit(StageJob(stage, ()), stage="identify")
        (row,) = identified.result().rows
        identities, store = Identities(**row), Store(self.folder)
        gone = self.settings.left_out(model)
        return [
            GridCell(settings, model, parts, identities, store, self.executor, on_block, priority, gone)
            for priority, parts in enumerate(sets)
        ]

    def _work(self, cells: Sequence[GridCell]) -> None:
        """Do the work on the data sets of one model; while one data set waits, the others work.

        With transfer, all temperatures are fitted first, because each data set is asked at the temperatures
        of the others, too.
        """
        if not cells[0].settings.extras.transfer:
            self.executor.run_together([partial(_prepare_and_answer, cell) for cell in cells])
            return
        self.executor.run_together([partial(prepare, cell) for cell in cells])
        temperatures = {cell.parts.name: t for cell in cells if (t := cell.temperature) is not None}
        self.executor.run_together([partial(answer, cell, temperatures) for cell in cells])

    def write_costs(self) -> None:
        """Add the costs of this session so far to the environment record; may be called again."""
        before = self._before
        cpu_seconds: dict[str, float] = dict(before.get("cpu_seconds", {}))
        for stage, spent in chain(self.clock.seconds.items(), self.executor.seconds.items()):
            cpu_seconds[stage] = cpu_seconds.get(stage, 0.0) + spent
        peaks: dict[str, float] = dict(before.get("peak_memory_mb_by_stage", {}))
        for stage, peak in self.executor.peaks.items():
            peaks[stage] = max(peak, peaks.get(stage, 0.0))
        record = {
            **environment(),
            "cpu_seconds": cpu_seconds,
            "peak_memory_mb_by_stage": peaks,
            "seconds": before.get("seconds", 0.0) + self.clock.elapsed,
            "sessions": before.get("sessions", 0) + 1,
            "processes": self.executor.n_workers,
            "retries": before.get("retries", 0) + self.executor.retries,
            "peak_memory_mb": max(before.get("peak_memory_mb", 0.0), self.executor.peak_memory_mb),
        }
        write_if_new(self.folder / "environment.json", dumps(record, indent=1) + "\n")


@dataclass
class BlockCount:
    """Report the number of finished blocks, which several threads count."""

    update: Callable[[int], None]
    total: int  # number of planned blocks; fits of later runs are not among them
    _finished: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False)

    def __call__(self, *_: object) -> None:
        """Count a finished block."""
        with self._lock:
            self._finished += 1
            self.update(min(self._finished, self.total))


def _prepare_and_answer(cell: GridCell) -> None:
    prepare(cell)
    answer(cell, {})
