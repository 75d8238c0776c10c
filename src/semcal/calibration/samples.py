"""Stored samples of labeled questions: their origin, measurement and file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semcal import inputs
from semcal.calibration.calibration import Calibration
from semcal.calibration.compatibility import check_sampled_by, draws_for
from semcal.data.datasets import as_questions
from semcal.data.question import Question, data_hash
from semcal.errors import InputError, UsageError, shown
from semcal.files import dumps
from semcal.hub_names import CALIBRATION
from semcal.measuring import measure_at
from semcal.models.clustering import ClusterConfig, cluster_missing, match_at
from semcal.models.sample import default_max_new_tokens, row_to_ask
from semcal.recalibration.files import Provenance, fitted_or_none
from semcal.rows import (
    SAMPLES,
    SIGNALS_KEY,
    STATED,
    AnswerKind,
    Draws,
    Row,
    RowsAt,
    SampledBy,
    count_ends,
    rows_by_temperature,
    warn_of_cut_draws,
)

if TYPE_CHECKING:
    from semcal.models.protocols import AnyRecalibrator
    from semcal.recalibration.records import Fitted

#: Keys of a row that are kept beside its samples: greedy and given answers.
KEPT = (*STATED["greedy"][:2], STATED["greedy"][3], STATED["given"][1], STATED["given"][3])
#: Fields of `Draws` that are joined over temperatures.
JOINED = ("samples", "log_likelihoods", "likelihood", "finished", "token_scores")


@dataclass(frozen=True)
class SamplesOrigin:
    """The known origin of samples, if any; and their rows as text, to be saved with the calibration."""

    provenance: Provenance | None = None
    recalibrator: Fitted | None = None
    max_new_tokens: int | None = None
    samples: str | None = None


def origin_of(
    rows: Sequence[Row],
    source: str | Path | None,
    *,
    provenance: Callable[[Sequence[Question]], Provenance] | None = None,
    recalibrator: AnyRecalibrator | None = None,
    seed: int | None = None,
) -> SamplesOrigin:
    """Return the origin of the rows of the file `source`: unknown unless `semcal calibrate` sampled them.

    The origin is read from the calibration beside the file. With `provenance`, a function of the questions,
    it is the given model and `recalibrator`. UsageError if these did not sample the rows.
    """
    n_sampled_here = sum(row.sampled_by.command == "calibrate" for row in rows)
    if not n_sampled_here:
        return SamplesOrigin()
    if n_sampled_here < len(rows):
        raise UsageError(
            f"{n_sampled_here} of {len(rows)} rows were sampled by semcal calibrate, and the others were "
            "not. Use separate files"
        )
    questions = as_questions([row.json for row in rows], "samples", labelled=True)
    is_file = source is not None and Path(source).is_file()
    text = Path(source or "").read_text(encoding="utf-8", errors="replace") if is_file else None
    if provenance is None:
        beside = _calibration_beside(source, text)
        assert beside.provenance is not None
        stored = replace(
            beside.provenance,
            data_hash=data_hash(questions),
            n_questions=len(questions),
            seed=beside.provenance.seed if seed is None else seed,
        )
        return SamplesOrigin(stored, beside.recalibrator, beside.max_new_tokens, text)
    of_model = provenance(questions)
    for row in rows:
        check_sampled_by(row, of_model, recalibrator, reference="the given model")
    limits = {row.sampled_by.max_new_tokens or 0 for row in rows}
    usual = {default_max_new_tokens(open_book=question.context is not None) for question in questions}
    fitted = fitted_or_none(recalibrator)
    return SamplesOrigin(of_model, fitted, None if limits <= {0, *usual} else max(limits), text)


def _calibration_beside(source: str | Path | None, text: str | None) -> Calibration:
    remedy = "the model that sampled them (--model, with the same --few-shot)"
    folder = Path("" if source is None else source).parent
    if text is None or not (folder / CALIBRATION.file).is_file():
        raise UsageError(
            f"{CALIBRATION.file}, which holds the prompt of these samples of semcal calibrate, is missing in "
            f"their directory. Pass {SAMPLES} in the directory of the calibration, or {remedy}"
        )
    calibration = Calibration.from_pretrained(folder)
    if calibration.samples_sha256 != sha256(text.encode()).hexdigest():
        raise UsageError(f"{source}: {folder / CALIBRATION.file} was made from other samples. Pass {remedy}")
    return calibration


def check_labelled_samples(row: Row, answer: AnswerKind = "modal") -> None:
    """Raise InputError unless the row holds samples and labels."""
    _ = row.id
    if answer == "greedy":
        _ = row.stated_answer(answer)
    if answer == "given":
        check_given(row)
    elif not row.is_labelled and row.verdict is not None and row.has("answer"):
        raise InputError(
            "'correct' is the verdict on 'answer', but another answer is calibrated. Pass --answer given, or "
            "add reference 'answers'"
        )
    if row.verdict is None or answer != "given":
        answers = row.answers
        if not any(text.strip() for text in answers):
            raise InputError(
                f"'answers' holds no text, got {shown(answers)}. Add at least one reference answer"
            )
    _ = row.context, row.group, row.samples, row.log_likelihoods, row.temperatures, row.sampled_by
    _ = row.token_counts, row.signals_of(""), row.clusters if row.has("clusters") else row.question


def measure_samples(
    rows: Sequence[Row],
    cluster: ClusterConfig,
    *,
    m: int | None = None,
    temperatures: Sequence[float] | None = None,
    answer: AnswerKind = "modal",
    progress: Callable[[int], None] | None = None,
    read_by: Calibration | None = None,
) -> RowsAt:
    """Cluster and measure stored samples of labeled questions, at each temperature separately.

    Each row has `id`, `question`, `samples` and `answers`; optionally `log_likelihoods`, and `temperatures`
    with one value for each sample. Stored `clusters` are used, with a warning unless the equivalence is
    "exact". The first `m` samples at each temperature are used, by default all; of the temperatures, the
    answer's and the named ones, or those that are `read_by` a calibration. `progress` receives the number of
    clustered questions. UsageError for one sample of a question, or fewer than `m`.
    """
    check_rows(rows, partial(check_labelled_samples, answer=answer))
    inputs.check_clustered_by(rows, cluster)
    inputs.warn_of_clusters(rows, cluster.address)
    rows_at = rows_at_temperatures(rows, temperatures) if read_by is None else draws_for(read_by, rows)
    if m is not None:
        if few := next((row for part in rows_at.values() for row in part if len(row.samples) < m), None):
            raise UsageError(
                f"m = {m}: question {few.id!r} has {len(few.samples)} samples at a temperature. Pass a "
                "smaller m, or sample again"
            )
        rows_at = {t: [row.take(range(m)) for row in part] for t, part in rows_at.items()}
    inputs.check_stored_draws(rows_at, answer)
    warn_of_cut_draws(*count_ends(row for part in rows_at.values() for row in part))
    return measure_draws(
        rows_at, cluster, answer, progress and (lambda n_done: progress(n_done // len(rows_at)))
    )


def measure_draws(
    rows_at: RowsAt,
    cluster: ClusterConfig,
    answer: AnswerKind,
    progress: Callable[[int], None] | None = None,
) -> RowsAt:
    """Cluster the rows without clusters, measure all rows, and find the meanings of stated answers."""
    together = [row for part in rows_at.values() for row in part]
    clustered = iter(cluster_missing(together, cluster, progress=progress))
    measured = measure_at({t: [next(clustered) for _ in part] for t, part in rows_at.items()})
    return match_at(measured, answer, cluster.judge)


def check_rows(rows: Iterable[Row], check: Callable[[Row], object]) -> None:
    """Check each row; an InputError names the row."""
    for row in rows:
        try:
            check(row)
        except InputError as error:
            raise InputError(f"question {shown(row.json.get('id'))}: {error}") from None


def rows_at_temperatures(rows: Sequence[Row], temperatures: Sequence[float] | None) -> RowsAt:
    """Return the rows at the answer's temperature, which comes first, and at the named ones, or at all."""
    rows_at: RowsAt = rows_by_temperature(rows)
    stated = {row.sampled_by.temperature for row in rows}
    if list(rows_at) == [None] and len(stated) == 1 and isinstance(at := stated.pop(), float):
        rows_at = {at: rows_at[None]}
    if temperatures is None:
        return rows_at
    for t in temperatures:
        if t not in rows_at:
            held = ", ".join("none" if at is None else f"{at:g}" for at in rows_at)
            raise UsageError(f"temperatures: there are no samples at T = {t:g}. Choose from {held}")
    first = next(iter(rows_at))
    return {t: part for t, part in rows_at.items() if t == first or t in temperatures}


def check_given(row: Row) -> None:
    """Raise InputError unless the row holds an answer, and a verdict or reference answers."""
    if not (row.stated_answer("given").text or "").strip():
        raise InputError("'answer' is empty. Add the answer to be checked, or leave the row out")
    if not row.has_label("given"):
        raise InputError(
            "'correct' (true or false, the verdict on 'answer') and reference 'answers' are missing. Add one"
        )


def keep_samples(rows: RowsAt, questions: Sequence[Question], by: Sequence[SampledBy]) -> str:
    """Return the samples as JSON Lines, one row for each question with all its temperatures."""
    lines = []
    for question, origin, *parts in zip(questions, by, *rows.values()):
        stated = {key: value for key in KEPT if (value := parts[0].json.get(key)) is not None}
        if "greedy" in parts[0].json:
            stated["greedy"] = parts[0].json["greedy"]  # null means "no answer"
        if said := [item for part in parts for item in part.json.get(SIGNALS_KEY, ())]:
            stated[SIGNALS_KEY] = list({item["answer"]: item for item in said}.values())
        draws = [part.draws for part in parts if part.draws is not None]
        joined = Draws(
            **{name: _joined([getattr(draw, name) for draw in draws]) for name in JOINED},
            temperatures=[t for t, draw in zip(rows, draws) for _ in draw.samples]
            if len(draws) > 1
            else None,
            answer_format=draws[0].answer_format,
            refusals=_joined([draw.refusals or [None] * len(draw.samples) for draw in draws])
            if any(draw.refusals for draw in draws)
            else None,
        )
        row = row_to_ask(question).add(joined).set(**stated, sampled_by=origin.to_json())
        lines.append(dumps(row.json) + "\n")
    return "".join(lines)


def _joined(lists: Sequence[Sequence[Any] | None]) -> Any:
    """Concatenate lists; None if one is unknown."""
    joined: list[Any] = []
    for values in lists:
        if values is None:
            return None
        joined += values
    return joined
