"""The seven semantic confidence measures (paper, section "Semantic confidence").

A measure gives each cluster of a question a log-score from a few sufficient statistics; a softmax over the
question's clusters makes it a distribution. All sums are in log space: log-likelihoods of -10000 do no harm.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from semcal.arrays import as_option
from semcal.errors import InputError, UndefinedWarning, UsageError, shown
from semcal.registry import check_name
from semcal.semantics.ragged import (
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

#: The measures by the paper's names, in its order.
MEASURES = ("E-SC", "L-SC", "ML-SC", "B-SC", "T-SC", "IC-SC", "G-SC")

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
        the one that appeared first, with the smallest draw index. See `ties` of :func:`confidences`.
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
class _Statistics:
    """The sufficient statistics of the log-scores, one value per cluster."""

    log_size: Floats  # log n
    log_share: Floats  # log(n / m)
    log_sum: Floats  # logsumexp(u)
    sum_log: Floats  # sum(u)
    entropy: Floats  # H(q), q_i = l_i / s(C)


_SCORES: dict[str, Callable[[_Statistics, float], Floats]] = {
    "L-SC": lambda c, _: c.log_sum,
    "ML-SC": lambda c, _: c.log_sum - c.log_size,
    "B-SC": lambda c, _: c.sum_log + c.log_share,
    "T-SC": lambda c, a: (c.sum_log + c.log_share) / a,
    "IC-SC": lambda c, _: c.log_sum - c.entropy,
    "G-SC": lambda c, a: c.log_share + a * c.sum_log,
}


def confidence(
    clusters: Clusters,
    log_likelihoods: LogLikelihoods | None = None,
    *,
    measure: str = "E-SC",
    t_alpha: float = 0.5,
    g_alpha: float = 0.5,
    ids: Sequence[str] | None = None,
) -> SemanticConfidence:
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
    measure : str
        One of :data:`MEASURES`.
    t_alpha, g_alpha : float
        The parameter a of T-SC (below 1 is sharper) and of G-SC (weight of the likelihood); positive.
    ids : sequence of Q str, optional
        Names of the questions, for messages.

    Returns
    -------
    SemanticConfidence

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
    """
    return confidences(
        clusters, log_likelihoods, measures=(measure,), t_alpha=t_alpha, g_alpha=g_alpha, ids=ids
    )[measure]


def confidences(
    clusters: Clusters,
    log_likelihoods: LogLikelihoods | None = None,
    *,
    measures: Sequence[str] = MEASURES,
    t_alpha: float = 0.5,
    g_alpha: float = 0.5,
    ids: Sequence[str] | None = None,
    ties: str | Sequence[Sequence[float]] = "likelier",
) -> dict[str, SemanticConfidence]:
    """Several measures at once; the statistics of the clusters are computed only once.

    Parameters
    ----------
    clusters, log_likelihoods, t_alpha, g_alpha, ids
        As in :func:`confidence`.
    measures : sequence of str
        Which of :data:`MEASURES`; all seven by default.
    ties : {"likelier", "first"} or sequence of Q lists of numbers, optional
        How ties for the first place are settled: by likelihood where it is known, else by which cluster
        appeared first; always by that; or, without log-likelihoods, by a number for each cluster, the larger
        wins.

    Returns
    -------
    dict of str to SemanticConfidence
        In the order of `measures`.

    Raises
    ------
    InputError, UsageError
        As in :func:`confidence`.

    Examples
    --------
    >>> several = confidences([[[0, 1], [2]]], [[-0.1, -0.3, -2.0]], measures=("E-SC", "IC-SC"))
    >>> {name: result.confidence.round(3).tolist() for name, result in several.items()}
    {'E-SC': [0.667], 'IC-SC': [0.859]}
    """
    _check_measures(measures, log_likelihoods is not None)
    expected = "a positive number, such as 0.5, 0.75 or 1.25"
    alphas = {
        "T-SC": as_option(t_alpha, "t_alpha", expected, low=0),
        "G-SC": as_option(g_alpha, "g_alpha", expected, low=0),
    }
    layout = lay_out(clusters, ids)
    statistics, weights = None, _tie_weights(layout, ties)
    if log_likelihoods is not None:
        statistics = _statistics(layout, draws_in_cluster_order(layout, log_likelihoods, ids))
        weights = statistics.log_sum if ties == "likelier" else weights
    results = {}
    for measure in measures:
        if measure == "E-SC":
            probabilities = layout.size / layout.spread(layout.m)
            largest = layout.question_max(probabilities)
        else:
            assert statistics is not None
            scores = _scores(measure, statistics, alphas.get(measure, 1.0))
            probabilities, largest = _softmax(layout, scores)
        results[measure] = _result(measure, layout, probabilities, largest, weights, ids)
    return results


def _check_measures(measures: Sequence[str], likelihoods: bool) -> None:
    """Refuse unknown measures, and measures that need log-likelihoods if there are none."""
    for measure in measures:
        if not isinstance(measure, str) or measure not in MEASURES:
            raise UsageError(f"unknown measure {shown(measure)}; known: {', '.join(MEASURES)}")
        if measure != "E-SC" and not likelihoods:
            raise UsageError(f"{measure} needs log_likelihoods; without them only E-SC is possible")


def _tie_weights(layout: Layout, ties: str | Sequence[Sequence[float]]) -> Floats:
    """By what ties are settled where likelihoods do not: a logarithm for each cluster."""
    if isinstance(ties, str):
        check_name(ties, ("likelier", "first"), what="rule for ties")
        return np.zeros(len(layout.size))
    values, given = flat_numbers(ties, "ties")
    if not np.array_equal(given, np.diff(layout.offsets)):
        raise InputError("ties must hold a number for each cluster of each question")
    with np.errstate(divide="ignore"):
        return np.log(values)


def _scores(measure: str, statistics: _Statistics, alpha: float) -> Floats:
    """Log-scores of the clusters; −inf is a likelihood of 0; an overflow is an error."""
    with np.errstate(over="ignore"):
        scores = _SCORES[measure](statistics, alpha)
    if (np.isinf(scores) & np.isfinite(statistics.sum_log)).any():
        raise UsageError(
            f"the scores of {measure} at a = {alpha:g} are beyond what a float holds; take an a nearer to 1"
        )
    return scores


def _statistics(layout: Layout, u: Floats) -> _Statistics:
    """Reduce the draws' log-likelihoods (in cluster order) to the statistics of each cluster."""
    log_sum = layout.log_sum(u)
    q = np.exp(u - np.repeat(np.where(log_sum > -np.inf, log_sum, 0.0), layout.size))
    log_size = np.log(layout.size)
    return _Statistics(
        log_size=log_size,
        log_share=log_size - np.log(layout.spread(layout.m)),
        log_sum=log_sum,
        sum_log=layout.cluster_sum(u),
        entropy=layout.cluster_sum(_entropy_terms(q)),
    )


def _entropy_terms(p: Floats) -> Floats:
    """-p ln p of each number; of few without `scipy.special`, 0.2 s to import, and to the same bit."""
    if p.size > FEW:
        many: Floats = scipy.special.entr(p)
        return many
    terms = np.zeros_like(p)
    there = p != 0  # NaN stays NaN
    terms[there] = -p[there] * np.fromiter(map(math.log, p[there].tolist()), float)
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
    known, best = np.where(null[layout.question], 0.0, probabilities), np.where(null, 0.0, largest)
    top = np.where(null, -1, _winners(layout, known, best, weights))
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
