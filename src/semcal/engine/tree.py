"""The growing end of a forest: the nodes that are read next, and how they are gone on from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from semcal.engine.batches import pad
from semcal.engine.network import Forest
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
        (F,) int64, ascending: the row of the forest that a node stands in.
    visible : torch.Tensor
        (F, K) bool: the tokens held that it follows, itself included.
    position : torch.Tensor
        (F,) int64.
    """

    read: Reading
    row: Tensor
    visible: Tensor
    position: Tensor


def begin(forest: Forest, prompts: Sequence[Sequence[int]]) -> Frontier:
    """Run the own part of each prompt; its last token is the first node of its question."""
    before = forest.prefix
    token_ids, lengths = pad([prompt[before:] for prompt in prompts])
    batch, width = token_ids.shape
    visible = torch.ones((width, before + width), dtype=torch.bool).tril(before).expand(batch, -1, -1)
    positions = torch.arange(before, before + width).expand(batch, width)
    read = forest.grow(token_ids, positions, visible)
    rows = torch.arange(batch)
    return Frontier(read[rows, lengths - 1], rows, visible[rows, lengths - 1], before + lengths - 1)


def advance(forest: Forest, frontier: Frontier, node: Tensor, token: Tensor) -> tuple[Frontier, Tensor]:
    """Go on from nodes (n,) with tokens (n,); equal steps are run once, rows without a step leave the forest.

    Returns
    -------
    tuple of Frontier and torch.Tensor
        The new nodes, and which of them (n,) each step led to.
    """
    vocabulary = forest.network.vocabulary
    distinct, reached = torch.unique(node * vocabulary + token, return_inverse=True)
    parent, token = distinct // vocabulary, distinct % vocabulary
    staying, row = torch.unique(frontier.row[parent], return_inverse=True)
    if len(staying) < forest.rows:
        forest.keep(staying)
    column = _rank(row)
    width, held = int(column.max()) + 1, frontier.visible.shape[1]
    visible = torch.zeros((len(staying), width, held + width), dtype=torch.bool)
    visible[:, torch.arange(width), held + torch.arange(width)] = True
    visible[row, column, :held] = frontier.visible[parent]
    token_ids = torch.zeros((len(staying), width), dtype=torch.long)
    token_ids[row, column] = token
    positions = torch.zeros_like(token_ids)
    positions[row, column] = frontier.position[parent] + 1
    read = forest.grow(token_ids, positions, visible)
    return Frontier(read[row, column], row, visible[row, column], positions[row, column]), reached


def _rank(row: Tensor) -> Tensor:
    """How many nodes of its row stand before each; `row` ascends."""
    sizes = torch.bincount(row)
    start = sizes.cumsum(0) - sizes
    return torch.arange(len(row)) - start[row]
