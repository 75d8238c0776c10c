"""The claim that on an already calibrated open-book set TS gains in discrimination only."""

from __future__ import annotations

import numpy as np

from semcal.experiment.analyses.claims.verdicts import (
    FAILS,
    HOLDS,
    MARGIN,
    OPEN,
    Claim,
    absent,
    all_of,
    positive,
    refuting,
    undecidable,
)
from semcal.experiment.analyses.contrasts import measures_of, pooled_benefit, tested, told
from semcal.experiment.analyses.scores import GridScores
from semcal.experiment.finished import Pair
from semcal.metrics import Contrast

__all__ = ["CALIBRATED", "open_book_claim"]

#: Base is calibrated where its ACE, averaged over measures, is at most this; 0.045 to 0.056 in the paper.
CALIBRATED = 0.06
TOLD = (
    "open book",
    "On an open-book data set, where the base model is calibrated already, TS gains in discrimination and"
    " not in calibration.",
    "section 5.1",
    "Of the open-book (model, data set) those count where Base's ACE, averaged over measures, is at most "
    "0.06. Pooled over them and their measures, (1) the benefit of TS over Base in AUROC has a 95 % "
    "interval over questions above 0 that reaches +0.005 (below it, it fails), and (2) its benefit in ACE "
    "has an interval below +0.005 (above 0 it fails); to fail, at 95 % corrected for the two.",
)


def open_book_claim(scores: GridScores, *, calibrated_at: float = CALIBRATED) -> Claim:
    """Judge TS on open-book data sets on which Base has an ACE of at most `calibrated_at`."""
    run = scores.run
    if missing := absent(("Base", "TS"), run.methods):
        return undecidable(*TOLD, because=missing)
    base = {pair: _base_ace(scores, pair) for pair in run.pairs if run.open_book(pair[1])}
    calibrated = [pair for pair, value in base.items() if value <= calibrated_at]
    found = {name: pooled_benefit(scores, name, "TS", "Base", pairs=calibrated) for name in ("auroc", "ace")}
    shown = ", ".join(
        _base_told(pair, value, bool(calibrated) and value > calibrated_at) for pair, value in base.items()
    )
    if not base:
        return undecidable(*TOLD, because="The run has no open-book data set.")
    if not calibrated:
        return undecidable(
            *TOLD,
            because=f"On no open-book data set is Base calibrated (ACE at most {calibrated_at}): {shown}.",
        )
    if found["auroc"] is None or found["ace"] is None:
        return undecidable(
            *TOLD, because=f"Where Base is calibrated all answers are right, or all wrong; its ACE: {shown}."
        )
    evidence = {name: tested(one) for name, one in found.items() if one is not None}
    verdict = all_of([positive(found["auroc"], parts=2), _not_positive(found["ace"])])
    because = ", ".join(f"in {name.upper()} {told(one)}" for name, one in evidence.items())
    return Claim(
        *TOLD,
        verdict,
        f"Benefit of TS over Base {because}. ACE of Base: {shown}.",
        {**evidence, "pairs": calibrated},
    )


def _not_positive(contrast: Contrast) -> str:
    if contrast.interval().high < MARGIN:
        return HOLDS
    return FAILS if refuting(contrast, 2).low > 0 else OPEN


def _base_told(pair: Pair, value: float, left_out: bool) -> str:
    """The ACE of Base, and that the pair does not count where others do."""
    shown = "undefined" if np.isinf(value) else f"{value:.3f}"
    return f"{' on '.join(pair)} {shown}{' (does not count)' if left_out else ''}"


def _base_ace(scores: GridScores, pair: Pair) -> float:
    found = scores.pair(*pair)
    values = [found.by_run["Base", name]["ace"].mean() for name in measures_of(found, scores)]
    return float(np.mean(values)) if values else np.inf
