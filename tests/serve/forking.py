"""A process that has loaded everything and forks a server for each line that it reads, which starts at once.

    python -m tests.serve.forking LOG SAID

The server's address goes to the file SAID, its process id to stdout.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from semcal.reply_log import ReplyLog
from tests.serve.serving import running


def main(log: str, said: str) -> None:
    """Fork until there are no more lines."""
    for _ in sys.stdin:
        Path(said).write_bytes(b"")
        child = os.fork()
        if not child:
            with running(log=ReplyLog(Path(log))) as server:
                Path(said).write_text(f"at {server.url}/v1\n")
                sys.stdin.read()
        print(child, flush=True)  # noqa: T201
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
