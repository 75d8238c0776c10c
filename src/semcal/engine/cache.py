"""Keys and values in buffers with room to spare: new tokens are written in place, not concatenated."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

__all__ = ["SlotLayer", "bytes_per_slot", "empty", "spread"]

_ROOM = 64  # slots added beyond need when a buffer is full


class SlotLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values, (rows, heads, slots, width): `keys` and `values` are views of buffers."""

    is_initialized: bool
    key_buffer: Tensor
    value_buffer: Tensor

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append (rows, heads, n, width) and return all that is held."""
        if not self.is_initialized:
            self.hold(key_states[:, :, :0], value_states[:, :, :0])
        used, new = self.keys.shape[-2], key_states.shape[-2]
        if used + new > self.key_buffer.shape[-2]:
            self.key_buffer = _moved(self.keys, used + new + _ROOM)
            self.value_buffer = _moved(self.values, used + new + _ROOM)
        self.key_buffer[:, :, used : used + new] = key_states
        self.value_buffer[:, :, used : used + new] = value_states
        return self._show(used + new)

    def hold(self, keys: Tensor, values: Tensor) -> None:
        """Begin with these; they are copied before anything is written."""
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self.key_buffer, self.value_buffer = keys, values
        self._show(keys.shape[-2])

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows."""
        used = self.keys.shape[-2]
        self.key_buffer, self.value_buffer = self.key_buffer[indices], self.value_buffer[indices]
        self._show(used)

    def _show(self, used: int) -> tuple[Tensor, Tensor]:
        self.keys: Tensor = self.key_buffer[:, :, :used]
        self.values: Tensor = self.value_buffer[:, :, :used]
        return self.keys, self.values


def _moved(held: Tensor, slots: int) -> Tensor:
    """A buffer of `slots` slots with `held` at its front."""
    buffer = held.new_empty((*held.shape[:2], slots, held.shape[3]))
    buffer[:, :, : held.shape[2]] = held
    return buffer


def empty() -> Cache:
    """A cache that holds nothing yet."""
    return Cache(layer_class_to_replicate=SlotLayer)


def spread(cache: Cache, rows: int) -> Cache:
    """A cache of `rows` rows, each with the tokens of the one row of `cache`, which stays as it is.

    The tokens are not copied here but when new ones are first written, together with the room for them.
    """
    layers = []
    for layer in cache.layers:
        copy = SlotLayer()
        copy.hold(layer.keys.expand(rows, -1, -1, -1), layer.values.expand(rows, -1, -1, -1))
        layers.append(copy)
    return Cache(layers=layers) if layers else empty()


def bytes_per_slot(cache: Cache) -> int:
    """Bytes that one token of one row takes, over all layers."""
    held = [states for layer in cache.layers for states in (layer.keys, layer.values)]
    return sum(states.shape[1] * states.shape[3] * states.element_size() for states in held)
