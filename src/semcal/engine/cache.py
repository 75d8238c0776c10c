"""Keys and values in buffers with room to spare: new tokens are written in place, not concatenated."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

__all__ = ["SlotLayer", "bytes_per_slot", "spread"]

_ROOM = 64  # slots added beyond need when a buffer is full


class SlotLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values, (rows, heads, slots, width); `keys` and `values` are views of the buffers."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append (rows, heads, n, width) and return all that is held."""
        if not self.is_initialized:
            self.dtype, self.device = key_states.dtype, key_states.device
            self.key_buffer = key_states.new_empty((*key_states.shape[:2], 0, key_states.shape[-1]))
            self.value_buffer = value_states.new_empty((*value_states.shape[:2], 0, value_states.shape[-1]))
            self.keys, self.values = self.key_buffer, self.value_buffer
            self.is_initialized = True
        used, new = self.keys.shape[-2], key_states.shape[-2]
        if used + new > self.key_buffer.shape[-2]:
            self.reserve(used + new + _ROOM, key_states.shape[0])
        self.key_buffer[:, :, used : used + new] = key_states
        self.value_buffer[:, :, used : used + new] = value_states
        return self._show(used + new)

    def reserve(self, slots: int, rows: int) -> None:
        """Move to buffers of `slots` slots; one row becomes `rows` equal ones."""
        self.key_buffer = _moved(self.keys, slots, rows)
        self.value_buffer = _moved(self.values, slots, rows)
        self._show(self.keys.shape[-2])

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows."""
        used = self.keys.shape[-2]
        self.key_buffer = self.key_buffer[indices]
        self.value_buffer = self.value_buffer[indices]
        self._show(used)

    def _show(self, used: int) -> tuple[Tensor, Tensor]:
        self.keys = self.key_buffer[:, :, :used]
        self.values = self.value_buffer[:, :, :used]
        return self.keys, self.values


def _moved(held: Tensor, slots: int, rows: int) -> Tensor:
    """A buffer of the given size with `held` at its front."""
    buffer = held.new_empty((rows, held.shape[1], slots, held.shape[3]))
    buffer[:, :, : held.shape[2]] = held
    return buffer


def spread(cache: Cache, rows: int) -> Cache:
    """A cache of `rows` rows, each with the tokens of the one row of `cache`, which stays as it is.

    The prefix is copied when the first new tokens are written, together with the room for them.
    """
    layers = []
    for layer in cache.layers:
        copy = SlotLayer()
        copy.dtype, copy.device, copy.is_initialized = layer.dtype, layer.device, True
        copy.key_buffer = layer.keys.expand(rows, -1, -1, -1)
        copy.value_buffer = layer.values.expand(rows, -1, -1, -1)
        copy._show(layer.keys.shape[-2])
        layers.append(copy)
    return Cache(layers=layers) if layers else Cache(layer_class_to_replicate=SlotLayer)


def bytes_per_slot(cache: Cache) -> int:
    """Bytes that one token of one row holds, over all layers."""
    total = 0
    for layer in cache.layers:
        for held in (layer.keys, layer.values):
            total += held.shape[1] * held.shape[3] * held.element_size()
    return total
