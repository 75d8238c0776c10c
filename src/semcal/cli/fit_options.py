"""The options of `semcal fit`: what is to be fitted, and which of them contradict each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from semcal.cli.console import refuse_existing
from semcal.errors import UsageError
from semcal.recalibration.methods import FITTED, FROM_SAMPLES, RECALIBRATORS
from semcal.registry import check_name


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
    measure: str
    seed: int

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> FitOptions:
        """From all options of the command."""
        return cls(**{field.name: options[field.name] for field in fields(cls)})

    @property
    def samples(self) -> bool:
        """Whether answers are sampled, and one of many fits is chosen by them."""
        return self.select or self.from_samples

    @property
    def from_samples(self) -> bool:
        """Whether the method itself is chosen from samples."""
        return self.method in FROM_SAMPLES

    @property
    def chosen_by(self) -> str:
        """What a choice goes by."""
        return self.by or "gain"

    @property
    def exact(self) -> bool:
        """Whether T is solved exactly."""
        solvers = RECALIBRATORS[self.method].solvers
        return bool(solvers) and (self.solver or solvers[0]) == "exact"

    def check(self, validation: str | None, plot: Path | None, *, replace_plot: bool) -> None:
        """Raise UsageError for options that contradict each other."""
        from semcal.measures import MEASURES
        from semcal.recalibration.fitting import check_method
        from semcal.recalibration.provenance import CHOSEN_BY

        check_name(self.method, (*FITTED, *FROM_SAMPLES), what="method")
        check_name(self.measure, MEASURES, what="measure")
        check_name(self.chosen_by, CHOSEN_BY, what="rule of choice")
        if not self.from_samples:
            check_method(self.method, self.solver, self.loss, self.alpha)
        for problem in self._contradictions(validation=validation, plot=plot):
            raise UsageError(problem)
        if plot is not None:
            from semcal.plotting import check_figure_path

            check_figure_path(plot)
            if not replace_plot:
                refuse_existing("--plot", plot)

    def _contradictions(self, *, validation: str | None, plot: Path | None) -> Iterator[str]:
        if self.select and self.from_samples:
            yield f"{self.method} chooses on FILE itself; leave --select out"
        if self.select and validation is None:
            yield "--select chooses on questions of their own; give them with --validation FILE"
        if validation is not None and not self.select:
            yield "--validation goes with --select"
        for option, value in (("--weight-decay", self.weight_decay), ("--learning-rate", self.learning_rate)):
            if value and (self.exact or self.from_samples):
                yield f"{option} is for --solver sgd; the exact solution of TS and TS-grid have none"
        if self.by is not None and not self.samples:
            yield "--by goes with --select or TS-grid"
        if plot is not None and self.samples:
            yield "--plot draws one fit; leave --select and TS-grid out"

    def check_server(self, name: str, *, features: Path | None, plot: Path | None) -> None:
        """Raise UsageError for what cannot be had from a server."""
        method = RECALIBRATORS[self.method]
        wanted = {
            None if method.over_server or method.from_samples else self.method: "reads hidden states",
            "--solver sgd" if self.solver == "sgd" else None: "reads hidden states",
            "--select" if self.select else None: "fits to hidden states",
            "--loss any" if self.loss == "any" else None: "fits to hidden states",
            "--features" if features is not None else None: "keeps hidden states",
            "--plot" if plot is not None else None: "draws the loss at all temperatures",
        }
        wanted.pop(None, None)
        for option, why in wanted.items():
            raise UsageError(
                f"{option} {why}, and a server ({name}) gives none; leave it out: TS (exact) and TS-grid can "
                "be fitted over a server, and semcal calibrate needs samples alone"
            )
