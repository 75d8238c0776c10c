"""TS from a few numbers of each token: against the exact fit to the same logits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from calibration_sets import made
from numpy.typing import NDArray
from scipy.special import logsumexp

from semcal.errors import FitError
from semcal.recalibration.exact_solver import fit_temperatures
from semcal.recalibration.records import TemperatureFit
from semcal.recalibration.server_fit import GoldTokens, ServerFit, fit_by_losses

Array = NDArray[np.float64]


class World:
    """A calibration set, what a server would tell of it, and its exact fit."""

    def __init__(self, seed: int, *, groups: NDArray[np.intp] | None = None, **options: float) -> None:
        one = made(seed, **{"questions": 60, "references": 3, **options})  # type: ignore[arg-type]
        self.log_probs = torch.log_softmax(one.logits.double(), 1).numpy()
        features = one.features
        index = np.arange(len(features.targets))
        self.gold = GoldTokens(
            question=features.answer_question[features.token_answer()].numpy(),
            weight=features.token_weights().numpy(),
            log_probs=self.log_probs[index, features.targets.numpy()],
            groups=groups,
        )
        (self.exact,) = fit_temperatures(features, one.head, losses=[("NLL", None)], groups=groups)
        self.asked: list[float] = []

    def losses(self, beta: float) -> Array:
        self.asked.append(1 / beta)
        return np.asarray(logsumexp(beta * self.log_probs, axis=1) - beta * self.gold.log_probs)


def same(found: ServerFit, exact: TemperatureFit, *, within: float = 2e-4) -> None:
    assert found.fit.temperature == pytest.approx(exact.temperature, rel=within)
    assert found.fit.standard_error == pytest.approx(exact.standard_error, rel=0.02)
    assert found.fit.interval() == pytest.approx(exact.interval(), rel=0.01)
    for name in ("loss", "loss_at_one"):
        of_found, of_exact = getattr(found.fit.certificate, name), getattr(exact.certificate, name)
        assert of_found == pytest.approx(of_exact, abs=1e-5)
    assert found.fit.certificate.curvature == pytest.approx(exact.certificate.curvature, rel=0.02)
    counts = ("n_tokens", "n_questions", "n_clusters")
    assert [getattr(found.fit, name) for name in counts] == [getattr(exact, name) for name in counts]


@pytest.mark.parametrize("temperature", [0.5, 1.4, 8.0])
def test_a_few_temperatures_near_the_optimum_give_what_all_logits_give(temperature: float) -> None:
    one = World(1, temperature=temperature)
    found = fit_by_losses(one.losses, one.gold)
    same(found, one.exact)
    assert len(one.asked) <= 15
    assert abs(found.fit.temperature - one.exact.temperature) <= max(found.route_error, 5e-5)


def test_questions_of_a_group_are_not_taken_as_independent() -> None:
    groups = np.arange(60) // 6
    one = World(4, groups=groups)
    assert one.exact.n_clusters == 10
    same(fit_by_losses(one.losses, one.gold), one.exact)


def test_a_question_that_is_not_known_anywhere_is_left_out_everywhere() -> None:
    one, other = World(5), World(5)
    out = one.gold.question == 7

    def with_a_hole(beta: float) -> Array:
        values = one.losses(beta)
        return np.where(out & (len(one.asked) >= 3), np.nan, values)  # as a server fails for good

    found = fit_by_losses(with_a_hole, one.gold)
    without = GoldTokens(one.gold.question, one.gold.weight, np.where(out, np.nan, one.gold.log_probs))
    again = fit_by_losses(other.losses, without)
    assert found.fit.temperature == pytest.approx(again.fit.temperature, abs=1e-12)
    assert found.fit.n_questions == again.fit.n_questions == 59
    assert found.fit.n_tokens == int((~out).sum())


def test_an_optimum_above_what_the_server_takes_is_at_the_bound() -> None:
    one = World(6, temperature=2.5)
    found = fit_by_losses(one.losses, one.gold, hottest=1.5).fit
    assert found.temperature == pytest.approx(1.5)
    assert found.certificate.at_bound
    assert math.isnan(found.standard_error)


def test_too_few_questions_are_refused() -> None:
    one = World(7, questions=6)
    silent = np.isin(one.gold.question, [1, 4])
    with pytest.raises(FitError, match=r"^questions: got 4 "):
        fit_by_losses(lambda beta: np.where(silent, np.nan, one.losses(beta)), one.gold)


def test_log_probabilities_of_no_distribution_are_refused() -> None:
    one = World(8)

    def now_here_now_there(beta: float) -> Array:
        one.asked.append(beta)
        way = 1 if (len(one.asked) - 1) // 5 % 2 else -1
        return np.full(len(one.gold.question), way * math.log(beta))

    with pytest.raises(FitError, match=r"^temperature: "):
        fit_by_losses(now_here_now_there, one.gold)
