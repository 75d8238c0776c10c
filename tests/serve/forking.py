"""A process that has loaded everything and forks a server for each line that it reads, which starts at once.

    python -m tests.serve.forking atlas|fake LOG SAID

`atlas` runs `semcal serve` on the embedded model, `fake` a service of the tests. The server's address goes to
the file SAID, its process id to stdout.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path


def embedded(log: str) -> Callable[[], object]:
    """`semcal serve`, whose model is loaded before by a first one that only begins."""
    import torch

    from semcal.cli import main, options
    from semcal.serve.endpoints import HttpServer

    torch.set_num_threads(1)  # a pool of threads would not be there in the forked process
    sys.argv = ["semcal", "serve", "--port", "0", "--log", log, "--on-alarm", "flag"]
    options.ModelOptions.__call__ = cache(options.ModelOptions.__call__)
    answer = HttpServer.answer

    def end(server: HttpServer, _: object) -> None:
        server.service.close()
        sys.exit()

    HttpServer.answer = end
    with suppress(SystemExit):
        main()
    HttpServer.answer = answer
    return main


def fake(log: str) -> Callable[[], object]:
    from semcal.reply_log import ReplyLog
    from tests.serve.serving import running

    def serve() -> None:
        with running(log=ReplyLog(Path(log))) as server:
            os.write(2, f"fake at {server.url}/v1\n".encode())
            server.server.should_exit = False
            sys.stdin.read()

    return serve


def main(model: str, log: str, said: str) -> None:
    """Fork until there are no more lines."""
    serve = {"atlas": embedded, "fake": fake}[model](log)
    for _ in sys.stdin:
        Path(said).write_bytes(b"")
        child = os.fork()
        if not child:
            os.dup2(os.open(said, os.O_WRONLY | os.O_APPEND), 2)
            serve()
            os._exit(0)
        print(child, flush=True)  # noqa: T201
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
