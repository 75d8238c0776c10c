"""A claim of the paper, its verdict on a run, and the rules that verdicts are made by."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from semcal.metrics import Contrast, Interval

__all__ = [
    "FAILS",
    "FEWEST",
    "HOLDS",
    "MARGIN",
    "OPEN",
    "RULES",
    "Claim",
    "absent",
    "all_of",
    "of_enough",
    "positive",
    "refuting",
    "undecidable",
]

#: The rules of claims and findings: their version, and since when it holds. docs/analyses.md tells of every
#: version and of what had been seen when it was made; tests/experiment/test_frozen_rules.py holds this one.
RULES = {"version": 5, "since": "2026-11-22"}

HOLDS, FAILS, OPEN = "holds", "does not hold", "not decidable here"
#: A benefit smaller than this is none: half a point of ACE, AUROC, accuracy or Brier score.
MARGIN = 0.005
#: With fewer questions than this in a data set no interval over questions is believed.
FEWEST = 20


@dataclass(frozen=True)
class Claim:
    """One claim and what became of it.

    Attributes
    ----------
    key : str
        A short name.
    claim : str
        What the paper says, in a sentence.
    source : str
        Where it says so.
    rule : str
        When the claim holds, when it does not, and when that cannot be decided.
    verdict : str
        "holds", "does not hold" or "not decidable here".
    because : str
        The figures that decided, in a sentence.
    evidence : dict
        The numbers behind it.
    """

    key: str
    claim: str
    source: str
    rule: str
    verdict: str
    because: str
    evidence: dict[str, Any] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def refuting(contrast: Contrast, parts: int) -> Interval:
    """The interval that one of the parts of a claim is refuted by: at 1 − 0.05 / parts (Bonferroni).

    All parts must hold, so that each is shown at 95 %; one that fails is enough to refute, and without the
    correction the more parts a claim has, the more often one would fail by chance.
    """
    return contrast.interval(level=1 - 0.05 / parts)


def positive(contrast: Contrast, *, margin: float = MARGIN, parts: int = 1) -> str:
    """Whether a value is above 0 by something that counts, judged by its interval over questions.

    It holds when the 95 % interval lies above 0 and reaches `margin`; it does not when the interval lies
    below `margin`, so that no benefit that counts is compatible with the data; otherwise they do not decide.

    Examples
    --------
    >>> drawn = np.linspace(-0.01, 0.01, 100)
    >>> [positive(Contrast(value, value + drawn)) for value in (0.02, 0.004, -0.006, -0.02)]
    ['holds', 'not decidable here', 'does not hold', 'does not hold']
    >>> positive(Contrast(0.002, 0.002 + drawn / 10))
    'does not hold'
    """
    found = contrast.interval()
    if np.isnan(found.low):
        return OPEN
    if refuting(contrast, parts).high < margin:
        return FAILS
    return HOLDS if found.low > 0 and found.high >= margin else OPEN


def all_of(verdicts: Sequence[str]) -> str:
    """A claim of several parts holds when all of them do, and does not hold when one does not.

    Examples
    --------
    >>> all_of(["holds", "not decidable here"]), all_of(["holds", "does not hold", "not decidable here"])
    ('not decidable here', 'does not hold')
    """
    if FAILS in verdicts:
        return FAILS
    return OPEN if OPEN in verdicts or not verdicts else HOLDS


def undecidable(key: str, claim: str, source: str, rule: str, *, because: str) -> Claim:
    """A claim that this run says nothing about, and why: a sentence."""
    return Claim(key, claim, source, rule, OPEN, because)


def of_enough(claim: Claim, questions: int) -> Claim:
    """The claim as it was judged; left open where some data set has too few questions for intervals.

    Resamples of a handful of questions are too much alike: of one question the interval has no width.
    """
    if questions >= FEWEST or claim.verdict == OPEN:
        return claim
    few = "1 question counts" if questions == 1 else f"{questions} questions count"
    because = f"{claim.because} Not decided: of a data set {few}, and intervals take {FEWEST} or more."
    return replace(claim, verdict=OPEN, because=because)


def absent(wanted: Sequence[str], methods: Collection[str]) -> str:
    """Which of some methods were not run, as a sentence; "" where all were.

    Examples
    --------
    >>> absent(["Base", "SE"], ["Base", "TS"]), absent(["Base", "SE"], ["TS"]), absent(["TS"], ["TS"])
    ('SE was not run.', 'Base and SE were not run.', '')
    """
    missing = [name for name in wanted if name not in methods]
    if not missing:
        return ""
    names = " and ".join(filter(None, [", ".join(missing[:-1]), missing[-1]]))
    return f"{names} {'was' if len(missing) == 1 else 'were'} not run."
