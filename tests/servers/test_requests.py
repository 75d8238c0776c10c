"""What requests state, for the endpoints and the kinds of servers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semcal.data.question import chat
from semcal.models.protocols import Prompt
from semcal.servers.protocol import NEUTRAL, AnswerRequest, ServerProfile, request_for

PROFILE = ServerProfile("http://127.0.0.1:1/v1", "small", log_probs="raw", top_log_probs=20)
AS_MESSAGES = Prompt("q", (), chat("Who?"))
AS_IDS = Prompt("q", (5, 6, 7), chat("Who?"))
DRAWN = AnswerRequest(0.7, 10, n=3, seed=11)
#: Log-probabilities under a grammar are those without it (llama.cpp), so none is ever sent.
CONSTRAINTS = {"grammar", "json_schema", "response_format", "guided_json", "structured_outputs", "regex"}


@pytest.mark.parametrize("server", ["vLLM", "SGLang", "llama.cpp", "OpenAI", "unknown"])
@pytest.mark.parametrize("prompt", [AS_MESSAGES, AS_IDS], ids=["messages", "ids"])
def test_every_request_states_that_nothing_is_truncated_penalised_or_constrained(
    prompt: Prompt, server: str
) -> None:
    body = request_for(replace(PROFILE, server=server), prompt, DRAWN).body
    assert {name: body[name] for name in NEUTRAL} == dict(NEUTRAL)
    assert (body["temperature"], body["n"], body["seed"]) == (0.7, 3, 11)
    assert not CONSTRAINTS & set(body)


def test_a_server_that_takes_few_fields_gets_those_alone() -> None:
    own = replace(PROFILE, server="OpenAI", neutral={"top_p": 1.0})
    body = request_for(own, AS_MESSAGES, AnswerRequest(1.0, 10)).body
    assert set(body) == {
        *("model", "messages", "temperature", "top_p", "max_completion_tokens", "logprobs", "top_logprobs")
    }


def test_a_chat_goes_as_messages_and_token_ids_as_they_are_with_room_for_more_than_their_bytes() -> None:
    messages = request_for(PROFILE, AS_MESSAGES, DRAWN)
    assert messages.path == "/chat/completions"
    assert messages.body["messages"][-1] == {"role": "user", "content": "Question: Who?"}
    ids = request_for(PROFILE, AS_IDS, DRAWN)
    assert (ids.path, ids.body["prompt"], ids.prompt_tokens) == ("/completions", [5, 6, 7], 3)
    assert ids.max_tokens == messages.max_tokens == 30
    asked = Prompt("q", (), chat("Qui a écrit « 何 » ?"))
    longest = sum(len(turn.content.encode()) for turn in asked.chat)
    assert request_for(PROFILE, asked, DRAWN).prompt_tokens > longest


def test_log_probabilities_are_asked_for_where_there_are_some_and_never_0_alternatives() -> None:
    none = AnswerRequest(1.0, 10, alternatives=0)
    assert request_for(PROFILE, AS_MESSAGES, none).body["top_logprobs"] == 1
    assert request_for(PROFILE, AS_IDS, none).body["logprobs"] == 1
    body = request_for(replace(PROFILE, top_log_probs=0), AS_MESSAGES, none).body
    assert (body["logprobs"], "top_logprobs" in body) == (True, False)
    for profile, asked in (
        (replace(PROFILE, log_probs=None), DRAWN),
        (PROFILE, replace(DRAWN, log_probs=False)),
    ):
        assert "logprobs" not in request_for(profile, AS_MESSAGES, asked).body


def test_llama_cpp_is_told_to_apply_the_temperature_alone_and_vllm_asked_for_token_ids() -> None:
    llama = replace(PROFILE, server="llama.cpp", scaled_on_request=True)
    body = request_for(llama, AS_MESSAGES, DRAWN).body
    assert body["samplers"] == ["temperature"]
    assert "post_sampling_probs" not in body
    scaled = replace(DRAWN, at_temperature=True)
    assert request_for(llama, AS_MESSAGES, scaled).body["post_sampling_probs"] is True
    assert "post_sampling_probs" not in request_for(PROFILE, AS_IDS, scaled).body
    vllm = replace(PROFILE, server="vLLM", chosen_ids=True)
    body = request_for(vllm, AS_IDS, replace(DRAWN, token_ids=(9,))).body
    assert body["return_token_ids"] is body["return_tokens_as_token_ids"] is True
    assert body["logprob_token_ids"] == [9]
