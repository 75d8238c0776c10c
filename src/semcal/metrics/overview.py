"""Every metric by name: all of one data set, of many data sets at once, and of outcomes drawn by chance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from semcal.arrays import Floats, as_generator, as_numbers, as_option
from semcal.errors import InputError, UsageError
from semcal.metrics.calibration_errors import (
    ace_of,
    brier_of,
    dsc_of,
    ece_of,
    gain_of,
    mcb_of,
    reliability_of,
    resolution_of,
    smooth_ece_of,
    uncertainty_of,
)
from semcal.metrics.frequencies import (
    FrequencyTable,
    GroupLabels,
    as_correct,
    as_groups,
    as_pairs,
    as_probabilities,
    both_names,
    check_bins,
    draw_uniforms,
    frequency_table,
    frequency_tables,
    score_table,
    shared_table,
    warn_undefined,
)
from semcal.metrics.ranking import aurac_of, auroc_of, one_class, prr_of
from semcal.registry import Catalogue

#: Data sets counted at a time, so that the arrays stay in the processor's cache.
ROWS = 16
#: Outcomes drawn at a time for a floor.
DRAWN = 2_000_000


@dataclass(frozen=True)
class Metric:
    """A metric of each row of a table (data, resamples, drawn outcomes), and all that is said of it.

    `METRICS.register(Metric(...))` adds one, in each process that is to know it.
    """

    name: str  # as results have it
    formula: Callable[[FrequencyTable, int], Floats]
    """(table, bins) → its value for each row of the table, [B]."""
    label: str  # at the head of a column
    meaning: str = ""  # its line in a glossary
    title: str = ""  # where there is room; else the label
    larger_is_better: bool | None = None  # None of what is neither good nor bad
    ranks: bool = False  # takes any score, not only probabilities
    raised: bool = False  # noise in the outcomes raises it, so resampling raises it further
    zero_if_calibrated: bool = False  # its true value is 0 exactly when the confidences are calibrated
    floored: bool = False  # a summary shows its noise floor beside it
    least: float = 0.0  # the lower end of its range, whose upper end is 1
    slow: bool = False  # takes ten times as long as all others: no resamples of a grid
    of_outcomes: bool = False  # a mean over questions that a few other outcomes would move far
    of_area: tuple[float, float] | None = None  # (scale, shift) where it is scale · AUROC − shift

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or self.label)


_error = partial(Metric, larger_is_better=False, raised=True, zero_if_calibrated=True)
_merit = partial(Metric, larger_is_better=True)

_BUILT_IN = [
    _merit("accuracy", lambda t, _: t.accuracy, "accuracy", ranks=True, of_outcomes=True),
    _error(
        "ece",
        ece_of,
        "ECE",
        "Expected calibration error: the mean gap between confidence and accuracy, over bins of equal "
        "width. 0 is best.",
        floored=True,
    ),
    _error(
        "ace",
        ace_of,
        "ACE",
        "Adaptive calibration error: the mean gap between confidence and accuracy, over bins that hold "
        "equally many questions. 0 is best.",
        floored=True,
    ),
    Metric(
        "brier",
        lambda t, _: brier_of(t),
        "Brier",
        "Brier score: the mean squared distance of confidence from right (1) or wrong (0).",
        title="Brier score",
        larger_is_better=False,
        of_outcomes=True,
    ),
    _merit(
        "gain",
        lambda t, _: gain_of(t),
        "gain",
        "Accuracy less Brier score. It is twice the mean profit of answering wherever the confidence is "
        "at least t, with 1 − t for a right and −t for a wrong answer, averaged over t. 1 is best.",
        least=-1.0,
        of_outcomes=True,
    ),
    _error("reliability", lambda t, _: reliability_of(t), "reliability"),
    _merit("resolution", lambda t, _: resolution_of(t), "resolution", raised=True),
    Metric("uncertainty", lambda t, _: uncertainty_of(t), "uncertainty"),
    _error(
        "mcb",
        lambda t, _: mcb_of(t),
        "MCB",
        "Miscalibration: what recalibrating by the CORP curve would save of the Brier score.",
    ),
    _merit(
        "dsc",
        lambda t, _: dsc_of(t),
        "DSC",
        "Discrimination: what that curve is better than a constant confidence, in Brier score.",
        raised=True,
    ),
    Metric(
        "unc", lambda t, _: uncertainty_of(t), "UNC", "Uncertainty: the Brier score of a constant confidence."
    ),
    _merit(
        "auroc",
        lambda t, _: auroc_of(t),
        "AUROC",
        "The chance that a right answer has a higher confidence than a wrong one. 0.5 is chance.",
        ranks=True,
        of_area=(1.0, 0.0),
    ),
    _merit(
        "aurac",
        lambda t, _: aurac_of(t),
        "AURAC",
        "The mean accuracy of what is left as the least confident answers are rejected.",
        ranks=True,
    ),
    _merit("prr", lambda t, _: prr_of(t), "PRR", ranks=True, least=float("-inf"), of_area=(2.0, 1.0)),
    _error("smooth_ece", lambda t, _: smooth_ece_of(t), "SmoothECE", floored=True, slow=True),
    Metric("mean_confidence", lambda t, _: t.mean, "confidence"),
]
#: In the order of a summary.
METRICS = Catalogue("metric", _BUILT_IN)


def measure_rows(t: FrequencyTable, metrics: Collection[str], bins: int) -> dict[str, Floats]:
    """Some metrics of each row of a table: [B]."""
    rows = [[METRICS[name].formula(part, bins) for name in metrics] for part in t.parts()]
    return dict(zip(metrics, map(np.concatenate, zip(*rows))))


@both_names
def summary(
    confidence: ArrayLike,
    correct: ArrayLike,
    *,
    bins: int = 15,
    score: ArrayLike | None = None,
    groups: GroupLabels | None = None,
    draws: int = 1000,
    seed: int | np.random.Generator = 0,
) -> dict[str, float]:
    """Every metric of one set of confidences.

    Parameters
    ----------
    confidence, correct, bins
        As in :func:`semcal.metrics.ece`, and so are the errors.
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
    floors = _floor_figures(p, c, groups=groups, bins=bins, draws=draws, seed=seed) if draws else {}
    numbers: dict[str, float] = {"n": len(p)}
    for name, metric in METRICS.items():
        numbers[name] = float(metric.formula(ranked if metric.ranks else t, bins)[0])
        numbers |= floors.get(name, {})
    if np.isnan(numbers["auroc"]):
        warn_undefined(one_class("AUROC", "PRR"))
    return numbers


@both_names
def summaries(
    confidence: ArrayLike, correct: ArrayLike, *, bins: int = 15, draws: int = 0, seed: int = 0
) -> dict[str, Floats]:
    """Every metric of many sets of as many confidences: runs, measures, methods.

    The same numbers as :func:`summary` of each (less n), to rounding, in a fraction of the time: for each
    metric an array (B,). Arguments are those of :func:`summary`, with a row of `confidence` and `correct` (B,
    N) for each set; an InputError names the first that is refused. Noise floors take longer than all else: no
    `draws` by default. AUROC and PRR of a set with one class are NaN.

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
    parts = []
    for start in range(0, len(values), ROWS):
        t = frequency_tables(values[start : start + ROWS], outcomes[start : start + ROWS])
        parts.append([metric.formula(t, bins) for metric in METRICS.values()])
    numbers = dict(zip(METRICS, np.concatenate(parts, axis=1)))
    if draws:
        floors = [_floor_figures(*pair, bins=bins, draws=draws, seed=seed) for pair in zip(values, outcomes)]
        for name, figures in floors[0].items():
            numbers |= {key: np.array([row[name][key] for row in floors]) for key in figures}
    return numbers


@dataclass(frozen=True)
class NoiseFloor:
    """What a perfectly calibrated forecaster with the same confidences would show as calibration error.

    `observed` is the error of the data and `p_value` that of the test that they are calibrated, both NaN
    without outcomes; `mean` and `quantile_95` are those of the error over `draws` of the outcomes.
    """

    observed: float
    mean: float
    quantile_95: float
    p_value: float
    draws: int


@both_names
def noise_floor(
    confidence: ArrayLike,
    correct: ArrayLike | None = None,
    *,
    metric: str = "ace",
    groups: GroupLabels | None = None,
    bins: int = 15,
    draws: int = 1000,
    seed: int | np.random.Generator = 0,
) -> NoiseFloor:
    r"""Calibration error of outcomes drawn from the confidences themselves.

    Few questions make a large error by chance: an ACE of .06 is nothing where calibrated confidences show as
    much. With e the error observed and :math:`e^*` that of a draw, the test of calibration has

    .. math:: p = \frac{1 + \#\{e^* \ge e\}}{1 + \text{draws}}.

    Source: Bröcker and Smith (2007), Increasing the Reliability of Reliability Diagrams, Weather and
    Forecasting 22; Vaicenavicius et al. (2019), Evaluating model calibration in classification, AISTATS.
    Phipson and Smyth (2010), Permutation p-values should never be zero, Statistical Applications in Genetics
    9.

    Parameters
    ----------
    confidence, bins
        As in :func:`semcal.metrics.ece`, and so are the errors.
    correct : array_like of bool, shape (N,), optional
        Outcomes, for the test.
    metric : str
        An error of calibration: "ace", "ece", "smooth_ece", "reliability" or "mcb".
    groups : sequence of N labels, optional
        Questions of a group may be right together. The p value is then that of outcomes
        :math:`c_i = [U_g < p_i]` with one uniform number for each group; mean and quantile stay those of
        independent questions.
    draws : int
        At least 1.
    seed : int or numpy.random.Generator
        The same seed gives the same numbers, and the same draws to every metric.

    Raises
    ------
    UsageError
        A metric that is no error of calibration, or numbers of bins or draws below 1.

    Notes
    -----
    If all confidences are 0 or 1, the floor is 0, and p is 1 if they are right and 1 / (1 + draws) if not. p
    is valid for any number of questions. With groups it is valid if members are right together, and too large
    otherwise (``python -m benchmarks.cluster_coverage sizes``).

    Examples
    --------
    >>> confidence = [0.5, 0.6, 0.7, 0.8, 0.9] * 10
    >>> floor = noise_floor(confidence, [True, False] * 25)
    >>> round(floor.observed, 2), round(floor.mean, 2), floor.p_value < 0.05
    (0.2, 0.1, True)
    """
    errors = [name for name, entry in METRICS.items() if entry.zero_if_calibrated]
    if metric not in errors:
        raise UsageError(f"{metric!r} is no error of calibration; known: {', '.join(errors)}")
    p = as_probabilities(confidence)
    c = None if correct is None else as_pairs(p, correct)[1]
    return noise_floors(p, c, (metric,), bins=bins, draws=draws, seed=seed, groups=groups)[metric]


def noise_floors(
    confidence: Floats,
    correct: Floats | None,
    metrics: Sequence[str],
    *,
    groups: GroupLabels | None = None,
    bins: int = 15,
    draws: int = 1000,
    seed: int | np.random.Generator = 0,
) -> dict[str, NoiseFloor]:
    """The floor of each metric from the same draws, of checked confidences and outcomes [N]."""
    draws = int(as_option(draws, "draws", "a positive whole number, such as 1000", low=0, whole=True))
    bins, rng, n = check_bins(bins), as_generator(seed), len(confidence)
    clusters = as_groups(groups, n)
    observed_table = frequency_table(confidence, np.zeros(n) if correct is None else correct)
    alone, grouped = [], []
    step = max(1, DRAWN // n)
    for start in range(0, draws, step):
        count = min(step, draws - start)
        alone.append(measure_rows(_drawn(observed_table, count, rng), metrics, bins))
        if clusters is not None:
            outcomes = draw_uniforms(n, count, rng, clusters) < confidence
            grouped.append(measure_rows(shared_table(confidence, outcomes), metrics, bins))
    floors = {}
    for name in metrics:
        errors, null = (np.concatenate([part[name] for part in parts]) for parts in (alone, grouped or alone))
        observed = float(METRICS[name].formula(observed_table, bins)[0])
        # 1e-12: the same outcomes have the same error despite rounding
        p_value = (1 + int(np.count_nonzero(null >= observed - 1e-12))) / (1 + draws)
        tested = (np.nan, np.nan) if correct is None else (observed, p_value)
        mean, quantile = float(errors.mean()), float(np.quantile(errors, 0.95))
        floors[name] = NoiseFloor(tested[0], mean, quantile, tested[1], draws)
    return floors


def _drawn(table: FrequencyTable, draws: int, rng: np.random.Generator) -> FrequencyTable:
    """The same values with outcomes drawn from them, one by one."""
    count, value = table.count[0].astype(np.int64)[:, None], table.value[:, None]
    alone = count[:, 0] == 1
    right = np.empty((len(count), draws))
    right[alone] = rng.random((np.count_nonzero(alone), draws)) < value[alone]
    right[~alone] = rng.binomial(count[~alone], value[~alone], size=(np.count_nonzero(~alone), draws))
    return FrequencyTable(table.value, np.broadcast_to(table.count, (draws, len(count))), right.T)


def _floor_figures(
    confidence: Floats,
    correct: Floats,
    *,
    groups: GroupLabels | None = None,
    bins: int,
    draws: int,
    seed: int | np.random.Generator,
) -> dict[str, dict[str, float]]:
    """What a summary says of the noise floor of each metric that it shows one of."""
    names = [name for name, metric in METRICS.items() if metric.floored]
    floors = noise_floors(confidence, correct, names, groups=groups, bins=bins, draws=draws, seed=seed)
    return {
        name: {
            f"{name}_floor": floor.mean,
            f"{name}_floor_95": floor.quantile_95,
            f"{name}_p": floor.p_value,
        }
        for name, floor in floors.items()
    }


def _checked_rows(values: ArrayLike, argument: str, check: Callable[[ArrayLike], Floats]) -> Floats:
    """Rows that `check` accepts as one array (B, N); the first that it refuses is named."""
    array = as_numbers(values, argument)
    if array.ndim != 2 or not array.size:
        raise InputError(f"{argument} has shape {array.shape}; expected one row a set, shape (B, N)")
    try:
        return check(array.ravel()).reshape(array.shape)
    except InputError:
        for number, row in enumerate(array):
            try:
                check(row)
            except InputError as error:
                raise InputError(f"set {number}: {error}") from error
        raise
