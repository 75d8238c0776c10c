"""The methods of recalibration: each is one `Method`, which says all about itself.

Commands, grids, tables and figures read what they need from here. Nothing here loads torch before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from semcal.models.distribution import SE, Base
from semcal.models.protocols import TokenDistribution
from semcal.recalibration.records import Schedule
from semcal.registry import Catalogue, check_name

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from semcal.models.features import BlockShape, FitFeatures
    from semcal.recalibration.exact_solver import LogPartitionTable
    from semcal.recalibration.records import Fitted, TemperatureFit

#: A name of matplotlib's, or an offset with lengths of dashes and gaps.
LineStyle = str | tuple[float, tuple[float, ...]]


StepProgress = Callable[[int, int], None]
"""Called with the number of finished steps and of all steps."""


class FrozenModel(Protocol):
    """What a fit asks of the language model."""

    @property
    def block_shape(self) -> BlockShape:
        """The shape of a decoder block like the model's own."""

    def logits(self, states: Tensor) -> Tensor:
        """States (n, d) → logits (n, V)."""


@dataclass(frozen=True)
class FitTask:
    """What a method is fitted to, and how."""

    model: FrozenModel
    features: FitFeatures
    losses: Sequence[tuple[str, float | None]]  # each with its α; a fit for each
    solver: str  # one of the method's
    schedule: Schedule  # of gradient steps; its seed is also that of resampling
    groups: NDArray[Any] | None = None  # (Q,) labels of questions that are not independent
    table: LogPartitionTable | None = None  # where it exists already
    progress: StepProgress | None = None


@dataclass(frozen=True)
class FitResult:
    """A fitted recalibrator, and what is reported of its fit."""

    recalibrator: Fitted
    report: Mapping[str, Any] = field(default_factory=dict)  # as the command prints it


@dataclass(frozen=True)
class Method:
    """One way to recalibrate, and all that commands, grids, tables, figures and pages say of it.

    Base and SE are made without a fit; TS, ATS and Platt are fitted to labelled questions on stored states;
    TS-grid is chosen from samples. `RECALIBRATORS.register(Method(...))` adds one, in each process that is to
    know it.
    """

    name: str  # that of the recalibrators' `method`
    meaning: str = ""  # its line in a glossary
    place: float = math.inf  # in the paper's tables, which have their own order; others come after
    colour: str = "#767676"  # in figures, six lower-case digits
    dark: str = ""  # on a dark ground; the same by default
    line: LineStyle = "-"
    temperature: float | None = None  # of all its recalibrators, without a fit
    make: Callable[[], TokenDistribution] | None = None  # without a fit
    fit: Callable[[FitTask], Sequence[FitResult]] | None = None  # a result for each loss
    contents: Callable[[], type[Any]] | None = None  # the `Contents` of its file
    solvers: tuple[str, ...] = ()  # "exact", "sgd"; the default first
    losses: tuple[str, ...] = ("NLL", "SS")
    over_server: bool = False  # can be fitted over a server
    from_samples: bool = False  # is chosen from samples at temperatures
    weight_decays: bool = True  # several are tried; if not, all losses are one fit
    learning_rate: float = 1e-5  # the paper's, of sgd
    own_learning_rate: bool = False  # that of a sweep is for other methods
    max_norm: float | None = 1.0  # of gradients
    tabulated: bool = False  # sgd reads its losses from a `LogPartitionTable`
    parameters: int = 1  # of a fit that is no torch module
    reads_sequences: bool = False  # whether the fit reads states of whole sequences
    keeps_top: bool = True  # whether the likeliest token stays the likeliest


def _module(name: str) -> Any:
    return import_module(f"semcal.recalibration.{name}")


def _fit_ts(task: FitTask) -> Sequence[FitResult]:
    """Fit TS by all losses together exactly, or by each in gradient steps."""
    if task.solver == "sgd":
        results: Sequence[FitResult] = _module("sgd_solver").fit_all(task, "TS")
        return results
    groups, seed = task.groups, task.schedule.seed
    fits = _module("exact_solver").fit_temperatures(
        task.features, task.model.logits, losses=list(task.losses), groups=groups, seed=seed
    )
    return [FitResult(ts_of(fit), fit.report(grouped=groups is not None)) for fit in fits]


def ts_of(fit: TemperatureFit) -> Fitted:
    """Return TS at an exactly fitted temperature."""
    fitted: Fitted = _module("recalibrators").TemperatureScaling.from_fit(fit)
    return fitted


# Okabe and Ito's colours, which can be told apart with any kind of colour vision; lines differ as well, for
# print without colour.
#: The methods by name, in the order of a glossary.
RECALIBRATORS = Catalogue(
    "method",
    [
        Method(
            "Base",
            "Nothing (temperature 1).",
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
            "Temperature scaling: one temperature, fitted on labelled questions.",
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
            "Base's answers, each with the probability that it is right, learnt from labels.",
            place=5,
            colour="#5d3a9b",
            dark="#a98be0",
        ),
        Method(
            "TS-grid",
            "For each measure, one temperature out of a grid from 0.25 to 4.",
            place=6,
            colour="#56b4e9",
            dark="#7cc8f4",
            from_samples=True,
            contents=lambda: _module("recalibrators").GridContents,
        ),
        Method(
            "ATS",
            "Attentive temperature scaling: a small network gives each token its temperature.",
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
#: What comes with the package.
BUILT_IN = tuple(RECALIBRATORS.values())


class Kind(Mapping[str, Method]):
    """The methods of a kind by name, in the order of registration; later ones count as well.

    An unknown name, or that of a method of another kind, is a UsageError.
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


#: Made without a fit; fitted to labelled questions; saved; chosen from samples; had from samples.
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
    """Make a recalibrator that takes no fit."""
    make = UNFITTED[name].make
    assert make is not None
    return make()


def keeps_top(candidate: str) -> bool:
    """Whether a candidate ("TS NLL") leaves the likeliest token the likeliest, and so greedy answers."""
    name = candidate.partition(" ")[0]
    return name not in RECALIBRATORS or RECALIBRATORS[name].keeps_top


def paper_schedule(
    method: str, *, weight_decay: float = 0.0, learning_rate: float | None = None, seed: int = 0
) -> Schedule:
    """Return the paper's settings of "TS", "ATS" or "Platt", with another learning rate if one is given.

    Examples
    --------
    >>> paper_schedule("TS").learning_rate, paper_schedule("Platt").max_norm
    (0.0001, 1.0)
    """
    settings = FITTED[method]
    rate = settings.learning_rate if learning_rate is None else learning_rate
    return Schedule(rate, weight_decay, max_norm=settings.max_norm, seed=seed)
