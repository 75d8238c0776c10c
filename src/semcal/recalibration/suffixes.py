"""What the fits read of a calibration set: last hidden states of the frozen model, laid flat (spec 6).

The model has run once; no fit runs it again. TS and Platt need the states that predict answer tokens, ATS
those of the whole sequence as well, from the shared prefix on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Head", "Suffixes"]

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
    answer_question : torch.Tensor
        (M,) int64, ascending, the question of each answer.
    answer_start : torch.Tensor
        (M,) int64, the row of the first token of each answer.
    target_start : torch.Tensor
        (M + 1,) int64, where the tokens of each answer begin in `targets`; every answer has one at least.
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

    def predicting(self, answer: int) -> Tensor:
        """Rows of `states` (A,) that predict the A tokens of an answer."""
        question = int(self.answer_question[answer])
        last = int(self.prompt_start[question] + self.prompt_length[question]) - 1
        count = int(self.target_start[answer + 1] - self.target_start[answer])
        start = int(self.answer_start[answer])
        return torch.tensor([last, *range(start, start + count - 1)])

    def predicting_rows(self) -> Tensor:
        """Rows of `states` (N,) that predict each target, in the order of `targets`."""
        return torch.cat([self.predicting(answer) for answer in range(len(self.answer_question))])

    def token_answer(self) -> Tensor:
        """The answer (N,) that each token belongs to."""
        return torch.repeat_interleave(torch.arange(len(self.answer_question)), self.target_start.diff())

    def token_weights(self) -> Tensor:
        """Weight (N,) float64 of each token: the references of a question count equally and add up to one."""
        references = torch.bincount(self.answer_question, minlength=len(self.prompt_start))
        return 1.0 / references[self.answer_question[self.token_answer()]].double()
