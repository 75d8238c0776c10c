"""Table 2: accuracy of the base model by greedy decoding and 4 beams; and what each method's draws hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semcal.experiment.analyses.cells import over_runs
from semcal.experiment.analyses.columns import Columns, Floats
from semcal.experiment.analyses.scores import GridScores
from semcal.metrics import Interval, bootstrap
from semcal.qa.questions import several

__all__ = ["answers", "base_accuracies"]


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
        for found in [scores.runs_of(model, dataset, _unscaled(scores, model, dataset))]
        for groups in [several(found[0].ties)]
    ]


def answers(scores: GridScores) -> list[dict[str, Any]]:
    """{model, dataset, candidate, methods, distinct, meanings, refusals}: what the draws of a question hold.

    Distinct answers and meanings are means per question, refusals a share of all draws.
    """
    rows = []
    for model, dataset in scores.run.pairs:
        users: dict[str, list[str]] = {}
        for method in scores.run.methods:
            for measure in scores.run.measures:
                name = scores.run.choice(model, dataset, method, measure)["candidate"]
                if method not in users.setdefault(name, []):
                    users[name].append(method)
        for candidate, methods in users.items():
            found = scores.runs_of(model, dataset, candidate)
            rows.append(
                {
                    "model": model,
                    "dataset": dataset,
                    "candidate": candidate,
                    "methods": methods,
                    **{key: _mean(found, key) for key in ("distinct", "meanings", "refusals")},
                }
            )
    return rows


def _unscaled(scores: GridScores, model: str, dataset: str) -> str:
    """The candidate of Base, or where it was left out the first there is."""
    run = scores.run
    method = "Base" if "Base" in run.methods else run.methods[0]
    return str(run.choice(model, dataset, method, run.measures[0])["candidate"])


def _accuracy(
    scores: GridScores, correct: Sequence[Floats | None], groups: NDArray[np.intp] | None
) -> dict[str, Any] | None:
    known = [one for one in correct if one is not None]
    if len(known) < len(correct):
        return None
    return over_runs([float(one.mean()) for one in known], _interval(scores, np.stack(known), groups))


def _interval(scores: GridScores, correct: Floats, groups: NDArray[np.intp] | None) -> Interval:
    found = bootstrap(
        correct,
        correct,
        metrics=["accuracy"],
        groups=groups,
        resamples=scores.run.resamples,
        seed=scores.run.seed,
    )
    return found["accuracy"]


def _mean(columns: Sequence[Columns], key: str) -> float:
    return float(np.mean([getattr(one, key) for one in columns]))
