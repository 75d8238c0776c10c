"""Given answers in one pass: prompt and answers of a question form a tree, of which every node runs once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from semcal.engine.batches import pad
from semcal.engine.network import Forest
from semcal.engine.riders import Reading

__all__ = ["AnswerStates", "answer_states", "own_states"]


@dataclass(frozen=True)
class AnswerStates:
    """States that predict the tokens of a batch's answers.

    Attributes
    ----------
    read : Reading
        (F, ...), one for each distinct beginning of an answer.
    node : torch.Tensor
        (N,) int64, for each answer token, by question, answer and position, the state that predicts it.
    """

    read: Reading
    node: Tensor


@dataclass(frozen=True)
class _Tree:
    """A question's own tokens: `own` of the prompt, then one for each distinct beginning of its answers.

    `parent` is the slot that each token follows; `predicts` lists, for each answer and its tokens in order,
    the slot whose state predicts them.
    """

    own: int
    tokens: list[int]
    parent: list[int]
    predicts: list[list[int]]


def _tree(own: Sequence[int], answers: Sequence[Sequence[int]]) -> _Tree:
    """Merge the answers' common beginnings; an answer's last token predicts nothing and need not run."""
    tokens, parent = list(own), list(range(-1, len(own) - 1))
    children: dict[tuple[int, int], int] = {}
    predicts = []
    for answer in answers:
        slot = len(own) - 1
        predicts.append(path := list[int]())
        for i, token in enumerate(answer):
            path.append(slot)
            if i == len(answer) - 1:
                break
            if (slot, token) not in children:
                children[slot, token] = len(tokens)
                tokens.append(token)
                parent.append(slot)
            slot = children[slot, token]
    return _Tree(len(own), tokens, parent, predicts)


def answer_states(
    forest: Forest, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[Sequence[int]]]
) -> AnswerStates:
    """States at the positions that predict the tokens of given answers.

    Parameters
    ----------
    forest : Forest
        One row per question, holding the shared prefix. It is used up.
    prompts : sequence of sequence of int
        Per question all tokens of the prompt.
    answers : sequence of sequence of sequence of int
        Per question the token ids of each answer.
    """
    read, trees = _grown(forest, prompts, answers)
    width = read.states.shape[1]
    predicting = [row * width + slot for row, tree in enumerate(trees) for slot in _flat(tree.predicts)]
    slot = torch.tensor(predicting, dtype=torch.long)
    distinct, node = torch.unique(slot, return_inverse=True)
    distinct = distinct.to(read.states.device)
    return AnswerStates(read[distinct // width, distinct % width], node)


def own_states(
    forest: Forest,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[Sequence[int]]],
    *,
    whole: bool,
) -> list[Tensor]:
    """States of each question's own prompt tokens, then of each answer's tokens but the last (n, d).

    Parameters are those of `answer_states`, and `whole`: whether all tokens of the prompt behind the shared
    prefix count, or the last alone, which predicts the first token of an answer.
    """
    read, trees = _grown(forest, prompts, answers)
    kept = []
    for row, tree in enumerate(trees):
        prompt = range(tree.own) if whole else range(tree.own - 1, tree.own)
        slots = [*prompt, *(slot for path in tree.predicts for slot in path[1:])]
        kept.append(read.states[row, torch.tensor(slots, device=read.states.device)])
    return kept


def _grown(
    forest: Forest, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[Sequence[int]]]
) -> tuple[Reading, list[_Tree]]:
    """Run the trees of all questions: what is read of them (B, n, ...), padded, and the trees."""
    before = forest.prefix
    trees = [_tree(prompt[before:], given) for prompt, given in zip(prompts, answers)]
    token_ids, _ = pad([tree.tokens for tree in trees])
    visible, depth = _sight(trees, token_ids.shape[1])
    seen = torch.ones((*token_ids.shape, before), dtype=torch.bool)
    return forest.grow(token_ids, before + depth, torch.cat([seen, visible], -1)), trees


def _flat(paths: Sequence[Sequence[int]]) -> list[int]:
    return [slot for path in paths for slot in path]


def _sight(trees: Sequence[_Tree], width: int) -> tuple[Tensor, Tensor]:
    """Who sees whom among own tokens (B, n, n): itself and its ancestors; and how deep each stands (B, n)."""
    visible = np.tile(np.tri(width, dtype=bool), (len(trees), 1, 1))
    depth = np.tile(np.arange(width), (len(trees), 1))
    for row, tree in enumerate(trees):
        for slot in range(tree.own, len(tree.tokens)):
            visible[row, slot] = visible[row, tree.parent[slot]]
            visible[row, slot, slot] = True
            depth[row, slot] = depth[row, tree.parent[slot]] + 1
        depth[row, len(tree.tokens) :] = 0
    return torch.from_numpy(visible), torch.from_numpy(depth)
