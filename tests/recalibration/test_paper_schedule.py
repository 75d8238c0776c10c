"""The paper's training of TS, ATS and Platt over stored states."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from calibration_sets import made

from semcal.errors import FitError, SemcalWarning, UsageError
from semcal.recalibration import ATS, BlockShape, Platt
from semcal.recalibration.exact_solver import inverse_temperatures, mean_loss
from semcal.recalibration.methods import paper_schedule
from semcal.recalibration.records import Schedule, learning_rates
from semcal.recalibration.sgd_solver import drawn_answers, fit_ats, fit_platt, fit_ts

SHAPE = BlockShape(16, 40, 4, 2, 6)
FAST = Schedule(0.003, 0.01, max_norm=1.0, epochs=2)
POINTS = [("NLL", None), ("SS", 0.25)]


def test_the_learning_rate_is_torch_s_cosine_after_a_warm_up_over_a_tenth_of_the_first_epoch() -> None:
    rates = learning_rates(Schedule(0.3), 200)
    assert rates[:10] == pytest.approx([0.03 * (i + 1) for i in range(10)])
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 190)
    expected = []
    for _ in range(190):
        expected.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        cosine.step()
    assert rates[10:] == pytest.approx(expected, abs=1e-12)


def test_the_paper_s_settings() -> None:
    assert paper_schedule("TS") == Schedule(1e-4, 0.0, max_norm=None, epochs=2, warm_up=0.1)
    assert paper_schedule("ATS", weight_decay=0.01) == Schedule(1e-5, 0.01, max_norm=1.0, epochs=2)
    assert paper_schedule("Platt") == Schedule(1e-5, 0.0, max_norm=1.0, epochs=2)
    with pytest.raises(UsageError, match="'Plat'"):
        paper_schedule("Plat")


def test_one_answer_of_each_question_is_drawn_anew_for_each_epoch() -> None:
    features = made(0, questions=300, references=3).features
    first, second = (drawn_answers(features, seed=1, epoch=e) for e in (0, 1))
    assert torch.equal(features.answer_question[first], torch.arange(300))
    assert torch.equal(first, drawn_answers(features, seed=1, epoch=0))
    assert not torch.equal(first, second)
    several = torch.bincount(features.answer_question) == 3
    start = torch.searchsorted(features.answer_question, torch.arange(300))
    chosen = torch.cat([drawn_answers(features, seed=1, epoch=e)[several] for e in range(20)])
    share = torch.bincount(chosen - start[several].repeat(20), minlength=3) / len(chosen)
    assert torch.allclose(share, torch.full((3,), 1 / 3), atol=4 / 3 / len(chosen) ** 0.5)


@pytest.mark.parametrize(("loss", "alpha"), POINTS)
def test_enough_steps_of_ts_reach_the_exact_temperature(loss: str, alpha: float | None) -> None:
    one = made(1, questions=120, temperature=1.7)
    schedule = Schedule(0.02, epochs=300, batch_size=120)
    training = fit_ts(one.features, one.head, loss=loss, alpha=alpha, schedule=schedule)
    assert training.report["distance"] == pytest.approx(0, abs=1e-3)
    assert training.recalibrator.sgd_.steps == len(training.report["losses"]) == 300
    certificate = training.recalibrator.certificate_
    scaled = torch.log_softmax(one.logits / certificate.temperature, 1)
    expected = mean_loss(scaled, one.features.targets, loss=loss, alpha=alpha)
    assert certificate.loss == pytest.approx(expected.item(), abs=1e-5)


def test_a_step_budget_that_is_too_small_is_said_to_be() -> None:
    one = made(1, questions=120, temperature=2.5)
    with pytest.warns(SemcalWarning, match="60 steps"):
        training = fit_ts(one.features, one.head)
    bound = training.recalibrator.sgd_.drift_bound
    assert bound == pytest.approx(sum(learning_rates(paper_schedule("TS"), 60)))
    assert abs(math.log(training.recalibrator.temperature_)) <= bound
    assert training.report["distance"] > 0.5


def by_hand(one, schedule: Schedule, parameters, log_probs, loss: str, alpha: float | None) -> list[float]:
    """Training in the plainest way: one question at a time, in the order of the plan."""
    from semcal.recalibration.sgd_solver import training_plan

    steps = training_plan(one.features, schedule)
    optimiser = torch.optim.AdamW(parameters, weight_decay=schedule.weight_decay)
    losses = []
    for rate, answers in zip(learning_rates(schedule, len(steps)), steps):
        optimiser.param_groups[0]["lr"] = rate
        tokens = torch.cat(
            [torch.arange(one.features.target_start[a], one.features.target_start[a + 1]) for a in answers]
        )
        value = mean_loss(log_probs(tokens), one.features.targets[tokens], loss=loss, alpha=alpha)
        optimiser.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(parameters, schedule.max_norm)
        optimiser.step()
        losses.append(value.item())
    return losses


@pytest.mark.parametrize(("loss", "alpha"), POINTS)
def test_platt_from_streamed_logits_is_the_plain_training(
    loss: str, alpha: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = made(2, questions=30, references=2)
    schedule = Schedule(0.03, 0.01, max_norm=0.3, epochs=2)
    w, b = torch.ones(40, requires_grad=True), torch.zeros(40, requires_grad=True)
    losses = by_hand(
        one, schedule, [w, b], lambda t: torch.log_softmax(w * one.logits[t] + b, 1), loss, alpha
    )
    monkeypatch.setattr("semcal.recalibration.sgd_solver.CHUNK", 40 * 25)
    training = fit_platt(one.features, one.head, loss=loss, alpha=alpha, schedule=schedule)
    assert isinstance(training.recalibrator, Platt)
    assert training.report["losses"] == pytest.approx(losses, rel=1e-4)
    assert torch.allclose(training.recalibrator.weight, w, atol=1e-4)
    assert torch.allclose(training.recalibrator.bias, b, atol=1e-4)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(("loss", "alpha"), POINTS)
def test_ats_learns_the_same_from_tables_and_from_logits(loss: str, alpha: float | None) -> None:
    one = made(3, questions=16, temperature=0.6)
    ats = ATS(SHAPE, seed=FAST.seed)

    def log_probs(tokens: torch.Tensor) -> torch.Tensor:
        beta = inverse_temperatures.__wrapped__(ats, one.features)
        return ats.log_probs(one.logits[tokens], beta[tokens])

    losses = by_hand(one, FAST, list(ats.parameters()), log_probs, loss, alpha)
    training = fit_ats(one.features, one.head, shape=SHAPE, loss=loss, alpha=alpha, schedule=FAST)
    assert training.report["losses"] == pytest.approx(losses, rel=1e-3)
    assert torch.allclose(
        inverse_temperatures(training.recalibrator, one.features),
        inverse_temperatures(ats, one.features),
        rtol=1e-2,
    )
    assert inverse_temperatures(ats, one.features).std() > 0.01


def test_the_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    one = made(5, references=3)
    first, again, other = (
        fit_ats(one.features, one.head, shape=SHAPE, schedule=replace(FAST, epochs=1, seed=seed))
        for seed in (3, 3, 4)
    )
    assert first.report == again.report
    for a, b in zip(first.recalibrator.parameters(), again.recalibrator.parameters()):
        assert torch.equal(a, b)
    assert first.report != other.report


def test_what_cannot_be_fitted_is_refused() -> None:
    one = made(0)
    with pytest.raises(FitError, match="whole"):
        fit_ats(made(0, whole=False).features, one.head, shape=SHAPE)
    with pytest.raises(UsageError, match="alpha"):
        fit_platt(one.features, one.head, loss="SS")
    for wrong in (
        {"epochs": 0},
        {"batch_size": 0},
        {"warm_up": 1.5},
        {"max_norm": 0.0},
        {"weight_decay": -1},
    ):
        with pytest.raises(UsageError, match="schedule"):
            Schedule(1e-4, **wrong)
