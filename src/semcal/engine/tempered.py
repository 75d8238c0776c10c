"""Draws at many temperatures of the same logits, with their log-probabilities, in one pass over them.

The rule is that of `semcal.engine.drawing.inverse_cdf`. The cumulative probabilities are summed over tiles of
the vocabulary, and only inside the tile that a uniform falls into token by token, so neither they nor
the log-probabilities ever exist for a whole row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from semcal.errors import ModelError
from semcal.recalibration.partitions import TILE, exponentials

__all__ = ["Drawn", "draw_at"]


@dataclass(frozen=True)
class Drawn:
    """What n draws chose, on the CPU.

    Attributes
    ----------
    tokens : torch.Tensor
        (n,) int64.
    log_probs : torch.Tensor
        (n,) float32, natural log-probability of each over the whole vocabulary.
    noted : torch.Tensor
        (n, W) float32, those of the tokens that were to be noted.
    """

    tokens: Tensor
    log_probs: Tensor
    noted: Tensor


def draw_at(
    logits: Tensor, beta: Tensor, rows: Tensor, columns: Tensor, u: Tensor, *, noted: tuple[int, ...] = ()
) -> Drawn:
    """Draw tokens by inverse CDF, each from its row of logits at its temperature.

    Parameters
    ----------
    logits : torch.Tensor
        (F, V).
    beta : torch.Tensor
        (F, K), inverse temperatures 1/T of every row; a column may be constant (Base, SE, TS) or not (ATS).
    rows, columns : torch.Tensor
        (n,) int64, the row of logits and the column of temperatures that each draw reads, on the CPU.
    u : torch.Tensor
        (n,) float64 in [0, 1), on the CPU.
    noted : tuple of int
        Tokens whose log-probability is wanted for each draw besides its own.

    Raises
    ------
    ModelError
        If a row is no distribution (NaN, +inf, or nothing is possible).

    Examples
    --------
    3 : 1 at T = 1 and 9 : 1 at T = 1/2:

    >>> logits = torch.tensor([[3.0, 1.0]]).log()
    >>> u = torch.tensor([0.8, 0.8], dtype=torch.float64)
    >>> drawn = draw_at(logits, torch.tensor([[1.0, 2.0]]), torch.tensor([0, 0]), torch.tensor([0, 1]), u)
    >>> drawn.tokens, drawn.log_probs.exp()
    (tensor([1, 0]), tensor([0.2500, 0.9000]))
    """
    wanted = torch.zeros(beta.shape, dtype=torch.bool)
    wanted[rows, columns] = True
    tokens = torch.empty_like(rows)
    log_partition = torch.empty(len(rows), dtype=torch.float64)
    reading = rows * beta.shape[1] + columns
    order = reading.argsort(stable=True)
    ordered = reading[order]
    for part in exponentials(logits, beta, wanted):
        index = torch.arange(part.rows.start, part.rows.stop) if isinstance(part.rows, slice) else part.rows
        first = torch.searchsorted(ordered, index * beta.shape[1] + part.column)
        ends = torch.searchsorted(ordered, index * beta.shape[1] + part.column, right=True)
        place = torch.repeat_interleave(torch.arange(len(index)), ends - first)
        here = order[_ranges(first, ends)]
        found, total = _inverse_cdf(part.values, place, u[here])
        tokens[here], log_partition[here] = found, total.log()
    tokens = _possible(logits, rows, tokens)
    both = torch.cat([tokens[:, None], torch.tensor(noted, dtype=torch.long).expand(len(rows), -1)], 1)
    at = rows.to(logits.device)
    z = logits[at[:, None], both.to(logits.device)].double() - logits.amax(1).double()[at, None]
    scores = z.cpu() * beta.double().cpu()[rows, columns][:, None] - log_partition[:, None]
    return Drawn(tokens, scores[:, 0].float(), scores[:, 1:].float())


def _inverse_cdf(values: Tensor, place: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens (n,) for uniforms from rows `place` of exponentials (p, tiles, TILE), and the rows' sums."""
    tiles = values.sum(-1).cpu().double().cumsum(1)
    total = tiles[:, -1]
    if not bool((torch.isfinite(total) & (total > 0)).all()):
        raise ModelError(
            "the model's probabilities are not finite; try dtype='float32', check the recalibrator"
        )
    target = u * total[place]
    tile = torch.searchsorted(tiles[place], target[:, None], right=True)[:, 0].clamp_max(tiles.shape[1] - 1)
    before = torch.where(tile > 0, tiles[place, (tile - 1).clamp_min(0)], 0.0)
    inside = values[place.to(values.device), tile.to(values.device)].cpu().double().cumsum(1)
    token = torch.searchsorted(inside, (target - before)[:, None], right=True)[:, 0].clamp_max(TILE - 1)
    return tile * TILE + token, total[place]


def _possible(logits: Tensor, rows: Tensor, tokens: Tensor) -> Tensor:
    """Move a token that is impossible, where sums may round to, to the next possible one, or back."""
    size = logits.shape[1]
    chosen = logits[rows.to(logits.device), tokens.clamp_max(size - 1).to(logits.device)].cpu()
    for i in torch.nonzero((chosen == -torch.inf) | (tokens >= size))[:, 0].tolist():
        possible = torch.nonzero(logits[int(rows[i])] > -torch.inf)[:, 0].cpu()
        after = possible[possible > tokens[i]]
        tokens[i] = after[0] if len(after) else possible[-1]
    return tokens


def _ranges(first: Tensor, ends: Tensor) -> Tensor:
    """first[0] … ends[0] - 1, first[1] … one after another."""
    sizes = ends - first
    start = sizes.cumsum(0) - sizes
    return torch.arange(int(sizes.sum())) + torch.repeat_interleave(first - start, sizes)
