"""Given answers in two passes: the prompts, then the trees of their answers, every node once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from semcal.engine.drawing import numbers
from semcal.engine.forest import Forest, Growth
from semcal.engine.riders import Reading, log_probs
from semcal.recalibration import AnyRecalibrator

__all__ = ["AnswerStates", "answer_log_probs", "answer_states", "own_states"]


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
class _Trees:
    """The distinct beginnings of all answers of a batch, and where each answer's tokens are predicted.

    `predicts` lists, by question and answer, the node whose state predicts each token: -1 for the end of the
    prompt, else the place of a token of the trees.
    """

    growth: Growth
    predicts: list[list[list[int]]]


def _trees(answers: Sequence[Sequence[Sequence[int]]], first: int) -> _Trees:
    """Merge the answers' common beginnings; an answer's last token predicts nothing and need not run."""
    tokens: list[int] = []
    rows: list[int] = []
    paths: list[list[int]] = []
    predicts = []
    for row, given in enumerate(answers):
        children: dict[tuple[int, int], int] = {}
        predicts.append(of_row := list[list[int]]())
        for answer in given:
            node = -1
            of_row.append([node] if answer else [])
            for token in answer[:-1]:
                if (node, token) not in children:
                    children[node, token] = len(tokens)
                    paths.append([*(paths[node] if node >= 0 else ()), first + len(tokens)])
                    tokens.append(token)
                    rows.append(row)
                node = children[node, token]
                of_row[-1].append(node)
    return _Trees(Growth(torch.tensor(tokens), torch.tensor(rows), _padded(paths)), predicts)


def _padded(paths: Sequence[Sequence[int]]) -> Tensor:
    """(N, T), -1 behind the shorter paths."""
    width = max(map(len, paths), default=0)
    return torch.tensor([[*path, *[-1] * (width - len(path))] for path in paths], dtype=torch.long)


def answer_states(
    forest: Forest, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[Sequence[int]]]
) -> AnswerStates:
    """States at the positions that predict the tokens of given answers.

    Parameters
    ----------
    forest : Forest
        A forest that holds the shared prefix. It is used up.
    prompts : sequence of sequence of int
        Per question all tokens of the prompt.
    answers : sequence of sequence of sequence of int
        Per question the token ids of each answer.
    """
    ends, trees, grown = _grown(forest, prompts, answers, whole=False)
    node = [
        row if place < 0 else len(prompts) + place
        for row, of_row in enumerate(trees.predicts)
        for path in of_row
        for place in path
    ]
    distinct, at = torch.unique(torch.tensor(node, dtype=torch.long), return_inverse=True)
    return AnswerStates(Reading.joined([ends, *grown])[distinct.to(ends.states.device)], at)


def answer_log_probs(
    forest: Forest, found: AnswerStates, targets: Tensor, recalibrator: AnyRecalibrator
) -> Tensor:
    """Log-probability (N,) of each token of the answers, `targets` (N,), at the state that predicts it.

    Logits exist for a limited number of states at a time. ModelError if a state's are no distribution.
    """
    result = torch.zeros(len(targets))
    rows = forest.network.rows_at_a_time
    for start in range(0, len(found.read), rows):
        part = found.read[start : start + rows]
        scored = log_probs(recalibrator, forest.network.logits(part.states), part, forest.riders)
        here = (found.node >= start) & (found.node < start + rows)
        at = (found.node[here] - start).to(scored.device), targets[here].to(scored.device)
        result[here] = numbers(scored[at].float().cpu())
    return result


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
    own, trees, grown = _grown(forest, prompts, answers, whole=whole)
    lengths = [len(prompt) - forest.prefix if whole else 1 for prompt in prompts]
    states = Reading.joined([own, *grown]).states
    kept, start, behind = [], 0, len(own)
    for length, of_row in zip(lengths, trees.predicts, strict=True):
        nodes = [behind + place for path in of_row for place in path[1:]]
        kept.append(states[torch.tensor([*range(start, start + length), *nodes], device=states.device)])
        start += length
    return kept


def _grown(
    forest: Forest,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[Sequence[int]]],
    *,
    whole: bool,
) -> tuple[Reading, _Trees, list[Reading]]:
    """What is read of the prompts; the trees; what is read of these, if there are any."""
    own = forest.plant(prompts, whole=whole)
    trees = _trees(answers, forest.slots)
    return own, trees, [forest.grow(trees.growth)] if len(trees.growth) else []
