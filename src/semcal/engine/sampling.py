"""Sampling and greedy answers: a walk down the tree of distinct token sequences of each question.

1. The prefix that all prompts share has run once; every row of a batch's forest holds it.
2. The rest of each prompt runs once per question. Its last state is the first node of the question's frontier.
3. At every step each draw that is still going reads the logits of the node it stands at, under its own recalibrator,
   chooses a token and records its log-probability. Draws that choose the same token at the same node walk on together.
4. The distinct continuations are the next frontier: one token each, run in one pass over the batch.
5. Draws that chose an end of turn stop; questions with no draw left leave the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semcal.engine.batches import pad
from semcal.engine.network import Forest
from semcal.recalibration import Recalibrator

__all__ = ["Choose", "Walk", "walk"]

Choose = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(log-probabilities (F, V), row of each draw (n,), uniform of each draw (n,)) -> token of each draw (n,)."""


@dataclass(frozen=True)
class Walk:
    """What the draws of a batch chose: ``[recalibrator, question, draw, step]``; behind the end: -1 and 0.

    Attributes
    ----------
    tokens : ndarray of int64, shape (R, B, m, steps)
    log_probs : ndarray of float32, shape (R, B, m, steps)
    """

    tokens: NDArray[np.int64]
    log_probs: NDArray[np.float32]


@dataclass
class _Frontier:
    """The nodes that draws stand at: their states (F, d), row of the forest (F,), sight (F, slots), position (F,)."""

    states: Tensor
    row: Tensor
    visible: Tensor
    position: Tensor


def walk(
    forest: Forest,
    prompts: Sequence[Sequence[int]],
    u: NDArray[np.float64],
    *,
    recalibrators: Sequence[Recalibrator],
    stops: frozenset[int],
    choose: Choose,
) -> Walk:
    """Let every draw of a batch choose its tokens.

    Parameters
    ----------
    forest : Forest
        One row per question, holding the shared prefix. It is used up.
    prompts : sequence of sequence of int
        Per question all tokens of the prompt.
    u : ndarray of float64, shape (B, m, steps)
        Uniforms; their shape says how many draws and at most how many tokens there are.
    recalibrators : sequence of Recalibrator
        Every draw is made under each of them, with the same uniforms.
    stops : frozenset of int
        Tokens that end the turn.
    choose : callable
        `inverse_cdf` or `most_likely`.
    """
    batch, m, steps = u.shape
    shape = (len(recalibrators), batch, m)
    tokens = np.full((*shape, steps), -1, dtype=np.int64)
    log_probs = np.zeros((*shape, steps), dtype=np.float32)
    which, question, draw = (index.ravel() for index in np.indices(shape))
    frontier = _prefill(forest, prompts)
    node = torch.from_numpy(question)
    for step in range(steps):
        reading = _Reading(frontier, node, torch.from_numpy(which), torch.from_numpy(u[question, draw, step]))
        chosen, recorded = reading.choose(forest, recalibrators, choose)
        tokens[which, question, draw, step], log_probs[which, question, draw, step] = chosen, recorded
        going = ~np.isin(chosen, list(stops))
        if step == steps - 1 or not going.any():
            break
        which, question, draw = which[going], question[going], draw[going]
        frontier, node = _advance(forest, frontier, node[going], torch.from_numpy(chosen[going]))
    return Walk(tokens, log_probs)


@dataclass
class _Reading:
    """The draws at one step: the node, recalibrator and uniform of each."""

    frontier: _Frontier
    node: Tensor
    which: Tensor
    u: Tensor

    def choose(
        self, forest: Forest, recalibrators: Sequence[Recalibrator], choose: Choose
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Token and log-probability of each draw; logits exist for a limited number of nodes at a time."""
        tokens = torch.empty_like(self.node)
        log_probs = torch.empty(len(self.node))
        rows = forest.network.rows_at_a_time
        for start in range(0, len(self.frontier.states), rows):
            logits = forest.network.logits(self.frontier.states[start : start + rows])
            for r, recalibrator in enumerate(recalibrators):
                here = (self.which == r) & (self.node >= start) & (self.node < start + rows)
                if not bool(here.any()):
                    continue
                distinct, row = torch.unique(self.node[here] - start, return_inverse=True)
                scored = recalibrator.log_probs(logits[distinct.to(logits.device)])
                row = row.to(scored.device)
                token = choose(scored, row, self.u[here].to(scored.device)).to(scored.device)
                tokens[here], log_probs[here] = token.cpu(), scored[row, token].cpu()
        return tokens.numpy(), log_probs.numpy()


def _prefill(forest: Forest, prompts: Sequence[Sequence[int]]) -> _Frontier:
    """Run the own part of each prompt; the last state of each is a node."""
    before = forest.prefix
    token_ids, lengths = pad([prompt[before:] for prompt in prompts])
    batch, width = token_ids.shape
    visible = torch.ones((width, before + width), dtype=torch.bool).tril(before).expand(batch, -1, -1)
    positions = torch.arange(before, before + width).expand(batch, width)
    states = forest.grow(token_ids, positions, visible)
    rows = torch.arange(batch)
    return _Frontier(states[rows, lengths - 1], rows, visible[rows, lengths - 1], before + lengths - 1)


def _advance(forest: Forest, frontier: _Frontier, node: Tensor, token: Tensor) -> tuple[_Frontier, Tensor]:
    """Run each distinct continuation once; returns the new nodes and the one that each draw stands at."""
    vocabulary = forest.network.vocabulary
    distinct, node = torch.unique(node * vocabulary + token, return_inverse=True)
    parent, token = distinct // vocabulary, distinct % vocabulary
    staying, row = torch.unique(frontier.row[parent], return_inverse=True)
    if len(staying) < forest.rows:
        forest.keep(staying)
    column = _column(row)
    batch, width = len(staying), int(column.max()) + 1
    slots = frontier.visible.shape[1]
    visible = torch.zeros((batch, width, slots + width), dtype=torch.bool)
    visible[:, torch.arange(width), slots + torch.arange(width)] = True
    visible[row, column, :slots] = frontier.visible[parent]
    token_ids = torch.zeros((batch, width), dtype=torch.long)
    token_ids[row, column] = token
    positions = torch.zeros((batch, width), dtype=torch.long)
    positions[row, column] = frontier.position[parent] + 1
    states = forest.grow(token_ids, positions, visible)
    return _Frontier(states[row, column], row, visible[row, column], positions[row, column]), node


def _column(row: Tensor) -> Tensor:
    """Rank of each node among those of its row; `row` ascends."""
    sizes = torch.bincount(row)
    start = sizes.cumsum(0) - sizes
    return torch.arange(len(row)) - start[row]
