"""Tables, exact temperatures from them, their standard errors and intervals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from calibration_sets import Made, flat, made
from scipy.special import log_softmax
from scipy.stats import t

from semcal.errors import FitError, InputError, UndefinedWarning
from semcal.recalibration import BlockShape, TemperatureScaling
from semcal.recalibration.exact_solver import fit_temperatures, tabulate
from semcal.recalibration.records import PAPER_LOSSES
from semcal.recalibration.sgd_solver import fit_ats, fit_platt, fit_ts


def plain(one: Made, loss: str, alpha: float | None) -> TemperatureScaling:
    """The fit that has all logits before it, with tokens repeated so that references weigh the same."""
    times = (12 * one.features.token_weights()).round().long()
    z, y = (values.repeat_interleave(times, 0) for values in (one.logits, one.features.targets))
    return TemperatureScaling(loss, alpha).fit(z, y)


def test_all_five_losses_at_once_are_what_each_is_alone() -> None:
    one = made(0, questions=60, references=3)
    for (loss, alpha), fit in zip(PAPER_LOSSES, fit_temperatures(one.features, one.head)):
        alone = plain(one, loss, alpha)
        assert (fit.loss, fit.alpha) == (loss, alpha)
        assert math.log(fit.temperature / alone.temperature_) == pytest.approx(0, abs=1e-6)
        for name in ("loss", "loss_at_one", "curvature"):
            assert getattr(fit.certificate, name) == pytest.approx(
                getattr(alone.certificate_, name), rel=1e-5
            )
        assert fit.certificate.gradient == pytest.approx(0, abs=1e-6)
        assert TemperatureScaling.from_fit(fit).temperature_ == fit.temperature
        assert fit.n_tokens == len(one.features.targets)


def test_answer_positions_suffice_and_every_reference_of_a_question_weighs_the_same() -> None:
    one = made(3, questions=30, references=4, whole=False)
    weights = one.features.token_weights()
    answers = one.features.token_answer()
    for question in range(30):
        mine = (one.features.answer_question == question).nonzero()[:, 0]
        assert {float(w) for w in weights[torch.isin(answers, mine)]} == {1 / len(mine)}
    (fit,) = fit_temperatures(one.features, one.head, losses=[("NLL", None)])
    assert fit.temperature == pytest.approx(plain(one, "NLL", None).temperature_, rel=1e-6)


def test_tables_give_the_log_partition_and_its_slope() -> None:
    one = made(1, questions=20, vocabulary=500, spread=5)
    tables = tabulate(one.features, one.head)
    beta = torch.logspace(math.log10(0.05), math.log10(20), 33, dtype=torch.float64, requires_grad=True)
    z = one.logits.double() - one.logits.double().amax(1, keepdim=True)
    for token in range(0, len(z), 7):
        found = tables.log_partition(tables.position[[token]].expand(33), beta)
        exact = torch.logsumexp(beta[:, None] * z[token], 1)
        assert float((found - exact).detach().abs().max()) < 1e-5
        (slope,) = torch.autograd.grad(found.sum(), beta)
        (expected,) = torch.autograd.grad(exact.sum(), beta)
        assert torch.allclose(slope, expected, rtol=1e-3, atol=1e-3)
    assert torch.equal(tables.hit, z.argmax(1) == one.features.targets)
    assert torch.allclose(tables.mean[tables.position], z.mean(1), atol=1e-5)


@pytest.mark.parametrize("temperature", [0.15, 1.5, 8.0])
def test_temperatures_that_are_not_usual_are_found_as_well(temperature: float) -> None:
    one = made(5, questions=200, temperature=temperature)
    (fit,) = fit_temperatures(one.features, one.head, losses=[("NLL", None)])
    assert fit.temperature == pytest.approx(temperature, rel=0.3)
    assert fit.temperature == pytest.approx(plain(one, "NLL", None).temperature_, rel=1e-6)
    low, high = fit.interval()
    assert low < fit.temperature < high


@pytest.mark.parametrize(("targets", "temperature"), [([0, 1, 2, 3, 4], 0.05), ([1, 2, 3, 4, 0], 20.0)])
def test_a_loss_that_falls_to_a_bound_stops_there_and_has_no_standard_error(
    targets: list[int], temperature: float
) -> None:
    one = flat(torch.eye(5) * 4, targets)
    with pytest.warns(UndefinedWarning, match="standard error"):
        (fit,) = fit_temperatures(one.features, one.head, losses=[("NLL", None)])
    assert (fit.temperature, fit.certificate.at_bound) == (pytest.approx(temperature), True)
    assert math.isnan(fit.standard_error)
    assert np.isnan(fit.interval()).all()


def test_a_flat_loss_leaves_temperature_one() -> None:
    one = flat(torch.zeros(5, 4), [0, 1, 2, 3, 0])
    with pytest.warns(UndefinedWarning, match="flat"):
        fits = fit_temperatures(one.features, one.head)
    assert {(fit.temperature, fit.certificate.at_bound) for fit in fits} == {(1.0, False)}


def test_impossible_tokens_do_not_disturb_nll_and_are_refused_by_ss() -> None:
    one = made(6, questions=30)
    barred = torch.cat([one.logits, torch.full((len(one.logits), 2), -torch.inf)], 1)
    case = flat(barred, one.features.targets.tolist())
    (fit,) = fit_temperatures(case.features, case.head, losses=[("NLL", None)])
    bare = TemperatureScaling().fit(one.logits, one.features.targets)
    assert fit.temperature == pytest.approx(bare.temperature_, rel=1e-6)
    with pytest.raises(InputError, match=r"SS of token \d+"):
        fit_temperatures(case.features, case.head, losses=[("SS", 0.1)])


def test_bad_logits_and_targets_are_named() -> None:
    one = made(7)
    spoilt = one.features.states.clone()
    row = int(one.features.predicting(2)[0])
    spoilt[row] = torch.nan
    with pytest.raises(InputError, match=f"state {row} "):
        tabulate(replace(one.features, states=spoilt), one.head)
    targets = one.features.targets.clone()
    targets[3] = 40
    with pytest.raises(InputError, match="targets: got 40 for token 3"):
        tabulate(replace(one.features, targets=targets), one.head)


def test_fewer_than_five_labelled_questions_are_no_calibration_set() -> None:
    four, five = made(10, questions=4, references=3), made(10, questions=5, references=3)
    with pytest.raises(FitError, match=r"^questions: got 4 "):
        fit_temperatures(four.features, four.head)
    shape = {"shape": BlockShape(16, 32, 2, 2, 8, 10_000.0, 1e-6)}
    for train, options in ((fit_ts, {}), (fit_platt, {}), (fit_ats, shape)):
        with pytest.raises(FitError, match="at least 5"):
            train(four.features, four.head, **options)
    (fit,) = fit_temperatures(five.features, five.head, losses=[("NLL", None)])
    assert (fit.n_questions, fit.n_clusters) == (5, 5)


def noisy(seed: int, *, questions: int, tokens: int = 4) -> Made:
    """Questions that each have a temperature of their own, so that the tokens of one depend on each other."""
    rng = np.random.default_rng(seed)
    z = torch.tensor(rng.standard_normal((questions * tokens, 20), dtype=np.float32) * 2.5)
    heat = (1.6 * np.exp(0.4 * rng.standard_normal(questions))).repeat(tokens)
    p = np.exp(log_softmax(z.numpy() / heat[:, None], axis=1))
    return flat(z, (p.cumsum(1) > rng.random((len(z), 1))).argmax(1).tolist(), tokens=tokens)


def test_the_interval_holds_the_temperature_with_as_few_as_five_questions() -> None:
    many = noisy(99, questions=5_000)
    (whole,) = fit_temperatures(many.features, many.head, losses=[("NLL", None)])
    hits = 0
    for seed in range(80):
        one = noisy(seed, questions=5)
        (fit,) = fit_temperatures(one.features, one.head, losses=[("NLL", None)])
        low, high = fit.interval()
        hits += low <= whole.temperature <= high
    assert 0.9 <= hits / 80 <= 0.99


def test_the_standard_error_is_that_of_the_jackknife_of_groups() -> None:
    one = noisy(3, questions=60)
    groups = np.arange(60) // 3
    (fit,) = fit_temperatures(one.features, one.head, losses=[("NLL", None)], groups=groups)
    left = []
    for group in range(20):
        kept = np.repeat(groups != group, 4)
        z, y = one.logits[kept], one.features.targets[kept]
        left.append(1 / TemperatureScaling().fit(z, y).temperature_)
    exact = math.sqrt(19 / 20 * np.sum((np.array(left) - np.mean(left)) ** 2)) * fit.temperature**2
    assert fit.standard_error == pytest.approx(exact, rel=0.05)
    assert fit.n_clusters == 20
    low, high = fit.interval()
    away = t.ppf(0.975, 19) * fit.standard_error / fit.temperature
    assert (math.log(high / fit.temperature), math.log(fit.temperature / low)) == pytest.approx((away, away))
    with pytest.raises(InputError, match="60 questions"):
        fit_temperatures(one.features, one.head, groups=groups[:5])
