"""What is spent is counted as servers report it, and no request is sent that might pass a limit."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from math import ceil
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semcal.errors import BudgetError
from semcal.servers.client import ServerClient, ServerRequest, tokens_of_reply
from semcal.servers.settings import Endpoint, ServerSettings
from tests.servers.mocked import mocked

URL = Endpoint("http://server/v1")


def choice(entries: int, kind: str = "content") -> dict[str, Any]:
    return {"logprobs": {kind: [{}] * entries}}


def usage(tokens_in: Any, tokens_out: Any) -> dict[str, Any]:
    return {"usage": {"prompt_tokens": tokens_in, "completion_tokens": tokens_out}}


@pytest.mark.parametrize(
    ("reply", "tokens"),
    [
        ({**usage(7, 9), "choices": [{}]}, (7, 9)),
        # one server counts one choice of n: the entries of all are more
        ({**usage(7, 5), "choices": [choice(5), choice(4)]}, (7, 9)),
        # one server gives half a character no entry, others none for what is thought: usage is more
        ({**usage(7, 6), "choices": [choice(5)]}, (7, 6)),
        ({"choices": [choice(5), choice(4, "tokens")]}, (100, 9)),
        ({"choices": [{}, {}]}, (100, 200)),
        ({**usage("7", -1), "choices": [{}]}, (100, 200)),
        ({**usage(True, None), "choices": 3}, (100, 200)),
        ({**usage(0, 9), "choices": [{}]}, (100, 9)),  # a count of 0 is none
        ({**usage(7, 0), "choices": [{}]}, (7, 200)),
        ({**usage(10**12, 10**12), "choices": [{}]}, (10**12, 10**12)),
        ({"usage": [], "choices": [None, {"logprobs": 3}, {"logprobs": {"content": "x"}}]}, (100, 200)),
        ([{"score": 0.5}], (100, 200)),
    ],
)
def test_tokens_are_those_with_log_probabilities_or_those_of_usage_or_the_most(
    reply: Any, tokens: tuple[int, int]
) -> None:
    assert tokens_of_reply(reply, (100, 200)) == tokens


def request(number: int, worst: tuple[int, int]) -> ServerRequest:
    return ServerRequest("/chat/completions", {"number": number}, *worst)


def answering(tokens: dict[int, tuple[int, int]], sent: list[int]) -> httpx.MockTransport:
    """A server whose answer to request i takes `tokens[i]`; `sent` gets the numbers of what arrives."""

    async def answer(asked: httpx.Request) -> httpx.Response:
        number = json.loads(asked.content)["number"]
        sent.append(number)
        await asyncio.sleep(0)
        return httpx.Response(200, json={**usage(*tokens[number]), "choices": []})

    return httpx.MockTransport(answer)


@settings(max_examples=25)
@given(
    worst=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=12),
    share=st.floats(0.01, 1),  # a count of 0 would be none
    limit=st.integers(1, 400),
    concurrency=st.integers(1, 6),
)
def test_a_limit_is_never_passed_and_stops_nothing_that_fits(
    worst: list[tuple[int, int]], share: float, limit: int, concurrency: int
) -> None:
    tokens = {i: (ceil(share * one[0]), ceil(share * one[1])) for i, one in enumerate(worst)}
    sent: list[int] = []
    asked = ServerSettings(max_tokens_total=limit, concurrency=concurrency)
    with ServerClient(URL, asked, transport=answering(tokens, sent)) as client:
        try:
            client.send_all([request(i, one) for i, one in enumerate(worst)], dict)
        except BudgetError:  # some request does not fit beside what is spent
            assert client.usage.tokens_in + client.usage.tokens_out + max(map(sum, worst)) > limit
        else:
            assert sorted(sent) == list(range(len(worst)))
            assert (client.usage.tokens_in, client.usage.tokens_out) == tuple(map(sum, zip(*tokens.values())))
        assert client.usage.tokens_in + client.usage.tokens_out <= limit


def test_a_request_waits_while_only_what_others_may_take_stands_in_its_way() -> None:
    tokens = dict.fromkeys(range(10), (1, 1))
    asked = ServerSettings(max_tokens_total=60, concurrency=10)
    with ServerClient(URL, asked, transport=answering(tokens, [])) as client:
        assert len(client.send_all([request(i, (20, 20)) for i in range(10)], dict)) == 10
    assert (client.usage.tokens_in, client.usage.tokens_out) == (10, 10)


def test_the_cost_is_that_of_prompt_and_completion_tokens_at_their_prices() -> None:
    tokens = {0: (1_000_000, 500_000), 1: (200_000, 100_000)}
    asked = ServerSettings(price_in=2.0, price_out=8.0, max_cost=8.0, concurrency=1)
    with ServerClient(URL, asked, transport=answering(tokens, [])) as client:
        client.send_all([request(i, one) for i, one in tokens.items()], dict)
        assert client.usage.cost == pytest.approx(2.0 + 4.0 + 0.4 + 0.8)
        with pytest.raises(BudgetError, match=r"^server.max_cost 8: 7\.2 .*0\.82 "):
            client.send_all([request(0, (10_000, 100_000))], dict)
        client.send_all([request(1, (0, 100_000))], dict)  # 0.8 still fits, exactly


def test_the_answer_that_was_lost_counts_as_long_as_it_may_be() -> None:
    replies = iter([httpx.ReadError("gone"), httpx.Response(500), httpx.Response(200, text="<html>")])

    def answer(_: httpx.Request) -> httpx.Response:
        found = next(replies, httpx.Response(200, json={"usage": {"prompt_tokens": 5}, "choices": []}))
        if isinstance(found, Exception):
            raise found
        return found

    with mocked(answer) as client:
        client.send_all([request(0, (30, 40))], dict)
    used = client.usage
    assert (used.requests, used.retries, used.cost) == (1, 3, None)
    assert (used.tokens_in, used.tokens_out, used.tokens_lost) == (30 + 30 + 5, 40 + 40 + 40, 140)


def test_a_limit_is_for_all_servers_that_are_asked_with_the_same_settings() -> None:
    tokens = dict.fromkeys(range(4), (10, 10))
    asked = ServerSettings(api_key="a", max_tokens_total=50, concurrency=1)
    with (
        ServerClient(URL, asked, transport=answering(tokens, [])) as model,
        ServerClient(URL, replace(asked, api_key="b"), transport=answering(tokens, [])) as judge,
    ):
        model.send_all([request(0, (10, 10))], dict)
        judge.send_all([request(1, (10, 10))], dict)
        for one in (model, judge):
            with pytest.raises(BudgetError, match="40 tokens"):
                one.send_all([request(2, (10, 10))], dict)
            assert one.usage.tokens_in + one.usage.tokens_out == 20
