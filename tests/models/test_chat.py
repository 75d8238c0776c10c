"""Chats, answers and ends of turn in token ids, for tokenizers of many habits."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_models
from tokenizers import AddedToken

from semcal.data.question import Turn
from semcal.errors import InputError
from semcal.models.chat_format import ChatFormat, PlainFormat, TemplateFormat, chat_format
from semcal.models.protocols import Generation

CHAT = (
    Turn("system", "Tell me."),
    Turn("user", "Question: When was it built?"),
    Turn("assistant", "1875."),
    Turn("user", "Question: Who built the mill?"),
)
EOS = 2
ANSWERS = ["Mira Talso.", "1875.", "Odo", "", "Sull\nriver", " The Sull. ", "ñandú №7", "7"]


def formatted(template: str | None = tiny_models.TEMPLATE, **options: Any) -> ChatFormat:
    return chat_format(tiny_models.tokenizer(template=template, **options), [EOS])


def said(form: ChatFormat, ids: tuple[int, ...]) -> str:
    return str(form.tokenizer.decode(list(ids)))


def test_a_prompt_is_the_rendered_template_with_one_bos() -> None:
    form = formatted()
    prompt = form.encode(CHAT)
    assert isinstance(form, TemplateFormat)
    assert said(form, prompt) == (
        "<s><|turn|>system\nTell me.<|end|>\n<|turn|>user\nQuestion: When was it built?<|end|>\n"
        "<|turn|>assistant\n1875.<|end|>\n"
        "<|turn|>user\nQuestion: Who built the mill?<|end|>\n<|turn|>assistant\n"
    )
    assert prompt.count(form.tokenizer.bos_token_id) == 1


def test_a_prompt_begins_with_one_bos_where_the_template_or_the_tokenizer_adds_one() -> None:
    usual = formatted().encode(CHAT)
    doubles, bare = (tiny_models.TEMPLATES[f"{habit} the BOS"] for habit in ("doubles", "forgets"))
    for template in (tiny_models.TEMPLATE, doubles, bare):
        assert formatted(template, adds_bos=True).encode(CHAT) == usual
    assert formatted(bare).encode(CHAT) == usual[1:]
    assert formatted(None, adds_bos=True).encode(CHAT) == formatted(None).encode(CHAT)


def test_a_base_model_gets_plain_text_behind_one_bos() -> None:
    form = formatted(None)
    assert isinstance(form, PlainFormat)
    assert said(form, form.encode(CHAT)) == (
        "<s>Tell me.\n\nQuestion: When was it built?\nAnswer: 1875.\n\nQuestion: Who built the mill?\nAnswer:"
    )
    assert formatted(None, bos=False).encode(CHAT) == form.encode(CHAT)[1:]


@pytest.mark.parametrize(
    "template",
    [tiny_models.TEMPLATES["refuses system"], tiny_models.TEMPLATES["drops system"]],
    ids=["refuses", "drops"],
)
def test_a_system_message_that_the_template_does_not_take_goes_in_front_of_the_first_question(
    template: str,
) -> None:
    form = formatted(template)
    text = said(form, form.encode(CHAT))
    assert text.startswith(
        "<s><|turn|>user\nTell me.\n\nQuestion: When was it built?<|end|>\n<|turn|>assistant\n1875."
    )
    assert text.count("Tell me.") == 1


@pytest.mark.parametrize(
    ("habit", "end"),
    [
        ("marks", "<|end|>"),
        ("ends turns with the end of text", "</s>"),
        ("ends turns with nothing", "</s>"),
        ("ends turns with a newline", "\n"),
    ],
)
def test_the_end_of_turn_is_the_template_s_own_up_to_its_special_token(habit: str, end: str) -> None:
    form = formatted(tiny_models.TEMPLATES[habit])
    assert said(form, form.end_of_turn).startswith(end)
    assert form.stops >= {EOS, form.end_of_turn[-1]}
    assert form.text([*form._plain("Odo"), *form.end_of_turn]) == "Odo"


def test_a_special_token_that_only_the_vocabulary_marks_as_special_ends_the_turn() -> None:
    tokenizer = tiny_models.tokenizer(template=tiny_models.TEMPLATE.replace("<|end|>", "<|eot|>"))
    tokenizer.add_tokens([AddedToken("<|eot|>", special=True)])
    form = chat_format(tokenizer, [EOS])
    assert said(form, form.end_of_turn) == "<|eot|>"


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("adds_bos", [False, True])
def test_an_answer_s_tokens_follow_the_prompt_s_in_the_rendering_of_both(answer: str, adds_bos: bool) -> None:
    form = formatted(adds_bos=adds_bos)
    ids = form.encode_answer(CHAT, answer)
    whole = form.tokenizer.apply_chat_template(
        [{"role": t.role, "content": t.content} for t in (*CHAT, Turn("assistant", answer))], return_dict=True
    )["input_ids"]
    assert [*form.encode(CHAT), *ids] == whole[: len(form.encode(CHAT)) + len(ids)]
    assert said(form, ids) == answer.strip() + "<|end|>"
    assert ids.count(form.end_of_turn[0]) == 1


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_base_model_s_answer_ends_with_the_newline_that_stands_behind_answers(answer: str) -> None:
    form = formatted(None)
    ids = form.encode_answer(CHAT, answer)
    assert ids[-1] in form.stops
    assert said(form, ids).rstrip("\n") == " " + answer
    follower = [*CHAT, Turn("assistant", answer), Turn("user", "Question")]
    whole = form.encode(follower)
    assert whole[: len(form.encode(CHAT)) + len(ids)] == form.encode(CHAT) + ids


def test_an_answer_that_the_template_renders_elsewhere_is_encoded_alone() -> None:
    """The generation prompt of this template is no prefix of its rendering of answers."""
    form = formatted(tiny_models.TEMPLATES["renders answers elsewhere"])
    assert said(form, form.encode_answer(CHAT, "Odo.")) == "Odo.<|end|>"


def generation(form: ChatFormat, ids: tuple[int, ...]) -> Generation:
    return Generation(form.text(ids), ids, (-1.0,) * len(ids), finished=ids[-1] in form.stops)


def test_text_leaves_out_special_tokens_and_the_end_of_turn() -> None:
    form = formatted()
    assert form.text((*form._plain("Mira Talso."), *form.end_of_turn)) == "Mira Talso."
    assert form.text(form._plain("Mira\nTalso")) == "Mira\nTalso"
    assert form.text(form.end_of_turn) == ""


def test_an_end_of_text_that_is_not_marked_special_is_left_out_too() -> None:
    tokenizer = tiny_models.tokenizer()
    stop = tokenizer.encode("7", add_special_tokens=False)[0]
    form = chat_format(tokenizer, [EOS, stop])
    assert form.text((*form._plain("Odo"), stop)) == "Odo"


@pytest.mark.parametrize("template", [tiny_models.TEMPLATE, None])
def test_completing_keeps_a_finished_answer_and_ends_any_other(template: str | None) -> None:
    form = formatted(template)
    drawn = generation(form, form.encode_answer(CHAT, "Mira Talso."))
    assert form.complete(drawn, len(drawn.text)) == drawn.token_ids
    ids = form._plain("Mira Talso")
    unfinished = generation(form, ids)
    assert form.complete(unfinished, len(unfinished.text)) == ids + form.end_of_turn
    assert form.complete(unfinished, 0) == form.end_of_turn


def test_a_cut_between_tokens_keeps_the_sampled_tokens_though_they_are_not_the_canonical_ones() -> None:
    form = formatted()
    odd = tuple(token for letter in "Mira." for token in form._plain(letter))
    assert odd != form._plain("Mira.")
    drawn = generation(form, odd + form._plain(" It burnt") + form.end_of_turn)
    assert form.complete(drawn, len("Mira.")) == odd + form.end_of_turn


def test_a_cut_inside_a_token_encodes_the_piece_anew() -> None:
    form = formatted()
    ids = form._plain("Question Answer")
    completed = form.complete(generation(form, ids), len("Question Ans"))
    assert len(ids) == 3
    assert completed[:2] == ids[:2]
    assert completed[2] != ids[2]
    assert said(form, completed) == "Question Ans<|end|>"


@pytest.mark.parametrize("end", [-1, 5])
def test_a_cut_outside_the_text_is_an_error(end: int) -> None:
    form = formatted()
    with pytest.raises(InputError, match="end: got"):
        form.complete(generation(form, form._plain("Mira")), end)


def test_a_base_model_s_cut_answer_is_completed_as_it_would_be_encoded() -> None:
    form = formatted(None)
    drawn = generation(form, form._plain(" Odo. It was built"))
    assert form.complete(drawn, len(" Odo.")) == form.encode_answer(CHAT, "Odo.")


def test_a_newline_that_merges_with_the_full_stop_is_one_token_in_scoring_and_stops_sampling() -> None:
    tokenizer = tiny_models.tokenizer(template=None)
    tokenizer.add_tokens([AddedToken(".\n", normalized=False)])
    form = chat_format(tokenizer, [EOS])
    merged = tokenizer.convert_tokens_to_ids(".\n")
    ids = form.encode_answer(CHAT, "Odo.")
    assert ids[-1] == merged
    assert merged in form.stops
    assert form.text(ids) == " Odo."
    assert form.complete(generation(form, form._plain(" Odo. It was")), len(" Odo.")) == ids
    assert form.complete(generation(form, ids), len(" Odo.")) == ids
    assert said(form, form.complete(generation(form, ids), len(" Od"))) == " Od\n"


@pytest.mark.parametrize(
    ("template", "end"), [(tiny_models.TEMPLATE_IN_BRACKETS, "</s>"), (None, "<0x0A>")], ids=["chat", "base"]
)
def test_a_tokenizer_that_spells_blanks_and_bytes_is_understood(template: str | None, end: str) -> None:
    tokenizer = tiny_models.sentencepiece_tokenizer(template=template)
    form = chat_format(tokenizer, [EOS])
    prompt = form.encode(CHAT[1:])
    assert prompt.count(tokenizer.bos_token_id) == 1
    assert tokenizer.convert_ids_to_tokens(list(form.end_of_turn)) == [end]
    ids = form.encode_answer(CHAT[1:], "Mira Talso.")
    assert tokenizer.convert_ids_to_tokens(list(ids)) == ["▁Mira", *tokenizer.tokenize(" Talso.")[-1:], end]
    whole = generation(form, ids)
    assert (whole.text, whole.finished) == ("Mira Talso.", True)
    assert form.complete(whole, len("Mira Talso.")) == ids
    assert form.complete(whole, len("Mira")) == (ids[0], *form.end_of_turn)
    longer = generation(form, form._plain("Mira Talso. It was built"))
    assert form.complete(longer, len("Mira Talso.")) == ids
