"""Calibrate on stored samples of labelled questions (spec section 11); no model is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from semcal.calibration.apply import check_sampled_by
from semcal.calibration.calibrated import Calibration
from semcal.calibration.learn import calibrate_rows
from semcal.data.question import Question, data_hash
from semcal.errors import InputError, UsageError, shown
from semcal.grading.rules import Grader
from semcal.hub_names import CALIBRATION
from semcal.inputs import (
    Samples,
    as_questions,
    as_sample_rows,
    check_stored_draws,
    warn_of_clusters,
    warn_of_rows_left_out,
)
from semcal.measuring import measure_at
from semcal.models.clustering import Grouping, cluster_missing
from semcal.models.equivalence import address_of
from semcal.models.sampling import default_max_new_tokens
from semcal.recalibration.attentive import AnyRecalibrator
from semcal.recalibration.provenance import Provenance
from semcal.recalibration.saving import Fitted, fitted_or_none
from semcal.rows import (
    SAMPLES,
    Row,
    RowsAt,
    rows_by_temperature,
)


@dataclass(frozen=True)
class SamplesOrigin:
    """What is known of where stored samples are from, and the text of their file if that is to be kept."""

    provenance: Provenance | None = None
    recalibrator: Fitted | None = None
    max_new_tokens: int | None = None
    samples: str | None = None


#: Of samples of which nothing is known.
NOWHERE = SamplesOrigin()


def labelled_samples(samples: Samples) -> tuple[list[Row], SamplesOrigin]:
    """Those of the stored samples that have reference answers, and what they are from."""
    stored = as_sample_rows(samples)
    rows = [row for row in stored if row.has("answers")]
    warn_of_rows_left_out(len(stored) - len(rows), of=len(stored))
    return rows, origin_of(rows, samples if isinstance(samples, str | Path) else None)


def origin_of(
    rows: Sequence[Row],
    source: str | Path | None,
    *,
    provenance: Callable[[Sequence[Question]], Provenance] | None = None,
    recalibrator: AnyRecalibrator | None = None,
    seed: int | None = None,
) -> SamplesOrigin:
    """What the rows of the file `source` are from: nothing is known unless `semcal calibrate` sampled them.

    Then the calibration beside the file tells; or the `provenance` of their questions, of a model that is
    given, which must be what sampled the rows. UsageError otherwise.
    """
    kept = sum(row.sampled_by.command == "calibrate" for row in rows)
    if not kept:
        return NOWHERE
    if kept < len(rows):
        raise UsageError(
            f"{kept} of {len(rows)} rows were sampled by semcal calibrate, and the others were not; give "
            "them in files of their own"
        )
    questions = as_questions([row.json for row in rows], "samples", labelled=True)
    is_file = source is not None and Path(source).is_file()
    text = Path(source or "").read_text(encoding="utf-8", errors="replace") if is_file else None
    if provenance is None:
        beside = _calibration_beside(source, text)
        assert beside.provenance is not None
        made = replace(
            beside.provenance,
            data_hash=data_hash(questions),
            n_questions=len(questions),
            seed=beside.provenance.seed if seed is None else seed,
        )
        return SamplesOrigin(made, beside.recalibrator, beside.max_new_tokens, text)
    made = provenance(questions)
    for row in rows:
        check_sampled_by(row, made, recalibrator, what="what is given")
    limits = {row.sampled_by.max_new_tokens or 0 for row in rows}
    usual = {default_max_new_tokens(open_book=question.context is not None) for question in questions}
    fitted = fitted_or_none(recalibrator)
    return SamplesOrigin(made, fitted, None if limits <= {0, *usual} else max(limits), text)


def _calibration_beside(source: str | Path | None, text: str | None) -> Calibration:
    """The calibration that kept the samples; UsageError if it is not there, or kept others."""
    name = "name the model that sampled them (--model, and --few-shot as then)"
    folder = Path("" if source is None else source).parent
    if text is None or not (folder / CALIBRATION.file).is_file():
        raise UsageError(
            f"semcal calibrate kept these samples, and no {CALIBRATION.file} that knows their prompt stands "
            f"beside them; give the file {SAMPLES} in the directory of their calibration, or {name}"
        )
    calibration = Calibration.from_pretrained(folder)
    if calibration.samples_sha256 != sha256(text.encode()).hexdigest():
        raise UsageError(f"{source} is not what {folder / CALIBRATION.file} was made with; {name}")
    return calibration


def check_labelled_samples(row: Row) -> None:
    """Raise InputError unless the row holds samples and the reference answers of its question."""
    _ = row.id
    answers = row.answers
    if not any(text.strip() for text in answers):
        raise InputError(f"'answers' holds no text, got {shown(answers)}: give at least one reference answer")
    _ = row.context, row.group, row.samples, row.log_likelihoods, row.temperatures, row.sampled_by
    _ = row.clusters if row.has("clusters") else row.question


def measure_samples(
    rows: Sequence[Row],
    clustering: Grouping,
    *,
    m: int | None = None,
    temperatures: Sequence[float] | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[float | None, list[Row]]:
    """Cluster and measure stored samples of labelled questions, at each temperature by themselves.

    Each row has `id`, `question`, `samples` and `answers`; `log_likelihoods` where they are known, and
    `temperatures`, one a sample, where samples were drawn at several. Those that hold `clusters` are not
    clustered again: a warning, if the equivalence is another than "exact". Of each temperature the first `m`
    draws are taken, by default all; of `temperatures` beside the answer's, those that are named. `progress`
    gets the number of questions that are clustered. UsageError for one draw a question, or fewer than `m`.
    """
    for row in rows:
        try:
            check_labelled_samples(row)
        except InputError as error:
            raise InputError(f"question {shown(row.json.get('id'))}: {error}") from None
    warn_of_clusters(rows, address_of(clustering.equivalence))
    drawn = _first_draws(_chosen_temperatures(_drawn(rows), temperatures), m)
    check_stored_draws(drawn)
    clustered = cluster_missing(
        [row for split in drawn.values() for row in split],
        equivalence=clustering.equivalence,
        linkage=clustering.linkage,
        progress=progress and (lambda done: progress(done // len(drawn))),
    )
    n = len(rows)
    return measure_at({t: clustered[k * n : (k + 1) * n] for k, t in enumerate(drawn)})


def calibrate_samples(
    rows: RowsAt,
    clustering: Grouping,
    *,
    grader: Grader | None = None,
    risk: float | None = None,
    delta: float = 0.05,
    seed: int = 0,
    max_new_tokens: int | None = None,
    origin: SamplesOrigin = NOWHERE,
) -> Calibration:
    """Learn from what `measure_samples` returns the probability that the commonest answer is right.

    No model is needed; the rest is as in `calibrate_rows`.
    """
    calibration = calibrate_rows(
        rows,
        equivalence=clustering.equivalence,
        linkage=clustering.linkage,
        grader=grader,
        risk=risk,
        delta=delta,
        seed=seed,
        max_new_tokens=origin.max_new_tokens or max_new_tokens,
        provenance=origin.provenance,
        recalibrator=origin.recalibrator,
    )
    return replace(calibration, samples=origin.samples)


def _drawn(rows: Sequence[Row]) -> RowsAt:
    """The rows of each temperature; of one, that which all of them were sampled at as far as they say."""
    drawn = rows_by_temperature(rows)
    stated = {row.sampled_by.temperature for row in rows}
    if list(drawn) == [None] and len(stated) == 1 and isinstance(t := stated.pop(), float):
        return {t: drawn[None]}
    return drawn


def _chosen_temperatures(drawn: RowsAt, temperatures: Sequence[float] | None) -> RowsAt:
    """The draws of the answer, and those at the temperatures that are named."""
    if temperatures is None:
        return drawn
    for t in temperatures:
        if t not in drawn:
            held = ", ".join("none" if at is None else f"{at:g}" for at in drawn)
            raise UsageError(f"the samples have no draws at T = {t:g}, but at {held}; name some of these")
    first = next(iter(drawn))
    return {t: rows for t, rows in drawn.items() if t == first or t in temperatures}


def _first_draws(drawn: RowsAt, m: int | None) -> RowsAt:
    """The first m draws of each row at each temperature; all of them without m."""
    if m is None:
        return drawn
    for row in (row for rows in drawn.values() for row in rows):
        if len(row.samples) < m:
            raise UsageError(
                f"question {row.id!r} has {len(row.samples)} draws at a temperature, and m is {m}; "
                "give a smaller m, or sample anew"
            )
    return {t: [row.take(range(m)) for row in rows] for t, rows in drawn.items()}
