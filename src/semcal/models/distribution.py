"""Token distributions that are sampled and scored: recalibrated logits (spec section 6).

The engine knows two kinds of recalibrators: maps of logits alone, and those that read hidden states as well.
Nothing here imports torch before there are tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias, runtime_checkable

from semcal.errors import UsageError

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class TokenDistribution(Protocol):
    """A map from logits to the token distribution that is sampled and scored.

    Every recalibrator keeps two promises: the result is a distribution over the whole vocabulary
    (its exponentials sum to 1), and a row's result depends on that row alone.
    """

    @property
    def method(self) -> str:
        """The paper's name of the method: "Base", "SE", "TS"."""
        ...

    def log_probs(self, logits: Tensor) -> Tensor:
        """Map logits (..., V) of any float dtype to float32 log-probabilities (..., V)."""
        ...


@runtime_checkable
class StateReader(Protocol):
    """A recalibrator that gives each position a temperature, read from the hidden states so far: ATS.

    To the engine it is one more layer with keys and values of its own.
    """

    @property
    def method(self) -> str:
        """The paper's name of the method: "ATS"."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        ...

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        ...

    @property
    def bytes_per_token(self) -> int:
        """Size of the key and the value of one token."""
        ...

    def queries(self, states: Tensor, positions: Tensor) -> Tensor:
        """Return the queries (B, heads, n, head_dim) of states (B, n, d)."""
        ...

    def keys_values(self, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values (B, key-value heads, n, head_dim) of states (B, n, d)."""
        ...

    def inverse_temperature_from(self, states: Tensor, gathered: Tensor) -> Tensor:
        """Return 1/T (B, n) from states (B, n, d) and the attention output (B, n, heads * head_dim)."""
        ...

    def inverse_temperature(
        self,
        states: Tensor,
        positions: Tensor,
        keys: Tensor,
        values: Tensor,
        visible: Tensor,
        *,
        shared: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Return 1/T (B, q) from states (B, q, d), and keys and values of which (B, q, K) are visible.

        `shared` are keys and values of a prefix that all rows have in common.
        """
        ...

    def log_probs(self, logits: Tensor, inverse_temperature: Tensor) -> Tensor:
        """Return log softmax(logits / T) in float32, for logits (..., V) and 1/T (...)."""
        ...

    def to(self, device: torch.device) -> Self:
        """Move the weights to a device."""
        ...


AnyRecalibrator: TypeAlias = "TokenDistribution | StateReader"
"""A map of logits alone, or of logits and hidden states."""


class Temperature:
    """softmax(z / T) at a given temperature, reported as `method`.

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
            raise UsageError(f"a temperature is a positive number, got {temperature!r}")
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


@dataclass(frozen=True)
class Greedy:
    """Greedy decoding as a distribution, so that greedy answers are drawn in the same pass as samples.

    All probability lies on the most likely token of `of`, by default the model's own. No temperature changes
    which token that is; Platt can.

    Examples
    --------
    >>> import torch
    >>> Greedy().log_probs(torch.tensor([0.5, 2.0, 1.0])).exp()
    tensor([0., 1., 0.])
    """

    of: TokenDistribution = field(default_factory=Base)
    method = "greedy"

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return 0 at the first of the most likely tokens and -inf elsewhere; NaN where a row has NaN."""
        log_probs = self.of.log_probs(logits)
        top = log_probs.argmax(-1, keepdim=True)
        sure = log_probs.gather(-1, top)
        return log_probs.new_full(log_probs.shape, -math.inf).scatter_(-1, top, sure - sure)


def fingerprint(recalibrator: AnyRecalibrator) -> str:
    """Return a text that identifies a recalibrator's distribution on every machine: settings and weights.

    Examples
    --------
    >>> fingerprint(SE())
    'SE(temperature=0.5)'
    """
    of_weights = getattr(recalibrator, "fingerprint", None)
    return repr(recalibrator) if of_weights is None else of_weights()


def temperature_of(recalibrator: AnyRecalibrator) -> float | None:
    """Return the one T by which a recalibrator divides every logit; None where there is none (yet)."""
    temperature = getattr(recalibrator, "temperature_", getattr(recalibrator, "temperature", None))
    return temperature if isinstance(temperature, float) else None
