"""The states of a model that fits read.

The frozen model runs once over labelled questions, and fits do not run it again (spec section 6). TS and
Platt need the last hidden states that predict answer tokens, ATS those of the whole sequence, from the shared
prefix on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate

import torch
from torch import Tensor

from semcal.errors import FitError, UsageError
from semcal.models.protocols import StateReader

Head = Callable[[Tensor], Tensor]
"""States (n, d) -> logits (n, V), float32: the model's own head."""
#: Answers whose inverse temperatures are computed at once.
ANSWERS = 16
#: Rows that are worth reading the head's weights once, of however large a vocabulary.
FEWEST_ROWS = 64


@dataclass(frozen=True)
class BlockShape:
    """The dimensions of a LLaMA-style decoder block."""

    hidden_size: int  # d, width of the hidden states
    intermediate_size: int  # inner width of the SwiGLU
    heads: int  # query heads
    key_value_heads: int  # key-value heads, which equal groups of query heads share
    head_dim: int  # width of a head, even
    rope_theta: float = 10_000.0  # base of the rotary frequencies
    rms_eps: float = 1e-5  # added to the mean square in RMSNorm

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0 or (field.type == "int" and value != int(value)):
                raise UsageError(f"{field.name} of a block is a positive {field.type}, got {value}")
        if self.heads % self.key_value_heads:
            raise UsageError(
                f"{self.heads} heads cannot share {self.key_value_heads} key-value heads in equal groups"
            )
        if self.head_dim % 2:
            raise UsageError(f"rotary positions need an even head_dim, got {self.head_dim}")


@dataclass(frozen=True)
class SequenceBatch:
    """B answers with their questions' own prompts, padded on the right."""

    states: Tensor  # (B, S, d), of the own prompt and the answer but its last token; then zeros
    positions: Tensor  # (B, S), in the whole sequence, shared prefix included
    at: Tensor  # (B, A), which of the S states predict the answer's tokens; 0 where there is none
    predicts: Tensor  # (B, A), bool, where there is one

    @property
    def visible(self) -> Tensor:
        """Which of the S states each predicting position attends to, (B, A, S) bool."""
        return torch.arange(self.states.shape[1], device=self.at.device) <= self.at[..., None]


@dataclass(frozen=True)
class FitFeatures:
    """Last hidden states of Q questions with M reference answers of N tokens in all."""

    prefix: Tensor  # (P, d), states of the tokens that all prompts begin with; (0, d) unless `whole`
    #: (R, d), for each question the states of its own prompt tokens, then of each answer's tokens but the
    #: last, which predicts nothing. May be mapped from a file.
    states: Tensor
    whole: bool  # whether `prefix` and all of each prompt are there; if not, only its last token is
    prompt_start: Tensor  # (Q,) int64, the first row of `states` with a question's own prompt tokens
    prompt_length: Tensor  # (Q,) int64, the number of these rows, one at least
    answer_question: Tensor  # (M,) int64, ascending, the question of each answer
    answer_start: Tensor  # (M,) int64, the row of the first token of each answer
    target_start: Tensor  # (M + 1,) int64, where the tokens of each answer begin in `targets`
    targets: Tensor  # (N,) int64, the answers' tokens, end of turn included
    #: (Q, 2) int64, first row and number of the states of an earlier question that each prompt begins with as
    #: well (a passage that both ask about); None where every question has rows for all its tokens.
    passage: Tensor | None = None

    @classmethod
    def from_states(
        cls,
        states: Tensor,
        own_lengths: Sequence[int],
        answers: Sequence[Sequence[Sequence[int]]],
        *,
        prefix: Tensor | None = None,
        borrowed: Sequence[tuple[int, int]] = (),
    ) -> FitFeatures:
        """Index states (R, d) in the order that the class states.

        For each question: `own_lengths`, how many tokens its prompt has after the shared prefix; `answers`,
        the token ids of its answers; `borrowed`, an earlier question, and how many of its first own tokens
        are not counted in `own_lengths`, because that question's states are used for them. `prefix` (P, d)
        is given where the whole of each prompt is there.
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
            passage=torch.tensor([(starts[q], count) for q, count in borrowed])
            if any(count for _, count in borrowed)
            else None,
        )

    def prompt_rows(self, question: int) -> Tensor:
        """Return the rows of `states` of a question's prompt after the prefix, in the order of its tokens."""
        start = int(self.prompt_start[question])
        rows = torch.arange(start, start + int(self.prompt_length[question]))
        if self.passage is None:
            return rows
        first, count = self.passage[question].tolist()
        return torch.cat([torch.arange(first, first + count), rows])

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
        """Return the answer (N,) that each token belongs to."""
        return torch.repeat_interleave(torch.arange(len(self.answer_question)), self.target_start.diff())

    def tokens_of(self, answers: Tensor) -> Tensor:
        """Return the indices into `targets` of the tokens of given answers, in their order."""
        start, stop = self.target_start[answers], self.target_start[answers + 1]
        return torch.cat([torch.arange(a, b) for a, b in zip(start.tolist(), stop.tolist())])

    def labelled_questions(self) -> int:
        """Return how many questions have an answer."""
        return int((torch.bincount(self.answer_question) > 0).sum())

    def token_weights(self) -> Tensor:
        """Return token weights (N,) float64: references of a question count equally and add up to one."""
        references = torch.bincount(self.answer_question, minlength=len(self.prompt_start))
        return 1.0 / references[self.answer_question[self.token_answer()]].double()

    def check_whole(self) -> None:
        """Raise FitError if only answer positions were kept."""
        if not self.whole:
            raise FitError(
                "ATS reads the states of whole sequences, but only answer positions were kept; compute the "
                "features again with whole sequences"
            )

    def sequences(self, answers: Tensor, *, device: torch.device | None = None) -> SequenceBatch:
        """Return the padded sequences of given answers (B,); FitError if only answer positions were kept."""
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
    """Return how many states each question has: of its prompt (the last alone unless `whole`) and answers."""
    return [
        (length if whole else 1) + sum(map(_own, of_question))
        for length, of_question in zip(own_lengths, answers)
    ]


def _own(answer: Sequence[int]) -> int:
    """How many states of its own an answer has."""
    return max(len(answer) - 1, 0)


def batch_inverse_temperatures(reader: StateReader, batch: SequenceBatch, prefix: Tensor) -> Tensor:
    """Return 1/T (n,) at the n predicting positions of a batch, in the order of answers.

    The batch is on the device of `reader`; `prefix` (P, d) holds the states of the shared prefix.
    """
    shared = None
    if len(prefix):
        positions = torch.arange(len(prefix), device=batch.states.device)
        shared = reader.keys_values(prefix.to(batch.states.device)[None], positions[None])
    keys, values = reader.keys_values(batch.states, batch.positions)
    row = torch.arange(len(batch.at), device=batch.at.device)[:, None]
    states, positions = batch.states[row, batch.at], batch.positions[row, batch.at]
    beta = reader.inverse_temperature(states, positions, keys, values, batch.visible, shared=shared)
    return beta[batch.predicts]


@torch.no_grad()
def inverse_temperatures(reader: StateReader, features: FitFeatures) -> Tensor:
    """Return 1/T (N,) float32 of every token of features, in the order of their targets."""
    device = reader.device
    parts = [
        batch_inverse_temperatures(reader, features.sequences(answers, device=device), features.prefix).cpu()
        for answers in torch.split(torch.arange(len(features.answer_question)), ANSWERS)
    ]
    return torch.cat(parts)
