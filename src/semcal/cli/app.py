"""The commands of `semcal` and their exit codes: 0 done, 1 failed, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM.

Command modules import what is heavy inside their functions, so that `semcal --help` is quick.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial, wraps
from typing import Annotated, Any, TextIO

import typer

from semcal.cli.claims import Claim, claim_file, claimed, kept_in_words
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
from semcal.cli.stopping import Terminated, terminable
from semcal.errors import SemcalError, SemcalWarning, UsageError

__all__ = ["app"]

Command = Callable[..., int]
#: What a command with these options writes to.
ClaimOf = Callable[[Mapping[str, Any]], Claim | None]
#: What to do about an error of the system.
_ADVICE = {
    errno.ENOSPC: "; free some space there and run the same command again",
    errno.EDQUOT: "; free some space there and run the same command again",
    errno.EACCES: "; check who may write there, or name another place",
    errno.EROFS: "; name a place that can be written to",
}

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


def _guarded(command: Command, claim_of: ClaimOf) -> Callable[..., None]:
    """Turn what a command returns or raises into an exit code."""

    @wraps(command)
    def run(**options: Any) -> None:
        warnings.showwarning = partial(_warn, said=set())
        with terminable():
            code = _exit_code(command, claim_of, options)
        raise typer.Exit(code or _flushed())

    return run


def _exit_code(command: Command, claim_of: ClaimOf, options: Mapping[str, Any]) -> int:
    claim = None
    try:
        claim = claim_of(options)
        overwrite, dry_run = (bool(options.get(name)) for name in ("overwrite", "dry_run"))
        with claimed(claim, overwrite=overwrite, dry_run=dry_run):
            return command(**options)
    except UsageError as error:
        complain(f"error: {error}")
        return 2
    except SemcalError as error:
        complain(f"error: {error}")
    except KeyboardInterrupt as error:
        terminated = isinstance(error, Terminated)
        kept = kept_in_words(claim, options) or _nothing_kept(claim)
        complain(f"{'terminated' if terminated else 'interrupted'}; {kept}")
        _flushed()
        return 143 if terminated else 130
    except BrokenPipeError:  # the reader of our pipe has gone: there is nothing more to say to it
        _flushed()
        return 1
    except MemoryError:
        complain("error: out of memory; ask for less at once (--m, --bins, --memory, --limit)")
        return 1
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "")
        complain(f"error: {error.strerror or error}: {error.filename or 'standard output'}{advice}")
        _flushed()
    if claim is not None and claim.kept is not None and (kept := kept_in_words(claim, options)):
        complain(kept)
    return 1


def _nothing_kept(claim: Claim | None) -> str:
    if claim is None:
        return "nothing is kept but what was printed"
    return f"nothing is kept, and {claim.path} was not written"


def _flushed() -> int:
    """Give stdout what it has not got yet; 1 if it takes no more, so that Python does not try again."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,
    *,
    said: set[str],
) -> None:
    """Show our own warnings as a line, each once, others as Python does."""
    if issubclass(category, SemcalWarning):
        if str(message) not in said:  # processes that share the work may all have found it
            said.add(str(message))
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
        _guarded(_module.command, getattr(_module, "claim", claim_file))
    )
