"""The fake server does what its docstring says: its answers are a function of the request."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import httpx
import pytest

from tests.servers import fake_model
from tests.servers.fake_server import FakeServer

QUESTION = "What is the capital of Alvania?"
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 10}


CLIENT = httpx.Client(trust_env=False, verify=False, timeout=60)


def chat(server: FakeServer, **more: Any) -> dict[str, Any]:
    found = CLIENT.post(server.url + "/chat/completions", json=ASKED | more)
    return found.json() if found.status_code == 200 else {"status": found.status_code, **found.json()}


def texts(reply: dict[str, Any]) -> list[str]:
    return [choice["message"]["content"] for choice in reply["choices"]]


def entries(reply: dict[str, Any]) -> list[dict[str, Any]]:
    return reply["choices"][0]["logprobs"]["content"]


def test_the_same_request_has_the_same_answer_and_another_seed_another_one() -> None:
    with FakeServer() as server:
        first, again, other = (chat(server, n=20, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert texts(first) != texts(other)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_answers_are_drawn_with_their_probabilities(temperature: float) -> None:
    with FakeServer() as server:
        found = Counter(texts(chat(server, n=2000, temperature=temperature)))
    for answer in fake_model.ANSWERS[QUESTION]:
        p = math.exp(fake_model.log_probability(QUESTION, answer, temperature))
        assert abs(found[answer] / 2000 - p) < 4 * math.sqrt(p * (1 - p) / 2000)


@pytest.mark.parametrize(("log_probs", "at"), [("raw", 1.0), ("scaled", 2.0)])
def test_log_probabilities_are_raw_or_those_at_the_temperature(log_probs: str, at: float) -> None:
    with FakeServer(log_probs=log_probs) as server:
        replies = [chat(server, seed=seed, temperature=2.0, logprobs=True) for seed in range(30)]
    known = [reply for reply in replies if texts(reply)[0] == "Mirna" and len(entries(reply)) == 2]
    assert known
    for reply in known:
        total = math.fsum(entry["logprob"] for entry in entries(reply))
        assert total == pytest.approx(fake_model.log_probability(QUESTION, "Mirna", at))


def test_half_a_character_loses_its_entry() -> None:
    begun = {"role": "assistant", "content": "Orl"}
    asked = {"messages": [*ASKED["messages"], begun], "continue_final_message": True, "seed": 3}
    with FakeServer() as whole, FakeServer(halves_lost=True) as losing:
        right, wrong = (chat(server, logprobs=True, **asked) for server in (whole, losing))
    assert texts(right) == texts(wrong) == ["éans"]
    assert [entry["token"] for entry in entries(right)] == ["�", "�", "ans", ""]
    assert [entry["token"] for entry in entries(wrong)] == ["é", "ans", ""]


def test_what_is_refused_has_a_status_and_a_message() -> None:
    with FakeServer(slots=4, max_temperature=2, unknown_refused=True, models=["a"]) as server:
        assert [
            chat(server, **more)["status"]
            for more in ({"n": 5}, {"temperature": 2.1}, {"top_k": 0}, {"model": "b"}, {"messages": 3})
        ] == [400, 400, 400, 404, 400]
        assert "slots (4)" in chat(server, n=5)["error"]["message"]
