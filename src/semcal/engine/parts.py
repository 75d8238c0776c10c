"""Token ids of chats that share most of their turns, part by part.

A tokenizer takes its special tokens out of a text before all else, and what lies between two of them is
encoded by itself. So a chat is the chain of its parts, cut in front of special tokens, and the turns that
all chats begin with are encoded once, not anew with every question and every answer.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any

__all__ = ["Parts", "parts_of"]

_Ids = tuple[int, ...]

#: Parts that are kept.
KEPT = 512


def parts_of(tokenizer: Any) -> Parts | None:
    """Return what encodes texts in parts; None where that may give other ids than the whole text.

    A part begins at a special token that is found in the text as it stands and leaves the text before it as
    it is. Tokenizers that are not backed by the tokenizers library may go about it in other ways; for the
    others it is tried on a text of all such tokens.
    """
    if not getattr(tokenizer, "is_fast", False):
        return None
    added = tokenizer.added_tokens_decoder.values()
    plain = [one for one in added if one.special and not (one.normalized or one.lstrip or one.single_word)]
    begins = frozenset(str(one.content) for one in plain)
    texts = sorted((str(one.content) for one in added), key=len, reverse=True)
    parts = Parts(tokenizer, re.compile("|".join(map(re.escape, texts))), begins)
    tried = "".join(f"a {mark} b\n{mark}{mark}c {mark}\n d" for mark in sorted(begins))
    whole = tokenizer(tried, add_special_tokens=False)["input_ids"]
    return parts if begins and parts.encode(tried) == tuple(whole) else None


class Parts:
    """Encodes texts in parts, and keeps what it has encoded.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizerFast
    marks : re.Pattern
        Finds its added tokens.
    begins : frozenset of str
        Those of them at which a part begins.
    """

    def __init__(self, tokenizer: Any, marks: re.Pattern[str], begins: frozenset[str]) -> None:
        self._tokenizer = tokenizer
        self._marks = marks
        self._begins = begins
        self._kept = lru_cache(KEPT)(self._encoded)

    def encode(self, text: str) -> _Ids:
        """The token ids of a text, nothing added."""
        found = [match.start() for match in self._marks.finditer(text) if match[0] in self._begins]
        ends = sorted({0, *found, len(text)})
        return tuple(chain.from_iterable(self._kept(text[start:end]) for start, end in pairwise(ends)))

    def _encoded(self, part: str) -> _Ids:
        return tuple(self._tokenizer(part, add_special_tokens=False)["input_ids"])
