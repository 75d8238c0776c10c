"""`semcal calibrate --add`: what comes of labels that came back in production, and which are left out."""

from __future__ import annotations

import json
import math
import re
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semcal
from semcal.calibration import production
from semcal.calibration.calibration import Calibration
from semcal.calibration.features import candidates_for, features_of
from semcal.calibration.samples import measure_samples
from semcal.calibration.thresholds import ThresholdLabels, set_thresholds
from semcal.metrics.probability_maps import Labelled, choose_map, part_of
from semcal.models.clustering import ClusterConfig
from semcal.models.equivalence import ExactMatch
from semcal.models.fakes import FakeLanguageModel
from semcal.reply_log import Reply, ReplyLog
from semcal.rows import as_rows
from semcal.uncertainty import SemanticUQ
from tests.cli.invoking import semcal as command
from tests.serve.serving import Running, running, watch_of

pytestmark = [
    pytest.mark.filterwarnings("always:no (added label|audited reply) .* for the threshold"),
    pytest.mark.filterwarnings("always:.* in none of these logs"),
    pytest.mark.filterwarnings("ignore:only .* answers are"),
]

#: Questions that are answered "Ana" with a probability of their own, which is also how often that is right.
RNG = np.random.default_rng(11)
SHARES = RNG.uniform(0.3, 0.98, 150)
QUESTIONS = [f"Who built mill {number}?" for number in range(len(SHARES))]
TABLE = {question: {"Ana": p, "Bo": 1 - p} for question, p in zip(QUESTIONS, SHARES.tolist())}
REFERENCES = dict(zip(QUESTIONS, np.where(RNG.random(len(SHARES)) < SHARES, "Ana", "Bo").tolist()))
LEARNT, ASKED = QUESTIONS[:70], QUESTIONS[70:]
RISK = 0.4


def labelled(questions: list[str]) -> list[dict[str, Any]]:
    return [{"id": q, "question": q, "answers": REFERENCES[q]} for q in questions]


def in_use(folder: Path) -> SemanticUQ:
    """The model with a calibration."""
    return SemanticUQ(FakeLanguageModel(TABLE), calibration=Calibration.from_pretrained(folder))


def send_labels(server: Running, replies: Mapping[str, dict[str, Any]], *, wrong: bool = False) -> None:
    """Label what was marked for it, and what was answered."""
    labels = [
        {"id": reply["id"], **({"correct": False} if wrong else {"reference": REFERENCES[question]})}
        for question, reply in replies.items()
        if reply["semcal"].get("audit") or not reply["semcal"]["abstained"]
    ]
    assert server.post("/v1/semcal/labels", labels).status_code == 200


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibration; it is not to be written to."""
    folder = tmp_path_factory.mktemp("calibrations") / "old"
    learnt = semcal.calibrate(
        FakeLanguageModel(TABLE),
        labelled(LEARNT),
        equivalence="exact",
        temperatures=1.0,
        risk=RISK,
        progress=False,
    )
    learnt.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def served(old: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A log without texts, half of it marked for the audit, and what was asked; not to be written to."""
    path = tmp_path_factory.mktemp("logs") / "log.sqlite"
    with running(in_use(old), log=ReplyLog(path), audit=0.5) as server:
        replies = {question: server.chat(question).json() for question in ASKED}
        send_labels(server, replies)
    return path, {reply["id"]: question for question, reply in replies.items()}


@pytest.fixture
def log(served: tuple[Path, dict[str, str]], tmp_path: Path) -> Path:
    """A copy of that log."""
    return Path(shutil.copy(served[0], tmp_path / "log.sqlite"))


def add(calibration: Path, log: Path, out: Path, *options: Any) -> tuple[Calibration, str]:
    code, _, said = command("calibrate", calibration, "--add", log, "--out", out, *options)
    assert code == 0, said
    return Calibration.from_pretrained(out), said


def refused(calibration: Path, log: Path, out: Path, *options: Any) -> str:
    code, _, said = command("calibrate", calibration, "--add", log, "--out", out, *options)
    assert code in (1, 2)
    assert not out.exists()
    return said


def change(log: Path, statement: str) -> None:
    with closing(sqlite3.connect(log, isolation_level=None)) as database:
        database.execute(statement)


@pytest.mark.parametrize("alone", [False, True])
def test_what_is_learnt_is_what_the_pooled_rows_give(
    alone: bool, old: Path, served: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    """The questions of the log, asked anew, stand for its features; the threshold part is hashed here."""
    path, questions = served
    new, said = add(old, path, tmp_path / "new", *(["--audited"] if alone else []))
    kept, uq = ReplyLog(path), in_use(old)
    labelled = {reply.id for reply in kept.labelled()}
    replies = [reply for id in questions if (reply := kept.reply(id)) and id in labelled]
    rows = [json.loads(line) for line in (old / "samples.jsonl").read_text().splitlines()]
    n = len(rows)
    for reply in replies:
        draws = uq.ask(questions[reply.id]).row.json
        rows.append({key: draws[key] for key in ("id", "question", "samples", "log_likelihoods")})
        rows[-1]["answers"] = [REFERENCES[questions[reply.id]]]
    measured = measure_samples(as_rows(rows), ClusterConfig(ExactMatch(), "components"), m=10)
    features = features_of(measured)
    correct = np.array([row["answers"][0] == text for row, text in zip(rows, features.answers)], float)
    hashed = [
        reply.audited and int.from_bytes(sha256(f"threshold {reply.id}".encode()).digest()[:6]) < 0.4 * 2**48
        for reply in replies
    ]
    assert 5 < sum(hashed) < sum(reply.audited for reply in replies) < len(replies) < len(ASKED)
    own = np.arange(len(rows)) < n
    apart = np.array([*np.zeros(n, dtype=bool), *hashed])
    testing = apart | (own & (not alone))  # by the share, so that own labels shape the map as well
    fit = Labelled(features.values, correct, candidates_for(features)).part(~apart)
    chosen = choose_map(*fit).map
    assert new.map == chosen
    shown = chosen.scores(part_of(features.values, testing))
    share = features.values["E-SC"][testing]
    (threshold,) = set_thresholds(ThresholdLabels(share, correct[testing], shown=shown), [RISK], 0.05)
    assert new.threshold == threshold
    assert (new.report.n, new.report.apart) == (sum(~apart), sum(apart))
    assert new.report.base["accuracy"] == pytest.approx(correct[~apart].mean())
    record = new.report.added
    assert record is not None
    assert (record.fit, record.apart) == (len(replies) - sum(hashed), sum(hashed))
    assert f"{len(replies)} labels of {path}, {sum(hashed)} of them for the threshold" in said
    assert new.ancestors == (uq.calibration.id,)
    assert (tmp_path / "new" / "samples.jsonl").read_bytes() == (old / "samples.jsonl").read_bytes()


def test_a_new_calibration_is_watched_from_its_own_labels_on_and_is_added_to_with_all(
    old: Path, tmp_path: Path
) -> None:
    path, folder = tmp_path / "log.sqlite", tmp_path / "new"
    with running(in_use(old), log=ReplyLog(path), audit=0.5) as server:
        send_labels(server, {q: server.chat(q).json() for q in ASKED[:40]}, wrong=True)
    first = Calibration.from_pretrained(old)
    assert watch_of(path, first).alarm
    assert command("monitor", path)[0] == 1
    new, _ = add(old, path, folder)
    watch = watch_of(path, new)
    assert (watch.alarm, watch.tests["calibration"].n) == (False, 0)
    assert watch.tests["calibration"].alpha == pytest.approx(0.05 * 6 / (4 * math.pi**2))
    code, lines, said = command("monitor", path, "--calibration", folder)
    assert (code, {line["alarm"] for line in lines if "alarm" in line}) == (0, {False})
    assert "labels are of replies by other calibrations, and do not count" in said
    with running(in_use(folder), log=ReplyLog(path), watch=watch, audit=0.5) as server:
        replies = {question: server.chat(question).json() for question in ASKED[40:70]}
        assert all(reply["semcal"]["confidence"] is not None for reply in replies.values())
        late = next(id for (id,) in unlabelled(path))
        assert server.post("/v1/semcal/labels", {"id": late, "correct": False}).status_code == 200
        assert watch.tests["calibration"].n == 0
        send_labels(server, replies)
    n = ReplyLog(path).n_labels()
    assert 0 < watch.tests["calibration"].n < n
    code, _, said = command("monitor", path, "--risk", 0.2)
    assert (code, new.id in said, "--calibration" in said) == (2, True, True)
    later = ReplyLog(tmp_path / "later.sqlite")
    with running(in_use(folder), log=later, audit=0.5) as server:
        send_labels(server, {question: server.chat(question).json() for question in ASKED[40:70]})
    before = new.report.added
    assert before is not None
    _, said = add(folder, later.path, tmp_path / "forgotten")
    count = before.fit + before.apart
    assert f"{count} of the {count} labels that the calibration was learned with are in none of" in said
    newer, said = add(folder, path, tmp_path / "newer")
    assert "in none of these logs" not in said
    assert f"calibrate: {n} labels of" in said
    assert newer.ancestors == (first.id, new.id)
    _, said = add(old, path, tmp_path / "again")
    assert f"{watch.tests['calibration'].n} labels are not used: {production.OTHER_CALIBRATION}" in said


def unlabelled(log: Path) -> list[tuple[str]]:
    query = "SELECT id FROM replies WHERE id NOT IN (SELECT id FROM labels) ORDER BY number"
    with closing(sqlite3.connect(log)) as database:
        return database.execute(query).fetchall()


def test_logs_of_replicas_give_what_one_log_gives_wherever_labels_are(
    old: Path, log: Path, tmp_path: Path
) -> None:
    """Every second reply is in another log; all labels are in a third, which has the replies as well."""
    expected, _ = add(old, log, tmp_path / "one")
    parts = [Path(shutil.copy(log, tmp_path / f"{name}.sqlite")) for name in ("odd", "even")]
    for place, part in enumerate(parts):
        change(part, f"DELETE FROM replies WHERE number % 2 = {place}")
        change(part, "DELETE FROM labels")
    further = [option for path in (parts[1], log) for option in ("--add", path)]
    new, said = add(old, parts[0], tmp_path / "parts", *further)
    assert (new.map, new.threshold) == (expected.map, expected.threshold)
    assert new.report.added == expected.report.added
    assert " and ".join(map(str, (*parts, log))) in said
    said = refused(old, parts[0], tmp_path / "none", "--add", parts[1])
    assert "all replicas" in said


# ---- What is left out


def test_what_cannot_be_learnt_from_is_counted_and_left_out(old: Path, log: Path, tmp_path: Path) -> None:
    first = Calibration.from_pretrained(old)
    kept = ReplyLog(log)
    prompt, by = first.provenance.prompt_hash, {"calibration": first.id}
    everything = {"E-SC": 1.0, "likelihood": None}
    cases: dict[str | None, dict[str, Any]] = {
        production.OTHER_PROMPT: {"template": "f00", **by},
        production.NOT_COVERED: {"probability": None, "threshold": None, **by},
        production.NO_FEATURES: {"features": {"entropy": 0.1}, **by},
        None: {"probability": None, "abstained": True, **by},  # during an alarm
        production.OTHER_CALIBRATION: {"calibration": "0" * 12},
    }
    before = add(old, log, tmp_path / "before")[0].report.added
    for number, (reason, values) in enumerate(cases.items(), 1):
        for count in range(number):
            usual = {"template": prompt, "features": everything, "answer": None, "probability": 0.9}
            usual |= {"threshold": 0.5, "abstained": False, "route": "fake", "time": 0.0}
            kept.add(Reply(id=f"{reason}-{count}", **usual | values))
            kept.label({f"{reason}-{count}": True})
    after = add(old, log, tmp_path / "after")[0].report.added
    left_out = {reason: number for number, reason in enumerate(cases, 1) if reason is not None}
    assert after.left_out == left_out
    assert (after.fit, after.apart) == (before.fit + list(cases).index(None) + 1, before.apart)


def test_where_another_model_answered_in_between_no_added_label_is_for_the_threshold(
    old: Path, log: Path, tmp_path: Path
) -> None:
    change(log, "UPDATE replies SET route = 'stronger', calibration = 'f' WHERE abstained AND number > 3")
    new, said = add(old, log, tmp_path / "new")
    assert (new.report.added.apart, new.report.added.left_out[production.OTHER_CALIBRATION] > 0) == (0, True)
    assert "answered in between" in said
    assert "omit --audited" in refused(old, log, tmp_path / "alone", "--audited")


def test_labels_without_an_audit_are_for_the_map_alone(old: Path, log: Path, tmp_path: Path) -> None:
    change(log, "UPDATE replies SET audited = 0")
    new, said = add(old, log, tmp_path / "new")
    assert (new.report.added.apart, "Serve with --audit" in said) == (0, True)
    assert new.report.apart == Calibration.from_pretrained(old).report.apart


# ---- The threshold


def test_two_in_five_labels_are_for_the_threshold_whether_or_not_they_are_audited() -> None:
    names = [f"chatcmpl-{number}" for number in range(20_000)]
    for chosen in (names, [name for name in names if production.is_in_share(name, 0.1)]):
        share = np.mean([production.is_apart(name) for name in chosen])
        assert abs(share - 0.4) < 4.5 * math.sqrt(0.24 / len(chosen))


def test_no_choice_of_the_audited_replies_that_are_labeled_breaks_the_guarantee(old: Path) -> None:
    """Labels of correct answers alone, by a score other than the new one.

    An answer is correct with probability (share + score) / 2, and answered from a share of .7 on: of those
    from a score of t on .65 - (1 + t) / 4 are wrong, which is at most .2 from t = .8 on.
    """
    calibration, rng, worlds = Calibration.from_pretrained(old), np.random.default_rng(13), 20
    broken, n = 0, 2000
    for _ in range(worlds):
        share, score = rng.uniform(0.4, 1, n), rng.uniform(0, 1, n)
        right = rng.random(n) < (share + score) / 2
        labelled = (share >= 0.7) & right
        replies = [
            reply_of(calibration, number, bool(right[number]) if labelled[number] else None, score[number])
            for number in range(n)
        ]
        assert not production.labels_for(calibration, replies).apart.any()
        labels = production.labels_for(calibration, [one for one in replies if one.correct is not None])
        scores, correct, apart = labels.features["E-SC"], labels.correct, labels.apart
        (found,) = set_thresholds(ThresholdLabels(scores[apart], correct[apart]), [0.2], 0.05, explain=False)
        broken += found.threshold is not None and found.threshold < 0.8
    assert broken > 5  # without the rule; of 20 with .05 each more once in 3 000 times


def reply_of(
    calibration: Calibration, number: int, correct: bool | None, share: float = 0.5, **changed: Any
) -> production.LoggedReply:
    """An audited reply by a calibration; the place of its label is that of the reply."""
    by = (True, calibration.id, calibration.provenance.prompt_hash, True, {"E-SC": share})
    reply = production.LoggedReply(number, f"reply {number}", correct, *by, labelled_at=number)
    return replace(reply, **changed)


def test_audited_replies_without_a_label_count_as_wrong_where_the_threshold_is_set(old: Path) -> None:
    calibration = Calibration.from_pretrained(old)
    replies = [reply_of(calibration, number, None if number < 20 else True) for number in range(400)]
    replies.append(reply_of(calibration, 400, None, audited=False))
    labels = production.labels_for(calibration, replies)
    of_threshold = [production.is_apart(reply.id) for reply in replies[:400]]
    unlabeled = sum(of_threshold[:20])
    assert labels.missing == tuple(reply.id for reply in replies[:20])
    assert labels.correct.tolist() == [number >= unlabeled for number in range(380 + unlabeled)]
    assert labels.apart.tolist() == [True] * unlabeled + of_threshold[20:]
    counted = (labels.record.unlabelled, labels.record.assumed_wrong, labels.record.labeled)
    assert counted == (20, unlabeled, 380)
    replies[20] = replace(replies[20], correct=None)  # .9475 are labeled
    few = production.labels_for(calibration, replies)
    assert (few.apart.any(), len(few.correct), len(few.missing)) == (False, 379, 21)
    assert "since 21 of 400 audited replies have no label" in few.problems[0]
    assert production.labels_for(calibration, replies, threshold=False).problems == ()


def test_an_audited_reply_that_equals_a_labeled_one_needs_no_label(old: Path) -> None:
    """The first audited one stands for both; a label of a reply that nobody had marked is not enough."""
    calibration = Calibration.from_pretrained(old)
    first, again, liked, marked = (
        reply_of(calibration, 0, None, 0.1, content=7),
        reply_of(calibration, 1, True, 0.2, content=7),
        reply_of(calibration, 2, True, 0.3, content=8, audited=False),
        reply_of(calibration, 3, None, 0.4, content=8),
    )
    labels = production.labels_for(calibration, [first, again])
    assert (labels.missing, labels.features["E-SC"].tolist(), labels.correct.tolist()) == ((), [0.1], [1.0])
    assert labels.apart.tolist() == [production.is_apart(first.id)]
    labels = production.labels_for(calibration, [first, again, liked, marked])
    assert labels.missing == (marked.id,)
    assert labels.correct.sum() == 2
    assert labels.record.left_out == {}


def test_missing_labels_are_listed_and_without_them_no_threshold_is_set(
    old: Path, log: Path, tmp_path: Path
) -> None:
    first = "SELECT id FROM replies WHERE audited ORDER BY number LIMIT 12"
    change(log, f"DELETE FROM labels WHERE id IN ({first})")
    with closing(sqlite3.connect(log)) as database:
        ids = [id for (id,) in database.execute(first)]
    code, (line,), said = command("calibrate", old, "--add", log, "--out", tmp_path / "new")
    assert (code, line["missing_labels"]) == (0, ids)
    assert "12 audited replies have no label" in said
    assert (line["added"]["apart"], line["apart"]) == (0, Calibration.from_pretrained(old).report.apart)
    code, lines, said = command("calibrate", old, "--add", log, "--out", tmp_path / "no", "--audited")
    assert (code, lines) == (1, [{"missing_labels": ids}])
    assert "omit --audited" in said


# ---- What is refused


def test_options_that_the_calibration_has_are_refused(old: Path, log: Path, tmp_path: Path) -> None:
    for option, words in (
        (("--m", 5), "--m cannot change"),
        (("--grader", "nli"), "--grader cannot change"),
        (("--model", "atlas"), "--model cannot change"),
    ):
        assert words in refused(old, log, tmp_path / "new", *option)
    code, _, said = command("calibrate", old, "--audited", "--out", tmp_path / "new")
    assert (code, "--add" in said) == (2, True)
    code, _, said = command("calibrate", old, "--add", log, "--out", old, "--overwrite")
    assert (code, "choose another directory" in said) == (2, True)
    shutil.copytree(old, tmp_path / "bare")
    (tmp_path / "bare" / "samples.jsonl").unlink()
    assert "has no samples.jsonl" in refused(tmp_path / "bare", log, tmp_path / "new")


def test_a_log_that_cannot_be_used_is_named_with_what_to_do(
    old: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "new"
    assert "semcal serve --log FILE" in refused(old, tmp_path / "none.sqlite", out)
    deep = '{"E-SC": ' + "[" * 50_000 + "]" * 50_000 + "}"
    long = '{"entropy": 1' + "0" * 400 + "}"
    for wrong in ('{"E-SC": "high"}', "[1]", "{", '{"entropy": NaN}', deep, long):
        change(log, f"UPDATE replies SET features = '{wrong}' WHERE number = (SELECT max(number) FROM replies"
               " WHERE id IN (SELECT id FROM labels))")  # fmt: skip
        said = refused(old, log, out)
        assert re.search(r"row \d+, the reply .chatcmpl-\w+", said), said
    change(log, "UPDATE replies SET calibration = 'abc', features = '{}'")
    said = refused(old, log, out)
    assert "it has replies by abc" in said
    change(log, "DELETE FROM labels")
    assert "/v1/semcal/labels" in refused(old, log, out)
