"""Faults between the client and a server: no answer is lost, doubled or taken for another's."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semcal.servers.client import ServerClient, ServerRequest
from semcal.servers.settings import Endpoint, ServerSettings
from tests.servers.fake_server import FakeServer
from tests.servers.fault_proxy import FAULTS, FaultProxy

#: Faults that may meet one request, in a row.
MOST_FAULTS = 3


def request(number: int) -> ServerRequest:
    messages = [{"role": "user", "content": f"question {number % 50}"}]
    body = {"messages": messages, "seed": number, "n": 1 + number % 3, "max_tokens": 10, "logprobs": True}
    return ServerRequest("/chat/completions", body, prompt_tokens=200, max_tokens=10 * body["n"])


def whose(reply: dict[str, Any]) -> tuple[str, list[str]]:
    """Which request a reply belongs to (the fake server hashes the body), and its texts."""
    try:
        texts = [choice["message"]["content"] for choice in reply["choices"]]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("the content is no text")
        return reply["id"], texts
    except (KeyError, TypeError) as error:
        raise ValueError(f"no choices: {error!r}") from error


def asked_for(request: ServerRequest) -> str:
    return f"fake-{hashlib.sha256(json.dumps(request.body, sort_keys=True).encode()).hexdigest()[:12]}"


def check(count: int, *, share: float, faults: tuple[str, ...] = FAULTS, seed: int = 0) -> FaultProxy:
    """Ask with and without faults; all answers must be the same, and each that of its request."""
    plain = ServerSettings(concurrency=16, timeout=60)
    patient = replace(plain, retries=MOST_FAULTS)
    asked = list(map(request, range(count)))
    with FakeServer() as server:
        with ServerClient(Endpoint(server.url), plain) as client:
            expected = client.send_all(asked, whose)
            spent = client.usage
        before = len(server.requests)
        with (
            FaultProxy(server.port, share=share, seed=seed, faults=faults, at_most=MOST_FAULTS) as proxy,
            ServerClient(Endpoint(proxy.url), patient, first_wait=0.01) as client,
        ):
            found = client.send_all(asked, whose)
            usage = client.usage
        arrived = len(server.requests) - before
    assert [one if not isinstance(one, tuple) else one[0] for one in found] == list(map(asked_for, asked))
    assert found == expected
    harmless = sum(proxy.faults[kind] for kind in ("delay", "leave", "twice", "slow twice"))
    assert usage.requests == count
    assert usage.retries == proxy.faults.total() - harmless
    assert arrived == count + usage.retries - proxy.faults["refuse"]
    for of_usage, of_plain in ((usage.tokens_in, spent.tokens_in), (usage.tokens_out, spent.tokens_out)):
        assert of_plain <= of_usage <= of_plain + usage.tokens_lost
    assert usage.tokens_in + usage.tokens_out == spent.tokens_in + spent.tokens_out + usage.tokens_lost
    return proxy


@pytest.mark.slow
def test_a_thousand_requests_at_ten_percent_faults_have_all_their_own_answers() -> None:
    assert set(check(1000, share=0.1).faults) == set(FAULTS)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_meets_every_other_request_costs_no_answer(fault: str) -> None:
    assert check(30, share=0.5, faults=(fault,)).faults[fault] > 10


@settings(max_examples=3)
@given(seed=st.integers(0, 2**32), share=st.floats(0, 0.9))
def test_whatever_the_faults_the_answers_are_the_same(seed: int, share: float) -> None:
    check(40, share=share, seed=seed)


def test_a_reply_that_hangs_is_asked_again_after_the_time_out() -> None:
    asked = list(map(request, range(20)))
    with (
        FakeServer() as server,
        FaultProxy(server.port, share=0.5, faults=("hang",)) as proxy,
        ServerClient(Endpoint(proxy.url), ServerSettings(timeout=0.5, retries=50), first_wait=0.01) as client,
    ):
        found = client.send_all(asked, whose)
    assert [one[0] for one in found if isinstance(one, tuple)] == list(map(asked_for, asked))
    assert client.usage.retries >= proxy.faults["hang"] > 5  # a busy machine may be late as well
