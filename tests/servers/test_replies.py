"""Replies of servers: what is read from them, and what is refused as damaged."""

from __future__ import annotations

import contextlib
import copy
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semcal.servers.protocol import parse_choices

Json = dict[str, Any]


def token(text: str, log_prob: float, **more: Any) -> Json:
    return {"token": text, "logprob": log_prob, "bytes": list(text.encode()), "top_logprobs": []} | more


def chat(*contents: str | None, entries: Any = None, reason: str = "stop", **more: Any) -> Json:
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


MIRNA = [token(" Mir", -0.5), token("na.", -0.25), token("", -0.125)]


def test_a_chat_reply_gives_text_and_an_entry_for_each_token() -> None:
    (choice,) = parse_choices(chat("Mirna.", entries=MIRNA))
    assert (choice.text, choice.finished, choice.reasoning, choice.tokens) == ("Mirna.", True, "", 3)
    assert [entry.log_prob for entry in choice.entries or ()] == [-0.5, -0.25, -0.125]
    assert choice.complete


def test_the_choices_stand_in_the_order_of_their_index() -> None:
    reply = chat("a", "b", "c")
    reply["choices"].reverse()
    assert [choice.text for choice in parse_choices(reply)] == ["a", "b", "c"]


def test_legacy_log_probabilities_are_read_like_those_of_a_chat() -> None:
    logprobs = {
        "tokens": [" Mir", "na.", ""],
        "token_logprobs": [-0.5, -0.25, -0.125],
        "top_logprobs": [{" Mir": -0.5, " Sel": -1.5}, {"na.": -0.25}, {"": -0.125}],
        "text_offset": [0, 4, 7],
    }
    reply = {"choices": [{"index": 0, "finish_reason": "stop", "text": " Mirna.", "logprobs": logprobs}]}
    (choice,) = parse_choices(reply)
    assert [entry.log_prob for entry in choice.entries or ()] == [-0.5, -0.25, -0.125]
    assert (choice.entries or ())[0].top == {" Mir": -0.5, " Sel": -1.5}
    assert choice.complete


def test_a_proxy_s_empty_legacy_fields_do_not_hide_the_entries_of_the_server_behind_it() -> None:
    added = dict.fromkeys(("text_offset", "token_logprobs", "tokens", "top_logprobs"))
    logprobs = {**added, "content": MIRNA}
    reply = {"choices": [{"index": 0, "finish_reason": "stop", "text": "Mirna.", "logprobs": logprobs}]}
    (choice,) = parse_choices(reply)
    assert [entry.log_prob for entry in choice.entries or ()] == [-0.5, -0.25, -0.125]
    reply["choices"][0]["logprobs"] = added
    assert parse_choices(reply)[0].entries is None


def test_llama_cpp_s_probabilities_at_t_become_log_probabilities() -> None:
    entry = {"id": 7, "token": "Sel", "bytes": [83, 101, 108], "prob": 0.25}
    entry["top_probs"] = [
        {"id": 8, "token": "Mir", "bytes": [77], "prob": 0.5},
        {"id": 7, "token": "Sel", "prob": 0.25},
    ]
    (choice,) = parse_choices(chat("Sel", entries=[entry], reason="length"))
    ((found),) = choice.entries or ()
    assert (found.token_id, found.log_prob) == (7, math.log(0.25))
    assert found.top == {8: math.log(0.5), 7: math.log(0.25)}
    assert not choice.finished


def test_vllm_s_names_of_token_ids_are_ids() -> None:
    entries = [
        {"token": "token_id:5", "logprob": -1.0, "top_logprobs": [{"token": "token_id:9", "logprob": -0.5}]}
    ]
    reply = chat("x", entries=entries)
    reply["choices"][0]["token_ids"] = [5]
    (choice,) = parse_choices(reply)
    assert (choice.entries or ())[0].token_id == 5
    assert (choice.entries or ())[0].top == {9: -0.5}
    assert choice.token_ids == (5,)
    assert choice.complete


def test_a_token_that_is_half_a_character_and_lost_its_entry_is_noticed() -> None:
    lost = [token(",", -0.1, token="�,", bytes=[198, 44])]
    assert not parse_choices(chat("�,", entries=lost))[0].complete
    two_tokens_one_entry = [token("Orl", -0.1), token("é", -0.1), token("ans", -0.1), token("", -0.1)]
    reply = chat("Orléans", entries=two_tokens_one_entry)
    assert not parse_choices(reply)[0].complete  # the bytes make the text all the same
    assert not parse_choices({**reply, "usage": {"completion_tokens": 5}})[0].complete
    assert parse_choices({**reply, "usage": {"completion_tokens": 4}})[0].complete


def test_a_count_of_ids_beside_the_entries_shows_which_are_lost() -> None:
    reply = chat("é", entries=[token("é", -0.1)])
    for ids, whole in (([3], True), ([2, 3], False)):
        reply["choices"][0]["token_ids"] = ids
        assert parse_choices(reply)[0].complete is whole


def test_entries_that_do_not_make_the_text_are_noticed() -> None:
    assert not parse_choices(chat("Mirna. It is", entries=MIRNA))[0].complete
    assert parse_choices(chat("  Mirna. ", entries=MIRNA))[0].complete  # white space comes and goes


def test_without_log_probabilities_usage_counts_the_tokens_and_there_are_no_entries() -> None:
    reply = chat("a") | {"usage": {"completion_tokens": 4}}
    del reply["choices"][0]["logprobs"]
    (choice,) = parse_choices(reply)
    assert (choice.entries, choice.tokens) == (None, 4)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_thinking_in_a_field_of_its_own_is_no_part_of_the_answer(field: str) -> None:
    reply = chat("Mirna.", entries=[token("x", -1.0)] * 9, **{field: "Let me see."})
    (choice,) = parse_choices(reply)
    assert (choice.text, choice.reasoning, choice.tokens) == ("Mirna.", "Let me see.", 9)
    assert choice.entries is None
    (cut,) = parse_choices(chat(None, reason="length", **{field: "Let me"}))
    assert (cut.text, cut.finished, cut.reasoning) == ("", False, "Let me")


def test_thinking_in_the_text_is_no_part_of_the_answer() -> None:
    for text in ("<think>Let me see.</think>\n\nMirna.", "Let me see.\n</think>\nMirna."):
        (choice,) = parse_choices(chat(text, entries=MIRNA))
        assert (choice.text, choice.reasoning, choice.entries) == ("Mirna.", "Let me see.", None)
    (cut,) = parse_choices(chat("<think>Let me", reason="length"))
    assert (cut.text, cut.reasoning) == ("", "Let me")
    (named,) = parse_choices(chat("The mark <think>x</think>", entries=None))
    assert (named.text, named.reasoning) == ("The mark <think>x</think>", "")


@pytest.mark.parametrize(
    ("message", "text", "reasoning", "refusal"),
    [
        ({"content": None}, "", "", ""),
        ({"content": None, "refusal": "I can't help."}, "", "", "I can't help."),
        ({"content": "", "reasoning_content": "Hm."}, "", "Hm.", ""),
        ({"content": "<think>Hm."}, "", "Hm.", ""),
        ({"content": "Mirna.", "refusal": None}, "Mirna.", "", None),
        ({"content": ""}, "", "", ""),
        ({"content": " \n"}, "", "", ""),
        ({"content": "", "refusal": "I can't help."}, "", "", "I can't help."),
        ({"content": "Mirna.", "tool_calls": [{"id": "1"}]}, "Mirna.", "", None),
        ({"content": None, "tool_calls": [{"id": "1"}]}, "", "", "tool_calls: [{'id': '1'}]"),
        ({"content": "Mirna.", "reasoning": {"text": "Hm."}}, "Mirna.", "Hm.", None),
        (
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
                    {"type": "text", "text": "Mirna"},
                    {"type": "text", "text": "."},
                ]
            },
            "Mirna.",
            "Hm.",
            None,
        ),
        ({"content": [{"type": "refusal", "refusal": "No."}]}, "", "", "No."),
    ],
)
def test_a_reply_without_an_answer_is_told_from_one_with_a_text(
    message: Json, text: str, reasoning: str, refusal: str | None
) -> None:
    (choice,) = parse_choices({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    assert (choice.text, choice.reasoning, choice.refusal) == (text, reasoning, refusal)


def test_what_json_has_for_minus_infinity_is_minus_infinity() -> None:
    (choice,) = parse_choices(chat("a", entries=[token("a", -9999.0)]))
    assert (choice.entries or ())[0].log_prob == -math.inf


DAMAGE: list[tuple[str, Any, str]] = [
    ("choices", None, "choices"),
    ("choices", [], "empty"),
    ("choices.0", 3, "not an object"),
    ("choices.0.index", "0", "index"),
    ("choices.0.index", 1, "numbered"),
    ("choices.0.message", None, "message"),
    ("choices.0.message.content", ["a"], "content"),
    ("choices.0.finish_reason", "content_filter", "content_filter"),
    *(
        ("choices.0.finish_reason", reason, "did not end")
        for reason in ("error", "abort", "insufficient_system_resource", "network_error", "SAFETY")
    ),
    ("choices.0.finish_reason", ["stop"], "did not end"),
    ("choices.0.error", {"code": 502, "message": "Upstream is gone"}, "Upstream is gone"),
    ("choices.0.logprobs.content.0", "x", "a token"),
    ("choices.0.logprobs.content", 3, "logprobs.content"),
    ("choices.0.logprobs.content.0.logprob", "x", "log-probability"),
    ("choices.0.logprobs.content.0.logprob", 0.5, "log-probability is 0.5"),
    ("choices.0.logprobs.content.0.logprob", math.nan, "log-probability is nan"),
    *(("choices.0.logprobs.content.0.bytes", value, "the bytes of a token") for value in ([300], 10**15)),
    *(("choices.0.logprobs.content.0.top_logprobs", value, "top_logprobs is") for value in (True, 3)),
    ("choices.0.logprobs.content.0.token", None, "token"),
    ("choices.0.token_ids", ["a"], "token id"),
]


@pytest.mark.parametrize(("place", "value", "reason"), DAMAGE)
def test_a_damaged_reply_is_refused_with_what_is_wrong(place: str, value: Any, reason: str) -> None:
    reply = copy.deepcopy(chat("Mirna.", entries=MIRNA))
    *path, last = (int(part) if part.isdecimal() else part for part in place.split("."))
    inner: Any = reply
    for part in path:
        inner = inner[part]
    inner[last] = value
    with pytest.raises(ValueError, match=reason):
        parse_choices(reply)


@pytest.mark.parametrize(
    ("reason", "finished"),
    [
        *((name, True) for name in ("stop", "eos", "eos_token", "end_turn", "STOP", "stop_sequence")),
        *((name, False) for name in ("length", "model_length", "max_tokens", "MAX_TOKENS")),
        *((name, True) for name in ("tool_calls", "function_call", "tool_use")),
        *((name, None) for name in (None, "", "COMPLETE", "end_of_text", "end", "stop_token")),
    ],
)
def test_a_finish_reason_of_any_provider_is_read(reason: str | None, finished: bool | None) -> None:
    reply: Json = chat("Mirna.")
    reply["choices"][0]["finish_reason"] = reason
    assert parse_choices(reply)[0].finished is finished
    if reason is None:
        del reply["choices"][0]["finish_reason"]
        assert parse_choices(reply)[0].finished is None


def test_no_text_with_a_finish_reason_that_nobody_knows_is_damage() -> None:
    with pytest.raises(ValueError, match="did not end: finish_reason is 'evicted'"):
        parse_choices(chat(None, reason="evicted"))


@pytest.mark.parametrize("reason", ["content_filter", "refusal", "SAFETY"])
def test_an_answer_that_was_withheld_is_none(reason: str) -> None:
    (choice,) = parse_choices(chat(None, reason=reason))
    assert (choice.text, choice.finished, choice.refusal) == ("", True, "")


@pytest.mark.parametrize("indices", [(None, None), (0, 0), (1, 1), (0, None)])
def test_choices_whose_indices_do_not_tell_them_apart_stand_in_the_order_of_the_list(
    indices: tuple[int | None, int | None],
) -> None:
    reply = chat("a", "b")
    for choice, index in zip(reply["choices"], indices):
        choice["index"] = index
        if index is None:
            del choice["index"]
    assert [choice.text for choice in parse_choices(reply)] == ["a", "b"]


LEGACY = {"tokens": ["Mirna", "."], "token_logprobs": [None, -0.5]}


@pytest.mark.parametrize(
    "logprobs",
    [
        *([], False, True, None, {}, 3, [None, -1]),
        *(
            {"content": entries}
            for entries in ([None, *MIRNA], [*MIRNA, 3], [token("Mirna.", -1) | {"logprob": None}])
        ),
        LEGACY,
    ],
)
def test_log_probabilities_that_are_not_told_leave_an_answer_without_a_likelihood(logprobs: Any) -> None:
    reply: Json = chat("Mirna.")
    reply["choices"][0]["logprobs"] = logprobs
    (choice,) = parse_choices(reply)
    assert (choice.text, choice.entries, choice.complete) == ("Mirna.", None, False)


def test_a_completion_whose_text_is_null_is_no_answer() -> None:
    reply = {"choices": [{"index": 0, "finish_reason": "stop", "text": None}]}
    assert parse_choices(reply)[0].refusal == ""


@pytest.mark.parametrize("beside", [{}, {"choices": None}])
def test_an_error_in_place_of_choices_is_named(beside: Json) -> None:
    with pytest.raises(ValueError, match="model is loading"):
        parse_choices({**beside, "error": {"message": "model is loading"}})


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
