"""Greedy decoding as a distribution, so that it is drawn in the same pass as samples."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from semcal.recalibration.temperature import Base, Recalibrator

__all__ = ["Greedy"]


@dataclass(frozen=True)
class Greedy:
    """All probability on the most likely token: a draw from it is the greedy answer.

    Attributes
    ----------
    of : Recalibrator
        Whose most likely token; the model's own by default. No temperature changes which it is, Platt can.

    Examples
    --------
    >>> Greedy().log_probs(torch.tensor([0.5, 2.0, 1.0])).exp()
    tensor([0., 1., 0.])
    """

    of: Recalibrator = field(default_factory=Base)

    @property
    def method(self) -> str:
        """The name under which results are reported."""
        return "greedy"

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return 0 at the first of the most likely tokens and -inf elsewhere, shape unchanged.

        NaN where a row has NaN: nothing is the most likely then.
        """
        found = self.of.log_probs(logits)
        top = found.argmax(-1, keepdim=True)
        sure = found.gather(-1, top)
        return torch.full_like(found, -torch.inf).scatter_(-1, top, sure - sure)
