"""Encoding in parts: the ids of the whole text, for tokenizers of many habits."""

from __future__ import annotations

from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import tiny_models
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from semcal.data.question import Turn
from semcal.demo.paths import language_model_dir
from semcal.models.chat_format import SegmentCache, TemplateFormat, segment_cache_for


def words(**of: Any) -> Any:
    """Single characters as words; `of` sets parts of the tokenizer."""
    level = Tokenizer(models.WordLevel({c: i for i, c in enumerate("?abcd <>|/s▁\n")}, unk_token="?"))
    level.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    for name, value in of.items():
        setattr(level, name, value)
    return PreTrainedTokenizerFast(tokenizer_object=level, bos_token="<s>", eos_token="</s>", unk_token="?")


def with_added(**habits: bool) -> Any:
    found = words()
    found.add_special_tokens({"additional_special_tokens": [AddedToken("<|x|>", special=True, **habits)]})
    return found


TOKENIZERS = {
    "byte-level BPE": tiny_models.tokenizer(),
    "blanks as in Llama 2": tiny_models.sentencepiece_tokenizer(template=None),
    "the embedded model's": AutoTokenizer.from_pretrained(language_model_dir()),
    "a blank put in front of every text": words(normalizer=normalizers.Prepend("▁")),
    "right-stripping": with_added(rstrip=True),
    "one special token inside another": with_added(),
}


def whole(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_parts_make_the_whole(kind: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]
    parts = segment_cache_for(tokenizer)
    marks = [str(one.content) for one in tokenizer.added_tokens_decoder.values()]
    pieces = st.sampled_from([*marks, "a", " ", "  b", "\n", "c d", "<", "|x|", "s>", "ñ", "7", "Question: "])
    text = "".join(data.draw(st.lists(pieces, max_size=12)))
    if parts is not None:
        assert parts.encode(text) == whole(tokenizer, text)


def test_all_of_these_are_encoded_in_parts() -> None:
    assert all(map(segment_cache_for, TOKENIZERS.values()))


def test_a_tokenizer_that_looks_beyond_its_special_tokens_encodes_whole() -> None:
    class Numbering:
        """Every token is its place in the text."""

        is_fast = True
        added_tokens_decoder = MappingProxyType({0: AddedToken("<s>", special=True, normalized=False)})

        def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
            return {"input_ids": list(range(len(text)))}

    assert segment_cache_for(Numbering()) is None
    assert segment_cache_for(SimpleNamespace(is_fast=False)) is None


@pytest.mark.parametrize("habit", ["lstrip", "single_word", "normalized"])
def test_no_part_begins_at_a_token_that_looks_at_what_stands_before_it(habit: str) -> None:
    tokenizer = with_added(**{habit: True})
    parts = segment_cache_for(tokenizer)
    assert parts is not None
    for text in ("a <|x|>b", "a<|x|>", "<s>a  <|x|> <s>b"):
        assert parts.encode(text) == whole(tokenizer, text)


def test_the_turns_that_chats_share_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []
    real = SegmentCache._encoded
    monkeypatch.setattr(SegmentCache, "_encoded", lambda self, part: encoded.append(part) or real(self, part))
    form = TemplateFormat(tiny_models.tokenizer(), frozenset([2]))
    shared = [Turn("system", "Tell me."), Turn("user", "When?"), Turn("assistant", "1875.")]
    for name in ("mill", "bridge", "mill"):
        form.encode([*shared, Turn("user", f"Who built the {name}?")])
    assert sum("1875." in part for part in encoded) == 1
    assert sum("the mill" in part for part in encoded) == 1
