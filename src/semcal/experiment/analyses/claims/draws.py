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

#: AUROC within this of its value at 10 draws is stable.
STABLE = 0.03
TOLD = (
    "number of generations",
    "Calibration improves with the number of sampled answers, with most of the gain by 10 to 15 of them; "
    "AUROC hardly moves.",
    "section 5.4",
    "On the runs that were sampled at every number of draws, means over models, data sets, methods, "
    "measures: (1) ACE at the fewest draws less ACE at the most has a 95 % interval over questions above 0 "
    "(below +0.005 it fails); (2) where it has, the gain at the largest number up to 15, less two thirds of "
    "the whole, has an interval above 0 (below 0 it fails); (3) AUROC at every number of draws from 10 on, "
    f"less AUROC at the most, has an interval within ±{STABLE} (one wholly outside fails). All three must "
    "hold; to fail, an interval at 95 % corrected for the number of comparisons must lie there.",
)


def draws_claim(by_draws: Mapping[Pair, Mapping[int, PairScores]]) -> Claim:
    """Judge the claim from the scores at each number of draws, by (model, data set)."""
    numbers = sorted(set.intersection(*(set(found) for found in by_draws.values()))) if by_draws else []
    if not numbers or numbers[0] >= 10 or numbers[-1] <= 15 or not any(10 <= k <= 15 for k in numbers):
        return undecidable(*TOLD, lacking="rows at fewer than 10 draws, at 10 to 15 and at more")
    ace, auroc = (_means(by_draws, numbers, metric) for metric in ("ace", "auroc"))
    if ace is None or auroc is None:
        return undecidable(*TOLD, lacking="right and wrong answers at every number of draws")
    gain = ace[numbers[0]] - ace[numbers[-1]]
    early = ace[numbers[0]] - ace[max(k for k in numbers if k <= 15)]
    reached = early.value / gain.value if gain.value > 0 else 0.0
    steps = {k: auroc[k] - auroc[numbers[-1]] for k in numbers[:-1] if k >= 10}
    parts = 2 + len(steps)
    gained = positive(gain, parts=parts)
    verdicts = [
        gained,
        positive(early - gain * (2 / 3), margin=0.0, parts=parts) if gained == HOLDS else OPEN,
        all_of([_within(step, parts) for step in steps.values()]),
    ]
    evidence: dict[str, Any] = {
        "ace": {str(k): one.value for k, one in ace.items()},
        "auroc": {str(k): one.value for k, one in auroc.items()},
        "gain": tested(gain),
        "share_of_gain_by_15": reached,
        "change_of_auroc": {str(k): tested(step) for k, step in steps.items()},
        "parts": verdicts,
    }
    largest = max(abs(step.value) for step in steps.values())
    because = (
        f"ACE falls by {told(evidence['gain'])} from {numbers[0]} to {numbers[-1]} draws, "
        f"{reached:.0%} of it by 15; AUROC moves by at most {largest:.3f} from 10 draws on."
    )
    return Claim(*TOLD, all_of(verdicts), because, evidence)


def _within(step: Contrast, parts: int) -> str:
    """Whether a change is within the limits of what is stable."""
    found, wide = step.interval(), refuting(step, parts)
    if wide.low > STABLE or wide.high < -STABLE:
        return FAILS
    return HOLDS if found.low >= -STABLE and found.high <= STABLE else OPEN


def _means(
    by_draws: Mapping[Pair, Mapping[int, PairScores]], numbers: Sequence[int], metric: str
) -> dict[int, Contrast] | None:
    """Number of draws → mean over the cells in which the metric is defined at every number."""
    cells = [
        by_number
        for found in by_draws.values()
        for key in found[numbers[0]].cells
        for by_number in [
            {k: found[k].resampled.contrast(key, metric) for k in numbers if key in found[k].cells}
        ]
        if len(by_number) == len(numbers) and not any(np.isnan(one.value) for one in by_number.values())
    ]
    return {k: Contrast.mean([cell[k] for cell in cells]) for k in numbers} if cells else None
