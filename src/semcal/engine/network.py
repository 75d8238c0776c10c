"""The network of a causal language model in two parts: the body (tokens to states) and the head (to logits).

The body runs as a copy whose attention is ours, or itself, under attention masks of ours. The head is the
architecture's own code, run with the body replaced by the states, so that what it does to the logits
(soft-capping, scaling) is done here too. Whether this holds for an architecture is no matter of its name:
`semcal.engine.planting` measures it.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from semcal.engine.masks import Masks
from semcal.errors import ModelError
from semcal.recalibration import BlockShape

__all__ = ["Network"]

_HEAD_ELEMENTS = 2**21  # logits that exist at a time: 8 MiB of float32
_HEAD_ELEMENTS_ELSEWHERE = 2**26


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
    beyond : str
        What is amiss with longer ones, where that is not plain: part of a message.
    bytes_per_token : int
        What the keys and values of one token take; 0 before it is measured.
    width : int
        Size of a last hidden state; 0 before it is measured.
    copied : torch.nn.Module or None
        The body with an attention of ours, if that is exact.

    Raises
    ------
    ModelError
        If the model has no body apart from its head, or local attention of a kind not supported.
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
        self.beyond = ""
        if (steady := _steady_length(config)) is not None and steady < (self.limit or math.inf):
            self.limit, self.beyond = steady, " before the positions of all its tokens change (longrope)"
        self.bytes_per_token, self.width = 0, 0
        self.copied: Any = None

    @property
    def windows(self) -> list[int | None]:
        """Of each layer: how many positions a token sees back from its own, itself included; None for all."""
        return self._masks.windows

    @property
    def block_shape(self) -> BlockShape:
        """Measures of a LLaMA-style block like the model's own."""
        config = self.model.config.get_text_config()
        heads = config.num_attention_heads
        rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
        return BlockShape(
            hidden_size=self.width,
            intermediate_size=getattr(config, "intermediate_size", None) or 4 * self.width,
            heads=heads,
            key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or self.width // heads,
            rope_theta=getattr(config, "rope_theta", None) or rope.get("rope_theta") or 10_000.0,
            rms_eps=getattr(config, "rms_norm_eps", None) or 1e-5,
        )

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
        if len(parts) == 1:  # no copy of so much
            return parts[0]
        return torch.cat(parts) if parts else torch.zeros((0, self.vocabulary), device=self.device)

    @property
    def rows_at_a_time(self) -> int:
        """How many rows of logits may exist at once."""
        most = _HEAD_ELEMENTS if self.device.type == "cpu" else _HEAD_ELEMENTS_ELSEWHERE
        return max(1, most // self.vocabulary)

    def _head_forward(self, states: Tensor) -> Tensor:
        output = self._head(inputs_embeds=states.to(self.device, self.dtype)[None], use_cache=False)
        logits: Tensor = output.logits[0]
        return logits.float()


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


def _steady_length(config: Any) -> int | None:
    """Up to how many tokens the rotary positions of a sequence do not depend on how many there are.

    None where they never do. With "longrope" one token more turns the keys of all tokens, those of a shared
    prefix too.
    """
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    of_kinds = [rope, *(one for one in rope.values() if isinstance(one, dict))]  # of each kind of layer
    known = getattr(config, "original_max_position_embeddings", None)
    turning = [one for one in of_kinds if one.get("rope_type", one.get("type")) in ("longrope", "su")]
    found = [one.get("original_max_position_embeddings") or known for one in turning]
    return min((length for length in found if length), default=None)


def _head_of(model: Any) -> Any:
    """The model's own forward without its body (a shallow copy; the weights are shared)."""
    head = copy.copy(model)
    head.__dict__["_modules"] = {**model._modules, model.base_model_prefix: _GivenBody()}
    return head
