"""The log of replies: what goes in comes out, in order, from any number of threads, whatever happens."""

import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semcal import reply_log as log_module
from semcal.errors import InputError, StoreError
from semcal.reply_log import LabelChoice, LabelledReply, Reply, ReplyLog


def reply_of(id: str, probability: float | None = 0.75, **values: object) -> Reply:
    fields = {
        "id": id,
        "time": 12.5,
        "template": "f00",
        "features": {"E-SC": 0.7, "likelihood": None},
        "answer": "paris",
        "probability": probability,
        "threshold": 0.5,
        "abstained": False,
        "route": "model",
    }
    return Reply(**(fields | values))


def test_a_reply_comes_back_as_it_was_written(tmp_path: Path) -> None:
    log = ReplyLog(tmp_path / "new" / "log.sqlite")
    replies = [
        reply_of("a", texts={"question": "Wo?"}, cost=0.25, audited=True),
        reply_of("b", None, answer=None, threshold=None, abstained=True),
    ]
    for reply in replies:
        log.add(reply)
    assert [log.reply("a"), log.reply("b"), log.reply("c")] == [*replies, None]
    with pytest.raises(StoreError, match="UNIQUE"):
        log.add(reply_of("a"))
    log.close()
    assert ReplyLog(log.path).reply("a") == replies[0]


def test_labels_stand_in_order_of_arrival_and_probabilities_in_that_of_replies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "PAGE", 2)
    log = ReplyLog(tmp_path / "log.sqlite")
    for number, id in enumerate("abcde"):
        log.add(reply_of(id, None if id == "b" else number / 8, time=-number))
    for id, correct in (("d", True), ("a", False), ("b", True)):
        assert log.label({id: correct}) == {id: True}
    assert list(log.labelled()) == [
        LabelledReply("d", 3 / 8, 0.5, False, True, False),
        LabelledReply("a", 0.0, 0.5, False, False, False),
        LabelledReply("b", None, 0.5, False, True, False),
    ]
    assert [p for _, p in log.probabilities()] == [0.0, 2 / 8, 3 / 8, 4 / 8]


LABELS = st.lists(
    st.tuples(st.integers(0, 5), st.booleans(), st.sampled_from(["", "key", "other"]), st.booleans()),
    max_size=14,
)


@settings(max_examples=40, deadline=None)
@given(labels=LABELS)
def test_of_equal_answers_to_equal_questions_the_first_label_that_is_not_struck_counts(
    labels: list[tuple[int, bool, str, bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Replies 0 and 1, and 2 and 3, are equal; 4 and 5 are equal, but by two calibrations."""
    log = ReplyLog(tmp_path_factory.mktemp("log") / "log.sqlite")
    for number in range(6):
        calibration = "new" if number == 5 else "old"
        log.add(reply_of(str(number), content=number // 2, calibration=calibration))
    kept: list[tuple[int, bool, str]] = []  # what should be there, in order
    for number, correct, key, strike in labels:
        of_equal = [one for one in kept if one[0] in _equal(number)]
        counts = not of_equal or of_equal[0] == (number, correct, key)
        assert log.label({"no reply": correct}, key) == {}
        assert log.label({str(number): correct}, key) == ({str(number): not of_equal} if counts else {})
        if (number, correct, key) not in kept:
            kept.append((number, correct, key))
        if strike:
            struck = [one for one in kept if one[0] == number and one[2] == key]
            assert log.strike(LabelChoice([str(number)], key=key)) == len(struck)
            assert log.strike(LabelChoice([str(number)], key=key), restore=True) == len(struck)
    counted = [one for i, one in enumerate(kept) if not [o for o in kept[:i] if o[0] in _equal(one[0])]]
    assert [(reply.id, reply.correct) for reply in log.labelled()] == [(str(n), c) for n, c, _ in counted]
    for number, correct, key in counted:  # the next one takes the place of a struck one
        log.strike(LabelChoice([str(number)], key=key))
        rest = [one for one in kept if one[0] in _equal(number) and (one[0], one[2]) != (number, key)]
        now = [(reply.id, reply.correct) for reply in log.labelled() if int(reply.id) in _equal(number)]
        assert now == ([(str(rest[0][0]), rest[0][1])] if rest else [])
        conflicts = {(one.id, one.correct) for one in log.labels() if one.conflicts}
        both = {c for _, c, _ in rest} == {True, False}
        assert all(((str(n), c) in conflicts) == both for n, c, _ in rest)
        log.strike(LabelChoice([str(number)], key=key), restore=True)
        del correct


def _equal(number: int) -> set[int]:
    return {number} if number > 3 else {number // 2 * 2, number // 2 * 2 + 1}


def test_an_operator_strikes_labels_by_key_and_time_and_another_process_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ReplyLog(tmp_path / "log.sqlite")
    for number in range(4):
        log.add(reply_of(str(number)))
        monkeypatch.setattr(log_module.time, "time", lambda number=number: 100.0 + number)
        log.label({str(number): False}, "evil" if number % 2 else "good")
    other = ReplyLog(log.path)
    assert other.strike(LabelChoice(key="evil", since=102.0)) == 1
    assert log.n_strikes == other.n_strikes == 1
    assert [reply.id for reply in log.labelled()] == ["0", "1", "2"]
    assert other.strike(LabelChoice(until=101.0)) == 1
    assert [one.id for one in log.labels() if one.struck] == ["0", "3"]
    assert log.label({"3": False}, "evil") == {}  # a key does not bring back what was struck
    assert other.strike(LabelChoice(), restore=True) == 2
    assert len(list(log.labelled())) == 4


def test_of_audited_replies_the_first_label_of_these_counts(tmp_path: Path) -> None:
    """A complaint about an equal answer that nobody had marked takes nothing from the audit."""
    log = ReplyLog(tmp_path / "log.sqlite")
    for id, audited in (("complaint", False), ("audit", True), ("again", True)):
        log.add(reply_of(id, content=7, audited=audited))
        log.label({id: False})
    assert [reply.id for reply in log.labelled()] == ["complaint"]
    assert [reply.id for reply in log.labelled(audited=True)] == ["audit"]


CRASHING = """
import os, sys
from pathlib import Path
from semcal.reply_log import LabelChoice, Reply, ReplyLog
log = ReplyLog(Path(sys.argv[1]))
def add(id):
    log.add(Reply(id, 0.0, "f00", {}, "paris", 0.9, 0.5, False, "model"))
add("a")
log.label({"a": True})
log.reply("a")
print(flush=True)
sys.stdin.readline()
for number in range(50):
    add(f"later {number}")
os._exit(9)
"""


def test_a_server_that_is_killed_after_another_process_struck_labels_has_lost_no_reply(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.sqlite"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    server = subprocess.Popen([sys.executable, "-c", CRASHING, str(path)], **pipes)
    server.stdout.readline()
    strike = CRASHING.partition("def add")[0] + "log.strike(LabelChoice(['a']))\nlog.close()"
    subprocess.run([sys.executable, "-c", strike, str(path)], check=True)
    server.communicate("go\n")
    assert server.returncode == 9
    log = ReplyLog(path)
    assert len(list(log.probabilities())) == 51
    assert list(log.labelled()) == []


def test_many_threads_write_and_nothing_is_lost(tmp_path: Path) -> None:
    log = ReplyLog(tmp_path / "log.sqlite")

    def write(thread: int) -> None:
        for number in range(50):
            log.add(reply_of(f"{thread}-{number}"))
            log.label({f"{thread}-{number}": number % 2 == 0})

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(log.labelled())) == len(list(log.probabilities())) == 200


def test_the_log_is_for_its_owner_alone(tmp_path: Path) -> None:
    log = ReplyLog(tmp_path / "log.sqlite")
    log.add(reply_of("a"))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("log.sqlite", "log.sqlite-shm", "log.sqlite-wal"), 0o600)


def test_a_log_that_is_read_is_not_written_to(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.sqlite"):
        ReplyLog(tmp_path / "none.sqlite", read_only=True)
    ReplyLog(tmp_path / "log.sqlite").close()
    log = ReplyLog(tmp_path / "log.sqlite", read_only=True)
    with pytest.raises(StoreError, match="readonly"):
        log.add(reply_of("a"))
    assert [path.name for path in tmp_path.iterdir()] == ["log.sqlite"]


@pytest.mark.parametrize(
    ("statement", "named"),
    [("DROP TABLE labels", "tables"), ("PRAGMA user_version = 9", "9"), (None, "another program")],
)
def test_a_file_that_is_no_log_is_refused(statement: str | None, named: str, tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    if statement is not None:
        ReplyLog(path).close()
    with closing(sqlite3.connect(path)) as database:
        database.execute(statement or "CREATE TABLE others (x)")
    with pytest.raises(StoreError, match=named):
        ReplyLog(path)
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreError, match="damaged"):
        ReplyLog(path)


def test_a_full_disk_is_said_and_passes(tmp_path: Path) -> None:
    log = ReplyLog(tmp_path / "log.sqlite")
    log.add(reply_of("a"))
    (pages,) = log._database.execute("PRAGMA page_count").fetchone()
    log._database.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="space"):
        log.add(reply_of("b", texts={"question": "?" * 10**5}))
    log._database.execute("PRAGMA max_page_count = 100000")
    log.add(reply_of("c"))
    assert [log.reply(id) is not None for id in "abc"] == [True, False, True]
