"""Sampling and greedy answers: a walk down the tree of distinct token sequences of each question.

1. The prefix that all prompts share has run once; every row of a batch's forest holds it.
2. The rest of each prompt runs once per question. Its last token is the question's first node.
3. At every step each draw that is still going reads the logits of the node it stands at, under its own
   recalibrator, chooses a token and records its log-probability.
4. Draws that choose the same token at the same node walk on together: each distinct continuation runs once,
   all in one pass over the batch.
5. Draws that chose an end of turn stop; questions with no draw left leave the batch.
"""

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
from semcal.engine.tree import advance, begin
from semcal.recalibration import AnyRecalibrator

__all__ = ["Choose", "Walk", "walk"]


@dataclass(frozen=True)
class Walk:
    """What the draws of a batch chose.

    Attributes
    ----------
    tokens : ndarray of int64, shape (R, B, m, steps)
        By recalibrator, question, draw and step; -1 behind the end.
    log_probs : ndarray of float32, shape (R, B, m, steps)
        Of each token at its recalibrated distribution.
    closers : ndarray of float32, shape (R, B, m, steps + 1, W)
        Log-probability of each closer behind the first 0, 1, … tokens; NaN where none was read.
    """

    tokens: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    closers: NDArray[np.float32]


@torch.no_grad()
def walk(
    forest: Forest,
    prompts: Sequence[Sequence[int]],
    u: NDArray[np.float64],
    *,
    recalibrators: Sequence[AnyRecalibrator],
    stops: frozenset[int],
    choose: Choose,
    closers: Sequence[int] = (),
    beyond: Callable[[tuple[int, ...]], bool] | None = None,
) -> Walk:
    """Let every draw of a batch choose its tokens.

    Parameters
    ----------
    forest : Forest
        A forest that holds the shared prefix. It is used up.
    prompts : sequence of sequence of int
        Per question all tokens of the prompt.
    u : ndarray of float64, shape (B, m, steps)
        Uniforms; their shape says how many draws and at most how many tokens there are.
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
    shape, steps = (len(recalibrators), *u.shape[:2]), u.shape[2]
    tokens = np.full((*shape, steps), -1, dtype=np.int64)
    log_probs = np.zeros((*shape, steps), dtype=np.float32)
    closing = np.full((*shape, steps + 1, len(closers)), np.nan, dtype=np.float32)
    which, question, draw = (index.ravel() for index in np.indices(shape))
    enders = np.array(sorted(stops), dtype=np.int64)
    frontier = begin(forest, prompts)
    node = torch.from_numpy(question)
    rider = _rider_of(forest, recalibrators)
    for step in range(steps):
        draws = _Draws(node, torch.from_numpy(which), torch.from_numpy(u[question, draw, step]))
        chosen, scored, noted = draws.choose(forest, frontier.read, recalibrators, choose, closers)
        tokens[which, question, draw, step] = chosen
        log_probs[which, question, draw, step] = scored
        closing[which, question, draw, step] = noted
        going = ~np.isin(chosen, enders)
        if step == steps - 1:
            whole = tokens[which[going], question[going], draw[going]].tolist()
            going[going] = [beyond is not None and beyond(tuple(drawn)) for drawn in whole]
        if not going.any():
            break
        which, question, draw = which[going], question[going], draw[going]
        token = torch.from_numpy(chosen[going])
        frontier, node = advance(forest, frontier, node[going], token, rider=rider[torch.from_numpy(which)])
    else:
        draws = _Draws(node, torch.from_numpy(which), torch.zeros(len(node), dtype=torch.float64))
        closing[which, question, draw, steps] = draws.note(forest, frontier.read, recalibrators, closers)
    return Walk(tokens, log_probs, closing)


def _rider_of(forest: Forest, recalibrators: Sequence[AnyRecalibrator]) -> Tensor:
    """(R,) which of the forest's riders a recalibrator is; -1 for one that reads no states."""
    riders = list(forest.riders)
    return torch.tensor([riders.index(one) if one in riders else -1 for one in recalibrators])


@dataclass(frozen=True)
class _Draws:
    """The draws that choose at one step: the node, recalibrator and uniform of each."""

    node: Tensor
    which: Tensor
    u: Tensor

    def choose(
        self,
        forest: Forest,
        read: Reading,
        recalibrators: Sequence[AnyRecalibrator],
        choose: Choose,
        closers: Sequence[int],
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
        """Token of each draw, its log-probability, and those of the closers."""
        tokens, log_probs = torch.empty_like(self.node), torch.empty(len(self.node))
        noted = torch.empty((len(self.node), len(closers)))
        for here, found, row in self._distributions(forest, read, recalibrators):
            token = found.chosen(choose, row, self.u[here])
            tokens[here], log_probs[here] = token.cpu(), found.at(row, token).cpu()
            noted[here] = _noted(found, row, closers)
        return tokens.numpy(), log_probs.numpy(), noted.numpy()

    def note(
        self,
        forest: Forest,
        read: Reading,
        recalibrators: Sequence[AnyRecalibrator],
        closers: Sequence[int],
    ) -> NDArray[np.float32]:
        """Log-probabilities of the closers alone."""
        noted = torch.empty((len(self.node), len(closers)))
        for here, found, row in self._distributions(forest, read, recalibrators):
            noted[here] = _noted(found, row, closers)
        return noted.numpy()

    def _distributions(
        self, forest: Forest, read: Reading, recalibrators: Sequence[AnyRecalibrator]
    ) -> Iterator[tuple[Tensor, Distributions, Tensor]]:
        """Which draws, the distributions of some nodes, and the row of each draw in these.

        Logits exist for a limited number of nodes at a time.
        """
        rows = forest.network.rows_at_a_time
        for start in range(0, len(read), rows):
            part = read[start : start + rows]
            logits = forest.network.logits(part.states)
            for r, recalibrator in enumerate(recalibrators):
                here = torch.nonzero((self.which == r) & (self.node >= start) & (self.node < start + rows))[
                    :, 0
                ]
                if not len(here):
                    continue
                distinct, row = torch.unique(self.node[here] - start, return_inverse=True)
                if len(distinct) == len(part):
                    found = distributions(recalibrator, logits, part, forest.riders)
                else:
                    distinct = distinct.to(logits.device)
                    found = distributions(recalibrator, logits[distinct], part[distinct], forest.riders)
                yield here, found, row.to(logits.device)


def _noted(found: Distributions, row: Tensor, closers: Sequence[int]) -> Tensor:
    """Log-probabilities (n, W) of the closers at the draws' rows (n,)."""
    if not closers:
        return torch.empty((len(row), 0))
    return found.at(row[:, None], torch.tensor(closers, device=row.device)).cpu()
