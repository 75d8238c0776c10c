"""The network of a causal language model in two parts: the body (tokens to states) and the head (states to logits).

The body runs under attention masks of our own, so that one row may hold a *tree* of tokens: the prompt of a
question and everything that was drawn after it. The head is the architecture's own code, run with the body
replaced by the states, so that whatever it does to the logits (soft-capping, scaling) is done here too. Whether
both hold for an architecture is not a matter of its name: `Network` compares them with the plain model once.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from semcal.engine.cache import SlotLayer, bytes_per_slot, spread
from semcal.errors import ModelError

__all__ = ["Forest", "Network"]

_HEAD_ELEMENTS = 2**25  # logits computed at a time: 128 MiB of float32


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
    """Stands in for the body: its states are what it is given."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _Given:
        return _Given(inputs_embeds)


def _head_of(model: Any) -> Any:
    """The model's own forward without its body (a shallow copy; the weights are shared)."""
    head = copy.copy(model)
    head.__dict__["_modules"] = {**model._modules, model.base_model_prefix: _GivenBody()}
    return head


class Network:
    """Body and head of a causal language model in eval mode.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A causal language model.

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
        self.vocabulary = int(config.vocab_size)
        self.limit = _longest(config)
        self.bytes_per_token = self._check()

    @torch.no_grad()
    def body(self, token_ids: Tensor, positions: Tensor, visible: Tensor, cache: Cache) -> Tensor:
        """Last hidden states (B, n, d) of new tokens (B, n); `visible` (B, n, cached + n) says who sees whom."""
        hidden = torch.finfo(self.dtype).min
        mask = torch.zeros(visible.shape, dtype=self.dtype, device=self.device).masked_fill_(~visible, hidden)
        output = self.model.base_model(
            input_ids=token_ids,
            position_ids=positions,
            attention_mask=mask[:, None],
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
        return torch.cat(parts) if parts else states.new_zeros((0, self.vocabulary), dtype=torch.float32)

    @property
    def rows_at_a_time(self) -> int:
        """How many rows of logits may exist at once."""
        return max(1, _HEAD_ELEMENTS // self.vocabulary)

    def _head_forward(self, states: Tensor) -> Tensor:
        output = self._head(inputs_embeds=states.to(self.device, self.dtype)[None], use_cache=False)
        logits: Tensor = output.logits[0]
        return logits.float()

    def _check(self) -> int:
        """Compare body and head with the plain model on two small trees; return the cache's bytes per token."""
        paths = [(1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 7, 8), (1, 2, 3, 9, 10, 11)]
        paths = [tuple(token % self.vocabulary for token in path) for path in paths]
        expected = torch.stack([self._plain(path)[3:] for path in paths])
        try:
            got, size = self._tree(paths)
        except (
            RuntimeError,
            TypeError,
            ValueError,
            AttributeError,
            IndexError,
            NotImplementedError,
        ) as error:
            raise ModelError(f"{self._kind} does not run with attention masks of ours: {error}") from error
        tolerance = 1e-4 if self.dtype in (torch.float32, torch.float64) else 0.1
        off = float((expected - got).abs().max() / expected.std().clamp_min(1e-6))
        if not off <= tolerance:
            raise ModelError(
                f"{self._kind} cannot be used: its logits with a shared prefix differ from the plain model's by "
                f"{off:.1e} standard deviations (at most {tolerance:.0e} is expected). Is it a causal language model "
                "with ordinary attention?"
            )
        return size

    @property
    def _kind(self) -> str:
        return type(self.model).__name__

    @torch.no_grad()
    def _plain(self, path: Sequence[int]) -> Tensor:
        output = self.model(input_ids=torch.tensor([path], device=self.device), use_cache=False)
        logits: Tensor = output.logits[0]
        return logits.float()

    def _tree(self, paths: Sequence[Sequence[int]]) -> tuple[Tensor, int]:
        """Logits of the last three tokens of each path: prefix 1 2 3, then two rows, the first with a fork."""
        forest = Forest(self, paths[0][:3], rows=2)
        first = forest.grow(torch.tensor([paths[0][3:5], paths[2][3:5]]), *_chain(2, 2, 3))
        seen = torch.ones((2, 2, 7), dtype=torch.bool)
        seen[0, 1, 4] = False
        seen[:, 0, 6] = False
        seen[:, 1, 5] = False
        tokens = torch.tensor([[paths[0][5], paths[1][4]], [paths[2][5], 0]])
        second = forest.grow(tokens, torch.tensor([[5, 4], [5, 4]]), seen)
        third = forest.grow(*self._last(paths[1][5]))
        states = torch.stack(
            [
                torch.stack([first[0, 0], first[0, 1], second[0, 0]]),
                torch.stack([first[0, 0], second[0, 1], third[0, 0]]),
                torch.stack([first[1, 0], first[1, 1], second[1, 0]]),
            ]
        )
        return self.logits(states.flatten(0, 1)).view(3, 3, -1), forest.bytes_per_token

    def _last(self, token: int) -> tuple[Tensor, Tensor, Tensor]:
        """The token after the fork of the first row (and a companion in the second)."""
        seen = torch.tensor([True, True, True, True, False, False, True, True])
        return torch.tensor([[token], [token]]), torch.tensor([[5], [5]]), seen.expand(2, 1, 8)


def _longest(config: Any) -> int | None:
    """The longest sequence that is exact: the position limit, or the window of sliding attention if shorter."""
    limits = [getattr(config, "max_position_embeddings", None)]
    if getattr(config, "use_sliding_window", True):
        limits.append(getattr(config, "sliding_window", None))
    limits.append(getattr(config, "attention_chunk_size", None))
    known = [int(limit) for limit in limits if limit]
    return min(known) if known else None


def _chain(rows: int, length: int, before: int) -> tuple[Tensor, Tensor]:
    """Positions and visibility of `length` tokens in a line after `before` cached ones."""
    positions = torch.arange(before, before + length).expand(rows, length)
    visible = torch.ones((length, before + length), dtype=torch.bool).tril(before)
    return positions, visible.expand(rows, -1, -1)


class Forest:
    """Keys and values of a batch of questions: a shared prefix, then one growing tree of tokens per row.

    Parameters
    ----------
    network : Network
        What runs.
    prefix : sequence of int or Forest
        The shared tokens, run here once; or a forest of one row that holds them already.
    rows : int
        Number of questions.
    """

    def __init__(self, network: Network, prefix: Sequence[int] | Forest, *, rows: int) -> None:
        self.network = network
        self.rows = rows
        if isinstance(prefix, Forest):
            self.prefix = prefix.prefix
            self.cache = spread(prefix.cache, rows)
        else:
            self.prefix = len(prefix)
            self.cache = Cache(layer_class_to_replicate=SlotLayer)
            if prefix:
                self.grow(torch.tensor([prefix]), *_chain(1, len(prefix), 0))
                self.cache = spread(self.cache, rows)

    def grow(self, token_ids: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """Run new tokens (B, n) and keep their keys and values; `visible` is (B, n, slots so far + n)."""
        device = self.network.device
        return self.network.body(token_ids.to(device), positions.to(device), visible.to(device), self.cache)

    def keep(self, rows: Tensor) -> None:
        """Forget all rows but these."""
        for layer in self.cache.layers:
            layer.batch_select_indices(rows.to(self.network.device))
        self.rows = len(rows)

    @property
    def bytes_per_token(self) -> int:
        """What a token of one row costs in memory."""
        return bytes_per_slot(self.cache)
