"""One model on one data set: its fits, what is chosen on validation, and the rows of the test questions."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from semcal.data.question import Question, data_hash, group_ties, several
from semcal.errors import FitError
from semcal.experiment.answer_jobs import (
    AnswerBlock,
    ApplyJob,
    CalibrateJob,
    ClusterAnswersJob,
    EntailmentJob,
    GradeJob,
    GreedyJob,
    GreedyPass,
    MeasureJob,
    SelectJob,
)
from semcal.experiment.environment import fit_label
from semcal.experiment.finished import (
    SCRATCH,
    calibrated_path,
    calibration_folder,
    recalibrator_folder,
    rows_path,
    selection_path,
)
from semcal.experiment.fit_jobs import (
    CalibrationSource,
    CheckJob,
    DiagnoseJob,
    FeaturesJob,
    Fit,
    FitJob,
    Identities,
    ModelIdentity,
)
from semcal.experiment.grid_blocks import (
    Choices,
    GridBlocks,
    Lines,
    PlannedBlock,
    RowsJob,
    Selected,
    candidates_of,
    fits_of,
    grid_temperatures,
    known_temperatures,
    labelled_beside,
    nothing_to_choose,
    only_choices,
    refits_of,
)
from semcal.experiment.grid_settings import CALIBRATED, GridSettings, Model, slug
from semcal.experiment.question_sets import PARTS, Parts, Problem, essentials
from semcal.files import dumps
from semcal.models.language_model import PromptConfig
from semcal.models.sampling import SampleJob, SamplePass
from semcal.recalibration.choosing import Candidate, CandidateFit
from semcal.recalibration.methods import FITTED, FROM_SAMPLES, RECALIBRATORS, keeps_top
from semcal.rows import FAILED
from semcal.steps import RecalibratorSource
from semcal.store import write_if_new

#: The a of T-SC and G-SC where nothing chose one.
DEFAULT_ALPHA = 0.5
Restore = Callable[[], None]
"""Brings recalibrators or features back that were not kept."""


class AddingJob(RowsJob, Protocol):
    """A job on finished rows, of which it reads `needs`."""

    @property
    def needs(self) -> tuple[str, ...]: ...


@dataclass
class Cell:
    """A model on a data set."""

    settings: GridSettings
    model: Model
    parts: Parts
    models: Identities  # what the models say of themselves
    blocks: GridBlocks
    priority: int = 0  # of its jobs
    not_served: Sequence[str] = ()  # methods and extras of the run that the model cannot serve
    problems: list[Problem] = field(default_factory=list)  # questions that do not fit, or a server failed at
    prompt: str = ""  # that of the first test question
    fitted: dict[tuple[str, int], Fit] = field(default_factory=dict)  # by candidate and run
    left_out: set[tuple[str, str]] = field(default_factory=set)  # parts and ids of the problems

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"{self.model.name} on {self.parts.name}"

    @property
    def root(self) -> Path:
        """The run folder."""
        return self.blocks.store.root

    @cached_property
    def asking(self) -> PromptConfig:
        """The prompt of the data set."""
        return PromptConfig(tuple(map(essentials, self.parts.few_shot)))

    @property
    def identity(self) -> ModelIdentity:
        """What everything that the model does depends on."""
        return ModelIdentity(self.models.revision, self.models.prompts[self.parts.name], self.settings.memory)

    @cached_property
    def calibration(self) -> CalibrationSource:
        """The calibration questions, and where their features lie."""
        return CalibrationSource(
            self.asking,
            questions=f"{SCRATCH}/questions/{slug(self.parts.name)}.jsonl",
            features=f"{SCRATCH}/features/{slug(self.model.name)}/{slug(self.parts.name)}",
            data_hash=data_hash(self.parts.calibration_train),
            whole=any(RECALIBRATORS[name].reads_sequences for name in self.settings.methods),
        )

    @property
    def max_new_tokens(self) -> int:
        """The longest generation."""
        return self.settings.max_new_tokens(open_book=self.parts.open_book)

    def questions(self, part: str) -> tuple[Question, ...]:
        """The questions of a part that fit the model."""
        return tuple(q for q in self.parts.part(part) if (part, q.id) not in self.left_out)

    def cut(self, part: str, first: int | None = None) -> list[tuple[int, tuple[Question, ...]]]:
        """Blocks of a part, or of its first questions, with their numbers.

        They are cut by place in the data; what does not fit the model is left out.
        """
        size, questions = self.settings.block, self.parts.part(part)[:first]
        blocks = [questions[start : start + size] for start in range(0, len(questions), size)]
        fitting = [
            tuple(essentials(q) for q in block if (part, q.id) not in self.left_out) for block in blocks
        ]
        return [(number, block) for number, block in enumerate(fitting) if block]

    def block(
        self, job: RowsJob, part: str, block: Any, *, needs: tuple[Path, ...] = (), counted_as: str = ""
    ) -> PlannedBlock:
        """A block of rows: by the language model, by the equivalence, or by neither."""
        if job.stage in ("cluster", "nli"):
            depends: dict[str, Any] = {"judge": self.models.equivalence}
        else:
            alone = ("grade", "select", "measure", "apply")
            depends = {} if job.stage in alone else self.identity.key()
        label = {"model": self.model.name, "dataset": self.parts.name, "part": part, "block": block}
        equivalence = self.settings.equivalence
        return PlannedBlock(job, depends, label, self.model, equivalence, needs, counted_as)

    def block_lines(self, block: PlannedBlock, before: Restore | None = None) -> Lines:
        """The rows of one block."""
        (lines,) = self.blocks.rows([block], self.priority, before=before)
        return lines

    def part_lines(self, part: str, jobs: Sequence[RowsJob], before: Restore | None = None) -> list[Lines]:
        """The rows of one job for each block of a part; `before` brings what they need."""
        planned = [self.block(job, part, number) for (number, _), job in zip(self.cut(part), jobs)]
        return self.blocks.rows(planned, self.priority, before=before)

    def source(self, name: str, run: int = 0) -> RecalibratorSource:
        """A recalibrator as jobs are given it: the fit of a run, where runs have fits of their own."""
        if name in grid_temperatures():
            return RecalibratorSource(name, grid_temperatures()[name])
        fit = self.fitted.get((name, run)) or self.fitted.get((name, 0))
        if fit is None:
            return RecalibratorSource(name)
        return RecalibratorSource(name, folder=fit.folder, fingerprint=fit.fingerprint)

    @property
    def temperature(self) -> float | None:
        """T of TS with NLL; None where it is not fitted."""
        fit = self.fitted.get(("TS NLL", 0))
        return None if fit is None else fit.temperature

    def answered(self, part: str, passes: Sequence[SamplePass]) -> list[AnswerBlock]:
        """Draw, cluster and grade answers to the questions of a part."""
        blocks, settings = self.clustered(part, passes), self.settings
        jobs = [GradeJob(block, settings.grading, settings.seeds) for block in blocks]
        return [replace(block, graded=lines) for block, lines in zip(blocks, self.part_lines(part, jobs))]

    def clustered(
        self, part: str, passes: Sequence[SamplePass], first: int | None = None
    ) -> list[AnswerBlock]:
        """Draw and cluster answers to the questions of a part, or to its first."""
        settings = self.settings
        sampled = self._sampled(part, passes, first)
        blocks = [
            AnswerBlock(questions, settings.sampling.m, lines)
            for (_, questions), lines in zip(self.cut(part, first), sampled)
        ]
        jobs = [ClusterAnswersJob(block, settings.clustering) for block in blocks]
        return [replace(block, clustered=lines) for block, lines in zip(blocks, self.part_lines(part, jobs))]

    def _sampled(self, part: str, passes: Sequence[SamplePass], first: int | None) -> list[Lines]:
        sampling = self.settings.sampling
        truncated = sampling.top_k is not None or sampling.top_p is not None
        jobs = [
            SampleJob(
                questions,
                self.asking,
                tuple(passes),
                self.max_new_tokens,
                truncation=(sampling.top_k or 0, sampling.top_p or 1.0) if truncated else None,
                scored_in=sampling.scored_in if self.parts.open_book else "whole prompt",
            )
            for _, questions in self.cut(part, first)
        ]
        blocks = self.part_lines(part, jobs, before=restoring(self, passes))
        ends = "".join(line.rpartition('"finished":')[2] for lines in blocks for line in lines)
        self.blocks.ends.append((ends.count("false"), ends.count("true")))
        return self.without_failed(part, blocks)

    def without_failed(self, part: str, blocks: Sequence[Lines]) -> list[Lines]:
        """Rows without the questions that a server failed to answer, which are left out from here on."""
        failed = {
            row["id"]: row[FAILED]
            for lines in blocks
            for line in lines
            if f'"{FAILED}"' in line and FAILED in (row := json.loads(line))
        }
        if not failed:
            return list(blocks)
        self.left_out |= {(part, id) for id in failed}
        self.problems += [
            Problem(self.parts.name, None, f"question {id!r}: {reason}", self.model.name)
            for id, reason in failed.items()
        ]
        return [[line for line in lines if json.loads(line)["id"] not in failed] for lines in blocks]

    def added(
        self, blocks: Sequence[Lines], job_of: Callable[[tuple[dict[str, Any], ...]], AddingJob]
    ) -> list[list[dict[str, Any]]]:
        """Rows of the test questions, by block, with what a job on finished rows adds to each."""
        needs = job_of(()).needs
        rows = [[json.loads(line) for line in lines] for lines in blocks]
        jobs = [job_of(tuple({key: row[key] for key in needs} for row in block)) for block in rows]
        return [
            [{**row, **json.loads(line)} for row, line in zip(block, lines, strict=True)]
            for block, lines in zip(rows, self.part_lines("test", jobs))
        ]

    def remove_features(self) -> None:
        """With `keep: chosen`, remove the states of the calibration questions."""
        if self.settings.keep == "chosen":
            _remove_states(self.root / self.calibration.features)

    def remove_fits(self, fits: Collection[tuple[str, int]]) -> None:
        """With `keep: chosen`, remove features and some fits; what is needed again is fitted again."""
        self.remove_features()
        for key in fits if self.settings.keep == "chosen" else ():
            shutil.rmtree(self.root / self.fitted[key].folder, ignore_errors=True)


def _remove_states(folder: Path) -> None:
    """Remove a folder of features so that a kill in between leaves none that look finished.

    A process that has mapped the file may hold on to it for a while. Cutting it short frees its space now;
    nobody reads it any more.
    """
    (folder / "blocks.jsonl").unlink(missing_ok=True)
    with suppress(FileNotFoundError):
        os.truncate(folder / "states.bin", 0)
    shutil.rmtree(folder, ignore_errors=True)


# The first half: check the questions, fit every candidate, and see what the fits do.


def prepare(cell: Cell) -> None:
    """Check the questions, let the model read the calibration questions, and fit the temperatures."""
    _check(cell)
    solved = [name for name, method in FITTED.items() if "exact" in method.solvers]
    first = solved if cell.settings.keep == "chosen" else FITTED
    if any(not cell.blocks.has(_fit_block(cell, fits)) for fits in fits_of(cell.settings, first)):
        _read(cell)
    elif set(cell.settings.methods) & set(FITTED):
        cell.blocks.step("features")
    _fit(cell, fits_of(cell.settings, solved))


def _check(cell: Cell) -> None:
    """Find the questions that do not fit the model."""
    parts = {part: cell.parts.part(part) for part in PARTS}
    hashes = {part: data_hash(questions) for part, questions in parts.items()}
    bare = {part: tuple(map(essentials, questions)) for part, questions in parts.items()}
    job = CheckJob(cell.asking, bare, hashes, cell.max_new_tokens)
    first, *bad = map(json.loads, cell.block_lines(cell.block(job, "all", 0)))
    cell.prompt = first["prompt"]
    cell.left_out = {(row["part"], row["id"]) for row in bad}
    cell.problems = [
        Problem(cell.parts.name, None, f"question {row['id']!r}: {row['reason']}", cell.model.name)
        for row in bad
    ]
    for part in ("validation", "test"):
        if not cell.questions(part):
            raise FitError(f"no {part} question fits {cell.name}; the first reason: {cell.problems[0]}")


def _read(cell: Cell) -> None:
    """Let the model read the calibration questions."""
    needs = (cell.root / cell.calibration.features / "blocks.jsonl",)
    cell.block_lines(cell.block(FeaturesJob(cell.calibration), "calibration_train", 0, needs=needs))


def refit(cell: Cell, names: Sequence[str]) -> None:
    """Fit candidates anew for the runs after the first, where the settings say so."""
    _fit(cell, refits_of(cell.settings, names))


def fit_again(cell: Cell, sources: Iterable[RecalibratorSource]) -> None:
    """Fit again those of some recalibrators that were not kept."""
    folders = {source.folder for source in sources if source.folder is not None}
    missing = {folder for folder in folders if not (cell.root / folder / "calibration.json").exists()}
    if not missing:
        return
    names = [f"{name} (run {run})" for (name, run), fit in cell.fitted.items() if fit.folder in missing]
    cell.blocks.on_remade(
        f"{cell.name}: {len(missing)} recalibrators that were not kept are needed again; the calibration "
        "questions are read again, and they are fitted again: "
        f"{', '.join(names[:4])}{', …' * (len(names) > 4)}"
    )
    candidates = sorted({name for name, _ in cell.fitted})
    fits = [*fits_of(cell.settings, FITTED), *refits_of(cell.settings, candidates)]
    _fit(cell, [fit for fit in fits if missing & set(_folders(cell, fit).values())], with_folders=True)


def restoring(cell: Cell, passes: Sequence[SamplePass]) -> Restore:
    """Brings the recalibrators of some passes back where they were not kept."""
    sources = [source for _, source in _sources(passes)]
    return lambda: fit_again(cell, sources)


def _sources(passes: Sequence[SamplePass]) -> Iterator[tuple[SamplePass, RecalibratorSource]]:
    for sample_pass in passes:
        for source in sample_pass.recalibrators:
            assert isinstance(source, RecalibratorSource)
            yield sample_pass, source


def _fit(cell: Cell, fits: Sequence[CandidateFit], *, with_folders: bool = False) -> None:
    """Do the fits that are not done; `with_folders` those as well whose recalibrators were not kept."""
    blocks = [_fit_block(cell, fit, with_folders=with_folders) for fit in fits]
    lines_of_fits = cell.blocks.rows(blocks, cell.priority, before=lambda: _read(cell))
    for fit in map(Fit.model_validate_json, chain.from_iterable(lines_of_fits)):
        cell.fitted[fit.candidate, fit.run] = fit


def _folders(cell: Cell, fits: CandidateFit) -> dict[str, str]:
    """Where each candidate of a fit lies."""
    return {
        name: recalibrator_folder(cell.model.name, cell.parts.name, name, fits.run) for name in fits.names
    }


def _fit_block(cell: Cell, fits: CandidateFit, *, with_folders: bool = False) -> PlannedBlock:
    fitting, folders = cell.settings.fitting, _folders(cell, fits)
    job = FitJob(
        cell.calibration,
        cell.identity,
        cell.parts.name,
        fits,
        fitting.learning_rate_for(len(cell.parts.calibration_train)),
        fitting.batch_size,
        fitting.warm_up,
        cell.settings.seeds[fits.run],
        folders,
    )
    needs = (cell.root / folder / "calibration.json" for folder in folders.values())
    return cell.block(
        job,
        "calibration_train",
        f"{', '.join(fits.names)} (run {fits.run})",
        needs=tuple(needs) if with_folders or cell.settings.keep == "all" else (),
        counted_as=fit_label(cell.model.name, fits.method),
    )


def diagnose(cell: Cell) -> list[dict[str, Any]]:
    """What each candidate does to the tokens of validation answers, with what its fit says of it."""
    _fit(
        cell,
        fits_of(cell.settings, [name for name, method in FITTED.items() if "exact" not in method.solvers]),
    )
    candidates = {
        candidate.name: (method, candidate)
        for method, tried in candidates_of(cell.settings).items()
        if method not in FROM_SAMPLES
        for candidate in tried
    }
    if not cell.fitted:
        return []
    if not cell.settings.extras.token_losses:
        return [_described(cell, {"candidate": name}, *candidates[name]) for name in candidates]
    sources = tuple(cell.source(name) for name in candidates)
    job = DiagnoseJob(
        cell.calibration,
        tuple(map(essentials, cell.parts.validation)),
        sources,
        unfitted=tuple(name for name in candidates if (name, 0) not in cell.fitted),
    )

    def restore() -> None:
        _read(cell)
        fit_again(cell, sources)

    lines = cell.block_lines(cell.block(job, "validation", "all candidates"), before=restore)
    return [_described(cell, row, *candidates[row["candidate"]]) for row in map(json.loads, lines)]


def _described(cell: Cell, row: Mapping[str, Any], method: str, candidate: Candidate) -> dict[str, Any]:
    """An entry of `fits` in the file of selections."""
    name, fit = candidate.name, cell.fitted.get((candidate.name, 0))
    return {
        "candidate": name,
        "method": method,
        **{key: value for key, value in asdict(candidate).items() if key != "name"},
        "temperature": known_temperatures().get(name) if fit is None else fit.temperature,
        "at_bound": None if fit is None else fit.at_bound,
        "parameters": 0 if fit is None else fit.parameters,
        "train_nll": row.get("train_nll") if fit is None else fit.train_nll,
        **{key: row.get(key) for key in ("validation_nll", "top_changed", "order_changed", "classes")},
    }


# The second half: what is chosen on validation, then the rows of the test questions.


def answer(cell: Cell, temperatures: Mapping[str, float]) -> None:
    """Fit, choose on validation, ask the test questions, and write rows and selection of a prepared cell.

    `temperatures` are those of other data sets, to be tried here.
    """
    fits = diagnose(cell)
    selected, validation = _choose(cell)
    names = _names(selected.methods, *selected.by_draws.values(), *selected.by_loss.values())
    refit(cell, names)
    chosen_names = _names(selected.methods)
    fit_again(cell, map(cell.source, chosen_names))
    cell.remove_fits([(name, run) for name, run in cell.fitted if name not in names])
    labelled = _labelled(cell, validation) if CALIBRATED in cell.settings.methods else []
    moved = {f"T of {name}": temperature for name, temperature in temperatures.items()}
    files = _TestQuestions(cell, selected, _passes(cell, selected, moved)).rows()
    if labelled:
        with_se = "SE" in cell.settings.methods and labelled is validation
        files |= _calibrated_rows(cell, labelled, files, with_se=with_se)
    cell.remove_fits([(name, run) for name, run in cell.fitted if name not in chosen_names or run > 0])
    for path, blocks in files.items():
        write_if_new(cell.root / path, "".join(line + "\n" for line in chain.from_iterable(blocks)))
    content = _selection(cell, selected, temperatures, fits)
    selection = cell.root / selection_path(cell.model.name, cell.parts.name)
    write_if_new(selection, dumps(content, indent=1) + "\n")


def _selection(
    cell: Cell, selected: Selected, temperatures: Mapping[str, float], fits: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """What stands in the file of selections."""
    groups = several(map(group_ties, cell.questions("test")))
    temperature_of = {**known_temperatures(), **{fit["candidate"]: fit["temperature"] for fit in fits}}

    def described(choices: Choices) -> dict[str, Any]:
        """Choices by method and measure, each with its one temperature; null where it has none."""
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
        "validation_scores": selected.validation_scores,
        "table": selected.table,
        "fits": [_with_refits(cell, fit) for fit in fits],
    }
    return {key: value for key, value in content.items() if value is not None}


def _with_refits(cell: Cell, fit: dict[str, Any]) -> dict[str, Any]:
    """A fit with the temperature of each run, where runs fit anew."""
    of_run = {
        run: refitted.temperature for (name, run), refitted in cell.fitted.items() if name == fit["candidate"]
    }
    temperatures = [of_run[run] for run in sorted(of_run)]
    return {**fit, "temperature_of_run": temperatures} if len(temperatures) > 1 else fit


def _choose(cell: Cell) -> tuple[Selected, list[AnswerBlock]]:
    """Sample, cluster and grade the validation questions under every candidate, and choose.

    Also returns the blocks of these questions; none where nothing is to be chosen.
    """
    settings = cell.settings
    candidates = candidates_of(settings)
    if nothing_to_choose(settings, candidates):
        return only_choices(settings, candidates), []
    names = list(dict.fromkeys(candidate.name for tried in candidates.values() for candidate in tried))
    counts, m = settings.chosen_at, settings.sampling.m
    sources = tuple(map(cell.source, names))
    blocks = cell.answered(
        "validation", [SamplePass(sources, settings.seeds[:1], max(m, *counts, 0), (0,), counts)]
    )
    job = SelectJob(
        candidates,
        tuple(blocks),
        m,
        counts,
        settings.selection.measure_alphas,
        settings.selection.by,
        settings.evaluation.bins,
        score_maps=bool(settings.extras.score_maps) and "Base" in settings.methods,
        ties=settings.clustering.ties,
    )
    (line,) = cell.block_lines(cell.block(job, "validation", "all"))
    return Selected.model_validate_json(line), blocks


def _names(*choices: Choices) -> list[str]:
    """The candidates among some choices by method and measure, each once."""
    names = (
        choice.candidate for part in choices for of_method in part.values() for choice in of_method.values()
    )
    return list(dict.fromkeys(names))


def _passes(cell: Cell, selected: Selected, moved: Mapping[str, float]) -> list[SamplePass]:
    """What the test questions are asked: groups of candidates and runs that share a pass of the model.

    The candidates of the methods are drawn more often in the first runs, for comparisons of numbers of draws,
    and those that are chosen at other numbers beside them; all other rows have m draws. Runs that fit anew
    have passes of their own.
    """
    settings = cell.settings
    main = _names(selected.methods, *selected.by_draws.values())
    at_m = [*_names(selected.methods, *selected.by_loss.values()), *moved]
    at_m_alone = [name for name in at_m if name not in main]
    counts, more = settings.counts, settings.sampling.counts_runs
    runs = list(range(settings.runs.count))
    passes: list[SamplePass] = []

    def add(names: Sequence[str], runs: Sequence[int], counts: tuple[int, ...]) -> None:
        if names and runs:
            sources = tuple(
                RecalibratorSource(name, moved[name]) if name in moved else cell.source(name, runs[0])
                for name in names
            )
            seeds = tuple(settings.seeds[run] for run in runs)
            m = max(settings.sampling.m, *counts, 0)
            passes.append(SamplePass(sources, seeds, m, tuple(runs), counts))

    for group in [[run] for run in runs] if settings.runs.refit else [runs]:
        early, late = [run for run in group if run < more], [run for run in group if run >= more]
        if counts and early:
            add(main, early, counts)
            add(at_m_alone, early, ())
            add(at_m, late, ())
        else:
            add(at_m, group, ())
    return passes


@dataclass(frozen=True)
class _TestQuestions:
    """The test questions of a cell, asked with what was chosen on validation."""

    cell: Cell
    selected: Selected
    passes: Sequence[SamplePass]

    def rows(self) -> dict[str, list[Lines]]:
        """Sample, cluster, grade and measure: file → its lines, a list a block."""
        cell, names = self.cell, (self.cell.model.name, self.cell.parts.name)
        greedy = self._greedy()
        measured = self._measured(cell.answered("test", self.passes), greedy)
        files: dict[str, list[Lines]] = {path: [] for path in self._files()}
        for (_, questions), lines in zip(cell.cut("test"), measured):
            for place, of_file in enumerate(files.values()):
                start = place * len(questions)
                of_file.append(lines[start : start + len(questions)])
        base = rows_path(*names, "Base", 0)
        if base in files and cell.settings.extras.entailment:
            files[base] = self._by_entailment(files[base])
        return files

    def _greedy(self) -> list[Lines]:
        """Greedy and beam answers; methods that keep the argmax share Base's."""
        cell = self.cell
        beams = cell.settings.grading.vanilla == "beam"
        base = RecalibratorSource("Base")
        kinds = ("greedy",) + ("beam",) * (beams or cell.settings.extras.beams)
        passes = {("Base", 0): GreedyPass(base, 0, kinds)}
        for sample_pass, source in _sources(self.passes):
            run = sample_pass.runs[0] if cell.settings.runs.refit else 0
            kinds = ("greedy",) * (not keeps_top(source.name)) + ("beam",) * beams
            if kinds:
                passes.setdefault((source.name, run), GreedyPass(source, run, kinds))
        jobs = [
            GreedyJob(block, cell.asking, tuple(passes.values()), cell.settings.grading, cell.max_new_tokens)
            for _, block in cell.cut("test")
        ]
        lines = cell.part_lines("test", jobs, before=restoring(cell, self.passes))
        return cell.without_failed("test", lines)

    def _measured(self, blocks: Sequence[AnswerBlock], greedy: Sequence[Lines]) -> list[Lines]:
        alphas = self._alphas(self.selected)
        alphas_at = {
            draws: self._alphas(Selected(methods=methods, by_loss={}, by_draws={}, table=[]))
            for draws, methods in self.selected.by_draws.items()
        }
        names = (self.cell.model.name, self.cell.parts.name, self.cell.settings.clustering.ties)
        jobs = [
            MeasureJob(block, lines, alphas, alphas_at, *names)
            for block, lines in zip(blocks, greedy, strict=True)
        ]
        return self.cell.part_lines("test", jobs)

    def _files(self) -> list[str]:
        """The files of rows, in the order in which `MeasureJob` gives their lines within a block."""
        cell = self.cell
        return [
            rows_path(cell.model.name, cell.parts.name, source.name, run, count)
            for sample_pass in self.passes
            for run in sample_pass.runs
            for _, source in _sources([sample_pass])
            for count in (None, *sample_pass.counts)
        ]

    def _alphas(self, selected: Selected) -> dict[str, list[float]]:
        """Candidate → the a of T-SC and of G-SC: as chosen with it, or else as its method chose."""
        alphas: dict[str, list[float]] = {}
        for name in sorted({source.name for _, source in _sources(self.passes)}):
            method = name.partition(" ")[0]
            method = "TS" if name.startswith("T of ") else "TS-grid" if method == "T" else method
            alphas[name] = [_alpha(selected, method, name, measure) for measure in ("T-SC", "G-SC")]
        return alphas

    def _by_entailment(self, blocks: Sequence[Lines]) -> list[Lines]:
        """Rows of Base with `correct_nli`."""
        settings = self.cell.settings
        rows = self.cell.added(blocks, lambda rows: EntailmentJob(rows, settings.grading, settings.seeds[0]))
        return [list(map(dumps, block)) for block in rows]


def _alpha(selected: Selected, method: str, name: str, measure: str) -> float:
    of_method = [selected.methods[method], *(of.get(method, {}) for of in selected.by_loss.values())]
    choices = [choices[measure] for choices in of_method if measure in choices]
    exact = [choice for choice in choices if choice.candidate == name]
    alpha = next((choice.measure_alpha for choice in [*exact, *choices]), None)
    return DEFAULT_ALPHA if alpha is None else alpha


# The method Calibrated: learnt from labelled questions, applied to Base's answers of every run.


def _labelled(cell: Cell, validation: list[AnswerBlock]) -> list[AnswerBlock]:
    """Blocks of the labelled questions, answered and clustered.

    They are those of `validation`, if these questions are asked anyway, and then the first of
    calibration-train, which Base alone is asked.
    """
    settings = cell.settings
    more = labelled_beside(settings, sum(len(block.questions) for block in validation))
    if not more:
        return validation
    base = SamplePass((cell.source("Base"),), settings.seeds[:1], settings.sampling.m, (0,), ())
    return [*validation, *cell.clustered("calibration_train", [base], more)]


def _calibrated_rows(
    cell: Cell, labelled: Sequence[AnswerBlock], files: Mapping[str, Sequence[Lines]], *, with_se: bool
) -> dict[str, list[Lines]]:
    """Learn a calibration once, and give Base's test answers of every run their probabilities.

    `files` is file → finished rows of the test questions, a list a block; what is returned, file → its
    lines. `with_se`: the labelled questions were also drawn at the temperature of SE.
    """
    names, settings, temperature_of = (cell.model.name, cell.parts.name), cell.settings, known_temperatures()
    candidates = {temperature_of[name]: name for name in ("Base", *["SE"] * with_se)}
    folder, runs = calibration_folder(*names), range(settings.runs.count)
    job = CalibrateJob(
        tuple(labelled),
        settings.sampling.m,
        candidates,
        settings.calibrated,
        settings.grading,
        settings.seeds[0],
        cell.identity,
        cell.asking,
        settings.equivalence,
        settings.clustering.linkage,
        cell.parts.name,
        cell.max_new_tokens,
        folder,
        settings.clustering.ties,
    )
    needs = (cell.root / folder / "calibration.json",)
    learnt = cell.block_lines(cell.block(job, "calibration_train", "all", needs=needs))
    jobs = [
        ApplyJob(
            folder,
            learnt,
            tuple(
                {t: files[rows_path(*names, name, run)][place] for t, name in candidates.items()}
                for run in runs
            ),
            settings.grading,
        )
        for place in range(len(cell.cut("test")))
    ]
    calibrated: dict[str, list[Lines]] = {calibrated_path(*names, run): [] for run in runs}
    for lines, (_, block) in zip(cell.part_lines("test", jobs), cell.cut("test")):
        for run, of_run in enumerate(calibrated.values()):
            of_run.append(lines[run * len(block) : (run + 1) * len(block)])
    return calibrated
