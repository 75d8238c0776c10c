"""The hidden states of a model for fits.

The frozen model runs once over labeled questions, and fits do not run it again (spec section 6). TS and Platt
need the last hidden states that predict answer tokens. ATS needs the states of the whole sequence, including
the shared prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from itertools import accumulate

import torch
from torch import Tensor

from semcal.errors import FitError, UsageError

Head = Callable[[Tensor], Tensor]
"""The head of the model: states (n, d) → logits (n, V), float32."""
#: Minimum rows per pass over the weights of the head, for any size of vocabulary.
FEWEST_ROWS = 64


@dataclass(frozen=True)
class BlockShape:
    """The dimensions of a LLaMA-style decoder block."""

    hidden_size: int  # d, width of the hidden states
    intermediate_size: int  # inner width of the SwiGLU
    heads: int  # query heads
    key_value_heads: int  # key-value heads; equal groups of query heads share one
    head_dim: int  # width of a head; an even number
    rope_theta: float = 10_000.0  # base of the rotary frequencies
    rms_eps: float = 1e-5  # constant that RMSNorm adds to the mean square

    def __post_init__(self) -> None:
        if min(astuple(self)) <= 0 or self.heads % self.key_value_heads or self.head_dim % 2:
            raise UsageError(
                f"block shape: got {self}. Pass positive sizes, heads as a multiple of key_value_heads, "
                "and an even head_dim"
            )


@dataclass(frozen=True)
class SequenceBatch:
    """B answers after the prompts of their questions without the shared prefix, padded on the right."""

    states: Tensor  # (B, S, d), states of prompt and answer without its last token; then zeros
    positions: Tensor  # (B, S), positions in the whole sequence, shared prefix included
    at: Tensor  # (B, A), indices of the states that predict the answer's tokens; 0 for padding
    predicts: Tensor  # (B, A), bool, False for padding

    @property
    def visible(self) -> Tensor:
        """Mask of the S states to which each predicting position attends, (B, A, S) bool."""
        return torch.arange(self.states.shape[1], device=self.at.device) <= self.at[..., None]


@dataclass(frozen=True)
class FitFeatures:
    """Last hidden states of Q questions with M reference answers of N tokens in all."""

    prefix: Tensor  # (P, d), states of the common prefix of all prompts; (0, d) unless `whole`
    #: (R, d), for each question the states of its prompt after the prefix, then of each answer without its
    #: last token, which predicts no target. May be mapped from a file.
    states: Tensor
    whole: bool  # True: states of `prefix` and whole prompts; False: only of the last token of each prompt
    prompt_start: Tensor  # (Q,) int64, first row of `states` of each question's prompt
    prompt_length: Tensor  # (Q,) int64, number of these rows, at least 1
    answer_question: Tensor  # (M,) int64, ascending, the question of each answer
    answer_start: Tensor  # (M,) int64, row of the first token of each answer
    target_start: Tensor  # (M + 1,) int64, start of the tokens of each answer in `targets`
    targets: Tensor  # (N,) int64, tokens of the answers, end of turn included

    @classmethod
    def from_states(
        cls,
        states: Tensor,
        own_lengths: Sequence[int],
        answers: Sequence[Sequence[Sequence[int]]],
        *,
        prefix: Tensor | None = None,
    ) -> FitFeatures:
        """Index states (R, d) in the order of the class documentation.

        For each question, `own_lengths` has the number of tokens of its prompt after the shared prefix, and
        `answers` has the token ids of its answers. Pass `prefix` (P, d) for states of whole prompts.
        """
        whole = prefix is not None
        lengths = list(own_lengths) if whole else [1] * len(own_lengths)
        starts = [0, *accumulate(row_counts(own_lengths, answers, whole=whole))]
        flat = [(q, answer) for q, of_question in enumerate(answers) for answer in of_question]
        first = [
            start + length + before
            for start, length, of_question in zip(starts, lengths, answers)
            for before in accumulate(map(_own, of_question[:-1]), initial=0)
            if of_question
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
        )

    def prompt_rows(self, question: int) -> Tensor:
        """Return the rows of `states` of a question's prompt after the prefix, in the order of its tokens."""
        start = int(self.prompt_start[question])
        return torch.arange(start, start + int(self.prompt_length[question]))

    def predicting(self, answer: int) -> Tensor:
        """Return the rows of `states` (A,) that predict the A tokens of an answer."""
        question = int(self.answer_question[answer])
        last = int(self.prompt_start[question] + self.prompt_length[question]) - 1
        count = int(self.target_start[answer + 1] - self.target_start[answer])
        start = int(self.answer_start[answer])
        return torch.tensor([last, *range(start, start + count - 1)][:count], dtype=torch.long)

    def predicting_rows(self) -> Tensor:
        """Return the rows of `states` (N,) that predict each target, in the order of `targets`."""
        rows = [self.predicting(answer) for answer in range(len(self.answer_question))]
        return torch.cat(rows) if rows else torch.zeros(0, dtype=torch.long)

    def token_answer(self) -> Tensor:
        """Return the answer (N,) of each token."""
        return torch.repeat_interleave(torch.arange(len(self.answer_question)), self.target_start.diff())

    def tokens_of(self, answers: Tensor) -> Tensor:
        """Return the indices into `targets` of the tokens of given answers, in their order."""
        start, stop = self.target_start[answers], self.target_start[answers + 1]
        return torch.cat([torch.arange(a, b) for a, b in zip(start.tolist(), stop.tolist())])

    def labelled_questions(self) -> int:
        """Return the number of questions with an answer."""
        return int((torch.bincount(self.answer_question) > 0).sum())

    def token_weights(self) -> Tensor:
        """Return token weights (N,) float64: equal weights of the references of a question, with sum 1."""
        references = torch.bincount(self.answer_question, minlength=len(self.prompt_start))
        return 1.0 / references[self.answer_question[self.token_answer()]].double()

    def check_whole(self) -> None:
        """Raise FitError if only answer positions were stored."""
        if not self.whole:
            raise FitError(
                "features: ATS needs states of whole sequences, but only answer positions are stored. "
                "Compute the features again with whole=True"
            )

    def sequences(self, answers: Tensor, *, device: torch.device | None = None) -> SequenceBatch:
        """Return the padded sequences of given answers (B,); FitError unless `whole`."""
        self.check_whole()
        rows = [
            torch.cat([self.prompt_rows(int(self.answer_question[answer])), self.predicting(answer)[1:]])
            for answer in answers.tolist()
        ]
        counts = self.target_start[answers + 1] - self.target_start[answers]
        lengths = torch.tensor([len(row) for row in rows])
        width = self.states.shape[1]
        states = torch.zeros(len(rows), int(lengths.max()), width, dtype=self.states.dtype)
        for i, row in enumerate(rows):
            states[i, : len(row)] = self.states[row]
        steps = torch.arange(int(counts.max()))
        predicts = steps < counts[:, None]
        at = ((lengths - counts)[:, None] + steps).masked_fill(~predicts, 0)
        positions = len(self.prefix) + torch.arange(states.shape[1]).expand(len(rows), -1)
        return SequenceBatch(*(t.to(device) for t in (states, positions, at, predicts)))


def row_counts(
    own_lengths: Sequence[int], answers: Sequence[Sequence[Sequence[int]]], *, whole: bool
) -> list[int]:
    """Return the number of states of each question, with only one state per prompt unless `whole`."""
    return [
        (length if whole else 1) + sum(map(_own, of_question))
        for length, of_question in zip(own_lengths, answers)
    ]


def _own(answer: Sequence[int]) -> int:
    return max(len(answer) - 1, 0)
