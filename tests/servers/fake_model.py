"""A made-up language model of 300-odd tokens, in closed form, for the fake server.

What comes next depends on the question and on the answer so far. The answers to a question and their
probabilities at T = 1 stand in `ANSWERS`; a question that is not there has the answers of one that is.
`NOISE` of the probability is spread over the whole vocabulary, unevenly, so that every token can be drawn.
Letters that no piece holds are tokens of one byte: "é" is two tokens, each of them half a character.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

ANSWERS: dict[str, dict[str, float]] = {
    "What is the capital of Alvania?": {"Mirna": 0.55, "the city of Mirna": 0.15, "Orléans": 0.2, "Sel": 0.1},
    "Who wrote The Salt Year?": {"Ana Brod": 0.7, "Brod": 0.1, "Ivo Lind": 0.2},
    "How many lakes are in Torvik?": {"seven": 0.4, "7": 0.3, "eight": 0.2, "about ten": 0.1},
    "Which river runs through Sel?": {"the Dree": 0.9, "Dree": 0.05, "the Orl": 0.05},
    "In which year was the bridge of Mirna built?": {"1871": 0.35, "1817": 0.35, "1781": 0.3},
    "What colour is the flag of Torvik?": {"green": 0.25, "blue": 0.25, "green and blue": 0.25, "red": 0.25},
}
#: The questions whose answers others have; tests that add questions do not change them.
USUAL = tuple(ANSWERS)
NOISE = 0.002

_WORDS = sorted({word for answers in ANSWERS.values() for text in answers for word in text.split()})
_PLAIN = [word for word in _WORDS if word.isascii() and len(word) > 1]
#: Token 0 ends the turn, 1 to 256 are the bytes; "Orléans" is Orl, two bytes, ans.
VOCABULARY: list[bytes] = [
    b"",
    *(bytes([byte]) for byte in range(256)),
    *(word.encode() for word in _PLAIN),
    *(b" " + word.encode() for word in _PLAIN),
    b"ans",
]
END, USER, ASSISTANT = 0, "<|user|>", "<|assistant|>"
_IDS = {piece: index for index, piece in reversed(list(enumerate(VOCABULARY)))}
_LONGEST = max(map(len, VOCABULARY))


def encode(text: str) -> list[int]:
    """The longest piece at each place."""
    rest, ids = text.encode(), []
    while rest:
        size = next(size for size in range(min(_LONGEST, len(rest)), 0, -1) if rest[:size] in _IDS)
        ids.append(_IDS[rest[:size]])
        rest = rest[size:]
    return ids


def decode(ids: Sequence[int]) -> str:
    """The text of these tokens; ids of another vocabulary become numbers, one after the other."""
    if any(index >= len(VOCABULARY) for index in ids):
        return " ".join(map(str, ids))
    return b"".join(VOCABULARY[index] for index in ids).decode(errors="replace")


def render(messages: Sequence[dict[str, str]]) -> str:
    """The text of a chat, up to the answer."""
    turns = [(USER if turn["role"] != "assistant" else ASSISTANT) + turn["content"] for turn in messages]
    return "".join(turns) + ASSISTANT


@lru_cache(maxsize=4096)
def answers_to(prompt: str) -> dict[str, float]:
    """The answers to the question of a prompt: the last that it holds, or one chosen by its hash."""
    asked = prompt.rpartition(ASSISTANT)[0] or prompt
    found = {question: asked.rfind(question) for question in ANSWERS}
    question = max(found, key=lambda name: found[name])
    if found[question] < 0:
        question = USUAL[int(hashlib.sha256(asked.encode()).hexdigest(), 16) % len(USUAL)]
    return ANSWERS[question]


@lru_cache(maxsize=65536)
def next_log_probs(prompt: str, drawn: tuple[int, ...] = ()) -> Array:
    """Log-probabilities of what comes next at T = 1, over the whole vocabulary."""
    begun = prompt.rpartition(ASSISTANT)[2].encode() if ASSISTANT in prompt else b""
    so_far = begun + b"".join(VOCABULARY[index] for index in drawn)
    state = hashlib.sha256(prompt.rpartition(ASSISTANT)[0].encode() + b"\0" + so_far).digest()
    noise = np.random.default_rng(list(state)).gumbel(size=len(VOCABULARY))
    p = NOISE * np.exp(noise) / np.exp(noise).sum()
    going_on = {text.encode(): share for text, share in answers_to(prompt).items()}
    going_on = {text: share for text, share in going_on.items() if text.startswith(so_far)}
    for text, share in going_on.items():
        rest = encode_bytes(text[len(so_far) :])
        p[rest[0] if rest else END] += (1 - NOISE) * share / sum(going_on.values())
    if not going_on:
        p[END] += 1 - NOISE
    found: Array = np.log(p)
    found.setflags(write=False)
    return found


def encode_bytes(rest: bytes) -> list[int]:
    """The first token of these bytes, which may begin within a character."""
    sizes = range(min(_LONGEST, len(rest)), 0, -1)
    return [_IDS[rest[:size]] for size in sizes if rest[:size] in _IDS][:1]


def at_temperature(log_probs: Array, temperature: float) -> Array:
    """Log-probabilities at T; at T = 0 the most likely token has them all."""
    if temperature == 0:
        return np.where(np.arange(log_probs.size) == log_probs.argmax(), 0.0, -np.inf)
    scaled = log_probs / temperature
    total: Array = scaled - np.logaddexp.reduce(scaled)
    return total


def truncated(log_probs: Array, *, top_k: int, top_p: float, min_p: float) -> Array:
    """Log-probabilities after top-k, top-p and min-p, -inf for what is cut; top_k <= 0 cuts nothing."""
    order = np.argsort(-log_probs, kind="stable")
    kept = np.zeros(log_probs.size, dtype=bool)
    kept[order[: top_k if top_k > 0 else None]] = True
    if top_p < 1:
        before = np.cumsum(np.exp(log_probs[order])) - np.exp(log_probs[order])
        kept[order[before >= top_p]] = False
    if min_p > 0:
        kept &= log_probs >= log_probs.max() + np.log(min_p)
    found = np.where(kept, log_probs, -np.inf)
    total: Array = found - np.logaddexp.reduce(found)
    return total


@lru_cache(maxsize=65536)
def step(
    prompt: str, drawn: tuple[int, ...], temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[Array, Array, Array, Array]:
    """Log-probabilities of what comes next raw, at T and after truncation; the last as cumulated ones."""
    raw = next_log_probs(prompt, drawn)
    scaled = at_temperature(raw, temperature)
    cut = truncated(scaled, top_k=top_k, top_p=top_p, min_p=min_p)
    return raw, scaled, cut, np.cumsum(np.exp(cut))
