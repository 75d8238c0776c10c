"""TS and the losses of training against known truth, a literal transcription and SciPy's minimiser."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from semcal.errors import FitError, InputError, UsageError
from semcal.recalibration import SE, Base, Temperature, TemperatureScaling
from semcal.recalibration.exact_solver import mean_loss, sums_at, token_losses
from semcal.recalibration.records import PAPER_LOSSES

EACH_LOSS = pytest.mark.parametrize(("loss", "alpha"), PAPER_LOSSES)


def draws(seed: int, n: int = 400, size: int = 30, temperature: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and targets drawn from them at `temperature`."""
    rng = np.random.default_rng(seed)
    z = 3 * rng.standard_normal((n, size))
    p = np.exp(log_softmax(z / temperature, axis=1))
    return z, (p.cumsum(1) > rng.random((n, 1))).argmax(1)


def transcribed(log_p: np.ndarray, target: int, loss: str, alpha: float | None) -> float:
    """The paper's two equations for one token."""
    if loss == "NLL":
        return -log_p[target]
    if int(np.argmax(log_p)) == target:
        return -(1 - alpha) * log_p[target]
    return -(alpha / len(log_p)) * sum(log_p)


def transcribed_loss(t: float, z: np.ndarray, y: np.ndarray, loss: str, alpha: float | None) -> float:
    return np.mean([transcribed(log_softmax(row / t), target, loss, alpha) for row, target in zip(z, y)])


@EACH_LOSS
def test_the_fit_is_the_minimum_that_scipy_finds_of_the_literal_loss(loss: str, alpha: float | None) -> None:
    z, y = draws(0, n=150, temperature=2.0)
    fitted = TemperatureScaling(loss, alpha).fit(z, y)
    found = minimize_scalar(
        lambda x: transcribed_loss(math.exp(x), z, y, loss, alpha),
        bounds=(math.log(0.05), math.log(20)),
        options={"xatol": 1e-9},
    )
    assert math.log(fitted.temperature_) == pytest.approx(found.x, abs=1e-5)
    assert fitted.certificate_.loss == pytest.approx(found.fun, abs=1e-9)
    assert fitted.certificate_.loss_at_one == pytest.approx(
        transcribed_loss(1.0, z, y, loss, alpha), abs=1e-9
    )


@EACH_LOSS
def test_gradient_and_curvature_agree_with_autograd_in_float64(loss: str, alpha: float | None) -> None:
    z, y = (torch.as_tensor(a) for a in draws(1, n=50))
    beta = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    log_p = torch.log_softmax(z * beta, 1)
    hit = z.argmax(1) == y
    nll = -log_p.gather(1, y[:, None])[:, 0]
    value = nll if loss == "NLL" else torch.where(hit, (1 - alpha) * nll, -alpha * log_p.mean(1))
    (slope,) = torch.autograd.grad(value.sum(), beta, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, beta)
    sums = sums_at(0.7, z, y, loss=loss, alpha=alpha)
    assert sums.slope == pytest.approx(slope.item(), rel=1e-10)
    assert sums.curvature == pytest.approx(curvature.item(), rel=1e-10)


@settings(max_examples=40, deadline=None)
@given(scale=st.floats(0.2, 5), shift=st.floats(-50, 50), seed=st.integers(0, 99))
def test_scaling_the_logits_scales_the_temperature_and_a_shift_changes_nothing(
    scale: float, shift: float, seed: int
) -> None:
    z, y = draws(seed, n=60, size=8, temperature=1.3)
    plain = TemperatureScaling().fit(z, y)
    moved = TemperatureScaling().fit(scale * z + shift, y)
    if not (plain.certificate_.at_bound or moved.certificate_.at_bound):
        assert math.log(moved.temperature_) == pytest.approx(math.log(scale * plain.temperature_), abs=1e-6)


@pytest.mark.parametrize(
    ("scale", "targets", "temperature"),
    [(4, [0, 1, 2, 3], 0.05), (4, [1, 2, 3, 4], 20.0), (0, [0, 1, 2, 3], 1.0)],
)
def test_a_model_always_right_or_wrong_is_clipped_to_a_bound_and_a_flat_loss_leaves_one(
    scale: float, targets: list[int], temperature: float
) -> None:
    fitted = TemperatureScaling().fit(np.eye(5)[:4] * scale, targets)
    expected = (pytest.approx(temperature), scale > 0)
    assert (fitted.temperature_, fitted.certificate_.at_bound) == expected


Z, Y = draws(6, n=5, size=4)
IN_ROW_3 = np.arange(5)[:, None] == 3


@pytest.mark.parametrize(
    ("z", "y", "error", "named"),
    [
        (Z, [0, 1, 4, 0, 0], InputError, "targets: got 4 for token 2"),
        (np.where(IN_ROW_3, np.nan, Z), Y, InputError, "token 3 "),
        (np.where(np.eye(5, 4, k=-1) == 1, -np.inf, Z), np.zeros(5, int), InputError, "token 1 "),
        (Z[0], Y, InputError, "logits"),
        (np.zeros((2, 3)), np.array([1.0, 0.5]), InputError, r"^targets: got 0\.5 for token 1"),
        (Z[:0], Y[:0], FitError, "token"),
    ],
)
def test_bad_input_is_named(z: Any, y: Any, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        TemperatureScaling().fit(z, y)


def test_other_losses_temperatures_and_orders_of_calls_are_refused() -> None:
    for loss, named in (("NL", "NL"), ("SS", "alpha")):
        with pytest.raises(UsageError, match=named):
            TemperatureScaling(loss)
    with pytest.raises(FitError, match="fit"):
        TemperatureScaling().log_probs(torch.zeros(2))
    for temperature in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(UsageError, match="temperature"):
            Temperature(temperature)


@pytest.mark.parametrize(
    "recalibrator", [Base(), SE(), Temperature(1.7), TemperatureScaling().fit(*draws(7))]
)
def test_every_recalibrator_gives_a_distribution_and_keeps_the_order_of_tokens(recalibrator) -> None:
    logits = torch.as_tensor(draws(8, n=20)[0])
    log_p = recalibrator.log_probs(logits)
    assert log_p.dtype == torch.float32
    assert torch.allclose(log_p.exp().sum(-1), torch.ones(20), atol=1e-5)
    assert torch.equal(log_p.argsort(-1), logits.float().argsort(-1))
    assert torch.equal(recalibrator.log_probs(logits[3]), log_p[3])


# ---- The losses of training


def log_probs(seed: int, n: int = 30) -> tuple[torch.Tensor, torch.Tensor]:
    z, y = draws(seed, n, size=7)
    return torch.log_softmax(torch.as_tensor(z), 1), torch.as_tensor(y)


@EACH_LOSS
@settings(max_examples=20)
@given(seed=st.integers(0, 999))
def test_each_token_s_loss_is_the_paper_s_equation(loss: str, alpha: float | None, seed: int) -> None:
    log_p, y = log_probs(seed)
    expected = [transcribed(row, target, loss, alpha) for row, target in zip(log_p.numpy(), y.tolist())]
    assert token_losses(log_p, y, loss=loss, alpha=alpha).tolist() == pytest.approx(expected, rel=1e-12)


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
