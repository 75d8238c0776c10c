"""Log-partition functions and log-probabilities at many temperatures, in one pass over the vocabulary.

With the largest logit subtracted, exp(βz) of a few rows fits into a processor's cache. All temperatures are
computed there before the next rows are read, and no array of the size of the logits is ever made. Many
temperatures cost as much as a few: with z = −d, d ≥ 0, every e^(−βd) is a weighted sum of e^(−β_k d) at nodes
β_k = a_i + j δ, and so is a sum of them over a vocabulary. The p exponentials of a_i z and the q powers of
exp(δ z) give the sums at all p · q nodes by a product of thin matrices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: Largest relative error of a sum over the vocabulary, in exact arithmetic, and the largest factor by which
#: relative errors of the sums at nodes may grow.
MOST_ERROR, MOST_GROWTH = 3e-7, 12.0
#: (p, q, γ, width, margin): bases spread by the power γ, from `margin` of the lowest β on, and steps `width`
#: times p · q equal ones. Found by search; each suits a wider range of temperatures than the one before it.
SHAPES = (
    (3, 4, 1.03, 0.99, 0.92),
    (4, 5, 1.17, 1.07, 0.7),
    (5, 6, 1.22, 0.77, 0.78),
    (6, 7, 1.26, 0.65, 0.78),
)
#: Most steps from a base, and how far they lead in relation to the lowest β, so that powers stay normal.
MOST_STEPS, FURTHEST = 8, 1.4
#: Distances from the largest logit at which weights are fitted, and at which they are checked.
FITTED, CHECKED = 200, 701
#: Rounding of a sum in float32, which keeps the weights small.
ROUNDING = 1e-7


@dataclass(frozen=True)
class Nodes:
    """Inverse temperatures a_i + j δ, j < q."""

    bases: NDArray[np.float32]  # (p,), ascending: a_i
    step: float  # δ, positive; (q − 1) δ is at most 1.4 times the lowest requested β
    steps: int  # q, at least 2

    @property
    def values(self) -> NDArray[np.float64]:
        """(p · q,), all of one base after another."""
        values = np.add.outer(self.bases.astype(np.float64), self.step * np.arange(self.steps))
        return np.asarray(values.ravel())

    @property
    def cost(self) -> float:
        """Work per token, in exponentials with their sums; fitted to measurements."""
        p, q = len(self.bases), self.steps
        return 4 + 0.8 * p + 0.3 * q + 0.1 * p * q


@dataclass(frozen=True)
class NodeWeights:
    """Σ exp(β z) at K inverse temperatures is `weights` (K, p · q) times the sums at the nodes."""

    nodes: Nodes
    weights: NDArray[np.float64]


@lru_cache(maxsize=64)
def shared_nodes(beta: tuple[float, ...], size: int) -> NodeWeights | None:
    """Return the cheapest nodes for Σ exp(β z) over a vocabulary, z ≤ 0 with a maximum of 0, at many β.

    `beta` ascend and are distinct, `size` is V, at most. The nodes have weights w for each β so that, at all
    of many distances d ≥ 0,

        |Σ_k w_k e^(−β_k d) − e^(−βd)| ≤ E (e^(−βd) + 1/V),  2 E ≤ 3e-7.

    Summed over the tokens that is E (Z + 1) ≤ 2 E Z, as Z ≥ 1. Relative errors ε of the sums at nodes change
    Z by at most 12 ε Z. None where no such nodes are known, or one exponential for each β is cheaper.

    Twenty temperatures from five exponentials and the powers of a sixth:
    """
    betas = np.array(beta)
    if len(betas) < 3 or not 0 < betas[0] <= betas[-1] < math.inf:
        return None
    for nodes in sorted([*_even(betas), *_sumsets(betas)], key=lambda nodes: nodes.cost):
        if nodes.cost >= len(betas):
            break
        weights = _weights(nodes.values, betas, size)
        if weights is not None:
            return NodeWeights(nodes, weights)
    return None


def _even(beta: NDArray[np.float64]) -> Iterator[Nodes]:
    """Equally spaced inverse temperatures are nodes themselves."""
    gap = float(beta[-1] - beta[0]) / (len(beta) - 1)
    steps = min(math.isqrt(len(beta) - 1) + 1, MOST_STEPS, 1 + int(FURTHEST * beta[0] / gap))
    if steps > 1 and (np.abs(np.diff(beta) - gap) <= 1e-9 * beta[-1]).all():
        yield Nodes(beta[::steps].astype(np.float32), gap, steps)


def _sumsets(beta: NDArray[np.float64]) -> Iterator[Nodes]:
    """Nodes from below the lowest β to the highest one, more and more of them."""
    low, high = float(beta[0]), float(beta[-1])
    for p, q, power, width, margin in SHAPES:
        step = width * (high - low) / (p * q)
        first, last = margin * low, high - (q - 1) * step
        bases = first + (last - first) * (np.arange(p) / (p - 1)) ** power
        if (q - 1) * step <= FURTHEST * low:
            yield Nodes(bases.astype(np.float32), float(np.float32(step)), q)


def _weights(nodes: NDArray[np.float64], beta: NDArray[np.float64], size: int) -> NDArray[np.float64] | None:
    """Weights (K, M) of nodes for each β; None if one of them exceeds the error bounds."""
    if len(nodes) >= len(beta) and np.allclose(nodes[: len(beta)], beta, rtol=2e-7, atol=0):
        return np.eye(len(beta), len(nodes))
    far, floor = math.log(1e9 * size) / nodes[0], 1 / size
    fitted, checked = _distances(far, beta[-1], FITTED), _distances(far, beta[-1], CHECKED)
    at_fitted, at_checked = np.exp(-np.outer(fitted, nodes)), np.exp(-np.outer(checked, nodes))
    found = np.empty((len(beta), len(nodes)))
    for k, b in enumerate(beta):
        found[k] = _least_squares(at_fitted, np.exp(-b * fitted), floor)
        if not _holds(found[k], at_checked, np.exp(-b * checked), floor):
            return None
    return found


def _distances(far: float, steepest: float, count: int) -> NDArray[np.float64]:
    """Distances from 0 to `far`, dense where e^(−βd) changes fast; all that is beyond `far` is nearly 0."""
    bend = 4 * steepest
    return np.asarray(np.expm1(np.linspace(0, math.log1p(far * bend), count)) / bend)


def _least_squares(
    nodes: NDArray[np.float64], wanted: NDArray[np.float64], floor: float
) -> NDArray[np.float64]:
    """Weights (M,) of least squares: relative errors, and growth of rounding errors."""
    scaled = nodes / (wanted + floor)[:, None]
    rounding = ROUNDING * len(wanted) ** 0.25 * np.diag(np.maximum(scaled.max(0), 1.0))
    q, r = np.linalg.qr(np.vstack([scaled, rounding]))
    return np.asarray(np.linalg.solve(r, q[: len(wanted)].T @ (wanted / (wanted + floor))))


def _holds(
    weights: NDArray[np.float64], nodes: NDArray[np.float64], wanted: NDArray[np.float64], floor: float
) -> bool:
    """Whether error and growth of rounding errors are within the bounds at all distances."""
    error = np.abs(nodes @ weights - wanted) / (wanted + floor)
    ratio = ((nodes + floor) / (wanted + floor)[:, None]).max(0)
    return bool(2 * error.max() <= MOST_ERROR and np.abs(weights) @ (2 * ratio - 1) <= MOST_GROWTH)


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
