"""Attention masks for rows that hold trees of tokens, for each kind of attention layer that a model has."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from semcal.errors import ModelError

__all__ = ["Masks"]

_FULL, _SLIDING = "full_attention", "sliding_attention"


class Masks:
    """What the layers of a model may see, besides what the tree lets them see.

    Parameters
    ----------
    config : transformers.PretrainedConfig
        Of the text model. Its `sliding_window` and `layer_types` are read.

    Attributes
    ----------
    window : int or None
        How many positions a token sees back from its own, itself included, in local layers.
    mixed : bool
        Whether only some layers are local.
    windows : list of int or None
        The window of each layer.

    Raises
    ------
    ModelError
        If some layers' attention is local in a way that masks from outside cannot follow.
    """

    def __init__(self, config: Any) -> None:
        kinds = set(getattr(config, "layer_types", None) or ())
        if "chunked_attention" in kinds or "local" in (getattr(config, "attention_layers", None) or ()):
            raise ModelError(
                f"models of type {config.model_type!r} have local attention of a kind not supported"
            )
        self.window = getattr(config, "sliding_window", None)
        if not getattr(config, "use_sliding_window", True):
            self.window = None
        self.mixed = bool(self.window) and _SLIDING in kinds
        layers = getattr(config, "layer_types", None) or [_SLIDING] * config.num_hidden_layers
        self.windows = [self.window if kind == _SLIDING or not self.mixed else None for kind in layers]

    def additive(
        self, visible: Tensor, positions: Tensor, held: Tensor, dtype: torch.dtype
    ) -> Tensor | dict[str, Tensor]:
        """The mask that is added to attention scores, or one for each kind of layer.

        Parameters
        ----------
        visible : torch.Tensor
            (B, n, K) bool, whether a new token may see a held one: itself and those that it follows.
        positions : torch.Tensor
            (B, n) positions of the new tokens.
        held : torch.Tensor
            (B, K) positions of all tokens held, the new ones last.
        dtype : torch.dtype
            Of the attention scores.

        Returns
        -------
        torch.Tensor or dict
            (B, 1, n, K): 0 where a token is seen, the lowest number of `dtype` elsewhere.
        """
        if not self.window:
            return _floats(visible, dtype)
        near = held[:, None, :] > positions[:, :, None] - self.window
        if self.mixed:
            return {_FULL: _floats(visible, dtype), _SLIDING: _floats(visible & near, dtype)}
        return _floats(visible & near, dtype)


def _floats(visible: Tensor, dtype: torch.dtype) -> Tensor:
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)[:, None]
