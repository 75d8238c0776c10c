"""A grid on a local Ray cluster: the bytes of the serial run, also when a worker is killed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import mill_grid as mills
import pytest

from semcal.errors import StoreError
from semcal.experiment import ray_executor
from semcal.experiment.grid_jobs import GridJob
from semcal.experiment.ray_executor import RayExecutor

SMALL = ("methods=[Base, TS]", "sampling.counts=[6]", "fitting.losses=[[NLL, null]]")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_two_workers_of_which_one_is_killed_give_the_files_of_the_serial_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    settings = mills.settings(tmp_path, *SMALL)
    mills.run(tmp_path / "serial", settings)
    folder = tmp_path / "ray"
    folder.mkdir()
    with RayExecutor("local", folder, count=2, open="mill_grid:mortal_shelf") as executor:
        assert mills.run(folder, settings, executor=executor).complete
        assert executor.retries >= 1
    assert (folder / "killed").exists()
    assert mills.contents(folder) == mills.contents(tmp_path / "serial")


def ask(folder: Path, job: GridJob) -> dict:
    """What a process of the cluster answers, here in this one."""
    job_of = {"kind": job.kind, "inputs": job.inputs, "unless": job.unless}
    asked = {"open": "mill_grid:shelf_of", "with": {"folder": str(folder)}, "directory": str(Path.cwd())}
    return json.loads(ray_executor.do(json.dumps({**asked, "job": job_of})))


def test_a_task_is_text_to_text_and_gives_the_lines_of_the_job(tmp_path: Path) -> None:
    model = {"name": "one", "path": "one"}
    inputs = {"model": model, "equivalence": "fake", "few_shot": {"mill": []}}
    job = GridJob("identify", json.dumps(inputs))
    answer = ask(tmp_path, job)
    assert answer["lines"] == job(mills.shelf_of(tmp_path), lambda _: None)
    assert (answer["warnings"], answer["seconds"] >= 0, answer["peak_mb"] > 10) == ({}, True, True)


def test_the_error_of_a_task_comes_back_as_its_own_class(tmp_path: Path) -> None:
    block = tmp_path / "block.jsonl"
    block.write_text("cut short")
    outcome = ray_executor._outcome(ask(tmp_path, GridJob("grade", "{}", "block.jsonl")))
    with pytest.raises(StoreError, match=r"block\.jsonl is damaged"):
        outcome.get()
    with pytest.raises(RuntimeError, match="KeyError"):
        ray_executor._outcome(ask(tmp_path, GridJob("grade", "{}"))).get()
