"""The example set: its questions, its stored samples, and the figures that docs/example-set.md states."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import semcal
from semcal.data import load_questions
from semcal.demo import real
from semcal.errors import InputError
from semcal.results import Results
from tests.cli.invoking import semcal as command

PAGE = Path(__file__).parents[2] / "docs" / "example-set.md"


@pytest.fixture(scope="module")
def rows() -> list[dict[str, object]]:
    return real.load()


@pytest.fixture(scope="module")
def results() -> Results:
    """The example set, scored by its name."""
    return semcal.score("real", progress=False)


def words(text: str) -> str:
    return " ".join(re.findall(r"[\w+#]+", text.lower()))


def test_each_row_holds_a_question_its_references_and_ten_samples_of_one_model(rows: list[dict]) -> None:
    assert 400 <= len(rows) <= 420
    assert real.PATH.stat().st_size < 1_000_000
    assert len({row["id"] for row in rows}) == len(rows)
    assert len({str(row["sampled_by"]) for row in rows}) == 1
    for row in rows:
        assert re.fullmatch(rf"{row['topic']}-\d\d", row["id"])
        assert row["answers"]
        assert len(row["samples"]) == len(row["log_likelihoods"]) == row["sampled_by"]["m"] == 10
        assert all(isinstance(text, str) and text for text in row["samples"])
        assert all(value <= 0 for value in row["log_likelihoods"])


def test_the_name_stands_for_questions_and_a_file_of_the_name_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_questions("real")[0].question == real.load()[0]["question"]
    monkeypatch.chdir(tmp_path)
    Path("real").write_text('{"question": "Who?", "answers": ["Ana"]}\n', encoding="utf-8")
    assert [question.question for question in load_questions("real")] == ["Who?"]
    Path("real").unlink()
    Path("real").mkdir()
    with pytest.raises(InputError, match="real"):
        load_questions("real")


def test_commands_take_the_set_by_its_name(tmp_path: Path) -> None:
    code, rows, stderr = command("cluster", "real", "--equivalence", "exact", "--limit", 3)
    assert (code, len(rows), rows[0]["question"]) == (0, 3, "What is the capital of Australia?"), stderr
    out = tmp_path / "map"
    code, (report,), stderr = command(
        "calibrate", "real", "--equivalence", "exact", "--risk", 0.3, "--out", out
    )
    assert code == 0, stderr
    assert report["threshold"]["risk_limit"] == pytest.approx(0.3)


def test_the_documented_figures_of_the_share_come_out(results: Results) -> None:
    metrics = results.metrics()["E-SC"]
    names = ("accuracy", "mean_confidence", "ace", "auroc")
    line = "| share of samples | " + " | ".join(f"{metrics[name]:.3f}" for name in names) + " |"
    assert line in PAGE.read_text(encoding="utf-8")
    assert 0.45 <= metrics["accuracy"] <= 0.65


def test_a_calibration_of_the_set_gives_the_documented_threshold(results: Results) -> None:
    calibration = results.calibrate(risk=0.2)
    threshold = calibration.threshold
    assert threshold is not None
    assert calibration.report.calibrated["ace"] < calibration.report.base["ace"]
    line = f"| 0.2 | {threshold.threshold:.2f} | {threshold.answered} of {threshold.n} | {threshold.errors} |"
    assert line in PAGE.read_text(encoding="utf-8")
