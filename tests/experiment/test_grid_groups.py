"""A run on questions in groups: parts that share none, rows that name theirs, intervals that draw them."""

from __future__ import annotations

import json
from pathlib import Path

import mill_grid as mills
import pytest

from semcal.errors import FitError
from semcal.experiment.analyses.answer_analyses import splits
from semcal.experiment.analyses.grid_scores import CellScores
from semcal.experiment.finished import read_finished
from semcal.experiment.grid_plan import load_parts
from semcal.experiment.report.report_tables import resampled_groups
from semcal.metrics import bootstrap

pytestmark = pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")
SMALL = ("methods=[Base, SE]", "sampling.counts=[]", "runs.count=1")


def grouped(folder: Path, *overrides: str):
    """Settings of a grid whose data set `mill` has groups of three questions."""
    chosen = mills.settings(folder, *SMALL, *overrides)
    path = Path(chosen.datasets[0].source)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row | {"group": n // 3}) + "\n" for n, row in enumerate(rows)))
    return chosen


def test_a_run_keeps_groups_apart_and_its_intervals_draw_them(tmp_path: Path) -> None:
    chosen = grouped(tmp_path)
    parts = load_parts(chosen.datasets[0])
    groups = [
        {q.extra["group"] for q in part} for part in (parts.calibration_train, parts.validation, parts.test)
    ]
    assert sum(map(len, groups)) == len(set.union(*groups))
    mills.run(tmp_path, chosen)
    run = read_finished(tmp_path)
    rows = run.rows("one", "mill", "Base", 0)
    assert [row["group"] for row in rows] == [q.extra["group"] for q in parts.test]
    assert all("group" not in row for row in run.rows("one", "barn", "Base", 0))
    pair, other = (CellScores(run, "one", name).pair for name in ("mill", "barn"))
    assert other.groups is None
    cell = pair.arrays["Base", "E-SC"]
    expected = bootstrap(
        cell.confidence,
        cell.correct,
        metrics=["brier"],
        groups=[row["group"] for row in rows],
        resamples=run.settings.evaluation.resamples,
        seed=pair.seed,  # type: ignore[arg-type]
    )["brier"]
    found = pair.over_runs(("Base", "E-SC"), "brier")["interval"]
    assert found == pytest.approx([expected.low, expected.high], abs=1e-9)
    (mill, barn) = splits(run)
    assert (mill["test_groups"], "test_groups" in barn) == (len(groups[2]), False)
    assert resampled_groups({"analyses": {"splits": [mill, barn]}}) == (
        f"Questions of one passage or group are resampled together: mill ({len(groups[2])} groups)"
    )
    assert resampled_groups({"analyses": {"splits": [barn]}}) == ""


def test_a_run_with_too_few_questions_to_fit_to_is_refused_before_a_model_is_loaded(
    tmp_path: Path,
) -> None:
    chosen = mills.settings(tmp_path, "methods=[Base, TS]", "datasets.0.calibration_train=4")
    with pytest.raises(FitError, match="calibration_train"):
        mills.run(tmp_path, chosen)
    assert not (tmp_path / "blocks").exists()
