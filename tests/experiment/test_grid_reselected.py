"""`sampling.reselect`: a comparison of numbers of draws in which each has candidates of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mill_grid as mills
import pytest

from semcal.experiment.analyses import analyse
from semcal.experiment.grid_plan import forecast
from semcal.measures import confidence

pytestmark = pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")

SMALL = (
    "methods=[Base, TS]",
    "fitting.losses=[[NLL, null], [SS, 0.5], [SS, 0.9]]",
    "evaluation.resamples=100",
    "extras={figure_files: false, entailment: false}",
    "runs.count=1",
)
COUNTS = (2, 8)
CONFIDENCE = ("ace", "auroc")


def finished(folder: Path, data: Path, *overrides: str) -> Path:
    mills.run(folder, mills.settings(data, *SMALL, *overrides))
    analyse(folder)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def reselected(data: Path, tmp_path_factory) -> Path:
    asked = (f"sampling.counts={list(COUNTS)}", "sampling.reselect=true")
    return finished(tmp_path_factory.mktemp("reselected"), data, *asked)


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory) -> dict[int, Path]:
    """A run for each number of draws, with that number as its m."""
    return {
        m: finished(tmp_path_factory.mktemp(f"m{m}"), data, f"sampling.m={m}", "sampling.counts=[]")
        for m in (*COUNTS, 4)
    }


def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return found["analyses"]


@pytest.mark.parametrize("dataset", ["mill", "barn"])
def test_each_number_has_the_candidates_of_a_run_with_so_many_draws(
    reselected: Path, alone: dict[int, Path], dataset: str
) -> None:
    found = mills.selection(reselected, dataset=dataset)
    assert found["methods"] == mills.selection(alone[4], dataset=dataset)["methods"]
    assert found["table"] == mills.selection(alone[4], dataset=dataset)["table"]
    expected = {str(m): mills.selection(alone[m], dataset=dataset)["methods"] for m in COUNTS}
    assert found["by_draws"] == expected


def test_the_numbers_choose_differently_here(reselected: Path) -> None:
    found = mills.selection(reselected)
    chosen = [found["methods"], *found["by_draws"].values()]
    assert len({json.dumps(methods["TS"], sort_keys=True) for methods in chosen}) > 1


def test_rows_are_measured_with_the_alpha_of_their_number(reselected: Path) -> None:
    for count, methods in mills.selection(reselected)["by_draws"].items():
        for measure in ("T-SC", "G-SC"):
            choice = methods["TS"][measure]
            name = choice["candidate"].replace(" ", "_")
            found = mills.json_lines(reselected / "samples" / "one" / "mill" / name / f"run0.n{count}.jsonl")
            given = [row["clusters"] for row in found], [row["log_likelihoods"] for row in found]
            alpha = choice["measure_alpha"]
            (again,) = confidence(*given, measure=(measure,), t_alpha=alpha, g_alpha=alpha).values()
            expected = pytest.approx(again.confidence.tolist(), abs=1e-12)
            assert [row["confidence"][measure] for row in found] == expected


def test_figure_6_shows_what_such_runs_show(reselected: Path, alone: dict[int, Path]) -> None:
    """Of run 0, in which alone there are other numbers of draws."""
    shown = [row for row in results(reselected)["generations"] if row["draws"] != 4]
    assert {row["draws"] for row in shown} == set(COUNTS)
    for row in shown:
        key = {name: row[name] for name in ("model", "dataset", "method", "measure")}
        (own,) = [one for one in results(alone[row["draws"]])["confidence"] if key.items() <= one.items()]
        by_draws = mills.selection(reselected, dataset=row["dataset"])["by_draws"][str(row["draws"])]
        assert row["candidate"] == by_draws[row["method"]][row["measure"]]["candidate"]
        assert [row[name]["mean"] for name in CONFIDENCE] == [own[name]["runs"][0] for name in CONFIDENCE]


def test_the_forecast_counts_the_validation_draws(data: Path) -> None:
    settings = [
        mills.settings(data, *SMALL, f"sampling.counts={list(COUNTS)}", f"sampling.reselect={given}")
        for given in ("false", "true")
    ]
    before, after = (forecast(one).cells[0].answers for one in settings)
    assert after > before
