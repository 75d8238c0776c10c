"""Accuracies of the base model (table 2), what the draws of a question hold, and how clustering grows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semcal.experiment.analyses.columns import Floats
from semcal.experiment.analyses.grid_scores import GridScores
from semcal.experiment.analyses.pair_scores import over_runs
from semcal.experiment.finished import FinishedRun
from semcal.metrics import bootstrap
from semcal.qa.questions import several

__all__ = ["answers", "base_accuracies", "base_candidate", "exponent", "growth"]

Row = Mapping[str, Any]


def base_accuracies(scores: GridScores) -> list[dict[str, Any]]:
    """{model, dataset, greedy, beam}, each over runs (`over_runs`); null where it was not made.

    Neither depends on the draws, so the standard error over runs is 0: read the interval over questions.
    """
    return [
        {
            "model": model,
            "dataset": dataset,
            "greedy": _accuracy(scores, [one.greedy_correct for one in found], groups),
            "beam": _accuracy(scores, [one.beam_correct for one in found], groups),
        }
        for model, dataset in scores.run.pairs
        for found in [scores.runs_of(model, dataset, base_candidate(scores.run, model, dataset))]
        for groups in [several(found[0].ties)]
    ]


def base_candidate(run: FinishedRun, model: str, dataset: str) -> str:
    """The candidate of Base, or of the first method where Base was not run."""
    method = "Base" if "Base" in run.methods else run.methods[0]
    return str(run.choice(model, dataset, method, run.measures[0])["candidate"])


def _accuracy(
    scores: GridScores, correct: Sequence[Floats | None], groups: NDArray[np.intp] | None
) -> dict[str, Any] | None:
    known = [one for one in correct if one is not None]
    if len(known) < len(correct):
        return None
    found = bootstrap(
        np.stack(known),
        np.stack(known),
        metrics=["accuracy"],
        groups=groups,
        resamples=scores.run.resamples,
        seed=scores.run.seed,
    )
    return over_runs([float(one.mean()) for one in known], found["accuracy"])


def answers(scores: GridScores) -> list[dict[str, Any]]:
    """{model, dataset, candidate, methods, distinct, meanings, refusals}: what the draws of a question hold.

    Distinct answers and meanings are means per question, refusals a share of all draws.
    """
    rows = []
    for model, dataset in scores.run.pairs:
        users: dict[str, list[str]] = {}
        for (method, _), candidate in scores.chosen(model, dataset).items():
            if method not in users.setdefault(candidate, []):
                users[candidate].append(method)
        for candidate, methods in users.items():
            found = scores.runs_of(model, dataset, candidate)
            row = {"model": model, "dataset": dataset, "candidate": candidate, "methods": methods}
            rows.append(
                row
                | {
                    key: float(np.mean([getattr(one, key) for one in found]))
                    for key in ("distinct", "meanings", "refusals")
                }
            )
    return rows


def growth(run: FinishedRun) -> list[dict[str, Any]]:
    """Count what a question's draws hold at each number m of draws: the paper says clustering takes m².

    {model, dataset, candidate, draws, distinct, pairs, meanings}, in run 0 of Base (or the first method):
    numbers of draws; distinct normal forms, ordered pairs of them and meanings, each {mean, exponent}, the
    means per question at each number, and the b of m^b through them. Empty where all rows have m draws.
    """
    found = []
    for model, dataset in run.pairs:
        candidate = base_candidate(run, model, dataset)
        numbers = run.draws_of(model, dataset, candidate)
        if len(numbers) < 2:
            continue
        rows = [run.rows(model, dataset, candidate, draws=draws) for draws in numbers]
        row: dict[str, Any] = {"model": model, "dataset": dataset, "candidate": candidate, "draws": numbers}
        for name, count in COUNTED.items():
            means = [float(np.mean([count(one) for one in of])) for of in rows]
            row[name] = {"mean": means, "exponent": exponent(numbers, means)}
        found.append(row)
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


def _distinct(row: Row) -> int:
    return len(set(row["normal_forms"]))


COUNTED: Mapping[str, Callable[[Row], int]] = {
    "distinct": _distinct,
    "pairs": lambda row: _distinct(row) * (_distinct(row) - 1),
    "meanings": lambda row: len(row["clusters"]),
}
