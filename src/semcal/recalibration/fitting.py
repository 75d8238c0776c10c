"""Fit a recalibrator to labelled questions: one pass of the frozen model, then the fit (spec section 6)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import torch

from semcal.data.arguments import Questions, as_questions, name_of
from semcal.data.template import TemplateLike
from semcal.errors import QuestionError, SemcalWarning, UsageError
from semcal.inputs import ModelLike, as_model
from semcal.models.distribution import AnyRecalibrator, Base, StateReader, temperature_of
from semcal.models.features import CalibrationFeatures
from semcal.models.language_model import LanguageModel, PromptConfig, with_states
from semcal.progress import ShowProgress, shown_progress
from semcal.recalibration.attentive import inverse_temperatures
from semcal.recalibration.calibration_set import CalibrationSet, calibration_features, provenance_of
from semcal.recalibration.fitted import Fit
from semcal.recalibration.losses import token_losses
from semcal.recalibration.methods import FITTED, FitResult, FitTask, paper_schedule, run_fit
from semcal.recalibration.optimum import check_loss
from semcal.recalibration.provenance import warn_if_few
from semcal.recalibration.server_fit import choose_route_by, fit_over_server
from semcal.recalibration.training import StepProgress
from semcal.registry import check_name
from semcal.servers.sampler import ServerModel

SOLVERS = ("exact", "sgd")
#: Answer positions whose logits are held at once, and how many logits these may be.
POSITIONS, LOGITS = 2048, 2**26
#: Relative change of the loss below which a training has changed nothing.
UNMOVED = 1e-3


def check_method(method: str, solver: str | None, loss: str, alpha: float | None) -> str:
    """Return the solver, by default the method's first; UsageError if there is no such combination."""
    solvers = FITTED[method].solvers
    chosen = check_name(solver or solvers[0], SOLVERS, what="solver")
    check_loss(loss, alpha, exact=chosen == "exact")
    if chosen not in solvers:
        raise UsageError(f"{method} has no {chosen} solver; leave --solver out or use {solvers[0]}")
    return chosen


def fit(
    model: ModelLike,
    questions: Questions,
    *,
    method: str = "TS",
    solver: str | None = None,
    few_shot: Questions = (),
    system: str | None = None,
    template: TemplateLike | None = None,
    loss: str = "NLL",
    alpha: float | None = None,
    weight_decay: float = 0.0,
    learning_rate: float | None = None,
    seed: int = 0,
    store: Path | None = None,
    data: str | None = None,
    versions: dict[str, str | None] | None = None,
    on_bad_question: Callable[[QuestionError], None] | None = None,
    progress: ShowProgress = True,
    on_step: StepProgress | None = None,
    keep: Path | None = None,
) -> Fit:
    """Fit a recalibrator to labelled questions.

    Parameters
    ----------
    model : LanguageModel, ServerModel, str or Path
        The frozen model, what `semcal.load_model` takes, or a server with a tokenizer (TS alone).
    questions : file, DataFrame, dicts or Questions
        Labelled questions (as in `semcal.calibrate`), 5 at least; a few hundred are enough for TS. All
        reference answers of a question count, with equal weights that add up to one question; with solver sgd
        one is drawn in each epoch.
    method : {"TS", "ATS", "Platt"}
        Which recalibrator, or one that was registered (`semcal.recalibration.RECALIBRATORS`).
    solver : {"exact", "sgd"}, optional
        exact for TS by default; the paper's schedule of gradient steps is sgd, the only one of the others.
    system : str, optional
        A system message in place of the built-in one; "" for none.
    template : file, dict or Template, optional
        `system`, and `user` with {question} and {context}: the form of the prompt.
    few_shot : file, DataFrame, dicts or Questions
        Examples that stand before every question, while fitting and afterwards.
    loss : {"NLL", "SS", "any"}
        Negative log-likelihood, selective smoothing with its `alpha`, or −log of the probability that one of
        a question's references is said (exact TS of a local model; a mean over questions, not tokens).
    weight_decay : float
        Of sgd.
    learning_rate : float, optional
        Of sgd; by default the paper's, which needs many questions to get anywhere.
    seed : int
        Of sgd, and of the resampling behind the interval of T.
    store : Path, optional
        A folder for the hidden states of whole sequences, for sets that are too large for memory and for
        further fits by any method.
    data : str, optional
        Where the questions come from, for the record; the file's name by default.
    versions : dict, optional
        Package versions for the record.
    on_bad_question : callable, optional
        Gets the QuestionError of a question that is too long for the model, which is then left out; by
        default it is raised.
    progress : bool or callable
        A bar on a terminal or in a notebook, or a function of the number of questions that were read.
    on_step : callable, optional
        Called with the number of finished steps of sgd and of all steps.
    keep : Path, optional
        A folder for what a server was asked, from which an interrupted fit over a server resumes. It is not
        removed at the end.

    Returns
    -------
    Fit
        With `recalibrator`, `temperature` (TS) and `save_pretrained`.

    Raises
    ------
    FitError
        If there are fewer than 5 labelled questions, or the fit fails.

    Warns
    -----
    SemcalWarning
        Below 50 labelled questions.

    Examples
    --------
    The model is right in two of three questions, and too sure of it:

    >>> from semcal.models.fakes import FakeLanguageModel
    >>> table = {f"Who built mill {i}?": {"Ana.": 0.9, "Bo.": 0.1} for i in range(60)}
    >>> labelled = [{"question": q, "answers": "Ana." if i % 3 else "Bo."} for i, q in enumerate(table)]
    >>> fit(FakeLanguageModel(table), labelled).temperature > 1
    True
    """
    chosen = check_method(method, solver, loss, alpha)
    kind = FITTED[method]
    model = as_model(model)
    asking, with_answers = PromptConfig(few_shot, system, template).settled(
        as_questions(questions, labelled=True), on_bad_question
    )
    local = model.capabilities.states or not (kind.over_server and chosen == "exact" and store is None)
    if local:
        reader = with_states(model, "ATS, Platt, sgd and a store of features read hidden states")
    else:
        check_loss(loss, alpha)
        choose_route_by(cast("ServerModel", model), loss)
        reader = cast("LanguageModel", model)  # of which only the reading of prompts is used
    labelled = CalibrationSet.of(reader, with_answers, asking=asking, on_bad_question=on_bad_question)
    warn_if_few(len(labelled.questions))
    data, versions = data or name_of(questions), versions or {}
    provenance = partial(provenance_of, model, asking=asking, data=data, seed=seed, versions=versions)
    with shown_progress(progress, "fit", len(labelled.questions)) as update:
        if not local:
            over_server = fit_over_server(
                cast("ServerModel", model),
                labelled,
                (loss, alpha),
                seed=seed,
                keep=keep,
                on_bad_question=on_bad_question,
                progress=update,
            )
            answered = [labelled.questions[i] for i in over_server.questions]
            origin = provenance(answered, server=over_server.origin)
            return Fit(over_server.recalibrator, origin, asking, over_server.report)
        whole = kind.reads_sequences or store is not None
        features = calibration_features(
            reader, labelled, asking=asking, whole=whole, store=store, progress=update
        )
    schedule = paper_schedule(method, weight_decay=weight_decay, learning_rate=learning_rate, seed=seed)
    task = FitTask(
        reader, features, [(loss, alpha)], chosen, schedule, groups=labelled.groups(), progress=on_step
    )
    result = _fit_stored(reader, method, task)
    report = {**result.report, "n_tokens": len(features.targets)}
    return Fit(result.recalibrator, provenance(labelled.questions), asking, report)


# ---- To stored states


def _fit_stored(model: LanguageModel, method: str, task: FitTask) -> FitResult:
    """Fit by the one loss of a task, and report the mean loss before and after."""
    (loss,) = task.losses
    (result,) = run_fit(method, task)
    if "loss_before" in result.report:
        return result
    before, after = (
        mean_loss_of(model, task.features, recalibrator, loss=loss[0], alpha=loss[1])
        for recalibrator in (Base(), result.recalibrator)
    )
    record = getattr(result.recalibrator, "sgd_", None)
    hardly = abs(before - after) < UNMOVED * before and temperature_of(result.recalibrator) is None
    if record is not None and hardly:
        warnings.warn(
            f"{method} hardly differs from the model after {record.steps} steps, in which AdamW moves "
            f"a weight by about {record.drift_bound:.1e} at most; more questions make more steps",
            SemcalWarning,
            stacklevel=2,
        )
    report = {"loss_before": before, "loss_after": after, **result.report}
    return FitResult(result.recalibrator, report)


@torch.no_grad()
def mean_loss_of(
    model: LanguageModel,
    features: CalibrationFeatures,
    recalibrator: AnyRecalibrator,
    *,
    loss: str = "NLL",
    alpha: float | None = None,
) -> float:
    """Mean loss per token (nats) of a recalibrator on stored features, references weighted equally."""
    rows, weights = features.predicting_rows(), features.token_weights()
    beta = inverse_temperatures(recalibrator, features) if isinstance(recalibrator, StateReader) else None
    size = max(1, min(POSITIONS, LOGITS // model.logits(features.states[rows[:1]]).shape[1]))
    total = 0.0
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        logits = model.logits(features.states[rows[part]])
        if isinstance(recalibrator, StateReader):
            assert beta is not None
            log_probs = recalibrator.log_probs(logits, beta[part].to(logits.device))
        else:
            log_probs = recalibrator.log_probs(logits)
        targets = features.targets[part].to(logits.device)
        losses = token_losses(log_probs, targets, loss=loss, alpha=alpha)
        total += float((losses.double().cpu() * weights[part]).sum())
    return total / float(weights.sum())
