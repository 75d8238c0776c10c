"""Calibrations of a score: rows that hold a number for an answer, and no samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from semcal import metrics
from semcal.arrays import Floats
from semcal.calibration.features import (
    SHARES,
    AnswerFeatures,
    ColumnFeature,
    name_and_direction,
)
from semcal.errors import InputError, UsageError, shown
from semcal.rows import Row

#: Columns that are taken for the score, the first one that the rows hold.
USUAL = ("probability", "score")
#: Key of the probabilities of several answers: {label: probability}.
OPTIONS = "options"


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
        if not name or name in SHARES:
            raise UsageError(f"score: {shown(text)} is not a column of the rows. Name a column of numbers")
        return cls(name, None if direction is None else direction == "falling")

    @property
    def is_probability(self) -> bool:
        """True if the scores of the labeled rows are within [0, 1]."""
        return (self.low, self.high) == (0.0, 1.0)

    def learn(self, raw: Floats, correct: Floats) -> ScoreColumn:
        """Return the column with the range of scores (n,) of labeled answers and a direction."""
        low, high = float(np.nanmin(raw)), float(np.nanmax(raw))
        if low >= 0 and high <= 1:
            low, high = 0.0, 1.0
        falling, known = self.falling, ~np.isnan(raw)
        if falling is None:
            has_both = len(set(correct[known].tolist())) > 1
            falling = has_both and bool(metrics.auroc(raw[known], correct[known]) < 0.5)
        return replace(self, falling=falling, low=low, high=high)

    def scale(self, raw: Floats) -> Floats:
        """Return scores (n,) in [0, 1]; those outside of the range of the labeled rows are clipped."""
        width = self.high - self.low
        scaled = np.clip((raw - self.low) / width, 0, 1) if width > 0 else np.zeros(len(raw))
        return 1 - scaled if self.falling else scaled

    def value(self, row: Row) -> float:
        """Return the score of a row; InputError unless it is a finite number."""
        value = row.json.get(self.name)
        if isinstance(value, str):  # a cell of a table
            with suppress(ValueError):
                value = float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
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


def find_score(rows: Sequence[Row], score: str | None = None) -> ScoreColumn | None:
    """Return the column of the score: the named one, or of rows without samples `probability` or `score`.

    None if the rows hold samples, and no score is named; or if they hold neither.
    """
    if score is not None:
        return ScoreColumn.parse(score)
    if any(row.has("samples") or row.has("clusters") for row in rows):
        return None
    name = next((name for name in USUAL if any(row.has(name) for row in rows)), None)
    if any(OPTIONS in row.json for row in rows):
        name = USUAL[0]
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
    is_valid = isinstance(options, Mapping) and len(options) > 0
    for p in options.values() if is_valid else ():
        is_valid = isinstance(p, int | float) and not isinstance(p, bool) and 0 <= p <= 1
        if not is_valid:
            break
    if not is_valid:
        raise InputError(f"{OPTIONS!r} must map labels to probabilities from 0 to 1, got {shown(options)}")
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
    values = {score.name: score.scale(raw)}
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


def has_options(rows: Sequence[Row]) -> bool:
    """Return whether rows hold options, whose labels are graded by equality."""
    return any(OPTIONS in row.json for row in rows)
