"""Attention in parts: what a query gathers from some keys, and how much these weigh beside others.

softmax over a union of keys is the mean of the softmaxes over its parts, each weighted by the exponential of
its log-sum-exp. So keys that many queries share are read where they are, and the result is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from semcal.engine.kernels import Kernel, sound_kernel

__all__ = ["Part", "Rule", "attend", "attend_causally", "merged"]

_SCORES = 2**21  # attention scores that exist at a time where no fused kernel keeps them in cache


@dataclass(frozen=True)
class Rule:
    """How a layer attends.

    Attributes
    ----------
    scaling : float
        Factor of the scores.
    softcap : float or None
        Scores s become softcap * tanh(s / softcap).
    window : int or None
        A token sees itself and the window - 1 positions before it.
    """

    scaling: float
    softcap: float | None = None
    window: int | None = None


@dataclass(frozen=True)
class Part:
    """What queries gather from some of their keys.

    Attributes
    ----------
    gathered : torch.Tensor
        (..., D), mean of the values, weighted by the softmax of the scores.
    mass : torch.Tensor
        (...,) float32, log-sum-exp of the scores.
    """

    gathered: Tensor
    mass: Tensor


def merged(parts: Sequence[Part]) -> Tensor:
    """What queries gather from all keys together (..., D)."""
    if len(parts) == 1:
        return parts[0].gathered
    mass = torch.stack([part.mass for part in parts])
    weights = torch.softmax(mass, 0)
    total = parts[0].gathered * weights[0, ..., None]
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        total.addcmul_(part.gathered.to(total.dtype), weight[..., None])
    return total.to(parts[0].gathered.dtype)


def attend(query: Tensor, key: Tensor, value: Tensor, rule: Rule, visible: Tensor | None = None) -> Part:
    """Part of queries (B, H, Q, D) over keys (B, H, K, D) and values (B, H, K, E).

    `visible` (broadcast to (B, H, Q, K)) says which keys a query sees; by default all. A query that sees none
    has a mass so low that the part counts for nothing beside any other.
    """
    if visible is None and (kernel := _fused(query, value, rule)):
        return Part(*kernel(query, key, value, rule.scaling, False))
    step = max(1, _SCORES // max(1, query.shape[0] * query.shape[1] * key.shape[2]))
    if step >= query.shape[2]:
        return _attend(query, key, value, rule, visible)
    parts = [
        _attend(query[:, :, i : i + step], key, value, rule, _rows(visible, i, i + step))
        for i in range(0, query.shape[2], step)
    ]
    return Part(torch.cat([part.gathered for part in parts], 2), torch.cat([part.mass for part in parts], 2))


def attend_causally(query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Part:
    """Part of tokens that each see themselves and those before, in order (B, H, n, D)."""
    count = query.shape[2]
    if (rule.window is None or rule.window >= count) and (kernel := _fused(query, value, rule)):
        return Part(*kernel(query, key, value, rule.scaling, True))
    visible = torch.ones((count, count), dtype=torch.bool, device=query.device).tril()
    if rule.window is not None:
        visible = visible.triu(1 - rule.window)
    return attend(query, key, value, rule, visible)


def _fused(query: Tensor, value: Tensor, rule: Rule) -> Kernel | None:
    """The kernel that serves, if there is one."""
    if rule.softcap is not None or query.shape[-1] != value.shape[-1]:
        return None
    return sound_kernel(query.device, query.dtype, query.shape[-1])


def _rows(visible: Tensor | None, start: int, end: int) -> Tensor | None:
    if visible is None or visible.shape[-2] == 1:
        return visible
    return visible[..., start:end, :]


def _attend(query: Tensor, key: Tensor, value: Tensor, rule: Rule, visible: Tensor | None) -> Part:
    scores = torch.matmul(query * rule.scaling, key.transpose(-1, -2)).float()
    if rule.softcap is not None:
        scores = torch.tanh(scores / rule.softcap) * rule.softcap
    if visible is not None:
        scores.masked_fill_(~visible, -torch.inf)
    lowest = torch.finfo(scores.dtype).min / 2
    top = scores.amax(-1, keepdim=True).clamp_min_(lowest)  # no row may be -inf throughout
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True).clamp_min_(1e-30)
    mass = (top + total.log())[..., 0]
    if value.dtype == torch.float16:  # holds neither 1e-30 nor what many keys add up to
        return Part(torch.matmul(weights.div_(total).to(value.dtype), value), mass)
    return Part(torch.matmul(weights.to(value.dtype), value) / total.to(value.dtype), mass)
