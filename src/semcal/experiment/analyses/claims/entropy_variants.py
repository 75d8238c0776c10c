"""The claim that SE_conf, which judges the most confident meaning, discriminates better than SE_vanilla."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from semcal.experiment.analyses.claims.verdicts import (
    HOLDS,
    OPEN,
    Claim,
    positive,
    refuting,
    undecidable,
)
from semcal.experiment.analyses.contrasts import entropy_contrast, measures_of, tested, told
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
    "lies below +0.005; else it is not decidable here. SE_conf calls a meaning right where any of up to 4 of "
    "its members is (grading.members), SE_vanilla judges one text; the difference with one member in place "
    "of several stands beside it and decides nothing.",
)
ONE_CLASS = (
    "Under no method and measure are there right and wrong answers both among the selected and among the "
    "greedy ones, so AUROC is undefined."
)


def variants_claim(scores: GridScores) -> Claim:
    """Judge SE_conf against SE_vanilla, with the same of one member as further evidence."""
    known = _by_method(scores, "SE_conf")
    if not known:
        return undecidable(*TOLD, because=ONE_CLASS)
    by_method = {method: Contrast.mean(found) for method, found in known.items()}
    pooled = Contrast.mean(one for found in known.values() for one in found)
    verdict = positive(pooled)
    loses = any(refuting(one, len(by_method)).high < 0 for one in by_method.values())
    single = _by_method(scores, "SE_conf_one_member")
    evidence = {
        "pooled": tested(pooled),
        "by_method": {method: tested(one) for method, one in by_method.items()},
        "one_member": _tested(one for found in single.values() for one in found),
        "one_member_by_method": {method: _tested(found) for method, found in single.items()},
    }
    return Claim(*TOLD, OPEN if verdict == HOLDS and loses else verdict, _because(evidence), evidence)


def _because(evidence: dict[str, Any]) -> str:
    """The difference, pooled and by method, as it is and with one member."""
    shown = (("", "pooled", "by_method"), (" (one member)", "one_member", "one_member_by_method"))
    parts = [
        f"SE_conf{name} less SE_vanilla is {told(evidence[pooled])} in AUROC: "
        + ", ".join(f"{told(one)} under {method}" for method, one in evidence[by_method].items())
        for name, pooled, by_method in shown
        if evidence[pooled] is not None
    ]
    return f"{'. '.join(parts)}."


def _by_method(scores: GridScores, variant: str) -> dict[str, list[Contrast]]:
    """By method, AUROC of a variant less that of SE_vanilla in every cell in which both are defined."""
    found = {
        method: [
            entropy_contrast(pair, method, measure, variant)
            - entropy_contrast(pair, method, measure, "SE_vanilla")
            for model, dataset in scores.run.pairs
            for pair in [scores.pair(model, dataset)]
            for measure in measures_of(pair, scores)
        ]
        for method in scores.run.methods
    }
    known = {method: [one for one in of if one.value == one.value] for method, of in found.items()}  # not NaN
    return {method: of for method, of in known.items() if of}


def _tested(parts: Iterable[Contrast]) -> dict[str, Any] | None:
    known = list(parts)
    return tested(Contrast.mean(known)) if known else None
