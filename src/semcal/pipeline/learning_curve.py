"""How many labelled questions does TS need? ACE and Brier on validation against their number.

A temperature is fitted to random subsets of the calibration questions, from stored features. Sampling the
validation questions anew at each of these temperatures would be costly, so they are sampled once, at a grid
of temperatures, and a metric at T is read off by linear interpolation in log T between the neighbours of T
in the grid; a T beyond the grid counts as its nearest end, and is counted in `outside`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from semcal import metrics
from semcal.engine.equivalence import Equivalence
from semcal.engine.language_model import LanguageModel
from semcal.errors import FitError, InputError, UsageError
from semcal.pipeline.prompting import PromptConfig
from semcal.pipeline.select import GRID, PairedScores, Rows, paired_scores
from semcal.pipeline.store import Store
from semcal.pipeline.temperature_grid import rows_at_temperatures
from semcal.qa.questions import Question
from semcal.recalibration.features import CalibrationFeatures
from semcal.recalibration.log_partition_table import tabulate, tabulated_loss
from semcal.recalibration.provenance import check_enough
from semcal.registry import check_name
from semcal.semantics import MEASURES

SIZES = (25, 50, 100, 250, 500, 1000, 2000)
METRICS = ("ace", "brier")
_METRICS: dict[str, Callable[[ArrayLike, ArrayLike, int], float]] = {
    "ace": lambda p, c, bins: metrics.ace(p, c, bins=bins),
    "brier": lambda p, c, _: metrics.brier(p, c),
}
SubsetFit = Callable[[NDArray[np.int64]], float]
"""Indices of calibration questions (n,), ascending -> the temperature fitted to them."""


@dataclass(frozen=True)
class CurvePoint:
    """One metric of one measure after a fit to n labelled questions."""

    measure: str
    metric: str
    n: int  # labelled questions; 0 stands for T = 1, with nothing fitted
    subsets: int  # how many subsets of that size were fitted to
    mean: float  # of the metric over the subsets
    subset_low: float  # quantiles over the subsets, on the same validation questions:
    subset_high: float  # the luck of which questions one labels
    low: float  # bootstrap interval of the mean over validation questions, the subsets held fixed
    high: float


@dataclass(frozen=True)
class LearningCurve:
    """How ACE and Brier score move with the number of labelled questions."""

    points: tuple[CurvePoint, ...]  # by measure, metric and ascending n
    temperatures: Mapping[int, tuple[float, ...]]  # n -> those fitted to its subsets
    outside: int  # how many of them lie beyond the grid

    def of(self, measure: str, metric: str) -> tuple[CurvePoint, ...]:
        """The points of one curve."""
        found = tuple(p for p in self.points if (p.measure, p.metric) == (measure, metric))
        if not found:
            known = sorted({f"{p.measure}, {p.metric}" for p in self.points})
            raise UsageError(f"there is no curve of {measure}, {metric}; known: {'; '.join(known)}")
        return found

    def labels_needed(self, measure: str, metric: str = "ace", *, margin: float = 0.01) -> int:
        """The fewest labels from which on (nearly) every subset comes within `margin` of the most labels."""
        points = self.of(measure, metric)
        limit = points[-1].mean + margin
        needed = points[-1].n
        for point in reversed(points):
            if point.subset_high > limit:
                break
            needed = point.n
        return needed

    def table(self) -> list[dict[str, Any]]:
        """One dict a point, with the median temperature of its subsets."""
        return [
            {**asdict(point), "temperature": float(np.median(self.temperatures[point.n]))}
            for point in self.points
        ]


def subset_fit(
    model: LanguageModel, features: CalibrationFeatures, *, loss: str = "NLL", alpha: float | None = None
) -> SubsetFit:
    """Return the fit of TS to any subset of stored features; one pass over the logits serves all subsets.

    T comes from log-partition tables and is within 1e-4 of the exact one, relatively.
    """
    curve = tabulated_loss(features, tabulate(features, model.logits), loss=loss, alpha=alpha)

    def fit(indices: NDArray[np.int64]) -> float:
        counts = np.bincount(indices, minlength=len(features.prompt_start))
        return 1 / float(curve.minimum(torch.from_numpy(counts).double()[None]))

    return fit


def subset_temperatures(
    fit: SubsetFit,
    n_questions: int,
    *,
    sizes: Sequence[int] = SIZES,
    subsets: int = 20,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> dict[int, tuple[float, ...]]:
    """Fit a temperature to random subsets of each size: size → temperatures, sizes ascending.

    Sizes above `n_questions` are left out; of that size there is one subset. Those of number s are nested:
    the first n of one random order, which depends on (seed, s) alone. `progress` gets the number of fits.
    """
    if subsets < 1 or not sizes:
        raise UsageError(f"expected a size and a subset at least, got sizes {list(sizes)}, subsets {subsets}")
    check_enough(min(sizes), of="in the smallest subset")
    possible = sorted({size for size in sizes if size <= n_questions})
    if not possible:
        raise FitError(
            f"there are {n_questions} calibration questions, fewer than any of the sizes {list(sizes)}"
        )
    orders = [np.random.default_rng([seed, s]).permutation(n_questions) for s in range(subsets)]
    found: dict[int, tuple[float, ...]] = {}
    done = 0
    for size in possible:
        fitted = []
        for order in orders if size < n_questions else orders[:1]:
            fitted.append(fit(np.sort(order[:size])))
            done += 1
            if progress is not None:
                progress(done)
        found[size] = tuple(fitted)
    return found


def grid_weights(temperatures: ArrayLike, grid: ArrayLike) -> NDArray[np.float64]:
    """Share of each temperature of the grid (G,) in the interpolated value at each given one (S,): (S, G).

    Rows add up to 1: linear in log T between neighbours, the nearest end beyond the grid.
    """
    x, nodes = np.log(np.asarray(temperatures, dtype=np.float64)), np.log(np.asarray(grid, dtype=np.float64))
    return np.stack([np.interp(x, nodes, unit) for unit in np.eye(len(nodes))], axis=1)


def learning_curve(
    temperatures: Mapping[int, Sequence[float]],
    rows: Mapping[float, Rows],
    *,
    measures: Collection[str] = MEASURES,
    bins: int = 15,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> LearningCurve:
    """Read ACE and Brier score at fitted temperatures off graded validation rows at a grid of temperatures.

    `temperatures` are those fitted to subsets of n questions (`subset_temperatures`), to which T = 1 is added
    as 0 labels; `level` is that of the quantiles over subsets and of the intervals over questions.
    Interpolation leaves out the curvature of a metric between neighbours, about a quarter of what doubling
    the step would show, and averages the chance of two samplings.
    """
    fitted = {0: (1.0,), **{n: tuple(map(float, of_n)) for n, of_n in sorted(temperatures.items())}}
    _check(fitted, rows)
    grid = sorted(rows)
    weights = {n: grid_weights(of_n, grid) for n, of_n in fitted.items()}
    points = []
    for measure in measures:
        check_name(measure, MEASURES, what="measure")
        paired = paired_scores([rows[t] for t in grid], measure)
        if paired.ids:
            found = {
                n: _points(measure, n, w, paired, bins, level, resamples, seed) for n, w in weights.items()
            }
            points += [found[n][metric] for metric in METRICS for n in fitted]
    if not points:
        raise InputError("no validation question has a confidence under any of the measures")
    outside = sum(not grid[0] <= t <= grid[-1] for n, of_n in fitted.items() if n for t in of_n)
    return LearningCurve(tuple(points), fitted, outside)


def _check(fitted: Mapping[int, Sequence[float]], rows: Mapping[float, Rows]) -> None:
    for t in [*rows, *(t for of_n in fitted.values() for t in of_n)]:
        if not 0 < t < np.inf:
            raise UsageError(f"a temperature is a positive number, got {t}")
    if not rows or not all(fitted.values()):
        raise UsageError("a learning curve needs rows at one temperature or more, and a fit for each size")


def _points(
    measure: str,
    n: int,
    weights: NDArray[np.float64],
    paired: PairedScores,
    bins: int,
    level: float,
    resamples: int,
    seed: int,
) -> dict[str, CurvePoint]:
    """The point of each metric at one size; `weights` (subsets, grid)."""
    used = np.flatnonzero(weights.sum(0))
    confidence, correct, weights = paired.confidence[used], paired.correct[used], weights[:, used]
    intervals = metrics.bootstrap(
        confidence,
        correct,
        metrics=METRICS,
        weights=weights.mean(0),
        groups=paired.groups,
        bins=bins,
        level=level,
        resamples=resamples,
        seed=seed,
    )
    found = {}
    for metric, compute in _METRICS.items():
        values = weights @ [compute(p, c, bins) for p, c in zip(confidence, correct)]
        low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2]).tolist()
        interval = intervals[metric]
        found[metric] = CurvePoint(
            measure, metric, n, len(values), float(values.mean()), low, high, interval.low, interval.high
        )
    return found


def grid_around(temperatures: Sequence[float], grid: Sequence[float] = GRID) -> tuple[float, ...]:
    """Return the temperatures of a grid that have a share in the value at one of `temperatures`."""
    used = grid_weights(temperatures, grid).sum(0) > 0
    return tuple(np.asarray(grid)[used].tolist())


def curve_of_labels(
    model: LanguageModel,
    features: CalibrationFeatures,
    validation: Sequence[Question],
    *,
    asking: PromptConfig,
    equivalence: Equivalence,
    loss: str = "NLL",
    alpha: float | None = None,
    sizes: Sequence[int] = SIZES,
    subsets: int = 20,
    m: int = 10,
    seed: int = 0,
    max_new_tokens: int | None = None,
    progress: Callable[[str, int], Callable[[int], None]] | None = None,
    keep: Path | None = None,
) -> LearningCurve:
    """Fit TS to random subsets of the calibration questions, and measure each on the validation questions.

    The validation questions are sampled once, at those temperatures of the grid between which a fitted one
    lies. To `sizes` all questions are added, larger ones are left out; the seed also draws the subsets and
    the resamples. `keep` is a folder for finished blocks of validation questions, to resume from.
    """

    def shown(label: str, total: int) -> Callable[[int], None] | None:
        return None if progress is None else progress(label, total)

    count = len(features.prompt_start)
    tried = sorted({count, *(size for size in sizes if size <= count)})
    fit = subset_fit(model, features, loss=loss, alpha=alpha)
    fits = subsets * (len(tried) - 1) + 1  # of all questions there is one subset
    fitted = subset_temperatures(
        fit, count, sizes=tried, subsets=subsets, seed=seed, progress=shown("subsets", fits)
    )
    grid = grid_around([1.0, *(t for of_size in fitted.values() for t in of_size)])
    rows = rows_at_temperatures(
        model,
        validation,
        grid,
        asking=asking,
        equivalence=equivalence,
        m=m,
        seed=seed,
        max_new_tokens=max_new_tokens,
        progress=shown("validation", len(validation)),
        keep=Store(keep) if keep else None,
    )
    return learning_curve(fitted, rows, seed=seed)
