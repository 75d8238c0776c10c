"""Features of an answer that a calibration reads (spec section 11).

Each feature is an entry of `FEATURES`. Columns of the rows, signals and scores are further features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from semcal import metrics
from semcal.arrays import Floats
from semcal.data.datasets import parse_cell
from semcal.errors import InputError, UsageError, shown
from semcal.measuring import representative, sharper_draws
from semcal.metrics.probability_maps import FEW, PLENTY, MapCandidate
from semcal.registry import Catalogue, check_name
from semcal.rows import ANSWER_KINDS, AnswerKind, Row, RowsAt, TokenScores

_Value = TypeVar("_Value")
#: Measures whose confidence in the meaning of the answer is a feature.
SHARES = ("E-SC", "L-SC", "IC-SC")
#: Fewest correct, and fewest wrong, answers for isotonic calibration.
ISOTONIC = 50
#: Lower bound of the log-likelihood as a feature, in nats per token.
LEAST = -50.0
#: Largest share of questions that may lack a feature.
MOST_LACKING = 0.2
#: Rounding of probabilities, such as sums of numbers of 32 bits.
ROUNDING = 1e-6
#: Smallest distance of a score from 0 and 1 before its logit is taken.
INSIDE = 1e-16
#: Number of correct and of wrong answers that no set of labels has.
NEVER = 10**9


@dataclass(frozen=True)
class AnsweredRow:
    """A measured row with its answer."""

    row: Row
    kind: AnswerKind
    meaning: int | None  # the cluster of the answer; None if no sample means the same
    text: str | None  # the most frequent wording, or the given text; None for "no answer"

    @classmethod
    def of(cls, row: Row, kind: AnswerKind, sharper: Sequence[str] = ()) -> AnsweredRow:
        """Return a measured row with its most frequent meaning, or the answer of another `kind`.

        If likelihoods are unknown, the `sharper` samples choose among equally common wordings.
        """
        if kind != "modal":
            stated = row.stated_answer(kind)
            return cls(row, kind, stated.cluster, stated.text)
        top = row.measured.top_cluster["E-SC"]
        cluster = row.clusters[top or 0]
        return cls(row, kind, top, representative(row.samples, cluster, row.log_likelihoods, sharper))

    @property
    def log_likelihood(self) -> float | None:
        """The length-normalized log-likelihood (nats per token) of the answer or its likeliest sample."""
        if self.kind != "modal":
            return self.row.stated_answer(self.kind).log_likelihood
        return self._of_likeliest(self.row.log_likelihoods)

    @property
    def token_scores(self) -> TokenScores | None:
        """The token scores of the answer or its likeliest sample."""
        if self.kind != "modal":
            return self.row.stated_answer(self.kind).token_scores
        return self._of_likeliest(self.row.token_scores)

    @property
    def log_tokens(self) -> float | None:
        """The logarithm of the number of tokens of the likeliest sample that means the answer."""
        count = self._of_likeliest(self.row.token_counts)
        return None if count is None else math.log(count)

    def _of_likeliest(self, values: Sequence[_Value | None] | None) -> _Value | None:
        """Return the value of the likeliest sample that means the answer; None if unknown."""
        likely = self.row.log_likelihoods
        if likely is None or values is None:
            return None
        return values[max(self.row.clusters[self.meaning or 0], key=likely.__getitem__)]

    @property
    def rivals(self) -> list[int]:
        """The number of samples of each other meaning."""
        return [len(cluster) for k, cluster in enumerate(self.row.clusters) if k != self.meaning]


@dataclass(frozen=True)
class Feature:
    """A number that describes an answer; `read` returns None if it is unknown."""

    name: str
    read: Callable[[AnsweredRow], float | None]
    falling: bool = False  # larger values never raise the probability; otherwise never lower it
    is_share: bool = False  # in [0, 1]
    of_further: bool = False  # also computed at further temperatures, as "… at T=…"
    kinds: tuple[AnswerKind, ...] = ANSWER_KINDS


#: The features of all calibrations by name.
FEATURES: Catalogue[Feature] = Catalogue("feature")


def _share_of(measure: str) -> Callable[[AnsweredRow], float | None]:
    def share(answered: AnsweredRow) -> float | None:
        values = answered.row.measured.confidences.get(measure)
        if not values:
            return None
        return 0.0 if answered.meaning is None else values[answered.meaning] or 0.0

    return share


def _largest_rival(answered: AnsweredRow) -> float:
    return max(answered.rivals, default=0) / answered.row.m


def _second(answered: AnsweredRow) -> float:
    """Return 1 if exactly one other meaning has more samples, else 0."""
    if answered.meaning is None:
        return 0.0
    size = len(answered.row.clusters[answered.meaning])
    return float(sum(rival > size for rival in answered.rivals) == 1)


_OTHER_ANSWERS: tuple[AnswerKind, ...] = ("greedy", "given")
for _feature in (
    *(Feature(name, _share_of(name), is_share=True, of_further=name == SHARES[0]) for name in SHARES),
    Feature("entropy", lambda it: it.row.measured.semantic_entropy["E-SC"] or 0.0, falling=True),
    Feature("meanings", lambda it: math.log(len(it.row.clusters)), falling=True, of_further=True),
    Feature("likelihood", lambda it: None if (u := it.log_likelihood) is None else max(LEAST, u)),
    Feature("token-count", lambda it: it.log_tokens, falling=True, kinds=("modal",)),
    Feature("rival", _largest_rival, falling=True, is_share=True, kinds=_OTHER_ANSWERS),
    Feature("second", _second, kinds=_OTHER_ANSWERS),
):
    FEATURES.register(_feature)


def _finite(value: object) -> float | None:
    """Return a finite number, or the one that a cell of a table holds; None for other values."""
    with suppress(ValueError, OverflowError):
        number = float(value) if isinstance(value, str | int | float) else math.nan
        return number if math.isfinite(number) else None
    return None


def name_and_direction(text: str) -> tuple[str, str | None]:
    """Split "NAME", "NAME:rising" or "NAME:falling"; UsageError for another direction."""
    name, colon, direction = text.rpartition(":")
    return (name, check_name(direction, ("rising", "falling"), what="direction")) if colon else (text, None)


@dataclass(frozen=True)
class ColumnFeature:
    """A numeric column of the rows as a feature; `falling` if larger values never raise the probability."""

    name: str
    falling: bool = False

    @classmethod
    def parse(cls, text: str) -> ColumnFeature:
        """Parse "NAME", "NAME:rising" or "NAME:falling"; UsageError for another direction.

        >>> ColumnFeature.parse("retrieval_score"), ColumnFeature.parse("distance:falling").falling
        (ColumnFeature(name='retrieval_score', falling=False), True)
        """
        name, direction = name_and_direction(text)
        if not name or name in FEATURES:
            raise UsageError(
                f"--feature: {shown(text)} is not a column of the rows. Name a column, not a built-in feature"
            )
        return cls(name, direction == "falling")

    def value(self, row: Row) -> float | None:
        """Return the value in a row, None for null; InputError if it is missing or not a finite number."""
        if not row.has(self.name):
            raise InputError(
                f"question {row.id!r}: {self.name!r} is missing, which is a feature of the calibration. Give "
                "each row a number, or null if it is unknown"
            )
        value = row[self.name]
        if value in (None, ""):  # an empty cell of a table is null
            return None
        if (number := _finite(value)) is not None:
            return number
        raise InputError(
            f"question {row.id!r}: {self.name!r} must be a finite number, got {shown(value)}. Correct it, or "
            "give null if it is unknown"
        )

    @property
    def feature(self) -> Feature:
        """The feature of this column."""
        return Feature(self.name, lambda it: self.value(it.row), falling=self.falling)


@dataclass(frozen=True)
class AnswerFeatures:
    """The answers to N questions and the features of each."""

    answers: tuple[str | None, ...]  # None for "no answer"
    meanings: tuple[int | None, ...]  # the cluster of the answer among the first samples, or None
    values: Mapping[str, Floats]  # name → (N,); NaN if unknown
    probabilities: tuple[str, ...]  # the names of features in [0, 1]
    further: tuple[Feature, ...] = ()  # requested features
    base: str = SHARES[0]  # the confidence without a calibration: the share of samples, or a score

    @property
    def falling(self) -> list[str]:
        """The names of the features whose larger values never raise the probability."""
        falling = {one.name for one in (*FEATURES.values(), *self.further) if one.falling}
        return [name for name in self.values if name != self.base and stem_of(name) in falling]

    @property
    def ordering(self) -> str | None:
        """The feature that orders answers for a threshold before labels are read; larger values are surer.

        It is the base; if the base never varies, as the share of one sample, it is the likelihood.
        """
        usable = [name for name in (self.base, "likelihood") if name in self.values]
        return next((name for name in usable if np.ptp(self.values[name]) > 0), next(iter(usable), None))

    @property
    def optional(self) -> list[str]:
        """The names of the requested features."""
        return [feature.name for feature in self.further if feature.name in self.values]


def features_of(rows: RowsAt, kind: AnswerKind = "modal", further: Sequence[Feature] = ()) -> AnswerFeatures:
    """Return the answer to each question with its features.

    The "modal" answer is the most frequent wording of the most frequent meaning of the first samples
    (`top_cluster` of E-SC). An answer of another `kind` is a text of the row, matched to a cluster before.

    The features are:

    - the confidence in its meaning by E-SC, L-SC and IC-SC, 0 if no sample means the same;
    - the semantic entropy by E-SC (nats), and the logarithm of the number of meanings;
    - the log-likelihood (nats per token) of the answer or its likeliest sample;
    - the logarithm of the number of its tokens, of the "modal" answer alone;
    - at each further temperature, the share by E-SC ("modal": the largest) and the logarithm of the number of
      meanings;
    - for "greedy" and "given" answers, the share of the most frequent other meaning, and whether exactly one
      other meaning is more frequent.

    Features of unknown log-likelihoods or numbers of tokens are left out. `further` are requested features.
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


def order_by(name: str, values: Mapping[str, Floats]) -> Floats:
    """Return a feature (N,) as scores that are compared with a threshold; -inf if unknown."""
    return np.nan_to_num(values[name], nan=-math.inf, posinf=math.inf, neginf=-math.inf)


def answered_rows(rows: RowsAt, kind: AnswerKind) -> list[AnsweredRow]:
    """Return the answer to each question from the first samples."""
    temperature, first = next(iter(rows.items()))
    sharper = sharper_draws(rows, temperature) or [[]] * len(first)
    return [AnsweredRow.of(row, kind, draws) for row, draws in zip(first, sharper)]


def stem_of(name: str) -> str:
    """Return the name of a feature without the temperature of further samples."""
    return name.partition(" at T=")[0]


def candidates_for(features: AnswerFeatures) -> list[MapCandidate]:
    """Return the candidates beside a constant, the simplest first: no map, maps of one share, regressions.

    With five to nine correct or wrong answers the beta map of E-SC is the only map. A regression needs five
    correct and five wrong answers for each feature, since with fewer it fits noise. Isotonic calibration
    needs 50 of each, since its steps follow single answers.

    Three kinds of candidates must be clearly better than the smooth maps: isotonic calibration, regressions
    with a requested feature or all of them, and regressions with further samples. A requested feature that
    more than a fifth of the questions lack is left out.

    If a score of the rows is the base, it takes the place of the share. No map, and a regression on the
    logit, are candidates only if the score is a probability.
    """
    base = features.base
    names = [name for name in features.values if name not in (*features.optional, logit_name(base))]
    optional = [name for name in features.optional if lacking_share(features, name) <= MOST_LACKING]
    at_hand = [name for name in names if stem_of(name) == name]
    shares = [name for name in at_hand if name in (base, *SHARES)]
    plain = [at_hand, *([name] for name in features.values if name == logit_name(base))]
    never_raise = set(features.falling)

    def logistic(names: Sequence[str], tier: int = 0) -> MapCandidate:
        read = tuple(name for name in names if name in features.probabilities)
        falling = tuple(name for name in names if name in never_raise)
        rising = tuple(name for name in names if name not in falling)
        fewest = max(PLENTY, FEW * len(names))
        return MapCandidate("logistic", tuple(names), read, rising, falling, fewest, tier)

    candidates = [
        MapCandidate("none", (base,), fewest=PLENTY if base in features.probabilities else NEVER),
        *(MapCandidate("beta", (share,), fewest=FEW if share == base else PLENTY) for share in shares),
        *map(logistic, plain),
        MapCandidate("isotonic", (base,), fewest=ISOTONIC, tier=1),
    ]
    sets = [[name] for name in optional] + ([optional] if len(optional) > 1 else [])
    candidates += [logistic([*read, *chosen], tier=1) for read in plain for chosen in sets]
    if len(names) > len(at_hand):
        candidates += [logistic([*names, *chosen], tier=2) for chosen in ([], *sets[-1:])]
    return candidates


def lacking_share(features: AnswerFeatures, name: str) -> float:
    """Return the share of questions that lack a feature."""
    return float(np.isnan(features.values[name]).mean())


# ---- Scores: rows that hold a number for an answer, and no samples -----------------------------------------

#: Columns that are taken for the score, the first one that the rows hold.
USUAL = ("probability", "score")
#: Key of the probabilities of several answers: {label: probability}.
OPTIONS = "options"


def logit_name(score: str) -> str:
    """Return the name of the feature that is the logit of a score."""
    return f"logit({score})"


@dataclass(frozen=True)
class ScoreColumn:
    """A column of the rows as the confidence of an answer, scaled to [0, 1] so that larger values are better.

    A column within [0, 1] counts as a probability: its values are kept, or subtracted from 1 if `falling`.
    Any other column is scaled from its range `low` to `high` in the labeled rows.
    """

    name: str
    falling: bool | None = None  # whether larger values mean wrong answers; None until it is learned
    low: float = 0.0
    high: float = 1.0

    @classmethod
    def parse(cls, text: str) -> ScoreColumn:
        """Parse "NAME", whose direction is learned, "NAME:rising" or "NAME:falling"; UsageError otherwise.

        >>> ScoreColumn.parse("margin"), ScoreColumn.parse("distance:falling").falling
        (ScoreColumn(name='margin', falling=None, low=0.0, high=1.0), True)
        """
        name, direction = name_and_direction(text)
        if not name or name in (*SHARES, "correct"):
            raise UsageError(f"score: {shown(text)} is not a score of answers. Name a column of numbers")
        return cls(name, None if direction is None else direction == "falling")

    @property
    def opposite(self) -> str:
        """The column with the other direction, as an option names it."""
        return f"{self.name}:{'rising' if self.falling else 'falling'}"

    @property
    def is_probability(self) -> bool:
        """True if the scores of the labeled rows are within [0, 1]."""
        return (self.low, self.high) == (0.0, 1.0)

    def learn(self, raw: Floats, correct: Floats) -> ScoreColumn:
        """Return the column with the range of scores (n,) of labeled answers and a direction."""
        low, high = float(np.nanmin(raw)), float(np.nanmax(raw))
        if low >= 0 and high <= 1 + ROUNDING:
            low, high = 0.0, 1.0
        falling, known = self.falling, ~np.isnan(raw)
        if falling is None:
            has_both = len(set(correct[known].tolist())) > 1
            falling = has_both and bool(metrics.auroc(raw[known], correct[known]) < 0.5)
        return replace(self, falling=falling, low=low, high=high)

    def scale(self, raw: Floats) -> Floats:
        """Return scores (n,) in [0, 1]; those outside of the range of the labeled rows are clipped."""
        raw, low, width = raw / 2, self.low / 2, self.high / 2 - self.low / 2  # halves cannot overflow
        scaled = np.clip((raw - low) / width, 0, 1) if width > 0 else np.zeros(len(raw))
        return 1 - scaled if self.falling else scaled

    def features(self, raw: Floats) -> dict[str, Floats]:
        """Return scores (n,) in [0, 1] by name, and the logits of probabilities.

        Maps of shares squeeze them by 0.01. Likelihoods of long answers and confident classifiers differ
        below that, so their logits are kept from infinity by `INSIDE` alone.
        """
        features = {self.name: self.scale(raw)}
        if self.is_probability:
            p = np.clip(raw, INSIDE, 1 - INSIDE)
            logit = np.log(p) - np.log1p(-p)
            features[logit_name(self.name)] = -logit if self.falling else logit
        return features

    def value(self, row: Row) -> float:
        """Return the score of a row; InputError unless it is a finite number."""
        value = row.json.get(self.name)
        if not isinstance(value, bool) and (number := _finite(value)) is not None:
            return number
        got = f"got {shown(value)}" if row.has(self.name) else "it is missing"
        raise InputError(f"{self.name!r} is the score and must be a finite number, {got}. Correct the row")

    def values(self, rows: Sequence[Row]) -> Floats:
        """Return the scores of rows (n,); an InputError names the row."""
        scores = np.empty(len(rows))
        for place, row in enumerate(rows):
            try:
                scores[place] = self.value(row)
            except InputError as error:
                raise InputError(f"question {row.id!r}: {error}") from None
        return scores


def find_score(rows: Sequence[Row], score: str | None) -> ScoreColumn | None:
    """Return the column of the score: the named one, or of rows without samples `probability` or `score`.

    None if the rows hold samples, and no score is named; or if they hold neither.
    """
    if score is not None:
        return ScoreColumn.parse(score)
    if any(row.has("samples") or row.has("clusters") for row in rows):
        return None
    named = any(OPTIONS in row.json for row in rows)
    name = next((name for name in USUAL if named or any(row.has(name) for row in rows)), None)
    return None if name is None else ScoreColumn(name)


def scored_row(row: Row) -> Row:
    """Return the row with `answer` and `probability` from its `options`, if it has some.

    The answer is the most probable option, unless the row holds another one. InputError for other options.

    >>> scored_row(Row({"id": "1", "options": {"spam": 0.2, "ham": 0.8}})).json["answer"]
    'ham'
    """
    if OPTIONS not in row.json:
        return row
    options: Any = row.json[OPTIONS]
    options = parse_cell(options) if isinstance(options, str) else options
    shares = options.values() if isinstance(options, Mapping) else ()
    if not shares or not all(
        isinstance(p, int | float) and not isinstance(p, bool) and -ROUNDING <= p <= 1 + ROUNDING
        for p in shares
    ):
        raise InputError(
            f"{OPTIONS!r} must map labels to probabilities from 0 to 1, got {shown(row[OPTIONS])}"
        )
    answer = row.json.get("answer", max(options, key=options.__getitem__))
    if answer not in options:
        raise InputError(f"'answer' is {shown(answer)}, which is not one of the options. Leave it out")
    return row.set(answer=answer, probability=options[answer])


def check_scored(row: Row, score: ScoreColumn, *, labelled: bool = True) -> None:
    """Raise InputError unless a row holds the score and, if `labelled`, a label of its answer."""
    row = scored_row(row)
    _ = row.id, score.value(row)
    if not labelled:
        if row.has("calibration") and score.name in USUAL:
            raise InputError(
                f"'calibration' is set, so that {score.name!r} is a calibrated value already. Use the rows "
                "before `semcal measure`"
            )
        return
    _ = row.group, row.context
    if row.verdict is not None:
        return
    if not row.is_labelled or not isinstance(row.json.get("answer"), str):
        raise InputError(
            "'correct' is missing: it says whether the answer is right, true or false. Add it, or reference "
            "'answers' beside 'answer' or 'options'"
        )
    _ = row.answers


def score_features(
    rows: Sequence[Row], raw: Floats, score: ScoreColumn, columns: Sequence[ColumnFeature] = ()
) -> AnswerFeatures:
    """Return the scores (n,) of rows, scaled, with further columns; the text of a score alone is ""."""
    if any(column.name == score.name for column in columns):
        raise UsageError(f"feature: {shown(score.name)} is the score already. Leave the feature out")
    values = score.features(raw)
    for column in columns:
        values[column.name] = np.array([column.value(row) for row in rows], float)
    return AnswerFeatures(
        answers=tuple(str(row.json.get("answer", "")) for row in rows),
        meanings=(None,) * len(rows),
        values=values,
        probabilities=(score.name,) if score.is_probability else (),
        further=tuple(column.feature for column in columns),
        base=score.name,
    )
