"""Many methods on common resamples give what each alone, and each pair, would have given."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest

from semcal.errors import InputError, UsageError
from semcal.metrics import Contrast, bootstrap, common_resamples, paired_test

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


def test_intervals_are_those_of_the_bootstrap() -> None:
    methods = several()
    found = common_resamples(methods, metrics=METRICS, resamples=150, seed=5)
    for name, given in methods.items():
        alone = bootstrap(*given, metrics=METRICS, resamples=150, seed=5)
        for metric in METRICS:
            assert astuple(found.interval(name, metric)) == pytest.approx(astuple(alone[metric]), abs=1e-11)


@pytest.mark.parametrize("metric", METRICS)
def test_tests_are_those_of_each_pair(metric: str) -> None:
    methods = several()
    found = common_resamples(methods, metrics=METRICS, resamples=150, seed=5)
    alone = paired_test(*methods["sharp"], *methods["calibrated"], metric=metric, resamples=150, seed=5)
    both = found.paired("sharp", "calibrated", metric)
    assert astuple(both) == pytest.approx(astuple(alone), abs=1e-11)


def test_any_score_will_do_where_all_metrics_rank() -> None:
    methods = {name: (np.log(p + 0.01), c) for name, (p, c) in several().items()}
    found = common_resamples(methods, metrics=["auroc"], resamples=20)
    same = common_resamples(several(), metrics=["auroc"], resamples=20)
    assert found.estimates["flat"] == pytest.approx(same.estimates["flat"])


def test_contrasts_add_up_resample_by_resample() -> None:
    found = common_resamples(several(), metrics=["brier"], resamples=50)
    sharp, flat = (found.contrast(name, "brier") for name in ("sharp", "flat"))
    half = Contrast.mean([sharp, flat])
    assert half.value == pytest.approx((sharp.value + flat.value) / 2)
    assert half.drawn == pytest.approx((sharp.drawn + flat.drawn) / 2)
    assert (sharp - sharp).p_value() == 1.0
    assert (half * 2.0).value == pytest.approx((sharp + flat).value)


def test_methods_on_other_questions_are_refused() -> None:
    methods = {"one": ([0.5, 0.6], [1, 0]), "two": ([0.5], [1])}
    with pytest.raises(InputError, match="one: 2, two: 1"):
        common_resamples(methods, metrics=["brier"])


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown metric 'axe'"):
        common_resamples(several(), metrics=["axe"])
