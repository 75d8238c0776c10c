"""Slices: each is what its questions alone give, with the number of slices allowed for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from semcal import metrics
from semcal.errors import InputError
from semcal.metrics import slices


def questions(n: int, seed: int = 0, *, too_sure: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = rng.beta(3, 1.5, n)
    return p, rng.random(n) < np.clip(p - too_sure, 0, 1)


def test_a_slice_is_what_its_questions_alone_give() -> None:
    p, c = questions(300)
    names = ["a"] * 150 + ["b"] * 100 + ["c"] * 50
    answered = p > 0.6
    found = slices(p, c, names, answered=answered, risk_limit=0.2)
    assert [(one.value, one.n) for one in found] == [("a", 150), ("b", 100), ("c", 50)]
    for one in found:
        part = np.array(names) == one.value
        alone = metrics.summary(p[part], c[part], draws=1000)
        assert one.accuracy == pytest.approx(alone["accuracy"])
        assert one.mean_confidence == pytest.approx(alone["mean_confidence"])
        assert (one.ace, one.ace_floor) == pytest.approx((alone["ace"], alone["ace_floor"]), abs=0.01)
        assert one.excess == pytest.approx(one.mean_confidence - one.accuracy)
        n, errors = int((part & answered).sum()), int((part & answered & ~c).sum())
        expected = binomtest(errors, n).proportion_ci(1 - 0.05 / 3, method="exact")
        assert (one.answered, one.errors, one.risk) == (n, errors, errors / n)
        assert one.risk_interval == pytest.approx((expected.low, expected.high))
        assert one.kept == (expected.low <= 0.2)


def test_a_slice_that_is_too_sure_and_breaks_the_promise_is_found_and_no_other() -> None:
    (p, c), (q, d) = questions(400), questions(200, 1, too_sure=0.4)
    sure, right = np.concatenate([p, q]), np.concatenate([c, d])
    found = slices(sure, right, ["good"] * 400 + ["bad"] * 200, answered=sure > 0.6, risk_limit=0.3)
    assert [(one.value, one.calibrated, one.kept) for one in found] == [
        ("good", True, True),
        ("bad", False, False),
    ]
    low, high = found[1].excess_interval or (0, 0)
    assert low < 0.4 < high
    assert low > 0


def test_too_few_questions_or_groups_of_them_are_not_tested() -> None:
    p, c = questions(60)
    few, many = slices(p, c, ["a"] * 41 + ["b"] * 19)[::-1]
    assert (few.calibrated, few.excess_interval, few.kept) == (None, None, None)
    assert many.calibrated is not None
    groups = [number // 3 for number in range(60)]
    assert [one.calibrated is None for one in slices(p, c, ["a"] * 57 + ["b"] * 3, groups=groups)] == [
        True,
        True,
    ]
    (nothing,) = slices(p, c, ["a"] * 60, answered=[False] * 60, risk_limit=0.1)
    assert (nothing.answered, nothing.risk, nothing.kept) == (0, None, None)


def test_of_calibrated_confidences_all_slices_hold_as_often_as_the_level_says() -> None:
    all_hold = []
    for seed in range(60):
        p, c = questions(240, seed)
        found = slices(p, c, [str(i % 6) for i in range(240)], seed=seed)
        all_hold.append(all(one.calibrated for one in found))
    assert binomtest(sum(all_hold), 60, 0.95, alternative="less").pvalue > 0.001


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from("abc"), min_size=30, max_size=60), st.randoms(use_true_random=False))
def test_the_order_of_questions_does_not_matter(names: list[str], random: object) -> None:
    p, c = questions(len(names))
    order = list(range(len(names)))
    random.shuffle(order)  # type: ignore[attr-defined]
    found = slices(p, c, names, answered=p > 0.5, risk_limit=0.3)
    again = slices(p[order], c[order], [names[i] for i in order], answered=p[order] > 0.5, risk_limit=0.3)
    for one, other in zip(found, again, strict=True):
        assert (one.value, one.n, one.errors, one.kept) == (other.value, other.n, other.errors, other.kept)
        assert one.excess == pytest.approx(other.excess)
        assert one.excess_interval == pytest.approx(other.excess_interval)


@pytest.mark.parametrize("options", [{"values": ["a"]}, {"values": ["a", "b"], "answered": [True]}])
def test_another_number_of_values_is_refused(options: dict[str, list[object]]) -> None:
    with pytest.raises(InputError):
        slices([0.5, 0.6], [True, False], **options)
