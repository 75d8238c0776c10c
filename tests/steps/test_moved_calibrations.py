"""Calibrations that are moved to new data with few labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit, logit

import semcal
from semcal import metrics
from semcal.calibration.calibration import Calibration
from semcal.calibration.samples import measure_samples
from semcal.calibration.watch import find_shift
from semcal.errors import FitError, SemcalWarning, UsageError
from semcal.metrics.probability_maps import NEAR_ONE, Move
from semcal.models.clustering import ClusterConfig
from semcal.models.equivalence import ExactMatch
from semcal.rows import Row
from tests.cli.invoking import semcal as command
from tests.cli.invoking import write

pytestmark = pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")
Json = dict[str, Any]
EXACT = ClusterConfig(ExactMatch())


def scored(n: int, seed: int, shift: float = 0.0, slope: float = 2.0) -> list[Json]:
    """Rows with a score whose logit of being right is shift + slope · score."""
    rng = np.random.default_rng(seed)
    score = rng.normal(size=n)
    correct = rng.random(n) < expit(shift + slope * score)
    return [
        {"id": str(k), "score": s, "correct": c}
        for k, (s, c) in enumerate(zip(score.tolist(), correct.tolist()))
    ]


def sampled(n: int, seed: int, accuracy: float) -> list[Json]:
    """Rows of ten samples; an answer of share s is right with a probability that rises in s."""
    rng, rows = np.random.default_rng(seed), []
    for k in range(n):
        agree = int(rng.integers(3, 11))
        right = rng.random() < accuracy * agree / 10
        samples = ["Ana"] * agree + [f"Bo {j}" for j in range(10 - agree)]
        rows.append({"id": str(k), "question": f"Who built mill {seed} {k}?", "samples": samples})
        rows[-1]["answers"] = ["Ana" if right else "Di"]
    return rows


def ace(calibration: Calibration, rows: list[Json]) -> float:
    p = [answer.probability for answer in calibration.apply(rows)]
    return float(metrics.ace(p, [row["correct"] for row in rows]))


def test_a_move_is_the_penalized_maximum_likelihood_before_cap_and_floor() -> None:
    rng = np.random.default_rng(0)
    p = rng.uniform(0.05, 0.95, 80)
    correct = (rng.random(80) < expit(0.5 * logit(p) - 1)).astype(float)

    def loss(theta: np.ndarray) -> float:
        score = theta[0] + theta[1] * logit(p)
        prior = NEAR_ONE * np.log(theta[1]) ** 2 / 2
        return float((np.logaddexp(0, score) - correct * score).sum() + prior)

    a, b = minimize(loss, [0, 1], tol=1e-12).x
    move = Move.of(p, correct)
    assert (move.intercept, move.slope) == (pytest.approx(a, abs=1e-4), pytest.approx(b, abs=1e-4))
    bare = Move(move.intercept, move.slope)
    assert np.allclose(bare.apply(p), expit(a + b * logit(p)), atol=1e-4)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40),
    st.lists(st.floats(0, 1), min_size=2, max_size=20),
)
@settings(max_examples=60, deadline=None)
def test_a_move_keeps_the_order_and_stays_between_0_and_1(
    labels: list[tuple[float, bool]], others: list[float]
) -> None:
    p, correct = (np.array(column, float) for column in zip(*labels))
    moved = Move.of(p, correct).apply(np.sort(others))
    assert ((moved > 0) & (moved < 1)).all()
    assert (np.diff(moved) >= -1e-12).all()


def test_the_moved_probability_holds_on_the_new_data() -> None:
    calibration = semcal.Calibrator().fit_rows(scored(1000, 0))
    new = scored(5000, 2, shift=-1.5, slope=1.0)
    moved = [semcal.Calibrator().move(calibration, scored(100, seed, -1.5, 1.0)) for seed in range(3, 8)]
    assert ace(calibration, new) > 0.25
    assert np.mean([ace(one, new) for one in moved]) < 0.06


def test_the_report_compares_the_old_map_the_moved_one_and_learning_from_scratch() -> None:
    calibration = semcal.Calibrator(risks=0.3).fit_rows(scored(1000, 0))
    moved = semcal.Calibrator().move(calibration, scored(100, 1, shift=-1.5))
    report = moved.report
    assert report.moved.calibration == calibration.id
    assert (report.n, moved.threshold, moved.id == calibration.id) == (100, None, False)
    assert report.moved.unmoved["ace"] > report.calibrated["ace"]
    assert report.calibrated["gain"] > report.moved.unmoved["gain"]
    for figures in (report.calibrated, report.moved.unmoved, report.moved.scratch):
        assert {"ace", "ace_floor", "gain", "auroc"} <= figures.keys()
    assert len(moved.labeled.out_of_fold) == 100


def test_a_calibration_of_samples_is_moved_and_saved_and_moved_again(tmp_path: Path) -> None:
    calibration = semcal.Calibrator().fit_rows(sampled(300, 0, accuracy=0.9), cluster=EXACT)
    few = sampled(100, 1, accuracy=0.4)
    moved = semcal.Calibrator().move(calibration, few)
    figures = moved.report.calibrated
    assert figures["mean_confidence"] == pytest.approx(figures["accuracy"], abs=0.03)
    assert moved.report.moved.unmoved["mean_confidence"] > figures["accuracy"] + 0.2
    moved.save_pretrained(tmp_path)
    loaded = Calibration.from_pretrained(tmp_path)
    assert (loaded, loaded.id) == (moved, moved.id)
    again = semcal.Calibrator().move(loaded, sampled(200, 0, accuracy=0.9))
    assert len(again.moves) == 2
    figures = again.report.calibrated
    assert figures["mean_confidence"] == pytest.approx(figures["accuracy"], abs=0.03)


def test_commands_move_a_calibration(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    rows = write(tmp_path / "rows.jsonl", sampled(300, 0, accuracy=0.9))
    command("calibrate", rows, "--equivalence", "exact", "--out", old)
    few = write(tmp_path / "few.jsonl", [*sampled(60, 1, accuracy=0.4), {"id": "bad"}])
    code, (report,), stderr = command("calibrate", few, "--from", old, "--out", new)
    assert (code, report["n"]) == (1, 60)
    assert "'bad'" in stderr
    moved = Calibration.from_pretrained(new)
    assert report["moved"]["calibration"] == Calibration.from_pretrained(old).id
    assert report["moved"]["slope"] == moved.moves[0].slope
    code, measured, _ = command("cluster", few, "--equivalence", "exact", "--out", tmp_path / "c.jsonl")
    code, measured, _ = command("measure", tmp_path / "c.jsonl", "--calibration", new)
    assert np.mean([row["probability"] for row in measured]) == pytest.approx(0.26, abs=0.1)


@pytest.mark.parametrize("option", ["--m=5", "--add=log"])
def test_options_that_the_calibration_sets_are_refused_by_name(tmp_path: Path, option: str) -> None:
    semcal.Calibrator().fit_rows(scored(60, 0)).save_pretrained(tmp_path / "old")
    rows = write(tmp_path / "rows.jsonl", scored(60, 1))
    code, lines, stderr = command(
        "calibrate", rows, "--from", tmp_path / "old", option, "--out", tmp_path / "new"
    )
    assert (code, lines) == (2, [])
    assert option.partition("=")[0] in stderr


@pytest.mark.parametrize(
    "options",
    [{"answer": "greedy"}, {"features": "a"}, {"signals": "p-true"}, {"score": "b"}, {"m_curve": True}],
)
def test_a_move_takes_no_option_that_the_calibration_sets(options: dict[str, Any]) -> None:
    calibration = semcal.Calibrator().fit_rows(scored(60, 0))
    with pytest.raises(UsageError, match=f"^{next(iter(options))}: "):
        semcal.Calibrator(**options).move(calibration, scored(60, 1))


def test_wrong_moves_are_refused_and_few_labels_are_warned_of(tmp_path: Path) -> None:
    calibration = semcal.Calibrator().fit_rows(scored(200, 0))
    with pytest.raises(FitError):
        semcal.Calibrator().move(calibration, scored(4, 1))
    with pytest.warns(SemcalWarning, match="12 labels"):
        semcal.Calibrator().move(calibration, scored(12, 1))
    calibration.save_pretrained(tmp_path)
    rows = write(tmp_path / "rows.jsonl", scored(60, 1))
    code, _, stderr = command("calibrate", rows, "--from", tmp_path, "--out", tmp_path, "--overwrite")
    assert (code, "--out" in stderr) == (2, True)
    row = {**sampled(1, 1, 0.5)[0], "sampled_by": {"m": 5}}
    of_samples = semcal.Calibrator().fit_rows(sampled(60, 0, accuracy=0.9), cluster=EXACT)
    with pytest.raises(UsageError, match="m 5"):
        semcal.Calibrator().move(of_samples, [*sampled(20, 2, 0.5), {**row, "id": "x"}])


def test_a_move_that_harms_is_named_and_a_column_with_one_value_too() -> None:
    calibration = semcal.Calibrator().fit_rows(scored(1000, 0))
    warned = [semcal.Calibrator().move(calibration, scored(30, s)).report.warnings for s in range(1, 13)]
    harmed = sum(any("before the move" in text for text in texts) for texts in warned)
    assert 1 <= harmed <= 9  # no row is of other data
    shifted = [semcal.Calibrator().move(calibration, scored(100, s, -1.5)) for s in range(1, 6)]
    assert not any("before the move" in text for one in shifted for text in one.report.warnings)
    beyond = [{**row, "score": row["score"] + 100} for row in scored(60, 1)]  # in another unit
    assert any("'score'" in text for text in semcal.Calibrator().move(calibration, beyond).report.warnings)


def shifted(n: int, seed: int) -> list[Json]:
    """Rows without labels whose scores are lower than those of `scored`."""
    return [{"id": row["id"], "score": row["score"] - 1} for row in scored(n, seed)]


def test_rows_without_labels_show_that_the_scores_have_changed(tmp_path: Path) -> None:
    semcal.Calibrator().fit_rows(scored(400, 0)).save_pretrained(tmp_path)
    alike = [{"id": row["id"], "score": row["score"]} for row in scored(400, 1)]
    for rows, differ in ((alike, False), (shifted(200, 2), True)):
        file = write(tmp_path / "rows.jsonl", rows)
        code, measured, stderr = command("measure", file, "--calibration", tmp_path)
        assert (code, len(measured)) == (0, len(rows))
        assert ("--from" in stderr) == differ


def test_the_answers_that_a_calibration_was_learned_from_look_like_themselves() -> None:
    """Ten samples give few distinct probabilities, and a rounded one must fall into its own bin."""
    rows = sampled(400, 0, accuracy=0.9)
    calibration = semcal.Calibrator().fit_rows(rows, cluster=EXACT)
    measured = measure_samples([*map(Row, rows)], EXACT)
    p = [answer.probability for answer in calibration.apply(measured)]
    assert find_shift(calibration, p) is None


def test_all_new_labels_test_a_threshold_of_the_moved_calibration() -> None:
    """The old threshold is dropped; tests/metrics/test_risk.py simulates the promise of the new one."""
    calibration = semcal.Calibrator(risks=0.3).fit_rows(scored(1000, 0))
    rows = scored(150, 1, shift=-0.5)
    moved = semcal.Calibrator(risks=0.3).move(calibration, rows)
    assert (moved.threshold.n, moved.ordering) == (150, "score")
    score, correct = [answer.score for answer in moved.apply(rows)], [row["correct"] for row in rows]
    expected = metrics.label_free_threshold(score, correct, risk_limit=0.3)
    assert expected.threshold is not None
    assert moved.threshold.threshold_score == expected.threshold
