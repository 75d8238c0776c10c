"""What `semcal fit` does once its options are read: one fit, a choice among many, or a learning curve."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

from semcal.cli.choosing import choose_by_grid, choose_by_sweep
from semcal.cli.complaints import BadRows
from semcal.cli.console import progress, say, stages
from semcal.errors import QuestionError, UsageError
from semcal.qa.datasets import Question
from semcal.registry import check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from semcal.engine import Equivalence, LanguageModel
    from semcal.pipeline.fitting import CalibrationSet
    from semcal.pipeline.store import UnfinishedWork
    from semcal.recalibration import Fitted, Provenance

__all__ = ["Wanted", "Work", "check_options", "forget_others"]

#: Standard errors of accuracy that --keep-accuracy lets a choice cost: what chance alone would often take.
WITHIN = 2.0


@dataclass(frozen=True)
class Wanted:
    """What is to be fitted, as the options say it."""

    method: str
    solver: str | None
    loss: str
    alpha: float | None
    weight_decay: float
    learning_rate: float | None
    select: bool
    keep_accuracy: bool
    learning_curve: bool
    measure: str
    seed: int

    @property
    def samples(self) -> bool:
        """Whether answers have to be sampled."""
        return self.select or self.learning_curve or self.method == "TS-grid"

    @property
    def accuracy_within(self) -> float | None:
        """How many standard errors of accuracy a choice may cost."""
        return WITHIN if self.keep_accuracy else None

    def ways(self) -> str:
        """Under how many recalibrators answers are sampled, in words."""
        from semcal.pipeline.grid import GRID

        if self.select:
            return f"each of {5 if self.method == 'TS' else 10} candidates"
        most = "" if self.method == "TS-grid" else "those near the fitted ones of "
        return f"{most}{len(GRID)} temperatures"


def check_options(wanted: Wanted, *, validation: str | None, plot: Path | None) -> None:
    from semcal.pipeline.fitting import METHODS, check_method
    from semcal.semantics import MEASURES

    check_name(wanted.method, (*METHODS, "TS-grid"), what="method")
    check_name(wanted.measure, MEASURES, what="measure")
    if wanted.method != "TS-grid":
        check_method(wanted.method, wanted.solver, wanted.loss, wanted.alpha)
    for problem in _contradictions(wanted, validation=validation, plot=plot):
        raise UsageError(problem)
    if plot is not None:
        from semcal.report.figures import check_figure_path

        check_figure_path(plot)


def forget_others(out: Path, wanted: Wanted) -> None:
    """Remove what an older fit has left in the directory and this one has not written."""
    from semcal.cli import choosing, learning
    from semcal.semantics import MEASURES

    if not wanted.select and wanted.method != "TS-grid":
        (out / choosing.TABLE).unlink(missing_ok=True)
        for folder in (out / measure for measure in MEASURES):
            if (folder / "calibration.json").is_file():
                rmtree(folder)
    if not wanted.learning_curve:
        (out / learning.TABLE).unlink(missing_ok=True)


def _contradictions(wanted: Wanted, *, validation: str | None, plot: Path | None) -> Iterator[str]:
    """What is wrong with options that are right each for itself."""
    exact = wanted.method == "TS" and wanted.solver in (None, "exact")
    if wanted.select and wanted.method == "TS-grid":
        yield "TS-grid chooses on FILE itself; leave --select out"
    if wanted.select and validation is None:
        yield "--select chooses on questions of their own; give them with --validation FILE"
    if wanted.learning_curve and (wanted.select or not exact):
        yield "--learning-curve is of the exact solution of TS; leave --select, --method and --solver out"
    if wanted.learning_curve and validation is None:
        yield "--learning-curve measures on questions of their own; give them with --validation FILE"
    if validation is not None and not (wanted.select or wanted.learning_curve):
        yield "--validation goes with --select or --learning-curve"
    for option, value in (("--weight-decay", wanted.weight_decay), ("--learning-rate", wanted.learning_rate)):
        if value and (exact or wanted.method == "TS-grid"):
            yield f"{option} is for --solver sgd; the exact solution of TS and TS-grid have none"
    if wanted.keep_accuracy and not (wanted.select or wanted.method == "TS-grid"):
        yield "--keep-accuracy goes with --select or TS-grid"
    if plot is not None and (wanted.select or wanted.method == "TS-grid"):
        yield "--plot draws one fit or a learning curve; leave --select and TS-grid out"


@dataclass(frozen=True)
class Work:
    """A model with the questions that it is fitted to and judged on, and where results go."""

    model: LanguageModel
    questions: list[Question]
    validation: list[Question]
    examples: tuple[Question, ...]
    data: str
    features: Path | None
    out: Path
    bad: BadRows

    def key(self, wanted: Wanted, sampling: Mapping[str, Any]) -> dict[str, Any]:
        """All that the result depends on."""
        from semcal.pipeline import Asking
        from semcal.qa.datasets import data_hash

        return {
            **asdict(wanted),
            **(sampling if wanted.samples else {}),
            "model": self.model.revision,
            "prompt": Asking(self.examples).hash(self.model),
            "data": data_hash(self.questions),
            "validation": data_hash(self.validation),
            "features": None if self.features is None else str(self.features),
        }

    def _leave_out(self, error: QuestionError) -> None:
        """Report a question that does not fit the model, by its line and id."""
        question = next(question for question in self.questions if question.id == error.question_id)
        self.bad.report(question.error(error.reason))

    def fitted(self, wanted: Wanted, kept: UnfinishedWork, plot: Path | None) -> dict[str, Any]:
        """Fit one recalibrator and keep it."""
        from semcal.experiment.environment import versions
        from semcal.pipeline import fit

        if "sgd" in (wanted.solver, "exact" if wanted.method == "TS" else "sgd"):
            kept.begin()
        with stages() as begin:
            found = fit(
                self.model,
                self.questions,
                few_shot=self.examples,
                method=wanted.method,
                solver=wanted.solver,
                loss=wanted.loss,
                alpha=wanted.alpha,
                weight_decay=wanted.weight_decay,
                learning_rate=wanted.learning_rate,
                seed=wanted.seed,
                store=self.features,
                data=self.data,
                versions=versions(),
                on_bad_question=self._leave_out,
                progress=begin("fit", len(self.questions)),
                on_step=_steps_shown(begin),
                keep=kept.folder / "trainings",
            )
        path = found.save_pretrained(self.out)
        drawn = {} if plot is None else {"plot": str(_draw(found.recalibrator, plot))}
        return {**_result(found.recalibrator, found.report, found.provenance), **drawn, "path": str(path)}

    def sampled(
        self,
        wanted: Wanted,
        judge: Equivalence,
        sampling: Mapping[str, Any],
        kept: UnfinishedWork,
        plot: Path | None,
    ) -> dict[str, Any]:
        """Do what answers have to be sampled for: a choice, or a learning curve."""
        from semcal.experiment.environment import versions
        from semcal.pipeline import Asking
        from semcal.pipeline.fitting import CalibrationSet

        kept.begin()
        asking = Asking(self.examples)
        labelled = CalibrationSet.of(
            self.model, self.questions, asking=asking, on_bad_question=self._leave_out
        )
        provenance = labelled.provenance(
            self.model, asking=asking, data=self.data, seed=wanted.seed, versions=versions()
        )
        common: dict[str, Any] = {"asking": asking, "judge": judge, "keep": kept.folder, "out": self.out}
        if wanted.learning_curve:
            return self._learned(wanted, labelled, provenance, sampling, plot, common)
        how = {**sampling, "accuracy_within": wanted.accuracy_within}
        common |= {"how": how, "provenance": provenance, "measure": wanted.measure}
        if wanted.method == "TS-grid":
            return choose_by_grid(self.model, labelled.questions, **common)
        how["learning_rate"] = wanted.learning_rate
        return choose_by_sweep(
            self.model, labelled, self.validation, methods=[wanted.method], features=self.features, **common
        )

    def _learned(
        self,
        wanted: Wanted,
        labelled: CalibrationSet,
        provenance: Provenance,
        sampling: Mapping[str, Any],
        plot: Path | None,
        common: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Fit TS to all questions and to some of them."""
        from semcal.cli.learning import MARGIN, learn
        from semcal.pipeline.fitting import calibration_features, fit_stored
        from semcal.recalibration import save_pretrained, warn_if_few

        warn_if_few(len(labelled.questions))
        point = {"loss": wanted.loss, "alpha": wanted.alpha}
        with progress("fit", len(labelled.questions)) as update:
            features = calibration_features(
                self.model,
                labelled,
                asking=common["asking"],
                whole=self.features is not None,
                store=self.features,
                progress=update,
            )
        how: Mapping[str, Any] = {**point, "seed": wanted.seed, "groups": labelled.groups()}
        fitted, report = fit_stored(self.model, features, **how)
        path = save_pretrained(fitted, self.out, provenance=provenance)
        curve = learn(self.model, features, self.validation, how={**point, **sampling}, **common)
        if plot is not None:
            from semcal.report import learning_curve_figure, write_figure

            write_figure(learning_curve_figure(curve, measures=(wanted.measure,)), plot)
        measures = dict.fromkeys(p.measure for p in curve.points)
        return {
            **_result(fitted, {**report, "n_tokens": len(features.targets)}, provenance),
            "learning_curve": curve.table(),
            "labels_needed": {name: curve.labels_needed(name, margin=MARGIN) for name in measures},
            **({} if plot is None else {"plot": str(plot)}),
            "path": str(path),
        }


def _steps_shown(begin: Callable[[str, int], Callable[[int], None]]) -> Callable[[int, int], None]:
    """Show steps as a stage of its own, which the first one begins."""
    shown: list[Callable[[int], None]] = []

    def on_step(done: int, total: int) -> None:
        if not shown:
            shown.append(begin("steps", total))
        shown[0](done)

    return on_step


def _result(fitted: Fitted, report: Mapping[str, Any], provenance: Provenance) -> dict[str, Any]:
    from semcal.recalibration import solver_of, temperature_of

    if report.get("at_bound"):
        say(f"fit: the loss still falls beyond T = {temperature_of(fitted):g}, the bound; look at the data")
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
    """The loss of the steps, or the loss against T."""
    from semcal.recalibration import TemperatureScaling
    from semcal.report import loss_figure, steps_figure, write_figure

    if isinstance(fitted, TemperatureScaling) and fitted.exact_ is not None:
        return write_figure(loss_figure(fitted.exact_), path)
    steps = getattr(fitted, "sgd_", None)
    assert steps is not None
    return write_figure(steps_figure(steps, method=fitted.method), path)
