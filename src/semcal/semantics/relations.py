"""Clusters from pairwise equivalence of answers: connected components, or greedy."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.csgraph import connected_components

from semcal.arrays import as_numbers
from semcal.errors import InputError

__all__ = ["components", "greedy"]


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
    _, label = connected_components(relation, directed=False)
    return _clusters(label)


def greedy(related: ArrayLike) -> list[list[int]]:
    """Greedy clusters: each answer joins the first cluster whose first member it is equivalent to.

    Parameters
    ----------
    related : array_like of bool, shape (n, n)
        As in :func:`components`.

    Returns
    -------
    list of list of int
        A partition of 0..n-1, members ascending, clusters in the order of their first member.

    Raises
    ------
    InputError
        The relation is not square or not symmetric.

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
