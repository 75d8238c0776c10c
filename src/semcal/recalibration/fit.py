"""Fit a recalibrator to labeled questions: one pass of the frozen model, then the fit (spec section 6).

Functions that sample answers accept a fit, the path of a saved fit, or a temperature as the recalibrator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack, cast

from semcal.data.datasets import Questions, as_questions, name_of
from semcal.errors import QuestionError, UsageError, shown
from semcal.inputs import ModelLike, PromptKeywords, as_model, check_options, configured, options_of
from semcal.models.distribution import Base, Temperature, temperature_of
from semcal.models.prompting import PromptConfig
from semcal.models.protocols import AnyRecalibrator, LanguageModel, Sampler, with_states
from semcal.progress import ShowProgress, shown_progress
from semcal.recalibration.files import Provenance, from_pretrained, save_pretrained
from semcal.recalibration.fit_data import FitData, fit_features, provenance_of
from semcal.recalibration.methods import (
    FITTED,
    FitResult,
    FitTask,
    StepProgress,
    paper_schedule,
    run_fit,
    ts_of,
)
from semcal.recalibration.records import check_loss, warn_if_few
from semcal.registry import check_name
from semcal.rows import Json

if TYPE_CHECKING:
    from semcal.recalibration.records import Fitted
    from semcal.servers.sampler import ServerModel


@dataclass(frozen=True)
class Fit:
    """A fitted recalibrator with the model and the prompt that it was fitted with.

    Attributes
    ----------
    recalibrator : Fitted
        The recalibrator, such as TemperatureScaling, ATS or Platt.
    provenance : Provenance
        Model, prompt, data and versions; `provenance.check` rejects another model or prompt.
    asking : PromptConfig
        The template of the prompt, and the few-shot examples before every question.
    report : mapping
        Losses before and after, standard error of T, steps; empty for a loaded fit.

    Examples
    --------
    >>> import semcal
    >>> from tempfile import mkdtemp
    >>> from semcal.models.fakes import FakeLanguageModel
    >>> table = {f"Who built mill {i}?": {"Ana.": 0.9, "Bo.": 0.1} for i in range(60)}
    >>> labelled = [{"question": q, "answers": "Ana." if i % 3 else "Bo."} for i, q in enumerate(table)]
    >>> fitted = semcal.fit(FakeLanguageModel(table), labelled)
    >>> again = Fit.from_pretrained(fitted.save_pretrained(mkdtemp()))
    >>> again.temperature == fitted.temperature, again.asking == fitted.asking
    (True, True)
    """

    recalibrator: Fitted
    provenance: Provenance
    asking: PromptConfig
    report: Json = field(default_factory=dict)

    def __repr__(self) -> str:
        origin = f"{self.provenance.n_questions} labeled questions, {self.provenance.model}"
        return f"Fit({self.recalibrator!r}, {origin})"

    @property
    def temperature(self) -> float:
        """The temperature of TS or TS-grid; UsageError for other methods."""
        temperature = temperature_of(self.recalibrator)
        if temperature is None:
            raise UsageError(f"temperature: {self.recalibrator.method} has no single temperature. Fit TS")
        return temperature

    def save_pretrained(self, directory: str | Path) -> Path:
        """Write `directory`/recalibrator.json and return its path."""
        return save_pretrained(self.recalibrator, directory, provenance=self.provenance)

    @classmethod
    def from_pretrained(cls, path_or_id: str | Path, *, revision: str | None = None) -> Fit:
        """Load a fit that `save_pretrained` or `semcal fit` wrote, with its prompt.

        Parameters
        ----------
        path_or_id : str or Path
            A directory, an id on the Hugging Face hub, or "atlas" for the embedded model.
        revision : str, optional
            Branch, tag or commit on the hub.

        Raises
        ------
        UsageError
            If no recalibrator exists there.
        StoreError
            If the file is damaged, or the hub cannot be reached.
        """
        recalibrator, provenance = from_pretrained(path_or_id, revision=revision)
        return cls(recalibrator, provenance, PromptConfig.from_description(provenance.prompt))


RecalibratorLike: TypeAlias = "Fit | AnyRecalibrator | float | str | Path"
"""A result of `semcal.fit` or its directory, a recalibrator, or a temperature."""


def as_recalibrator(recalibrator: RecalibratorLike | None) -> Fit | AnyRecalibrator:
    """Convert an argument to a recalibrator or a fit; None means Base, a path is loaded."""
    if recalibrator is None:
        return Base()
    if isinstance(recalibrator, str | Path):
        return Fit.from_pretrained(recalibrator)
    if isinstance(recalibrator, Real) and not isinstance(recalibrator, bool):
        return Temperature(float(recalibrator))
    is_one = isinstance(recalibrator, Fit) or hasattr(recalibrator, "log_probs")
    if is_one and not isinstance(recalibrator, type):
        return cast("Fit | AnyRecalibrator", recalibrator)
    raise UsageError(
        f"recalibrator: got {shown(recalibrator)}. Pass a temperature such as 0.7, a result of semcal.fit, "
        "or the directory of a saved fit"
    )


def recalibrator_and_prompt(
    model: Sampler,
    recalibrator: RecalibratorLike | None,
    prompt: PromptConfig | None = None,
) -> tuple[AnyRecalibrator, PromptConfig]:
    """Return the recalibrator and the prompt; its default template and examples are those of the fit.

    UsageError if the fit belongs to another model or prompt, unless `force` of the prompt is set.
    """
    asking, fit = prompt or PromptConfig(), as_recalibrator(recalibrator)
    if not isinstance(fit, Fit):
        return fit, asking
    asking = replace(
        asking,
        template=asking.template or fit.asking.template,
        few_shot=asking.few_shot or fit.asking.few_shot,
    )
    if not asking.force:
        fit.provenance.check(
            model=model.name,
            revision=model.revision,
            prompt_hash=replace(asking, vary=1).hash(model),  # variants keep the meaning of the prompt
            difference=fit.asking.difference(replace(asking, vary=1)),
        )
    return fit.recalibrator, asking


SOLVERS = ("exact", "sgd")


def check_method(method: str, solver: str | None, loss: str, alpha: float | None) -> str:
    """Return the solver, by default the first of the method; UsageError for an unsupported combination."""
    solvers = FITTED[method].solvers
    chosen = check_name(solver or solvers[0], SOLVERS, what="solver")
    check_loss(loss, alpha, exact=chosen == "exact")
    if chosen not in solvers:
        raise UsageError(f"solver: {method} has no {chosen} solver. Omit the solver, or use {solvers[0]}")
    return chosen


@dataclass(frozen=True)
class FitConfig:
    """The options of a fit.

    Attributes
    ----------
    solver : {"exact", "sgd"}, optional
        "sgd" is the paper's schedule of gradient steps. The default is "exact" for TS, otherwise "sgd".
    loss : {"NLL", "SS", "any"}
        Negative log-likelihood, selective smoothing with its `alpha`, or −log of the summed probability of
        the references of a question (exact TS of a local model; a mean over questions, not tokens).
    alpha : float, optional
        The weight of selective smoothing, in (0, 1).
    weight_decay : float
        Weight decay of sgd.
    learning_rate : float, optional
        Learning rate of sgd; the default is the paper's, which needs many questions.
    seed : int
        Seed of sgd, and of the folds of the expected share of correct samples.
    """

    solver: str | None = None
    loss: str = "NLL"
    alpha: float | None = None
    weight_decay: float = 0.0
    learning_rate: float | None = None
    seed: int = 0


class FitKeywords(PromptKeywords, total=False):
    """The fields of `FitConfig` and `PromptConfig`."""

    solver: str | None
    loss: str
    alpha: float | None
    weight_decay: float
    learning_rate: float | None
    seed: int


@dataclass(frozen=True)
class RecalibrationRecord:
    """The origin of a fit, and the folders of its unfinished work. Commands set it."""

    data: str | None = None  # name of the labeled questions; by default the name of the file
    versions: Mapping[str, str | None] = field(default_factory=dict)
    store: Path | None = None  # hidden states of whole sequences, if memory is short or for further fits
    keep: Path | None = None  # replies of a server, from which an interrupted fit resumes; not removed
    on_bad_question: Callable[[QuestionError], None] | None = None  # by default the error is raised
    on_step: StepProgress | None = None  # receives the number of finished steps of sgd, and the total


def fit(
    model: ModelLike,
    questions: Questions,
    *,
    method: str = "TS",
    prompt: PromptConfig | None = None,
    record: RecalibrationRecord | None = None,
    progress: ShowProgress = True,
    **options: Unpack[FitKeywords],
) -> Fit:
    """Fit a recalibrator to labeled questions.

    Parameters
    ----------
    model : LanguageModel, ServerModel, str or Path
        The frozen model, an argument of `semcal.load_model`, or a server with a tokenizer (only TS).
    questions : file, DataFrame, dicts or Questions
        At least 5 labeled questions (as in `semcal.calibrate`); a few hundred are enough for TS. All
        reference answers of a question count, with equal weights that sum to one question. The solver sgd
        uses one random reference answer per epoch.
    method : {"TS", "ATS", "Platt"}
        The method, or the name of a registered one (`semcal.recalibration.RECALIBRATORS`).
    prompt : PromptConfig, optional
        The prompt, with the few-shot examples before every question, for the fit and for later use.
    record : RecalibrationRecord, optional
        For programs that resume interrupted fits.
    progress : bool or callable
        A bar on a terminal or in a notebook, or a function that receives the number of questions read.
    **options
        The fields of `FitConfig`, such as `loss` and `solver`, and of `PromptConfig`, as an alternative to
        `prompt`.

    Returns
    -------
    Fit
        The fit, with `recalibrator`, `temperature` (TS) and `save_pretrained`.

    Raises
    ------
    FitError
        If fewer than 5 questions are labeled, or the fit fails.
    InputError, UsageError, ModelError, ServerError
        As in `semcal.calibrate`; also UsageError if the method does not have the solver or the loss.

    Warns
    -----
    SemcalWarning
        Below 50 labeled questions.

    Examples
    --------
    The model is right for two of three questions, and too confident:

    >>> from semcal.models.fakes import FakeLanguageModel
    >>> table = {f"Who built mill {i}?": {"Ana.": 0.9, "Bo.": 0.1} for i in range(60)}
    >>> labelled = [{"question": q, "answers": "Ana." if i % 3 else "Bo."} for i, q in enumerate(table)]
    >>> fit(FakeLanguageModel(table), labelled).temperature > 1
    True
    """
    rest: dict[str, Any] = dict(options)
    check_options(rest, options_of(FitConfig, PromptConfig), of="semcal.fit")
    config, record = configured(FitConfig, None, rest), record or RecalibrationRecord()
    chosen = check_method(method, config.solver, config.loss, config.alpha)
    kind, store, loss = FITTED[method], record.store, (config.loss, config.alpha)
    model = as_model(model)
    asking, with_answers = configured(PromptConfig, prompt, rest).settled(
        as_questions(questions, labelled=True), record.on_bad_question
    )
    local = model.capabilities.states or not (kind.over_server and chosen == "exact" and store is None)
    if local:
        reader = with_states(model, "ATS, Platt, sgd and a store of features read hidden states")
    else:
        from semcal.recalibration.server_fit import choose_route_by, fit_over_server

        check_loss(*loss)
        choose_route_by(cast("ServerModel", model), config.loss)
        reader = cast("LanguageModel", model)  # used only to encode prompts and answers
    labelled = FitData.of(reader, with_answers, asking=asking, on_bad_question=record.on_bad_question)
    warn_if_few(len(labelled.questions))
    provenance = partial(
        provenance_of,
        model,
        asking=asking,
        data=record.data or name_of(questions),
        seed=config.seed,
        versions=record.versions,
    )
    with shown_progress(progress, "fit", len(labelled.questions)) as update:
        if not local:
            over_server = fit_over_server(
                cast("ServerModel", model),
                labelled,
                loss,
                seed=config.seed,
                keep=record.keep,
                on_bad_question=record.on_bad_question,
                progress=update,
            )
            answered = [labelled.questions[i] for i in over_server.questions]
            origin = provenance(answered, server=over_server.origin)
            return Fit(ts_of(over_server.fit), origin, asking, over_server.report)
        whole = kind.reads_sequences or store is not None
        features = fit_features(reader, labelled, asking=asking, whole=whole, store=store, progress=update)
    schedule = paper_schedule(
        method, weight_decay=config.weight_decay, learning_rate=config.learning_rate, seed=config.seed
    )
    task = FitTask(
        reader, features, [loss], chosen, schedule, groups=labelled.groups(), progress=record.on_step
    )
    result = _fit_stored(reader, method, task)
    report = {**result.report, "n_tokens": len(features.targets)}
    return Fit(result.recalibrator, provenance(labelled.questions), asking, report)


def fit_estimator(
    estimator: Fitted, model: ModelLike, labeled: Questions, prompt: PromptConfig | None, **options: Any
) -> Fit:
    """Fit a recalibrator by its method, loss and α, and copy the fitted state to it."""
    how: dict[str, Any] = {"method": estimator.method, "loss": estimator.loss, "alpha": estimator.alpha}
    fitted = fit(model, labeled, prompt=prompt, **how, **options)
    vars(estimator).update(vars(fitted.recalibrator))
    return replace(fitted, recalibrator=estimator)


# ---- Fits on stored states


def _fit_stored(model: LanguageModel, method: str, task: FitTask) -> FitResult:
    """Fit the single loss of a task, and report the mean loss before and after."""
    (loss,) = task.losses
    (result,) = run_fit(method, task)
    if "loss_before" in result.report:
        return result
    from semcal.recalibration.exact_solver import mean_loss_of

    before, after = (
        mean_loss_of(model, task.features, recalibrator, loss=loss[0], alpha=loss[1])
        for recalibrator in (Base(), result.recalibrator)
    )
    report = {"loss_before": before, "loss_after": after, **result.report}
    return FitResult(result.recalibrator, report)
