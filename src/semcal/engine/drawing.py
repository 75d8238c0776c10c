"""One token for each draw from its row of recalibrated log-probabilities: by inverse CDF, or the most likely.

The rule of the inverse CDF: with p = exp(log-probabilities) summed up in vocabulary order in float64 to F,
a uniform u in [0, 1) draws the first token v with F(v) > u * F(last). So u = 0 draws the first possible
token, a u that falls exactly on a step draws the token above it, and a token of probability 0 is never
drawn.
"""

from __future__ import annotations

import torch
from torch import Tensor

from semcal.errors import ModelError

__all__ = ["inverse_cdf", "most_likely"]


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
    cumulative = log_probs.exp().cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1]
    if not bool((torch.isfinite(total) & (total > 0)).all()):
        raise ModelError(
            "the model's probabilities are not finite; try dtype='float32', check the recalibrator"
        )
    grid, place = _side_by_side(rows, u.to(rows.device), len(log_probs))
    tokens = torch.searchsorted(cumulative, grid * total[:, None], right=True)[rows, place]
    return _possible(log_probs, rows, tokens)


def most_likely(log_probs: Tensor, rows: Tensor, _: Tensor) -> Tensor:
    """The token of highest probability in each draw's row; of equal ones the first.

    Examples
    --------
    >>> most_likely(torch.tensor([[0.2, 0.4, 0.4]]).log(), torch.tensor([0]), torch.zeros(1))
    tensor([1])
    """
    best = log_probs == log_probs.max(-1, keepdim=True).values
    return best.int().argmax(-1)[rows]


def _side_by_side(rows: Tensor, u: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The uniforms as a matrix (count, most draws that a row has), and the column of each."""
    order = torch.argsort(rows, stable=True)
    sizes = torch.bincount(rows, minlength=count)
    start = sizes.cumsum(0) - sizes
    place = torch.empty_like(rows)
    place[order] = torch.arange(len(rows), device=rows.device) - start[rows[order]]
    grid = u.new_zeros((count, int(sizes.max())))
    grid[rows, place] = u
    return grid, place


def _possible(log_probs: Tensor, rows: Tensor, tokens: Tensor) -> Tensor:
    """Move a token of probability 0, where parallel sums may round to, to the next possible one, or back."""
    tokens = tokens.clamp_max(log_probs.shape[-1] - 1)
    for i in torch.nonzero(log_probs[rows, tokens] == -torch.inf).flatten().tolist():
        possible = torch.nonzero(log_probs[rows[i]] > -torch.inf).flatten()
        after = possible[possible > tokens[i]]
        tokens[i] = after[0] if len(after) else possible[-1]
    return tokens
