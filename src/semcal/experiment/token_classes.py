"""Classes of an answer's tokens: losses and temperatures by class show whether filler dominates a fit."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from semcal.errors import InputError
from semcal.text.names import STOP_WORDS

TOKEN_CLASSES = ("stop word", "punctuation", "end of turn", "content")

#: Blanks as tokenizers write them: SentencePiece, byte-level BPE.
_BLANKS = str.maketrans({"▁": " ", "Ġ": " ", "Ċ": "\n"})


def token_classes(tokens: Sequence[str], *, end_of_turn: Sequence[bool] | None = None) -> list[str]:
    """Classify the tokens of one answer.

    All tokens of a word (the text between blanks and punctuation) have one class, so "the" in "the|ory" is
    content. A token of blanks alone counts as punctuation, and one with a letter or digit beside punctuation
    ("'s", "3.") belongs to the word. Tokens are text with their blanks (decoded one by one) or as the
    tokenizer writes them ("▁the", "Ġthe").

    >>> token_classes(["▁The", "▁Mar", "ch", "▁of", "▁Time", ".", "</s>"], end_of_turn=[False] * 6 + [True])
    ['stop word', 'content', 'content', 'stop word', 'content', 'punctuation', 'end of turn']
    """
    ends = [False] * len(tokens) if end_of_turn is None else list(end_of_turn)
    if len(ends) != len(tokens):
        raise InputError(
            f"there are {len(tokens)} tokens and {len(ends)} marks of end_of_turn; give one for each"
        )
    classes = ["end of turn" if end else "punctuation" for end in ends]
    for word in _words(tokens, ends):
        text = "".join(_letters(tokens[i]) for i in word)
        for i in word:
            classes[i] = "stop word" if text in STOP_WORDS else "content"
    return classes


def _words(tokens: Sequence[str], ends: Sequence[bool]) -> list[list[int]]:
    """Indices of the tokens of each word."""
    words: list[list[int]] = []
    open_word = False
    for i, token in enumerate(tokens):
        text = token.translate(_BLANKS)
        if ends[i] or not _letters(text):
            open_word = False
            continue
        if not open_word or not _is_of_word(text[0]):
            words.append([])
        words[-1].append(i)
        open_word = _is_of_word(text[-1])
    return words


def _is_of_word(character: str) -> bool:
    return unicodedata.category(character)[0] in "LMNS"  # letters, marks, numbers, symbols


def _letters(token: str) -> str:
    """The characters that are neither punctuation nor blank, in lower case."""
    return "".join(filter(_is_of_word, token.translate(_BLANKS))).casefold()


@dataclass(frozen=True)
class ClassMean:
    """A quantity over the tokens of one class."""

    token_class: str
    n: int  # tokens
    share: float  # of all tokens
    mean: float  # NaN for a class without tokens
    share_of_sum: float  # of the quantity's sum over all tokens; NaN where that is 0


def by_token_class(classes: Sequence[str], values: ArrayLike) -> Mapping[str, ClassMean]:
    """Mean of a quantity (a loss, a temperature) over the tokens of each class.

    `classes` come from `token_classes`, answer after answer, with one of `values` (N,) for each token; the
    result is in the order of `TOKEN_CLASSES`.

    InputError if lengths differ, there is no token, or a class is unknown.

    >>> means = by_token_class(["content", "content", "punctuation"], [1.0, 3.0, 0.0])
    >>> means["content"]
    ClassMean(token_class='content', n=2, share=0.6667, mean=2.0, share_of_sum=1.0)
    """
    array, names = np.asarray(values, dtype=np.float64), np.asarray(classes)
    if array.shape != names.shape or array.ndim != 1 or not array.size:
        raise InputError(
            f"expected one value a token, shape (N,), got {array.shape} for {names.shape} classes"
        )
    unknown = set(classes) - set(TOKEN_CLASSES)
    if unknown:
        raise InputError(f"unknown token class {min(unknown)!r}; known: {', '.join(TOKEN_CLASSES)}")
    total, means = float(array.sum()), {}
    for name in TOKEN_CLASSES:
        members = array[names == name]
        mean = float(members.mean()) if len(members) else math.nan
        share_of_sum = float(members.sum()) / total if total else math.nan
        means[name] = ClassMean(name, len(members), len(members) / len(array), mean, share_of_sum)
    return means
