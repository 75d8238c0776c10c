"""The command line: `semcal COMMAND`. Results go to stdout, everything else to stderr."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    from semcal.cli.app import app

    app(prog_name="semcal")
