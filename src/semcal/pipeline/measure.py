"""Confidences and entropies of clustered rows (spec sections 2 and 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from semcal.errors import InputError, shown
from semcal.pipeline.rows import clusters_of, identity, log_likelihoods_of, temperatures_of
from semcal.pipeline.sample_features import rows_by_temperature
from semcal.semantics import MEASURES, SemanticConfidence, confidences


def check_measurable(row: Mapping[str, Any]) -> None:
    """Raise InputError unless the row can be measured."""
    clusters = clusters_of(row)
    identity(row)
    log_likelihoods_of(row, sum(map(len, clusters)))
    given = temperatures_of(row)
    if given is not None:
        for cluster in clusters_of(row, len(given)):
            if len({given[i] for i in cluster}) > 1:
                raise InputError(
                    f"the cluster {shown(cluster)} mixes samples of several temperatures; run "
                    "`semcal cluster` again"
                )


def _log_likelihoods(row: Mapping[str, Any], clusters: list[list[int]]) -> list[float] | None:
    """Those of a row; what is wrong with them names the row."""
    try:
        return log_likelihoods_of(row, sum(map(len, clusters)))
    except InputError as error:
        raise InputError(f"question {identity(row)!r}: {error}") from None


def _columns(
    result: SemanticConfidence,
) -> list[tuple[list[float] | None, float | None, float | None, int | None]]:
    """(probabilities, confidence, entropy, top cluster) of each question, None where undefined."""
    columns: list[tuple[list[float] | None, float | None, float | None, int | None]] = []
    for p, confidence, entropy, top in zip(
        result.per_question(), result.confidence, result.entropy, result.top_cluster
    ):
        defined = not np.isnan(confidence)
        columns.append(
            (p.tolist(), float(confidence), float(entropy), int(top)) if defined else (None, None, None, None)
        )
    return columns


def measure_rows(
    rows: Sequence[Mapping[str, Any]],
    *,
    t_alpha: float = 0.5,
    g_alpha: float = 0.5,
    temperature: float | None = None,
) -> list[dict[str, Any]]:
    """Add the seven measures to clustered rows, all rows at once.

    Parameters
    ----------
    rows : sequence of mappings
        With `id`, `clusters` and `log_likelihoods` (a list, or null where they are not known: such a
        row gets E-SC alone).
    t_alpha, g_alpha : float
        The parameter a of T-SC and of G-SC.
    temperature : float, optional
        Which draws of rows with `temperatures` are measured; by default those at T = 1, or else the first.

    Returns
    -------
    list of dict
        The rows with `confidences` (per cluster), `confidence`, `top_cluster` and `semantic_entropy`
        (nats), each by measure; null where a measure is undefined, and for clusters of other draws.

    Examples
    --------
    >>> row = {"id": "1", "clusters": [[0, 1], [2]], "log_likelihoods": None}
    >>> measure_rows([row])[0]["top_cluster"]
    {'E-SC': 0}
    """
    drawn = [_drawn_at(row, temperature) for row in rows]
    return [
        {**row, **(one if numbers is None else _widened(one, numbers, len(row["clusters"])))}
        for row, one, (_, numbers) in zip(rows, _measures([own for own, _ in drawn], t_alpha, g_alpha), drawn)
    ]


def _drawn_at(
    row: Mapping[str, Any], temperature: float | None
) -> tuple[Mapping[str, Any], list[int] | None]:
    """The draws of a row that are measured, and the numbers of their clusters among all; None for all."""
    given = temperatures_of(row)
    if given is None:
        return row, None
    split = rows_by_temperature([row])
    chosen = temperature if temperature in split else next(iter(split))
    numbers = [k for k, cluster in enumerate(row["clusters"]) if given[cluster[0]] == chosen]
    return split[chosen][0], sorted(numbers, key=row["clusters"].__getitem__)


def _widened(measures: Mapping[str, Any], numbers: Sequence[int], count: int) -> dict[str, Any]:
    """Measures of some clusters as those of all `count`: null for the others."""
    confidences: dict[str, list[float | None] | None] = {}
    for name, values in measures["confidences"].items():
        known = dict(zip(numbers, values or ()))
        confidences[name] = [known.get(k) for k in range(count)] if values else None
    top = {name: None if k is None else numbers[k] for name, k in measures["top_cluster"].items()}
    return {**measures, "confidences": confidences, "top_cluster": top}


def _measures(rows: Sequence[Mapping[str, Any]], t_alpha: float, g_alpha: float) -> list[dict[str, Any]]:
    """The fields that are added to rows of one temperature."""
    clusters = [clusters_of(row) for row in rows]
    known = [_log_likelihoods(row, c) for row, c in zip(rows, clusters)]
    added: list[dict[str, Any]] = [
        {"confidences": {}, "confidence": {}, "top_cluster": {}, "semantic_entropy": {}} for _ in rows
    ]
    with_all = {i: u for i, u in enumerate(known) if u is not None}
    without = [i for i, u in enumerate(known) if u is None]
    for chosen, log_likelihoods in ((list(with_all), list(with_all.values())), (without, None)):
        if not chosen:
            continue
        results = confidences(
            [clusters[i] for i in chosen],
            log_likelihoods,
            measures=("E-SC",) if log_likelihoods is None else MEASURES,
            t_alpha=t_alpha,
            g_alpha=g_alpha,
            ids=[identity(rows[i]) for i in chosen],
        )
        for name, result in results.items():
            for i, (p, confidence, entropy, top) in zip(chosen, _columns(result)):
                added[i]["confidences"][name] = p
                added[i]["confidence"][name] = confidence
                added[i]["top_cluster"][name] = top
                added[i]["semantic_entropy"][name] = entropy
    return added
