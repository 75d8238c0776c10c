"""What a server answers: choices with their tokens, read from either endpoint's JSON, without thinking."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from semcal.errors import SemcalWarning, shown
from semcal.text.first_answer import split_thinking


@dataclass
class ThinkingCount:
    """How many answers came after thinking, and in how many the token limit ended it."""

    answers: int = 0
    cut: int = 0

    def add(self, ended: Iterable[bool], limit: int) -> None:
        """Count answers after thinking, each with whether it came; warn once if any did not."""
        before, ends = self.cut, list(ended)
        self.answers += len(ends)
        self.cut += ends.count(False)
        if not before and self.cut:
            warnings.warn(
                f"{self.cut} of {len(ends)} answers were still being thought about at the limit of {limit} "
                "tokens, and are empty; give a larger --max-new-tokens (such as 4000), or switch thinking "
                "off at the server",
                SemcalWarning,
                stacklevel=4,
            )


#: Log-probabilities from here down are what JSON has in place of minus infinity.
_LEAST = -9999.0
#: How far above 0 a log-probability, and above 1 a probability, may lie by rounding.
_ROUNDING = 1e-4
#: finish_reason: the end of turn was drawn, or the limit was reached.
_ENDED, _CUT = ("stop", "eos_token", "stop_sequence"), ("length", "max_tokens")
#: How vLLM writes a token where it is asked for ids (return_tokens_as_token_ids).
_ID = re.compile(r"token_id:(\d{1,10})")
#: Whole numbers that may be an index or a token id.
_IDS = range(2**31)
_BLANKS = re.compile(r"[\s▁]+")


@dataclass(frozen=True)
class TokenEntry:
    """One generated token as the server reports it; an entry may lack what it does not tell."""

    text: str
    log_prob: float  # raw or at T, as the profile says; -inf where the server says no more than "unlikely"
    token_id: int | None = None
    #: The alternatives with their log-probabilities, by token id where it is known, else by text.
    top: Mapping[int | str, float] = field(default_factory=dict)

    @property
    def key(self) -> int | str:
        """What stands for the token: its id where that is known, else its text."""
        return self.text if self.token_id is None else self.token_id


@dataclass(frozen=True)
class Choice:
    """One answer of a reply."""

    text: str  # without what the model thought before it
    finished: bool  # it ended by itself: finish_reason "stop", not "length"
    reasoning: str = ""  # what it thought before the answer (reasoning_content, <think>...</think>)
    #: Of the answer; None without log-probabilities, and after thinking: they are not those of the answer
    #: given the question.
    entries: tuple[TokenEntry, ...] | None = None
    tokens: int = 0  # generated, those of the reasoning included; 0 where the reply does not say
    token_ids: tuple[int, ...] | None = None  # those that the reply lists beside the entries
    whole: bool = False  # the reply shows that every token of the answer has its entry


def parse_choices(reply: Mapping[str, Any]) -> list[Choice]:
    """Read the choices of a reply of /chat/completions or /completions, in the order of their index.

    ValueError that says what is damaged: a missing key, a wrong type, an index twice.
    """
    if "choices" not in reply and "error" in reply:
        raise ValueError(f"the reply is an error: {shown(reply['error'])}")
    listed = _get(reply, "choices", list)
    read: dict[int, _Read] = {}
    for choice in listed:
        if not isinstance(choice, Mapping):
            raise ValueError(f"a choice is {shown(choice)}, not an object")
        index = _get(choice, "index", int)
        if index in read:
            raise ValueError(f"the choice {index} comes twice")
        read[index] = _Read.of(choice)
    if sorted(read) != list(range(len(read))) or not read:
        raise ValueError(f"the choices are numbered {shown(sorted(read))}, not from 0 on")
    usage = reply.get("usage")
    counted = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    in_all = sum(len(choice.entries or ()) for choice in read.values())
    alone = counted if len(read) == 1 and type(counted) is int else 0
    return [read[index].choice(counts=counted == in_all, alone=alone) for index in sorted(read)]


@dataclass(frozen=True)
class _Read:
    """A choice as it stands in a reply."""

    text: str
    reasoning: str
    finished: bool
    entries: tuple[TokenEntry, ...] | None
    pieces: tuple[bytes | None, ...]  # of the entries; None where it is not told
    token_ids: tuple[int, ...] | None

    @classmethod
    def of(cls, choice: Mapping[str, Any]) -> _Read:
        text, reasoning = _texts(choice)
        reason = choice.get("finish_reason")
        if reason not in (*_ENDED, *_CUT):
            raise ValueError(f"an answer did not end: finish_reason is {shown(reason)}")
        logprobs = choice.get("logprobs")
        if not isinstance(logprobs, Mapping | None):
            raise ValueError(f"'logprobs' is {shown(logprobs)}, not an object")
        read = _content if (logprobs or {}).get("tokens") is None else _legacy  # LiteLLM adds tokens: null
        tokens = None if logprobs is None else read(logprobs)
        ids = choice.get("token_ids")
        return cls(
            text,
            reasoning,
            reason in _ENDED,
            None if tokens is None else tuple(entry for entry, _ in tokens),
            () if tokens is None else tuple(piece for _, piece in tokens),
            None if ids is None else tuple(_typed(i, int, "a token id") for i in _typed(ids, list, "")),
        )

    def choice(self, *, counts: bool, alone: int) -> Choice:
        thought, text = split_thinking(self.text)
        reasoning = "\n".join(filter(None, (self.reasoning, thought)))
        tokens = max(len(self.entries or ()), len(self.token_ids or ()), alone)
        if reasoning or text != self.text:
            return Choice(text, self.finished, reasoning, tokens=tokens)
        return Choice(
            text,
            self.finished,
            entries=self.entries,
            tokens=tokens,
            token_ids=self.token_ids,
            whole=self._is_whole(counts=counts),
        )

    def _is_whole(self, *, counts: bool) -> bool:
        """Whether no token has lost its entry, as one that is half a character does (llama.cpp).

        So the text must be that of the entries. A character of several tokens has its bytes in the last
        entry: it counts only where the number of tokens is known apart from them.
        """
        if self.entries is None:
            return False
        if self.token_ids is not None:
            return len(self.token_ids) == len(self.entries)
        if "�" in self.text or not (counts or self.text.isascii()):
            return False
        text = _squeezed(self.text.encode())
        return text in (_joined(self.pieces), _joined(self.pieces[:-1] if self.finished else None))


def _joined(pieces: Sequence[bytes | None] | None) -> str | None:
    """The text of entries without white space, which servers add and strip; None where it is not told."""
    if pieces is None or None in pieces:
        return None
    return _squeezed(b"".join(piece or b"" for piece in pieces))


def _squeezed(text: bytes) -> str:
    return _BLANKS.sub("", text.decode(errors="replace"))


def _texts(choice: Mapping[str, Any]) -> tuple[str, str]:
    """The text of a choice, and what a field of its own holds of the thinking."""
    if "message" not in choice:
        return _get(choice, "text", str), ""
    message = _get(choice, "message", Mapping)
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    if message.get("tool_calls"):
        raise ValueError("the model called a tool and gave no answer")
    content = message.get("content")
    return _typed("" if content is None else content, str, "content"), _typed(reasoning, str, "reasoning")


def _content(logprobs: Mapping[str, Any]) -> list[tuple[TokenEntry, bytes | None]] | None:
    """Entries of {content: [{token, logprob, bytes, top_logprobs}]}, or with prob and top_probs."""
    listed = logprobs.get("content")
    return None if listed is None else [_entry(token) for token in _typed(listed, list, "logprobs.content")]


def _entry(token: Any) -> tuple[TokenEntry, bytes | None]:
    text, token_id, piece, log_prob = _token(token)
    alternatives = _typed(token.get("top_logprobs", token.get("top_probs")) or [], list, "top_logprobs")
    return TokenEntry(text, log_prob, token_id, _top(map(_token, alternatives))), piece


def _top(tokens: Iterable[tuple[str, int | None, bytes | None, float]]) -> dict[int | str, float]:
    return {(text if token_id is None else token_id): log_prob for text, token_id, _, log_prob in tokens}


def _token(entry: Any) -> tuple[str, int | None, bytes | None, float]:
    """Text, id, bytes and log-probability of a token; what is not told of the first three is None."""
    token = _get(_typed(entry, Mapping, "a token"), "token", str)
    token_id = entry.get("id")
    log_prob = _of_prob(entry["prob"]) if "prob" in entry else _log_prob(_get(entry, "logprob", object))
    named = _ID.fullmatch(token)
    if named:
        return "", _typed(int(named[1]), int, "a token id"), None, log_prob
    listed = entry.get("bytes")
    try:
        piece = token.encode() if listed is None else bytes(_typed(listed, list, "bytes"))
    except (TypeError, ValueError):
        raise ValueError(f"the bytes of a token are {shown(listed)}") from None
    return token, None if token_id is None else _typed(token_id, int, "a token id"), piece, log_prob


def _legacy(logprobs: Mapping[str, Any]) -> list[tuple[TokenEntry, bytes | None]]:
    """Entries of {tokens, token_logprobs, top_logprobs}: parallel lists."""
    tokens, values = _get(logprobs, "tokens", list), _get(logprobs, "token_logprobs", list)
    tops = logprobs.get("top_logprobs") or [None] * len(tokens)
    if not len(tokens) == len(values) == len(_typed(tops, list, "top_logprobs")):
        raise ValueError(f"{len(tokens)} tokens have {len(values)} log-probabilities and {len(tops)} lists")
    entries = []
    for token, value, top in zip(tokens, values, tops):
        text, token_id, piece, log_prob = _token({"token": token, "logprob": value})
        alternatives = _typed(top or {}, Mapping, "top_logprobs").items()
        listed = (_token({"token": name, "logprob": value_there}) for name, value_there in alternatives)
        entries.append((TokenEntry(text, log_prob, token_id, _top(listed)), piece))
    return entries


def _log_prob(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value <= _ROUNDING:
        raise ValueError(f"a log-probability is {shown(value)}")
    return min(float(value), 0.0) if value > _LEAST else -math.inf


def _of_prob(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1 + _ROUNDING:
        raise ValueError(f"a probability is {shown(value)}")
    return min(math.log(value), 0.0) if value else -math.inf


def _get(container: Mapping[str, Any], key: str, kind: type) -> Any:
    if key not in container:
        raise ValueError(f"no {key!r} in {shown(dict(container))}")
    return _typed(container[key], kind, repr(key))


def _typed(value: Any, kind: type, what: str) -> Any:
    if not isinstance(value, kind) or (kind is int and (isinstance(value, bool) or value not in _IDS)):
        raise ValueError(f"{what} is {shown(value)}, not of type {kind.__name__} or out of range")
    return value
