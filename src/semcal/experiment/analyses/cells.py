"""Confidence, correctness and entropy of each method under each measure, measured once and for all.

Methods and measures are compared on the same questions: one that is null under some method or measure counts
for none of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from semcal import metrics
from semcal.errors import UndefinedWarning
from semcal.experiment.analyses.columns import Columns
from semcal.metrics import Interval, JointBootstrap

__all__ = [
    "BOOTSTRAPPED",
    "VARIANTS",
    "Cell",
    "Key",
    "PairScores",
    "Rules",
    "cells_of",
    "over_runs",
    "vanilla_correct",
]

Floats = NDArray[np.float64]
Key = tuple[str, str]
#: Whose correctness semantic entropy is to predict: of the selected meaning, where any of several members may
#: be right; of one of these members; of a greedy answer.
VARIANTS = ("SE_conf", "SE_conf_one_member", "SE_vanilla")
#: Metrics for which an isotonic regression is fitted in every resample, and how many of these at most.
FITTED = ("mcb", "dsc")
FITTED_RESAMPLES = 200
#: Metrics that get an interval over questions: all but SmoothECE, which would take ten times as long as all
#: of these together.
BOOTSTRAPPED = (
    *("accuracy", "ece", "ace", "brier", "reliability", "resolution", "uncertainty", "unc"),
    *("auroc", "aurac", "prr", "mean_confidence", *FITTED),
)


@dataclass(frozen=True, eq=False)
class Cell:
    """One method under one measure: R runs on the N questions that count.

    Attributes
    ----------
    confidence, correct, entropy : ndarray of float64, shape (R, N)
        Correctness, of the selected answer, is 0 or 1.
    vanilla_correct : ndarray of float64, shape (R, N)
        Correctness of the answer of SE_vanilla, which the candidate gives by greedy decoding (or beams).
    one_member_correct : ndarray of float64, shape (R, N), optional
        Correctness of one member of the selected meaning; `correct` is that of any of several.
    """

    confidence: Floats
    correct: Floats
    entropy: Floats
    vanilla_correct: Floats
    one_member_correct: Floats | None = None

    @property
    def by_variant(self) -> dict[str, Floats]:
        """What tells right from wrong for each variant of semantic entropy (`VARIANTS`)."""
        judged = (self.correct, self.one_member_correct, self.vanilla_correct)
        return {variant: one for variant, one in zip(VARIANTS, judged) if one is not None}


@dataclass(frozen=True)
class Rules:
    """How cells are measured.

    Attributes
    ----------
    bins : int
        Of ACE and ECE.
    ace : {"sound", "reference"}
        Whether ACE averages ties, or depends on the order of the rows.
    auroc_one_class : float or None
        What AUROC is when all or none are correct; None is undefined.
    vanilla : {"greedy", "beam"}
        The answer of SE_vanilla.
    resamples : int
    seed : tuple of int
    bootstrapped : tuple of str
        Metrics that get an interval over questions.
    """

    bins: int
    ace: str
    auroc_one_class: float | None
    vanilla: str
    resamples: int
    seed: tuple[int, ...]
    bootstrapped: tuple[str, ...] = BOOTSTRAPPED

    def auroc(self, values: ArrayLike) -> Floats:
        """AUROC of each run; where it is undefined, what these rules say it is."""
        found = np.asarray(values, dtype=np.float64)
        one_class = np.nan if self.auroc_one_class is None else self.auroc_one_class
        return np.where(np.isnan(found), one_class, found)


@dataclass(frozen=True, eq=False)
class PairScores:
    """All methods and measures of one model on one data set.

    Attributes
    ----------
    cells : dict of (method, measure) to Cell
    n : int
        Questions that count.
    undefined : int
        Questions that do not, because a measure is null under some method.
    rules : Rules
        How they are measured.
    groups : ndarray of int, shape (N,), or None
        The group of each question, which resamples draw as a whole; None where each is its own.
    """

    cells: dict[Key, Cell]
    n: int
    undefined: int
    rules: Rules
    groups: NDArray[np.intp] | None = None

    @cached_property
    def by_run(self) -> dict[Key, dict[str, Floats]]:
        """Every metric of every run: (method, measure) → metric → [R]."""
        if not self.cells:
            return {}
        confidence = np.concatenate([cell.confidence for cell in self.cells.values()])
        correct = np.concatenate([cell.correct for cell in self.cells.values()])
        found = metrics.summaries(confidence, correct, bins=self.rules.bins)
        if self.rules.ace == "reference":
            found["ace"] = np.array(
                [metrics.ace_in_row_order(p, c, bins=self.rules.bins) for p, c in zip(confidence, correct)]
            )
        found["auroc"] = self.rules.auroc(found["auroc"])
        runs = len(confidence) // len(self.cells)
        return {
            key: {name: values[i * runs : (i + 1) * runs] for name, values in found.items()}
            for i, key in enumerate(self.cells)
        }

    def over_runs(self, key: Key, metric: str) -> dict[str, Any]:
        """One metric over runs, with its interval over questions where there is one."""
        return over_runs(self.by_run[key][metric], self._interval(key, metric))

    def refinement(self, key: Key) -> dict[str, Any]:
        """Uncertainty − resolution over runs, with the interval of such a difference."""
        parts = ("uncertainty", "resolution")
        whole, part = (self.by_run[key][name] for name in parts)
        drawn, less = (self.resampled.contrast(key, name) for name in parts)
        return over_runs(whole - part, (drawn - less).interval())

    def _interval(self, key: Key, metric: str) -> Interval | None:
        if metric == "ace" and self.rules.ace == "reference":
            return None  # it is no function of a resample
        if metric not in self.rules.bootstrapped:
            return None
        return (self.fitted if metric in FITTED else self.resampled).interval(key, metric)

    @cached_property
    def resampled(self) -> JointBootstrap[Key]:
        """The metrics that get an interval, on common resamples of the questions."""
        names = [name for name in self.rules.bootstrapped if name not in FITTED]
        return self._common(names, self.rules.resamples)

    @cached_property
    def fitted(self) -> JointBootstrap[Key]:
        """Those that take a fit, on the first of these resamples."""
        return self._common(FITTED, min(FITTED_RESAMPLES, self.rules.resamples))

    def _common(self, names: Sequence[str], resamples: int) -> JointBootstrap[Key]:
        return metrics.joint_bootstrap(
            {key: (cell.confidence, cell.correct) for key, cell in self.cells.items()},
            metrics=names,
            groups=self.groups,
            bins=self.rules.bins,
            resamples=resamples,
            seed=self.rules.seed,
        )

    @cached_property
    def entropies(self) -> JointBootstrap[tuple[str, str, str]]:
        """AUROC of −entropy, by method, measure and variant (`VARIANTS`)."""
        return metrics.joint_bootstrap(
            {
                (*key, variant): (-cell.entropy, correct)
                for key, cell in self.cells.items()
                for variant, correct in cell.by_variant.items()
            },
            metrics=("auroc",),
            groups=self.groups,
            resamples=self.rules.resamples,
            seed=self.rules.seed,
        )


def over_runs(values: Floats | Sequence[float], interval: Interval | None = None) -> dict[str, Any]:
    """Mean and standard error over runs, and beside them the interval over questions.

    Returns
    -------
    dict
        {mean, se, runs, interval}: `se` is null for one run, `interval` [low, high] where one was computed,
        all null where the metric is undefined in some run.

    Examples
    --------
    >>> over_runs([0.80, 0.82, 0.81, 0.83])
    {'mean': 0.815, 'se': 0.0064549..., 'runs': [0.8, 0.82, 0.81, 0.83], 'interval': None}
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)
        found = metrics.mean_and_standard_error(values)
    if len(set(values)) == 1 < len(values):  # no rounding where nothing varies
        found = replace(found, mean=float(values[0]), standard_error=0.0)
    ends = None if interval is None else [_null_if_nan(interval.low), _null_if_nan(interval.high)]
    return {
        "mean": _null_if_nan(found.mean),
        "se": _null_if_nan(found.standard_error),
        "runs": [_null_if_nan(float(value)) for value in values],
        "interval": None if ends is None or None in ends else ends,
    }


def _null_if_nan(value: float) -> float | None:
    return None if np.isnan(value) else value


def cells_of(
    columns: Mapping[Key, Sequence[Columns]], vanilla: str
) -> tuple[dict[Key, Cell], NDArray[np.bool_]]:
    """Stack the runs of each (label, measure), without the questions that are null under some of them.

    Returns
    -------
    (dict of (label, measure) to Cell, ndarray of bool, shape (all questions,))
        A measure that is null for every question is left out; which questions count.
    """
    stacked = {key: _stacked(found, key[1], vanilla) for key, found in columns.items()}
    stacked = {key: cell for key, cell in stacked.items() if not _null(cell).all()}
    if not stacked:
        return {}, np.zeros(0, dtype=np.bool_)
    counts = ~np.any([_null(cell) for cell in stacked.values()], axis=0)
    if not counts.any():
        return {}, counts
    return {key: _only(cell, counts) for key, cell in stacked.items()}, counts


def _only(cell: Cell, counts: NDArray[np.bool_]) -> Cell:
    parts = (cell.confidence, cell.correct, cell.entropy, cell.vanilla_correct)
    return Cell(*(part[:, counts] for part in parts))


def _stacked(runs: Sequence[Columns], measure: str, vanilla: str) -> Cell:
    return Cell(
        np.stack([one.confidence[measure] for one in runs]),
        np.stack([one.correct[measure] for one in runs]),
        np.stack([one.entropy[measure] for one in runs]),
        np.stack([vanilla_correct(one, vanilla) for one in runs]),
    )


def vanilla_correct(columns: Columns, vanilla: str) -> Floats:
    """Correctness of the answer of SE_vanilla; of the greedy one where no beams were made."""
    if vanilla == "beam" and columns.beam_correct is not None:
        return columns.beam_correct
    return columns.greedy_correct


def _null(cell: Cell) -> NDArray[np.bool_]:
    """Questions (N,) for which something is null in some run."""
    parts = np.array([cell.confidence, cell.correct, cell.entropy])
    return np.asarray(np.isnan(parts).any(axis=(0, 1)))
