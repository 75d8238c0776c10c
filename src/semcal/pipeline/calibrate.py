"""Calibrate on labelled questions (spec section 11): asked of a model, or with stored samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from semcal.engine.equivalence import Equivalence, address_of
from semcal.engine.language_model import Sampler
from semcal.errors import InputError, QuestionError, UsageError, shown
from semcal.hub_names import CALIBRATION
from semcal.pipeline.apply_calibration import check_sampled_by
from semcal.pipeline.calibrate_rows import calibrate_rows
from semcal.pipeline.calibrated import Calibration
from semcal.pipeline.calibration_set import provenance_of
from semcal.pipeline.cluster import cluster_new
from semcal.pipeline.fit_and_select import sample_candidates
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
from semcal.pipeline.measure import RowsAt, chosen_draws, measure_at, rows_by_temperature
from semcal.pipeline.progress import ShowProgress, shown_progress
from semcal.pipeline.prompting import PromptConfig
from semcal.pipeline.rows import (
    SAMPLES,
    answers_of,
    check_distinct,
    clusters_of,
    context_of,
    identity,
    is_kept_by_calibrate,
    log_likelihoods_of,
    question_of,
    sampled_by_of,
    samples_of,
    temperatures_of,
    warn_of_cut_draws,
)
from semcal.pipeline.sample import asked_row, default_max_new_tokens, sampled_by
from semcal.pipeline.store import Store
from semcal.qa.grading import Grader
from semcal.qa.questions import Question, data_hash, group_of
from semcal.recalibration.attentive import AnyRecalibrator
from semcal.recalibration.provenance import Provenance, check_enough
from semcal.recalibration.saving import Fitted
from semcal.recalibration.temperature import Temperature, temperature_of
from semcal.records import dumps

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
    >>> found = calibrate(FakeLanguageModel(table), labelled)
    >>> found.report.n, found.report.base["accuracy"]
    (60, 0.667)
    """
    learning = checked_learning(risk=risk, delta=delta, seed=seed)
    judge = as_equivalence(equivalence)
    how: dict[str, Any] = {"equivalence": judge, "linkage": linkage, "max_new_tokens": max_new_tokens}
    learning |= {"grader": as_grader(grader, judge)}
    if samples is not None:
        if model is not None or labelled is not None:
            raise UsageError("give samples, or a model with labelled questions, and not both")
        asking_one: dict[str, Any] = {"temperatures": temperatures, "few_shot": few_shot}
        asking_one |= {"recalibrator": recalibrator, "max_new_tokens": max_new_tokens}
        _refuse_beside_samples(asking_one | {"data": data, "versions": versions, "keep": keep})
        return _calibrate_stored(samples, progress, m=m and checked_draws(m), **how, **learning)
    if labelled is None:
        raise UsageError("no labelled questions; give calibrate(model, labelled), or calibrate(samples=…)")
    model, questions = as_model(model), as_questions(labelled, "labelled", labelled=True)
    check_enough(len(questions), of="to calibrate on")
    check_distinct(question.id for question in questions)
    sampling: dict[str, Any] = {"m": checked_draws(10 if m is None else m), "seed": seed}
    further = checked_temperatures(TEMPERATURES if temperatures is None else temperatures)
    fitted, asking = recalibrator_and_prompt(model, recalibrator, few_shot)
    own: dict[float | None, AnyRecalibrator] = {1.0: Temperature(1.0)}
    if recalibrator is not None:
        fixed = not isinstance(fitted, Fitted) and temperature_of(fitted)
        own = {fixed or None: fitted}
    with shown_progress(progress, "calibrate", len(questions)) as update:
        under = own | {t: Temperature(t) for t in further if t != 1.0}
        sampling |= {"asking": asking, "progress": update, "keep": keep, "on_bad_question": on_bad_question}
        sampled = sample_candidates(model, questions, under, **how, **sampling)
    cut = [done for rows in sampled.values() for row in rows for done in row["finished"]]
    warn_of_cut_draws(cut.count(False), len(cut))
    answered = {row["id"] for row in next(iter(sampled.values()))}
    questions = [question for question in questions if question.id in answered]
    check_enough(len(questions), of="with answers to calibrate on")
    known: dict[str, Any] = {"data": data or name_of(labelled), "seed": seed, "versions": versions or {}}
    provenance = provenance_of(model, questions, asking=asking, **known)
    limits: Any = {"m": sampling["m"], "seed": seed, "max_new_tokens": max_new_tokens}
    by = sampled_by(model, asking, under, questions, command="calibrate", **limits)
    found = calibrate_rows(
        measure_at(sampled),
        **how,
        **learning,
        provenance=provenance,
        recalibrator=fitted if isinstance(fitted, Fitted) else None,
    )
    return replace(found, samples=_kept_samples(sampled, questions, by))


def _kept_samples(sampled: RowsAt, questions: Sequence[Question], by: Sequence[Mapping[str, Any]]) -> str:
    """What was sampled as rows of JSON Lines, the draws at several temperatures in one row."""
    lines = []
    for question, origin, *parts in zip(questions, by, *sampled.values()):
        row = asked_row(question)
        for key in ("samples", "log_likelihoods", "likelihood", "finished"):
            known = all(part[key] is not None for part in parts)
            row[key] = [value for part in parts for value in part[key]] if known else None
        if len(parts) > 1:
            row["temperatures"] = [t for t, part in zip(sampled, parts) for _ in part["samples"]]
        lines.append(dumps({**row, "sampled_by": origin}) + "\n")
    return "".join(lines)


def _calibrate_stored(samples: Any, progress: ShowProgress, **how: Any) -> Calibration:
    """Calibrate on those of the stored samples that have reference answers."""
    given = as_sample_rows(samples)
    rows = [row for row in given if "answers" in row]
    warn_of_rows_left_out(len(given) - len(rows), of=len(given))
    origin = origin_of(rows, samples if isinstance(samples, str | Path) else None)
    with shown_progress(progress, "calibrate", len(rows)) as update:
        return calibrate_samples(rows, progress=update, origin=origin, **how)


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
    rows: Sequence[Mapping[str, Any]],
    source: str | Path | None,
    *,
    model: Sampler | None = None,
    asking: PromptConfig | None = None,
    recalibrator: AnyRecalibrator | None = None,
    **known: Any,
) -> SamplesOrigin:
    """What the rows of the file `source` are from: nothing is known unless `semcal calibrate` sampled them.

    Then the calibration beside the file tells; or a `model` that is given with its prompt and what else a
    provenance holds (`known`), which must be what sampled the rows. UsageError otherwise.
    """
    kept = sum(map(is_kept_by_calibrate, rows))
    if not kept:
        return NOWHERE
    if kept < len(rows):
        raise UsageError(
            f"{kept} of {len(rows)} rows were sampled by semcal calibrate, and the others were not; give "
            "them in files of their own"
        )
    questions = as_questions(rows, "samples", labelled=True)
    is_file = source is not None and Path(source).is_file()
    text = Path(source or "").read_text(encoding="utf-8", errors="replace") if is_file else None
    if model is None:
        beside = _calibration_beside(source, text)
        assert beside.provenance is not None
        n = len(questions)
        seed = int(known.get("seed", beside.provenance.seed))
        hashed = data_hash(questions)
        provenance = replace(beside.provenance, data_hash=hashed, n_questions=n, seed=seed)
        return SamplesOrigin(provenance, beside.recalibrator, beside.max_new_tokens, text)
    provenance = provenance_of(model, questions, asking=asking or PromptConfig(), **known)
    for row in rows:
        check_sampled_by(row, provenance, recalibrator, what="what is given")
    limits = {sampled_by_of(row).get("max_new_tokens", 0) for row in rows}
    usual = {default_max_new_tokens(open_book=question.context is not None) for question in questions}
    fitted = recalibrator if isinstance(recalibrator, Fitted) else None
    return SamplesOrigin(provenance, fitted, None if limits <= {0, *usual} else max(limits), text)


def _calibration_beside(source: str | Path | None, text: str | None) -> Calibration:
    """The calibration that kept the samples; UsageError if it is not there, or kept others."""
    name = "name the model that sampled them (--model, and --few-shot as then)"
    folder = Path("" if source is None else source).parent
    if text is None or not (folder / CALIBRATION.file).is_file():
        raise UsageError(
            f"semcal calibrate kept these samples, and no {CALIBRATION.file} that knows their prompt stands "
            f"beside them; give the file {SAMPLES} in the directory of their calibration, or {name}"
        )
    found = Calibration.from_pretrained(folder)
    if found.samples_sha256 != sha256(text.encode()).hexdigest():
        raise UsageError(f"{source} is not what {folder / CALIBRATION.file} was made with; {name}")
    return found


def _refuse_beside_samples(given: Mapping[str, Any]) -> None:
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise UsageError(
            f"{', '.join(names)} given beside samples, which no model is asked for; leave "
            f"{'it' if len(names) == 1 else 'them'} out, or give a model with labelled questions"
        )


def check_labelled_samples(row: Mapping[str, Any]) -> None:
    """Raise InputError unless the row holds samples and the reference answers of its question."""
    identity(row)
    answers = answers_of(row)
    if not any(text.strip() for text in answers):
        raise InputError(f"'answers' holds no text, got {shown(answers)}: give at least one reference answer")
    context_of(row)
    group_of(row)
    m = len(samples_of(row))
    log_likelihoods_of(row, m)
    temperatures_of(row)
    sampled_by_of(row)
    if "clusters" in row:
        clusters_of(row, m)
    else:
        question_of(row)


def calibrate_samples(
    rows: Sequence[Mapping[str, Any]],
    *,
    equivalence: Equivalence,
    linkage: str = "components",
    m: int | None = None,
    temperatures: Sequence[float] | None = None,
    origin: SamplesOrigin = NOWHERE,
    progress: Callable[[int], None] | None = None,
    **how: Any,
) -> Calibration:
    """Learn from stored samples the probability that the commonest answer is right; no model is needed.

    Each row has `id`, `question`, `samples` and `answers`; `log_likelihoods` where they are known, and
    `temperatures`, one a sample, where samples were drawn at several. Those that hold `clusters` are not
    clustered again: a warning, if `equivalence` is another than "exact". Of each temperature the first `m`
    draws are taken, by default all; of `temperatures` beside the answer's, those that are named. `progress`
    gets the number of questions that are clustered; `how` goes to `calibrate_rows`. UsageError for one draw a
    question, or fewer than `m`.
    """
    for row in rows:
        try:
            check_labelled_samples(row)
        except InputError as error:
            raise InputError(f"question {shown(row.get('id'))}: {error}") from None
    warn_of_clusters(rows, address_of(equivalence))
    drawn = _first_draws(_chosen_temperatures(_drawn(rows), temperatures), m)
    check_stored_draws(drawn)
    every = [row for split in drawn.values() for row in split]
    each = progress and (lambda done: progress(done // len(drawn)))
    found = cluster_new(every, equivalence=equivalence, linkage=linkage, progress=each)
    n = len(rows)
    measured = measure_at({t: found[k * n : (k + 1) * n] for k, t in enumerate(drawn)})
    how |= {"provenance": origin.provenance, "recalibrator": origin.recalibrator}
    how |= {"max_new_tokens": origin.max_new_tokens or how.get("max_new_tokens")}
    calibration = calibrate_rows(measured, equivalence=equivalence, linkage=linkage, **how)
    return replace(calibration, samples=origin.samples)


def _drawn(rows: Sequence[Mapping[str, Any]]) -> RowsAt:
    """The rows of each temperature; of one, that which all of them were sampled at as far as they say."""
    drawn = rows_by_temperature(rows)
    stated = {sampled_by_of(row).get("temperature") for row in rows}
    if list(drawn) == [None] and len(stated) == 1 and isinstance(t := stated.pop(), float):
        return {t: drawn[None]}
    return drawn


def _chosen_temperatures(drawn: RowsAt, temperatures: Sequence[float] | None) -> RowsAt:
    """The draws of the answer, and those at the temperatures that are named."""
    if temperatures is None:
        return drawn
    for t in temperatures:
        if t not in drawn:
            held = ", ".join("none" if one is None else f"{one:g}" for one in drawn)
            raise UsageError(f"the samples have no draws at T = {t:g}, but at {held}; name some of these")
    first = next(iter(drawn))
    return {t: rows for t, rows in drawn.items() if t == first or t in temperatures}


def _first_draws(drawn: RowsAt, m: int | None) -> RowsAt:
    """The first m draws of each row at each temperature; all of them without m."""
    if m is None:
        return drawn
    for row in (row for rows in drawn.values() for row in rows):
        if len(row["samples"]) < m:
            raise UsageError(
                f"question {identity(row)!r} has {len(row['samples'])} draws at a temperature, and m is {m}; "
                "give a smaller m, or sample anew"
            )
    return {t: [chosen_draws(row, range(m)) for row in rows] for t, rows in drawn.items()}
