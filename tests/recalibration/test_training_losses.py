"""The losses for training against a literal transcription of the paper's equations and autograd."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semcal.errors import InputError
from semcal.recalibration.exact_solver import mean_loss, token_losses

POINTS = [("NLL", None), ("SS", 0.1), ("SS", 0.25), ("SS", 0.5), ("SS", 0.75)]


def transcribed(p: list[float], y: int, loss: str, alpha: float | None) -> float:
    """Equations "ce loss" and "ss loss" of the paper for one token with distribution p."""
    if loss == "NLL":
        return -math.log(p[y])
    y_hat = max(range(len(p)), key=lambda v: p[v])
    return -(1 - alpha) * math.log(p[y]) * (y_hat == y) - alpha / len(p) * sum(map(math.log, p)) * (
        y_hat != y
    )


def drawn(seed: int, n: int = 30, size: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, size, generator=g, dtype=torch.float64) * 2
    return z, torch.multinomial(torch.softmax(z, 1), 1, generator=g)[:, 0]


@pytest.mark.parametrize(("loss", "alpha"), POINTS)
@settings(max_examples=20)
@given(seed=st.integers(0, 999))
def test_each_token_s_loss_is_the_paper_s_equation(loss: str, alpha: float | None, seed: int) -> None:
    z, y = drawn(seed)
    found = token_losses(torch.log_softmax(z, 1), y, loss=loss, alpha=alpha)
    expected = [transcribed(p, t, loss, alpha) for p, t in zip(torch.softmax(z, 1).tolist(), y.tolist())]
    assert found.tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("loss", "alpha"), POINTS)
def test_gradients_agree_with_finite_differences_in_float64(loss: str, alpha: float | None) -> None:
    z, y = drawn(1, n=12)
    w = torch.ones(7, dtype=torch.float64, requires_grad=True)
    b = torch.zeros(7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda w, b: mean_loss(torch.log_softmax(w * z + b, 1), y, loss=loss, alpha=alpha), (w, b)
    )


@pytest.mark.parametrize(("loss", "alpha"), POINTS)
def test_masked_positions_are_counted_nowhere(loss: str, alpha: float | None) -> None:
    z, y = drawn(2)
    spoilt, ignored = z.clone(), y.clone()
    spoilt[::3], ignored[::3] = torch.nan, -100
    mask = torch.ones(30, dtype=torch.bool)
    mask[::3] = False
    spoilt.requires_grad_(True)
    value = mean_loss(torch.log_softmax(spoilt, 1), ignored, mask, loss=loss, alpha=alpha)
    kept = token_losses(torch.log_softmax(z[mask], 1), y[mask], loss=loss, alpha=alpha)
    assert value.item() == pytest.approx(kept.mean().item(), rel=1e-12)


def test_weights_are_repetitions() -> None:
    z, y = drawn(3, n=6)
    times = torch.tensor([0, 1, 2, 3, 1, 0])
    log_p = torch.log_softmax(z, 1)
    log_p_repeated, y_repeated = (t.repeat_interleave(times, 0) for t in (log_p, y))
    repeated = mean_loss(log_p_repeated, y_repeated, loss="SS", alpha=0.25)
    weighted = mean_loss(log_p, y, times, loss="SS", alpha=0.25)
    assert weighted.item() == pytest.approx(repeated.item(), rel=1e-12)


def test_ss_with_an_impossible_token_is_an_error_where_it_misses_and_finite_where_it_hits() -> None:
    log_p = torch.tensor([[0.6, 0.4, 0.0]]).log().requires_grad_(True)
    loss = mean_loss(log_p, torch.tensor([0]), loss="SS", alpha=0.1)
    assert loss.item() == pytest.approx(-0.9 * math.log(0.6))
    (gradient,) = torch.autograd.grad(loss, log_p)
    assert gradient.tolist() == [pytest.approx([-0.9, 0.0, 0.0])]
    with pytest.raises(InputError, match="SS of token 0"):
        mean_loss(log_p, torch.tensor([1]), loss="SS", alpha=0.1)
    with pytest.raises(InputError, match="NLL of token 0"):
        mean_loss(log_p, torch.tensor([2]), loss="NLL", alpha=None)
    with pytest.raises(InputError, match="weights"):
        mean_loss(*drawn(4), torch.zeros(30), loss="NLL", alpha=None)
