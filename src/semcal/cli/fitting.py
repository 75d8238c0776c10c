"""What `semcal fit` does once its options are read: one fit, a choice among many, or a learning curve."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

from semcal.cli.console import info, progress, refuse_existing, successive_progress, warn
from semcal.cli.rows import BadRows
from semcal.errors import QuestionError, UsageError
from semcal.qa.questions import Question, data_hash
from semcal.records import write_rows
from semcal.registry import check_name

if TYPE_CHECKING:
    from semcal.engine.equivalence import Equivalence
    from semcal.engine.language_model import LanguageModel, Sampler
    from semcal.pipeline.calibration_set import CalibrationSet
    from semcal.pipeline.prompting import PromptConfig
    from semcal.pipeline.store import UnfinishedWork
    from semcal.recalibration.provenance import Provenance
    from semcal.recalibration.saving import Fitted

__all__ = ["MARGIN", "FitOptions", "FitWork", "remove_older_results"]

#: A candidate below this share of the best accuracy gives a warning.
WORTH = 0.8
#: The tables beside the recalibrator: of all candidates, and of the learning curve.
SELECTION, CURVE = "selection.jsonl", "learning-curve.jsonl"
#: How far from the ACE of all labels few labels may be to count as enough.
MARGIN = 0.01


@dataclass(frozen=True)
class FitOptions:
    """What is to be fitted: the options of the command by their names."""

    method: str
    solver: str | None
    loss: str
    alpha: float | None
    weight_decay: float
    learning_rate: float | None
    select: bool
    by: str | None
    learning_curve: bool
    measure: str
    seed: int

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> FitOptions:
        """From all options of the command."""
        return cls(**{field.name: options[field.name] for field in fields(cls)})

    @property
    def samples(self) -> bool:
        """Whether answers have to be sampled."""
        return self.select or self.learning_curve or self.method == "TS-grid"

    @property
    def chosen_by(self) -> str:
        """What a choice goes by."""
        return self.by or "gain"

    @property
    def exact(self) -> bool:
        """Whether T is solved exactly."""
        return self.method == "TS" and self.solver in (None, "exact")

    def check(self, validation: str | None, plot: Path | None, *, replace_plot: bool) -> None:
        """Raise UsageError for options that contradict each other."""
        from semcal.pipeline.fitting import METHODS, check_method
        from semcal.recalibration.provenance import CHOSEN_BY
        from semcal.semantics import MEASURES

        check_name(self.method, (*METHODS, "TS-grid"), what="method")
        check_name(self.measure, MEASURES, what="measure")
        check_name(self.chosen_by, CHOSEN_BY, what="rule of choice")
        if self.method != "TS-grid":
            check_method(self.method, self.solver, self.loss, self.alpha)
        for problem in self._contradictions(validation=validation, plot=plot):
            raise UsageError(problem)
        if plot is not None:
            from semcal.report.figures import check_figure_path

            check_figure_path(plot)
            if not replace_plot:
                refuse_existing("--plot", plot)

    def _contradictions(self, *, validation: str | None, plot: Path | None) -> Iterator[str]:
        chooses = self.select or self.method == "TS-grid"
        if self.select and self.method == "TS-grid":
            yield "TS-grid chooses on FILE itself; leave --select out"
        if self.select and validation is None:
            yield "--select chooses on questions of their own; give them with --validation FILE"
        if self.learning_curve and (self.select or not self.exact):
            yield "--learning-curve is of the exact solution of TS; leave --select, --method and --solver out"
        if self.learning_curve and validation is None:
            yield "--learning-curve measures on questions of their own; give them with --validation FILE"
        if validation is not None and not (self.select or self.learning_curve):
            yield "--validation goes with --select or --learning-curve"
        for option, value in (("--weight-decay", self.weight_decay), ("--learning-rate", self.learning_rate)):
            if value and (self.exact or self.method == "TS-grid"):
                yield f"{option} is for --solver sgd; the exact solution of TS and TS-grid have none"
        if self.by is not None and not chooses:
            yield "--by goes with --select or TS-grid"
        if plot is not None and chooses:
            yield "--plot draws one fit or a learning curve; leave --select and TS-grid out"


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
        from semcal.engine.language_model import with_states

        return with_states(self.model, "this fit reads hidden states")

    def key(self, options: FitOptions, sampling: Mapping[str, Any]) -> dict[str, Any]:
        """Everything that the result depends on."""
        return {
            **asdict(options),
            **(sampling if options.samples else {}),
            "model": self.model.revision,
            "prompt": self.asking.hash(self.model),
            "data": data_hash(self.questions),
            "validation": data_hash(self.validation),
            "features": None if self.features is None else str(self.features),
        }

    def plan(self, options: FitOptions, sampling: Mapping[str, Any]) -> int:
        """Print what would be read and written; the model is loaded and not run on any question."""
        from semcal.pipeline.calibration_set import CalibrationSet
        from semcal.pipeline.select import candidate_fits
        from semcal.pipeline.temperature_grid import GRID
        from semcal.recalibration.exact_fit import PAPER_LOSSES

        parts = []
        labelled = CalibrationSet.of(
            self.language_model, self.questions, asking=self.asking, on_bad_question=lambda _: None
        )
        if options.method != "TS-grid":
            whole = options.method == "ATS" or self.features is not None
            size = labelled.manifest(self.language_model, asking=self.asking, whole=whole).bytes / 1e6
            place = f"in {self.features}" if self.features else "in memory"
            parts.append(
                f"read {len(labelled.questions)} questions once, keep {size:.1f} MB of states {place}"
            )
        if options.samples:
            asked, under = self.validation, f"those near the fitted ones of {len(GRID)} temperatures"
            if options.select:
                count = sum(len(fit.losses) for fit in candidate_fits([options.method], losses=PAPER_LOSSES))
                under = f"each of {count} candidates"
            elif options.method == "TS-grid":
                asked, under = labelled.questions, f"{len(GRID)} temperatures"
            parts.append(f"sample {sampling['m']} answers to each of {len(asked)} questions under {under}")
        warn(f"would, with {self.model.name}, {', '.join(parts)}, and write {self.out / 'calibration.json'}")
        return self.bad.exit_code()

    def run(
        self,
        options: FitOptions,
        open_equivalence: Callable[[], Equivalence],
        sampling: Mapping[str, Any],
        unfinished: UnfinishedWork,
        plot: Path | None,
    ) -> dict[str, Any]:
        """Fit and save what the options ask for, and return the result to print."""
        from semcal.experiment.environment import versions
        from semcal.pipeline.calibration_set import CalibrationSet, provenance_of

        if not options.samples:
            if not options.exact:
                unfinished.begin()
            return self._fit(options, unfinished.folder, plot)
        how = {"asking": self.asking, "equivalence": open_equivalence(), **sampling}
        unfinished.begin()
        labelled = CalibrationSet.of(
            self.language_model, self.questions, asking=self.asking, on_bad_question=self._leave_out
        )
        known: Any = {"data": self.data, "seed": options.seed, "versions": versions()}
        provenance = provenance_of(self.model, labelled.questions, asking=self.asking, **known)
        if options.learning_curve:
            return self._learning_curve(options, labelled, provenance, how, unfinished.folder, plot)
        chosen, table = self._choose(options, labelled, how, unfinished.folder)
        return self._save(chosen, table, provenance, options)

    def _fit(self, options: FitOptions, keep: Path, plot: Path | None) -> dict[str, Any]:
        """Fit one recalibrator and save it."""
        from semcal.experiment.environment import versions
        from semcal.pipeline.fitting import fit

        with successive_progress() as begin:
            found = fit(
                self.language_model,
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
                keep=keep / "trainings",
            )
        path = found.save_pretrained(self.out)
        drawn = {} if plot is None else {"plot": str(_draw(found.recalibrator, plot))}
        return {**_result(found.recalibrator, found.report, found.provenance), **drawn, "path": str(path)}

    def _choose(
        self, options: FitOptions, labelled: CalibrationSet, how: Mapping[str, Any], keep: Path
    ) -> tuple[Mapping[str, Fitted], list[dict[str, Any]]]:
        """The recalibrator of each measure, and the table of all candidates."""
        from semcal.pipeline.fit_and_select import fit_and_select
        from semcal.pipeline.store import Store
        from semcal.pipeline.temperature_grid import GRID, choose_temperatures, rows_at_temperatures

        if options.method != "TS-grid":
            with successive_progress() as begin:
                selected = fit_and_select(
                    self.language_model,
                    labelled,
                    self.validation,
                    methods=[options.method],
                    store=self.features,
                    learning_rate=options.learning_rate,
                    by=options.chosen_by,
                    progress=begin,
                    keep=keep,
                    **how,
                )
            return selected.recalibrators, selected.selection.table()
        with progress("TS-grid", len(labelled.questions)) as update:
            rows = rows_at_temperatures(
                self.model, labelled.questions, GRID, progress=update, keep=Store(keep), **how
            )
        found = choose_temperatures(rows, by=options.chosen_by)
        if found.at_edge:
            info(
                f"fit: the best temperature for {', '.join(found.at_edge)} is the last of the grid; "
                "it may lie beyond"
            )
        return found.recalibrators, found.table()

    def _save(
        self,
        chosen: Mapping[str, Fitted],
        table: Sequence[Mapping[str, Any]],
        provenance: Provenance,
        options: FitOptions,
    ) -> dict[str, Any]:
        from semcal.pipeline.fit_and_select import save_choices

        measure, by = options.measure, options.chosen_by
        found = save_choices(chosen, table, self.out, provenance=provenance, measure=measure, by=by)
        write_rows(self.out / SELECTION, table)
        for warning in _lost_accuracy(table, by):
            warn(f"warning: {warning}")
        tried = len({row.get("candidate", row.get("temperature")) for row in table})
        place = self.out / SELECTION
        info(f"fit: {tried} candidates on {self.model.name}, their scores under each measure in {place}")
        return {"measure": measure, "by": by, "chosen": found, "path": str(self.out / "calibration.json")}

    def _learning_curve(
        self,
        options: FitOptions,
        labelled: CalibrationSet,
        provenance: Provenance,
        how: Mapping[str, Any],
        keep: Path,
        plot: Path | None,
    ) -> dict[str, Any]:
        """Fit TS to all questions and to some of them, and measure each fit on validation."""
        from semcal.pipeline.calibration_set import calibration_features
        from semcal.pipeline.fitting import fit_exactly
        from semcal.pipeline.learning_curve import curve_of_labels
        from semcal.recalibration.provenance import warn_if_few
        from semcal.recalibration.saving import save_pretrained

        warn_if_few(len(labelled.questions))
        loss: Any = {"loss": options.loss, "alpha": options.alpha}
        with progress("fit", len(labelled.questions)) as update:
            features = calibration_features(
                self.language_model,
                labelled,
                asking=self.asking,
                whole=self.features is not None,
                store=self.features,
                progress=update,
            )
        fitted, report = fit_exactly(
            self.language_model, features, seed=options.seed, groups=labelled.groups(), **loss
        )
        path = save_pretrained(fitted, self.out, provenance=provenance)
        with successive_progress() as begin:
            curve = curve_of_labels(
                self.language_model, features, self.validation, progress=begin, keep=keep, **loss, **how
            )
        if curve.outside:
            info(f"fit: {curve.outside} temperatures lie beyond the grid; its nearest end stands for them")
        write_rows(self.out / CURVE, curve.table())
        if plot is not None:
            from semcal.report import learning_curve_figure, write_figure

            write_figure(learning_curve_figure(curve, measures=(options.measure,)), plot)
        measures = dict.fromkeys(point.measure for point in curve.points)
        return {
            **_result(fitted, {**report, "n_tokens": len(features.targets)}, provenance),
            "learning_curve": curve.table(),
            "labels_needed": {name: curve.labels_needed(name, margin=MARGIN) for name in measures},
            **({} if plot is None else {"plot": str(plot)}),
            "path": str(path),
        }

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
    from semcal.semantics import MEASURES

    if not options.select and options.method != "TS-grid":
        (out / SELECTION).unlink(missing_ok=True)
        for folder in (out / measure for measure in MEASURES):
            if (folder / "calibration.json").is_file():
                rmtree(folder)
    if not options.learning_curve:
        (out / CURVE).unlink(missing_ok=True)


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
        info(f"fit: the loss still falls beyond T = {temperature_of(fitted):g}, the bound; look at the data")
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
    from semcal.recalibration.temperature import TemperatureScaling
    from semcal.report import loss_figure, steps_figure, write_figure

    if isinstance(fitted, TemperatureScaling) and fitted.exact_ is not None:
        return write_figure(loss_figure(fitted.exact_), path)
    steps = getattr(fitted, "sgd_", None)
    assert steps is not None
    return write_figure(steps_figure(steps, method=fitted.method), path)
