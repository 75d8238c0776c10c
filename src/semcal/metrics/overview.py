"""Every metric by name: all of one data set, and of many data sets at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from semcal.arrays import as_numbers
from semcal.errors import InputError, UsageError
from semcal.metrics.argument_names import both_names
from semcal.metrics.calibration import ace_of, ece_of, smooth_ece_of
from semcal.metrics.decompositions import brier_of, brier_parts, corp_parts, gain_of
from semcal.metrics.frequencies import (
    Floats,
    FrequencyTable,
    Labels,
    as_correct,
    as_pairs,
    as_probabilities,
    check_bins,
    frequency_table,
    frequency_tables,
    score_table,
    warn_undefined,
)
from semcal.metrics.noise import FLOORED, NoiseFloor, noise_floors
from semcal.metrics.ranking import aurac_of, auroc_of, one_class, prr_of

#: Data sets computed at a time, so that the arrays stay in the processor's cache.
ROWS = 16


@dataclass(frozen=True)
class Metric:
    """The plain definition of a metric, and what a bootstrap must know about it."""

    of: Callable[[FrequencyTable, int], Floats]  # (table, bins) -> [B]
    ranks: bool = False  # takes any score, not only probabilities
    raised: bool = False  # noise in the outcomes raises it, so resampling raises it further
    zero_if_calibrated: bool = False  # its true value is 0 exactly when the confidences are calibrated
    least: float = 0.0
    of_outcomes: bool = False  # a mean over questions that a few other outcomes would move far


def _error(of: Callable[[FrequencyTable, int], Floats]) -> Metric:
    """An error of calibration."""
    return Metric(of, raised=True, zero_if_calibrated=True)


#: In the order of a summary.
METRICS = {
    "accuracy": Metric(lambda t, _: t.accuracy, ranks=True, of_outcomes=True),
    "ece": _error(ece_of),
    "ace": _error(ace_of),
    "brier": Metric(lambda t, _: brier_of(t), of_outcomes=True),
    "gain": Metric(lambda t, _: gain_of(t), least=-1.0, of_outcomes=True),
    "reliability": _error(lambda t, _: brier_parts(t)[0]),
    "resolution": Metric(lambda t, _: brier_parts(t)[1], raised=True),
    "uncertainty": Metric(lambda t, _: brier_parts(t)[2]),
    "mcb": _error(lambda t, _: corp_parts(t)[0]),
    "dsc": Metric(lambda t, _: corp_parts(t)[1], raised=True),
    "unc": Metric(lambda t, _: corp_parts(t)[2]),
    "auroc": Metric(lambda t, _: auroc_of(t), ranks=True),
    "aurac": Metric(lambda t, _: aurac_of(t), ranks=True),
    "prr": Metric(lambda t, _: prr_of(t), ranks=True, least=float("-inf")),
    "smooth_ece": _error(lambda t, _: smooth_ece_of(t)),
    "mean_confidence": Metric(lambda t, _: t.mean),
}


def metric_named(name: str) -> Metric:
    """The metric of that name."""
    if name not in METRICS:
        raise UsageError(f"unknown metric {name!r}; known: {', '.join(METRICS)}")
    return METRICS[name]


@both_names
def summary(
    confidence: ArrayLike,
    correct: ArrayLike,
    *,
    bins: int = 15,
    score: ArrayLike | None = None,
    groups: Labels | None = None,
    draws: int = 1000,
    seed: int | np.random.Generator = 0,
) -> dict[str, float]:
    """Every metric of one set of confidences.

    Parameters
    ----------
    confidence : array_like of float, shape (N,)
        Probabilities; values outside [0, 1] by at most 1e-6 are clipped.
    correct : array_like of bool, shape (N,)
    bins : int
        Bins of ECE and ACE.
    score : array_like of float, shape (N,), optional
        What AUROC, AURAC and PRR rank by, such as the negative semantic entropy; the confidence by default.
    groups, draws, seed
        Of the noise floors, as in :func:`semcal.metrics.noise_floor`; no draws, no floors.

    Returns
    -------
    dict of str to float
        ``n`` (an int), ``accuracy, ece, ace, brier, gain, reliability, resolution, uncertainty, mcb, dsc,
        unc, auroc, aurac, prr, smooth_ece, mean_confidence``. AUROC and PRR are NaN, with an
        UndefinedWarning, when all or none are correct. After ``ece``, ``ace`` and ``smooth_ece`` what
        calibrated confidences would show, as ``ace_floor`` (mean) and ``ace_floor_95`` (quantile), and the
        p value of calibration, ``ace_p``.

    Raises
    ------
    InputError
        Empty input, lengths that differ, a confidence outside [0, 1] or NaN, an outcome that is not 0 or 1.

    Examples
    --------
    >>> numbers = summary([0.9, 0.8, 0.8, 0.3], [1, 1, 0, 0])
    >>> {name: round(numbers[name], 3) for name in ("n", "accuracy", "ece", "brier", "auroc")}
    {'n': 4, 'accuracy': 0.5, 'ece': 0.25, 'brier': 0.195, 'auroc': 0.875}
    """
    bins = check_bins(bins)
    p, c = as_pairs(confidence, correct)
    t = frequency_table(p, c)
    ranked = t if score is None else score_table(score, correct)
    floors = noise_floors(p, c, groups=groups, bins=bins, draws=draws, seed=seed) if draws else {}
    numbers: dict[str, float] = {"n": t.n}
    for name, metric in METRICS.items():
        numbers[name] = float(metric.of(ranked if metric.ranks else t, bins)[0])
        if name in floors:
            numbers |= _named(name, floors[name])
    if np.isnan(numbers["auroc"]):
        warn_undefined(one_class("AUROC", "PRR"))
    return numbers


@both_names
def summaries(
    confidence: ArrayLike, correct: ArrayLike, *, bins: int = 15, draws: int = 0, seed: int = 0
) -> dict[str, Floats]:
    """Every metric of many sets of as many confidences: runs, measures, methods.

    The same numbers as :func:`summary` of each, to rounding, in a fraction of the time.

    Parameters
    ----------
    confidence, correct : array_like, shape (B, N)
        As in :func:`summary`, a row each; an InputError names the first set that is refused.
    bins : int
        Bins of ECE and ACE.
    draws, seed
        Of the noise floors, which take longer than all else: none by default.

    Returns
    -------
    dict of str to ndarray of float64, shape (B,)
        The metrics of :func:`summary`, less n. AUROC and PRR of a set with one class are NaN.

    Examples
    --------
    >>> numbers = summaries([[0.9, 0.8, 0.8, 0.3], [0.5, 0.5, 0.5, 0.5]], [[1, 1, 0, 0], [1, 0, 1, 0]])
    >>> numbers["auroc"], numbers["ece"]
    (array([0.875, 0.5  ]), array([0.25, 0.  ]))
    """
    bins = check_bins(bins)
    values = _checked_rows(confidence, "confidence", as_probabilities)
    outcomes = _checked_rows(correct, "correct", as_correct)
    if values.shape != outcomes.shape:
        raise InputError(
            f"confidence has shape {values.shape} and correct {outcomes.shape}; give one outcome for each"
        )
    found = []
    for start in range(0, len(values), ROWS):
        t = frequency_tables(values[start : start + ROWS], outcomes[start : start + ROWS])
        found.append([metric.of(t, bins) for metric in METRICS.values()])
    numbers = dict(zip(METRICS, np.concatenate(found, axis=1)))
    if draws:
        floors = [noise_floors(*pair, bins=bins, draws=draws, seed=seed) for pair in zip(values, outcomes)]
        named = [{key: x for name in FLOORED for key, x in _named(name, one[name]).items()} for one in floors]
        numbers |= {key: np.array([one[key] for one in named]) for key in named[0]}
    return numbers


def _named(metric: str, floor: NoiseFloor) -> dict[str, float]:
    """What a summary says of a noise floor."""
    found = (floor.mean, floor.quantile_95, floor.p_value)
    return dict(zip((f"{metric}_floor", f"{metric}_floor_95", f"{metric}_p"), found))


def _checked_rows(values: ArrayLike, what: str, check: Callable[[ArrayLike], Floats]) -> Floats:
    """Rows that `check` accepts as one array (B, N); the first that it refuses is named."""
    array = as_numbers(values, what)
    if array.ndim != 2 or not array.size:
        raise InputError(f"{what} has shape {array.shape}; expected one row a set, shape (B, N)")
    try:
        return check(array.ravel()).reshape(array.shape)
    except InputError:
        for number, row in enumerate(array):
            try:
                check(row)
            except InputError as error:
                raise InputError(f"set {number}: {error}") from error
        raise
