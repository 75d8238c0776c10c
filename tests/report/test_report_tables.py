"""Tables of a run hold the numbers of results.json and nothing else."""

from __future__ import annotations

from semcal.report import Cell, Column, Table, markdown


def test_markdown_has_one_line_a_row_and_survives_pipes_in_names() -> None:
    rows = ((Cell("a|b"), Cell("0.1", 0.1, best=True)), (Cell("c"), Cell("–")))
    lines = markdown(Table("t", "", (Column("Set"), Column("E-SC", "ACE")), rows)).splitlines()
    assert lines == ["| Set | ACE E-SC |", "| :--- | ---: |", "| a\\|b | **0.1** |", "| c | – |"]
