"""What README shows works as it stands there."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer

import semcal
from semcal.cli.app import app
from tools import reference_pages

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)


def test_the_example_in_the_readme_is_what_the_program_says() -> None:
    stored = semcal.score("real", progress=False)
    results = semcal.score("real", calibration=stored.calibrate(risk=0.2), progress=False)
    answers = {row["question"]: answer for row, answer in zip(results.rows, results, strict=True)}
    shown = re.findall(r"^\| (.*\?) \| .* \| ([\d.]+) \| ([\d.]+) \| (\w+) \|$", README, re.MULTILINE)
    assert {decision for *_, decision in shown} == {"answer", "abstain"}
    for question, share, probability, decision in shown:
        answer = answers[question]
        assert f"{answer.score:.1f}" == share
        assert f"{answer.confidence:.2f}" == probability
        assert answer.abstained == (decision == "abstain")


def test_every_page_and_heading_that_the_docs_link_to_is_there() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    links = [
        (page, *link)
        for page in pages
        for link in re.findall(r"\]\((?!https?://)([^)#\s]*)#?([^)\s]*)\)", page.read_text(encoding="utf-8"))
    ]
    assert len(links) > 100
    headings = {page: headings_of(page) for page in pages}
    for page, file, heading in links:
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{page.name}: {file}"
        assert not heading or heading in headings[target], f"{page.name}: {file}#{heading}"


def headings_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_the_map_names_modules_that_are_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    modules = re.findall(r"`((?:\w+/)*\w+\.py)`", page)
    assert len(modules) > 40
    assert [module for module in modules if not (ROOT / "src/semcal" / module).exists()] == []


def test_the_pages_that_come_from_the_program_are_not_stale() -> None:
    assert reference_pages.stale() == []


def test_python_that_the_docs_show_imports_what_is_there() -> None:
    found = [
        (page.name, node.module, name.name)
        for page in (ROOT / "docs").rglob("*.md")
        for code in blocks("python", page.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ImportFrom) and node.module
        for name in node.names
    ]
    ours = [one for one in found if one[1].startswith("semcal")]
    assert len(ours) > 10
    assert [one for one in ours if not is_there(one[1], one[2])] == []


def is_there(module: str, name: str) -> bool:
    """Whether a module has the name, or a package a module of the name."""
    return hasattr(import_module(module), name) or find_spec(f"{module}.{name}") is not None


def test_options_that_the_docs_show_are_there() -> None:
    group: Any = typer.main.get_command(app)
    options = {
        name: {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {"--help"}
        for name, command in group.commands.items()
    }
    shown = [
        (page.name, *call)
        for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        for language in ("bash", "text", "console")
        for block in blocks(language, page.read_text(encoding="utf-8"))
        for call in re.findall(r"\bsemcal ([a-z]+)((?: [^|;#>\n]*)?)", block.replace("\\\n", " "))
    ]
    assert len(shown) > 50
    for page, command, words in shown:
        assert command in options, f"{page}: semcal {command}"
        assert set(re.findall(r"(?<!\S)--[a-z-]+", words)) <= options[command], f"{page}: {command}{words}"
