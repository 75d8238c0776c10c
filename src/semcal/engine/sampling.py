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

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semcal.engine.forest import Forest
from semcal.engine.riders import Reading, log_probs
from semcal.engine.tree import advance, begin
from semcal.recalibration import AnyRecalibrator

__all__ = ["Choose", "Walk", "walk"]

Choose = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(log-probabilities (F, V), row of each draw (n,), uniform of each draw (n,)) -> token of each draw (n,)."""


@dataclass(frozen=True)
class Walk:
    """What the draws of a batch chose.

    Attributes
    ----------
    tokens : ndarray of int64, shape (R, B, m, steps)
        By recalibrator, question, draw and step; -1 behind the end.
    log_probs : ndarray of float32, shape (R, B, m, steps)
        Of each token at its recalibrated distribution.
    """

    tokens: NDArray[np.int64]
    log_probs: NDArray[np.float32]


def walk(
    forest: Forest,
    prompts: Sequence[Sequence[int]],
    u: NDArray[np.float64],
    *,
    recalibrators: Sequence[AnyRecalibrator],
    stops: frozenset[int],
    choose: Choose,
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
        `inverse_cdf` or `most_likely`.
    """
    shape, steps = (len(recalibrators), *u.shape[:2]), u.shape[2]
    tokens = np.full((*shape, steps), -1, dtype=np.int64)
    log_probs = np.zeros((*shape, steps), dtype=np.float32)
    which, question, draw = (index.ravel() for index in np.indices(shape))
    enders = np.array(sorted(stops), dtype=np.int64)
    frontier = begin(forest, prompts)
    node = torch.from_numpy(question)
    for step in range(steps):
        draws = _Draws(node, torch.from_numpy(which), torch.from_numpy(u[question, draw, step]))
        chosen, scored = draws.choose(forest, frontier.read, recalibrators, choose)
        tokens[which, question, draw, step] = chosen
        log_probs[which, question, draw, step] = scored
        going = ~np.isin(chosen, enders)
        if step == steps - 1 or not going.any():
            break
        which, question, draw = which[going], question[going], draw[going]
        frontier, node = advance(forest, frontier, node[going], torch.from_numpy(chosen[going]))
    return Walk(tokens, log_probs)


@dataclass(frozen=True)
class _Draws:
    """The draws that choose at one step: the node, recalibrator and uniform of each."""

    node: Tensor
    which: Tensor
    u: Tensor

    def choose(
        self, forest: Forest, read: Reading, recalibrators: Sequence[AnyRecalibrator], choose: Choose
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Token and log-probability of each draw; logits exist for a limited number of nodes at a time."""
        tokens, values = torch.empty_like(self.node), torch.empty(len(self.node))
        rows = forest.network.rows_at_a_time
        for start in range(0, len(read), rows):
            part = read[start : start + rows]
            logits = forest.network.logits(part.states)
            for r, recalibrator in enumerate(recalibrators):
                here = (self.which == r) & (self.node >= start) & (self.node < start + rows)
                if not bool(here.any()):
                    continue
                distinct, row = torch.unique(self.node[here] - start, return_inverse=True)
                distinct = distinct.to(logits.device)
                scored = log_probs(recalibrator, logits[distinct], part[distinct], forest.riders)
                row = row.to(scored.device)
                token = choose(scored, row, self.u[here])
                tokens[here], values[here] = token.cpu(), scored[row, token].cpu()
        return tokens.numpy(), values.numpy()
