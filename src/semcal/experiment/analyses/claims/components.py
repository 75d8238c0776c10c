"""The claim that the choice of method moves the results more than the choice of measure."""

from __future__ import annotations

from typing import Any

import numpy as np

from semcal.experiment.analyses.claims.verdicts import Claim, all_of, positive, undecidable
from semcal.experiment.analyses.columns import Floats
from semcal.experiment.analyses.contrasts import measures_of, tested
from semcal.experiment.analyses.scores import GridScores
from semcal.metrics import Contrast

__all__ = ["components", "components_claim"]

TOLD = (
    "method against measure",
    "The choice of calibration method moves calibration and discrimination more than the choice of semantic "
    "measure.",
    "section 6",
    "Within each model and data set the table methods × measures of ACE (and of AUROC) has variance "
    "components of method and of measure (two-way, one value a cell). The difference of their roots, "
    "averaged over models and data sets, must have a 95 % interval over questions above 0, for ACE and "
    "for AUROC; one below 0, at 95 % corrected for the two, means that it does not hold.",
)


def components(table: Floats) -> tuple[Floats, Floats]:
    r"""Variance components of rows and of columns of a two-way table with one value a cell.

    With I rows, J columns, mean squares of rows, columns and rest,

    .. math:: \sigma^2_\text{rows} = \max(0, (MS_\text{rows} - MS_\text{rest}) / J), \qquad
              \sigma^2_\text{columns} = \max(0, (MS_\text{columns} - MS_\text{rest}) / I).

    Parameters
    ----------
    table : ndarray of float64, shape (I, J, ...)

    Returns
    -------
    (ndarray, ndarray)
        Of shape (...).

    Examples
    --------
    >>> rows, columns = components(np.array([[1.0, 1.5], [3.0, 3.5]]))
    >>> float(rows), float(columns)
    (2.0, 0.125)
    """
    i, j = table.shape[:2]
    mean = table.mean(axis=(0, 1))
    rows, columns = table.mean(axis=1), table.mean(axis=0)
    rest = table - rows[:, None] - columns[None] + mean
    ms_rows = j * ((rows - mean) ** 2).sum(0) / (i - 1)
    ms_columns = i * ((columns - mean) ** 2).sum(0) / (j - 1)
    ms_rest = (rest**2).sum((0, 1)) / ((i - 1) * (j - 1))
    return np.maximum(0.0, (ms_rows - ms_rest) / j), np.maximum(0.0, (ms_columns - ms_rest) / i)


def components_claim(scores: GridScores) -> Claim:
    """Judge methods against measures."""
    metrics = ("ace", "auroc")
    found = {metric: _differences(scores, metric) for metric in metrics}
    if not all(found.values()):
        return undecidable(*TOLD, because=_why_open(scores))
    pooled = {metric: Contrast.mean(one for one, _ in parts) for metric, parts in found.items()}
    evidence: dict[str, Any] = {
        metric: {
            "difference_of_roots": tested(pooled[metric]),
            "method": float(np.mean([row["method"] for _, row in parts])),
            "measure": float(np.mean([row["measure"] for _, row in parts])),
            "by_pair": [row for _, row in parts],
        }
        for metric, parts in found.items()
    }
    because = "; ".join(
        f"{metric.upper()}: standard deviation {evidence[metric]['method']:.3f} over methods, "
        f"{evidence[metric]['measure']:.3f} over measures"
        for metric in metrics
    )
    verdict = all_of([positive(one, margin=0.0, parts=len(pooled)) for one in pooled.values()])
    return Claim(*TOLD, verdict, f"{because}.", evidence)


def _why_open(scores: GridScores) -> str:
    if len(scores.run.methods) < 2:
        return "The run has one method; it takes two."
    if all(len(measures_of(scores.pair(*pair), scores)) < 2 for pair in scores.run.pairs):
        return "Fewer than two measures are defined; it takes two."
    return (
        "On no model and data set are ACE and AUROC defined for every method and measure: AUROC takes right "
        "and wrong answers."
    )


def _differences(scores: GridScores, metric: str) -> list[tuple[Contrast, dict[str, Any]]]:
    """For each pair the root of the method's component less that of the measure's."""
    parts = []
    for model, dataset in scores.run.pairs:
        pair = scores.pair(model, dataset)
        measures = measures_of(pair, scores)
        if len(measures) < 2 or len(scores.run.methods) < 2:
            continue
        cells = [
            [pair.resampled.contrast((method, measure), metric) for measure in measures]
            for method in scores.run.methods
        ]
        here = [np.sqrt(part) for part in components(np.array([[one.value for one in row] for row in cells]))]
        if np.isnan(here).any():
            continue
        drawn = [
            np.sqrt(part) for part in components(np.array([[one.resampled for one in row] for row in cells]))
        ]
        row = {"model": model, "dataset": dataset, "method": float(here[0]), "measure": float(here[1])}
        parts.append((Contrast(float(here[0] - here[1]), drawn[0] - drawn[1]), row))
    return parts
