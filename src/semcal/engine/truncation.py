"""Truncated sampling: top-k and, among what it leaves, top-p, without sorting the vocabulary.

What stays possible is what the warpers of transformers leave, in their order: temperature (here: any
recalibrator), then top-k, then top-p. Only the likeliest tokens are ever ranked: with a top-k that many, and
without one as many as the nucleus turns out to need.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from semcal.engine.drawing import inverse_cdf
from semcal.errors import UsageError

__all__ = ["REFERENCE", "Truncation"]

_FIRST_LOOK, _WIDEN = 64, 8  # tokens ranked at first where no top-k says how many, and by what they grow


@dataclass(frozen=True)
class Truncation:
    """Which tokens a draw may take: the `top_k` likeliest, and of these the nucleus of mass `top_p`.

    A truncation is a way of choosing (`semcal.engine.distributions.Choose`): a token is drawn by inverse CDF,
    in vocabulary order, among those that stay possible. The log-probability that is recorded for it is that
    of the whole vocabulary all the same (spec section 1).

    Parameters
    ----------
    top_k : int
        Tokens less likely than the k-th are ruled out; those that are as likely as it all stay. 0 for none.
    top_p : float
        Of the tokens from the likeliest down, those stay before which less than `top_p` of the mass (that
        top-k has left) stands; the likeliest always stays. Of equally likely tokens at the edge as many
        stay as in transformers; here it is those that come last in the vocabulary. 1 for none.

    Raises
    ------
    UsageError
        If `top_k` is negative or `top_p` outside [0, 1].

    Notes
    -----
    Masses are summed in float64, in transformers in float32: a token before which the mass equals `top_p`
    to float32 rounding may stay here and not there.

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
        """Tokens (n,) for uniforms (n,), each drawn from its row (n,) of log-probabilities (F, V).

        Raises
        ------
        ModelError
            If a row is not a distribution (NaN, or nothing is possible).
        """
        if not self.top_k and self.top_p == 1:
            return inverse_cdf(log_probs, rows, u)
        token_ids, kept = self._kept(log_probs)
        rows = rows.cpu()
        return token_ids[rows, inverse_cdf(kept, rows, u.cpu())].to(log_probs.device)

    def possible(self, log_probs: Tensor) -> Tensor:
        """Which tokens (F, V) of log-probabilities (F, V) may be drawn."""
        token_ids, kept = self._kept(log_probs)
        found = torch.zeros(log_probs.shape, dtype=torch.bool)
        return found.scatter(1, token_ids, kept > -torch.inf)

    def _kept(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """Token ids (F, n), ascending, and their log-probabilities, −inf where ruled out; on the CPU."""
        if self.top_k:
            return self._nucleus(*_ranked(*_top(log_probs, self.top_k)))
        mass = _weights(log_probs).sum(1, keepdim=True).cpu()
        size, width = log_probs.shape[1], _FIRST_LOOK
        while True:
            ranked = _ranked(*log_probs.topk(min(width, size)))
            token_ids, kept = self._nucleus(*ranked, mass)
            last = kept.masked_fill(kept == -torch.inf, torch.inf).amin(1)
            if width >= size or bool((last > ranked[1].amin(1)).all()):
                return token_ids, kept
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
"""How the preset `reference` samples (docs: analyses, "Presets"); `sound` and `paper` rule out nothing."""
