"""Stop words, punctuation and end of turn against content, whatever the tokenizer does to words."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semcal.errors import InputError
from semcal.experiment.token_classes import STOP_WORDS, TOKEN_CLASSES, by_token_class, token_classes


def of(*tokens: str) -> str:
    """First letters of the classes; "</s>" ends the turn."""
    found = token_classes(tokens, end_of_turn=[token == "</s>" for token in tokens])
    return "".join(name[0] for name in found)


@pytest.mark.parametrize(
    ("tokens", "classes"),
    [
        (("▁The", "▁Mar", "ch", "▁of", "▁Time", ".", "</s>"), "sccscpe"),
        (("ĠThe", "ĠWho"), "ss"),
        (("the", "ory"), "cc"),
        (("▁o", "f", "▁it"), "sss"),
        (("▁of", "ten"), "cc"),
        (("The", " the", "THE"), "scc"),  # "theTHE" is one word
        (("A", ".", "A", "."), "spsp"),
        (("▁", "the"), "ps"),
        (("▁-", "and", "-", "▁", "Bo"), "pspp" + "c"),
        (("▁1988", ".", "</s>"), "cpe"),
        (("▁$", "5"), "cc"),
        (("▁it", "'s"), "sc"),
        (("▁the.", "▁Bo"), "sc"),
        (("▁(the", ")"), "sp"),
        (("the", "</s>", "ory"), "sec"),
        (("Ċ", "\n", " "), "ppp"),
        (("中", "国"), "cc"),
        (("", "the"), "ps"),
        ((), ""),
    ],
)
def test_tokens_go_with_the_word_they_are_part_of(tokens, classes) -> None:
    assert of(*tokens) == classes


@given(st.lists(st.sampled_from(["the", "theory", "of", "Bo", "1988", "and"]), min_size=1), st.randoms())
def test_cutting_words_into_tokens_does_not_change_their_class(words, random) -> None:
    expected, tokens = [], []
    for word in words:
        cut = random.randint(1, len(word))
        pieces = [" " + word[:cut], word[cut:]] if cut < len(word) else [" " + word]
        tokens += pieces
        expected += ["stop word" if word in STOP_WORDS else "content"] * len(pieces)
    assert token_classes(tokens) == expected


@given(st.lists(st.text(max_size=4)))
def test_every_token_has_one_known_class(tokens) -> None:
    found = token_classes(tokens)
    assert len(found) == len(tokens)
    assert set(found) <= set(TOKEN_CLASSES) - {"end of turn"}


def test_means_by_class_add_up_to_the_whole() -> None:
    classes = token_classes(["▁The", "▁Bo", ".", "</s>"], end_of_turn=[False, False, False, True]) * 2
    values = np.arange(8) / 7
    means = by_token_class(classes, values)
    assert tuple(means) == TOKEN_CLASSES
    assert sum(one.n for one in means.values()) == 8
    assert sum(one.share_of_sum for one in means.values()) == pytest.approx(1)
    assert sum(one.share * one.mean for one in means.values()) == pytest.approx(values.mean())
    assert means["content"].mean == pytest.approx((1 + 5) / 14)


def test_a_class_without_tokens_has_no_mean() -> None:
    means = by_token_class(["content"], [0.0])
    assert math.isnan(means["stop word"].mean)
    assert means["stop word"].n == 0
    assert math.isnan(means["content"].share_of_sum)


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(InputError, match="one for each"):
        token_classes(["a"], end_of_turn=[])
    with pytest.raises(InputError, match="one value a token"):
        by_token_class(["content"], [1.0, 2.0])
    with pytest.raises(InputError, match="one value a token"):
        by_token_class([], [])
    with pytest.raises(InputError, match="unknown token class 'filler'"):
        by_token_class(["filler"], [1.0])
