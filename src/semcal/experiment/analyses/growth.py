"""How the work of clustering grows with the number of draws, where the paper says m² (appendix)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from semcal.experiment.finished import FinishedRun

__all__ = ["exponent", "growth"]

Rows = Sequence[Mapping[str, Any]]


def growth(run: FinishedRun) -> list[dict[str, Any]]:
    """Count what a question's draws hold at each number of draws, in run 0 of Base (or the first method).

    Returns
    -------
    list of dict
        {model, dataset, candidate, draws, distinct, pairs, meanings}: numbers of draws; distinct normal
        forms, ordered pairs of them and meanings, each {mean, exponent}, the means per question at each
        number, and the b of m^b through them. Empty where all rows have m draws.
    """
    method = "Base" if "Base" in run.methods else run.methods[0]
    found = []
    for model, dataset in run.pairs:
        candidate = run.choice(model, dataset, method, run.measures[0])["candidate"]
        numbers = run.draws_of(model, dataset, candidate)
        if len(numbers) < 2:
            continue
        rows = [run.rows(model, dataset, candidate, draws=draws) for draws in numbers]
        found.append(
            {
                "model": model,
                "dataset": dataset,
                "candidate": candidate,
                "draws": numbers,
                **{
                    name: _grown(numbers, [_mean(of, count) for of in rows])
                    for name, count in COUNTED.items()
                },
            }
        )
    return found


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """The b of the power size^b that fits values best, by least squares on logarithms; None where one is 0.

    Examples
    --------
    >>> exponent([1, 2, 4], [3, 12, 48])
    2.0
    """
    if min(values) <= 0:
        return None
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0].round(12))


def _grown(numbers: Sequence[int], means: Sequence[float]) -> dict[str, Any]:
    return {"mean": list(means), "exponent": exponent(numbers, means)}


def _mean(rows: Rows, count: Callable[[Mapping[str, Any]], int]) -> float:
    return float(np.mean([count(row) for row in rows]))


def _distinct(row: Mapping[str, Any]) -> int:
    return len(set(row["normal_forms"]))


COUNTED: Mapping[str, Callable[[Mapping[str, Any]], int]] = {
    "distinct": _distinct,
    "pairs": lambda row: _distinct(row) * (_distinct(row) - 1),
    "meanings": lambda row: len(row["clusters"]),
}
