"""Beyond the paper: questions of our own, each answered by a rule that is stated with it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from semcal.experiment.analyses.claims.verdicts import (
    FAILS,
    HOLDS,
    MARGIN,
    OPEN,
    Claim,
    of_enough,
    positive,
    undecidable,
)
from semcal.experiment.analyses.contrasts import tested, told
from semcal.experiment.analyses.remedies import ARMS, METRICS, Compared
from semcal.metrics import Contrast

__all__ = ["any_of", "remedies_findings"]

SAME = (
    "The same answers are clustered with normal forms and with texts as SQuAD normalises them, all else "
    "equal, and compared question by question. "
)
CLUSTERS = (
    "remedies, clusters",
    "Reading numbers and dates before clustering makes clusters more right.",
    "beyond the paper",
    f"{SAME}Errors saved per labelled pair, pooled over models and data sets that have such pairs: it holds "
    "if the 95 % interval over questions lies above 0, it does not if it lies below +0.005.",
)
SCORES = (
    "remedies, scores",
    "Reading numbers and dates before clustering makes answers more accurate, or confidence better "
    "calibrated or more discriminating.",
    "beyond the paper",
    f"{SAME}The benefits in accuracy, ACE and AUROC are pooled over models, data sets and measures. It holds "
    "if the 95 % interval over questions of one lies above 0 and that of none below; it does not if all lie "
    "below +0.005, or one below 0 and none above; else it is not decidable.",
)
WORDS = {"accuracy": "accuracy", "ace": "ACE", "auroc": "AUROC"}


def remedies_findings(found: Sequence[Compared]) -> list[Claim]:
    """Judge what normal forms are good for; nothing where no answers were clustered in both ways."""
    if not found:
        return []
    questions = min(one.n for one in found)
    return [of_enough(one, questions) for one in (_clusters_finding(found), _scores_finding(found))]


def _clusters_finding(found: Sequence[Compared]) -> Claim:
    labelled = [one for one in found if one.fewer_errors() is not None]
    saved = _pooled([one.fewer_errors() for one in labelled])
    if saved is None:
        return undecidable(*CLUSTERS, because="Of no data set of the run are pairs of answers labelled.")
    errors = {arm: sum(int(one.pairs[arm].errors.sum()) for one in labelled if one.pairs) for arm in ARMS}
    pairs = sum(int(one.pairs["with"].pairs.sum()) for one in labelled if one.pairs)
    because = (
        f"Of {pairs} labelled pairs {errors['without']} stand wrongly without and {errors['with']} with "
        f"them; saved per pair, mean over models and data sets: {told(tested(saved))}. Clusters differ for "
        f"{np.mean([one.changed for one in found]):.1%} of the questions."
    )
    evidence = {"pairs": pairs, "errors": errors, "saved": tested(saved)}
    return Claim(*CLUSTERS, positive(saved), because, evidence)


def _scores_finding(found: Sequence[Compared]) -> Claim:
    benefits = {
        metric: _pooled([one.benefit(metric, measure) for one in found for measure in one.measures()])
        for metric in METRICS
    }
    known = {metric: one for metric, one in benefits.items() if one is not None}
    if not known:
        return undecidable(*SCORES, because="No measure is defined both ways.")
    evidence = {metric: tested(one) for metric, one in known.items()}
    better = "; ".join(f"{WORDS[metric]} {told(one)}" for metric, one in evidence.items())
    return Claim(*SCORES, any_of(list(known.values())), f"Better by: {better}.", evidence)


def any_of(benefits: Sequence[Contrast]) -> str:
    """Whether something gains and nothing loses.

    Examples
    --------
    >>> drawn = np.linspace(-0.01, 0.01, 100)
    >>> gain, open_, none, loss = (Contrast(x, x + drawn) for x in (0.02, 0.004, -0.006, -0.02))
    >>> [any_of(given) for given in ([gain, none], [gain, loss], [none], [none, open_], [open_, loss])]
    ['holds', 'not decidable here', 'does not hold', 'not decidable here', 'does not hold']
    """
    ends = [(found.low, found.high) for found in (one.interval() for one in benefits)]
    gains, loses = any(low > 0 for low, _ in ends), any(high < 0 for _, high in ends)
    if gains or loses:
        return OPEN if gains and loses else HOLDS if gains else FAILS
    return FAILS if all(high < MARGIN for _, high in ends) else OPEN


def _pooled(parts: Sequence[Contrast | None]) -> Contrast | None:
    """The mean of those that are defined."""
    known = [one for one in parts if one is not None and not np.isnan(one.value)]
    return Contrast.mean(known) if known else None
