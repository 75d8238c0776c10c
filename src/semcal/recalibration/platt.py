"""Platt scaling of token distributions: a diagonal affine map of the logits (paper, "Platt Scaling")."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from semcal.recalibration.losses import check_loss
from semcal.recalibration.schedule import GradientSteps

__all__ = ["Platt", "TrainedModule"]


class TrainedModule(nn.Module):
    """What ATS and Platt share: weights that are trained with a loss, and a record of the training."""

    method: str
    sgd_: GradientSteps | None = None

    def __init__(self, loss: str, alpha: float | None) -> None:
        super().__init__()
        check_loss(loss, alpha)
        self.loss, self.alpha = loss, alpha

    def freeze(self, sgd: GradientSteps | None) -> Self:
        """End the training that `sgd` records: weights on the CPU, without gradients."""
        self.sgd_ = sgd
        return self.requires_grad_(False).cpu()


class Platt(TrainedModule):
    """softmax(w ⊙ z + b), w = 1 and b = 0 before training.

    Parameters
    ----------
    vocabulary : int
        V, the number of logits.
    loss : {"NLL", "SS"}
        The loss that it is fitted with.
    alpha : float, optional
        The α of selective smoothing.

    Attributes
    ----------
    weight, bias : torch.nn.Parameter
        (V,) float32, the paper's w and b.

    Notes
    -----
    A logit of −inf stays −inf whatever w and b are: what the model rules out cannot come back.

    Examples
    --------
    >>> platt = Platt(2)
    >>> _ = platt.bias.data.copy_(torch.tensor([0.0, 3.0]).log1p())
    >>> platt.log_probs(torch.zeros(2)).exp().detach()
    tensor([0.2000, 0.8000])
    """

    method = "Platt"

    def __init__(self, vocabulary: int, *, loss: str = "NLL", alpha: float | None = None) -> None:
        super().__init__(loss, alpha)
        self.weight = nn.Parameter(torch.ones(vocabulary))
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return log softmax(w ⊙ logits + b) in float32, shape (..., V) unchanged."""
        impossible = logits == -torch.inf
        z = self.weight * logits.float().masked_fill(impossible, 0.0) + self.bias
        return torch.log_softmax(z.masked_fill(impossible, -torch.inf), dim=-1)

    def extra_repr(self) -> str:
        """Return what its repr shows."""
        return f"vocabulary={len(self.weight)}, loss={self.loss!r}, alpha={self.alpha}"
