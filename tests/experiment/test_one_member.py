"""SE_conf by one member of the selected meaning, which has as many chances to be right as a greedy answer."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_grid import Grid, write_grid
from sklearn.metrics import roc_auc_score

from semcal.errors import StoreError
from semcal.experiment.analyses.claims.score_claims import variants_claim
from semcal.experiment.analyses.columns import one_member_correct
from semcal.experiment.analyses.grid_scores import GridScores
from semcal.experiment.analyses.scores_by_method import entropy
from semcal.experiment.finished import FinishedRun, read_finished
from semcal.experiment.grid_settings import run_seed
from semcal.qa.grading import RuleGrader
from tests.json_rows import grade_clusters

MEASURE = "L-SC"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Every third draw is a right answer, the others are not, whatever meaning they stand in."""
    grid = Grid(models=("m",), datasets={"d": False}, methods=("Base", "TS"), runs=2, n=60, counts=())
    folder = write_grid(tmp_path_factory.mktemp("mixed"), grid)
    for path in folder.glob("samples/*/*/*/*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for k, row in enumerate(rows):
            row["samples"] = [row["answers"][0] if (i + k) % 3 == 0 else "nowhere" for i in range(10)]
            seed = run_seed(0, row["run"])
            verdicts = [one.correct for one in grade_clusters(row, grader=RuleGrader(), seed=seed, limit=4)]
            row["correct"] = {name: verdicts[top] for name, top in row["top_cluster"].items()}
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_finished(folder)


def first_drawn(row: dict[str, Any], seed: int) -> int:
    def rank(member: int) -> bytes:
        return blake2b(repr((seed, row["id"], None, member)).encode(), digest_size=16).digest()

    return min(row["clusters"][row["top_cluster"][MEASURE]], key=rank)


def test_the_member_is_the_first_of_those_that_were_drawn_for_grading(run: FinishedRun) -> None:
    found = one_member_correct(run, "m", "d", "Base")[MEASURE]
    for number in (0, 1):
        rows = run.rows("m", "d", "Base", number)
        drawn = [first_drawn(row, run_seed(0, number)) for row in rows]
        assert found[number].tolist() == [float((i + k) % 3 == 0) for k, i in enumerate(drawn)]


def test_one_member_is_right_where_any_of_four_is_and_often_not(run: FinishedRun) -> None:
    cell = GridScores(run).pair("m", "d").arrays["Base", MEASURE]
    assert cell.one_member_correct is not None
    assert (cell.one_member_correct <= cell.correct).all()
    assert cell.correct.mean() - cell.one_member_correct.mean() > 0.2


def test_the_auroc_by_one_member_stands_beside_the_others(run: FinishedRun) -> None:
    scores = GridScores(run)
    (row,) = [r for r in entropy(scores) if (r["method"], r["measure"]) == ("Base", MEASURE)]
    correct = one_member_correct(run, "m", "d", "Base")[MEASURE]
    expected = [
        roc_auc_score(
            right, [-one["semantic_entropy"][MEASURE] for one in run.rows("m", "d", "Base", number)]
        )
        for number, right in enumerate(correct)
    ]
    assert row["SE_conf_one_member"]["runs"] == pytest.approx(expected, abs=1e-12)


def test_the_claim_states_both_comparisons_and_is_judged_by_the_papers(run: FinishedRun) -> None:
    claim = variants_claim(GridScores(run))
    one = claim.evidence["one_member"]
    assert f"SE_conf (one member) less SE_vanilla is {one['value']:+.3f}" in claim.because
    assert {*claim.evidence["one_member_by_method"]} == {"Base", "TS"}
    values = [
        row["SE_conf_one_member"]["mean"] - row["SE_vanilla"]["mean"] for row in entropy(GridScores(run))
    ]
    assert one["value"] == pytest.approx(np.mean(values), abs=1e-12)
    assert "any of up to 4 of its members" in claim.rule


def test_the_most_likely_member_is_the_one_where_it_is_graded_in_any_case(run: FinishedRun) -> None:
    run.settings["grading"]["choice"] = "likeliest"  # type: ignore[index]
    try:
        found = one_member_correct(run, "m", "d", "Base")[MEASURE][0]
    finally:
        run.settings["grading"]["choice"] = "random"  # type: ignore[index]
    for k, (row, right) in enumerate(zip(run.rows("m", "d", "Base"), found)):
        cluster = row["clusters"][row["top_cluster"][MEASURE]]
        likeliest = max(cluster, key=row["log_likelihoods"].__getitem__)
        assert right == float((likeliest + k) % 3 == 0)


def test_a_row_that_cannot_be_graded_is_named(tmp_path: Path) -> None:
    grid = Grid(models=("m",), datasets={"d": False}, methods=("Base",), runs=1, n=3, counts=())
    folder = write_grid(tmp_path, grid)
    path = folder / "samples/m/d/Base/run0.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[1]["top_cluster"][MEASURE] = 99
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(StoreError, match="question 'd-0001' of a stored file cannot be graded"):
        one_member_correct(read_finished(folder), "m", "d", "Base")
