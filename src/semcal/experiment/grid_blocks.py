"""The candidates of a grid and its blocks: jobs whose rows the run folder holds, or that are done now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from semcal.errors import ServerError
from semcal.experiment.grid_settings import CALIBRATED, GridSettings, Model
from semcal.pipeline.executor import Executor, Progress
from semcal.pipeline.rows import failures_of
from semcal.pipeline.select import GRID, Candidate, CandidateFit, candidate_fits
from semcal.pipeline.store import Store, digest, read_block
from semcal.records import dumps
from semcal.semantics import MEASURES

if TYPE_CHECKING:
    from semcal.experiment.grid_state import GridState

#: Methods that are fitted to calibration questions.
FITTED = ("TS", "ATS", "Platt")


def grid_temperatures() -> Mapping[str, float]:
    """Name → temperature of the candidates of TS-grid."""
    return {f"T = {temperature:.3f}": temperature for temperature in GRID}


def known_temperatures() -> Mapping[str, float]:
    """Name → temperature of the candidates that are not fitted."""
    return {"Base": 1.0, "SE": 0.5, **grid_temperatures()}


def candidates_of(settings: GridSettings) -> dict[str, list[Candidate]]:
    """Method → its candidates, in the order in which they are tried; Calibrated has none."""
    return {method: _candidates(method, settings) for method in settings.methods if method != CALIBRATED}


def _candidates(method: str, settings: GridSettings) -> list[Candidate]:
    if method == "TS-grid":
        return [Candidate(name) for name in grid_temperatures()]
    if method not in FITTED:
        return [Candidate(method)]
    return [candidate for fit in fits_of(settings, [method]) for candidate in fit.candidates]


def nothing_to_choose(settings: GridSettings, candidates: Mapping[str, Sequence[Candidate]]) -> bool:
    """Whether each method has one candidate, and nothing else is learnt on validation: none is asked then."""
    one_each = all(len(given) == 1 for given in candidates.values())
    return one_each and len(settings.selection.measure_alphas) == 1 and not settings.extras.score_maps


def only_choices(settings: GridSettings, candidates: Mapping[str, Sequence[Candidate]]) -> dict[str, Any]:
    """What is chosen where there is nothing to choose, as the job `select` gives it; without scores."""
    (measure_alpha,) = settings.selection.measure_alphas
    methods = {
        method: {
            measure: {
                "candidate": one.name,
                "measure_alpha": measure_alpha if MEASURES[measure].parameter else None,
                **{key: value for key, value in asdict(one).items() if key != "name"},
            }
            for measure in MEASURES
        }
        for method, (one,) in candidates.items()
    }
    by_draws = {str(count): methods for count in settings.chosen_at}
    return {"methods": methods, "by_loss": {}, "by_draws": by_draws, "table": []}


def labelled_beside(settings: GridSettings, validation: int) -> int:
    """How many questions of calibration-train Calibrated is learnt from, beside those of validation."""
    return max(0, settings.calibrated.questions - validation)


def fits_of(settings: GridSettings, methods: Sequence[str]) -> list[CandidateFit]:
    """The fits of some methods in the first run."""
    fitting = settings.fitting
    return candidate_fits(
        [method for method in settings.methods if method in FITTED and method in methods],
        losses=fitting.losses,
        weight_decays=fitting.weight_decays,
        solver=fitting.solver,
    )


def refits_of(settings: GridSettings, names: Sequence[str]) -> list[CandidateFit]:
    """The fits of some candidates in the later runs; an exact solution has no seed, so runs share it."""
    if not settings.runs.refit:
        return []
    return [
        replace(fit, losses=(loss,), run=run)
        for run in range(1, settings.runs.count)
        for fit in fits_of(settings, FITTED)
        if fit.solver == "sgd"
        for loss, candidate in zip(fit.losses, fit.candidates)
        if candidate.name in names
    ]


#: In the order in which each builds on those before it.
STAGES = (
    *("check", "features", "fit", "diagnose", "sample", "greedy"),
    *("cluster", "grade", "select", "measure", "nli", "plain", "calibrate", "apply"),
)
Lines = list[str]


class RowsJob(Protocol):
    """A job that gives the rows of a block."""

    @property
    def stage(self) -> str: ...

    def key(self) -> dict[str, Any]:
        """What its rows depend on."""

    def __call__(self, state: Any, progress: Progress, /) -> list[dict[str, Any]]:
        """Make the rows."""


@dataclass(frozen=True)
class BlockJob:
    """A job of the grid with the models that it needs; its rows are lines of JSON."""

    job: Callable[[Any, Progress], list[dict[str, Any]]]
    model: Model
    equivalence: str
    block: str | None = None  # relative to the run folder: read instead if it is there by now

    def __call__(self, state: GridState, progress: Progress) -> Lines:
        """Do it."""
        if self.block is not None and (state.folder / self.block).exists():
            return read_block(state.folder / self.block).lines
        state.choose(self.model, self.equivalence)
        rows = self.job(state, progress)
        _check_answered(rows)
        return list(map(dumps, rows))


def _check_answered(rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise ServerError if a server answered none of the questions: such a block is not to be kept."""
    failed = list(failures_of(rows).values())
    if failed and len(failed) == len({row["id"] for row in rows}):
        raise ServerError(
            f"the server answered none of {len(failed)} questions asked together, first {failed[0]}; run the "
            "same command again, which goes on here, or take such questions out of the data"
        )


@dataclass(frozen=True)
class PlannedBlock:
    """A block to be found, or made by a job."""

    job: RowsJob
    depends: Mapping[str, Any]  # what its rows depend on beside the job's key: the model, or the equivalence
    label: Mapping[str, Any]  # what it is a part of: model, dataset, part, block
    model: Model
    equivalence: str
    needs: tuple[Path, ...] = ()  # files beside the block without which it is made again
    counted_as: str = ""  # what its cost is counted towards; its stage if this is empty

    @property
    def key(self) -> dict[str, str]:
        """What names the block."""
        return {"inputs": digest({**self.depends, **self.job.key()})}

    @property
    def cost(self) -> str:
        """What its cost is counted towards."""
        return self.counted_as or self.job.stage


@dataclass(frozen=True)
class Shard:
    """A share of the blocks: of every `of` that follow one another the one at `number` (from 1)."""

    number: int
    of: int

    def holds(self, place: int) -> bool:
        """Whether the block at a place (from 0) is in it."""
        return place % self.of == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


@dataclass
class GridBlocks:
    """The blocks of a run folder, and what is missing of them; several threads may ask at a time."""

    store: Store
    executor: Executor[Any]
    shard: Shard | None = None  # None makes everything
    step: Callable[[str], None] = lambda _stage: None  # is told of every block that is there
    missing: Counter[str] = field(default_factory=Counter)  # blocks of other shards, by stage
    made: Counter[str] = field(default_factory=Counter)  # rows made just now, by what they count towards
    ends: list[tuple[int, int]] = field(default_factory=list)  # draws at the token limit, and the others
    on_remade: Callable[[str], None] = lambda _: None  # is told what has to be made again
    _lock: Lock = field(default_factory=Lock, init=False, repr=False)  # of both counts

    def rows(
        self,
        blocks: Sequence[PlannedBlock | None],
        priority: int,
        *,
        everyone: bool = False,
        before: Callable[[], None] | None = None,
    ) -> list[Lines | None]:
        """The rows of each block; None for a block of another shard that is not there, and for None.

        `everyone` is for what each shard needs whole: its own share first, then those of others.
        `before` is called first if there is a block to be made.
        """
        found = [None if block is None else self._find(block) for block in blocks]
        wanted = [i for i, block in enumerate(blocks) if block is not None and found[i] is None]
        own = [i for i in wanted if self.shard is None or self.shard.holds(i)]
        others = [i for i in wanted if i not in set(own)]
        now = [*own, *others] if everyone else own
        if now and before is not None:
            before()
        begun: dict[Future[Lines], int] = {}
        for i in now:
            future = self._begin(blocks[i], priority)
            begun[future] = i
            if future.done() and not future.cancelled():
                future.result()  # an error of a serial executor ends the stage before more is done
        for future in as_completed(begun):
            found[begun[future]] = future.result()
        for i in [] if everyone else others:
            block = blocks[i]
            assert block is not None
            found[i] = self._find(block)
            self._add(self.missing, block.job.stage, int(found[i] is None))
        return found

    def _add(self, counts: Counter[str], name: str, more: int) -> None:
        with self._lock:
            counts[name] += more

    def has(self, block: PlannedBlock) -> bool:
        """Whether a block is there, as far as can be told without reading it."""
        path = self.store.path(block.job.stage, block.key)
        return all(one.exists() for one in (*block.needs, path))

    def _find(self, block: PlannedBlock) -> Lines | None:
        if not all(path.exists() for path in block.needs):
            return None
        lines = self.store.find_lines(block.job.stage, block.key)
        if lines is not None:
            self.step(block.job.stage)
        return lines

    def _begin(self, block: PlannedBlock | None, priority: int) -> Future[Lines]:
        assert block is not None
        path = self.store.path(block.job.stage, block.key).relative_to(self.store.root)
        shared = self.shard is not None and all(one.exists() for one in block.needs)
        job = BlockJob(block.job, block.model, block.equivalence, str(path) if shared else None)
        keep = partial(self._keep, block)
        return self.executor.submit(job, stage=block.cost, then=keep, priority=priority)

    def _keep(self, block: PlannedBlock, lines: Lines) -> Lines:
        self.step(block.job.stage)
        self._add(self.made, block.cost, len(lines))
        return self.store.keep_lines(block.job.stage, block.key, lines, block.label)


def expected_blocks(settings: GridSettings, sizes: Mapping[str, int]) -> Counter[str]:
    """Blocks by stage of one model on a data set whose parts have these sizes."""
    validation, test = block_count(settings, sizes["validation"]), block_count(settings, sizes["test"])
    extras = settings.extras
    chosen = nothing_to_choose(settings, candidates_of(settings))
    asked = test if chosen else validation + test
    found = Counter({"check": 1, "select": 1 - chosen, "greedy": test, "measure": test})
    found += Counter(dict.fromkeys(("sample", "cluster", "grade"), asked))
    if set(settings.methods) & set(FITTED):
        fits = len(fits_of(settings, FITTED))
        found += Counter({"features": 1, "diagnose": int(extras.token_losses), "fit": fits})
    found["plain"] = test * extras.without_normal_forms
    if CALIBRATED in settings.methods:
        further = labelled_beside(settings, 0 if chosen else sizes["validation"])
        labelled = block_count(settings, min(further, sizes["calibration_train"]))
        found += Counter({"sample": labelled, "cluster": labelled, "calibrate": 1, "apply": test})
    found["nli"] = test * extras.entailment * ("Base" in settings.methods)
    return +found


def block_count(settings: GridSettings, questions: int) -> int:
    """Blocks that so many questions are cut into."""
    return -(-questions // settings.block)
