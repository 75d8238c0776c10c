"""Noise floor: the calibration error that chance alone shows on so few questions, and the test against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from semcal.arrays import as_generator, as_option
from semcal.errors import UsageError
from semcal.metrics.argument_names import both_names
from semcal.metrics.frequencies import Floats, Labels, as_groups, as_pairs, as_probabilities, check_bins
from semcal.metrics.resamples import CALIBRATED, ResampledRun, Resamples

#: The errors beside which a summary shows the floor.
FLOORED = ("ece", "ace", "smooth_ece")
#: Outcomes drawn at a time.
AT_A_TIME = 2_000_000


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
    groups: Labels | None = None,
    bins: int = 15,
    draws: int = 1000,
    seed: int | np.random.Generator = 0,
) -> NoiseFloor:
    r"""Calibration error of outcomes drawn from the confidences themselves.

    Few questions make a large error by chance: an ACE of .06 is nothing where calibrated confidences show as
    much. With e the error observed and :math:`e^*` that of a draw, the test of calibration has

    .. math:: p = \frac{1 + \#\{e^* \ge e\}}{1 + \text{draws}}.

    Parameters
    ----------
    confidence : array_like of float, shape (N,)
        Probabilities; values outside [0, 1] by at most 1e-6 are clipped.
    correct : array_like of bool, shape (N,), optional
        Outcomes, for the test.
    metric : str
        An error of calibration: "ace", "ece", "smooth_ece", "reliability" or "mcb".
    groups : sequence of N labels, optional
        Questions of a group may be right together, which outcomes drawn one by one are not. The p value is
        then that of outcomes :math:`c_i = [U_g < p_i]`, one uniform number a group: of members that are right
        together as far as their confidences allow. Mean and quantile stay those of independent questions.
    bins : int
        Bins of ECE and ACE.
    draws : int
        At least 1.
    seed : int or numpy.random.Generator
        The same seed gives the same numbers, and the same draws to every metric.

    Returns
    -------
    NoiseFloor

    Raises
    ------
    InputError
        As :func:`semcal.metrics.ece`.
    UsageError
        A metric that is no error of calibration, or numbers of bins or draws below 1.

    Notes
    -----
    Confidences that are all 0 or 1 leave nothing to chance: the floor is 0, and p is 1 if they are right and
    1 / (1 + draws) if not. p is valid for any number of questions, one included (it is never too often
    small), exact to its steps where the error takes many values. With groups it is so where members are
    right together, and too large where they are not (simulated from 10 groups on:
    ``python -m benchmarks.cluster_coverage sizes``).

    References
    ----------
    Bröcker and Smith (2007), Increasing the Reliability of Reliability Diagrams, Weather and Forecasting 22;
    Vaicenavicius et al. (2019), Evaluating model calibration in classification, AISTATS. Phipson and Smyth
    (2010), Permutation p-values should never be zero, Statistical Applications in Genetics 9.

    Examples
    --------
    >>> confidence = [0.5, 0.6, 0.7, 0.8, 0.9] * 10
    >>> floor = noise_floor(confidence, [True, False] * 25)
    >>> round(floor.observed, 2), round(floor.mean, 2), floor.p_value < 0.05
    (0.2, 0.1, True)
    """
    if metric not in CALIBRATED:
        raise UsageError(f"{metric!r} is no error of calibration; known: {', '.join(CALIBRATED)}")
    p = as_probabilities(confidence)
    c = None if correct is None else as_pairs(p, correct)[1]
    return noise_floors(p, c, (metric,), bins=bins, draws=draws, seed=seed, groups=groups)[metric]


def noise_floors(
    confidence: Floats,
    correct: Floats | None,
    metrics: Sequence[str] = FLOORED,
    *,
    groups: Labels | None = None,
    bins: int = 15,
    draws: int = 1000,
    seed: int | np.random.Generator = 0,
) -> dict[str, NoiseFloor]:
    """The floor of each metric from the same draws, of checked confidences and outcomes [N]."""
    number = int(as_option(draws, "draws", "a positive whole number, such as 1000", low=0, whole=True))
    rng, n = as_generator(seed), len(confidence)
    questions = Resamples(np.empty((n, 1)), as_groups(groups, n))
    outcomes = np.zeros(n) if correct is None else correct
    run = ResampledRun.of(confidence, outcomes, questions, check_bins(bins))
    seen = np.add.reduceat(run.correct - run.values, run.starts)[:, None]
    errors: dict[str, list[Floats]] = {name: [] for name in metrics}
    under_null: dict[str, list[Floats]] = {name: [] for name in metrics}
    step = max(1, AT_A_TIME // n)
    for start in range(0, number, step):
        gaps = null = _drawn_gaps(run, min(step, number - start), rng)
        if questions.groups is not None:
            together = replace(questions, counts=np.empty((n, gaps.shape[1])))
            null = run.calibrated_gaps(together.draw_calibration(rng))
        for name in metrics:
            errors[name].append(CALIBRATED[name](run, gaps))
            under_null[name].append(errors[name][-1] if null is gaps else CALIBRATED[name](run, null))
    floors = {}
    for name in metrics:
        drawn, observed = np.concatenate(errors[name]), float(CALIBRATED[name](run, seen)[0])
        # 1e-12: the same outcomes have the same error despite rounding
        reached = np.count_nonzero(np.concatenate(under_null[name]) >= observed - 1e-12)
        tested = (observed, (1 + int(reached)) / (1 + number)) if correct is not None else (np.nan, np.nan)
        mean, quantile = float(drawn.mean()), float(np.quantile(drawn, 0.95))
        floors[name] = NoiseFloor(tested[0], mean, quantile, tested[1], number)
    return floors


def _drawn_gaps(run: ResampledRun, draws: int, rng: np.random.Generator) -> Floats:
    """Sum of (outcome - value) in each tie for outcomes drawn from the values: [U, draws]."""
    count, value = run.sizes[:, None], run.levels[:, None]
    alone = run.sizes == 1
    right = np.empty((len(count), draws))
    right[alone] = rng.random((np.count_nonzero(alone), draws)) < value[alone]
    right[~alone] = rng.binomial(count[~alone], value[~alone], size=(np.count_nonzero(~alone), draws))
    gaps: Floats = right - count * value
    return gaps
