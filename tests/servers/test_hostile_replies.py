"""What servers say that harms or misleads: half characters, the key, endless words, other models."""

from __future__ import annotations

import json
import warnings
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semcal.errors import BudgetError, ServerError, UsageError, printable
from semcal.servers.client import RequestFailed, ServerRequest, server_words
from semcal.servers.probing import identify
from semcal.servers.protocol import parse_choices
from semcal.servers.settings import Endpoint, key_for
from tests.servers import fake_model
from tests.servers.fake_server import Json
from tests.servers.mocked import mocked, reply

pytestmark = pytest.mark.filterwarnings("always::semcal.errors.SemcalWarning")  # they are printed

KEY = "sk-proj-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJ"
ASKED = ServerRequest(
    "/chat/completions", {"messages": [], "model": "small"}, prompt_tokens=10, max_tokens=20
)
QUESTIONS = list(fake_model.ANSWERS)
ODD = "\N{REPLACEMENT CHARACTER}"


def failure(answer: httpx.Response | Exception, **how: Any) -> str:
    """Why a request that is answered so fails."""

    def send(_: httpx.Request) -> httpx.Response:
        if isinstance(answer, Exception):
            raise answer
        return answer

    with mocked(send, **{"retries": 0, **how}) as client:
        try:
            (failed,) = client.send_all([ASKED], parse_choices)
        except ServerError as error:
            return str(error)
    assert isinstance(failed, RequestFailed)
    return failed.reason


def text_of(content: Json | bytes, asked: ServerRequest = ASKED) -> str:
    """The text of a reply that is no failure."""
    given = content if isinstance(content, bytes) else json.dumps(content).encode()
    with mocked(lambda _: httpx.Response(200, content=given)) as client:
        (((choice,),),) = (client.send_all([asked], parse_choices),)
    return choice.text


# Half a character

HALF = "Mir\ud83d"


@pytest.mark.parametrize(
    "damaged",
    [
        reply(message={"content": HALF}),
        reply(logprobs={"content": [{"token": "a", "logprob": -1, "top_logprobs": [{HALF: 1}]}]}),
        {**reply(), "model": HALF},
    ],
)
def test_half_a_character_anywhere_in_a_reply_is_damage_that_is_asked_again(damaged: Json) -> None:
    content = json.dumps(damaged).encode()  # with \\ud83d, as servers write it
    replies = iter([content])
    good = json.dumps(reply()).encode()
    with mocked(lambda _: httpx.Response(200, content=next(replies, good)), retries=1) as client:
        assert client.send_all([ASKED], parse_choices)[0] == parse_choices(reply())
        assert client.usage.retries == 1
    for half in (b"ud83d", b"uDBFF"):
        assert "half a character" in failure(httpx.Response(200, content=content.replace(b"ud83d", half)))


def test_a_whole_character_of_two_halves_and_one_that_is_spelt_out_are_text() -> None:
    for text in ("\N{GRINNING FACE} é", "\\ud83d", "\\\\ud83d"):
        assert text_of(reply(message={"content": text})) == text


# What a server says about itself


@pytest.mark.parametrize(
    "entry",
    [
        {"owned_by": ["vllm"]},
        {"meta": 3, "max_model_len": 10**12},
        {"max_model_len": "long", "n_ctx": -1},
    ],
)
def test_whatever_stands_beside_the_name_of_a_model_it_is_found(entry: Json) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        listed = {"data": [3, {"id": "a\x1b[2J"}, {"id": "x" * 10_000}, {"id": "small", **entry}]}
        return httpx.Response(200 if request.url.path == "/v1/models" else 404, json=listed)

    with mocked(answer) as client:
        found = identify(client)
    assert (found.model, found.max_length) == ("small", None)


def test_a_version_is_one_line_that_prints_and_a_name_that_holds_the_key_is_not_taken() -> None:
    version = {"version": "1\n\x1b]0;x\x07" + "9" * 5000}
    listed = {"data": [{"id": "small", "owned_by": "vllm"}]}
    with mocked(lambda _: httpx.Response(200, json={**version, **listed})) as client:
        found = identify(client).version
    assert found is not None
    assert found.startswith(f"1 {ODD}]0;x")
    assert len(found) == 200
    with mocked(lambda _: httpx.Response(200, json={"data": [{"id": f"m-{KEY}"}]}), api_key=KEY) as client:
        client.endpoint = Endpoint("http://server/v1")
        with pytest.raises(ServerError, match="no models") as caught:
            identify(client)
    assert KEY not in str(caught.value)


# The key


def shows_the_key(text: str) -> bool:
    return any(KEY[i : i + 8] in text for i in range(len(KEY) - 7))


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, json=reply(finish_reason=[KEY])),
        httpx.Response(307, headers={"location": f"https://elsewhere/{KEY}?k={KEY}"}),
        httpx.Response(500, json={"error": {"message": f"x{KEY}"}}),
        httpx.RemoteProtocolError(f"illegal status line: bytearray(b'HTTP/1.1 200 {KEY}')"),
        httpx.ConnectError(KEY),
    ],
)
def test_the_key_is_never_shown_though_the_server_sends_it_back(answer: httpx.Response | Exception) -> None:
    reason = failure(answer, api_key=KEY)
    assert "(the key)" in reason
    assert not shows_the_key(reason)


@given(
    before=st.integers(0, 220), after=st.integers(0, 60), where=st.sampled_from(["reason", "body", "page"])
)
def test_wherever_a_text_is_cut_less_than_8_letters_of_the_key_in_a_row_are_shown(
    before: int, after: int, where: str
) -> None:
    text = "x" * before + KEY + "y" * after
    answer = {
        "reason": httpx.Response(200, json=reply(finish_reason=[text])),
        "body": httpx.Response(400, json={"message": text}),
        "page": httpx.Response(200, text=text),
    }[where]
    assert not shows_the_key(failure(answer, api_key=KEY))


def test_an_encoded_or_a_short_key_is_not_shown() -> None:
    key = "pw/AB+cd/Ef12=="
    assert server_words("see /login?key=pw%2FAB%2Bcd%2FEf12%3D%3D", api_key=key) == "see /login?key=(the key)"
    assert server_words("bad key abc1234", api_key="abc1234") == "bad key (the key)"
    assert server_words("none of 404 is EMPTY", api_key="none") == "none of 404 is EMPTY"
    assert server_words("HTTP 401", api_key="1") == "HTTP 401"


# Words


def test_words_of_a_server_are_one_line_that_prints() -> None:
    text = "a\x1b[2J\u202eb\ud83d\n\tc\u2028d\x00"
    assert server_words(text) == f"a{ODD}[2J{ODD}b{ODD} c d{ODD}"
    assert printable(text) == f"a{ODD}[2J{ODD}b{ODD}\n\tc{ODD}d{ODD}"
    assert printable(text, keep="") == f"a{ODD}[2J{ODD}b{ODD}{ODD}{ODD}c{ODD}d{ODD}"
    assert printable("Größe 何 \N{GRINNING FACE}") == "Größe 何 \N{GRINNING FACE}"
    assert server_words("x" * 10**6, width=20) == "x" * 17 + "..."


# Counts


def test_a_server_that_counts_nothing_does_not_switch_the_budget_off() -> None:
    answer = {**reply(), "usage": {"prompt_tokens": 0, "completion_tokens": 0}}
    with mocked(lambda _: httpx.Response(200, json=answer), max_tokens_total=100, concurrency=1) as client:
        with pytest.raises(BudgetError, match="90 tokens"):
            client.send_all([ASKED] * 10, parse_choices)
        assert client.usage.requests == 3


@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens"])
@pytest.mark.parametrize("count", [10**12 + 1, 1e13, 10**400])
def test_a_count_beyond_all_requests_is_a_damaged_reply(name: str, count: int) -> None:
    reason = failure(httpx.Response(200, json={**reply(), "usage": {name: count}}))
    assert f"{name} is {count if count < 1e100 else 'inf'}" in reason


# More than was asked for

ONE = ASKED.with_fields({"max_tokens": 20})


@pytest.mark.parametrize("content", ["x" * 3001, [{"type": "text", "text": "x" * 1600}] * 2])
def test_an_answer_that_is_longer_than_its_tokens_can_be_is_damaged(content: Any) -> None:
    long = reply(message={"role": "assistant", "content": content})
    for limit in ({}, {"max_tokens": None, "max_completion_tokens": 20}):
        with mocked(lambda _: httpx.Response(200, json=long)) as client:
            (failed,) = client.send_all([ONE.with_fields(limit)], parse_choices)
        assert isinstance(failed, RequestFailed)
        assert "20 tokens" in failed.reason
    assert len(text_of(long, ONE.with_fields({"max_tokens": 40}))) > 3000


def test_reasoning_and_signatures_beside_an_answer_may_be_long() -> None:
    """Not every server counts them in max_tokens."""
    for beside in (
        {"reasoning_content": "x" * 10_000},
        {"reasoning_details": [{"data": "x" * 6000}]},
        {"thinking_blocks": [{"signature": "x" * 5000}]},
    ):
        assert text_of(reply(message={"role": "assistant", "content": "Mirna.", **beside}), ONE) == "Mirna."


# Another model


def told_of(asked: str, other: object, times: int = 1) -> list[str]:
    """The warnings where replies to a request for one model name another."""
    request = ServerRequest("/chat/completions", {"model": asked})
    with (
        mocked(lambda _: httpx.Response(200, json={"model": other}), api_key=KEY) as client,
        warnings.catch_warnings(record=True) as told,
    ):
        for _ in range(times):
            assert client.send_all([request] * 20, dict) == [{"model": other}] * 20
        assert client.other_names == ({other} if told else set())
    return [str(one.message) for one in told]


@pytest.mark.parametrize(
    ("asked", "other"),
    [
        ("gpt-4o", "gpt-4o-2024-08-06"),
        ("claude-3-5-sonnet-latest", "claude-3-5-sonnet-20241022"),
        ("llama3", "llama3:latest"),
        ("openai/gpt-4o", "gpt-4o"),
        ("small", "/models/Small.gguf"),
        ("small", 3),
    ],
)
def test_a_version_of_the_model_is_the_model(asked: str, other: object) -> None:
    assert told_of(asked, other) == []


@pytest.mark.parametrize(
    ("asked", "other"),
    [
        ("gpt-4", "gpt-4o"),
        ("gpt-4", "gpt-4-turbo-2024-04-09"),
        ("qwen2", "qwen2.5"),
        ("large", "small"),
        ("small", "sma"),
    ],
)
def test_another_model_is_one_warning_with_both_names(asked: str, other: str) -> None:
    (words,) = told_of(asked, other, times=2)
    assert f" {asked}, " in words
    assert f" {other}; " in words


# OpenAI's variables

ENVIRONMENT = {"OPENAI_API_KEY": f" {KEY}\n", "OPENAI_BASE_URL": "http://gateway:4000/v1/"}


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("https://api.openai.com/v1", True),
        ("https://API.OpenAI.com:443/v1", True),
        ("http://gateway:4000/v1", True),
        ("http://gateway:4000/v2", False),
        ("https://gateway:4000/v1", False),
        ("http://api.openai.com/v1", False),
        ("https://api.openai.com.evil.com/v1", False),
        ("https://evil.com/api.openai.com", False),
    ],
)
def test_openai_s_key_goes_to_openai_and_to_its_url_and_nowhere_else(
    url: str, sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    seen: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("authorization"))
        return httpx.Response(200, json={})

    for settings in ({}, {"api_key": "ours"}, {"api_key": ""}):
        with mocked(answer, url, **settings) as client:
            client.send_all([ASKED], dict)
            client.get("//version")
    assert seen == [f"Bearer {KEY}" if sent else None] * 2 + ["Bearer ours"] * 2 + [None] * 2
    monkeypatch.setenv("OPENAI_API_KEY", " ")
    assert key_for(Endpoint(url), None) is None


def test_a_name_without_a_url_is_at_openai_s_base_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", ENVIRONMENT["OPENAI_BASE_URL"])
    assert Endpoint.parse("openai:#small") == Endpoint("http://gateway:4000/v1", "small")
    assert Endpoint.parse("openai:http://other/v1") == Endpoint("http://other/v1", None)
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://user:{KEY}@gateway/v1")
    with pytest.raises(UsageError, match="password") as error:
        Endpoint.parse("openai:#small")
    assert KEY not in str(error.value)
