"""What analyses do where there is little or something odd: one run, few methods, nulls, one class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_up_grid import Grid, edited, write_grid

from semcal.errors import InputError, StoreError
from semcal.experiment.analyses import analyse
from semcal.experiment.analyses.answer_analyses import audit_result, audit_sheet
from semcal.experiment.finished import read_finished
from semcal.metrics import auroc
from semcal.yaml_files import parse_yaml, yaml_text

SMALL: dict[str, Any] = {
    "models": ("alpha-1b",),
    "datasets": {"made-up-trivia": False},
    "runs": 2,
    "n": 25,
    "counts": (),
}


def all_right(_: int, row: dict[str, Any]) -> dict[str, Any]:
    return row | {"correct": dict.fromkeys(row["correct"], True), "greedy_correct": True}


def configured(folder: Path, **parts: dict[str, Any]) -> Path:
    path = folder / "settings.yaml"
    settings = parse_yaml(path.read_text(), what="settings")
    for part, values in parts.items():
        settings[part] = settings.get(part, {}) | values
    path.write_text(yaml_text(settings))
    return folder


def cells(results: dict[str, Any], measure: str = "E-SC") -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in results["analyses"]["confidence"] if row["measure"] == measure}


def verdicts(results: dict[str, Any]) -> set[str]:
    return {row["verdict"] for row in results["contrasts"]}


def test_the_same_samples_give_the_same_bytes_and_another_seed_gives_others(tmp_path: Path) -> None:
    folder = write_grid(tmp_path / "run", Grid(**SMALL))
    analyse(folder, tmp_path / "one")
    analyse(folder, tmp_path / "two")
    one, two = ((tmp_path / name / "results.json").read_bytes() for name in ("one", "two"))
    assert one == two
    analyse(write_grid(tmp_path / "other", Grid(**SMALL, seed=1)))
    assert (tmp_path / "other" / "results.json").read_bytes() != one


def test_one_run_has_intervals_and_no_standard_error(tmp_path: Path) -> None:
    found = analyse(write_grid(tmp_path, Grid(**{**SMALL, "runs": 1})))
    ace = cells(found)["TS"]["ace"]
    assert ace["se"] is None
    assert len(ace["runs"]) == 1
    assert ace["interval"][0] <= ace["mean"] <= ace["interval"][1]


@pytest.mark.parametrize("methods", [("Base",), ("SE", "TS"), ("Base", "TS", "Platt")])
def test_a_run_of_few_methods_is_analysed_as_far_as_it_goes(tmp_path: Path, methods: tuple[str, ...]) -> None:
    found = analyse(write_grid(tmp_path, Grid(**SMALL, methods=methods)))
    assert list(cells(found)) == list(methods)
    assert ("TS" in methods) == bool(found["analyses"]["paired"])
    assert "too few to say" in verdicts(found)


def test_a_question_that_is_null_under_one_measure_counts_for_none(tmp_path: Path) -> None:
    found = analyse(write_grid(tmp_path, Grid(**SMALL, null="B-SC")))
    for measure in ("E-SC", "B-SC"):
        assert {(row["n"], row["undefined"]) for row in cells(found, measure).values()} == {(24, 1)}


def test_a_run_without_likelihoods_has_e_sc_alone(tmp_path: Path) -> None:
    def without(_: int, row: dict[str, Any]) -> None:
        for key in ("confidence", "correct", "semantic_entropy", "top_cluster", "rule"):
            row[key] = {name: value if name == "E-SC" else None for name, value in row[key].items()}

    found = analyse(edited(write_grid(tmp_path, Grid(**SMALL)), without))
    assert cells(found)["TS"]["ace"]["mean"] >= 0
    assert cells(found)["TS"]["n"] == 25
    assert cells(found, "L-SC")["TS"]["ace"] is None
    assert found["analyses"]["correlations"] == []


def test_all_answers_right_leaves_discrimination_undefined(tmp_path: Path) -> None:
    found = analyse(edited(write_grid(tmp_path, Grid(**SMALL)), all_right))
    cell = cells(found)["TS"]
    assert (cell["auroc"]["mean"], cell["auroc"]["interval"], cell["accuracy"]["mean"]) == (None, None, 1.0)
    assert not any("AUROC" in row["contrast"] for row in found["contrasts"])


def test_the_answer_of_se_vanilla_is_that_of_four_beams_if_the_settings_say_so(tmp_path: Path) -> None:
    folder = configured(write_grid(tmp_path, Grid(**SMALL)), grading={"vanilla": "beam"})
    rows = read_finished(folder).rows("alpha-1b", "made-up-trivia", "Base")
    entropies = [-row["semantic_entropy"]["E-SC"] for row in rows]
    (found, *_) = analyse(folder)["analyses"]["entropy"]
    assert (found["vanilla"], found["method"], found["measure"]) == ("beam", "Base", "E-SC")
    assert found["SE_vanilla"]["runs"][0] == auroc(entropies, [row["beam_correct"] for row in rows])


def test_a_refitted_temperature_has_a_mean_and_an_error_over_runs(tmp_path: Path) -> None:
    folder = write_grid(tmp_path, Grid(**SMALL))
    path = folder / "selection/alpha-1b/made-up-trivia.json"
    selection = json.loads(path.read_text())
    (fit,) = [one for one in selection["fits"] if one["candidate"] == "TS NLL"]
    fit["temperature_of_run"] = [2.0, 2.4]
    path.write_text(json.dumps(selection))
    (row,) = analyse(folder)["analyses"]["refits"]
    assert row["candidate"] == "TS NLL"
    assert row["temperature"]["mean"] == pytest.approx(2.2)
    assert row["temperature"]["se"] == pytest.approx(0.2)


def test_files_with_other_questions_are_refused(own_grid: Path) -> None:
    edited(own_grid, lambda _, row: row | {"id": f"x{row['id']}"}, "samples/*/*/SE/run1.jsonl")
    with pytest.raises(StoreError, match="alpha-1b on made-up-trivia"):
        analyse(own_grid)


@pytest.mark.parametrize("change", [{"confidence": "high"}, {"rule": []}])
def test_a_row_that_is_no_measured_row_is_refused_by_its_file(own_grid: Path, change: dict[str, Any]) -> None:
    edited(own_grid, lambda _, row: row | change, "samples/*/*/SE/run1.jsonl")
    with pytest.raises(StoreError, match=r"SE/run1\.jsonl"):
        analyse(own_grid)


def test_settings_that_no_longer_hold_are_refused_by_their_file(own_grid: Path) -> None:
    configured(own_grid, evaluation={"binz": 15})
    with pytest.raises(StoreError, match=r"settings\.yaml"):
        analyse(own_grid)


def test_the_sheet_of_the_audit_does_not_depend_on_the_order_of_rows(own_grid: Path) -> None:
    run = read_finished(own_grid)
    sheet = audit_sheet(run, "alpha-1b", "made-up-trivia", n=5)
    path = run.samples_path("alpha-1b", "made-up-trivia", "Base", 0)
    path.write_text("\n".join(reversed(path.read_text().splitlines())) + "\n")
    assert audit_sheet(run, "alpha-1b", "made-up-trivia", n=5) == sheet
    assert len(sheet) == 5
    assert [sum(int(c.partition("×")[2][:-1] or 1) for c in g) for g in sheet[0]["clusters"]] == [
        len(cluster)
        for cluster in next(
            row["clusters"]
            for row in run.rows("alpha-1b", "made-up-trivia", "Base")
            if row["id"] == sheet[0]["id"]
        )
    ]


def test_a_filled_sheet_adds_up_by_kind_of_error(own_grid: Path) -> None:
    sheet = audit_sheet(read_finished(own_grid), "alpha-1b", "made-up-trivia", n=5)
    one, apart = "human: every cluster one meaning", "human: no two clusters the same meaning"
    judged = [
        sheet[0] | {one: "yes", apart: "yes"},
        sheet[1] | {one: "no", apart: "Yes"},
        sheet[2] | {one: "yes", apart: "no", "refusals": "2"},
        sheet[3] | {one: True, apart: ""},
    ]
    assert audit_result(judged) == {
        "n": 3,
        "accuracy": pytest.approx(1 / 3),
        "errors": {"meanings merged": 1, "one meaning split, refusals": 1},
    }
    assert audit_result(sheet)["accuracy"] is None
    with pytest.raises(InputError, match=r"row 1.*'perhaps'"):
        audit_result([sheet[0] | {one: "perhaps"}])
    with pytest.raises(InputError, match="human: every"):
        audit_result([{"refusals": 0}])
