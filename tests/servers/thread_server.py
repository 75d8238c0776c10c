"""TCP servers in a thread of their own, which the servers of these tests are made of."""

from __future__ import annotations

import asyncio
import ssl
import threading
from abc import ABC, abstractmethod
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
    """Answers each request with the same bytes; `endless` is sent over and over after them."""

    def __init__(self, reply: bytes, *, endless: bytes = b"") -> None:
        super().__init__()
        self.reply, self.endless = reply, endless
        self.requests: list[bytes] = []  # their heads

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            self.requests.append((await read_message(reader))[0])
            writer.write(self.reply)
            await writer.drain()
            while self.endless:
                writer.write(self.endless)
                await writer.drain()
