"""A causal language model in two parts: the body (tokens to hidden states) and the head (states to logits).

The body runs as a copy whose attention reads and writes the three-level cache, or unpatched under attention
masks made here. The copy shares its weights, and its configuration names our attention, registered in
transformers' attention interface. While a pass runs, each layer calls it with its queries, keys and values; a
layer that asks for more than scaling, soft-capping and a sliding window is refused, and the model then runs
unpatched. A prompt's last token alone predicts the answer: so the last layer runs, beyond keys and values,
only for the tokens whose states the pass wants. Of L layers, this saves nearly 1/L of the work.

The head is the architecture's own code with the body replaced by given states, so that soft-capping and
scaling of logits apply. No architecture is known by its name: `checked_network` measures if this is exact.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PretrainedConfig
from transformers.cache_utils import Cache

from semcal.errors import ModelError, shown
from semcal.models.attention import AttentionConfig, ForwardPass, LayerCache
from semcal.recalibration.attentive import BlockShape

_MAX_LOGITS = 2**21  # logits that exist at a time: 8 MiB of float32
_MAX_LOGITS_ON_GPU = 2**26
_FULL, _SLIDING = "full_attention", "sliding_attention"
_NAME = "semcal_levels"
_IGNORED = {"position_ids", "cache_position", "input_ids"}  # tensors that do not change the attention
_LAST_LAYER = "semcal_last"  # attribute that marks the modules of the last layer
_current: ContextVar[ForwardPass] = ContextVar("forward_pass")


class Network:
    """Body and head of a causal language model of transformers, in eval mode.

    ModelError if it has no body apart from its head, or a kind of local attention that is not supported.
    """

    def __init__(self, model: Any) -> None:
        self.model = model.eval().requires_grad_(False)
        if model.base_model is model:
            raise ModelError(f"{type(model).__name__} has no body apart from its head; it cannot be used")
        self._head = _head_of(model)
        self.device = torch.device(model.device)
        self.dtype: torch.dtype = model.dtype
        config = model.config.get_text_config()
        self._masks = _Masks(config)
        self.vocabulary = int(config.vocab_size)
        #: The longest sequence that the model's positions allow.
        self.limit: int | None = getattr(config, "max_position_embeddings", None)
        #: Why longer sequences are refused, where that is not obvious: part of a message.
        self.limit_reason = ""
        if (steady := _steady_length(config)) is not None and steady < (self.limit or math.inf):
            self.limit, self.limit_reason = (
                steady,
                " before the positions of all its tokens change (longrope)",
            )
        # measured by `checked_network`: bytes of one token's keys and values, size of a last hidden state
        self.bytes_per_token, self.width = 0, 0
        self.patched: Any = None  # the body with our attention, if that is exact

    @property
    def windows(self) -> list[int | None]:
        """By layer: how many positions a token sees back from its own, itself included; None for all."""
        return self._masks.windows

    @property
    def block_shape(self) -> BlockShape:
        """Shape of a LLaMA-style block like the model's own."""
        config = self.model.config.get_text_config()
        heads = config.num_attention_heads
        rope = _rope(config)
        return BlockShape(
            hidden_size=self.width,
            intermediate_size=getattr(config, "intermediate_size", None) or 4 * self.width,
            heads=heads,
            key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or self.width // heads,
            rope_theta=getattr(config, "rope_theta", None) or rope.get("rope_theta") or 10_000.0,
            rms_eps=getattr(config, "rms_norm_eps", None) or 1e-5,
        )

    def patch(self, *, skip_unwanted: bool) -> None:
        """Let the body run with our attention; with `skip_unwanted`, the last layer as stated above."""
        self.patched = _copied(self.model.base_model, {})
        if skip_unwanted:
            _skip_unwanted(self.patched)

    def end_of_text(self, *sources: Any) -> set[int]:
        """Tokens that end a text: of generation config, config and `sources`, if they can be drawn.

        Some models use -1 for "none".
        """
        tokens: set[int] = set()
        for source in (self.model.generation_config, self.model.config, *sources):
            eos = getattr(source, "eos_token_id", None)
            for token in eos if isinstance(eos, list | tuple) else [] if eos is None else [eos]:
                if type(token) is not int:
                    raise ModelError(
                        f"eos_token_id is {shown(eos)} in its configuration; a token's number is needed"
                    )
                tokens.add(token)
        return {token for token in tokens if 0 <= token < self.vocabulary}

    @torch.no_grad()
    def run(self, token_ids: Tensor, positions: Tensor, forward_pass: ForwardPass) -> Tensor:
        """Last hidden states (N, d) of a pass's new tokens at positions (N,); undefined where not wanted."""
        token = _current.set(forward_pass)
        try:
            output = self.patched(
                input_ids=token_ids[None],
                position_ids=positions[None],
                attention_mask=torch.ones_like(token_ids)[None],
                use_cache=False,
            )
        finally:
            _current.reset(token)
        states: Tensor = output.last_hidden_state[0]
        return states

    @torch.no_grad()
    def run_unpatched(
        self, token_ids: Tensor, visible: Tensor, positions: Tensor, key_values: Cache
    ) -> Tensor:
        """Last hidden states (B, n, d) of new tokens (B, n), without our attention.

        `visible` (B, n, K) says which of the K tokens held (the new ones last) each new one sees, `positions`
        (B, K) are those of all tokens held.
        """
        new_positions = positions[:, positions.shape[1] - token_ids.shape[1] :]
        output = self.model.base_model(
            input_ids=token_ids,
            position_ids=new_positions,
            attention_mask=self._masks.additive(visible, new_positions, positions, self.dtype),
            past_key_values=key_values,
            use_cache=True,
        )
        states: Tensor = output.last_hidden_state
        return states

    @torch.no_grad()
    def logits(self, states: Tensor) -> Tensor:
        """Logits (N, V), float32, of states (N, d)."""
        rows = self.rows_at_a_time
        parts = [self._head_forward(states[i : i + rows]) for i in range(0, len(states), rows)]
        if len(parts) == 1:  # avoids a large copy
            return parts[0]
        return torch.cat(parts) if parts else torch.zeros((0, self.vocabulary), device=self.device)

    @property
    def rows_at_a_time(self) -> int:
        """How many rows of logits may exist at once."""
        most = _MAX_LOGITS if self.device.type == "cpu" else _MAX_LOGITS_ON_GPU
        return max(1, most // self.vocabulary)

    def _head_forward(self, states: Tensor) -> Tensor:
        output = self._head(inputs_embeds=states.to(self.device, self.dtype)[None], use_cache=False)
        logits: Tensor = output.logits[0]
        return logits.float()


def _copied(module: nn.Module, copies: dict[int, Any]) -> Any:
    """A module and its submodules, each copied once; `copies` holds copies of modules and configurations."""
    if id(module) in copies:
        return copies[id(module)]
    twin = copies[id(module)] = copy.copy(module)
    configs = {name: value for name, value in vars(module).items() if isinstance(value, PretrainedConfig)}
    vars(twin).update({name: _with_our_attention(config, copies) for name, config in configs.items()})
    vars(twin)["_modules"] = {
        name: None if part is None else _copied(part, copies) for name, part in module._modules.items()
    }
    return twin


def _with_our_attention(config: Any, copies: dict[int, Any]) -> Any:
    if id(config) not in copies:
        copies[id(config)] = copy.deepcopy(config)
        copies[id(config)]._attn_implementation = _NAME
    return copies[id(config)]


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention function that the layers of a patched body call."""
    unknown = [name for name, x in options.items() if isinstance(x, Tensor) and name not in _IGNORED]
    if attention_mask is not None or unknown:
        raise NotImplementedError(f"its attention also reads {', '.join(unknown) or 'a mask of its own'}")
    scaling = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    config = AttentionConfig(scaling, softcap, sliding_window)
    forward_pass = _current.get()
    last = getattr(module, _LAST_LAYER, False)
    layer = forward_pass.layers.setdefault(module.layer_idx, LayerCache(config, last))
    return forward_pass.attend(layer, query, key, value), None


AttentionInterface.register(_NAME, _attention)


def _skip_unwanted(body: Any) -> None:
    """Make the last layer of a copied body run only for wanted tokens.

    The layer is the last module with a submodule named `mlp`; a body without one is left unchanged.
    """
    layers = [module for module in body.modules() if "mlp" in module._modules]
    if layers:
        for module in layers[-1].modules():
            setattr(module, _LAST_LAYER, True)
        layers[-1].mlp.forward = partial(_forward_wanted, layers[-1].mlp.forward)


def _forward_wanted(forward: Callable[[Tensor], Tensor], states: Tensor) -> Tensor:
    """A per-token module (1, N, d) run for the wanted tokens; zeros for the others."""
    needed = _current.get().output_tokens
    if needed is None:
        return forward(states)
    output = states.new_zeros(states.shape)
    output[:, needed] = forward(states[:, needed])
    return output


class _GivenOutput:
    """A body's output that holds given states and None in every other field."""

    def __init__(self, states: Tensor) -> None:
        self.last_hidden_state = states

    def __getitem__(self, index: Any) -> Any:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _GivenBody(nn.Module):
    """Replaces the body, and any part of it: returns its inputs as states."""

    def __getattr__(self, name: str) -> Any:
        return self

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _GivenOutput:
        return _GivenOutput(inputs_embeds)


def _head_of(model: Any) -> Any:
    """The model's own forward without its body (a shallow copy that shares the weights)."""
    head = copy.copy(model)
    head.__dict__["_modules"] = {**model._modules, model.base_model_prefix: _GivenBody()}
    return head


def _rope(config: Any) -> dict[str, Any]:
    return getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}


def _steady_length(config: Any) -> int | None:
    """Up to how many tokens rotary positions do not depend on the sequence's length; None for any number.

    With "longrope" one token more rotates the keys of all tokens, also those of a shared prefix.
    """
    rope = _rope(config)
    ropes = [
        rope,
        *(rope_part for rope_part in rope.values() if isinstance(rope_part, dict)),
    ]  # of each kind of layer
    original = getattr(config, "original_max_position_embeddings", None)
    length_dependent = [
        rope_part
        for rope_part in ropes
        if rope_part.get("rope_type", rope_part.get("type")) in ("longrope", "su")
    ]
    lengths = [
        rope_part.get("original_max_position_embeddings") or original for rope_part in length_dependent
    ]
    return min((length for length in lengths if length), default=None)


class _Masks:
    """Attention masks for rows that hold trees of tokens, for each kind of attention layer of a model."""

    def __init__(self, config: Any) -> None:
        kinds = set(getattr(config, "layer_types", None) or ())
        if "chunked_attention" in kinds or "local" in (getattr(config, "attention_layers", None) or ()):
            raise ModelError(
                f"models of type {config.model_type!r} have local attention of a kind that is not supported"
            )
        self.window = getattr(config, "sliding_window", None)
        if not getattr(config, "use_sliding_window", True):
            self.window = None
        self.mixed = bool(self.window) and _SLIDING in kinds  # only some layers are local
        layers = getattr(config, "layer_types", None) or [_SLIDING] * config.num_hidden_layers
        self.windows = [self.window if kind == _SLIDING or not self.mixed else None for kind in layers]

    def additive(
        self, visible: Tensor, positions: Tensor, held: Tensor, dtype: torch.dtype
    ) -> Tensor | dict[str, Tensor]:
        """The mask (B, 1, n, K) to add to attention scores, or one for each kind of layer.

        `visible` (B, n, K) says whether a new token follows a held one in the tree (or is it), `positions`
        (B, n) are those of the new tokens, `held` (B, K) those of all tokens held.
        """
        if not self.window:
            return _as_floats(visible, dtype)
        near = held[:, None, :] > positions[:, :, None] - self.window
        if self.mixed:
            return {_FULL: _as_floats(visible, dtype), _SLIDING: _as_floats(visible & near, dtype)}
        return _as_floats(visible & near, dtype)


def _as_floats(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a token is seen, the lowest number of `dtype` elsewhere."""
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)[:, None]
