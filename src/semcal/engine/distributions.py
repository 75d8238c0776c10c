"""Recalibrated distributions over the vocabulary, of which only what is asked for is computed.

At one temperature a draw needs no log-probabilities but its own: the weights exp((z - max z)/T) and their sum
say which token it is and how likely. So these rows are passed over once, and not normalised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from semcal.engine.drawing import block_sums, drawn_from, inverse_cdf
from semcal.engine.riders import Reading, log_probs
from semcal.recalibration import ATS, AnyRecalibrator, Temperature

__all__ = ["Choose", "Distributions", "distributions"]

Choose = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(log-probabilities (F, V), row of each draw (n,), uniform of each draw (n,)) -> token of each draw (n,)."""

_LEAST = -87.0  # exp(-87) is still a normal float32; a token that much less likely is impossible
_ROWS = 16  # whose weights stay in a processor's cache


class Distributions:
    """F distributions over V tokens, given by their log-probabilities.

    Parameters
    ----------
    log_probs : torch.Tensor
        (F, V).
    """

    def __init__(self, log_probs: Tensor) -> None:
        self.log_probs = log_probs

    def chosen(self, choose: Choose, rows: Tensor, u: Tensor) -> Tensor:
        """Tokens (n,) of draws from rows (n,) with uniforms (n,)."""
        return choose(self.log_probs, rows, u)

    def at(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """Log-probabilities of tokens in rows; both index arrays are broadcast against each other."""
        return self.log_probs[rows, tokens]


class _Tempered(Distributions):
    """softmax(z / T) of logits z (F, V)."""

    def __init__(self, logits: Tensor, recalibrator: Temperature) -> None:
        self.logits, self.recalibrator = logits, recalibrator

    @cached_property
    def log_probs(self) -> Tensor:  # type: ignore[override]
        return self.recalibrator.log_probs(self.logits)

    @cached_property
    def _top(self) -> Tensor:
        return self.logits.amax(-1, keepdim=True)

    @cached_property
    def _sums(self) -> Tensor:
        """Sums of the weights' blocks; the weights of a few rows exist at a time."""
        rows = _ROWS if self.logits.device.type == "cpu" else max(1, len(self.logits))
        some = [slice(start, start + rows) for start in range(0, len(self.logits), rows)]
        return torch.cat([block_sums(self._weights(self.logits[part], self._top[part])) for part in some])

    def _weights(self, logits: Tensor, top: Tensor) -> Tensor:
        """exp((z - top)/T)."""
        weights = (logits - top).mul_(1 / self.recalibrator.temperature)
        return torch.threshold_(weights.clamp_min_(_LEAST).exp_(), 1.7e-38, 0.0)

    def chosen(self, choose: Choose, rows: Tensor, u: Tensor) -> Tensor:
        if choose is not inverse_cdf:
            return super().chosen(choose, rows, u)

        def look(row: Tensor, tokens: Tensor) -> Tensor:
            return self._weights(self.logits[row, tokens], self._top[row, 0])

        return drawn_from(look, self._sums, self.logits.shape[1], rows, u)

    def at(self, rows: Tensor, tokens: Tensor) -> Tensor:
        if "log_probs" in self.__dict__:
            return super().at(rows, tokens)
        over = (self.logits[rows, tokens] - self._top[rows, 0]).double() / self.recalibrator.temperature
        return (over - self._sums.sum(-1).log()[rows]).float()


def distributions(
    recalibrator: AnyRecalibrator, logits: Tensor, read: Reading, riders: Sequence[ATS]
) -> Distributions:
    """The distributions that a recalibrator makes of the logits (F, V) of what was read."""
    if isinstance(recalibrator, Temperature) and logits.device.type != "mps":  # no float64 there
        return _Tempered(logits, recalibrator)
    return Distributions(log_probs(recalibrator, logits, read, riders))
