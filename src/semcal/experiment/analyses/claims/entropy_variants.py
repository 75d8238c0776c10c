"""The claim that SE_conf, which judges the most confident meaning, discriminates better than SE_vanilla."""

from __future__ import annotations

from semcal.experiment.analyses.claims.verdicts import (
    HOLDS,
    OPEN,
    Claim,
    positive,
    refuting,
    undecidable,
)
from semcal.experiment.analyses.contrasts import QUANTITIES, measures_of, tested, told
from semcal.experiment.analyses.scores import GridScores
from semcal.metrics import Contrast

__all__ = ["variants_claim"]

TOLD = (
    "SE_conf",
    "Semantic entropy discriminates better when correctness is that of the most confident meaning "
    "(SE_conf) than when it is that of a greedy answer (SE_vanilla).",
    "section 5.2",
    "AUROC of SE_conf less that of SE_vanilla, pooled over models, data sets, methods and measures, "
    "paired by question: it holds if the 95 % interval over questions lies above 0 and reaches +0.005, and "
    "that of no method by itself, at 95 % corrected for their number, lies below 0; it does not if the first "
    "lies below +0.005; else it is not decidable here.",
)


def variants_claim(scores: GridScores) -> Claim:
    """Judge SE_conf against SE_vanilla."""
    parts = {
        method: [
            QUANTITIES["SE_conf"].value(pair, method, measure)
            - QUANTITIES["SE_vanilla"].value(pair, method, measure)
            for model, dataset in scores.run.pairs
            for pair in [scores.pair(model, dataset)]
            for measure in measures_of(pair, scores)
        ]
        for method in scores.run.methods
    }
    known = {
        method: [one for one in found if one.value == one.value]  # NaN: one class only
        for method, found in parts.items()
    }
    known = {method: found for method, found in known.items() if found}
    if not known:
        return undecidable(*TOLD, lacking="data set with right and wrong answers")
    by_method = {method: Contrast.mean(found) for method, found in known.items()}
    pooled = Contrast.mean(one for found in known.values() for one in found)
    verdict = positive(pooled)
    loses = any(refuting(one, len(by_method)).high < 0 for one in by_method.values())
    of_each = {method: tested(one) for method, one in by_method.items()}
    because = (
        f"SE_conf less SE_vanilla is {told(tested(pooled))} in AUROC: "
        f"{', '.join(f'{told(one)} under {method}' for method, one in of_each.items())}."
    )
    evidence = {"pooled": tested(pooled), "by_method": of_each}
    return Claim(*TOLD, OPEN if verdict == HOLDS and loses else verdict, because, evidence)
