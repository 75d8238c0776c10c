"""The register of metrics, summaries of one or many data sets, and noise floors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from semcal.arrays import Floats, as_generator, as_numbers, as_option
from semcal.errors import InputError
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
    AT_A_TIME,
    FrequencyTable,
    GroupLabels,
    Groups,
    as_correct,
    as_groups,
    as_pairs,
    as_probabilities,
    check_bins,
    draw_uniforms,
    frequency_tables,
    score_table,
    shared_table,
    warn_undefined,
)
from semcal.metrics.probability_maps import Move
from semcal.metrics.ranking import aurac_of, auroc_of, one_class, prr_of
from semcal.registry import Catalogue, check_name

#: Maximum number of simulated outcomes at a time.
DRAWN = 2_000_000


@dataclass(frozen=True)
class Metric:
    """A metric of each row of a table (data, resamples, simulated outcomes), and its properties.

    `METRICS.register(Metric(...))` adds a metric in the current process.
    """

    name: str  # key in results
    formula: Callable[[FrequencyTable, int], Floats]
    """(table, bins) → value of each row of the table, [B]."""
    label: str  # head of a column
    meaning: str = ""  # entry of a glossary
    title: str = ""  # long label; the default is the label
    larger_is_better: bool | None = None  # None if neither direction is better
    ranks: bool = False  # any score is allowed, not only probabilities
    raised: bool = False  # noise in the outcomes, and resampling, raise the value
    zero_if_calibrated: bool = False  # the true value is 0 exactly if the confidences are calibrated
    floored: bool = False  # a summary shows the noise floor
    least: float = 0.0  # lower end of the range, whose upper end is 1
    slow: bool = False  # ten times as slow as all others, so not resampled in a grid
    of_outcomes: bool = False  # a mean over questions, whose interval includes Wilson's
    of_area: tuple[float, float] | None = None  # (scale, shift) if the metric is scale · AUROC − shift

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
        "Accuracy minus Brier score. It is twice the mean profit of a user who answers if the confidence is "
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
        "Miscalibration: the improvement of the Brier score by recalibration with the CORP curve.",
    ),
    _merit(
        "dsc",
        lambda t, _: dsc_of(t),
        "DSC",
        "Discrimination: the improvement of the Brier score by the CORP curve over a constant confidence.",
        raised=True,
    ),
    Metric(
        "unc", lambda t, _: uncertainty_of(t), "UNC", "Uncertainty: the Brier score of a constant confidence."
    ),
    _merit(
        "auroc",
        lambda t, _: auroc_of(t),
        "AUROC",
        "The probability that a right answer has a higher confidence than a wrong one. 0.5 is chance.",
        ranks=True,
        of_area=(1.0, 0.0),
    ),
    _merit(
        "aurac",
        lambda t, _: aurac_of(t),
        "AURAC",
        "The mean accuracy of the remaining answers as the least confident answers are rejected.",
        ranks=True,
    ),
    _merit("prr", lambda t, _: prr_of(t), "PRR", ranks=True, least=float("-inf"), of_area=(2.0, 1.0)),
    _error("smooth_ece", lambda t, _: smooth_ece_of(t), "SmoothECE", floored=True, slow=True),
    Metric("mean_confidence", lambda t, _: t.mean, "confidence"),
]
#: In the order of a summary.
METRICS = Catalogue("metric", _BUILT_IN)


def measure_rows(t: FrequencyTable, metrics: Collection[str], bins: int) -> dict[str, Floats]:
    """Compute some metrics of each row of a table: [B]."""
    rows = [[METRICS[name].formula(part, bins) for name in metrics] for part in t.parts()]
    return dict(zip(metrics, map(np.concatenate, zip(*rows))))


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
    """Compute every metric of one set of confidences.

    Parameters
    ----------
    confidence, correct, bins
        As in :func:`semcal.metrics.ece`, with the same errors.
    score : array_like of float, shape (N,), optional
        Scores for AUROC, AURAC and PRR, such as the negative semantic entropy; the confidence by default.
    groups, draws, seed
        Options of the noise floors, as in :func:`semcal.metrics.noise_floor`; 0 draws omit the floors.

    Returns
    -------
    dict of str to float
        ``n`` (an int), ``accuracy, ece, ace, brier, gain, reliability, resolution, uncertainty, mcb, dsc,
        unc, auroc, aurac, prr, smooth_ece, mean_confidence``. AUROC and PRR are NaN, with an
        UndefinedWarning, if all or none are correct. ``ece``, ``ace`` and ``smooth_ece`` are followed by
        their noise floor (``ace_floor``), its 95th percentile (``ace_floor_95``), and the p-value of
        calibration (``ace_p``).

    Examples
    --------
    >>> numbers = summary([0.9, 0.8, 0.8, 0.3], [1, 1, 0, 0])
    >>> {name: round(numbers[name], 3) for name in ("n", "accuracy", "ece", "brier", "auroc")}
    {'n': 4, 'accuracy': 0.5, 'ece': 0.25, 'brier': 0.195, 'auroc': 0.875}
    """
    bins = check_bins(bins)
    p, c = as_pairs(confidence, correct)
    t = shared_table(p, c)
    ranked = t if score is None else score_table(score, correct)
    floored = [name for name, metric in METRICS.items() if metric.floored]
    floors = noise_floors(p, c, floored, groups=groups, bins=bins, draws=draws, seed=seed) if draws else {}
    numbers: dict[str, float] = {"n": len(p)}
    for name, metric in METRICS.items():
        numbers[name] = float(metric.formula(ranked if metric.ranks else t, bins)[0])
        if floor := floors.get(name):
            numbers |= {f"{name}_floor": floor.mean, f"{name}_floor_95": floor.quantile_95}
            numbers[f"{name}_p"] = floor.p_value
    if np.isnan(numbers["auroc"]):
        warn_undefined(one_class("AUROC", "PRR"))
    return numbers


def summaries(confidence: ArrayLike, correct: ArrayLike, *, bins: int = 15) -> dict[str, Floats]:
    """Compute every metric of many sets (runs, measures, methods) with equal numbers of confidences.

    The result maps each metric of :func:`summary`, without n and noise floors, to an array (B,), equal to
    rounding, in a fraction of the time. Arguments are those of :func:`summary`, with a row of `confidence`
    and `correct` (B, N) for each set. AUROC and PRR of a set with one class are NaN.

    >>> numbers = summaries([[0.9, 0.8, 0.8, 0.3], [0.5, 0.5, 0.5, 0.5]], [[1, 1, 0, 0], [1, 0, 1, 0]])
    >>> numbers["auroc"], numbers["ece"]
    (array([0.875, 0.5  ]), array([0.25, 0.  ]))
    """
    bins = check_bins(bins)
    values = np.stack([as_probabilities(row) for row in as_numbers(confidence, "confidence")])
    outcomes = np.stack([as_correct(row) for row in as_numbers(correct, "correct")])
    if values.shape != outcomes.shape:
        raise InputError(
            f"confidence has shape {values.shape} and correct {outcomes.shape}. Give one outcome each."
        )
    n_sets = max(1, AT_A_TIME // values.shape[1])  # as `FrequencyTable.parts`, before the tables are made
    blocks = [slice(start, start + n_sets) for start in range(0, len(values), n_sets)]
    parts = [measure_rows(frequency_tables(values[b], outcomes[b]), METRICS, bins) for b in blocks]
    return {name: np.concatenate([part[name] for part in parts]) for name in METRICS}


@dataclass(frozen=True)
class NoiseFloor:
    """The expected calibration error of calibrated confidences, and a test of calibration.

    `observed` is the error of the data and `p_value` the p-value of calibration; both are NaN without
    outcomes. `mean` and `quantile_95` are those of the error over `draws` simulated outcomes.
    """

    observed: float
    mean: float
    quantile_95: float
    p_value: float
    draws: int


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
    r"""Compute the noise floor of a calibration error, by outcomes simulated from the confidences.

    With few questions, calibrated confidences have a large error, too. With e the observed error and
    :math:`e^*` the error of simulated outcomes, the test of calibration has

    .. math:: p = \frac{1 + \#\{e^* \ge e\}}{1 + \text{draws}}.

    Source: Bröcker and Smith (2007), Increasing the Reliability of Reliability Diagrams, Weather and
    Forecasting 22; Vaicenavicius et al. (2019), Evaluating model calibration in classification, AISTATS.
    Phipson and Smyth (2010), Permutation p-values should never be zero, Statistical Applications in Genetics
    9.

    Parameters
    ----------
    confidence, bins
        As in :func:`semcal.metrics.ece`, with the same errors.
    correct : array_like of bool, shape (N,), optional
        Outcomes for the test.
    metric : str
        A calibration error: "ace", "ece", "smooth_ece", "reliability" or "mcb"; UsageError for others.
    groups : sequence of N labels, optional
        Group of each question. The p-value is then that of outcomes :math:`c_i = [U_g < p_i]` with one
        uniform number for each group; mean and quantile are those of independent questions.
    draws, seed : int
        Number of simulated outcomes, at least 1, and the seed, for which all metrics share the outcomes.

    Notes
    -----
    If all confidences are 0 or 1, the floor is 0, and p is 1 if they are right and 1 / (1 + draws) if not. p
    is valid for any number of questions. With groups, p is valid if members are correct together, and too
    large otherwise (``python -m benchmarks.cluster_coverage sizes``).

    Examples
    --------
    >>> confidence = [0.5, 0.6, 0.7, 0.8, 0.9] * 10
    >>> floor = noise_floor(confidence, [True, False] * 25)
    >>> round(floor.observed, 2), round(floor.mean, 2), floor.p_value < 0.05
    (0.2, 0.1, True)
    """
    errors = [name for name, entry in METRICS.items() if entry.zero_if_calibrated]
    check_name(metric, errors, what="calibration error")
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
    """Compute the floor of each metric from the same simulated outcomes, for checked arguments [N]."""
    draws = int(as_option(draws, "draws", "a positive whole number, such as 1000", low=0, whole=True))
    bins, rng, n = check_bins(bins), as_generator(seed), len(confidence)
    clusters = as_groups(groups, n)
    observed_table = shared_table(confidence, np.zeros(n) if correct is None else correct)
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


def dependent_noise_floor(
    confidence: Floats, correct: Floats, groups: Groups, *, bins: int = 15, draws: int = 500, seed: int = 0
) -> NoiseFloor:
    r"""Compute the noise floor of ACE for outcomes that depend on each other within groups.

    The floor of independent outcomes is multiplied by the factor by which their dependence raises it. For the
    factor, the residuals :math:`e_i = c_i - q_i` of the recalibrated confidences q get random signs: one for
    each group, as in a wild cluster bootstrap, and one for each outcome. The factor is the ratio of the two
    mean errors of :math:`p_i \pm e_i`. A constant or logistic miscalibration does not change it.

    Source: Cameron, Gelbach and Miller (2008), Bootstrap-based improvements for inference with clustered
    errors, Review of Economics and Statistics 90.
    """
    alone = noise_floors(confidence, correct, ("ace",), bins=bins, draws=draws, seed=seed)["ace"]
    residual = correct - Move.of(confidence, correct).apply(confidence)
    rng, errors = np.random.default_rng([seed, 7]), []
    for label in (groups, np.arange(len(groups))):
        of_label = []
        for _ in range(0, draws, step := max(1, min(draws, DRAWN // len(groups)))):
            sign = 1 - 2 * (draw_uniforms(len(groups), step, rng, label) < 0.5)
            of_label.append(ace_of(shared_table(confidence, confidence + sign * residual), bins))
        errors.append(np.concatenate(of_label))
    together, apart = errors
    if not apart.any():
        return alone
    scaled = together * (alone.mean / apart.mean())
    p_value = (1 + int(np.count_nonzero(scaled >= alone.observed - 1e-12))) / (1 + len(scaled))
    return NoiseFloor(
        alone.observed, float(scaled.mean()), float(np.quantile(scaled, 0.95)), p_value, len(scaled)
    )


def _drawn(table: FrequencyTable, draws: int, rng: np.random.Generator) -> FrequencyTable:
    """Simulate calibrated outcomes of the values in the table."""
    count, value = table.count[0].astype(np.int64)[:, None], table.value[:, None]
    alone = count[:, 0] == 1
    right = np.empty((draws, len(count)))  # in memory by draw, as metrics read it
    right[:, alone] = (rng.random((np.count_nonzero(alone), draws)) < value[alone]).T
    right[:, ~alone] = rng.binomial(count[~alone], value[~alone], size=(np.count_nonzero(~alone), draws)).T
    return FrequencyTable(table.value, np.broadcast_to(table.count, right.shape), right)
