"""`semcal run` and `status` as a user types them, on a world without weights."""

from __future__ import annotations

import json
import weakref
from functools import partial
from pathlib import Path

import mill_grid as mills
import pytest
from invoking import semcal

from semcal.cli import grid_commands
from semcal.experiment.grid_settings import Model
from semcal.experiment.grid_steps import GridState
from semcal.yaml_files import yaml_text

pytestmark = pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")


def configured(folder: Path) -> Path:
    """A file of settings beside its data; its models are named like those that come with the package."""
    settings = mills.settings(folder, "methods=[Base, TS]", "sampling.counts=[6]")
    tree = {**settings.tree(), "models": [{"name": "one", "path": "atlas"}], "equivalence": "atlas"}
    path = folder / "grid.yaml"
    path.write_text(yaml_text(tree))
    return path


@pytest.fixture(autouse=True)
def without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def state(folder: Path, **_: object):
        return mills.state_of(folder)

    monkeypatch.setattr("semcal.experiment.grid_steps.open_grid_state", state)
    monkeypatch.setattr(grid_commands, "_report", lambda *_: None)


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    return configured(tmp_path_factory.mktemp("config"))


def test_no_model_is_held_while_the_report_is_made(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, held = [], []

    def load(model: Model):
        found = mills.model_of(model)
        loaded.append(weakref.ref(found))
        return found

    def state(folder: Path, **_: object) -> GridState:
        return GridState(folder, load, partial(mills.equivalence_of, folder))

    monkeypatch.setattr("semcal.experiment.grid_steps.open_grid_state", state)
    monkeypatch.setattr(grid_commands, "_report", lambda *_: held.extend(one() for one in loaded))
    semcal("run", config, "--json", "--out", tmp_path / "run", "--workers", 1)
    assert held == [None]


def test_a_run_ends_complete_and_status_says_so(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, (told,), _ = semcal("run", config, "--json", "--out", out, "--workers", 1)
    assert (code, told["complete"], told["problems"]) == (0, True, 0)
    environment = json.loads((out / "environment.json").read_text())
    stages = {"sample", "cluster", "grade", "select", "measure"}
    assert stages <= set(environment["cpu_seconds"])
    assert stages <= set(environment["peak_memory_mb_by_stage"])
    code, (state,), _ = semcal("status", out)
    assert (code, state["complete"], state["stages"]["sample"]) == (0, True, [12, 12])
    block = next((out / "blocks" / "cluster").iterdir())
    block.write_text(block.read_text()[:-5])
    code, (state,), stderr = semcal("status", out)
    assert (code, state["stages"]["cluster"]) == (1, [11, 12])
    assert block.name in stderr
    code, _, stderr = semcal("run", config, "--json", "--out", out, "--workers", 1)
    assert (code, block.name in stderr) == (1, True)
    block.unlink()
    code, _, _ = semcal("run", config, "--json", "--out", out, "--workers", 1, "-q")
    assert (code, semcal("status", out)[0]) == (0, 0)


def test_bad_rows_are_told_and_the_exit_code_says_so(tmp_path: Path) -> None:
    config = configured(tmp_path)
    data = tmp_path / "mill.jsonl"
    data.write_bytes(data.read_bytes() + b'{"id": "x", "question": ""}\nno JSON\n')
    code, (told,), stderr = semcal(
        "run", config, "--json", "--out", tmp_path / "run", "--workers", 1, "--set", "methods=[Base]"
    )
    assert (code, told["complete"], told["problems"]) == (1, True, 2)
    assert "left out: mill, line 41 (id 'x'): " in stderr
    assert "left out: mill, line 42: not JSON" in stderr


def test_wrong_usage_is_named(config: Path, tmp_path: Path) -> None:
    code, _, stderr = semcal("run", config, "--json", "--out", tmp_path / "run", "--set", "samplin.m=3")
    assert (code, "samplin" in stderr) == (2, True)


def test_fresh_leaves_a_folder_of_others_alone(config: Path, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    for more, said in ((), "is not empty"), (("--overwrite",), "settings.yaml"):
        code, _, stderr = semcal("run", config, "--json", "--out", tmp_path, "--fresh", *more)
        assert (code, said in stderr) == (2, True)
    assert (tmp_path / "letter.txt").exists()
    assert semcal("status", tmp_path)[0] == 2


def test_a_dry_run_writes_nothing(config: Path, tmp_path: Path) -> None:
    code, (plan,), _ = semcal("run", config, "--json", "--out", tmp_path / "run", "--dry-run", "--json")
    assert (code, plan["jobs"]["sample"], plan["questions"]["test"]) == (0, 12, 22)
    assert not (tmp_path / "run").exists()
