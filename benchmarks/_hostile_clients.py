"""Clients that harm a service, as areas of benchmarks.robustness.

Each case starts a service and one kind of client: silent sockets, a slow head or body, damaged heads, long
references, invalid labels, or a program that locks the log. The rules: the server lives, its next reply is
that of an undisturbed service, no request gets 500, each reply is in the log or counted as lost, a label is
accepted once, and the log of the server consists of a few lines of JSON.
"""

from __future__ import annotations

import json
import logging
import re
import socket
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from random import Random

from benchmarks._damage import Ended
from benchmarks._mutations import changed_bytes
from semcal.reply_log import ReplyLog
from tests.serve.serving import SANG, WHERE, WROTE, Running, running

Case = Callable[[Random], tuple[Ended, str, list[str]]]
Found = tuple[str, list[str]]  # a description of a case, and its violated rules
Attack = Callable[[Running, Random], Found]
CHAT, LABELS = "/v1/chat/completions", "/v1/semcal/labels"
QUESTIONS = (WROTE, SANG, WHERE)
#: Limits of the service: connections, characters, seconds for a slow head or body.
CONNECTIONS, CHARACTERS, SECONDS = 12, 20_000, 0.3
#: Maximum number of logged bytes in a case, and loggers that may only write lines of JSON.
LOGGED, LOGGERS = 100_000, ("semcal.serve", "uvicorn.error", "asyncio")
PIECES = (
    "1/2 ",
    "paris ",
    "\\frac{1}{2} ",
    "1-",
    "(",
    "and ",
    "5 km ",
    "\ud7ff",
    "12:30 ",
    "Ana Velis ",
    "{",
    "",
)
HEAD = f"POST {CHAT} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
GET = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nx-request-id: r\r\nconnection: close\r\n\r\n"


def client_areas() -> dict[str, tuple[float, Case]]:
    """Return name of each area → its share of the cases, and a function that makes a case."""
    return {f"serve, {name}": (1.0, _case(attack)) for name, attack in ATTACKS.items()}


def _case(attack: Attack) -> Case:
    expected: dict[str, float] = {}

    def case(random: Random) -> tuple[Ended, str, list[str]]:
        lines: list[str] = []
        with tempfile.TemporaryDirectory() as folder, _logged(lines):
            log = ReplyLog(Path(folder) / "log.sqlite")
            with running(log=log, max_characters=CHARACTERS, max_connections=CONNECTIONS) as server:
                expected.setdefault(WROTE, _confidence(server))
                words, faults = attack(server, random)
                server.read_for(30.0)
                faults += _faults(server, expected[WROTE], lines)
        return Ended(0, "", "", 0.0, None), words, faults

    return case


@contextmanager
def _logged(lines: list[str]) -> Iterator[None]:
    """Collect the log of the server."""
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
    loggers[0].setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.removeHandler(handler)
            logger.setLevel(level)


def _confidence(server: Running) -> float:
    confidence: float = server.chat(WROTE).json()["semcal"]["confidence"]
    return confidence


def _faults(server: Running, confidence: float, lines: list[str]) -> list[str]:
    metrics = server.get("/metrics").text
    kept, lost = len(list(_log(server).probabilities())), _sum("unlogged_total", metrics)
    replies = _sum('requests_total{outcome="answered"}', metrics)
    replies += _sum('requests_total{outcome="abstained"}', metrics)
    rules = {
        "the server is dead": server.get("/health").status_code != 200,
        "the next reply differs": _confidence(server) != confidence,
        "a request got 500": any('"status": 500' in line or '"error"' in line for line in lines),
        "replies are neither logged nor counted as lost": kept + lost != replies,
        "the log holds lines that are not JSON": not all(line.startswith("{") for line in lines),
        f"more than {LOGGED} bytes are logged": sum(map(len, lines)) > LOGGED,
    }
    return [rule for rule, broken in rules.items() if broken]


def _log(server: Running) -> ReplyLog:
    return server.service.log


def _sum(name: str, metrics: str) -> int:
    return sum(int(float(value)) for value in re.findall(rf"^semcal_{re.escape(name)} (\S+)$", metrics, re.M))


def _connect(server: Running) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=10)


# ---- Actions of clients


def _silent(server: Running, random: Random) -> Found:
    server.read_for(random.choice((SECONDS, 30.0)))
    n = random.randrange(1, 4 * CONNECTIONS)
    with ExitStack() as stack:
        for _ in range(n):
            connection = stack.enter_context(_connect(server))
            if random.random() < 0.5:  # the others send nothing
                connection.sendall(HEAD[: random.randrange(1, len(HEAD))].encode())
        server.read_for(30.0)
        is_alive = server.get("/health").status_code == 200
    return f"{n} silent connections", [] if is_alive else ["silent connections block others"]


def _slow(server: Running, random: Random) -> Found:
    server.read_for(SECONDS)
    size = random.choice((1, 10, 10**6))
    rest = random.choice(("", f"content-length: {size}\r\n\r\n", "transfer-encoding: chunked\r\n\r\n"))
    words = f"{rest!r}, then a byte at a time"
    with _connect(server) as connection, suppress(ConnectionError):
        connection.sendall(f"{HEAD}{rest}".encode())
        connection.settimeout(0.01)
        for _ in range(3000):
            with suppress(TimeoutError):
                if not connection.recv(10_000):
                    return words, []
            connection.sendall(b"x")
        return words, ["the server waits for ever"]
    return words, []


def _damaged(server: Running, random: Random) -> Found:
    server.read_for(SECONDS)
    body = json.dumps({"model": "fake", "messages": [{"role": "user", "content": SANG}]}).encode()
    whole = f"{HEAD}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body
    sent, words = changed_bytes(random.choice((GET, whole)), random)
    with _connect(server) as connection, suppress(ConnectionError, TimeoutError):
        connection.sendall(sent)
        connection.settimeout(30)
        while connection.recv(10_000):
            pass
    return words, []


def _references(server: Running, random: Random) -> Found:
    piece = random.choice(PIECES) + random.choice(PIECES) + " "
    text = piece * random.randrange(1, 2 * CHARACTERS // len(piece))
    reference = random.choice((text, [text], [piece] * random.randrange(1, 2000), [text, "Ana Velis"]))
    ids = [server.chat(random.choice(QUESTIONS)).json()["id"] for _ in range(3)]
    labels = [{"id": id, "reference": reference} for id in ids]
    status = server.post(LABELS, random.choice((labels, labels[0]))).status_code
    return f"{len(text)} characters of {piece!r}", [] if status in (200, 400) else [f"HTTP {status}"]


def _labels(server: Running, random: Random) -> Found:
    ids = [server.chat(WROTE).json()["id"] for _ in range(4)]
    labels: list[dict[str, object]] = []
    for _ in range(random.randrange(1, 30)):
        said = random.choice(({"correct": True}, {"correct": False}, {"correct": None}, {"correct": "yes"}))
        labels.append({"id": random.choice((*ids, "chatcmpl-none", "", "\x00")), **said})
    for label in random.choice((labels, [labels])):
        server.post(LABELS, label)
    taken = [reply.id for reply in _log(server).labelled()]
    is_once = len(taken) == len(set(taken)) and set(taken) <= set(ids)
    return f"{len(labels)} labels of 4 replies", [] if is_once else [f"the labels of {taken} are taken"]


def _locked(server: Running, random: Random) -> Found:
    n = random.randrange(1, 6)
    with closing(sqlite3.connect(_log(server).path, isolation_level=None)) as other:
        other.execute(random.choice(("BEGIN IMMEDIATE", "BEGIN EXCLUSIVE")))
        statuses = {server.chat(random.choice(QUESTIONS)).status_code for _ in range(n)}
        label = server.post(LABELS, {"id": "chatcmpl-none", "correct": True}).status_code
        said = server.get("/ready").json()["log"]
        other.execute(random.choice(("COMMIT", "ROLLBACK")))
    rules = {
        "a lock costs replies": statuses != {200} or label not in (404, 503),
        "a lock is not reported": said != "cannot be written",
    }
    return f"{n} requests behind a lock", [rule for rule, broken in rules.items() if broken]


ATTACKS = {
    "silent clients": _silent,
    "slow clients": _slow,
    "damaged heads": _damaged,
    "long references": _references,
    "dishonest labels": _labels,
    "a locked log": _locked,
}
