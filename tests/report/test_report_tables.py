"""Tables and figures say all about themselves: one registered from outside is written, and on the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from read_page import Page

from semcal.errors import UsageError
from semcal.experiment.finished import read_finished
from semcal.experiment.report.build import build, page, page_figure, results_markdown
from semcal.experiment.report.explorer import explorer_blocks
from semcal.experiment.report.report_figures import REPORT_FIGURES, ReportFigure, planned_figures
from semcal.experiment.report.report_tables import (
    REPORT_TABLES,
    SECTIONS,
    ReportTable,
    Section,
    report_tables,
)
from semcal.experiment.report.tables import Field, in_order
from semcal.measures import MEASURES

OWN = Section("own", "A section of my own", note="It stands on the page.", link="Mine")
SPREAD = ReportTable(
    name="spread-of-confidence",
    section="own",
    caption="Mean confidence of each method",
    analysis="confidence",
    rows=lambda _, rows: [row for row in rows if row["measure"] == "E-SC"],
    index={"dataset": "Data set", "method": "Method"},
    fields=[Field("Confidence", "mean_confidence")],
    in_markdown=True,
)
DOTS = ReportFigure(
    number="77",
    subject="dots",
    caption="A figure of my own.",
    draw=lambda *_: Figure(figsize=(1, 1)),
    each=("model",),
    section="own",
)


@pytest.fixture
def registered() -> Iterator[None]:
    SECTIONS.register(OWN)
    REPORT_TABLES.register(SPREAD)
    REPORT_FIGURES.register(DOTS)
    yield
    del REPORT_TABLES[SPREAD.name], REPORT_FIGURES[DOTS.number], SECTIONS["own"]


def test_a_table_and_a_figure_from_outside_are_written_and_on_the_page(
    registered: None, analysed_grid: Path, made_up_results: dict[str, Any], tmp_path: Path, monkeypatch
) -> None:
    run = read_finished(analysed_grid)
    (table,) = (table for table in report_tables(made_up_results) if table.name == SPREAD.name)
    assert [row[1].text for row in table.rows] == made_up_results["methods"]
    figures = [page_figure(plan, plan.drawn(), "f") for plan in planned_figures(run, made_up_results)[-1:]]
    text = page(run, made_up_results, figures, explorer_blocks(run))
    shown = Page(text).tables[f"table-{SPREAD.name}"]
    assert [cell.text for row in table.rows for cell in row if cell.value is not None] == [
        text.split("±")[0] for row in shown[1:] for text in row[1:] if text
    ]
    for words in (OWN.title, OWN.note, f'<a href="#{OWN.name}">{OWN.link}</a>', DOTS.caption):
        assert words in text
    assert SPREAD.caption in results_markdown(made_up_results)
    (tmp_path / "results.json").write_bytes((analysed_grid / "results.json").read_bytes())
    dots = [plan for plan in planned_figures(run, made_up_results) if plan.number in ("0", DOTS.number)]
    monkeypatch.setattr("semcal.experiment.report.build.planned_figures", lambda *_: dots)
    build(analysed_grid, tmp_path)
    assert {path.suffix for path in (tmp_path / "tables").glob(f"{SPREAD.name}.*")} == {".md", ".csv", ".tex"}
    assert len(list((tmp_path / "figures").glob("figure-77-dots+*"))) == 2


def test_two_tables_or_figures_have_no_name_in_common() -> None:
    with pytest.raises(UsageError, match="'fits'"):
        REPORT_TABLES.register(REPORT_TABLES["fits"])
    with pytest.raises(UsageError, match="'3'"):
        REPORT_FIGURES.register(REPORT_FIGURES["3"])


def test_a_measure_that_no_list_knows_stands_behind_the_papers(made_up_results: dict[str, Any]) -> None:
    assert set(in_order(MEASURES, MEASURES)) == set(MEASURES)
    rows = made_up_results["analyses"]["confidence"]
    own = [{**row, "measure": "my own"} for row in rows if row["measure"] == "E-SC"]
    results = made_up_results | {"measures": [*MEASURES, "my own"]}
    results["analyses"] = made_up_results["analyses"] | {"confidence": [*rows, *own]}
    table = next(table for table in report_tables(results) if table.name.startswith("03-main"))
    titles = [column.title for column in table.columns if column.group == "ACE"]
    assert titles == [*in_order(MEASURES, MEASURES), "my own"]
    places = [[column.title for column in table.columns].index(name) for name in ("E-SC", "my own")]
    assert all(row[places[0]].text == row[places[1]].text for row in table.rows)
