"""The paper's claims, each judged on a run by a rule that is stated with it (analyses.md, claims)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from semcal.experiment.analyses.claims.other_claims import (
    correlations_claim,
    filler_claim,
    grading_claim,
    independence_claim,
    metrics_claim,
    order_claim,
)
from semcal.experiment.analyses.claims.score_claims import (
    components_claim,
    draws_claim,
    method_claims,
    open_book_claim,
    variants_claim,
)
from semcal.experiment.analyses.claims.statements import WITHOUT_INTERVALS, Claim, with_enough_questions
from semcal.experiment.analyses.grid_scores import GridScores

__all__ = ["judge"]


def judge(scores: GridScores, analyses: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Claim]:
    """Judge every claim of the paper, in its order; of `analyses`: selective, volatility and agreement."""
    pairs = scores.run.pairs
    by_draws = {pair: found for pair in pairs if (found := scores.by_draws(*pair))}
    judged = [
        *method_claims(scores, analyses["selective"]),
        variants_claim(scores),
        draws_claim(by_draws),
        components_claim(scores),
        open_book_claim(scores),
        filler_claim(scores),
        order_claim(scores),
        metrics_claim(scores, analyses["volatility"]),
        independence_claim(scores),
        correlations_claim(scores),
        grading_claim(analyses["agreement"]),
    ]
    questions = min((scores.pair(*pair).n for pair in pairs), default=0)
    return [
        claim if claim.key in WITHOUT_INTERVALS else with_enough_questions(claim, questions)
        for claim in judged
    ]
