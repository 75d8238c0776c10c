"""ECE, ACE and SmoothECE against their definitions written out, and against relplot."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.fft import dct
from scipy.stats import norm

from semcal.metrics import ace, ace_in_row_order, calibration_errors, ece, smooth_ece
from tests.metrics.examples import EXAMPLES


def plain_ece(p, c, bins):
    """Bin by bin, (l, r], the first closed on the left, values up to 1e-6 above an edge below it."""
    total = 0.0
    for b in range(bins):
        inside = [
            i
            for i in range(len(p))
            if (p[i] - 1e-6 > b / bins or b == 0) and (p[i] - 1e-6 <= (b + 1) / bins or b == bins - 1)
        ]
        if inside:
            gap = np.mean([c[i] for i in inside]) - np.mean([p[i] for i in inside])
            total += len(inside) / len(p) * abs(gap)
    return total


def plain_ace(p, c, bins):
    """Sort, let ties share their mean correctness, cut into equal parts."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    shared = [np.mean([c[j] for j in range(len(p)) if p[j] == p[i]]) for i in order]
    bins = min(bins, len(p))
    total, start = 0.0, 0
    for b in range(bins):
        size = len(p) // bins + (b < len(p) % bins)
        part = range(start, start + size)
        total += abs(sum(shared[i] - p[order[i]] for i in part)) / len(p)
        start += size
    assert start == len(p)
    return total


def plain_smooth_ece(p, c, end_weight, cells=1500, reach=np.inf):
    """The integral by the midpoint rule, the kernel reflected by images, the fixed point by bisection.

    With a `reach` of 0.5 the kernel is cut off there, and what is left of it has mass 1: as relplot does.
    """
    t = (np.arange(cells) + 0.5) / cells
    weight = np.where((p == 0) | (p == 1), end_weight, 1.0)

    def at(width):
        images = [sign * p + 2 * j for j in (-2, -1, 0, 1, 2) for sign in (1, -1)]
        away = [np.abs(t[:, None] - image) for image in images]
        kernel = sum(np.where(d <= reach, norm.pdf(d, scale=width), 0.0) for d in away)
        mass = weight.sum() if np.isinf(reach) else (kernel @ weight).mean()
        return np.abs(kernel @ (weight * (c - p))).mean() / mass

    low, high = 1e-3, 1.0
    for _ in range(14):
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle) > middle else (low, middle)
    return at(low)


@given(EXAMPLES, st.integers(1, 20))
def test_ece_is_the_definition(examples, bins):
    assert ece(*examples, bins=bins) == pytest.approx(plain_ece(*examples, bins), abs=1e-12)


@given(EXAMPLES, st.integers(1, 20))
def test_ace_is_the_definition(examples, bins):
    assert ace(*examples, bins=bins) == pytest.approx(plain_ace(*examples, bins), abs=1e-12)


@pytest.mark.parametrize("end_weight", [0.5, 1.0])
@pytest.mark.parametrize("seed", range(2))
def test_smooth_ece_is_the_definition(end_weight, seed):
    rng = np.random.default_rng(seed)
    p = rng.choice(np.arange(11) / 10, 30) if seed % 2 else rng.uniform(size=30)
    c = (rng.uniform(size=30) < p**2).astype(float)
    expected = plain_smooth_ece(p, c, end_weight)
    assert smooth_ece(p, c, end_weight=end_weight) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_the_cosine_transform_is_scipys_to_the_bit(seed):
    rows = np.random.default_rng(seed).normal(size=(3 + seed, 1 + 16 * 4**seed))
    assert np.array_equal(calibration_errors._cosine_transform(rows), dct(rows, type=1))


@pytest.mark.parametrize("seed", range(2))
def test_smooth_ece_agrees_with_its_authors_package(seed):
    relplot = pytest.importorskip("relplot.metrics")
    rng = np.random.default_rng(seed)
    p = rng.beta(3, 1, 800)
    p = np.ceil(p * 10) / 10 if seed % 2 else p
    c = (rng.uniform(size=800) < p ** (1 + seed / 2)).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = relplot.smECE(p, c)
    assert smooth_ece(p, c) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize(
    ("slope", "definition", "package"), [(0.0, 0.216, 0.221), (-0.4, 0.277, 0.302), (-1.0, 0.331, 0.402)]
)
def test_at_large_widths_smooth_ece_is_the_definition_and_relplot_a_kernel_cut_at_a_half(
    slope, definition, package
):
    """The chance of being right does not rise with the confidence, or falls with it."""
    rng = np.random.default_rng(0)
    p = rng.uniform(0.01, 0.99, 300)
    c = (rng.random(300) < 0.5 + slope * (p - 0.5)).astype(float)
    assert smooth_ece(p, c) == pytest.approx(definition, abs=1e-3)
    assert smooth_ece(p, c) == pytest.approx(plain_smooth_ece(p, c, 0.5), abs=1e-4)
    cut = plain_smooth_ece(p, c, 0.5, reach=0.5)
    assert cut == pytest.approx(package, abs=1e-3)
    relplot = pytest.importorskip("relplot.metrics")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert cut == pytest.approx(relplot.smECE(p, c), abs=1e-3)


def test_the_weight_of_the_ends_reaches_one_cell_inwards():
    """It goes linearly from `end_weight` at 1 to a whole weight at 1 - 1/1024."""

    def at(value, end_weight):
        p = np.r_[np.full(50, value), np.full(50, 0.5)]
        c = np.r_[np.ones(45), np.zeros(5), np.ones(10), np.zeros(40)]
        return smooth_ece(p, c, end_weight=end_weight)

    assert at(1.0, 0.5) - at(1.0, 1.0) == pytest.approx(0.033, abs=1e-3)
    assert at(1 - 0.5 / 1024, 0.5) - at(1 - 0.5 / 1024, 1.0) == pytest.approx(0.014, abs=1e-3)
    assert at(1 - 1 / 1024, 0.5) == pytest.approx(at(1 - 1 / 1024, 1.0), abs=1e-12)


@pytest.mark.parametrize(("above", "together"), [(9e-7, True), (1.2e-6, False)])
def test_a_value_up_to_a_millionth_above_an_edge_belongs_below_it(above, together):
    # Two residuals of opposite sign cancel in one bin and add up in two.
    p, c = [0.1, 0.2 + above], [1, 0]
    apart = (0.9 + 0.2 + above) / 2
    same = abs(1 - 0.3 - above) / 2
    assert ece(p, c, bins=5) == pytest.approx(same if together else apart)


@settings(max_examples=30)
@given(EXAMPLES)
def test_smooth_ece_with_whole_ends_is_at_most_the_error_without_smoothing(examples):
    p, c = examples
    exact = math.fsum(abs((c - p)[p == value].sum()) for value in np.unique(p)) / len(p)
    assert smooth_ece(p, c, end_weight=1.0) <= exact + 1e-3


def test_ace_in_row_order_is_a_plain_mean_over_bins_of_the_rows_as_they_come() -> None:
    rng = np.random.default_rng(4)
    confidence = np.round(rng.random(97), 1)
    correct = rng.random(97) < confidence
    rows = sorted(zip(confidence.tolist(), correct.tolist()), key=lambda row: row[0])
    sizes = [7] * 7 + [6] * 8  # 97 = 15 · 6 + 7
    expected, start = [], 0
    for size in sizes:
        part = rows[start : start + size]
        expected.append(abs(sum(c for _, c in part) / size - sum(p for p, _ in part) / size))
        start += size
    assert ace_in_row_order(confidence, correct) == pytest.approx(sum(expected) / 15, abs=1e-12)
