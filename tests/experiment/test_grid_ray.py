"""A grid on a local Ray cluster: the bytes of the serial run, also when a worker is killed."""

from __future__ import annotations

import os
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import mill_grid as mills
import pytest

from semcal.experiment import ray_executor
from semcal.experiment.grid_settings import Model
from semcal.experiment.grid_steps import IdentifyStep
from semcal.experiment.ray_executor import RayExecutor
from semcal.models.prompting import PromptConfig
from semcal.steps import Stage, StageJob

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
    with RayExecutor("local", partial(mills.mortal_state, folder), n_workers=2) as executor:
        mills.run(folder, settings, executor=executor)
        assert executor.retries >= 1
    assert (folder / "killed").exists()
    assert mills.contents(folder) == mills.contents(tmp_path / "serial")


MILL = Model(name="one", path="one")


def job_of(step: Any) -> StageJob:
    return StageJob(Stage((step,), models=(MILL, "fake")), ())


def test_a_task_gives_the_rows_of_the_job_and_what_they_cost(tmp_path: Path) -> None:
    job = job_of(IdentifyStep({"mill": PromptConfig()}))
    outcome = ray_executor.do(
        pickle.dumps(partial(mills.state_of, tmp_path)), str(Path.cwd()), pickle.dumps(job)
    )
    assert outcome.error is None
    assert outcome.value == job(mills.state_of(tmp_path), lambda _: None)
    assert (outcome.warnings, outcome.seconds >= 0, outcome.peak_mb > 10) == ((), True, True)
