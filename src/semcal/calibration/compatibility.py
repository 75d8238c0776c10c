"""Check that a calibration holds for settings, a model, an equivalence or rows, and apply it to rows."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from semcal.calibration.calibration import CalibratedAnswer, Calibration
from semcal.calibration.features import check_scored, scored_row
from semcal.errors import InputError, SemcalWarning, UsageError, shown
from semcal.inputs import check_clustered_by
from semcal.measuring import MeasureOptions, check_measurable, measure_at, measure_rows
from semcal.models.clustering import match_at
from semcal.models.distribution import fingerprint, temperature_of
from semcal.models.equivalence import (
    Equivalence,
    address_of,
    is_same_equivalence,
)
from semcal.models.prompting import PromptConfig
from semcal.models.protocols import Sampler
from semcal.models.sample import default_max_new_tokens
from semcal.recalibration.files import Provenance
from semcal.rows import NO_ANSWER, STATED, AnswerKind, Decision, Row, RowsAt, rows_by_temperature
from semcal.steps import Step

if TYPE_CHECKING:
    from semcal.models.protocols import AnyRecalibrator

#: The options of `semcal sample` for the fields of `sampled_by`.
OPTIONS = {"m": "--m", "max_new_tokens": "--max-new-tokens", "temperature": "--temperature"}
_REMEDY = "Use the settings that sampled the rows, or sample again"


def check_beside(calibration: Calibration, settings: Mapping[str, object]) -> None:
    """Raise UsageError for settings that the calibration sets.

    `settings` maps names, such as "m" or "--m", to values, or to None if they were left out. The prompt may
    be set if the calibration is of stored samples, and `abstain_below` if it has no threshold.
    """
    free = {"few_shot", "system", "template", "vary"} if calibration.provenance is None else set()
    free |= {"abstain_below"} if calibration.threshold is None else set()
    names = [
        name
        for name, value in settings.items()
        if value is not None and name.removeprefix("--").replace("-", "_") not in free
    ]
    if names:
        raise UsageError(
            f"{', '.join(names)}: not allowed with a calibration, which decides this. Leave it out, or "
            "calibrate again with it"
        )


def check_answer_kind(calibration: Calibration | None, kind: AnswerKind | None) -> None:
    """Raise UsageError if a calibration was learned for answers of another kind than `kind`, if given."""
    learned = kind if calibration is None else calibration.answer_kind
    if kind not in (None, learned):
        raise UsageError(
            f"answer: {kind!r}, but the calibration was learned for {learned!r} answers, and its "
            f"probabilities hold for these alone. Calibrate again with answer={kind!r} (--answer {kind})"
        )


def check_answer_format(calibration: Calibration, name: str | None, whose: str = "--answer-format") -> None:
    """Raise UsageError if answers were read by another format than in the calibration; None passes."""
    learned = calibration.answer_format
    if name not in (None, learned):
        raise UsageError(
            f"{whose}: answers are read by the format {shown(name)}, and the calibration was learned with "
            f"{shown(learned)}. Sample or import with --answer-format {learned}, or calibrate again on "
            "answers that are read by the other format"
        )


def equivalence_of(
    calibration: Calibration, equivalence: Equivalence | str | Path | None = None
) -> Equivalence | str | Path:
    """Return the given equivalence if it is the calibration's, or else the name in the calibration.

    Directories are compared by their last part. UsageError if the names differ.
    """
    name = calibration.equivalence
    if equivalence is not None:
        address = str(equivalence) if isinstance(equivalence, str | Path) else address_of(equivalence)
        if not is_same_equivalence(address, name):
            raise UsageError(
                f"equivalence: got {shown(address)}, expected {shown(name)} as in the calibration, since "
                "another equivalence finds other meanings. Leave it out, or calibrate again with it"
            )
        return equivalence
    return name


def check_equivalence(calibration: Calibration, judge: Equivalence, *, force: bool = False) -> None:
    """Raise UsageError if the calibration has another revision of the equivalence; with `force` warn."""
    revision = calibration.equivalence_revision
    if revision in (None, judge.revision):
        return
    differs = (
        f"the calibration was made with revision {shown(revision)} of the equivalence {shown(judge.name)}, "
        f"not {shown(judge.revision)}, which may find other meanings"
    )
    if not force:
        raise UsageError(f"{differs}. Use the first revision, or calibrate again with the second")
    warnings.warn(f"{differs}: the probabilities may not hold", SemcalWarning, stacklevel=3)


def check_model(calibration: Calibration, model: Sampler, *, force: bool = False) -> None:
    """Raise UsageError unless the calibration is of this model and prompt; warn if that is unknown.

    With `force` another model or prompt is a warning, and an unknown origin passes.
    """
    provenance = calibration.provenance
    if provenance is None:
        text = (
            "the calibration was made from stored samples, and its probabilities hold only if these came "
            f"from {model.name} with this prompt and temperature, which cannot be checked"
        )
        if not force:
            warnings.warn(text, SemcalWarning, stacklevel=3)
        return
    prompt = calibration.prompt.hash(model)
    try:
        provenance.check(model=model.name, revision=model.revision, prompt_hash=prompt, what="calibration")
    except UsageError:
        if not force:
            raise
        text = "the calibration was made for another model or prompt: its probabilities may not hold"
        warnings.warn(text, SemcalWarning, stacklevel=3)


def what_cannot_be_checked(
    calibration: Calibration, *, sampled_by: bool = False, clustered_by: bool = False
) -> str:
    """Return the assumptions about stored rows that could not be checked; "" if there are none.

    `sampled_by` and `clustered_by` tell whether the rows hold these fields, which were then checked.
    """
    is_known = {"sampled": sampled_by and calibration.provenance is not None, "clustered": clustered_by}
    unknown = " and ".join(done for done, known in is_known.items() if not known)
    hold = f"the probabilities hold only if the rows were {unknown} as those of the calibration"
    return unknown and f"{hold}, which cannot be checked"


def check_sampled_by(
    row: Row,
    provenance: Provenance | None,
    recalibrator: AnyRecalibrator | None,
    calibration: Calibration | None = None,
    *,
    reference: str = "the calibration",
) -> None:
    """Raise UsageError if the field `sampled_by` of a row differs from the expected settings.

    Expected are the model and prompt of `provenance`, the `recalibrator`, and the number of samples,
    temperature and token limit of the `calibration`. Fields that the row does not have are not checked.
    `reference` names the expectation in the message.
    """
    by, name = row.sampled_by, f"question {row.id!r}"
    if provenance and by.model is not None and by.revision is not None and by.prompt_hash is not None:
        what = f"{reference} ({name})"
        provenance.check(
            model=by.model, revision=by.revision, prompt_hash=by.prompt_hash, what=what, advice=_REMEDY
        )
    expected: dict[str, object] = {}
    if calibration is not None:
        limit = calibration.max_new_tokens or default_max_new_tokens(open_book=row.context is not None)
        expected = {"m": calibration.m, "max_new_tokens": limit, "temperature": calibration.temperature}
        difference = PromptConfig(open_book=calibration.open_book).passage_difference(row)
        if difference and by.prompt_hash is not None:  # else 'context' may have been lost
            raise UsageError(f"{name}: {difference}")
        check_answer_format(calibration, row.answer_format, name)
    if recalibrator is not None:
        if by.temperature is not None and temperature_of(recalibrator) is not None:
            expected["temperature"] = temperature_of(recalibrator)
        else:
            expected["recalibrator"] = fingerprint(recalibrator)
    if expected.get("temperature") is None or row.has("temperatures"):
        expected.pop("temperature", None)
    for key, value in expected.items():
        stated = getattr(by, key)
        if stated is None and (by.temperature is None or key != "recalibrator"):
            continue  # the row does not have this field
        if stated != value:
            raise UsageError(
                f"{name} was sampled with {OPTIONS.get(key, key)} {shown(stated)}, and {reference} is of "
                f"{shown(value)}. {_REMEDY}"
            )


def check_calibratable(row: Row, calibration: Calibration) -> None:
    """Raise InputError unless `CalibrationStep` can measure the row."""
    kind = calibration.answer_kind
    if calibration.score is not None:
        check_scored(row, calibration.score, labelled=False)
        _ = [column.value(row) for column in calibration.columns]
        return
    check_measurable(row)
    _ = row.samples, row.sampled_by
    if kind != "modal":
        _ = row.stated_answer(kind)
    _ = row.signals_of(""), [column.value(row) for column in calibration.columns]
    check_unanswered(row, calibration)


def check_unanswered(row: Row, calibration: Calibration) -> None:
    """Raise InputError for a row with another answer, which the calibrated answer would overwrite."""
    if calibration.answer_kind == "given" or row.get("calibration") == calibration.id:
        return
    if row.has("answer") and not row.has("probability"):
        raise InputError(
            f"'answer' is already set ({shown(row.json['answer'])}), and would be overwritten. Rename it (to "
            "'answers' if it is the reference), or calibrate for given answers (--answer given)"
        )
    if row.has("probability"):
        raise InputError(
            f"'probability' is already set by the calibration {shown(row.get('calibration'))}, and this is "
            f"{calibration.id}. Use the rows before that calibration, or rename 'answer' and 'probability'"
        )


def draws_for(calibration: Calibration, rows: Sequence[Row]) -> dict[float | None, list[Row]]:
    """Return the rows at each temperature that the calibration reads, the answer's first.

    UsageError if a row has no samples at one of these temperatures.
    """
    first = calibration.temperature
    rows_at: dict[float | None, list[Row]] = {t: [] for t in (first, *calibration.temperatures)}
    for row in rows:
        split = rows_by_temperature([row])
        if calibration.recalibrator is not None and None not in split:
            raise UsageError(
                f"question {row.id!r}: 'temperatures' is set, but the calibration samples answers with a "
                "recalibrator. Leave 'temperatures' out if the recalibrator sampled the row"
            )
        of_answer = None if None in split else next(iter(split)) if first is None else first
        for t, chosen_rows in rows_at.items():
            chosen = of_answer if t == first else t
            if chosen not in split:
                raise UsageError(
                    f"question {row.id!r} has no samples at T = {chosen:g}, which the calibration reads. "
                    "Calibrate again for one temperature (--config sampling.temperatures=1), or use "
                    "`semcal ask`, which samples at all of them"
                )
            chosen_rows.append(split[chosen][0])
    return rows_at


@dataclass(frozen=True)
class CalibrationStep(Step):
    """Measure clustered rows, and add `answer`, `probability`, `threshold` and `abstained`.

    UsageError if a row was sampled or clustered with other settings than the calibration.
    """

    name: ClassVar[str] = "measure"
    calibration: Calibration
    t_alpha: float = 0.5
    g_alpha: float = 0.5
    equivalence: Equivalence | None = None  # finds the meaning of an answer that is not a sample

    def __call__(self, rows: Sequence[Row], *_: object) -> list[Row]:
        """Return the measured rows with their calibrated answers."""
        calibration = self.calibration
        options = MeasureOptions(self.t_alpha, self.g_alpha, calibration.temperature)
        is_score = calibration.score is not None
        if not is_score:
            for row in rows:
                check_sampled_by(row, calibration.provenance, calibration.recalibrator, calibration)
            check_clustered_by(rows, calibration.cluster, calibration.equivalence_revision)
        try:
            if is_score:
                rows_at: RowsAt = {None: [scored_row(row) for row in rows]}
            else:
                measured = measure_at(draws_for(calibration, rows), options)
                rows_at = match_at(measured, calibration.answer_kind, self.equivalence)
            decisions = [_decision(best, calibration) for best in calibration.apply(rows_at)]
        except InputError as error:
            raise UsageError(str(error)) from error
        first = next(iter(rows_at.values()))
        if is_score:
            decided = [row.add(decision) for row, decision in zip(first, decisions)]
            return [new if row.has("answer") else new.without("answer") for row, new in zip(first, decided)]
        return [
            _with_meaning(row, matched, calibration).add(decision)
            for row, matched, decision in zip(measure_rows(rows, options), first, decisions)
        ]


def _decision(best: CalibratedAnswer, calibration: Calibration) -> Decision:
    return Decision(
        answer=best.text,
        probability=best.probability,
        score=best.score,
        threshold=calibration.limit,
        abstained=best.abstained,
        decision=best.decision,
        thresholds=calibration.bands,
        risk=calibration.risk,
        calibration=calibration.id,
        reason=NO_ANSWER if best.text is None else None,
    )


def _with_meaning(row: Row, matched: Row, calibration: Calibration) -> Row:
    """Add the cluster of a given or greedy answer, from the row with the samples at one temperature."""
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
