"""What a run says of itself is true and can be read, whatever the run lacks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_up_grid import Grid, write_grid

from semcal.experiment.analyses import analyse
from semcal.experiment.analyses.claims.statements import RULES
from semcal.experiment.finished import read_finished
from semcal.report.build import results_markdown
from semcal.report.explorer import explorer_blocks
from semcal.report.grid_figures import planned_figures
from semcal.report.grid_tables import grid_tables
from semcal.report.page import page as grid_page
from semcal.report.summary import claims_in_words, facts, findings, rules_note

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


def told(results: dict[str, Any]) -> dict[str, str]:
    return {claim["key"]: claim["because"] for claim in results["claims"]}


def test_methods_that_were_not_run_are_named_and_no_others(tmp_path: Path) -> None:
    base, ts, both = (
        told(analysed(tmp_path / "-".join(methods), methods=methods)[1])
        for methods in (("Base",), ("TS",), ("Base", "TS"))
    )
    assert base["calibration"] == "TS and SE were not run."
    assert base["method against measure"] == "The run has one method; it takes two."
    assert base["metrics agree"] == "The run has one method; ranking takes three."
    assert base["open book"] == "TS was not run."
    assert base["order of tokens"] == "TS, ATS and Platt were not run."
    assert ts["calibration"] == "Base and SE were not run."
    assert ts["calibration, expressive methods"] == "ATS and Platt were not run."
    assert ts["grading"] == "No answers of Base were graded by entailment as well."
    assert both["calibration"].endswith(" SE was not run.")
    assert both["metrics agree"] == "The run has two methods; ranking takes three."
    assert both["filler tokens"] == "ATS was not run."
    assert both["measures differ under TS"] == "SE was not run."


def test_what_all_right_answers_leave_undefined_is_not_said_to_be_missing(tmp_path: Path) -> None:
    because = told(analysed(tmp_path, all_right, runs=2, counts=(5, 10, 15, 25))[1])
    one_class = "AUROC is undefined on every model and data set: all answers are right, or all are wrong."
    for key in ("discrimination", "discrimination, expressive methods", "semantic entropy"):
        assert because[key] == one_class
    assert because["method against measure"].startswith("On no model and data set are ACE and AUROC defined")
    assert because["SE_conf"].startswith("Under no method and measure are there right and wrong answers")
    assert because["number of generations"].startswith("Under no method and measure")
    assert because["independence"].endswith(
        "In this run the correlation of ACE and AUROC is undefined: it takes three cells that differ."
    )
    assert not any("-0.000" in sentence for sentence in because.values())


def test_open_book_sets_are_said_to_be_none_or_not_calibrated(tmp_path: Path) -> None:
    closed = told(analysed(tmp_path / "closed")[1])["open book"]
    spoilt = told(analysed(tmp_path / "open", datasets={"d": True}, overconfidence=1.0)[1])["open book"]
    assert closed == "The run has no open-book data set."
    assert re.fullmatch(
        r"On no open-book data set is Base calibrated \(ACE at most 0.06\): m on d 0\.\d{3}\.", spoilt
    )


def test_numbers_of_draws_that_there_are_are_named(tmp_path: Path) -> None:
    ten = told(analysed(tmp_path / "ten")[1])["number of generations"]
    few = told(analysed(tmp_path / "few", counts=(5, 10))[1])["number of generations"]
    assert ten == "The run has one number of draws; it takes fewer than 10 draws, 10 to 15, and more."
    assert few == "The run has rows at 5, 10; it takes fewer than 10 draws, 10 to 15, and more."


def test_a_handful_of_questions_decides_nothing_about_scores(tmp_path: Path) -> None:
    _, results = analysed(tmp_path, n=1)
    decided = {claim["key"] for claim in results["claims"] if claim["verdict"] != "not decidable here"}
    assert decided <= {"order of tokens", "independence", "grading"}
    assert told(results)["calibration"].endswith(
        "Not decided: of a data set 1 question counts, and intervals take 20 or more."
    )
    assert {one["verdict"] for one in results["findings"]} == {"not decidable here"}


def test_the_page_results_json_and_results_md_name_the_version_of_the_rules(tmp_path: Path) -> None:
    folder, results = analysed(tmp_path, methods=("Base", "TS"))
    run = read_finished(folder)
    assert results["rules"] == RULES
    assert f"version {RULES['version']} of the rules, of {RULES['since']}" in rules_note(results)
    for text in (results_markdown(run, results), grid_page(run, results, [], explorer_blocks(run))):
        assert rules_note(results) in text
        assert "Does not*" not in text
        assert "does not<" not in text


def test_numbers_of_claims_questions_and_rows_agree_with_their_verbs(tmp_path: Path) -> None:
    def of(*verdicts: str) -> str:
        return claims_in_words({"claims": [{"verdict": verdict} for verdict in verdicts]})

    assert of("holds", "does not hold", "not decidable here") == (
        "Of 3 claims of the paper 1 holds, 1 does not, 1 cannot be decided here."
    )
    assert of("does not hold", "does not hold") == "Of 2 claims of the paper 2 do not."
    folder, results = analysed(tmp_path, methods=("Base",), n=1)
    assert facts(read_finished(folder), results | {"problems": 1}).startswith(
        "d (1 test question); Base; one run"
    )
    assert findings(results)[0].setting == "closed book, 1 question"


def test_captions_speak_of_what_is_shown(tmp_path: Path) -> None:
    folder, results = analysed(tmp_path, methods=("Base",))
    run = read_finished(folder)
    tables = {table.name: table for table in grid_tables(results)}
    assert "of one run, with the 95 % interval over questions" in tables["03-main-m"].caption
    assert not any(name.startswith("11-volatility") for name in tables)  # one method has no rank
    assert {figure.number for figure in planned_figures(run, results)}.isdisjoint({"7a", "7b"})
    shown = results_markdown(run, results).partition("## Tables")[2].split("\n\n")
    with_intervals = [part for part in shown if "interval over questions" in part]
    assert with_intervals
    assert all(part.endswith("Here without the intervals.") for part in with_intervals)


@pytest.mark.parametrize("runs", [1, 2])
def test_no_sentence_holds_an_empty_or_an_undefined_place(tmp_path: Path, runs: int) -> None:
    for n, edit in ((2, None), (25, all_right)):
        _, results = analysed(tmp_path / str(n), edit, n=n, runs=runs)
        for one in (*results["claims"], *results["findings"]):
            assert not re.search(
                r"undefined [a-z]*$|\bnan\b|\binf\b|None|  | ,| \.|: \.|\(\)", one["because"]
            ), one
