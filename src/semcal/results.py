"""Answers to many questions with their tables, metrics and plots; `semcal.score` of stored samples."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack, overload

import numpy as np

from semcal import inputs, metrics
from semcal.arrays import check_seed
from semcal.errors import (
    InputError,
    MissingExtraError,
    QuestionError,
    SemcalWarning,
    UsageError,
    naming_extra,
    shown,
)
from semcal.files import JsonObject, dumps
from semcal.grading.grade import as_grader, grade_row, grade_together
from semcal.inputs import CalibrationKeywords, EquivalenceLike, Samples, check_options, configured, options_of
from semcal.measures import MEASURES
from semcal.measures.formulas import TIE
from semcal.measuring import Figures, MeasureOptions, Scores, assess, measure_at, scores_by_measure, wordings
from semcal.models.clustering import ClusterConfig, cluster_missing, match_at
from semcal.models.equivalence import DEFAULT
from semcal.progress import ShowProgress, shown_progress
from semcal.registry import check_name
from semcal.rows import (
    CALIBRATED,
    NO_ANSWER,
    SIGNALS_KEY,
    STATED,
    AnswerKind,
    Decision,
    Row,
    RowsAt,
    as_answer_kind,
    rows_by_temperature,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from semcal.calibration.calibration import CalibratedAnswer, Calibration
    from semcal.calibration.fields import FieldCalibration
    from semcal.calibration.report import LikeAnswers
    from semcal.fields.schema import Schema
    from semcal.grading.rules import Grader
    from semcal.models.protocols import AnyRecalibrator

#: Maximum number of meanings in an explanation, and maximum length of their texts.
NAMED, LONGEST = 3, 60
PLOTS = ("reliability", "selective")


@dataclass(frozen=True, repr=False)
class Meaning:
    """One meaning among the sampled answers."""

    text: str | None  # the most frequent wording; None means "no answer"
    share: float | None  # by the measure of the answer (with a calibration E-SC)
    probability: float | None  # that it is correct; None without a calibration, or if unknown
    samples: tuple[str | None, ...]  # all sampled wordings, with repetitions

    def __repr__(self) -> str:
        p = "" if self.probability is None else f", probability={_rounded(self.probability)}"
        return f"Meaning({self.text!r}, share={_rounded(self.share)}{p}, samples={len(self.samples)})"


class MeasureAnswer(NamedTuple):
    """The preferred answer of one measure and its share; both None if the measure is undefined."""

    answer: str | None
    confidence: float | None


@dataclass(frozen=True, repr=False)
class Answer:
    """The answer to one question, with its confidence.

    Attributes
    ----------
    id, question : str
        The id and the text of the question.
    text : str or None
        The most frequent wording of the answer. None if most generations have no answer: then `confidence` is
        None, `abstained` is True and `reason` is "no answer".
    confidence : float or None
        With a calibration, the probability that the answer is correct; otherwise its share by `measure`. None
        if the measure is undefined.
    measure : str
        The measure of `confidence`, or "Calibrated".
    abstained : bool or None
        True if `confidence` is below `threshold` or undefined; None without a threshold. If all labels tested
        the threshold, the share of samples decides instead. Also True if the calibration should have a
        threshold, but found none that holds.
    threshold : float or None
        The threshold; if there are several, the threshold for the largest risk.
    entropy : float or None
        Semantic entropy (nats) of the measure that chose the answer (with a calibration, E-SC).
    meanings : tuple of Meaning
        The meaning of the answer, then the other meanings by share.
    by_measure : mapping of str to MeasureAnswer
        The answer of each measure, and its confidence.
    row : Row
        The row as `semcal sample | cluster | measure` would have written it (`row.to_json()`).
    tied : int, optional
        Number of meanings that share the first place, if more than one.
    score : float, optional
        With a calibration, the answer's share of samples, which orders answers of equal probability.
    decision : {"answer", "review", "abstain"}, optional
        Only for calibrations with several thresholds: "answer" at or above the strictest, "abstain" below the
        loosest, otherwise "review". `thresholds` holds them, the strictest first.
    risk : float or None
        The largest expected share of wrong answers among answers that do not abstain, for a single threshold.
    like : LikeAnswers, optional
        The labeled questions of the calibration with a similar probability.
    map : str, optional
        The map that computed the probability, such as "logistic(…)"; "none(E-SC)" is the share itself.
    answer_kind : {"modal", "greedy", "given"}
        The most frequent meaning of the samples, the model's answer at T = 0, or another program's answer. In
        the last two cases the first of the `meanings` may have no sample.
    calibration : str, optional
        The id of the calibration that computed the probability (`Calibration.id`).
    features : mapping of str to float
        The features of the calibration, None if unknown; empty if there is no answer.

    Examples
    --------
    >>> import semcal
    >>> (answer,) = semcal.score([{"question": "Who wrote it?", "samples": ["Ana", "Bo", "Ana"]}])
    >>> answer, answer.meanings[1]
    (Answer('Ana', confidence=0.667), Meaning('Bo', share=0.333, samples=1))
    """

    id: str
    question: str
    text: str | None
    confidence: float | None
    measure: str
    abstained: bool | None
    threshold: float | None
    entropy: float | None
    meanings: tuple[Meaning, ...]
    by_measure: Mapping[str, MeasureAnswer]
    row: Row
    tied: int | None = None
    score: float | None = None
    map: str | None = None
    decision: str | None = None
    thresholds: Sequence[Mapping[str, Any]] | None = None
    risk: float | None = None
    like: LikeAnswers | None = None
    answer_kind: AnswerKind = "modal"
    calibration: str | None = None
    features: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def reason(self) -> str | None:
        """The reason for a missing answer, None if there is an answer."""
        return NO_ANSWER if self.text is None else None

    @property
    def explanation(self) -> str:
        """The samples behind the confidence, in one sentence.

        >>> import semcal
        >>> samples = ["Paris", "Paris", "Lyon", "Paris", "Nice", "Lille", "Paris"]
        >>> print(semcal.score([{"question": "Where?", "samples": samples}])[0].explanation)
        4 of 7 samples say Paris, 1 says Lyon, 1 says Nice, 1 says something else
        """
        return explain(self)

    def __repr__(self) -> str:
        abstained = "" if self.abstained is None else f", abstained={self.abstained}"
        return f"Answer({self.text!r}, confidence={_rounded(self.confidence)}{abstained})"

    def record(self, recalibrator: AnyRecalibrator) -> JsonObject:
        """Return the answer as `semcal ask` writes it."""
        from semcal.models.distribution import temperature_of
        from semcal.recalibration.recalibrators import solver_of

        row, own = self.row.json, (*STATED.get(self.answer_kind, ())[1:], SIGNALS_KEY)
        return {
            "id": self.id,
            **({"question": self.question} if self.question or not self.row.messages else {}),
            "method": recalibrator.method,
            "temperature": temperature_of(recalibrator),
            "solver": solver_of(recalibrator),
            "answer": self.text,
            "confidence": self.confidence,
            **({} if self.tied is None else {"tied": self.tied}),
            **({} if self.score is None else {"score": self.score, "map": self.map}),
            "measure": self.measure,
            "abstained": self.abstained,
            **({} if self.reason is None else {"reason": self.reason}),
            "threshold": self.threshold,
            **({} if self.risk is None else {"risk": self.risk}),
            **({} if self.decision is None else {"decision": self.decision, "thresholds": self.thresholds}),
            "answer_kind": self.answer_kind,
            **({} if self.calibration is None else {"calibration": self.calibration}),
            "explanation": self.explanation,
            "entropy": self.entropy,
            "meanings": [vars(meaning) for meaning in self.meanings],
            "by_measure": {name: best._asdict() for name, best in self.by_measure.items()},
            **{key: row[key] for key in ("samples", "log_likelihoods", "clusters")},
            **{key: row[key] for key in own if key in row},
        }


def explain(answer: Answer) -> str:
    """Return the counts of samples by meaning, and the accuracy of similar labeled answers, as a sentence."""
    if not answer.meanings and (fields := answer.row.json.get("fields")) is not None:
        review = answer.row.json.get("review")
        some = f", review {', '.join(review)}" if review else ""
        return f"{len(fields)} fields{some}"
    if not answer.meanings:
        return f"the score is {_rounded(answer.score)}{_similar(answer.like)}"
    first, *others = answer.meanings
    m = sum(len(meaning.samples) for meaning in answer.meanings)
    forms = dict(zip(answer.row.samples, answer.row.json.get("normal_forms") or ()))
    found = [meaning for meaning in others if meaning.text is not None]
    parts = [_counted(first, forms, f" of {m} samples" if m > 1 else " sample")]
    parts += [_counted(meaning, forms) for meaning in found[: NAMED - 1]]
    if rest := found[NAMED - 1 :]:
        n = sum(len(meaning.samples) for meaning in rest)
        parts.append(f"{n} {_say(n)} {'something else' if len(rest) == 1 else f'{len(rest)} other things'}")
    parts += [_counted(meaning, forms) for meaning in others if meaning.text is None]
    text = ", ".join(parts)
    if answer.tied is not None:
        text += ": the samples do not agree on any answer"
    return text + _similar(answer.like)


def _similar(like: LikeAnswers | None) -> str:
    if like is None:
        return ""
    were = "was" if like.right == 1 else "were"
    return f"; of {like.n} labeled questions with a similar probability, {like.right} {were} right"


def _say(count: int) -> str:
    return "says" if count == 1 else "say"


def _counted(meaning: Meaning, forms: Mapping[str | None, str], of: str = "") -> str:
    """Return the number of samples with a meaning as a clause; `of` follows the number."""
    n = len(meaning.samples)
    number = n or ("no" if of == " sample" else "none")
    if meaning.text is None:
        return f"{number}{of} gave no answer"
    return f"{number}{of} {_say(n or 1)} {_quoted(meaning.text, forms.get(meaning.text))}"


def _quoted(text: str, form: str | None) -> str:
    line = " ".join(text.split())
    if line and form == "":
        return "nothing that counts as an answer"
    return "nothing" if not line else line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def _rounded(value: float | None) -> str:
    return "None" if value is None else f"{value:.3g}"


def answer_of(
    row: Row,
    measure: str,
    calibrated: CalibratedAnswer | None,
    threshold: float | None,
    kind: AnswerKind = "modal",
) -> Answer:
    """Return the answer of a measured row by a measure, with its probability if known.

    For other kinds than "modal", the answer is a text of the row; its confidence is the share of its meaning.
    """
    measures, samples, texts = row.measured, row.samples, wordings(row)
    shares = measures.confidences[measure] or [None] * len(texts)
    confidence = measures.confidence[measure]
    if kind == "modal":
        top: int | None = measures.top_cluster[measure] or 0
        text = texts[top or 0]
    else:
        stated = row.stated_answer(kind)
        top, text = stated.cluster, stated.text
        confidence = None if confidence is None else 0.0 if top is None else shares[top]
    if calibrated is not None:
        top, text = calibrated.meaning, calibrated.text
    meanings = [
        Meaning(
            text if k == top else its_text,
            share,
            None if calibrated is None else calibrated.probabilities[k],
            tuple(samples[i] for i in cluster),
        )
        for k, (its_text, share, cluster) in enumerate(zip(texts, shares, row.clusters))
    ]
    if top is None:
        first = Meaning(text, 0.0, None if calibrated is None else calibrated.probability, ())
    else:
        first = meanings.pop(top)
    defined = [share for share in shares if share is not None]
    tied = sum(share >= max(defined) - TIE for share in defined)
    answer = Answer(
        id=row.id,
        question=row.question,
        text=text,
        confidence=None if text is None else confidence,
        measure=measure,
        abstained=True if text is None else None,
        threshold=threshold,
        entropy=measures.semantic_entropy[measure],
        meanings=(first, *sorted(meanings, key=lambda meaning: -(meaning.share or 0.0))),
        by_measure={
            name: MeasureAnswer(None if k is None else texts[k], measures.confidence[name])
            for name, k in measures.top_cluster.items()
        },
        row=row,
        tied=tied if tied > 1 else None,
        answer_kind=kind,
    )
    if calibrated is not None:
        answer = replace(answer, **_calibrated(calibrated))
    if threshold is not None and answer.abstained is None:
        return replace(answer, abstained=answer.confidence is None or answer.confidence < threshold)
    return answer


def _calibrated(best: CalibratedAnswer) -> dict[str, Any]:
    """Return the fields of an `Answer` that a calibration computes."""
    names = ("text", "abstained", "score", "map", "decision", "like", "features")
    return {
        "confidence": best.probability,
        "measure": CALIBRATED,
        **{name: getattr(best, name) for name in names},
    }


def answers_of(
    rows: RowsAt,
    measure: str,
    calibration: Calibration | None,
    threshold: float | None = None,
    kind: AnswerKind = "modal",
) -> list[Answer]:
    """Return the answers of measured rows, with a calibration if given, whose threshold has priority."""
    first = next(iter(rows.values()))
    if calibration is None:
        return [answer_of(row, measure, None, threshold, kind) for row in first]
    threshold = threshold if calibration.threshold is None else calibration.limit
    calibrated = zip(first, calibration.apply(rows))
    answers = [answer_of(row, measure, best, threshold, calibration.answer_kind) for row, best in calibrated]
    bands, risk, made_by = calibration.bands, calibration.risk, calibration.id
    return [replace(answer, thresholds=bands, risk=risk, calibration=made_by) for answer in answers]


def scored_answers(rows: Sequence[Row], calibration: Calibration) -> list[Answer]:
    """Return the answers of rows whose score is calibrated, without samples and measures."""
    rows_at: RowsAt = {None: rows}
    return [
        Answer(
            id=row.id,
            question=row.title,
            threshold=calibration.limit,
            entropy=None,
            meanings=(),
            by_measure={},
            row=row,
            thresholds=calibration.bands,
            risk=calibration.risk,
            answer_kind="given",
            calibration=calibration.id,
            **_calibrated(best),
        )
        for row, best in zip(rows, calibration.apply(rows_at))
    ]


@dataclass(frozen=True)
class StoredSamples:
    """The origin of stored samples."""

    source: str | Path | None  # their file, if any
    clustered_by: str | None  # the origin of the meanings, if there are stored clusters
    clustered: frozenset[str] = frozenset()  # ids of rows with stored clusters

    @classmethod
    def of(cls, samples: Samples, rows: Sequence[Row], equivalence: str) -> StoredSamples:
        """Return the origin of `samples`, read as `rows`; the others are clustered by the equivalence."""
        clustered = frozenset(row.id for row in rows if row.has("clusters"))
        by = None if not clustered else f"{equivalence}, and stored clusters of {len(clustered)} rows"
        by = "stored clusters" if len(clustered) == len(rows) else by
        return cls(samples if isinstance(samples, str | Path) else None, by, clustered)


class Results(Sequence[Answer]):
    """The answers to many questions, each a `semcal.Answer`; graded if reference answers are known.

    `semcal.score`, `semcal.ask_many` and `SemanticUQ.ask_many` return results.

    Attributes
    ----------
    rows : list of dict
        The rows of the command line: samples, clusters, measures and, if known, the calibrated `answer`, its
        `probability` and `correct`.
    equivalence : str
        The equivalence of answers: "exact", "default" or another model's name, or "stored clusters".
    failures : dict of str to QuestionError
        The errors of questions that a server did not answer, by id; these questions have no answer here.
    rows_at : mapping of temperature to rows
        The samples at each temperature, clustered and measured; the samples of the answers come first.

    Examples
    --------
    >>> import semcal
    >>> results = semcal.score([
    ...     {"question": "Who wrote it?", "samples": ["Ana", "Ana", "Bo"], "answers": ["Ana"]},
    ...     {"question": "Who sang it?", "samples": ["Cy", "Di", "Cy"], "answers": ["Di"]},
    ... ])
    >>> results
    Results(2 answers, 2 graded; E-SC: accuracy 0.500, confidence 0.667, gain 0.222; meanings by 'default')
    >>> results[0], results.rows[0]["correct"]
    (Answer('Ana', confidence=0.667), {'E-SC': True})
    >>> results.metrics()["E-SC"]["brier"]
    0.278
    """

    def __init__(
        self,
        answers: Sequence[Answer],
        rows: RowsAt,
        *,
        grader: Grader,
        cluster: ClusterConfig,
        stored: StoredSamples | None = None,
        failures: Mapping[str, QuestionError] | None = None,
        kind: AnswerKind = "modal",
    ) -> None:
        self.equivalence = (stored and stored.clustered_by) or cluster.judge.name
        self.failures = dict(failures or {})
        self._answers, self.rows_at, self._stored = list(answers), rows, stored
        self._grader, self._cluster, self._kind = grader, cluster, kind

    def __len__(self) -> int:
        return len(self._answers)

    @overload
    def __getitem__(self, place: int) -> Answer: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Answer]: ...
    def __getitem__(self, place: int | slice) -> Answer | Sequence[Answer]:
        return self._answers[place]

    @cached_property
    def _graded_rows(self) -> list[Row]:
        return grade_together(self._grader, lambda grader: [self._row(answer, grader) for answer in self])

    @property
    def rows(self) -> list[JsonObject]:
        """The row of each answer as the command line would write it."""
        return [row.to_json() for row in self._graded_rows]

    def _row(self, answer: Answer, grader: Grader) -> Row:
        row = answer.row
        if answer.measure == CALIBRATED:
            promise = answer.thresholds, answer.risk
            verdict = answer.abstained, answer.decision, *promise, answer.calibration, answer.reason
            row = row.add(Decision(answer.text, answer.confidence, answer.score, answer.threshold, *verdict))
        return grade_row(row, grader=grader, kind=answer.answer_kind) if _is_gradable(row, answer) else row

    def records(self) -> list[JsonObject]:
        """Return a short dict for each answer: the rows of `to_df`."""
        graded = self._graded() != []
        limited = any(answer.abstained is not None for answer in self)
        return [
            {
                "id": answer.id,
                "question": answer.question,
                "answer": answer.text,
                "confidence": answer.confidence,
                **({"correct": _correct(row, answer)} if graded else {}),
                **({"abstained": answer.abstained} if limited else {}),
                **({} if answer.decision is None else {"decision": answer.decision}),
                "entropy": answer.entropy,
                "meanings": len(answer.meanings),
                **{name: best.confidence for name, best in answer.by_measure.items()},
            }
            for answer, row in zip(self, self._graded_rows)
        ]

    def to_df(self) -> DataFrame:
        """Return a pandas DataFrame with one row for each question; MissingExtraError without pandas.

        Columns: id, question, answer, confidence (in that answer), correct (if any answer is graded),
        abstained (if there is a threshold), entropy (nats), the number of meanings, and each measure's
        confidence in its own answer.
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
        by: str | None = None,
        seed: int = 0,
    ) -> dict[str, Figures]:
        """Return the metrics of each measure, including "Calibrated", as in `semcal metrics`.

        Metrics (docs/metrics.md) are None if undefined. `measure` chooses one or several measures, and `bins`
        the number of bins of ECE and ACE. `ci` adds standard errors (`se`) and 95% intervals (`interval`).
        `risk` adds the threshold for this selective risk with probability 1 - `delta`. `by` adds metrics for
        each value of a column (`semcal.metrics.slices`). `seed` is that of resampling. InputError if no row
        has reference answers.
        """
        return assess(self._scores(measure, by), bins=bins, ci=ci, seed=seed, risk=risk, delta=delta)

    def _graded(self) -> list[int]:
        rows = enumerate(zip(self, self._graded_rows))
        return [place for place, (answer, row) in rows if _is_gradable(row, answer)]

    def _assessed(self) -> list[Row]:
        return [self._graded_rows[place] for place in self._graded()]

    def _scores(self, measure: str | Iterable[str] | None = None, by: str | None = None) -> dict[str, Scores]:
        graded = self._assessed()
        if not graded:
            verdicts = ", or 'correct' for given answers" if self._kind == "given" else ""
            raise InputError(
                f"'answers': missing in all rows, so none is graded. Add the column 'answers'{verdicts} "
                f"(present: {', '.join(self._graded_rows[0].json)})"
            )
        single = isinstance(measure, str) or not isinstance(measure, Iterable)
        chosen: Any = None if measure is None else [measure] if single else measure
        return {str(name): scores for name, scores in scores_by_measure(graded, chosen, by=by).items()}

    def plot(
        self, measure: str | None = None, *, kind: str | None = None, ax: Axes | None = None
    ) -> list[Axes]:
        """Draw reliability and selective accuracy side by side with matplotlib, and return the axes.

        `results.plot()[0].figure.savefig("plots.png")` saves the figure. The plots show the confidence of the
        answers with their threshold, if any, or another `measure`. With `kind` ("reliability" or "selective")
        or `ax`, only one plot is drawn, by default reliability. InputError if no row has reference answers.
        """
        name = measure or self[0].measure
        (scores,) = self._scores(name).values()
        kinds = PLOTS if kind is None and ax is None else (check_name(kind or PLOTS[0], PLOTS, what="plot"),)
        axes: list[Any] = [ax]
        if ax is not None and not hasattr(ax, "plot"):
            raise UsageError(f"ax is {shown(ax)}; expected an Axes of matplotlib. Pass one, or leave ax out.")
        if ax is None:
            with naming_extra("a plot"):
                from matplotlib import pyplot

            size = (4.6 * len(kinds), 4.2)
            axes = list(
                pyplot.subplots(1, len(kinds), squeeze=False, figsize=size, layout="constrained")[1][0]
            )
        for plot, where in zip(kinds, axes):
            if plot == "reliability":
                metrics.reliability_diagram(scores.confidence, scores.correct).plot(ax=where)
            else:
                points = np.linspace(0, max(scores.confidence), 201)
                curve = metrics.selective_accuracy(scores.confidence, scores.correct, threshold=points)
                curve.plot(ax=where, threshold=self[0].threshold if name == self[0].measure else None)
            where.set_title(f"{name}, {len(scores.correct)} questions")
        return axes

    def calibrate(
        self, *, seed: int = 0, m_curve: bool = False, **options: Unpack[CalibrationKeywords]
    ) -> Calibration:
        """Learn the probability that an answer is correct from the graded rows of stored samples.

        Parameters and errors are those of `semcal.calibrate`: `m_curve`, the `seed` of the folds, and the
        fields of `semcal.CalibrationConfig` (`risk`, `delta`, `features`, `signals`). UsageError is raised
        for `answer`, `grader` and `score`, which `semcal.score` and `semcal.calibrate` take, and if the
        answers come from a model, because the calibration has to know that model.
        """
        from semcal.calibration.calibration import calibration_config
        from semcal.calibration.learning import LearningOptions, calibrate_rows
        from semcal.calibration.samples import origin_of

        check_seed(seed)
        for name, remedy in {"answer": "score", "grader": "score", "score": "calibrate"}.items():
            if name in options:
                raise UsageError(f"{name}: these answers are graded already. Pass it to semcal.{remedy}")
        config = calibration_config(None, dict(options), of="calibrate")
        config = replace(config, grader=self._grader, answer=self._kind)
        if self._stored is None:
            raise UsageError(
                "these answers were sampled from a model, which the calibration has to know. Use "
                "semcal.calibrate(model, labeled)"
            )
        first = next(iter(self.rows_at.values()))
        places = [place for place, row in enumerate(first) if row.has_label(self._kind)]
        self._warn_of_missing(len(self) - len(places))
        graded = {t: [rows[place] for place in places] for t, rows in self.rows_at.items()}
        inputs.check_stored_draws(graded, self._kind)
        origin = origin_of(next(iter(graded.values())), self._stored.source)
        clustered = self._stored.clustered
        bare = {
            t: [row if row.id in clustered else row.without("clusters") for row in rows]
            for t, rows in graded.items()
        }
        learning = LearningOptions(seed, origin=origin, m_curve=m_curve, stored=bare)
        return calibrate_rows(graded, self._cluster, config, learning)

    def _warn_of_missing(self, lacking: int) -> None:
        if 0 < lacking < len(self):
            counts = f"{lacking} of {len(self)} rows of samples"
            text = f"{counts} have no reference answers and are left out"
            warnings.warn(text, SemcalWarning, stacklevel=3)

    def __repr__(self) -> str:
        graded, by = len(self._graded()), f"meanings by {shown(self.equivalence)}"
        if not self._assessed():
            return f"{type(self).__name__}({len(self)} answers, none graded; {by})"
        name = self[0].measure
        (scores,) = self._scores(name).values()
        figures = "undefined"
        if scores.confidence:
            figures = ", ".join(
                f"{key} {value:.3f}"
                for key, value in (
                    ("accuracy", np.mean(scores.correct)),
                    ("confidence", np.mean(scores.confidence)),
                    ("gain", metrics.gain(scores.confidence, scores.correct)),
                )
            )
        return f"{type(self).__name__}({len(self)} answers, {graded} graded; {name}: {figures}; {by})"


class FieldResults(Results):
    """Structured answers to many questions: each answer is a document, whose `row` has the `fields`.

    `text` is the document as JSON, `confidence` its calibrated probability (None without a calibration), and
    `abstained` is True if the document is not accepted. `records` and `to_df` have a row for each field, and
    `metrics` measures the confidence in fields.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        calibration: FieldCalibration | None,
        *,
        schema: Schema,
        cluster: ClusterConfig,
        kind: AnswerKind,
        failures: Mapping[str, QuestionError] | None = None,
    ) -> None:
        from semcal.fields.rows import grade_fields

        graded = [row if row.json.get("answers") is None else grade_fields(row, schema) for row in rows]
        answers = [document_answer(row, calibration, kind) for row in graded]
        grader = as_grader(None, cluster.judge)
        super().__init__(
            answers, {None: graded}, grader=grader, cluster=cluster, kind=kind, failures=failures
        )
        self._schema = schema

    @cached_property
    def _graded_rows(self) -> list[Row]:
        return list(self.rows_at[None])

    def _graded(self) -> list[int]:
        documents = (row.json.get("document") or {} for row in self._graded_rows)
        return [place for place, document in enumerate(documents) if "correct" in document]

    def _assessed(self) -> list[Row]:
        from semcal.fields.rows import item_rows

        return list(item_rows([self._graded_rows[place] for place in self._graded()]))

    def records(self) -> list[JsonObject]:
        """Return a short dict for each field: the rows of `to_df`."""
        keys = ("value", "probability", "share", "accepted", "correct")
        return [
            {"id": row.id, "path": path, **{key: block[key] for key in keys if key in block}}
            for row in self._graded_rows
            for path, block in row["fields"].items()
        ]

    def calibrate(self, **options: Any) -> FieldCalibration:  # type: ignore[override]
        """Learn the probability of fields, by `semcal.calibrate_fields` with its options and errors."""
        from semcal.calibration.fields import calibrate_fields

        rows = [self._graded_rows[place] for place in self._graded()]
        self._warn_of_missing(len(self) - len(rows))
        return calibrate_fields(rows, self._cluster, self._schema, answer=self._kind, **options)


def judge_documents(
    rows: Sequence[Row],
    calibration: FieldCalibration,
    cluster: ClusterConfig,
    failures: Mapping[str, QuestionError] | None = None,
) -> FieldResults:
    """Return the documents of samples with the probabilities of their fields."""
    from semcal.calibration.fields import FieldStep

    return FieldResults(
        FieldStep(calibration, cluster)(rows),
        calibration,
        schema=calibration.parsed,
        cluster=cluster,
        kind=calibration.answer_kind,
        failures=failures,
    )


def document_answer(row: Row, calibration: FieldCalibration | None, kind: AnswerKind) -> Answer:
    """Return a structured answer with its fields, which a calibration has judged."""
    whole = row.json.get("document") or {}
    accepted = whole.get("accepted")
    limit = None if calibration is None else calibration.limits(row)[1]
    return Answer(
        id=row.id,
        question=row.title,
        text=None if row["answer"] is None else dumps(row["answer"]),
        confidence=whole.get("probability"),
        measure="E-SC" if calibration is None else CALIBRATED,
        abstained=None if accepted is None else not accepted,
        threshold=None if limit == np.inf else limit,
        entropy=None,
        meanings=(),
        by_measure={},
        row=row,
        map=None if calibration is None else calibration.document_map.candidate.name,
        answer_kind=kind,
    )


def _is_gradable(row: Row, answer: Answer) -> bool:
    """Return whether an answer can be graded, by references or by a verdict on a given answer."""
    return row.is_labelled or answer.row.has_label(answer.answer_kind)


def _correct(row: Row, answer: Answer) -> bool | None:
    if not _is_gradable(row, answer):
        return None
    grades = row.graded
    own = answer.measure == CALIBRATED or answer.answer_kind != "modal"
    correct = grades.answer_correct if own else grades.of_measure(answer.measure)
    return None if correct is None else bool(correct)


class ScoreKeywords(TypedDict, total=False):
    """Options of `score`: fields of `ClusterConfig`, and the parameters of T-SC and G-SC."""

    linkage: str | None
    merge_refusals: bool | None
    t_alpha: float | None
    g_alpha: float | None


def score(
    samples: Samples,
    equivalence: EquivalenceLike | None = None,
    *,
    calibration: Calibration | FieldCalibration | str | Path | None = None,
    schema: Any = None,
    measure: str | None = None,
    answer: AnswerKind | None = None,
    grader: Grader | str | None = None,
    progress: ShowProgress = True,
    **options: Unpack[ScoreKeywords],
) -> Results:
    """Cluster and measure sampled answers, and grade them where reference answers are known; no model needed.

    Parameters
    ----------
    samples : file, DataFrame or dicts
        One row for each question: `question`, `samples` (a list of texts or its JSON) and optionally
        `log_likelihoods` (length-normalized, nats), `answers` (references), `id`, `context`, `group`, and
        `temperatures` (one for each sample). Stored `clusters` are used unchanged, unless `equivalence` or
        `linkage` is given.
    equivalence : Equivalence, str or Path, optional
        As in `semcal.calibrate`; by default the embedded model, or the equivalence of the calibration.
    calibration : Calibration, FieldCalibration, str or Path, optional
        As in `semcal.SemanticUQ`, or a calibration of the fields of structured answers.
    measure : str, optional
        Without a calibration, the measure that chooses the answer: "E-SC" by default (docs/measures.md).
    schema : dict or pydantic class, optional
        JSON Schema of structured answers. With it, or with a calibration of fields, the result has the fields
        of each document (`semcal.results.FieldResults`).
    answer : {"modal", "greedy", "given"}, optional
        The most frequent meaning, the column `greedy` or, for "given", the column `answer` of each row. The
        default is the kind of the calibration, or "modal". The confidence is the share of samples that mean
        the same.
    grader : Grader or {"rules", "nli"}, optional
        As in `semcal.calibrate`.
    progress : bool or callable
        True for a bar on a terminal or in a notebook, or a function of the number of clustered questions.
    **options
        `linkage` and `merge_refusals` of `semcal.ClusterConfig`, which default to the calibration's values;
        `t_alpha` and `g_alpha` as in `semcal.SemanticUQ`.

    Returns
    -------
    Results
        One `semcal.Answer` for each row, in order. Its confidence is its share by the measure, in [0, 1], or
        with a calibration the probability that the answer is correct.

    Raises
    ------
    InputError
        If a row cannot be used; the message names its place and the remedy.
    UsageError
        If an argument is invalid or set by the calibration, or a row lacks samples that it reads.
    ModelError, StoreError
        If the equivalence or the calibration cannot be loaded.

    Examples
    --------
    >>> from semcal.demo import real
    >>> results = score(real.load()[:5])
    >>> results[0].question, results[0]
    ('What is the capital of Australia?', Answer('Canberra', confidence=1))
    >>> results[3]
    Answer('Wellington', confidence=0.9)
    """
    fields = None
    if calibration is not None:  # its modules load pydantic, which scores alone do not need
        from semcal.calibration import compatibility
        from semcal.calibration.calibration import as_calibration
        from semcal.calibration.fields import as_field_calibration

        fields = as_field_calibration(calibration)
    if fields is not None or schema is not None:
        return _score_documents(
            samples, fields, schema, equivalence, answer, {"measure": measure, "grader": grader, **options}
        )
    stored = inputs.as_sample_rows(samples)
    chosen = check_name(measure or "E-SC", MEASURES, what="measure")
    check_options(options, [*options_of(ClusterConfig), "t_alpha", "g_alpha"], of="score")
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    alphas = MeasureOptions(given.pop("t_alpha", 0.5), given.pop("g_alpha", 0.5))
    if equivalence is not None or given:
        stored = [row.without("clusters") for row in stored]
    learned = None if calibration is None else as_calibration(calibration)
    if learned is None:
        cluster = configured(ClusterConfig, None, {**given, "equivalence": equivalence})
    else:
        compatibility.check_beside(learned, {**given, "measure": measure})
        compatibility.check_answer_kind(learned, answer)
        chosen_by = compatibility.equivalence_of(learned, equivalence)
        cluster, answer = replace(learned.cluster, equivalence=chosen_by), learned.answer_kind
    cluster = inputs.load_cluster_config(cluster)
    judge, kind = cluster.judge, as_answer_kind(answer or "modal")
    if learned is not None:
        compatibility.check_equivalence(learned, judge)
        inputs.check_clustered_by(stored, learned.cluster, learned.equivalence_revision)
        inputs.warn_of_clusters(stored, learned.equivalence)
    marks = as_grader(grader, judge)
    with shown_progress(progress, "score", len(stored)) as update:
        clustered = cluster_missing(stored, cluster, progress=update)
    split = rows_by_temperature(clustered) if learned is None else compatibility.draws_for(learned, clustered)
    rows = match_at(measure_at(split, alphas), kind, judge)
    for row in next(iter(rows.values())) if learned is None else ():
        if chosen not in row.measured.confidences:
            raise InputError(f"question {row.id!r} has no log-likelihoods, which {chosen} needs. Use E-SC.")
    answers = answers_of(rows, chosen, learned, kind=kind)
    origin = StoredSamples.of(samples, stored, judge.name)
    return Results(answers, rows, grader=marks, cluster=cluster, stored=origin, kind=kind)


def _score_documents(
    samples: Samples,
    calibration: FieldCalibration | None,
    schema: Any,
    equivalence: EquivalenceLike | None,
    answer: AnswerKind | None,
    given: Mapping[str, Any],
) -> FieldResults:
    """Return the fields of sampled documents, with probabilities if there is a calibration."""
    from semcal.calibration.fields import document_rows
    from semcal.fields.rows import add_fields
    from semcal.fields.schema import parse_schema

    linkage = given.get("linkage")
    if unused := [name for name, value in given.items() if value is not None and name != "linkage"]:
        raise UsageError(f"{unused[0]} does not apply to fields of structured answers. Omit it")
    if calibration is None:
        config = ClusterConfig(equivalence or DEFAULT, linkage or "components")
        cluster, kind = inputs.load_cluster_config(config), as_answer_kind(answer or "modal")
        rows, parsed = document_rows(samples, schema, kind=kind)
        found = add_fields(rows, cluster, parsed, kind)
        return FieldResults(found, None, schema=parsed, cluster=cluster, kind=kind)
    own = calibration.schema, calibration.equivalence, calibration.linkage, calibration.answer_kind
    is_same = schema is None or parse_schema(schema).hash == calibration.parsed.hash
    beside = (None if is_same else schema), equivalence, linkage, answer
    for name, value, learned in zip(("schema", "equivalence", "linkage", "answer"), beside, own):
        if value not in (None, learned):
            raise UsageError(f"{name}: the calibration was learned with another one. Omit {name}")
    rows, _ = document_rows(samples, calibration.schema, kind=calibration.answer_kind)
    return judge_documents(rows, calibration, calibration.cluster)
