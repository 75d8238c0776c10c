"""Calibrate on labelled questions (spec section 11): asked of a model, or with stored samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from semcal.calibration.apply import check_sampled_by
from semcal.calibration.calibrated import Calibration
from semcal.calibration.learn import calibrate_rows
from semcal.engine.equivalence import Equivalence, address_of
from semcal.engine.language_model import Sampler
from semcal.errors import InputError, QuestionError, UsageError, shown
from semcal.hub_names import CALIBRATION
from semcal.measuring import measure_at
from semcal.pipeline.calibration_set import provenance_of
from semcal.pipeline.cluster import cluster_missing
from semcal.pipeline.fit_and_select import Clustering, sample_candidates
from semcal.pipeline.fitting import recalibrator_and_prompt
from semcal.pipeline.grade import as_grader
from semcal.pipeline.inputs import (
    as_equivalence,
    as_model,
    as_questions,
    as_sample_rows,
    check_stored_draws,
    checked_draws,
    checked_learning,
    checked_temperatures,
    name_of,
    warn_of_clusters,
    warn_of_rows_left_out,
)
from semcal.pipeline.sampling import Sampling, default_max_new_tokens, row_to_ask
from semcal.pipeline.store import Store
from semcal.progress import ShowProgress, shown_progress
from semcal.qa.grading import Grader
from semcal.qa.questions import Question, data_hash
from semcal.recalibration.attentive import AnyRecalibrator
from semcal.recalibration.provenance import Provenance, check_enough
from semcal.recalibration.saving import Fitted
from semcal.recalibration.temperature import Temperature, temperature_of
from semcal.records import dumps
from semcal.rows import (
    SAMPLES,
    Draws,
    Row,
    RowsAt,
    SampledBy,
    check_distinct,
    rows_by_temperature,
    warn_of_cut_draws,
)

T = TypeVar("T")
#: Temperatures at which labelled questions are sampled: that of the answer, and a sharper one.
TEMPERATURES = (1.0, 0.5)


def calibrate(
    model: Sampler | str | Path | None = None,
    labelled: Any = None,
    *,
    samples: Any = None,
    equivalence: Equivalence | str | Path | None = None,
    temperatures: Sequence[float] | float | None = None,
    recalibrator: Any = None,
    few_shot: Any = None,
    m: int | None = None,
    seed: int = 0,
    max_new_tokens: int | None = None,
    linkage: str = "components",
    grader: Grader | str | None = None,
    risk: float | None = None,
    delta: float = 0.05,
    data: str | None = None,
    versions: Mapping[str, str | None] | None = None,
    progress: ShowProgress = True,
    keep: Store | None = None,
    on_bad_question: Callable[[QuestionError], None] | None = None,
) -> Calibration:
    """Learn the probability that an answer is right, from labelled questions.

    Parameters
    ----------
    model : Sampler, str or Path
        What answers: from `semcal.load_model`, or what that takes.
    labelled : file, DataFrame, dicts or Questions
        `question` and `answers`; `id`, `context` and `group` where there are some. A hundred questions are a
        start, 250 are good.
    samples : file, DataFrame or dicts
        Instead of a model and its questions: stored samples with `answers`, as `semcal.score` takes them.
        `clusters` in them are used as they are. What is about asking a model is then refused.
    equivalence : Equivalence, str or Path
        Decides which answers mean the same: by default the embedded model, "exact", an NLI model, or its
        name or directory.
    temperatures : float or sequence of float, optional
        The answer comes from the draws at T = 1; those at others (by default 0.5) are features.
    recalibrator : Fit, Recalibrator, float, str or Path, optional
        Takes the place of T = 1: a temperature, or what `semcal.fit` has made or saved.
    few_shot : file, DataFrame, dicts or Questions, optional
        Answered examples before every question; by default those of the recalibrator.
    m, max_new_tokens, linkage
        As in `semcal.SemanticUQ`; `seed` is also that of the folds, and of what is kept apart.
    grader : Grader, {"rules", "nli"} or "judge:openai:URL#MODEL", optional
        Decides whether an answer is right: rules by default, or the equivalence.
    risk, delta : float
        With `risk` also a threshold: of the answers from it on at most this share is wrong, with probability
        1 - `delta`. Two in five of the questions are kept apart for it.
    data, versions, keep : optional
        Where the questions come from and versions of packages, for the record; a store of finished blocks,
        from which the same call resumes with identical results.
    progress : bool or callable
        A bar on a terminal or in a notebook, or a function of the number of questions that were sampled.
    on_bad_question : callable, optional
        Gets each question to which a server gave no answers, which is left out; by default a warning names
        them.

    Returns
    -------
    Calibration
        With `report`, `threshold` and `save_pretrained`; for `semcal.SemanticUQ(model, calibration=…)`.

    Raises
    ------
    InputError
        If a row cannot be used, with its place and what to do.
    FitError
        If there are fewer than 5 labelled questions.
    UsageError
        For a wrong argument.

    Examples
    --------
    >>> from semcal.engine.fakes import FakeLanguageModel
    >>> table = {f"Who built mill {i}?": {"Ana.": 0.9, "Bo.": 0.1} for i in range(60)}
    >>> labelled = [{"question": q, "answers": "Ana" if i % 3 else "Bo"} for i, q in enumerate(table)]
    >>> calibration = calibrate(FakeLanguageModel(table), labelled)
    >>> calibration.report.n, calibration.report.base["accuracy"]
    (60, 0.667)
    """
    risk, delta, seed = checked_learning(risk=risk, delta=delta, seed=seed)
    clustering = Clustering(as_equivalence(equivalence), linkage)
    marks = as_grader(grader, clustering.equivalence)
    if samples is not None:
        if model is not None or labelled is not None:
            raise UsageError("give samples, or a model with labelled questions, and not both")
        _refuse_beside_samples(
            {
                "temperatures": temperatures,
                "few_shot": few_shot,
                "recalibrator": recalibrator,
                "max_new_tokens": max_new_tokens,
                "data": data,
                "versions": versions,
                "keep": keep,
            }
        )
        return _calibrate_stored(
            samples,
            progress,
            clustering=clustering,
            m=m and checked_draws(m),
            grader=marks,
            risk=risk,
            delta=delta,
            seed=seed,
        )
    if labelled is None:
        raise UsageError("no labelled questions; give calibrate(model, labelled), or calibrate(samples=…)")
    model, questions = as_model(model), as_questions(labelled, "labelled", labelled=True)
    check_enough(len(questions), of="to calibrate on")
    check_distinct(question.id for question in questions)
    m = checked_draws(10 if m is None else m)
    further = checked_temperatures(TEMPERATURES if temperatures is None else temperatures)
    fitted, asking = recalibrator_and_prompt(model, recalibrator, few_shot)
    first: dict[float | None, AnyRecalibrator] = {1.0: Temperature(1.0)}
    if recalibrator is not None:
        fixed = not isinstance(fitted, Fitted) and temperature_of(fitted)
        first = {fixed or None: fitted}
    under = first | {t: Temperature(t) for t in further if t != 1.0}
    sampling = Sampling(tuple(under.values()), asking, m, (seed,), max_new_tokens)
    with shown_progress(progress, "calibrate", len(questions)) as update:
        rows = sample_candidates(
            model,
            questions,
            under,
            sampling,
            clustering,
            progress=update,
            keep=keep,
            on_bad_question=on_bad_question,
        )
    finished = [ended for rows_of in rows.values() for row in rows_of for ended in row.finished]
    warn_of_cut_draws(finished.count(False), len(finished))
    answered = {row.id for row in next(iter(rows.values()))}
    questions = [question for question in questions if question.id in answered]
    check_enough(len(questions), of="with answers to calibrate on")
    provenance = provenance_of(
        model,
        questions,
        asking=asking,
        data=data or name_of(labelled),
        seed=seed,
        versions=versions or {},
    )
    by = sampling.sampled_by(model, questions, "calibrate", list(under))
    calibration = calibrate_rows(
        measure_at(rows),
        equivalence=clustering.equivalence,
        linkage=linkage,
        grader=marks,
        risk=risk,
        delta=delta,
        seed=seed,
        max_new_tokens=max_new_tokens,
        provenance=provenance,
        recalibrator=fitted if isinstance(fitted, Fitted) else None,
    )
    return replace(calibration, samples=_kept_samples(rows, questions, by))


def _kept_samples(rows: RowsAt, questions: Sequence[Question], by: Sequence[SampledBy]) -> str:
    """What was sampled as rows of JSON Lines, the draws at several temperatures in one row."""
    lines = []
    for question, origin, *parts in zip(questions, by, *rows.values()):
        draws = [part.draws for part in parts if part.draws is not None]
        joined = Draws(
            samples=[text for draw in draws for text in draw.samples],
            log_likelihoods=_joined([draw.log_likelihoods for draw in draws]),
            likelihood=_joined([draw.likelihood for draw in draws]),
            finished=[ended for draw in draws for ended in draw.finished],
            temperatures=[t for t, draw in zip(rows, draws) for _ in draw.samples]
            if len(draws) > 1
            else None,
        )
        row = row_to_ask(question).add(joined).set(sampled_by=origin.to_json())
        lines.append(dumps(row.json) + "\n")
    return "".join(lines)


def _joined(lists: Sequence[Sequence[T] | None]) -> list[T] | None:
    """One list of several; None where one is not known."""
    joined: list[T] = []
    for values in lists:
        if values is None:
            return None
        joined += values
    return joined


def _calibrate_stored(
    samples: Any,
    progress: ShowProgress,
    *,
    clustering: Clustering,
    m: int | None,
    grader: Grader,
    risk: float | None,
    delta: float,
    seed: int,
) -> Calibration:
    """Calibrate on those of the stored samples that have reference answers."""
    stored = as_sample_rows(samples)
    rows = [row for row in stored if row.has("answers")]
    warn_of_rows_left_out(len(stored) - len(rows), of=len(stored))
    origin = origin_of(rows, samples if isinstance(samples, str | Path) else None)
    with shown_progress(progress, "calibrate", len(rows)) as update:
        measured = measure_samples(rows, clustering, m=m, progress=update)
    return calibrate_samples(
        measured, clustering, origin=origin, grader=grader, risk=risk, delta=delta, seed=seed
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
    fitted = recalibrator if isinstance(recalibrator, Fitted) else None
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


def _refuse_beside_samples(options: Mapping[str, object]) -> None:
    names = [name for name, value in options.items() if value is not None]
    if names:
        raise UsageError(
            f"{', '.join(names)} given beside samples, which no model is asked for; leave "
            f"{'it' if len(names) == 1 else 'them'} out, or give a model with labelled questions"
        )


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
    clustering: Clustering,
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
    clustering: Clustering,
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
