"""What the analyses make of one model on one data set: a piece of work that can be done by any process."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from semcal.errors import UndefinedWarning
from semcal.experiment.analyses.accuracies import answers, base_accuracies
from semcal.experiment.analyses.agreement import agreement, deciding_rules
from semcal.experiment.analyses.cells import PairScores
from semcal.experiment.analyses.confidence import confidence
from semcal.experiment.analyses.contrasts import paired_tests
from semcal.experiment.analyses.distributions import correlations, distributions
from semcal.experiment.analyses.entropy import entropy
from semcal.experiment.analyses.generations import by_draws, generations
from semcal.experiment.analyses.growth import growth
from semcal.experiment.analyses.losses import losses
from semcal.experiment.analyses.remedies import Compared, compared, remedies, remedy_scores
from semcal.experiment.analyses.rules_alone import rules_alone
from semcal.experiment.analyses.score_maps import score_maps
from semcal.experiment.analyses.scores import GridScores
from semcal.experiment.analyses.selective import selective
from semcal.experiment.analyses.transfer import transfer
from semcal.experiment.analyses.volatility import volatility
from semcal.experiment.finished import FinishedRun

__all__ = ["Part", "part_of"]

OF_ROWS: dict[str, Callable[[FinishedRun], list[dict[str, Any]]]] = {
    "rules_alone": rules_alone,
    "growth": growth,
}
OF_SCORES: dict[str, Callable[[GridScores], list[dict[str, Any]]]] = {
    "base_accuracies": base_accuracies,
    "answers": answers,
    "confidence": confidence,
    "entropy": entropy,
    "volatility": volatility,
    "agreement": agreement,
    "deciding_rules": deciding_rules,
    "selective": selective,
    "generations": generations,
    "losses": losses,
    "distributions": distributions,
    "correlations": correlations,
    "paired": paired_tests,
    "transfer": transfer,
}


@dataclass(frozen=True, eq=False)
class Part:
    """One model on one data set.

    Attributes
    ----------
    rows : dict of str to list of dict
        Name of an analysis → its rows.
    scores : PairScores
    by_draws : dict of int to PairScores
        Number of draws → scores; empty where all rows have m draws.
    compared : list of Compared
        One where the answers were clustered twice, else none.
    """

    rows: dict[str, list[dict[str, Any]]]
    scores: PairScores
    by_draws: dict[int, PairScores]
    compared: list[Compared]


def part_of(run: FinishedRun) -> Part:
    """Analyse a run of which one (model, data set) is looked at (`FinishedRun.parts`)."""
    (pair,) = run.pairs
    scores = GridScores(run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)  # what is undefined is null, and so reported
        rows = {name: made(run) for name, made in OF_ROWS.items()}
        rows |= {name: made(scores) for name, made in OF_SCORES.items()}
        twice = list(compared(scores))
        rows |= {"remedies": remedies(twice), "remedy_scores": remedy_scores(twice)}
        if "validation_scores" in run.selections[pair]:
            rows["score_maps"] = score_maps(scores)
    return Part(rows, scores.pair(*pair), by_draws(scores).get(pair, {}), twice)
