"""Fused attention that also returns the log-sum-exp of the scores: which kernel serves what, if it is right.

PyTorch has one for CPUs, flash attention for half precision on CUDA, and memory-efficient attention for
float32 there. Before one is used it is compared with plain matrix products on a few random numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from semcal.errors import SemcalWarning

__all__ = ["Kernel", "kernel_for", "sound_kernel"]

Kernel = Callable[[Tensor, Tensor, Tensor, float, bool], tuple[Tensor, Tensor]]
"""Of queries (B, H, Q, D), keys and values (B, H, K, D), the scaling, and whether a query sees only keys up
to its own place: what they gather (B, H, Q, D), and the log-sum-exp (B, H, Q), float32."""

_ATEN = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)


def kernel_for(device: str, dtype: torch.dtype, width: int) -> Kernel | None:
    """The kernel for a type of device, a dtype and a width of heads; None if there is none.

    Examples
    --------
    >>> kernel_for("cuda", torch.bfloat16, 128).__name__, kernel_for("cuda", torch.float32, 128).__name__
    ('flash', 'efficient')
    """
    if device == "cpu":
        return on_cpu if hasattr(_ATEN, "_scaled_dot_product_flash_attention_for_cpu") else None
    if device == "cuda" and dtype in _HALF and width % 8 == 0 and width <= 256:
        return flash
    if device == "cuda" and dtype == torch.float32 and width % 4 == 0:
        return efficient
    return None


def on_cpu(query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool) -> tuple[Tensor, Tensor]:
    gathered, mass = _ATEN._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, scale=scaling
    )
    return gathered, mass


def flash(query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool) -> tuple[Tensor, Tensor]:
    gathered, mass, *_ = _ATEN._scaled_dot_product_flash_attention(
        query, key, value, 0.0, causal, False, scale=scaling
    )
    return gathered, mass


def efficient(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool
) -> tuple[Tensor, Tensor]:
    gathered, mass, *_ = _ATEN._scaled_dot_product_efficient_attention(
        query, key, value, None, True, 0.0, causal, scale=scaling
    )
    return gathered, mass[:, :, : query.shape[2]]  # it is padded to a multiple of 32


@cache
def sound_kernel(device: torch.device, dtype: torch.dtype, width: int) -> Kernel | None:
    """The kernel, if on this device it agrees with plain matrix products.

    Warns
    -----
    SemcalWarning
        If there is one but it does not: matrix products then serve, with more time and memory.
    """
    kernel = kernel_for(device.type, dtype, width)
    if kernel is None:
        return None
    try:
        off = max(_difference(kernel, device, dtype, width, causal=causal) for causal in (False, True))
        found = f"it is off by {off:.1e}"
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        off, found = float("inf"), str(error)
    if off <= (2e-2 if dtype in _HALF else 1e-4):
        return kernel
    warnings.warn(
        f"the fused attention of PyTorch for {dtype} on {device} with heads of {width} is not used: {found}",
        SemcalWarning,
        stacklevel=2,
    )
    return None


def _difference(
    kernel: Kernel, device: torch.device, dtype: torch.dtype, width: int, *, causal: bool
) -> float:
    """How far a kernel is off, at most, on what is gathered or on its log-sum-exp."""
    generator = torch.Generator().manual_seed(0)
    keys = 7 if causal else 40
    query, key, value = (
        torch.randn((2, 3, count, width), generator=generator).to(device, dtype) for count in (7, keys, keys)
    )
    scaling = width**-0.5
    gathered, mass = kernel(query, key, value, scaling, causal)
    scores = query.double() @ key.double().transpose(-1, -2) * scaling
    if causal:
        scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    off = (gathered - scores.softmax(-1) @ value.double()).abs().max()
    return float(torch.maximum(off, (mass - scores.logsumexp(-1)).abs().max()))
