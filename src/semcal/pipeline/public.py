"""What is called in Python: `semcal.calibrate`, `semcal.score` and `semcal.ask_many`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from semcal.arrays import as_option
from semcal.engine.equivalence import Equivalence
from semcal.errors import InputError, UsageError
from semcal.pipeline.answer import answer_of
from semcal.pipeline.cluster import cluster_rows
from semcal.pipeline.grade import as_grader
from semcal.pipeline.inputs import as_equivalence, as_model, as_questions, as_sample_rows
from semcal.pipeline.measure import measure_rows
from semcal.pipeline.progress import ShowProgress, shown_progress
from semcal.pipeline.prompting import PromptConfig
from semcal.pipeline.results import Results
from semcal.pipeline.rows import first_repeated
from semcal.pipeline.sample_features import rows_by_temperature
from semcal.registry import check_name
from semcal.semantics import MEASURES

if TYPE_CHECKING:
    from semcal.engine.language_model import LanguageModel
    from semcal.pipeline.calibrated import Calibration
    from semcal.qa.grading import Grader

__all__ = ["ask_many", "calibrate", "score"]


def calibrate(
    model: LanguageModel | str | Path | None = None,
    labelled: Any = None,
    *,
    samples: Any = None,
    equivalence: Equivalence | str | Path = "exact",
    temperatures: tuple[float, ...] = (1.0, 0.5),
    recalibrator: Any = None,
    few_shot: Any = None,
    m: int = 10,
    seed: int = 0,
    max_new_tokens: int | None = None,
    linkage: str = "components",
    grader: Grader | str | None = None,
    risk: float | None = None,
    delta: float = 0.05,
    progress: ShowProgress = True,
) -> Calibration:
    """Learn the probability that an answer is right, from labelled questions.

    Parameters
    ----------
    model : LanguageModel, str or Path
        What answers: from `semcal.load_model`, or what that takes.
    labelled : file, DataFrame, dicts or Questions
        `question` and `answers`; `id`, `context` and `group` where there are some. A hundred questions are a
        start, 250 are good.
    samples : file, DataFrame or dicts
        Instead of a model and its questions: stored samples with `answers`, as `semcal.score` takes them.
    equivalence : Equivalence, str or Path
        Decides which answers mean the same: "exact", an NLI model, or its name or directory.
    temperatures : sequence of float
        The answer comes from the draws at T = 1; those at other temperatures are features.
    recalibrator : Fit, Recalibrator, float, str or Path, optional
        Takes the place of T = 1: a temperature, or what `semcal.fit` has made or saved.
    few_shot : file, DataFrame, dicts or Questions, optional
        Answered examples before every question; by default those of the recalibrator.
    m : int
        Draws at each temperature.
    seed : int
        Of the draws, of the folds, and of what is kept apart.
    grader : Grader or {"rules", "nli"}, optional
        Decides whether an answer is right: rules by default, or the equivalence.
    risk, delta : float
        With `risk` also a threshold: of the answers from it on at most this share is wrong, with probability
        1 - `delta`. Two in five of the questions are kept apart for it.
    progress : bool or callable
        A bar on a terminal or in a notebook, or a function of the number of questions that were sampled.

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
        For an argument that makes no sense.

    Examples
    --------
    >>> from semcal.engine.fakes import FakeLanguageModel
    >>> table = {f"Who built mill {i}?": {"Ana.": 0.9, "Bo.": 0.1} for i in range(60)}
    >>> labelled = [{"question": q, "answers": "Ana" if i % 3 else "Bo"} for i, q in enumerate(table)]
    >>> found = calibrate(FakeLanguageModel(table), labelled)
    >>> found.report.n, found.report.base["accuracy"]
    (60, 0.667)
    """
    for name, share in (("risk", risk), ("delta", delta)):
        if share is not None:
            as_option(share, name, "a share between 0 and 1, such as 0.1", low=0, high=1)
    if samples is not None:
        if model is not None or labelled is not None:
            raise UsageError(
                "samples are given, and so is a model or labelled questions; give one or the other"
            )
        how: dict[str, Any] = {"grader": grader, "linkage": linkage, "seed": seed, "progress": progress}
        found = score(samples, equivalence, **how)
        return found.calibrate(risk=risk, delta=delta, seed=seed)
    if labelled is None:
        raise UsageError("no labelled questions; give calibrate(model, labelled), or calibrate(samples=…)")
    from semcal.pipeline import calibrate as calibrating
    from semcal.pipeline.fitting import Fit, as_recalibrator

    model, questions = as_model(model), as_questions(labelled, "labelled", labelled=True)
    repeated = first_repeated([question.id for question in questions])
    if repeated is not None:
        raise InputError(f"the question id {repeated!r} occurs twice; ids must be distinct")
    under = None if recalibrator is None else as_recalibrator(recalibrator)
    asking = PromptConfig(tuple(as_questions(few_shot or [], "few_shot", labelled=True)))
    if isinstance(under, Fit):
        asking = under.asking if few_shot is None else asking
        under.check(model, asking)
        under = under.recalibrator
    judge = as_equivalence(equivalence)
    with shown_progress(progress, "calibrate", len(questions)) as update:
        return calibrating.calibrate(
            model,
            questions,
            equivalence=judge,
            temperatures=temperatures,
            recalibrator=under,
            asking=asking,
            m=m,
            seed=seed,
            max_new_tokens=max_new_tokens,
            linkage=linkage,
            grader=as_grader(grader, judge),
            risk=risk,
            delta=delta,
            data=Path(labelled).name if isinstance(labelled, str | Path) else None,
            progress=update,
        )


def score(
    samples: Any,
    equivalence: Equivalence | str | Path | None = None,
    *,
    calibration: Calibration | str | Path | None = None,
    grader: Grader | str | None = None,
    measure: str | None = None,
    t_alpha: float = 0.5,
    g_alpha: float = 0.5,
    linkage: str | None = None,
    seed: int = 0,
    progress: ShowProgress = True,
) -> Results:
    """Cluster and measure sampled answers, and grade them where reference answers are known; no model needed.

    Parameters
    ----------
    samples : file, DataFrame or dicts
        A row a question: `question`, `samples` (a list of texts or its JSON) and, where there are some,
        `log_likelihoods` (length-normalised, nats), `answers` (references), `id`, `context`, `group`, and
        `temperatures`, one a sample, if they differ.
    equivalence : Equivalence, str or Path, optional
        As in `semcal.calibrate`; by default "exact", or the calibration's.
    calibration : Calibration, str or Path, optional
        Makes the confidence a probability.
    grader : Grader or {"rules", "nli"}, optional
        As in `semcal.calibrate`.
    measure : str, optional
        The measure that chooses the answer and is its confidence; "E-SC" by default.
    t_alpha, g_alpha : float
        The parameters of T-SC and G-SC.
    linkage : {"components", "greedy"}, optional
        How pairs become clusters.
    seed : int
        Chooses the members of a cluster that are graded.
    progress : bool or callable
        A bar on a terminal or in a notebook, or a function of the number of questions that are clustered.

    Returns
    -------
    Results

    Raises
    ------
    InputError
        If a row cannot be used, with its place and what to do.
    UsageError
        For an argument that makes no sense, or is set by the calibration.

    Examples
    --------
    >>> found = score([{"question": "Who wrote it?", "samples": ["Ana Velis", "Ana Velis.", "Bo Tarn"]}])
    >>> found[0]
    Answer('Ana Velis', confidence=0.667)
    """
    given = as_sample_rows(samples)
    chosen = check_name(measure or "E-SC", MEASURES, what="measure")
    if calibration is not None:
        from semcal.pipeline.apply_calibration import as_calibration, check_beside, check_equivalence

        calibration = as_calibration(calibration)
        check_beside(calibration, {"linkage": linkage, "measure": measure})
        if equivalence is not None:
            check_equivalence(calibration, getattr(equivalence, "name", str(equivalence)))
        equivalence, linkage = equivalence or calibration.equivalence, calibration.linkage
    judge, linkage = as_equivalence(equivalence or "exact"), linkage or "components"
    with shown_progress(progress, "score", len(given)) as update:
        split = rows_by_temperature(given)
        flat = [row for rows in split.values() for row in rows]
        clustered, _ = cluster_rows(flat, equivalence=judge, linkage=linkage, progress=update)
    measured = measure_rows(clustered, t_alpha=t_alpha, g_alpha=g_alpha)
    n = len(given)
    rows = {t: measured[k * n : (k + 1) * n] for k, t in enumerate(split)}
    own = next(iter(rows.values()))
    if calibration is None:
        lacking = [row["id"] for row in own if chosen not in row["confidences"]]
        if lacking:
            raise InputError(
                f"question {lacking[0]!r} has no log-likelihoods, which {chosen} needs; use E-SC"
            )
        answers = [answer_of(row, chosen, None, None) for row in own]
    else:
        limit = None if calibration.threshold is None else calibration.threshold.threshold
        answers = [answer_of(row, chosen, one, limit) for row, one in zip(own, calibration.apply(rows))]
    how: dict[str, Any] = {"equivalence": judge, "linkage": linkage, "seed": seed}
    return Results(answers, rows, grader=as_grader(grader, judge), stored=True, **how)


def ask_many(
    questions: Any,
    model: LanguageModel | str | Path = "atlas",
    *,
    progress: ShowProgress = True,
    **options: Any,
) -> Results:
    """Ask a model many questions.

    Parameters
    ----------
    questions : list of str, file, DataFrame, dicts or Questions
        `question`; `id`, `context`, `group` where there are some; `answers`, and they are graded.
    model : LanguageModel, str or Path
        From `semcal.load_model`, or what that takes; "atlas" is the small one that comes with the package.
    progress : bool or callable
        A bar on a terminal or in a notebook, or a function of the number of questions that are answered.
    **options
        Of `semcal.SemanticUQ`: `calibration`, `equivalence`, `recalibrator`, `m`, `seed`, …

    Returns
    -------
    Results

    Examples
    --------
    >>> from semcal.engine.fakes import FakeLanguageModel
    >>> model = FakeLanguageModel({"Who wrote it?": {"Ana": 1.0}, "Who sang it?": {"Bo": 0.5, "Cy": 0.5}})
    >>> ask_many([{"question": "Who wrote it?", "answers": "Ana"}, {"question": "Who sang it?"}], model)
    Results(2 answers, 1 graded; E-SC: accuracy 1.000, confidence 1.000, gain 1.000)
    """
    from semcal.pipeline.ask import SemanticUQ

    return SemanticUQ(as_model(model), **options).ask_many(questions, progress=progress)
