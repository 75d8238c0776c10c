"""A report removes the tables and figures of an older one that it no longer makes, and nothing else."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from semcal.errors import StoreError
from semcal.experiment.report.build import MANIFEST, build, renew_manifest
from semcal.experiment.report.report_figures import PlannedFigure


def made(folder: Path, *names: str) -> list[Path]:
    paths = [folder / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)
    return paths


def test_files_that_are_no_longer_made_are_removed_and_no_others(tmp_path: Path) -> None:
    renew_manifest(tmp_path, made(tmp_path, "tables/1.md", "tables/2.md", "figures/a.png", "figures/b.png"))
    made(tmp_path, "figures/mine.png", "tables/notes.md")
    (tmp_path / "figures" / "b.png").write_text("edited")
    removed = renew_manifest(tmp_path, made(tmp_path, "tables/1.md"))
    assert removed == [tmp_path / "tables/2.md", tmp_path / "figures/a.png"]
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["figures/b.png", "figures/mine.png", MANIFEST, "tables/1.md", "tables/notes.md"]
    assert list(json.loads((tmp_path / MANIFEST).read_text())["files"]) == ["tables/1.md"]


def test_a_report_without_a_list_removes_nothing(tmp_path: Path) -> None:
    made(tmp_path, "figures/old.png")
    assert renew_manifest(tmp_path, made(tmp_path, "tables/1.md")) == []
    assert (tmp_path / "figures/old.png").exists()


@pytest.mark.parametrize(
    "name", ["../letter.txt", "figures/../../letter.txt", "/letter.txt", "figures/..", "samples/x"]
)
def test_a_list_that_names_other_folders_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / MANIFEST).write_text(json.dumps({"files": {name: "0"}}))
    with pytest.raises(StoreError, match=MANIFEST):
        renew_manifest(tmp_path, [])


def test_a_damaged_list_is_named(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(StoreError, match=MANIFEST):
        renew_manifest(tmp_path, [])


def test_a_figure_goes_when_the_report_has_it_no_more(
    analysed_grid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(*names: str) -> None:
        figures = [PlannedFigure("3", name, (), partial(Figure, (1, 1))) for name in names]
        monkeypatch.setattr("semcal.experiment.report.build.planned_figures", lambda *_: figures)
        build(analysed_grid, tmp_path)

    shutil.copy(analysed_grid / "results.json", tmp_path)
    drawn("figure-03", "figure-06")
    (tmp_path / "figures" / "mine.png").write_text("mine")
    drawn("figure-03")
    left = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert left == ["figure-03.pdf", "figure-03.png", "mine.png"]
    assert (tmp_path / "tables" / "12-audit.csv").is_file()
