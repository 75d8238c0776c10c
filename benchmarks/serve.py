"""`semcal serve` under load: throughput compared with `ask`, latency, memory, and lost replies.

    python -m benchmarks serve [--requests 10000]

The embedded model, its calibration and a log run in a separate process; the client is plain asyncio in this
process, on the same processors. Each of 1, 10 and 100 connections sends its next request after the reply to
the last. The questions are the 1,000 test questions of atlas-trivia and atlas-rare, repeated. Lost: no reply
with status 200. Doubled: a repeated id. Mixed up: the answer differs from that of most replies to the
question. `ask` is `SemanticUQ.ask_many` on the same questions, without loading, before and after each row,
because the speed of processors varies. The last columns are milliseconds of CPU time for each request, of
`ask`, the service and the client: where all processors are busy, the share of `ask` cannot be larger than its
time divided by that of service and client.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psutil

import semcal
from semcal.demo.questions import load_set

SETS = ("atlas-trivia", "atlas-rare")
CONNECTIONS = (1, 10, 100)
#: Number of requests of the shorter runs, and number of the first request for memory.
SHORT, SETTLED = 300, 1000
#: Maximum number of test questions of a set; all by default.
TEST: int | None = None
QUICK = {"CONNECTIONS": (1, 10), "SHORT": 10, "TEST": 10}
HEAD = (
    *("connections", "requests", "a second", "of `ask`", "p50 s", "p95 s", "p99 s"),
    *("lost", "doubled", "mixed up", "CPU ms: `ask`", "service", "client"),
)
#: Targets: MB of growth, and the share of the throughput of `ask`.
GROWTH, SHARE = 50, 0.6


@dataclass
class Load:
    """The outcomes of requests."""

    seconds: list[float] = field(default_factory=list)  # of each
    ids: Counter[str] = field(default_factory=Counter)
    answers: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    lost: int = 0
    wall: float = 0.0
    memory: dict[int, float] = field(default_factory=dict)  # MB by number of replies

    @property
    def mixed_up(self) -> int:
        """Number of replies whose answer differs from that of most replies to the question."""
        return sum(count.total() - max(count.values()) for count in self.answers.values())


@contextmanager
def served(folder: Path, *options: str) -> Iterator[tuple[str, psutil.Process]]:
    """Run `semcal serve` with options during the block; yield its host and port, and its process."""
    said = folder / "said.txt"
    command = [*(sys.executable, "-m", "semcal", "serve"), "--port", "0", *options]
    with said.open("wb") as stream, subprocess.Popen(command, stderr=stream) as server:
        while (address := re.search(r"at (http://\S+)/v1", said.read_text())) is None:
            if server.poll() is not None:
                raise SystemExit(said.read_text())
            time.sleep(0.1)
        try:
            yield urlsplit(address[1]).netloc, psutil.Process(server.pid)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(120)


def request(host: str, text: str) -> bytes:
    """Return the bytes of a request."""
    body = json.dumps({"model": "atlas", "messages": [{"role": "user", "content": text}]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def send(host: str, texts: Iterator[str], load: Load, process: psutil.Process) -> None:
    """Send requests over one connection, each after the reply to the last."""
    name, _, port = host.partition(":")
    reader, writer = await asyncio.open_connection(name, int(port))
    for text in texts:
        start = time.perf_counter()
        writer.write(request(host, text))
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = re.search(r"content-length: (\d+)", head)
        body = await reader.readexactly(int(size[1]) if size else 0)
        load.seconds.append(time.perf_counter() - start)
        if not head.startswith("http/1.1 200"):
            load.lost += 1
            continue
        reply = json.loads(body)["semcal"]
        load.ids[reply["id"]] += 1
        load.answers[text][reply["answer"]] += 1
        if len(load.seconds) % 500 == 0:
            load.memory[len(load.seconds)] = process.memory_info().rss / 1e6
    writer.close()


async def run(host: str, questions: Sequence[str], n: int, connections: int, process: psutil.Process) -> Load:
    """Send n requests over a number of connections."""
    load, texts, start = Load(), islice(cycle(questions), n), time.perf_counter()
    await asyncio.gather(*(send(host, texts, load, process) for _ in range(connections)))
    load.wall = time.perf_counter() - start
    load.lost += n - len(load.seconds)
    return load


def quick_runs(_: Path) -> list[list[str]]:
    return [["--requests", "30"]]


def main(arguments: Sequence[str] = ()) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks serve", description=__doc__)
    parser.add_argument(
        "--requests", type=int, default=10_000, help="number of requests over 100 connections"
    )
    options = parser.parse_args(arguments)
    questions = [question.question for name in SETS for question in load_set(name).test[:TEST]]
    uq = semcal.SemanticUQ("atlas", calibration="atlas")
    uq.ask_many(questions[:50], progress=False)

    def rate_of_ask() -> tuple[float, float]:
        """Return questions a second, and milliseconds of CPU time for each."""
        start, cpu = time.perf_counter(), time.process_time()
        uq.ask_many(questions, progress=False)
        n = len(questions)
        return n / (time.perf_counter() - start), 1e3 * (time.process_time() - cpu) / n

    asked = [rate_of_ask()]
    print(f"| {' | '.join(HEAD)} |")
    print("| ---: " * len(HEAD) + "|")
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder), "--log", str(Path(folder) / "log.sqlite")) as (host, process),
    ):
        logged, load = 0, Load()
        for connections in CONNECTIONS:
            n = options.requests if connections == max(CONNECTIONS) else SHORT
            before = time.process_time(), sum(process.cpu_times()[:2])
            load = asyncio.run(run(host, questions, n, connections, process))
            client, service = time.process_time() - before[0], sum(process.cpu_times()[:2]) - before[1]
            logged += len(load.seconds) - load.lost
            p = [f"{value:.2f}" for value in np.percentile(load.seconds, [50, 95, 99])]
            rate, doubled = n / load.wall, load.ids.total() - len(load.ids)
            asked.append(rate_of_ask())
            of_ask, cpu = np.mean(asked[-2:], axis=0)
            share = rate / of_ask
            cells = [connections, n, f"{rate:.0f}", f"{share:.2f}", *p]
            cells += [load.lost, doubled, load.mixed_up]
            cells += [f"{value:.1f}" for value in (cpu, 1e3 * service / n, 1e3 * client / n)]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
        with sqlite3.connect(Path(folder) / "log.sqlite") as database:
            (rows,) = database.execute("SELECT count(*) FROM replies").fetchone()
        each = ", ".join(f"{rate:.0f}" for rate, _ in asked)
        print(f"\n`ask_many` on {len(questions)} questions: {each} a second, before and after the rows.")
        print(f"The log holds {rows} replies, and clients got {logged}.")
        settled = {count: size for count, size in load.memory.items() if count >= SETTLED}
        if settled:
            sizes = ", ".join(f"{size:.0f} at {count}" for count, size in list(settled.items())[::3])
            growth = max(settled.values()) - next(iter(settled.values()))
            print(f"Memory in MB: {sizes} requests; it grows by {growth:.0f} at most from {SETTLED} on.")
            print(f"Targets: growth below {GROWTH} MB, at least {SHARE} of `ask`'s throughput.")


if __name__ == "__main__":
    main(sys.argv[1:])
