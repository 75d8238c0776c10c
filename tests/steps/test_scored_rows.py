"""Rows with a score and without samples: calibrated, measured, served and watched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

import semcal
from semcal import metrics
from semcal.calibration.calibration import Calibration
from semcal.calibration.features import ColumnFeature, ScoreColumn
from semcal.calibration.watch import PromiseWatch
from semcal.errors import InputError, UsageError
from semcal.models.fakes import FakeLanguageModel
from semcal.reply_log import ReplyLog
from semcal.serve.engine import ScoreSource
from semcal.uncertainty import SemanticUQ
from tests.cli.invoking import semcal as command
from tests.cli.invoking import write
from tests.serve.serving import running

pytestmark = pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")
Json = dict[str, Any]


def world(n: int = 400, seed: int = 0) -> list[Json]:
    """Rows whose answers are right with the probability 1 / (1 + exp(-2 margin))."""
    rng = np.random.default_rng(seed)
    margin = rng.normal(size=n)
    correct = rng.random(n) < 1 / (1 + np.exp(-2 * margin))
    return [
        {"id": f"r{k}", "score": float(s), "correct": bool(c)}
        for k, (s, c) in enumerate(zip(margin, correct))
    ]


def probabilities(calibration: Calibration, rows: Any) -> np.ndarray:
    return np.array([answer.probability for answer in calibration.apply(rows)])


def test_the_probability_of_a_score_holds_on_other_rows() -> None:
    calibration = semcal.Calibrator().fit_rows(world())
    others = world(5000, seed=1)
    p = probabilities(calibration, others)
    assert metrics.ace(p, [row["correct"] for row in others]) < 0.04
    assert (calibration.m, calibration.base, calibration.answer_kind) == (0, "score", "given")
    # a score that is no probability only ranks
    assert calibration.report.base["ace"] is None
    assert calibration.report.base["auroc"] > 0.8


@pytest.mark.parametrize("transform", [lambda s: -s, lambda s: 1 / (1 + np.exp(s))])
def test_the_direction_and_the_scale_of_a_score_are_learned(transform: Any) -> None:
    plain = probabilities(semcal.Calibrator().fit_rows(world()), world())
    rows = [{**row, "score": float(transform(row["score"]))} for row in world()]
    calibration = semcal.Calibrator().fit_rows(rows)
    assert calibration.score.falling
    assert np.abs(probabilities(calibration, rows) - plain).mean() < 0.05


def test_a_stated_direction_is_kept_and_a_probability_keeps_its_values() -> None:
    rows = [{"id": str(k), "risk": k / 100, "correct": k < 20} for k in range(100)]
    calibration = semcal.Calibrator(score="risk:rising").fit_rows(rows)
    assert calibration.score == ScoreColumn("risk", falling=False, low=0.0, high=1.0)
    assert semcal.Calibrator(score="risk").fit_rows(rows).score == ScoreColumn("risk", falling=True)


def test_dicts_a_dataframe_and_a_csv_give_one_calibration(tmp_path: Path) -> None:
    rows = world(200)
    frame = pd.DataFrame(rows)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    expected = semcal.Calibrator(risks=0.3).fit_rows(rows)
    assert semcal.Calibrator(risks=0.3).fit_rows(frame).id == expected.id
    assert semcal.Calibrator(risks=0.3).fit_rows(tmp_path / "rows.csv").id == expected.id
    assert np.array_equal(probabilities(expected, frame), probabilities(expected, rows))


def test_options_give_the_answer_and_its_probability_and_references_grade_it() -> None:
    rng = np.random.default_rng(0)
    rows = []
    for k, p in enumerate(rng.uniform(0.5, 1, 300)):
        truth = "spam" if rng.random() < p**2 else "not spam"
        rows.append({"id": str(k), "options": {"not spam": 1 - p, "spam": p}, "answers": [truth]})
    calibration = semcal.Calibrator().fit_rows(rows)
    assert calibration.base == "probability"
    assert calibration.grader == "exact"
    assert calibration.report.base["mean_confidence"] == pytest.approx(0.75, abs=0.03)
    assert calibration.report.base["accuracy"] == pytest.approx(0.58, abs=0.06)  # E[p²]
    (answer,) = calibration.apply([{"options": {"not spam": 0.2, "spam": 0.8}}])
    assert (answer.text, answer.score) == ("spam", 0.8)
    with pytest.raises(InputError, match="options"):
        calibration.apply([{"options": {"spam": 2}}])


def test_further_columns_are_features_beside_the_score() -> None:
    rng = np.random.default_rng(1)
    rows = [
        {**row, "noise": float(rng.normal()), "hint": 3.0 * row["correct"] + rng.normal()} for row in world()
    ]
    calibration = semcal.Calibrator(features=["hint", "noise"]).fit_rows(rows)
    assert "hint" in calibration.map.features
    assert calibration.report.calibrated["auroc"] > calibration.report.base["auroc"] + 0.05
    assert all(isinstance(column, ColumnFeature) for column in calibration.columns)
    with pytest.raises(InputError, match="hint"):
        calibration.apply(world(5))


def test_a_saved_calibration_is_the_same_and_keeps_its_thresholds(tmp_path: Path) -> None:
    calibration = semcal.Calibrator(risks=[0.2, 0.4]).fit_rows(world(600))
    calibration.save_pretrained(tmp_path)
    loaded = Calibration.from_pretrained(tmp_path)
    assert (loaded, loaded.id) == (calibration, calibration.id)
    assert [one.risk_limit for one in loaded.all_thresholds] == [0.2, 0.4]
    decisions = {answer.decision for answer in loaded.apply(world())}
    assert decisions == {"answer", "review", "abstain"}


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"correct": True}, "score"),
        ({"score": None, "correct": True}, "score"),
        ({"score": float("nan"), "correct": True}, "score"),
        ({"score": "high", "correct": True}, "score"),
        ({"score": True, "correct": True}, "score"),
        ({"score": 0.5}, "correct"),
        ({"score": 0.5, "correct": "perhaps"}, "correct"),
    ],
)
def test_a_bad_row_is_named(row: Json, named: str) -> None:
    with pytest.raises(InputError, match=f"(?s)bad.*'{named}'"):
        semcal.Calibrator().fit_rows([*world(20), {"id": "bad", **row}])


def test_wrong_calls_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="score"):
        semcal.calibrate("atlas", [{"question": "Who?", "answers": ["Ana"]}], score="margin")
    with pytest.raises(UsageError, match="signals"):
        semcal.Calibrator(signals=["p-true"]).fit_rows(world(20))
    with pytest.raises(UsageError, match="m,"):
        semcal.Calibrator().fit_rows(world(20), m=5)
    with pytest.raises(UsageError, match="feature"):
        semcal.Calibrator(features=["score"]).fit_rows(world(20))
    with pytest.raises(InputError, match="samples"):
        semcal.Calibrator().fit_rows([{"id": "1", "question": "Who?", "answers": ["Ana"]}])
    with pytest.raises(InputError, match=r"^samples.*margin.*score="):
        semcal.Calibrator().fit_rows([{"margin": 0.5, "correct": True}] * 20)
    with pytest.raises(UsageError, match=r"^risk: .*risks"):
        semcal.Calibrator(risk=0.2, risks=[0.3])


def test_a_two_column_csv_is_calibrated_and_measured_by_commands(tmp_path: Path) -> None:
    lines = [f"{row['score']},{int(row['correct'])}" for row in world()]
    (tmp_path / "rows.csv").write_text("\n".join(["score,correct", *lines]) + "\n")
    out = tmp_path / "out"
    code, (report,), _ = command("calibrate", tmp_path / "rows.csv", "--risk", 0.3, "--out", out)
    assert code == 0
    assert (report["m"], report["base_name"], report["n"]) == (0, "score", 400)
    code, rows, _ = command("measure", tmp_path / "rows.csv", "--calibration", out)
    assert code == 0
    calibration = Calibration.from_pretrained(out)
    expected = probabilities(calibration, [{"score": row["score"]} for row in world()])
    assert np.allclose([row["probability"] for row in rows], expected)
    assert ({row["calibration"] for row in rows}, "answer" in rows[0]) == ({calibration.id}, False)
    limit = calibration.threshold.threshold_score
    assert all(row["abstained"] == (row["score"] < limit) for row in rows)
    code, (figures,), _ = command("metrics", write(tmp_path / "measured.jsonl", rows))
    assert (code, figures["measure"], figures["n"]) == (0, "Calibrated", 400)
    assert figures["ace"] == pytest.approx(metrics.ace(expected, [row["correct"] for row in world()]))
    unlabeled = [{k: v for k, v in row.items() if k != "correct"} for row in rows]
    code, _, stderr = command("metrics", write(tmp_path / "unlabeled.jsonl", unlabeled))
    assert (code, "'correct'" in stderr) == (1, True)


def test_labels_of_a_log_cannot_be_added_to_a_calibration_of_a_score(tmp_path: Path) -> None:
    old = tmp_path / "old"
    semcal.Calibrator().fit_rows(world()).save_pretrained(old)
    code, _, stderr = command("calibrate", old, "--add", tmp_path / "log.sqlite", "--out", tmp_path / "new")
    assert code == 2
    assert "--add" in stderr
    assert "'score'" in stderr


def test_commands_name_bad_rows_and_go_on(tmp_path: Path) -> None:
    rows = [*world(60), {"id": "no score", "correct": True}, {"id": "unlabelled", "score": 0.5}]
    file = write(tmp_path / "rows.jsonl", rows)
    code, (report,), stderr = command("calibrate", file, "--out", tmp_path / "out")
    assert (code, report["n"]) == (1, 60)
    assert "'no score'" in stderr
    assert "'unlabelled'" in stderr
    code, measured, _ = command("measure", file, "--calibration", tmp_path / "out")
    assert (code, len(measured)) == (1, 61)
    again = write(tmp_path / "again.jsonl", measured)
    code, measured, stderr = command("measure", again, "--calibration", tmp_path / "out")
    assert (code, measured) == (1, [])
    assert "'calibration'" in stderr


def test_a_request_brings_the_score_and_gets_the_probability(tmp_path: Path) -> None:
    calibration = semcal.Calibrator(risks=0.3).fit_rows(world())
    (expected,) = calibration.apply([{"score": 1.0}])
    log = ReplyLog(tmp_path / "log.db")
    watch = PromiseWatch.of(calibration)
    with running(cast("SemanticUQ", ScoreSource(calibration)), log=log, watch=watch) as server:
        reply = server.post("/v1/semcal/check", {"row": {"score": 1.0}})
        assert reply.status_code == 200, reply.text
        part = reply.json()["semcal"]
        assert part["confidence"] == expected.probability
        assert (part["score"], part["abstained"], part["m"]) == (expected.score, False, 0)
        labels = [{"id": reply.json()["id"], "correct": True}]
        for _ in range(2):  # equal scores of other questions count
            reply = server.post("/v1/semcal/check", {"row": {"score": 1.0}})
            labels.append({"id": reply.json()["id"], "correct": False})
        taken = server.post("/v1/semcal/labels", labels).json()["data"]
        assert [one["counts"] for one in taken] == [True] * 3
        assert watch.tests["risk"].n == 3
        reply = server.post("/v1/semcal/check", {"row": {"score": 1.0, "samples": 3}})  # a key that passes
        assert (reply.status_code, reply.json()["semcal"]["m"]) == (200, 0)
        for row in ({}, {"score": None}, {"score": "high"}, {"score": 10**400}, {"options": 3}):
            assert server.post("/v1/semcal/check", {"row": row}).status_code == 400
        for body in ({"question": "Who?", "answer": "Ana"}, {"row": {"score": 1.0}, "answer": "Ana"}):
            refused = server.post("/v1/semcal/check", body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "row")
        chat = server.chat("Who wrote it?")
        assert (chat.status_code, chat.json()["error"]["code"]) == (400, "wrong_calibration")


def test_the_monitor_reads_scores_with_their_calibration(tmp_path: Path) -> None:
    semcal.Calibrator(risks=0.3).fit_rows(world()).save_pretrained(tmp_path)
    calm = write(tmp_path / "calm.jsonl", world(500, seed=5))
    code, lines, _ = command("monitor", calm, "--calibration", tmp_path)
    assert code == 0
    assert {line["watch"] for line in lines} == {"risk", "calibration", "questions"}
    wrong = [{**row, "correct": row["correct"] and k % 2} for k, row in enumerate(world(500, seed=5))]
    code, lines, _ = command("monitor", write(tmp_path / "wrong.jsonl", wrong), "--calibration", tmp_path)
    assert code == 1
    assert next(line for line in lines if line["watch"] == "calibration")["alarm"]


def test_a_measured_table_is_monitored(tmp_path: Path) -> None:
    lines = [f"{row['score']},{row['correct']}" for row in world()]
    table, out = tmp_path / "rows.csv", tmp_path / "out"
    table.write_text("\n".join(["score,correct", *lines, "0.5,"]) + "\n")  # the last one has no label
    code, (report,), _ = command("calibrate", table, "--out", out)
    assert (code, report["n"]) == (1, 400)
    _, rows, _ = command("measure", table, "--calibration", out)
    measured, columns = write(tmp_path / "m.jsonl", rows), ["--columns", "confidence=probability"]
    code, watches, _ = command("monitor", measured, "--calibration", out, *columns)
    assert (code, {line["labels"] for line in watches if "labels" in line}) == (0, {400})


def test_probabilities_may_be_above_1_by_rounding() -> None:
    rows = [{**row, "score": 1 / (1 + np.exp(-2 * row["score"]))} for row in world()]
    rows[0]["score"] = float(np.float32(1) + np.finfo(np.float32).eps)
    assert semcal.Calibrator().fit_rows(rows).report.base["ace"] is not None
    (answer,) = semcal.Calibrator().fit_rows(rows).apply([rows[0]])
    assert answer.probability <= 1
    options = [{"options": {"a": row["score"], "b": 0.0}, "correct": row["correct"]} for row in rows]
    assert semcal.Calibrator().fit_rows(options).report.n == 400


@pytest.mark.parametrize("written", [str, json.dumps])
def test_options_in_a_table_are_read_as_json_or_as_pandas_writes_them(tmp_path: Path, written: Any) -> None:
    options = [{"a": 1 / (1 + np.exp(row["score"])).item(), "b": 0.0} for row in world(100)]
    answers = ["ab"[row["correct"]] for row in world(100)]
    expected = semcal.Calibrator().fit_rows([{"options": o, "answers": a} for o, a in zip(options, answers)])
    table = pd.DataFrame({"options": map(written, options), "answers": answers})
    assert semcal.Calibrator().fit_rows(table).report == expected.report
    table.to_csv(tmp_path / "rows.csv", index=False)
    code, (report,), _ = command("calibrate", tmp_path / "rows.csv", "--out", tmp_path / "out")
    assert (code, report["calibrated"]) == (0, expected.report.calibrated)


def test_a_score_with_the_wrong_direction_is_named_with_the_other_one() -> None:
    (text,) = semcal.Calibrator(score="score:falling").fit_rows(world()).report.warnings
    assert "score:rising" in text
    assert semcal.Calibrator(score="score:rising").fit_rows(world()).report.warnings == ()


def test_measured_options_are_graded_and_a_missing_prediction_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [
        {"id": str(k), "options": {"a": p, "b": 1 - p}, "answers": ["a" if rng.random() < p else "b"]}
        for k, p in enumerate(rng.random(100).tolist())
    ]
    semcal.Calibrator().fit_rows(rows).save_pretrained(tmp_path)
    file = write(tmp_path / "rows.jsonl", rows)
    _, measured, _ = command("measure", file, "--calibration", tmp_path)
    file = write(tmp_path / "measured.jsonl", measured)
    code, lines, stderr = command("grade", file)
    assert (code, lines) == (1, [])
    assert "--columns prediction=answer" in stderr
    code, graded, _ = command("grade", file, "--columns", "prediction=answer")
    assert (code, len(graded)) == (0, 100)
    assert [row["correct"] for row in graded] == [row["answer"] in row["answers"] for row in measured]


def test_a_file_without_rows_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("score,correct\n")
    code, lines, stderr = command("calibrate", tmp_path / "rows.csv", "--out", tmp_path / "out")
    assert (code, lines) == (1, [])
    assert "rows.csv: no row can be used" in stderr


@pytest.mark.parametrize(("groups", "test"), [(40, "exact"), (300, "betting")])
def test_without_a_threshold_groups_are_counted_as_groups(groups: int, test: str) -> None:
    rows = [{**row, "group": f"g{k % groups}"} for k, row in enumerate(world(5 * groups))]
    limit = semcal.Calibrator(score="score:rising", risks=0.08).fit_rows(rows).threshold
    assert (limit.threshold, limit.test) == (None, test)
    assert f"these {limit.groups} groups of questions" in limit.sentence
    assert limit.kept is not None
    assert f"Without a promise: {limit.kept.answered} labeled answers" in limit.outlook
    if limit.questions_needed is not None:
        assert limit.questions_needed > groups
        assert f"about {limit.questions_needed:,} groups of questions are needed" in limit.sentence


def test_a_model_is_not_asked_with_a_calibration_of_a_score() -> None:
    calibration = semcal.Calibrator().fit_rows(world(60))
    with pytest.raises(UsageError, match="calibration"):
        semcal.SemanticUQ(FakeLanguageModel({}), calibration=calibration)


def test_the_verdict_is_not_a_score() -> None:
    with pytest.raises(UsageError, match="score: 'correct'"):
        ScoreColumn.parse("correct")
