"""Exact attention over separate groups of keys, with fused kernels where they are accurate.

softmax over a union of keys is the mean of the softmaxes over its parts, each weighted by the exponential of
its log-sum-exp. So keys that many queries share are read in place, and the result is exact.

A fused kernel must return the log-sum-exp of the scores. PyTorch has one for CPUs, flash attention for half
precision on CUDA, and memory-efficient attention for float32 on CUDA. Each is compared with plain matrix
products on a few random numbers before it is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from semcal.errors import SemcalWarning

Kernel = Callable[[Tensor, Tensor, Tensor, float, bool], tuple[Tensor, Tensor]]
"""(queries (B, H, Q, D), keys (B, H, K, D), values (B, H, K, D), scaling, whether causal)
-> outputs (B, H, Q, D) and log-sum-exp (B, H, Q), float32."""

_ATEN = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_MAX_SCORES = 2**21  # attention scores that exist at a time where no fused kernel keeps them in cache


@dataclass(frozen=True)
class AttentionConfig:
    """How a layer attends."""

    scaling: float  # factor of the scores
    softcap: float | None = None  # scores s become softcap * tanh(s / softcap)
    window: int | None = None  # a token sees itself and the window - 1 positions before it


@dataclass(frozen=True)
class PartialAttention:
    """Attention of queries over some of their keys."""

    output: Tensor  # (..., D), mean of the values, weighted by the softmax of the scores
    log_sum_exp: Tensor  # (...,) float32, of the scores


def merge(parts: Sequence[PartialAttention]) -> Tensor:
    """Attention over all keys together (..., D)."""
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
    """Attention of queries (B, H, Q, D) over keys (B, H, K, D) and values (B, H, K, E).

    `visible` (broadcast to (B, H, Q, K)) says which keys a query sees; by default all. The log-sum-exp of a
    query that sees none is so low that the part has no weight beside any other.
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
    """Attention of tokens (B, H, n, D) that each see themselves and those before."""
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
    top = scores.amax(-1, keepdim=True).clamp_min_(lowest)  # no row may be -inf throughout
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True).clamp_min_(1e-30)
    log_sum_exp = (top + total.log())[..., 0]
    if value.dtype == torch.float16:  # holds neither 1e-30 nor a sum over many keys
        return PartialAttention(torch.matmul(weights.div_(total).to(value.dtype), value), log_sum_exp)
    output = torch.matmul(weights.to(value.dtype), value) / total.to(value.dtype)
    return PartialAttention(output, log_sum_exp)


def kernel_for(device: str, dtype: torch.dtype, width: int) -> Kernel | None:
    """The kernel for a type of device, a dtype and a width of heads; None if there is none."""
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
    return output, log_sum_exp[:, :, : query.shape[2]]  # it is padded to a multiple of 32


@cache
def checked_kernel(device: torch.device, dtype: torch.dtype, width: int) -> Kernel | None:
    """The kernel, if on this device it agrees with plain matrix products.

    SemcalWarning if there is one but it does not: matrix products are used, with more time and memory.
    """
    kernel = kernel_for(device.type, dtype, width)
    if kernel is None:
        return None
    try:
        error = max(_max_error(kernel, device, dtype, width, causal=causal) for causal in (False, True))
        found = f"it is off by {error:.1e}"
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as failure:
        error, found = float("inf"), str(failure)
    if error <= (2e-2 if dtype in _HALF else 1e-4):
        return kernel
    warnings.warn(
        f"the fused attention of PyTorch for {dtype} on {device} with heads of {width} is not used: {found}",
        SemcalWarning,
        stacklevel=2,
    )
    return None


def _max_error(
    kernel: Kernel, device: torch.device, dtype: torch.dtype, width: int, *, causal: bool
) -> float:
    """Largest error of a kernel's output or log-sum-exp on random numbers."""
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
