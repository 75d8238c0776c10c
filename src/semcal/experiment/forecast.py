"""What a grid will take, before it is begun: jobs, tokens, NLI calls, disk, and time on a GPU and here.

Models and data need not be there; data that are here are counted. What neither says is assumed, and the
assumptions are printed; the shares of drawn tokens that run and of pairs that are asked about were measured
on the embedded world.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from semcal.experiment.forecast_cells import (
    ASSUMED,
    H100,
    CellForecast,
    Machine,
    nli_parameters,
    parts_here,
    shape_of,
    this_machine,
)
from semcal.experiment.grid_settings import GridSettings
from semcal.experiment.question_sets import PARTS


@dataclass(frozen=True)
class Forecast:
    """What a grid will take."""

    jobs: Counter[str]  # by stage
    questions: dict[str, int]  # by part, over all data sets
    tokens: Counter[str]  # that language models read or draw, by stage
    nli_calls: int  # typical
    nli_calls_at_most: int  # if every ordered pair were asked about
    bytes: Counter[str]  # on disk when the run is done, by what it is
    peak: Counter[str]  # on disk at the moment when it is most
    seconds: Counter[str]  # on the GPU, by stage
    here: Machine  # this machine
    seconds_here: Counter[str]  # on it, by stage
    problems: int  # rows of the data that would be left out
    answers: Mapping[str, int] = field(default_factory=dict)  # that servers are asked for, by model

    def tree(self) -> dict[str, Any]:
        """As plain data."""
        machines = {"gpu": H100.name, "here": self.here.name}
        peak = {"peak_bytes": self.peak.total(), "peak": dict(self.peak)}
        return {**vars(self), **machines, **peak, "assumed": vars(ASSUMED)}

    def lines(self) -> Iterator[str]:
        """In words."""
        jobs = ", ".join(f"{count} {stage}" for stage, count in self.jobs.items())
        yield f"jobs: {self.jobs.total()} ({jobs})"
        refused = f" (rows of the data that would be left out: {self.problems})" if self.problems else ""
        yield "questions: " + ", ".join(f"{n} {part}" for part, n in self.questions.items()) + refused
        tokens = ", ".join(f"{stage} {_short(count)}" for stage, count in self.tokens.items())
        yield f"model forwards: {_short(self.tokens.total())} tokens ({tokens})"
        yield (
            f"NLI calls: about {_short(self.nli_calls)}, at most {_short(self.nli_calls_at_most)} "
            f"({ASSUMED.asked:.0%} of the ordered pairs are asked about)"
        )
        if self.answers:
            asked = ", ".join(f"{name} {_short(count)}".rstrip() for name, count in self.answers.items())
            yield f"answers that servers are asked for, whose time and price are not counted: {asked}"
        yield f"disk at its peak: {_bytes(self.peak)}; at the end: {_bytes(self.bytes)}"
        yield f"time on {H100.name}: {_times(self.seconds)}"
        yield f"time on {self.here.name}: {_times(self.seconds_here)}"
        a = ASSUMED
        yield (
            f"assumed: {H100.reading:.0%} of the peak when reading, {H100.drawing:.0%} when drawing, "
            f"{H100.training:.0%} when fitting; of data that are not here {a.question} tokens a question, "
            f"{a.passage} a passage that {a.sharing:g} questions share, {a.answer} an answer; {a.chosen} "
            f"candidates of a method chosen for some measure or loss, {a.used} for a measure; "
            f"{a.distinct:.0%} of the drawn tokens run through the model, for draws share beginnings"
        )


def forecast(settings: GridSettings, *, device: str | None = None) -> Forecast:
    """Estimate what a grid takes, if its models run on `device`.

    Questions of data sets that are here are counted; of others a calibration-train part without a size counts
    as 60 000. InputError if a data set that is here has too few questions.
    """
    here = this_machine(device)
    parts = [parts_here(dataset) for dataset in settings.datasets]
    grid = [
        [CellForecast(own, one, found, shape_of(model)) for one, found in zip(settings.datasets, parts)]
        for model in settings.models
        for own in [settings.of_model(model)]
    ]
    cells = [cell for of_model in grid for cell in of_model]
    pairs = sum(cell.pairs() for cell in cells)
    asked = round(pairs * ASSUMED.asked)
    nli = asked * 2 * nli_parameters(settings.equivalence) * 2 * (ASSUMED.question + ASSUMED.answer)
    seconds, seconds_here = (
        _added(*(cell.seconds(machine) for cell in cells))
        + Counter({"cluster": nli / (machine.peak * machine.reading) + asked * machine.per_call})
        for machine in (H100, here)
    )
    return Forecast(
        jobs=_added(*(cell.jobs() for cell in cells)),
        questions={part: sum(cell.size(part) for cell in grid[0]) for part in PARTS},
        tokens=_added(*(cell.read() + cell.drawn() for cell in cells)),
        nli_calls=asked,
        nli_calls_at_most=pairs,
        bytes=_added(*(cell.left() for cell in cells)),
        peak=_peak(grid),
        seconds=seconds,
        here=here,
        seconds_here=seconds_here,
        problems=sum(len(one.problems) for one in parts if one is not None),
        answers={
            model.name: sum(cell.answers() for cell in of_model)
            for model, of_model in zip(settings.models, grid)
            if model.is_server
        },
    )


def _added(*counters: Counter[str]) -> Counter[str]:
    return sum(counters, Counter())


def _peak(grid: Sequence[Sequence[CellForecast]]) -> Counter[str]:
    """What lies on the disk when it is most, as `Grid` makes and removes it (docs/grid.md, What is kept)."""
    before: Counter[str] = Counter()
    moments = [before]
    for of_model in grid:
        if not of_model[0].removes:
            before += _added(*(cell.left() for cell in of_model))
            moments.append(before + of_model[0].training())
            continue
        for cell in of_model:
            moments += [before + moment for moment in cell.moments()]
            before = before + cell.left()
    return max([*moments, before], key=Counter.total)


def _bytes(sizes: Counter[str]) -> str:
    parts = ", ".join(f"{name} {_short(size)}B" for name, size in sizes.items())
    return f"{_short(sizes.total())}B ({parts})"


def _times(seconds: Counter[str]) -> str:
    parts = ", ".join(f"{stage} {_time(count)}" for stage, count in seconds.items())
    return f"{_time(seconds.total())} ({parts})"


def _time(seconds: float) -> str:
    """A time in the unit that suits it.

    >>> _time(30_600), _time(1600), _time(0.04)
    ('8.5 hours', '27 minutes', '0.04 seconds')
    """
    if seconds >= 3600:
        return f"{seconds / 3600:,.{int(seconds < 360_000)}f} hours"
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.2g} seconds"


def _short(number: float) -> str:
    """A large number as people write it.

    >>> _short(1_234_567), _short(999)
    ('1.2 M', '999 ')
    """
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f} "
