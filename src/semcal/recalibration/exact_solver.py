"""The paper's losses, and the temperatures that minimize several of them exactly (spec section 6).

With β = 1/T and logits z minus their maximum, L(β) = logsumexp(β z) of a position is smooth in log β and
decreases to 0. Its Chebyshev series in log β over T in [0.05, 20] replaces all V logits in every loss of a
temperature, together with the target's logit, the mean logit and the top token. The solver finds the minimum
of a loss from these series and corrects it by Newton steps on exact sums, which all losses share.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from numpy.polynomial import chebyshev
from numpy.typing import ArrayLike, NDArray
from scipy.interpolate import CubicSpline
from scipy.optimize import minimize_scalar
from torch import Tensor

from semcal.errors import FitError, InputError, UndefinedWarning
from semcal.metrics.probability_maps import FOLDS
from semcal.models.features import FEWEST_ROWS, FitFeatures, Head, SequenceBatch
from semcal.models.protocols import AnyRecalibrator, LanguageModel, StateReader
from semcal.recalibration.records import (
    PAPER_LOSSES,
    T_MAX,
    T_MIN,
    Loss,
    LossSums,
    TemperatureFit,
    certify,
    check_enough,
    check_loss,
)

#: Answers per computation of inverse temperatures.
ANSWERS = 16
#: Replacement of a logit of −inf: its exponential is 0 at every temperature, also in float32.
SMALLEST = -1e5
#: Maximum logits in float64 at once while fitting, so that they fit in a processor's cache.
FLOAT64_LOGITS = 128_000


def as_logits(logits: ArrayLike | Tensor, targets: ArrayLike | Tensor) -> tuple[Tensor, Tensor]:
    """Return logits (N, V) and target tokens (N,) as tensors; InputError for invalid numbers or shapes."""
    z, y = torch.as_tensor(logits), torch.as_tensor(targets)
    if z.ndim != 2 or y.shape != z.shape[:1]:
        raise InputError(
            f"logits: got shapes {tuple(z.shape)} and {tuple(y.shape)}. Pass logits (N, V) and targets (N,)"
        )
    _check_targets(y, z.shape[1])
    bad = z.isnan().any(1) | (z == torch.inf).any(1) | (z == -torch.inf).all(1)
    if bad.any():
        raise InputError(
            f"logits: token {int(bad.nonzero()[0])} has NaN or +inf, or only -inf. Remove the token"
        )
    return z, y.long()


def _check_targets(targets: Tensor, vocabulary: int) -> None:
    invalid = (targets != targets.long()) | (targets < 0) | (targets >= vocabulary)
    if invalid.any():
        at = int(invalid.nonzero()[0])
        raise InputError(
            f"targets: got {targets[at].item()} for token {at}. Pass token ids below {vocabulary}, the size "
            "of the vocabulary"
        )


def sums_of_logits(
    beta: float, logits: Tensor, targets: Tensor, *, loss: str, alpha: float | None
) -> LossSums:
    """Return the sums of N tokens at `beta`, for logits (N, V) and targets (N,), some tokens at a time.

    InputError if a loss is infinite at every temperature, because a logit is −inf.
    """
    total = LossSums(0.0, 0.0, 0.0, 0.0)
    size = max(1, FLOAT64_LOGITS // max(1, logits.shape[1]))
    for start in range(0, len(targets), size):
        part = slice(start, start + size)
        total += sums_at(beta, logits[part], targets[part], loss=loss, alpha=alpha)
    return total


def sums_at(beta: float, logits: Tensor, targets: Tensor, *, loss: str, alpha: float | None) -> LossSums:
    """Return the sums of N tokens at `beta`, for logits (N, V) and targets (N,), at once."""
    z = logits.double()
    z = z - z.amax(1, keepdim=True)
    target = z.gather(1, targets[:, None])[:, 0]
    w, centre = weight_and_centre(z.argmax(1) == targets, target, z.mean(1), loss=loss, alpha=alpha)
    _check_finite(centre, loss)
    log_partition, mean, variance = moments(beta, z)
    return LossSums(
        n=float(len(targets)),
        loss=float((w * (log_partition - beta * centre)).sum()),
        slope=float((w * (mean - centre)).sum()),
        curvature=float((w * variance).sum()),
    )


def weight_and_centre(
    hit: Tensor, target: Tensor, mean: Tensor, *, loss: str, alpha: float | None
) -> tuple[Tensor, Tensor]:
    """Return w and c (N,) from `hit` (the target is the top token), the target logit and the mean logit."""
    if loss != "SS":
        return torch.ones_like(target), target
    assert alpha is not None
    return alpha + (1 - 2 * alpha) * hit.to(target.dtype), torch.where(hit, target, mean)


def token_losses(log_probs: Tensor, targets: Tensor, *, loss: str, alpha: float | None) -> Tensor:
    """Return the loss (nats) of each token for recalibrated probabilities (paper, "ce loss", "ss loss").

    `log_probs` (..., V) are recalibrated, `targets` (...) are the reference tokens; the top token of
    `log_probs` decides the case of SS. InputError if the loss of a token is infinite.

    >>> log_probs = torch.tensor([[0.5, 0.25, 0.25]]).log()
    >>> token_losses(log_probs, torch.tensor([1]), loss="NLL", alpha=None)
    tensor([1.3863])
    >>> token_losses(log_probs, torch.tensor([1]), loss="SS", alpha=0.3)
    tensor([0.3466])
    """
    losses = -log_probs.gather(-1, targets[..., None])[..., 0]
    if loss == "SS":
        assert alpha is not None
        hit = log_probs.argmax(-1) == targets
        losses = torch.where(hit, (1 - alpha) * losses, -alpha * log_probs.mean(-1))
    _check_finite(losses, loss)
    return losses


def mean_loss(log_probs: Tensor, targets: Tensor, *, loss: str, alpha: float | None) -> Tensor:
    """Return the mean of `token_losses`."""
    return token_losses(log_probs, targets, loss=loss, alpha=alpha).mean()


def _check_finite(values: Tensor, loss: str) -> None:
    odd = ~values.flatten().isfinite()
    if odd.any():
        raise InputError(
            f"logits: the {loss} of token {int(odd.nonzero()[0])} is infinite at every T, because a logit is "
            "-inf or NaN. Remove the token or its answer"
        )


def moments(beta: float, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return logsumexp(β z), E_β[z] and Var_β[z] of each row of logits (N, V), whose largest is 0."""
    z = logits.masked_fill(logits == -torch.inf, SMALLEST)  # has weight 0; 0 times -inf would be NaN
    weighted = torch.exp(beta * z)
    total = weighted.sum(1)
    mean = weighted.mul_(z).sum(1) / total
    return total.log(), mean, weighted.mul_(z).sum(1) / total - mean.square()


#: Numbers per computation: half a megabyte in a processor's cache, more on a GPU.
IN_CACHE, ON_DEVICE = 2**17, 2**26
#: Exponentials per float32 sum; float64 adds these sums.
TILE = 128
#: exp(-87) is the smallest normal float32; arithmetic with smaller numbers is ten times slower.
SMALLEST_EXPONENT = -87.0
#: Minimum vocabulary for binned logits; width of a bin in the logarithm of the distance from the largest
#: logit; smallest and largest distance in nats.
BINNED_FROM, WIDTH, NEAREST, FARTHEST = 8192, 0.02, 1e-6, 1e4


def log_partitions(logits: Tensor, beta: Tensor) -> Tensor:
    """Return log Σ exp(β (z − max z)), (N, K) float64, of logits (N, V) at β (K,).

    The error is below 1e-6, or 2e-5 for rows with hundreds of (nearly) equal logits, whose rounding errors
    are equal.
    """
    count, size = logits.shape
    sums = torch.empty((count, len(beta)), dtype=torch.float64)
    step = max(1, (IN_CACHE if logits.device.type == "cpu" else ON_DEVICE) // size)
    tiled, scale = size // TILE * TILE, beta.float().tolist()
    z_buffer, buffer = logits.new_empty((2, min(step, count), size), dtype=torch.float32)
    for start in range(0, count, step):
        rows = slice(start, start + step)
        chunk = logits[rows].float()
        z = torch.sub(chunk, chunk.amax(1, keepdim=True), out=z_buffer[: len(chunk)])
        least = float(z.amin())
        for k, inverse_temperature in enumerate(scale):
            values = torch.mul(z, inverse_temperature, out=buffer[: len(chunk)])
            if least * inverse_temperature < SMALLEST_EXPONENT:
                values.clamp_(min=SMALLEST_EXPONENT)
            tiles = values.exp_()[:, :tiled].view(len(values), -1, TILE).sum(-1)
            rest = values[:, tiled:].sum(1, dtype=torch.float64)
            sums[rows, k] = (tiles.sum(1, dtype=torch.float64) + rest).cpu()
    return sums.log_()


def binned_log_partitions(logits: Tensor, beta: Tensor) -> Tensor:
    """Return `log_partitions` at β (K,) in [0.05, 20] from one pass over the logits; errors below 2e-5.

    The distances from the largest logit of a row are counted in bins of width 2%, with a mean and a variance
    per bin. The sum of exp(β z) over bins uses a second-order expansion around the mean.
    """
    z = logits.float()
    distance = (z.amax(1, keepdim=True) - z).clamp_(NEAREST, FARTHEST)
    place = distance.log_().sub_(math.log(NEAREST)).div_(WIDTH)
    at = place.long()
    inside = place.sub_(at).mul_(WIDTH)  # log of the distance divided by the start of its bin
    bins = int(at.amax()) + 1
    count, mean, square = inside.new_zeros((3, len(z), bins))
    count.scatter_add_(1, at, inside.new_ones(()).expand(at.shape))
    mean.scatter_add_(1, at, inside).div_(count.clamp(min=1))
    square.scatter_add_(1, at, inside.square_()).div_(count.clamp(min=1))
    variance = (square - mean**2).clamp_(min=0)
    middle = NEAREST * torch.exp(torch.arange(bins, device=z.device) * WIDTH + mean)
    middle[:, 0] = 0.0  # logits equal to the largest
    value, spread = middle * (1 + variance / 2), middle**2 * variance
    inverse = beta.to(z.device, torch.float32)
    terms: Tensor = (value[..., None] * -inverse).exp_()  # (N, bins, K)
    terms.mul_((spread[..., None] * (inverse.square() / 2)).add_(1)).mul_(count[..., None])
    return terms.sum(1, dtype=torch.float64).log_().cpu()


# ---- Tables of log-partition functions

#: Chebyshev nodes in log β. The slowest convergence is for one logit above V equal logits, whose L has a
#: singularity at distance π / log V from the real line: the error with 96 nodes is 1e-5 at V = 32,000.
NODES = 96
#: Logits per call of the head.
CHUNK = 1_000_000
#: Coefficients of positions that are weighted at once.
WEIGHTED = 4_000_000
#: Slope of the mean loss in log β, nats, below which the sign from the table is not reliable.
FLAT = 1e-5
BISECTIONS = 60
#: Number of temperatures at which the loss `any` is evaluated, and of brackets searched for its minimum.
POINTS, BRACKETS = 200, 3


def _basis(beta: Tensor, nodes: int, low: float, high: float) -> Tensor:
    """Return Chebyshev polynomials (n, nodes) of log β scaled from [log low, log high] to [-1, 1]."""
    half = math.log(high / low) / 2
    x = (beta.double().log() - math.log(low)) / half - 1
    return torch.cos(x.clamp(-1, 1).arccos()[:, None] * torch.arange(nodes, device=x.device))


@cache
def _derivative(nodes: int, low: float, high: float) -> Tensor:
    """Return the matrix D such that basis @ D is the derivative of the basis with respect to log β."""
    scale = 2 / math.log(high / low)
    columns = chebyshev.chebder(np.eye(nodes)) * scale  # (nodes - 1, nodes)
    return torch.as_tensor(np.pad(columns, ((0, 1), (0, 0))))


def series(coefficients: Tensor, beta: Tensor, *, low: float, high: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the values (..., n) of Chebyshev series in log β and their first two derivatives in log β.

    `coefficients` (..., n, K) are one series for each β (n,), or (K,) a common series. A β outside
    [low, high], the range of the series, is set to its bound.
    """
    nodes = coefficients.shape[-1]
    basis, d = _basis(beta, nodes, low, high), _derivative(nodes, low, high).to(beta.device)
    c = coefficients.double()
    value, first, second = ((c * b).sum(-1) for b in (basis, basis @ d, basis @ d @ d))
    return value, first, second


@dataclass(frozen=True)
class LogPartitionTable:
    """Data of N answer tokens, predicted at S positions, from which any loss of a temperature follows."""

    coefficients: Tensor  # (S, K) float32, Chebyshev series in log β of each position's L(β)
    rows: Tensor  # (S,), the row of `FitFeatures.states` of each position
    mean: Tensor  # (S,) float64, mean logit minus the largest; −inf if some token is impossible
    position: Tensor  # (N,), index of the position that predicts each token
    target: Tensor  # (N,) float64, each token's logit minus the largest
    hit: Tensor  # (N,) bool, True if the token is the top token
    low: float  # range of β
    high: float

    def terms(self, *, loss: str, alpha: float | None) -> tuple[Tensor, Tensor]:
        """Return w and c (N,) of each token's loss w (L(β) − β c); InputError if a loss is infinite."""
        weight, centre = weight_and_centre(
            self.hit, self.target, self.mean[self.position], loss=loss, alpha=alpha
        )
        _check_finite(centre, loss)
        return weight, centre

    def log_partitions(self, beta: float) -> Tensor:
        """Return L (S,) of all positions at β, from the table."""
        at, nodes = torch.tensor([beta], dtype=torch.float64), self.coefficients.shape[1]
        return (self.coefficients @ _basis(at, nodes, self.low, self.high)[0].float()).double()

    def log_partition(self, position: Tensor, beta: Tensor) -> Tensor:
        """Return L (n,) of given positions (n,) at β (n,), float64, differentiable once with respect to β."""
        value, slope, _ = series(self.coefficients[position], beta.detach(), low=self.low, high=self.high)
        u = beta.double().log()
        return value + slope * (u - u.detach())


def logit_chunks(states: Tensor, rows: Tensor, head: Head) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of `rows` with their logits minus the largest in float32, a few rows at a time.

    InputError if the logits of a row have NaN or +inf, or only −inf.
    """
    size = 1
    start = 0
    while start < len(rows):
        logits = head(states[rows[start : start + size]]).float()
        at_once = IN_CACHE if logits.device.type == "cpu" else ON_DEVICE
        for block in torch.split(logits, max(1, at_once // logits.shape[1])):
            z = block - block.amax(1, keepdim=True)
            odd = z.amax(1).isnan()
            if odd.any():
                row = int(rows[start + int(odd.nonzero()[0])])
                raise InputError(f"logits: state {row} has NaN or +inf, or only -inf. Remove the state")
            yield slice(start, start + len(z)), z
            start += len(z)
        size = max(FEWEST_ROWS, CHUNK // logits.shape[1])


def tabulate(
    features: FitFeatures, head: Head, *, low: float = 1 / T_MAX, high: float = 1 / T_MIN
) -> LogPartitionTable:
    """Read the logits of every position that predicts an answer token once, and tabulate data for losses.

    The table has K Chebyshev nodes for each position over β = 1/T from `low` to `high` (96 over the whole
    range), and takes 4 K + 16 bytes for each position and 17 for each token. FitError below 5 labeled
    questions; InputError if logits have NaN or +inf, or a target is outside the vocabulary.
    """
    check_enough(features.labelled_questions())
    rows, position = torch.unique(features.predicting_rows(), return_inverse=True)
    order = position.argsort(stable=True)
    ends = torch.searchsorted(position[order], torch.arange(len(rows)), right=True)
    nodes = math.ceil(NODES * math.log(high / low) / math.log(T_MAX / T_MIN))
    x = np.cos((2 * np.arange(nodes) + 1) * np.pi / (2 * nodes))  # Chebyshev nodes
    betas = torch.tensor(np.exp(math.log(low) + math.log(high / low) / 2 * (x + 1)))
    to_coefficients = torch.as_tensor(2 / nodes * np.cos(np.outer(np.arange(nodes), np.arccos(x))))
    to_coefficients[0] /= 2
    coefficients = torch.empty(len(rows), nodes)
    mean = torch.empty(len(rows), dtype=torch.float64)
    top = torch.empty(len(rows), dtype=torch.long)  # the top token of each position
    target = torch.empty(len(position), dtype=torch.float64)
    for part, z in logit_chunks(features.states, rows, head):
        if part.start == 0:
            _check_targets(features.targets, z.shape[1])
        at_nodes = binned_log_partitions if z.shape[1] >= BINNED_FROM else log_partitions
        coefficients[part] = (at_nodes(z, betas) @ to_coefficients.T).float()
        mean[part], top[part] = z.mean(1, dtype=torch.float64).cpu(), z.argmax(1).cpu()
        tokens = order[int(ends[part.start - 1]) if part.start else 0 : int(ends[part][-1])]
        at, wanted = position[tokens] - part.start, features.targets[tokens]
        target[tokens] = z[at.to(z.device), wanted.to(z.device)].double().cpu()
    hit = top[position] == features.targets
    return LogPartitionTable(coefficients, rows, mean, position, target, hit, low, high)


@dataclass(frozen=True)
class ExactSums:
    """Sums over the logits of all tokens at one β."""

    total: LossSums
    by_question: Tensor  # (2, Q), slopes and curvatures by question


@dataclass(frozen=True)
class TabulatedLoss:
    """One loss of labeled questions as a function of β, by question, from a table."""

    weight: Tensor  # (S,) float64, the factor of each position's L(β), summed over its predicted tokens
    question: Tensor  # (S,), the question of each position
    centre: Tensor  # (Q,) float64, Σ w c of each question
    n: Tensor  # (Q,) float64, sum of the token weights of each question
    coefficients: Tensor  # (Q, K) float64, Chebyshev series of Σ w L(β) of each question
    low: float  # range of β
    high: float

    def minimum(self, counts: Tensor | None = None) -> Tensor:
        """Return the β (B,) that minimize the loss if each question counts `counts` (B, Q) times.

        The slope is bisected up to rounding. The result is a bound of the range if the loss decreases up to
        the bound, or is too flat near the bound for the precision of the table.
        """
        counts = torch.ones(1, len(self.n), dtype=torch.float64) if counts is None else counts
        coefficients, centre = counts @ self.coefficients, counts @ self.centre
        flat = FLAT * counts @ self.n

        def falls(u: Tensor, slack: Tensor | float = 0.0) -> Tensor:
            _, slope, _ = series(coefficients, u.exp(), low=self.low, high=self.high)
            return slope - u.exp() * centre < slack

        low = torch.full_like(centre, math.log(self.low))
        high = torch.full_like(centre, math.log(self.high))
        bottom, top = ~falls(low), falls(high, flat)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            down = falls(middle)
            low, high = torch.where(down, middle, low), torch.where(down, high, middle)
        beta = ((low + high) / 2).exp()
        return beta.masked_fill(top, self.high).masked_fill(bottom, self.low)

    def exact(self, beta: float, moments: Tensor) -> ExactSums:
        """Return the sums at β from exact L, E_β[z] and Var_β[z] (3, S) of the positions."""
        log_partition, mean, variance = moments * self.weight
        slope = (-self.centre).index_add(0, self.question, mean)
        curvature = torch.zeros_like(slope).index_add(0, self.question, variance)
        value = float(log_partition.sum() - beta * self.centre.sum())
        total = LossSums(float(self.n.sum()), value, float(slope.sum()), float(variance.sum()))
        return ExactSums(total, torch.stack([slope, curvature]))

    def sums(self, beta: float) -> LossSums:
        """Return the sums over all tokens at β, from the table."""
        at = torch.tensor([beta], dtype=torch.float64)
        value, first, second = (
            float(t) for t in series(self.coefficients.sum(0), at, low=self.low, high=self.high)
        )
        centre = float(self.centre.sum())
        return LossSums(
            float(self.n.sum()),
            value - beta * centre,
            first / beta - centre,
            (second - first) / beta**2,
        )


class AnyReference:
    """The loss `any`, −log Σ_a p_β(a) over the distinct references a of a question, as a function of β.

    With s_a the slope of −log p_β(a) and w_a ∝ p_β(a), its slope is E_w[s] and its curvature is
    E_w[Σ_j Var_β z_j] − Var_w[s]. The curvature may be negative, so there may be several minima.
    """

    def __init__(self, features: FitFeatures, table: LogPartitionTable) -> None:
        table.terms(loss="any", alpha=None)  # each token must be possible
        self.table, self.question, self.answer = table, features.answer_question, features.token_answer()
        self.n = (torch.bincount(self.question, minlength=len(features.prompt_start)) > 0).double()

    def _by_answer(self, of_token: Tensor) -> Tensor:
        return self.n.new_zeros(len(self.question)).index_add(0, self.answer, of_token)

    def _by_question(self, of_answer: Tensor) -> Tensor:
        return torch.zeros_like(self.n).index_add(0, self.question, of_answer)

    def log_shares(self, beta: float, log_partition: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return log p (M,) of each answer, and log Σ p (Q,) of each question, −inf without an answer."""
        log_partition = self.table.log_partitions(beta) if log_partition is None else log_partition
        log_share = self._by_answer(beta * self.table.target - log_partition[self.table.position])
        most = torch.zeros_like(self.n).scatter_reduce(
            0, self.question, log_share, "amax", include_self=False
        )
        return log_share, most + self._by_question((log_share - most[self.question]).exp()).log()

    @cached_property
    def _tried(self) -> tuple[Tensor, Tensor]:
        """Values log β (200,) over the range of the table, and the loss (Q, 200) of each question at β."""
        ends = math.log(self.table.low), math.log(self.table.high)
        log_beta = torch.linspace(*ends, POINTS, dtype=torch.float64)
        log_shares = torch.stack([self.log_shares(beta)[1] for beta in log_beta.exp().tolist()], 1)
        return log_beta, -log_shares.nan_to_num(neginf=0.0)

    def minimum(self, counts: Tensor | None = None) -> Tensor:
        """Return the minimum as `TabulatedLoss` does, by Brent's method in the three lowest brackets."""
        counts = torch.ones(1, len(self.n), dtype=torch.float64) if counts is None else counts
        log_beta, losses = self._tried
        rows = (counts @ losses / (counts @ self.n)[:, None]).numpy()
        return torch.tensor([_lowest(log_beta.numpy(), row) for row in rows], dtype=torch.float64).exp()

    def exact(self, beta: float, moments: Tensor) -> ExactSums:
        """Return the sums at β from exact L, E_β[z] and Var_β[z] (3, S) of the positions."""
        log_share, log_total = self.log_shares(beta, moments[0])
        weight = (log_share - log_total[self.question]).exp()
        mean, variance = moments[1:, self.table.position]
        slopes = self._by_answer(mean - self.table.target)
        slope = self._by_question(weight * slopes)
        spread = (slopes - slope[self.question]).square()
        curvature = self._by_question(weight * (self._by_answer(variance) - spread))
        sums = (self.n, -log_total[self.n > 0], slope, curvature)
        return ExactSums(LossSums(*(float(values.sum()) for values in sums)), torch.stack([slope, curvature]))


def _lowest(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Return the minimum of a curve through (x, y); a bound if the curve is too flat near the bound."""
    if y[-1] <= y.min() + FLAT or y[0] <= y.min() + FLAT:
        return float(x[-1] if y[-1] <= y[0] else x[0])
    curve: Any = CubicSpline(x, y)
    inner = 1 + np.flatnonzero((y[1:-1] <= y[:-2]) & (y[1:-1] <= y[2:]))
    minima = [
        minimize_scalar(curve, bounds=(x[i - 1], x[i + 1]), method="bounded", options={"xatol": 1e-9})
        for i in sorted(inner, key=lambda i: y[i])[:BRACKETS]
    ]
    return float(min(minima, key=lambda minimum: minimum.fun).x)


LossOfT = TabulatedLoss | AnyReference


def tabulated_loss(
    features: FitFeatures, table: LogPartitionTable, *, loss: str, alpha: float | None
) -> LossOfT:
    """Sum the table over all tokens for one loss; the references of a question have equal weights."""
    if loss == "any":
        return AnyReference(features, table)
    factor, centre = table.terms(loss=loss, alpha=alpha)
    sample = features.token_weights()
    of_token = features.answer_question[features.token_answer()]
    of_position = torch.empty_like(table.rows).scatter_(0, table.position, of_token)
    weight = torch.zeros(len(table.rows), dtype=torch.float64)
    weight.index_add_(0, table.position, factor * sample)
    questions = len(features.prompt_start)
    coefficients = torch.zeros(questions, table.coefficients.shape[1], dtype=torch.float64)
    for part in torch.split(torch.arange(len(weight)), WEIGHTED // coefficients.shape[1]):
        added = weight[part, None] * table.coefficients[part]
        coefficients.index_add_(0, of_position[part], added)
    nothing = torch.zeros(questions, dtype=torch.float64)
    centres = nothing.index_add(0, of_token, factor * sample * centre)
    n = nothing.index_add(0, of_token, sample)
    return TabulatedLoss(weight, of_position, centres, n, coefficients, table.low, table.high)


# ---- Fits

#: An exact Newton step that moves log T by less than this confirms the optimum.
CONFIRMED = 5e-7
MAX_PASSES = 20
#: The first table has temperatures from 1 / USUAL to USUAL. If an optimum is within the factor `NEAR_END` of
#: an end, a table of all temperatures follows.
USUAL, NEAR_END = 4.0, 1.5


def _exact_sums(
    features: FitFeatures,
    table: LogPartitionTable,
    head: Head,
    losses: Sequence[LossOfT],
    betas: Sequence[float],
) -> list[ExactSums]:
    """Compute the exact sums of each loss at its β in one pass over the logits."""
    unique = sorted(set(betas))
    moments_at = torch.empty(len(unique), 3, len(table.rows), dtype=torch.float64)
    for part, logits in logit_chunks(features.states, table.rows, head):
        z = logits.double()
        for i, beta in enumerate(unique):
            moments_at[i, :, part] = torch.stack(moments(beta, z)).cpu()
    return [loss.exact(beta, moments_at[unique.index(beta)]) for loss, beta in zip(losses, betas)]


def _newton(beta: float, sums: LossSums) -> float:
    """Return the Newton step of log β on exact sums, 0 at a bound or for a flat loss."""
    slope, curvature = beta * sums.slope, beta * beta * sums.curvature + beta * sums.slope
    if slope == 0 or (beta <= 1 / T_MAX and slope > 0) or (beta >= 1 / T_MIN and slope < 0):
        return 0.0
    step = -slope / curvature if curvature > 0 else -math.copysign(0.5, slope)
    return max(-0.5, min(0.5, step))


def fit_temperatures(
    features: FitFeatures,
    head: Head,
    *,
    losses: Sequence[Loss] = PAPER_LOSSES,
    groups: ArrayLike | None = None,
    seed: int = 0,
) -> tuple[TemperatureFit, ...]:
    """Fit TS exactly for several losses at once; the references of a question count equally.

    `groups` (Q,) are labels of questions that are not independent; `seed` is that of the folds of
    `TemperatureFit.right_draws`. The error of log T is below 1e-6 by exact sums, not by the table. FitError
    if fewer than 5 questions are labeled, or exact sums do not confirm an optimum. UndefinedWarning if a
    standard error is NaN: T is at its bound, or all questions are in one group.
    """
    for loss, alpha in losses:
        check_loss(loss, alpha, exact=True)
    cluster = clusters_of(groups, len(features.prompt_start), features.answer_question)
    is_narrow = ("any", None) not in losses  # which may have several minima
    table = tabulate(features, head, **({"low": 1 / USUAL, "high": USUAL} if is_narrow else {}))
    tabulated = [tabulated_loss(features, table, loss=loss, alpha=alpha) for loss, alpha in losses]
    optima = [float(loss.minimum()) for loss in tabulated]
    if is_narrow and not NEAR_END / USUAL < min(optima) <= max(optima) < USUAL / NEAR_END:
        # an optimum, or that of a fold, may lie beyond the narrow table; the losses are convex in β
        table = tabulate(features, head)
        tabulated = [tabulated_loss(features, table, loss=loss, alpha=alpha) for loss, alpha in losses]
    at_one, betas, sums, passes = _confirm(features, table, head, tabulated)
    references = AnyReference(features, table)
    fits = []
    for i, ((loss, alpha), beta, total) in enumerate(zip(losses, betas, (exact.total for exact in sums))):
        at_bound = total.slope != 0 and beta in (1 / T_MAX, 1 / T_MIN) and _newton(beta, total) == 0
        fits.append(
            TemperatureFit(
                loss,
                alpha,
                certificate=certify(beta, total, at_one[i].total, at_bound=at_bound, steps=passes),
                standard_error=math.nan if at_bound else clustered_error(beta, sums[i].by_question, cluster),
                n_tokens=len(features.targets),
                n_questions=len(tabulated[i].n),
                n_clusters=int(cluster.max()) + 1,
                right_draws=_right_draws(tabulated[i], references, cluster, seed),
            )
        )
    if any(math.isnan(fit.standard_error) for fit in fits):
        warnings.warn(
            "the standard error is null: the temperature is at its bound, the loss is flat, or all questions "
            "are in one group",
            UndefinedWarning,
            stacklevel=2,
        )
    return tuple(fits)


def _confirm(
    features: FitFeatures, table: LogPartitionTable, head: Head, losses: Sequence[LossOfT]
) -> tuple[list[ExactSums], list[float], list[ExactSums], int]:
    """Correct tabulated optima by exact Newton steps; return sums at β = 1, β, sums at β, and the passes.

    All losses share the passes. A loss that does not depend on T stays at β = 1.
    """
    count, betas = len(losses), [float(loss.minimum()) for loss in losses]
    sums = _exact_sums(features, table, head, [*losses, *losses], [1.0] * count + betas)
    at_one, sums = sums[:count], sums[count:]
    for i, start in enumerate(at_one):
        if start.total.slope == 0 == start.total.curvature:
            betas[i], sums[i] = 1.0, ExactSums(start.total, sums[i].by_question)
    for passes in range(1, MAX_PASSES + 1):
        steps = [_newton(beta, exact.total) for beta, exact in zip(betas, sums)]
        if max(map(abs, steps)) <= CONFIRMED:
            return at_one, betas, sums, passes
        betas = [max(1 / T_MAX, min(1 / T_MIN, beta * math.exp(step))) for beta, step in zip(betas, steps)]
        sums = _exact_sums(features, table, head, losses, betas)
    raise FitError(
        f"losses: exact sums did not confirm a temperature in {MAX_PASSES} passes (remaining step of log T: "
        f"{max(map(abs, steps)):.1e}). Fit each loss by itself"
    )


def clusters_of(groups: ArrayLike | None, questions: int, labelled: Tensor) -> Tensor:
    """Return the cluster of each question: its group, or itself; −1 for questions without answers."""
    labels = np.arange(questions) if groups is None else np.asarray(groups)
    if labels.shape != (questions,):
        raise InputError(f"groups: got shape {labels.shape}. Pass a label for each of {questions} questions")
    cluster = np.full(questions, -1)
    answered = np.unique(labelled.numpy())
    cluster[answered] = np.unique(labels[answered], return_inverse=True)[1]
    return torch.from_numpy(cluster)


def clustered_error(beta: float, by_question: Tensor, cluster: Tensor) -> float:
    """Return the standard error of T = 1/β from slope and curvature of each question (2, Q), by cluster.

    One Newton step from β estimates the optimum without a cluster, from the slope and the curvature of the
    other clusters. To first order this is the jackknife (CR3), which, unlike the plain sandwich estimator, is
    not too small with few clusters.
    """
    count = int(cluster.max()) + 1
    clustered = cluster >= 0
    slope, curvature = torch.zeros(2, count, dtype=torch.float64).index_add(
        1, cluster[clustered], by_question[:, clustered]
    )
    without = curvature.sum() - curvature
    if count < 2 or not bool((without > 0).all()):
        return math.nan
    moved = slope / without
    spread = float((moved - moved.mean()).square().sum()) * (count - 1) / count
    return math.sqrt(spread) / beta**2


def _right_draws(
    loss: LossOfT, references: AnyReference, cluster: Tensor, seed: int
) -> tuple[float, float] | None:
    """Return the share of correct samples at T = 1, and at T of the other folds; None with one cluster."""
    count = int(cluster.max()) + 1
    if count < 2:
        return None
    fold = torch.from_numpy(np.random.default_rng(seed).permutation(count) % FOLDS)[cluster]
    parts = torch.stack([fold == k for k in range(min(FOLDS, count))])
    betas = [1.0, *loss.minimum((~parts).double()).tolist()]
    shares = torch.stack([references.log_shares(beta)[1].exp() for beta in betas]) / references.n.sum()
    return float(shares[0].sum()), float(shares[1:][parts].sum())


def batch_inverse_temperatures(reader: StateReader, batch: SequenceBatch, prefix: Tensor) -> Tensor:
    """Return 1/T (n,) at the n predicting positions of a batch, in the order of answers.

    The batch is on the device of `reader`; `prefix` (P, d) are the states of the shared prefix.
    """
    shared = None
    if len(prefix):
        positions = torch.arange(len(prefix), device=batch.states.device)
        shared = reader.keys_values(prefix.to(batch.states.device)[None], positions[None])
    keys, values = reader.keys_values(batch.states, batch.positions)
    row = torch.arange(len(batch.at), device=batch.at.device)[:, None]
    states, positions = batch.states[row, batch.at], batch.positions[row, batch.at]
    beta = reader.inverse_temperature(states, positions, keys, values, batch.visible, shared=shared)
    return beta[batch.predicts]


@torch.no_grad()
def inverse_temperatures(reader: StateReader, features: FitFeatures) -> Tensor:
    """Return 1/T (N,) float32 of every token of features, in the order of their targets."""
    device = reader.device
    parts = [
        batch_inverse_temperatures(reader, features.sequences(answers, device=device), features.prefix).cpu()
        for answers in torch.split(torch.arange(len(features.answer_question)), ANSWERS)
    ]
    return torch.cat(parts)


#: Maximum answer positions, and logits, in memory at once.
POSITIONS, LOGITS = 2048, 2**26


@torch.no_grad()
def mean_loss_of(
    model: LanguageModel,
    features: FitFeatures,
    recalibrator: AnyRecalibrator,
    *,
    loss: str = "NLL",
    alpha: float | None = None,
) -> float:
    """Compute the mean loss per token (nats) of a recalibrator on features; references weigh the same."""
    rows, weights = features.predicting_rows(), features.token_weights()
    beta = inverse_temperatures(recalibrator, features) if isinstance(recalibrator, StateReader) else None
    size = max(1, min(POSITIONS, LOGITS // model.logits(features.states[rows[:1]]).shape[1]))
    total = 0.0
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        logits = model.logits(features.states[rows[part]])
        if isinstance(recalibrator, StateReader):
            assert beta is not None
            log_probs = recalibrator.log_probs(logits, beta[part].to(logits.device))
        else:
            log_probs = recalibrator.log_probs(logits)
        targets = features.targets[part].to(logits.device)
        losses = token_losses(log_probs, targets, loss=loss, alpha=alpha)
        total += float((losses.double().cpu() * weights[part]).sum())
    return total / float(weights.sum())
