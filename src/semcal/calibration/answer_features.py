"""What the samples of a question say about its answer: the features of a calibration (spec section 11)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from semcal.measuring import representative, sharper_draws
from semcal.metrics.frequencies import Floats
from semcal.metrics.probability_maps import FEW, PLENTY, MapCandidate
from semcal.rows import Row, RowsAt

#: Measures whose share of the answer's meaning is a feature.
SHARES = ("E-SC", "L-SC", "IC-SC")
#: Right answers, and wrong ones, from which on isotonic calibration is tried.
ISOTONIC = 50
#: The features of the answer's own draws; those of further draws have " at T=…" behind them.
FEATURES = (*SHARES, "entropy", "meanings", "likelihood")
#: Of these features more is less agreement: they never raise the probability. The others never lower it.
FALLING = ("entropy", "meanings")
#: The least log-likelihood that tells answers apart, in nats a token.
LEAST = -50.0


@dataclass(frozen=True)
class AnswerFeatures:
    """The answers to N questions and the features of each."""

    answers: tuple[str, ...]
    meanings: tuple[int, ...]  # the cluster that the answer stands for, among the first draws
    values: Mapping[str, Floats]  # name → (N,); NaN where a question lacks it
    probabilities: tuple[str, ...]  # the names of those in [0, 1]


def features_of(rows: RowsAt) -> AnswerFeatures:
    """Return the answer of each question and what its samples say about it.

    The answer is the most frequent meaning of the first draws, `top_cluster` of E-SC, in its commonest
    wording. Features: its share under E-SC, L-SC and IC-SC; the semantic entropy of E-SC
    (nats); the logarithm of the number of meanings; the log-likelihood of its likeliest member (nats a
    token); and for each further temperature the largest share under E-SC and the logarithm of the number of
    meanings there. Without log-likelihoods only what can be counted.
    """
    temperature, *further = rows
    first = rows[temperature]
    meanings = [top_meaning(row) for row in first]
    sharper = sharper_draws(rows, temperature) or [[]] * len(meanings)
    by_question = [dict(_own_features(row, top)) for row, top in zip(first, meanings)]
    for t in further:
        for features, row in zip(by_question, rows[t]):
            features.update(_features_at(row, t))
    names = list(dict.fromkeys(name for features in by_question for name in features))
    return AnswerFeatures(
        answers=tuple(
            representative(row.samples, row.clusters[top], row.log_likelihoods, draws)
            for row, top, draws in zip(first, meanings, sharper)
        ),
        meanings=tuple(meanings),
        values={name: np.array([one.get(name, math.nan) for one in by_question]) for name in names},
        probabilities=tuple(name for name in names if name.partition(" ")[0] in SHARES),
    )


def top_meaning(row: Row) -> int:
    """The number of the most frequent meaning."""
    top = row.measured.top_cluster["E-SC"]
    assert top is not None
    return top


def _own_features(row: Row, top: int) -> Iterator[tuple[str, float]]:
    measures = row.measured
    for measure in SHARES:
        if values := measures.confidences.get(measure):
            yield measure, values[top] or 0.0
    yield "entropy", measures.semantic_entropy["E-SC"] or 0.0
    yield "meanings", math.log(len(row.clusters))
    if (likely := row.log_likelihoods) is not None:
        yield "likelihood", max(LEAST, *(likely[i] for i in row.clusters[top]))


def _features_at(row: Row, temperature: float | None) -> Iterator[tuple[str, float]]:
    where = f"at T={temperature:g}"
    sizes = [len(cluster) for cluster in row.clusters]
    yield f"E-SC {where}", max(sizes) / sum(sizes)
    yield f"meanings {where}", math.log(len(sizes))


def falls(feature: str) -> bool:
    """Whether the feature, at whatever temperature, falls as agreement rises."""
    return feature.partition(" ")[0] in FALLING


def candidates_for(features: AnswerFeatures) -> list[MapCandidate]:
    """Return what is tried beside a constant, simplest first: no map, maps of one share, regressions.

    From five to nine right or wrong answers only the beta map of E-SC is tried, and a regression takes five
    right and five wrong ones for each of its features: with fewer it takes chance for a rule. Isotonic
    calibration, whose steps follow single answers, takes 50 right and 50 wrong ones and must be clearly
    better than the smooth maps, and what reads further draws clearly better than what does not.
    """
    names = [name for name, values in features.values.items() if not np.isnan(values).all()]
    at_hand = tuple(name for name in names if " at " not in name)
    shares = tuple(name for name in names if name in features.probabilities)

    def logistic(names: Sequence[str], tier: int = 0) -> MapCandidate:
        read = tuple(name for name in names if name in shares)
        falling = tuple(name for name in names if falls(name))
        rising = tuple(name for name in names if not falls(name))
        fewest = max(PLENTY, FEW * len(names))
        return MapCandidate("logistic", tuple(names), read, rising, falling, fewest, tier)

    candidates = [
        MapCandidate("none", ("E-SC",)),
        *(
            MapCandidate("beta", (share,), fewest=FEW if share == "E-SC" else PLENTY)
            for share in shares
            if share in at_hand
        ),
        logistic(at_hand),
        MapCandidate("isotonic", ("E-SC",), fewest=ISOTONIC, tier=1),
    ]
    return [*candidates, logistic(names, tier=2)] if len(names) > len(at_hand) else candidates
