"""From clusters of sampled answers to confidences: the seven measures, the field's baselines, clusters.

Nested lists of clusters are checked and laid out as flat arrays, question after question, so that no loop
runs per question. A measure (paper, section "Semantic confidence") gives each cluster a log-score from a few
sufficient statistics; a softmax over the question's clusters makes it a distribution. All sums are in log
space: log-likelihoods of -10000 do no harm.
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
from numpy.typing import ArrayLike, NDArray

from semcal.arrays import Floats, as_numbers, as_option
from semcal.errors import InputError, UndefinedWarning, UsageError, shown
from semcal.registry import Catalogue, check_name

Scalar = TypeVar("Scalar", bound=np.generic)
Ints = NDArray[np.int64]
ClusterLists = Sequence[Sequence[Sequence[int]]]
LogLikelihoods = Sequence[Sequence[float]] | NDArray[np.floating]

#: A log-likelihood above zero by no more than this is a rounding error; beyond it, it is a mistake.
ABOVE_ZERO = 1e-6
#: The least finite log-likelihood that is accepted: sums of smaller ones overflow.
LEAST = -1e300
#: Cluster probabilities this close to the largest are tied with it: rounding must not choose the answer.
TIE = 1e-9
#: Logarithms of sums of likelihoods this close are equal: then the cluster that appeared first wins.
EQUALLY_LIKELY = 1e-6
#: Numbers whose logarithms are taken sooner than scipy.special is imported.
FEW = 10_000


# ---- Clusters as flat arrays -------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClusterLayout:
    """The clusters of Q questions (K clusters, S draws in all) as flat arrays."""

    offsets: Ints  # [Q+1] clusters of question q are offsets[q]:offsets[q+1]
    m: Ints  # [Q] draws of each question
    size: Ints  # [K] draws in each cluster
    starts: Ints  # [K] where each cluster begins among the draws
    first_draw: Ints  # [K] smallest draw index in each cluster, counted within its question
    order: Ints  # [S] for each draw in cluster order, its place in question order

    @cached_property
    def question(self) -> Ints:
        """The question of each cluster: [K]."""
        return _owners(np.diff(self.offsets))

    def spread(self, per_question: NDArray[Scalar]) -> NDArray[Scalar]:
        """Repeat one value a question over its clusters: [Q] -> [K]."""
        return per_question[self.question]

    def question_sum(self, per_cluster: Floats) -> Floats:
        """Sum over the clusters of each question: [K] -> [Q]."""
        return _by_segment(np.add, per_cluster, self.offsets[:-1])

    def question_max(self, per_cluster: Floats) -> Floats:
        """Maximum over the clusters of each question: [K] -> [Q]."""
        return _by_segment(np.maximum, per_cluster, self.offsets[:-1])

    def cluster_sum(self, per_draw: Floats) -> Floats:
        """Sum over the draws of each cluster: [S] -> [K]."""
        return _by_segment(np.add, per_draw, self.starts)

    def log_sum(self, per_draw: Floats) -> Floats:
        """logsumexp over the draws of each cluster, -inf for a cluster of -inf alone: [S] -> [K]."""
        peak = _by_segment(np.maximum, per_draw, self.starts)
        peak = np.where(np.isfinite(peak), peak, 0.0)
        with np.errstate(divide="ignore"):
            return peak + np.log(self.cluster_sum(np.exp(per_draw - np.repeat(peak, self.size))))


def lay_out(clusters: ClusterLists, ids: Sequence[str] | None = None) -> ClusterLayout:
    """Flatten `clusters`; InputError names the question whose clusters are no partition of its draws."""
    if ids is not None and len(ids) != len(clusters):
        raise InputError(
            f"ids names {len(ids)} questions, clusters holds {len(clusters)}: give one id a question"
        )
    try:
        k = _lengths(clusters)
        flat = list(chain.from_iterable(clusters))
        size = _lengths(flat)
        numbers = _doubles(chain.from_iterable(flat))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"clusters must be nested three deep, question > cluster > draw index ({error}); "
            "for a single question write [clusters]"
        ) from error
    with np.errstate(invalid="ignore"):
        draws = numbers.astype(np.int64)
    of_cluster = _owners(k)
    of_draw = np.repeat(of_cluster, size)
    _refuse(of_draw[draws != numbers], "has a draw index that is no whole number", ids)
    _refuse(
        np.flatnonzero(k == 0), "has no clusters; leave the question out or give it at least one draw", ids
    )
    _refuse(of_cluster[size == 0], "has an empty cluster; drop the cluster", ids)
    offsets, starts = _cumulative(k), _cumulative(size)[:-1]
    m = _by_segment(np.add, size, offsets[:-1])
    place = np.repeat(_cumulative(m)[:-1], m) + draws
    outside = (draws < 0) | (draws >= np.repeat(m, m))
    _refuse(of_draw[outside], "has a draw index outside 0..m-1 (m draws in its clusters)", ids)
    times = np.bincount(place, minlength=len(draws))
    twice = of_draw[times[place] > 1] if (times != 1).any() else times[:0]
    _refuse(twice, "has a draw in two clusters; every draw belongs to exactly one", ids)
    first_draw = _by_segment(np.minimum, draws, starts)
    return ClusterLayout(offsets=offsets, m=m, size=size, starts=starts, first_draw=first_draw, order=place)


def _lengths(sequences: Sequence[Sized] | NDArray[np.floating]) -> Ints:
    """The length of each item of `sequences`."""
    return np.fromiter(map(len, sequences), np.int64, len(sequences))


def _cumulative(lengths: Ints) -> Ints:
    """Where each segment begins, and the total: [n] -> [n+1]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _owners(lengths: Ints) -> Ints:
    """The number of the segment that each item belongs to."""
    return np.repeat(np.arange(len(lengths)), lengths)


def _by_segment(reduction: np.ufunc, values: NDArray[Scalar], starts: Ints) -> NDArray[Scalar]:
    """Reduce each segment of the values; no segments, no values."""
    reduced: NDArray[Scalar] = reduction.reduceat(values, starts) if len(starts) else values[:0]
    return reduced


def _name(index: int, ids: Sequence[str] | None) -> str:
    """The name of a question for messages, with its id if known."""
    return f"question {index}" if ids is None else f"question {index} (id {ids[index]!r})"


def _refuse(questions: Ints, why: str, ids: Sequence[str] | None) -> None:
    """Raise for the first of `questions`, if there is one."""
    if len(questions):
        raise InputError(f"{_name(int(questions[0]), ids)} {why}")


def _in_cluster_order(
    layout: ClusterLayout, log_likelihoods: LogLikelihoods, ids: Sequence[str] | None = None
) -> Floats:
    """Check one log-likelihood a draw and put them in cluster order: [S]."""
    values, m = _flat_log_likelihoods(log_likelihoods, ids)
    _check_counts("log-likelihoods", m, layout.m, ids)
    return values[layout.order]


def _flat_log_likelihoods(
    log_likelihoods: LogLikelihoods, ids: Sequence[str] | None = None
) -> tuple[Floats, Ints]:
    """Check the log-likelihoods of Q questions and lay them flat: values [S], draws of each question [Q]."""
    values, m = _flat_numbers(log_likelihoods, "log_likelihoods")
    _refuse(np.flatnonzero(m == 0), "has no log-likelihoods; leave the question out or give it a draw", ids)
    bad = np.flatnonzero(np.isnan(values) | (values > ABOVE_ZERO) | ((values < LEAST) & (values > -np.inf)))
    if len(bad):
        remedy = (
            f"below {LEAST:g} sums are beyond what a float holds: give -inf for a draw of likelihood 0"
            if values[bad[0]] < LEAST
            else "expected the natural logarithm of a probability, a number <= 0 or -inf: mend the value, or "
            "leave log_likelihoods out and use E-SC alone"
        )
        _refuse(_owners(m)[bad], f"has log-likelihood {values[bad[0]]}; {remedy}", ids)
    none_finite = (
        "has log-likelihood -inf for every draw, so that they cannot be weighed; at least one must be finite"
    )
    best = _by_segment(np.maximum, values, _cumulative(m)[:-1])
    _refuse(np.flatnonzero(best == -np.inf), none_finite, ids)
    return values, m


def _flat_numbers(
    rows: Sequence[Sequence[float]] | NDArray[np.floating], argument: str
) -> tuple[Floats, Ints]:
    """Lay a list of lists of numbers flat: values [S], NaN for None, and the length of each list [Q]."""
    try:
        if any(isinstance(row, (set, frozenset, dict)) for row in rows):
            raise TypeError("a set or a dictionary has no order")
        lengths = _lengths(rows)
        try:
            return _doubles(_chained(rows)), lengths
        except TypeError:  # perhaps because of None, which is looked for only then
            return _doubles(math.nan if value is None else value for value in _chained(rows)), lengths
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{argument} must be one list of numbers a question ({error})") from error


def _doubles(values: Iterable[float]) -> Floats:
    """Numbers as float64; unlike numpy, `array` takes no text for a number."""
    doubles = array("d", values)
    return np.frombuffer(doubles, dtype=np.float64) if doubles else np.zeros(0)


def _check_counts(argument: str, counts: Ints, m: Ints, ids: Sequence[str] | None) -> None:
    """Refuse a number of values that differs from the number of draws."""
    if len(counts) != len(m):
        raise InputError(
            f"there are {argument} for {len(counts)} questions and draws for {len(m)}; give one list a "
            "question"
        )
    differing = np.flatnonzero(counts != m)
    if len(differing):
        at = int(differing[0])
        _refuse(differing, f"has {counts[at]} {argument} and {m[at]} draws; give one a draw", ids)


def _chained(rows: Iterable[Iterable[float]]) -> Iterable[float]:
    """All values of all rows; arrays and tensors become lists first, which are read much faster."""
    return chain.from_iterable(row.tolist() if hasattr(row, "tolist") else row for row in rows)


# ---- The seven measures ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SemanticConfidence:
    """Distributions over the meanings of Q questions under one measure (K clusters in all).

    Attributes
    ----------
    measure : str
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

    Source: Lamb, Ivanova, Torr and Rudner (2026), Improving Semantic Uncertainty Quantification in Language
    Model Question-Answering via Token-Level Temperature Scaling, AISTATS. E-SC: Farquhar et al. (2024),
    Nature 630. L-SC: Kuhn, Gal and Farquhar (2023), ICLR.

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
        statistics = ClusterStatistics(layout, _in_cluster_order(layout, log_likelihoods, ids))
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


def _tie_weights(layout: ClusterLayout, ties: str | Sequence[Sequence[float]]) -> Floats:
    """By what ties are settled where likelihoods do not: a logarithm for each cluster."""
    if isinstance(ties, str):
        check_name(ties, ("likelier", "first"), what="rule for ties")
        return np.zeros(len(layout.size))
    values, lengths = _flat_numbers(ties, "ties")
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


def _softmax(layout: ClusterLayout, scores: Floats) -> tuple[Floats, Floats]:
    """Softmax over the clusters of each question, and its largest value; NaN where every score is -inf."""
    top = layout.question_max(scores)
    shifted = np.exp(scores - layout.spread(np.where(top > -np.inf, top, 0.0)))
    total = np.where(top > -np.inf, layout.question_sum(shifted), np.nan)
    return shifted / layout.spread(total), 1.0 / total  # the largest is exp(0) / total


def _result(
    measure: str,
    layout: ClusterLayout,
    probabilities: Floats,
    largest: Floats,
    weights: Floats,
    ids: Sequence[str] | None,
) -> SemanticConfidence:
    """Confidence, top cluster and entropy of each distribution; warns about the null ones."""
    null = np.isnan(largest)
    if null.any():
        first = _name(int(null.argmax()), ids)
        warnings.warn(
            f"{measure} is null for {null.sum()} question(s), first {first}: every cluster has score 0, as "
            "each holds a draw of likelihood 0; use E-SC or L-SC there",
            UndefinedWarning,
            stacklevel=3,
        )
    defined, best = np.where(null[layout.question], 0.0, probabilities), np.where(null, 0.0, largest)
    top = np.where(null, -1, _winners(layout, defined, best, weights))
    entropy = layout.question_sum(_entropy_terms(probabilities)) + 0.0  # that of 1 is -0.0
    return SemanticConfidence(measure, probabilities, layout.offsets, largest, top, entropy)


def _winners(layout: ClusterLayout, probabilities: Floats, largest: Floats, weights: Floats) -> Ints:
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


# ---- Baselines of the field --------------------------------------------------------------------------------


def predictive_entropy(
    log_likelihoods: LogLikelihoods,
    *,
    lengths: Sequence[Sequence[int]] | None = None,
    ids: Sequence[str] | None = None,
) -> Floats:
    r"""Monte-Carlo estimate of the entropy over token sequences, length-normalised or not.

    .. math:: \widehat{H} = -\frac{1}{m} \sum_{i=1}^m u_i
              \qquad\text{or, with lengths,}\qquad -\frac{1}{m} \sum_{i=1}^m L_i u_i

    The first is the length-normalised predictive entropy of Malinin and Gales; with `lengths` the
    length-normalised log-likelihoods become those of whole sequences again, and with them the plain one.

    Source: Malinin and Gales (2021), Uncertainty Estimation in Autoregressive Structured Prediction, ICLR.

    Parameters
    ----------
    log_likelihoods, ids
        As in :func:`confidence`, and so are the errors.
    lengths : sequence of Q lists of m ints, optional
        Number of tokens of each draw (end of turn included); InputError for one below 1.

    Returns
    -------
    ndarray of float64, shape (Q,)
        Nats per token, or with `lengths` nats; +inf where a draw has likelihood 0.

    Examples
    --------
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
        _refuse(too_short, "has a length below 1; a draw has at least its end-of-turn token", ids)
        values = values * tokens
    return 0.0 - _by_segment(np.add, values, _cumulative(m)[:-1]) / m


def number_of_clusters(clusters: ClusterLists, *, ids: Sequence[str] | None = None) -> Ints:
    """Number of distinct meanings of each question's answers, (Q,); arguments as in :func:`confidence`.

    >>> number_of_clusters([[[0, 1], [2]], [[0]]])
    array([2, 1])
    """
    return np.diff(lay_out(clusters, ids).offsets)


def semantic_entropy_rao_blackwell(
    clusters: ClusterLists, sequence_log_likelihoods: LogLikelihoods, *, ids: Sequence[str] | None = None
) -> Floats:
    r"""Rao-Blackwell estimate of semantic entropy from the likelihoods of whole sequences.

    .. math:: \widehat{SE} = -\sum_{C} P(C) \log P(C), \qquad
              P(C) = \frac{\sum_{i \in C} p(y_i \mid x)}{\sum_{j=1}^m p(y_j \mid x)}

    The expectation over clusters is summed with the clusters' probabilities instead of their sampled
    frequencies.

    Source: Farquhar, Kossen, Kuhn and Gal (2024), Detecting hallucinations in large language models using
    semantic entropy, Nature 630, equation 5.

    Parameters
    ----------
    clusters, ids
        As in :func:`confidence`, and so are the errors.
    sequence_log_likelihoods : sequence of Q lists of m floats
        :math:`\log p(y_i \mid x)`, natural logarithm, usually not length-normalised (with length-normalised
        values this is the entropy of L-SC).

    Returns
    -------
    ndarray of float64, shape (Q,)
        Nats.

    Examples
    --------
    >>> semantic_entropy_rao_blackwell([[[0, 1], [2]]], [[-1.0, -1.0, -1.0]]).round(4)
    array([0.6365])
    """
    return confidence(clusters, sequence_log_likelihoods, measure="L-SC", ids=ids).entropy


def semantic_entropy_monte_carlo(
    clusters: ClusterLists, sequence_log_likelihoods: LogLikelihoods, *, ids: Sequence[str] | None = None
) -> Floats:
    r"""Monte-Carlo estimate of semantic entropy from the likelihoods of whole sequences.

    .. math:: \widehat{SE} = -\frac{1}{m} \sum_{i=1}^m \log P(C(i))

    with C(i) the cluster of draw i and P as in :func:`semantic_entropy_rao_blackwell`: the expectation over
    clusters is the average over the draws. (Kuhn et al. average over the distinct clusters instead of over
    the draws.) Arguments, result (in nats) and errors are those of that function; it is +inf where a cluster
    holds nothing but draws of likelihood 0.

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


def components(related: ArrayLike) -> list[list[int]]:
    """Connected components of the relation: chains of equivalent answers share a cluster.

    `related` is array_like of bool, shape (n, n): related[i, j] says that answers i and j are equivalent. The
    diagonal is ignored; InputError if it is not square or not symmetric. Returned is a partition of 0..n-1,
    members ascending, clusters in the order of their first member.

    Answer 2 is equivalent to 1, and 1 to 0, so all three are one meaning, although 0 and 2 were not found
    equivalent:

    >>> components([[1, 1, 0], [1, 1, 1], [0, 1, 1]])
    [[0, 1, 2]]
    """
    relation = _checked(related)
    if not len(relation):
        return []
    _, label = scipy.sparse.csgraph.connected_components(relation, directed=False)
    return _clusters(label)


def greedy(related: ArrayLike) -> list[list[int]]:
    """Greedy clusters: each answer joins the first cluster whose first member it is equivalent to.

    `related`, what is returned and errors are those of :func:`components`.

    Source: Kuhn, Gal and Farquhar (2023), Semantic Uncertainty, ICLR, algorithm 1.

    >>> greedy([[1, 1, 0], [1, 1, 1], [0, 1, 1]])
    [[0, 1], [2]]
    """
    relation = _checked(related)
    clusters: list[list[int]] = []
    for i in range(len(relation)):
        home = next((cluster for cluster in clusters if relation[i, cluster[0]]), None)
        if home is None:
            clusters.append([i])
        else:
            home.append(i)
    return clusters


def complete(related: ArrayLike) -> list[list[int]]:
    """Complete linkage: all answers of a cluster are equivalent, and no two clusters could still merge.

    Clusters merge from the surest pair on, where all pairs between them are equivalent. A pair is the surer,
    the more answers are equivalent to both among those equivalent to either (Jaccard index, the two counted);
    of equally sure ones the first comes first. A transitive relation gives its components.

    `related`, what is returned and errors are those of :func:`components`.

    Answer 2 is equivalent to 3, too, but 0 and 1 are not:

    >>> complete([[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1], [0, 0, 1, 1]])
    [[0, 1, 2], [3]]
    """
    relation = _checked(related)
    relation = relation | np.eye(len(relation), dtype=bool)
    size = relation.sum(axis=1)
    shared = relation.astype(int) @ relation
    sureness = shared / (size[:, None] + size - shared)
    pairs = np.argwhere(np.triu(relation, 1))
    label = np.arange(len(relation))
    for i, j in pairs[np.argsort(-sureness[tuple(pairs.T)], kind="stable")]:
        second = label == label[j]
        if relation[np.ix_(label == label[i], second)].all():
            label[second] = label[i]
    return _clusters(label)


def _checked(related: ArrayLike) -> NDArray[np.bool_]:
    """The relation as a square, symmetric array of bool."""
    numbers = as_numbers(related, "related")
    if np.isnan(numbers).any():
        raise InputError("related holds NaN or null; expected true or false for each pair of answers")
    relation: NDArray[np.bool_] = numbers != 0
    if relation.size == 0:
        return np.zeros((0, 0), bool)
    if relation.ndim != 2 or relation.shape[0] != relation.shape[1]:
        raise InputError(f"related has shape {relation.shape}; expected a square matrix (n, n)")
    one_way = np.argwhere(relation & ~relation.T)
    if len(one_way):
        i, j = one_way[0].tolist()
        raise InputError(
            f"related[{i}, {j}] is true and related[{j}, {i}] is false; equivalence holds both ways: "
            "combine the directions first (entails & entails.T)"
        )
    return relation


def _clusters(label: NDArray[np.integer]) -> list[list[int]]:
    """The members of each label, in order of first appearance."""
    members: dict[int, list[int]] = {}
    for i, name in enumerate(label.tolist()):
        members.setdefault(name, []).append(i)
    return list(members.values())
