"""Checks of given answers, labels of replies, the log, and where the watch is told."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import semcal
from semcal.calibration.calibration import Calibration
from semcal.calibration.features import ColumnFeature, features_of
from semcal.calibration.watch import PromiseWatch
from semcal.metrics.probability_maps import MapCandidate, ProbabilityMap
from semcal.models.fakes import FakeLanguageModel
from semcal.reply_log import LabelledReply, Reply, ReplyLog
from tests.cli.invoking import semcal as command
from tests.serve.serving import MANY, SANG, TABLE, WHERE, WROTE, running, until, uq_of, watch_of
from tests.steps.made_up_calibration import threshold

CHECK, LABELS = "/v1/semcal/check", "/v1/semcal/labels"


def test_a_given_answer_gets_the_probability_of_check() -> None:
    uq = uq_of(answer_kind="given", limit=0.6)
    with running(uq) as server:
        for answer in ("Ana Velis", "ana velis.", "Cy"):
            expected = uq_of(answer_kind="given", limit=0.6).check(WROTE, answer)
            for asked in ({"question": WROTE}, {"messages": [{"role": "user", "content": WROTE}]}):
                reply = server.post(CHECK, {**asked, "answer": answer})
                beside = reply.json()["semcal"]
                assert beside["confidence"] == expected.confidence
                assert beside["abstained"] == expected.abstained
                assert (beside["answer"], beside["explanation"]) == (answer, expected.explanation)
                assert float(reply.headers["x-semcal-probability"]) == pytest.approx(expected.confidence)
        refused = server.chat(WROTE)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "wrong_calibration")
        assert CHECK in refused.json()["error"]["message"]


def test_draws_that_there_are_already_take_the_place_of_new_ones() -> None:
    uq = uq_of(answer_kind="given")
    draws = ["Ana Velis"] * 7 + ["Bo Tarn"] * 3
    assert uq.calibration is not None
    (expected,) = semcal.score(
        [{"question": WROTE, "samples": draws, "answer": "Bo Tarn"}],
        calibration=uq.calibration,
        progress=False,
    )
    with running(uq) as server:
        reply = server.post(CHECK, {"question": WROTE, "answer": "Bo Tarn", "samples": draws}).json()
        assert "semcal_draws_total 0.0" in server.get("/metrics").text
        assert reply["semcal"]["confidence"] == expected.confidence == pytest.approx(0.1 + 0.6 * 0.3)


def test_each_reply_is_in_the_log_before_it_is_sent(tmp_path: Path) -> None:
    log = ReplyLog(tmp_path / "log.sqlite")
    with running(log=log) as server:
        for text in (WROTE, SANG):
            reply = server.chat(text).json()
            expected = uq_of().ask(text)
            features = features_of({1.0: [expected.row]}).values
            assert {"E-SC", "L-SC", "entropy", "likelihood"} <= set(features)
            assert log.reply(reply["id"]) == Reply(
                id=reply["id"],
                time=log.reply(reply["id"]).time,
                template=uq_of().calibration.provenance.prompt_hash,
                features={name: pytest.approx(values[0]) for name, values in features.items()},
                answer=expected.text.lower(),
                probability=expected.confidence,
                threshold=0.6,
                abstained=bool(expected.abstained),
                route="fake",
                calibration=uq_of().calibration.id,
                content=log.reply(reply["id"]).content,
            )


def test_texts_are_logged_only_where_that_is_asked_for_and_answers_unless_it_is_not(tmp_path: Path) -> None:
    with running(log=ReplyLog(tmp_path / "a.sqlite"), answers=False) as server:
        reply = server.chat(WROTE).json()
        refused = server.post(LABELS, {"id": reply["id"], "reference": "Ana Velis"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "no_answers")
        assert server.post(LABELS, {"id": reply["id"], "correct": True}).status_code == 200
    stored = (tmp_path / "a.sqlite").read_bytes()
    assert b"Ana" not in stored
    assert b"ana velis" not in stored
    assert WROTE.encode() not in stored
    with running(log=ReplyLog(tmp_path / "b.sqlite"), log_texts=True) as server:
        reply = server.chat(WROTE).json()
        texts = server.service.log.reply(reply["id"]).texts
    assert (texts["question"], texts["answer"]) == (WROTE, "Ana Velis")
    assert texts["samples"].count("Ana Velis") > 5


@dataclass
class RecordingWatch:
    """A watch that keeps what it is told."""

    alarm: bool = False
    shift: str | None = None
    told: list[LabelledReply] = field(default_factory=list)
    observed: list[float] = field(default_factory=list)
    tests: dict[str, Any] = field(default_factory=lambda: {"risk": SimpleNamespace(e_value=2.5, alpha=0.05)})

    def read_labels(self, log: ReplyLog, calibrations: Sequence[str]) -> None:
        self.told += list(log.labelled(calibrations))[len(self.told) :]

    def observe(self, *probabilities: float) -> None:
        self.observed += probabilities

    def leave_out_questions(self) -> None:
        """The test of questions, which this watch lacks."""


def test_labels_are_graded_kept_in_order_and_told_to_the_watch(tmp_path: Path) -> None:
    watch, log = RecordingWatch(), ReplyLog(tmp_path / "log.sqlite")
    with running(log=log, watch=watch) as server:
        ids = [server.chat(text).json()["id"] for text in (WROTE, SANG, WHERE)]
        one = server.post(LABELS, {"id": ids[2], "reference": ["Sel", "mirna"]})
        assert one.json()["data"] == [{"id": ids[2], "correct": True, "counts": True}]
        both = [{"id": ids[0], "correct": False}, {"id": ids[1], "reference": "Di Ase"}]
        assert [it["id"] for it in server.post(LABELS, both).json()["data"]] == ids[:2]
        again = server.post(LABELS, {"id": ids[0], "correct": False})
        assert again.status_code == 200
        assert [reply.id for reply in watch.told] == [ids[2], ids[0], ids[1]]
        assert list(log.labelled()) == watch.told
        metrics = server.get("/metrics").text
        assert watch.observed == [p for _, p in log.probabilities()]  # before the values are read
        assert 'semcal_e_value{watch="risk"} 2.5' in metrics
        assert 'semcal_e_limit{watch="risk"} 20.0' in metrics


def test_of_equal_answers_to_equal_questions_one_label_counts_and_all_are_kept(tmp_path: Path) -> None:
    watch, log = RecordingWatch(), ReplyLog(tmp_path / "log.sqlite")
    with running(log=log, watch=watch) as server:
        ids = [server.chat(text).json()["id"] for text in (WROTE, SANG, WROTE, WROTE)]
        counts = [
            server.post(LABELS, {"id": id, "correct": correct}).json()["data"][0]["counts"]
            for id, correct in zip((ids[2], ids[0], ids[1], ids[2]), (True, False, True, False))
        ]
    assert counts == [True, False, True, False]
    assert [(told.id, told.correct) for told in watch.told] == [(ids[2], True), (ids[1], True)]
    kept = list(ReplyLog(log.path).labels())
    assert [(label.correct, label.conflicts) for label in kept] == [
        *((True, True), (False, True), (True, False), (False, True))
    ]


def test_struck_labels_leave_the_watch_of_a_server_that_runs(tmp_path: Path) -> None:
    """One client calls each answer wrong."""
    log = ReplyLog(tmp_path / "log.sqlite")
    watch = PromiseWatch.of(uq_of().calibration, risk=0.1)
    with running(log=log, watch=watch) as server:
        for text in MANY[:10]:
            server.post(LABELS, {"id": server.chat(text).json()["id"], "correct": False})
        assert watch.alarm
        assert server.chat(WROTE).json()["semcal"]["abstained"]
        code, out, _ = command("labels", log.path, "--since", "2000-01-01", "--strike", "--json")
        assert code == 0
        assert [label["struck"] for label in out] == [True] * 10
        until(lambda: bool(server.chat(WROTE)) and not watch.alarm)  # a reply sees that labels were struck
        assert not server.chat(WROTE).json()["semcal"]["abstained"]
        id = server.chat(WROTE).json()["id"]
        assert server.post(LABELS, {"id": id, "correct": True}).json()["data"][0]["counts"]
        assert watch.tests["risk"].n == 1


def test_replicas_that_share_a_log_take_labels_for_each_other_and_both_watches_see_all(
    tmp_path: Path,
) -> None:
    calibration, path = uq_of().calibration, tmp_path / "log.sqlite"
    first, second = PromiseWatch.of(calibration), PromiseWatch.of(calibration)
    with (
        running(log=ReplyLog(path), watch=first) as one,
        running(log=ReplyLog(path), watch=second) as other,
    ):
        wrote, sang = (one.chat(text).json()["id"] for text in (WROTE, SANG))
        sent = other.post(LABELS, [{"id": wrote, "correct": False}, {"id": sang, "reference": "Cy Orn"}])
        assert [label["correct"] for label in sent.json()["data"]] == [False, True]
        again = other.chat(WROTE).json()["id"]  # equal to a reply of the other replica, which is labeled
        (label,) = one.post(LABELS, {"id": again, "correct": True}).json()["data"]
        assert label["counts"] is False
        assert [watch.tests["calibration"].n for watch in (first, second)] == [2, 2]
        late = one.chat(WHERE).json()["id"]
        assert other.post(LABELS, {"id": late, "correct": True}).status_code == 200
        assert second.tests["calibration"].n == 3
        until(lambda: bool(one.chat(WHERE)) and first.tests["calibration"].n == 3)
        assert command("labels", path, "--id", late, "--strike")[0] == 0
        until(lambda: bool(one.chat(WHERE)) and first.tests["calibration"].n == 2)


def test_a_grader_that_reads_questions_needs_them_in_the_log_and_may_fail(tmp_path: Path) -> None:
    asking = uq_of()
    judge = "judge:openai:http://127.0.0.1:1/v1#m"
    asking.calibration = replace(asking.calibration, grader=judge)  # type: ignore[type-var]
    for log_texts, status, code in ((False, 409, "no_question"), (True, 502, "grader_failed")):
        log = ReplyLog(tmp_path / f"{log_texts}.sqlite")
        with running(asking, log=log, log_texts=log_texts) as server:
            label = {"id": server.chat(WROTE).json()["id"], "reference": "somebody else"}
            refused = server.post(LABELS, label)
            assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
            assert "send 'correct'" in refused.json()["error"]["message"]
            assert server.post(LABELS, {"id": label["id"], "correct": True}).status_code == 200


@pytest.mark.parametrize("on_alarm", ["abstain", "flag"])
def test_during_an_alarm_no_probability_is_given_unless_it_only_flags(on_alarm: str) -> None:
    watch = RecordingWatch(alarm=True)
    with running(watch=watch, on_alarm=on_alarm, uncovered="answer") as server:
        beside = server.chat(WROTE).json()["semcal"]
        uncovered = server.chat(WROTE, temperature=0.2).json()["semcal"]
        flagged = server.get("/ready").json()
        watch.alarm = False
        assert server.chat(WROTE).json()["semcal"]["confidence"] == uq_of().ask(WROTE).confidence
    assert (flagged["status"], flagged["alarm"]) == ("ready", True)
    expected = (None, True) if on_alarm == "abstain" else (uq_of().ask(WROTE).confidence, False)
    assert (beside["confidence"], beside["abstained"]) == expected
    assert (uncovered["confidence"], uncovered["abstained"]) == (None, expected[1])


def test_labels_that_say_wrong_raise_the_alarm_and_a_server_that_starts_again_reads_it_from_the_log(
    tmp_path: Path,
) -> None:
    calibration, log = uq_of().calibration, ReplyLog(tmp_path / "log.sqlite")
    with running(log=log, watch=PromiseWatch.of(calibration)) as server:
        replies = [server.chat(text).json() for text in MANY[:10]]
        assert not any(reply["semcal"]["abstained"] for reply in replies)
        server.post(LABELS, [{"id": reply["id"], "correct": False} for reply in replies])
        assert server.get("/ready").json()["alarm"]
        assert server.chat(WROTE).json()["semcal"]["abstained"]
        shown = dict(re.findall(r'semcal_e_value\{watch="(\w+)"\} (\S+)', server.get("/metrics").text))
    assert {"risk", "calibration"} <= set(shown)
    assert float(shown["risk"]) > 20
    again = watch_of(log.path, calibration)
    assert again.alarm
    e_values = {name: test.e_value for name, test in again.tests.items()}
    assert {name: pytest.approx(float(value)) for name, value in shown.items()} == e_values


def test_about_the_share_that_is_audited_is_marked_and_the_log_says_so(tmp_path: Path) -> None:
    log = ReplyLog(tmp_path / "log.sqlite")
    with running(log=log, audit=0.5) as server:
        replies = [server.chat(text).json() for text in (WROTE, SANG) * 20]
    marked = [reply.get("semcal").get("audit", False) for reply in replies]
    assert 5 <= sum(marked) <= 35  # 40 draws of ½: outside with p < 2e-6
    log = ReplyLog(tmp_path / "log.sqlite")
    assert [log.reply(reply["id"]).audited for reply in replies] == marked


def test_a_request_brings_the_columns_that_a_calibration_reads(tmp_path: Path) -> None:
    read = MapCandidate("logistic", ("E-SC", "distance"))
    learned = ProbabilityMap(read, {"slopes": (1.0, -1.0), "intercept": (0.0,)}, (0.5, 0.5))
    uq = uq_of(map=learned, columns=(ColumnFeature("distance", falling=True),), limit=None)
    rows = [{"id": WROTE, "question": WROTE, "distance": value} for value in (0.25, 3, None)]
    expected = [uq.ask_many([row])[0].confidence for row in rows]
    assert len({*expected}) == 3
    log = ReplyLog(tmp_path / "log.sqlite")
    with running(uq, log=log) as server:
        replies = [server.chat(WROTE, semcal={"columns": {"distance": row["distance"]}}) for row in rows]
        assert [reply.json()["semcal"]["confidence"] for reply in replies] == pytest.approx(expected)
        assert log.reply(replies[1].json()["id"]).features["distance"] == 3
        assert server.service.state.columns == ["distance"]
        for columns in (None, {}, {"distance": "far"}, {"distance": 1.0, "distanz": 1.0}):
            error = server.chat(WROTE, semcal={"columns": columns}).json()["error"]
            assert "distance" in error["message"]
            assert error["type"] == "invalid_request_error"
    with running(fallback=uq) as server:  # the model that may have to answer needs them too
        assert server.chat(WROTE).json()["error"]["param"] == "semcal.columns"
        assert server.chat(WROTE, semcal={"columns": {"distance": 1.0}}).status_code == 200


def test_several_risks_give_a_decision_and_one_of_them_can_be_chosen() -> None:
    strict, loose = replace(threshold(0.65), risk_limit=0.05), replace(threshold(0.4), risk_limit=0.2)
    uq = uq_of(threshold=loose, thresholds=(strict, loose))
    assert isinstance(uq.calibration, Calibration)
    with running(uq) as server:
        beside = server.chat(WROTE).json()["semcal"]
        assert (beside["decision"], beside["abstained"], beside["threshold"]) == ("review", False, 0.4)
        assert [band["risk"] for band in beside["thresholds"]] == [0.05, 0.2]
        strictly = server.chat(WROTE, semcal={"risk": 0.05}).json()["semcal"]
        assert (strictly["abstained"], strictly["threshold"]) == (True, 0.65)
    assert uq.model.name == FakeLanguageModel(TABLE).name


# ---- References of any size


class SlowGrader:
    """Calls every answer right, once `go` is set."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Semaphore(0), threading.Event()
        self.references: list[str] = []

    def grade(self, _question: str, _predictions: list[str], references: list[str]) -> Any:
        self.references += references
        self.begun.release()
        assert self.go.wait(30)
        return SimpleNamespace(correct=True)


def test_grading_that_takes_too_long_or_whose_client_goes_is_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "semcal.serve")
    log, grader = ReplyLog(tmp_path / "log.sqlite"), SlowGrader()
    with running(log=log, request_timeout=0.5) as server:
        server.service.labels.__dict__["grader"] = grader
        ids = [server.chat(WROTE).json()["id"] for _ in range(3)]
        long = [{"id": id, "reference": "of the first"} for id in ids]
        refused = server.post(LABELS, long)
        assert (refused.status_code, refused.json()["error"]["code"]) == (504, "timeout")
        server.service.settings.__dict__["request_timeout"] = 30.0
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}{LABELS}", json={"id": ids[0], "reference": "of the gone"}, timeout=0.5)
        until(lambda: any('"status": 499' in record.getMessage() for record in caplog.records))
        grader.go.set()
        last = server.post(LABELS, {"id": ids[2], "reference": "of the last"})
        assert last.status_code == 200
    assert grader.references == ["of the first", "of the last"]
    assert [reply.id for reply in ReplyLog(log.path).labelled()] == ids[2:]
