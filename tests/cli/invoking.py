"""Commands as a user types them, and files for them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from semcal.cli.app import app


def semcal(*arguments: Any, stdin: str = "") -> tuple[int, list[dict], str]:
    """Run a command whose stdout is JSON Lines: its exit code, rows and stderr."""
    result = CliRunner().invoke(app, [str(one) for one in arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()], result.stderr


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows as JSON Lines and return the path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)
