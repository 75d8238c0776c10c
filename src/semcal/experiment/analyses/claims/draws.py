"""The claim that calibration gains with the number of draws, saturates at 10 to 15, and AUROC is stable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from semcal.experiment.analyses.cells import PairScores
from semcal.experiment.analyses.claims.verdicts import (
    FAILS,
    HOLDS,
    OPEN,
    Claim,
    all_of,
    positive,
    refuting,
    undecidable,
)
from semcal.experiment.analyses.contrasts import tested, told
from semcal.experiment.finished import Pair
from semcal.metrics import Contrast

__all__ = ["draws_claim"]

#: AUROC within this of its value at the most draws is stable.
STABLE = 0.03
TOLD = (
    "number of generations",
    "Calibration improves with the number of sampled answers, with most of the gain by 10 to 15 of them; "
    "AUROC hardly moves.",
    "section 5.4",
    "On the runs that were sampled at every number of draws, means over models, data sets, methods, "
    "measures: (1) ACE at the fewest draws less ACE at the most has a 95 % interval over questions above 0 "
    "(below +0.005 it fails); (2) where it has, the gain at the largest number up to 15, less two thirds of "
    "the whole, has an interval above 0 (below 0 it fails); (3) AUROC of each method at every number of "
    f"draws from 10 on, less its AUROC at the most, has an interval within ±{STABLE} (one wholly outside "
    "fails). All three must hold; to fail, an interval at 95 % corrected for the number of comparisons must "
    "lie there.",
)


def draws_claim(by_draws: Mapping[Pair, Mapping[int, PairScores]]) -> Claim:
    """Judge the claim from the scores at each number of draws, by (model, data set)."""
    numbers = sorted(set.intersection(*(set(found) for found in by_draws.values()))) if by_draws else []
    if not numbers or numbers[0] >= 10 or numbers[-1] <= 15 or not any(10 <= k <= 15 for k in numbers):
        shown = f"rows at {', '.join(map(str, numbers))}" if numbers else "one number of draws"
        return undecidable(
            *TOLD, because=f"The run has {shown}; it takes fewer than 10 draws, 10 to 15, and more."
        )
    ace, auroc = (_means(by_draws, numbers, metric) for metric in ("ace", "auroc"))
    if not ace or not auroc:
        return undecidable(
            *TOLD,
            because="Under no method and measure are there right and wrong answers at every number of draws.",
        )
    pooled = {k: Contrast.mean([of[k] for of in ace.values()]) for k in numbers}
    gain = pooled[numbers[0]] - pooled[numbers[-1]]
    early = pooled[numbers[0]] - pooled[max(k for k in numbers if k <= 15)]
    reached = early.value / gain.value if gain.value > 0 else 0.0
    steps = {
        method: {k: of[k] - of[numbers[-1]] for k in numbers[:-1] if k >= 10} for method, of in auroc.items()
    }
    parts = 2 + sum(map(len, steps.values()))
    gained = positive(gain, parts=parts)
    verdicts = [
        gained,
        positive(early - gain * (2 / 3), margin=0.0, parts=parts) if gained == HOLDS else OPEN,
        all_of([_within(step, parts) for of in steps.values() for step in of.values()]),
    ]
    evidence: dict[str, Any] = {
        "ace": _values(ace),
        "auroc": _values(auroc),
        "gain": tested(gain),
        "share_of_gain_by_15": reached,
        "change_of_auroc": {
            method: {str(k): tested(step) for k, step in of.items()} for method, of in steps.items()
        },
        "parts": verdicts,
    }
    return Claim(*TOLD, all_of(verdicts), _because(evidence, numbers), evidence)


def _because(evidence: Mapping[str, Any], numbers: Sequence[int]) -> str:
    """The gain in ACE, of all methods and of each, and the method whose AUROC moves most."""
    first, last = (str(numbers[i]) for i in (0, -1))
    by_method = ", ".join(
        f"{method} {of[first]:.3f} to {of[last]:.3f}" for method, of in evidence["ace"].items()
    )
    moves = [
        (method, k, step) for method, of in evidence["change_of_auroc"].items() for k, step in of.items()
    ]
    method, k, most = max(moves, key=lambda move: abs(move[2]["value"]))
    gain = evidence["gain"]["value"]
    share = f", {evidence['share_of_gain_by_15']:.0%} of that by 15 draws" if gain > 0 else ""
    return (
        f"ACE at {first} draws less that at {last}: {told(evidence['gain'])}{share} ({by_method}). AUROC at "
        f"10 draws or more less that at {last} is furthest from 0 under {method}, at {k} draws: {told(most)}."
    )


def _values(means: Mapping[str, Mapping[int, Contrast]]) -> dict[str, dict[str, float]]:
    return {method: {str(k): one.value for k, one in of.items()} for method, of in means.items()}


def _within(step: Contrast, parts: int) -> str:
    """Whether a change is within the limits of what is stable."""
    found, wide = step.interval(), refuting(step, parts)
    if wide.low > STABLE or wide.high < -STABLE:
        return FAILS
    return HOLDS if found.low >= -STABLE and found.high <= STABLE else OPEN


def _means(
    by_draws: Mapping[Pair, Mapping[int, PairScores]], numbers: Sequence[int], metric: str
) -> dict[str, dict[int, Contrast]]:
    """Method → number of draws → mean over the cells in which the metric is defined at every number."""
    cells: dict[str, list[dict[int, Contrast]]] = {}
    for found in by_draws.values():
        for key in found[numbers[0]].cells:
            of = {k: found[k].resampled.contrast(key, metric) for k in numbers if key in found[k].cells}
            if len(of) == len(numbers) and not any(np.isnan(one.value) for one in of.values()):
                cells.setdefault(key[0], []).append(of)
    return {
        method: {k: Contrast.mean([cell[k] for cell in those]) for k in numbers}
        for method, those in cells.items()
    }
