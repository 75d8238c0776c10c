"""The three levels behind transformers' registered attention interface: one implementation for every model.

A model's body is copied without its weights, and the copy's configuration names our attention. While a pass
runs, each layer of the copy hands its queries, keys and values to it. What a layer asks for beyond scaling,
soft-capping and a sliding window is refused, and the model then runs as it is.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PretrainedConfig

from semcal.engine.attention import Rule
from semcal.engine.last_layer import current, is_last, run_where_wanted
from semcal.engine.levels import Layer, Pass

__all__ = ["copied_body", "run"]

_NAME = "semcal_levels"
_HARMLESS = {"position_ids", "cache_position", "input_ids"}


def copied_body(body: Any, *, where_wanted: bool = True) -> Any:
    """The body with weights, buffers and hooks shared, and configurations that name our attention.

    Its last layer runs only `where_wanted`, or everywhere.
    """
    copied = _copied(body, {})
    if where_wanted:
        run_where_wanted(copied)
    return copied


def _copied(module: nn.Module, known: dict[int, Any]) -> Any:
    """A module and its parts, each copied once; `known` holds the copies of modules and configurations."""
    if id(module) in known:
        return known[id(module)]
    twin = known[id(module)] = copy.copy(module)
    settings = {name: value for name, value in vars(module).items() if isinstance(value, PretrainedConfig)}
    vars(twin).update({name: _renamed(config, known) for name, config in settings.items()})
    vars(twin)["_modules"] = {
        name: None if part is None else _copied(part, known) for name, part in module._modules.items()
    }
    return twin


def _renamed(config: Any, known: dict[int, Any]) -> Any:
    if id(config) not in known:
        known[id(config)] = copy.deepcopy(config)
        known[id(config)]._attn_implementation = _NAME
    return known[id(config)]


@torch.no_grad()
def run(body: Any, token_ids: Tensor, positions: Tensor, through: Pass) -> Tensor:
    """Last hidden states (N, d) of the N new tokens of a pass, at their positions (N,).

    Those that the pass does not want may be anything.
    """
    token = current.set(through)
    try:
        output = body(
            input_ids=token_ids[None],
            position_ids=positions[None],
            attention_mask=torch.ones_like(token_ids)[None],
            use_cache=False,
        )
    finally:
        current.reset(token)
    states: Tensor = output.last_hidden_state[0]
    return states


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
    """What the layers of a copied body call."""
    strange = [name for name, x in others.items() if isinstance(x, Tensor) and name not in _HARMLESS]
    if attention_mask is not None or strange:
        raise NotImplementedError(f"its attention also reads {', '.join(strange) or 'a mask of its own'}")
    rule = Rule(query.shape[-1] ** -0.5 if scaling is None else float(scaling), softcap, sliding_window)
    through = current.get()
    layer = through.layers.setdefault(module.layer_idx, Layer(rule, is_last(module)))
    return through.attend(layer, query, key, value), None


AttentionInterface.register(_NAME, _attention)
