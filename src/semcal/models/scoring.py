"""Log-probabilities of given answers, and rescoring of draws that were cut or reached the token limit.

Given answers take two passes: the prompts, then the trees of their answers, every node once.

Of a draw that was cut, its first tokens and an end of turn are scored (spec 5.2). Decoding has read the
distribution after each of these tokens already, so it records there what closing tokens cost. Only after the
last token of a draw that reached the limit nothing has been read; that token then runs within decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semcal.models.decoding import Samples
from semcal.models.drawing import check_not_nan
from semcal.models.language_model import Cut, Generation, Prompt
from semcal.models.tokenization import ChatFormat
from semcal.models.tree_cache import ModelOutputs, NewTokens, TreeCache, log_probs
from semcal.recalibration.attentive import AnyRecalibrator

_Ids = tuple[int, ...]
_Scores = tuple[float, ...]


@dataclass(frozen=True)
class AnswerStates:
    """Outputs that predict the tokens of a batch's answers."""

    outputs: ModelOutputs  # (F, ...), one for each distinct beginning of an answer
    node: Tensor  # (N,) int64, by question, answer and position: the output that predicts each answer token


def answer_states(
    cache: TreeCache, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[Sequence[int]]]
) -> AnswerStates:
    """Outputs at the positions that predict the tokens of given answers; the cache is used up.

    `prompts` are all tokens of each prompt, `answers` the tokens of each of its answers.
    """
    ends, trees, extended = _run(cache, prompts, answers, all_tokens=False)
    node = [
        row if place < 0 else len(prompts) + place
        for row, of_row in enumerate(trees.predicts)
        for path in of_row
        for place in path
    ]
    distinct, at = torch.unique(torch.tensor(node, dtype=torch.long), return_inverse=True)
    return AnswerStates(ModelOutputs.concatenate([ends, *extended])[distinct.to(ends.states.device)], at)


def answer_log_probs(
    cache: TreeCache, states: AnswerStates, targets: Tensor, recalibrator: AnyRecalibrator
) -> Tensor:
    """Log-probability (N,) of each token of the answers, `targets` (N,), at the output that predicts it.

    Logits exist for a limited number of outputs at a time. ModelError if some are no distribution.
    """
    result = torch.zeros(len(targets))
    rows = cache.network.rows_at_a_time
    for start in range(0, len(states.outputs), rows):
        part = states.outputs[start : start + rows]
        scored = log_probs(recalibrator, cache.network.logits(part.states), part, cache.ats)
        inside = (states.node >= start) & (states.node < start + rows)
        at = (states.node[inside] - start).to(scored.device), targets[inside].to(scored.device)
        result[inside] = check_not_nan(scored[at].float().cpu())
    return result


def question_states(
    cache: TreeCache,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[Sequence[int]]],
    *,
    all_tokens: bool,
) -> list[Tensor]:
    """States (n, d) of each question's own prompt tokens, then of each answer's tokens but the last.

    Parameters are those of `answer_states`, and `all_tokens`: whether all tokens of the prompt after the
    shared prefix count, or only the last, which predicts the first token of an answer.
    """
    prompt_outputs, trees, extended = _run(cache, prompts, answers, all_tokens=all_tokens)
    lengths = [len(prompt) - cache.prefix_length if all_tokens else 1 for prompt in prompts]
    states = ModelOutputs.concatenate([prompt_outputs, *extended]).states
    question_parts, start, behind = [], 0, len(prompt_outputs)
    for length, of_row in zip(lengths, trees.predicts, strict=True):
        nodes = [behind + place for path in of_row for place in path[1:]]
        question_parts.append(
            states[torch.tensor([*range(start, start + length), *nodes], device=states.device)]
        )
        start += length
    return question_parts


@dataclass(frozen=True)
class _Trees:
    """The distinct beginnings of all answers of a batch, and where each answer's tokens are predicted."""

    new: NewTokens
    #: By question and answer, the node that predicts each token: -1 for the end of the prompt, else the place
    #: of a token of the trees.
    predicts: list[list[list[int]]]


def _run(
    cache: TreeCache,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[Sequence[int]]],
    *,
    all_tokens: bool,
) -> tuple[ModelOutputs, _Trees, list[ModelOutputs]]:
    """Outputs of the prompts; the trees; their outputs, if there are any."""
    prompt_outputs = cache.prefill(prompts, all_tokens=all_tokens)
    trees = _trees(answers, cache.slots)
    return prompt_outputs, trees, [cache.extend(trees.new)] if len(trees.new) else []


def _trees(answers: Sequence[Sequence[Sequence[int]]], first: int) -> _Trees:
    """Merge the answers' common beginnings; an answer's last token predicts nothing and need not run."""
    tokens: list[int] = []
    rows: list[int] = []
    paths: list[list[int]] = []
    predicts = []
    for row, question_answers in enumerate(answers):
        children: dict[tuple[int, int], int] = {}
        predicts.append(of_row := list[list[int]]())
        for answer in question_answers:
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
    return _Trees(NewTokens(torch.tensor(tokens), torch.tensor(rows), _padded(paths)), predicts)


def _padded(paths: Sequence[Sequence[int]]) -> Tensor:
    """(N, T), -1 after the shorter paths."""
    width = max(map(len, paths), default=0)
    return torch.tensor([[*path, *[-1] * (width - len(path))] for path in paths], dtype=torch.long)


class Rescoring:
    """Which tokens of each draw are scored, and their log-probabilities as far as decoding has read them."""

    def __init__(self, chat_format: ChatFormat, cut: Cut, prompts: Sequence[Prompt]) -> None:
        self._format, self._cut, self._prompts = chat_format, cut, prompts
        self._completions: dict[tuple[int, _Ids], tuple[_Ids | None, int]] = {}
        self.closing_tokens = _closing_tokens(chat_format)

    def completion(self, i: int, generation: Generation) -> tuple[_Ids | None, int]:
        """The tokens that are scored in place of a draw's own (None: its own are), and how many lead."""
        key = i, generation.token_ids
        if key not in self._completions:
            start, end = self._cut(self._prompts[i], generation)
            tokens = self._format.complete(generation, end, start)
            lead = len(self._format.lead(generation, start))
            self._completions[key] = None if tokens == generation.token_ids else tokens, lead
        return self._completions[key]

    def run_last_token(self, i: int, token_ids: _Ids) -> bool:
        """Whether all tokens of an unfinished draw are scored, so that the last of them must run."""
        generation = Generation(self._format.text(token_ids), token_ids, (), finished=False)
        completion, _ = self.completion(i, generation)
        return completion is not None and completion[:-1] == token_ids

    def rescored(
        self, i: int, draws: Sequence[Generation], samples: Samples, recalibrator: int
    ) -> list[Generation]:
        """The draws of a question under a recalibrator (its number), with the scores that its samples hold.

        The samples were decoded with this object's closing tokens.
        """
        if not any(any(self.completion(i, draw)) for draw in draws):
            return list(draws)
        after = _scores_after(draws, samples.closing_log_probs[recalibrator], self.closing_tokens)
        return [self._with_score(i, draw, lambda tokens: _look_up(after, tokens)) for draw in draws]

    def missing(self, i: int, draws: Sequence[Generation]) -> list[_Ids]:
        """Distinct token sequences that still have to be scored for the draws."""
        completions = (self.completion(i, draw)[0] for draw in draws if draw.rescored is None)
        return list(dict.fromkeys(tokens for tokens in completions if tokens is not None))

    def with_scores(
        self, i: int, draws: Sequence[Generation], scores: Mapping[_Ids, _Scores]
    ) -> list[Generation]:
        """The draws with the missing scores."""
        return [self._with_score(i, draw, scores.get) for draw in draws]

    def _with_score(self, i: int, draw: Generation, find: Callable[[_Ids], _Scores | None]) -> Generation:
        tokens, lead = self.completion(i, draw)
        scores = draw.rescored if tokens is None or draw.rescored is not None else find(tokens)
        return replace(draw, rescored=scores, lead=lead)


def _scores_after(
    draws: Sequence[Generation], closing: NDArray[np.float32], closing_tokens: Sequence[int]
) -> dict[_Ids, dict[int, float]]:
    """Known log-probabilities after each beginning of the draws; `closing` (m, steps + 1, W) may be NaN."""
    after_prefix: dict[_Ids, dict[int, float]] = {}
    for draw, of_steps in zip(draws, closing.tolist(), strict=True):
        for step, values in enumerate(of_steps[: len(draw.token_ids) + 1]):
            log_probs = after_prefix.setdefault(draw.token_ids[:step], {})
            log_probs.update((token, x) for token, x in zip(closing_tokens, values, strict=True) if x == x)
            if step < len(draw.token_ids):
                log_probs[draw.token_ids[step]] = draw.token_log_probs[step]
    return after_prefix


def _look_up(after_prefix: Mapping[_Ids, Mapping[int, float]], tokens: _Ids) -> _Scores | None:
    scores = [after_prefix.get(tokens[:place], {}).get(token) for place, token in enumerate(tokens)]
    return None if None in scores else tuple(x for x in scores if x is not None)


def _closing_tokens(chat_format: ChatFormat) -> _Ids:
    """The tokens that may end a scored answer: the end of turn, alone and merged with a full stop."""
    sentence = tuple(chat_format.tokenizer("a.", add_special_tokens=False)["input_ids"])
    merged = chat_format.complete(Generation("a.", sentence, (), finished=False), len("a."))
    return tuple(dict.fromkeys((*chat_format.end_of_turn[:1], *merged[-1:])))
