"""A made-up world for grids: a model without weights, two small files of questions, runs of it in any way."""

from __future__ import annotations

import json
import os
import random
import signal
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from semcal.experiment.grid import Grid
from semcal.experiment.grid_plan import Problem
from semcal.experiment.grid_settings import GridSettings, Model, settings_of
from semcal.experiment.grid_steps import GridState
from semcal.models.equivalence import CachedEquivalence, Equivalence
from semcal.models.fakes import FakeEquivalence, FakeLanguageModel
from semcal.workers import Executor, SerialExecutor

COUNT = 40
#: Overrides for a run of two methods with one fit.
SMALL = ("methods=[Base, TS]", "sampling.counts=[6]", "fitting.losses=[[NLL, null]]")


def question(name: str, number: int) -> str:
    return f"Who built {name} {number}?"


def model_of(which: Model) -> FakeLanguageModel:
    """Sure of one of three answers; each name of a model is sure of others."""
    table = {}
    for name in ("mill", "barn"):
        rng = random.Random(f"{name} {which.path}")
        for number in range(COUNT):
            sure = rng.choice([0.4, 0.6, 0.9])
            answers = {"Ana.": sure, "Dr Ana.": 0.6 * (1 - sure), "Bo.": 0.4 * (1 - sure)}
            table[question(name, number)] = answers
    return FakeLanguageModel(table, name=which.path)


def equivalence_of(folder: Path, _: str) -> Equivalence:
    return CachedEquivalence(FakeEquivalence([{"ana", "dr ana"}]), folder / "verdicts.sqlite")


def state_of(folder: Path) -> GridState:
    return GridState(folder, model_of, partial(equivalence_of, folder))


class Mortal(FakeLanguageModel):
    """Kills its process when it is first sampled; the next one lives, for a file tells it of that death."""

    def __init__(self, like: FakeLanguageModel, epitaph: Path) -> None:
        self.__dict__.update(like.__dict__)
        self.epitaph = epitaph

    def sample(self, *args: Any) -> Any:
        if not self.epitaph.exists():
            self.epitaph.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().sample(*args)


def mortal_state(folder: Path) -> GridState:
    """A state of a worker process, of which the first dies when it samples."""
    return GridState(
        folder,
        lambda which: Mortal(model_of(which), folder / "killed"),
        partial(equivalence_of, folder),
    )


def write_questions(folder: Path) -> dict[str, str]:
    """Write both files of questions: name → path."""
    rng = random.Random(3)
    paths = {}
    for name in ("mill", "barn"):
        rows = [
            {"id": f"{name}{n}", "question": question(name, n), "answers": [rng.choice(["Ana", "Ana", "Bo"])]}
            for n in range(COUNT)
        ]
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        paths[name] = str(path)
    return paths


def settings(data: Path, *overrides: str, **more: Any) -> GridSettings:
    paths = write_questions(data)
    sizes = {"calibration_train": 12, "validation": 9, "test": 11, "few_shot": 1}
    content = {
        "models": [{"name": "one", "path": "one"}],
        "datasets": [{"name": name, "source": path, **sizes} for name, path in paths.items()],
        "equivalence": "fake",
        "methods": ["Base", "SE", "TS", "Platt"],
        "runs": {"count": 2},
        "sampling": {"m": 4, "counts": [2, 6]},
        "fitting": {"losses": [["NLL", None], ["SS", 0.5]], "learning_rate": 0.05},
        "block": 4,
        **more,
    }
    return settings_of(content, overrides)


@contextmanager
def silent(_label: str, _total: int | None):
    yield lambda _done: None


def run(folder: Path, chosen: GridSettings, *, executor: Executor[GridState] | None = None) -> list[Problem]:
    grid = Grid(chosen, folder, executor or SerialExecutor(state_of(folder)), silent)
    problems = grid.run()
    grid.write_costs()
    return problems


def contents(folder: Path) -> dict[str, bytes]:
    """All that every way of running promises to be the same, byte for byte."""
    kinds = ("samples", "selection", "recalibrators", "calibrations", "blocks")
    files = [path for kind in kinds for path in (folder / kind).rglob("*") if path.is_file()]
    files += [path for name in ("problems.jsonl", "questions.json") if (path := folder / name).exists()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def selection(folder: Path, model: str = "one", dataset: str = "mill") -> dict[str, Any]:
    """What a run chose for a model and data set."""
    return dict(json.loads((folder / "selection" / model / f"{dataset}.json").read_text()))
