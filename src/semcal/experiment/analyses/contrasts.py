"""Paired tests of TS against every other method, and of every method against Base.

Methods are compared on the same questions and runs. Models share the resamples of a data set's questions,
data sets have resamples of their own, so that contrasts can be pooled over both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from semcal.experiment.analyses.grid_scores import GridScores, PairScores
from semcal.experiment.finished import Pair
from semcal.metrics import Contrast


@dataclass(frozen=True)
class Quantity:
    """What two methods are compared in: its value, and whether more of it is better."""

    value: Callable[[PairScores, str, str], Contrast]  # of a method and measure
    larger_is_better: bool


def _metric(name: str) -> Callable[[PairScores, str, str], Contrast]:
    return lambda pair, method, measure: pair.resampled.contrast((method, measure), name)


def _entropy(variant: str) -> Callable[[PairScores, str, str], Contrast]:
    return lambda pair, method, measure: entropy_contrast(pair, method, measure, variant)


def entropy_contrast(pair: PairScores, method: str, measure: str, variant: str) -> Contrast:
    """AUROC of −entropy for one of `VARIANTS`, with its resamples."""
    return pair.entropies.contrast((method, measure, variant), "auroc")


def _gain(pair: PairScores, method: str, measure: str) -> Contrast:
    key = (method, measure)
    return pair.resampled.contrast(key, "aurac") - pair.resampled.contrast(key, "accuracy")


QUANTITIES = {
    "ace": Quantity(_metric("ace"), False),
    "brier": Quantity(_metric("brier"), False),
    "auroc": Quantity(_metric("auroc"), True),
    "accuracy": Quantity(_metric("accuracy"), True),
    "SE_conf": Quantity(_entropy("SE_conf"), True),
    "SE_vanilla": Quantity(_entropy("SE_vanilla"), True),
    "gain": Quantity(_gain, True),
}


def paired_tests(scores: GridScores) -> list[dict[str, Any]]:
    """Compare TS with each other method.

    {model, dataset, measure, quantity, method, against, difference, interval, p, better}: the value of TS
    less that of the other, with its 95 % interval and two-sided p-value over questions; `better` is true or
    false where the interval leaves 0 out, null elsewhere. "gain" is AURAC − accuracy here (the
    metric gain is in `against_base`). Empty without TS.
    """
    if "TS" not in scores.run.methods:
        return []
    return [
        {
            "model": model,
            "dataset": dataset,
            "measure": measure,
            "quantity": name,
            "method": "TS",
            "against": other,
            **_paired_test(quantity, pair, measure, other),
        }
        for model, dataset in scores.run.pairs
        for pair in [scores.pair(model, dataset)]
        for other in scores.run.methods
        if other != "TS"
        for name, quantity in QUANTITIES.items()
        for measure in measures_of(pair, scores)
    ]


def _paired_test(quantity: Quantity, pair: PairScores, measure: str, other: str) -> dict[str, Any]:
    difference = quantity.value(pair, "TS", measure) - quantity.value(pair, other, measure)
    if np.isnan(difference.value):
        return dict.fromkeys(("difference", "interval", "p", "better"))
    found = contrast_summary(difference)
    low, high = found["interval"]
    better = (found["value"] > 0) == quantity.larger_is_better if low > 0 or high < 0 else None
    return {"difference": found.pop("value"), **found, "better": better}


def benefit(quantity: str, pair: PairScores, measure: str, method: str, other: str) -> Contrast:
    """How much better `method` is than `other`: above 0 is better, whichever way the quantity counts."""
    chosen = QUANTITIES[quantity]
    difference = chosen.value(pair, method, measure) - chosen.value(pair, other, measure)
    return difference if chosen.larger_is_better else difference * -1.0


def pooled_benefit(
    scores: GridScores, quantity: str, method: str, other: str, *, pairs: Sequence[Pair] | None = None
) -> Contrast | None:
    """The mean of `benefit` over measures and over (model, data set); None where there is nothing."""
    parts = [
        benefit(quantity, pair, measure, method, other)
        for model, dataset in (scores.run.pairs if pairs is None else pairs)
        for pair in [scores.pair(model, dataset)]
        for measure in measures_of(pair, scores)
    ]
    known = [part for part in parts if not np.isnan(part.value)]
    return Contrast.mean(known) if known else None


def measures_of(pair: PairScores, scores: GridScores) -> list[str]:
    """The measures that are defined for the pair."""
    return [name for name in scores.run.measures if any(measure == name for _, measure in pair.arrays)]


def contrast_summary(contrast: Contrast) -> dict[str, Any]:
    """{value, interval, p} of a contrast."""
    found = contrast.interval()
    return {"value": found.estimate, "interval": [found.low, found.high], "p": contrast.p_value()}


def contrast_text(summary: Mapping[str, Any]) -> str:
    """A `contrast_summary` in figures; what rounds to 0 is no negative zero.

    >>> contrast_text({"value": 0.0125, "interval": [-0.0004, 0.025]})
    '+0.013 [+0.000, +0.025]'
    """
    value, low, high = (f"{round(x, 3) + 0.0:+.3f}" for x in (summary["value"], *summary["interval"]))
    return f"{value} [{low}, {high}]"


METRICS = ("accuracy", "gain")


def against_base(scores: GridScores) -> list[dict[str, Any]]:
    """{model, dataset, method, measure, accuracy, gain}: each method less Base on the same questions.

    Each is {value, interval, p}, tested over questions; rows without a measure (null) are of the mean over
    measures. Empty without Base.
    """
    if "Base" not in scores.run.methods:
        return []
    rows = []
    for model, dataset in scores.run.pairs:
        pair = scores.pair(model, dataset)
        measures = measures_of(pair, scores)
        for method in scores.run.methods if measures else ():
            if method == "Base":
                continue
            found = {
                metric: [
                    pair.resampled.contrast((method, measure), metric)
                    - pair.resampled.contrast(("Base", measure), metric)
                    for measure in measures
                ]
                for metric in METRICS
            }
            found = {metric: [*each, Contrast.mean(each)] for metric, each in found.items()}
            rows += [
                {"model": model, "dataset": dataset, "method": method, "measure": measure}
                | {metric: contrast_summary(each[place]) for metric, each in found.items()}
                for place, measure in enumerate([*measures, None])
            ]
    return rows
