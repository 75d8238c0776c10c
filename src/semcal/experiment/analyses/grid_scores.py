"""The scores of every method for every measure in a finished run, the basis of all analyses.

Rows are read as arrays, each file once, and then released. For one model on one data set all methods are
compared on the same questions: a question that is null for some method or measure counts for none of them.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import chain, product
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from semcal import metrics
from semcal.arrays import Floats
from semcal.data.question import Ties, several, ties_of
from semcal.errors import StoreError, UndefinedWarning
from semcal.experiment.finished import FinishedRun
from semcal.experiment.grid_settings import Evaluation
from semcal.meaning.answer import is_refusal
from semcal.metrics import METRICS, Contrast, Interval, JointBootstrap
from semcal.metrics.overview import noise_floors

_Key = TypeVar("_Key", bound=Hashable)
MethodMeasure = tuple[str, str]  # a method and a measure
#: A row of results.json, or an entry of a row; undefined values are None.
ScoreRow = dict[str, Any]
ScoreRows = list[ScoreRow]
#: A row of a file, read only.
Record = Mapping[str, Any]
Records = Sequence[Record]


@dataclass(frozen=True, eq=False)
class Columns:
    """N test questions with one candidate in one run; dicts are by measure, NaN if null."""

    ids: tuple[str, ...]
    ties: tuple[Ties, ...]  # passage and value in the field `group` of each question
    confidence: dict[str, Floats]  # (N,) each
    correct: dict[str, Floats]  # 0 or 1
    entropy: dict[str, Floats]  # nats
    greedy: tuple[str, ...]  # the greedy answers
    greedy_correct: Floats
    beam_correct: Floats | None  # None without beams
    correct_nli: dict[str, Floats] | None  # by entailment; None if not graded so
    rules: dict[str, Counter[str]]  # number of decisions of each grading rule
    distinct: float  # distinct answers, mean over questions
    meanings: float  # clusters, mean over questions
    refusals: float  # share of samples that refuse to answer


# ---- Verdicts on comparisons -------------------------------------------------------------------------------

#: Minimum number of correct answers, and of wrong ones, of each side of a comparison.
FEWEST_OF_A_KIND = 10
BETTER, WORSE, UNCLEAR, TOO_FEW = "better", "worse", "no clear difference", "too few to say"


def has_enough(n: int, *accuracies: float | None) -> bool:
    """Return whether n answers of each accuracy contain ten correct and ten wrong ones.

    >>> has_enough(40, 0.5, 0.7), has_enough(30, 0.5, 1 / 30), has_enough(40, 0.5, None)
    (True, False, False)
    """
    return all(
        share is not None and min(share, 1 - share) * n >= FEWEST_OF_A_KIND - 1e-9 for share in accuracies
    )


def above_floor(error: float, floor: float | None) -> float:
    """Return the part of a calibration error above its noise floor, or all of it if the floor is unknown.

    Few questions and confidences near one half increase the error of a calibrated method most.

    >>> round(above_floor(0.335, 0.250), 3), above_floor(0.07, 0.08), above_floor(0.07, None)
    (0.085, 0.0, 0.07)
    """
    return error if floor is None else max(error - floor, 0.0)


def verdict(interval: Sequence[float], *, larger_is_better: bool, enough: bool = True) -> str:
    """Return the verdict on a difference with this interval over questions.

    >>> verdict((0.01, 0.03), larger_is_better=False), verdict((-0.01, 0.03), larger_is_better=False)
    ('worse', 'no clear difference')
    """
    low, high = interval
    if not enough:
        return TOO_FEW
    if low <= 0 <= high:
        return UNCLEAR
    return BETTER if (low > 0) == larger_is_better else WORSE


def base_candidate(run: FinishedRun, model: str, dataset: str) -> str:
    """Return the candidate of Base, or of the first method if Base was not run."""
    methods = run.selections[model, dataset]["methods"]
    of_measures = methods.get("Base") or next(iter(methods.values()))
    return str(next(iter(of_measures.values()))["candidate"])


def read_columns(
    run: FinishedRun, model: str, dataset: str, candidate: str, number: int = 0, *, draws: int | None = None
) -> Columns:
    """Read the rows of one candidate and run.

    StoreError as in `FinishedRun.rows`, and if a confidence is invalid.
    """
    rows = run.rows(model, dataset, candidate, number, draws=draws)
    try:
        return _columns(rows, run.measures)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        path = run.samples_path(model, dataset, candidate, number, draws=draws)
        raise StoreError(
            f"{path} holds an invalid measured row ({error}): delete it and run `semcal run` again"
        ) from error


def _columns(rows: Records, measures: Sequence[str]) -> Columns:
    samples = [row["samples"] for row in rows]
    draws = Counter(chain.from_iterable(samples))

    def by_measure(key: str) -> dict[str, Floats]:
        table = np.array([[row[key].get(name) for name in measures] for row in rows], dtype=np.float64)
        return dict(zip(measures, np.ascontiguousarray(table.T)))

    def column(key: str) -> Floats:
        return np.array([row[key] for row in rows], dtype=np.float64)

    return Columns(
        ids=tuple(str(row["id"]) for row in rows),
        ties=tuple(map(ties_of, rows)),
        confidence=by_measure("confidence"),
        correct=by_measure("correct"),
        entropy=by_measure("semantic_entropy"),
        greedy=tuple(row["greedy"] for row in rows),
        greedy_correct=column("greedy_correct"),
        beam_correct=column("beam_correct") if all("beam_correct" in row for row in rows) else None,
        correct_nli=by_measure("correct_nli") if "correct_nli" in rows[0] else None,
        rules={name: Counter(str(row["rule"].get(name)) for row in rows) for name in measures},
        distinct=float(np.mean([len(set(texts)) for texts in samples])),
        meanings=float(np.mean([len(row["clusters"]) for row in rows])),
        refusals=sum(count for text, count in draws.items() if text and _refuses(text)) / draws.total(),
    )


_refuses = lru_cache(maxsize=2**16)(is_refusal)  # runs and candidates share many of their answers


#: Variants of semantic entropy: it predicts the correctness of the selected or of a greedy answer.
VARIANTS = ("SE_conf", "SE_vanilla")
#: Calibration errors with a noise floor: all except SmoothECE, whose floor takes twenty times as long.
FLOORED = ("ace", "ece")
NO_FLOORS: Record = {f"{metric}_{name}": None for metric in FLOORED for name in ("floor", "floor_95", "p")}
#: Metrics with an isotonic regression in every resample, and their maximum number of resamples.
FITTED = ("mcb", "dsc")
FITTED_RESAMPLES = 200


def bootstrapped_metrics() -> tuple[str, ...]:
    """Return the metrics with an interval over questions: all that are not slow."""
    return tuple(name for name, metric in METRICS.items() if not metric.slow)


@dataclass(frozen=True, eq=False)
class ScoreArrays:
    """One method for one measure: R runs on the N questions that count, (R, N) each; correct is 0 or 1."""

    confidence: Floats
    correct: Floats  # of the selected answer, as graded in the run
    entropy: Floats
    vanilla_correct: Floats  # of the candidate's greedy or beam answer

    @property
    def by_variant(self) -> dict[str, Floats]:
        """The correctness that each variant of semantic entropy (`VARIANTS`) predicts."""
        return dict(zip(VARIANTS, (self.correct, self.vanilla_correct)))


@dataclass(frozen=True, eq=False)
class PairScores:
    """All methods and measures of one model on one data set."""

    arrays: dict[MethodMeasure, ScoreArrays]  # by (method, measure)
    n: int  # number of questions that count
    undefined: int  # number of other questions, for which a measure is null with some method
    evaluation: Evaluation  # settings of metrics
    seed: tuple[int, ...]  # of the resamples
    groups: NDArray[np.intp] | None = None  # (N,) resampled together; None: each question alone
    #: Metrics with an interval over questions.
    bootstrapped: tuple[str, ...] = field(default_factory=bootstrapped_metrics)

    @cached_property
    def by_run(self) -> dict[MethodMeasure, dict[str, Floats]]:
        """Every metric of every run: (method, measure) → metric → [R]."""
        if not self.arrays:
            return {}
        confidence = np.concatenate([cell.confidence for cell in self.arrays.values()])
        correct = np.concatenate([cell.correct for cell in self.arrays.values()])
        by_metric = metrics.summaries(confidence, correct)
        runs = len(confidence) // len(self.arrays)
        return {
            key: {name: values[i * runs : (i + 1) * runs] for name, values in by_metric.items()}
            for i, key in enumerate(self.arrays)
        }

    def has_enough(self, keys: Iterable[MethodMeasure], outcomes: str = "correct") -> bool:
        """Return whether each of these has ten correct and ten wrong answers, mean over runs."""
        return has_enough(self.n, *(float(getattr(self.arrays[key], outcomes).mean()) for key in keys))

    @cached_property
    def floors(self) -> dict[MethodMeasure, ScoreRow]:
        """The noise floors of each method for each measure: {ace_floor, ace_floor_95, ace_p, ece_…}."""
        return {key: self._floors(arrays) for key, arrays in self.arrays.items()}

    def _floors(self, arrays: ScoreArrays) -> ScoreRow:
        """Return the noise floors of one method for one measure."""
        floors_of_runs = [
            noise_floors(
                np.clip(p, 0.0, 1.0),
                correct,
                FLOORED,
                groups=self.groups,
                draws=self.evaluation.resamples,
                seed=np.random.default_rng(self.seed),
            )
            for p, correct in zip(arrays.confidence, arrays.correct)
        ]
        by_name: ScoreRow = {}
        for metric in FLOORED:
            floors = [run[metric] for run in floors_of_runs]
            p_value = float(np.mean([floor.p_value for floor in floors]))
            by_name[f"{metric}_floor"] = float(np.mean([floor.mean for floor in floors]))
            by_name[f"{metric}_floor_95"] = float(np.mean([floor.quantile_95 for floor in floors]))
            by_name[f"{metric}_p"] = p_value if len(floors) == 1 else min(1.0, 2 * p_value)
        return by_name

    def above_floor(self, key: MethodMeasure, metric: str) -> Contrast:
        """Return a calibration error above its noise floor, in the data and in each resample."""
        error = self.resampled.contrast(key, metric)
        raised = above_floor(error.value, self.floors[key][f"{metric}_floor"]) - error.value
        return Contrast(error.value + raised, error.resampled + raised)

    def over_runs(self, key: MethodMeasure, metric: str) -> ScoreRow:
        """Return one metric over runs, with its interval over questions if there is one."""
        interval = None
        if metric in self.bootstrapped:
            interval = (self.fitted if metric in FITTED else self.resampled).interval(key, metric)
        return over_runs(self.by_run[key][metric], interval)

    def difference(self, key: MethodMeasure, metric: str, subtrahend: str) -> ScoreRow:
        """Return the difference of two metrics over runs, with its interval."""
        by_run, contrast = self.by_run[key], self.resampled.contrast
        interval = (contrast(key, metric) - contrast(key, subtrahend)).interval()
        return over_runs(by_run[metric] - by_run[subtrahend], interval)

    def measures_of(self, *methods: str) -> list[str]:
        """Return the measures that are defined for all of these methods."""
        measures = dict.fromkeys(measure for _, measure in self.arrays)
        return [name for name in measures if all((method, name) in self.arrays for method in methods)]

    @cached_property
    def resampled(self) -> JointBootstrap[MethodMeasure]:
        """The metrics with an interval, on common resamples of the questions."""
        scored = {key: (cell.confidence, cell.correct) for key, cell in self.arrays.items()}
        return self._resample(scored, [name for name in self.bootstrapped if name not in FITTED])

    @cached_property
    def fitted(self) -> JointBootstrap[MethodMeasure]:
        """The metrics that need a fit, on the first of these resamples."""
        scored = {key: (cell.confidence, cell.correct) for key, cell in self.arrays.items()}
        return self._resample(scored, FITTED, most=FITTED_RESAMPLES)

    @cached_property
    def entropies(self) -> JointBootstrap[tuple[str, str, str]]:
        """AUROC of −entropy, by method, measure and variant (`VARIANTS`)."""
        scored = {
            (*key, variant): (-cell.entropy, correct)
            for key, cell in self.arrays.items()
            for variant, correct in cell.by_variant.items()
        }
        return self._resample(scored, ("auroc",))

    def _resample(
        self, scored: Mapping[_Key, tuple[Floats, Floats]], names: Sequence[str], most: int = 2**31
    ) -> JointBootstrap[_Key]:
        return metrics.joint_bootstrap(
            scored,
            metrics=names,
            groups=self.groups,
            resamples=min(most, self.evaluation.resamples),
            seed=self.seed,
        )


@contextmanager
def undefined_as_null() -> Iterator[None]:
    """Silence warnings of undefined values, because they are null in results.json."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)
        yield


def over_runs(values: Floats | Sequence[float], interval: Interval | None = None) -> ScoreRow:
    """Return {mean, se, runs, interval}: mean and standard error over runs, [low, high] over questions.

    `se` is null for one run; all values are null if the metric is undefined in some run.

    >>> over_runs([0.80, 0.82, 0.81, 0.83])
    {'mean': 0.815, 'se': 0.0064549..., 'runs': [0.8, 0.82, 0.81, 0.83], 'interval': None}
    """
    with undefined_as_null():
        spread = metrics.mean_and_standard_error(values)
    if len(set(values)) == 1 < len(values):  # no rounding error for equal values
        spread = replace(spread, mean=float(values[0]), standard_error=0.0)
    ends = None if interval is None else [_null_if_nan(interval.low), _null_if_nan(interval.high)]
    return {
        "mean": _null_if_nan(spread.mean),
        "se": _null_if_nan(spread.standard_error),
        "runs": [_null_if_nan(float(value)) for value in values],
        "interval": None if ends is None or None in ends else ends,
    }


def contrast_summary(contrast: Contrast) -> ScoreRow:
    """Return {value, interval, p} of a contrast."""
    interval = contrast.interval()
    return {"value": interval.estimate, "interval": [interval.low, interval.high], "p": contrast.p_value()}


def _null_if_nan(value: float) -> float | None:
    return None if np.isnan(value) else value


def stack_runs(
    columns: Mapping[MethodMeasure, Sequence[Columns]], vanilla: str
) -> tuple[dict[MethodMeasure, ScoreArrays], NDArray[np.bool_]]:
    """Stack the runs of each (label, measure), without the questions that are null for some of them.

    Measures that are null for every question are left out. Also return a mask of the questions that count.
    """
    stacked, beams = {}, vanilla == "beam"
    for key, runs in columns.items():
        parts = (
            [read.confidence[key[1]] for read in runs],
            [read.correct[key[1]] for read in runs],
            [read.entropy[key[1]] for read in runs],
            [
                one.greedy_correct if one.beam_correct is None or not beams else one.beam_correct
                for one in runs
            ],
        )
        stacked[key] = np.stack(parts)  # (4, R, N)
    null = {key: np.isnan(parts[:3]).any(axis=(0, 1)) for key, parts in stacked.items()}
    stacked = {key: parts for key, parts in stacked.items() if not null[key].all()}
    if not stacked:
        return {}, np.zeros(0, dtype=np.bool_)
    counts = ~np.any([null[key] for key in stacked], axis=0)
    if not counts.any():
        return {}, counts
    arrays = {key: ScoreArrays(*(part[:, counts] for part in parts)) for key, parts in stacked.items()}
    return arrays, counts


#: Maximum number of resamples at each number of samples; the claim uses quantiles up to 1 in 680.
RESAMPLES_BY_DRAWS = 1000


class CellScores:
    """One model on one data set of a finished run; files are read, and resamples made, on first use."""

    def __init__(self, run: FinishedRun, model: str, dataset: str) -> None:
        self.run, self.model, self.dataset = run, model, dataset
        self.selection = run.selections[model, dataset]
        self.place: ScoreRow = {"model": model, "dataset": dataset}  # first fields of its rows
        self._columns: dict[tuple[str, int, int | None], Columns] = {}

    def names(self, method: str, measure: str) -> ScoreRow:
        """Return the first fields of a row of one method for one measure."""
        return {**self.place, "method": method, "measure": measure}

    def choice(self, method: str, measure: str, *, draws: int | None = None) -> Record:
        """Return the choice of a method for a measure (`FinishedRun.choice`)."""
        return self.run.choice(self.model, self.dataset, method, measure, draws=draws)

    @property
    def keys(self) -> list[MethodMeasure]:
        """Return every method of the run with every measure."""
        return list(product(self.run.methods, self.run.measures))

    def runs_of(self, candidate: str, *, draws: int | None = None, first: int | None = None) -> list[Columns]:
        """Return the columns of all runs with this number of samples, or of the first runs."""
        draws = None if draws == self.run.m else draws
        return [self._read(candidate, number, draws) for number in range(self.run.runs)[:first]]

    def _read(self, candidate: str, number: int, draws: int | None) -> Columns:
        key = (candidate, number, draws)
        if key not in self._columns:
            self._columns[key] = read_columns(
                self.run, self.model, self.dataset, candidate, number, draws=draws
            )
        return self._columns[key]

    def chosen(self, *, draws: int | None = None) -> dict[MethodMeasure, str]:
        """Return (method, measure) → the candidate in use, at m samples or at another number."""
        return {key: self.choice(*key, draws=draws)["candidate"] for key in self.keys}

    @cached_property
    def pair(self) -> PairScores:
        """The scores of the chosen candidates at m samples."""
        return self.scored(self.chosen())

    @cached_property
    def by_draws(self) -> dict[int, PairScores]:
        """The scores in run 0 at each number of samples; none if there is only m."""
        counts = self.run.settings.counts
        return {
            draws: self.scored(
                self.chosen(draws=draws),
                draws=draws,
                runs=1,
                resamples=RESAMPLES_BY_DRAWS,
                bootstrapped=("ace", "auroc"),
            )
            for draws in (sorted((*counts, self.run.m)) if counts else ())
        }

    def scored(
        self,
        candidates: Mapping[MethodMeasure, str],
        *,
        draws: int | None = None,
        runs: int | None = None,
        resamples: int | None = None,
        bootstrapped: tuple[str, ...] | None = None,
    ) -> PairScores:
        """Score some (label, measure) → candidate on their common questions.

        `draws` selects another number of samples than m, `runs` limits the number of runs, and `resamples` is
        at most the number in the settings.
        """
        run, settings = self.run, self.run.settings
        columns = {key: self.runs_of(name, draws=draws, first=runs) for key, name in candidates.items()}
        if len({read.ids for of_key in columns.values() for read in of_key}) > 1:
            raise StoreError(
                f"the sample files of {self.model} on {self.dataset} in {run.folder} hold different "
                "questions, or the same in another order: delete them and run `semcal run` again"
            )
        arrays, counts = stack_runs(columns, settings.grading.vanilla)
        ties = next(iter(columns.values()))[0].ties if arrays else ()
        most = settings.evaluation.resamples
        return PairScores(
            arrays=arrays,
            n=int(counts.sum()),
            undefined=int((~counts).sum()),
            evaluation=settings.evaluation.model_copy(update={"resamples": min(resamples or most, most)}),
            # with the data set's index in the seed, resamples of different questions are independent
            seed=(settings.seed, run.datasets.index(self.dataset)),
            groups=several(tie for tie, counted in zip(ties, counts) if counted),
            bootstrapped=bootstrapped or bootstrapped_metrics(),
        )
