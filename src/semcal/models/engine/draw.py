"""Choose tokens from distributions: inverse CDF, greedy choice, truncation.

Inverse CDF: let F be the cumulative sum of p = exp(log-probabilities) in vocabulary order, in float64. A
uniform u in [0, 1) chooses the first token v with F(v) > u * F(last). Thus u = 0 chooses the first possible
token, a u exactly on a step chooses the token above it, and a token of probability 0 is never chosen.

For a single temperature only the log-probability of the chosen token is needed. The weights
exp((z - max z)/T) and their sum determine the token and its probability. Therefore these rows are read once
and not normalized.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from semcal.errors import ModelError, UsageError

Choose = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(log-probabilities (F, V), row of each sample (n,), uniform of each (n,)) -> token of each sample (n,)."""
WeightsAt = Callable[[Tensor, Tensor], Tensor]

_BLOCK = 128
_LEAST = -87.0  # exp(-87) is the smallest normal float32; less likely tokens count as impossible
_NOT_FINITE = "model: its probabilities are not finite. Try dtype='float32', and check the recalibrator"
_ROWS = 16  # number of rows whose weights stay in a processor's cache


def inverse_cdf(log_probs: Tensor, rows: Tensor, u: Tensor) -> Tensor:
    """Choose a token (n,) for each uniform (n,) float64 from its row (n,) of log-probabilities (F, V).

    ModelError if a row is not a distribution (NaN, or no token is possible).

    >>> p = torch.tensor([[0.0, 0.25, 0.75, 0.0]]).log()
    >>> u = torch.tensor([0.0, 0.24, 0.25, 0.999], dtype=torch.float64)
    >>> inverse_cdf(p, torch.zeros(4, dtype=torch.long), u)
    tensor([1, 1, 2, 2])
    """
    if log_probs.device.type == "mps":  # has no float64
        return inverse_cdf(log_probs.cpu(), rows.cpu(), u).to(log_probs.device)
    weights = log_probs.exp()
    return draw_by_weights(
        lambda row, tokens: weights[row, tokens], block_sums(weights), weights.shape[1], rows, u
    )


def block_sums(weights: Tensor) -> Tensor:
    """Sum the weights (F, V) of blocks of 128 consecutive tokens: (F, blocks), float64.

    With these sums, only the weights in the block of the chosen token are added one by one.
    """
    blocked = weights.shape[1] // _BLOCK * _BLOCK
    blocks, remainder = weights[:, :blocked].view(len(weights), -1, _BLOCK), weights[:, blocked:]
    if weights.device.type == "cpu":  # NumPy sums float32 into float64 without a copy
        sums = torch.from_numpy(np.add.reduce(blocks.numpy(), -1, dtype=np.float64))
    else:
        sums = blocks.sum(-1, dtype=torch.float64)
    return torch.cat([sums, remainder.sum(-1, keepdim=True, dtype=torch.float64)], 1)


def draw_by_weights(weights_at: WeightsAt, sums: Tensor, size: int, rows: Tensor, u: Tensor) -> Tensor:
    """Choose a token for each uniform as `inverse_cdf` does, by weights with any sum.

    `weights_at` returns the weights of (rows, tokens), broadcast against each other; `sums` are the
    `block_sums` of all weights, and `size` is the size of the vocabulary.
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
    """Choose the first of the most likely tokens in the row of each sample; ModelError for NaN."""
    top = check_not_nan(log_probs.max(-1, keepdim=True).values)
    return (log_probs == top).int().argmax(-1)[rows]


def check_not_nan(log_probs: Tensor) -> Tensor:
    """Return the log-probabilities; ModelError if one is NaN (all of a row that is not a distribution)."""
    if bool(log_probs.isnan().any()):
        raise ModelError(_NOT_FINITE)
    return log_probs


def _possible(weights_at: WeightsAt, size: int, rows: Tensor, tokens: Tensor) -> Tensor:
    """Replace a token of weight 0, which rounding in parallel sums may select, by a possible neighbor."""
    for i in torch.nonzero(weights_at(rows, tokens) == 0).flatten().tolist():
        possible = torch.nonzero(weights_at(rows[i], torch.arange(size, device=rows.device))).flatten()
        after = possible[possible > tokens[i]]
        tokens[i] = after[0] if len(after) else possible[-1]
    return tokens


@dataclass(frozen=True)
class Truncation:
    """Truncation of a distribution: the `top_k` most likely tokens, and their nucleus of mass `top_p`.

    A truncation is a `Choose`: inverse CDF, in vocabulary order, among the remaining tokens. These are the
    same as in transformers: temperature (here: any recalibrator), then top-k, then top-p. The recorded
    log-probability is that of the whole vocabulary (spec section 1).

    Parameters
    ----------
    top_k : int
        Tokens less likely than the k-th are removed; all tokens as likely as the k-th remain. 0 for none.
    top_p : float
        A token remains if the mass of more likely tokens (after top-k) is below `top_p`; the most likely
        token always remains. Of equally likely tokens at the edge, as many remain as in transformers, and
        here the last in the vocabulary remain. 1 for none.

        Masses are summed in float64, in transformers in float32: at a mass equal to `top_p` up to float32
        rounding, a token may remain here and not in transformers.

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
            raise UsageError(f"top_k: got {self.top_k}. Pass a number of tokens, or 0 for all")
        if not 0 <= self.top_p <= 1:
            raise UsageError(f"top_p: got {self.top_p}. Pass a mass between 0 and 1, 1 for all")

    def __call__(self, log_probs: Tensor, rows: Tensor, u: Tensor) -> Tensor:
        """Choose a token for each uniform; see `inverse_cdf` for arguments and errors."""
        if log_probs.device.type == "mps":  # has no float64
            return self(log_probs.cpu(), rows.cpu(), u).to(log_probs.device)
        return inverse_cdf(log_probs.masked_fill(~self.possible(log_probs), -torch.inf), rows, u)

    def possible(self, log_probs: Tensor) -> Tensor:
        """Return a mask (F, V) of the possible tokens for log-probabilities (F, V)."""
        possible = log_probs > -torch.inf
        if self.top_k:
            least = log_probs.topk(min(self.top_k, log_probs.shape[1])).values[:, -1:]
            possible &= log_probs >= least
        if self.top_p < 1:
            log_probs = log_probs.masked_fill(~possible, -torch.inf)
            # divided by the largest, so that equal probabilities sum exactly
            weights = (log_probs - log_probs.amax(1, keepdim=True)).double().exp()
            rising = log_probs.argsort(dim=1, stable=True)
            ranked = weights.gather(1, rising)
            above = ranked.flip(1).cumsum(1).flip(1) - ranked
            inside = above < self.top_p * weights.sum(1, keepdim=True)
            inside[:, -1] = True
            possible &= torch.empty_like(inside).scatter_(1, rising, inside)
        return possible


class Distributions:
    """F distributions over V tokens with log-probabilities (F, V)."""

    def __init__(self, log_probs: Tensor) -> None:
        self.log_probs = log_probs

    def choose(self, choose: Choose, rows: Tensor, u: Tensor) -> Tensor:
        """Return the token (n,) of each uniform (n,) in its row (n,)."""
        return choose(self.log_probs, rows, u)

    def log_probs_at(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """Return log-probabilities of tokens in rows; the two index arrays are broadcast."""
        return self.log_probs[rows, tokens]


class TemperedDistributions(Distributions):
    """Distributions softmax(z / T) of logits z (F, V), for the choice by inverse CDF alone."""

    def __init__(self, logits: Tensor, temperature: float) -> None:
        self._logits, self._temperature = logits, temperature
        self._top = logits.amax(-1, keepdim=True)
        rows = _ROWS if logits.device.type == "cpu" else max(1, len(logits))
        parts = [slice(start, start + rows) for start in range(0, len(logits), rows)]
        self._sums = torch.cat([block_sums(self._weights(logits[part], self._top[part])) for part in parts])

    def choose(self, choose: Choose, rows: Tensor, u: Tensor) -> Tensor:
        del choose
        return draw_by_weights(self._weights_at, self._sums, self._logits.shape[1], rows, u)

    def log_probs_at(self, rows: Tensor, tokens: Tensor) -> Tensor:
        over = (self._logits[rows, tokens] - self._top[rows, 0]).double() / self._temperature
        return (over - self._sums.sum(-1).log()[rows]).float()

    def _weights_at(self, rows: Tensor, tokens: Tensor) -> Tensor:
        return self._weights(self._logits[rows, tokens], self._top[rows, 0])

    def _weights(self, logits: Tensor, top: Tensor) -> Tensor:
        """Return the weights exp((z - max z)/T)."""
        weights = (logits - top).mul_(1 / self._temperature)
        return torch.threshold_(weights.clamp_min_(_LEAST).exp_(), 1.7e-38, 0.0)
