"""The same answers with and without number and date forms: stage, pairs, benefits and the verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mill_grid as mills
import numpy as np
import pytest
from made_up_grid import PLAIN, Grid, write_grid

from semcal.engine.equivalence import ExactMatch
from semcal.engine.fakes import FakeEquivalence
from semcal.experiment.analyses.claims.other_claims import findings
from semcal.experiment.analyses.grading import (
    ablation_clusters,
    ablation_scores,
    ablations,
    labels_of,
    pair_errors,
)
from semcal.experiment.analyses.grid_scores import GridScores
from semcal.experiment.answer_jobs import TextFormsJob
from semcal.experiment.finished import read_finished
from semcal.experiment.grid_settings import Clustering, Grading
from semcal.metrics import summary
from semcal.steps import WorkerState

SAMPLES = ["20", "twenty", "3 May 1820", "1820-05-03", "the Oak", "Oak", ""]


def job(judge: Any) -> dict[str, Any]:
    row = {
        "id": "q",
        "question": "?",
        "answers": ["20"],
        "samples": SAMPLES,
        "log_likelihoods": [-1.0, -0.1, -3.0, -3.0, -3.0, -3.0, "-inf"],
    }
    work = TextFormsJob((row,), (0.5, 0.5), Clustering(), Grading(), seed=0)
    (found,) = work(WorkerState(equivalence=judge), lambda _: None)
    return found


def test_without_normal_forms_numbers_and_dates_stay_apart_and_texts_meet() -> None:
    found = job(ExactMatch())
    assert found["clusters"] == [[0], [1], [2], [3], [4, 5], [6]]
    assert found["normal_forms"] == ["20", "twenty", "3 may 1820", "18200503", "oak", "oak", ""]


def test_grading_reads_numbers_all_the_same() -> None:
    found = job(ExactMatch())
    assert found["top_cluster"]["L-SC"] == 1
    assert (found["correct"]["L-SC"], found["rule"]["L-SC"]) == (True, "equality")


def test_what_the_nli_model_knows_still_joins() -> None:
    found = job(FakeEquivalence([{"20", "twenty"}, {"3 may 1820", "18200503"}]))
    assert found["clusters"] == [[0, 1], [2, 3], [4, 5], [6]]


def test_different_values_stay_apart_without_normal_forms_as_well() -> None:
    found = job(FakeEquivalence([{"20", "twenty", "18200503"}]))
    assert found["clusters"] == [[0, 1], [2], [3], [4, 5], [6]]


@pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")
def test_where_no_number_is_told_the_stage_changes_nothing(tmp_path: Path) -> None:
    settings = mills.settings(tmp_path, "methods=[Base]", "sampling.counts=[4]", "runs.count=1")
    mills.run(tmp_path, settings)
    folder = tmp_path / "samples" / "one" / "mill"
    rows = [
        [json.loads(line) for line in (folder / name / "run0.jsonl").read_text().splitlines()]
        for name in ("Base", "Base_without_normal_forms")
    ]
    assert [row.pop("candidate") for row in rows[1]] == ["Base without normal forms"] * 11
    expected = [{k: v for k, v in row.items() if k not in ("candidate", "correct_nli")} for row in rows[0]]
    assert rows[1] == expected


def test_sets_without_labelled_pairs_have_none() -> None:
    assert labels_of("mine.jsonl") is None
    knows = labels_of("atlas-rare")
    assert knows is not None
    assert knows("When was Kelor founded?", "1635", "sixteen thirty-five")


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> GridScores:
    grid = Grid(models=("m",), datasets={"d": False}, methods=("Base", "TS"), runs=2, counts=(), n=60)
    return GridScores(read_finished(write_grid(tmp_path_factory.mktemp("run"), grid)))


def _one_town(question: str, a: str, b: str) -> bool | None:
    """A town with its province is that town; towns that end in "us" are not labelled."""
    if a.endswith("us") or b.endswith("us"):
        return None
    return a.partition(",")[0] == b.partition(",")[0]


def test_pairs_are_counted_once_however_often_they_were_drawn(scores: GridScores) -> None:
    for name in ("TS NLL", PLAIN):
        rows = scores.run.rows("m", "d", name)
        found = pair_errors(rows, _one_town)
        for i, row in enumerate(rows):
            texts = sorted(set(row["samples"]))
            where = {row["samples"][j]: k for k, of in enumerate(row["clusters"]) for j in of}
            known = [
                (_one_town("", a, b), where[a] == where[b])
                for n, a in enumerate(texts)
                for b in texts[n + 1 :]
                if _one_town("", a, b) is not None
            ]
            assert found.pairs[i] == len(known)
            assert found.errors[i] == sum(same != together for same, together in known)


def test_metrics_with_and_without_are_those_of_their_rows(scores: GridScores) -> None:
    found = ablation_scores(list(ablations(scores)))
    for row in [row for row in found if row["measure"] == "B-SC"]:
        for arm, name in (("with", "TS NLL"), ("without", PLAIN)):
            rows = scores.run.rows("m", "d", name)
            values = [[one[key]["B-SC"] for one in rows] for key in ("confidence", "correct")]
            assert row[arm] == pytest.approx(summary(*values)[row["metric"]], abs=1e-12)
        sign = -1 if row["metric"] == "ace" else 1
        assert row["benefit"]["value"] == pytest.approx(sign * (row["with"] - row["without"]), abs=1e-12)
    means = {row["metric"]: row["with"] for row in found if row["measure"] is None}
    for metric, mean in means.items():
        values = [row["with"] for row in found if row["metric"] == metric and row["measure"] is not None]
        assert mean == pytest.approx(np.mean(values))


def test_without_labels_the_pairs_are_null(scores: GridScores) -> None:
    (row,) = ablation_clusters(list(ablations(scores)))
    assert (row["pairs"], row["fewer_errors"]) == (None, None)
    assert row["meanings"]["with"] < row["meanings"]["without"]


def test_saved_errors_are_a_share_of_the_labelled_pairs(scores: GridScores) -> None:
    (row,) = ablation_clusters(list(ablations(scores, lambda _: _one_town)))
    pairs = row["pairs"]
    assert (pairs["split"]["with"], pairs["split"]["without"]) == (0, pairs["same"])
    assert pairs["merged"] == {"with": 0, "without": 0}
    share = pairs["same"] / (pairs["same"] + pairs["different"])
    assert row["fewer_errors"]["value"] == pytest.approx(share)
    low, high = row["fewer_errors"]["interval"]
    assert 0 < low < share < high


def test_right_clusters_are_found_to_be_more_right(scores: GridScores) -> None:
    clusters, _ = findings(list(ablations(scores, lambda _: _one_town)))
    assert clusters.verdict == "holds"
    assert clusters.evidence["errors"]["with"] == 0 < clusters.evidence["errors"]["without"]
    assert clusters.evidence["saved"]["interval"][0] > 0


def test_labels_that_tell_each_text_from_every_other_turn_the_verdict(scores: GridScores) -> None:
    clusters, _ = findings(list(ablations(scores, lambda _: lambda _, a, b: a == b)))
    assert clusters.verdict == "does not hold"


def test_without_labels_the_clusters_are_not_judged_and_the_scores_are(scores: GridScores) -> None:
    clusters, found = findings(list(ablations(scores)))
    assert clusters.verdict == "not decidable here"
    assert set(found.evidence) == {"accuracy", "ace", "auroc"}
    ends = [one["interval"] for one in found.evidence.values()]
    gains, loses = any(low > 0 for low, _ in ends), any(high < 0 for _, high in ends)
    assert (gains, loses, found.verdict) == (True, True, "not decidable here")


def test_runs_that_clustered_once_have_no_finding(tmp_path: Path) -> None:
    grid = Grid(models=("m",), datasets={"d": False}, methods=("Base", "TS"), runs=1, counts=(), n=20)
    once = GridScores(read_finished(write_grid(tmp_path, Grid(**{**vars(grid), "plain": False}))))
    twice = list(ablations(once))
    assert (ablation_clusters(twice), findings(twice)) == ([], [])
