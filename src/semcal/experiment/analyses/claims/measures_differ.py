"""Claims about measures and grading: TS makes measures differ; grading by words agrees with entailment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from semcal.experiment.analyses.agreement import wilson
from semcal.experiment.analyses.claims.verdicts import FAILS, HOLDS, OPEN, Claim, all_of, undecidable

__all__ = ["correlations_claim", "grading_claim"]

NEARLY = 0.9
LESS = 0.05
ENOUGH = 0.85
DIFFER = (
    "measures differ under TS",
    "At the temperatures of Base and SE the measures are nearly reparameterisations of one another; under"
    " TS they differ.",
    "appendix, correlations",
    "The correlation between two measures, averaged over pairs of measures, models and data sets, is above "
    "0.9 under Base and under SE, and lower under TS by more than 0.05 than under each of them.",
)
GRADING = (
    "grading",
    "Grading by words agrees with grading by entailment.",
    "appendix, correctness",
    "Share of Base's selected answers (run 0) on which both agree, averaged over measures, for each model"
    " and data set: pooled over them, Wilson's 95 % interval (of as many answers as there are questions, for"
    " models answer the same ones) lies above 0.85 (below it, the claim does not hold). Published: 0.91.",
)


def correlations_claim(rows: Sequence[Mapping[str, Any]]) -> Claim:
    """Judge from the rows of `correlations`."""
    found = {
        method: [row["mean"] for row in rows if row["method"] == method and row["mean"] is not None]
        for method in ("Base", "SE", "TS")
    }
    if not all(found.values()):
        return undecidable(*DIFFER, lacking="Base, SE and TS with measures that vary")
    means = {method: float(np.mean(values)) for method, values in found.items()}
    parts = [
        HOLDS if found else FAILS
        for other in ("Base", "SE")
        for found in (means[other] > NEARLY, means[other] - means["TS"] > LESS)
    ]
    shown = ", ".join(f"{mean:.2f} under {method}" for method, mean in means.items())
    least = {
        method: min(row["least"] for row in rows if row["method"] == method and row["least"] is not None)
        for method in found
    }
    return Claim(
        *DIFFER, all_of(parts), f"Mean correlation {shown}.", {"mean": means, "least": least, "parts": parts}
    )


def grading_claim(rows: Sequence[Mapping[str, Any]]) -> Claim:
    """Judge from the rows of `agreement`."""
    known = [row for row in rows if row["n"]]
    if not known:
        return undecidable(*GRADING, lacking="answers that were graded by entailment as well")
    pairs = {(row["model"], row["dataset"]): row["n"] for row in known}
    by_pair = {
        pair: float(np.mean([row["agreement"] for row in known if (row["model"], row["dataset"]) == pair]))
        for pair in pairs
    }
    share = float(np.average(list(by_pair.values()), weights=list(pairs.values())))
    largest = {name: max(n for (_, one), n in pairs.items() if one == name) for _, name in pairs}
    low, high = wilson(share, sum(largest.values()))
    verdict = HOLDS if low > ENOUGH else FAILS if high < ENOUGH else OPEN
    evidence = {
        "agreement": share,
        "interval": [low, high],
        "by_pair": [{"model": m, "dataset": d, "agreement": value} for (m, d), value in by_pair.items()],
    }
    return Claim(
        *GRADING, verdict, f"They agree on {share:.1%} [{low:.1%}, {high:.1%}] of answers.", evidence
    )
