"""What the fits read of a calibration set: last hidden states of the frozen model (spec section 6).

The model has run once; no fit runs it again. TS and Platt need the states that predict answer tokens, ATS
those of the whole sequence as well, from the shared prefix on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

__all__ = ["Head", "Suffixes", "row_counts"]

Head = Callable[[Tensor], Tensor]
"""States (n, d) -> logits (n, V), float32: the model's own head."""


@dataclass(frozen=True)
class Suffixes:
    """Last hidden states of Q questions with M reference answers of N tokens in all.

    Attributes
    ----------
    prefix : torch.Tensor
        (P, d), states of the tokens that all prompts begin with; (0, d) where only answer positions are kept.
    states : torch.Tensor
        (R, d), for each question the states of its own prompt tokens, then of each answer's tokens but the
        last, which predicts nothing. May be mapped from a file.
    whole : bool
        Whether `prefix` and all of each prompt are there; if not, only the last token of each prompt is.
    prompt_start, prompt_length : torch.Tensor
        (Q,) int64, rows of `states` that hold a question's own prompt tokens, one at least.
    passage : torch.Tensor or None
        (Q, 2) int64, first row and number of the states of an earlier question that each prompt begins with
        as well (a passage that both ask about); None where every question has rows for all its tokens.
    answer_question : torch.Tensor
        (M,) int64, ascending, the question of each answer.
    answer_start : torch.Tensor
        (M,) int64, the row of the first token of each answer.
    target_start : torch.Tensor
        (M + 1,) int64, where the tokens of each answer begin in `targets`.
    targets : torch.Tensor
        (N,) int64, the answers' tokens, end of turn included.
    """

    prefix: Tensor
    states: Tensor
    whole: bool
    prompt_start: Tensor
    prompt_length: Tensor
    answer_question: Tensor
    answer_start: Tensor
    target_start: Tensor
    targets: Tensor
    passage: Tensor | None = None

    @classmethod
    def of(
        cls,
        states: Tensor,
        own_lengths: Sequence[int],
        answers: Sequence[Sequence[Sequence[int]]],
        *,
        prefix: Tensor | None = None,
        borrowed: Sequence[tuple[int, int]] = (),
    ) -> Suffixes:
        """Index states that lie as the class says.

        Parameters
        ----------
        states : torch.Tensor
            (R, d).
        own_lengths : sequence of int
            For each question, how many tokens its prompt has behind the shared prefix.
        answers : sequence of sequence of sequence of int
            Per question the token ids of its answers.
        prefix : torch.Tensor, optional
            (P, d), where the whole of each prompt is there.
        borrowed : sequence of (int, int), optional
            Per question an earlier one, and how many of its first own tokens are not counted in
            `own_lengths`, because the earlier question's states serve for them.
        """
        whole = prefix is not None
        lengths = list(own_lengths) if whole else [1] * len(own_lengths)
        starts = [0, *accumulate(row_counts(own_lengths, answers, whole=whole))]
        flat = [(q, answer) for q, given in enumerate(answers) for answer in given]
        first = [
            start + length + before
            for start, length, given in zip(starts, lengths, answers)
            for before in accumulate(map(_own, given[:-1]), initial=0)
            if given
        ]
        return cls(
            prefix=states[:0] if prefix is None else prefix,
            states=states,
            whole=whole,
            prompt_start=torch.tensor(starts[:-1], dtype=torch.long),
            prompt_length=torch.tensor(lengths, dtype=torch.long),
            answer_question=torch.tensor([q for q, _ in flat], dtype=torch.long),
            answer_start=torch.tensor(first, dtype=torch.long),
            target_start=torch.tensor([0, *accumulate(len(answer) for _, answer in flat)]),
            targets=torch.tensor([token for _, answer in flat for token in answer], dtype=torch.long),
            passage=torch.tensor([(starts[q], count) for q, count in borrowed])
            if any(count for _, count in borrowed)
            else None,
        )

    def prompt_rows(self, question: int) -> Tensor:
        """Rows of `states` of a question's prompt behind the prefix, in the order of its tokens."""
        start = int(self.prompt_start[question])
        own = torch.arange(start, start + int(self.prompt_length[question]))
        if self.passage is None:
            return own
        first, count = self.passage[question].tolist()
        return torch.cat([torch.arange(first, first + count), own])

    def predicting(self, answer: int) -> Tensor:
        """Rows of `states` (A,) that predict the A tokens of an answer."""
        question = int(self.answer_question[answer])
        last = int(self.prompt_start[question] + self.prompt_length[question]) - 1
        count = int(self.target_start[answer + 1] - self.target_start[answer])
        start = int(self.answer_start[answer])
        return torch.tensor([last, *range(start, start + count - 1)][:count], dtype=torch.long)

    def predicting_rows(self) -> Tensor:
        """Rows of `states` (N,) that predict each target, in the order of `targets`."""
        rows = [self.predicting(answer) for answer in range(len(self.answer_question))]
        return torch.cat(rows) if rows else torch.zeros(0, dtype=torch.long)

    def token_answer(self) -> Tensor:
        """The answer (N,) that each token belongs to."""
        return torch.repeat_interleave(torch.arange(len(self.answer_question)), self.target_start.diff())

    def labelled_questions(self) -> int:
        """How many questions have an answer."""
        return int((torch.bincount(self.answer_question) > 0).sum())

    def token_weights(self) -> Tensor:
        """Weight (N,) float64 of each token: the references of a question count equally and add up to one."""
        references = torch.bincount(self.answer_question, minlength=len(self.prompt_start))
        return 1.0 / references[self.answer_question[self.token_answer()]].double()


def row_counts(
    own_lengths: Sequence[int], answers: Sequence[Sequence[Sequence[int]]], *, whole: bool
) -> list[int]:
    """How many states each question has: its prompt's own (the last alone unless `whole`), its answers'.

    Examples
    --------
    >>> answers = [[(1, 2, 3), (1, 3)]]
    >>> row_counts([7], answers, whole=True), row_counts([7], answers, whole=False)
    ([10], [4])
    """
    return [(length if whole else 1) + sum(map(_own, given)) for length, given in zip(own_lengths, answers)]


def _own(answer: Sequence[int]) -> int:
    """How many states of its own an answer has."""
    return max(len(answer) - 1, 0)
