"""What `semcal fit` does once its options are read: one fit, or a choice among many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

from semcal.cli.console import info, progress, successive_progress, warn
from semcal.cli.fit_options import FitOptions
from semcal.cli.row_commands import BadRows
from semcal.data.question import Question, data_hash
from semcal.errors import QuestionError, UsageError
from semcal.files import write_rows
from semcal.recalibration.methods import FITTED

if TYPE_CHECKING:
    from semcal.models.clustering import Grouping
    from semcal.models.equivalence import Equivalence
    from semcal.models.language_model import LanguageModel, PromptConfig, Sampler
    from semcal.models.sampling import Sampling
    from semcal.recalibration.calibration_set import CalibrationSet
    from semcal.recalibration.provenance import Provenance
    from semcal.recalibration.saving import Fitted
    from semcal.store import UnfinishedWork

#: A candidate below this share of the best accuracy gives a warning.
WORTH = 0.8
#: The table of all candidates beside the recalibrator.
SELECTION = "selection.jsonl"


@dataclass(frozen=True)
class FitWork:
    """A model with the questions that it is fitted to and evaluated on, and where results go."""

    model: Sampler
    questions: Sequence[Question]
    validation: Sequence[Question]
    asking: PromptConfig
    data: str  # the name of the file
    features: Path | None
    out: Path
    bad: BadRows

    @property
    def language_model(self) -> LanguageModel:
        """The model; UsageError if it is a server."""
        from semcal.models.language_model import with_states

        return with_states(self.model, "this fit reads hidden states")

    @property
    def over_server(self) -> bool:
        """Whether the model is behind a server."""
        return not self.model.capabilities.states

    def key(self, options: FitOptions, sampling: Sampling, equivalence: str | None) -> dict[str, Any]:
        """Everything that the result depends on."""
        how_sampled = {
            "m": sampling.m,
            "seed": sampling.seeds[0],
            "max_new_tokens": sampling.max_new_tokens,
            "equivalence": equivalence,
        }
        return {
            **asdict(options),
            **(how_sampled if options.samples else {}),
            "model": self.model.revision,
            "prompt": self.asking.hash(self.model),
            "data": data_hash(self.questions),
            "validation": data_hash(self.validation),
            "features": None if self.features is None else str(self.features),
        }

    def plan(self, options: FitOptions, sampling: Sampling) -> int:
        """Print what would be read and written; the model is loaded and not run on any question."""
        from semcal.recalibration.calibration_set import CalibrationSet
        from semcal.recalibration.exact_fit import PAPER_LOSSES
        from semcal.recalibration.select import candidate_fits

        parts, questions, under = [], self.validation, ""
        if options.from_samples:
            questions, under = self._to_sample(sampling, lambda _: None), f"{len(self._grid())} temperatures"
        else:
            read_by: Any = self.model
            labelled = CalibrationSet.of(
                read_by, self.questions, asking=self.asking, on_bad_question=lambda _: None
            )
            parts.append(self._reading(options, labelled))
        if options.select:
            count = sum(len(fit.losses) for fit in candidate_fits([options.method], losses=PAPER_LOSSES))
            under = f"each of {count} candidates"
        if options.samples:
            count = len(questions)
            parts.append(f"sample {sampling.m} answers to each of {count} questions under {under}")
        warn(f"would, with {self.model.name}, {', '.join(parts)}, and write {self.out / 'calibration.json'}")
        return self.bad.exit_code()

    def _reading(self, options: FitOptions, labelled: CalibrationSet) -> str:
        """What a fit would read, in words."""
        if self.over_server:
            from semcal.recalibration.server_fitting import plan_over_server

            return plan_over_server(self.model, labelled, loss=options.loss)  # type: ignore[arg-type]
        whole = FITTED[options.method].reads_sequences or self.features is not None
        size = labelled.manifest(self.language_model, asking=self.asking, whole=whole).bytes / 1e6
        place = f"in {self.features}" if self.features else "in memory"
        return f"read {len(labelled.questions)} questions once, keep {size:.1f} MB of states {place}"

    def _grid(self) -> list[float]:
        """The temperatures of TS-grid that the model can be sampled at."""
        from semcal.recalibration.select import GRID

        most = self.model.capabilities.max_temperature
        grid = [t for t in GRID if most is None or t <= most]
        if len(grid) < len(GRID):
            info(f"fit: {self.model.name} is sampled at T = {most:g} at most, so the grid ends there")
        return grid

    def _to_sample(
        self, sampling: Sampling, leave_out: Callable[[QuestionError], None]
    ) -> Sequence[Question]:
        """The questions of TS-grid: a server is asked them without their answers."""
        from semcal.models.sampling import check_question
        from semcal.recalibration.calibration_set import CalibrationSet
        from semcal.recalibration.provenance import check_enough

        if not self.over_server:
            model = self.language_model
            return CalibrationSet.of(
                model, self.questions, asking=self.asking, on_bad_question=leave_out
            ).questions
        kept = []
        for question in self.questions:
            try:
                check_question(self.model, question, sampling)
                kept.append(question)
            except QuestionError as error:
                leave_out(error)
        check_enough(len(kept))
        return kept

    def run(
        self,
        options: FitOptions,
        open_equivalence: Callable[[], Equivalence],
        sampling: Sampling,
        unfinished: UnfinishedWork,
        plot: Path | None,
    ) -> dict[str, Any]:
        """Fit and save what the options ask for, and return the result to print."""
        from semcal.experiment.environment import versions
        from semcal.models.clustering import Grouping
        from semcal.recalibration.calibration_set import CalibrationSet, provenance_of

        if not options.samples:
            if not options.exact or self.over_server:
                unfinished.begin()
            return self._fit(options, unfinished.folder, plot)
        clustering = Grouping(open_equivalence())
        unfinished.begin()
        provenance_for = partial(
            provenance_of,
            self.model,
            asking=self.asking,
            data=self.data,
            seed=options.seed,
            versions=versions(),
        )
        if options.from_samples:
            return self._fit_grid(options, sampling, clustering, unfinished.folder, provenance_for)
        labelled = CalibrationSet.of(
            self.language_model, self.questions, asking=self.asking, on_bad_question=self._leave_out
        )
        provenance = provenance_for(labelled.questions)
        return self._select(options, labelled, provenance, sampling, clustering, unfinished.folder)

    def _fit(self, options: FitOptions, keep: Path, plot: Path | None) -> dict[str, Any]:
        """Fit one recalibrator and save it."""
        from semcal.experiment.environment import versions
        from semcal.recalibration.fitting import fit

        with successive_progress() as begin:
            found = fit(
                self.model,
                self.questions,
                few_shot=self.asking.few_shot,
                method=options.method,
                solver=options.solver,
                loss=options.loss,
                alpha=options.alpha,
                weight_decay=options.weight_decay,
                learning_rate=options.learning_rate,
                seed=options.seed,
                store=self.features,
                data=self.data,
                versions=versions(),
                on_bad_question=self._leave_out,
                progress=begin("fit", len(self.questions)),
                on_step=_steps_shown(begin),
                keep=keep,
            )
        path = found.save_pretrained(self.out)
        drawn = {} if plot is None else {"plot": str(_draw(found.recalibrator, plot))}
        return {**_result(found.recalibrator, found.report, found.provenance), **drawn, "path": str(path)}

    def _select(
        self,
        options: FitOptions,
        labelled: CalibrationSet,
        provenance: Provenance,
        sampling: Sampling,
        clustering: Grouping,
        keep: Path,
    ) -> dict[str, Any]:
        """Fit every candidate and choose one for each measure."""
        from semcal.recalibration.fit_and_select import fit_and_select

        with successive_progress() as begin:
            selected = fit_and_select(
                self.language_model,
                labelled,
                self.validation,
                sampling,
                clustering,
                methods=[options.method],
                store=self.features,
                learning_rate=options.learning_rate,
                by=options.chosen_by,
                progress=begin,
                keep=keep,
            )
        return self._save(selected.recalibrators, selected.selection.table(), provenance, options)

    def _fit_grid(
        self,
        options: FitOptions,
        sampling: Sampling,
        clustering: Grouping,
        keep: Path,
        provenance_for: Callable[[Sequence[Question]], Provenance],
    ) -> dict[str, Any]:
        """Choose a temperature of the grid for each measure."""
        from semcal.recalibration.temperature_grid import choose_temperatures, rows_at_temperatures
        from semcal.store import Store

        questions = self._to_sample(sampling, self._leave_out)
        with progress(options.method, len(questions)) as update:
            rows = rows_at_temperatures(
                self.model,
                questions,
                self._grid(),
                sampling,
                clustering,
                progress=update,
                keep=Store(keep),
                on_bad_question=self._leave_out,
            )
        grid = choose_temperatures(rows, by=options.chosen_by)
        if grid.at_edge:
            info(
                f"fit: the best temperature for {', '.join(grid.at_edge)} is the last of the grid; "
                "it may lie beyond"
            )
        sampled = {row.id for rows_of in rows.values() for row in rows_of}
        provenance = provenance_for([question for question in questions if question.id in sampled])
        return self._save(grid.recalibrators, grid.table(), provenance, options)

    def _save(
        self,
        chosen: Mapping[str, Fitted],
        table: Sequence[Mapping[str, Any]],
        provenance: Provenance,
        options: FitOptions,
    ) -> dict[str, Any]:
        from semcal.recalibration.fit_and_select import save_choices

        measure, by = options.measure, options.chosen_by
        found = save_choices(chosen, table, self.out, provenance=provenance, measure=measure, by=by)
        write_rows(self.out / SELECTION, table)
        for warning in _lost_accuracy(table, by):
            warn(f"warning: {warning}")
        tried = len({row.get("candidate", row.get("temperature")) for row in table})
        place = self.out / SELECTION
        info(f"fit: {tried} candidates on {self.model.name}, their scores under each measure in {place}")
        return {"measure": measure, "by": by, "chosen": found, "path": str(self.out / "calibration.json")}

    def _leave_out(self, error: QuestionError) -> None:
        """Report a question that does not fit the model, by its line and id."""
        question = next(question for question in self.questions if question.id == error.question_id)
        self.bad.report(question.error(error.reason))


def _lost_accuracy(table: Sequence[Mapping[str, Any]], by: str) -> Iterator[str]:
    """Warnings where what was chosen answers far less often right than another candidate."""
    rest = ": wrong answers of little confidence have a low Brier score; leave --by brier out"
    for row in filter(lambda row: row["chosen"], table):
        best = max(other["accuracy"] for other in table if other["measure"] == row["measure"])
        if row["accuracy"] < WORTH * best:
            yield (
                f"what was chosen for {row['measure']} is right in {row['accuracy']:.0%} of the questions, "
                f"the best candidate in {best:.0%}{rest if by == 'brier' else ''}"
            )


def remove_older_results(out: Path, options: FitOptions) -> None:
    """Remove what an older fit has left in the directory and this one has not written."""
    from semcal.measures import MEASURES

    if not options.samples:
        (out / SELECTION).unlink(missing_ok=True)
        for folder in (out / measure for measure in MEASURES):
            if (folder / "calibration.json").is_file():
                rmtree(folder)


def _steps_shown(begin: Callable[[str, int], Callable[[int], None]]) -> Callable[[int, int], None]:
    """Show gradient steps as progress of their own, which the first step begins."""
    updates: list[Callable[[int], None]] = []

    def on_step(done: int, total: int) -> None:
        if not updates:
            updates.append(begin("steps", total))
        updates[0](done)

    return on_step


def _result(fitted: Fitted, report: Mapping[str, Any], provenance: Provenance) -> dict[str, Any]:
    from semcal.recalibration.temperature import solver_of, temperature_of

    if report.get("at_bound"):
        info(
            f"fit: the loss still falls beyond T = {temperature_of(fitted):g}, the bound; "
            "see that the answers belong to the questions"
        )
    if shares := report.get("right_draws"):
        before, after = (round(share, 3) for share in shares)
        hint = "" if fitted.loss == "any" else ", or try --loss any"
        say, remedy = (info, "") if after >= before else (warn, f"; sample at T = 1 where that matters{hint}")
        said = f"out of fold {before:.1%} of draws say a reference at T = 1, {after:.1%} at the fitted T"
        say(f"{'fit' if say is info else 'warning'}: {said} (expected){remedy}")
    return {
        "method": fitted.method,
        "temperature": temperature_of(fitted),
        "solver": solver_of(fitted),
        "loss": fitted.loss,
        "alpha": fitted.alpha,
        **report,
        "n_questions": provenance.n_questions,
    }


def _draw(fitted: Fitted, path: Path) -> Path:
    """Draw the loss against T, or the loss of the steps."""
    from semcal.experiment.report import loss_figure, steps_figure, write_figure
    from semcal.recalibration.temperature import TemperatureScaling

    if isinstance(fitted, TemperatureScaling) and fitted.exact_ is not None:
        return write_figure(loss_figure(fitted.exact_), path)
    steps = getattr(fitted, "sgd_", None)
    if steps is None:
        raise UsageError(f"a fit of {fitted.method} has neither steps nor a loss curve to draw")
    return write_figure(steps_figure(steps, method=fitted.method), path)
