"""Servers are killed under load: the log is whole, and holds each reply and label that clients were told."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx
import pytest

from tests.serve.serving import TABLE, until

#: How often a server is killed with -m serve, and in the default suite.
KILLS, FEW_KILLS = 200, 3
CLIENTS = 8


@dataclass
class Told:
    """What clients were told: the ids of replies, and the labels that were taken."""

    replies: set[str] = field(default_factory=set)
    labels: set[str] = field(default_factory=set)

    def ask(self, url: str, rng: Random) -> None:
        """Ask, in streams or not, and label, until the server is gone."""
        with httpx.Client(base_url=url, timeout=60) as client:
            while True:
                messages = [{"role": "user", "content": rng.choice([*TABLE])}]
                body = {"model": "fake", "messages": messages, "stream": rng.random() < 0.3}
                try:
                    reply = self._asked(client, body)
                    if rng.random() < 0.5:
                        some = [reply, rng.choice([*self.replies])]
                        labels = [{"id": id, "correct": True} for id in some]
                        if client.post("/semcal/labels", json=labels).status_code == 200:
                            self.labels.update(some)
                except (httpx.TransportError, json.JSONDecodeError):
                    return

    def _asked(self, client: httpx.Client, body: dict[str, object]) -> str:
        """The id of a reply, which is there from its first event on."""
        with client.stream("POST", "/chat/completions", json=body) as reply:
            assert reply.status_code == 200
            line = next(reply.iter_lines(), "").removeprefix("data: ") if body["stream"] else reply.read()
            id: str = json.loads(line)["id"]
            self.replies.add(id)
        return id

    def check(self, log: Path) -> None:
        """Assert that a log is whole, and holds all of it."""
        with closing(sqlite3.connect(log)) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert self.replies <= {id for (id,) in database.execute("SELECT id FROM replies")}
            assert self.labels <= {id for (id,) in database.execute("SELECT id FROM labels WHERE correct")}


@contextmanager
def forking(log: Path, said: Path) -> Iterator[subprocess.Popen[str]]:
    """What starts servers; see `tests.serve.forking`."""
    command = [sys.executable, "-m", "tests.serve.forking", str(log), str(said)]
    pipes: dict[str, int] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as popen:
        try:
            yield popen
        finally:
            os.killpg(popen.pid, signal.SIGKILL)


def started(popen: subprocess.Popen[str], said: Path) -> tuple[int, str]:
    """Start a server: its process id and its address."""
    assert popen.stdin is not None
    assert popen.stdout is not None
    popen.stdin.write("\n")
    popen.stdin.flush()
    pid = int(popen.stdout.readline())
    address = re.compile(r"at (http://\S+/v1)\W")
    until(lambda: address.search(said.read_text()) is not None)
    return pid, address.findall(said.read_text())[0]


@pytest.mark.parametrize(
    "kills", [FEW_KILLS, pytest.param(KILLS, marks=[pytest.mark.slow, pytest.mark.serve])]
)
def test_a_killed_server_has_logged_what_it_told_and_its_log_is_whole(kills: int, tmp_path: Path) -> None:
    log, said, told, start = tmp_path / "log.sqlite", tmp_path / "said.txt", Told(), time.monotonic()
    with forking(log, said) as popen:
        for kill in range(kills):
            rng = Random(kill)
            pid, url = started(popen, said)
            threads = [
                threading.Thread(target=told.ask, args=(url, Random(f"{kill} {client}")))
                for client in range(CLIENTS)
            ]
            for thread in threads:
                thread.start()
            enough = len(told.replies) + rng.randrange(20)
            until(lambda enough=enough: len(told.replies) >= enough)
            time.sleep(rng.uniform(0, 0.1))
            os.kill(pid, signal.SIGKILL)
            for thread in threads:
                thread.join()
            told.check(log)
    seconds = time.monotonic() - start
    counts = f"{len(told.replies)} replies and {len(told.labels)} labels"
    print(f"{kills} kills in {seconds:.0f} s: {counts} were told, all of them logged")  # noqa: T201
    assert told.labels <= told.replies
    assert told.labels
