"""Special tokens that a user's text spells ("<|eot_id|>"), encoded as the plain text that they are.

A tokenizer takes its special tokens out of a text before all else, whoever wrote them. So where a user's
text spells one, that place is rendered as a placeholder, and what lies between the template's own special
tokens is encoded by a copy of the tokenizer in which special tokens have names that no text contains.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from tokenizers import AddedToken, Tokenizer

from semcal.errors import InputError

__all__ = ["SpecialTokens"]

_Ids = tuple[int, ...]

#: Characters of private use: no template changes them, and one that the texts lack marks the placeholders.
_MARKS = tuple(map(chr, range(0xE000, 0xF900)))


class SpecialTokens:
    """The tokens of a tokenizer that have a meaning of their own, which no text of a user may have.

    Those that the tokenizer calls special, those that end a text, and added tokens that stand in the chat
    template and look like marks: they hold a letter or digit and a sign.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizerBase
    template : str
        The chat template; empty without one.
    ends : frozenset of int
        Tokens that end a text for the model.
    """

    def __init__(self, tokenizer: Any, template: str = "", ends: frozenset[int] = frozenset()) -> None:
        self._tokenizer = tokenizer
        added = {int(i): token for i, token in tokenizer.added_tokens_decoder.items()}
        named = zip(tokenizer.all_special_ids, tokenizer.all_special_tokens)
        self._ids = {str(text): int(i) for i, text in named if i is not None} | {
            str(token.content): i
            for i, token in added.items()
            if token.special or i in ends or (str(token.content) in template and _is_mark(str(token.content)))
        }
        texts = sorted(filter(None, self._ids), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        self._splitting = frozenset(self._ids.values()) - {tokenizer.unk_token_id}

    def found(self, text: str) -> tuple[str, ...]:
        """The special tokens that a text spells, each once."""
        return tuple(dict.fromkeys(self._pattern.findall(text)))

    def encode(self, text: str) -> Any:
        """The encoding of a text of a user, nothing added; None where the usual one has no special token.

        Raises
        ------
        InputError
            If it spells special tokens, and the tokenizer is not one of the tokenizers library.
        """
        if self._pattern.search(text) is None:
            return None
        return self._plain(text).encode(text, add_special_tokens=False)

    def hidden(self, texts: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """The texts with a placeholder wherever they spell a special token, and what each stands for."""
        if not any(map(self._pattern.search, texts)):
            return list(texts), {}
        mark = next(mark for mark in _MARKS if not any(mark in text for text in texts))
        spelled = dict.fromkeys(token for text in texts for token in self.found(text))
        names = {token: f"{mark}{number}{mark}" for number, token in enumerate(spelled)}
        shown = [self._pattern.sub(lambda match: names[match[0]], text) for text in texts]
        return shown, {name: token for token, name in names.items()}

    def encode_rendered(self, rendered: str, hidden: Mapping[str, str]) -> _Ids:
        """The token ids of a rendered chat, nothing added, its placeholders being the text they stand for."""
        plain = self._plain(*hidden.values())
        whole = self._tokenizer(rendered, add_special_tokens=False, return_offsets_mapping=True)
        ids, spans = tuple(whole["input_ids"]), whole["offset_mapping"]
        places = [place for place, token in enumerate(ids) if token in self._splitting]
        found: list[int] = []
        for before, after in zip([-1, *places], [*places, len(ids)]):
            start = spans[before][1] if before >= 0 else 0
            part = rendered[start : spans[after][0] if after < len(ids) else len(rendered)]
            if any(name in part for name in hidden):
                anchor = self._anchor if before >= 0 else ""
                text = anchor + re.sub("|".join(hidden), lambda match: hidden[match[0]], part)
                found += plain.encode(text, add_special_tokens=False).ids[bool(anchor) :]
            else:
                found += ids[before + 1 : after]
            found += ids[after : after + 1]
        return tuple(found)

    def _plain(self, *texts: str) -> Tokenizer:
        """The tokenizer that knows no special token."""
        if not getattr(self._tokenizer, "is_fast", False):
            tokens = ", ".join(repr(token) for text in texts for token in self.found(text))
            raise InputError(
                f"the text spells the special token {tokens}, which this model's tokenizer cannot encode as "
                "plain text (it is not one of the tokenizers library); take it out of the text"
            )
        return self._renamed

    @cached_property
    def _secret(self) -> str:
        return secrets.token_hex(16)

    @cached_property
    def _anchor(self) -> str:
        """A token in place of the one that stands before a part: it is not the beginning of the text."""
        return f"{self._secret}-before"

    @cached_property
    def _renamed(self) -> Tokenizer:
        backend = self._tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        content = json.loads(backend.to_str())
        _rename(content, {token: f"{self._secret}{i}" for token, i in self._ids.items()})
        plain = Tokenizer.from_str(json.dumps(content))
        plain.add_tokens([AddedToken(self._anchor, normalized=False)])
        return plain


def _is_mark(text: str) -> bool:
    """Whether an added token looks like a mark, not like a word, a blank or a sign.

    >>> [_is_mark(text) for text in ("<think>", "[INST]", "user", "  ", "...")]
    [True, True, False, False, False]
    """
    return bool(re.search(r"\w", text) and re.search(r"[^\w\s]", text))


def _rename(content: dict[str, Any], names: Mapping[str, str]) -> None:
    """Rename tokens of a tokenizer, as the tokenizers library writes it, and drop merges that make one."""
    for added in content["added_tokens"]:
        added["content"] = names.get(added["content"], added["content"])
    model = content["model"]
    model["vocab"] = _renamed_vocabulary(model["vocab"], names)
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        model["merges"] = [merge for merge in model["merges"] if not _makes(merge, names)]


def _renamed_vocabulary(vocabulary: Any, names: Mapping[str, str]) -> Any:
    if isinstance(vocabulary, list):  # Unigram: pieces with their scores
        return [[names.get(piece, piece), score] for piece, score in vocabulary]
    return {names.get(piece, piece): number for piece, number in vocabulary.items()}


def _makes(merge: str | Sequence[str], names: Iterable[str]) -> bool:
    pair = merge.split(" ") if isinstance(merge, str) else merge
    return any(piece in names for piece in (*pair, "".join(pair)))
