"""Calibrations: their settings, contents, file, and application to rows (spec section 11)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import ConfigDict, Field, PositiveFloat, TypeAdapter, ValidationError

from semcal.arrays import Floats, as_list, as_option
from semcal.calibration.features import (
    SHARES,
    AnswerFeatures,
    ColumnFeature,
    Feature,
    ScoreColumn,
    answered_rows,
    features_of,
    order_by,
    score_features,
    scored_row,
)
from semcal.calibration.report import CalibrationReport, LabelCount, LikeAnswers, Share
from semcal.calibration.signals import QuestionProbe, check_signals, signals_named
from semcal.errors import InputError, StoreError, UsageError, shown
from semcal.files import dumps, json_checksum
from semcal.grading.grade import grade_answer, grade_together
from semcal.grading.rules import Grader
from semcal.hub_names import CALIBRATION
from semcal.inputs import Samples, as_sample_rows, check_options, configured, options_of
from semcal.metrics.probability_maps import Move, ProbabilityMap
from semcal.metrics.thresholds import TestName, threshold_sentence
from semcal.models.clustering import ClusterConfig
from semcal.models.distribution import Temperature, fingerprint
from semcal.models.prompting import PromptConfig
from semcal.models.sample import SamplingConfig
from semcal.recalibration.files import (
    Provenance,
    from_pretrained,
    not_finite,
    read_contents,
    save_pretrained,
    write_contents,
)
from semcal.rows import (
    RECALIBRATOR,
    SAMPLES,
    AnswerKind,
    Json,
    Row,
    RowsAt,
    as_answer_kind,
    as_rows,
)
from semcal.store import write_if_new

if TYPE_CHECKING:
    from semcal.models.protocols import AnyRecalibrator
    from semcal.recalibration.records import Fitted

# ---- Settings ----------------------------------------------------------------------------------------------

#: Share of the labels that is held out for a threshold, if not all of them test it.
APART = 0.4


@dataclass(frozen=True, init=False)
class CalibrationConfig:
    """Settings for learning the probability that an answer is correct, and the risks of thresholds.

    Attributes
    ----------
    answer : {"modal", "greedy", "given"}
        The answer that the probability is for: the most frequent meaning of the samples, the model's answer
        at T = 0, or the `answer` of each row, from any program.
    features : sequence of str
        Numeric columns of the rows as further features: "NAME", or "NAME:falling" if larger values never
        raise the probability.
    signals : sequence of {"self-assessment", "p-true", "verbalised", "token-scores", "question-probe"}
        Statements of the model about its answer as further features (`semcal.calibration.signals`).
    risks : float or sequence of float
        Largest allowed shares of wrong answers among the answers above a threshold. Fewer than 1,000 labeled
        questions (500 if they also choose the temperature of the answer) all test the thresholds, in the
        order of the share of samples; of more, two in five, in whole groups, are held out for this.
    delta : float
        Probability that any of the risks is exceeded.
    grader : Grader, {"rules", "exact", "letter", "nli"} or "judge:openai:URL#MODEL", optional
        Decides whether an answer is correct: by default the rules, or equality if answers are labels.
    score : str, optional
        Numeric column of rows that is calibrated in place of the share of samples: "NAME", whose direction is
        learned, "NAME:rising" or "NAME:falling". By default `probability` or `score` of rows without samples.

    Raises
    ------
    UsageError
        If a share is not between 0 and 1, if an answer kind or signal is unknown, or if two features have
        one name.

    Examples
    --------
    >>> CalibrationConfig(risks=[0.2, 0.1], features=["length:falling"]).risks
    (0.1, 0.2)
    """

    answer: AnswerKind
    features: tuple[ColumnFeature, ...]
    signals: tuple[str, ...]
    risks: tuple[float, ...]  # the smallest first
    delta: float
    grader: Grader | str | None
    score: str | None

    def __init__(
        self,
        answer: AnswerKind = "modal",
        features: Sequence[str | ColumnFeature] = (),
        signals: Sequence[str] = (),
        risks: float | Sequence[float] = (),
        delta: float = 0.05,
        grader: Grader | str | None = None,
        score: str | None = None,
    ) -> None:
        columns = (
            one if isinstance(one, ColumnFeature) else ColumnFeature.parse(one) for one in as_list(features)
        )
        as_option(delta, "delta", "a share between 0 and 1, such as 0.05", low=0, high=1)
        shares = as_list(risks)
        for risk in shares:
            as_option(risk, "risk", "a share between 0 and 1, such as 0.1", low=0, high=1)
        fields = {
            "answer": as_answer_kind(answer),
            "features": tuple(columns),
            "signals": tuple(as_list(signals)),
            "risks": tuple(sorted(set(shares))),
            "delta": delta,
            "grader": grader,
            "score": score,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        _ = self.requested

    @property
    def requested(self) -> list[Feature]:
        """The features of columns and signals."""
        return requested_features(self.features, self.signals)


def calibration_config(
    config: CalibrationConfig | None, options: dict[str, Any], *, of: str
) -> CalibrationConfig:
    """Return the configuration with these options, which must be its fields or `risk`."""
    if (risk := options.pop("risk", None)) is not None:
        if options.get("risks") is not None:
            raise UsageError("risk: given together with risks. Pass all of them as risks")
        options["risks"] = risk
    config = configured(CalibrationConfig, config, options)
    check_options(options, [*options_of(CalibrationConfig), "risk"], of=of)
    return config


def requested_features(columns: Sequence[ColumnFeature], signals: Sequence[str]) -> list[Feature]:
    """Return the features of columns and signals; UsageError if two have one name."""
    features = [column.feature for column in columns]
    features += [feature for signal in signals_named(signals) for feature in signal.features]
    names = [feature.name for feature in features]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"feature: {shown(name)} is given twice. Rename the column")
    return features


def answering_temperatures(rows: RowsAt, *, fixed: bool = False) -> list[float | None]:
    """Return the temperatures that the answer may come from: only the first if it is `fixed` or not 1."""
    first = next(iter(rows))
    return [first] if fixed or first != 1.0 else list(rows)


def grade_answers(features: AnswerFeatures, rows: Sequence[Row], grader: Grader, kind: AnswerKind) -> Floats:
    """Return whether each answer is correct, by people's verdict on a given answer, else by references."""
    answered = list(zip(rows, features.answers))
    return np.array(
        grade_together(grader, lambda marks: [float(grade_answer(marks, *pair, kind)) for pair in answered])
    )


# ---- The calibration ---------------------------------------------------------------------------------------

DecisionWord = Literal["answer", "review", "abstain"]
#: The fields that determine answers, probabilities and abstention: the id of a calibration is their hash.
DECISIVE = (
    "map further m temperature temperatures equivalence equivalence_revision linkage threshold thresholds "
    "answer_kind columns signals max_new_tokens answer_format"
)
ID_LETTERS = 12
#: Decimals of the probabilities that are stored for labeled answers.
DECIMALS = 6


@dataclass(frozen=True)
class Uncertified:
    """The loosest score at which the labels at hand, and perhaps no others, keep a risk."""

    score: float
    answered: Annotated[int, Field(ge=1)]
    errors: LabelCount


@dataclass(frozen=True)
class Threshold:
    """Smallest probability of an answer that is given, for a limit of the risk.

    Of the answers from the threshold on, at most `risk_limit` are wrong. This holds with probability
    1 − `delta`, shown by `n` labeled questions: all of them if a feature orders the answers, otherwise those
    held out. Without a feature, under a constant map, the threshold is compared with shares. `threshold` is
    None if no threshold could be shown.
    """

    threshold: Share | None
    risk_limit: Share
    delta: Share
    n: Annotated[int, Field(ge=1)]
    answered: LabelCount
    errors: LabelCount
    upper_bound: Share | None
    #: Questions, or groups, that would be needed, if no threshold was shown; None if no number suffices.
    questions_needed: int | None = None
    least_risk: Share | None = None  # the smallest risk that could be shown, if no threshold was
    #: If answers are ordered by a feature (`Calibration.ordering`), its smallest value of an answer that is
    #: given; `threshold` is then the smallest probability of such a labeled answer.
    threshold_score: float | None = None
    groups: LabelCount | None = None  # number of tested groups of questions; None without groups
    test: TestName = "exact"  # on one question of each group, or "betting" on all of them
    refused: Share | None = None  # estimate of the share that any rule must refuse, if no threshold was shown
    kept: Uncertified | None = None  # what the labels say without a guarantee, if no threshold was shown

    @property
    def sentence(self) -> str:
        """The guarantee of the threshold, or the number of labels that a guarantee would need."""
        return threshold_sentence(self, self.n)

    @property
    def outlook(self) -> str | None:
        """Sentences about what can be certified if no threshold was shown; None otherwise."""
        if self.threshold is not None or self.refused is None:
            return None
        parts = []
        if self.refused > 0:
            parts.append(f"Any rule must refuse about {self.refused:.0%} of the questions at this risk.")
        if self.least_risk is not None:
            parts.append(f"These labels certify a risk of {self.least_risk:.0%}.")
        if self.kept is not None:
            wrong = self.kept.errors / self.kept.answered
            of_all = f" of {self.n}" if self.groups is None else ""  # n counts one answer of each group
            parts.append(
                f"Without a promise: {self.kept.answered}{of_all} labeled answers have a score of "
                f"{self.kept.score:.3g} or more, and {wrong:.1%} of these are wrong."
            )
        return " ".join(parts) or None


@dataclass(frozen=True)
class LabeledAnswers:
    """The N answers that the map was fitted to, with probabilities of the map, and out of fold.

    If several temperatures were tried, a fold may choose another one. Its answers are then graded separately.
    """

    probability: tuple[Share, ...] = ()
    correct: tuple[bool, ...] = ()
    out_of_fold: tuple[Share, ...] = ()
    correct_out_of_fold: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        if len(set(map(len, vars(self).values()))) > 1:
            raise InputError("the columns of labeled answers must have one length")

    @classmethod
    def of(cls, p: Floats, correct: Floats, out_of_fold: Floats, correct_out_of_fold: Floats) -> Self:
        """Return the answers with rounded probabilities, from arrays (N,)."""
        p, out_of_fold = np.round(p, DECIMALS), np.round(out_of_fold, DECIMALS)
        columns = p, correct == 1, out_of_fold, correct_out_of_fold == 1
        return cls(*(tuple(column.tolist()) for column in columns))


@dataclass(frozen=True)
class CalibratedAnswer:
    """The answer to a question, and the probability that the answer is correct."""

    #: The most frequent wording of the most frequent meaning, or the given answer; None is no answer.
    text: str | None
    meaning: int | None  # the cluster of the answer; None if no sample means the same
    probability: float | None  # None if there is no answer
    #: The probability of each meaning. The sum is below 1 by the probability that no meaning is correct. None
    #: for all meanings but the answer's if `Calibration.further` is None.
    probabilities: tuple[float | None, ...]
    abstained: bool | None  # None without a threshold
    score: float  # the share of samples with this meaning
    map: str  # the name of the map: "none(E-SC)" is the share itself
    decision: DecisionWord | None = None  # if several risks have thresholds
    like: LikeAnswers | None = None  # labeled questions with similar scores
    features: Mapping[str, float | None] = field(default_factory=dict)  # None for an unknown feature


@dataclass(frozen=True)
class _Contents:
    __pydantic_config__ = ConfigDict(defer_build=True)  # only reading a file needs its checks

    map: ProbabilityMap
    further: Share | None
    m: Annotated[int, Field(ge=0, lt=2**31)]
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
    ordering: str | None = None
    score: ScoreColumn | None = None
    moves: tuple[Move, ...] = ()
    probe: QuestionProbe | None = None

    @property
    def base(self) -> str:
        """The name of the confidence without a map: the share of samples, or the score of the rows."""
        return SHARES[0] if self.score is None else self.score.name

    @property
    def requested(self) -> list[Feature]:
        """The requested features: columns of the rows, and signals."""
        return requested_features(self.columns, self.signals)


@dataclass(frozen=True)
class Calibration(_Contents):
    """A map from the samples of a question to the probability that the answer is correct.

    Attributes
    ----------
    map : ProbabilityMap
        The map learned from labeled questions, or "none".
    further : float or None
        The probability that another meaning is correct, given that other meanings exist and the answer is
        wrong. None if no labeled question shows it, as if all labels are verdicts.
    m : int
        Number of samples at each temperature; 0 if a score of the rows is calibrated.
    temperature : float or None
        Temperature of the samples that the answer comes from; None with `recalibrator`, or if unknown.
    temperatures : tuple of float
        Temperatures of further samples, which the map reads or which settle ties of unknown likelihood.
    equivalence, linkage : str
        The name of the equivalence, as passed to `semcal.load_equivalence`, and the linkage.
    merge_refusals : bool
        Whether all refusals to answer are one meaning.
    answer_format : str
        The rule that reads answers from generations, as in `semcal.SemanticUQ`.
    equivalence_revision : str or None
        The revision of the equivalence; None if unknown.
    grader, grader_revision : str or None
        The grader of the labeled answers ("rules", "nli" or a judge with its URL), and the revision of its
        model; None if unknown.
    threshold : Threshold or None
        The threshold; if several risks were given, the threshold for the largest.
    thresholds : tuple of Threshold
        The thresholds if several risks were given, the strictest first. Each holds with probability
        1 − `delta`, and all together with probability 1 − the sum of the deltas.
    report : CalibrationReport
        The candidates, the choice and the figures.
    answer_kind : {"modal", "greedy", "given"}
        The answer that the probability is for: the most frequent meaning of the samples, the model's answer
        at T = 0, or an answer from any program.
    columns, signals : tuple of ColumnFeature, tuple of str
        The columns of the rows, and the signals, that the map reads.
    ancestors : tuple of str
        The ids of the earlier calibrations in a chain of learning again from production, oldest first.
    max_new_tokens : int or None
        The token limit of a sample; None for the default.
    open_book : bool or None
        Whether the labeled questions had a passage; other questions are rejected. None if mixed or unknown.
    labeled : LabeledAnswers
        The answers that the map was fitted to.
    score : ScoreColumn or None
        The column of the rows that is calibrated; None if samples are.
    moves : tuple of Move
        Changes of the probability of the map, each for other data (`Calibrator.move`).
    probe : QuestionProbe or None
        The probe of questions, if the map reads it.
    provenance : Provenance or None
        Model, prompt and data; None if the samples came from a file.
    samples_sha256 : str or None
        The hash of the file `samples.jsonl` in the directory of the calibration; None without the file.
    recalibrator : TokenDistribution or ATS, optional
        The recalibrator used to sample the answers.
    samples : str or None
        The samples as JSON Lines, for `save_pretrained`; None for a loaded calibration.

    Examples
    --------
    >>> import semcal
    >>> from semcal.demo import real
    >>> calibration = semcal.score(real.load()[:100], equivalence="exact").calibrate()
    >>> calibration.m, calibration.report.n
    (10, 100)
    """

    recalibrator: Fitted | None = field(default=None, compare=False)
    samples: str | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        limit = "" if self.threshold is None else f", threshold={self.threshold.threshold}"
        return f"Calibration({self.report.chosen}, {self.report.n} labeled questions, m={self.m}{limit})"

    @cached_property
    def id(self) -> str:
        """The hash of all fields that determine answers, probabilities and abstention."""
        contents = _CONTENTS.dump_python(self, include=set(DECISIVE.split()), mode="json")
        contents["model"] = self.provenance and [self.provenance.revision, self.provenance.prompt_hash]
        contents["recalibrator"] = self.recalibrator and fingerprint(self.recalibrator)
        optional = ("ordering", "ancestors", "score", "moves", "probe")
        contents |= {name: value for name in optional if (value := getattr(self, name))}
        return json_checksum(contents)[:ID_LETTERS]

    @property
    def recalibrators(self) -> dict[float | None, AnyRecalibrator]:
        """The recalibrators used to sample a question, by temperature; the answer's is the first."""
        first = self.recalibrator or Temperature(1.0 if self.temperature is None else self.temperature)
        return {self.temperature: first, **{t: Temperature(t) for t in self.temperatures}}

    @property
    def cluster(self) -> ClusterConfig:
        """The settings of clustering."""
        return ClusterConfig(self.equivalence, self.linkage, self.merge_refusals)

    @property
    def sampling(self) -> SamplingConfig:
        """The settings of sampling, with the default seed."""
        return SamplingConfig(
            self.m,
            temperatures=(self.temperature or 1.0, *self.temperatures),
            max_new_tokens=self.max_new_tokens,
            answer_format=self.answer_format,
        )

    @property
    def prompt(self) -> PromptConfig:
        """The prompt settings: template, few-shot examples, and whether questions have a passage."""
        description = {} if self.provenance is None else self.provenance.prompt
        return replace(PromptConfig.from_description(description), open_book=self.open_book)

    def apply(self, rows: Mapping[float | None, Sequence[Row | Json]] | Samples) -> list[CalibratedAnswer]:
        """Return the answer to each question with its probability.

        Parameters
        ----------
        rows : mapping of temperature to rows
            Clustered and measured rows at `temperature`, first, and at each of `temperatures`. If a score is
            calibrated: a file, DataFrame or dicts with the score.

        Returns
        -------
        list of CalibratedAnswer
            One for each row, in order, with `text`, `probability` and `abstained`.

        Raises
        ------
        InputError
            If a row does not have `m` samples, a temperature is missing, or a score is not a finite number.
        """
        features, first = self.read(rows)
        if not first:  # the server answered no question
            return []
        probability, scores = self.predict(features)
        orders = scores if self.ordering is None else order_by(self.ordering, self._complete(features))
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
                abstained=text is None or self.abstains(order),
                score=base,
                map=self.map.candidate.name,
                decision=self.decide(-math.inf if text is None else order),
                like=None if text is None else self.report.like_answers(score),
                features={} if text is None else dict(zip(columns, by_name)),
            )
            for text, meaning, p, score, order, base, row, *by_name in zip(
                features.answers,
                features.meanings,
                probability.tolist(),
                scores.tolist(),
                orders.tolist(),
                features.values[self.base].tolist(),
                first,
                *columns.values(),
            )
        ]

    def read(self, rows: Any) -> tuple[AnswerFeatures, list[Row]]:
        """Return the features of rows as `apply` takes them, and the rows of the answers."""
        if self.score is not None:
            at_none = rows.get(None) if isinstance(rows, Mapping) else None
            scored = as_sample_rows(rows, "rows", scored=True) if at_none is None else as_rows(at_none)
            scored = [scored_row(row) for row in scored]
            return score_features(scored, self.score.values(scored), self.score, self.columns), scored
        first, rows_at = next(iter(rows)), {t: as_rows(part) for t, part in rows.items()}
        missing = [t for t in self.temperatures if t not in rows_at]
        if missing and rows_at[first]:
            raise InputError(
                f"the rows have no samples at T = {', '.join(f'{t:g}' for t in missing)}, which the "
                "calibration reads. Sample at these temperatures too, or calibrate again without them"
            )
        rows_at = {t: rows_at.get(t, []) for t in (first, *self.temperatures)}
        for row in (row for part in rows_at.values() for row in part):
            if len(row.samples) != self.m:
                raise InputError(
                    f"question {row.id!r} has {len(row.samples)} samples, expected {self.m} as in the "
                    f"calibration. Sample with --m {self.m}, or calibrate again"
                )
        answered = answered_rows(rows_at, self.answer_kind) if self.signals else []
        check_signals(self.signals, answered)
        features = features_of(rows_at, self.answer_kind, self.requested)
        return features if self.probe is None else self.probe.add_to(features, answered), rows_at[first]

    def predict(self, features: AnswerFeatures) -> tuple[Floats, Floats]:
        """Return the probabilities (n,) of answers, and the scores (n,) that a threshold is compared with."""
        values = self._complete(features)
        p = self.map.predict(values)
        for move in self.moves:
            p = move.apply(p)
        return p, self.map.scores(values) if self.map.candidate.kind == "constant" else p

    def _complete(self, features: AnswerFeatures) -> dict[str, Floats]:
        """Return the features that the calibration reads, NaN (n,) for features that no row has."""
        read = [*self.map.features, *([self.ordering] if self.ordering else [])]
        return {name: np.full(len(features.answers), np.nan) for name in read} | dict(features.values)

    @property
    def all_thresholds(self) -> tuple[Threshold, ...]:
        """All thresholds, the strictest first; empty without a risk."""
        return self.thresholds or ((self.threshold,) if self.threshold else ())

    @property
    def limit(self) -> float | None:
        """The value of the threshold, if one was shown to hold."""
        return None if self.threshold is None else self.threshold.threshold

    def accepts(self, order: float, threshold: Threshold) -> bool:
        """Return whether an answer reaches a threshold; `order` is its probability or its `ordering`."""
        limit = threshold.threshold if self.ordering is None else threshold.threshold_score
        return limit is not None and order >= limit

    def abstains(self, order: float) -> bool | None:
        """Return whether an answer abstains; None without a threshold."""
        return None if self.threshold is None else not self.accepts(order, self.threshold)

    def decide(self, order: float) -> DecisionWord | None:
        """Return "answer", "review" or "abstain" for an answer; None unless several risks were given."""
        if not self.thresholds:
            return None
        if self.accepts(order, self.thresholds[0]):
            return "answer"
        return "abstain" if self.abstains(order) else "review"

    @property
    def bands(self) -> list[dict[str, Any]] | None:
        """The thresholds in the form of rows, strictest first; None unless several risks were given."""
        return [
            {"risk": one.risk_limit, "delta": one.delta, "threshold": one.threshold, "n": one.n}
            for one in self.thresholds
        ] or None

    @property
    def risk(self) -> float | None:
        """The risk of the only threshold; None without a threshold, or with several (see `bands`)."""
        return self.threshold.risk_limit if self.threshold and not self.thresholds else None

    def _of_meanings(self, row: Row, meaning: int | None, p: float) -> tuple[float | None, ...]:
        """Return p for the meaning of the answer, and the rest by share; 0 for "no answer"."""
        if self.score is not None:
            return ()
        counts = [0 if k == meaning else len(c) * row.has_answer(c) for k, c in enumerate(row.clusters)]
        left = None if self.further is None else (1 - p) * self.further
        others = [0.0 if n == 0 else left and left * n / sum(counts) for n in counts]
        return tuple(p if k == meaning else other for k, other in enumerate(others))

    def save_pretrained(self, directory: str | Path) -> Path:
        """Write `directory`/calibration.json and return its path.

        The recalibrator and `samples.jsonl`, if there are any, are written first.
        """
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        if self.recalibrator is not None:
            assert self.provenance is not None
            save_pretrained(self.recalibrator, folder / RECALIBRATOR, provenance=self.provenance)
        if self.samples is not None:
            write_if_new(folder / SAMPLES, self.samples)
        digest = None if self.samples is None else sha256(self.samples.encode()).hexdigest()
        bare = replace(self, recalibrator=None, samples=None, samples_sha256=digest)
        contents = {**vars(bare), "recalibrator": None if self.recalibrator is None else RECALIBRATOR}
        del contents["samples"]
        return write_contents(folder, CALIBRATION, contents)

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> Calibration:
        """Load a calibration that `save_pretrained` or `semcal calibrate` wrote.

        Raises
        ------
        UsageError
            If the directory holds no calibration, or a recalibrator instead.
        StoreError
            If the file is damaged, or holds an invalid value.
        """
        contents, path = read_contents(directory, CALIBRATION)
        inner = contents.pop("recalibrator", None)
        for where, value in not_finite(contents):
            expected = f"{where}: expected a finite number, got {shown(value)}"
            raise StoreError(f"{path}: {expected}. Calibrate again")
        try:
            checked = _CONTENTS.validate_json(dumps(contents), strict=True)
        except (ValidationError, InputError) as error:
            raise StoreError(f"{path}: {error}. Calibrate again") from error
        fitted = None if inner is None else from_pretrained(path.parent / RECALIBRATOR)[0]
        return cls(**vars(checked), recalibrator=fitted)


_CONTENTS = TypeAdapter(_Contents)


def as_calibration(calibration: object) -> Calibration:
    """Return a calibration; a directory, hub id or name is loaded."""
    if isinstance(calibration, str | Path):
        return Calibration.from_pretrained(calibration)
    if isinstance(calibration, Calibration):
        return calibration
    raise UsageError(
        f"calibration: expected a calibration, got {shown(calibration)}. Pass the result of "
        "semcal.calibrate, or the directory that it was saved in"
    )
