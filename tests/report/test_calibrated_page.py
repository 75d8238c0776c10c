"""Calibrated in the report: before, after and threshold first, its tables, its figure and its words."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import made_up_grid as made_up
import pytest

from semcal.experiment.analyses import analyse
from semcal.experiment.finished import calibrated_path, calibration_folder, read_finished
from semcal.experiment.grid_settings import Grading
from semcal.experiment.grid_steps import ApplyStep
from semcal.experiment.report.build import remake, sentences
from semcal.experiment.report.report_figures import planned_figures
from semcal.experiment.report.report_tables import report_tables
from semcal.files import dumps
from semcal.rows import Row
from semcal.steps import WorkerState
from semcal.yaml_files import parse_yaml, yaml_text
from tests.json_rows import calibrate_rows

DATASET = "made-up-trivia"


def progress(_: int) -> None:
    """Nobody looks."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up run in which Calibrated has learnt from the answers to other questions."""
    grid = made_up.Grid(
        models=("alpha",), datasets={DATASET: False}, methods=("Base", "TS"), runs=2, n=60, counts=()
    )
    other = made_up.write_grid(
        tmp_path_factory.mktemp("labelled"), made_up.Grid(**{**vars(grid), "n": 220, "seed": 1})
    )
    folder = made_up.write_grid(tmp_path_factory.mktemp("run"), grid)
    settings = parse_yaml((folder / "settings.yaml").read_text(), what="settings")
    settings["methods"].append("Calibrated")
    settings["extras"] = {**(settings.get("extras") or {}), "figure_files": False}
    (folder / "settings.yaml").write_text(yaml_text(settings))
    answered = read_finished(other).rows("alpha", DATASET, "Base")
    labelled = list({row["question"]: row for row in answered}.values())[:200]
    at = calibration_folder("alpha", DATASET)
    calibrate_rows({1.0: labelled}, equivalence="exact", risk=0.5).save_pretrained(folder / at)
    run = read_finished(folder)
    rows = [Row(row) for number in range(2) for row in run.rows("alpha", DATASET, "Base", number)]
    step = ApplyStep(at, "", {"Base": 1.0}, Grading())
    found = [dumps(row.json) for row in step(rows, WorkerState(folder=folder), progress)]
    for number in range(2):
        path = folder / calibrated_path("alpha", DATASET, number)
        path.write_text("\n".join(found[number * grid.n : (number + 1) * grid.n]) + "\n")
    remake(folder)
    return folder


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text())


def test_the_share_answered_and_that_of_wrong_answers_are_those_of_the_rows(
    folder: Path, results: dict[str, Any]
) -> None:
    calibration = results["analyses"]["calibrated"][-1]["calibration"]
    assert (calibration["labels"], calibration["apart"]) == (200, 0)
    rows = [
        row for number in range(2) for row in read_finished(folder).calibrated_rows("alpha", DATASET, number)
    ]
    kept = [row["correct"] for row in rows if not row["abstained"]]
    assert calibration["answered"] == len(kept) / len(rows)
    assert calibration["wrong"] == pytest.approx(1 - sum(kept) / len(kept))
    sure = [row for row in rows if row["share"] >= 0.9]
    assert calibration["surest"] == {
        "n": len(sure),
        **{
            key: pytest.approx(sum(row[key] for row in sure) / len(sure))
            for key in ("share", "probability", "correct")
        },
    }


def test_calibrated_is_not_better_for_nine_wrong_answers(results: dict[str, Any]) -> None:
    def said(wrong: int) -> str:
        found = copy.deepcopy(results)
        for row in found["analyses"]["calibrated"]:
            row["accuracy"]["mean"] = 1 - wrong / row["n"]
            row["against"] = {
                method: {metric: {"value": 0.1, "interval": [0.05, 0.15], "p": 0.001} for metric in by_metric}
                for method, by_metric in row.get("against", {}).items()
            }
        return sentences(found)[2]

    assert "Calibrated better on 0" in said(9)
    assert "Calibrated better on 1" in said(10)


def test_the_figure_marks_the_threshold_between_what_is_answered_and_what_is_wrong(folder: Path) -> None:
    run, results = read_finished(folder), json.loads((folder / "results.json").read_text())
    (found,) = [one for one in planned_figures(run, results) if one.number == "0a"]
    _, below = found.drawn().axes
    assert found.name == "figure-00a-threshold+alpha+made-up-trivia"
    lines = {line.get_label(): line for line in below.get_lines()}
    threshold = run.calibration("alpha", DATASET)["threshold"]
    assert list(lines[f"threshold {threshold['threshold']:.2f}"].get_xdata()) == [threshold["threshold"]] * 2
    answered, wrong = (lines[name].get_ydata() for name in ("answered", "wrong among answered"))
    rows = [row for number in range(2) for row in run.calibrated_rows("alpha", DATASET, number)]
    assert answered[0] == 1.0
    assert wrong[0] == pytest.approx(1 - sum(row["correct"] for row in rows) / len(rows))
    last = max(row["probability"] for row in rows)
    assert answered[-1] == sum(row["probability"] == last for row in rows) / len(rows)


def test_selective_accuracy_shows_it_beside_the_methods_with_e_sc_alone(folder: Path) -> None:
    run, results = read_finished(folder), json.loads((folder / "results.json").read_text())
    (figure,) = [one.drawn() for one in planned_figures(run, results) if one.number == "4"]
    drawn = [[one.get_label() for one in panel.containers] for panel in figure.axes]
    assert ["Calibrated" in labels for labels in drawn] == [True, False, False, False]


def test_a_run_without_it_has_no_such_analysis_table_or_section(analysed_grid: Path) -> None:
    results = analyse(analysed_grid)
    assert "calibrated" not in results["analyses"]
    assert not [table for table in report_tables(results) if table.name.startswith("calibrated")]
