"""The states that fits read, and ATS: a temperature for each position, read from the states so far.

The frozen model runs once over a calibration set, and fits do not run it again (spec section 6). TS and Platt
need the last hidden states that predict answer tokens, ATS those of the whole sequence, from the shared
prefix on. Its 1/T_t = exp(psi(h_1 … h_t)), psi one LLaMA-style decoder block over these states and a linear
read-out to one number (paper, "Adaptive Temperature Scaling").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semcal.errors import FitError, UsageError
from semcal.recalibration.optimum import T_MAX, T_MIN
from semcal.recalibration.temperature import FittedMap, Recalibrator
from semcal.recalibration.trained import ModuleContents, TrainedModule

Head = Callable[[Tensor], Tensor]
"""States (n, d) -> logits (n, V), float32: the model's own head."""
#: Rows that are worth reading the head's weights once, of however large a vocabulary.
FEWEST_ROWS = 64


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
class CalibrationFeatures:
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
    ) -> CalibrationFeatures:
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


KeysValues = tuple[Tensor, Tensor]
"""Keys and values, (B, key-value heads, n, head width) each; keys are rotated to their positions."""

#: Standard deviation of the block's initial matrices, as in LLaMA.
SPREAD = 0.02
#: Answers whose inverse temperatures are computed at once.
ANSWERS = 16


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


class _RMSNorm(nn.Module):
    """x / rms(x) times a weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * self.normalised(x)

    def normalised(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


class _Clip(torch.autograd.Function):
    """Clamp whose gradient stays wherever a descent step would not lead further out of the range."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bounds = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (x,), (gradient,), (low, high) = ctx.saved_tensors, gradients, ctx.bounds
        outward = ((x >= high) & (gradient < 0)) | ((x <= low) & (gradient > 0))
        return gradient.masked_fill(outward, 0.0), None, None


class ATS(TrainedModule):
    """softmax(z_t / T_t), 1/T_t = exp(psi(h_1 … h_t)).

    `shape` is usually that of the model's own block, `loss` (with its `alpha`) what it is fitted with, and
    `seed` that of the block's initial weights.

    The read-out starts at zero, so T = 1 exactly at every position: the fit starts from the model itself.
    A random read-out would start it from random temperatures, which the paper's learning rate of 1e-5
    has too few steps to undo.

    T stays in [0.05, 20]. A psi beyond the range is set to its bound; the gradient that leads back into the
    range passes, the one that leads further out does not, so no position gets stuck at a bound.
    """

    method = "ATS"

    def __init__(
        self, shape: BlockShape, *, loss: str = "NLL", alpha: float | None = None, seed: int = 0
    ) -> None:
        super().__init__(loss, alpha)
        self.shape = shape
        d, inner = shape.hidden_size, shape.intermediate_size
        wide, narrow = shape.heads * shape.head_dim, shape.key_value_heads * shape.head_dim
        self.attention_norm = _RMSNorm(d, shape.rms_eps)
        self.query = nn.Linear(d, wide, bias=False)
        self.key = nn.Linear(d, narrow, bias=False)
        self.value = nn.Linear(d, narrow, bias=False)
        self.out = nn.Linear(wide, d, bias=False)
        self.mlp_norm = _RMSNorm(d, shape.rms_eps)
        self.gate = nn.Linear(d, inner, bias=False)
        self.up = nn.Linear(d, inner, bias=False)
        self.down = nn.Linear(inner, d, bias=False)
        self.readout = nn.Linear(d, 1)
        self._initialise(seed)

    def _initialise(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for matrix in (self.query, self.key, self.value, self.out, self.gate, self.up, self.down):
            nn.init.normal_(matrix.weight, std=SPREAD, generator=generator)
        nn.init.zeros_(self.readout.weight)
        nn.init.zeros_(self.readout.bias)

    def keys_values(self, states: Tensor, positions: Tensor) -> KeysValues:
        """Return what later positions attend to: keys and values of last hidden states (B, n, d).

        `positions` (B, n) count from 0 in the whole sequence.
        """
        # the norm's weight multiplies the matrices, not the many states: these then need no gradient
        x = self.attention_norm.normalised(states.to(self.key.weight.dtype))
        scale = self.attention_norm.weight
        keys, values = F.linear(x, self.key.weight * scale), F.linear(x, self.value.weight * scale)
        return self._rotated(self._heads(keys), positions), self._heads(values)

    def inverse_temperature(
        self,
        states: Tensor,  # (B, q, d), last hidden states whose logits are to be divided by T
        positions: Tensor,  # (B, q), in the whole sequence
        keys: Tensor,  # (B, key-value heads, K, head_dim), from `keys_values`, own positions included
        values: Tensor,
        visible: Tensor,  # (B, q, K) bool, the keys that a position attends to: up to its own
        *,
        shared: KeysValues | None = None,
    ) -> Tensor:
        """Return 1/T (B, q) at given positions, float32, in [1/20, 1/0.05].

        `shared` are keys and values of a prefix that all rows have in common, with batch size 1; every
        position attends to all of them, and they are not copied.
        """
        gathered = self._attended(self.queries(states, positions), keys, values, visible, shared)
        return self.inverse_temperature_from(states, gathered)

    def queries(self, states: Tensor, positions: Tensor) -> Tensor:
        """Return the queries (B, heads, n, head_dim) of states (B, n, d)."""
        x = self.attention_norm(states.to(self.query.weight.dtype))
        return self._rotated(self._heads(self.query(x)), positions)

    def inverse_temperature_from(self, states: Tensor, gathered: Tensor) -> Tensor:
        """Return 1/T (B, n) from states (B, n, d) and the attention output (B, n, heads * head_dim)."""
        x = states.to(self.query.weight.dtype)
        x = x + self.out(gathered)
        inner = self.mlp_norm(x)
        x = x + self.down(F.silu(self.gate(inner)) * self.up(inner))
        psi: Tensor = _Clip.apply(self.readout(x)[..., 0], -math.log(T_MAX), -math.log(T_MIN))  # type: ignore[no-untyped-call]
        return torch.exp(psi)

    def log_probs(self, logits: Tensor, inverse_temperature: Tensor) -> Tensor:
        """Return log softmax(logits / T) in float32, for logits (..., V) and 1/T (...)."""
        return torch.log_softmax(logits.float() * inverse_temperature[..., None], dim=-1)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.shape.head_dim).transpose(1, 2)  # (B, heads, n, head_dim)

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate the pairs (i, i + head_dim/2) of x (B, heads, n, head_dim) by their positions' angles."""
        half = self.shape.head_dim // 2
        exponent = torch.arange(half, device=x.device, dtype=torch.float32) / half
        angle = positions[:, None, :, None].float() * self.shape.rope_theta**-exponent
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        first, second = x[..., :half], x[..., half:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def _attended(
        self, q: Tensor, keys: Tensor, values: Tensor, visible: Tensor, shared: KeysValues | None
    ) -> Tensor:
        """Attention output (B, q, heads * head_dim); scores of shared and own keys share one softmax."""
        q = q.view(len(q), self.shape.key_value_heads, -1, *q.shape[2:])  # (B, k, g, q, head_dim)
        q = q * self.shape.head_dim**-0.5
        scores = torch.einsum("bkgqd,bknd->bkgqn", q, keys)
        # the lowest finite number and not -inf: a padded position without keys must not become NaN
        scores = scores.masked_fill(~visible[:, None, None], torch.finfo(scores.dtype).min)
        if shared is not None:
            scores = torch.cat([torch.einsum("bkgqd,knd->bkgqn", q, shared[0][0]), scores], -1)
        p = torch.softmax(scores, -1)
        own_share = p[..., -keys.shape[2] :]
        gathered = torch.einsum("bkgqn,bknd->bkgqd", own_share, values)
        if shared is not None:
            common = p[..., : -keys.shape[2]]
            gathered = gathered + torch.einsum("bkgqn,knd->bkgqd", common, shared[1][0])
        return gathered.flatten(1, 2).transpose(1, 2).flatten(2)

    def extra_repr(self) -> str:
        """Return what its repr shows before the layers."""
        return f"{self.shape}, loss={self.loss!r}, alpha={self.alpha}"


AnyRecalibrator = Recalibrator | ATS
"""A map of logits alone, or of logits and hidden states."""
Fitted = FittedMap | ATS
"""What a fit gives: it can be sampled with, and saved."""


def batch_inverse_temperatures(ats: ATS, batch: SequenceBatch, prefix: Tensor) -> Tensor:
    """Return 1/T (n,) at the n predicting positions of a batch on the device of `ats`, answer after answer.

    `prefix` (P, d) holds the states of the shared prefix.
    """
    shared = None
    if len(prefix):
        positions = torch.arange(len(prefix), device=batch.states.device)
        shared = ats.keys_values(prefix.to(batch.states.device)[None], positions[None])
    keys, values = ats.keys_values(batch.states, batch.positions)
    row = torch.arange(len(batch.at), device=batch.at.device)[:, None]
    states, positions = batch.states[row, batch.at], batch.positions[row, batch.at]
    beta = ats.inverse_temperature(states, positions, keys, values, batch.visible, shared=shared)
    return beta[batch.predicts]


@torch.no_grad()
def inverse_temperatures(ats: ATS, features: CalibrationFeatures) -> Tensor:
    """Return 1/T (N,) float32 of every token of a calibration set, in the order of its targets."""
    device = ats.readout.weight.device
    parts = [
        batch_inverse_temperatures(ats, features.sequences(answers, device=device), features.prefix).cpu()
        for answers in torch.split(torch.arange(len(features.answer_question)), ANSWERS)
    ]
    return torch.cat(parts)


class ATSContents(ModuleContents):
    """What the file of ATS holds."""

    keys = ("shape", "loss", "alpha")

    shape: BlockShape

    def module(self) -> ATS:
        """The block."""
        return ATS(self.shape, loss=self.loss, alpha=self.alpha)
