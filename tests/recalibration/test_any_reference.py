"""The loss any: T of −log Σ p over a question's references, against plain transformers and brute force."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from calibration_sets import Made, flat, made
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from transformers import AutoModelForCausalLM

import semcal
from semcal.data.datasets import as_questions
from semcal.demo.paths import language_model_dir
from semcal.errors import InputError, UndefinedWarning, UsageError
from semcal.experiment.grid_settings import Fitting
from semcal.models.prompting import PromptConfig
from semcal.recalibration import FitFeatures, TemperatureScaling
from semcal.recalibration.exact_solver import fit_temperatures
from semcal.recalibration.records import TemperatureFit
from semcal.recalibration.select import candidate_fits
from semcal.recalibration.sgd_solver import fit_platt, fit_ts

ANY = [("any", None)]
#: Logits (N, V), target, reference and question of each token.
Tokens = tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def log_shares(tokens: Tokens, temperature: float) -> NDArray[np.float64]:
    """log Σ p over the references of each question."""
    z, target, reference, question = tokens
    own = np.bincount(reference, log_softmax(z / temperature, axis=1)[range(len(z)), target])
    of_question = np.zeros(len(own), dtype=int)
    of_question[reference] = question
    numbers = np.unique(question)
    return np.array([np.logaddexp.reduce(own[of_question == one]) for one in numbers])


def brute_force(tokens: Tokens) -> tuple[float, float]:
    """T and its mean loss: Brent's method around the eight best of 200 temperatures."""

    def loss(log_t: float) -> float:
        return -float(log_shares(tokens, math.exp(log_t)).mean())

    grid = np.linspace(math.log(0.05), math.log(20), 200)
    values = [loss(x) for x in grid]
    found = [(values[0], grid[0]), (values[-1], grid[-1])]
    for i in np.argsort(values)[:8]:
        ends = grid[max(i - 1, 0)], grid[min(i + 1, 199)]
        best = minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-10})
        found.append((best.fun, best.x))
    value, log_t = min(found)
    return math.exp(log_t), value


def tokens_of(one: Made) -> Tokens:
    features, answer = one.features, one.features.token_answer()
    return (
        one.logits.double().numpy(),
        features.targets.numpy(),
        answer.numpy(),
        features.answer_question[answer].numpy(),
    )


def fit_any(one: Made, **options: Any) -> TemperatureFit:
    return fit_temperatures(one.features, one.head, losses=ANY, **options)[0]


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    references=st.integers(1, 5),
    spread=st.sampled_from([1.0, 3.0, 6.0]),
    temperature=st.sampled_from([0.4, 1.0, 2.5]),
)
@pytest.mark.filterwarnings("ignore::semcal.errors.UndefinedWarning")
def test_t_and_its_loss_are_those_of_brute_force(
    seed: int, references: int, spread: float, temperature: float
) -> None:
    one = made(
        seed, questions=8, references=references, vocabulary=12, spread=spread, temperature=temperature
    )
    fit, tokens = fit_any(one), tokens_of(one)
    expected, loss = brute_force(tokens)
    assert fit.certificate.loss == pytest.approx(loss, abs=2e-5)
    assert fit.certificate.loss_at_one == pytest.approx(-log_shares(tokens, 1.0).mean(), abs=1e-5)
    if fit.certificate.curvature / fit.temperature**2 > 0.05 and not fit.certificate.at_bound:
        assert math.log(fit.temperature / expected) == pytest.approx(0, abs=1e-4)
        assert fit.certificate.gradient == pytest.approx(0, abs=1e-5)


def test_with_one_reference_of_one_token_each_it_is_nll() -> None:
    one = made(3, questions=40, references=1, tokens=1, whole=False)
    (nll,) = fit_temperatures(one.features, one.head, losses=[("NLL", None)])
    (fit,) = fit_temperatures(one.features, one.head, losses=ANY)
    assert fit.temperature == pytest.approx(nll.temperature, rel=1e-6)
    assert fit.standard_error == pytest.approx(nll.standard_error, rel=1e-4)
    assert fit.right_draws == pytest.approx(nll.right_draws, rel=1e-4)
    for name in ("loss", "loss_at_one", "curvature"):
        assert getattr(fit.certificate, name) == pytest.approx(getattr(nll.certificate, name), rel=1e-6)


def test_the_curvature_is_the_second_derivative() -> None:
    one = made(5, questions=30, references=4, spread=2.0)
    fit, tokens = fit_any(one), tokens_of(one)
    beta, h = 1 / fit.temperature, 1e-3
    before, here, after = (-log_shares(tokens, 1 / b).mean() for b in (beta - h, beta, beta + h))
    assert (after - before) / (2 * h) == pytest.approx(0, abs=1e-5)
    assert fit.certificate.curvature == pytest.approx((after - 2 * here + before) / h**2, rel=1e-3)


def two_minima(length: int, copies: int = 6) -> Made:
    """A reference of `length` tokens that a low T allows, and one of two that a high T does."""
    close, sure = torch.full((30,), -8.0), torch.full((30,), -60.0)
    close[[0, 1, 7]], sure[0] = torch.tensor([0.0, -0.2, -30.0]), 0.0
    logits = torch.stack([*[close] * length, sure]).repeat(copies, 1)
    index, rows = torch.arange(copies), length + 1
    start = torch.stack([index * rows + 1, index * rows + length], 1).flatten()
    features = FitFeatures(
        prefix=logits[:0],
        states=logits,
        whole=False,
        prompt_start=index * rows,
        prompt_length=torch.ones(copies, dtype=torch.long),
        answer_question=index.repeat_interleave(2),
        answer_start=start,
        target_start=torch.tensor([0, *[length, 2] * copies]).cumsum(0),
        targets=torch.tensor([*[1] * length, 7, 0]).repeat(copies),
    )
    rows_read = features.predicting_rows()
    return Made(features, lambda states: states.float(), logits[rows_read])


@pytest.mark.parametrize(("length", "low", "high"), [(6, 1.0, 1.3), (8, 14.0, 17.0)])
def test_of_two_minima_the_lower_one_is_taken(length: int, low: float, high: float) -> None:
    one = two_minima(length)
    tokens = tokens_of(one)
    losses = np.array([-log_shares(tokens, t).mean() for t in np.geomspace(0.05, 20, 300)])
    assert ((losses[1:-1] < losses[:-2]) & (losses[1:-1] < losses[2:])).sum() == 2
    fit, (expected, loss) = fit_any(one), brute_force(tokens)
    assert low < expected < high
    assert fit.temperature == pytest.approx(expected, rel=1e-5)
    assert fit.certificate.loss == pytest.approx(loss, rel=1e-6)
    assert not fit.certificate.at_bound


@pytest.mark.parametrize(("target", "temperature"), [(0, 0.05), (5, 20.0)])
def test_a_loss_that_falls_to_a_bound_stops_there(target: int, temperature: float) -> None:
    one = made(1, questions=9, references=3, tokens=1, vocabulary=6, whole=False)
    z = torch.arange(6).flip(0).float() * 2
    one.features.targets[:] = target
    with pytest.warns(UndefinedWarning, match="standard error"):
        fit = fit_any(Made(one.features, lambda states: z.expand(len(states), -1), z))
    assert (fit.temperature, fit.certificate.at_bound) == (pytest.approx(temperature), True)
    assert math.isnan(fit.standard_error)


def test_the_share_of_right_draws_is_a_sum_of_probabilities_at_t_of_the_other_folds() -> None:
    one = made(11, questions=25, references=3, tokens=2, temperature=3.0, spread=4.0)
    tokens, groups = tokens_of(one), np.arange(25) // 2
    fit = fit_any(one, groups=groups, seed=4)
    assert fit.right_draws is not None
    assert fit.right_draws[0] == pytest.approx(np.exp(log_shares(tokens, 1.0)).mean(), abs=1e-5)
    fold, expected = (np.random.default_rng(4).permutation(13) % 5)[groups], 0.0
    for number in range(5):
        kept = fold[tokens[3]] != number
        _, reference = np.unique(tokens[2][kept], return_inverse=True)
        t, _ = brute_force((tokens[0][kept], tokens[1][kept], reference, tokens[3][kept]))
        expected += np.exp(log_shares(tokens, t))[fold == number].sum() / 25
    assert fit.right_draws[1] == pytest.approx(expected, abs=1e-4)
    with pytest.warns(UndefinedWarning, match="group"):
        assert fit_any(one, groups=np.zeros(25)).right_draws is None


QUESTIONS = [
    {"question": "Who governed Ruvorkreth?", "answers": ["Ana Velis.", "Velis", "General Velis", "Velis"]},
    {"question": "Who founded Hagel?", "answers": ["Odo Brand", "Brand", "O. Brand"]},
    {"question": "Where was Mira born?", "answers": ["Hagel"]},
    {"question": "Who won the battle of Hagel?", "answers": ["Ana Velis", "Velis", "General Ana Velis"]},
    {"question": "What is the river of Ruvorkreth?", "answers": ["the Sor", "Sor"]},
    {"question": "Who built the mill of Hagel?", "answers": ["Mira Sand", "M. Sand", "Sand"]},
]


def test_on_the_embedded_model_it_is_what_plain_transformers_and_a_search_give() -> None:
    model = semcal.load_model("atlas")
    fitted = semcal.fit(model, QUESTIONS, loss="any", progress=False)
    network = AutoModelForCausalLM.from_pretrained(language_model_dir(), dtype=torch.float32).eval()
    parts: list[tuple[torch.Tensor, list[int]]] = []
    reference, question = [], []
    asked = as_questions(QUESTIONS, labelled=True)
    for number, (_, prompt, answers) in enumerate(PromptConfig(()).read(model, asked)[0]):
        for answer in dict.fromkeys(answers):
            ids = torch.tensor([[*prompt.token_ids, *answer]])
            with torch.no_grad():
                logits = network(ids).logits[0, len(prompt.token_ids) - 1 : -1]
            reference += [len(parts)] * len(answer)
            question += [number] * len(answer)
            parts.append((logits, list(answer)))
    tokens = (
        torch.cat([z for z, _ in parts]).double().numpy(),
        np.array([t for _, y in parts for t in y]),
        np.array(reference),
        np.array(question),
    )
    expected, loss = brute_force(tokens)
    assert fitted.temperature == pytest.approx(expected, rel=1e-4)
    assert fitted.report["loss_after"] == pytest.approx(loss, abs=1e-4)
    assert fitted.report["right_draws"][0] == pytest.approx(np.exp(log_shares(tokens, 1)).mean(), abs=1e-5)
    assert fitted.recalibrator.loss == "any"
    again = semcal.fit(model, [{**one, "answers": one["answers"] * 2} for one in QUESTIONS], loss="any")
    assert again.temperature == fitted.temperature


def test_an_impossible_token_is_named() -> None:
    one = made(2)
    barred = one.logits.clone()
    barred[4, int(one.features.targets[4])] = -torch.inf
    with pytest.raises(InputError, match="token 4"):
        fit_any(flat(barred, one.features.targets.tolist()))


REFUSED: list[Callable[[Made], object]] = [
    lambda one: fit_ts(one.features, one.head, loss="any"),
    lambda one: fit_platt(one.features, one.head, loss="any"),
    lambda one: TemperatureScaling("any").fit(one.logits, one.features.targets),
    lambda _: semcal.fit("no-model", [], method="ATS", loss="any"),
    lambda _: semcal.fit("no-model", [], solver="sgd", loss="any"),
]


@pytest.mark.parametrize("fit", REFUSED)
def test_what_knows_tokens_alone_refuses_it(fit: Callable[[Made], object]) -> None:
    with pytest.raises(UsageError, match="any"):
        fit(made())
    with pytest.raises(UsageError, match="alpha"):
        TemperatureScaling("any", 0.5)


def test_a_grid_takes_it_for_ts_beside_a_loss_of_all_methods() -> None:
    losses = Fitting(losses=(("NLL", None), ("any", None))).losses
    fits = candidate_fits(["TS", "ATS", "Platt"], losses=losses, weight_decays=[0.0])
    assert [one.names for one in fits] == [["TS NLL", "TS any"], ["ATS NLL"], ["Platt NLL"]]
    for wrong in ({"losses": (("any", None),)}, {"losses": losses, "solver": "sgd"}):
        with pytest.raises(ValidationError, match="any"):
            Fitting(**wrong)
