"""The candidates of a grid and its blocks: jobs whose rows the run folder holds, or that are done now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel, ConfigDict

from semcal.errors import ServerError
from semcal.experiment.grid_settings import CALIBRATED, GridSettings, Model
from semcal.files import dumps
from semcal.measures import MEASURES
from semcal.recalibration.choosing import GRID, Candidate, CandidateFit, candidate_fits
from semcal.recalibration.methods import FITTED, FROM_SAMPLES, UNFITTED
from semcal.rows import Json, Row, failures_of
from semcal.store import Store, digest
from semcal.workers import Executor, Progress

if TYPE_CHECKING:
    from semcal.experiment.grid_state import GridState


def grid_temperatures() -> Mapping[str, float]:
    """Name → temperature of the candidates of TS-grid."""
    return {f"T = {temperature:.3f}": temperature for temperature in GRID}


def known_temperatures() -> Mapping[str, float]:
    """Name → temperature of the candidates that are not fitted."""
    unfitted = {name: method.temperature for name, method in UNFITTED.items()}
    return {**{name: t for name, t in unfitted.items() if t is not None}, **grid_temperatures()}


def candidates_of(settings: GridSettings) -> dict[str, list[Candidate]]:
    """Method → its candidates, in the order in which they are tried; Calibrated has none."""
    return {method: _candidates(method, settings) for method in settings.methods if method != CALIBRATED}


def _candidates(method: str, settings: GridSettings) -> list[Candidate]:
    if method in FROM_SAMPLES:
        return [Candidate(name) for name in grid_temperatures()]
    if method not in FITTED:
        return [Candidate(method)]
    return [candidate for fit in fits_of(settings, [method]) for candidate in fit.candidates]


def nothing_to_choose(settings: GridSettings, candidates: Mapping[str, Sequence[Candidate]]) -> bool:
    """Whether each method has one candidate, and nothing else is learnt on validation: none is asked then."""
    one_each = all(len(tried) == 1 for tried in candidates.values())
    return one_each and len(settings.selection.measure_alphas) == 1 and not settings.extras.score_maps


class Choice(BaseModel):
    """The candidate that a method uses for a measure, and that measure's a."""

    model_config = ConfigDict(frozen=True)

    candidate: str
    measure_alpha: float | None  # of T-SC and G-SC
    loss: str | None
    alpha: float | None  # of selective smoothing
    weight_decay: float | None

    @classmethod
    def of(cls, candidate: Candidate, measure_alpha: float | None) -> Choice:
        """A candidate with an a."""
        return cls(
            candidate=candidate.name,
            measure_alpha=measure_alpha,
            loss=candidate.loss,
            alpha=candidate.alpha,
            weight_decay=candidate.weight_decay,
        )


#: By method and measure.
Choices = Mapping[str, Mapping[str, Choice]]


class Selected(BaseModel):
    """What is chosen on validation, as `SelectJob` tells it."""

    model_config = ConfigDict(frozen=True)

    methods: Choices  # at m draws, from all candidates
    by_loss: Mapping[str, Choices]  # from those of one loss
    by_draws: Mapping[str, Choices]  # at other numbers of draws
    table: list[dict[str, Any]]  # every candidate's scores
    validation_scores: dict[str, dict[str, list[Any]]] | None = None  # of Base: what score maps learn from


def only_choices(settings: GridSettings, candidates: Mapping[str, Sequence[Candidate]]) -> Selected:
    """What is chosen where there is nothing to choose; without scores."""
    (alpha,) = settings.selection.measure_alphas
    methods = {
        method: {
            name: Choice.of(only, alpha if measure.parameter else None) for name, measure in MEASURES.items()
        }
        for method, (only,) in candidates.items()
    }
    by_draws = {str(count): methods for count in settings.chosen_at}
    return Selected(methods=methods, by_loss={}, by_draws=by_draws, table=[])


def labelled_beside(settings: GridSettings, validation: int) -> int:
    """How many questions of calibration-train Calibrated is learnt from, beside those of validation."""
    return max(0, settings.calibrated.questions - validation)


def fits_of(settings: GridSettings, methods: Iterable[str]) -> list[CandidateFit]:
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
    *("cluster", "grade", "select", "measure", "nli", "calibrate", "apply"),
)
Lines = list[str]


class RowsJob(Protocol):
    """A job that gives the rows of a block."""

    @property
    def stage(self) -> str: ...

    def key(self) -> dict[str, Any]:
        """What its rows depend on."""

    def __call__(self, state: Any, progress: Progress, /) -> Sequence[Row | Json]:
        """Make the rows."""


@dataclass(frozen=True)
class BlockJob:
    """A job of the grid with the models that it needs; its rows are lines of JSON."""

    job: Callable[[Any, Progress], Sequence[Row | Json]]
    model: Model
    equivalence: str

    def __call__(self, state: GridState, progress: Progress) -> Lines:
        """Do it."""
        state.choose(self.model, self.equivalence)
        results = self.job(state, progress)
        _check_answered([row for row in results if isinstance(row, Row)])
        return [dumps(row.json if isinstance(row, Row) else row) for row in results]


def _check_answered(rows: Sequence[Row]) -> None:
    """Raise ServerError if a server answered none of the questions: such a block is not to be kept."""
    failed = list(failures_of(rows).values())
    if failed and len(failed) == len({row.id for row in rows}):
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


@dataclass
class GridBlocks:
    """The blocks of a run folder, found or made; several threads may ask at a time."""

    store: Store
    executor: Executor[Any]
    step: Callable[[str], None] = lambda _stage: None  # is told of every block that is there
    made: Counter[str] = field(default_factory=Counter)  # rows made just now, by what they count towards
    ends: list[tuple[int, int]] = field(default_factory=list)  # draws at the token limit, and the others
    on_remade: Callable[[str], None] = lambda _: None  # is told what has to be made again
    _lock: Lock = field(default_factory=Lock, init=False, repr=False)  # of `made`

    def rows(
        self, blocks: Sequence[PlannedBlock], priority: int, *, before: Callable[[], None] | None = None
    ) -> list[Lines]:
        """The rows of each block; `before` is called first if there is a block to be made."""
        stored = [self._find(block) for block in blocks]
        missing = [block for block, lines in zip(blocks, stored) if lines is None]
        if missing and before is not None:
            before()
        futures = []
        for block in missing:
            future = self._begin(block, priority)
            futures.append(future)
            if future.done() and not future.cancelled():
                future.result()  # an error of a serial executor ends the stage before more is done
        for future in as_completed(futures):
            future.result()
        finished = iter(futures)
        return [next(finished).result() if lines is None else lines for lines in stored]

    def has(self, block: PlannedBlock) -> bool:
        """Whether a block is there, as far as can be told without reading it."""
        path = self.store.path(block.job.stage, block.key)
        return all(needed.exists() for needed in (*block.needs, path))

    def _find(self, block: PlannedBlock) -> Lines | None:
        if not all(path.exists() for path in block.needs):
            return None
        lines = self.store.find_lines(block.job.stage, block.key)
        if lines is not None:
            self.step(block.job.stage)
        return lines

    def _begin(self, block: PlannedBlock, priority: int) -> Future[Lines]:
        job = BlockJob(block.job, block.model, block.equivalence)
        keep = partial(self._keep, block)
        return self.executor.submit(job, stage=block.cost, finish=keep, priority=priority)

    def _keep(self, block: PlannedBlock, lines: Lines) -> Lines:
        self.step(block.job.stage)
        with self._lock:
            self.made[block.cost] += len(lines)
        return self.store.keep_lines(block.job.stage, block.key, lines, block.label)


def expected_blocks(settings: GridSettings, sizes: Mapping[str, int]) -> Counter[str]:
    """Blocks by stage of one model on a data set whose parts have these sizes."""
    validation, test = block_count(settings, sizes["validation"]), block_count(settings, sizes["test"])
    extras = settings.extras
    chosen = nothing_to_choose(settings, candidates_of(settings))
    sampled = test if chosen else validation + test
    blocks = Counter({"check": 1, "select": 1 - chosen, "greedy": test, "measure": test})
    blocks += Counter(dict.fromkeys(("sample", "cluster", "grade"), sampled))
    if set(settings.methods) & set(FITTED):
        fits = len(fits_of(settings, FITTED))
        blocks += Counter({"features": 1, "diagnose": int(extras.token_losses), "fit": fits})
    if CALIBRATED in settings.methods:
        more = labelled_beside(settings, 0 if chosen else sizes["validation"])
        labelled = block_count(settings, min(more, sizes["calibration_train"]))
        blocks += Counter({"sample": labelled, "cluster": labelled, "calibrate": 1, "apply": test})
    blocks["nli"] = test * extras.entailment * ("Base" in settings.methods)
    return +blocks


def block_count(settings: GridSettings, questions: int) -> int:
    """Blocks that so many questions are cut into."""
    return -(-questions // settings.block)
