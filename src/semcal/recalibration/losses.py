"""The two calibration losses of the paper, as functions of the inverse temperature.

With logits z and β = 1/T both losses of one token have the same form,

    loss(β) = w · (logsumexp(β z) − β c),

which is convex in β. NLL has w = 1 and c = z_y. Selective smoothing (paper, equation "ss loss") has
w = 1 − α and c = z_y where the model's top token is the target, w = α and c = mean(z) where it is not;
the top token does not move with T, so neither does the case.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from semcal.errors import InputError, UsageError
from semcal.registry import check_name

__all__ = ["LOSSES", "TokenTerms", "check_loss", "token_terms"]

LOSSES = ("NLL", "SS")


@dataclass(frozen=True)
class TokenTerms:
    """What one batch of N tokens contributes to a loss, as a function of β.

    Attributes
    ----------
    logits : Tensor, shape (N, V), float64
        Logits less their row maximum, so that the largest is 0.
    weight : Tensor, shape (N,)
        The factor w of each token.
    centre : Tensor, shape (N,)
        The value c of each token, less the row maximum.
    """

    logits: Tensor
    weight: Tensor
    centre: Tensor


def check_loss(loss: str, alpha: float | None) -> None:
    """Raise UsageError unless (loss, alpha) is "NLL" without alpha or "SS" with 0 < alpha < 1."""
    check_name(loss, LOSSES, what="loss")
    if loss == "NLL" and alpha is not None:
        raise UsageError(f"NLL has no alpha, got alpha={alpha}; leave it out or use loss='SS'")
    if loss == "SS" and (alpha is None or not 0 < alpha < 1):
        raise UsageError(f"SS needs an alpha between 0 and 1 (the paper: 0.1, 0.25, 0.5, 0.75), got {alpha}")


def _check_batch(logits: Tensor, targets: Tensor) -> None:
    if logits.ndim != 2 or targets.shape != logits.shape[:1]:
        raise InputError(
            f"expected logits (N, V) and targets (N,), got {tuple(logits.shape)} and {tuple(targets.shape)}"
        )
    size = logits.shape[1]
    outside = (targets < 0) | (targets >= size)
    if outside.any():
        row = int(outside.nonzero()[0])
        raise InputError(f"target {int(targets[row])} of token {row} is outside the vocabulary of {size}")
    bad = logits.isnan().any(1) | (logits == torch.inf).any(1) | (logits == -torch.inf).all(1)
    if bad.any():
        raise InputError(f"the logits of token {int(bad.nonzero()[0])} hold NaN or +inf, or are all -inf")


def token_terms(logits: Tensor, targets: Tensor, *, loss: str, alpha: float | None) -> TokenTerms:
    """Return the terms of `loss` for a batch of tokens.

    Parameters
    ----------
    logits : Tensor, shape (N, V)
        Logits before recalibration; −inf marks a token that cannot occur.
    targets : Tensor, shape (N,), integer
        The tokens that were to be predicted.
    loss : {"NLL", "SS"}
        Which loss.
    alpha : float or None
        The α of selective smoothing.

    Raises
    ------
    InputError
        If shapes disagree, a target lies outside the vocabulary or has logit −inf, a logit is NaN or
        +inf, or SS meets a logit of −inf (its loss is infinite at every temperature).
    """
    _check_batch(logits, targets)
    z = logits.double()
    z = z - z.amax(1, keepdim=True)
    target = z.gather(1, targets[:, None])[:, 0]
    if loss == "NLL":
        weight, centre = torch.ones_like(target), target
    else:
        assert alpha is not None
        hit = z.argmax(1) == targets
        weight = alpha + (1 - 2 * alpha) * hit.double()
        centre = torch.where(hit, target, z.mean(1))
    impossible = centre == -torch.inf
    if impossible.any():
        row = int(impossible.nonzero()[0])
        raise InputError(
            f"the {loss} of token {row} is infinite at every T, for a logit that it needs is -inf; "
            "leave the token out"
        )
    return TokenTerms(z, weight, centre)
