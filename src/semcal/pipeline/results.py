"""Answers to many questions, with tables, metrics and plots of them; `semcal.score` of stored samples."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from semcal import metrics
from semcal.engine.equivalence import Equivalence
from semcal.errors import InputError, MissingExtraError, QuestionError, UndefinedWarning, UsageError, shown
from semcal.pipeline.answer import Answer, answer_of
from semcal.pipeline.assess import CALIBRATED, Scores, assess, scores_by_measure
from semcal.pipeline.cluster import cluster_new
from semcal.pipeline.grade import as_grader, grade_row, grade_together
from semcal.pipeline.inputs import (
    as_equivalence,
    as_sample_rows,
    check_stored_draws,
    checked_learning,
    checked_seed,
    warn_of_clusters,
    warn_of_rows_left_out,
)
from semcal.pipeline.measure import RowsAt, measure_at, rows_by_temperature
from semcal.pipeline.progress import ShowProgress, shown_progress
from semcal.registry import check_name
from semcal.semantics import MEASURES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from semcal.engine.equivalence import Equivalence
    from semcal.pipeline.calibrated import Calibration
    from semcal.pipeline.measure import RowsAt
    from semcal.qa.grading import Grader

#: Rows of answers that a notebook shows.
SHOWN = 10
#: Metrics that a notebook shows.
FIGURES = {"n": "n", "accuracy": "accuracy", "mean_confidence": "confidence", "ace": "ACE"}
FIGURES |= {"ace_floor": "by chance", "brier": "Brier", "auroc": "AUROC", "gain": "gain"}
PLOTS = ("reliability", "selective")


class Plots(list[Any]):
    """The axes of one figure, each an `Axes` of matplotlib."""

    def savefig(self, file: Any, **options: Any) -> None:
        """Save the figure, as `Figure.savefig` of matplotlib does."""
        self[0].figure.savefig(file, **options)


class Results(Sequence[Answer]):
    """The answers to many questions, each a `semcal.Answer`; graded where reference answers are known.

    `semcal.score`, `semcal.ask_many` and `SemanticUQ.ask_many` return it; a notebook shows the first answers
    and their metrics.

    Attributes
    ----------
    rows : list of dict
        What the command line would write: samples, clusters, the measures and, where they are known, the
        calibrated `answer` and its `probability`, and what is `correct`.
    equivalence : str
        What decided which answers mean the same: "exact", "default" or another model's name, or "stored
        clusters".
    failures : dict of str to QuestionError
        Why a server gave no answers, by the id of a question; such questions have no answer here.

    Examples
    --------
    >>> import semcal
    >>> found = semcal.score([
    ...     {"question": "Who wrote it?", "samples": ["Ana", "Ana", "Bo"], "answers": ["Ana"]},
    ...     {"question": "Who sang it?", "samples": ["Cy", "Di", "Cy"], "answers": ["Di"]},
    ... ])
    >>> found
    Results(2 answers, 2 graded; E-SC: accuracy 0.500, confidence 0.667, gain 0.222; meanings by 'default')
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
        failures: Mapping[str, QuestionError] | None = None,
        clustered_by: str | None = None,
    ) -> None:
        self.equivalence = clustered_by or equivalence.name
        self.failures = dict(failures or {})
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
        return grade_together(self._grader, lambda grader: [self._row(answer, grader) for answer in self])

    def _row(self, answer: Answer, grader: Grader) -> dict[str, Any]:
        row = dict(answer.row)
        if answer.bounds is not None:
            row["prediction"] = answer.text
        if answer.measure == CALIBRATED:
            row |= {"answer": answer.text, "probability": answer.confidence}
            row |= {"score": answer.score, "threshold": answer.threshold, "abstained": answer.abstained}
        return grade_row(row, grader=grader, seed=self._seed) if row.get("answers") else row

    def records(self) -> list[dict[str, Any]]:
        """Return a short dict of each answer: the rows of `to_df`."""
        graded = self._graded() != []
        limited = any(answer.abstained is not None for answer in self)
        return [
            {
                "id": one.id,
                "question": one.question,
                "answer": one.text,
                "confidence": one.confidence,
                **({"correct": _correct(row, one.measure)} if graded else {}),
                **({"abstained": one.abstained} if limited else {}),
                "entropy": one.entropy,
                "meanings": len(one.meanings),
                **{name: best.confidence for name, best in one.by_measure.items()},
            }
            for one, row in zip(self, self.rows)
        ]

    def to_df(self) -> DataFrame:
        """Return a pandas data frame, a row a question; MissingExtraError without pandas.

        Columns: id, question, answer, confidence (in that answer), correct (if any is graded), abstained (if
        there is a threshold), entropy (nats), the number of meanings, and each measure's confidence in its
        own answer.
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
        """Return the metrics of each measure, "Calibrated" among them, as `semcal metrics` prints them.

        `measure` chooses one or several; `ci` adds standard errors (`se`) and 95 % intervals (`interval`);
        `risk` the threshold from which at most this share of the answers is wrong, with probability
        1 - `delta`. InputError if no row has reference answers.
        """
        return assess(self._scores(measure), bins=bins, ci=ci, seed=seed, risk=risk, delta=delta)

    def _graded(self) -> list[int]:
        """The places of the graded rows."""
        rows = enumerate(zip(self, self.rows))
        return [place for place, (one, row) in rows if row.get("answers") and not one.bounds]

    def _scores(self, measure: str | Iterable[str] | None = None) -> dict[str, Scores]:
        graded = [self.rows[place] for place in self._graded()]
        if not graded and any(answer.bounds for answer in self):
            raise InputError("answers that were decided early have no exact confidence; ask without decide")
        if not graded:
            raise InputError(
                "no row has reference answers, so none is graded; add a column 'answers' (there are: "
                f"{', '.join(self.rows[0])})"
            )
        alone = isinstance(measure, str) or not isinstance(measure, Iterable)
        chosen: Any = None if measure is None else [measure] if alone else measure
        return {str(name): one for name, one in scores_by_measure(graded, chosen).items()}

    def plot(self, measure: str | None = None, *, kind: str | None = None, ax: Axes | None = None) -> Plots:
        """Draw reliability and selective accuracy side by side with matplotlib, and return the axes.

        `results.plot().savefig("plots.png")` saves the figure.
        Of the answers' own confidence, with their threshold if they have one, or of a `measure`. With `kind`
        ("reliability" or "selective") only one of the two, on `ax` if that is given (then reliability by
        default).
        """
        name = measure or self[0].measure
        (scores,) = self._scores(name).values()
        kinds = PLOTS if kind is None and ax is None else (check_name(kind or PLOTS[0], PLOTS, what="plot"),)
        axes: list[Any] = [ax]
        if ax is not None and not hasattr(ax, "plot"):
            raise UsageError(f"ax is {shown(ax)}; give an Axes of matplotlib, or leave it out")
        if ax is None:
            from matplotlib import pyplot

            size = (4.6 * len(kinds), 4.2)
            axes = list(
                pyplot.subplots(1, len(kinds), squeeze=False, figsize=size, layout="constrained")[1][0]
            )
        for one, where in zip(kinds, axes):
            if one == "reliability":
                metrics.reliability_diagram(scores.confidence, scores.correct).plot(ax=where)
            else:
                points = np.linspace(0, max(scores.confidence), 201)
                curve = metrics.selective_accuracy(scores.confidence, scores.correct, threshold=points)
                curve.plot(ax=where, threshold=self[0].threshold if name == self[0].measure else None)
            where.set_title(f"{name}, {len(scores.correct)} questions")
        return Plots(axes)

    def calibrate(self, *, risk: float | None = None, delta: float = 0.05, seed: int = 0) -> Calibration:
        """Learn the probability that an answer is right from the graded rows of stored samples.

        Parameters and errors are those of `semcal.calibrate`; UsageError where a model was asked, which a
        calibration has to know.
        """
        from semcal.pipeline.calibrate_rows import calibrate_rows

        learning = checked_learning(risk=risk, delta=delta, seed=seed)
        if not self._stored:
            raise UsageError(
                "these answers were sampled from a model, which a calibration has to know; use "
                "semcal.calibrate(model, labelled)"
            )
        places = self._graded()
        warn_of_rows_left_out(len(self) - len(places), of=len(self))
        graded = {t: [rows[place] for place in places] for t, rows in self._rows_at.items()}
        check_stored_draws(graded)
        return calibrate_rows(
            graded,
            equivalence=self._equivalence,
            linkage=self._linkage,
            grader=self._grader,
            **learning,
        )

    def __repr__(self) -> str:
        graded, by = len(self._graded()), f"meanings by {shown(self.equivalence)}"
        if not graded:
            return f"Results({len(self)} answers, none graded; {by})"
        name = self[0].measure
        (one,) = self._scores(name).values()
        figures = "undefined"
        if one.confidence:
            figures = ", ".join(
                f"{key} {value:.3f}"
                for key, value in (
                    ("accuracy", np.mean(one.correct)),
                    ("confidence", np.mean(one.confidence)),
                    ("gain", metrics.gain(one.confidence, one.correct)),
                )
            )
        return f"Results({len(self)} answers, {graded} graded; {name}: {figures}; {by})"

    def _repr_html_(self) -> str:
        shown = f"<p>{escape(repr(self))}</p>{_html_table(self.records()[:SHOWN], len(self) - SHOWN)}"
        if not self._graded():
            return shown
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UndefinedWarning)
            found = self.metrics()
        return shown + _html_table(
            [
                {"measure": name, **{head: one.get(key) for key, head in FIGURES.items()}}
                for name, one in found.items()
            ]
        )


def _correct(row: dict[str, Any], measure: str) -> bool | None:
    if not row.get("answers"):
        return None
    found = row["answer_correct"] if measure == CALIBRATED else row["correct"][measure]
    return None if found is None else bool(found)


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


def score(
    samples: Any,
    equivalence: Equivalence | str | Path | None = None,
    *,
    calibration: Calibration | str | Path | None = None,
    grader: Grader | str | None = None,
    measure: str | None = None,
    t_alpha: float = 0.5,
    g_alpha: float = 0.5,
    linkage: str | None = None,
    seed: int = 0,
    progress: ShowProgress = True,
) -> Results:
    """Cluster and measure sampled answers, and grade them where reference answers are known; no model needed.

    Parameters
    ----------
    samples : file, DataFrame or dicts
        A row a question: `question`, `samples` (a list of texts or its JSON) and, where there are some,
        `log_likelihoods` (length-normalised, nats), `answers` (references), `id`, `context`, `group`, and
        `temperatures`, one a sample, if they differ. `clusters` in them are used as they are, unless
        `equivalence` or `linkage` is given: then all are clustered anew.
    equivalence : Equivalence, str or Path, optional
        As in `semcal.calibrate`; by default the embedded model, or the calibration's.
    calibration, measure, t_alpha, g_alpha, linkage : optional
        As in `semcal.SemanticUQ`.
    grader : Grader or {"rules", "nli"}, optional
        As in `semcal.calibrate`; `seed` chooses the members of a cluster that are graded.
    progress : bool or callable
        A bar on a terminal or in a notebook, or a function of the number of questions that are clustered.

    Raises
    ------
    InputError
        If a row cannot be used, with its place and what to do.
    UsageError
        For a wrong argument, or is set by the calibration.

    Examples
    --------
    >>> found = score([{"question": "Who wrote it?", "samples": ["Ana Velis", "Ana Velis.", "Bo Tarn"]}])
    >>> found[0]
    Answer('Ana Velis', confidence=0.667)
    """
    seed, given = checked_seed(seed), as_sample_rows(samples)
    chosen = check_name(measure or "E-SC", MEASURES, what="measure")
    if equivalence is not None or linkage is not None:
        given = [{key: value for key, value in row.items() if key != "clusters"} for row in given]
    if calibration is not None:
        from semcal.pipeline import apply_calibration as applying

        calibration = applying.as_calibration(calibration)
        applying.check_beside(calibration, {"linkage": linkage, "measure": measure})
        equivalence, linkage = applying.equivalence_of(calibration, equivalence), calibration.linkage
    judge, linkage = as_equivalence(equivalence), linkage or "components"
    if calibration is not None:
        applying.check_equivalence(calibration, judge)
        warn_of_clusters(given, calibration.equivalence)
    marks = as_grader(grader, judge)
    with shown_progress(progress, "score", len(given)) as update:
        clustered = cluster_new(given, equivalence=judge, linkage=linkage, progress=update)
    drawn: RowsAt = rows_by_temperature(clustered)
    if calibration is not None:
        drawn = applying.drawn_for(calibration, clustered)
    rows = measure_at(drawn, t_alpha=t_alpha, g_alpha=g_alpha)
    own = next(iter(rows.values()))
    if calibration is None:
        lacking = [row["id"] for row in own if chosen not in row["confidences"]]
        if lacking:
            raise InputError(
                f"question {lacking[0]!r} has no log-likelihoods, which {chosen} needs; use E-SC"
            )
        answers = [answer_of(row, chosen, None, None) for row in own]
    else:
        limit = None if calibration.threshold is None else calibration.threshold.threshold
        answers = [answer_of(row, chosen, one, limit) for row, one in zip(own, calibration.apply(rows))]
    how: dict[str, Any] = {"equivalence": judge, "linkage": linkage, "seed": seed}
    made = sum("clusters" in row for row in given)
    by = "stored clusters" if made == len(given) else f"{judge.name}, and stored clusters of {made} rows"
    return Results(answers, rows, grader=marks, stored=True, clustered_by=by if made else None, **how)
