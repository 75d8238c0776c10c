"""`semcal fit`: fit a temperature, or a larger recalibrator, to labeled questions."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

from typer import Argument, Option

from semcal.cli import options as opt
from semcal.cli.config_file import setting
from semcal.cli.console import (
    Output,
    figure_lines,
    info,
    interval,
    open_unfinished,
    progress,
    show,
    spending,
    successive_progress,
    terminal_width,
    unfinished,
    warn,
)
from semcal.cli.row_streams import BadRows, listed, read_labelled
from semcal.data.question import Question, data_hash, group_ties
from semcal.data.splits import near_duplicates, question_key, warn_of_near_duplicates
from semcal.errors import QuestionError, StoreError, UsageError, shown
from semcal.files import dumps, read_object, write_rows
from semcal.models.equivalence import names_a_server
from semcal.models.protocols import check_likelihoods
from semcal.recalibration.methods import FITTED, FROM_SAMPLES, RECALIBRATORS
from semcal.registry import check_name
from semcal.rows import Json
from semcal.store import SETTINGS

if TYPE_CHECKING:
    from semcal.models.equivalence import Equivalence
    from semcal.models.prompting import PromptConfig
    from semcal.models.protocols import LanguageModel, Sampler
    from semcal.models.sample import Sampling
    from semcal.recalibration.files import Provenance
    from semcal.recalibration.records import Fitted

#: Choices below this share of the best accuracy cause a warning.
WORTH = 0.8
#: The table of all candidates beside the recalibrator.
SELECTION = "selection.jsonl"


@dataclass(frozen=True)
class FitOptions(opt.PromptOptions):
    """The options of `semcal fit`."""

    file: str = Argument(metavar="FILE", help="File of labeled questions {question, answers, context?}.")
    out: Path = opt.folder_option("Directory of the recalibrator to write.", ...)
    method: str = Option("TS", help=f"Method: {', '.join(FITTED)}, or TS-grid (tries temperatures on FILE).")
    loss: str = Option("NLL", help="Loss: NLL, SS (selective smoothing), or any (any reference; TS only).")
    alpha: float | None = Option(None, help="Weight α of the loss SS: 0.1, 0.25, 0.5 or 0.75.")
    solver: str | None = Option(
        None, help="Solver: exact (only for TS, and its default), or sgd (the paper's gradient steps)."
    )
    weight_decay: float = setting(0.0, min=0, help="Weight decay of sgd (default: 0; paper: 0 or 0.01).")
    learning_rate: float | None = setting(
        min=0, help="Learning rate of sgd (default, as in the paper: 1e-4 for TS, 1e-5 for ATS and Platt)."
    )
    features: Path | None = Option(
        None,
        metavar="DIR",
        help="Folder that stores the hidden states for further fits (default: none).",
    )
    select: bool = Option(
        False,
        "--select",
        help="Try every loss, α and weight decay. For each measure, the best candidate on --validation is "
        "written to DIR/MEASURE, and all candidates with their scores to DIR/selection.jsonl.",
    )
    by: str = Option(
        "gain",
        help="Score that chooses for --select and TS-grid: gain (accuracy minus Brier score), or brier (as "
        "in the paper; it can prefer low accuracy with low confidence).",
    )
    validation: str | None = Option(
        None, metavar="FILE", help="File of labeled questions on which --select chooses."
    )
    measure: str = Option("E-SC", help="Measure whose best candidate is written to DIR itself.")
    equivalence: str | None = opt.EQUIVALENCE
    cache: Path | None = opt.CACHE
    m: int = opt.SAMPLES
    max_new_tokens: int | None = opt.MAX_NEW_TOKENS
    show_prompt: bool = opt.SHOW_PROMPT
    seed: int = opt.SEED
    json: bool = opt.JSON
    device: str | None = opt.DEVICE
    nli_device: str | None = opt.NLI_DEVICE
    dry_run: bool = opt.DRY_RUN
    fresh: bool = opt.FRESH

    @property
    def from_samples(self) -> bool:
        return self.method in FROM_SAMPLES

    @property
    def samples(self) -> bool:
        return self.select or self.from_samples

    @property
    def exact(self) -> bool:
        """True if T is solved exactly."""
        solvers = RECALIBRATORS[self.method].solvers
        return bool(solvers) and (self.solver or solvers[0]) == "exact"

    def check(self) -> None:
        """Raise UsageError for options that contradict each other."""
        from semcal.measures import MEASURES
        from semcal.recalibration.fit import check_method
        from semcal.recalibration.records import CHOSEN_BY

        opt.required_model(self.model)
        check_name(self.method, (*FITTED, *FROM_SAMPLES), what="method")
        check_name(self.measure, MEASURES, what="measure")
        check_name(self.by, CHOSEN_BY, what="rule of choice")
        if not self.from_samples:
            check_method(self.method, self.solver, self.loss, self.alpha)
        if self.select and self.from_samples:
            raise UsageError(f"--select: {self.method} already chooses on FILE; omit --select")
        if self.select != (self.validation is not None):
            raise UsageError("--select and --validation FILE require each other; pass both, or omit both")
        for name in ("weight_decay", "learning_rate") if self.exact or self.from_samples else ():
            if getattr(self, name):
                no_sgd = "requires --solver sgd; omit it for the exact solution of TS and for TS-grid"
                raise UsageError(f"fit.{name} {no_sgd}")


def command(options: FitOptions, server: opt.ServerOptions) -> int:
    """Fit a recalibrator to labeled questions and write it to a directory.

    The frozen model reads every question and its answers once. TS is then solved exactly. ATS, Platt, and TS
    with --solver sgd take the paper's gradient steps on the hidden states of the model. TS-grid and --select
    also sample answers. An interrupted fit resumes with the same command and gives identical results; --fresh
    starts again.
    """
    options.check()
    with BadRows() as bad:
        work = FitWork.read(options, server, bad)
        if options.show_prompt:
            opt.show_prompt(work.model, work.asking, work.questions)
            return bad.exit_code()
        if options.dry_run:
            work.show_plan()
            return bad.exit_code()
        unfinished_work = open_unfinished(options.out, work.key(), fresh=options.fresh)
        served = work.equivalence if names_a_server(options.equivalence) else None
        with spending("fit", model=work.model, equivalence=served):
            fit = work.fit_grid if options.from_samples else work.select if options.select else work.fit
            result = fit(unfinished_work.folder)
        if not options.samples:
            _remove_choices(options.out)
        unfinished_work.finish()
        show(dumps(result) if options.json or not sys.stdout.isatty() else _in_words(result))
        return bad.exit_code()


def output_of(out: Path) -> Output:
    """Return the directory of the recalibrator; --overwrite replaces only another recalibrator."""
    return folder_output(out, "recalibrator")


def folder_output(out: Path, kind: str) -> Output:
    """Return the directory of a recalibrator or calibration; --overwrite replaces one of the same kind."""
    work = unfinished(out)
    return Output(
        out,
        is_folder=True,
        begun=(work / SETTINGS).is_file(),
        replaceable=_holds(out, kind),
        work=work,
    )


def _holds(folder: Path, kind: str) -> bool:
    path = folder / f"{kind}.json"
    try:
        return path.is_file() and read_object(path, remedy="").get("kind") == kind
    except StoreError:
        return True


@dataclass(frozen=True)
class FitWork:
    """The model, and the questions for the fit and for the choice."""

    options: FitOptions
    models: opt.ModelOptions
    model: Sampler
    questions: Sequence[Question]
    validation: Sequence[Question]
    asking: PromptConfig
    bad: BadRows

    @classmethod
    def read(cls, options: FitOptions, server: opt.ServerOptions, bad: BadRows) -> FitWork:
        """Read the questions, check that no example is among them, and load the model."""
        asking = opt.prompt_config(options)
        questions = read_labelled(options.file, options.columns, bad, limit=options.limit)
        check_apart(questions, asking.few_shot, roles="a few-shot example and a question for the fit")
        validation = options.validation
        held_out = read_labelled(validation, options.columns, bad) if validation else []
        check_apart(questions, held_out, roles="a validation question and a question for the fit")
        models = opt.ModelOptions.of(options, server)
        model = models.open_model()
        leave_out = bad.reporter((*held_out, *questions))
        asking, questions = asking.settled(questions, leave_out)
        asking, held_out = asking.settled(held_out, leave_out)
        work = cls(options, models, model, questions, held_out, asking, bad)
        if work.over_server and options.from_samples:
            from semcal.models.distribution import SE

            check_likelihoods(model, SE(), options.measure)
        elif work.over_server and (options.select or options.features or not options.exact):
            _ = work.language_model  # which a server is not
        return work

    @property
    def language_model(self) -> LanguageModel:
        """The local model; UsageError if it is a server."""
        from semcal.models.protocols import with_states

        purpose = "ATS, Platt, --solver sgd, --select and --features read hidden states"
        return with_states(self.model, purpose)

    @property
    def over_server(self) -> bool:
        return not self.model.capabilities.states

    @cached_property
    def equivalence(self) -> Equivalence:
        return self.models.open_equivalence()

    @property
    def sampling(self) -> Sampling:
        from semcal.models.sample import Sampling

        return Sampling((), self.asking, opt.sampling_config(self.options))

    def key(self) -> Json:
        """Return the settings that the result depends on."""
        names = ["method", "solver", "loss", "alpha", "weight_decay", "learning_rate", "select", "by"]
        names += ["measure", "seed"]
        names += ["m", "max_new_tokens", "equivalence"] if self.options.samples else []
        features = self.options.features
        return {
            **{name: getattr(self.options, name) for name in names},
            "model": self.model.revision,
            "prompt": self.asking.hash(self.model),
            "data": data_hash(self.questions),
            "validation": data_hash(self.validation),
            "features": None if features is None else str(features),
        }

    def show_plan(self) -> None:
        """Print the planned work; the model is loaded, but answers no question."""
        from semcal.recalibration.records import PAPER_LOSSES
        from semcal.recalibration.select import candidate_fits

        options, parts = self.options, []
        n_sampled, settings = len(self.validation), ""
        if options.from_samples:
            n_sampled, settings = len(self.questions), f"at {len(self._grid())} temperatures"
        elif self.over_server:
            parts.append(self._plan_over_server())
        else:
            parts.append(f"read {len(self.questions)} questions once")
        if options.select:
            count = sum(len(fit.losses) for fit in candidate_fits([options.method], losses=PAPER_LOSSES))
            settings = f"with each of {count} fits"
        if options.samples:
            parts.append(f"sample {options.m} answers to each of {n_sampled} questions {settings}")
        path = options.out / "recalibrator.json"
        warn(f"would, with {self.model.name}, {', '.join(parts)}, and write {path}")

    def _plan_over_server(self) -> str:
        from semcal.recalibration.fit_data import FitData
        from semcal.recalibration.server_fit import plan_over_server

        model: Any = self.model
        read = FitData.of(model, self.questions, asking=self.asking, on_bad_question=lambda _: None)
        return plan_over_server(model, read, loss=self.options.loss)

    def fit(self, keep: Path) -> Json:
        """Fit one recalibrator and save it."""
        from semcal.models.prompting import PromptConfig
        from semcal.recalibration.fit import RecalibrationRecord, fit
        from semcal.workers import versions

        options = self.options
        with successive_progress() as begin:
            record = RecalibrationRecord(
                data=Path(options.file).name,
                versions=versions(),
                store=options.features,
                keep=keep,
                on_bad_question=self._leave_out,
                on_step=lambda done, total: begin("steps", total)(done),
            )
            fitted = fit(
                self.model,
                self.questions,
                method=options.method,
                prompt=PromptConfig(self.asking.few_shot, template=self.asking.template),
                record=record,
                progress=begin("fit", len(self.questions)),
                solver=options.solver,
                loss=options.loss,
                alpha=options.alpha,
                weight_decay=options.weight_decay,
                learning_rate=options.learning_rate,
                seed=options.seed,
            )
        path = fitted.save_pretrained(options.out)
        return {**_result(fitted.recalibrator, fitted.report, fitted.provenance), "path": str(path)}

    def select(self, keep: Path) -> Json:
        """Fit every candidate and choose one for each measure."""
        from semcal.models.clustering import ClusterConfig
        from semcal.recalibration.fit_data import FitData
        from semcal.recalibration.select import Sweep, fit_and_select

        options = self.options
        labelled = FitData.of(
            self.language_model, self.questions, asking=self.asking, on_bad_question=self._leave_out
        )
        provenance = self._provenance(labelled.questions)
        with successive_progress() as begin:
            chosen, selection = fit_and_select(
                self.language_model,
                labelled,
                self.validation,
                self.sampling,
                ClusterConfig(self.equivalence),
                Sweep([options.method], options.learning_rate, options.features, options.by),
                progress=begin,
                keep=keep,
            )
        return self._save(chosen, selection.table(), provenance)

    def fit_grid(self, keep: Path) -> Json:
        """Choose a temperature of the grid for each measure."""
        from semcal.models.clustering import ClusterConfig
        from semcal.recalibration.select import choose_temperatures, rows_at_temperatures
        from semcal.store import Store

        clustering = ClusterConfig(self.equivalence)
        questions = self._questions_to_sample()
        with progress(self.options.method, len(questions)) as update:
            rows = rows_at_temperatures(
                self.model,
                questions,
                self._grid(),
                self.sampling,
                clustering,
                progress=update,
                keep=Store(keep),
                on_bad_question=self._leave_out,
            )
        grid = choose_temperatures(rows, by=self.options.by)
        sampled = {row.id for rows_of in rows.values() for row in rows_of}
        provenance = self._provenance([question for question in questions if question.id in sampled])
        return self._save(grid.recalibrators, grid.table(), provenance)

    def _grid(self) -> list[float]:
        from semcal.recalibration.select import GRID

        most = self.model.capabilities.max_temperature
        grid = [t for t in GRID if most is None or t <= most]
        if len(grid) < len(GRID):
            info(f"fit: {self.model.name} supports T = {most:g} at most, so the grid ends there")
        return grid

    def _questions_to_sample(self) -> Sequence[Question]:
        """Return the questions of TS-grid that fit the model."""
        from semcal.models.sample import check_question
        from semcal.recalibration.records import check_enough

        fitting = []
        for question in self.questions:
            try:
                check_question(self.model, question, self.sampling)
                fitting.append(question)
            except QuestionError as error:
                self._leave_out(error)
        check_enough(len(fitting))
        return fitting

    def _provenance(self, questions: Sequence[Question]) -> Provenance:
        from semcal.recalibration.fit_data import provenance_of
        from semcal.workers import versions

        return provenance_of(
            self.model,
            questions,
            asking=self.asking,
            data=Path(self.options.file).name,
            seed=self.options.seed,
            versions=versions(),
        )

    def _save(self, chosen: Mapping[str, Fitted], table: Sequence[Json], provenance: Provenance) -> Json:
        from semcal.recalibration.select import save_choices

        out, measure, by = self.options.out, self.options.measure, self.options.by
        choices = save_choices(chosen, table, out, provenance=provenance, measure=measure, by=by)
        write_rows(out / SELECTION, table)
        for warning in _lost_accuracy(table, by):
            info(f"warning: {warning}")
        tried = len({row.get("candidate", row.get("temperature")) for row in table})
        place = out / SELECTION
        info(f"fit: {tried} candidates on {self.model.name}; scores by measure in {place}")
        return {"measure": measure, "by": by, "chosen": choices, "path": str(out / "recalibrator.json")}

    def _leave_out(self, error: QuestionError) -> None:
        """Report a question that is too long for the model, by its line and id."""
        self.bad.reporter(self.questions)(error)


def _lost_accuracy(table: Sequence[Json], by: str) -> Iterator[str]:
    remedy = ": wrong answers with low confidence have a low Brier score; omit --by brier"
    for row in filter(lambda row: row["chosen"], table):
        best = max(entry["accuracy"] for entry in table if entry["measure"] == row["measure"])
        if row["accuracy"] < WORTH * best:
            yield (
                f"the choice for {row['measure']} has accuracy {row['accuracy']:.0%}, the best candidate "
                f"{best:.0%}{remedy if by == 'brier' else ''}"
            )


def _remove_choices(out: Path) -> None:
    from semcal.measures import MEASURES

    (out / SELECTION).unlink(missing_ok=True)
    for folder in (out / measure for measure in MEASURES):
        if (folder / "recalibrator.json").is_file():
            rmtree(folder)


def _result(fitted: Fitted, report: Json, provenance: Provenance) -> dict[str, Any]:
    from semcal.models.distribution import temperature_of
    from semcal.recalibration.recalibrators import solver_of

    if report.get("at_bound"):
        info(
            f"fit: the loss still decreases at the bound T = {temperature_of(fitted):g}. "
            "Check that the answers belong to the questions."
        )
    if shares := report.get("right_draws"):
        before, after = (round(share, 3) for share in shares)
        shares_at = f"{before:.1%} of samples at T = 1, {after:.1%} at the fitted T (expected, out of fold)"
        if after >= before:
            info(f"fit: samples that match a reference: {shares_at}")
        else:
            hint = "" if fitted.loss == "any" else ", or try --loss any"
            warn(f"warning: fewer samples match a reference: {shares_at}. Sample at T = 1{hint}")
    return {
        "method": fitted.method,
        "temperature": temperature_of(fitted),
        "solver": solver_of(fitted),
        "loss": fitted.loss,
        "alpha": fitted.alpha,
        **report,
        "n_questions": provenance.n_questions,
    }


def check_apart(labelled: Sequence[Question], further: Sequence[Question], *, roles: str) -> None:
    """Raise UsageError if a question is used in both `roles`, which the message names.

    Warn of further questions that share a passage or a group with labeled ones, or are near duplicates.
    """
    keys = {question_key(question) for question in labelled}
    for question in further:
        if question_key(question) in keys:
            raise UsageError(f"{question.question!r} is {roles}. Remove it from one file.")
    ties = {tie for question in labelled for tie in group_ties(question)}
    related = [question.id for question in further if not ties.isdisjoint(group_ties(question))]
    if related:
        info(
            f"warning: {len(related)} questions ({listed([shown(name) for name in related])}) share a "
            "passage or a group with questions of the fit, so their metrics are too good. Keep a passage or "
            "group in one file."
        )
    warn_of_near_duplicates(near_duplicates({"fitted to": labelled, "others": further}))


def _in_words(result: Json) -> str:
    if "chosen" in result:
        lines = figure_lines(result["chosen"], terminal_width())
        lines.append(f"Chosen by {result['by']}. All candidates are in {SELECTION}.")
    else:
        lines = _fit_lines(result)
    return "\n".join([*lines, f"Written to {result['path']}."])


def _fit_lines(result: Json) -> list[str]:
    fit = f"{result['method']} after {result['steps']} steps" if "steps" in result else result["method"]
    fit += "" if result["temperature"] is None else f": T = {result['temperature']:.4f}"
    fit += f", 95% interval {interval(result['interval'])}" if result.get("interval") else ""
    unit = "question" if result["loss"] == "any" else "token"
    return [
        fit,
        f"{result['loss']} per {unit}: {result['loss_before']:.4f} before, {result['loss_after']:.4f} after "
        f"({result['n_tokens']:,} tokens of {result['n_questions']:,} questions)",
    ]
