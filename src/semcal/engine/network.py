"""The network of a causal language model in two parts: the body (tokens to states) and the head (to logits).

The body runs under attention masks of our own, so that one row may hold a *tree* of tokens: the prompt of a
question and everything that was drawn after it. The head is the architecture's own code, run with the body
replaced by the states, so that what it does to the logits (soft-capping, scaling) is done here too. Whether
both hold for an architecture is no matter of its name: a `Network` compares them with the plain model once.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from semcal.engine.cache import bytes_per_slot, empty, spread
from semcal.engine.masks import Masks
from semcal.engine.riders import Reading, Rider, log_probs
from semcal.errors import ModelError
from semcal.recalibration import ATS, AnyRecalibrator

__all__ = ["Forest", "Network"]

_HEAD_ELEMENTS = 2**24  # logits that exist at a time: 64 MiB of float32
_FAILURES = (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError, NotImplementedError)


class Network:
    """Body and head of a causal language model in eval mode.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A causal language model.

    Attributes
    ----------
    vocabulary : int
        Number of logits.
    limit : int or None
        The longest sequence that the model's positions allow.
    bytes_per_token : int
        What the keys and values of one token take.
    width : int
        Size of a last hidden state.

    Raises
    ------
    ModelError
        If the model's logits are not reproduced: its attention takes no masks from outside, say.
    """

    def __init__(self, model: Any) -> None:
        self.model = model.eval().requires_grad_(False)
        if model.base_model is model:
            raise ModelError(f"{type(model).__name__} has no body apart from its head; it cannot be used")
        self._head = _head_of(model)
        self.device = torch.device(model.device)
        self.dtype: torch.dtype = model.dtype
        config = model.config.get_text_config()
        self._masks = Masks(config)
        self.vocabulary = int(config.vocab_size)
        self.limit: int | None = getattr(config, "max_position_embeddings", None)
        self.bytes_per_token, self.width = _check(self)

    @torch.no_grad()
    def body(self, token_ids: Tensor, visible: Tensor, held: Tensor, cache: Cache) -> Tensor:
        """Last hidden states (B, n, d) of new tokens (B, n).

        `visible` (B, n, K) says which of the K tokens held (the new ones last) each new one sees, `held`
        (B, K) at which positions they stand.
        """
        positions = held[:, held.shape[1] - token_ids.shape[1] :]
        output = self.model.base_model(
            input_ids=token_ids,
            position_ids=positions,
            attention_mask=self._masks.additive(visible, positions, held, self.dtype),
            past_key_values=cache,
            use_cache=True,
        )
        states: Tensor = output.last_hidden_state
        return states

    @torch.no_grad()
    def logits(self, states: Tensor) -> Tensor:
        """Logits (N, V), float32, of states (N, d)."""
        rows = self.rows_at_a_time
        parts = [self._head_forward(states[i : i + rows]) for i in range(0, len(states), rows)]
        return torch.cat(parts) if parts else torch.zeros((0, self.vocabulary), device=self.device)

    @property
    def rows_at_a_time(self) -> int:
        """How many rows of logits may exist at once."""
        return max(1, _HEAD_ELEMENTS // self.vocabulary)

    def _head_forward(self, states: Tensor) -> Tensor:
        output = self._head(inputs_embeds=states.to(self.device, self.dtype)[None], use_cache=False)
        logits: Tensor = output.logits[0]
        return logits.float()


@dataclass
class Forest:
    """Keys and values of a batch of questions: a shared prefix, then one growing tree of tokens per row.

    Attributes
    ----------
    network : Network
        What runs.
    cache : transformers.Cache
        Keys and values, one row per question.
    held : torch.Tensor
        (rows, K) int64, the positions of the tokens held.
    prefix : int
        Number of shared tokens.
    prefix_states : torch.Tensor
        (prefix, d), their last hidden states.
    riders : tuple of Rider
        Recalibrators that read hidden states.
    """

    network: Network
    cache: Cache
    held: Tensor
    prefix: int = 0
    prefix_states: Tensor = field(default_factory=lambda: torch.zeros((0, 0)))
    riders: tuple[Rider, ...] = ()

    @classmethod
    def planted(cls, network: Network, prefix: tuple[int, ...], riders: Sequence[ATS] = ()) -> Forest:
        """One row that holds the shared tokens, if there are any; they run here."""
        held = torch.zeros((1, 0), dtype=torch.long, device=network.device)
        forest = cls(network, empty(), held, len(prefix), riders=tuple(map(Rider, riders)))
        if prefix:
            visible = torch.ones((1, len(prefix), len(prefix)), dtype=torch.bool).tril()
            read = forest.grow(torch.tensor([prefix]), torch.arange(len(prefix))[None], visible)
            forest.prefix_states = read.states[0]
        return forest

    def spread(self, rows: int) -> Forest:
        """A forest of `rows` rows that all hold what the one row of this holds."""
        held = self.held.expand(rows, -1)
        riders = tuple(rider.spread(rows) for rider in self.riders)
        return Forest(self.network, spread(self.cache, rows), held, self.prefix, self.prefix_states, riders)

    @property
    def rows(self) -> int:
        """Number of questions."""
        return len(self.held)

    def grow(self, token_ids: Tensor, positions: Tensor, visible: Tensor) -> Reading:
        """Run new tokens (B, n) at `positions` (B, n) and keep their keys and values.

        `visible` is (B, n, K) over the K tokens then held. Returns what is to be read of them, (B, n, ...).
        """
        device = self.network.device
        positions, visible = positions.to(device), visible.to(device)
        self.held = torch.cat([self.held, positions], 1)
        states = self.network.body(token_ids.to(device), visible, self.held, self.cache)
        read = [rider.read(states, positions, visible) for rider in self.riders]
        return Reading(states, torch.stack(read, -1) if read else states.new_zeros((*states.shape[:2], 0)))

    def log_probs(self, recalibrator: AnyRecalibrator, logits: Tensor, read: Reading) -> Tensor:
        """Recalibrated log-probabilities (n, V) of the logits (n, V) of `read`."""
        riders = [rider.recalibrator for rider in self.riders]
        return log_probs(recalibrator, logits, read.inverse_temperatures, riders)

    def keep(self, rows: Tensor) -> None:
        """Forget all rows but these."""
        rows = rows.to(self.network.device)
        for layer in self.cache.layers:
            layer.batch_select_indices(rows)
        for rider in self.riders:
            rider.keep(rows)
        self.held = self.held[rows]


class _Given:
    """A body's output that holds given states and answers None to every other question."""

    def __init__(self, states: Tensor) -> None:
        self.last_hidden_state = states

    def __getitem__(self, index: Any) -> Any:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _GivenBody(nn.Module):
    """Stands in for the body, and for any part of it: its states are what it is given."""

    def __getattr__(self, name: str) -> Any:
        return self

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _Given:
        return _Given(inputs_embeds)


def _head_of(model: Any) -> Any:
    """The model's own forward without its body (a shallow copy; the weights are shared)."""
    head = copy.copy(model)
    head.__dict__["_modules"] = {**model._modules, model.base_model_prefix: _GivenBody()}
    return head


def _check(network: Network) -> tuple[int, int]:
    """Compare body and head with the plain model on two small trees; returns bytes per token and width."""
    kind = type(network.model).__name__
    start = network.vocabulary // 2
    tokens = [(start + i) % network.vocabulary for i in range(9)]
    paths = [(0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 6, 7), (0, 1, 2, 8, 4, 5)]
    try:
        expected = torch.stack([_plain(network, [tokens[i] for i in path])[3:] for path in paths])
        got, *sizes = _as_trees(network, tokens)
    except _FAILURES as error:
        raise ModelError(
            f"{kind} does not run with a shared prefix and attention masks of ours: {error}"
        ) from error
    tolerance = 1e-4 if network.dtype in (torch.float32, torch.float64) else 0.1
    off = float((expected - got).abs().max() / expected.std().clamp_min(1e-6))
    if not off <= tolerance:
        raise ModelError(
            f"{kind} cannot be used: with a shared prefix its logits differ from the plain model's by "
            f"{off:.1e} standard deviations, more than {tolerance:.0e}; ordinary causal attention is needed"
        )
    return sizes[0], sizes[1]


@torch.no_grad()
def _plain(network: Network, path: list[int]) -> Tensor:
    output = network.model(input_ids=torch.tensor([path], device=network.device), use_cache=False)
    logits: Tensor = output.logits[0]
    return logits.float()


def _as_trees(network: Network, tokens: list[int]) -> tuple[Tensor, int, int]:
    """Logits of the last three tokens of the paths of `_check`; the first row holds two, with a fork.

    With them the bytes that a token takes and the width of a state.
    """
    forest = Forest.planted(network, tuple(tokens[:3])).spread(2)
    two = torch.ones((2, 2, 5), dtype=torch.bool).tril(3)
    first = forest.grow(_pick(tokens, [[3, 4], [8, 4]]), torch.tensor([[3, 4]] * 2), two)
    fork = torch.tensor([[1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0, 1]], dtype=torch.bool)
    second = forest.grow(_pick(tokens, [[5, 6], [5, 6]]), torch.tensor([[5, 4]] * 2), fork.expand(2, -1, -1))
    last = torch.tensor([[1, 1, 1, 1, 0, 0, 1, 1]], dtype=torch.bool).expand(2, 1, -1)
    third = forest.grow(_pick(tokens, [[7], [7]]), torch.tensor([[5]] * 2), last)
    read = [first[0, 0], first[0, 1], second[0, 0], first[0, 0], second[0, 1], third[0, 0]]
    read += [first[1, 0], first[1, 1], second[1, 0]]
    states = [one.states for one in read]
    logits = network.logits(torch.stack(states)).view(3, 3, -1)
    return logits, bytes_per_slot(forest.cache), states[0].shape[-1]


def _pick(tokens: list[int], rows: list[list[int]]) -> Tensor:
    return torch.tensor([[tokens[i] for i in row] for row in rows])
