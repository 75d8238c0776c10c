"""Body and head of a causal language model, with exact attention to three levels of keys and values.

1. The common prefix of all prompts, once.
2. The rest of each prompt, once per question.
3. The tree: sampled or given tokens after a prompt, each distinct prefix once.

A pass runs new tokens of many questions in one row, (1, N); only the attention to the prompts is padded. In
each layer every new token attends to each level, and the parts are merged: softmax over a union of keys is
the mean of the softmaxes over its parts, each weighted by the exponential of its log-sum-exp. Therefore
shared keys are read in place, and the result is exact.

A fused kernel must return the log-sum-exp of the scores. PyTorch has one for CPUs, flash attention for half
precision on CUDA, and memory-efficient attention for float32 on CUDA. Each is compared with plain matrix
products on a few random numbers before it is used.

The body (tokens to hidden states) runs as a copy whose attention reads and writes these levels, or unpatched
with attention masks. The copy shares the weights, and its configuration selects the attention function of
this module, registered in the attention interface of transformers. In a pass, each layer calls the function
with its queries, keys and values. It supports scaling, soft-capping and a sliding window; a model with other
options runs unpatched. Only the last token of a prompt predicts the answer. Therefore the last layer
computes, beyond keys and values, only tokens whose states are read. Of L layers, this saves nearly 1/L.

The head (states to logits) is the code of the architecture with the body replaced by given states, so that
soft-capping and scaling of logits apply. No rule depends on the name of an architecture:
`tree_cache.checked_network` measures if the result is exact.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AttentionInterface, PretrainedConfig
from transformers.cache_utils import Cache

from semcal.errors import ModelError
from semcal.models.features import FEWEST_ROWS, BlockShape

Kernel = Callable[[Tensor, Tensor, Tensor, float, bool], tuple[Tensor, Tensor]]
"""(queries (B, H, Q, D), keys (B, H, K, D), values (B, H, K, D), scaling, whether causal)
-> outputs (B, H, Q, D) and log-sum-exp (B, H, Q), float32."""

_ATEN = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_MAX_SCORES = 2**21  # maximum attention scores in memory without a fused kernel


@dataclass(frozen=True)
class AttentionConfig:
    """Settings of the attention of a layer."""

    scaling: float  # factor of the scores
    softcap: float | None = None  # scores s become softcap * tanh(s / softcap)
    window: int | None = None  # a token sees itself and the window - 1 positions before it


@dataclass(frozen=True)
class PartialAttention:
    """Attention of queries over some of their keys."""

    output: Tensor  # (..., D), mean of the values, weighted by the softmax of the scores
    log_sum_exp: Tensor  # (...,) float32, of the scores


def merge(parts: Sequence[PartialAttention]) -> Tensor:
    """Merge attention over parts of the keys to attention over all keys (..., D)."""
    if len(parts) == 1:
        return parts[0].output
    weights = torch.softmax(torch.stack([part.log_sum_exp for part in parts]), 0)
    total = parts[0].output * weights[0, ..., None]
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        total.addcmul_(part.output.to(total.dtype), weight[..., None])
    return total.to(parts[0].output.dtype)


def attend(
    query: Tensor, key: Tensor, value: Tensor, config: AttentionConfig, visible: Tensor | None = None
) -> PartialAttention:
    """Compute attention of queries (B, H, Q, D) over keys (B, H, K, D) and values (B, H, K, E).

    `visible` (broadcast to (B, H, Q, K)) is a mask of the keys that a query sees; the default is all keys.
    The log-sum-exp of a query without visible keys is so low that the part has no weight in a merge.
    """
    if visible is None and (kernel := _kernel(query, value, config)):
        return PartialAttention(*kernel(query, key, value, config.scaling, False))
    step = max(1, _MAX_SCORES // max(1, query.shape[0] * query.shape[1] * key.shape[2]))
    if step >= query.shape[2]:
        return _attend(query, key, value, config, visible)
    parts = [
        _attend(query[:, :, i : i + step], key, value, config, _rows(visible, i, i + step))
        for i in range(0, query.shape[2], step)
    ]
    return PartialAttention(
        torch.cat([part.output for part in parts], 2), torch.cat([part.log_sum_exp for part in parts], 2)
    )


def attend_causally(query: Tensor, key: Tensor, value: Tensor, config: AttentionConfig) -> PartialAttention:
    """Compute attention of tokens (B, H, n, D), each to itself and to earlier tokens."""
    count = query.shape[2]
    if (config.window is None or config.window >= count) and (kernel := _kernel(query, value, config)):
        return PartialAttention(*kernel(query, key, value, config.scaling, True))
    visible = torch.ones((count, count), dtype=torch.bool, device=query.device).tril()
    if config.window is not None:
        visible = visible.triu(1 - config.window)
    return attend(query, key, value, config, visible)


def _kernel(query: Tensor, value: Tensor, config: AttentionConfig) -> Kernel | None:
    if config.softcap is not None or query.shape[-1] != value.shape[-1]:
        return None
    return checked_kernel(query.device, query.dtype, query.shape[-1])


def _rows(visible: Tensor | None, start: int, end: int) -> Tensor | None:
    if visible is None or visible.shape[-2] == 1:
        return visible
    return visible[..., start:end, :]


def _attend(
    query: Tensor, key: Tensor, value: Tensor, config: AttentionConfig, visible: Tensor | None
) -> PartialAttention:
    scores = torch.matmul(query * config.scaling, key.transpose(-1, -2)).float()
    if config.softcap is not None:
        scores = torch.tanh(scores / config.softcap) * config.softcap
    if visible is not None:
        scores.masked_fill_(~visible, -torch.inf)
    lowest = torch.finfo(scores.dtype).min / 2
    top = scores.amax(-1, keepdim=True).clamp_min_(lowest)  # for rows with only -inf
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True).clamp_min_(1e-30)
    log_sum_exp = (top + total.log())[..., 0]
    if value.dtype == torch.float16:  # cannot represent 1e-30 or a sum over many keys
        return PartialAttention(torch.matmul(weights.div_(total).to(value.dtype), value), log_sum_exp)
    output = torch.matmul(weights.to(value.dtype), value) / total.to(value.dtype)
    return PartialAttention(output, log_sum_exp)


def kernel_for(device: str, dtype: torch.dtype, width: int) -> Kernel | None:
    """Return the kernel for a type of device, a dtype and a width of heads, or None."""
    if device == "cpu":
        return on_cpu if hasattr(_ATEN, "_scaled_dot_product_flash_attention_for_cpu") else None
    if device == "cuda" and dtype in _HALF and width % 8 == 0 and width <= 256:
        return flash
    if device == "cuda" and dtype == torch.float32 and width % 4 == 0:
        return memory_efficient
    return None


def on_cpu(query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool) -> tuple[Tensor, Tensor]:
    output, log_sum_exp = _ATEN._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, scale=scaling
    )
    return output, log_sum_exp


def flash(query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool) -> tuple[Tensor, Tensor]:
    output, log_sum_exp, *_ = _ATEN._scaled_dot_product_flash_attention(
        query, key, value, 0.0, causal, False, scale=scaling
    )
    return output, log_sum_exp


def memory_efficient(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool
) -> tuple[Tensor, Tensor]:
    output, log_sum_exp, *_ = _ATEN._scaled_dot_product_efficient_attention(
        query, key, value, None, True, 0.0, causal, scale=scaling
    )
    return output, log_sum_exp[:, :, : query.shape[2]]  # the kernel pads to a multiple of 32


@cache
def checked_kernel(device: torch.device, dtype: torch.dtype, width: int) -> Kernel | None:
    """Return the kernel if it agrees with plain matrix products on this device, or None."""
    kernel = kernel_for(device.type, dtype, width)
    if kernel is None:
        return None
    with suppress(RuntimeError, ValueError, TypeError, NotImplementedError):
        error = max(_max_error(kernel, device, dtype, width, causal=causal) for causal in (False, True))
        if error <= (2e-2 if dtype in _HALF else 1e-4):
            return kernel
    return None


def _max_error(
    kernel: Kernel, device: torch.device, dtype: torch.dtype, width: int, *, causal: bool
) -> float:
    """Return the largest error of a kernel's output or log-sum-exp for random numbers."""
    generator = torch.Generator().manual_seed(0)
    keys = 7 if causal else 40
    query, key, value = (
        torch.randn((2, 3, count, width), generator=generator).to(device, dtype) for count in (7, keys, keys)
    )
    scaling = width**-0.5
    output, log_sum_exp = kernel(query, key, value, scaling, causal)
    scores = query.double() @ key.double().transpose(-1, -2) * scaling
    if causal:
        scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    error = (output - scores.softmax(-1) @ value.double()).abs().max()
    return float(torch.maximum(error, (log_sum_exp - scores.logsumexp(-1)).abs().max()))


_ROOM = 256  # additional slots of the tree when a full buffer grows
KeyValue = tuple[Tensor, Tensor]


@dataclass
class LayerCache:
    """One layer's keys and values at each level."""

    config: AttentionConfig
    last: bool = False  # True if the layer may skip tokens whose states are not read
    prefix: KeyValue | None = None  # (1, heads, P, D)
    prompts: KeyValue | None = None  # (B, heads, S, D), shorter prompts padded with zeros
    tree: KeyValue | None = None  # (slots and room, heads, D)

    def keep_prompts(self, rows: Tensor, columns: int) -> None:
        """Keep only these prompts, which have at most `columns` tokens."""
        if self.prompts is not None:
            self.prompts = self.prompts[0][rows, :, :columns], self.prompts[1][rows, :, :columns]

    def keep_slots(self, slots: Tensor) -> None:
        """Keep only the tokens of the trees in these slots (ascending), and renumber the slots."""
        if self.tree is not None:
            slots = slots[slots < len(self.tree[0])]  # an ATS reads only some tokens
            self.tree = self.tree[0][slots], self.tree[1][slots]

    def reserve(self, rows: int, columns: int) -> None:
        """Grow the buffers to `rows` prompts of `columns` tokens, padded with zeros."""
        if self.prompts is not None:
            keys, values = self.prompts
            self.prompts = _padded_to(keys, rows, columns), _padded_to(values, rows, columns)

    @property
    def bytes_per_token(self) -> int:
        """Size of the keys and values of one token."""
        return sum(map(token_bytes, self.prefix or self.prompts or ()))


@dataclass(frozen=True)
class PrefixPass:
    """The pass of the shared prefix: N tokens, each of which sees earlier tokens."""

    layers: dict[int, LayerCache]
    output_tokens: ClassVar[None] = None  # all tokens

    def attend(self, layer: LayerCache, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the attention output (1, N, H, D) of N new tokens in a layer, and store keys and values.

        Queries are (1, H, N, D), keys and values are (1, h, N, D). In the last layer the output of tokens
        outside `output_tokens` may be zeros.
        """
        layer.prefix = key.contiguous(), value.contiguous()
        groups = query.shape[1] // key.shape[1]
        part = attend_causally(query, _repeated(key, groups), _repeated(value, groups), layer.config)
        return part.output.transpose(1, 2)


@dataclass(frozen=True)
class PromptPass:
    """The pass of b prompts after the prefix, in one row."""

    layers: dict[int, LayerCache]
    prefix_length: int
    rows: Tensor  # (b,) rows of these prompts in the buffers
    lengths: Tensor  # (b,) number of tokens of each prompt
    buffer: tuple[int, int]  # rows and columns of the buffers for all prompts of the batch
    last_only: bool = False  # True if only the states of each prompt's last token are read

    @cached_property
    def ends(self) -> Tensor:
        """(b,) index of the last token of each prompt."""
        return self.lengths.cumsum(0) - 1

    @property
    def output_tokens(self) -> Tensor | None:
        """(R,) indices of the tokens whose last states are read; None for all tokens."""
        return self.ends if self.last_only else None

    @cached_property
    def prompt(self) -> Tensor:
        """(N,) the prompt of each token."""
        return torch.repeat_interleave(torch.arange(len(self.lengths), device=self.rows.device), self.lengths)

    @cached_property
    def column(self) -> Tensor:
        """(N,) number of earlier tokens in the prompt of each token."""
        return ranks(self.prompt)

    def attend(self, layer: LayerCache, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self._store(layer, key, value)
        if layer.last and self.last_only:
            return self._attend_from_ends(layer, query, key, value)
        groups = query.shape[1] // key.shape[1]
        q, k, v = (self._padded(states) for states in (query, key, value))
        prompt_part = attend_causally(q, _repeated(k, groups), _repeated(v, groups), layer.config)
        index = self.prompt, slice(None), self.column
        parts = [PartialAttention(prompt_part.output[index], prompt_part.log_sum_exp[index])]
        if layer.prefix is not None:
            position = self.prefix_length + self.column
            parts.append(_attend_to_prefix(layer.config, layer.prefix, query[0], position))
        return merge(parts)[None]

    def _attend_from_ends(self, layer: LayerCache, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the attention output (1, N, H, D) of last tokens, zeros for others; pad only scores."""
        groups, config = query.shape[1] // key.shape[1], layer.config
        ends, position = query[0][:, self.ends], self.prefix_length + self.lengths - 1  # (H, b, D), (b,)
        keys, values = (_repeated(states, groups)[0].float() for states in (key, value))  # (H, N, D)
        scores = (ends.float()[:, self.prompt] * keys).sum(-1) * config.scaling  # (H, N)
        if config.softcap is not None:
            scores = torch.tanh(scores / config.softcap) * config.softcap
        if config.window is not None:
            near = self.prefix_length + self.column > position[self.prompt] - config.window
            scores = scores.masked_fill(~near, -torch.inf)
        grid = scores.new_full((len(ends), len(self.lengths), int(self.lengths.max())), -torch.inf)
        grid[:, self.prompt, self.column] = scores
        log_sum_exp = grid.logsumexp(-1)  # (H, b)
        weights = (scores - log_sum_exp[:, self.prompt]).exp_()
        output = scores.new_zeros((*log_sum_exp.shape, values.shape[2]))
        output.index_add_(1, self.prompt, weights[..., None] * values)
        parts = [PartialAttention(output.to(query.dtype).transpose(0, 1), log_sum_exp.transpose(0, 1))]
        if layer.prefix is not None:
            parts.append(_attend_to_prefix(config, layer.prefix, ends, position))
        attended = query.new_zeros((1, query.shape[2], query.shape[1], value.shape[3]))
        attended[0, self.ends] = merge(parts)
        return attended

    def _store(self, layer: LayerCache, *key_value: Tensor) -> None:
        if layer.prompts is None:
            keys, values = (_padded_to(states[:, :, :0], *self.buffer) for states in key_value)
            layer.prompts = keys, values
        for buffer, states in zip(layer.prompts, key_value, strict=True):
            buffer[self.rows[self.prompt], :, self.column] = states[0].transpose(0, 1)

    def _padded(self, states: Tensor) -> Tensor:
        """Reshape (1, h, N, D) to (b, h, S, D)."""
        heads, _, width = states.shape[1:]
        rows, columns = len(self.lengths), int(self.column.max()) + 1
        grid = states.new_zeros((rows, columns, heads, width))
        grid[self.prompt, self.column] = states[0].transpose(0, 1)
        return grid.transpose(1, 2)


@dataclass(frozen=True)
class TreePass:
    """The pass of N new tokens of the trees."""

    layers: dict[int, LayerCache]
    prefix_length: int
    lengths: Tensor  # (B,) number of tokens of each prompt after the prefix, by row of the buffers
    row: Tensor  # (N,) ascending: the row of a token's prompt
    path: Tensor  # (N, T) slots of the tree tokens up to and including the token, then -1
    depth: Tensor  # (N,) length of each path
    first: int  # slot of the first new token; the others follow
    read_by: Tensor | None = None  # (N, r) bool, True if an ATS reads a token; None: all ATS read all
    output_tokens: ClassVar[None] = None
    _masks: dict[tuple[str, int | None], Tensor | None] = field(default_factory=dict)

    def attend(self, layer: LayerCache, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        last = self.first + len(self.row)
        self.store(layer, torch.arange(self.first, last, device=self.row.device), key, value)
        return self.attend_to_stored(layer, query, key.shape[1])

    def attend_some(
        self, index: Tensor, layer: LayerCache, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        """Return the attention output (1, n, H, D) of only these (ascending) new tokens, which are stored."""
        self.store(layer, self.first + index, key, value)
        row, path, depth = self.row[index], self.path[index], self.depth[index]
        some = replace(self, row=row, path=path, depth=depth, _masks={})
        return some.attend_to_stored(layer, query, key.shape[1])

    def store(self, layer: LayerCache, slots: Tensor, *key_value: Tensor) -> None:
        """Store keys and values (1, h, n, D) of the tokens in these slots (n,)."""
        keys, values = (states[0].transpose(0, 1) for states in key_value)
        last = int(slots[-1]) + 1
        if layer.tree is None:
            layer.tree = keys[:0], values[:0]
        if last > len(layer.tree[0]):
            room = last + max(_ROOM, last // 4)
            layer.tree = _moved_to(layer.tree[0], room, keys), _moved_to(layer.tree[1], room, values)
        layer.tree[0][slots], layer.tree[1][slots] = keys, values

    def attend_to_stored(self, layer: LayerCache, query: Tensor, heads: int) -> Tensor:
        """Return the attention output (1, n, H, D) of queries (1, H, n, D) over stored keys of h heads."""
        parts = [self._attend_to_tree(layer, query, heads), self._attend_to_prompts(layer, query, heads)]
        if layer.prefix is not None:
            parts.append(_attend_to_prefix(layer.config, layer.prefix, query[0], self.position))
        return merge(parts)[None]

    @cached_property
    def position(self) -> Tensor:
        """(N,) position of each token in its sequence."""
        return self.prefix_length + self.lengths[self.row] + self.depth - 1

    def _attend_to_tree(self, layer: LayerCache, query: Tensor, heads: int) -> PartialAttention:
        assert layer.tree is not None
        slots = self.path.clamp_min(0)
        keys, values = (states[slots].transpose(1, 2) for states in layer.tree)  # (N, h, T, D)
        grouped = query[0].reshape(heads, -1, *query.shape[2:]).permute(2, 0, 1, 3)  # (N, h, g, D)
        part = attend(grouped, keys, values, layer.config, self._tree_mask(layer.config.window))
        return PartialAttention(part.output.flatten(1, 2), part.log_sum_exp.flatten(1, 2))

    def _attend_to_prompts(self, layer: LayerCache, query: Tensor, heads: int) -> PartialAttention:
        """Attend to prompts with the queries of a question side by side, so that its keys are read once."""
        assert layer.prompts is not None
        held = self._rows
        rows, most, groups = held.stop - held.start, self._most, query.shape[1] // heads
        grid = query.new_zeros((rows * most, *query.shape[1:2], query.shape[3]))
        grid[self._place] = query[0].transpose(0, 1)
        grid = grid.view(rows, most, heads, groups, -1).transpose(1, 2).flatten(2, 3)
        keys, values = (states[held] for states in layer.prompts)
        part = attend(grid, keys, values, layer.config, self._prompt_mask(layer.config.window, groups))
        output = part.output.view(rows, heads, most, groups, -1).transpose(1, 2)
        log_sum_exp = part.log_sum_exp.view(rows, heads, most, groups).transpose(1, 2)
        return PartialAttention(
            output.reshape(rows * most, heads * groups, -1)[self._place],
            log_sum_exp.reshape(rows * most, heads * groups)[self._place],
        )

    @cached_property
    def _rank(self) -> Tensor:
        """(N,) number of earlier new tokens in the row of each token."""
        return ranks(self.row)

    @cached_property
    def _rows(self) -> slice:
        return slice(int(self.row[0]), int(self.row[-1]) + 1)

    @cached_property
    def _most(self) -> int:
        """The largest number of new tokens of a row."""
        return int(self._rank.max()) + 1

    @cached_property
    def _place(self) -> Tensor:
        """(N,) place of each token in a grid (rows, most)."""
        place: Tensor = (self.row - self._rows.start) * self._most + self._rank
        return place

    def _tree_mask(self, window: int | None) -> Tensor | None:
        """Return a mask (N, 1, 1, T), or None if every token sees its whole path."""
        if ("tree", window) not in self._masks:
            visible = self.path >= 0
            if window is not None:
                place = torch.arange(self.path.shape[1], device=self.path.device)
                visible = visible & (place > self.depth[:, None] - 1 - window)
            self._masks["tree", window] = None if bool(visible.all()) else visible[:, None, None]
        return self._masks["tree", window]

    def _prompt_mask(self, window: int | None, groups: int) -> Tensor | None:
        """Return a mask (B, 1, 1 or queries, S), or None if every token sees its whole prompt."""
        if ("prompt", window) not in self._masks:
            column = torch.arange(int(self.lengths.max()), device=self.row.device)
            full = bool(
                (self.lengths == len(column)).all()
            )  # of all rows, so that the batch does not decide the kernel
            visible = column < self.lengths[self._rows, None]
            if window is None:
                mask = visible[:, None, None]
            else:
                near = self.prefix_length + column > self.position[:, None] - window  # (N, S)
                grid = torch.ones(
                    (len(visible) * self._most, len(column)), dtype=torch.bool, device=visible.device
                )
                grid[self._place] = near
                grid = grid.view(len(visible), self._most, -1) & visible[:, None]
                mask = grid.repeat_interleave(groups, 1)[:, None]
            self._masks["prompt", window] = None if full and bool(mask.all()) else mask
        return self._masks["prompt", window]


ForwardPass = PrefixPass | PromptPass | TreePass
"""A forward pass of new tokens through the layers."""


def _attend_to_prefix(
    config: AttentionConfig, prefix: KeyValue, query: Tensor, position: Tensor
) -> PartialAttention:
    """Compute attention (N, H, D) of queries (H, N, D) at positions (N,) to the shared prefix."""
    heads, count = prefix[0].shape[1], query.shape[1]
    groups = query.shape[0] // heads
    visible = None
    if config.window is not None:
        place = torch.arange(prefix[0].shape[2], device=query.device)
        near = place > position[:, None] - config.window
        visible = None if bool(near.all()) else near.repeat(groups, 1)
    part = attend(query.reshape(1, heads, groups * count, -1), *prefix, config, visible)
    output = part.output.reshape(heads * groups, count, -1).transpose(0, 1)
    return PartialAttention(output, part.log_sum_exp.reshape(heads * groups, count).transpose(0, 1))


def token_bytes(states: Tensor) -> int:
    """Return the bytes of one token in keys or values (B, h, n, D)."""
    return states.shape[1] * states.shape[3] * states.element_size()


def ranks(rows: Tensor) -> Tensor:
    """Return the number of earlier equal entries for each of (N,) ascending row numbers."""
    counts = torch.bincount(rows)
    first = counts.cumsum(0) - counts
    return torch.arange(len(rows), device=rows.device) - first[rows]


def _repeated(states: Tensor, groups: int) -> Tensor:
    """Repeat keys or values (B, h, n, D) for each query head: (B, H, n, D)."""
    return states if groups == 1 else states.repeat_interleave(groups, 1)


def _padded_to(held: Tensor, rows: int, columns: int) -> Tensor:
    """Copy keys or values (B, h, S, D) to a buffer of `rows` rows and `columns` columns with zeros."""
    buffer = held.new_zeros((rows, held.shape[1], columns, held.shape[3]))
    buffer[: held.shape[0], :, : held.shape[2]] = held
    return buffer


def _moved_to(held: Tensor, slots: int, like: Tensor) -> Tensor:
    """Return a buffer of `slots` slots with `held` first, then zeros, because masked slots are read, too."""
    buffer = like.new_zeros((slots, *like.shape[1:]))
    buffer[: len(held)] = held
    return buffer


_MAX_LOGITS = 2**21  # maximum logits in memory: 8 MiB of float32
_MAX_LOGITS_ON_GPU = 2**26
#: Remedy for a model that is not supported.
SERVE_IT = "Serve it (for example with vLLM) and pass --model openai:URL#NAME, or use another model"
_FULL, _SLIDING = "full_attention", "sliding_attention"
_NAME = "semcal_levels"
_IGNORED = {"position_ids", "cache_position", "input_ids"}  # tensors that do not change the attention
_LAST_LAYER = "semcal_last"  # attribute that marks the modules of the last layer
_current: ContextVar[ForwardPass] = ContextVar("forward_pass")


class Network:
    """Body and head of a causal language model of transformers, in eval mode.

    ModelError if the model has no separate body, or has layers that are not supported.
    """

    def __init__(self, model: Any) -> None:
        self.model = model.eval().requires_grad_(False)
        if model.base_model is model:
            raise ModelError(
                f"{type(model).__name__}: its body cannot be separated from its head. {SERVE_IT}"
            )
        self._head = _head_of(model)
        self.device = torch.device(model.device)
        self.dtype: torch.dtype = model.dtype
        check_supported(f"{type(model).__name__} cannot be used", model.config)
        config = model.config.get_text_config()
        kinds = getattr(config, "layer_types", None) or ()
        window = getattr(config, "use_sliding_window", True) and getattr(config, "sliding_window", None)
        self._window: int | None = window or None
        self._mixed = self._window is not None and _SLIDING in kinds  # True if only some layers are local
        #: Number of positions that a token sees, itself included, by layer; None for all positions.
        self.windows = [
            self._window if kind == _SLIDING or not self._mixed else None
            for kind in kinds or [_SLIDING] * config.num_hidden_layers
        ]
        self.vocabulary = int(config.vocab_size)
        #: Maximum sequence length by the positions of the model, and the reason if it is not obvious.
        self.limit: int | None = getattr(config, "max_position_embeddings", None)
        self.limit_reason = ""
        if (steady := _steady_length(config)) is not None and steady < (self.limit or math.inf):
            self.limit = steady
            self.limit_reason = " before the positions of all its tokens change (longrope)"
        # measured by `checked_network`: bytes of one token's keys and values, size of a last hidden state
        self.bytes_per_token, self.width = 0, 0
        self.patched: Any = None  # the body with our attention, if the result is exact

    @property
    def block_shape(self) -> BlockShape:
        """Shape of a LLaMA-style block with the dimensions of the model."""
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
        """Patch a copy of the body; with `skip_unwanted`, its last layer computes only read tokens."""
        self.patched = _copied(self.model.base_model, {})
        if skip_unwanted:
            _skip_unwanted(self.patched)

    def end_of_text(self, *sources: Any) -> set[int]:
        """Return the tokens in the vocabulary that end a text, from generation config, config and `sources`.

        Some models use -1 for "none".
        """
        tokens: set[int] = set()
        for source in (self.model.generation_config, self.model.config, *sources):
            eos = getattr(source, "eos_token_id", None)
            tokens |= set(eos) if isinstance(eos, list | tuple) else {-1 if eos is None else eos}
        return {token for token in tokens if 0 <= token < self.vocabulary}

    @torch.no_grad()
    def run(self, token_ids: Tensor, positions: Tensor, forward_pass: ForwardPass) -> Tensor:
        """Return last hidden states (N, d) of new tokens at positions (N,); undefined for unread tokens."""
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
        """Return last hidden states (B, n, d) of new tokens (B, n), without our attention.

        `visible` (B, n, K) is a mask of the K cached tokens (new tokens last) that each new token sees;
        `positions` (B, K) are the positions of all cached tokens.
        """
        new_positions = positions[:, positions.shape[1] - token_ids.shape[1] :]
        output = self.model.base_model(
            input_ids=token_ids,
            position_ids=new_positions,
            attention_mask=self._additive_mask(visible, new_positions, positions),
            past_key_values=key_values,
            use_cache=True,
        )
        states: Tensor = output.last_hidden_state
        return states

    def _additive_mask(self, visible: Tensor, positions: Tensor, held: Tensor) -> Tensor | dict[str, Tensor]:
        """Return the mask (B, 1, n, K) to add to attention scores, or one mask per kind of layer.

        `positions` (B, n) are the positions of new tokens, `held` (B, K) those of all cached tokens.
        """

        def added(mask: Tensor) -> Tensor:
            floats = torch.zeros(mask.shape, dtype=self.dtype, device=mask.device)
            return floats.masked_fill_(~mask, torch.finfo(self.dtype).min)[:, None]

        if not self._window:
            return added(visible)
        local = added(visible & (held[:, None, :] > positions[:, :, None] - self._window))
        return {_FULL: added(visible), _SLIDING: local} if self._mixed else local

    @torch.no_grad()
    def state_within(self, token_ids: Sequence[int], depth: float) -> Tensor:
        """Return the hidden state (d,), float32, of the last token after a share `depth` of the layers."""
        tokens = torch.tensor([token_ids], device=self.device)
        output = self.model.base_model(input_ids=tokens, output_hidden_states=True, use_cache=False)
        state: Tensor = output.hidden_states[round(depth * (len(output.hidden_states) - 1))][0, -1]
        return state.float().cpu()

    @torch.no_grad()
    def logits(self, states: Tensor) -> Tensor:
        """Compute logits (N, V), float32, of states (N, d)."""
        rows, parts = self.rows_at_a_time, list[Tensor]()
        for start in range(0, len(states), rows):
            part = states[start : start + rows].to(self.device, self.dtype)
            parts.append(self._head(inputs_embeds=part[None], use_cache=False).logits[0].float())
        if len(parts) == 1:  # avoids a large copy
            return parts[0]
        return torch.cat(parts) if parts else torch.zeros((0, self.vocabulary), device=self.device)

    @property
    def rows_at_a_time(self) -> int:
        """Maximum rows of logits in memory."""
        most = _MAX_LOGITS if self.device.type == "cpu" else _MAX_LOGITS_ON_GPU
        return max(FEWEST_ROWS, most // self.vocabulary)


def _copied(module: nn.Module, copies: dict[int, Any]) -> Any:
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
    """Attention function for the layers of a patched body."""
    unknown = [name for name, x in options.items() if isinstance(x, Tensor) and name not in _IGNORED]
    if attention_mask is not None or unknown:
        raise NotImplementedError(f"its attention also reads {', '.join(unknown) or 'its own mask'}")
    scaling = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    config = AttentionConfig(scaling, softcap, sliding_window)
    forward_pass = _current.get()
    last = getattr(module, _LAST_LAYER, False)
    layer = forward_pass.layers.setdefault(module.layer_idx, LayerCache(config, last))
    return forward_pass.attend(layer, query, key, value), None


AttentionInterface.register(_NAME, _attention)


def _skip_unwanted(body: Any) -> None:
    """Make the last layer of a copied body compute only read tokens.

    The layer is the last module with a submodule named `mlp`; a body without such a module is unchanged.
    """
    layers = [module for module in body.modules() if "mlp" in module._modules]
    if layers:
        for module in layers[-1].modules():
            setattr(module, _LAST_LAYER, True)
        layers[-1].mlp.forward = partial(_forward_wanted, layers[-1].mlp.forward)


def _forward_wanted(forward: Callable[[Tensor], Tensor], states: Tensor) -> Tensor:
    """Run a per-token module (1, N, d) for read tokens; return zeros for others."""
    needed = _current.get().output_tokens
    if needed is None:
        return forward(states)
    output = states.new_zeros(states.shape)
    output[:, needed] = forward(states[:, needed])
    return output


class _GivenOutput:
    """Output of a body with given states, and None in every other field."""

    def __init__(self, states: Tensor) -> None:
        self.last_hidden_state = states

    def __getitem__(self, index: Any) -> Any:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _GivenBody(nn.Module):
    """Replacement of the body, and of any part of it, that returns its inputs as states."""

    def __getattr__(self, name: str) -> Any:
        return self

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _GivenOutput:
        return _GivenOutput(inputs_embeds)


def _head_of(model: Any) -> Any:
    """Return a shallow copy of the model without its body, which shares the weights."""
    head = copy.copy(model)
    head.__dict__["_modules"] = {**model._modules, model.base_model_prefix: _GivenBody()}
    return head


def _rope(config: Any) -> Mapping[str, Any]:
    return getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}


def _steady_length(config: Any) -> int | None:
    """Return the maximum length at which rotary positions are independent of the length; None for any length.

    With "longrope", a longer sequence changes the rotation of all keys, also those of a shared prefix.
    """
    rope = _rope(config)
    original = getattr(config, "original_max_position_embeddings", None)
    lengths = [
        kind.get("original_max_position_embeddings") or original
        for kind in (rope, *(part for part in rope.values() if isinstance(part, dict)))  # by kind of layer
        if kind.get("rope_type", kind.get("type")) in ("longrope", "su")
    ]
    return min((length for length in lengths if length), default=None)


#: Kinds of layers with a state instead of keys and values of each token.
_RECURRENT = {"linear_attention", "recurrent", "mamba", "conv", "hybrid"}
#: Types whose attention always has ALiBi.
_ALIBI = {"bloom", "mpt"}


def check_supported(failure: str, config: Any) -> None:
    """Raise ModelError if models of this configuration have layers that are not supported."""
    config = config.get_text_config()
    keys = ("layer_types", "layers_block_type", "attention_layers")
    kinds = {kind for key in keys for kind in getattr(config, key, None) or ()}
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    keeps_state = getattr(model_class, "_is_stateful", False) and not kinds
    part = ""
    if keeps_state or kinds & _RECURRENT:
        part = "recurrent layers"
    elif getattr(config, "alibi", False) or config.model_type in _ALIBI:
        part = "attention with ALiBi"
    elif kinds & {"chunked_attention", "local"}:
        part = "local attention without sliding windows"
    if part:
        has = f"models of type {config.model_type!r} have {part}, which is not supported"
        raise ModelError(f"{failure}: {has}. {SERVE_IT}")
