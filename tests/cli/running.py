"""A command in a process of its own, parted from a fork server that has imported PyTorch and transformers.

To import them takes five seconds of CPU time, for every process that is started by its command line.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from semcal.workers import PRELOAD, start_context


def start(
    *arguments: Any,
    said: Path,
    stdin: str = os.devnull,
    values: Mapping[str, Any] | None = None,
    session: bool = False,
) -> BaseProcess:
    """Start `semcal` with these arguments; stdout and stderr go to a file.

    `values` are those of variables there, as "package.module.NAME"; `session`: it leads one of its own.
    """
    how = (str(said), stdin, dict(os.environ), values or {}, session)
    given = (list(map(str, arguments)), *how)
    process: BaseProcess = start_context(PRELOAD).Process(target=_command, args=given)
    process.start()
    return process


def finish(process: BaseProcess, seconds: float = 120) -> int:
    """Wait for its end; the exit code, which is negative if a signal ended it."""
    process.join(seconds)
    assert process.exitcode is not None, "it runs on"
    return process.exitcode


def _command(
    arguments: list[str],
    said: str,
    stdin: str,
    environment: Mapping[str, str],
    values: Mapping[str, Any],
    session: bool,
) -> None:
    if session:
        os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with Path(said).open("ab") as written, Path(stdin).open("rb") as read:
        for stream, file in enumerate((read, written, written)):
            os.dup2(file.fileno(), stream)
    sys.stdin = os.fdopen(0)
    for name, value in values.items():
        module, _, variable = name.rpartition(".")
        setattr(resolve_name(module), variable, value)
    from semcal.cli import main

    sys.argv = ["semcal", *arguments]
    sys.exit(main())
