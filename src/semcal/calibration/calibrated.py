"""Calibrated confidence: the probability that an answer is right, and a threshold (spec section 11)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from semcal.calibration.answer_features import FEATURES, falls, features_of
from semcal.errors import InputError, SemcalWarning, StoreError, shown
from semcal.files import dumps
from semcal.hub_names import CALIBRATION
from semcal.metrics.probability_maps import ProbabilityMap
from semcal.metrics.thresholds import threshold_sentence
from semcal.models.language_model import PromptConfig
from semcal.recalibration.attentive import AnyRecalibrator
from semcal.recalibration.provenance import Provenance
from semcal.recalibration.saving import (
    Fitted,
    check_provenance,
    from_pretrained,
    not_finite,
    read_contents,
    save_pretrained,
    write_contents,
)
from semcal.recalibration.temperature import Temperature
from semcal.rows import RECALIBRATOR, SAMPLES, Decision, Json, Row, RowsAt, as_rows
from semcal.store import write_if_new

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


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
    answered: Count
    errors: Count
    upper_bound: Share | None
    questions_needed: int | None = None  # kept apart, where none is shown to hold; None if no number would do
    least_risk: Share | None = None  # where none is shown to hold: a smaller risk could not be

    @property
    def sentence(self) -> str:
        """What it promises, or what would be needed for a promise."""
        return threshold_sentence(self, self.n)


@dataclass(frozen=True)
class CalibrationReport:
    """What was chosen and how good it is; figures of the calibrated probability are out of fold."""

    n: int  # labelled questions that the map was fitted to
    apart: int  # labelled questions that the threshold alone was set on
    chosen: str
    candidates: tuple[Mapping[str, Any], ...]  # name, gain, above (no map), standard_error
    base: Mapping[str, float | None]  # accuracy, mean_confidence, ace, …; None where undefined
    calibrated: Mapping[str, float | None]
    learning_curve: tuple[Mapping[str, Any], ...]  # labels, gain_above_base
    warnings: tuple[str, ...] = ()
    base_at_one: Mapping[str, float | None] | None = None  # at T = 1, where others were tried
    temperatures: tuple[Mapping[str, Any], ...] = ()  # temperature, gain, above, standard_error
    first: tuple[str, ...] = ()  # what to know and do before anything else

    @property
    def why(self) -> str:
        """What was chosen, and by how much it is ahead."""
        best = max(self.candidates, key=lambda candidate: candidate["above"])
        if self.chosen.startswith("constant"):
            p = ((self.base["accuracy"] or 0.0) * self.n + 1) / (self.n + 2)
            return (
                f"No map is better than one probability for all answers, {p:.3f}; which are likelier to be "
                "right the share tells, with which a threshold is compared."
            )
        if self.chosen.startswith("none"):
            return (
                f"The answer gets its share (as good as any map that was learnt): the best, {best['name']}, "
                f"would gain {best['above']:+.3f} ± {best['standard_error']:.3f}, no more than chance."
            )
        chosen = next(candidate for candidate in self.candidates if candidate["name"] == self.chosen)
        return (
            f"Chosen: {self.chosen}, whose cross-validated gain is {chosen['above']:+.3f} ± "
            f"{chosen['standard_error']:.3f} above that of the share as it is."
        )

    @property
    def answered_at(self) -> str | None:
        """At which temperature answers are drawn, and why; None where one alone was at hand."""
        best = max(self.temperatures[1:], key=lambda at: at["above"], default=None)
        if best is None:
            return None
        by = f"{best['above']:+.3f} ± {best['standard_error']:.3f}"
        if best["above"] > best["standard_error"]:
            return f"Answers are drawn at T = {best['temperature']:g}, which gains {by} above T = 1."
        return f"Answers are drawn at T = 1; at T = {best['temperature']:g} they would gain {by}."

    @property
    def advice(self) -> tuple[str, ...]:
        """What further labels would bring, if there are enough to say."""
        halves = [point for point in self.learning_curve if point["labels"] <= self.n / 2]
        if not halves:
            return ()
        half, full = halves[-1], self.learning_curve[-1]
        before, after = (point["gain_above_base"] for point in (half, full))
        return (
            f"Gain above Base: {before:+.3f} with {half['labels']} labels, {after:+.3f} with "
            f"{full['labels']}; twice as many would add about {max(0.0, after - before) / 2:.3f}.",
        )


@dataclass(frozen=True)
class CalibratedAnswer:
    """The answer to a question, and the probability that it is right."""

    text: str  # the commonest wording of the most frequent meaning
    meaning: int  # its cluster
    probability: float
    probabilities: tuple[float, ...]  # of each meaning; they add up to 1 less that of no meaning being right
    abstained: bool | None  # None without a threshold
    score: float  # its share of the draws
    map: str  # what made the probability: "none(E-SC)" is the share itself


@dataclass(frozen=True)
class _Contents:
    """What the file of a calibration holds."""

    map: ProbabilityMap
    further: Share
    m: Annotated[int, Field(ge=2, lt=2**31)]
    temperature: Positive | None
    temperatures: tuple[Positive, ...]
    equivalence: str
    linkage: str
    threshold: Threshold | None
    report: CalibrationReport
    max_new_tokens: int | None = None
    provenance: Provenance | None = None
    equivalence_revision: str | None = None
    grader: str | None = None
    grader_revision: str | None = None
    samples_sha256: str | None = None

    def check(self) -> None:
        """Raise InputError for what types cannot tell: an unknown feature, a choice that was not tried."""
        names = {*FEATURES, *(f"{kind} at T={t:g}" for t in self.temperatures for kind in FEATURES)}
        unknown = [name for name in self.map.candidate.features if name not in names]
        tried = [candidate.get("name") for candidate in self.report.candidates]
        if unknown or self.report.chosen not in tried:
            what = f"feature {shown(unknown[0])}" if unknown else f"chosen map {shown(self.report.chosen)}"
            raise InputError(f"there is no {what}")

    def warn_if_turned(self, path: Path) -> None:
        """Warn where the map rises as agreement falls, as earlier versions could learn it."""
        slopes = zip(self.map.candidate.features, self.map.parameters.get("slopes", ()))
        turned = [name for name, slope in slopes if (slope > 0 if falls(name) else slope < 0)]
        if turned:
            text = f"{path}: its map falls as the draws agree more ({', '.join(turned)}); calibrate again"
            warnings.warn(f"{text}, until then it is used as it is", SemcalWarning, stacklevel=3)


@dataclass(frozen=True)
class Calibration(_Contents):
    """A map from the samples of a question to the probability that its answer is right.

    Attributes
    ----------
    map : ProbabilityMap
        Learnt from labelled questions, or "none".
    further : float
        The probability that one of the other meanings is right, where there are some and the answer is wrong.
    m : int
        Draws at each temperature.
    temperature : float or None
        Of the draws that the answer comes from; None under `recalibrator`, or where nobody knows.
    temperatures : tuple of float
        Of the further draws that the map reads, or that settle ties where likelihoods are unknown.
    equivalence, linkage : str
        How meanings were found: the name of the equivalence, as given to `semcal.load_equivalence`.
    equivalence_revision : str or None
        None where nobody knows.
    grader, grader_revision : str or None
        By what the labelled answers were graded: "rules", "nli" or a judge with its URL; and the revision of
        the model that it asked. None where nobody knows.
    threshold : Threshold or None
    report : CalibrationReport
    max_new_tokens : int or None
    provenance : Provenance or None
        Model, prompt and data; None where the samples came from a file.
    samples_sha256 : str or None
        Of the file `samples.jsonl` beside it; None where there is none.
    recalibrator : Recalibrator or ATS, optional
        What the answers are sampled under.
    samples : str or None
        What was sampled to make it, as JSON Lines, for `save_pretrained`; None once it was loaded.
    examples : tuple of dict
        Three of the labelled questions: `question`, `answer`, `reference`, `correct`; empty once loaded.

    Examples
    --------
    >>> Calibration.from_pretrained("atlas").m
    10
    """

    recalibrator: Fitted | None = field(default=None, compare=False)
    samples: str | None = field(default=None, compare=False)
    examples: tuple[Mapping[str, Any], ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        limit = "" if self.threshold is None else f", threshold={self.threshold.threshold}"
        return f"Calibration({self.report.chosen}, {self.report.n} labelled questions, m={self.m}{limit})"

    @property
    def recalibrators(self) -> dict[float | None, AnyRecalibrator]:
        """What to sample a question under: temperature → recalibrator, that of the answer first."""
        first = self.recalibrator or Temperature(1.0 if self.temperature is None else self.temperature)
        return {self.temperature: first, **{t: Temperature(t) for t in self.temperatures}}

    @property
    def asking(self) -> PromptConfig:
        """The few-shot examples before every question."""
        return PromptConfig.from_description({} if self.provenance is None else self.provenance.prompt)

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
        features = features_of({t: rows_at[t] for t in (first, *self.temperatures)})
        lacking = {name: np.full(len(features.answers), np.nan) for name in self.map.candidate.features}
        values = lacking | dict(features.values)
        return [
            CalibratedAnswer(
                text=text,
                meaning=meaning,
                probability=p,
                probabilities=self._of_meanings(row, meaning, p),
                abstained=self.abstains(score),
                score=share,
                map=self.map.candidate.name,
            )
            for text, meaning, p, score, share, row in zip(
                features.answers,
                features.meanings,
                self.map.predict(values).tolist(),
                self.map.scores(values).tolist(),
                features.values["E-SC"].tolist(),
                rows_at[first],
            )
        ]

    @property
    def limit(self) -> float | None:
        """The threshold, where one was shown to hold."""
        return None if self.threshold is None else self.threshold.threshold

    def abstains(self, score: float) -> bool | None:
        """Whether an answer of this score abstains; None without a threshold."""
        return None if self.threshold is None else self.limit is None or score < self.limit

    def _of_meanings(self, row: Row, meaning: int, p: float) -> tuple[float, ...]:
        """The probability of each meaning: that of the answer, and the others by their shares."""
        shares = np.array([len(cluster) for cluster in row.clusters], dtype=np.float64)
        shares[meaning] = 0.0
        probabilities = (1 - p) * self.further * shares / max(shares.sum(), 1.0)
        probabilities[meaning] = p
        return tuple(map(float, probabilities))

    def decisions(self, rows: RowsAt) -> list[Decision]:
        """Return what `apply` does, as it is written into rows."""
        return [
            Decision(one.text, one.probability, one.score, self.limit, one.abstained)
            for one in self.apply(rows)
        ]

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
            checked.warn_if_turned(path)
        except (ValidationError, InputError) as error:
            raise StoreError(f"{path}: {error}; calibrate again") from error
        fitted = None if inner is None else from_pretrained(path.parent / RECALIBRATOR)[0]
        return cls(**vars(checked), recalibrator=fitted)


_CONTENTS = TypeAdapter(_Contents)
