"""Tables in other programs: nothing is computed, linked or run, and what was written is what is read."""

from __future__ import annotations

import csv
import io

import pytest
from markdown_it import MarkdownIt

from semcal.cli.figures import figure_lines
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
NUMBERS = (
    "-0.061",
    "−0.061",
    "+.030",
    "-1e-5",
    "-5 %",
    "-.1 to .2",
    "-0.1–0.2",
    "+0.030 ± 0.012",
    "−.1, .2",
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


@pytest.mark.parametrize("text", [*NUMBERS, *PLAIN])
def test_numbers_intervals_and_other_text_stay_as_they_are_in_csv(text: str) -> None:
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
