"""A sequence classifier whose last layer runs only where its head reads: at the first token.

The heads of BERT and its relatives read the first token and no other. Behind the keys and values of the last
layer the other tokens are therefore never looked at: of L layers, about 1/L of the work.
"""

from __future__ import annotations

import copy
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["FirstTokenLayer", "first_token_only"]

#: Difference of logits, relative to the largest, up to which both ways count as the same.
SAME = 1e-4
#: Length and number of the inputs on which they are compared; the last is padded from half of its length.
TOKENS, INPUTS = 12, 4
#: Reads the parts that a layer must have.
_LAYOUT = attrgetter(
    *(f"attention.self.{part}" for part in ("query", "key", "value", "num_attention_heads")),
    *("attention.self.attention_head_size", "attention.output", "intermediate", "output"),
)


class FirstTokenLayer(nn.Module):
    """A layer of an encoder in the style of BERT, evaluated at the first token.

    Parameters
    ----------
    layer : torch.nn.Module
        With ``attention.self.{query, key, value}``, ``attention.output``, ``intermediate`` and ``output``.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any
    ) -> Tensor:
        """Map (B, L, d) to (B, 1, d); the mask may be bool or added to the scores, (B, 1, 1 or L, L)."""
        layer, attention = self.layer, self.layer.attention.self
        first = hidden_states[:, :1]
        split = (attention.num_attention_heads, attention.attention_head_size)
        query = attention.query(first).unflatten(2, split).transpose(1, 2)
        key = attention.key(hidden_states).unflatten(2, split).transpose(1, 2)
        value = attention.value(hidden_states).unflatten(2, split).transpose(1, 2)
        mask = None if attention_mask is None else attention_mask[:, :, :1]
        gathered = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        attended = layer.attention.output(gathered.transpose(1, 2).flatten(2), first)
        read: Tensor = layer.output(layer.intermediate(attended), attended)
        return read


def first_token_only(model: Any) -> Any:
    """Return the same classifier with a `FirstTokenLayer` at the end; `model` itself where that is no gain.

    Both must give the same logits on inputs that are tried here, so a model with another layout, or a head
    that reads other tokens, is returned as it is. The weights are shared, `model` stays what it was.
    """
    try:
        found = _shortened(model)
    except AttributeError:  # another layout
        return model
    logits = _logits(model)
    try:
        same = _logits(found)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):  # layers are called otherwise
        return model
    close = logits.shape == same.shape and bool((logits - same).abs().max() <= SAME * logits.abs().max())
    return found if close else model


def _shortened(model: Any) -> Any:
    found = copy.copy(model)
    found._modules = dict(model._modules)
    layers = _own(_own(_own(found, model.base_model_prefix), "encoder"), "layer")
    _LAYOUT(layers[-1])
    layers._modules[str(len(layers) - 1)] = FirstTokenLayer(layers[-1])
    return found


def _own(parent: Any, name: str) -> Any:
    """Give a module a part of its own in place of a shared one: the same weights, another table of parts."""
    part = copy.copy(getattr(parent, name))
    part._modules = dict(part._modules)
    parent._modules[name] = part
    return part


@torch.inference_mode()
def _logits(model: Any) -> Tensor:
    """Logits (INPUTS, labels) of made-up inputs."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (INPUTS, TOKENS), generator=generator)
    mask = torch.ones_like(ids)
    mask[-1, TOKENS // 2 :] = 0
    where = model.device
    found: Tensor = model(input_ids=ids.to(where), attention_mask=mask.to(where)).logits
    return found.float()
