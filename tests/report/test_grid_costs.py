"""Tables of costs and remedies: the record's numbers in them, and no time where runs are compared."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from semcal.experiment.finished import read_finished
from semcal.report.build import results_markdown
from semcal.report.explorer import explorer_blocks
from semcal.report.grid_tables import cost_tables, grid_tables, write_tables
from semcal.report.page import page as grid_page

RECORD = {
    "cpu_seconds": {"sample": 30.0, "cluster": 60.0, "main": 10.0},
    "fits": {"alpha-1b": {"TS": {"seconds": 3.0, "fits": 6}}},
    "overhead": {
        "alpha-1b": [
            {"method": "Base", "candidate": "Base", "tokens": 1000, "seconds": 0.5},
            {"method": "TS", "candidate": "TS NLL", "tokens": 1000, "seconds": 0.5},
            {"method": "ATS", "candidate": "ATS NLL", "tokens": 1000, "seconds": 0.75},
        ]
    },
}


def test_fits_and_overhead_are_those_of_the_record(grid_results: dict[str, Any]) -> None:
    fits = {table.name: table for table in cost_tables(grid_results, RECORD)}["cost-fits"]
    rows = {(row[0].text, row[1].text): [cell.value for cell in row[2:]] for row in fits.rows}
    assert rows["alpha-1b", "TS"] == [1, 6, 0.5, 0.0, 0.0]
    assert rows["alpha-1b", "ATS"] == [5000, None, None, pytest.approx(250.0), pytest.approx(50.0)]
    assert rows["beta/2b", "Platt"] == [1000, None, None, None, None]


def test_stages_stand_by_their_share_beside_what_the_paper_states(grid_results: dict[str, Any]) -> None:
    stages = {table.name: table for table in cost_tables(grid_results, RECORD)}["cost-stages"]
    assert [row[0].text for row in stages.rows] == ["cluster", "sample", "main"]
    assert [row[2].value for row in stages.rows] == pytest.approx([60.0, 30.0, 10.0])
    assert [cell.text for cell in stages.rows[0][3:5]] == ["2", "–"]
    assert [cell.text for cell in stages.rows[1][3:5]] == ["1", "1"]


def test_without_a_record_the_sizes_of_fits_remain(grid_results: dict[str, Any]) -> None:
    assert [table.name for table in cost_tables(grid_results, {})] == ["cost-fits"]


def test_times_stand_on_the_page_and_in_files_of_their_own_alone(
    grid_folder: Path, grid_results: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(grid_folder, folder)
    before = results_markdown(read_finished(folder), grid_results)
    write_tables(read_finished(folder), grid_results, tmp_path / "before")
    (folder / "environment.json").write_text(json.dumps(RECORD))
    run = read_finished(folder)
    write_tables(run, grid_results, tmp_path / "after")
    assert results_markdown(run, grid_results) == before
    changed = {
        path.name
        for path in (tmp_path / "after").iterdir()
        if not (other := tmp_path / "before" / path.name).exists() or other.read_bytes() != path.read_bytes()
    }
    assert changed == {f"cost-{name}.{kind}" for name in ("fits", "stages") for kind in ("md", "csv", "tex")}
    page = grid_page(run, grid_results, [], explorer_blocks(run))
    assert 'id="costs"' in page
    assert "Seconds a fit" in page


def test_remedies_have_their_tables_and_say_where_labels_are_lacking(grid_results: dict[str, Any]) -> None:
    tables = {table.name: table for table in grid_tables(grid_results)}
    row = grid_results["analyses"]["remedies"][0]
    cells = tables["remedies"].rows[0]
    assert [cell.text for cell in cells[6:8]] == ["no labels", "no labels"]
    assert [cell.value for cell in cells[3:6]] == [row["changed"], *row["meanings"].values()]
    by_measure = {
        tuple(r[key] for key in ("model", "dataset", "measure", "metric")): r
        for r in grid_results["analyses"]["remedy_scores"]
    }
    for cells in tables["remedies-by-measure"].rows:
        found = by_measure[(*(cell.text for cell in cells[:3]), "ace")]
        assert [cell.value for cell in cells[6:9]] == [
            found["with"],
            found["without"],
            found["benefit"]["value"],
        ]
        assert cells[8].best == (found["benefit"]["interval"][0] > 0)


def test_findings_are_told_apart_from_the_papers_claims(
    grid_folder: Path, grid_results: dict[str, Any]
) -> None:
    run = read_finished(grid_folder)
    text = results_markdown(run, grid_results)
    assert f"Of {len(grid_results['claims'])} claims" in text
    _, beyond = text.split("## Beyond the paper")
    for finding in grid_results["findings"]:
        assert finding["because"] in beyond
    assert 'id="remedies"' in grid_page(run, grid_results, [], explorer_blocks(run))
