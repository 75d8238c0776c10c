"""What is read from replies and refused as damaged, and what requests state."""

from __future__ import annotations

import contextlib
import copy
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semcal.data import question
from semcal.models.protocols import Prompt
from semcal.servers.protocol import (
    NEUTRAL,
    AnswerRequest,
    ReplyChoice,
    ServerProfile,
    parse_choices,
    request_for,
)

Json = dict[str, Any]


def token(text: str, log_prob: float, **more: Any) -> Json:
    return {"token": text, "logprob": log_prob, "bytes": list(text.encode()), "top_logprobs": []} | more


def chat(*contents: str | None, entries: Any = None, reason: str | None = "stop", **more: Any) -> Json:
    return {
        "choices": [
            {
                "index": index,
                "finish_reason": reason,
                "message": {"role": "assistant", "content": content} | more,
                "logprobs": None if entries is None else {"content": entries},
            }
            for index, content in enumerate(contents)
        ]
    }


def completion(text: str | None, logprobs: Any = None) -> Json:
    return {"choices": [{"index": 0, "finish_reason": "stop", "text": text, "logprobs": logprobs}]}


def log_probs(choice: ReplyChoice) -> list[float]:
    return [entry.log_prob for entry in choice.entries or ()]


MIRNA = [token(" Mir", -0.5), token("na.", -0.25), token("", -0.125)]
MIRNA_LISTED = {
    "tokens": [" Mir", "na.", ""],
    "token_logprobs": [-0.5, -0.25, -0.125],
    "top_logprobs": [{" Mir": -0.5, " Sel": -1.5}, {"na.": -0.25}, {"": -0.125}],
    "text_offset": [0, 4, 7],
}


@pytest.mark.parametrize(
    "reply",
    [
        chat("Mirna.", entries=MIRNA),
        completion(" Mirna.", MIRNA_LISTED),
        # a proxy's empty legacy fields do not hide the entries of the server behind it
        completion("Mirna.", {**dict.fromkeys(MIRNA_LISTED), "content": MIRNA}),
    ],
    ids=["chat", "legacy", "proxy"],
)
def test_a_reply_gives_text_and_an_entry_for_each_token(reply: Json) -> None:
    (choice,) = parse_choices(reply)
    assert (choice.text.strip(), choice.finished, choice.reasoning, choice.tokens) == ("Mirna.", True, "", 3)
    assert log_probs(choice) == [-0.5, -0.25, -0.125]
    assert choice.complete


def test_alternatives_are_by_text_or_by_id_and_probabilities_at_t_become_log_probabilities() -> None:
    (choice,) = parse_choices(completion(" Mirna.", MIRNA_LISTED))
    assert (choice.entries or ())[0].top == {" Mir": -0.5, " Sel": -1.5}
    entry = {"id": 7, "token": "Sel", "bytes": [83, 101, 108], "prob": 0.25}  # llama.cpp
    entry["top_probs"] = [{"id": 8, "token": "Mir", "prob": 0.5}, {"id": 7, "token": "Sel", "prob": 0.25}]
    (choice,) = parse_choices(chat("Sel", entries=[entry], reason="length"))
    ((found),) = choice.entries or ()
    assert (found.token_id, found.log_prob, choice.finished) == (7, math.log(0.25), False)
    assert found.top == {8: math.log(0.5), 7: math.log(0.25)}
    top = [{"token": "token_id:9", "logprob": -0.5}]
    reply = chat("x", entries=[{"token": "token_id:5", "logprob": -1.0, "top_logprobs": top}])  # vLLM
    reply["choices"][0]["token_ids"] = [5]
    (choice,) = parse_choices(reply)
    ((found),) = choice.entries or ()
    assert (found.token_id, found.top, choice.token_ids, choice.complete) == (5, {9: -0.5}, (5,), True)
    assert log_probs(parse_choices(chat("a", entries=[token("a", -9999.0)]))[0]) == [-math.inf]


@pytest.mark.parametrize("indices", [(2, 1, 0), (None, None, None), (0, 0, 0)])
def test_choices_stand_in_the_order_of_their_index_or_of_the_list_where_it_does_not_tell_them_apart(
    indices: tuple[int | None, ...],
) -> None:
    reply = chat("a", "b", "c")
    for choice, index in zip(reply["choices"], indices):
        choice["index"] = index
    expected = ["c", "b", "a"] if indices == (2, 1, 0) else ["a", "b", "c"]
    assert [choice.text for choice in parse_choices(reply)] == expected


E_ACUTE = chat("é", entries=[token("é", -0.1)])
ORLEANS = chat("Orléans", entries=[token(piece, -0.1) for piece in ("Orl", "é", "ans", "")])


@pytest.mark.parametrize(
    ("reply", "complete"),
    [
        (chat("�,", entries=[token(",", -0.1, token="�,", bytes=[198, 44])]), False),
        (ORLEANS, False),  # the bytes make the text all the same
        ({**ORLEANS, "usage": {"completion_tokens": 5}}, False),
        ({**ORLEANS, "usage": {"completion_tokens": 4}}, True),
        ({"choices": [{**E_ACUTE["choices"][0], "token_ids": [3]}]}, True),
        ({"choices": [{**E_ACUTE["choices"][0], "token_ids": [2, 3]}]}, False),
        (chat("Mirna. It is", entries=MIRNA), False),
        (chat("  Mirna. ", entries=MIRNA), True),  # white space comes and goes
    ],
)
def test_a_token_that_lost_its_entry_is_noticed(reply: Json, complete: bool) -> None:
    assert parse_choices(reply)[0].complete is complete


@pytest.mark.parametrize(
    ("message", "text", "reasoning", "refusal"),
    [
        ({"content": "Mirna.", "reasoning_content": "Hm."}, "Mirna.", "Hm.", None),
        ({"content": "<think>Hm.</think>\n\nMirna."}, "Mirna.", "Hm.", None),
        ({"content": None}, "", "", ""),
        ({"content": None, "refusal": "I can't help."}, "", "", "I can't help."),
        ({"content": "", "reasoning_content": "Hm."}, "", "Hm.", ""),
        ({"content": "<think>Hm."}, "", "Hm.", ""),
        ({"content": " \n", "refusal": None}, "", "", ""),
        ({"content": "", "refusal": "I can't help."}, "", "", "I can't help."),
        ({"content": "Mirna.", "tool_calls": [{"id": "1"}]}, "Mirna.", "", None),
        ({"content": None, "tool_calls": [{"id": "1"}]}, "", "", "tool_calls: [{'id': '1'}]"),
        (
            {
                "content": [
                    {"type": "thinking", "thinking": "Hm."},
                    {"type": "text", "text": "Mirna"},
                    {"type": "text", "text": "."},
                ]
            },
            "Mirna.",
            "[{'type': 'thinking', 'thinking': 'Hm.'}]",
            None,
        ),
        ({"content": [{"type": "refusal", "refusal": "No."}]}, "", "", "No."),
    ],
)
def test_an_answer_is_told_from_thinking_and_from_a_reply_without_one(
    message: Json, text: str, reasoning: str, refusal: str | None
) -> None:
    logprobs = {"content": [token("x", -1.0)] * 9}
    whole = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": logprobs}
    (choice,) = parse_choices({"choices": [whole]})
    assert (choice.text, choice.reasoning, choice.refusal) == (text, reasoning, refusal)
    assert choice.tokens == 9
    assert choice.entries is None or not reasoning


DAMAGE: list[tuple[str, Any, str]] = [
    ("choices", None, "choices"),
    ("choices", [], "empty"),
    ("choices.0", 3, "a choice"),
    ("choices.0.index", "0", "index"),
    ("choices.0.message", None, "message"),
    ("choices.0.message.content", ["a"], "content"),
    *(("choices.0.finish_reason", reason, "finish_reason") for reason in ("error", "SAFETY", ["stop"])),
    ("choices.0.error", {"code": 502, "message": "Upstream is gone"}, "Upstream is gone"),
    ("choices.0.logprobs.content", 3, "logprobs.content"),
    *(("choices.0.logprobs.content.0.logprob", x, "log-probability") for x in ("x", 0.5, math.nan)),
    ("choices.0.logprobs.content.0.bytes", [300], "bytes"),
    ("choices.0.logprobs.content.0.top_logprobs", 3, "top_logprobs"),
    ("choices.0.logprobs.content.0.token", None, "token"),
    *(("choices.0.token_ids", [value], "token id") for value in ("a", -1, 2**31)),
    ("choices.0.logprobs.content.0.token", "token_id:9999999999", "token id"),
]


@pytest.mark.parametrize(("place", "value", "named"), DAMAGE)
def test_a_damaged_reply_is_refused_with_what_is_wrong(place: str, value: Any, named: str) -> None:
    reply = copy.deepcopy(chat("Mirna.", entries=MIRNA))
    *path, last = (int(part) if part.isdecimal() else part for part in place.split("."))
    inner: Any = reply
    for part in path:
        inner = inner[part]
    inner[last] = value
    with pytest.raises(ValueError, match=named):
        parse_choices(reply)


@pytest.mark.parametrize("beside", [{}, {"choices": None}])
def test_an_error_in_place_of_choices_is_named(beside: Json) -> None:
    with pytest.raises(ValueError, match="model is loading"):
        parse_choices({**beside, "error": {"message": "model is loading"}})


@pytest.mark.parametrize(
    ("reason", "finished"),
    [
        *((name, True) for name in ("stop", "eos_token", "STOP", "tool_calls")),
        *((name, False) for name in ("length", "MAX_TOKENS")),
        *((name, None) for name in (None, "", "COMPLETE")),
    ],
)
def test_a_finish_reason_of_any_provider_is_read(reason: str | None, finished: bool | None) -> None:
    reply = chat("Mirna.", reason=reason)
    assert parse_choices(reply)[0].finished is finished
    if reason is None:
        del reply["choices"][0]["finish_reason"]
        assert parse_choices(reply)[0].finished is None


def test_no_text_is_an_answer_that_was_withheld_or_damage_where_nobody_knows_the_finish_reason() -> None:
    for reason in ("content_filter", "refusal", "SAFETY"):
        (choice,) = parse_choices(chat(None, reason=reason))
        assert (choice.text, choice.finished, choice.refusal) == ("", True, "")
    assert parse_choices(completion(None))[0].refusal == ""
    with pytest.raises(ValueError, match="evicted"):
        parse_choices(chat(None, reason="evicted"))


@pytest.mark.parametrize(
    "logprobs",
    [
        *([], False, {}, 3, dict.fromkeys(MIRNA_LISTED)),
        *(
            {"content": entries}
            for entries in ([], [None, *MIRNA], [*MIRNA, 3], [token("Mirna.", -1) | {"logprob": None}])
        ),
        {"tokens": ["Mirna", "."], "token_logprobs": [None, -0.5]},
    ],
)
def test_log_probabilities_that_are_not_told_leave_an_answer_without_a_likelihood(logprobs: Any) -> None:
    reply = chat("Mirna.")
    reply["choices"][0]["logprobs"] = logprobs
    (choice,) = parse_choices(reply)
    assert (choice.text, choice.entries, choice.complete) == ("Mirna.", None, False)


WHOLE = json.dumps(chat("Mirna.", entries=MIRNA) | {"usage": {"completion_tokens": 3}})
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)


@given(value=VALUES, data=st.data())
def test_whatever_stands_in_a_reply_it_is_read_or_a_value_error(value: Any, data: st.DataObject) -> None:
    reply: Any = json.loads(WHOLE)
    inner = reply
    while True:
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(inner[key], dict | list) or not inner[key] or data.draw(st.booleans()):
            break
        inner = inner[key]
    inner[key] = value
    with contextlib.suppress(ValueError):
        parse_choices(reply)


# ---- What requests state, for the endpoints and the kinds of servers

PROFILE = ServerProfile("http://127.0.0.1:1/v1", "small", log_probs="raw", top_log_probs=20)
AS_MESSAGES = Prompt("q", (), question.chat("Who?"))
AS_IDS = Prompt("q", (5, 6, 7), question.chat("Who?"))
DRAWN = AnswerRequest(0.7, 10, n=3, seed=11)
#: Log-probabilities under a grammar are those without it (llama.cpp), so none is ever sent.
CONSTRAINTS = {"grammar", "json_schema", "response_format", "guided_json", "structured_outputs", "regex"}


@pytest.mark.parametrize("server", ["vLLM", "llama.cpp", "unknown"])
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
    asked = Prompt("q", (), question.chat("Qui a écrit « 何 » ?"))
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
    assert (body["samplers"], body["post_sampling_probs"]) == (["temperature"], True)
    assert "post_sampling_probs" not in request_for(PROFILE, AS_IDS, DRAWN).body
    for temperature in (0.0, 1.0):
        raw = replace(DRAWN, temperature=temperature)
        assert "post_sampling_probs" not in request_for(llama, AS_MESSAGES, raw).body
    vllm = replace(PROFILE, server="vLLM", chosen_ids=True)
    body = request_for(vllm, AS_IDS, replace(DRAWN, token_ids=(9,))).body
    assert body["return_token_ids"] is body["return_tokens_as_token_ids"] is True
    assert body["logprob_token_ids"] == [9]
