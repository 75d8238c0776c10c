"""The growing end of a forest: the nodes that are read next, and how they are gone on from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from semcal.engine.forest import Forest, Growth
from semcal.engine.riders import Reading

__all__ = ["Frontier", "advance", "begin", "steps_of"]


@dataclass(frozen=True)
class Frontier:
    """F nodes, those of a question beside each other.

    Attributes
    ----------
    read : Reading
        (F, ...), what the head turns into the logits of the next token.
    row : torch.Tensor
        (F,) int64, ascending: the question of a node.
    path : torch.Tensor
        (F, T) int64: slots of the tokens of the tree that lead to it, itself included; -1 behind them.
    """

    read: Reading
    row: Tensor
    path: Tensor

    @classmethod
    def none(cls) -> Frontier:
        """No nodes."""
        nothing = torch.zeros((0, 0))
        return cls(Reading(nothing, nothing), torch.zeros(0, dtype=torch.long), nothing.long())

    def beside(self, other: Frontier) -> Frontier:
        """These nodes and those of questions that follow."""
        if not len(self.row):
            return other
        paths = (nodes.path for nodes in (self, other))
        width = max(self.path.shape[1], other.path.shape[1])
        path = torch.cat([pad(one, (0, width - one.shape[1]), value=-1) for one in paths])
        return Frontier(Reading.joined([self.read, other.read]), torch.cat([self.row, other.row]), path)

    def compacted(self, nodes: Tensor) -> tuple[Frontier, Tensor]:
        """Some of the nodes (ascending), and the slots that lead to them; rows and slots numbered anew."""
        path = self.path[nodes]
        slots = torch.unique(path[path >= 0])
        path = torch.where(path >= 0, torch.searchsorted(slots, path.clamp_min(0)), -1)
        _, row = torch.unique(self.row[nodes], return_inverse=True)
        return Frontier(self.read[nodes], row, path), slots

    def slots_of(self, rows: int) -> Tensor:
        """How many slots lead to the nodes of each of so many rows (rows,)."""
        node, step = torch.nonzero(self.path >= 0, as_tuple=True)
        slots, slot = torch.unique(self.path[node, step], return_inverse=True)
        owner = torch.zeros_like(slots).scatter_(0, slot, self.row[node])
        return torch.bincount(owner, minlength=rows)


def begin(forest: Forest, prompts: Sequence[Sequence[int]], first: int = 0) -> Frontier:
    """Run the own part of each prompt, from row `first` on; its last token is its question's first node."""
    read = forest.plant(prompts)
    row = first + torch.arange(len(prompts))
    return Frontier(read, row, torch.zeros((len(prompts), 0), dtype=torch.long))


def advance(
    forest: Forest, frontier: Frontier, node: Tensor, token: Tensor, *, rider: Tensor | None = None
) -> tuple[Frontier, Tensor]:
    """Go on from nodes (n,) with tokens (n,); equal steps are run once, rows without a step leave the forest.

    Parameters
    ----------
    rider : torch.Tensor, optional
        (n,) which of the forest's riders each step is of, -1 for none; by default each is of all. Behind a
        token only the riders are read whose steps lead there.

    Returns
    -------
    tuple of Frontier and torch.Tensor
        The new nodes, and which of them (n,) each step led to.
    """
    parent, token, reached = steps_of(forest, node, token)
    row = frontier.row[parent]
    forest.keep(torch.unique_consecutive(row))
    path = _longer(frontier.path[parent], forest.slots + torch.arange(len(parent)))
    asked = None
    if rider is not None:
        asked = torch.zeros((len(parent), len(forest.riders)), dtype=torch.bool)
        asked[reached[rider >= 0], rider[rider >= 0]] = True
    return Frontier(forest.grow(Growth(token, row, path, asked)), row, path), reached


def steps_of(forest: Forest, node: Tensor, token: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Node and token (k,) of each distinct step, and which of these each of the steps (n,) is."""
    vocabulary = forest.network.vocabulary
    distinct, reached = torch.unique(node * vocabulary + token, return_inverse=True)
    return distinct // vocabulary, distinct % vocabulary, reached


def _longer(path: Tensor, slot: Tensor) -> Tensor:
    """Paths (k, T) with one slot (k,) more, no wider than the longest needs."""
    depth = (path >= 0).sum(1)
    path = pad(path, (0, 1), value=-1)
    path[torch.arange(len(path)), depth] = slot
    return path[:, : int(depth.max()) + 1]
