"""Commands as a user types them, and files for them."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from semcal.cli.app import app


class Terminal(io.StringIO):
    """A stream in place of a terminal."""

    def isatty(self) -> bool:
        return True


def run(*arguments: Any, stdin: str = "") -> tuple[int, str, str]:
    """Run a command: its exit code, stdout and stderr."""
    result = CliRunner().invoke(app, [str(one) for one in arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def semcal(*arguments: Any, stdin: str = "") -> tuple[int, list[dict], str]:
    """Run a command whose stdout is JSON Lines: its exit code, rows and stderr."""
    code, stdout, stderr = run(*arguments, stdin=stdin)
    return code, [json.loads(line) for line in stdout.splitlines()], stderr


def configured(*settings: str) -> tuple[str, ...]:
    """Return settings `SECTION.KEY=VALUE` as arguments, each behind a --config."""
    return tuple(word for setting in settings for word in ("--config", setting))


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows as JSON Lines and return the path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)
