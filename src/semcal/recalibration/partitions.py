"""Log-partition functions at many temperatures, in one pass over the vocabulary.

With the largest logit subtracted, exp(βz) of a few rows fits into a processor's cache. All temperatures are
computed there before the next rows are read, and no array of the size of the logits is ever made.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Numbers computed together: half a megabyte in a processor's cache, more on a GPU.
CACHED, ON_DEVICE = 2**17, 2**26
#: So many exponentials are summed in float32, and these sums in float64.
TILE = 128
#: exp(-87) is the smallest normal float32; below it arithmetic is ten times slower and changes nothing.
SMALLEST_EXPONENT = -87.0


def log_partitions(logits: Tensor, beta: Tensor) -> Tensor:
    """Log-partition functions log Σ exp(β (z − max z)) of every row at every temperature.

    Parameters
    ----------
    logits : torch.Tensor
        (N, V).
    beta : torch.Tensor
        (K,), inverse temperatures 1/T, positive; or (N, K), different for each row.

    Returns
    -------
    torch.Tensor
        (N, K) float64, at least 0; within 1e-6 of the value in float64, or 2e-5 in rows with hundreds of
        (nearly) equal logits, which all round the same way. Logits of NaN or +inf, or rows of −inf alone,
        give NaN.

    Examples
    --------
    Two tokens, 3 : 1 at T = 1 and 9 : 1 at T = 1/2:

    >>> logits = torch.tensor([[3.0, 1.0]]).log()
    >>> log_partitions(logits, torch.tensor([1.0, 2.0])).exp()
    tensor([[1.3333, 1.1111]], dtype=torch.float64)
    """
    count, size = logits.shape
    sums = torch.empty((count, beta.shape[-1]), dtype=torch.float64)
    step = max(1, (CACHED if logits.device.type == "cpu" else ON_DEVICE) // size)
    z_buffer, buffer = logits.new_empty((2, min(step, count), size), dtype=torch.float32)
    for start in range(0, count, step):
        rows = slice(start, start + step)
        chunk = logits[rows].float()
        z = torch.sub(chunk, chunk.amax(1, keepdim=True), out=z_buffer[: len(chunk)])
        least, scale = float(z.amin()), beta.to(z.device, torch.float32).expand(count, -1)[rows]
        for k, most in enumerate(scale.amax(0).tolist()):
            values = torch.mul(z, scale[:, k : k + 1], out=buffer[: len(chunk)])
            sums[rows, k] = _tile_sums(_exponentials(values, least * most)).cpu()
    return sums.log_()


def _exponentials(exponents: Tensor, least: float) -> Tensor:
    """Exponentials in place; below the smallest exponent, that one's."""
    return (exponents.clamp_(min=SMALLEST_EXPONENT) if least < SMALLEST_EXPONENT else exponents).exp_()


def _tile_sums(values: Tensor) -> Tensor:
    """Sums (p,) of (p, V) positive numbers, float64; only a tile at a time is summed in float32."""
    whole = values.shape[1] // TILE * TILE
    tiles = values[:, :whole].view(len(values), -1, TILE).sum(-1)
    return tiles.sum(1, dtype=torch.float64) + values[:, whole:].sum(1, dtype=torch.float64)
