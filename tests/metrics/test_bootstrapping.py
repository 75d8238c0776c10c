"""Intervals, tests and contrasts of several methods on the same resamples, against plain loops over these."""

from __future__ import annotations

import pickle
from dataclasses import astuple

import numpy as np
import pytest

from semcal.errors import InputError, UsageError
from semcal.metrics import Contrast, bootstrap, joint_bootstrap, paired_test
from tests.metrics.plain_bootstrap import plain_intervals, plain_resamples, plain_summary

METRICS = ["accuracy", "ace", "brier", "auroc", "mcb", "resolution", "smooth_ece"]


def several(runs: int = 2, n: int = 60) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(3)
    chance = rng.uniform(size=n)
    shapes = {"calibrated": 1.0, "sharp": 0.3, "flat": 2.0}
    return {
        name: (
            np.round(np.tile(chance**power, (runs, 1)) ** rng.uniform(0.9, 1.1, (runs, n)), 2),
            rng.uniform(size=(runs, n)) < chance,
        )
        for name, power in shapes.items()
    }


def rounding(metric: str) -> float:
    """SmoothECE's width is one of 2^14, and rounding may decide which of two it is."""
    return 2**-13 if metric == "smooth_ece" else 1e-11


def test_intervals_are_those_of_resamples_written_out() -> None:
    methods = several()
    found = joint_bootstrap(methods, resamples=150, seed=5)
    for name, given in methods.items():
        alone = bootstrap(*given, resamples=150, seed=5)
        expected = plain_intervals(list(zip(*given)), 150, 5)
        for metric, interval in alone.items():
            ends = (interval.low, interval.high, interval.standard_error)
            assert ends == pytest.approx(expected[metric], abs=rounding(metric)), metric
            assert astuple(found.interval(name, metric)) == astuple(interval)


@pytest.mark.parametrize("metric", METRICS)
def test_tests_are_those_of_resamples_written_out(metric: str) -> None:
    methods = several()
    found = joint_bootstrap(methods, metrics=METRICS, resamples=150, seed=5)
    alone = paired_test(*methods["sharp"], *methods["calibrated"], metric=metric, resamples=150, seed=5)
    assert astuple(found.paired("sharp", "calibrated", metric)) == astuple(alone)
    runs = [list(zip(*methods[name])) for name in ("sharp", "calibrated")]
    first, second = (plain_summary(one)[metric] for one in runs)
    values = np.subtract(*(plain_resamples(one, 150, np.random.default_rng(5))[metric] for one in runs))
    difference, bias = first - second, values.mean() - (first - second)
    low, high = np.quantile(values, [0.025, 0.975]) - bias
    p = (1 + np.sum(np.abs(values - values.mean()) >= abs(difference))) / 151
    expected = (first, second, difference, low, high, values.std(ddof=1), p, 0.95, 150)
    assert astuple(alone) == pytest.approx(expected, abs=rounding(metric))


def test_any_score_will_do_where_all_metrics_rank() -> None:
    methods = {name: (np.log(p + 0.01), c) for name, (p, c) in several().items()}
    found = joint_bootstrap(methods, metrics=["auroc"], resamples=20)
    same = joint_bootstrap(several(), metrics=["auroc"], resamples=20)
    assert found.estimates["flat"] == pytest.approx(same.estimates["flat"])


def test_contrasts_add_up_resample_by_resample() -> None:
    found = joint_bootstrap(several(), metrics=["brier"], resamples=50)
    sharp, flat = (found.contrast(name, "brier") for name in ("sharp", "flat"))
    half = Contrast.mean([sharp, flat])
    assert half.value == pytest.approx((sharp.value + flat.value) / 2)
    assert half.resampled == pytest.approx((sharp.resampled + flat.resampled) / 2)
    assert (sharp - sharp).p_value() == 1.0
    assert (half * 2.0).value == pytest.approx((sharp + flat).value)


def test_another_process_gets_tests_and_no_intervals_of_errors_that_need_the_questions() -> None:
    found = joint_bootstrap(several(), metrics=["brier", "ace"], resamples=50)
    sent = pickle.loads(pickle.dumps(found))
    assert sent.paired("sharp", "flat", "ace") == found.paired("sharp", "flat", "ace")
    assert sent.interval("sharp", "brier") == found.interval("sharp", "brier")
    with pytest.raises(RuntimeError, match="by the process that drew the resamples"):
        sent.interval("sharp", "ace")


def test_no_methods_have_no_metrics() -> None:
    assert joint_bootstrap({}, metrics=["brier"]).estimates == {}


def test_methods_on_other_questions_are_refused() -> None:
    methods = {"one": ([0.5, 0.6], [1, 0]), "two": ([0.5], [1])}
    with pytest.raises(InputError, match="one: 2, two: 1"):
        joint_bootstrap(methods, metrics=["brier"])


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown metric 'axe'"):
        joint_bootstrap(several(), metrics=["axe"])
