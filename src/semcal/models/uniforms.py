"""The random numbers of draws, the same for every batch, order of questions and temperature (spec 4)."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from semcal.errors import UsageError


def check_at_least_one(**options: int) -> None:
    """Raise UsageError for an option below 1."""
    for name, value in options.items():
        if value < 1:
            raise UsageError(f"{name} is {value}; it must be at least 1")


def uniforms(seed: int, question_id: str, *, m: int, steps: int, first: int = 0) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1) for `m` draws, from number `first` on, of up to `steps` tokens (spec 4).

    Philox, a counter-based generator (Salmon et al. 2011, doi:10.1145/2063384.2063405), is keyed by a hash of
    the seed and the question id; the draw is a word of its counter and the step a position in its stream. So
    batches, the order of questions, the number of draws and the temperature do not change any number.

    Returns (m, steps) float64, multiples of 2**-53; asking for more rows or columns changes none of them.

    >>> u = uniforms(0, "q1", m=2, steps=3)
    >>> bool((uniforms(0, "q1", m=5, steps=9)[:2, :3] == u).all())
    True
    >>> bool((uniforms(0, "q1", m=1, steps=3, first=1) == u[1]).all())
    True
    """
    key = _key(seed, question_id)
    words = np.empty((m, steps), dtype=np.uint64)
    for draw in range(m):
        counter = np.array([0, first + draw, 0, 0], dtype=np.uint64)
        words[draw] = np.random.Philox(key=key, counter=counter).random_raw(steps)
    return np.ldexp((words >> np.uint64(11)).astype(np.float64), -53)


def _key(seed: int, question_id: str) -> NDArray[np.uint64]:
    """128 bits from the seed and the question id; the seed's length in front keeps the two apart."""
    number = str(seed)
    text = f"{len(number)}:{number}:{question_id}"
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)
