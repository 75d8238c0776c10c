"""Claims about tokens: ATS overfits filler, and only Platt changes the order of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

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
from semcal.experiment.analyses.contrasts import pooled_benefit, tested, told
from semcal.experiment.analyses.scores import GridScores
from semcal.experiment.finished import FinishedRun, Pair

__all__ = ["FILLER", "filler_claim", "order_claim"]

Fit = Mapping[str, Any]
#: The token classes that carry no content.
FILLER = ("stop word", "punctuation", "end of turn")
OVERFITS = (
    "filler tokens",
    "ATS fits the calibration tokens better than TS, by its effect on filler tokens, and yet is worse at "
    "meanings.",
    "appendix, inductive bias",
    "Among fits by NLL, averaged over weight decays: (1) the training NLL of ATS is below that of TS; (2) "
    "the NLL that ATS saves over TS is larger on filler tokens (stop words, punctuation, end of turn) than "
    "on content tokens, per token of the validation answers; (3) TS is better than ATS in semantic Brier "
    "score, pooled as for the other claims. (1) and (2) have no interval: they hold when they do for every "
    "model and data set, and fail when they do not on average. All three must hold; a part is not decidable "
    "where its numbers are missing.",
)
ORDER = (
    "order of tokens",
    "TS and ATS keep the model's ranking of tokens, Platt does not.",
    "appendix, inductive bias",
    "Over all fits, the share of positions where another token becomes the most likely, or the ten most "
    "likely change order, is exactly 0 for TS and for ATS, and above 0 for Platt.",
)


def filler_claim(scores: GridScores) -> Claim:
    """Judge whether ATS overfits filler tokens."""
    run = scores.run
    fits = {method: _fits(run, method, loss="NLL") for method in ("TS", "ATS")}
    if missing := absent(tuple(fits), run.methods) or _unfitted(fits, " by NLL"):
        return undecidable(*OVERFITS, because=missing)
    by_pair = [_differences(run, pair) for pair in run.pairs]
    train = {method: _mean(found, "train_nll") for method, found in fits.items()}
    validation = {method: _mean(found, "validation_nll") for method, found in fits.items()}
    saved = {
        kind: _class_nll(fits["TS"], names) - _class_nll(fits["ATS"], names)
        for kind, names in (("filler", FILLER), ("content", ("content",)))
    }
    semantic = pooled_benefit(scores, "brier", "TS", "ATS")
    if semantic is None:
        return undecidable(*OVERFITS, because="No question counts, so there is no semantic Brier score.")
    if np.isnan([*train.values(), *saved.values()]).any():
        return undecidable(*OVERFITS, because="The fits of TS and ATS hold no losses by class of token.")
    parts = [
        _everywhere([one["saved in training"] for one in by_pair]),
        _everywhere([one["saved on filler less content"] for one in by_pair]),
        positive(semantic, parts=3),
    ]
    evidence = {
        "train_nll": train,
        "validation_nll": {name: None if np.isnan(v) else v for name, v in validation.items()},
        "saved_by_ats": saved,
        "by_pair": by_pair,
        "brier_benefit_of_ts": tested(semantic),
        "parts": parts,
    }
    because = (
        f"Training NLL {train['ATS']:.3f} for ATS and {train['TS']:.3f} for TS (validation "
        f"{validation['ATS']:.3f} and {validation['TS']:.3f}); ATS saves {saved['filler']:+.3f} a filler "
        f"token and {saved['content']:+.3f} a content token; benefit of TS in Brier score "
        f"{semantic.value:+.3f}."
    )
    return Claim(*OVERFITS, all_of(parts), because, evidence)


def _differences(run: FinishedRun, pair: Pair) -> dict[str, Any]:
    """By how much ATS is below TS in training NLL, and the NLL that it saves on filler less on content."""
    of = {method: _fits(run, method, loss="NLL", pairs=[pair]) for method in ("TS", "ATS")}
    filler, content = (
        _class_nll(of["TS"], names) - _class_nll(of["ATS"], names) for names in (FILLER, ("content",))
    )
    return {
        "model": pair[0],
        "dataset": pair[1],
        "saved in training": _mean(of["TS"], "train_nll") - _mean(of["ATS"], "train_nll"),
        "saved on filler less content": filler - content,
    }


def _everywhere(differences: Sequence[float]) -> str:
    """Whether all of them are above 0, or not even their mean is."""
    known = [one for one in differences if not np.isnan(one)]
    if known and min(known) > 0:
        return HOLDS
    return FAILS if known and np.mean(known) <= 0 else OPEN


def order_claim(scores: GridScores) -> Claim:
    """Judge who changes the order of tokens, and what that does to greedy answers."""
    run = scores.run
    fits = {method: _fits(run, method) for method in ("TS", "ATS", "Platt")}
    changed = {
        method: {key: [fit[key] for fit in found if fit.get(key) is not None] for key in CHANGES}
        for method, found in fits.items()
    }
    if missing := absent(tuple(fits), run.methods) or _unfitted(fits):
        return undecidable(*ORDER, because=missing)
    if not all(all(by.values()) for by in changed.values()):
        return undecidable(
            *ORDER, because="The fits of TS, ATS and Platt do not all say which tokens change."
        )
    most = {method: max(max(values) for values in by.values()) for method, by in changed.items()}
    parts = [
        HOLDS if most["TS"] == 0 else FAILS,
        HOLDS if most["ATS"] == 0 else FAILS,
        HOLDS if most["Platt"] > 0 else FAILS,
    ]
    evidence = {
        method: {key: float(np.mean(values)) for key, values in by.items()} for method, by in changed.items()
    }
    accuracy = pooled_benefit(scores, "accuracy", "Platt", "Base") if _both(run, "Platt", "Base") else None
    because = "; ".join(
        f"{method}: first token changed at {by['top_changed']:.1%}, order of ten at "
        f"{by['order_changed']:.1%} of positions"
        for method, by in evidence.items()
    )
    if accuracy is None:
        return Claim(*ORDER, all_of(parts), f"{because}.", {**evidence, "parts": parts})
    lost = {"accuracy_of_platt_less_base": tested(accuracy)}
    because += f". Accuracy under Platt less that under Base: {told(tested(accuracy))}"
    return Claim(*ORDER, all_of(parts), f"{because}.", {**evidence, **lost, "parts": parts})


CHANGES = ("top_changed", "order_changed")


def _unfitted(fits: Mapping[str, Sequence[Fit]], how: str = "") -> str:
    """Which methods have no fit, as a sentence; "" where all have."""
    missing = [method for method, found in fits.items() if not found]
    return f"There is no fit of {' and none of '.join(missing)}{how}." if missing else ""


def _both(run: FinishedRun, *methods: str) -> bool:
    return set(methods) <= set(run.methods)


def _fits(
    run: FinishedRun, method: str, *, loss: str | None = None, pairs: Sequence[Pair] | None = None
) -> list[Fit]:
    return [
        fit
        for pair in (run.pairs if pairs is None else pairs)
        for fit in run.selections[pair].get("fits", [])
        if fit["method"] == method and loss in (None, fit["loss"])
    ]


def _mean(fits: Sequence[Fit], key: str) -> float:
    known = [fit[key] for fit in fits if fit.get(key) is not None]
    return float(np.mean(known)) if known else float("nan")


def _class_nll(fits: Sequence[Fit], names: Sequence[str]) -> float:
    """Mean NLL of the tokens of some classes, mean over fits."""
    found = []
    for fit in fits:
        classes = [one for name, one in (fit.get("classes") or {}).items() if name in names]
        classes = [one for one in classes if one["share"] and one["nll"] is not None]
        if classes:
            found.append(
                np.average([one["nll"] for one in classes], weights=[one["share"] for one in classes])
            )
    return float(np.mean(found)) if found else float("nan")
