"""Recalibrated distributions over the vocabulary, and the choice of each draw's next token from them.

The logits of each node are computed once, and every recalibrator is applied to them. At one temperature only
the drawn token's log-probability is needed: the weights exp((z - max z)/T) and their sum say which token is
drawn and how likely it is. So these rows are read once and not normalised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semcal.engine.ats_state import ModelOutputs, log_probs
from semcal.engine.drawing import Choose, block_sums, draw_by_weights, inverse_cdf
from semcal.engine.tree_cache import TreeCache
from semcal.recalibration.attentive import ATS, AnyRecalibrator
from semcal.recalibration.temperature import Temperature

__all__ = ["ChosenTokens", "DecodingOptions", "Distributions", "choose_tokens", "distributions"]

_LEAST = -87.0  # exp(-87) is still a normal float32; a token that much less likely is impossible
_ROWS = 16  # whose weights stay in a processor's cache


@dataclass(frozen=True)
class DecodingOptions:
    """What holds for all draws of a call."""

    recalibrators: Sequence[AnyRecalibrator]  # each has its own draws, with the same uniforms
    stops: frozenset[int]  # tokens that end the turn
    choose: Choose  # `inverse_cdf`, `most_likely` or a `Truncation`
    closing_tokens: Sequence[int] = ()  # their log-probabilities are recorded wherever a draw reads
    #: Whether the last token of a draw that reaches the limit runs, so that these are recorded after it too.
    run_last_token: Callable[[tuple[int, ...]], bool] | None = None


@dataclass(frozen=True)
class ChosenTokens:
    """The next token of each of n draws."""

    tokens: NDArray[np.int64]  # (n,)
    log_probs: NDArray[np.float32]  # (n,)
    closing_log_probs: NDArray[np.float32]  # (n, W), of the closing tokens at the same node


def choose_tokens(
    cache: TreeCache,
    outputs: ModelOutputs,
    options: DecodingOptions,
    *,
    node: Tensor,
    which: Tensor,
    u: Tensor,
) -> ChosenTokens:
    """Next tokens of draws (n,) at nodes of `outputs`, each with its recalibrator `which` and uniform u."""
    tokens, chosen = torch.empty_like(node), torch.empty(len(node))
    closing = torch.empty((len(node), len(options.closing_tokens)))
    for here, found, row in _distributions(cache, outputs, options.recalibrators, node, which):
        token = found.choose(options.choose, row, u[here])
        tokens[here], chosen[here] = token.cpu(), found.log_probs_at(row, token).cpu()
        if options.closing_tokens:
            closers = torch.tensor(options.closing_tokens, device=row.device)
            closing[here] = found.log_probs_at(row[:, None], closers).cpu()
    return ChosenTokens(tokens.numpy(), chosen.numpy(), closing.numpy())


def _distributions(
    cache: TreeCache,
    outputs: ModelOutputs,
    recalibrators: Sequence[AnyRecalibrator],
    node: Tensor,
    which: Tensor,
) -> Iterator[tuple[Tensor, Distributions, Tensor]]:
    """Indices of draws, the distributions at some nodes, and the row of each draw in them.

    Logits exist for a limited number of nodes at a time.
    """
    rows = cache.network.rows_at_a_time
    for start in range(0, len(outputs), rows):
        part = outputs[start : start + rows]
        logits = cache.network.logits(part.states)
        inside = (node >= start) & (node < start + rows)
        for r, recalibrator in enumerate(recalibrators):
            here = torch.nonzero((which == r) & inside)[:, 0]
            if not len(here):
                continue
            distinct, row = torch.unique(node[here] - start, return_inverse=True)
            if len(distinct) == len(part):
                found = distributions(recalibrator, logits, part, cache.ats)
            else:
                distinct = distinct.to(logits.device)
                found = distributions(recalibrator, logits[distinct], part[distinct], cache.ats)
            yield here, found, row.to(logits.device)


def distributions(
    recalibrator: AnyRecalibrator, logits: Tensor, outputs: ModelOutputs, ats: Sequence[ATS]
) -> Distributions:
    """The recalibrated distributions of logits (F, V); `outputs` hold the 1/T of each of `ats`."""
    if isinstance(recalibrator, Temperature) and logits.device.type != "mps":  # no float64 there
        return _Tempered(logits, recalibrator)
    return Distributions(log_probs(recalibrator, logits, outputs, ats))


class Distributions:
    """F distributions over V tokens, given by their log-probabilities (F, V)."""

    def __init__(self, log_probs: Tensor) -> None:
        self.log_probs = log_probs

    def choose(self, choose: Choose, rows: Tensor, u: Tensor) -> Tensor:
        """Tokens (n,) of draws from rows (n,) with uniforms (n,)."""
        return choose(self.log_probs, rows, u)

    def log_probs_at(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """Log-probabilities of tokens in rows; the two index arrays are broadcast against each other."""
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
        """Sums over blocks of the weights, which exist for a few rows at a time."""
        rows = _ROWS if self.logits.device.type == "cpu" else max(1, len(self.logits))
        some = [slice(start, start + rows) for start in range(0, len(self.logits), rows)]
        return torch.cat([block_sums(self._weights(self.logits[part], self._top[part])) for part in some])

    def _weights(self, logits: Tensor, top: Tensor) -> Tensor:
        """exp((z - top)/T)."""
        weights = (logits - top).mul_(1 / self.recalibrator.temperature)
        return torch.threshold_(weights.clamp_min_(_LEAST).exp_(), 1.7e-38, 0.0)

    def choose(self, choose: Choose, rows: Tensor, u: Tensor) -> Tensor:
        if choose is not inverse_cdf:
            return super().choose(choose, rows, u)

        def weights_at(row: Tensor, tokens: Tensor) -> Tensor:
            return self._weights(self.logits[row, tokens], self._top[row, 0])

        return draw_by_weights(weights_at, self._sums, self.logits.shape[1], rows, u)

    def log_probs_at(self, rows: Tensor, tokens: Tensor) -> Tensor:
        if "log_probs" in self.__dict__:
            return super().log_probs_at(rows, tokens)
        over = (self.logits[rows, tokens] - self._top[rows, 0]).double() / self.recalibrator.temperature
        return (over - self._sums.sum(-1).log()[rows]).float()
