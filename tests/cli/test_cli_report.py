"""`semcal report`: everything of a finished run again, from its samples and without a model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from invoking import semcal

from semcal.experiment.report import build

NO_FIGURES = """
import sys
from semcal.experiment.report import build
build.planned_figures = lambda *_: []
from semcal.cli.grid_commands import report
code = report(__import__("pathlib").Path(sys.argv[1]), out=None, json=True)
loaded = [name for name in ("torch", "transformers", "safetensors") if name in sys.modules]
print(code, loaded)
"""


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take most of the time, and have tests of their own."""
    monkeypatch.setattr(build, "planned_figures", lambda *_: [])


def test_a_run_of_the_grid_is_reported_into_its_folder(own_grid: Path, without_figures: None) -> None:
    code, (found,), _ = semcal("report", own_grid, "--json")
    assert code == 0
    assert found["files"] == [str(own_grid / "results.json"), str(own_grid / "report.html")]
    results = json.loads((own_grid / "results.json").read_text())
    assert (results["schema"], results["models"], results["problems"]) == (4, ["alpha-1b"], 0)
    assert (own_grid / "tables" / "03-main-alpha-1b.tex").is_file()


def test_out_writes_elsewhere_and_leaves_the_run_as_it_was(own_grid, tmp_path, without_figures: None) -> None:
    before = sorted(own_grid.rglob("*"))
    code, _, _ = semcal("report", own_grid, "--out", tmp_path / "there", "--json")
    assert code == 0
    written = {path.name for path in (tmp_path / "there").iterdir()}
    assert written == {"results.json", "results.md", "tables", "report.html"}
    assert sorted(own_grid.rglob("*")) == before


def test_no_model_and_no_torch_is_needed(own_grid: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_FIGURES, str(own_grid)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 []"
