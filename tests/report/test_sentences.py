"""What a run says of itself is true and can be read, whatever the run lacks."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_up_grid import Grid, edited, write_grid

from semcal.experiment.analyses import analyse
from semcal.experiment.analyses.grid_scores import above_floor
from semcal.experiment.finished import read_finished
from semcal.experiment.report.build import headline_table, in_words, results_markdown, sentences
from semcal.experiment.report.report_figures import planned_figures
from semcal.experiment.report.report_tables import report_tables
from semcal.experiment.report.tables import compared_methods, mark, number

SMALL: dict[str, Any] = {"models": ("m",), "datasets": {"d": False}, "runs": 1, "n": 20, "counts": ()}


def all_right(_: int, row: dict[str, Any]) -> None:
    row["correct"] = dict.fromkeys(row["correct"], True)
    row |= {"greedy_correct": True, "answers": row["samples"]}


def analysed(folder: Path, edit: Any = lambda *_: None, **grid: Any) -> tuple[Path, dict[str, Any]]:
    edited(write_grid(folder, Grid(**SMALL | grid)), edit)
    return folder, analyse(folder)


def test_contrasts_are_of_methods_that_were_run_and_of_what_is_defined(tmp_path: Path) -> None:
    base, both, right = (
        " ".join(row["contrast"] for row in analysed(tmp_path / name, edit, methods=methods)[1]["contrasts"])
        for name, edit, methods in (
            ("base", lambda *_: None, ("Base",)),
            ("both", lambda *_: None, ("Base", "TS")),
            ("right", all_right, ("Base", "TS")),
        )
    )
    assert " of TS" not in base
    assert "ACE of Base less that of TS" in both
    assert "less that of SE " not in both
    assert "AUROC" not in right


def test_one_correct_answer_of_thirty_makes_nothing_better_nor_bold(tmp_path: Path) -> None:
    """The method that is right once has the best ACE and AUROC of all."""

    def once_right(i: int, row: dict[str, Any]) -> None:
        row["correct"] = dict.fromkeys(row["correct"], i % 2 == 0)
        if "TS" in row["candidate"]:
            row["correct"] = dict.fromkeys(row["correct"], i == 0)
            row["confidence"] = dict.fromkeys(row["confidence"], 0.4 if i == 0 else 0.0)

    _, results = analysed(tmp_path, once_right, n=30, methods=("Base", "SE", "TS"))
    assert {row["better"] for row in results["analyses"]["paired"] if row["quantity"] != "SE_vanilla"} == {
        None
    }
    claims = [row["verdict"] for row in results["contrasts"] if " of TS less" in row["contrast"]]
    assert set(claims) == {"too few to say"}
    tables = {table.name: table for table in report_tables(results)}
    rows = {row[1].text: row[2:] for row in tables["03-main-m"].rows}
    assert not any(cell.best for cell in rows["TS"])
    assert any(cell.best for cell in rows["Base"] + rows["SE"])
    assert {cell.sign for cell in rows["TS"]} <= {"‡", "†‡"}
    assert "‡ fewer than 10 correct or 10 wrong answers" in tables["03-main-m"].caption
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


# ---- The sentences follow from the figures and promise nothing beyond them ---------------------------------

ONE = "made-up-trivia"


@pytest.fixture
def results(made_up_results: dict[str, Any]) -> dict[str, Any]:
    """Results of one model on two data sets, the second a copy of the first, for a test to change."""
    found = copy.deepcopy(made_up_results)
    found["datasets"].append("made-up-rare")
    for rows in found["analyses"].values():
        rows += [{**copy.deepcopy(row), "dataset": "made-up-rare"} for row in rows if "dataset" in row]
    for row in found["analyses"]["confidence"]:
        row |= {"n": 300, "accuracy": {"mean": 0.6}}
    for row in found["analyses"]["against_base"]:
        row["gain"] = {"value": 0.0, "interval": [-0.1, 0.1], "p": 0.9}
    return found


def set_gain(results: dict[str, Any], dataset: str, interval: list[float]) -> None:
    for row in results["analyses"]["against_base"]:
        if (row["dataset"], row["method"], row["measure"]) == (dataset, "TS", "E-SC"):
            row["gain"] = {"value": sum(interval) / 2, "interval": interval, "p": 0.001}


def test_the_first_sentence_says_what_was_asked(results: dict[str, Any]) -> None:
    asked = f"{ONE} (30 test questions), made-up-rare (30 test questions); Base, SE, TS; 2 runs of 10 sampled"
    assert sentences(results)[0].startswith(asked)
    results |= {"problems": 1, "left_out": {"m": ["TS", "token_losses"]}}
    left_out = "; 1 row of the data rejected; without TS and token losses for m, which is behind a server."
    assert sentences(results)[0].endswith(left_out)


def test_the_second_sets_confidence_beside_accuracy_mean_over_data_sets(results: dict[str, Any]) -> None:
    for row in results["analyses"]["confidence"]:
        first = row["dataset"] == ONE
        row |= {"mean_confidence": {"mean": 0.9 if first else 0.7}, "accuracy": {"mean": 0.5 + 0.2 * first}}
        if row["method"] == "TS":
            row["mean_confidence"] = {"mean": None}
    assert sentences(results)[1] == "Mean confidence (E-SC) and accuracy: Base 80% and 60%, SE 80% and 60%."


def test_the_third_counts_where_the_gain_over_base_is_shown(results: dict[str, Any]) -> None:
    set_gain(results, ONE, [0.01, 0.03])
    set_gain(results, "made-up-rare", [-0.03, -0.01])
    assert sentences(results)[2] == (
        "Gain over Base: SE better on 0 and worse on 0 of 2 data sets; TS better on 1 and worse on 1 of 2 "
        "data sets."
    )


@pytest.mark.parametrize(("right", "enough"), [(9, 0), (10, 1), (290, 1), (291, 0)])
def test_a_gain_needs_ten_correct_and_ten_wrong_answers_of_both_methods(results, right, enough) -> None:
    set_gain(results, ONE, [0.01, 0.03])
    for method in ("Base", "TS"):
        changed = copy.deepcopy(results)
        for row in changed["analyses"]["confidence"]:
            if (row["dataset"], row["method"]) == (ONE, method):
                row["accuracy"] = {"mean": right / 300}
        assert f"TS better on {enough} and worse on 0" in sentences(changed)[2]


def test_without_base_there_is_no_gain_over_it(results: dict[str, Any]) -> None:
    results["analyses"]["against_base"] = []
    assert len(sentences(results)) == 2
    assert compared_methods(["SE", "Platt"]) == ("SE", "Platt")


def test_a_terminal_gets_the_sentences_and_the_headline_table(results: dict[str, Any]) -> None:
    lines = in_words(results)
    assert lines[:4] == [*sentences(results), ""]
    head, *rows = lines[4:]
    assert head.split()[:5] == ["Model", "Data", "set", "ACE", "Base"]
    assert [row.split()[:2] for row in rows] == [["alpha-1b", name] for name in results["datasets"]]
    assert len({len(line) for line in (head, *rows)}) == 1
