"""The same 100 questions to the embedded model and to llama.cpp's server with it: answers are alike.

Each test of frequencies or means fails by chance for one in 10^4 seeds; the seeds are fixed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2, norm

import semcal
from semcal.data.question import Question, chat
from semcal.demo.paths import language_model_dir
from semcal.demo.questions import load_set
from semcal.models.language_model import Prompt, Sampler, SampleRequest
from semcal.recalibration import Base, Temperature
from semcal.servers.sampler import ServerModel, load_server
from semcal.servers.settings import ServerSettings

pytestmark = pytest.mark.servers

FALSE_ALARM = 1e-4
TEMPERATURES = (1.0, 1.5)
DRAWS = 2


@dataclass(frozen=True)
class Drawn:
    """An answer of a server: its prompt, its tokens and their log-probabilities as the server says."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    return [*load_set("atlas-trivia").test[:50], *load_set("atlas-rare").test[:50]]


@pytest.fixture(scope="module")
def server_model(llama_server: str, llama_cache: Path) -> Iterator[ServerModel]:
    settings = ServerSettings(str(language_model_dir()), profiles=llama_cache / "servers")
    model = load_server(f"openai:{llama_server}#atlas", settings)
    yield model
    model.client.close()


@pytest.fixture(scope="module")
def local_model() -> Sampler:
    return semcal.load_model("atlas", device="cpu")


@pytest.fixture(scope="module")
def draws(server_model: ServerModel, questions: list[Question]) -> dict[float, list[Drawn]]:
    """Draws of the server to each question, but for the few with half a character, which are unknown."""
    asked = [chat(question.question) for question in questions]
    prompts = [Prompt(q.id, server_model.encode(one), one) for q, one in zip(questions, asked)]
    methods = [Temperature(one) for one in TEMPERATURES]
    drawn = server_model.sample(
        SampleRequest(prompts, recalibrators=methods, m=DRAWS, seeds=[3], max_new_tokens=16)
    )[0]
    found: dict[float, list[Drawn]] = {}
    for temperature, of_one in zip(TEMPERATURES, drawn):
        found[temperature] = []
        for prompt, answers in zip(prompts, of_one):
            assert isinstance(answers, list)
            known = [one for one in answers if one.token_log_probs]
            assert all("\N{REPLACEMENT CHARACTER}" in one.text for one in answers if one not in known)
            found[temperature] += [
                Drawn(prompt.token_ids, one.token_ids, one.token_log_probs) for one in known
            ]
        assert len(found[temperature]) >= 0.99 * len(questions) * DRAWS
    return found


@pytest.fixture(scope="module")
def exact(draws: dict[float, list[Drawn]]) -> dict[float, list[np.ndarray]]:
    """Log-probabilities of plain transformers at each drawn token: (tokens, vocabulary)."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(language_model_dir(), dtype=torch.float32)
    return {t: _log_probs(model, of_one, t) for t, of_one in draws.items()}


def _log_probs(model: torch.nn.Module, draws: list[Drawn], temperature: float) -> list[np.ndarray]:
    """Of each draw; what pads the shorter ones stands behind them, so that they do not see it."""
    found: list[np.ndarray] = []
    for start in range(0, len(draws), 50):
        some = [[*one.prompt, *one.tokens] for one in draws[start : start + 50]]
        padded = [[*ids, *[0] * (max(map(len, some)) - len(ids))] for ids in some]
        with torch.no_grad():
            logits = model(torch.tensor(padded)).logits
        for one, ids, of_one in zip(draws[start:], some, logits):
            own = of_one[len(one.prompt) - 1 : len(ids) - 1].double()
            found.append(torch.log_softmax(own / temperature, -1).numpy())
    return found


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_log_probabilities_of_draws_are_those_of_transformers(
    temperature: float, draws: dict[float, list[Drawn]], exact: dict[float, list[np.ndarray]]
) -> None:
    pairs = zip(draws[temperature], exact[temperature])
    worst = max(
        abs(log_prob - own[i, token])
        for one, own in pairs
        for i, (token, log_prob) in enumerate(zip(one.tokens, one.log_probs))
    )
    assert worst < 1e-3, worst


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_tokens_are_drawn_as_often_as_the_model_says(
    temperature: float, draws: dict[float, list[Drawn]], exact: dict[float, list[np.ndarray]]
) -> None:
    """Of each token, the share of more likely ones and a random part of its own: uniform, if all is right."""
    rng = np.random.default_rng(0)
    shares = []
    for one, own in zip(draws[temperature], exact[temperature]):
        for token, log_probs in zip(one.tokens, own):
            p = np.exp(log_probs)
            shares.append(p[log_probs > log_probs[token]].sum() + rng.random() * p[token])
    observed, _ = np.histogram(shares, bins=20, range=(0, 1))
    assert observed.sum() == len(shares) > 700
    statistic = ((observed - len(shares) / 20) ** 2 / (len(shares) / 20)).sum()
    assert chi2.sf(statistic, 19) > FALSE_ALARM


def test_the_whole_pipeline_gives_the_same_figures_within_sampling_error(
    questions: list[Question], local_model: Sampler, server_model: ServerModel
) -> None:
    """Differences question by question, whose mean is 0 if both draw from one distribution."""
    how = {"m": 5, "recalibrator": Base(), "equivalence": "exact", "progress": False}
    figures = []
    for seed, model in enumerate((local_model, server_model)):
        rows = semcal.ask_many(model, questions, seed=seed, **how).rows
        figures.append([_figures(row) for row in rows])
    local, served = np.array(figures)
    assert local.shape == served.shape == (100, 6)
    assert np.isfinite(served).all()
    difference = served - local
    z = difference.mean(0) / (difference.std(0, ddof=1) / math.sqrt(100))
    assert np.abs(z).max() < norm.isf(FALSE_ALARM / 2 / 6)
    assert abs(served.mean(0) - local.mean(0)).max() < 0.25


def _figures(row: dict[str, Any]) -> list[float]:
    """Of a question: right, two confidences, the number of meanings, likelihood and length of the answers."""
    confidence, answers = row["confidence"], row["samples"]
    return [
        float(row["correct"]["E-SC"]),
        confidence["E-SC"],
        confidence["L-SC"],
        len(row["clusters"]),
        float(np.mean(row["log_likelihoods"])),
        float(np.mean([len(answer.split()) for answer in answers])),
    ]
