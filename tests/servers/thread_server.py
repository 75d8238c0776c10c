"""TCP servers in a thread of their own, which the servers of these tests are made of."""

from __future__ import annotations

import asyncio
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self


class ThreadServer(ABC):
    """Listens on 127.0.0.1 while the `with` block lasts, on `port` (0: a free one, which is then there)."""

    port = 0
    tls: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __init__(self) -> None:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._ready = threading.Event()

    def start(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    __enter__ = start

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer on one connection until it ends."""

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        self._talks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, ssl=self.tls)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopping.wait()
        self._loop.remove_reader(server.sockets[0].fileno())  # close() leaves what was just accepted
        for _ in range(5):  # turns of the loop in which it is connected
            await asyncio.sleep(0)
        server.close()
        talks = dict(self._talks)
        for task in talks:
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
        for writer in talks.values():  # also where a task was cancelled before it began
            writer.transport.abort()
        await asyncio.sleep(0)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._talk(reader, writer))
        self._talks[task] = writer
        task.add_done_callback(self._talks.pop)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self.talk(reader, writer)
        except (asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


async def read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The head of the next request or reply, its empty line included, and its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return head, await reader.readexactly(int(lengths[0].partition(b":")[2]) if lengths else 0)


class SayingServer(ThreadServer):
    """Answers each request with the next bytes, sent in parts where there is "|" (`whole`: as they are).

    After them comes what `then` makes of the request's body, which may be the last bytes again. `endless` is
    sent over and over after each; `close` ends the connection.
    """

    def __init__(
        self,
        *replies: bytes,
        then: Callable[[bytes], bytes] | None = None,
        endless: bytes = b"",
        close: bool = False,
        whole: bool = False,
    ) -> None:
        super().__init__()
        self.then = then or (lambda _: replies[-1])
        self.endless, self.close, self.whole = endless, close, whole
        self.requests: list[bytes] = []  # their heads
        self.connections = 0
        self._left = iter(replies)

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            head, body = await read_message(reader)
            self.requests.append(head)
            reply = next(self._left, None) or self.then(body)
            for part in [reply] if self.whole else reply.split(b"|"):
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0 if self.whole else 0.01)
            while self.endless:
                writer.write(self.endless)
                await writer.drain()
            if self.close:
                return
