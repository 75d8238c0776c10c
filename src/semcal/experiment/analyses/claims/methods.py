"""Claims that one method is better than another, by paired tests pooled over models, data sets, measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from semcal.experiment.analyses.claims.verdicts import OPEN, Claim, absent, all_of, positive, undecidable
from semcal.experiment.analyses.contrasts import benefit, measures_of, pooled_benefit, tested, told
from semcal.experiment.analyses.scores import GridScores

__all__ = ["METHOD_CLAIMS", "MethodClaim", "method_claim"]

RULE = (
    "The benefit of TS ({quantity}) is pooled over models, data sets and measures, paired by question. "
    "Against each of {others} its 95 % interval over questions must lie above 0 and reach +0.005; if "
    "against one the interval, at 95 % corrected for the {count} comparisons, lies below +0.005, the claim "
    "does not hold; else, or where one was not run, it is not decidable here."
)
WORDS = {
    "ace": "lower ACE",
    "auroc": "higher AUROC of the confidence",
    "SE_conf": "higher AUROC of −entropy, SE_conf",
    "gain": "larger AURAC − accuracy",
}
_NO_AUROC = "AUROC is undefined on every model and data set: all answers are right, or all are wrong."
_NO_QUESTION = "No question counts: some measure gives each of them no confidence under some method."
#: Why methods that were run cannot be compared.
UNDEFINED = {"ace": _NO_QUESTION, "auroc": _NO_AUROC, "SE_conf": _NO_AUROC, "gain": _NO_QUESTION}


@dataclass(frozen=True)
class MethodClaim:
    """A claim that TS is better than some methods in one quantity."""

    key: str
    claim: str
    source: str
    quantity: str
    others: tuple[str, ...]


METHOD_CLAIMS = (
    MethodClaim(
        "calibration",
        "TS improves semantic calibration over the base model at temperature 1 (Base) and 0.5 (SE).",
        "section 5.1",
        "ace",
        ("Base", "SE"),
    ),
    MethodClaim(
        "discrimination",
        "TS improves discrimination over Base and SE.",
        "section 5.1",
        "auroc",
        ("Base", "SE"),
    ),
    MethodClaim(
        "calibration, expressive methods",
        "TS is better calibrated than ATS and Platt.",
        "section 5.1",
        "ace",
        ("ATS", "Platt"),
    ),
    MethodClaim(
        "discrimination, expressive methods",
        "TS discriminates better than ATS and Platt.",
        "section 5.1",
        "auroc",
        ("ATS", "Platt"),
    ),
    MethodClaim(
        "semantic entropy",
        "TS improves semantic entropy as a score over Base and SE.",
        "section 5.2",
        "SE_conf",
        ("Base", "SE"),
    ),
    MethodClaim(
        "selective accuracy",
        "TS makes accuracy rise faster as unsure answers are rejected.",
        "section 5.3",
        "gain",
        ("Base", "SE", "ATS", "Platt"),
    ),
)


def method_claim(
    scores: GridScores, claim: MethodClaim, selective: Sequence[Mapping[str, Any]] = ()
) -> Claim:
    """Judge one claim that TS is better than others; the rows of `selective` are further evidence."""
    others = [name for name in claim.others if name in scores.run.methods]
    rule = RULE.format(
        quantity=WORDS[claim.quantity], others=" and ".join(claim.others), count=len(claim.others)
    )
    told = (claim.key, claim.claim, claim.source, rule)
    pooled = {
        other: found
        for other in others
        if "TS" in scores.run.methods
        for found in [pooled_benefit(scores, claim.quantity, "TS", other)]
        if found is not None
    }
    missing = absent(("TS", *claim.others), scores.run.methods)
    if not pooled:
        comparable = others and "TS" in scores.run.methods
        return undecidable(*told, because=UNDEFINED[claim.quantity] if comparable else missing)
    evidence = {
        "pooled": {other: tested(contrast) for other, contrast in pooled.items()},
        "by_dataset": _by_dataset(scores, claim.quantity, list(pooled)),
        "cells": {other: _cells(scores, claim.quantity, other) for other in pooled},
        "accuracy": _accuracy(scores, list(pooled)),
    }
    if claim.quantity == "gain":
        evidence["slope"] = _slopes(selective, ["TS", *pooled])
    parts = len(claim.others)
    verdicts = [positive(pooled[o], parts=parts) if o in pooled else OPEN for o in claim.others]
    because = " ".join(filter(None, [_because(evidence, claim.quantity), missing]))
    return Claim(*told, all_of(verdicts), because, evidence)


def _accuracy(scores: GridScores, others: Sequence[str]) -> dict[str, Any]:
    """Accuracy of the selected answers under TS less that under others: what a benefit may cost."""
    found = {other: pooled_benefit(scores, "accuracy", "TS", other) for other in others}
    return {other: tested(one) for other, one in found.items() if one is not None}


def _slopes(rows: Sequence[Mapping[str, Any]], methods: Sequence[str]) -> dict[str, float]:
    """Slope of selective accuracy up to 50 % rejected, mean over models, data sets and measures."""
    slopes = [(row["method"], row["slope"]["mean"]) for row in rows]
    found = {name: [value for method, value in slopes if method == name] for name in methods}
    return {name: float(np.mean(values)) for name, values in found.items() if values}


def _by_dataset(scores: GridScores, quantity: str, others: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
    for dataset in scores.run.datasets:
        pairs = [pair for pair in scores.run.pairs if pair[1] == dataset]
        for other in others:
            found = pooled_benefit(scores, quantity, "TS", other, pairs=pairs)
            if found is not None:
                rows.append({"dataset": dataset, "against": other, **tested(found)})
    return rows


def _cells(scores: GridScores, quantity: str, other: str) -> dict[str, int]:
    """In how many (model, data set, measure) TS is shown to be better, to be worse, and neither."""
    counts = {"better": 0, "worse": 0, "neither": 0}
    for model, dataset in scores.run.pairs:
        pair = scores.pair(model, dataset)
        for measure in measures_of(pair, scores):
            found = benefit(quantity, pair, measure, "TS", other).interval()
            counts["better" if found.low > 0 else "worse" if found.high < 0 else "neither"] += 1
    return counts


def _where_worse(evidence: dict[str, Any], other: str) -> str:
    """The data sets on which TS is shown to be worse, all models and measures together."""
    rows = [row for row in evidence["by_dataset"] if row["against"] == other]
    worse = [row["dataset"] for row in rows if row["interval"][1] < 0]
    return f" (worse on {', '.join(worse)})" if worse and len(rows) > 1 else ""


def _because(evidence: dict[str, Any], quantity: str) -> str:
    parts = []
    for other, found in evidence["pooled"].items():
        cells = evidence["cells"][other]
        parts.append(
            f"against {other} {told(found)}, better in {cells['better']}"
            f" and worse in {cells['worse']} of {sum(cells.values())} cells{_where_worse(evidence, other)}"
        )
    accuracy = ", ".join(f"under {other} {told(one)}" for other, one in evidence["accuracy"].items())
    slopes = ", ".join(
        f"{round(value, 3) + 0.0:.3f} under {name}" for name, value in evidence.get("slope", {}).items()
    )
    return (
        f"Benefit of TS ({WORDS[quantity]}): {'; '.join(parts)}."
        f"{f' Slope from 0 to 50 % rejected: {slopes}.' if slopes else ''}"
        f" Accuracy of the selected answers under TS less that {accuracy}."
    )
