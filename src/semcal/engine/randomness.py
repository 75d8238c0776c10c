"""The uniform behind each draw: a function of (seed, question id, draw, step) and of nothing else (spec 4).

Philox, a counter-based generator (Salmon et al. 2011, doi:10.1145/2063384.2063405), is keyed by a hash of the
seed and the question id; the draw is a word of its counter and the step a position in its stream. So neither
the batch, nor the order of questions, nor the number of draws, nor the temperature moves a number.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

__all__ = ["uniforms"]


def uniforms(seed: int, question_id: str, *, m: int, steps: int) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1) for `m` draws of up to `steps` tokens.

    Parameters
    ----------
    seed : int
        The run.
    question_id : str
        The question.
    m, steps : int
        How many rows and columns are wanted. Asking for more changes none of the numbers.

    Returns
    -------
    ndarray of float64, shape (m, steps)
        Multiples of 2**-53.

    Examples
    --------
    >>> u = uniforms(0, "q1", m=2, steps=3)
    >>> bool((uniforms(0, "q1", m=5, steps=9)[:2, :3] == u).all())
    True
    """
    key = _key(seed, question_id)
    words = np.empty((m, steps), dtype=np.uint64)
    for draw in range(m):
        counter = np.array([0, draw, 0, 0], dtype=np.uint64)
        words[draw] = np.random.Philox(key=key, counter=counter).random_raw(steps)
    return np.ldexp((words >> np.uint64(11)).astype(np.float64), -53)


def _key(seed: int, question_id: str) -> NDArray[np.uint64]:
    """128 bits from the seed and the question id; the length in front keeps the two apart."""
    number = str(seed)
    text = f"{len(number)}:{number}:{question_id}"
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)
