"""Token distributions without a fit, and the random numbers of samples (spec sections 4 and 6).

This module does not import torch.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from semcal.errors import UsageError
from semcal.models.protocols import AnyRecalibrator

if TYPE_CHECKING:
    from torch import Tensor


class Temperature:
    """The distribution softmax(z / T) at a given temperature; `method` is its name in reports.

    Raises
    ------
    UsageError
        If the temperature is not a positive finite number.

    Examples
    --------
    >>> import torch
    >>> Temperature(2.0).log_probs(torch.tensor([0.0, 2 * math.log(3)])).exp()
    tensor([0.2500, 0.7500])
    """

    def __init__(self, temperature: float, *, method: str = "T") -> None:
        if isinstance(temperature, str) or not (math.isfinite(temperature) and temperature > 0):
            raise UsageError(f"temperature: got {temperature!r}. Pass a positive number")
        self.temperature = float(temperature)
        self.method = method

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return log softmax(logits / T) in float32, shape unchanged."""
        return (logits.float() / self.temperature).log_softmax(-1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(temperature={self.temperature:.6g})"


class Base(Temperature):
    """The model's own distribution, T = 1."""

    def __init__(self) -> None:
        super().__init__(1.0, method="Base")


class SE(Temperature):
    """The temperature usual for semantic entropy, T = 0.5 (Kuhn et al., 2023)."""

    def __init__(self) -> None:
        super().__init__(0.5, method="SE")


class Greedy:
    """Greedy decoding as a distribution, in which the most likely token has all probability."""

    method = "greedy"

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return 0 for the first of the most likely tokens and -inf for others; NaN in rows with NaN."""
        logits = logits.float()
        top = logits.argmax(-1, keepdim=True)
        sure = logits.gather(-1, top)
        return logits.new_full(logits.shape, -math.inf).scatter_(-1, top, sure - sure)


def fingerprint(recalibrator: AnyRecalibrator) -> str:
    """Return a text that identifies a recalibrator on every machine by its settings and weights.

    Examples
    --------
    >>> fingerprint(SE())
    'SE(temperature=0.5)'
    """
    of_weights = getattr(recalibrator, "fingerprint", None)
    return repr(recalibrator) if of_weights is None else of_weights()


def temperature_of(recalibrator: AnyRecalibrator) -> float | None:
    """Return the single T by which a recalibrator divides every logit; None without one, or before a fit."""
    temperature = getattr(recalibrator, "temperature_", getattr(recalibrator, "temperature", None))
    return temperature if isinstance(temperature, float) else None


def check_at_least_one(**options: int) -> None:
    """Raise UsageError for an option below 1."""
    for name, value in options.items():
        if value < 1:
            raise UsageError(f"{name}: got {value}. Pass a whole number of at least 1")


def uniforms(seed: int, question_id: str, *, m: int, steps: int, first: int = 0) -> NDArray[np.float64]:
    """Return uniform numbers in [0, 1) for `m` samples, from index `first`, of up to `steps` tokens (spec 4).

    The generator is Philox, which is counter-based (Salmon et al. 2011, doi:10.1145/2063384.2063405). Its key
    is a hash of the seed and the question id, the sample is a word of its counter and the step is a position
    in its stream. Therefore batches, the order of questions, the number of samples and the temperature do not
    change any number.

    The result is (m, steps) float64, multiples of 2**-53. More rows or columns do not change the other
    numbers.

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
    """Hash the seed and the question id to 128 bits; the length of the seed separates the two."""
    number = str(seed)
    text = f"{len(number)}:{number}:{question_id}"
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)
