"""Whatever ends a command, what a server has answered is kept, and asked for no second time."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from semcal.store import keeping_replies, kept_replies
from tests.cli.invoking import semcal, write
from tests.cli.running import finish, start
from tests.servers import fake_model
from tests.servers.fake_server import FakeServer

#: Requests that are sent at a time: those that a kill can find without a reply.
AT_A_TIME = 3
RIGHT = [next(iter(known)) for known in fake_model.ANSWERS.values()]
ROWS = [{"id": f"q{i}", "question": f"Who built mill {i}?", "answers": RIGHT} for i in range(100)]

pytestmark = pytest.mark.filterwarnings("always::semcal.errors.SemcalWarning")  # they are printed


def asked(server: FakeServer) -> Counter[str]:
    """How often each request was sent that asks one of our questions."""
    bodies = [json.dumps(body, sort_keys=True) for _, body in server.requests]
    return Counter(body for body in bodies if "Question: " in body)


def contents(out: Path) -> dict[str, bytes]:
    """A file, or the files of a folder."""
    files = [out] if out.is_file() else [path for path in out.rglob("*") if path.is_file()]
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def stopped_and_resumed(
    command: Sequence[Any], how: signal.Signals, after: int, server: FakeServer, folder: Path
) -> None:
    """Stop a command after so many requests, run it again, and compare with a call that was not stopped."""
    command = (*command, "--model", server.name, "--config", f"server.concurrency={AT_A_TIME}")
    code, _, said = semcal(*command, "--out", folder / "whole")
    assert code == 0, said
    whole = asked(server)
    server.requests.clear()
    server.quirks.delay = 0.01
    running = start(*command, "--out", folder / "out", said=folder / "said")
    while running.is_alive() and asked(server).total() < after:
        time.sleep(0.01)
    assert running.pid is not None
    os.kill(running.pid, how)
    assert finish(running) == (143 if how == signal.SIGTERM else -how)
    before, server.quirks.delay = asked(server), 0.0
    assert after <= before.total() < whole.total()
    code, _, said = semcal(*command, "--out", folder / "out")
    assert (code, "resuming" in said) == (0, True), said
    assert contents(folder / "out") == contents(folder / "whole")
    assert not (folder / "out.unfinished").exists()
    assert asked(server).keys() == whole.keys()
    assert (asked(server) - whole).total() <= AT_A_TIME


@pytest.mark.parametrize(("how", "after"), [(signal.SIGKILL, 150), (signal.SIGTERM, 44)])
def test_a_stopped_sampling_asks_no_answered_question_again(
    how: signal.Signals, after: int, tmp_path: Path
) -> None:
    file = write(tmp_path / "q.jsonl", ROWS)  # blocks of 64 and 36 questions, of two requests each
    with FakeServer(log_probs="scaled", n_ignored=True) as server:
        stopped_and_resumed(("sample", file, "--m", 2), how, after, server, tmp_path)


def test_a_killed_calibration_asks_no_answered_question_again(tmp_path: Path) -> None:
    """It is killed among the greedy answers that come after all draws."""
    file = write(tmp_path / "q.jsonl", ROWS[:48])
    command = ("calibrate", file, "--m", 2, "--answer", "greedy", "--equivalence", "exact")
    with FakeServer(log_probs="scaled", n_ignored=True) as server:
        stopped_and_resumed(command, signal.SIGKILL, 230, server, tmp_path)


def test_a_reply_that_was_cut_short_or_damaged_is_passed_over(tmp_path: Path) -> None:
    path, whole = tmp_path / "block.replies", {"choices": [float("-inf"), "😀", 10**19]}
    with keeping_replies(path):
        for number in range(3):
            kept_replies().add({"seed": number}, whole)
        assert kept_replies().find({"seed": 0}) is None  # what is asked twice in one call is asked twice
    first, second, third = path.read_bytes().split()[1::2]
    name = path.read_bytes().split()[::2]
    damaged = second[:-9] + (b"A" if second[-9:-8] != b"A" else b"B") + second[-8:]
    path.write_bytes(b"\n".join(b" ".join(pair) for pair in zip(name, (first, damaged, third[:-20]))))
    with keeping_replies(path):
        found = [kept_replies().find({"seed": number}) for number in range(4)]
    assert found == [whole, None, None, None]
    assert kept_replies() is None
    assert path.stat().st_mode & 0o77 == 0
