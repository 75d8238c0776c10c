"""Tables as LaTeX: what a compiler would stumble over is looked for in every table of a run."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from semcal.experiment.finished import read_finished
from semcal.experiment.report.build import write_tables
from semcal.experiment.report.report_tables import report_tables
from semcal.experiment.report.tables import Column, Table, TableCell, latex, latex_text, table_latex

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


@pytest.mark.parametrize("name", ["a_b & c% $d$ #1 {e} ~ ^ \\", "α × β ≥ …"])
def test_odd_names_are_latex_text(name: str) -> None:
    text = latex(
        Table(name and "t", name, (Column(name), Column(name, name)), ((TableCell(name), TableCell(name)),))
    )
    check_rows(text)
    assert text.count(latex_text(name)) == 6


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


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_all_tables_of_a_run_are_typeset_without_an_error(grid_folder, grid_results, tmp_path: Path) -> None:
    """In the two columns of a paper, where none is higher than a page."""
    write_tables(read_finished(grid_folder), grid_results, tmp_path)
    tables = sorted(path.stem for path in tmp_path.glob("*.tex"))
    packages = "".join(rf"\usepackage{{{name}}}" for name in ("booktabs", "adjustbox"))
    body = "\n".join(rf"\input{{{name}}}\clearpage" for name in tables)
    text = rf"\documentclass[twocolumn]{{article}}{packages}\begin{{document}}{body}\end{{document}}"
    (tmp_path / "all.tex").write_text(text)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120, check=False)
    said = done.stdout.decode(errors="replace")
    if "adjustbox.sty' not found" in said:
        pytest.skip("LaTeX has no package adjustbox")
    assert done.returncode == 0, said[-2000:]
    assert "too large for page" not in said
    assert (tmp_path / "all.pdf").stat().st_size > 10_000
