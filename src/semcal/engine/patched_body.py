"""A copy of a model's body whose attention reads and writes the three-level cache.

A body is copied without its weights, and the copy's configuration names our attention, registered in
transformers' attention interface. While a pass runs, each layer of the copy calls it with its queries, keys
and values. A layer that asks for more than scaling, soft-capping and a sliding window is refused, and the
model then runs unpatched.

A prompt's last token alone predicts the answer. So the last layer runs, beyond keys and values, only for the
tokens whose states the pass wants: of L layers, this saves nearly 1/L of the work.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PretrainedConfig

from semcal.engine.attention import AttentionConfig
from semcal.engine.layer_cache import ForwardPass, LayerCache

__all__ = ["patch_body", "run"]

_NAME = "semcal_levels"
_IGNORED = {"position_ids", "cache_position", "input_ids"}  # tensors that do not change the attention
_LAST_LAYER = "semcal_last"  # attribute that marks the modules of the last layer
_current: ContextVar[ForwardPass] = ContextVar("forward_pass")


def patch_body(body: Any, *, skip_unwanted: bool = True) -> Any:
    """A copy of the body with our attention; weights, buffers and hooks are shared.

    With `skip_unwanted` its last layer runs only for the tokens whose states the pass wants.
    """
    copied = _copied(body, {})
    if skip_unwanted:
        _skip_unwanted(copied)
    return copied


@torch.no_grad()
def run(body: Any, token_ids: Tensor, positions: Tensor, forward_pass: ForwardPass) -> Tensor:
    """Last hidden states (N, d) of a pass's N new tokens at positions (N,); undefined where not wanted."""
    token = _current.set(forward_pass)
    try:
        output = body(
            input_ids=token_ids[None],
            position_ids=positions[None],
            attention_mask=torch.ones_like(token_ids)[None],
            use_cache=False,
        )
    finally:
        _current.reset(token)
    states: Tensor = output.last_hidden_state[0]
    return states


def _copied(module: nn.Module, known: dict[int, Any]) -> Any:
    """A module and its submodules, each copied once; `known` holds copies of modules and configurations."""
    if id(module) in known:
        return known[id(module)]
    twin = known[id(module)] = copy.copy(module)
    configs = {name: value for name, value in vars(module).items() if isinstance(value, PretrainedConfig)}
    vars(twin).update({name: _with_our_attention(config, known) for name, config in configs.items()})
    vars(twin)["_modules"] = {
        name: None if part is None else _copied(part, known) for name, part in module._modules.items()
    }
    return twin


def _with_our_attention(config: Any, known: dict[int, Any]) -> Any:
    if id(config) not in known:
        known[id(config)] = copy.deepcopy(config)
        known[id(config)]._attn_implementation = _NAME
    return known[id(config)]


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
    dropout: float = 0.0,  # noqa: ARG001
    **others: Any,
) -> tuple[Tensor, None]:
    """The attention function that the layers of a patched body call."""
    unknown = [name for name, x in others.items() if isinstance(x, Tensor) and name not in _IGNORED]
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
    wanted = _current.get().wanted
    if wanted is None:
        return forward(states)
    found = states.new_zeros(states.shape)
    found[:, wanted] = forward(states[:, wanted])
    return found
