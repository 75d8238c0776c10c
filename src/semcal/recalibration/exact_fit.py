"""Exact temperatures for several losses at once (spec section 6, solver `exact`), with errors and intervals.

Each loss is a function of tabulated L(β) (see `log_partition_table`). Its minimum is found there, then
corrected by Newton steps on exact sums, shared by all losses.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from semcal.errors import FitError, InputError, UndefinedWarning
from semcal.metrics.probability_maps import FOLDS
from semcal.recalibration.features import CalibrationFeatures, Head
from semcal.recalibration.log_partition_table import (
    NODES,
    AnyReference,
    ExactSums,
    LogPartitionTable,
    LossOfT,
    logit_chunks,
    tabulate,
    tabulated_loss,
)
from semcal.recalibration.losses import T_MAX, T_MIN, Certificate, LossSums, certify, check_loss, moments
from semcal.recalibration.provenance import check_enough

LossSetting = tuple[str, float | None]
"""A loss and its α: ("NLL", None), ("SS", 0.25) or ("any", None)."""

#: The losses that the paper tries.
PAPER_LOSSES: tuple[LossSetting, ...] = (("NLL", None), ("SS", 0.1), ("SS", 0.25), ("SS", 0.5), ("SS", 0.75))
#: An exact Newton step that moves log T by less than this confirms the optimum.
CONFIRMED = 5e-7
MAX_PASSES = 20
#: Temperatures from 1 / USUAL to USUAL are tabulated first.
USUAL = 4.0
#: Resampled counts held at once.
RESAMPLED = 4_000_000


@dataclass(frozen=True)
class LossCurve:
    """Mean loss per token (any: per question; nats) at the tabulated temperatures, for a plot."""

    temperature: tuple[float, ...]
    loss: tuple[float, ...]


@dataclass(frozen=True)
class TemperatureFit:
    """An exact temperature with its certificate, standard error and resampled values.

    The standard error of T is the sandwich, clustered by question (or group) and each cluster's slope taken
    with the curvature of the others alone, as in the jackknife; NaN at a bound or with a single cluster.
    """

    loss: str  # "NLL", "SS" or "any"
    alpha: float | None  # of selective smoothing
    certificate: Certificate  # from exact sums
    log_temperature_step: float  # how far a further Newton step would move log T: the remaining error
    standard_error: float
    resampled: tuple[float, ...] = field(repr=False)  # T of calibration sets with questions drawn again
    curve: LossCurve = field(repr=False)
    n_tokens: int
    n_questions: int
    n_clusters: int  # groups of questions, or questions
    #: Mean Σ p(a) over a question's references, at T = 1 and, out of fold (by cluster), at the fitted T.
    right_draws: tuple[float, float] | None = None

    @property
    def temperature(self) -> float:
        """The fitted T."""
        return self.certificate.temperature

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the interval of T, NaN where there is none: log T ± its standard error times the quantile of
        Student's t with clusters − 1 degrees of freedom.
        """
        if math.isnan(self.standard_error):
            return math.nan, math.nan
        factor = float(scipy.special.stdtrit(self.n_clusters - 1, (1 + level) / 2))
        away = math.exp(min(factor * self.standard_error / self.temperature, math.log(T_MAX / T_MIN)))
        return max(self.temperature / away, T_MIN), min(self.temperature * away, T_MAX)

    def report(self) -> dict[str, Any]:
        """Return losses, error and interval by name."""
        return {
            "loss_before": self.certificate.loss_at_one,
            "loss_after": self.certificate.loss,
            "at_bound": self.certificate.at_bound,
            "standard_error": self.standard_error,
            "interval": None if math.isnan(self.standard_error) else list(self.interval()),
            **({"right_draws": list(self.right_draws)} if self.right_draws else {}),
        }


def _exact_sums(
    features: CalibrationFeatures,
    table: LogPartitionTable,
    head: Head,
    losses: Sequence[LossOfT],
    betas: Sequence[float],
) -> list[ExactSums]:
    """One pass over the logits: the sums of each loss at its β."""
    unique = sorted(set(betas))
    found = torch.empty(len(unique), 3, len(table.rows), dtype=torch.float64)
    for part, logits in logit_chunks(features.states, table.rows, head):
        z = logits.double()
        for i, beta in enumerate(unique):
            found[i, :, part] = torch.stack(moments(beta, z)).cpu()
    return [loss.exact(beta, found[unique.index(beta)]) for loss, beta in zip(losses, betas)]


def _newton(beta: float, here: LossSums) -> float:
    """The Newton step of log β on exact sums, 0 where a bound or a flat loss stops it."""
    slope, curvature = beta * here.slope, beta * beta * here.curvature + beta * here.slope
    if slope == 0 or (beta <= 1 / T_MAX and slope > 0) or (beta >= 1 / T_MIN and slope < 0):
        return 0.0
    step = -slope / curvature if curvature > 0 else -math.copysign(0.5, slope)
    return max(-0.5, min(0.5, step))


def fit_temperatures(
    features: CalibrationFeatures,
    head: Head,
    *,
    losses: Sequence[LossSetting] = PAPER_LOSSES,
    table: LogPartitionTable | None = None,
    groups: ArrayLike | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[TemperatureFit, ...]:
    """Fit TS exactly for several losses at once.

    Parameters
    ----------
    features : CalibrationFeatures
        The calibration set; all references of a question count equally and add up to one.
    head : callable
        States (n, d) → logits (n, V).
    losses : sequence of (str, float or None)
        Losses and their α; by default the paper's five.
    table : LogPartitionTable, optional
        From `tabulate`, where it exists already. Otherwise one is made of T in [1/4, 4], and if a loss or a
        resample has its optimum at an end, of all T: losses are convex in β, so a minimum inside is the
        global one; but any is not, and takes all T.
    groups : array_like of int, shape (Q,), optional
        A label for each question; those of one group are not taken as independent. Each its own by default.
    resamples : int
        Calibration sets to resample, question by question; they need no pass over the logits.
    seed : int
        Random seed of the resampling.

    Returns
    -------
    tuple of TemperatureFit
        In the order of `losses`. log T is within 1e-6 of the optimum by exact sums, not by the table.

    Raises
    ------
    FitError
        If there is no answer token, there are fewer than 5 labelled questions, or exact sums do not confirm
        an optimum.
    InputError
        If logits, targets or a loss of −inf cannot be used.
    UsageError
        If a loss does not exist.

    Warns
    -----
    UndefinedWarning
        If a standard error is NaN: T is at its bound, or all questions are of one group.
    """
    for loss, alpha in losses:
        check_loss(loss, alpha, exact=True)
    if len(features.targets):  # `tabulate` refuses a set without any
        check_enough(features.labelled_questions())
    cluster = clusters_of(groups, len(features.prompt_start), features.answer_question)
    wide = ("any", None) in losses
    known = table or (tabulate(features, head) if wide else _narrow_table(features, head))
    tabulated, resampled, at_end = _tabulated_optima(features, known, losses, resamples, seed)
    if table is None and at_end and not wide:  # the optimum may lie beyond the narrow table
        known = tabulate(features, head)
        tabulated, resampled, _ = _tabulated_optima(features, known, losses, resamples, seed)
    at_one, betas, sums, passes = _confirm(features, known, head, tabulated)
    references = AnyReference(features, known)
    fits = []
    for i, ((loss, alpha), beta, total) in enumerate(zip(losses, betas, (one.total for one in sums))):
        at_bound = total.slope != 0 and beta in (1 / T_MAX, 1 / T_MIN) and _newton(beta, total) == 0
        fits.append(
            TemperatureFit(
                loss,
                alpha,
                certificate=certify(beta, total, at_one[i].total, at_bound=at_bound, steps=passes),
                log_temperature_step=abs(_newton(beta, total)),
                standard_error=math.nan if at_bound else clustered_error(beta, sums[i].by_question, cluster),
                resampled=resampled[i],
                curve=_plotted(tabulated[i], known),
                n_tokens=len(features.targets),
                n_questions=len(tabulated[i].n),
                n_clusters=int(cluster.max()) + 1,
                right_draws=_right_draws(tabulated[i], references, cluster, seed),
            )
        )
    if any(math.isnan(fit.standard_error) for fit in fits):
        warnings.warn(
            "a temperature at its bound, of a flat loss or from a single group of questions has no standard "
            "error; it is null",
            UndefinedWarning,
            stacklevel=2,
        )
    return tuple(fits)


def _tabulated_optima(
    features: CalibrationFeatures,
    table: LogPartitionTable,
    losses: Sequence[LossSetting],
    resamples: int,
    seed: int,
) -> tuple[list[LossOfT], list[tuple[float, ...]], bool]:
    """Each loss from the table, T of resampled sets, and whether any optimum is at an end of the table."""
    tabulated = [tabulated_loss(features, table, loss=loss, alpha=alpha) for loss, alpha in losses]
    resampled = [_resampled(loss, resamples, seed) for loss in tabulated]
    found = {1 / float(loss.minimum()) for loss in tabulated}.union(*resampled)
    return tabulated, resampled, not found.isdisjoint((1 / table.low, 1 / table.high))


def _narrow_table(features: CalibrationFeatures, head: Head) -> LogPartitionTable:
    """A table of the usual temperatures, with as many nodes as the full table has in that range."""
    nodes = math.ceil(NODES * math.log(USUAL**2) / math.log(T_MAX / T_MIN))
    return tabulate(features, head, nodes=nodes, low=1 / USUAL, high=USUAL)


def _confirm(
    features: CalibrationFeatures, table: LogPartitionTable, head: Head, losses: Sequence[LossOfT]
) -> tuple[list[ExactSums], list[float], list[ExactSums], int]:
    """Correct tabulated optima by exact Newton steps; return sums at β = 1, β, sums there, and the passes.

    The losses share their passes. A loss that does not depend on T stays at β = 1.
    """
    count, betas = len(losses), [float(loss.minimum()) for loss in losses]
    sums = _exact_sums(features, table, head, [*losses, *losses], [1.0] * count + betas)
    at_one, sums = sums[:count], sums[count:]
    for i, one in enumerate(at_one):
        if one.total.slope == 0 == one.total.curvature:
            betas[i], sums[i] = 1.0, ExactSums(one.total, sums[i].by_question)
    for passes in range(1, MAX_PASSES + 1):
        steps = [_newton(beta, here.total) for beta, here in zip(betas, sums)]
        if max(map(abs, steps)) <= CONFIRMED:
            return at_one, betas, sums, passes
        betas = [max(1 / T_MAX, min(1 / T_MIN, beta * math.exp(step))) for beta, step in zip(betas, steps)]
        sums = _exact_sums(features, table, head, losses, betas)
    raise FitError(
        f"exact sums did not confirm a temperature in {MAX_PASSES} passes (a step of "
        f"{max(map(abs, steps)):.1e} in log T was left); fit each loss with TemperatureScaling.fit_batches"
    )


def clusters_of(groups: ArrayLike | None, questions: int, labelled: Tensor) -> Tensor:
    """Return the cluster of each question: its group, or itself; −1 for questions without answers."""
    labels = np.arange(questions) if groups is None else np.asarray(groups)
    if labels.shape != (questions,):
        raise InputError(f"groups has shape {labels.shape}; give a label for each of {questions} questions")
    found = np.full(questions, -1)
    used = np.unique(labelled.numpy())
    found[used] = np.unique(labels[used], return_inverse=True)[1]
    return torch.from_numpy(found)


def clustered_error(beta: float, by_question: Tensor, cluster: Tensor) -> float:
    """Return the standard error of T = 1/β from slope and curvature of each question (2, Q), by cluster.

    One Newton step from β says where it would lie without a cluster, by the slope and the curvature of the
    others: to first order the jackknife (CR3), which is not too small with few clusters as the plain sandwich
    is.
    """
    count = int(cluster.max()) + 1
    used = cluster >= 0
    slope, curvature = torch.zeros(2, count, dtype=torch.float64).index_add(
        1, cluster[used], by_question[:, used]
    )
    others = curvature.sum() - curvature
    if count < 2 or not bool((others > 0).all()):
        return math.nan
    moved = slope / others
    spread = float((moved - moved.mean()).square().sum()) * (count - 1) / count
    return math.sqrt(spread) / beta**2


def _resampled(loss: LossOfT, resamples: int, seed: int) -> tuple[float, ...]:
    """T of sets of as many questions, drawn with replacement."""
    rng, questions = np.random.default_rng(seed), len(loss.n)
    found: list[float] = []
    size = max(1, RESAMPLED // questions)
    for start in range(0, resamples, size):
        count = min(size, resamples - start)
        counts = rng.multinomial(questions, np.full(questions, 1 / questions), size=count)
        found += (1 / loss.minimum(torch.as_tensor(counts, dtype=torch.float64))).tolist()
    return tuple(found)


def _right_draws(
    loss: LossOfT, references: AnyReference, cluster: Tensor, seed: int
) -> tuple[float, float] | None:
    """The share of right draws at T = 1, and with T fitted to the other folds; None with a single cluster."""
    count = int(cluster.max()) + 1
    if count < 2:
        return None
    fold = torch.from_numpy(np.random.default_rng(seed).permutation(count) % FOLDS)[cluster]
    parts = torch.stack([fold == k for k in range(min(FOLDS, count))])
    betas = [1.0, *loss.minimum((~parts).double()).tolist()]
    shares = torch.stack([references.log_shares(beta)[1].exp() for beta in betas]) / references.n.sum()
    return float(shares[0].sum()), float(shares[1:][parts].sum())


def _plotted(loss: LossOfT, table: LogPartitionTable, count: int = 121) -> LossCurve:
    """The mean loss at temperatures equally spaced in log T over the range of the table."""
    beta = torch.logspace(math.log10(table.low), math.log10(table.high), count, dtype=torch.float64)
    return LossCurve(tuple((1 / beta).flip(0).tolist()), tuple(loss.mean(beta).flip(0).tolist()))
