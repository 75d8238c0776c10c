"""What a server answers: choices with their tokens, read from either endpoint's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Choice", "TokenEntry", "parse_choices"]


@dataclass(frozen=True)
class TokenEntry:
    """One generated token as the server reports it; an entry may lack what it does not tell."""

    text: str
    log_prob: float  # raw or at T, as the profile says
    token_id: int | None = None
    #: The alternatives with their log-probabilities, by token id where it is known, else by text.
    top: Mapping[int | str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """One answer of a reply."""

    text: str  # without what the model thought before it
    finished: bool  # it ended by itself: finish_reason "stop", not "length"
    reasoning: str = ""  # what it thought before the answer (reasoning_content, <think>...</think>)
    entries: tuple[TokenEntry, ...] | None = None  # of the answer; None without log-probabilities
    tokens: int = 0  # generated, those of the reasoning included


def parse_choices(reply: Mapping[str, Any]) -> list[Choice]:
    """Read the choices of a reply of /chat/completions or /completions, in the order of their index.

    ValueError that says what is damaged: a missing key, a wrong type, an index twice.
    """
    raise NotImplementedError
