"""The stored watch: equal to one that reads the whole log, and never used for another log."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from semcal.calibration.calibration import Calibration
from semcal.calibration.watch import PromiseWatch
from semcal.reply_log import LabelChoice, Reply, ReplyLog
from semcal.serve.watch_file import load_watch, store_watch, watch_file
from tests.serve.serving import watch_of

ATLAS = Calibration.from_pretrained("atlas")


def add(path: Path, first: int, last: int) -> None:
    """Add replies of the calibration with these numbers; every second one has a label."""
    rng = np.random.default_rng(first)
    assert ATLAS.threshold is not None
    threshold = ATLAS.threshold.threshold
    with closing(ReplyLog(path)) as log:
        for number in range(first, last):
            p = float(rng.choice(ATLAS.labeled.probability))
            verdict = (p, threshold, p < (threshold or 0))
            log.add(Reply(str(number), 0.0, "f00", {}, None, *verdict, "model", calibration=ATLAS.id))
            if number % 2:
                log.label({str(number): bool(rng.random() < p)})


def served(path: Path, *, calibration: Calibration = ATLAS) -> PromiseWatch:
    """Start and end as a server does; return the watch from the start, before anything is read."""
    watch = load_watch(calibration, path)
    before = deepcopy(watch)
    store_watch(watch, calibration, path)
    return before


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.sqlite"
    add(path, 0, 300)
    served(path)
    return path


def statement(text: str) -> Callable[[Path], None]:
    """Edit a log with another program."""

    def edit(path: Path) -> None:
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(text)

    return edit


def test_the_stored_watch_is_the_one_that_reads_the_whole_log_and_goes_on_from_there(log: Path) -> None:
    assert load_watch(ATLAS, log) == watch_of(log, ATLAS)
    at_start = load_watch(ATLAS, log)
    assert at_start.tests["questions"].n == 300
    add(log, 300, 450)
    store_watch(at_start, ATLAS, log)
    assert at_start == load_watch(ATLAS, log) == watch_of(log, ATLAS)
    assert load_watch(ATLAS, log).tests["calibration"].n == 225


@pytest.mark.parametrize(
    "change",
    [
        statement("UPDATE replies SET probability = 0.5 WHERE number = 7"),
        statement("UPDATE labels SET correct = 1 - correct WHERE number = 7"),
        statement("DELETE FROM replies WHERE number = 7"),
        lambda path: add(path, 300, 301),
        lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x"),
        lambda path: path.unlink(),
        lambda path: watch_file(path).write_bytes(watch_file(path).read_bytes()[:-200]),
        lambda path: watch_file(path).write_bytes(b""),
        lambda path: watch_file(path).write_text(watch_file(path).read_text().replace("0.", "0.1", 1)),
    ],
)
def test_after_a_change_of_the_log_or_a_damage_of_the_file_the_log_is_read_again(
    change: Callable[[Path], object], log: Path
) -> None:
    change(log)
    assert load_watch(ATLAS, log) == PromiseWatch.of(ATLAS)


def test_the_watch_of_another_calibration_is_not_used(log: Path) -> None:
    other = replace(ATLAS, threshold=None, thresholds=())
    assert served(log, calibration=other) == PromiseWatch.of(other)
    assert served(log, calibration=other).tests.keys() == {"calibration", "questions"}


def test_while_a_server_that_was_killed_has_left_rows_beside_the_log_nothing_is_used_or_stored(
    log: Path, tmp_path: Path
) -> None:
    with closing(ReplyLog(log)) as opened:
        opened.add(Reply("late", 0.0, "f00", {}, None, 0.9, 0.5, False, "model", calibration=ATLAS.id))
        copy = tmp_path / "copy.sqlite"
        for name in (log.name, f"{log.name}-wal", watch_file(log).name):
            (tmp_path / name.replace("log", "copy")).write_bytes((tmp_path / name).read_bytes())
    assert load_watch(ATLAS, copy) == PromiseWatch.of(ATLAS)
    before = watch_file(copy).read_bytes()
    store_watch(PromiseWatch.of(ATLAS), ATLAS, copy)
    assert watch_file(copy).read_bytes() == before


def test_struck_labels_do_not_count_in_a_watch_that_was_stored_before(log: Path) -> None:
    watch = load_watch(ATLAS, log)
    with closing(ReplyLog(log)) as opened:
        assert opened.strike(LabelChoice(ids=["1", "3"])) == 2
    store_watch(watch, ATLAS, log)
    assert load_watch(ATLAS, log) == watch_of(log, ATLAS)
    assert watch.tests["calibration"].n == 148


def test_a_watch_that_cannot_be_stored_stops_no_server(log: Path) -> None:
    watch_file(log).unlink()
    watch_file(log).mkdir()
    assert served(log) == PromiseWatch.of(ATLAS)
