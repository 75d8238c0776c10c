"""Tables 4–6: how well −entropy tells right from wrong, for the selected answer and for the greedy one."""

from __future__ import annotations

from typing import Any

import numpy as np

from semcal.experiment.analyses.cells import VARIANTS, PairScores, over_runs
from semcal.experiment.analyses.scores import GridScores
from semcal.metrics import auroc

__all__ = ["SHORT", "entropy"]

#: The measures of the short table.
SHORT = ("E-SC", "L-SC", "IC-SC", "G-SC")


def entropy(scores: GridScores) -> list[dict[str, Any]]:
    """AUROC of −semantic entropy.

    Returns
    -------
    list of dict
        {model, dataset, method, measure, SE_conf, SE_conf_one_member, SE_vanilla, vanilla, greedy_differs}:
        each variant as `over_runs` gives it, whether SE_vanilla is of the greedy answer or of beams, and the
        share of questions whose greedy answer is another than Base's (null without Base). SE_conf calls a
        meaning right where any of the members is that were graded (`grading.members`), SE_conf_one_member
        where the first of these is.
    """
    run = scores.run
    rows = []
    for model, dataset in run.pairs:
        pair = scores.pair(model, dataset)
        for method in run.methods:
            for measure in run.measures:
                rows.append(
                    {
                        "model": model,
                        "dataset": dataset,
                        "method": method,
                        "measure": measure,
                        **{variant: _auroc(pair, (method, measure), variant) for variant in VARIANTS},
                        "vanilla": pair.rules.vanilla,
                        "greedy_differs": _differs(scores, model, dataset, method, measure),
                    }
                )
    return rows


def _auroc(pair: PairScores, key: tuple[str, str], variant: str) -> dict[str, Any] | None:
    if key not in pair.cells:
        return None
    cell = pair.cells[key]
    found = [
        auroc(-entropies, outcomes) for entropies, outcomes in zip(cell.entropy, cell.by_variant[variant])
    ]
    return over_runs(pair.rules.auroc(found), pair.entropies.interval((*key, variant), "auroc"))


def _differs(scores: GridScores, model: str, dataset: str, method: str, measure: str) -> float | None:
    run = scores.run
    if "Base" not in run.methods:
        return None
    ours, base = (
        scores.runs_of(model, dataset, run.choice(model, dataset, name, measure)["candidate"])
        for name in (method, "Base")
    )
    return float(np.mean([np.mean([a != b for a, b in zip(x.greedy, y.greedy)]) for x, y in zip(ours, base)]))
