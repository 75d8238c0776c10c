"""Tables of a grid run: the paper's layout, marks that agree with the numbers, and files that hold them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from read_page import Page

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
from semcal.experiment.report.tables import Field, Table, cell_of, mark, number

CELL = ("made-up-trivia", "ATS")


@pytest.fixture
def tables(grid_results: dict[str, Any]) -> dict[str, Table]:
    return {table.name: table for table in report_tables(grid_results)}


@pytest.mark.parametrize(
    ("name", "larger"),
    [("03-main", None), ("08-brier", False), ("08c-gain", True), ("06-entropy-vanilla", True)],
)
def test_the_best_of_each_measure_and_data_set_is_marked(tables, name: str, larger: bool | None) -> None:
    table, marked = tables[f"{name}-alpha-1b"], 0
    for dataset in ("made-up-trivia", "made-up-reading"):
        rows = [row for row in table.rows if row[0].text == dataset]
        for i, column in enumerate(table.columns[2:9], start=2):
            wanted = column.group == "AUROC" if larger is None else larger
            shown = [float(row[i].text) for row in rows]
            by_floor = [float(row[i].compared.text) for row in rows]
            several = [number for number, row in zip(by_floor, rows) if not row[i].too_few]
            may = [n for n, row in zip(by_floor, rows) if not row[i].less_accurate and not row[i].too_few]
            best = (max(may) if wanted else min(may)) if len(several) > 1 and may else None
            first = [
                number == best and not row[i].less_accurate and not row[i].too_few
                for number, row in zip(by_floor, rows)
            ]
            assert [row[i].best for row in rows] == first
            assert [row[i].tied for row in rows] == [one and may.count(best) > 1 for one in first]
            marked += sum(first)
            if column.group != "ACE":
                assert by_floor == shown
    assert marked


def test_the_best_of_a_data_set_is_underlined_in_each_panel(tables: dict[str, Table]) -> None:
    table = tables["04-entropy-short-alpha-1b"]
    for dataset in ("made-up-trivia", "made-up-reading"):
        rows = [row for row in table.rows if row[0].text == dataset]
        for panel in (range(2, 6), range(6, 10)):
            best = [float(row[i].text) for row in rows for i in panel if row[i].best]
            assert {float(row[i].text) for row in rows for i in panel if row[i].overall} == set(
                [max(best)] if best else []
            )
    assert not any(cell.overall for row in tables["03-main-alpha-1b"].rows for cell in row)


def test_losses_of_fits_stand_beside_the_scores_under_them(tables, grid_results) -> None:
    table = tables["losses"]
    (row,) = [
        row for row in table.rows if [cell.text for cell in row[:3]] == ["beta/2b", CELL[0], "ATS by SS"]
    ]
    analyses = grid_results["analyses"]
    own = [
        one
        for one in analyses["losses"]
        if (one["model"], one["dataset"], one["method"], one["loss"]) == ("beta/2b", *CELL, "SS")
    ]
    fits = {
        fit["candidate"]: fit
        for fit in analyses["fits"]
        if (fit["model"], fit["dataset"]) == ("beta/2b", CELL[0])
    }
    expected = [
        sum(fits[one["candidate"]][key] for one in own) / 7 for key in ("train_nll", "validation_nll")
    ]
    expected += [sum(one[key]["mean"] for one in own) / 7 for key in ("ace", "auroc", "brier")]
    assert [cell.value for cell in row[3:]] == pytest.approx(expected)
    fitted = [f"{method} by {loss}" for method in ("TS", "Platt", "ATS") for loss in ("NLL", "SS")]
    assert [row[2].text for row in table.rows[:8]] == ["Base", "SE", *fitted]


def test_ties_are_what_shows_the_same_digits() -> None:
    marked = mark([number(x) for x in (0.3004, 0.2996, 0.2994)], larger=True)
    assert [(cell.best, cell.tied) for cell in marked] == [(True, True), (True, True), (False, False)]
    assert mark([number(0.5), number(None)], larger=True) == [number(0.5), number(None)]


def test_one_run_shows_no_standard_error() -> None:
    cell = cell_of({"mean": 0.25, "se": None, "interval": [0.2, 0.3]})
    assert (cell.text, cell.error_text, cell.interval_text) == ("0.250", "", "[0.200, 0.300]")


def test_paired_tables_mark_what_is_better_and_bracket_what_is_worse(tables, grid_results) -> None:
    rows = [row for row in grid_results["analyses"]["paired"] if row["quantity"] == "ace"]
    less = {
        tuple(row[key] for key in ("model", "dataset", "measure"))
        for row in grid_results["analyses"]["against_base"]
        if row["method"] == "TS" and row["accuracy"]["interval"][1] < 0 and row["accuracy"]["p"] < 0.05
    }
    better = sum(
        row["better"] is True and (row["model"], row["dataset"], row["measure"]) not in less for row in rows
    )
    worse = sum(row["better"] is False for row in rows)
    cells = [cell for row in tables["paired-ace"].rows for cell in row[3:]]
    assert sum(cell.best for cell in cells) == better
    assert sum(cell.text.startswith("(") for cell in cells) == worse
    assert worse > 0


def test_a_run_of_one_method_without_runs_or_draws_still_has_its_tables() -> None:
    results = {
        "models": ["m"],
        "datasets": ["d"],
        "methods": ["Base"],
        "measures": ["E-SC"],
        "runs": 1,
        "m": 10,
        "contrasts": [],
        "sources": {"models": {}, "datasets": {}},
        "analyses": {
            "base_accuracies": [{"model": "m", "dataset": "d", "greedy": None, "beam": None}],
            **dict.fromkeys(("confidence", "entropy"), ()),
        },
    }
    tables = {table.name: table for table in report_tables(results)}
    assert [cell.text for cell in tables["03-main-m"].rows[0]] == ["d", "Base", "–", "–"]


# ---- Tables and figures from outside are written, and on the page ------------------------------------------

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
