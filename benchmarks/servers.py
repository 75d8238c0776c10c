"""Requests to servers: throughput of the client, and the effect of the order of requests on llama.cpp.

    python -m benchmarks.servers

The client (`semcal.servers.client`) sends requests to a server in a separate process that answers at once: 8
answers of 5 tokens with log-probabilities. It is compared, with 16 requests in progress, with a plain loop
over `httpx.AsyncClient` and one over asyncio's streams; both parse the replies in the same way (JSON, then
`parse_choices`), without retries, budget or counting. In turn, medians; requests per second are by wall time,
ratios (median, smallest, largest) by CPU time of the client process, which other work disturbs less.

llama.cpp (xllamacpp, one thread, 4 slots, the embedded language model, 5 few-shot examples) samples 10
answers to each of 40 questions: all of a question together, as the client sends them, in requests of 4, 4 and
2 or of one; and in random order. Wall time, in turn, a new server for each, compared with the random order.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, process_time
from typing import Any
from urllib.parse import urlsplit

import httpx

from benchmarks import not_run
from semcal.servers.client import RequestFailed, ServerClient, ServerRequest
from semcal.servers.protocol import parse_choices
from semcal.servers.settings import Endpoint, ServerSettings

REQUESTS, CONCURRENCY, ROUNDS = 2000, 16, 5
CHOICES, TOKENS = 8, 5
TARGET = 0.8  # times the bare httpx loop
QUESTIONS, DRAWS, SLOTS, LLAMA_ROUNDS = 40, 10, 4, 3
QUICK = {"REQUESTS": 40, "ROUNDS": 1, "QUESTIONS": 2, "LLAMA_ROUNDS": 1}

#: Server that answers every request with the same bytes.
AT_ONCE = """
import asyncio, sys

BODY = sys.stdin.buffer.read()
REPLY = b"HTTP/1.1 200 OK\\r\\ncontent-length: %d\\r\\n\\r\\n" % len(BODY) + BODY

class Answer(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.got = transport, b""

    def data_received(self, data):
        self.got += data
        head, end, body = self.got.partition(b"\\r\\n\\r\\n")
        if end and len(body) >= int(head.lower().partition(b"content-length:")[2].split(b"\\r\\n")[0]):
            self.got = b""
            self.transport.write(REPLY)

async def main():
    server = await asyncio.get_running_loop().create_server(Answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def reply() -> dict[str, Any]:
    """Return the reply of the server."""
    entry = {"token": " word", "logprob": -0.123456789, "bytes": list(b" word")}
    content = [{**entry, "top_logprobs": [dict(entry)]} for _ in range(TOKENS)]
    message = {"role": "assistant", "content": " word" * TOKENS}
    choices = [
        {"index": index, "finish_reason": "stop", "message": message, "logprobs": {"content": content}}
        for index in range(CHOICES)
    ]
    usage = {"prompt_tokens": 300, "completion_tokens": CHOICES * TOKENS}
    return {"object": "chat.completion", "choices": choices, "usage": usage}


def body(number: int) -> dict[str, Any]:
    """Return a request as `semcal sample` makes it: a chat of 1,200 characters."""
    messages = [
        {"role": "user", "content": "Which tree is it? " * 60},
        {"role": "user", "content": f"{number}"},
    ]
    return {
        "messages": messages,
        "n": CHOICES,
        "temperature": 1.3,
        "top_p": 1,
        "seed": number,
        "logprobs": True,
    }


@contextmanager
def server_at_once() -> Iterator[str]:
    """Yield the URL of the server during the block."""
    command = [sys.executable, "-c", AT_ONCE]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(reply()).encode())
        process.stdin.close()
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def _at_a_time(send: Callable[[int], Any]) -> None:
    """Send all requests, `CONCURRENCY` at a time."""
    numbers = iter(range(REQUESTS))

    async def work() -> None:
        for number in numbers:
            await send(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(work())


async def bare_httpx(url: str) -> None:
    """Send all requests in the simplest way."""
    async with httpx.AsyncClient() as client:

        async def send(number: int) -> None:
            found = await client.post(url + "/chat/completions", json=body(number))
            found.raise_for_status()
            parse_choices(found.json())

        await _at_a_time(send)


async def bare_streams(url: str) -> None:
    """Send all requests with minimal work: one connection for each, lengths parsed by hand, no checks."""
    parts = urlsplit(url)
    idle = [await asyncio.open_connection(parts.hostname, parts.port) for _ in range(CONCURRENCY)]

    async def send(number: int) -> None:
        content = json.dumps(body(number)).encode()
        reader, writer = connection = idle.pop()
        head = f"POST {parts.path}/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}"
        writer.write(head.encode() + b"\r\n\r\n" + content)
        answered = await reader.readuntil(b"\r\n\r\n")
        length = int(answered.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        parse_choices(json.loads(await reader.readexactly(length)))
        idle.append(connection)

    await _at_a_time(send)
    for _, writer in idle:
        writer.close()


def own_client(url: str) -> None:
    """Send all requests with semcal's client and its budget."""
    settings = ServerSettings(concurrency=CONCURRENCY, price_in=1, price_out=2, max_cost=1e9)
    requests = [ServerRequest("/chat/completions", body(number), 400, 80) for number in range(REQUESTS)]
    with ServerClient(Endpoint(url), settings) as client:
        found = client.send_all(requests, parse_choices)
        assert client.usage.tokens_out == REQUESTS * CHOICES * TOKENS
    assert not any(isinstance(one, RequestFailed) for one in found)


def rates() -> list[dict[str, Any]]:
    """Yield requests per second of the client and of the plain loops."""
    ways: dict[str, Callable[[str], None]] = {
        "semcal": own_client,
        "httpx, plain loop": lambda url: asyncio.run(bare_httpx(url)),
        "asyncio streams, plain loop": lambda url: asyncio.run(bare_streams(url)),
    }
    wall, cpu = ({name: list[float]() for name in ways} for _ in range(2))
    with server_at_once() as url:
        for _ in range(ROUNDS):
            for name, ask in ways.items():
                start = perf_counter(), process_time()
                ask(url)
                wall[name].append(perf_counter() - start[0])
                cpu[name].append(process_time() - start[1])
    rows = []
    for name, own in cpu.items():
        ratios = [bare / mine for bare, mine in zip(cpu["httpx, plain loop"], own)]
        rate = REQUESTS / statistics.median(wall[name])
        target = TARGET if name == "semcal" else None
        rows.append(
            {
                "asked by": name,
                "answered by": "a server that answers at once",
                "requests/s": rate,
                "tokens/s": rate * CHOICES * TOKENS,
                "questions/s": None,
                "ratio": statistics.median(ratios),
                "least": min(ratios),
                "greatest": max(ratios),
                "aim": target,
            }
        )
    return rows


def orders() -> dict[str, Callable[[], list[ServerRequest]]]:
    """Return the same samples in the compared orders and requests."""
    from semcal.data.question import chat
    from semcal.demo.questions import load_set

    found = load_set("atlas-trivia")
    chats = [
        [{"role": turn.role, "content": turn.content} for turn in chat(question, few_shot=found.few_shot)]
        for question in found.test[:QUESTIONS]
    ]
    neutral = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_tokens": 10, "logprobs": True}

    def request(messages: list[dict[str, str]], seed: int, n: int) -> ServerRequest:
        return ServerRequest(
            "/chat/completions", {"messages": messages, "seed": seed, "n": n, **neutral}, 500, 10
        )

    def together(most: int) -> list[ServerRequest]:
        starts = range(0, DRAWS, most)
        return [request(one, start, min(most, DRAWS - start)) for one in chats for start in starts]

    def shuffled() -> list[ServerRequest]:
        return random.Random(0).sample(together(1), QUESTIONS * DRAWS)

    return {
        "samples of a question together, 4 per request": partial(together, SLOTS),
        "samples of a question together, one per request": partial(together, 1),
        "one per request, in random order": shuffled,
    }


def with_llama() -> list[dict[str, Any]]:
    """Yield questions per second of llama.cpp's server, by the order of the requests."""
    from semcal.demo.paths import language_model_dir
    from tools.gguf import write_gguf
    from tools.llama_server import llama_server

    ways = orders()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        write_gguf(language_model_dir(), Path(folder) / "atlas.gguf")
        for _ in range(LLAMA_ROUNDS):
            for name, requests in ways.items():
                with (
                    llama_server(Path(folder) / "atlas.gguf", log=Path(folder) / "log") as url,
                    ServerClient(Endpoint(url), ServerSettings(concurrency=SLOTS)) as client,
                ):
                    start = perf_counter()
                    found = client.send_all(requests(), parse_choices)
                    seconds[name].append(perf_counter() - start)
                    assert sum(len(one) for one in found if isinstance(one, list)) == QUESTIONS * DRAWS
    first = seconds["one per request, in random order"]
    rows = []
    for name, own in seconds.items():
        ratios = [other / mine for other, mine in zip(first, own)]
        rows.append(
            {
                "asked by": f"semcal, {name}",
                "answered by": "llama.cpp",
                "requests/s": len(ways[name]()) / statistics.median(own),
                "tokens/s": None,
                "questions/s": QUESTIONS / statistics.median(own),
                "ratio": statistics.median(ratios),
                "least": min(ratios),
                "greatest": max(ratios),
                "aim": None,
            }
        )
    return rows


def results() -> list[dict[str, Any]]:
    """Return the rows of both parts."""
    if find_spec("xllamacpp") is None or find_spec("gguf") is None:
        return [
            *rates(),
            {"asked by": "semcal", "answered by": f"llama.cpp: {not_run('xllamacpp and gguf')}"},
        ]
    return rates() + with_llama()


if __name__ == "__main__":
    from benchmarks.__main__ import table

    print(table(results()))
