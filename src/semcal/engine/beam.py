"""Beam search with the rules of `transformers` at its defaults (length_penalty 1.0, early_stopping False).

The `num_beams` best unfinished continuations go on. One that ends, or reaches the token limit, counts as an
answer if it is among the `num_beams` best of all; answers compare by their mean token log-probability. A
search is over when it has `num_beams` answers and the best unfinished one has no higher mean than the worst
of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semcal.engine.drawing import numbers
from semcal.engine.forest import Forest
from semcal.engine.riders import Reading, log_probs
from semcal.engine.tree import advance, begin
from semcal.recalibration import AnyRecalibrator

__all__ = ["Beam", "beam_search"]


@dataclass(frozen=True)
class Beam:
    """A sequence of tokens, the log-probability of each, and the node that its next token is read from."""

    tokens: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    node: int = 0

    @property
    def total(self) -> float:
        """Log-probability of the sequence."""
        return sum(self.log_probs)

    @property
    def mean(self) -> float:
        """Mean token log-probability."""
        return self.total / len(self.tokens)


def beam_search(
    forest: Forest,
    prompts: Sequence[Sequence[int]],
    *,
    recalibrator: AnyRecalibrator,
    stops: frozenset[int],
    num_beams: int,
    steps: int,
) -> list[Beam]:
    """The best answer to each prompt of a batch.

    Parameters
    ----------
    forest : Forest
        A forest that holds the shared prefix. It is used up.
    prompts : sequence of sequence of int
        Per question all tokens of the prompt.
    recalibrator : Recalibrator or ATS
        The distribution.
    stops : frozenset of int
        Tokens that end the turn.
    num_beams : int
        Width of the search.
    steps : int
        Limit of an answer's length.
    """
    searches = [_Search(num_beams, [Beam(node=row)]) for row in range(len(prompts))]
    frontier = begin(forest, prompts)
    known = sorted(token for token in stops if token < forest.network.vocabulary)
    enders = torch.tensor(known, dtype=torch.long, device=forest.network.device)
    for step in range(steps):
        table = _candidates(forest, frontier.read, recalibrator, enders, num_beams)
        going = [search for search in searches if search.running]
        for search in going:
            search.step(table, stops, last=step == steps - 1)
        running = [beam for search in searches for beam in search.running]
        if not running:
            break
        node = torch.tensor([beam.node for beam in running])
        token = torch.tensor([beam.tokens[-1] for beam in running])
        frontier, reached = advance(forest, frontier, node, token)
        nodes = iter(reached.tolist())
        for search in searches:
            search.running = [Beam(beam.tokens, beam.log_probs, next(nodes)) for beam in search.running]
    return [search.answers[0] for search in searches]


@dataclass(frozen=True)
class _Candidates:
    """For each node the likeliest tokens, and the likeliest that end no turn: (F, k) each, best first."""

    tokens: NDArray[np.int64]
    log_probs: NDArray[np.float32]


class _Search:
    """The beams of one question: those that still run and the best answers so far."""

    def __init__(self, width: int, running: list[Beam]) -> None:
        self.width = width
        self.running = running
        self.answers: list[Beam] = []

    def step(self, candidates: _Candidates, stops: frozenset[int], *, last: bool) -> None:
        """Extend the running beams by one token."""
        extended = [beam for running in self.running for beam in _extend(running, candidates)]
        extended.sort(key=lambda beam: -beam.total)
        ended = [beam for beam in extended[: self.width] if last or beam.tokens[-1] in stops]
        self.answers = sorted(self.answers + ended, key=lambda beam: -beam.mean)[: self.width]
        self.running = [beam for beam in extended if beam.tokens[-1] not in stops][: self.width]
        full = len(self.answers) == self.width
        if last or not self.running or (full and self.running[0].mean <= self.answers[-1].mean):
            self.running = []


def _extend(beam: Beam, candidates: _Candidates) -> list[Beam]:
    tokens, log_probs = candidates.tokens[beam.node].tolist(), candidates.log_probs[beam.node].tolist()
    return [
        Beam((*beam.tokens, token), (*beam.log_probs, log_prob), beam.node)
        for token, log_prob in zip(tokens, log_probs, strict=True)
        if log_prob > -np.inf
    ]


def _candidates(
    forest: Forest, read: Reading, recalibrator: AnyRecalibrator, enders: Tensor, width: int
) -> _Candidates:
    """The `width` likeliest tokens of each node, and further ones until `width` of them end no turn."""
    tokens, values = [], []
    rows = forest.network.rows_at_a_time
    for start in range(0, len(read), rows):
        part = read[start : start + rows]
        scored = log_probs(recalibrator, forest.network.logits(part.states), part, forest.riders)
        best = scored.topk(min(width, scored.shape[1]))
        numbers(best.values)
        ending = torch.isin(best.indices, enders)
        others = scored.scatter(1, enders.expand(len(scored), -1), -torch.inf).topk(
            min(width, scored.shape[1])
        )
        ends_only = best.values.masked_fill(~ending, -torch.inf)  # the rest stand among the others
        tokens.append(torch.cat([best.indices, others.indices], 1).cpu())
        values.append(torch.cat([ends_only, others.values], 1).cpu())
    return _Candidates(torch.cat(tokens).numpy(), torch.cat(values).numpy())
