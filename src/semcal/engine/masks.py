"""Attention masks for rows that hold trees of tokens, for each kind of attention layer that a model has."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from semcal.errors import ModelError

__all__ = ["Masks"]

_FULL, _SLIDING, _CHUNKED = "full_attention", "sliding_attention", "chunked_attention"


class Masks:
    """What the layers of a model may see, besides what the tree lets them see.

    Parameters
    ----------
    config : transformers.PretrainedConfig
        Of the text model. Its `layer_types`, `sliding_window` and `attention_chunk_size` are read.

    Raises
    ------
    ModelError
        If a layer's attention is local in a way that masks from outside cannot follow.
    """

    def __init__(self, config: Any) -> None:
        if "local" in (getattr(config, "attention_layers", None) or ()):
            raise ModelError(
                f"models of type {config.model_type!r} have local attention of their own; not supported"
            )
        window = (
            getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
        )
        self.reach: dict[str, int | None] = {_SLIDING: window}
        self.reach[_CHUNKED] = getattr(config, "attention_chunk_size", None)
        kinds = set(getattr(config, "layer_types", None) or ())
        limited = {kind for kind in kinds & {_SLIDING, _CHUNKED} if self.reach[kind]}
        self.kinds = {*limited, _FULL} if limited else set()
        self.everywhere = _SLIDING if window and not kinds else _FULL

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
        if not self.kinds:
            return _floats(visible & self._near(self.everywhere, positions, held), dtype)
        return {
            kind: _floats(visible & self._near(kind, positions, held), dtype) for kind in sorted(self.kinds)
        }

    def _near(self, kind: str, positions: Tensor, held: Tensor) -> Tensor:
        """Whether a held token is within reach, (B, n, K), or a single True where everything is."""
        query, key = positions[:, :, None], held[:, None, :]
        reach = self.reach.get(kind)
        if kind == _FULL or not reach:
            return torch.ones((), dtype=torch.bool, device=positions.device)
        return key > query - reach if kind == _SLIDING else key // reach == query // reach


def _floats(visible: Tensor, dtype: torch.dtype) -> Tensor:
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)[:, None]
