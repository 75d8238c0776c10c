"""Calibrate on labelled questions that a model is asked (spec section 11)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from semcal.calibration.calibrated import Calibration
from semcal.calibration.from_samples import calibrate_samples, labelled_samples, measure_samples
from semcal.calibration.learn import calibrate_rows
from semcal.data.question import Question
from semcal.errors import QuestionError, SemcalWarning, UsageError
from semcal.files import dumps
from semcal.grading.grade import as_grader
from semcal.grading.rules import Grader
from semcal.inputs import (
    EquivalenceLike,
    ModelLike,
    Questions,
    Samples,
    as_equivalence,
    as_model,
    as_questions,
    checked_draws,
    checked_learning,
    checked_temperatures,
    name_of,
)
from semcal.measuring import measure_at
from semcal.models.clustering import Grouping
from semcal.models.sampling import Sampling, row_to_ask
from semcal.progress import ShowProgress, shown_progress
from semcal.recalibration.attentive import AnyRecalibrator
from semcal.recalibration.calibration_set import provenance_of
from semcal.recalibration.fit_and_select import sample_candidates
from semcal.recalibration.fitting import RecalibratorLike, recalibrator_and_prompt
from semcal.recalibration.provenance import check_enough
from semcal.recalibration.saving import fitted_or_none
from semcal.recalibration.temperature import Temperature, temperature_of
from semcal.rows import (
    Draws,
    RowsAt,
    SampledBy,
    check_distinct,
    warn_of_cut_draws,
)
from semcal.store import Store

T = TypeVar("T")
#: Temperatures at which labelled questions are sampled: that of the answer, and a sharper one.
TEMPERATURES = (1.0, 0.5)


def calibrate(
    model: ModelLike | None = None,
    labelled: Questions | None = None,
    *,
    samples: Samples | None = None,
    equivalence: EquivalenceLike | None = None,
    temperatures: Sequence[float] | float | None = None,
    recalibrator: RecalibratorLike | None = None,
    few_shot: Questions | None = None,
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
        The old way to calibrate on stored samples, for a release; use ``semcal.score(samples).calibrate()``.
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
    >>> from semcal.models.fakes import FakeLanguageModel
    >>> table = {f"Who built mill {i}?": {"Ana.": 0.9, "Bo.": 0.1} for i in range(60)}
    >>> labelled = [{"question": q, "answers": "Ana" if i % 3 else "Bo"} for i, q in enumerate(table)]
    >>> calibration = calibrate(FakeLanguageModel(table), labelled)
    >>> calibration.report.n, calibration.report.base["accuracy"]
    (60, 0.667)
    """
    risk, delta, seed = checked_learning(risk=risk, delta=delta, seed=seed)
    clustering = Grouping(as_equivalence(equivalence), linkage)
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
        warnings.warn(
            "semcal.calibrate(samples=...) will go; use semcal.score(samples).calibrate()",
            SemcalWarning,
            stacklevel=2,
        )
        sampled, origin = labelled_samples(samples)
        with shown_progress(progress, "calibrate", len(sampled)) as update:
            measured = measure_samples(sampled, clustering, m=m and checked_draws(m), progress=update)
        return calibrate_samples(
            measured, clustering, origin=origin, grader=marks, risk=risk, delta=delta, seed=seed
        )
    if labelled is None:
        raise UsageError("no labelled questions; give calibrate(model, labelled), or score(…).calibrate()")
    model, questions = as_model(model), as_questions(labelled, "labelled", labelled=True)
    check_enough(len(questions), of="to calibrate on")
    check_distinct(question.id for question in questions)
    m = checked_draws(10 if m is None else m)
    further = checked_temperatures(TEMPERATURES if temperatures is None else temperatures)
    fitted, asking = recalibrator_and_prompt(model, recalibrator, few_shot)
    first: dict[float | None, AnyRecalibrator] = {1.0: Temperature(1.0)}
    if recalibrator is not None:
        fixed = fitted_or_none(fitted) is None and temperature_of(fitted)
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
        recalibrator=fitted_or_none(fitted),
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


def _refuse_beside_samples(options: Mapping[str, object]) -> None:
    names = [name for name, value in options.items() if value is not None]
    if names:
        raise UsageError(
            f"{', '.join(names)} given beside samples, which no model is asked for; leave "
            f"{'it' if len(names) == 1 else 'them'} out, or give a model with labelled questions"
        )
