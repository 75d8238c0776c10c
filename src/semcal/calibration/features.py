"""What the draws of a question say about its answer: the features that a calibration reads (spec section 11).

A feature is one entry of `FEATURES`; the answer is the most frequent meaning, or one that is given
(`semcal.rows.ANSWER_KINDS`). Columns of the rows are further features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from semcal.arrays import Floats
from semcal.errors import InputError, UsageError, shown
from semcal.measuring import representative, sharper_draws
from semcal.metrics.probability_maps import FEW, PLENTY, MapCandidate
from semcal.registry import Catalogue, check_name
from semcal.rows import ANSWER_KINDS, AnswerKind, Row, RowsAt, TokenScores

#: Measures whose share of the answer's meaning is a feature.
SHARES = ("E-SC", "L-SC", "IC-SC")
#: Right answers, and wrong ones, from which on isotonic calibration is tried.
ISOTONIC = 50
#: The least log-likelihood that tells answers apart, in nats a token.
LEAST = -50.0
#: A feature that more of the questions lack is left out.
MOST_LACKING = 0.2


@dataclass(frozen=True)
class AnsweredRow:
    """The measured draws of a question, and the answer that is read of them."""

    row: Row
    kind: AnswerKind
    meaning: int | None  # the cluster that means the same; None where no draw does
    text: str | None  # its commonest wording, or as it was given; None where the meaning is "no answer"

    @classmethod
    def of(cls, row: Row, kind: AnswerKind, sharper: Sequence[str] = ()) -> AnsweredRow:
        """That of a measured row: its most frequent meaning, or what `match_answers` has found.

        Of equally common wordings without likelihoods the `sharper` draws choose.
        """
        if kind != "modal":
            stated = row.stated_answer(kind)
            return cls(row, kind, stated.cluster, stated.text)
        top = row.measured.top_cluster["E-SC"]
        cluster = row.clusters[top or 0]
        return cls(row, kind, top, representative(row.samples, cluster, row.log_likelihoods, sharper))

    @property
    def log_likelihood(self) -> float | None:
        """Of the answer, length-normalised (nats a token): of the likeliest draw that says it, or its own."""
        if self.kind != "modal":
            return self.row.stated_answer(self.kind).log_likelihood
        likely, place = self.row.log_likelihoods, self.likeliest_draw
        return None if likely is None or place is None else likely[place]

    @property
    def likeliest_draw(self) -> int | None:
        """The number of the likeliest draw that says the answer; None where likelihoods are unknown."""
        likely = self.row.log_likelihoods
        return None if likely is None else max(self.row.clusters[self.meaning or 0], key=likely.__getitem__)

    @property
    def token_scores(self) -> TokenScores | None:
        """Of the answer: those of the likeliest draw that says it, or its own."""
        if self.kind != "modal":
            return self.row.stated_answer(self.kind).token_scores
        scores, place = self.row.token_scores, self.likeliest_draw
        return None if scores is None or place is None else scores[place]

    @property
    def rivals(self) -> list[int]:
        """How many draws each other meaning has, the most frequent first."""
        sizes = [len(cluster) for k, cluster in enumerate(self.row.clusters) if k != self.meaning]
        return sorted(sizes, reverse=True)


@dataclass(frozen=True)
class Feature:
    """One number that is known of an answer: None where a question lacks it."""

    name: str
    read: Callable[[AnsweredRow], float | None]
    falling: bool = False  # more of it never raises the probability; less never does of the others
    is_share: bool = False  # it lies in [0, 1]
    of_further: bool = False  # also read of the draws at further temperatures, as "… at T=…"
    kinds: tuple[AnswerKind, ...] = ANSWER_KINDS


#: The features of all calibrations by name.
FEATURES: Catalogue[Feature] = Catalogue("feature")


def _share_under(measure: str) -> Callable[[AnsweredRow], float | None]:
    def share(answered: AnsweredRow) -> float | None:
        values = answered.row.measured.confidences.get(measure)
        if not values:
            return None
        return 0.0 if answered.meaning is None else values[answered.meaning] or 0.0

    return share


def _likelihood(answered: AnsweredRow) -> float | None:
    value = answered.log_likelihood
    return None if value is None else max(LEAST, value)


def _second(answered: AnsweredRow) -> float:
    """Whether one other meaning has more draws, and no more than one."""
    if answered.meaning is None:
        return 0.0
    size = len(answered.row.clusters[answered.meaning])
    return float(sum(rival > size for rival in answered.rivals) == 1)


for _measure in SHARES:
    FEATURES.register(
        Feature(_measure, _share_under(_measure), is_share=True, of_further=_measure == SHARES[0])
    )
FEATURES.register(
    Feature("entropy", lambda it: it.row.measured.semantic_entropy["E-SC"] or 0.0, falling=True)
)
FEATURES.register(
    Feature("meanings", lambda it: math.log(len(it.row.clusters)), falling=True, of_further=True)
)
FEATURES.register(Feature("likelihood", _likelihood))
FEATURES.register(
    Feature(
        "rival",
        lambda it: (it.rivals or [0])[0] / it.row.m,
        falling=True,
        is_share=True,
        kinds=("greedy", "given"),
    )
)
FEATURES.register(Feature("second", _second, kinds=("greedy", "given")))


@dataclass(frozen=True)
class ColumnFeature:
    """A numeric column of the rows as one more feature, and whether more of it tells of wrong answers."""

    name: str
    falling: bool = False

    @classmethod
    def parse(cls, text: str) -> ColumnFeature:
        """That of "NAME", "NAME:rising" or "NAME:falling"; UsageError for another direction.

        >>> ColumnFeature.parse("retrieval_score"), ColumnFeature.parse("distance:falling").falling
        (ColumnFeature(name='retrieval_score', falling=False), True)
        """
        name, colon, direction = text.rpartition(":")
        if not colon:
            name, direction = text, "rising"
        if not name or name in FEATURES:
            raise UsageError(f"--feature {shown(text)}: name a column of the rows, and none of semcal's own")
        return cls(name, check_name(direction, ("rising", "falling"), what="direction") == "falling")

    def value(self, row: Row) -> float | None:
        """That of a row; None for null. InputError where it is missing, or no finite number."""
        if not row.has(self.name):
            raise InputError(
                f"question {row.id!r} has no {self.name!r}, which is a feature of the calibration; give each "
                "row a number, or null where it is not known"
            )
        value = row[self.name]
        if value is None:
            return None
        with suppress(ValueError):  # a cell of a table is text
            value = float(value) if isinstance(value, str) else value
        if isinstance(value, bool | int | float) and math.isfinite(value):
            return float(value)
        raise InputError(f"question {row.id!r}: {self.name!r} must be a finite number, got {shown(value)}")

    @property
    def feature(self) -> Feature:
        """The feature that reads it."""
        return Feature(self.name, lambda it: self.value(it.row), falling=self.falling)


@dataclass(frozen=True)
class AnswerFeatures:
    """The answers to N questions and the features of each."""

    answers: tuple[str | None, ...]  # None where the most frequent meaning is "no answer"
    meanings: tuple[int | None, ...]  # the cluster that means the same, among the first draws; None: no draw
    values: Mapping[str, Floats]  # name → (N,); NaN where a question lacks it
    probabilities: tuple[str, ...]  # the names of those in [0, 1]
    further: tuple[Feature, ...] = ()  # those that were asked for

    @property
    def falling(self) -> list[str]:
        """The names of those that never raise the probability."""
        falling = falling_features(self.further)
        return [name for name in self.values if stem_of(name) in falling]

    @property
    def optional(self) -> list[str]:
        """The names of those that were asked for."""
        return [feature.name for feature in self.further if feature.name in self.values]


def features_of(rows: RowsAt, kind: AnswerKind = "modal", further: Sequence[Feature] = ()) -> AnswerFeatures:
    """Return the answer of each question and what its samples say about it.

    The answer is the most frequent meaning of the first draws, `top_cluster` of E-SC, in its commonest
    wording; or, of another `kind`, a text of the row, whose meaning `match_answers` has found.
    Features: its share under E-SC, L-SC and IC-SC, 0 where no draw means it; the semantic entropy of E-SC
    (nats); the logarithm of the number of meanings; the log-likelihood of its likeliest member, or its own
    (nats a token); for each further temperature its share under E-SC (of "modal" the largest) and the
    logarithm of the number of meanings there; of answers that are given the share of the most frequent other
    meaning, and whether theirs is the second. Without log-likelihoods only what can be counted.
    """
    answered, others = answered_rows(rows, kind), list(rows)[1:]
    features = [entry for entry in (*FEATURES.values(), *further) if kind in entry.kinds]
    by_name = {entry.name: entry for entry in features}
    values = {entry.name: list(map(entry.read, answered)) for entry in features}
    for t in others:
        at = [AnsweredRow.of(row, kind) for row in rows[t]]
        for entry in features:
            if entry.of_further:
                name = f"{entry.name} at T={t:g}"
                values[name], by_name[name] = list(map(entry.read, at)), entry
    requested = [entry.name for entry in further]
    columns = {
        name: np.array(column, float)
        for name, column in values.items()
        if name in requested or any(value is not None for value in column)
    }
    return AnswerFeatures(
        answers=tuple(one.text for one in answered),
        meanings=tuple(one.meaning for one in answered),
        values=columns,
        probabilities=tuple(name for name in columns if by_name[name].is_share),
        further=tuple(further),
    )


def answered_rows(rows: RowsAt, kind: AnswerKind) -> list[AnsweredRow]:
    """Return the answer to each question, read of the first draws."""
    temperature, first = next(iter(rows.items()))
    sharper = sharper_draws(rows, temperature) or [[]] * len(first)
    return [AnsweredRow.of(row, kind, draws) for row, draws in zip(first, sharper)]


def stem_of(name: str) -> str:
    """The name of a feature without the temperature of further draws."""
    return name.partition(" at T=")[0]


def falling_features(further: Iterable[Feature | ColumnFeature] = ()) -> set[str]:
    """The names of all features that never raise the probability, those at further temperatures apart."""
    return {feature.name for feature in (*FEATURES.values(), *further) if feature.falling}


def candidates_for(features: AnswerFeatures) -> list[MapCandidate]:
    """Return what is tried beside a constant, simplest first: no map, maps of one share, regressions.

    From five to nine right or wrong answers only the beta map of E-SC is tried, and a regression takes five
    right and five wrong ones for each of its features: with fewer it takes chance for a rule. Isotonic
    calibration, whose steps follow single answers, takes 50 right and 50 wrong ones and must be clearly
    better than the smooth maps. So must what reads a feature that was asked for, each by itself and all
    together, of which one that more than a fifth of the questions lack is left out; and what reads further
    draws.
    """
    names = [name for name in features.values if name not in features.optional]
    optional = [name for name in features.optional if lacking_share(features, name) <= MOST_LACKING]
    at_hand = [name for name in names if stem_of(name) == name]
    shares = [name for name in at_hand if name in SHARES]
    never_raise = set(features.falling)

    def logistic(names: Sequence[str], tier: int = 0) -> MapCandidate:
        read = tuple(name for name in names if name in features.probabilities)
        falling = tuple(name for name in names if name in never_raise)
        rising = tuple(name for name in names if name not in falling)
        fewest = max(PLENTY, FEW * len(names))
        return MapCandidate("logistic", tuple(names), read, rising, falling, fewest, tier)

    candidates = [
        MapCandidate("none", ("E-SC",)),
        *(MapCandidate("beta", (share,), fewest=FEW if share == "E-SC" else PLENTY) for share in shares),
        logistic(at_hand),
        MapCandidate("isotonic", ("E-SC",), fewest=ISOTONIC, tier=1),
    ]
    sets = [[name] for name in optional] + ([optional] if len(optional) > 1 else [])
    candidates += [logistic([*at_hand, *chosen], tier=1) for chosen in sets]
    if len(names) > len(at_hand):
        candidates += [logistic([*names, *chosen], tier=2) for chosen in ([], *sets[-1:])]
    return candidates


def lacking_share(features: AnswerFeatures, name: str) -> float:
    """The share of the questions that lack a feature."""
    return float(np.isnan(features.values[name]).mean())
