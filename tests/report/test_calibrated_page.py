"""Calibrated in the report: before, after and threshold first, its tables, its figure and its words."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import made_up_grid as made_up
import pytest
from read_page import Page

from semcal.experiment.analyses import analyse
from semcal.experiment.answer_steps import ApplyStep
from semcal.experiment.finished import calibrated_path, calibration_folder, read_finished
from semcal.experiment.grid_settings import Grading
from semcal.experiment.report.build import remake
from semcal.experiment.report.report_figures import grid_figures
from semcal.experiment.report.report_tables import report_tables
from semcal.experiment.report.summary import calibrated_findings, in_words
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


def line_of(results: dict[str, Any]) -> str:
    (found,) = calibrated_findings(results)
    return found.line


def test_the_page_opens_on_before_after_and_threshold(folder: Path, results: dict[str, Any]) -> None:
    text = (folder / "report.html").read_text()
    assert text.index('id="gains"') < text.index('id="findings"') < text.index('id="scores"')
    assert "Base, TS, Calibrated; 2 runs" in text
    line = line_of(results)
    sentence = line.removeprefix(f"{DATASET}: c")
    assert f"C{sentence}" in text
    assert f"- {DATASET}: c" in (folder / "results.md").read_text().replace("\\", "")
    page = Page(text)
    assert not page.open
    assert {"table-calibrated", "table-calibrated-against"} <= page.tables.keys()


def test_each_table_is_written_once(results: dict[str, Any]) -> None:
    names = [table.name for table in report_tables(results)]
    assert {"calibrated", "calibrated-against"} <= set(names)
    assert len(names) == len(set(names))


def test_the_words_say_what_the_figures_say(folder: Path, results: dict[str, Any]) -> None:
    base, _, own = results["analyses"]["calibrated"]
    line = line_of(results)
    calibration = own["calibration"]
    assert (calibration["labels"], calibration["apart"]) == (120, 80)
    gain, ace = ([f"{row[metric]['mean']:.3f}" for row in (base, own)] for metric in ("gain", "ace"))
    floors = [f"{row['ace_floor']:.3f}" for row in (base, own)]
    above = [f"{max(row['ace']['mean'] - row['ace_floor'], 0):.3f}" for row in (base, own)]
    assert f"calibrated on 120 labelled questions, gain {gain[0]} → {gain[1]}: " in line
    assert f"Beyond chance, confidences are off by {above[0]} → {above[1]} (ACE {ace[0]} → {ace[1]}" in line
    assert f"; chance alone would show {floors[0]} → {floors[1]})." in line
    rows = [
        row for number in range(2) for row in read_finished(folder).calibrated_rows("alpha", DATASET, number)
    ]
    kept = [row["correct"] for row in rows if row["probability"] >= calibration["threshold"]["threshold"]]
    assert calibration["answered"] == len(kept) / len(rows)
    assert calibration["wrong"] == pytest.approx(1 - sum(kept) / len(kept))
    assert (
        f"{100 * len(kept) / len(rows):.0f} % answered, at most 50 % of them wrong with 95 % confidence"
        in line
    )


def test_what_is_printed_tells_the_story_in_ten_lines(results: dict[str, Any]) -> None:
    base, _, own = results["analyses"]["calibrated"]
    lines = in_words(results)
    assert lines[0].startswith(f"Asked: 60 questions of {DATASET}, 10 answers to each")
    assert "learnt from 120 other questions" in lines[2]
    (row,) = [line for line in lines if line.startswith(f"{DATASET} ")]
    right, *said = (
        100 * one["mean"] for one in (base["accuracy"], base["mean_confidence"], own["mean_confidence"])
    )
    wanted = [f"{right:.0f} %"]
    for one, confidence in zip((base, own), said):
        above = max(one["ace"]["mean"] - one["ace_floor"], 0)
        wanted += [f"{confidence:.0f} %", f"{above:.3f}", f"{one['gain']['mean']:.3f}"]
    assert " ".join(row.split()[1:]) == " ".join(wanted)
    assert lines[8].startswith(f"{DATASET}: Calibrated against Base by gain: ")
    assert lines[10].startswith(f"{DATASET}: Answer from 0.")
    assert len(lines) <= 14
    assert max(map(len, lines[:7])) <= 100


def test_the_surest_answers_of_base_stand_beside_how_many_of_them_are_right(
    folder: Path, results: dict[str, Any]
) -> None:
    run = read_finished(folder)
    rows = [row for number in range(2) for row in run.calibrated_rows("alpha", DATASET, number)]
    sure = [row for row in rows if row["share"] >= 0.9]
    right = 100 * sum(row["correct"] for row in sure) / len(sure)
    says = 100 * sum(row["probability"] for row in sure) / len(sure)
    line = next(one for one in in_words(results) if "Of the" in one)
    assert line.startswith(f"{DATASET}: Of the {len(sure)} answers that Base is at least 90 % sure of (mean ")
    assert line.endswith(f"), {right:.0f} % are right; Calibrated says {says:.0f} %.")


def test_calibrated_is_not_better_for_nine_wrong_answers(results: dict[str, Any]) -> None:
    def said(wrong: int) -> tuple[str, list[bool]]:
        found = copy.deepcopy(results)
        for row in found["analyses"]["calibrated"]:
            row["accuracy"]["mean"] = 1 - wrong / row["n"]
            row["against"] = {
                method: {metric: {"value": 0.1, "interval": [0.05, 0.15], "p": 0.001} for metric in by_metric}
                for method, by_metric in row.get("against", {}).items()
            }
        (table,) = [one for one in report_tables(found) if one.name == "calibrated-against"]
        return in_words(found)[8], [cell.best for cell in table.rows[0][-1:]]

    assert "too few to say" in said(9)[0]
    assert "better (" in said(10)[0]
    assert (said(9)[1], said(10)[1]) == ([False], [True])


def changed(results: dict[str, Any], **calibration: Any) -> str:
    found = copy.deepcopy(results)
    found["analyses"]["calibrated"][-1]["calibration"] |= calibration
    return line_of(found)


def test_a_declined_map_and_a_threshold_that_is_not_there_are_said(results: dict[str, Any]) -> None:
    assert (
        "no map learnt from 120 labelled questions is clearly better, so confidences stay as they are"
        in changed(results, chosen="none(E-SC)")
    )
    none = {"threshold": None, "risk_limit": 0.1, "delta": 0.05, "questions_needed": None}
    assert (
        "No threshold keeps errors within 10 % (80 questions kept apart show none, and more would not help"
        in changed(results, threshold=none)
    )
    assert "about 300 would be needed" in changed(results, threshold={**none, "questions_needed": 300})
    assert "threshold" not in changed(results, threshold=None).lower()


def test_its_tables_hold_the_figures_and_no_table_of_other_methods_compares_ts_with_it(
    results: dict[str, Any],
) -> None:
    tables = {table.name: table for table in report_tables(results)}
    rows = {row[2].text: row for row in tables["calibrated"].rows}
    assert list(rows) == ["Base", "TS", "Calibrated"]
    assert rows["Base"][3].text == rows["Calibrated"][3].text
    gain = rows["Calibrated"][-1]
    own = results["analyses"]["calibrated"][-1]
    assert gain.value == own["gain"]["mean"]
    assert gain.interval == tuple(own["gain"]["interval"])
    against = {row[2].text: row for row in tables["calibrated-against"].rows}
    assert list(against) == ["Base", "TS"]
    assert against["Base"][3].text == "+0.000"
    main = [[cell.text for cell in row] for row in tables["03-main-alpha"].rows]
    of_own = next(row for row in main if row[1] == "Calibrated")
    assert of_own[2] == f"{own['ace']['mean']:.3f}"
    assert set(of_own[3:9]) == {"–"}
    assert {row["method"] for row in results["analyses"]["paired"]} == {"TS"}


def test_the_figure_marks_the_threshold_between_what_is_answered_and_what_is_wrong(folder: Path) -> None:
    run, results = read_finished(folder), json.loads((folder / "results.json").read_text())
    (found,) = [one for one in grid_figures(run, results) if one.number == "0a"]
    _, below = found.figure.axes
    assert found.name == "figure-00a-threshold+alpha+made-up-trivia"
    lines = {line.get_label(): line for line in below.get_lines()}
    threshold = run.calibration("alpha", DATASET)["threshold"]
    assert list(lines[f"threshold {threshold['threshold']:.2f}"].get_xdata()) == [threshold["threshold"]] * 2
    answered, wrong = (lines[name].get_ydata() for name in ("answered", "wrong of these"))
    rows = [row for number in range(2) for row in run.calibrated_rows("alpha", DATASET, number)]
    assert answered[0] == 1.0
    assert wrong[0] == pytest.approx(1 - sum(row["correct"] for row in rows) / len(rows))
    last = max(row["probability"] for row in rows)
    assert answered[-1] == sum(row["probability"] == last for row in rows) / len(rows)


def test_reliability_and_selective_accuracy_show_it_beside_the_methods_under_e_sc_alone(folder: Path) -> None:
    run, results = read_finished(folder), json.loads((folder / "results.json").read_text())
    figures = {one.name: one.figure for one in grid_figures(run, results) if one.number in ("4", "11")}
    columns = {name: len(figure.axes) // 2 for name, figure in figures.items() if "reliability" in name}
    assert columns["figure-11-reliability+alpha+E-SC"] == 3
    assert set(columns.values()) == {2, 3}
    axes = figures["figure-04-selective+alpha"].axes
    drawn = [[one.get_label() for one in panel.containers] for panel in axes]
    assert ["Calibrated" in labels for labels in drawn] == [True, False, False, False]


def test_a_run_without_it_has_no_such_analysis_table_or_section(analysed_grid: Path) -> None:
    results = analyse(analysed_grid)
    assert "calibrated" not in results["analyses"]
    assert not [table for table in report_tables(results) if table.name.startswith("calibrated")]
