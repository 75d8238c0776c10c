"""What a fit of T asks servers of each kind about reference answers, and what it makes of the replies."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from semcal.errors import ServerError
from semcal.servers.client import ServerClient
from semcal.servers.protocol import ServerProfile
from semcal.servers.sampler import (
    GoldQuestion,
    PartitionRequests,
    choose_route,
    knows_log_probs,
    why_unknown,
)
from semcal.servers.settings import Endpoint, ServerSettings
from tests.servers import fake_model
from tests.servers.fake_chat import profile_of
from tests.servers.fake_server import FakeServer

GOLD = {
    "Who wrote The Salt Year?": ("Ana Brod", "Ivo Lind"),
    "How many lakes are in Torvik?": ("seven", "about ten", "7"),
    "What colour is the flag of Torvik?": ("green and blue",),
}


def gold() -> list[GoldQuestion]:
    return [
        GoldQuestion(
            f"q{number}",
            tuple(fake_model.encode(fake_model.render([{"role": "user", "content": text}]))),
            tuple((*fake_model.encode(answer), fake_model.END) for answer in answers),
        )
        for number, (text, answers) in enumerate(GOLD.items())
    ]


def truth(question: GoldQuestion) -> list[np.ndarray]:
    """Raw log-probabilities of the vocabulary at each position."""
    texts = [fake_model.decode(question.prompt + beginning) for beginning in question.beginnings]
    return [fake_model.next_log_probs(text) for text in texts]


@contextmanager
def asking(
    profile: dict[str, Any] | None = None, **quirks: Any
) -> Iterator[tuple[PartitionRequests, FakeServer]]:
    with FakeServer(**quirks) as server:
        client = ServerClient(Endpoint(server.url, "fake"), ServerSettings(retries=1), first_wait=0.01)
        with client:
            yield PartitionRequests(client, profile_of(server, **(profile or {}))), server


def test_positions_that_answers_share_are_asked_once() -> None:
    one = GoldQuestion("q", (1, 2), ((7, 8, 0), (7, 9, 0), (5, 0)))
    assert one.beginnings == ((), (7,), (7, 8), (7, 9), (5,))
    assert one.tokens == ((0, 7), (1, 8), (2, 0), (0, 7), (1, 9), (3, 0), (0, 5), (4, 0))


def test_a_server_that_scores_prompts_gives_the_answers_tokens() -> None:
    with asking({"scores_prompt": True}) as (requests, server):
        rows = requests.raw(gold())
        assert len(server.requests) == 6  # one an answer
    for question, row in zip(gold(), rows):
        at = truth(question)
        assert row["log_probs"] == pytest.approx([at[p][token] for p, token in question.tokens], abs=1e-6)
        for (position, token), top in zip(question.tokens, row["top"]):
            best = sorted((v for i, v in enumerate(at[position]) if i != token), reverse=True)
            assert sorted(top, reverse=True)[:1] == pytest.approx(best[:1], abs=1e-6)


@pytest.mark.parametrize("temperature", [0.7, 1.9])
@pytest.mark.parametrize(
    "quirks",
    [
        {"log_probs": "scaled"},
        {"log_probs": "scaled", "drawn_takes_a_place": True},
        {"scaled_on_request": True, "server": "llama.cpp"},
    ],
)
def test_one_token_gives_the_loss_at_any_temperature(temperature: float, quirks: dict[str, Any]) -> None:
    profile = {name: quirks[name] for name in ("log_probs", "scaled_on_request") if name in quirks}
    with asking({"scores_prompt": True, **profile}, **quirks) as (requests, _):
        rows = requests.losses(gold(), requests.raw(gold()), temperature)
    for question, row in zip(gold(), rows):
        at = [fake_model.at_temperature(one, temperature) for one in truth(question)]
        assert row["nll"] == pytest.approx([-at[p][token] for p, token in question.tokens], abs=1e-5)


@pytest.mark.parametrize("kind", ["llama.cpp", "vLLM"])
def test_the_whole_vocabulary_comes_by_token_id(kind: str) -> None:
    size = len(fake_model.VOCABULARY)
    with asking({"whole_vocabulary": True, "top_log_probs": size}, max_top_logprobs=-1, server=kind) as (
        requests,
        _,
    ):
        rows = requests.whole(gold())
    for question, row in zip(gold(), rows):
        for raw, packed in zip(truth(question), row["log_probs"]):
            found = np.frombuffer(base64.b64decode(packed), dtype=np.float32)
            assert np.exp(found) == pytest.approx(np.exp(raw), abs=1e-6)


def test_probabilities_that_do_not_add_up_are_no_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(fake_model.VOCABULARY)
    odd = np.full(size, -math.log(size) - 0.01)
    monkeypatch.setattr(fake_model, "step", lambda *_, **__: (odd, odd, odd, np.cumsum(np.exp(odd))))
    with asking({"vocabulary": size}, max_top_logprobs=-1, server="llama.cpp") as (requests, _):
        (row,) = requests.whole(gold()[:1])
    assert "0.9900" in row["failed"]


@pytest.mark.parametrize(
    ("profile", "quirks", "named"),
    [
        ({"vocabulary": 2}, {"server": "llama.cpp"}, "id below 2"),
        ({"scores_prompt": True}, {"max_temperature": 2.0}, "at most 2.0"),
        ({"scores_prompt": True}, {"prompt_scores": False}, "the scores of a prompt"),
        ({"forced_raw": True}, {"server": "llama.cpp"}, "logit_bias"),  # which it ignores
    ],
)
def test_a_refusal_or_what_a_server_does_not_do_after_all_fails_the_question_and_says_why(
    profile: dict[str, Any], quirks: dict[str, Any], named: str
) -> None:
    with asking(profile, **{"log_probs": "scaled", **quirks}) as (requests, _):
        rows = requests.whole(gold()) if "vocabulary" in profile else requests.raw(gold())
        if "max_temperature" in quirks:
            rows = requests.losses(gold(), rows, 3.0)
    assert named in rows[0]["failed"]


FULL = ServerProfile(
    "http://127.0.0.1:1/v1",
    "m",
    "S",
    vocabulary=100,
    log_probs="raw",
    scaled_on_request=True,
    top_log_probs=20,
    whole_vocabulary=True,
    scores_prompt=True,
    token_ids_in=True,
    end_included=True,
)


@pytest.mark.parametrize(
    ("lacks", "route"),
    [
        ({}, "one token"),
        ({"scaled_on_request": False, "log_probs": "scaled"}, "one token"),
        ({"scores_prompt": False, "forced_raw": True}, "one token"),
        ({"scaled_on_request": False}, "whole vocabulary"),
        ({"scores_prompt": False}, "whole vocabulary"),
        ({"truncated_to": "top-k 40"}, "whole vocabulary"),
    ],
)
def test_the_route_is_the_best_that_the_server_allows(lacks: dict[str, Any], route: str) -> None:
    assert choose_route(replace(FULL, **lacks)) == route


@pytest.mark.parametrize(
    "lacks",
    [
        {"token_ids_in": False},
        {"scores_prompt": False},
        {"scaled_on_request": False},
        {"truncated_to": "top-k 40"},
    ],
)
def test_a_server_that_lacks_something_is_refused_and_ts_grid_is_named(lacks: dict[str, Any]) -> None:
    for server, remedy in (("vLLM", "--logprobs-mode processed_logprobs"), ("S", "--method TS-grid")):
        with pytest.raises(ServerError, match=remedy):
            choose_route(replace(FULL, whole_vocabulary=False, server=server, **lacks))
    with pytest.raises(ServerError, match="one token"):
        choose_route(replace(FULL, **lacks), "one token")


def test_requests_are_counted_before_any_is_sent() -> None:
    with asking({"scores_prompt": True, "max_n": 4}) as (requests, server):
        positions = sum(len(question.beginnings) for question in gold())
        assert requests.counts(gold(), "one token") == (6, positions)
        assert requests.counts(gold(), "whole vocabulary") == (positions, 0)
        assert not server.requests


# ---- Log-probabilities at the temperature of a draw, from what servers give --------------------------------

RAW = ServerProfile("http://127.0.0.1:1/v1", "small", "vLLM", log_probs="raw")


@pytest.mark.parametrize(
    ("profile", "at_one", "elsewhere"),
    [
        (replace(RAW, log_probs=None), False, False),
        (RAW, True, False),
        (replace(RAW, scaled_on_request=True), True, True),
        (replace(RAW, log_probs="scaled"), True, True),
        (replace(RAW, log_probs="masked", truncated_to="top_k 40"), False, False),
        (replace(RAW, scaled_on_request=True, truncated_to="top_k 40"), True, False),
    ],
)
def test_what_a_server_gives_says_if_log_probabilities_at_t_are_known(profile, at_one, elsewhere) -> None:
    assert knows_log_probs(profile, 1.0) is at_one
    assert {knows_log_probs(profile, t) for t in (0.5, 1.3)} == {elsewhere}
    if not elsewhere:
        assert "E-SC" in why_unknown(profile, 1.3)
