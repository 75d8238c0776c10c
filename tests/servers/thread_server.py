"""A TCP server in a thread of its own, which the servers of these tests are made of."""

from __future__ import annotations

import asyncio
import ssl
import threading
from abc import ABC, abstractmethod
from typing import Any, Self


class ThreadServer(ABC):
    """Listens on 127.0.0.1 while the `with` block lasts, on `port` (0: a free one, which is then there)."""

    port = 0
    tls: ssl.SSLContext | None = None

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
        self._tasks: set[asyncio.Task[Any]] = set()
        server = await asyncio.start_server(self._connection, "127.0.0.1", self.port, ssl=self.tls)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopping.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self.talk(reader, writer)
        except (asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
