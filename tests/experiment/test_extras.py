"""What a grid can do without, and what it does on demand: beams, entailment, transfer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mill_grid as mills
import pytest

from semcal.demo.paths import settings_file
from semcal.experiment.analyses import analyse
from semcal.experiment.finished import state_of
from semcal.experiment.grid_plan import expected_blocks
from semcal.experiment.grid_settings import Fitting, read_settings
from semcal.experiment.report.report_tables import report_tables

pytestmark = pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")

ONE_EACH = ("methods=[Base, TS]", "sampling.counts_runs=0", "fitting.losses=[[NLL, null]]")
ONE_EACH += ("selection.measure_alphas=[0.5]", "runs.count=1")
WITHOUT = (
    *("extras.beams=false", "extras.entailment=false", "extras.transfer=false"),
    "extras.token_losses=false",
)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all extras."""
    folder = tmp_path_factory.mktemp("full")
    mills.run(folder, mills.settings(folder, *ONE_EACH))
    return folder


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run without the extras."""
    folder = tmp_path_factory.mktemp("bare")
    mills.run(folder, mills.settings(folder, *ONE_EACH, *WITHOUT))
    return folder


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_without_extras_only_the_scores_of_the_methods_are_made(bare: Path) -> None:
    stages = {path.name for path in (bare / "blocks").iterdir()}
    assert stages == {"check", "features", "fit", "sample", "greedy", "cluster", "grade", "measure"}
    assert state_of(bare).complete
    assert {path.parent.name for path in bare.glob("samples/one/mill/*/*")} == {"Base", "TS_NLL"}
    assert len(list((bare / "blocks/sample").iterdir())) == state_of(bare).total("sample")  # no validation


def test_rows_are_those_of_a_run_with_all_extras_less_what_these_add(full: Path, bare: Path) -> None:
    added = {"beam", "beam_correct", "correct_nli"}
    for path in bare.glob("samples/*/*/*/*.jsonl"):
        of_full = rows(full / path.relative_to(bare))
        assert rows(path) == [{k: v for k, v in row.items() if k not in added} for row in of_full]


def test_what_was_not_done_is_null_or_empty_and_the_tables_can_be_made(bare: Path, tmp_path: Path) -> None:
    results = analyse(bare, tmp_path)
    analyses = results["analyses"]
    assert {row["beam"] for row in analyses["base_accuracies"]} == {None}
    assert not any(analyses[name] for name in ("agreement", "transfer", "losses"))
    fits = {row["candidate"]: row for row in analyses["fits"]}
    assert fits["TS NLL"]["temperature"] > 0
    assert fits["TS NLL"]["validation_nll"] is None
    assert {"03-main-one", "fits"} <= {table.name for table in report_tables(results)}


def test_trainings_on_few_questions_go_as_far_as_on_many() -> None:
    assert Fitting().learning_rate_for(2000) is None
    assert Fitting(as_many_as=60_000).learning_rate_for(2000) == pytest.approx(3e-4)
    assert Fitting(as_many_as=60_000, learning_rate=1e-4).learning_rate_for(120_000) == 1e-4


def test_the_settings_of_the_demo_ask_for_nothing_that_its_methods_do_not_need() -> None:
    settings = read_settings(settings_file(), limit=30)
    blocks = expected_blocks(settings, {"calibration_train": 30, "validation": 30, "test": 30})
    assert blocks == {
        "check": 1,
        "features": 1,
        "fit": 1,
        "sample": 2,
        "cluster": 2,
        "grade": 1,
        "greedy": 1,
        "calibrate": 1,
        "apply": 1,
        "measure": 1,
    }
