"""What a run says of itself is true and can be read, whatever the run lacks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from made_up_grid import Grid, write_grid

from semcal.experiment.analyses import analyse
from semcal.experiment.analyses.grid_scores import above_floor
from semcal.experiment.finished import read_finished
from semcal.experiment.report.build import results_markdown
from semcal.experiment.report.report_figures import planned_figures
from semcal.experiment.report.report_tables import report_tables
from semcal.experiment.report.summary import headline_table
from semcal.experiment.report.tables import mark, number

SMALL: dict[str, Any] = {"models": ("m",), "datasets": {"d": False}, "runs": 1, "n": 20, "counts": ()}


def all_right(row: dict[str, Any]) -> None:
    row["correct"] = dict.fromkeys(row["correct"], True)
    row |= {"greedy_correct": True, "answers": row["samples"]}


def analysed(
    folder: Path, edit: Callable[[dict[str, Any]], None] | None = None, **grid: Any
) -> tuple[Path, dict[str, Any]]:
    write_grid(folder, Grid(**SMALL | grid))
    for path in folder.glob("samples/*/*/*/*.jsonl") if edit else ():
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            edit(row)  # type: ignore[misc]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder, analyse(folder)


def test_contrasts_are_of_methods_that_were_run_and_of_what_is_defined(tmp_path: Path) -> None:
    base, both, right = (
        " ".join(row["contrast"] for row in analysed(tmp_path / name, edit, methods=methods)[1]["contrasts"])
        for name, edit, methods in (
            ("base", None, ("Base",)),
            ("both", None, ("Base", "TS")),
            ("right", all_right, ("Base", "TS")),
        )
    )
    assert " of TS" not in base
    assert "ACE of Base less that of TS" in both
    assert "less that of SE " not in both
    assert "AUROC" not in right


def test_a_handful_of_questions_decides_nothing_about_scores(tmp_path: Path) -> None:
    _, results = analysed(tmp_path, n=1)
    assert {row["verdict"] for row in results["contrasts"]} == {"too few to say"}


def test_one_correct_answer_of_thirty_makes_nothing_better_nor_bold(tmp_path: Path) -> None:
    """The method that is right once has the best ACE and AUROC of all."""
    folder = write_grid(tmp_path, Grid(**SMALL | {"n": 30, "methods": ("Base", "SE", "TS")}))
    for path in folder.glob("samples/*/*/*/*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for i, row in enumerate(rows):
            row["correct"] = dict.fromkeys(row["correct"], i % 2 == 0)
            if "TS" in path.parent.name:
                row["correct"] = dict.fromkeys(row["correct"], i == 0)
                row["confidence"] = dict.fromkeys(row["confidence"], 0.4 if i == 0 else 0.0)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    results = analyse(folder)
    of_ts = [row for row in results["analyses"]["confidence"] if row["method"] == "TS"]
    assert {round(30 * row["accuracy"]["mean"]) for row in of_ts} == {1}
    assert {row["auroc"]["mean"] for row in of_ts} == {1.0}
    assert {row["better"] for row in results["analyses"]["paired"] if row["quantity"] != "SE_vanilla"} == {
        None
    }
    claims = [row["verdict"] for row in results["contrasts"] if " of TS less" in row["contrast"]]
    assert set(claims) == {"too few to say"}
    tables = {table.name: table for table in report_tables(results)}
    for name in ("03-main-m", "08-brier-m", "09-ace-mcb-m", "10-ace-ece-m"):
        rows = {row[1].text: row[2:] for row in tables[name].rows}
        assert not any(cell.best for cell in rows["TS"])
        assert any(cell.best for cell in rows["Base"] + rows["SE"])
        assert {cell.sign for cell in rows["TS"]} <= {"‡", "†‡"}
        assert "‡ fewer than 10 correct or 10 wrong answers" in tables[name].caption
    compared = [cell for row in tables["paired-auroc"].rows for cell in row]
    assert not any(cell.best or cell.text.startswith("(") for cell in compared)
    (headline,) = headline_table(results).rows
    assert not any(cell.best for cell in headline[4::3])


def test_the_best_ace_is_that_which_lies_least_above_chance() -> None:
    cells = [
        replace(number(error), above_floor=above_floor(error, floor))
        for error, floor in ((0.178, 0.152), (0.190, 0.185), (0.100, 0.020), (0.165, 0.180))
    ]
    assert [cell.best for cell in mark(cells, larger=False)] == [False, False, False, True]
    assert [cell.best for cell in mark(cells[:3], larger=False)] == [False, True, False]


def test_captions_speak_of_what_is_shown(tmp_path: Path) -> None:
    folder, results = analysed(tmp_path, methods=("Base",))
    run = read_finished(folder)
    tables = {table.name: table for table in report_tables(results)}
    assert "one run, with the 95% interval over questions" in tables["03-main-m"].caption
    assert not any(name.startswith("11-volatility") for name in tables)  # one method has no rank
    assert {figure.number for figure in planned_figures(run, results)}.isdisjoint({"7a", "7b"})
    shown = results_markdown(results).partition("## Tables")[2].split("\n\n")
    with_intervals = [part for part in shown if "interval over questions" in part]
    assert with_intervals
    assert all("left out" in part for part in with_intervals)
