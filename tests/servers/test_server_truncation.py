"""Finding truncation from draws, on made-up distributions in closed form."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semcal.servers.probing import FALSE_ALARM, Key, TopTokens, find_truncation
from tests.servers import fake_model

ALL = ("top-k", "top-p", "min-p")


def log_probs(size: int, exponent: float) -> np.ndarray:
    """A power law, likeliest first."""
    weights = np.arange(1, size + 1.0) ** -exponent
    return np.log(weights / weights.sum())


class Drawing:
    """Draws from a distribution, cut before or after the temperature is applied; counts what it gave."""

    def __init__(self, raw: np.ndarray, *, first: str = "temperature", **cut: float) -> None:
        self.raw, self.first, self.number = raw, first, 0
        self.cut = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, **cut}

    def __call__(self, index: int, temperature: float, seed: int) -> Sequence[Key]:
        def cut(values: np.ndarray) -> np.ndarray:
            return fake_model.truncated(values, **self.cut)

        raw = cut(self.raw) if self.first == "cut" else self.raw
        with np.errstate(invalid="ignore"):
            hot = fake_model.at_temperature(raw, temperature)
        share = np.exp(hot if self.first == "cut" else cut(hot))
        self.number += 64
        return np.random.default_rng(seed).choice(len(share), 64, p=share / share.sum()).tolist()


def known(raw: np.ndarray, k: int | None) -> list[TopTokens]:
    whole = k is None
    return [TopTokens.of({i: float(value) for i, value in enumerate(raw[:k])}, complete=whole)]


@pytest.mark.parametrize("first", ["temperature", "cut"])
@pytest.mark.parametrize("k", [20, None])
@pytest.mark.parametrize(
    ("cut", "name"), [({"top_k": 40}, "top-k"), ({"top_p": 0.95}, "top-p"), ({"min_p": 0.05}, "min-p")]
)
def test_the_usual_cuts_are_found(cut: dict[str, float], name: str, k: int | None, first: str) -> None:
    raw = log_probs(32_000, 2.2)
    found, tested = find_truncation(Drawing(raw, first=first, **cut), known(raw, k), [1.0, 2.0])
    assert found is not None
    assert name in found
    assert name in tested


@pytest.mark.parametrize("k", [20, None])
@pytest.mark.parametrize("exponent", [1.4, 2.2])
def test_a_server_that_does_not_cut_is_cleared_within_a_few_rounds(k: int | None, exponent: float) -> None:
    raw = log_probs(32_000, exponent)
    draw = Drawing(raw)
    found, tested = find_truncation(draw, known(raw, k), [1.0, 2.0])
    assert found is None
    assert tested == (
        ALL if k is None or exponent > 2 else ("top-k", "min-p")
    )  # 20 tokens are less than 0.96
    assert draw.number <= 64 * 12


def test_without_log_probabilities_only_top_k_is_looked_for() -> None:
    raw = log_probs(32_000, 2.2)
    assert find_truncation(Drawing(raw), [None], [1.0, 2.0]) == (None, ("top-k",))
    found, tested = find_truncation(Drawing(raw, top_k=40), [None], [1.0, 2.0])
    assert found == "top-k: 1024 draws at T = 2 gave only 40 different tokens"
    assert tested == ("top-k",)


def test_few_different_tokens_are_no_cut_where_they_are_all_that_is_likely() -> None:
    raw = np.log(np.array([0.96, *[0.04 / 99] * 99]))
    assert find_truncation(Drawing(raw), known(raw, None), [1.0])[0] is None
    spread = np.log(np.array([0.999999, *[1e-6 / 99] * 99]))
    assert find_truncation(Drawing(spread), known(spread, None), [1.0]) == (None, ())


def test_probabilities_of_0_are_a_cut() -> None:
    masked = {0: -0.1, 1: -2.5, 2: -np.inf}
    found, tested = find_truncation(lambda *_: [], [TopTokens.of(masked, complete=False)], [1.0, 2.0])
    assert found == "2 tokens (all others have probability 0)"
    assert tested == ALL


def test_a_server_that_refuses_to_draw_is_neither_cleared_nor_accused() -> None:
    raw = log_probs(1000, 1.5)
    assert find_truncation(lambda *_: [], known(raw, 20), [1.0, 2.0]) == (None, ())


def test_a_server_without_a_cut_is_accused_no_more_often_than_stated() -> None:
    # The least likely draws that a cut by min-p would not leave: in no round of 2000 is one missing for long.
    raw = log_probs(500, 2.5)
    one = known(raw, None)[0]
    kept = one.kept("min-p", 1.0)
    assert kept is not None
    missing = 1 - np.exp(raw[:kept]).sum()
    rounds = np.random.default_rng(0).binomial(64, missing, size=(2000, 16))
    never = [
        (1 - missing) ** (64 * (i + 1)) <= FALSE_ALARM and not row[: i + 1].any()
        for row in rounds
        for i in range(16)
    ]
    assert sum(never) == 0


@given(
    st.lists(st.floats(0.001, 1.0), min_size=3, max_size=60),
    st.integers(2, 40),
    st.floats(1.0, 20.0),
)
def test_shares_of_the_listed_tokens_are_upper_bounds(
    weights: list[float], k: int, temperature: float
) -> None:
    raw = np.log(np.sort(np.array(weights) / np.sum(weights))[::-1])
    exact = np.exp(fake_model.at_temperature(raw, temperature))
    listed = known(raw, min(k, len(raw)))[0].shares(temperature)
    assert (listed >= exact[: len(listed)] * (1 - 1e-9)).all()
    assert known(raw, None)[0].shares(temperature) == pytest.approx(exact)


def test_a_text_that_two_tokens_may_have_leaves_the_bound_true() -> None:
    raw = np.log(np.array([0.4, 0.3, 0.2, 0.1]))
    listed = TopTokens.of({"a": float(raw[0]), "�": float(raw[3])}, complete=False)  # 0.3 and 0.2 are hidden
    exact = np.exp(fake_model.at_temperature(raw, 3.0))
    assert (listed.shares(3.0) >= exact[[0, 3]]).all()
