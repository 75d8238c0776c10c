"""Per-token tables of the log-partition function, from which losses are read without the vocabulary.

With β = 1/T and logits less their maximum, L(β) = logsumexp(β z) of a position is smooth in log β and falls
towards 0. Its Chebyshev series in log β over T in [0.05, 20] stands for all V logits in every loss of a
temperature; the target's logit, the mean logit and the top token complete it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from numpy.polynomial import chebyshev
from torch import Tensor

from semcal.errors import FitError, InputError
from semcal.recalibration.exact import T_MAX, T_MIN
from semcal.recalibration.losses import weight_and_centre
from semcal.recalibration.partitions import log_partitions
from semcal.recalibration.suffixes import Head, Suffixes

__all__ = ["NODES", "TOLERANCE", "Tables", "logit_chunks", "series", "tabulate"]

#: Chebyshev nodes in log β. The series converges at least as fast as for V equal logits below one other,
#: whose L has a singularity π / log V away from the real line: 96 nodes then leave 1e-5 at V = 32 000.
NODES = 96
#: Largest error of L in nats that a sample of positions may show.
TOLERANCE = 1e-4
#: Positions and temperatures at which the error is measured.
CHECKED, CHECKED_TEMPERATURES = 64, 41
#: Logits made at once, and logits yielded at once: the latter stay in a processor's cache.
CHUNK, CACHED = 1_000_000, 128_000


def _basis(beta: Tensor, nodes: int, low: float, high: float) -> Tensor:
    """Chebyshev polynomials (n, nodes) of log β scaled from [log low, log high] to [-1, 1]; float64."""
    half = math.log(high / low) / 2
    x = (beta.double().log() - math.log(low)) / half - 1
    return torch.cos(x.clamp(-1, 1).arccos()[:, None] * torch.arange(nodes, device=x.device))


@cache
def _derivative(nodes: int, low: float, high: float) -> Tensor:
    """Matrix D such that basis @ D is the derivative of the basis with respect to log β."""
    scale = 2 / math.log(high / low)
    columns = chebyshev.chebder(np.eye(nodes)) * scale  # (nodes - 1, nodes)
    return torch.as_tensor(np.pad(columns, ((0, 1), (0, 0))))


def series(coefficients: Tensor, beta: Tensor, *, low: float, high: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the values of Chebyshev series in log β and their first two derivatives in log β.

    Parameters
    ----------
    coefficients : Tensor, shape (..., n, K) or (K,)
        One series for each β, or one for all.
    beta : Tensor, shape (n,)
        Inverse temperatures in [low, high]; what lies outside counts as the bound.
    low, high : float
        The range of β that the series are made for.

    Returns
    -------
    (Tensor, Tensor, Tensor)
        float64, (..., n) each.

    Examples
    --------
    On [1/e, e] the scaled variable is log β itself, and T_2(u) = 2 u² − 1:

    >>> at = torch.tensor([math.exp(0.5)])
    >>> [t.tolist() for t in series(torch.tensor([0.0, 0.0, 1.0]), at, low=1 / math.e, high=math.e)]
    [[-0.5], [2.0], [4.0]]
    """
    nodes = coefficients.shape[-1]
    basis, d = _basis(beta, nodes, low, high), _derivative(nodes, low, high).to(beta.device)
    c = coefficients.double()
    value, first, second = ((c * b).sum(-1) for b in (basis, basis @ d, basis @ d @ d))
    return value, first, second


@dataclass(frozen=True)
class Tables:
    """What N answer tokens, predicted at S positions, contribute to any loss of a temperature.

    Attributes
    ----------
    coefficients : Tensor, shape (S, K), float32
        Chebyshev coefficients in log β of each position's L(β) = logsumexp(β (z − max z)).
    rows : Tensor, shape (S,)
        The row of `Suffixes.states` of each position.
    mean : Tensor, shape (S,), float64
        Mean logit less the largest; −inf where some token cannot occur.
    top : Tensor, shape (S,)
        The top token.
    position : Tensor, shape (N,)
        The position, an index up to S, that predicts each token.
    target : Tensor, shape (N,), float64
        Each token's logit less the largest.
    hit : Tensor, shape (N,), bool
        Whether each token is the top token.
    low, high : float
        The range of β.
    error : float
        Largest error of L, in nats, found on a sample of positions.
    """

    coefficients: Tensor
    rows: Tensor
    mean: Tensor
    top: Tensor
    position: Tensor
    target: Tensor
    hit: Tensor
    low: float
    high: float
    error: float

    def covers(self, beta: Tensor) -> bool:
        """Whether all inverse temperatures lie in the range, to rounding."""
        slack = 1e-6
        return bool(((beta >= self.low * (1 - slack)) & (beta <= self.high * (1 + slack))).all())

    def terms(self, *, loss: str, alpha: float | None) -> tuple[Tensor, Tensor]:
        """Return weight and centre (N,) of each token's loss w (L(β) − β c).

        Raises
        ------
        InputError
            If the loss of a token is infinite at every T, for a logit that it needs is −inf.
        """
        weight, centre = weight_and_centre(
            self.hit, self.target, self.mean[self.position], loss=loss, alpha=alpha
        )
        infinite = (centre == -torch.inf).nonzero()
        if len(infinite):
            raise InputError(
                f"the {loss} of token {int(infinite[0])} is infinite at every T, for a logit that it needs "
                "is -inf; leave the answer out"
            )
        return weight, centre

    def log_partition(self, position: Tensor, beta: Tensor) -> Tensor:
        """Return L (n,) of given positions (n,) at β (n,), float64, differentiable once with respect to β."""
        value, slope, _ = series(self.coefficients[position], beta.detach(), low=self.low, high=self.high)
        u = beta.double().log()
        return value + slope * (u - u.detach())


def logit_chunks(states: Tensor, rows: Tensor, head: Head) -> Iterator[tuple[slice, Tensor]]:
    """Yield (which of `rows`, their logits less the largest in float32), a few rows at a time.

    Raises
    ------
    InputError
        If a row's logits hold NaN or +inf, or are all −inf.
    """
    size = 1
    start = 0
    while start < len(rows):
        logits = head(states[rows[start : start + size]]).float()
        for block in torch.split(logits, max(1, CACHED // logits.shape[1])):
            z = block - block.amax(1, keepdim=True)
            odd = z.amax(1).isnan()
            if odd.any():
                row = int(rows[start + int(odd.nonzero()[0])])
                raise InputError(f"the logits of state {row} hold NaN or +inf, or are all -inf; leave it out")
            yield slice(start, start + len(z)), z
            start += len(z)
        size = max(1, CHUNK // logits.shape[1])


def _nodes(nodes: int, low: float, high: float) -> tuple[list[float], Tensor]:
    """Chebyshev nodes in β, and the matrix that turns values there into coefficients."""
    x = np.cos((2 * np.arange(nodes) + 1) * np.pi / (2 * nodes))
    matrix = 2 / nodes * np.cos(np.outer(np.arange(nodes), np.arccos(x)))
    matrix[0] /= 2
    half = math.log(high / low) / 2
    return list(np.exp(math.log(low) + half * (x + 1))), torch.as_tensor(matrix)


def tabulate(
    suffixes: Suffixes,
    head: Head,
    *,
    nodes: int = NODES,
    low: float = 1 / T_MAX,
    high: float = 1 / T_MIN,
    tolerance: float = TOLERANCE,
) -> Tables:
    """Read every position that predicts an answer token once and keep what the losses of a temperature need.

    Parameters
    ----------
    suffixes : Suffixes
        The calibration set.
    head : callable
        States (n, d) → logits (n, V).
    nodes : int
        Chebyshev nodes for each position.
    low, high : float
        The range of β = 1/T; by default all that a recalibrator may choose.
    tolerance : float
        Largest error in nats of the log-partition function.

    Returns
    -------
    Tables
        4 K + 20 bytes for each position, about 400 by default, and 17 for each token.

    Raises
    ------
    FitError
        If there is no answer token, or the error on a sample of positions exceeds the tolerance.
    InputError
        If logits hold NaN or +inf, or a target lies outside the vocabulary.
    """
    if not len(suffixes.targets):
        raise FitError("there is no answer token to fit to; give labelled questions")
    rows, position = torch.unique(suffixes.predicting_rows(), return_inverse=True)
    order = position.argsort(stable=True)
    ends = torch.searchsorted(position[order], torch.arange(len(rows)), right=True)
    betas, matrix = _nodes(nodes, low, high)
    coefficients = torch.empty(len(rows), nodes)
    mean = torch.empty(len(rows), dtype=torch.float64)
    top = torch.empty(len(rows), dtype=torch.long)
    target = torch.empty(len(position), dtype=torch.float64)
    for part, z in logit_chunks(suffixes.states, rows, head):
        coefficients[part] = (log_partitions(z, torch.tensor(betas)) @ matrix.T).float()
        mean[part], top[part] = z.mean(1, dtype=torch.float64).cpu(), z.argmax(1).cpu()
        tokens = order[int(ends[part.start - 1]) if part.start else 0 : int(ends[part][-1])]
        target[tokens] = _targets(z, position[tokens] - part.start, suffixes.targets[tokens], tokens)
    hit = top[position] == suffixes.targets
    tables = Tables(coefficients, rows, mean, top, position, target, hit, low, high, error=math.nan)
    return _checked(tables, suffixes, head, tolerance)


def _targets(z: Tensor, at: Tensor, targets: Tensor, tokens: Tensor) -> Tensor:
    outside = (targets < 0) | (targets >= z.shape[1])
    if outside.any():
        bad = int(outside.nonzero()[0])
        raise InputError(
            f"target {int(targets[bad])} of token {int(tokens[bad])} is outside the vocabulary of "
            f"{z.shape[1]}"
        )
    return z[at.to(z.device), targets.to(z.device)].double().cpu()


def _checked(tables: Tables, suffixes: Suffixes, head: Head, tolerance: float) -> Tables:
    """The tables with the error of a sample of positions, or FitError if it is too large."""
    count = len(tables.rows)
    sample = torch.arange(count)[:: max(1, count // CHECKED)][:CHECKED]
    betas = torch.logspace(math.log10(tables.low), math.log10(tables.high), CHECKED_TEMPERATURES)
    error = 0.0
    for part, z in logit_chunks(suffixes.states, tables.rows[sample], head):
        positions = sample[part].repeat_interleave(len(betas))
        found = tables.log_partition(positions, betas.repeat(len(sample[part]))).view(-1, len(betas))
        exact = torch.stack([torch.logsumexp(z.double() * float(b), 1).cpu() for b in betas], 1)
        error = max(error, float((found - exact).abs().max()))
    if error > tolerance:
        raise FitError(
            f"{tables.coefficients.shape[1]} Chebyshev nodes leave an error of {error:.1e} nats in the "
            f"log-partition function, {tolerance:.1e} is allowed; tabulate with more nodes or a smaller range"
        )
    return replace(tables, error=error)
