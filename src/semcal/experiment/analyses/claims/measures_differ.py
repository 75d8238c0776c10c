"""Claims about measures and grading: TS makes measures differ; grading by words agrees with entailment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from semcal.experiment.analyses.agreement import wilson
from semcal.experiment.analyses.claims.verdicts import (
    FAILS,
    HOLDS,
    OPEN,
    Claim,
    absent,
    all_of,
    positive,
    undecidable,
)
from semcal.experiment.analyses.contrasts import tested, told
from semcal.experiment.analyses.distributions import SHOWN, mean_correlation
from semcal.experiment.analyses.scores import GridScores
from semcal.metrics import Contrast

__all__ = ["correlations_claim", "grading_claim", "judged_correlations"]

NEARLY = 0.9
LESS = 0.05
ENOUGH = 0.85
DIFFER = (
    "measures differ under TS",
    "At the temperatures of Base and SE the measures are nearly reparameterisations of one another; under"
    " TS they differ.",
    "appendix, correlations",
    "The correlation between two measures, averaged over pairs of measures, models and data sets, must be "
    "above 0.9 under Base and under SE, and lower under TS by more than 0.05 than under each of them, all "
    "four with the 95 % interval over questions; where one of these intervals, at 95 % corrected for the "
    "four, lies on the other side, the claim does not hold.",
)
GRADING = (
    "grading",
    "Grading by words agrees with grading by entailment.",
    "appendix, correctness",
    "Share of Base's selected answers (run 0) on which both agree, averaged over measures, for each model"
    " and data set: pooled over them, Wilson's 95 % interval (of as many answers as there are questions, for"
    " models answer the same ones) lies above 0.85 (below it, the claim does not hold). Published: 0.91.",
)
CONSTANT = (
    "On no model and data set do two measures and more vary over questions under each of Base, SE and TS."
)


def correlations_claim(scores: GridScores) -> Claim:
    """Judge how measures correlate, on the (model, data set) where all of them vary under each method."""
    known = [
        [one for name in SHOWN if (one := mean_correlation(scores.pair(*pair), name)) is not None]
        for pair in scores.run.pairs
    ]
    whole = [parts for parts in known if len(parts) == len(SHOWN)]
    if not whole:
        missing = absent(SHOWN, scores.run.methods)
        return undecidable(*DIFFER, because=missing or CONSTANT)
    return judged_correlations({name: Contrast.mean(of) for name, of in zip(SHOWN, zip(*whole))})


def judged_correlations(means: Mapping[str, Contrast]) -> Claim:
    """Judge from the mean correlation under each method, with its resamples."""
    falls = {other: means[other] - means["TS"] for other in ("Base", "SE")}
    parts = [
        positive(Contrast(one.value - limit, one.resampled - limit), margin=0.0, parts=4)
        for other, fall in falls.items()
        for one, limit in ((means[other], NEARLY), (fall, LESS))
    ]
    evidence = {
        "mean": {name: tested(one) for name, one in means.items()},
        "less under TS": {other: tested(one) for other, one in falls.items()},
        "parts": parts,
    }
    because = (
        f"Mean correlation {', '.join(f'{one.value:.2f} under {name}' for name, one in means.items())}; less "
        f"under TS {', '.join(f'than under {name} by {told(tested(one))}' for name, one in falls.items())}."
    )
    return Claim(*DIFFER, all_of(parts), because, evidence)


def grading_claim(rows: Sequence[Mapping[str, Any]]) -> Claim:
    """Judge from the rows of `agreement`."""
    known = [row for row in rows if row["n"]]
    if not known:
        return undecidable(*GRADING, because="No answers of Base were graded by entailment as well.")
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
