"""Claims about metrics: those of calibration rank methods alike, and discrimination is another matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from semcal.experiment.analyses.claims.verdicts import FAILS, HOLDS, Claim, all_of, undecidable
from semcal.experiment.analyses.contrasts import measures_of
from semcal.experiment.analyses.scores import GridScores
from semcal.metrics import ace, auroc, ece

__all__ = ["independence_claim", "metrics_claim"]

AGREE = (
    "metrics agree",
    "Conclusions do not depend on the calibration metric: ACE, ECE and CORP-MCB rank the methods alike.",
    "appendix, calibration metrics",
    "Mean |change of rank| of a method between ACE and MCB, and between ACE and ECE, averaged over "
    "models, data sets and measures: each is less than half of what unrelated rankings would give, (K² − "
    "1) / 3K for K methods. Not decidable with fewer than three methods.",
)
INDEPENDENT = (
    "independence",
    "Calibration and discrimination are independent: neither implies the other.",
    "appendix, joint evaluation",
    "The paper's two examples, computed: equal confidences of 0.5 for one right and one wrong answer have"
    " ECE 0 and AUROC 0.5; confidences 0.9 (wrong) and 0.99 (right) have AUROC 1 and an ECE above 0.4. It"
    " is a fact of logic; the correlation of ACE and AUROC over the cells of the run stands beside it.",
)
#: (confidence, correct) of the two examples.
EXAMPLES = {
    "calibrated, no discrimination": ([0.5, 0.5], [0, 1]),
    "discriminating, not calibrated": ([0.9, 0.99], [0, 1]),
}


def metrics_claim(scores: GridScores, volatility: Sequence[Mapping[str, Any]]) -> Claim:
    """Judge from the rows of `volatility`."""
    known = [row for row in volatility if not np.isnan(row["mean"])]
    if len(scores.run.methods) < 3:
        few = "one method" if len(scores.run.methods) == 1 else "two methods"
        return undecidable(*AGREE, because=f"The run has {few}; ranking takes three.")
    if not known:
        return undecidable(
            *AGREE, because="No measure gives every method a confidence, so none can be ranked."
        )
    half = known[0]["chance"] / 2
    means = {
        " to ".join(metric.upper() for metric in metrics): float(
            np.mean([row["mean"] for row in known if row["metrics"] == metrics])
        )
        for metrics in ([*pair] for pair in dict.fromkeys(tuple(row["metrics"]) for row in known))
    }
    parts = [HOLDS if mean < half else FAILS for mean in means.values()]
    evidence = {"mean_volatility": means, "half_of_chance": half, "parts": parts}
    shown = ", ".join(f"{mean:.2f} from {name}" for name, mean in means.items())
    because = f"Mean change of rank {shown}; unrelated rankings would change by {2 * half:.2f}."
    return Claim(*AGREE, all_of(parts), because, evidence)


def independence_claim(scores: GridScores) -> Claim:
    """Compute the two examples, and how ACE and AUROC go together in the run."""
    found = {
        name: {"ece": ece(*example), "ace": ace(*example), "auroc": auroc(*example)}
        for name, example in EXAMPLES.items()
    }
    calm, sharp = found.values()
    parts = [
        HOLDS if calm["ece"] < 1e-12 and calm["auroc"] == 0.5 else FAILS,
        HOLDS if sharp["auroc"] == 1.0 and sharp["ece"] > 0.4 else FAILS,
    ]
    correlation = _correlation(scores)
    because = (
        f"Examples: ECE {calm['ece']:.3f} with AUROC {calm['auroc']:.1f}, ECE {sharp['ece']:.3f} with AUROC "
        f"{sharp['auroc']:.1f}. {_correlation_told(correlation)}"
    )
    return Claim(*INDEPENDENT, all_of(parts), because, {"examples": found, "correlation": correlation})


def _correlation_told(value: float | None) -> str:
    if value is None:
        return "In this run the correlation of ACE and AUROC is undefined: it takes three cells that differ."
    return f"Within models and data sets of this run the correlation of ACE and AUROC is {value:+.2f}."


def _correlation(scores: GridScores) -> float | None:
    """Pearson correlation of ACE and AUROC over methods and measures, each centred within its pair."""
    parts = []
    for model, dataset in scores.run.pairs:
        pair = scores.pair(model, dataset)
        if len(pair.cells) < 2 or not measures_of(pair, scores):
            continue
        table = np.array(
            [[by_run[metric].mean() for by_run in pair.by_run.values()] for metric in ("ace", "auroc")]
        )
        parts.append(table - table.mean(axis=1, keepdims=True))
    both = np.concatenate(parts, axis=1) if parts else np.zeros((2, 0))
    both = both[:, ~np.isnan(both).any(axis=0)]
    if both.shape[1] < 3 or not both.std(axis=1).all():
        return None
    return float(np.corrcoef(both)[0, 1])
