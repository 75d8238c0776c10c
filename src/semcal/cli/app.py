"""The commands of `semcal` and their exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.

Command modules import what is heavy inside their functions, so that `semcal --help` is quick.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, TextIO

import typer

from semcal.cli.commands import (
    ask,
    cluster,
    demo,
    env,
    export,
    fit,
    grade,
    measure,
    merge,
    metrics,
    report,
    run,
    sample,
    status,
)
from semcal.cli.console import complain
from semcal.errors import SemcalError, SemcalWarning, UsageError

__all__ = ["app"]

Command = Callable[..., int]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Calibrated semantic uncertainty for question answering with language models.",
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.isatty():
        sys.stdout.reconfigure(encoding="utf-8")  # JSON Lines are UTF-8, whatever the locale
    if version:
        from semcal import __version__

        typer.echo(f"semcal {__version__}")
        raise typer.Exit


def _guarded(command: Command) -> Callable[..., None]:
    """Turn what a command returns or raises into an exit code."""

    @wraps(command)
    def run(*args: Any, **options: Any) -> None:
        warnings.showwarning = _warn
        raise typer.Exit(_exit_code(command, *args, **options))

    return run


def _exit_code(command: Command, *args: Any, **options: Any) -> int:
    try:
        return command(*args, **options)
    except UsageError as error:
        complain(f"error: {error}")
        return 2
    except SemcalError as error:
        complain(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        complain("interrupted")
        return 130
    except BrokenPipeError:  # the reader of our pipe has gone: there is nothing more to say to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        complain(f"error: {error.strerror or error}: {error.filename or 'a file'}")
        return 1


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,
) -> None:
    """Show our own warnings as a line, others as Python does."""
    if issubclass(category, SemcalWarning):
        complain(f"warning: {message}")
    else:
        complain(warnings.formatwarning(message, category, filename, lineno, line).rstrip())


for _module in (
    demo,
    ask,
    fit,
    run,
    merge,
    status,
    sample,
    cluster,
    measure,
    grade,
    metrics,
    report,
    export,
    env,
):
    app.command(name=_module.__name__.rpartition(".")[2], cls=getattr(_module, "CLASS", None))(
        _guarded(_module.command)
    )
