"""Log-partition functions and log-probabilities at many temperatures, in one pass over the vocabulary.

With the largest logit subtracted, exp(βz) of a few rows fits into a processor's cache. All temperatures are
computed there before the next rows are read, and no array of the size of the logits is ever made. Many
temperatures cost as much as a few, whose sums determine those of all others (`exponential_sums`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from semcal.recalibration.exponential_sums import Nodes, NodeWeights, shared_nodes

__all__ = ["log_partitions", "log_probs_at"]

#: Numbers computed together: half a megabyte in a processor's cache, more on a GPU; and those of several
#: exponentials side by side.
CACHED, ON_DEVICE, SIDE_BY_SIDE = 2**17, 2**26, 3 * 2**18
#: So many exponentials are summed in float32, and these sums in float64.
TILE = 128
#: Largest ratio of inverse temperatures that share nodes, as a logarithm.
WIDEST = 2.0
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
    if beta.ndim == 2 or not len(beta):
        return _each(logits, beta).log_()
    values, inverse = torch.unique(beta.double().cpu(), return_inverse=True)
    ranges = _ranges(values)
    size = 1 << (logits.shape[1] - 1).bit_length()
    shared = [shared_nodes(tuple(part.tolist()), size) for part in ranges]
    if not any(shared):
        return _each(logits, beta).log_()
    sums = [_at_nodes(logits, some) if some else _each(logits, part) for part, some in zip(ranges, shared)]
    return torch.cat(sums, 1).clamp_(min=1.0).log_()[:, inverse]


def _ranges(values: Tensor) -> list[Tensor]:
    """Ascending inverse temperatures, cut into ranges that are not too wide for common nodes."""
    logs = values.log()
    width = float(logs[-1] - logs[0])
    count = max(1, math.ceil(width / WIDEST)) if math.isfinite(width) else 1
    ends = logs[0] + width / count * torch.arange(1, count)
    return list(torch.tensor_split(values, torch.searchsorted(logs, ends)))


def _each(logits: Tensor, beta: Tensor) -> Tensor:
    """Σ exp(β (z − max z)), (N, K) float64 on the CPU, one exponential per token and β, (K,) or (N, K)."""
    count, size = logits.shape
    found = torch.empty((count, beta.shape[-1]), dtype=torch.float64)
    step = max(1, (CACHED if logits.device.type == "cpu" else ON_DEVICE) // size)
    z_buffer, buffer = logits.new_empty((2, min(step, count), size), dtype=torch.float32)
    for start in range(0, count, step):
        rows = slice(start, start + step)
        chunk = logits[rows].float()
        z = torch.sub(chunk, chunk.amax(1, keepdim=True), out=z_buffer[: len(chunk)])
        least, scale = float(z.amin()), beta.to(z.device, torch.float32).expand(count, -1)[rows]
        for k, most in enumerate(scale.amax(0).tolist()):
            values = torch.mul(z, scale[:, k : k + 1], out=buffer[: len(chunk)])
            found[rows, k] = _sums(_exp(values, least * most, SMALLEST_EXPONENT)).cpu()
    return found


def _exp(exponents: Tensor, least: float, smallest: float) -> Tensor:
    """Exponentials in place; below the smallest exponent, that one's."""
    return (exponents.clamp_(min=smallest) if least < smallest else exponents).exp_()


def _sums(values: Tensor) -> Tensor:
    """Sums (p,) of (p, V) positive numbers, float64; only a tile at a time is summed in float32."""
    whole = values.shape[1] // TILE * TILE
    tiles = values[:, :whole].view(len(values), -1, TILE).sum(-1)
    return tiles.sum(1, dtype=torch.float64) + values[:, whole:].sum(1, dtype=torch.float64)


def _at_nodes(logits: Tensor, shared: NodeWeights) -> Tensor:
    """Σ exp(β (z − max z)), (N, K) float64 on the CPU, from the sums at common nodes."""
    count, size = logits.shape
    sums = _NodeSums(shared.nodes, logits.device)
    width = min(-(-size // TILE) * TILE, sums.numbers)
    step = sums.numbers // width
    found = torch.empty((count, sums.p * sums.q), dtype=torch.float64)
    for start in range(0, count, step):
        rows = logits[start : start + step].float()
        top = rows.amax(1, keepdim=True)
        pieces = [sums(piece, top) for piece in torch.split(rows, width, 1)]
        found[start : start + step] = sum(pieces[1:], pieces[0]).cpu()
    return found @ torch.from_numpy(shared.weights).T


class _NodeSums:
    """Sums at all nodes over a piece of the vocabulary, in buffers that the next piece reuses."""

    def __init__(self, nodes: Nodes, device: torch.device) -> None:
        self.bases = torch.from_numpy(nodes.bases).to(device)[:, None, None]
        self.p, self.q = len(nodes.bases), nodes.steps
        self.step, self.last = nodes.step, float(nodes.bases[-1])
        arrays = 1 + self.p + self.q
        room = SIDE_BY_SIDE if device.type == "cpu" else ON_DEVICE
        self.numbers = max(1, room // arrays // TILE) * TILE
        self.buffer = torch.empty(arrays * self.numbers, device=device)

    def __call__(self, logits: Tensor, top: Tensor) -> Tensor:
        """(R, p · q) float64 of logits (R, W) below the largest ones (R, 1)."""
        rows, size = logits.shape
        tiled = -(-size // TILE) * TILE
        arrays = self.buffer[: (1 + self.p + self.q) * rows * tiled].view(-1, rows, tiled)
        (z,), left, right = torch.split(arrays, [1, self.p, self.q])
        torch.sub(logits, top, out=z[:, :size])
        z[:, size:] = 0
        least = float(z.amin())
        _exp(torch.mul(z, self.bases, out=left), self.last * least, SMALLEST_EXPONENT / 2)
        left[:, :, size:] = 0
        self._powers(z, least, right)
        left, right = (x.view(len(x), -1, TILE).transpose(0, 1) for x in (left, right))
        products = torch.bmm(left, right.transpose(1, 2)).view(rows, -1, self.p * self.q)
        return products.sum(1, dtype=torch.float64)

    def _powers(self, z: Tensor, least: float, out: Tensor) -> None:
        """exp(j · step · z) for j = 0, 1, ...; the last is not below the root of a normal number."""
        out[0] = 1
        _exp(torch.mul(z, self.step, out=out[1]), self.step * least, SMALLEST_EXPONENT / 2 / (self.q - 1))
        for j in range(2, self.q):
            torch.mul(out[j - 1], out[1], out=out[j])


def log_probs_at(logits: Tensor, tokens: Tensor, beta: Tensor) -> Tensor:
    """Log-probabilities of chosen tokens at many temperatures.

    Parameters
    ----------
    logits : torch.Tensor
        (N, V).
    tokens : torch.Tensor
        (N, J) int64, the tokens of each row.
    beta : torch.Tensor
        (K,), inverse temperatures; or (N, K), different for each row.

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
