"""Logits at many temperatures: exponentials, partition functions and log-probabilities, in one pass.

With the largest logit taken away, exp(βz) of a few rows fits into a processor's cache. All temperatures are
worked through there before the next rows are read, and no array of the size of the logits is ever made. A
further temperature adds one exponential a token, or one product where the inverse temperatures are equally
spaced: exp((β + δ)z) = exp(βz) exp(δz).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from semcal.recalibration.tables import SMALLEST_EXPONENT

__all__ = ["TILE", "Exponentials", "exponentials", "log_partitions", "log_probs_at"]

#: Numbers that are worked on together: half a megabyte in a processor's cache, more on a GPU.
CACHED, ON_DEVICE = 2**17, 2**26
#: Of equally spaced inverse temperatures one in so many is made anew, so that errors stay small.
PRODUCTS = 5
#: Tokens whose exponentials are summed in float32; the sums are added up in float64.
TILE = 256


@dataclass(frozen=True)
class Exponentials:
    """exp(β (z − max z)) of some rows at one temperature of each.

    Attributes
    ----------
    rows : slice or torch.Tensor
        Which p rows.
    column : int
        Which of the temperatures of these rows.
    values : torch.Tensor
        (p, tiles, TILE) float32, zeros behind the vocabulary's end. Overwritten by the next ones.
    """

    rows: slice | Tensor
    column: int
    values: Tensor


def exponentials(logits: Tensor, beta: Tensor, wanted: Tensor | None = None) -> Iterator[Exponentials]:
    """Yield the exponentials of all rows at all temperatures, a few rows and one temperature at a time.

    Parameters
    ----------
    logits : torch.Tensor
        (N, V), of any float dtype.
    beta : torch.Tensor
        (N, K) or (K,), inverse temperatures, on the CPU.
    wanted : torch.Tensor, optional
        (N, K) bool, on the CPU: the others are left out.
    """
    count, size = logits.shape
    tiles = -(-size // TILE)
    step = max(1, (CACHED if logits.device.type == "cpu" else ON_DEVICE) // (tiles * TILE))
    z_buffer, buffer, factors = logits.new_zeros((3, min(step, count), tiles * TILE), dtype=torch.float32)
    gap = None if wanted is not None or beta.ndim == 2 else _gap(beta)
    scale = beta.to(logits.device, torch.float32).expand(count, -1)
    low = [SMALLEST_EXPONENT / float(most) for most in scale.amax(0)] if count else []
    for start in range(0, count, step):
        chunk = logits[start : start + step].float()
        z = torch.sub(chunk, chunk.amax(1, keepdim=True), out=z_buffer[: len(chunk), :size])
        least = float(z.amin())
        if gap is not None:
            torch.mul(z, gap, out=factors[: len(z), :size]).exp_()
        all_rows = slice(start, start + len(z))
        for k in range(scale.shape[1]):
            rows: slice | Tensor = all_rows
            some = z
            if wanted is not None and not bool(wanted[all_rows, k].all()):
                here = wanted[all_rows, k].nonzero()[:, 0]
                rows, some = start + here, z[here.to(z.device)]
            values = buffer[: len(some)]
            if gap is not None and k % PRODUCTS:
                values.mul_(factors[: len(some)])
            elif len(some):
                scaled = torch.mul(some, scale[rows, k : k + 1], out=values[:, :size])
                (scaled.clamp_(min=SMALLEST_EXPONENT) if least < low[k] else scaled).exp_()
            if len(some):
                yield Exponentials(rows, k, values.view(len(some), tiles, TILE))


def _gap(beta: Tensor) -> float | None:
    """The distance of equally spaced inverse temperatures, if they are, and ascend."""
    gaps = beta.double().diff()
    if len(gaps) < 2 or not bool((gaps > 0).all() & ((gaps - gaps[0]).abs() <= 1e-9 * beta.max()).all()):
        return None
    return float(gaps.mean())


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
    beta = beta.cpu()
    found = torch.empty((len(logits), beta.shape[-1]), dtype=torch.float64)
    for part in exponentials(logits, beta):
        found[part.rows, part.column] = part.values.sum(-1).sum(1, dtype=torch.float64).cpu()
    return found.log_()


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
