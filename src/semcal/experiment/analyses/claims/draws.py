"""The claim that calibration gains with the number of draws, saturates at 10 to 15, and AUROC is stable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from semcal.experiment.analyses.cells import PairScores
from semcal.experiment.analyses.claims.verdicts import FAILS, HOLDS, Claim, all_of, positive, undecidable
from semcal.experiment.analyses.contrasts import tested
from semcal.experiment.finished import Pair
from semcal.metrics import Contrast

__all__ = ["draws_claim"]

#: AUROC within this of its value at 10 draws is stable.
STABLE = 0.02
TOLD = (
    "number of generations",
    "Calibration improves with the number of sampled answers, with most of the gain by 10 to 15 of them; "
    "AUROC hardly moves.",
    "section 5.4",
    "On the runs that were sampled at every number of draws, means over models, data sets, methods, "
    "measures: (1) ACE at the fewest draws less ACE at the most has a 95 % interval over questions above "
    "0 (below +0.005 it fails); (2) at least two thirds of that gain is reached at 15 draws or fewer; (3)"
    f" AUROC at no number of draws from 10 on is further than {STABLE} from its value at the most. All "
    "three must hold.",
)


def draws_claim(by_draws: Mapping[Pair, Mapping[int, PairScores]]) -> Claim:
    """Judge the claim from the scores at each number of draws, by (model, data set)."""
    numbers = sorted(set.intersection(*(set(found) for found in by_draws.values()))) if by_draws else []
    if len(numbers) < 3 or numbers[0] >= 10 or numbers[-1] <= 15:
        return undecidable(*TOLD, lacking="rows at fewer than 10 and at more than 15 draws, and one between")
    ace = {k: _mean(by_draws, k, "ace") for k in numbers}
    auroc = {k: _mean(by_draws, k, "auroc") for k in numbers}
    gain = ace[numbers[0]] - ace[numbers[-1]]
    early = ace[numbers[0]].value - min(ace[k].value for k in numbers if k <= 15)
    reached = early / gain.value if gain.value > 0 else 0.0
    steps = max(abs(auroc[k].value - auroc[numbers[-1]].value) for k in numbers if k >= 10)
    verdicts = [
        positive(gain),
        HOLDS if reached >= 2 / 3 else FAILS,
        HOLDS if steps <= STABLE else FAILS,
    ]
    evidence: dict[str, Any] = {
        "ace": {str(k): one.value for k, one in ace.items()},
        "auroc": {str(k): one.value for k, one in auroc.items()},
        "gain": tested(gain),
        "share_of_gain_by_15": reached,
        "largest_change_of_auroc": steps,
        "parts": verdicts,
    }
    low, high = evidence["gain"]["interval"]
    because = (
        f"ACE falls by {gain.value:+.3f} [{low:+.3f}, {high:+.3f}] from {numbers[0]} to {numbers[-1]} draws, "
        f"{reached:.0%} of it by 15; AUROC moves by at most {steps:.3f} from 10 draws on."
    )
    return Claim(*TOLD, all_of(verdicts), because, evidence)


def _mean(by_draws: Mapping[Any, Mapping[int, PairScores]], draws: int, metric: str) -> Contrast:
    parts: Sequence[Contrast] = [
        found[draws].resampled.contrast(key, metric)
        for found in by_draws.values()
        for key in found[draws].cells
    ]
    return Contrast.mean([one for one in parts if not np.isnan(one.value)])
