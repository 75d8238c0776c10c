"""One token for each draw from its row of recalibrated log-probabilities: by inverse CDF, or the most likely.

The rule of the inverse CDF: with p = exp(log-probabilities) summed up in vocabulary order in float64 to F,
a uniform u in [0, 1) draws the first token v with F(v) > u * F(last). So u = 0 draws the first possible
token, a u that falls exactly on a step draws the token above it, and a token of probability 0 is never
drawn.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from semcal.errors import ModelError

__all__ = ["block_sums", "drawn_from", "inverse_cdf", "most_likely", "numbers"]

_BLOCK = 128
Look = Callable[[Tensor, Tensor], Tensor]


def inverse_cdf(log_probs: Tensor, rows: Tensor, u: Tensor) -> Tensor:
    """Tokens for uniforms.

    Parameters
    ----------
    log_probs : torch.Tensor
        (F, V) natural log-probabilities of the whole vocabulary.
    rows : torch.Tensor
        (n,) int64, the row that each draw reads.
    u : torch.Tensor
        (n,) float64 in [0, 1).

    Returns
    -------
    torch.Tensor
        (n,) int64 tokens.

    Raises
    ------
    ModelError
        If a row is not a distribution (NaN, or nothing is possible).

    Examples
    --------
    >>> p = torch.tensor([[0.0, 0.25, 0.75, 0.0]]).log()
    >>> u = torch.tensor([0.0, 0.24, 0.25, 0.999], dtype=torch.float64)
    >>> inverse_cdf(p, torch.zeros(4, dtype=torch.long), u)
    tensor([1, 1, 2, 2])
    """
    if log_probs.device.type == "mps":  # no float64 there
        return inverse_cdf(log_probs.cpu(), rows.cpu(), u).to(log_probs.device)
    weights = log_probs.exp()
    return drawn_from(
        lambda row, tokens: weights[row, tokens], block_sums(weights), weights.shape[1], rows, u
    )


def block_sums(weights: Tensor) -> Tensor:
    """Sums (F, blocks), float64, of the weights (F, V) of every 128 neighbours in the vocabulary.

    They save the sum up to every single token: only the block that a draw falls into is looked into.
    """
    whole = weights.shape[1] // _BLOCK * _BLOCK
    blocks, rest = weights[:, :whole].view(len(weights), -1, _BLOCK), weights[:, whole:]
    if weights.device.type == "cpu":  # NumPy sums float32 into float64 without a copy
        sums = torch.from_numpy(np.add.reduce(blocks.numpy(), -1, dtype=np.float64))
    else:
        sums = blocks.sum(-1, dtype=torch.float64)
    return torch.cat([sums, rest.sum(-1, keepdim=True, dtype=torch.float64)], 1)


def drawn_from(look: Look, sums: Tensor, size: int, rows: Tensor, u: Tensor) -> Tensor:
    """Tokens for uniforms, as `inverse_cdf` has it, by weights that need not add up to 1.

    Parameters
    ----------
    look : callable
        (row, token) -> weight, at least 0; of arrays that are broadcast against each other.
    sums : torch.Tensor
        `block_sums` of the weights.
    size : int
        V, tokens of the vocabulary.
    rows, u : torch.Tensor
        As for `inverse_cdf`.
    """
    cumulative = sums.cumsum(-1)
    total = cumulative[:, -1]
    if not bool((torch.isfinite(total) & (total > 0)).all()):
        raise _not_finite()
    sought = u.to(rows.device) * total[rows]
    block = (cumulative[rows] <= sought[:, None]).sum(1).clamp_max(sums.shape[1] - 1)
    before = torch.where(block > 0, cumulative[rows, block - 1], 0.0)[:, None]
    tokens = block[:, None] * _BLOCK + torch.arange(_BLOCK, device=rows.device)
    inside = look(rows[:, None], tokens.clamp_max(size - 1)).double().masked_fill_(tokens >= size, 0.0)
    place = (before + inside.cumsum(-1) <= sought[:, None]).sum(1)
    return _possible(look, size, rows, (block * _BLOCK + place).clamp_max(size - 1))


def most_likely(log_probs: Tensor, rows: Tensor, _: Tensor) -> Tensor:
    """The token of highest probability in each draw's row; of equal ones the first.

    Examples
    --------
    >>> most_likely(torch.tensor([[0.2, 0.4, 0.4]]).log(), torch.tensor([0]), torch.zeros(1))
    tensor([1])

    Raises
    ------
    ModelError
        If a row is not a distribution.
    """
    top = numbers(log_probs.max(-1, keepdim=True).values)
    return (log_probs == top).int().argmax(-1)[rows]


def numbers(log_probs: Tensor) -> Tensor:
    """The same log-probabilities; ModelError if one is NaN, as all of a row are that is no distribution."""
    if bool(log_probs.isnan().any()):
        raise _not_finite()
    return log_probs


def _not_finite() -> ModelError:
    return ModelError("the model's probabilities are not finite; try dtype='float32', check the recalibrator")


def _possible(look: Look, size: int, rows: Tensor, tokens: Tensor) -> Tensor:
    """Move a token of weight 0, where parallel sums may round to, to the next possible one, or back."""
    for i in torch.nonzero(look(rows, tokens) == 0).flatten().tolist():
        possible = torch.nonzero(look(rows[i], torch.arange(size, device=rows.device))).flatten()
        after = possible[possible > tokens[i]]
        tokens[i] = after[0] if len(after) else possible[-1]
    return tokens
