"""The grid in a run folder: every model on every data set, block by block, resumable at any time."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from threading import Lock

from semcal.errors import SemcalWarning, StoreError
from semcal.experiment.cell import FIT, GridCell, answer, prepare
from semcal.experiment.finished import QUESTIONS, SCRATCH, read_environment
from semcal.experiment.fit_steps import GridState, IdentifyStep, Identities
from semcal.experiment.grid_plan import (
    Parts,
    Problem,
    essentials,
    expected_blocks,
    load_parts,
    nothing_to_choose,
)
from semcal.experiment.grid_settings import CALIBRATED, GridSettings, Model, claim_folder, slug
from semcal.files import dumps, read_object, remove_leftovers, write_rows
from semcal.recalibration.methods import FITTED
from semcal.recalibration.records import check_enough, warn_if_few
from semcal.rows import Json, warn_of_cut_draws
from semcal.steps import Block, Stage, StageJob
from semcal.store import Store, write_if_new
from semcal.workers import Executor, environment, versions

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

    def table(self) -> list[str]:
        """Return a line for each stage, the largest first: its CPU seconds and its share of the total."""
        total = sum(self.seconds.values()) or 1.0
        ranked = sorted(self.seconds.items(), key=lambda pair: -pair[1])
        return [f"{name:<18} {spent:7.1f} s {spent / total:5.0%}" for name, spent in ranked]


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
    while_starting: Callable[[], object] = lambda: None  # called while the first job waits for its worker
    made: Counter[str] = field(default_factory=Counter, init=False)

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
        expected = Counter[str]()
        for settings, parts in product(settings_of_models, sets):
            expected += expected_blocks(settings, parts.sizes())
        for model in self.settings.models:
            if gone := self.settings.left_out(model):
                warnings.warn(
                    f"{model.name} is behind a server, which has no states, logits or beams; left out for "
                    f"it: {', '.join(gone)}",
                    SemcalWarning,
                    stacklevel=2,
                )
        ends: list[tuple[int, int, int]] = []
        with self.progress("run", expected.total()) as update:
            on_block = BlockProgress(update, expected, self.executor.elapsed, self.made)
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
        self, model: Model, settings: GridSettings, sets: Sequence[Parts], on_block: BlockProgress
    ) -> list[GridCell]:
        asking = {parts.name: parts.asking for parts in sets}
        stage = Stage((IdentifyStep(asking),), models=(model, self.settings.equivalence))
        identified = self.executor.submit(StageJob(stage, ()), stage="identify")
        self.while_starting()
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
        seconds = Counter(self.clock.seconds)
        seconds.update(self.executor.seconds)
        record = {
            **environment(),
            **costs(before, seconds=seconds, peaks=self.executor.peaks, made=self.made),
            "seconds": before.get("seconds", 0.0) + self.clock.elapsed,
            "sessions": before.get("sessions", 0) + 1,
            "processes": self.executor.n_workers,
            "retries": before.get("retries", 0) + self.executor.retries,
            "peak_memory_mb": max(before.get("peak_memory_mb", 0.0), self.executor.peak_memory_mb),
        }
        write_if_new(self.folder / "environment.json", dumps(record, indent=1) + "\n")


@dataclass
class BlockProgress:
    """Report finished blocks, and estimate the remaining work from the times of finished blocks by stage."""

    update: Callable[[int], None]
    expected: Counter[str]  # by stage
    elapsed: Mapping[str, tuple[int, float]]  # `Executor.elapsed`
    made: Counter[str] = field(default_factory=Counter)  # new rows by the name of their costs
    finished: Counter[str] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def __call__(self, block: Block, n_made: int) -> None:
        """Count a finished block with this number of new rows; fits of later runs do not count."""
        with self._lock:
            self.finished[block.stage.name] += 1
            self.made[block.stage.counted_as or block.stage.name] += n_made
            if hasattr(self.update, "weigh"):
                self.update.weigh(*self.work())
            self.update(min(self.finished.total(), self.expected.total()))

    def work(self) -> tuple[float, float]:
        """Return the seconds of finished jobs, and the estimated seconds of remaining blocks.

        A block of a stage without finished jobs counts with the mean of all jobs.
        """
        jobs, seconds = Counter[str](), dict.fromkeys(self.expected, 0.0)
        for label, (n_jobs, elapsed) in list(self.elapsed.items()):
            if (stage := _stage(label)) in seconds:
                jobs[stage] += n_jobs
                seconds[stage] += elapsed
        done, usual = sum(seconds.values()), sum(seconds.values()) / max(1, jobs.total())
        left = self.expected - self.finished
        return done, sum(n * (seconds[s] / jobs[s] if jobs[s] else usual) for s, n in left.items())


def _prepare_and_answer(cell: GridCell) -> None:
    prepare(cell)
    answer(cell, {})


# ---- Costs of a session


def costs(
    before: Json, *, seconds: Mapping[str, float], peaks: Mapping[str, float], made: Mapping[str, int]
) -> Json:
    """Return the recorded costs plus the costs of a session.

    `seconds` (of CPU), `peaks` (memory, 10⁶ bytes) and `made` (rows) are by stage, those of fits by
    `fit_label`. The result is {cpu_seconds, peak_memory_mb_by_stage, fits}: the first two by stage, and
    {seconds, fits} by model and method.
    """
    spent: Counter[str] = Counter(before.get("cpu_seconds", {}))
    highest = dict(before.get("peak_memory_mb_by_stage", {}))
    for label, more in seconds.items():
        spent[_stage(label)] += more  # type: ignore[assignment]
    for label, peak in peaks.items():
        highest[_stage(label)] = max(peak, highest.get(_stage(label), 0.0))
    fits = {model: dict(of_model) for model, of_model in before.get("fits", {}).items()}
    for label in dict.fromkeys(label for label in (*seconds, *made) if label.startswith(FIT)):
        method, _, model = label.removeprefix(FIT).partition(" ")
        recorded = fits.setdefault(model, {}).get(method, {"seconds": 0.0, "fits": 0})
        fits[model][method] = {
            "seconds": recorded["seconds"] + seconds.get(label, 0.0),
            "fits": recorded["fits"] + made.get(label, 0),
        }
    return {"cpu_seconds": dict(spent), "peak_memory_mb_by_stage": highest, "fits": fits}


def _stage(label: str) -> str:
    return "fit" if label.startswith(FIT) else label
