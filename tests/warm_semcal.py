"""A `semcal` for shell scripts that does not import PyTorch and transformers for every command.

The program `semcal` that `warm_semcal` puts into a folder hands its arguments, working directory, environment
and streams to a server, which has imported all and runs the command in a process parted from its own.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name

#: What is sent at most: a command and an environment.
MOST = 1 << 20
CLIENT = """#!{python} -S
import json, os, socket, sys

with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    said = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [said], [0, 1, 2])
    sys.exit(int(server.recv(16) or 70))
"""


@contextmanager
def warm_semcal(folder: Path) -> Iterator[Path]:
    """Serve while the block runs; yields the folder that has to stand first in PATH."""
    address, program = folder / "server", folder / "bin" / "semcal"
    program.parent.mkdir()
    program.write_text(CLIENT.format(python=sys.executable, address=str(address)))
    program.chmod(0o755)
    with subprocess.Popen([sys.executable, __file__, str(address)], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        try:
            yield program.parent
        finally:
            server.kill()


def serve(address: str) -> None:
    from semcal.workers import PRELOAD

    for name in (*PRELOAD, "transformers.models.auto.modeling_auto", "semcal.cli.app"):
        resolve_name(name)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            client, _ = server.accept()
            if not os.fork():
                run(client)
            client.close()


def run(client: socket.socket) -> None:
    """Run one command, and tell the client its exit code."""
    code = 70
    try:
        said, streams, *_ = socket.recv_fds(client, MOST, 3)
        arguments, folder, environment = json.loads(said)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["semcal", *arguments]
        from semcal.cli import main

        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        client.sendall(str(code).encode())
        os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1])
