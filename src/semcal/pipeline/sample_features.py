"""What the samples of a question say about its answer: the features of a calibration (spec section 11)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from semcal.metrics.frequencies import Floats
from semcal.metrics.probability_maps import MapCandidate

__all__ = ["AnswerFeatures", "RowsAt", "candidates_for", "features_of", "representative", "top_meaning"]

Row = Mapping[str, Any]
RowsAt = Mapping[float | None, Sequence[Row]]
"""Temperature → rows of the same questions, clustered and measured at that temperature by themselves.

The first entry holds the draws from which the answer is taken; its key is None where these are under a
recalibrator, or of a temperature that nobody knows.
"""

#: Measures whose share of the answer's meaning is a feature.
SHARES = ("E-SC", "L-SC", "IC-SC")
#: The least log-likelihood that tells answers apart, in nats a token.
LEAST = -50.0


def representative(samples: Sequence[str], cluster: Sequence[int]) -> str:
    """Return the commonest wording of a cluster; of equally common ones the first."""
    return Counter(samples[i] for i in cluster).most_common(1)[0][0]


def top_meaning(clusters: Sequence[Sequence[int]]) -> int:
    """Return the number of the largest cluster; of equally large ones the first."""
    return max(range(len(clusters)), key=lambda k: (len(clusters[k]), -k))


@dataclass(frozen=True)
class AnswerFeatures:
    """The answers to N questions and the features of each."""

    answers: tuple[str, ...]
    meanings: tuple[int, ...]  # the cluster that the answer stands for, among the first draws
    values: Mapping[str, Floats]  # name → (N,); NaN where a question lacks it
    probabilities: tuple[str, ...]  # the names of those in [0, 1]


def features_of(rows: RowsAt) -> AnswerFeatures:
    """Return the answer of each question and what its samples say about it.

    The answer is the most frequent meaning of the first draws, ties to the meaning that appeared first, in
    its commonest wording. Features: its share under E-SC, L-SC and IC-SC; the semantic entropy of E-SC
    (nats); the logarithm of the number of meanings; the log-likelihood of its likeliest member (nats a
    token); and for each further temperature the largest share under E-SC and the logarithm of the number of
    meanings there. Without log-likelihoods only what can be counted.
    """
    first, *others = rows
    meanings = [top_meaning(row["clusters"]) for row in rows[first]]
    found = [dict(_own(row, top)) for row, top in zip(rows[first], meanings)]
    for temperature in others:
        for features, row in zip(found, rows[temperature]):
            features.update(_at(row, temperature))
    names = list(dict.fromkeys(name for features in found for name in features))
    return AnswerFeatures(
        answers=tuple(
            representative(row["samples"], row["clusters"][top]) for row, top in zip(rows[first], meanings)
        ),
        meanings=tuple(meanings),
        values={name: np.array([one.get(name, math.nan) for one in found]) for name in names},
        probabilities=tuple(name for name in names if name.partition(" ")[0] in SHARES),
    )


def _own(row: Row, top: int) -> Iterator[tuple[str, float]]:
    clusters = row["clusters"]
    for measure in SHARES:
        if row["confidences"].get(measure):
            yield measure, row["confidences"][measure][top]
    yield "entropy", row["semantic_entropy"]["E-SC"]
    yield "meanings", math.log(len(clusters))
    known = row.get("log_likelihoods")
    if known and all(known[i] is not None for i in range(len(known))):
        yield "likelihood", max(LEAST, *(float(known[i]) for i in clusters[top]))


def _at(row: Row, temperature: float | None) -> Iterator[tuple[str, float]]:
    where = f"at T={temperature:g}"
    sizes = [len(cluster) for cluster in row["clusters"]]
    yield f"E-SC {where}", max(sizes) / sum(sizes)
    yield f"meanings {where}", math.log(len(sizes))


def candidates_for(features: AnswerFeatures) -> list[MapCandidate]:
    """Return what is tried, simplest first: no map, maps of one share, logistic regressions."""
    known = [name for name, values in features.values.items() if not np.isnan(values).all()]
    shares = [name for name in known if name in features.probabilities]
    own = tuple(name for name in known if " at " not in name)
    several = [own, tuple(known)] if len(known) > len(own) else [own]
    return [
        MapCandidate("none", ("E-SC",)),
        *(MapCandidate(kind, (share,)) for share in shares for kind in ("beta", "isotonic")),
        *(MapCandidate("logistic", names, tuple(one for one in shares if one in names)) for names in several),
    ]
