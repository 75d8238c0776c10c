"""The methods of recalibration: each is one complete `Method` entry.

Commands, grids, tables and figures read these entries. This module loads torch only for fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from semcal.models.distribution import SE, Base
from semcal.models.protocols import TokenDistribution
from semcal.recalibration.records import Schedule
from semcal.registry import Catalogue, check_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semcal.models.features import FitFeatures
    from semcal.models.protocols import LanguageModel
    from semcal.recalibration.exact_solver import LogPartitionTable
    from semcal.recalibration.records import Fitted, TemperatureFit

#: A line style of matplotlib: a name, or an offset with lengths of dashes and gaps.
LineStyle = str | tuple[float, tuple[float, ...]]


StepProgress = Callable[[int, int], None]
"""A function that receives the number of finished steps and the total."""


@dataclass(frozen=True)
class FitTask:
    """Data and settings of the fits of a method, one fit per loss."""

    model: LanguageModel
    features: FitFeatures
    losses: Sequence[tuple[str, float | None]]  # losses with their α
    solver: str  # a solver of the method
    schedule: Schedule  # schedule of gradient steps; its seed is also that of folds
    groups: NDArray[Any] | None = None  # (Q,) labels of questions that are not independent
    table: LogPartitionTable | None = None  # an existing table
    progress: StepProgress | None = None


@dataclass(frozen=True)
class FitResult:
    """A fitted recalibrator, and the report of its fit."""

    recalibrator: Fitted
    report: Mapping[str, Any] = field(default_factory=dict)  # keys and values that the command prints


@dataclass(frozen=True)
class Method:
    """A method of recalibration, with its texts and styles for commands, grids, tables, figures and pages.

    Base and SE need no fit; TS, ATS and Platt are fitted to labeled questions on stored states; TS-grid is
    selected from samples. `RECALIBRATORS.register(Method(...))` adds a method. Call it in each process that
    uses the method.
    """

    name: str  # equal to the attribute `method` of its recalibrators
    meaning: str = ""  # line in the glossary
    place: float = math.inf  # order in the paper's tables; other methods follow
    colour: str = "#767676"  # color in figures, six lower-case digits
    dark: str = ""  # color on a dark background; the default is `colour`
    line: LineStyle = "-"
    temperature: float | None = None  # temperature of all its recalibrators, without a fit
    make: Callable[[], TokenDistribution] | None = None  # constructor without a fit
    fit: Callable[[FitTask], Sequence[FitResult]] | None = None  # returns a result for each loss
    contents: Callable[[], type[Any]] | None = None  # returns the `Contents` class of its file
    solvers: tuple[str, ...] = ()  # "exact", "sgd"; the default is first
    losses: tuple[str, ...] = ("NLL", "SS")
    over_server: bool = False  # True if it can be fitted over a server
    from_samples: bool = False  # True if it is selected from samples at temperatures
    weight_decays: bool = True  # True if sweeps try several; otherwise one fit has all losses
    learning_rate: float = 1e-5  # the paper's learning rate of sgd
    own_learning_rate: bool = False  # True if the learning rate of a sweep does not apply
    max_norm: float | None = 1.0  # maximum norm of gradients
    tabulated: bool = False  # True if sgd reads its losses from a `LogPartitionTable`
    parameters: int = 1  # number of parameters of a fit that is not a torch module
    reads_sequences: bool = False  # True if the fit reads states of whole sequences
    keeps_top: bool = True  # True if the most likely token stays the most likely


def _module(name: str) -> Any:
    return import_module(f"semcal.recalibration.{name}")


def _fit_ts(task: FitTask) -> Sequence[FitResult]:
    if task.solver == "sgd":
        results: Sequence[FitResult] = _module("sgd_solver").fit_all(task, "TS")
        return results
    losses, seed = list(task.losses), task.schedule.seed
    fits = _module("exact_solver").fit_temperatures(
        task.features, task.model.logits, losses=losses, groups=task.groups, seed=seed
    )
    return [FitResult(ts_of(fit), fit.report()) for fit in fits]


def ts_of(fit: TemperatureFit) -> Fitted:
    """Return TS at an exactly fitted temperature."""
    fitted: Fitted = _module("recalibrators").TemperatureScaling.from_fit(fit)
    return fitted


# Okabe and Ito's colors, which are distinct for every type of color vision. Line styles differ as well, for
# print without color.
#: The methods by name, in the order of a glossary.
RECALIBRATORS = Catalogue(
    "method",
    [
        Method(
            "Base",
            "No recalibration (temperature 1).",
            place=0,
            colour="#d55e00",
            dark="#e8742a",
            line=(0, (4, 1.5)),
            temperature=1.0,
            make=Base,
        ),
        Method(
            "SE",
            "Temperature 0.5, as in the work on semantic entropy.",
            place=1,
            colour="#cc79a7",
            dark="#dc8fba",
            line=(0, (1, 1.2)),
            temperature=0.5,
            make=SE,
        ),
        Method(
            "TS",
            "Temperature scaling: one temperature, fitted on labeled questions.",
            place=2,
            colour="#0072b2",
            dark="#4aa8e0",
            fit=_fit_ts,
            solvers=("exact", "sgd"),
            losses=("NLL", "SS", "any"),
            over_server=True,
            weight_decays=False,
            learning_rate=1e-4,
            own_learning_rate=True,
            max_norm=None,
            tabulated=True,
            contents=lambda: _module("recalibrators").TSContents,
        ),
        Method(
            "Calibrated",
            "The answers of Base, with the probability that each answer is right, learned from labels.",
            place=5,
            colour="#5d3a9b",
            dark="#a98be0",
        ),
        Method(
            "TS-grid",
            "Grid search: for each measure, one temperature from a grid between 0.25 and 4.",
            place=6,
            colour="#56b4e9",
            dark="#7cc8f4",
            from_samples=True,
            contents=lambda: _module("recalibrators").GridContents,
        ),
        Method(
            "ATS",
            "Attentive temperature scaling: a small network predicts a temperature for each token.",
            place=4,
            colour="#009e73",
            dark="#1fb98c",
            line=(0, (6, 1, 1, 1)),
            fit=lambda task: _module("sgd_solver").fit_all(task, "ATS"),
            solvers=("sgd",),
            tabulated=True,
            contents=lambda: _module("modules").ATSContents,
            reads_sequences=True,
        ),
        Method(
            "Platt",
            "A factor and an offset for each token of the vocabulary.",
            place=3,
            colour="#e69f00",
            dark="#f0b030",
            line=(0, (3, 1, 1, 1, 1, 1)),
            fit=lambda task: _module("sgd_solver").fit_all(task, "Platt"),
            solvers=("sgd",),
            contents=lambda: _module("modules").PlattContents,
            keeps_top=False,
        ),
    ],
)
#: The methods of the package.
BUILT_IN = tuple(RECALIBRATORS.values())


class Kind(Mapping[str, Method]):
    """The methods of a kind by name, in the order of registration, including later registrations.

    UsageError for an unknown name, or for the name of a method of another kind.
    """

    def __init__(self, is_member: Callable[[Method], object]) -> None:
        self._is_member = is_member

    def _members(self) -> dict[str, Method]:
        return {name: method for name, method in RECALIBRATORS.items() if self._is_member(method)}

    def __getitem__(self, name: str) -> Method:
        members = self._members()
        return members[check_name(name, members, what=RECALIBRATORS.what)]

    def __contains__(self, name: object) -> bool:
        return name in self._members()

    def __len__(self) -> int:
        return len(self._members())

    def __iter__(self) -> Iterator[str]:
        return iter(self._members())


#: Methods without a fit; fitted to labeled questions; saved; selected from samples; that need only samples.
UNFITTED = Kind(lambda method: method.make)
FITTED = Kind(lambda method: method.fit)
SAVED = Kind(lambda method: method.contents)
FROM_SAMPLES = Kind(lambda method: method.from_samples)
SERVED = Kind(lambda method: not method.fit)


def run_fit(name: str, task: FitTask) -> Sequence[FitResult]:
    """Fit a method: a result for each loss of the task."""
    fit = FITTED[name].fit
    assert fit is not None
    return fit(task)


def make_unfitted(name: str) -> TokenDistribution:
    """Return the recalibrator of a method without a fit."""
    make = UNFITTED[name].make
    assert make is not None
    return make()


def keeps_top(candidate: str) -> bool:
    """Return whether a candidate ("TS NLL") preserves the most likely token, and so greedy answers."""
    name = candidate.partition(" ")[0]
    return name not in RECALIBRATORS or RECALIBRATORS[name].keeps_top


def paper_schedule(
    method: str, *, weight_decay: float = 0.0, learning_rate: float | None = None, seed: int = 0
) -> Schedule:
    """Return the paper's settings of "TS", "ATS" or "Platt"; `learning_rate` replaces the paper's."""
    settings = FITTED[method]
    rate = settings.learning_rate if learning_rate is None else learning_rate
    return Schedule(rate, weight_decay, max_norm=settings.max_norm, seed=seed)
