"""Servers that damage their replies, as areas of benchmarks.robustness.

A hostile server between a command and a correct server damages a share of the replies of a case, each in one
seeded way: a field of the JSON, bytes, encoding, size, status or a header; or it sends the key, half a
character, escape sequences, another model, or invalid counts. In addition to the rules of all commands: no
message contains a part of the key or an escape sequence, the number of input rows equals that of output and
reported rows, and questions with only correct replies have unchanged results.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import shutil
import zlib
from collections.abc import Callable, Sequence
from functools import partialmethod
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from benchmarks._damage import Arguments, Ended, faults_of, semcal
from benchmarks._mutations import changed_bytes, changed_object
from semcal.servers.client import ServerClient
from semcal.servers.settings import ServerSettings
from tests.servers.fake_model import ANSWERS
from tests.servers.fake_server import FakeServer
from tests.servers.fault_proxy import FaultProxy
from tests.servers.thread_server import read_message

Case = Callable[[Random], tuple[Ended, str, list[str]]]
KEY = "sk-proj-Zm9yIHRlc3RzIG9mIGhvc3RpbGUgc2VydmVycw0123"
QUESTIONS = list(ANSWERS)
#: Maximum number of bytes of a reply in these cases, and a larger number after decompression.
LIMIT = 10**6
BOMB = gzip.compress(bytes(50 * LIMIT), 9)
WORDS = (
    *("\x1b[2J\x1b]0;title\x07", "\u202eabc", KEY, "x" * 100_000, "", " ", "Mir\ud83d", "\x00", "\r\n"),
    *("<script" * 3000, "[" * 900 + "]" * 900, "a\u2028b", "none", f"Bearer {KEY}"),
)
HALF = "Mir\ud83d"
STATUSES = (100, 199, 201, 204, 206, 300, 302, 304, 400, 401, 402, 403, 404, 408, 409, 413, 418, 422, 425)
STATUSES += (429, 451, 500, 501, 502, 503, 504, 599, 600, 999)
HEADERS = (
    *("retry-after: 0", "retry-after: 1e400", "retry-after: -1", "retry-after: 9999", "retry-after: nan"),
    *("retry-after: Sun, 06 Nov 1994 08:49:37 GMT", "retry-after-ms: x", "content-type: text/html"),
    *(f"location: https://elsewhere/{KEY}", "location: \\", "content-encoding: br", "content-encoding: gzip"),
    *("content-encoding: deflate", "content-encoding: gzip, gzip", f"content-encoding: {KEY}"),
    *("content-length: 0", "content-length: 1", "content-length: -5", "content-length: 999999999"),
    *(
        "transfer-encoding: chunked",
        "transfer-encoding: gzip",
        f"x: {'y' * 100_000}",
        "a\x00b: c",
        "no colon",
    ),
)
COUNTS = (0, -1, 10**12, 10**13, 2**63, 10**400, 1.5, "7", None, True, [])
Sent = tuple[bytes, bytes]  # the bytes of a reply, and an endless continuation


def _reply(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    own = [] if any(one.startswith(("content-length", "transfer")) for one in headers) else [len(body)]
    lines = [f"HTTP/1.1 {status}", *headers, *(f"content-length: {size}" for size in own)]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def _field(found: Any, random: Random) -> Sent:
    return _reply(changed_object(found, random)[0].encode("utf-8", "surrogatepass")), b""


def _bytes(found: Any, random: Random) -> Sent:
    return _reply(changed_bytes(json.dumps(found).encode(), random)[0]), b""


def _wire(found: Any, random: Random) -> Sent:
    return changed_bytes(_reply(json.dumps(found).encode()), random)[0], b""


def _status(found: Any, random: Random) -> Sent:
    said = random.choice((json.dumps(found), json.dumps({"error": {"message": random.choice(WORDS)}})))
    body = random.choice((said, random.choice(WORDS), "")).encode("utf-8", "surrogatepass")
    line = f"{random.choice(STATUSES)} {random.choice(('OK', KEY, chr(27) + '[2J', ''))}"
    return _reply(body, *random.choice(((), (f"location: https://elsewhere/{KEY}",))), status=line), b""


def _header(found: Any, random: Random) -> Sent:
    return _reply(json.dumps(found).encode(), *random.choices(HEADERS, k=random.choice((1, 1, 2)))), b""


def _packed(found: Any, random: Random) -> Sent:
    """Compress a reply correctly, and often damage it afterwards."""
    name, pack = random.choice((("gzip", gzip.compress), ("deflate", zlib.compress)))
    body = pack(json.dumps(found).encode())
    return _reply(
        random.choice((body, changed_bytes(body, random)[0], body * 2)), f"content-encoding: {name}"
    ), b""


def _size(found: Any, random: Random) -> Sent:
    """Exceed the maximum size: compressed, in one piece, or without end."""
    large = json.dumps(found)[:-1].encode() + b" " * random.choice((LIMIT // 2, 2 * LIMIT)) + b"}"
    status = random.choice(("200 OK", "200 OK", "500 Broken"))
    return random.choice(
        (
            (_reply(BOMB, "content-encoding: gzip", status=status), b""),
            (_reply(large, status=status), b""),
            (f"HTTP/1.1 {status}\r\n\r\n".encode(), b"[[1, 2], " * 1000),
            (f"HTTP/1.1 {status}\r\ntransfer-encoding: chunked\r\n\r\n".encode(), b"5\r\n[1, 2\r\n"),
            (_reply(b"[" * (LIMIT // 2), status=status), b""),
        )
    )


def _words(found: Any, random: Random) -> Sent:
    """Put a harmful text in place of a text, or as the reason for the end of an answer."""
    damaged, word = json.loads(json.dumps(found)), random.choice((*WORDS, *[HALF, KEY] * 4))
    key = random.choice(
        [one for one in ("id", "model", "object", "data", "choices", "version") if one in found] or ["x"]
    )
    inner = damaged.get(key)
    if isinstance(inner, list) and inner and isinstance(inner[0], dict):
        message = inner[0].get("message", inner[0])
        names = (
            "content",
            "content",
            "finish_reason",
            "finish_reason",
            "reasoning_content",
            "text",
            "aliases",
        )
        name = random.choice(names)
        (inner[0] if name == "finish_reason" else message)[name] = word
    else:
        damaged[key] = word
    return _reply(json.dumps(damaged).encode()), b""


def _counts(found: Any, random: Random) -> Sent:
    counts = {name: random.choice(COUNTS) for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    return _reply(json.dumps({**found, "usage": random.choice((counts, 0, []))}).encode()), b""


DAMAGE = (_field, _field, _field, _bytes, _wire, _status, _header, _packed, _size, _words, _words, _counts)


class HostileServer(FaultProxy):
    """A server in front of a correct one; `begin` sets the damage of the next case."""

    def __init__(self, upstream: int) -> None:
        super().__init__(upstream, share=0.0, faults=())
        self.begin(0, 0.0)

    def begin(self, seed: int, share: float, kind: Any = None) -> None:
        """Damage a share of the replies from now on, all in one way or each in its own."""
        self.seed, self.part, self.kind = seed, share, kind
        self.damaged: list[bytes] = []  # requests

    async def _exchange(self, reader: Any, writer: Any, to_server: Any) -> bool:
        request = b"".join(await read_message(reader))
        to_server[1].write(request)
        reply = b"".join(await read_message(to_server[0]))
        line, _, body = request.partition(b"\r\n")
        key = sha256(line + body.partition(b"\r\n\r\n")[2]).hexdigest()
        self._tries[key.encode()] += 1
        random = Random(f"{self.seed} {key} {self._tries[key.encode()]}")
        if random.random() >= self.part:
            writer.write(reply)
            await writer.drain()
            return True
        self.damaged.append(request)
        found = json.loads(reply.partition(b"\r\n\r\n")[2])
        first, then = (self.kind or random.choice(DAMAGE))(found, random)
        writer.write(first)
        await writer.drain()
        while then:
            writer.write(then)
            await writer.drain()
        await asyncio.sleep(0)
        return random.random() < 0.5


def hostile_areas(folder: Path) -> dict[str, tuple[float, Case]]:
    """Return name of each area → its share of the cases, and a function that makes a case."""
    files = folder / "hostile"
    files.mkdir()
    rows = [{"id": f"q{i}", "question": text} for i, text in enumerate(QUESTIONS)]
    labelled = [
        {
            "id": f"{k}-{row['id']}",
            "question": row["question"],
            "answers": [next(iter(ANSWERS[row["question"]]))],
        }
        for k in range(4)
        for row in rows
    ]
    for name, content in (("questions", rows), ("labelled", labelled)):
        (files / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))
    questions = files / "questions.jsonl"
    few = ("--m", "3", "--config", "server.timeout=5", "--config", "server.concurrency=4")
    out = files / "calibration"
    return {
        "sample, hostile server": (
            6,
            _cases(files, lambda name: ("sample", questions, "--model", name, *few)),
        ),
        "ask, hostile server": (
            6,
            _cases(files, lambda name: ("ask", questions, "--json", "--model", name, *few)),
        ),
        "calibrate, hostile server": (
            4,
            _cases(
                files,
                lambda name: ("calibrate", files / "labelled.jsonl", "--model", name, *few, "--out", out),
                out=out,
            ),
        ),
        "probe, hostile server": (
            4,
            _cases(files, lambda name: ("probe", name, "--json", "--timeout", "2"), fresh=True),
        ),
    }


def _cases(
    files: Path, arguments: Callable[[str], Arguments], *, out: Path | None = None, fresh: bool = False
) -> Case:
    """Yield cases of one command; with `fresh`, replies to the probe are damaged as well."""
    servers: list[HostileServer] = []
    expected: list[dict[str, Any]] = []

    def case(random: Random) -> tuple[Ended, str, list[str]]:
        if not servers:
            right = FakeServer(log_probs=None, key=KEY).start()
            servers.append(HostileServer(right.port).start())
            ended, _ = _run(arguments(f"{servers[0].url}#fake"), files, out)
            if ended.code or ended.fault:
                raise SystemExit(f"an undamaged command failed: {ended.fault or ended.stderr[-500:]}")
            expected.extend(ended.rows)
        server = servers[0]
        kind, share = random.choice((None, *DAMAGE)), random.choice((1.0, 0.5, 0.1, 0.02))
        if fresh:
            shutil.rmtree(files / "cache", ignore_errors=True)
        server.begin(random.randrange(2**31), share, kind)
        retries = () if fresh else ("--config", f"server.retries={random.choice('01')}")
        ended, shown = _run((*arguments(f"openai:{server.url}#fake"), *retries), files, out)
        faults = faults_of(ended) + shown
        if not fresh and out is None and not faults and not ended.refused:
            faults = _row_faults(ended, expected, server.damaged)
        server.begin(0, 0.0)
        words = f"{share:g} of {'all kinds' if kind is None else kind.__name__[1:]}"
        return ended, words, faults

    return case


def _run(arguments: Arguments, files: Path, out: Path | None) -> tuple[Ended, list[str]]:
    if out is not None:
        shutil.rmtree(out, ignore_errors=True)
    given = {"SEMCAL_API_KEY": KEY, "SEMCAL_CACHE": str(files / "cache")}
    quick = patch.dict(ServerClient.__init__.__kwdefaults__ or {}, first_wait=0.01)
    small = patch.object(
        ServerSettings, "__init__", partialmethod(ServerSettings.__init__, max_reply_bytes=LIMIT)
    )
    with patch.dict(os.environ, given), quick, small:
        ended = semcal(*arguments)
    parts = {KEY[i : i + 8] for i in range(len(KEY) - 7)}
    answers = arguments[0] != "probe"  # words of the model, which rows keep
    printed = ended.stderr + ("" if answers else ended.stdout)
    rules = {
        "the key is printed": any(part in printed for part in parts),
        "an escape sequence is printed": "\x1b" in printed,
    }
    return ended, [rule for rule, broken in rules.items() if broken]


def _row_faults(ended: Ended, expected: Sequence[dict[str, Any]], damaged: Sequence[bytes]) -> list[str]:
    given, rows = len(expected), ended.rows
    if given != len(rows) + ended.reported:
        return [f"{given} rows in, {len(rows)} out, {ended.reported} reported"]
    if any(b"Question: " not in one for one in damaged):  # then something else may be asked
        return []
    written = {row["id"]: row for row in rows}
    right = [
        row
        for row in expected
        if not any(json.dumps(row["question"])[1:-1].encode() in one for one in damaged)
    ]
    changed = [row["id"] for row in right if written.get(row["id"], row) != row]  # else it was reported
    return [f"rows {changed} changed with another"] if changed else []
