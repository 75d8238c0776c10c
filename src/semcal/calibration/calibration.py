"""Calibrated confidence: the probability that an answer is right, and a threshold (spec section 11).

What was learnt of the features of answers (`Calibration`), and how it is applied: to stored rows, beside
which settings, and to which model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveFloat, TypeAdapter, ValidationError

from semcal import metrics
from semcal.calibration.compatibility import check_sampled_by, draws_for
from semcal.calibration.configuration import requested_features
from semcal.calibration.features import FEATURES, ColumnFeature, Feature, answered_rows, features_of
from semcal.calibration.report import CalibrationReport, DrawsPoint, LabelCount, LikeAnswers, Share
from semcal.calibration.signals import check_signals
from semcal.errors import InputError, StoreError, UsageError, shown
from semcal.files import dumps, json_checksum
from semcal.hub_names import CALIBRATION
from semcal.inputs import check_clustered_by
from semcal.measuring import MeasureOptions, measure_at, measure_rows
from semcal.metrics.probability_maps import ProbabilityMap
from semcal.metrics.thresholds import threshold_sentence
from semcal.models.clustering import ClusterConfig, match_at
from semcal.models.distribution import Temperature, fingerprint
from semcal.models.equivalence import Equivalence
from semcal.models.prompting import PromptConfig
from semcal.models.sample import SamplingConfig
from semcal.recalibration.files import (
    Provenance,
    check_provenance,
    from_pretrained,
    not_finite,
    read_contents,
    save_pretrained,
    write_contents,
)
from semcal.rows import (
    NO_ANSWER,
    RECALIBRATOR,
    SAMPLES,
    STATED,
    AnswerKind,
    Decision,
    Json,
    Row,
    as_rows,
    rows_by_temperature,
)
from semcal.steps import Step
from semcal.store import write_if_new

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from semcal.models.protocols import AnyRecalibrator
    from semcal.recalibration.records import Fitted

DecisionWord = Literal["answer", "review", "abstain"]
#: What decides an answer, its probability and whether it is given, and the letters of a hash of it.
DECISIVE = (
    *("map", "further", "m", "temperature", "temperatures", "equivalence", "equivalence_revision", "linkage"),
    *("threshold", "thresholds", "answer_kind", "columns", "signals", "max_new_tokens", "answer_format"),
)
ID_LETTERS = 12

# ---- A calibration -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Threshold:
    """Answer from this probability on; the error rate among the answered is then at most `risk_limit`.

    Under a constant it is a share, not a probability. The promise holds with probability 1 − `delta`, from
    `n` questions kept apart from everything that was fitted, one of each group. `threshold` is None where
    none could be shown to hold.
    """

    threshold: Share | None
    risk_limit: Share
    delta: Share
    n: Annotated[int, Field(ge=1)]
    answered: LabelCount
    errors: LabelCount
    upper_bound: Share | None
    questions_needed: int | None = None  # kept apart, where none is shown to hold; None if no number would do
    least_risk: Share | None = None  # where none is shown to hold: a smaller risk could not be

    @property
    def sentence(self) -> str:
        """What it promises, or what would be needed for a promise."""
        return threshold_sentence(self, self.n)


@dataclass(frozen=True)
class GradedExample:
    """A labelled question as it was graded."""

    question: str
    answer: str
    reference: str | None  # of a right answer the one that matches; None where people have judged it
    correct: bool


@dataclass(frozen=True)
class LabeledAnswers:
    """The N answers that the map was fitted to, with what it gives them, and what maps of other folds give.

    Where several temperatures were tried a fold may have answers of another one, which are right or wrong for
    themselves.
    """

    probability: tuple[Share, ...] = ()
    correct: tuple[bool, ...] = ()
    out_of_fold: tuple[Share, ...] = ()
    correct_out_of_fold: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        if len(set(map(len, vars(self).values()))) > 1:
            raise InputError("the columns of labeled answers must have one length")


@dataclass(frozen=True)
class CalibratedAnswer:
    """The answer to a question, and the probability that it is right."""

    #: The commonest wording of the most frequent meaning, or the answer that is checked; None is no answer.
    text: str | None
    meaning: int | None  # its cluster; None where no draw means the same
    probability: float | None  # None where there is no answer
    #: Of each meaning; they add up to 1 less that of no meaning being right. None for the meanings beside the
    #: answer's if `Calibration.further` is None.
    probabilities: tuple[float | None, ...]
    abstained: bool | None  # None without a threshold
    score: float  # its share of the draws
    map: str  # what made the probability: "none(E-SC)" is the share itself
    decision: DecisionWord | None = None  # where several risks have thresholds
    like: LikeAnswers | None = None  # labelled questions whose answers scored like this one
    features: Mapping[str, float | None] = field(default_factory=dict)  # None for one that is unknown


@dataclass(frozen=True)
class _Contents:
    """What the file of a calibration holds."""

    map: ProbabilityMap
    further: Share | None
    m: Annotated[int, Field(ge=1, lt=2**31)]
    temperature: PositiveFloat | None
    temperatures: tuple[PositiveFloat, ...]
    equivalence: str
    linkage: str
    answer_format: str
    threshold: Threshold | None
    report: CalibrationReport
    max_new_tokens: int | None = None
    provenance: Provenance | None = None
    equivalence_revision: str | None = None
    grader: str | None = None
    grader_revision: str | None = None
    samples_sha256: str | None = None
    thresholds: tuple[Threshold, ...] = ()
    answer_kind: AnswerKind = "modal"
    columns: tuple[ColumnFeature, ...] = ()
    signals: tuple[str, ...] = ()
    ancestors: tuple[str, ...] = ()
    open_book: bool | None = None
    merge_refusals: bool = False
    labeled: LabeledAnswers = LabeledAnswers()

    @property
    def requested(self) -> list[Feature]:
        """The features that were asked for: columns of the rows, and signals."""
        return requested_features(self.columns, self.signals)

    def check(self) -> None:
        """Raise InputError for what types cannot tell: an unknown feature, a choice that was not tried."""
        names = {*FEATURES, *(feature.name for feature in self.requested)}
        names |= {f"{name} at T={t:g}" for t in self.temperatures for name in FEATURES}
        unknown = [name for name in self.map.features if name not in names]
        tried = [candidate.name for candidate in self.report.candidates]
        if unknown or self.report.chosen not in tried:
            wrong = f"feature {shown(unknown[0])}" if unknown else f"chosen map {shown(self.report.chosen)}"
            raise InputError(f"there is no {wrong}")


@dataclass(frozen=True)
class Calibration(_Contents):
    """A map from the samples of a question to the probability that its answer is right.

    Attributes
    ----------
    map : ProbabilityMap
        Learnt from labelled questions, or "none".
    further : float or None
        The probability that one of the other meanings is right, where there are some and the answer is wrong.
        None if no labeled question shows it, as if all labels are verdicts: the probability of the other
        meanings is then None.
    m : int
        Draws at each temperature.
    temperature : float or None
        Of the draws that the answer comes from; None under `recalibrator`, or where nobody knows.
    temperatures : tuple of float
        Of the further draws that the map reads, or that settle ties where likelihoods are unknown.
    equivalence, linkage : str
        How meanings were found: the name of the equivalence, as given to `semcal.load_equivalence`.
    merge_refusals : bool
        Whether all refusals to answer are one meaning.
    answer_format : str
        The rule that read the answers in generations, as of `semcal.SemanticUQ`.
    equivalence_revision : str or None
        None where nobody knows.
    grader, grader_revision : str or None
        By what the labelled answers were graded: "rules", "nli" or a judge with its URL; and the revision of
        the model that it asked. None where nobody knows.
    threshold : Threshold or None
        Of several that of the largest risk.
    thresholds : tuple of Threshold
        Where several risks were asked for, the strictest first. Each holds with probability 1 − its `delta`,
        and all together with 1 − the sum of these.
    report : CalibrationReport
    answer_kind : {"modal", "greedy", "given"}
        Which answer the probability is of: the most frequent meaning of the draws, what the model says at
        T = 0, or one that another program gives.
    columns, signals : tuple of ColumnFeature, tuple of str
        The columns of the rows that the map reads, and the signals.
    ancestors : tuple of str
        The ids of the calibrations that it was learnt again from, each from the one before, oldest first.
    max_new_tokens : int or None
    open_book : bool or None
        Whether the labelled questions had a passage, of which others are refused; None where some had, or
        nobody knows.
    labeled : LabeledAnswers
        The answers that the map was fitted to.
    provenance : Provenance or None
        Model, prompt and data; None where the samples came from a file.
    samples_sha256 : str or None
        Of the file `samples.jsonl` beside it; None where there is none.
    recalibrator : TokenDistribution or ATS, optional
        What the answers are sampled under.
    samples : str or None
        What was sampled to make it, as JSON Lines, for `save_pretrained`; None once it was loaded.
    examples : tuple of GradedExample
        Three of the labelled questions; empty once loaded.

    Examples
    --------
    >>> Calibration.from_pretrained("atlas").m
    10
    """

    recalibrator: Fitted | None = field(default=None, compare=False)
    samples: str | None = field(default=None, compare=False)
    examples: tuple[GradedExample, ...] = field(default=(), compare=False)

    def with_draws_curve(self, curve: tuple[DrawsPoint, ...]) -> Calibration:
        """Return the calibration with a curve in its report."""
        return replace(self, report=replace(self.report, draws_curve=curve))

    def __repr__(self) -> str:
        limit = "" if self.threshold is None else f", threshold={self.threshold.threshold}"
        reasons = [] if self.map.candidate.kind not in ("constant", "none") else [self.report.why]
        reasons += [one.sentence for one in self.all_thresholds if one.threshold is None]
        return (
            f"Calibration({self.report.chosen}, {self.report.n} labelled questions, m={self.m}{limit})"
            f"{': ' * bool(reasons)}{'; '.join(reason.rstrip('.') for reason in reasons)}"
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw with matplotlib how often labelled answers of each probability, out of fold, are right.

        `calibration.plot().figure.savefig("plot.png")` saves it.
        """
        diagram = metrics.reliability_diagram(self.labeled.out_of_fold, self.labeled.correct_out_of_fold)
        ax = diagram.plot(ax=ax)
        ax.set_title(f"{self.report.n} labeled answers, out of fold")
        return ax

    @cached_property
    def id(self) -> str:
        """What tells it from others: a hash of all that decides answers, probabilities and abstention."""
        contents = _CONTENTS.dump_python(self, include=set(DECISIVE), mode="json")
        return json_checksum(
            {
                **contents,
                "model": self.provenance and [self.provenance.revision, self.provenance.prompt_hash],
                "recalibrator": self.recalibrator and fingerprint(self.recalibrator),
                **({"ancestors": self.ancestors} if self.ancestors else {}),
            }
        )[:ID_LETTERS]

    @property
    def recalibrators(self) -> dict[float | None, AnyRecalibrator]:
        """What to sample a question under: temperature → recalibrator, that of the answer first."""
        first = self.recalibrator or Temperature(1.0 if self.temperature is None else self.temperature)
        return {self.temperature: first, **{t: Temperature(t) for t in self.temperatures}}

    @property
    def cluster(self) -> ClusterConfig:
        """How answers are clustered."""
        return ClusterConfig(self.equivalence, self.linkage, self.merge_refusals)

    @property
    def sampling(self) -> SamplingConfig:
        """How answers are sampled, with the seed of `SamplingConfig`."""
        temperatures = (self.temperature or 1.0, *self.temperatures)
        return SamplingConfig(
            self.m,
            temperatures=temperatures,
            max_new_tokens=self.max_new_tokens,
            answer_format=self.answer_format,
        )

    @property
    def asking(self) -> PromptConfig:
        """The template, the few-shot examples before every question, and whether that has a passage."""
        prompt = {} if self.provenance is None else self.provenance.prompt
        return replace(PromptConfig.from_description(prompt), open_book=self.open_book)

    def apply(self, rows: Mapping[float | None, Sequence[Row | Json]]) -> list[CalibratedAnswer]:
        """Return the answer to each question with its probability.

        Parameters
        ----------
        rows : mapping of temperature to rows
            Clustered and measured; the first are those of `temperature`, and all of `temperatures` are there.

        Raises
        ------
        InputError
            If a row has not `m` draws, or a temperature is missing.
        """
        first, rows_at = next(iter(rows)), {t: as_rows(part) for t, part in rows.items()}
        if not rows_at[first]:  # a server gave no answers at all
            return []
        missing = [t for t in self.temperatures if t not in rows_at]
        if missing:
            raise InputError(
                f"the calibration reads draws at T = {', '.join(f'{t:g}' for t in missing)}, which the rows "
                "lack; sample at these temperatures too, or calibrate with what the rows have"
            )
        for row in (row for t in (first, *self.temperatures) for row in rows_at[t]):
            if len(row.samples) != self.m:
                raise InputError(
                    f"question {row.id!r} has {len(row.samples)} draws, and the calibration was "
                    f"made with {self.m}; sample with --m {self.m}, or calibrate again"
                )
        rows_at = {t: rows_at[t] for t in (first, *self.temperatures)}
        check_signals(self.signals, answered_rows(rows_at, self.answer_kind) if self.signals else ())
        features = features_of(rows_at, self.answer_kind, self.requested)
        lacking = {name: np.full(len(features.answers), np.nan) for name in self.map.features}
        values = lacking | dict(features.values)
        columns = {
            name: [None if math.isnan(value) else value for value in column.tolist()]
            for name, column in features.values.items()
        }
        return [
            CalibratedAnswer(
                text=text,
                meaning=meaning,
                probability=None if text is None else p,
                probabilities=self._of_meanings(row, meaning, 0.0 if text is None else p),
                abstained=text is None or self.abstains(score),
                score=share,
                map=self.map.candidate.name,
                decision=self.decide(-math.inf if text is None else score),
                like=None if text is None else self.report.like_answers(score),
                features={} if text is None else dict(zip(columns, by_name)),
            )
            for text, meaning, p, score, share, row, *by_name in zip(
                features.answers,
                features.meanings,
                self.map.predict(values).tolist(),
                self.map.scores(values).tolist(),
                features.values["E-SC"].tolist(),
                rows_at[first],
                *columns.values(),
            )
        ]

    @property
    def all_thresholds(self) -> tuple[Threshold, ...]:
        """The strictest first; none where no risk was asked for."""
        return self.thresholds or ((self.threshold,) if self.threshold else ())

    @property
    def limit(self) -> float | None:
        """The threshold, where one was shown to hold."""
        return None if self.threshold is None else self.threshold.threshold

    def abstains(self, score: float) -> bool | None:
        """Whether an answer of this score abstains; None without a threshold."""
        return None if self.threshold is None else self.limit is None or score < self.limit

    def decide(self, score: float) -> DecisionWord | None:
        """Whether to answer, to have it reviewed or to abstain; None where one risk at most was asked for."""
        if not self.thresholds:
            return None
        strictest = self.thresholds[0].threshold
        if strictest is not None and score >= strictest:
            return "answer"
        return "abstain" if self.abstains(score) else "review"

    @property
    def bands(self) -> list[dict[str, Any]] | None:
        """The thresholds as rows show them, strictest first; None where one risk at most was asked for."""
        return [
            {"risk": one.risk_limit, "delta": one.delta, "threshold": one.threshold, "n": one.n}
            for one in self.thresholds
        ] or None

    @property
    def risk(self) -> float | None:
        """What the threshold promises; None without one, and of several, which `bands` show."""
        return self.threshold.risk_limit if self.threshold and not self.thresholds else None

    def _of_meanings(self, row: Row, meaning: int | None, p: float) -> tuple[float | None, ...]:
        """The probability of each meaning: that of the answer, the others by their shares, 0 of no answer."""
        counts = [0 if k == meaning else len(c) * row.has_answer(c) for k, c in enumerate(row.clusters)]
        left = None if self.further is None else (1 - p) * self.further
        others = [0.0 if n == 0 else left and left * n / sum(counts) for n in counts]
        return tuple(p if k == meaning else other for k, other in enumerate(others))

    def save_pretrained(self, directory: str | Path) -> Path:
        """Write `directory`/calibration.json and return its path.

        Before it the recalibrator and `samples.jsonl` are written, where there are such.
        """
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        if self.recalibrator is not None:
            assert self.provenance is not None
            save_pretrained(self.recalibrator, folder / RECALIBRATOR, provenance=self.provenance)
        if self.samples is not None:
            write_if_new(folder / SAMPLES, self.samples)
        digest = None if self.samples is None else sha256(self.samples.encode()).hexdigest()
        contents = asdict(replace(self, recalibrator=None, samples=None, samples_sha256=digest))
        del contents["samples"], contents["examples"]
        contents["report"] = self.report.to_json()
        for name in ("thresholds", "columns", "signals", "ancestors"):
            if not contents[name]:
                del contents[name]
        if self.answer_kind == "modal":
            del contents["answer_kind"]
        if not self.merge_refusals:
            del contents["merge_refusals"]
        contents["recalibrator"] = None if self.recalibrator is None else RECALIBRATOR
        return write_contents(folder, CALIBRATION, contents)

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> Calibration:
        """Load what `save_pretrained` or `semcal calibrate` wrote.

        Raises
        ------
        UsageError
            If there is no calibration; a recalibrator is refused by name.
        StoreError
            If it is damaged, or a value in it is wrong.
        """
        contents, path = read_contents(directory, CALIBRATION)
        inner = contents.pop("recalibrator", None)
        for where, value in not_finite(contents):
            raise StoreError(
                f"{path}: {where}: a finite number is expected, got {shown(value)}; calibrate again"
            )
        try:
            checked = _CONTENTS.validate_json(dumps(contents), strict=True)
            if checked.provenance is not None:
                check_provenance(contents["provenance"])
            checked.check()
        except (ValidationError, InputError) as error:
            raise StoreError(f"{path}: {error}; calibrate again") from error
        fitted = None if inner is None else from_pretrained(path.parent / RECALIBRATOR)[0]
        return cls(**vars(checked), recalibrator=fitted)


_CONTENTS = TypeAdapter(_Contents)

# ---- Applied -----------------------------------------------------------------------------------------------


def as_calibration(calibration: object) -> Calibration:
    """Return a calibration: as it is, or loaded from its directory, id or name."""
    if isinstance(calibration, str | Path):
        return Calibration.from_pretrained(calibration)
    if isinstance(calibration, Calibration):
        return calibration
    raise UsageError(
        f"the calibration is {shown(calibration)}; give what semcal.calibrate returns, or the directory that "
        "it was saved in"
    )


def decision_of(answer: CalibratedAnswer, calibration: Calibration) -> Decision:
    """Return the part of a row that an answer with its probability is."""
    return Decision(
        *(answer.text, answer.probability, answer.score, calibration.limit, answer.abstained),
        decision=answer.decision,
        thresholds=calibration.bands,
        risk=calibration.risk,
        calibration=calibration.id,
        reason=NO_ANSWER if answer.text is None else None,
    )


@dataclass(frozen=True)
class CalibrationStep(Step):
    """Measures clustered rows, and adds `answer`, `probability`, `threshold` and `abstained`.

    UsageError if a row has another number of draws than the calibration was made with, lacks a temperature,
    or says that it was sampled or clustered otherwise.
    """

    name: ClassVar[str] = "measure"
    calibration: Calibration
    t_alpha: float = 0.5
    g_alpha: float = 0.5
    equivalence: Equivalence | None = None  # finds the meaning of an answer that is not read of the draws

    def __call__(self, rows: Sequence[Row], *_: object) -> list[Row]:
        """Measure and apply."""
        calibration = self.calibration
        for row in rows:
            check_sampled_by(row, calibration.provenance, calibration.recalibrator, calibration)
        check_clustered_by(rows, calibration.cluster, calibration.equivalence_revision)
        options = MeasureOptions(self.t_alpha, self.g_alpha, calibration.temperature)
        try:
            measured = measure_at(draws_for(calibration, rows), options)
            rows_at = match_at(measured, calibration.answer_kind, self.equivalence)
            answers = calibration.apply(rows_at)
        except InputError as error:
            raise UsageError(str(error)) from error
        matched = next(iter(rows_at.values()))
        return [
            _with_meaning(row, of_answer, calibration).add(decision_of(best, calibration))
            for row, of_answer, best in zip(measure_rows(rows, options), matched, answers)
        ]


def _with_meaning(row: Row, matched: Row, calibration: Calibration) -> Row:
    """The row with the cluster that an answer means which is not read of the draws, if that is asked for.

    `matched` holds it among the clusters of the draws at one temperature.
    """
    kind = calibration.answer_kind
    if kind == "modal":
        return row
    number = matched.stated_answer(kind).cluster
    if number is not None and row.temperatures is not None:
        t = calibration.temperature
        t = next(iter(rows_by_temperature([row]))) if t is None else t
        first = [i for i, at in enumerate(row.temperatures) if at == t][matched.clusters[number][0]]
        number = next(k for k, cluster in enumerate(row.clusters) if first in cluster)
    return row.set(**{STATED[kind][2]: number})
