"""Answers to many questions, with tables, metrics and plots of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, overload

from semcal import metrics
from semcal.engine.equivalence import address_of
from semcal.errors import InputError, MissingExtraError, UndefinedWarning, UsageError
from semcal.pipeline.answer import Answer
from semcal.pipeline.assess import CALIBRATED, Scores, assess, scores_by_measure
from semcal.pipeline.grade import grade_row
from semcal.registry import check_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from semcal.engine.equivalence import Equivalence
    from semcal.pipeline.calibrated import Calibration
    from semcal.pipeline.sample_features import RowsAt
    from semcal.qa.grading import Grader

__all__ = ["Results"]

#: Rows of answers that a notebook shows.
SHOWN = 10
#: Metrics that a notebook shows.
FIGURES = {"n": "n", "accuracy": "accuracy", "mean_confidence": "confidence", "ace": "ACE"} | {
    "ace_floor": "by chance",
    "brier": "Brier",
    "auroc": "AUROC",
    "gain": "gain",
}
PLOTS = ("reliability", "selective")


class Results(Sequence[Answer]):
    """The answers to many questions, each a `semcal.Answer`; graded where reference answers are known.

    `semcal.score`, `semcal.ask_many` and `SemanticUQ.ask_many` return it; a notebook shows the first answers
    and their metrics.

    Attributes
    ----------
    rows : list of dict
        What the command line would write: samples, clusters, the measures and, where they are known, the
        calibrated `answer` and its `probability`, and what is `correct`.

    Examples
    --------
    >>> import semcal
    >>> found = semcal.score([
    ...     {"question": "Who wrote it?", "samples": ["Ana", "Ana", "Bo"], "answers": ["Ana"]},
    ...     {"question": "Who sang it?", "samples": ["Cy", "Di", "Cy"], "answers": ["Di"]},
    ... ])
    >>> found
    Results(2 answers, 2 graded; E-SC: accuracy 0.500, confidence 0.667, gain 0.222)
    >>> found[0], found.rows[0]["correct"]
    (Answer('Ana', confidence=0.667), {'E-SC': True})
    >>> found.metrics()["E-SC"]["brier"]
    0.278
    """

    def __init__(
        self,
        answers: Sequence[Answer],
        rows: RowsAt,
        *,
        grader: Grader,
        equivalence: Equivalence,
        linkage: str,
        seed: int,
        stored: bool = False,
    ) -> None:
        self._answers, self._rows_at, self._stored = list(answers), rows, stored
        self._grader, self._equivalence, self._linkage, self._seed = grader, equivalence, linkage, seed

    def __len__(self) -> int:
        return len(self._answers)

    @overload
    def __getitem__(self, place: int) -> Answer: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Answer]: ...
    def __getitem__(self, place: int | slice) -> Answer | Sequence[Answer]:
        return self._answers[place]

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """A row of each answer, graded where its reference answers are known."""
        return [self._row(answer) for answer in self]

    def _row(self, answer: Answer) -> dict[str, Any]:
        row = dict(answer.row)
        if answer.measure == CALIBRATED:
            row |= {"answer": answer.text, "probability": answer.confidence}
            row |= {"threshold": answer.threshold, "abstained": answer.abstained}
        return grade_row(row, grader=self._grader, seed=self._seed) if row.get("answers") else row

    def records(self) -> list[dict[str, Any]]:
        """Return a short dict of each answer, the rows of `to_df`."""
        found = []
        for answer, row in zip(self, self.rows):
            one: dict[str, Any] = {"id": answer.id, "question": answer.question, "answer": answer.text}
            one |= {"confidence": answer.confidence, "correct": _correct(row, answer.measure)}
            one |= {
                "abstained": answer.abstained,
                "entropy": answer.entropy,
                "meanings": len(answer.meanings),
            }
            found.append(one | {name: best.confidence for name, best in answer.by_measure.items()})
        return _without_empty(found, ("correct", "abstained"))

    def to_df(self) -> DataFrame:
        """Return a data frame, a row a question.

        Columns: id, question, answer, confidence (in that answer), correct (where any is graded), abstained
        (where there is a threshold), entropy (nats), the number of meanings, and for each measure the
        confidence in its own answer.

        Raises
        ------
        MissingExtraError
            Without pandas.
        """
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise MissingExtraError("pandas") from error
        return DataFrame(self.records())

    def metrics(
        self,
        measure: str | Iterable[str] | None = None,
        *,
        bins: int = 15,
        ci: bool = False,
        risk: float | None = None,
        delta: float = 0.05,
        seed: int = 0,
    ) -> dict[str, dict[str, Any]]:
        """Return the metrics of each measure, "Calibrated" among them with a calibration.

        Parameters
        ----------
        measure : str or list of str, optional
            Only these.
        bins : int
            Of ECE and ACE.
        ci : bool
            Add standard errors (`se`) and 95 % intervals (`interval`) over questions.
        risk, delta : float
            Add the threshold from which at most this share of the answers is wrong, with probability
            1 - `delta` (`risk`).

        Raises
        ------
        InputError
            If no row has reference answers.
        """
        return assess(self._scores(measure), bins=bins, ci=ci, seed=seed, risk=risk, delta=delta)

    def _scores(self, measure: str | Iterable[str] | None = None) -> dict[str, Scores]:
        graded = [row for row in self.rows if "correct" in row]
        if not graded:
            keys = ", ".join(self.rows[0]) if self.rows else "none"
            raise InputError(
                f"no row has reference answers, so none is graded; add a column 'answers' (there are: {keys})"
            )
        chosen = None if measure is None else [measure] if isinstance(measure, str) else list(measure)
        return {str(name): one for name, one in scores_by_measure(graded, chosen).items()}

    def plot(
        self, measure: str | None = None, *, kind: str | None = None, ax: Axes | None = None
    ) -> list[Axes]:
        """Draw the reliability diagram and selective accuracy of a measure, side by side, or one of them.

        Parameters
        ----------
        measure : str, optional
            By default that of the answers' confidence.
        kind : {"reliability", "selective"}, optional
            Only this one; "reliability" where an `ax` is given.
        ax : matplotlib.axes.Axes, optional
            Where it is drawn.

        Returns
        -------
        list of matplotlib.axes.Axes
        """
        name = measure or self._main
        (scores,) = self._scores(name).values()
        pair = scores.confidence, scores.correct
        kinds = PLOTS if kind is None and ax is None else (check_name(kind or PLOTS[0], PLOTS, what="plot"),)
        axes: list[Any] = [ax]
        if ax is None:
            from matplotlib import pyplot

            axes = list(pyplot.subplots(1, len(kinds), squeeze=False, figsize=(5 * len(kinds), 4.2))[1][0])
        for one, where in zip(kinds, axes):
            if one == "reliability":
                metrics.reliability_diagram(*pair).plot(ax=where)
            else:
                metrics.selective_accuracy(*pair, rejection=[k / 100 for k in range(100)]).plot(ax=where)
            where.set_title(f"{name}, {len(scores.correct)} questions")
        return axes

    def calibrate(self, *, risk: float | None = None, delta: float = 0.05, seed: int = 0) -> Calibration:
        """Learn the probability that an answer is right from the graded rows of stored samples.

        Parameters and errors are those of `semcal.calibrate`; also UsageError if a model was asked, which a
        calibration has to know: `semcal.calibrate(model, labelled)`.
        """
        from semcal.pipeline.calibrate_rows import calibrate_rows

        if not self._stored:
            raise UsageError(
                "these answers were sampled from a model, which a calibration has to know; use "
                "semcal.calibrate(model, labelled)"
            )
        kept = [i for i, row in enumerate(self.rows) if "correct" in row]
        return calibrate_rows(
            {t: [rows[i] for i in kept] for t, rows in self._rows_at.items()},
            equivalence=address_of(self._equivalence),
            linkage=self._linkage,
            grader=self._grader,
            risk=risk,
            delta=delta,
            seed=seed,
        )

    @property
    def _main(self) -> str:
        """The measure of the answers' confidence."""
        return self[0].measure if self else "E-SC"

    def __repr__(self) -> str:
        graded = sum("correct" in row for row in self.rows)
        if not graded:
            return f"Results({len(self)} answers, none graded)"
        (one,) = self._scores(self._main).values()
        figures = f"; {self._main}: undefined"
        if one.confidence:
            p, c = one.confidence, one.correct
            figures = (
                f"; {self._main}: accuracy {sum(c) / len(c):.3f}, confidence {sum(p) / len(p):.3f}, "
                f"gain {metrics.gain(p, c):.3f}"
            )
        return f"Results({len(self)} answers, {graded} graded{figures})"

    def _repr_html_(self) -> str:
        parts = [f"<p>{escape(repr(self))}</p>", _html_table(self.records()[:SHOWN], len(self) - SHOWN)]
        if any("correct" in row for row in self.rows):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UndefinedWarning)
                found = self.metrics()
            parts.append(
                _html_table(
                    [
                        {"measure": name} | {shown: one.get(key) for key, shown in FIGURES.items()}
                        for name, one in found.items()
                    ]
                )
            )
        return "\n".join(parts)


def _correct(row: dict[str, Any], measure: str) -> bool | None:
    found = row.get("answer_correct") if measure == CALIBRATED else row.get("correct", {}).get(measure)
    return None if found is None else bool(found)


def _without_empty(records: list[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """The records without those of the named keys that are None in all."""
    empty = [name for name in names if all(one[name] is None for one in records)]
    return [{key: value for key, value in one.items() if key not in empty} for one in records]


def _html_table(records: Sequence[dict[str, Any]], more: int = 0) -> str:
    """A table of HTML, everything in it escaped."""
    heads = dict.fromkeys(key for one in records for key in one)
    rows = ["".join(f"<th>{escape(head)}</th>" for head in heads)]
    rows += ["".join(f"<td>{escape(_shown(one.get(head)))}</td>" for head in heads) for one in records]
    rest = f"<p>… and {more} more</p>" if more > 0 else ""
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>{rest}"


def _shown(value: Any) -> str:
    if value is None or value != value:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
