"""Commands run in this process; what they print is stored as text in the working directory."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from unittest import mock

from typer.testing import CliRunner

from semcal.cli.app import app


def store_output(name: str, *arguments: object, stdin: str = "", exit_code: int = 0) -> str:
    """Run a command, store its stdout as NAME.txt and its stderr as NAME.stderr.txt, and return stdout.

    Another exit code is an error with stderr.
    """
    words = [str(argument) for argument in arguments]
    with _every_warning():
        result = CliRunner().invoke(app, words, input=stdin)
    if result.exit_code != exit_code:
        ended = f"semcal {' '.join(words)} ended with {result.exit_code}, not {exit_code}"
        raise RuntimeError(f"{ended}: {result.stderr}") from result.exception
    Path(f"{name}.txt").write_text(result.stdout, encoding="utf-8")
    Path(f"{name}.stderr.txt").write_text(result.stderr, encoding="utf-8")
    return result.stdout


def store_page(name: str, *arguments: object) -> None:
    """Run a command on a terminal of 100 columns, and store what people see there as NAME.txt."""
    terminal = {"TERM": "dumb", "COLUMNS": "100"}
    shown, words = _Terminal(), [*map(str, arguments), "--quiet"]
    streams = redirect_stdout(shown), redirect_stderr(StringIO())
    with _every_warning(), mock.patch.dict("os.environ", terminal), streams[0], streams[1]:
        code = app(words, prog_name="semcal", standalone_mode=False)
    if code:
        raise RuntimeError(f"semcal {' '.join(words)} ended with {code}")
    Path(f"{name}.txt").write_text(shown.getvalue(), encoding="utf-8")


class _Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def _every_warning() -> Iterator[None]:
    """Let each command tell its warnings: Python tells one once, and commands share this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        yield
