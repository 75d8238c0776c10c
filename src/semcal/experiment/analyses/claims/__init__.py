"""The paper's claims, each judged on a run by a rule that is stated with it (analyses.md, claims)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from semcal.experiment.analyses.claims.components import components_claim
from semcal.experiment.analyses.claims.draws import draws_claim
from semcal.experiment.analyses.claims.entropy_variants import variants_claim
from semcal.experiment.analyses.claims.measures_differ import correlations_claim, grading_claim
from semcal.experiment.analyses.claims.methods import METHOD_CLAIMS, method_claim
from semcal.experiment.analyses.claims.metrics_agree import independence_claim, metrics_claim
from semcal.experiment.analyses.claims.open_book import open_book_claim
from semcal.experiment.analyses.claims.tokens import filler_claim, order_claim
from semcal.experiment.analyses.claims.verdicts import FAILS, HOLDS, OPEN, RULES, Claim, of_enough
from semcal.experiment.analyses.generations import by_draws
from semcal.experiment.analyses.scores import GridScores

__all__ = ["FAILS", "HOLDS", "OPEN", "RULES", "Claim", "judge"]

#: The paper's order.
IN_ORDER = (
    *(claim.key for claim in METHOD_CLAIMS),
    *("SE_conf", "number of generations", "method against measure", "open book", "filler tokens"),
    *("order of tokens", "metrics agree", "independence", "measures differ under TS", "grading"),
)


def judge(scores: GridScores, analyses: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Claim]:
    """Judge every claim of the paper.

    Parameters
    ----------
    scores : GridScores
    analyses : mapping
        The rows of "volatility", "agreement" and "selective".

    Returns
    -------
    list of Claim
        In the paper's order.
    """
    questions = min((scores.pair(*pair).n for pair in scores.run.pairs), default=0)
    by_scores = [
        *(method_claim(scores, claim, analyses["selective"]) for claim in METHOD_CLAIMS),
        variants_claim(scores),
        draws_claim(by_draws(scores)),
        components_claim(scores),
        open_book_claim(scores),
        filler_claim(scores),
        metrics_claim(scores, analyses["volatility"]),
        correlations_claim(scores),
    ]
    judged = [
        *(of_enough(claim, questions) for claim in by_scores),
        order_claim(scores),
        independence_claim(scores),
        grading_claim(analyses["agreement"]),
    ]
    return sorted(judged, key=lambda claim: IN_ORDER.index(claim.key))
