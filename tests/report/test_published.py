"""The published numbers are those of the paper, and stand beside a run on the same models and data."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from made_up_grid import Grid, write_grid

from semcal.experiment.analyses import analyse
from semcal.experiment.report.report_tables import (
    PUBLISHED_TABLES,
    published,
    report_tables,
)
from semcal.yaml_files import parse_yaml, yaml_text

BY_METHOD = [name for name in PUBLISHED_TABLES if "metric" in published(name)["rows"][0]]


@pytest.fixture(scope="session")
def paper(semcal_data: Path) -> str:
    path = semcal_data.parent / "paper.tex"
    if not path.is_file():
        pytest.skip("the paper's source does not lie beside the development data")
    return path.read_text(encoding="utf-8")


def tabular(paper: str, label: str) -> list[str]:
    """The lines of the tabular that belongs to a label, which may stand above or below it."""
    place = paper.index(rf"\label{{{label}}}")
    table = paper.rindex(r"\begin{table", 0, place)
    before, after = paper.rfind(r"\begin{tabular}", table, place), paper.find(r"\begin{tabular}", place)
    start = after if before < 0 else before
    return paper[start : paper.index(r"\end{tabular}", start)].split(r"\\")


def plain(cell: str) -> str:
    return re.sub(
        r"\\(multirow|rotatebox|textbf|text|midrule|toprule|bottomrule)|\{\d+\}|\{\*\}|\{90\}|[{}$;\\]",
        "",
        cell,
    ).strip()


@pytest.mark.parametrize("name", BY_METHOD)
def test_every_number_of_a_table_of_methods(paper: str, name: str) -> None:
    table = published(name)
    lines = [line.split("&") for line in tabular(paper, table["table"])]
    header = next(cells for cells in lines if "E-SC" in [plain(cell) for cell in cells])
    measures = [plain(cell) for cell in header][2:]
    rows = iter(table["rows"])
    dataset = ""
    for cells in lines:
        numbers = [re.search(r"(\d+\.\d+)\}?_\{\{\\pm (\d+\.\d+)", cell) for cell in cells[2:]]
        if not numbers or None in numbers:
            continue
        dataset = plain(cells[0]) or dataset
        assert len(numbers) == len(measures)
        for cell, number, measure in zip(cells[2:], numbers, measures, strict=True):
            row = next(rows)
            assert (row["dataset"], row["method"], row["measure"]) == (dataset, plain(cells[1]), measure)
            assert (row["mean"], row["se"]) == (float(number[1]), float(number[2]))
            assert row["best"] == ("mathbf" in cell)
            assert row.get("overall", False) == ("underline" in cell)
    assert next(rows, None) is None


def published_run(folder: Path, model: str, source: str) -> dict[str, Any]:
    write_grid(folder, Grid(models=("m",), datasets={"d": False}, counts=(), runs=2, n=15))
    settings = parse_yaml((folder / "settings.yaml").read_text(), what="settings")
    settings["models"][0]["path"] = model
    settings["datasets"][0]["source"] = source
    (folder / "settings.yaml").write_text(yaml_text(settings))
    return analyse(folder)


def test_a_run_on_the_papers_model_and_data_stands_beside_it(tmp_path: Path) -> None:
    results = published_run(tmp_path, "Qwen/Qwen2.5-7B-Instruct", "nq-open")
    tables = {table.name: table for table in report_tables(results) if table.name.startswith("paper-")}
    assert {"paper-main-qwen", "paper-entropy-conf", "paper-temperatures", "paper-splits"} <= set(tables)
    assert not any("llama" in name or "mistral" in name for name in tables)
    main = tables["paper-main-qwen"]
    assert len(main.rows) == 5 * 14
    (row,) = [
        row for row in main.rows if [cell.text for cell in row[:5]] == ["Qwen", "NQ", "TS", "L-SC", "AUROC"]
    ]
    (ours,) = [
        one["auroc"]["mean"]
        for one in results["analyses"]["confidence"]
        if (one["method"], one["measure"]) == ("TS", "L-SC")
    ]
    assert (row[5].value, row[5].error) == (0.799, 0.007)
    assert row[6].value == ours
    assert row[7].value == pytest.approx(ours - 0.799)
    temperature = tables["paper-temperatures"].rows[0]
    assert [cell.text for cell in temperature[-3:]] == ["2.41", "2.00", "−0.41"]


def test_models_and_data_are_known_by_the_last_part_of_their_path_and_others_are_not(tmp_path: Path) -> None:
    results = published_run(tmp_path, "/models/Ministral-8B-Instruct-2410/", "TriviaQA")
    names = {table.name for table in report_tables(results) if table.name.startswith("paper-")}
    assert {"paper-main-mistral", "paper-splits"} <= names
    for model, source in (("Qwen2.5-0.5B-Instruct", "triviaqa"), ("atlas", "triviaqa.jsonl")):
        results["sources"] = {"models": {"m": model}, "datasets": {"d": source}}
        names = {table.name for table in report_tables(results) if table.name.startswith("paper-")}
        assert "paper-main-qwen" not in names
        assert ("paper-splits" in names) == (source == "triviaqa")
