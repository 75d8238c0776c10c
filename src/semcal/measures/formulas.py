"""Formulas on clusters of sampled answers: the seven measures, baselines, and clusters of a relation.

Nested lists of clusters are checked and laid out as flat arrays, question after question, so that no loop
runs per question. A measure (paper, section "Semantic confidence") computes a log-score of each cluster from
a few sufficient statistics; a softmax over the clusters of the question makes a distribution. All sums are in
log space, so that log-likelihoods of -10000 are safe.
"""

from __future__ import annotations

import math
import warnings
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Literal, TypeVar, overload

import numpy as np
import scipy
from numpy.typing import NDArray

from semcal.arrays import Floats, as_option
from semcal.errors import InputError, UndefinedWarning, UsageError, shown
from semcal.registry import Catalogue, check_name

Scalar = TypeVar("Scalar", bound=np.generic)
Ints = NDArray[np.int64]
ClusterLists = Sequence[Sequence[Sequence[int]]]
LogLikelihoods = Sequence[Sequence[float]] | NDArray[np.floating]

#: Largest log-likelihood above zero that passes as a rounding error.
ABOVE_ZERO = 1e-6
#: Maximum difference of tied cluster probabilities, so that rounding does not choose the answer.
TIE = 1e-9
#: Maximum difference of equal logarithms of summed likelihoods; of equal clusters the first wins.
EQUALLY_LIKELY = 1e-6
#: Maximum count of logarithms that take less time without importing scipy.special.
FEW = 10_000


# ---- Clusters as flat arrays -------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClusterLayout:
    """The clusters of Q questions (K clusters, S samples in all) as flat arrays."""

    offsets: Ints  # [Q+1] clusters of question q are offsets[q]:offsets[q+1]
    m: Ints  # [Q] number of samples of each question
    size: Ints  # [K] number of samples in each cluster
    starts: Ints  # [K] place of the first sample of each cluster in cluster order
    first_sample: Ints  # [K] smallest sample index in each cluster, counted within its question
    order: Ints  # [S] place in question order of each sample in cluster order

    @cached_property
    def question(self) -> Ints:
        """Index of the question of each cluster: [K]."""
        return _owners(np.diff(self.offsets))

    def spread(self, per_question: NDArray[Scalar]) -> NDArray[Scalar]:
        """Repeat the value of each question over its clusters: [Q] -> [K]."""
        return per_question[self.question]

    def question_sum(self, per_cluster: Floats) -> Floats:
        """Sum over the clusters of each question: [K] -> [Q]."""
        return _by_segment(np.add, per_cluster, self.offsets[:-1])

    def question_max(self, per_cluster: Floats) -> Floats:
        """Return the maximum over the clusters of each question: [K] -> [Q]."""
        return _by_segment(np.maximum, per_cluster, self.offsets[:-1])

    def cluster_sum(self, per_sample: Floats) -> Floats:
        """Sum over the samples of each cluster: [S] -> [K]."""
        return _by_segment(np.add, per_sample, self.starts)

    def log_sum(self, per_sample: Floats) -> Floats:
        """Compute logsumexp over the samples of each cluster, -inf if all are -inf: [S] -> [K]."""
        peak = _by_segment(np.maximum, per_sample, self.starts)
        peak = np.where(np.isfinite(peak), peak, 0.0)
        with np.errstate(divide="ignore"):
            return peak + np.log(self.cluster_sum(np.exp(per_sample - np.repeat(peak, self.size))))


def lay_out(clusters: ClusterLists, ids: Sequence[str] | None = None) -> ClusterLayout:
    """Flatten `clusters`; InputError names the question whose clusters are not a partition of its samples."""
    if ids is not None and len(ids) != len(clusters):
        raise InputError(
            f"ids: got {len(ids)} ids for {len(clusters)} questions in clusters. Pass one id per question"
        )
    try:
        k = _lengths(clusters)
        flat = list(chain.from_iterable(clusters))
        size = _lengths(flat)
        numbers = _doubles(chain.from_iterable(flat))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"clusters: expected three levels, question > cluster > sample index ({error}). "
            "For a single question, pass [clusters]"
        ) from error
    with np.errstate(invalid="ignore"):
        samples = numbers.astype(np.int64)
    of_cluster = _owners(k)
    of_sample = np.repeat(of_cluster, size)

    def check_partition(*invalid: Ints) -> None:
        for questions in invalid:
            if len(questions):
                value = shown(clusters[int(questions[0])])
                why = f"has {value}. Put each of the samples 0..m-1 into one cluster"
                _refuse("clusters", questions, why, ids)

    check_partition(of_sample[samples != numbers], np.flatnonzero(k == 0), of_cluster[size == 0])
    offsets, starts = _cumulative(k), _cumulative(size)[:-1]
    m = _by_segment(np.add, size, offsets[:-1])
    place = np.repeat(_cumulative(m)[:-1], m) + samples
    check_partition(of_sample[(samples < 0) | (samples >= np.repeat(m, m))])
    check_partition(of_sample[np.bincount(place, minlength=len(samples))[place] > 1])
    first_sample = _by_segment(np.minimum, samples, starts)
    return ClusterLayout(
        offsets=offsets, m=m, size=size, starts=starts, first_sample=first_sample, order=place
    )


def _lengths(sequences: Sequence[Sized] | NDArray[np.floating]) -> Ints:
    return np.fromiter(map(len, sequences), np.int64, len(sequences))


def _cumulative(lengths: Ints) -> Ints:
    """Return the start of each segment, and the total: [n] -> [n+1]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _owners(lengths: Ints) -> Ints:
    """Return the index of the segment of each item."""
    return np.repeat(np.arange(len(lengths)), lengths)


def _by_segment(reduction: np.ufunc, values: NDArray[Scalar], starts: Ints) -> NDArray[Scalar]:
    reduced: NDArray[Scalar] = reduction.reduceat(values, starts) if len(starts) else values[:0]
    return reduced


def _name(index: int, ids: Sequence[str] | None) -> str:
    return f"question {index}" if ids is None else f"question {index} (id {ids[index]!r})"


def _refuse(argument: str, questions: Ints, why: str, ids: Sequence[str] | None) -> None:
    if len(questions):
        raise InputError(f"{argument}: {_name(int(questions[0]), ids)} {why}")


def _in_cluster_order(
    layout: ClusterLayout, log_likelihoods: LogLikelihoods, ids: Sequence[str] | None = None
) -> Floats:
    """Check that each sample has one log-likelihood, and return them in cluster order: [S]."""
    values, m = _flat_log_likelihoods(log_likelihoods, ids)
    _check_counts("log_likelihoods", m, layout.m, ids)
    return values[layout.order]


def _flat_log_likelihoods(
    log_likelihoods: LogLikelihoods, ids: Sequence[str] | None = None
) -> tuple[Floats, Ints]:
    key = "log_likelihoods"
    values, m = _flat_numbers(log_likelihoods, key)
    _refuse(key, np.flatnonzero(m == 0), "has no samples. Remove the question, or add a sample", ids)
    bad = np.flatnonzero(np.isnan(values) | (values > ABOVE_ZERO))
    if len(bad):
        why = (
            f"has log-likelihood {values[bad[0]]}; expected the natural logarithm of a probability, a number "
            "<= 0 or -inf. Correct the value, or omit log_likelihoods and use only E-SC"
        )
        _refuse(key, _owners(m)[bad], why, ids)
    best = _by_segment(np.maximum, values, _cumulative(m)[:-1])
    none_finite = "has log-likelihood -inf for every sample. Pass at least one finite log-likelihood"
    _refuse(key, np.flatnonzero(best == -np.inf), none_finite, ids)
    return values, m


def _flat_numbers(
    rows: Sequence[Sequence[float]] | NDArray[np.floating], argument: str
) -> tuple[Floats, Ints]:
    """Flatten lists of numbers: values [S], NaN for None, and the length of each list [Q]."""
    try:
        if any(isinstance(row, (set, frozenset, dict)) for row in rows):
            raise TypeError("a set or a dictionary has no order")
        lengths = _lengths(rows)
        try:
            return _doubles(_chained(rows)), lengths
        except TypeError:  # maybe a None: this slower path runs only if needed
            return _doubles(math.nan if value is None else value for value in _chained(rows)), lengths
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{argument}: expected one list of numbers per question ({error})") from error


def _doubles(values: Iterable[float]) -> Floats:
    """Return numbers as float64; unlike numpy, `array` rejects text."""
    doubles = array("d", values)
    return np.frombuffer(doubles, dtype=np.float64) if doubles else np.zeros(0)


def _check_counts(argument: str, counts: Ints, m: Ints, ids: Sequence[str] | None) -> None:
    """Reject a number of values that differs from the number of samples."""
    if len(counts) != len(m):
        raise InputError(
            f"{argument}: got {len(counts)} lists for {len(m)} questions. Pass one list per question"
        )
    differing = np.flatnonzero(counts != m)
    if len(differing):
        at = int(differing[0])
        why = f"has {counts[at]} values, expected {m[at]}. Pass one value per sample"
        _refuse(argument, differing, why, ids)


def _chained(rows: Iterable[Iterable[float]]) -> Iterable[float]:
    return chain.from_iterable(row.tolist() if hasattr(row, "tolist") else row for row in rows)


# ---- The seven measures ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SemanticConfidence:
    """Distributions of one measure over the clusters of Q questions (K clusters in all).

    Attributes
    ----------
    measure : str
    probabilities : ndarray of float64, shape (K,)
        One distribution per question, question after question; NaN if the measure is null.
    offsets : ndarray of int, shape (Q + 1,)
        The clusters of question q are ``probabilities[offsets[q]:offsets[q + 1]]``.
    confidence : ndarray of float64, shape (Q,)
        The largest cluster probability; NaN if the measure is null.
    top_cluster : ndarray of int, shape (Q,)
        Index of the most probable cluster within its question, -1 if the measure is null. Among tied clusters
        (within 1e-9) the cluster with the largest s(C) wins. If several s(C) are equal (within a relative
        difference of 1e-6), the cluster with the smallest sample index wins. See `ties` of
        :func:`confidence`.
    entropy : ndarray of float64, shape (Q,)
        Shannon entropy of the distribution in nats (semantic entropy); NaN if the measure is null.
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
    """Sufficient statistics of the clusters, each [K]; without `u` only the counts are available."""

    layout: ClusterLayout
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
        assert self.u is not None  # `confidence` rejects measures that need missing likelihoods
        return self.u


@dataclass(frozen=True)
class Measure:
    """A semantic confidence measure, and its texts for commands, tables, figures and pages.

    `MEASURES.register(Measure(...))` adds a measure. Call it in each process that uses the measure.
    """

    name: str
    log_score: Callable[[ClusterStatistics, float], Floats]
    """(statistics, a) → log-score of each cluster, [K]."""
    meaning: str = ""  # line in the glossary
    formula: str = ""  # formula of the score in figures
    marker: str = "*"  # marker in figures
    place: float = math.inf  # order in the paper's tables; other measures follow
    needs_likelihoods: bool = True
    parameter: Literal["t_alpha", "g_alpha"] | None = None  # the option for the parameter a
    probabilities: Callable[[ClusterStatistics], Floats] | None = None
    """Function that computes the softmax of the log-scores without rounding, if possible."""


#: The measures by name, in the order of the paper.
MEASURES = Catalogue(
    "measure",
    [
        Measure(
            "E-SC",
            lambda c, _: c.log_size,
            "Empirical: the share of samples with this meaning.",
            formula="n",
            marker="o",
            place=1,
            needs_likelihoods=False,
            probabilities=lambda c: c.share,
        ),
        Measure(
            "L-SC",
            lambda c, _: c.log_sum,
            "Likelihood-based: the sum of the likelihoods of the samples with this meaning.",
            formula="s",
            marker="s",
            place=2,
        ),
        Measure(
            "ML-SC",
            lambda c, _: c.log_sum - c.log_size,
            "Mean likelihood: the mean likelihood of the samples, so that many samples count as one.",
            formula="$\\bar{s}$",
            marker="D",
            place=3,
        ),
        Measure(
            "B-SC",
            lambda c, _: c.sum_log + c.log_share,
            "Bayesian: the share of samples times the product of their likelihoods.",
            formula="$e^{-E}$ n/m",
            marker="^",
            place=4,
        ),
        Measure(
            "T-SC",
            lambda c, a: (c.sum_log + c.log_share) / a,
            "Tempered: B-SC with the exponent 1/a; with a below 1 it is sharper.",
            formula="($e^{-E}$ n/m)$^{1/a}$",
            marker="v",
            place=6,
            parameter="t_alpha",
        ),
        Measure(
            "IC-SC",
            lambda c, _: c.log_sum - c.entropy,
            "Internal consistency: L-SC minus the entropy of the likelihoods within the meaning, so that n "
            "equally likely samples count as one.",
            formula="s $e^{-H}$",
            marker="P",
            place=5,
        ),
        Measure(
            "G-SC",
            lambda c, a: c.log_share + a * c.sum_log,
            "Gibbs: the share of samples times the product of their likelihoods to the power a.",
            formula="n/m $e^{-aE}$",
            marker="X",
            place=7,
            parameter="g_alpha",
        ),
    ],
)


MeasureNames = list[str] | tuple[str, ...] | Mapping[str, Measure]
"""Names of several measures."""


@overload
def confidence(
    clusters: ClusterLists,
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
    clusters: ClusterLists,
    log_likelihoods: LogLikelihoods | None = None,
    *,
    measure: MeasureNames,
    t_alpha: float = 0.5,
    g_alpha: float = 0.5,
    ids: Sequence[str] | None = None,
    ties: str | Sequence[Sequence[float]] = "likelier",
) -> dict[str, SemanticConfidence]: ...


def confidence(
    clusters: ClusterLists,
    log_likelihoods: LogLikelihoods | None = None,
    *,
    measure: str | MeasureNames = "E-SC",
    t_alpha: float = 0.5,
    g_alpha: float = 0.5,
    ids: Sequence[str] | None = None,
    ties: str | Sequence[Sequence[float]] = "likelier",
) -> SemanticConfidence | dict[str, SemanticConfidence]:
    r"""Compute the distribution of one measure, or several, over the clusters of each question.

    With samples :math:`i \in C`, their length-normalized log-likelihoods :math:`u_i`, likelihoods :math:`l_i
    = e^{u_i}`, :math:`n = |C|`, m samples of the question, :math:`s(C) = \sum_i l_i` and H the entropy of
    :math:`q_i = l_i / s(C)`, the unnormalized log-scores are

    ===== ======================================
    E-SC  :math:`\log n`
    L-SC  :math:`\log s(C)`
    ML-SC :math:`\log s(C) - \log n`
    B-SC  :math:`\sum_i u_i + \log(n/m)`
    T-SC  :math:`(\sum_i u_i + \log(n/m)) / a`
    IC-SC :math:`\log s(C) - H(q)`
    G-SC  :math:`\log(n/m) + a \sum_i u_i`
    ===== ======================================

    and the distribution is their softmax over the clusters of the question. E-SC is computed directly as n/m,
    so that equal counts have confidences that are equal to the last bit.

    Source: Lamb, Ivanova, Torr and Rudner (2026), Improving Semantic Uncertainty Quantification in Language
    Model Question-Answering via Token-Level Temperature Scaling, AISTATS. E-SC: Farquhar et al. (2024),
    Nature 630. L-SC: Kuhn, Gal and Farquhar (2023), ICLR.

    Parameters
    ----------
    clusters : sequence of Q lists of clusters, each a list of sample indices
        For each question a partition of 0..m-1; m may differ between questions.
    log_likelihoods : sequence of Q lists of m floats, or array of shape (Q, m), optional
        Length-normalized natural logarithms; -inf is a sample of likelihood 0. Not needed for E-SC.
    measure : str, or list, tuple or mapping of str
        A name in :data:`MEASURES`, or several names, which share the statistics of the clusters. Pass
        ``measure=MEASURES`` for all measures.
    t_alpha, g_alpha : float
        The parameter a of T-SC (below 1 is sharper) and of G-SC (weight of the likelihood); positive.
    ids : sequence of Q str, optional
        Names of the questions, for messages.
    ties : {"likelier", "first"} or sequence of Q lists of numbers, optional
        The rule for tied clusters. "likelier": the cluster with the largest summed likelihood wins, or the
        first cluster if likelihoods are unknown or equal. "first": the first cluster wins. Numbers, one per
        cluster, are for use without log-likelihoods: the cluster with the largest number wins.

    Returns
    -------
    SemanticConfidence
        For several measures, a dict by name, in the order of `measure`.

    Raises
    ------
    InputError
        If clusters are not a partition, or a log-likelihood is NaN, above 1e-6, or -inf for every sample of a
        question.
    UsageError
        If a measure is unknown, a parameter is not positive, or a measure lacks the log-likelihoods that it
        needs.

    Warns
    -----
    UndefinedWarning
        If every cluster of a question scores -inf; the measure is null there (NaN, top cluster -1).

    Notes
    -----
    A single cluster has confidence 1 for every measure that is not null; m = 1 is allowed. A sample of
    likelihood 0 counts in E-SC and adds nothing to s(C) or to H (0 log 0 = 0). A product over its cluster
    (B-SC, T-SC, G-SC), which penalizes large clusters, is 0. IC-SC is a self-weighted geometric mean.

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
        raise UsageError(f"measure: got {shown(measure)}, expected a name or a list of names")
    names = [measure] if isinstance(measure, str) else list(measure)
    for name in names:
        check_name(name, MEASURES, what="measure")
        if MEASURES[name].needs_likelihoods and log_likelihoods is None:
            counted = ", ".join(key for key, measure in MEASURES.items() if not measure.needs_likelihoods)
            raise UsageError(f"measure: {name} needs log_likelihoods. Pass them, or use {counted}")
    expected = "a positive number, such as 0.5, 0.75 or 1.25"
    alphas = {
        "t_alpha": as_option(t_alpha, "t_alpha", expected, low=0),
        "g_alpha": as_option(g_alpha, "g_alpha", expected, low=0),
        None: 1.0,
    }
    layout = lay_out(clusters, ids)
    statistics, weights = ClusterStatistics(layout), _tie_weights(layout, ties)
    if log_likelihoods is not None:
        statistics = ClusterStatistics(layout, _in_cluster_order(layout, log_likelihoods, ids))
        weights = statistics.log_sum if ties == "likelier" else weights
    results = {}
    for name in names:
        measured = _distribution(MEASURES[name], statistics, alphas[MEASURES[name].parameter])
        results[name] = _result(name, layout, *measured, weights, ids)
    return results[measure] if isinstance(measure, str) else results


def _tie_weights(layout: ClusterLayout, ties: str | Sequence[Sequence[float]]) -> Floats:
    """Return the log-weights that decide ties without likelihoods: [K]."""
    if isinstance(ties, str):
        check_name(ties, ("likelier", "first"), what="rule for ties")
        return np.zeros(len(layout.size))
    values, lengths = _flat_numbers(ties, "ties")
    if not np.array_equal(lengths, np.diff(layout.offsets)):
        raise InputError(
            "ties: the lengths differ from clusters. Pass one number per cluster of each question"
        )
    with np.errstate(divide="ignore"):
        return np.log(values)


def _distribution(measure: Measure, statistics: ClusterStatistics, alpha: float) -> tuple[Floats, Floats]:
    """Return the distribution over the clusters of each question, and its maximum; NaN if it is null."""
    layout = statistics.layout
    if measure.probabilities is not None:
        probabilities = measure.probabilities(statistics)
        return probabilities, layout.question_max(probabilities)
    with np.errstate(over="ignore"):
        scores = measure.log_score(statistics, alpha)  # -inf for a likelihood of 0
    top = layout.question_max(scores)
    shifted = np.exp(scores - layout.spread(np.where(top > -np.inf, top, 0.0)))
    total = np.where(top > -np.inf, layout.question_sum(shifted), np.nan)
    return shifted / layout.spread(total), 1.0 / total  # the largest is exp(0) / total


def _entropy_terms(p: Floats) -> Floats:
    """Return -p ln p; few numbers need no `scipy.special`, whose import takes 0.2 s, for the same bits."""
    if p.size > FEW:
        many: Floats = scipy.special.entr(p)
        return many
    terms = np.zeros_like(p)
    nonzero = p != 0  # NaN stays NaN
    terms[nonzero] = -p[nonzero] * np.fromiter(map(math.log, p[nonzero].tolist()), float)
    return terms


def _result(
    measure: str,
    layout: ClusterLayout,
    probabilities: Floats,
    largest: Floats,
    weights: Floats,
    ids: Sequence[str] | None,
) -> SemanticConfidence:
    """Compute the confidence, top cluster and entropy of each distribution; warn of null distributions."""
    null = np.isnan(largest)
    if null.any():
        first = _name(int(null.argmax()), ids)
        warnings.warn(
            f"{measure} is null for {null.sum()} question(s), first {first}: every cluster has score 0, "
            "because each has a sample of likelihood 0. Use E-SC or L-SC for these questions",
            UndefinedWarning,
            stacklevel=3,
        )
    defined, best = np.where(null[layout.question], 0.0, probabilities), np.where(null, 0.0, largest)
    # the most likely of the tied clusters of each question, or the first of several
    tied = np.flatnonzero(defined >= layout.spread(best - TIE))
    if len(tied) > len(best):
        question = layout.question[tied]
        heaviest = np.maximum.reduceat(weights[tied], np.flatnonzero(np.diff(question, prepend=-1)))
        likely = weights[tied] >= heaviest[question] - EQUALLY_LIKELY
        tied, question = tied[likely], question[likely]
        tied = tied[np.lexsort((layout.first_sample[tied], question))]
        tied = tied[np.diff(question, prepend=-1) > 0]
    top = np.where(null, -1, tied - layout.offsets[:-1])
    entropy = layout.question_sum(_entropy_terms(probabilities)) + 0.0  # turns -0.0 into 0.0
    return SemanticConfidence(measure, probabilities, layout.offsets, largest, top, entropy)


# ---- Baselines of the field --------------------------------------------------------------------------------


def predictive_entropy(
    log_likelihoods: LogLikelihoods,
    *,
    lengths: Sequence[Sequence[int]] | None = None,
    ids: Sequence[str] | None = None,
) -> Floats:
    r"""Estimate the entropy over token sequences by Monte Carlo, length-normalized or not.

    .. math:: \widehat{H} = -\frac{1}{m} \sum_{i=1}^m u_i
              \qquad\text{or, with lengths,}\qquad -\frac{1}{m} \sum_{i=1}^m L_i u_i

    The result (Q,) is in nats per token, or with `lengths` (the numbers of tokens, end of turn included) in
    nats of whole sequences; +inf if a sample has likelihood 0. The other arguments and the errors are those
    of :func:`confidence`; InputError also for a length below 1. Source: Malinin and Gales (2021),
    Uncertainty Estimation in Autoregressive Structured Prediction, ICLR.

    >>> predictive_entropy([[-0.5, -0.1], [-2.0]])
    array([0.3, 2. ])
    >>> predictive_entropy([[-0.5, -0.1], [-2.0]], lengths=[[2, 4], [3]])
    array([0.7, 6. ])
    """
    values, m = _flat_log_likelihoods(log_likelihoods, ids)
    if lengths is not None:
        tokens, counts = _flat_numbers(lengths, "lengths")
        _check_counts("lengths", counts, m, ids)
        too_short = _owners(m)[~(tokens >= 1)]
        why = "has a length below 1. Count the end-of-turn token of each sample"
        _refuse("lengths", too_short, why, ids)
        values = values * tokens
    return 0.0 - _by_segment(np.add, values, _cumulative(m)[:-1]) / m


def number_of_clusters(clusters: ClusterLists, *, ids: Sequence[str] | None = None) -> Ints:
    """Return the number of clusters of each question, shape (Q,); arguments as in :func:`confidence`.

    >>> number_of_clusters([[[0, 1], [2]], [[0]]])
    array([2, 1])
    """
    return np.diff(lay_out(clusters, ids).offsets)


def semantic_entropy_rao_blackwell(
    clusters: ClusterLists, sequence_log_likelihoods: LogLikelihoods, *, ids: Sequence[str] | None = None
) -> Floats:
    r"""Compute the Rao-Blackwell estimate of semantic entropy (Q,) in nats, from whole sequences.

    .. math:: \widehat{SE} = -\sum_{C} P(C) \log P(C), \qquad
              P(C) = \frac{\sum_{i \in C} p(y_i \mid x)}{\sum_{j=1}^m p(y_j \mid x)}

    `sequence_log_likelihoods` (Q lists of m) are :math:`\log p(y_i \mid x)`, usually not length-normalized;
    with length-normalized values the result is the entropy of L-SC. The other arguments and the errors are
    those of :func:`confidence`. Source: Farquhar, Kossen, Kuhn and Gal (2024), Detecting hallucinations in
    large language models using semantic entropy, Nature 630, equation 5.

    >>> semantic_entropy_rao_blackwell([[[0, 1], [2]]], [[-1.0, -1.0, -1.0]]).round(4)
    array([0.6365])
    """
    return confidence(clusters, sequence_log_likelihoods, measure="L-SC", ids=ids).entropy


def semantic_entropy_monte_carlo(
    clusters: ClusterLists, sequence_log_likelihoods: LogLikelihoods, *, ids: Sequence[str] | None = None
) -> Floats:
    r"""Compute the Monte Carlo estimate of semantic entropy from the likelihoods of whole sequences.

    .. math:: \widehat{SE} = -\frac{1}{m} \sum_{i=1}^m \log P(C(i))

    with C(i) the cluster of sample i and P as in :func:`semantic_entropy_rao_blackwell`: the expectation over
    clusters is the average over the samples. (Kuhn et al. average over the distinct clusters instead.)
    Arguments, result (in nats) and errors are the same as in that function, but the result is +inf if all
    samples of a cluster have likelihood 0.

    Source: Farquhar, Kossen, Kuhn and Gal (2024), Nature 630; Kuhn, Gal and Farquhar (2023), Semantic
    Uncertainty, ICLR.

    >>> semantic_entropy_monte_carlo([[[0, 1], [2]]], [[-1.0, -1.0, -1.0]]).round(4)
    array([0.6365])
    """
    layout = lay_out(clusters, ids)
    values = _in_cluster_order(layout, sequence_log_likelihoods, ids)
    log_sum = layout.log_sum(values)
    top = layout.question_max(log_sum)
    log_total = top + np.log(layout.question_sum(np.exp(log_sum - layout.spread(top))))
    return log_total - layout.question_sum(layout.size * log_sum) / layout.m


# ---- Clusters of a relation --------------------------------------------------------------------------------


def complete(related: Sequence[Sequence[bool]]) -> list[list[int]]:
    """Return clusters by complete linkage: all answers of a cluster are equivalent.

    `related` (n, n) is symmetric, and true on the diagonal. The clusters are a partition of 0..n-1, in the
    order of their first members. Pairs of equivalent answers are visited in descending order of the Jaccard
    index of the two answers' sets of equivalent answers, ties in index order. The clusters of a pair merge if
    all pairs between them are equivalent. A transitive relation yields its components.

    Answer 3 is equivalent to 2, but not to 0 and 1:

    >>> complete([[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1], [0, 0, 1, 1]])
    [[0, 1, 2], [3]]
    """
    relation = np.array(related, dtype=bool).reshape(len(related), len(related))
    size = relation.sum(axis=1)
    shared = relation.astype(int) @ relation
    sureness = shared / (size[:, None] + size - shared)
    pairs = np.argwhere(np.triu(relation, 1))
    label = np.arange(len(relation))
    for i, j in pairs[np.argsort(-sureness[tuple(pairs.T)], kind="stable")]:
        second = label == label[j]
        if relation[np.ix_(label == label[i], second)].all():
            label[second] = label[i]
    members: dict[int, list[int]] = {}
    for i, name in enumerate(label.tolist()):
        members.setdefault(name, []).append(i)
    return list(members.values())
