"""Tables in other programs: nothing is computed, linked or run, and what was written is what is read."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from semcal.cli.console import figure_lines
from semcal.experiment.finished import read_finished
from semcal.experiment.report.build import write_tables
from semcal.experiment.report.report_tables import report_tables
from semcal.experiment.report.tables import (
    Column,
    Table,
    TableCell,
    csv_text,
    latex,
    markdown,
    markdown_text,
    number,
    one_line,
    table_latex,
)

FORMULAS = (
    "=1+1",
    "=cmd|' /C calc'!A0",
    "+SUM(A1)",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    " =1",
    "\ufeff=1",
    "＝1",
    "-",
    "-inf",
    "+49 30 1234",
    "-.1 to A1",
)
PLAIN = ("TS", "a=b", "a-b", "'quoted'", "", "[-0.1, +0.2]", 'say "x", y')
MARKUP = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[x](javascript:alert(1))",
    "![x](y)",
    "[x]: javascript:y",
    "<https://a.b>",
    "https://a.b/c",
    "www.a.b",
    "&lt;b&gt; & AT&T &#60;",
    "a | b \\| c \\",
    "`a|b`",
    "*a* _b_ __c__ ~~d~~ SE_conf per_token_x",
    "$x^2$",
    "a\n\nb\u2028c\rd",
    "\x00\x1b[31m",
    "\ud800",
    "# a",
    "> a",
    "- a",
    "+ a",
    "1. a",
    "===",
)


def one_cell(text: str) -> Table:
    return Table("t", text, (Column(text), Column("x")), ((TableCell(text), TableCell("1")),))


def read_back(text: str) -> list[str]:
    ((head, _), (cell, _)) = csv.reader(io.StringIO(csv_text(one_cell(text)), newline=""))
    return [head, cell]


@pytest.mark.parametrize("text", FORMULAS)
def test_cells_and_headings_that_a_spreadsheet_would_compute_begin_with_an_apostrophe(text: str) -> None:
    cell = read_back(text)[1]
    assert cell == f"'{one_line(text)}"
    assert read_back(text)[0].replace(" ", "") == cell.replace(" ", "")


@pytest.mark.parametrize("text", PLAIN)
def test_other_text_stays_as_it_is_in_csv(text: str) -> None:
    assert read_back(text) == [text, text]


def test_a_line_break_in_a_cell_ends_no_row_of_csv() -> None:
    assert csv_text(one_cell("a\r\nb\rc\u2028d\x00\ud800")).splitlines()[1:] == ["a b c d��,1"]


def test_a_negative_number_is_written_as_a_number() -> None:
    table = Table("t", "", (Column("x"),), ((number(-0.0613),),))
    assert csv_text(table) == "x\n-0.0613\n"


@pytest.mark.parametrize("text", MARKUP)
def test_markdown_shows_cells_headings_and_captions_as_they_were_written(text: str) -> None:
    reader = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    source = f"{markdown_text(text, begins=True)}\n\n{markdown(one_cell(text))}"
    tokens = reader.parse(source)
    shown = [token for token in tokens if token.type == "inline"]
    assert {child.type for token in shown for child in token.children or []} <= {"text"}
    read = ["".join(child.content for child in token.children or []) for token in shown]
    assert read == [one_line(text).strip()] * 2 + ["x", one_line(text).strip(), "1"]
    assert [token.type for token in tokens[:3]] == ["paragraph_open", "inline", "paragraph_close"]


def test_latex_keeps_a_cell_and_a_caption_in_one_paragraph_and_its_labels_plain() -> None:
    hostile = "[2pt] a\n\n\\par b\x00 *c* <d|e>"
    text = latex(Table("t_a}b #1", hostile, (Column(hostile),), ((TableCell(hostile),),)))
    shown = r"{[}2pt] a \textbackslash{}par b? {*}c{*} $<$d$|$e$>$"
    assert text.count(shown) == 3
    assert r"\label{tab:t-a-b--1}" in text
    assert "\n\n" not in text


def test_a_measure_with_the_name_of_a_style_is_printed_as_text() -> None:
    assert figure_lines({"[/x]": {"n": 3}}, 80)[0].split() == ["[/x]"]


# ---- Tables as LaTeX: what a compiler would stumble over is looked for in every table of a run -------------

COMMANDS = {
    *("begin", "end", "centering", "caption", "label", "textwidth", "textheight", "toprule", "midrule"),
    *("bottomrule", "multicolumn", "mathbf", "underline", "pm", "alpha", "times", "geq", "ldots"),
    *("textbackslash", "textasciitilde", "textasciicircum", "dagger", "ddagger"),
}


def table(text: str, **cell: Any) -> Table:
    row = (TableCell("TS"), TableCell(text, **cell))
    return Table("t", "Two methods", (Column("Method"), Column("E-SC", "ACE")), (row,))


def check_form(text: str) -> None:
    """Braces, dollars and environments close; commands are known; rows have as many cells as columns."""
    bare = re.sub(r"\\[{}$&%#_]", "", text)
    depth = 0
    for character in bare:
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0
    assert bare.count("$") % 2 == 0
    opened: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+\*?)\}", bare):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert not opened
    assert set(re.findall(r"\\([A-Za-z]+)", text)) <= COMMANDS
    outside = "".join(re.split(r"\$[^$]*\$", re.sub(r"\\(label|begin)\S*\{[^}]*\}", "", bare)))
    assert not re.search(r"[_^#]|(?<!!\}\{)%", outside)
    assert outside.isascii() or not re.search("[−±×αβ≥⁼–…²]", outside)


def check_rows(text: str) -> None:
    for tabular in re.findall(r"\\begin\{tabular\}.*?\\end\{tabular\}", text, re.DOTALL):
        first, *lines = tabular.split("\n")
        columns = first[len(r"\begin{tabular}{") : -1]
        width = len(re.sub(r"p\{[^}]*\}", "p", columns))
        for line in lines:
            if line.endswith(r"\\"):
                cells = re.split(r"(?<!\\)&", line)
                spans = [int(span) for span in re.findall(r"\\multicolumn\{(\d+)\}", line)]
                assert len(cells) - len(spans) + sum(spans) == width, line


def test_every_table_of_a_run_has_form(grid_results: dict[str, Any]) -> None:
    for made in report_tables(grid_results):
        text = table_latex(made)
        check_form(text)
        check_rows(text)


def test_numbers_are_marked_as_the_paper_marks_them() -> None:
    assert r"$\mathbf{0.064}_{\pm 0.012}$" in latex(table("0.064", value=0.064, error=0.012, best=True))
    assert r"$\mathbf{\underline{0.9}}$" in latex(table("0.9", value=0.9, best=True, overall=True))
    assert r"$\mathbf{0.1}^{=}$" in latex(table("0.1", value=0.1, best=True, tied=True))
    assert "$-0.5$" in latex(table("−0.5", value=-0.5))
    assert "TS & -- " in latex(table("–"))
    shown = latex(table("0.06", value=0.064, error=0.01, interval=(-0.05, 0.08)))
    assert r"$0.06_{\pm 0.010}~[-0.05, 0.08]$" in shown


def test_a_table_of_words_breaks_its_lines() -> None:
    text = latex(table("words " * 20))
    check_rows(text)
    assert r"{lp{0.25\textwidth}}" in text


def test_errors_and_intervals_stand_in_tables_of_their_own(grid_folder, grid_results, tmp_path: Path) -> None:
    write_tables(read_finished(grid_folder), grid_results, tmp_path)
    (name,) = {path.stem for path in tmp_path.glob("03-main-*1b.tex")}
    errors, intervals = (tmp_path / f"{name}.tex").read_text().split("\n\n")
    assert (r"\pm 0." in errors, "~[" in errors) == (True, False)
    assert rf"\label{{tab:{name}-intervals}}" in intervals
    assert (r"\pm 0." in intervals, "~[" in intervals) == (False, True)
