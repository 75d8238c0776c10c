"""The notebooks run, print what they show, and both files of each hold the same."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tools.notebooks import FOLDER

matplotlib = pytest.importorskip("matplotlib")
NAMES = ("calibrate", "paper", "score")


def cells(name: str) -> list[tuple[str, str]]:
    """The cells of a file in the percent format, markdown without its comment signs."""
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    _header, *parts = re.split(r"^# %%(.*)\n", text, flags=re.MULTILINE)
    found = []
    for kind, body in zip(parts[::2], parts[1::2]):
        markdown = kind.strip() == "[markdown]"
        body = re.sub(r"^# ?", "", body, flags=re.MULTILINE) if markdown else body
        found.append(("markdown" if markdown else "code", body.strip("\n")))
    return found


def stored(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    return found


def assert_alike(found: str, shown: str) -> None:
    """Compare the numbers, which may differ by one other sample on another processor, but not the wording."""
    numbers = [sorted(map(float, re.findall(r"\d+(?:\.\d+)?", text))) for text in (found, shown)]
    assert numbers[0] == pytest.approx(numbers[1], rel=0.03, abs=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_both_files_of_a_notebook_have_the_same_cells(name: str) -> None:
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in stored(name)] == cells(name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
def test_a_notebook_runs_and_prints_what_it_shows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    matplotlib.use("Agg")
    shutil.copy(FOLDER / "samples.jsonl", tmp_path)
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {}
    for number, ((kind, source), cell) in enumerate(zip(cells(name), stored(name))):
        if kind == "code":
            exec(compile(source, f"{name} {number}", "exec"), known)
            printed = ["".join(one["text"]) for one in cell["outputs"] if one.get("name") == "stdout"]
            assert_alike(capsys.readouterr().out, "".join(printed))
    from matplotlib import pyplot

    assert pyplot.get_fignums()
    pyplot.close("all")
