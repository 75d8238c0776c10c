"""How far a grader's verdicts agree with people's: agreement, confusion and Cohen's kappa, with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from semcal.arrays import as_generator
from semcal.errors import InputError
from semcal.metrics.arguments import Floats, Labels, as_correct, as_groups, warn_undefined
from semcal.metrics.frequencies import draw_counts
from semcal.metrics.intervals import FEW_OF_A_CLASS, Interval, at_least_wilsons, interval_of

#: The confusion matrix; and shares of the answers, as sums of its cells.
CELLS = ("both_right", "grader_only", "human_only", "both_wrong")
SHARES = {
    "agreement": (1, 0, 0, 1),
    "accuracy": (1, 1, 0, 0),
    "human_accuracy": (1, 0, 1, 0),
    "accuracy_difference": (0, 1, -1, 0),
    **dict(zip(CELLS, np.eye(4, dtype=int).tolist())),
}
LEVEL, RESAMPLES = 0.95, 1000


@dataclass(frozen=True)
class Agreement:
    """A grader against people: how many answers each calls right, and figures with their intervals."""

    n: int
    groups: int | None  # resampled as a whole; None where every answer stands by itself
    counts: Mapping[str, int]  # both_right, grader_only, human_only, both_wrong
    figures: Mapping[str, Interval]


def agreement(
    verdicts: ArrayLike,
    human: ArrayLike,
    *,
    groups: Labels | None = None,
    seed: int | np.random.Generator = 0,
) -> Agreement:
    r"""Compare a grader's verdicts with people's.

    With :math:`p` the share of answers on which they agree and :math:`e` the share on which two would agree
    who decide independently, each as often for "right" as here, Cohen's kappa is :math:`(p - e) / (1 - e)`.
    Where people gave all answers one verdict, kappa would be 0 whatever the grader says: it is undefined. A
    grader that gives one verdict to all has a kappa of 0.

    Intervals are 95 % bootstrap intervals over answers, or over `groups` of them. Where fewer than 30 answers
    are in a share, or fewer than 30 are not, resamples show too little: its interval then holds Wilson's too,
    of as many answers as there are groups, and kappa's the ends to which that of the agreement takes it.

    Parameters
    ----------
    verdicts, human : array_like of bool, shape (N,)
        Whether the grader, and whether people, call each answer right.
    groups : sequence of N labels, optional
        What an answer shares with others, such as its question; by default each stands by itself.
    seed : int or numpy.random.Generator

    Returns
    -------
    Agreement
        `figures` maps agreement, kappa, accuracy (by the grader), human_accuracy, accuracy_difference and the
        share of each cell (both_right, grader_only, human_only, both_wrong) to an `Interval`.

    Raises
    ------
    InputError
        No answers, verdicts that are neither true nor false, or lengths that differ.

    Warns
    -----
    UndefinedWarning
        Kappa is undefined, or there is one group only, and so no interval.

    References
    ----------
    Cohen (1960), A coefficient of agreement for nominal scales, Educational and Psychological Measurement 20.
    Wilson (1927), Probable inference, the law of succession, and statistical inference, JASA 22.

    Examples
    --------
    >>> found = agreement([1, 1, 1, 0, 0, 0, 0, 1], [1, 1, 0, 0, 0, 0, 1, 1])
    >>> found.figures["agreement"].estimate, found.figures["kappa"].estimate, found.counts["grader_only"]
    (0.75, 0.5, 1)
    """
    ours, theirs = as_correct(verdicts), as_correct(human)
    if len(ours) != len(theirs):
        raise InputError(f"there are {len(ours)} verdicts of the grader and {len(theirs)} of people")
    n, clusters = len(ours), as_groups(groups, len(ours))
    units = n if clusters is None else int(clusters.max()) + 1
    cells = np.stack([ours * theirs, ours * (1 - theirs), (1 - ours) * theirs, (1 - ours) * (1 - theirs)])
    counts = draw_counts(n, RESAMPLES, as_generator(seed), clusters).T
    resampled = cells @ counts / counts.sum(0)  # (4, B)
    shares = cells.sum(1, keepdims=True) / n  # (4, 1)
    figures = {}
    for name, weights in SHARES.items():
        low = float(min(weights))
        interval = interval_of(
            name, float((weights @ shares)[0]), weights @ resampled, LEVEL, least=low, most=1.0
        )
        figures[name] = (
            interval if low or not _few(interval.estimate, n) else at_least_wilsons(interval, units)
        )
    kappa = interval_of("kappa", float(_kappa(shares)[0]), _kappa(resampled), LEVEL, least=-1.0, most=1.0)
    if _few(figures["agreement"].estimate, n):
        ends = (_beyond(figures["agreement"].low, shares), _beyond(figures["agreement"].high, shares))
        kappa = replace(kappa, low=min(kappa.low, ends[0]), high=max(kappa.high, ends[1]))
    figures = {"agreement": figures.pop("agreement"), "kappa": kappa, **figures}
    if units == 1:
        warn_undefined("all answers are of one group, so that there are no intervals (NaN)")
        nan = float("nan")
        figures = {
            key: Interval(interval.estimate, nan, nan, nan, nan, LEVEL, 0)
            for key, interval in figures.items()
        }
    return Agreement(
        n,
        None if clusters is None else units,
        {name: int(count) for name, count in zip(CELLS, cells.sum(1))},
        figures,
    )


def _by_chance(cells: Floats) -> Floats:
    """The share on which two would agree who decide independently, of cells (4, B)."""
    right, ours, theirs, neither = cells
    chance: Floats = (right + ours) * (right + theirs) + (theirs + neither) * (ours + neither)
    return chance


def _kappa(cells: Floats) -> Floats:
    """Cohen's kappa of cells (4, B), NaN where people gave one verdict only."""
    right = cells[0] + cells[2]
    defined = (right > 0) & (cells[1] + cells[3] > 0)
    chance = np.where(defined, _by_chance(cells), 0.0)
    return np.where(defined, (cells[0] + cells[3] - chance) / (1 - chance), np.nan)


def _beyond(agreed: float, cells: Floats) -> float:
    """Kappa at another agreement than that of cells (4, 1)."""
    chance = float(_by_chance(cells)[0])
    return max(-1.0, (agreed - chance) / (1 - chance)) if chance < 1 else np.nan


def _few(share: float, n: int) -> bool:
    return min(share, 1 - share) * n < FEW_OF_A_CLASS - 0.5
