"""Logits at many temperatures: exponentials, partition functions and log-probabilities, in one pass.

With the largest logit taken away, exp(βz) of a few rows fits into a processor's cache. All temperatures are
worked through there before the next rows are read, and no array of the size of the logits is ever made. A
further temperature adds one exponential a token. Where inverse temperatures are equally spaced, δ apart, some
exp(βz) times some exp(jδz) are those at all others, and their sums over the vocabulary a product of matrices.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["log_partitions", "log_probs_at"]

#: Numbers that are worked on together: half a megabyte in a processor's cache, more on a GPU.
CACHED, ON_DEVICE = 2**17, 2**26
#: Of equally spaced inverse temperatures one in so many, at most, is made anew, so that errors stay small.
MOST_PRODUCTS = 8
#: So many exponentials are summed in float32, and these sums in float64.
TILE = 256
#: exp(-87) is the smallest normal float32; below it arithmetic is ten times slower and changes nothing.
SMALLEST_EXPONENT = -87.0


def log_partitions(logits: Tensor, beta: Tensor) -> Tensor:
    """Log-partition functions log Σ exp(β (z − max z)) of every row at every temperature.

    Parameters
    ----------
    logits : torch.Tensor
        (N, V).
    beta : torch.Tensor
        (K,), inverse temperatures 1/T, positive; or (N, K), each row's own.

    Returns
    -------
    torch.Tensor
        (N, K) float64, at least 0; within 1e-6 of the value in float64. Logits of NaN or +inf, or rows of
        −inf alone, give NaN.

    Examples
    --------
    Two tokens, 3 : 1 at T = 1 and 9 : 1 at T = 1/2:

    >>> logits = torch.tensor([[3.0, 1.0]]).log()
    >>> log_partitions(logits, torch.tensor([1.0, 2.0])).exp()
    tensor([[1.3333, 1.1111]], dtype=torch.float64)
    """
    count, size = logits.shape
    found = torch.empty((count, beta.shape[-1]), dtype=torch.float64)
    step = max(1, (CACHED if logits.device.type == "cpu" else ON_DEVICE) // size)
    z_buffer, buffer = logits.new_empty((2, min(step, count), size), dtype=torch.float32)
    gap = _gap(beta) if beta.ndim == 1 else None
    even = None if gap is None else _Even(beta, gap, buffer)
    for start in range(0, count, step):
        rows = slice(start, start + step)
        chunk = logits[rows].float()
        z = torch.sub(chunk, chunk.amax(1, keepdim=True), out=z_buffer[: len(chunk)])
        if even is not None:
            found[rows] = torch.stack([even.sums(row) for row in z])
            continue
        least, scale = float(z.amin()), beta.to(z.device, torch.float32).expand(count, -1)[rows]
        for k, most in enumerate(scale.amax(0).tolist()):
            values = torch.mul(z, scale[:, k : k + 1], out=buffer[: len(chunk)])
            found[rows, k] = _sums(_exp(values, least * most)).cpu()
    return found.log_()


def _exp(exponents: Tensor, least: float) -> Tensor:
    """Exponentials in place; what is too small for a normal number is the smallest one."""
    return (exponents.clamp_(min=SMALLEST_EXPONENT) if least < SMALLEST_EXPONENT else exponents).exp_()


class _Even:
    """Σ exp(β z) of rows of V logits for K ascending β that stand `gap` apart."""

    def __init__(self, beta: Tensor, gap: float, like: Tensor) -> None:
        each = min(math.isqrt(len(beta) - 1) + 1, MOST_PRODUCTS)
        self.count, self.gap = len(beta), gap
        self.anew = beta[::each, None].to(like.device, torch.float32)
        self.bases = like.new_empty((len(self.anew), like.shape[1]))
        self.factors = like.new_ones((each, like.shape[1]))

    def sums(self, z: Tensor) -> Tensor:
        """(K,) float64 of logits (V,)."""
        _exp(torch.mul(z, self.anew, out=self.bases), float(z.amin()) * float(self.anew[-1]))
        torch.mul(z, self.gap, out=self.factors[1]).exp_()
        for j in range(2, len(self.factors)):
            torch.mul(self.factors[j - 1], self.factors[1], out=self.factors[j])
        return _products(self.bases, self.factors).flatten()[: self.count].cpu()


def _products(a: Tensor, b: Tensor) -> Tensor:
    """Matrix a bᵀ (G, J), float64, of (G, V) and (J, V); only some tiles at a time are summed in float32."""
    size = 4 * TILE
    whole = a.shape[1] // size * size
    left, right = (x[:, :whole].view(len(x), -1, size).transpose(0, 1) for x in (a, b))
    rest = a[:, whole:] @ b[:, whole:].T
    return torch.bmm(left, right.transpose(1, 2)).sum(0, dtype=torch.float64) + rest


def _sums(values: Tensor) -> Tensor:
    """Sums (p,) of (p, V) positive numbers, float64; only a tile at a time is summed in float32."""
    whole = values.shape[1] // TILE * TILE
    tiles = values[:, :whole].view(len(values), -1, TILE).sum(-1)
    return tiles.sum(1, dtype=torch.float64) + values[:, whole:].sum(1, dtype=torch.float64)


def _gap(beta: Tensor) -> float | None:
    """The distance of equally spaced inverse temperatures, if they are, and ascend."""
    gaps = beta.double().diff()
    if len(gaps) < 2 or not bool((gaps > 0).all() & ((gaps - gaps[0]).abs() <= 1e-9 * beta.max()).all()):
        return None
    return float(gaps.mean())


def log_probs_at(logits: Tensor, tokens: Tensor, beta: Tensor) -> Tensor:
    """Log-probabilities of chosen tokens at many temperatures.

    Parameters
    ----------
    logits : torch.Tensor
        (N, V).
    tokens : torch.Tensor
        (N, J) int64, the tokens of each row.
    beta : torch.Tensor
        (K,), inverse temperatures; or (N, K), each row's own.

    Returns
    -------
    torch.Tensor
        (N, J, K) float64 on the CPU, in nats, over the whole vocabulary.

    Examples
    --------
    >>> logits = torch.tensor([[3.0, 1.0]]).log()
    >>> log_probs_at(logits, torch.tensor([[0, 1]]), torch.tensor([1.0, 2.0])).exp()
    tensor([[[0.7500, 0.9000],
             [0.2500, 0.1000]]], dtype=torch.float64)
    """
    z = logits.gather(1, tokens.to(logits.device)).double() - logits.amax(1, keepdim=True).double()
    scaled = z.cpu()[:, :, None] * beta.double().cpu().expand(len(logits), -1)[:, None]
    return scaled - log_partitions(logits, beta)[:, None]
