"""The example set about the real world: its form, its questions, and that commands take it by name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import semcal
from semcal.demo.real import PATH, load
from semcal.text.normal_form import normal_form
from tests.cli.invoking import semcal as command

ROWS = load()


def test_every_question_has_references_and_ten_samples_with_likelihoods() -> None:
    assert PATH.stat().st_size < 10**6
    assert 400 <= len(ROWS) <= 420
    assert len({row["id"] for row in ROWS}) == len(ROWS)
    assert len({normal_form(row["question"]) for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row["answers"]
        assert len(row["samples"]) == len(row["log_likelihoods"]) == 10
        assert all(value <= 0 for value in row["log_likelihoods"])


def test_yes_and_no_questions_are_in_balance() -> None:
    found = Counter(row["answers"][0] for row in ROWS if row["answers"][0] in ("yes", "no"))
    assert found["yes"] > 20
    assert abs(found["yes"] - found["no"]) <= 2


def test_the_samples_give_a_calibration_that_beats_the_share() -> None:
    results = semcal.score(ROWS, "exact", progress=False)
    calibration = results.calibrate(risk=0.3)
    base, calibrated = calibration.report.base, calibration.report.calibrated
    assert 0.4 < base["accuracy"] < 0.7
    assert calibrated["ace"] < base["ace"]
    assert calibrated["gain"] > base["gain"]


def test_commands_take_the_set_by_its_name(tmp_path: Path) -> None:
    code, rows, stderr = command("cluster", "real", "--equivalence", "exact", "--limit", 3)
    assert (code, len(rows), rows[0]["question"]) == (0, 3, "What is the capital of Australia?"), stderr
    out = tmp_path / "map"
    code, (report,), stderr = command(
        "calibrate", "real", "--equivalence", "exact", "--risk", 0.3, "--out", out
    )
    assert code == 0, stderr
    assert report["threshold"]["risk_limit"] == pytest.approx(0.3)
