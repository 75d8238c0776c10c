"""Drawing tokens from distributions: inverse CDF, greedy choice, truncation.

Inverse CDF: with p = exp(log-probabilities) summed up in vocabulary order in float64 to F, a uniform u in
[0, 1) draws the first token v with F(v) > u * F(last). So u = 0 draws the first possible token, a u exactly
on a step draws the token above it, and a token of probability 0 is never drawn.

At one temperature only the drawn token's log-probability is needed: the weights exp((z - max z)/T) and their
sum say which token is drawn and how likely it is. So these rows are read once and not normalised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from semcal.errors import ModelError, UsageError

if TYPE_CHECKING:
    from semcal.models.distribution import Temperature

Choose = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(log-probabilities (F, V), row of each draw (n,), uniform of each draw (n,)) -> token of each draw (n,)."""
WeightsAt = Callable[[Tensor, Tensor], Tensor]

_BLOCK = 128
_FIRST_RANKED, _WIDEN = 64, 8  # tokens ranked at first where there is no top-k, and their growth factor
_LEAST = -87.0  # exp(-87) is still a normal float32; a token that much less likely is impossible
_NOT_FINITE = "the model's probabilities are not finite; try dtype='float32', check the recalibrator"
_ROWS = 16  # whose weights stay in a processor's cache


def inverse_cdf(log_probs: Tensor, rows: Tensor, u: Tensor) -> Tensor:
    """Draw a token (n,) for each uniform (n,) float64 from its row (n,) of log-probabilities (F, V).

    ModelError if a row is not a distribution (NaN, or nothing is possible).

    >>> p = torch.tensor([[0.0, 0.25, 0.75, 0.0]]).log()
    >>> u = torch.tensor([0.0, 0.24, 0.25, 0.999], dtype=torch.float64)
    >>> inverse_cdf(p, torch.zeros(4, dtype=torch.long), u)
    tensor([1, 1, 2, 2])
    """
    if log_probs.device.type == "mps":  # no float64 there
        return inverse_cdf(log_probs.cpu(), rows.cpu(), u).to(log_probs.device)
    weights = log_probs.exp()
    return draw_by_weights(
        lambda row, tokens: weights[row, tokens], block_sums(weights), weights.shape[1], rows, u
    )


def block_sums(weights: Tensor) -> Tensor:
    """Sums (F, blocks), float64, of the weights (F, V) of every 128 neighbours in the vocabulary.

    With them, only the block that a draw falls into is summed up token by token.
    """
    blocked = weights.shape[1] // _BLOCK * _BLOCK
    blocks, remainder = weights[:, :blocked].view(len(weights), -1, _BLOCK), weights[:, blocked:]
    if weights.device.type == "cpu":  # NumPy sums float32 into float64 without a copy
        sums = torch.from_numpy(np.add.reduce(blocks.numpy(), -1, dtype=np.float64))
    else:
        sums = blocks.sum(-1, dtype=torch.float64)
    return torch.cat([sums, remainder.sum(-1, keepdim=True, dtype=torch.float64)], 1)


def draw_by_weights(weights_at: WeightsAt, sums: Tensor, size: int, rows: Tensor, u: Tensor) -> Tensor:
    """Draw a token for each uniform as `inverse_cdf` does, by weights that need not add up to 1.

    `weights_at` gives the weights of (rows, tokens), broadcast against each other; `sums` are the
    `block_sums` of all weights, and `size` is that of the vocabulary.
    """
    cumulative = sums.cumsum(-1)
    total = cumulative[:, -1]
    if not bool((torch.isfinite(total) & (total > 0)).all()):
        raise ModelError(_NOT_FINITE)
    sought = u.to(rows.device) * total[rows]
    block = (cumulative[rows] <= sought[:, None]).sum(1).clamp_max(sums.shape[1] - 1)
    before = torch.where(block > 0, cumulative[rows, block - 1], 0.0)[:, None]
    tokens = block[:, None] * _BLOCK + torch.arange(_BLOCK, device=rows.device)
    inside = weights_at(rows[:, None], tokens.clamp_max(size - 1)).double().masked_fill_(tokens >= size, 0.0)
    place = (before + inside.cumsum(-1) <= sought[:, None]).sum(1)
    return _possible(weights_at, size, rows, (block * _BLOCK + place).clamp_max(size - 1))


def most_likely(log_probs: Tensor, rows: Tensor, _: Tensor) -> Tensor:
    """The likeliest token in the row of each draw, of equal ones the first; ModelError if one is NaN."""
    top = check_not_nan(log_probs.max(-1, keepdim=True).values)
    return (log_probs == top).int().argmax(-1)[rows]


def check_not_nan(log_probs: Tensor) -> Tensor:
    """The same log-probabilities; ModelError if one is NaN, as all of a row are if it is no distribution."""
    if bool(log_probs.isnan().any()):
        raise ModelError(_NOT_FINITE)
    return log_probs


def _possible(weights_at: WeightsAt, size: int, rows: Tensor, tokens: Tensor) -> Tensor:
    """Replace a token of weight 0, which rounding in parallel sums may give, by a possible neighbour."""
    for i in torch.nonzero(weights_at(rows, tokens) == 0).flatten().tolist():
        possible = torch.nonzero(weights_at(rows[i], torch.arange(size, device=rows.device))).flatten()
        after = possible[possible > tokens[i]]
        tokens[i] = after[0] if len(after) else possible[-1]
    return tokens


@dataclass(frozen=True)
class Truncation:
    """Which tokens a draw may take: the `top_k` likeliest, and of these the nucleus of mass `top_p`.

    A truncation is a `Choose`: a token is drawn by inverse CDF, in vocabulary order, among those that remain
    possible, the same that remain in transformers: temperature (here: any recalibrator), then top-k, then
    top-p. The log-probability that is recorded is still that of the whole vocabulary (spec section 1). The
    vocabulary is not sorted: the top-k tokens are ranked, or as many as the nucleus needs.

    Parameters
    ----------
    top_k : int
        Tokens less likely than the k-th are ruled out; those that are as likely as it all remain. 0 for none.
    top_p : float
        From the likeliest down, those tokens remain before which less than `top_p` of the mass (that top-k
        has left) has been counted; the likeliest always remains. Of equally likely tokens at the edge as
        many remain as in transformers; here it is those that come last in the vocabulary. 1 for none.

        Masses are summed in float64, in transformers in float32: a token before which the mass equals
        `top_p` to float32 rounding may remain here and not there.

    Raises
    ------
    UsageError
        If `top_k` is negative or `top_p` outside [0, 1].

    Examples
    --------
    >>> log_probs = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()
    >>> Truncation(top_k=3, top_p=0.7).possible(log_probs).tolist()
    [[False, True, False, True]]
    """

    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.top_k < 0:
            raise UsageError(f"top_k is {self.top_k}; give a number of tokens, or 0 for all")
        if not 0 <= self.top_p <= 1:
            raise UsageError(f"top_p is {self.top_p}; give a mass between 0 and 1, 1 for all")

    def __call__(self, log_probs: Tensor, rows: Tensor, u: Tensor) -> Tensor:
        """Draw a token for each uniform; see `inverse_cdf` for arguments and errors."""
        if not self.top_k and self.top_p == 1:
            return inverse_cdf(log_probs, rows, u)
        token_ids, remaining = self._remaining(log_probs)
        rows = rows.cpu()
        return token_ids[rows, inverse_cdf(remaining, rows, u.cpu())].to(log_probs.device)

    def possible(self, log_probs: Tensor) -> Tensor:
        """Which tokens (F, V) of log-probabilities (F, V) may be drawn."""
        token_ids, remaining = self._remaining(log_probs)
        mask = torch.zeros(log_probs.shape, dtype=torch.bool)
        return mask.scatter(1, token_ids, remaining > -torch.inf)

    def _remaining(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """Token ids (F, n), ascending, and their log-probabilities, −inf where ruled out; on the CPU."""
        if self.top_k:
            return self._nucleus(*_ranked(*_top(log_probs, self.top_k)))
        mass = _weights(log_probs).sum(1, keepdim=True).cpu()
        size, width = log_probs.shape[1], _FIRST_RANKED
        while True:
            ranked = _ranked(*log_probs.topk(min(width, size)))
            token_ids, remaining = self._nucleus(*ranked, mass)
            last = remaining.masked_fill(remaining == -torch.inf, torch.inf).amin(1)
            if width >= size or bool((last > ranked[1].amin(1)).all()):
                return token_ids, remaining
            width *= _WIDEN

    def _nucleus(
        self, token_ids: Tensor, log_probs: Tensor, mass: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Rule out what lies outside the nucleus; `mass` (F, 1) is that of all tokens, or of these."""
        if self.top_p == 1:
            return token_ids, log_probs
        weights = _weights(log_probs)
        rising = log_probs.argsort(dim=1, stable=True)
        ranked = weights.gather(1, rising)
        above = ranked.flip(1).cumsum(1).flip(1) - ranked
        inside = above < self.top_p * (weights.sum(1, keepdim=True) if mass is None else mass)
        inside[:, -1] = True
        keep = torch.empty_like(inside).scatter_(1, rising, inside)
        return token_ids, log_probs.masked_fill(~keep, -torch.inf)


def _top(log_probs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and tokens of the k likeliest of each row, and of all that are as likely as the k-th."""
    size = log_probs.shape[1]
    values, tokens = log_probs.topk(min(k + 1, size))
    if k >= size:
        return values, tokens
    least = values[:, k - 1 : k]
    if bool(((values[:, k:] == least) & (least > -torch.inf)).any()):
        ties = (log_probs >= least) & (log_probs > -torch.inf)
        values, tokens = log_probs.topk(max(k, int(ties.sum(1).max())))
    return values.masked_fill(values < least, -torch.inf), tokens


def _ranked(values: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens in vocabulary order with their values, on the CPU."""
    token_ids, order = tokens.cpu().sort(1)
    return token_ids, values.cpu().gather(1, order)


def _weights(log_probs: Tensor) -> Tensor:
    """Probabilities in float64 with the likeliest at 1, so that equally likely tokens sum exactly."""
    return (log_probs - log_probs.amax(1, keepdim=True)).double().exp()


REFERENCE = Truncation(top_k=50, top_p=0.9)
"""How the paper's published code samples; presets `sound` and `paper` rule out nothing."""


class Distributions:
    """F distributions over V tokens, given by their log-probabilities (F, V)."""

    def __init__(self, log_probs: Tensor) -> None:
        self.log_probs = log_probs

    def log_probs_at(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """Log-probabilities of tokens in rows; the two index arrays are broadcast against each other."""
        return self.log_probs[rows, tokens]


class TemperedDistributions(Distributions):
    """softmax(z / T) of logits z (F, V), drawn from by the weights exp((z - max z)/T)."""

    def __init__(self, logits: Tensor, recalibrator: Temperature) -> None:
        self.logits, self.recalibrator = logits, recalibrator

    @cached_property
    def log_probs(self) -> Tensor:  # type: ignore[override]
        return self.recalibrator.log_probs(self.logits)

    @cached_property
    def sums(self) -> Tensor:
        """The `block_sums` of the weights, which exist for a few rows at a time."""
        rows = _ROWS if self.logits.device.type == "cpu" else max(1, len(self.logits))
        parts = [slice(start, start + rows) for start in range(0, len(self.logits), rows)]
        return torch.cat([block_sums(self._weights(self.logits[part], self._top[part])) for part in parts])

    def weights_at(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """Weights of tokens in rows."""
        return self._weights(self.logits[rows, tokens], self._top[rows, 0])

    def log_probs_at(self, rows: Tensor, tokens: Tensor) -> Tensor:
        if "log_probs" in self.__dict__:
            return super().log_probs_at(rows, tokens)
        over = (self.logits[rows, tokens] - self._top[rows, 0]).double() / self.recalibrator.temperature
        return (over - self.sums.sum(-1).log()[rows]).float()

    @cached_property
    def _top(self) -> Tensor:
        return self.logits.amax(-1, keepdim=True)

    def _weights(self, logits: Tensor, top: Tensor) -> Tensor:
        weights = (logits - top).mul_(1 / self.recalibrator.temperature)
        return torch.threshold_(weights.clamp_min_(_LEAST).exp_(), 1.7e-38, 0.0)
