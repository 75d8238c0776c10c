"""Calibrated confidence: the probability that an answer is right, and a threshold (spec section 11)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from semcal import metrics
from semcal.errors import FitError, InputError, SemcalWarning, StoreError, UndefinedWarning
from semcal.hub_names import CALIBRATION
from semcal.metrics.frequencies import Floats, Groups
from semcal.metrics.probability_maps import (
    MapScore,
    ProbabilityMap,
    choose_map,
    part_of,
    predict_out_of_fold,
)
from semcal.pipeline.prompting import PromptConfig
from semcal.pipeline.rows import answers_of, first_repeated, identity
from semcal.pipeline.sample_features import (
    AnswerFeatures,
    RowsAt,
    candidates_for,
    features_of,
    representative,
)
from semcal.qa.grading import Grader, RuleGrader
from semcal.qa.questions import several, ties_of
from semcal.recalibration.attentive import AnyRecalibrator
from semcal.recalibration.provenance import Provenance, check_enough, warn_if_few
from semcal.recalibration.saving import (
    Fitted,
    from_pretrained,
    read_contents,
    save_pretrained,
    write_contents,
)
from semcal.recalibration.temperature import Temperature

__all__ = ["CalibratedAnswer", "Calibration", "CalibrationReport", "Threshold", "calibrate_rows"]

#: The share of the labelled questions that is kept apart for a threshold.
APART = 0.4
#: Shares of the labels of the learning curve.
SHARES = (0.25, 0.5, 0.75)
#: The folder of the recalibrator under which the answer is sampled, if there is one.
RECALIBRATOR = "recalibrator"
#: What is reported of Base and of the calibrated probability.
FIGURES = ("accuracy", "mean_confidence", "ace", "ace_floor", "ace_floor_95", "brier", "auroc", "gain")


@dataclass(frozen=True)
class Threshold:
    """Answer from this probability on; the error rate among the answered is then at most `risk_limit`.

    That holds with probability 1 − `delta`, from `n` questions kept apart from everything that was fitted.
    `threshold` is None where none could be shown to hold.
    """

    threshold: float | None
    risk_limit: float
    delta: float
    n: int
    answered: int
    errors: int
    upper_bound: float | None


@dataclass(frozen=True)
class CalibrationReport:
    """What was chosen and how good it is; figures of the calibrated probability are out of fold."""

    n: int  # labelled questions that the map was fitted to
    apart: int  # labelled questions that the threshold alone was set on
    chosen: str
    candidates: tuple[Mapping[str, Any], ...]  # name, gain, above (no map), standard_error
    base: Mapping[str, float | None]  # accuracy, mean_confidence, ace, …; None where undefined
    calibrated: Mapping[str, float | None]
    learning_curve: tuple[Mapping[str, Any], ...]  # labels, gain
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class CalibratedAnswer:
    """The answer to a question, and the probability that it is right."""

    text: str  # the commonest wording of the most frequent meaning
    meaning: int  # its cluster
    probability: float
    probabilities: tuple[float, ...]  # of each meaning; they add up to 1 less that of no meaning being right
    abstained: bool | None  # None without a threshold


@dataclass(frozen=True)
class _Contents:
    """What the file of a calibration holds."""

    map: ProbabilityMap
    further: float
    m: int
    temperature: float | None
    temperatures: tuple[float, ...]
    equivalence: str
    linkage: str
    threshold: Threshold | None
    report: CalibrationReport
    max_new_tokens: int | None = None
    provenance: Provenance | None = None


@dataclass(frozen=True)
class Calibration(_Contents):
    """A map from the samples of a question to the probability that its answer is right.

    Attributes
    ----------
    map : ProbabilityMap
        Learnt from labelled questions, or "none".
    further : float
        The probability that one of the other meanings is right where the answer is wrong.
    m : int
        Draws at each temperature.
    temperature : float or None
        Of the draws that the answer comes from; None under `recalibrator`, or where nobody knows.
    temperatures : tuple of float
        Of the further draws that the map reads.
    equivalence, linkage : str
        How meanings were found: the name of the equivalence, as given to `semcal.load_equivalence`.
    threshold : Threshold or None
    report : CalibrationReport
    max_new_tokens : int or None
    provenance : Provenance or None
        Model, prompt and data; None where the samples came from a file.
    recalibrator : Recalibrator or ATS, optional
        What the answers are sampled under.
    """

    recalibrator: Fitted | None = field(default=None, compare=False)

    @property
    def recalibrators(self) -> dict[float | None, AnyRecalibrator]:
        """What to sample a question under: temperature → recalibrator, that of the answer first."""
        own = self.recalibrator or Temperature(1.0 if self.temperature is None else self.temperature)
        return {self.temperature: own, **{t: Temperature(t) for t in self.temperatures}}

    @property
    def asking(self) -> PromptConfig:
        """The few-shot examples before every question."""
        return PromptConfig.from_description({} if self.provenance is None else self.provenance.prompt)

    def apply(self, rows: RowsAt) -> list[CalibratedAnswer]:
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
        first = next(iter(rows))
        missing = [t for t in self.temperatures if t not in rows]
        if missing:
            raise InputError(
                f"the calibration reads draws at T = {', '.join(f'{t:g}' for t in missing)}, which the rows "
                "lack; sample at these temperatures too, or calibrate with what the rows have"
            )
        for row in (row for t in (first, *self.temperatures) for row in rows[t]):
            if len(row["samples"]) != self.m:
                raise InputError(
                    f"question {identity(row)!r} has {len(row['samples'])} draws, and the calibration was "
                    f"made with {self.m}; sample with --m {self.m}, or calibrate again"
                )
        features = features_of({t: rows[t] for t in (first, *self.temperatures)})
        lacking = {name: np.full(len(features.answers), np.nan) for name in self.map.candidate.features}
        probabilities = self.map.predict(lacking | dict(features.values))
        return [
            self._answer(text, meaning, float(p), row)
            for text, meaning, p, row in zip(features.answers, features.meanings, probabilities, rows[first])
        ]

    def _answer(self, text: str, meaning: int, p: float, row: Mapping[str, Any]) -> CalibratedAnswer:
        shares = np.array([len(cluster) for cluster in row["clusters"]], dtype=np.float64)
        shares[meaning] = 0.0
        others = (1 - p) * self.further * shares / max(shares.sum(), 1.0)
        others[meaning] = p
        limit = None if self.threshold is None else self.threshold.threshold
        abstained = None if self.threshold is None else limit is None or p < limit
        return CalibratedAnswer(text, meaning, p, tuple(map(float, others)), abstained)

    def save_pretrained(self, directory: str | Path) -> Path:
        """Write `directory`/calibration.json (and the recalibrator, if there is one); return its path."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        if self.recalibrator is not None:
            assert self.provenance is not None
            save_pretrained(self.recalibrator, folder / RECALIBRATOR, provenance=self.provenance)
        contents = asdict(replace(self, recalibrator=None))
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
        try:
            found = _CONTENTS.validate_python(contents)
        except (ValidationError, InputError) as error:
            raise StoreError(f"{path}: {error}; calibrate again") from error
        fitted = None if inner is None else from_pretrained(path.parent / RECALIBRATOR)[0]
        return cls(**vars(found), recalibrator=fitted)


def calibrate_rows(
    rows: RowsAt,
    *,
    equivalence: str,
    linkage: str = "components",
    grader: Grader | None = None,
    risk: float | None = None,
    delta: float = 0.05,
    seed: int = 0,
    max_new_tokens: int | None = None,
    provenance: Provenance | None = None,
    recalibrator: Fitted | None = None,
) -> Calibration:
    """Learn the probability that an answer is right from the samples of labelled questions.

    Parameters
    ----------
    rows : mapping of temperature to rows
        The same questions with `id`, `answers`, `samples`, `clusters` and the measures, clustered at each
        temperature by themselves; the first draws are those of the answer, with key None where they are
        under `recalibrator` or of an unknown temperature.
    grader : Grader, optional
        Decides whether the answer's one wording is right; the rules of spec section 7 by default.
    risk, delta : float
        With `risk`, two in five of the questions (whole groups of them) are kept apart, and the loosest
        threshold is set on them whose error rate is shown to be at most `risk`, with probability 1 − `delta`.
    seed : int
        Of the folds and of what is kept apart.

    Raises
    ------
    FitError
        If there are fewer than 5 labelled questions.
    InputError
        If an id occurs twice, or a row has another number of draws.

    Warns
    -----
    SemcalWarning
        Below 50 labelled questions; where all answers are right or all wrong; where all have one share.
    """
    first, own = next(iter(rows.items()))
    repeated = first_repeated([identity(row) for row in own])
    if repeated is not None:
        raise InputError(f"the question id {repeated!r} occurs twice; ids must be distinct")
    check_enough(len(own), of="to calibrate on")
    warn_if_few(len(own), of="to calibrate on")
    m = len(own[0]["samples"])
    for row in (row for of_one in rows.values() for row in of_one):
        if len(row["samples"]) != m:
            raise InputError(
                f"question {identity(row)!r} has {len(row['samples'])} draws and others have {m}; a "
                "calibration is for one number of draws"
            )
    features = features_of(rows)
    correct = _graded(features, own, grader or RuleGrader())
    groups = several(map(ties_of, own))
    apart = _kept_apart(len(own), groups, seed) if risk is not None else np.zeros(len(own), dtype=bool)
    learnt = _Learnt.from_labels(features, correct, groups, ~apart, seed)
    calibration = Calibration(
        map=learnt.map,
        further=_further(own, features, correct, ~apart, grader or RuleGrader()),
        m=m,
        temperature=first,
        temperatures=tuple(t for t in list(rows)[1:] if t is not None and _reads(learnt.map, t)),
        equivalence=equivalence,
        linkage=linkage,
        threshold=None,
        report=learnt.report(apart=int(apart.sum())),
        max_new_tokens=max_new_tokens,
        provenance=provenance,
        recalibrator=recalibrator,
    )
    if risk is None:
        return calibration
    p = learnt.map.predict(part_of(features.values, apart))
    return replace(calibration, threshold=_threshold(p, correct[apart], risk, delta))


def _reads(chosen: ProbabilityMap, temperature: float) -> bool:
    return any(name.endswith(f" at T={temperature:g}") for name in chosen.candidate.features)


def _graded(features: AnswerFeatures, rows: Sequence[Mapping[str, Any]], grader: Grader) -> Floats:
    return np.array(
        [
            float(grader.grade(str(row.get("question", "")), [text], answers_of(row)).correct)
            for text, row in zip(features.answers, rows)
        ]
    )


def _kept_apart(n: int, groups: Groups | None, seed: int) -> NDArray[np.bool_]:
    """Two in five of the questions, whole groups of them."""
    label = np.arange(n) if groups is None else groups
    order = np.random.default_rng([seed, 2]).permutation(int(label.max()) + 1)
    sizes = np.bincount(label)[order]
    return np.isin(label, order[np.cumsum(sizes) <= APART * n])


def _threshold(p: Floats, correct: Floats, risk: float, delta: float) -> Threshold:
    if not len(p):
        raise FitError("no labelled question can be kept apart for a threshold; label more, or more groups")
    found = metrics.risk_controlled_threshold(p, correct, risk_limit=risk, delta=delta)
    bound = None if np.isnan(found.upper_bound) else found.upper_bound
    return Threshold(found.threshold, risk, delta, len(p), found.answered, found.errors, bound)


def _further(
    rows: Sequence[Mapping[str, Any]],
    features: AnswerFeatures,
    correct: Floats,
    fitted: NDArray[np.bool_],
    grader: Grader,
) -> float:
    """How often a further meaning is right where the answer is wrong: (k + 1) / (n + 2)."""
    wrong = np.flatnonzero(fitted & (correct == 0))
    right = 0
    for i in map(int, wrong):
        row = rows[i]
        texts = [
            representative(row["samples"], cluster)
            for k, cluster in enumerate(row["clusters"])
            if k != features.meanings[i]
        ]
        right += bool(texts) and grader.grade(str(row.get("question", "")), texts, answers_of(row)).correct
    return (right + 1) / (len(wrong) + 2)


@dataclass(frozen=True)
class _Learnt:
    """The chosen map, and how good it and its rivals were."""

    map: ProbabilityMap
    scores: tuple[MapScore, ...]
    share: Floats
    out_of_fold: Floats
    correct: Floats
    curve: tuple[Mapping[str, Any], ...]

    @classmethod
    def from_labels(
        cls,
        features: AnswerFeatures,
        correct: Floats,
        groups: Groups | None,
        fitted: NDArray[np.bool_],
        seed: int,
    ) -> _Learnt:
        values, labels = part_of(features.values, fitted), correct[fitted]
        candidates = candidates_for(features)
        how: dict[str, Any] = {"groups": None if groups is None else groups[fitted], "seed": seed}
        chosen = choose_map(values, labels, candidates, **how)
        out = predict_out_of_fold(values, labels, candidates, **how)
        rng = np.random.default_rng([seed, 3])
        curve = []
        for share in SHARES:
            part = rng.permutation(len(labels)) < share * len(labels)
            if part.sum() < 25:
                continue
            few = choose_map(part_of(values, part), labels[part], candidates, seed=seed)
            p, c = few.map.predict(part_of(values, ~part)), labels[~part]
            curve.append({"labels": int(part.sum()), "gain": float(np.mean(p * (2 * c - p)))})
        curve.append({"labels": len(labels), "gain": float(np.mean(out * (2 * labels - out)))})
        return cls(chosen.map, chosen.scores, values["E-SC"], out, labels, tuple(curve))

    def report(self, *, apart: int) -> CalibrationReport:
        """Figures beside those of Base, and what to be wary of."""
        found = CalibrationReport(
            n=len(self.correct),
            apart=apart,
            chosen=self.map.candidate.name,
            candidates=tuple(
                {
                    "name": one.candidate.name,
                    "gain": one.gain,
                    "above": one.above,
                    "standard_error": one.standard_error,
                }
                for one in self.scores
            ),
            base=_figures(self.share, self.correct),
            calibrated=_figures(self.out_of_fold, self.correct),
            learning_curve=self.curve,
            warnings=tuple(self._problems()),
        )
        for problem in found.warnings:
            warnings.warn(problem, SemcalWarning, stacklevel=4)
        return found

    def _problems(self) -> list[str]:
        """What limits what could be learnt."""
        n, right = len(self.correct), int(self.correct.sum())
        found = []
        if min(right, n - right) < 5:
            kind = "right" if right < n - right else "wrong"
            found.append(
                f"only {min(right, n - right)} of {n} answers are {kind}, and a map takes 5 of each: the "
                "share is left as it is; label more questions, or harder and easier ones"
            )
        if np.ptp(self.share) == 0:
            found.append(
                f"all {n} answers have the same share ({self.share[0]:g}), which tells none from another; "
                "see that the samples were drawn at a temperature above 0 and not copied"
            )
        return found


def _figures(p: Floats, correct: Floats) -> dict[str, float | None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)
        found = metrics.summary(p, correct)
    return {name: None if np.isnan(found[name]) else float(found[name]) for name in FIGURES if name in found}


_CONTENTS = TypeAdapter(_Contents)
