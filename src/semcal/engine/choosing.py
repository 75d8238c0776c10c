"""How draws choose their next tokens: the logits of each node once, every recalibrator upon them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semcal.engine.distributions import Choose, Distributions, distributions
from semcal.engine.forest import Forest
from semcal.engine.riders import Reading
from semcal.recalibration import AnyRecalibrator

__all__ = ["Chosen", "Rules", "chosen_by"]


@dataclass(frozen=True)
class Rules:
    """What holds for all draws of a call.

    Attributes
    ----------
    recalibrators : sequence of Recalibrator or ATS
        Every draw is made under each of them, with the same uniforms.
    stops : frozenset of int
        Tokens that end the turn.
    choose : callable
        `inverse_cdf`, `most_likely` or a `Truncation`.
    closers : sequence of int
        Tokens whose log-probability is noted wherever a draw reads.
    beyond : callable, optional
        Whether that is wanted behind all tokens of a draw that meets the limit, too; they then run.
    """

    recalibrators: Sequence[AnyRecalibrator]
    stops: frozenset[int]
    choose: Choose
    closers: Sequence[int] = ()
    beyond: Callable[[tuple[int, ...]], bool] | None = None


@dataclass(frozen=True)
class Chosen:
    """What n draws chose: tokens (n,), their log-probabilities (n,), those of the closers there (n, W)."""

    tokens: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    closers: NDArray[np.float32]


def chosen_by(
    forest: Forest, read: Reading, rules: Rules, *, node: Tensor, which: Tensor, u: Tensor
) -> Chosen:
    """What draws (n,) choose that stand at nodes of what was read, `which` recalibrator with what uniform."""
    tokens, log_probs = torch.empty_like(node), torch.empty(len(node))
    noted = torch.empty((len(node), len(rules.closers)))
    for here, found, row in _distributions(forest, read, rules.recalibrators, node, which):
        token = found.chosen(rules.choose, row, u[here])
        tokens[here], log_probs[here] = token.cpu(), found.at(row, token).cpu()
        if rules.closers:
            noted[here] = found.at(row[:, None], torch.tensor(rules.closers, device=row.device)).cpu()
    return Chosen(tokens.numpy(), log_probs.numpy(), noted.numpy())


def _distributions(
    forest: Forest, read: Reading, recalibrators: Sequence[AnyRecalibrator], node: Tensor, which: Tensor
) -> Iterator[tuple[Tensor, Distributions, Tensor]]:
    """Which draws, the distributions of some nodes, and the row of each draw in these.

    Logits exist for a limited number of nodes at a time.
    """
    rows = forest.network.rows_at_a_time
    for start in range(0, len(read), rows):
        part = read[start : start + rows]
        logits = forest.network.logits(part.states)
        inside = (node >= start) & (node < start + rows)
        for r, recalibrator in enumerate(recalibrators):
            here = torch.nonzero((which == r) & inside)[:, 0]
            if not len(here):
                continue
            distinct, row = torch.unique(node[here] - start, return_inverse=True)
            if len(distinct) == len(part):
                found = distributions(recalibrator, logits, part, forest.riders)
            else:
                distinct = distinct.to(logits.device)
                found = distributions(recalibrator, logits[distinct], part[distinct], forest.riders)
            yield here, found, row.to(logits.device)
