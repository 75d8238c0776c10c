"""The growing end of a forest: the nodes that are read next, and how they are gone on from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from semcal.engine.forest import Forest, Growth
from semcal.engine.riders import Reading

__all__ = ["Frontier", "advance", "begin"]


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
        (F, T) int64: slots of the tokens of the tree that lead to it, itself included.
    """

    read: Reading
    row: Tensor
    path: Tensor


def begin(forest: Forest, prompts: Sequence[Sequence[int]]) -> Frontier:
    """Run the own part of each prompt; its last token is the first node of its question."""
    read = forest.plant(prompts)
    row = torch.arange(len(prompts))
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
    vocabulary = forest.network.vocabulary
    distinct, reached = torch.unique(node * vocabulary + token, return_inverse=True)
    parent, token = distinct // vocabulary, distinct % vocabulary
    row = frontier.row[parent]
    forest.keep(torch.unique_consecutive(row))
    slot = forest.slots + torch.arange(len(distinct))
    path = torch.cat([frontier.path[parent], slot[:, None]], 1)
    asked = None
    if rider is not None:
        asked = torch.zeros((len(distinct), len(forest.riders)), dtype=torch.bool)
        asked[reached[rider >= 0], rider[rider >= 0]] = True
    return Frontier(forest.grow(Growth(token, row, path, asked)), row, path), reached
