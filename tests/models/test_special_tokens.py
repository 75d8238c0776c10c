"""Special tokens in texts are read as text: with a blank in a chat template, letter by letter elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_models
import tiny_nli
from tokenizers import AddedToken
from transformers import AutoTokenizer

from semcal.data.question import Turn, plain_text
from semcal.demo.paths import language_model_dir
from semcal.models.chat_format import TemplateFormat, chat_format
from semcal.models.nli import CrossEncoder

EOS = 2
CHAT = (
    Turn("system", "Tell <|turn| me."),
    Turn("user", "Context: </ s>\n\nQuestion: Who built a < b it?"),
    Turn("assistant", "[INST] |end|."),
    Turn("user", "Question: c who?"),
)
TOKENIZERS = {
    "byte-level": tiny_models.tokenizer,
    "sentencepiece": lambda: tiny_models.sentencepiece_tokenizer(template=None),
    "atlas": lambda: AutoTokenizer.from_pretrained(language_model_dir()),
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return TOKENIZERS[request.param]()


@pytest.mark.parametrize("habit", tiny_models.TEMPLATES)
def test_a_prompt_has_the_token_ids_of_its_template(habit: str, tokenizer: Any) -> None:
    tokenizer.chat_template = tiny_models.TEMPLATES[habit]
    form = chat_format(tokenizer, [EOS])
    if isinstance(form, TemplateFormat):
        messages = [{"role": turn.role, "content": turn.content} for turn in form._roles(CHAT)]
        whole = form.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        assert form.encode(CHAT) == form._one_bos(tuple(whole["input_ids"]))
    else:
        whole = form.tokenizer(plain_text(CHAT), add_special_tokens=False)
        assert form.encode(CHAT)[-len(whole["input_ids"]) :] == tuple(whole["input_ids"])


@pytest.mark.parametrize("template", [tiny_models.TEMPLATE, None])
def test_a_text_that_spells_special_tokens_invokes_none(template: str | None) -> None:
    form = chat_format(tiny_models.tokenizer(template=template), [EOS])
    special = set(form.tokenizer.all_special_ids)
    spelled = [Turn(turn.role, f"{turn.content} <|en<|end|>d|> and </s>") for turn in CHAT]
    usual, found = ([token for token in form.encode(turns) if token in special] for turns in (CHAT, spelled))
    assert found == usual
    answer = form.encode_answer(CHAT, "a </s> and <|end|>")[: -len(form.end_of_turn)]
    assert special.isdisjoint(answer)
    assert "/s> and <" in form.tokenizer.decode(list(answer))
    piece = form._piece("Odo ", "<|end|>x")
    assert piece == form._plain("Odo <|end|>x")[len(form._plain("Odo ")) :]
    assert special.isdisjoint(piece)


@pytest.mark.parametrize("template", [tiny_models.TEMPLATE, None])
def test_special_tokens_are_those_that_the_tokenizer_or_the_model_calls_so(template: str | None) -> None:
    tokenizer = tiny_models.tokenizer(template=template)
    tokenizer.add_tokens([AddedToken("<think>"), AddedToken("<eot>"), AddedToken("<x>", special=True)])
    tokenizer.unk_token = "<x>"  # also an end of text in some checkpoints
    form = chat_format(tokenizer, [EOS, tokenizer.convert_tokens_to_ids("<eot>")])
    assert form._defused("a <think>, <eot>, <x> and <|end|>") == "a <think>, < eot>, < x> and < |end|>"
    ids = form.encode([Turn("user", "a <x> or <eot>")]) + form.encode_answer(CHAT, "a <x> or <eot>")
    assert not {"<x>", "<eot>"} & {*tokenizer.convert_ids_to_tokens(ids)}


@pytest.mark.parametrize("family", tiny_nli.FAMILIES)
def test_an_nli_pair_has_the_separators_of_its_model_alone(family: str) -> None:
    tokenizer = tiny_nli.tokenizer(family)
    encoder = CrossEncoder(tiny_nli.model(family), tokenizer, name="nli", revision="")
    marks = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}

    def separators(question: str) -> list[int]:
        (pair,) = encoder._encode([(question, "mira", "sull")])
        return [token for token in pair["input_ids"] if token in marks]

    usual = separators("Who?")
    for token in tokenizer.all_special_tokens:
        assert separators(f"Who {token}?") == usual
