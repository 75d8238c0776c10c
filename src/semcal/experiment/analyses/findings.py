"""Beyond the paper: questions of our own, each answered by a rule that is stated with it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from semcal.experiment.analyses.claims.verdicts import FAILS, HOLDS, MARGIN, OPEN, Claim, undecidable
from semcal.experiment.analyses.contrasts import tested
from semcal.experiment.analyses.remedies import METRICS, Compared
from semcal.metrics import Contrast

__all__ = ["remedies_finding"]

TOLD = (
    "remedies",
    "Reading numbers and dates before clustering matters.",
    "beyond the paper",
    "The same answers are clustered with normal forms and with texts as SQuAD normalises them, all else "
    "equal. What is saved in errors per labelled pair, and the benefit in accuracy, ACE and AUROC, are "
    "pooled over models, data sets and measures, paired by question. It holds if the 95 % interval over "
    "questions of one of them lies above 0 and that of none below; it does not if all lie below +0.005; else "
    "it is not decidable.",
)
WORDS = {"errors": "errors per labelled pair", "accuracy": "accuracy", "ace": "ACE", "auroc": "AUROC"}


def remedies_finding(found: Sequence[Compared]) -> Claim:
    """Judge whether normal forms matter."""
    parts = {"errors": [one.fewer_errors() for one in found]}
    parts |= {
        metric: [one.benefit(metric, measure) for one in found for measure in one.measures()]
        for metric in METRICS
    }
    known = {
        name: Contrast.mean(kept)
        for name, of in parts.items()
        if (kept := [one for one in of if one is not None and not np.isnan(one.value)])
    }
    if not known:
        return undecidable(*TOLD, lacking="answers that were clustered in both ways")
    evidence = {name: tested(one) for name, one in known.items()}
    told = "; ".join(
        f"{WORDS[name]} {one['value']:+.3f} [{one['interval'][0]:+.3f}, {one['interval'][1]:+.3f}]"
        for name, one in evidence.items()
    )
    changed = np.mean([one.changed for one in found])
    because = f"Clusters differ for {changed:.1%} of the questions; better by: {told}."
    return Claim(*TOLD, _verdict(list(known.values())), because, evidence)


def _verdict(benefits: Sequence[Contrast]) -> str:
    """Whether something gains and nothing loses.

    Examples
    --------
    >>> drawn = np.linspace(-0.01, 0.01, 100)
    >>> gain, none, loss = (Contrast(value, value + drawn) for value in (0.02, -0.006, -0.02))
    >>> _verdict([gain, none]), _verdict([gain, loss]), _verdict([none])
    ('holds', 'not decidable here', 'does not')
    """
    ends = [(found.low, found.high) for found in (one.interval() for one in benefits)]
    if all(high < MARGIN for _, high in ends):
        return FAILS
    return HOLDS if any(low > 0 for low, _ in ends) and not any(high < 0 for _, high in ends) else OPEN
