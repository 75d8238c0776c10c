"""Baselines of the field: predictive entropy, number of meanings, estimates of semantic entropy.

The semantic entropy of a measure is :attr:`semcal.measures.SemanticConfidence.entropy`. Beside them,
clusters from pairwise equivalence: connected components, greedy, or complete.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from semcal.arrays import as_numbers
from semcal.errors import InputError
from semcal.measures.formulas import confidence
from semcal.measures.ragged import (
    Clusters,
    Floats,
    Ints,
    LogLikelihoods,
    cumulative,
    draws_in_cluster_order,
    flat_lengths,
    flat_log_likelihoods,
    lay_out,
)


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

    Parameters
    ----------
    log_likelihoods : sequence of Q lists of m floats
        Length-normalised, natural logarithm.
    lengths : sequence of Q lists of m ints, optional
        Number of tokens of each draw (end of turn included), positive.
    ids : sequence of Q str, optional
        Names of the questions, for messages.

    Returns
    -------
    ndarray of float64, shape (Q,)
        Nats per token, or with `lengths` nats; +inf where a draw has likelihood 0.

    Raises
    ------
    InputError
        A log-likelihood that is NaN, above 1e-6, or -inf for every draw of a question; a length below 1.

    References
    ----------
    Malinin and Gales (2021), Uncertainty Estimation in Autoregressive Structured Prediction, ICLR.

    Examples
    --------
    >>> predictive_entropy([[-0.5, -0.1], [-2.0]])
    array([0.3, 2. ])
    >>> predictive_entropy([[-0.5, -0.1], [-2.0]], lengths=[[2, 4], [3]])
    array([0.7, 6. ])
    """
    values, m = flat_log_likelihoods(log_likelihoods, ids)
    if lengths is not None:
        values = values * flat_lengths(lengths, m, ids)
    return 0.0 - np.add.reduceat(values, cumulative(m)[:-1]) / m if len(m) else values


def number_of_clusters(clusters: Clusters, *, ids: Sequence[str] | None = None) -> Ints:
    """Number of distinct meanings of each question's answers.

    Parameters
    ----------
    clusters : sequence of Q lists of clusters, each a list of draw indices
        Per question a partition of 0..m-1.
    ids : sequence of Q str, optional
        Names of the questions, for messages.

    Returns
    -------
    ndarray of int, shape (Q,)

    Raises
    ------
    InputError
        Clusters that are no partition.

    Examples
    --------
    >>> number_of_clusters([[[0, 1], [2]], [[0]]])
    array([2, 1])
    """
    return np.diff(lay_out(clusters, ids).offsets)


def semantic_entropy_rao_blackwell(
    clusters: Clusters, sequence_log_likelihoods: LogLikelihoods, *, ids: Sequence[str] | None = None
) -> Floats:
    r"""Rao-Blackwell estimate of semantic entropy from the likelihoods of whole sequences.

    .. math:: \widehat{SE} = -\sum_{C} P(C) \log P(C), \qquad
              P(C) = \frac{\sum_{i \in C} p(y_i \mid x)}{\sum_{j=1}^m p(y_j \mid x)}

    The expectation over clusters is summed with the clusters' probabilities instead of their sampled
    frequencies.

    Parameters
    ----------
    clusters : sequence of Q lists of clusters, each a list of draw indices
        Per question a partition of 0..m-1.
    sequence_log_likelihoods : sequence of Q lists of m floats
        :math:`\log p(y_i \mid x)`, natural logarithm, usually not length-normalised (with length-normalised
        values this is the entropy of L-SC).
    ids : sequence of Q str, optional
        Names of the questions, for messages.

    Returns
    -------
    ndarray of float64, shape (Q,)
        Nats.

    Raises
    ------
    InputError
        As :func:`semcal.measures.confidence`.

    References
    ----------
    Farquhar, Kossen, Kuhn and Gal (2024), Detecting hallucinations in large language models using semantic
    entropy, Nature 630, equation 5.

    Examples
    --------
    >>> semantic_entropy_rao_blackwell([[[0, 1], [2]]], [[-1.0, -1.0, -1.0]]).round(4)
    array([0.6365])
    """
    return confidence(clusters, sequence_log_likelihoods, measure="L-SC", ids=ids).entropy


def semantic_entropy_monte_carlo(
    clusters: Clusters, sequence_log_likelihoods: LogLikelihoods, *, ids: Sequence[str] | None = None
) -> Floats:
    r"""Monte-Carlo estimate of semantic entropy from the likelihoods of whole sequences.

    .. math:: \widehat{SE} = -\frac{1}{m} \sum_{i=1}^m \log P(C(i))

    with C(i) the cluster of draw i and P as in :func:`semantic_entropy_rao_blackwell`: the expectation over
    clusters is the average over the draws. (Kuhn et al. average over the distinct clusters instead of over
    the draws.)

    Parameters
    ----------
    clusters, sequence_log_likelihoods, ids
        As in :func:`semantic_entropy_rao_blackwell`.

    Returns
    -------
    ndarray of float64, shape (Q,)
        Nats; +inf where a cluster holds nothing but draws of likelihood 0.

    Raises
    ------
    InputError
        As :func:`semcal.measures.confidence`.

    References
    ----------
    Farquhar, Kossen, Kuhn and Gal (2024), Nature 630; Kuhn, Gal and Farquhar (2023), Semantic Uncertainty,
    ICLR.

    Examples
    --------
    >>> semantic_entropy_monte_carlo([[[0, 1], [2]]], [[-1.0, -1.0, -1.0]]).round(4)
    array([0.6365])
    """
    layout = lay_out(clusters, ids)
    values = draws_in_cluster_order(layout, sequence_log_likelihoods, ids)
    log_sum = layout.log_sum(values)
    top = layout.question_max(log_sum)
    log_total = top + np.log(layout.question_sum(np.exp(log_sum - layout.spread(top))))
    return log_total - layout.question_sum(layout.size * log_sum) / layout.m


# ---- Clusters of a relation --------------------------------------------------------------------------------


def components(related: ArrayLike) -> list[list[int]]:
    """Connected components of the relation: chains of equivalent answers share a cluster.

    Parameters
    ----------
    related : array_like of bool, shape (n, n)
        related[i, j]: answers i and j are equivalent. Symmetric; the diagonal is ignored.

    Returns
    -------
    list of list of int
        A partition of 0..n-1, members ascending, clusters in the order of their first member.

    Raises
    ------
    InputError
        The relation is not square or not symmetric.

    Examples
    --------
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

    References
    ----------
    Kuhn, Gal and Farquhar (2023), Semantic Uncertainty, ICLR, algorithm 1.

    Examples
    --------
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

    Examples
    --------
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
