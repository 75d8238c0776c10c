"""Token ids of pairs of texts that share their sides: each side is encoded once, and then put together.

The answers to a question make many pairs of few sides. What a fast tokenizer does to a text it does to each
side by itself; special tokens and segments are all that belongs to the pair, and its own post-processor adds
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from semcal.engine.special_tokens import SpecialTokens

__all__ = ["PairTokens", "encoded_whole", "pair_tokens_of"]

Columns = dict[str, list[int]]

#: Encoded sides that are kept.
KEPT = 8192
#: What a tokenizer may give for a pair, and where its library has it.
_FIELDS = {"input_ids": "ids", "token_type_ids": "type_ids", "attention_mask": "attention_mask"}
_TRIED = (
    ("Question: who?\nAnswer: the 2nd man", "Question: who?\nAnswer: Ana-Lisa's"),
    ("", " a  b "),
    ("Ünïcode, 1.5 %\n", "x" * 40),
)


def pair_tokens_of(tokenizer: Any) -> PairTokens | None:
    """Return what encodes pairs by their sides; None where it gives other columns than the tokenizer."""
    if not getattr(tokenizer, "is_fast", False):
        return None
    whole = encoded_whole(tokenizer, _TRIED)
    if not set(whole[0]) <= set(_FIELDS):
        return None
    found = PairTokens(tokenizer, tuple(whole[0]))
    return found if found.encode(_TRIED) == whole else None


def encoded_whole(tokenizer: Any, pairs: Sequence[tuple[str, str]], **cut: Any) -> list[Columns]:
    """The columns of each pair as the tokenizer gives them, cut as it is told."""
    sides = [a for a, _ in pairs], [b for _, b in pairs]
    columns = tokenizer(*sides, verbose=False, split_special_tokens=True, **cut)
    return [dict(zip(columns.keys(), values)) for values in zip(*columns.values())]


class PairTokens:
    """Encodes pairs, and keeps their encoded sides.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizerFast
    names : tuple of str
        The columns that it gives.
    """

    def __init__(self, tokenizer: Any, names: tuple[str, ...]) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._names = names
        self._special_tokens = SpecialTokens(tokenizer)
        self._side = lru_cache(KEPT)(self._encoded)

    def encode(self, pairs: Sequence[tuple[str, str]], *, longest: int | None = None) -> list[Columns]:
        """The columns of each pair, not padded; its longer side loses its beginning beyond `longest`."""
        self._backend.no_truncation()
        self._backend.no_padding()
        sides = [(self._side(first), self._side(second)) for first, second in pairs]
        if longest is not None:
            self._backend.enable_truncation(longest, strategy="longest_first", direction="left")
        found = []
        for first, second in sides:
            pair = self._backend.post_process(first, second)
            found.append({name: getattr(pair, _FIELDS[name]) for name in self._names})
        return found

    def _encoded(self, text: str) -> Any:
        plain = self._special_tokens.encode(text)
        return self._backend.encode(text, add_special_tokens=False) if plain is None else plain
