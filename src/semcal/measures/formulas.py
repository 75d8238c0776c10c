"""The seven semantic confidence measures (paper, section "Semantic confidence").

A measure gives each cluster of a question a log-score from a few sufficient statistics; a softmax over the
question's clusters makes it a distribution. All sums are in log space: log-likelihoods of -10000 do no harm.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, overload

import numpy as np
import scipy
from numpy.typing import NDArray

from semcal.arrays import as_option
from semcal.errors import InputError, UndefinedWarning, UsageError, shown
from semcal.measures.ragged import (
    Clusters,
    Floats,
    Ints,
    Layout,
    LogLikelihoods,
    draws_in_cluster_order,
    flat_numbers,
    lay_out,
    name_question,
)
from semcal.registry import Catalogue, check_name

#: Cluster probabilities this close to the largest are tied with it: rounding must not choose the answer.
TIE = 1e-9
#: Logarithms of sums of likelihoods this close are equal: then the cluster that appeared first wins.
EQUALLY_LIKELY = 1e-6
#: Numbers whose logarithms are taken sooner than scipy.special is imported.
FEW = 10_000


@dataclass(frozen=True, eq=False)
class SemanticConfidence:
    """Distributions over the meanings of Q questions under one measure (K clusters in all).

    Attributes
    ----------
    measure : str
        Its name.
    probabilities : ndarray of float64, shape (K,)
        One distribution per question, question after question; NaN where the measure is null.
    offsets : ndarray of int, shape (Q + 1,)
        The clusters of question q are ``probabilities[offsets[q]:offsets[q + 1]]``.
    confidence : ndarray of float64, shape (Q,)
        The largest cluster probability; NaN where the measure is null.
    top_cluster : ndarray of int, shape (Q,)
        Index of that cluster within its question, -1 where the measure is null. Ties (within 1e-9) go to the
        cluster whose draws are likelier together, the larger s(C); of those within 1e-6 of it, relatively, to
        the one that appeared first, with the smallest draw index. See `ties` of :func:`confidence`.
    entropy : ndarray of float64, shape (Q,)
        Shannon entropy of the distribution in nats (semantic entropy); NaN where the measure is null.
    """

    measure: str
    probabilities: Floats
    offsets: Ints
    confidence: Floats
    top_cluster: Ints
    entropy: Floats

    def per_question(self) -> list[Floats]:
        """Return one distribution per question."""
        return np.split(self.probabilities, self.offsets[1:-1]) if len(self.confidence) else []


@dataclass(frozen=True)
class ClusterStatistics:
    """What log-scores are computed from, a value for each cluster, [K]; only counts without likelihoods."""

    layout: Layout
    u: Floats | None = None  # [S] log-likelihoods in cluster order

    @cached_property
    def share(self) -> Floats:
        """n / m."""
        return self.layout.size / self.layout.spread(self.layout.m)

    @cached_property
    def log_size(self) -> Floats:
        """log n."""
        return np.log(self.layout.size)

    @cached_property
    def log_share(self) -> Floats:
        """log(n / m)."""
        return self.log_size - np.log(self.layout.spread(self.layout.m))

    @cached_property
    def log_sum(self) -> Floats:
        """logsumexp(u)."""
        return self.layout.log_sum(self._u)

    @cached_property
    def sum_log(self) -> Floats:
        """sum(u)."""
        return self.layout.cluster_sum(self._u)

    @cached_property
    def entropy(self) -> Floats:
        """H(q), q_i = l_i / s(C)."""
        log_sum = np.where(self.log_sum > -np.inf, self.log_sum, 0.0)
        return self.layout.cluster_sum(_entropy_terms(np.exp(self._u - np.repeat(log_sum, self.layout.size))))

    @property
    def _u(self) -> Floats:
        assert self.u is not None  # no measure that needs likelihoods is computed without
        return self.u


@dataclass(frozen=True)
class Measure:
    """A semantic confidence measure, and all that commands, tables, figures and pages say of it.

    `MEASURES.register(Measure(...))` adds one, in each process that is to know it.
    """

    name: str
    log_score: Callable[[ClusterStatistics, float], Floats]
    """(statistics, a) → the log-score of each cluster, [K]."""
    meaning: str = ""  # its line in a glossary
    formula: str = ""  # of the score, as figures show it
    marker: str = "*"  # in figures
    place: float = math.inf  # in the paper's tables, which have their own order; others come after
    needs_likelihoods: bool = True
    parameter: Literal["t_alpha", "g_alpha"] | None = None  # the option that is its a
    probabilities: Callable[[ClusterStatistics], Floats] | None = None
    """The softmax of the log-scores, where there is a way to compute it without rounding."""


#: The measures by the paper's names, in its order.
MEASURES = Catalogue(
    "measure",
    [
        Measure(
            "E-SC",
            lambda c, _: c.log_size,
            "Empirical: the share of the sampled answers that have this meaning.",
            formula="n",
            marker="o",
            place=1,
            needs_likelihoods=False,
            probabilities=lambda c: c.share,
        ),
        Measure(
            "L-SC",
            lambda c, _: c.log_sum,
            "Likelihood-based: the likelihoods of the answers with this meaning, added up.",
            formula="s",
            marker="s",
            place=2,
        ),
        Measure(
            "ML-SC",
            lambda c, _: c.log_sum - c.log_size,
            "Mean likelihood: their mean, so that many answers count no more than one.",
            formula="$\\bar{s}$",
            marker="D",
            place=3,
        ),
        Measure(
            "B-SC",
            lambda c, _: c.sum_log + c.log_share,
            "Bayesian: the share of the answers times the product of their likelihoods.",
            formula="$e^{-E}$ n/m",
            marker="^",
            place=4,
        ),
        Measure(
            "T-SC",
            lambda c, a: (c.sum_log + c.log_share) / a,
            "Tempered: B-SC with the exponent 1/a; a below 1 is sharper.",
            formula="($e^{-E}$ n/m)$^{1/a}$",
            marker="v",
            place=6,
            parameter="t_alpha",
        ),
        Measure(
            "IC-SC",
            lambda c, _: c.log_sum - c.entropy,
            "Internal consistency: L-SC less the entropy of the likelihoods within the meaning, so that n "
            "equally likely answers count as one.",
            formula="s $e^{-H}$",
            marker="P",
            place=5,
        ),
        Measure(
            "G-SC",
            lambda c, a: c.log_share + a * c.sum_log,
            "Gibbs: the share of the answers times the product of their likelihoods to the power a.",
            formula="n/m $e^{-aE}$",
            marker="X",
            place=7,
            parameter="g_alpha",
        ),
    ],
)


Measures = list[str] | tuple[str, ...] | Mapping[str, Measure]
"""Names of several measures."""


@overload
def confidence(
    clusters: Clusters,
    log_likelihoods: LogLikelihoods | None = None,
    *,
    measure: str = "E-SC",
    t_alpha: float = 0.5,
    g_alpha: float = 0.5,
    ids: Sequence[str] | None = None,
    ties: str | Sequence[Sequence[float]] = "likelier",
) -> SemanticConfidence: ...


@overload
def confidence(
    clusters: Clusters,
    log_likelihoods: LogLikelihoods | None = None,
    *,
    measure: Measures,
    t_alpha: float = 0.5,
    g_alpha: float = 0.5,
    ids: Sequence[str] | None = None,
    ties: str | Sequence[Sequence[float]] = "likelier",
) -> dict[str, SemanticConfidence]: ...


def confidence(
    clusters: Clusters,
    log_likelihoods: LogLikelihoods | None = None,
    *,
    measure: str | Measures = "E-SC",
    t_alpha: float = 0.5,
    g_alpha: float = 0.5,
    ids: Sequence[str] | None = None,
    ties: str | Sequence[Sequence[float]] = "likelier",
) -> SemanticConfidence | dict[str, SemanticConfidence]:
    r"""Distribution over the meanings of each question's answers under one measure.

    With draws :math:`i \in C`, their length-normalised log-likelihoods :math:`u_i`, likelihoods :math:`l_i =
    e^{u_i}`, :math:`n = |C|`, m draws of the question, :math:`s(C) = \sum_i l_i` and H the entropy of
    :math:`q_i = l_i / s(C)`, the unnormalised log-scores are

    ===== ======================================
    E-SC  :math:`\log n`
    L-SC  :math:`\log s(C)`
    ML-SC :math:`\log s(C) - \log n`
    B-SC  :math:`\sum_i u_i + \log(n/m)`
    T-SC  :math:`(\sum_i u_i + \log(n/m)) / a`
    IC-SC :math:`\log s(C) - H(q)`
    G-SC  :math:`\log(n/m) + a \sum_i u_i`
    ===== ======================================

    and the distribution is their softmax over the clusters of the question. E-SC is computed as n/m itself,
    so equal counts give equal confidences to the last bit.

    Parameters
    ----------
    clusters : sequence of Q lists of clusters, each a list of draw indices
        Per question a partition of 0..m-1; m may differ from question to question.
    log_likelihoods : sequence of Q lists of m floats, or array of shape (Q, m), optional
        Length-normalised, natural logarithm; -inf is a draw of likelihood 0. Not needed for E-SC.
    measure : str, or list, tuple or mapping of str
        One of :data:`MEASURES`; or several, which share the statistics of the clusters: ``measure=MEASURES``
        is all of them.
    t_alpha, g_alpha : float
        The parameter a of T-SC (below 1 is sharper) and of G-SC (weight of the likelihood); positive.
    ids : sequence of Q str, optional
        Names of the questions, for messages.
    ties : {"likelier", "first"} or sequence of Q lists of numbers, optional
        How ties for the first place are settled: by likelihood where it is known, else by which cluster
        appeared first; always by that; or, without log-likelihoods, by a number for each cluster, the larger
        wins.

    Returns
    -------
    SemanticConfidence
        Of several measures a dict of them by name, in their order.

    Raises
    ------
    InputError
        Clusters that are no partition; a log-likelihood that is NaN, above 1e-6, or -inf for every draw of a
        question.
    UsageError
        An unknown measure, a parameter that is not positive, or a measure that needs log-likelihoods without
        them.

    Warns
    -----
    UndefinedWarning
        Under this measure every cluster of some question scores -inf; the question is null (NaN, top cluster
        -1).

    Notes
    -----
    One cluster has confidence 1 under every measure that is not NaN; m = 1 is legal. A draw of likelihood 0
    counts in E-SC and adds nothing to s(C) or to H (0 log 0 = 0); a product over a cluster that holds it
    (B-SC, T-SC, G-SC) is 0. IC-SC is the self-weighted geometric mean of the members' likelihoods: n equal
    draws of likelihood l score l. B-SC, T-SC and G-SC multiply likelihoods, so they punish large clusters.

    References
    ----------
    Lamb, Ivanova, Torr and Rudner (2026), Improving Semantic Uncertainty Quantification in Language Model
    Question-Answering via Token-Level Temperature Scaling, AISTATS. E-SC: Farquhar et al. (2024), Nature 630.
    L-SC: Kuhn, Gal and Farquhar (2023), ICLR.

    Examples
    --------
    >>> result = confidence([[[0, 1], [2]]], [[-0.1, -0.3, -2.0]], measure="L-SC")
    >>> result.probabilities.round(3)
    array([0.924, 0.076])
    >>> result.confidence.round(3), result.top_cluster, result.entropy.round(3)
    (array([0.924]), array([0]), array([0.269]))
    >>> several = confidence([[[0, 1], [2]]], [[-0.1, -0.3, -2.0]], measure=["E-SC", "IC-SC"])
    >>> {name: result.confidence.round(3).tolist() for name, result in several.items()}
    {'E-SC': [0.667], 'IC-SC': [0.859]}
    """
    if not isinstance(measure, (str, list, tuple, Mapping)) or not measure:
        raise UsageError(f"measure is {shown(measure)}; expected a name, or a list of names")
    names = [measure] if isinstance(measure, str) else list(measure)
    for name in names:
        check_name(name, MEASURES, what="measure")
        if MEASURES[name].needs_likelihoods and log_likelihoods is None:
            counted = ", ".join(key for key, measure in MEASURES.items() if not measure.needs_likelihoods)
            raise UsageError(f"{name} needs log_likelihoods; without them only {counted} is possible")
    expected = "a positive number, such as 0.5, 0.75 or 1.25"
    alphas = {
        "t_alpha": as_option(t_alpha, "t_alpha", expected, low=0),
        "g_alpha": as_option(g_alpha, "g_alpha", expected, low=0),
        None: 1.0,
    }
    layout = lay_out(clusters, ids)
    statistics, weights = ClusterStatistics(layout), _tie_weights(layout, ties)
    if log_likelihoods is not None:
        statistics = ClusterStatistics(layout, draws_in_cluster_order(layout, log_likelihoods, ids))
        weights = statistics.log_sum if ties == "likelier" else weights
    results = {}
    for name in names:
        entry = MEASURES[name]
        if entry.probabilities is not None:
            probabilities = entry.probabilities(statistics)
            largest = layout.question_max(probabilities)
        else:
            probabilities, largest = _softmax(layout, _scores(entry, statistics, alphas[entry.parameter]))
        results[name] = _result(name, layout, probabilities, largest, weights, ids)
    return results[measure] if isinstance(measure, str) else results


def confidences(
    clusters: Clusters,
    log_likelihoods: LogLikelihoods | None = None,
    *,
    measures: Collection[str] = MEASURES,
    **options: Any,
) -> dict[str, SemanticConfidence]:
    """Several measures at once: :func:`confidence` with several, which is to be used instead."""
    warnings.warn(
        "confidences(...) is confidence(..., measure=[...]) now, of all measures measure=MEASURES; the old "
        "name goes with the next release",
        DeprecationWarning,
        stacklevel=2,
    )
    return confidence(clusters, log_likelihoods, measure=list(measures), **options)


def _tie_weights(layout: Layout, ties: str | Sequence[Sequence[float]]) -> Floats:
    """By what ties are settled where likelihoods do not: a logarithm for each cluster."""
    if isinstance(ties, str):
        check_name(ties, ("likelier", "first"), what="rule for ties")
        return np.zeros(len(layout.size))
    values, lengths = flat_numbers(ties, "ties")
    if not np.array_equal(lengths, np.diff(layout.offsets)):
        raise InputError("ties must hold a number for each cluster of each question")
    with np.errstate(divide="ignore"):
        return np.log(values)


def _scores(measure: Measure, statistics: ClusterStatistics, alpha: float) -> Floats:
    """Log-scores of the clusters; −inf is a likelihood of 0; an overflow is an error."""
    with np.errstate(over="ignore"):
        scores = measure.log_score(statistics, alpha)
    if np.isinf(scores).any() and (np.isinf(scores) & np.isfinite(statistics.sum_log)).any():
        raise UsageError(
            f"the scores of {measure.name} at a = {alpha:g} are beyond what a float holds; take an a nearer "
            "to 1"
        )
    return scores


def _entropy_terms(p: Floats) -> Floats:
    """-p ln p of each number; of few without `scipy.special`, 0.2 s to import, and to the same bit."""
    if p.size > FEW:
        many: Floats = scipy.special.entr(p)
        return many
    terms = np.zeros_like(p)
    nonzero = p != 0  # NaN stays NaN
    terms[nonzero] = -p[nonzero] * np.fromiter(map(math.log, p[nonzero].tolist()), float)
    return terms


def _softmax(layout: Layout, scores: Floats) -> tuple[Floats, Floats]:
    """Softmax over the clusters of each question, and its largest value; NaN where every score is -inf."""
    top = layout.question_max(scores)
    shifted = np.exp(scores - layout.spread(np.where(top > -np.inf, top, 0.0)))
    total = np.where(top > -np.inf, layout.question_sum(shifted), np.nan)
    return shifted / layout.spread(total), 1.0 / total  # the largest is exp(0) / total


def _result(
    measure: str,
    layout: Layout,
    probabilities: Floats,
    largest: Floats,
    weights: Floats,
    ids: Sequence[str] | None,
) -> SemanticConfidence:
    """Confidence, top cluster and entropy of each distribution; warns about the null ones."""
    null = np.isnan(largest)
    if null.any():
        _warn_null(measure, np.flatnonzero(null), ids)
    defined, best = np.where(null[layout.question], 0.0, probabilities), np.where(null, 0.0, largest)
    top = np.where(null, -1, _winners(layout, defined, best, weights))
    entropy = layout.question_sum(_entropy_terms(probabilities)) + 0.0  # that of 1 is -0.0
    return SemanticConfidence(measure, probabilities, layout.offsets, largest, top, entropy)


def _winners(layout: Layout, probabilities: Floats, largest: Floats, weights: Floats) -> Ints:
    """Index, within each question, of the tied cluster that is likeliest, or the first of these."""
    tied = np.flatnonzero(probabilities >= layout.spread(largest - TIE))
    if len(tied) > len(largest):
        question = layout.question[tied]
        heaviest = np.maximum.reduceat(weights[tied], np.flatnonzero(np.diff(question, prepend=-1)))
        likely = weights[tied] >= heaviest[question] - EQUALLY_LIKELY
        tied, question = tied[likely], question[likely]
        tied = tied[np.lexsort((layout.first_draw[tied], question))]
        tied = tied[np.diff(question, prepend=-1) > 0]
    winner: Ints = tied - layout.offsets[:-1]
    return winner


def _warn_null(measure: str, questions: NDArray[np.int64], ids: Sequence[str] | None) -> None:
    """Warn of the questions that are null under a measure, naming the first."""
    warnings.warn(
        f"{measure} is null for {len(questions)} question(s), first {name_question(int(questions[0]), ids)}: "
        "every cluster has score 0, as each holds a draw of likelihood 0; use E-SC or L-SC there",
        UndefinedWarning,
        stacklevel=4,
    )
