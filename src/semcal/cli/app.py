"""The commands of `semcal`, with exit codes 0 done, 1 failed, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM.

The module of a command is imported when the command is used, so that `semcal --help` is fast.
"""

from __future__ import annotations

import errno
import inspect
import io
import os
import signal
import sys
import warnings
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from pkgutil import get_data, resolve_name
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from semcal.cli import console
from semcal.cli.config_file import plugins_of
from semcal.cli.console import Output, flush, info, kept_message, reserved, show, warn
from semcal.errors import SemcalError, SemcalWarning, UsageError, naming_extra, shown
from semcal.files import HALF
from semcal.registry import load_plugins

Command = Callable[..., int]
#: Function and output of each command, in the order of `semcal --help`. The parameters of the output function
#: are names of options. The modules are imported on use.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "demo": ("demo:command", "demo:output_of"),
    "ask": ("ask:command", "console:output_file"),
    "calibrate": ("calibrate:command", "calibrate:output_of"),
    "fit": ("fit:command", "fit:output_of"),
    "run": ("grid_commands:run", "grid_commands:run_output"),
    "status": ("grid_commands:status", "console:output_file"),
    "sample": ("row_commands:sample", "row_commands:sample_output"),
    "import": ("row_commands:import_rows", "console:output_file"),
    "cluster": ("row_commands:cluster", "console:output_file"),
    "measure": ("row_commands:measure", "console:output_file"),
    "grade": ("row_commands:grade", "console:output_file"),
    "metrics": ("row_commands:metrics", "console:output_file"),
    "report": ("grid_commands:report", "grid_commands:report_output"),
    "export": ("server_commands:export", "console:output_file"),
    "probe": ("server_commands:probe", "console:output_file"),
    "serve": ("serve_command:command", "console:output_file"),
    "monitor": ("monitor:command", "console:output_file"),
    "labels": ("monitor:labels", "console:output_file"),
    "env": ("server_commands:env", "console:output_file"),
}
#: The remedy for an error of the operating system.
_ADVICE = {
    errno.ENOSPC: "; free some space, and run the same command again",
    errno.EDQUOT: "; free some space, and run the same command again",
    errno.EACCES: "; check the permissions, or choose another place",
    errno.EROFS: "; choose a place that is writable",
}


class _Command(TyperCommand):
    """A command whose help has panels of options; the list of commands is plain, which is faster."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from rich.markup import escape

        self.rich_markup_mode = "rich"
        paragraphs = (self.help or "").split("\n\n")
        self.help = "\n\n".join(escape(" ".join(paragraph.split())) for paragraph in paragraphs)
        for parameter in self.get_params(ctx):
            if isinstance(parameter, TyperOption | TyperArgument):
                parameter.help = escape(parameter.help or "")
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        super().format_help(ctx, formatter)


class _Commands(UserDict[str, Any]):
    """The commands by name; each is made when it is asked for, as the only one of a program."""

    def __getitem__(self, name: str) -> Any:
        command, output_of = (resolve_name(f"semcal.cli.{address}") for address in self.data[name])
        alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        alone.command(name=name, cls=_Command)(_guarded(name, command, output_of))
        return typer.main.get_command(alone)


class _Group(TyperGroup):
    """All commands; the list of `--help` imports none of them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = _Commands(COMMANDS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - of click
        """Write the names with the first lines of the docstrings, which are read from the source."""
        rows = []
        for name, (address, _) in COMMANDS.items():
            module, _, function = address.partition(":")
            source = (get_data("semcal.cli", f"{module}.py") or b"").decode()
            text = source.partition(f"\ndef {function}(")[2].partition('"""')[2].partition("\n")[0]
            rows.append((name, text.removesuffix('"""')))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Calibrated semantic uncertainty for question answering with language models.",
    epilog="Begin with semcal demo. For the options of a command, run semcal COMMAND --help.",
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        if sys.stdout.isatty():
            sys.stdout.reconfigure(errors="replace")  # an ASCII locale
        else:  # JSON Lines are UTF-8, whatever the locale; names of files are bytes
            sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    if version:
        from semcal import __version__

        show(f"semcal {__version__}")
        raise typer.Exit


class Terminated(KeyboardInterrupt):
    """SIGTERM, which is handled like Ctrl-C."""


def _guarded(name: str, command: Command, output_of: Callable[..., Output | None]) -> Callable[..., None]:
    """Wrap a command, so that its result or its error becomes an exit code."""
    from semcal.cli import options as opt

    options_of_output = inspect.signature(output_of).parameters

    @wraps(command)
    def run(
        *,
        typer_context: typer.Context,
        quiet: bool,
        verbose: bool = False,
        config: list[str] | None = None,
        **options: Any,
    ) -> None:
        sources = {name: typer_context.get_parameter_source(name) for name in typer_context.params}
        given = {name for name, source in sources.items() if source and source.name == "COMMANDLINE"}
        console.set_quiet(quiet)
        console.set_verbose(verbose)
        options |= {"quiet": quiet, "verbose": verbose, "config": config}
        warnings.showwarning = partial(_show_warning, printed=set())
        output = None
        with _sigterm_raises():
            try:
                load_plugins(plugins_of(config or ()))
                options = opt.with_settings(name, command, options, config or (), given)
                for name_of_text in {"question", "context", "system", "columns"} & options.keys():
                    _check_text(name_of_text, options[name_of_text])
                output = output_of(**{name: options.get(name) for name in options_of_output})
                overwrite, dry_run = (bool(options.get(name)) for name in ("overwrite", "dry_run"))
                with reserved(output, overwrite=overwrite, dry_run=dry_run), naming_extra(f"semcal {name}"):
                    code = command(**opt.arguments_of(command, options))
            except (SemcalError, KeyboardInterrupt, MemoryError, OSError) as error:
                code = _report(error, output)
            except RuntimeError as error:
                if type(error).__name__ != "OutOfMemoryError":  # of torch, which light commands do not import
                    raise
                code = _report(MemoryError(str(error).partition(". ")[0]), output)
        raise typer.Exit(code or flush(sys.stdout))

    signature = opt.options_of(name, command)
    context = inspect.Parameter("typer_context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    signature = signature.replace(parameters=[context, *signature.parameters.values()])
    run.__signature__ = signature  # type: ignore[attr-defined]
    return run


def run_app() -> None:
    """Run the command named on the command line, and exit."""
    try:
        app(prog_name="semcal")
    except OSError as error:  # of --help and --version; commands report their own
        warn(f"error: {error.strerror}: standard output")
        sys.exit(1)
    finally:
        flush(sys.stdout)


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM, unless the signal is ignored or has another handler."""
    try:
        free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        if free:
            signal.signal(signal.SIGTERM, _terminate)
    except ValueError:  # only the main thread may handle signals
        free = False
    try:
        yield
    finally:
        if free:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:
    del frame
    signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the cleanup
    raise Terminated


def _report(error: BaseException, output: Output | None) -> int:
    """Print the error and the place of finished work on stderr, and return the exit code."""
    if isinstance(error, UsageError):
        warn(f"error: {error}")
        return 2
    if isinstance(error, KeyboardInterrupt):
        terminated = isinstance(error, Terminated)
        remains = kept_message(output) or "no unfinished work is kept"
        warn(f"{'terminated' if terminated else 'interrupted'}; {remains}")
        flush(sys.stdout)
        return 143 if terminated else 130
    if isinstance(error, BrokenPipeError):  # the reader of the output has ended
        flush(sys.stdout)
        return 1
    if isinstance(error, MemoryError):
        where = str(error) or "out of memory"
        warn(f"error: {where}; use less memory at once (--workers, model.memory, --m, --bins, --limit)")
    elif isinstance(error, OSError):
        advice = _ADVICE.get(error.errno or 0, "")
        warn(f"error: {error.strerror or error}: {error.filename or 'standard output'}{advice}")
        flush(sys.stdout)
    else:
        warn(f"error: {error}")
    if remains := kept_message(output):
        warn(remains)
    return 1


def _check_text(name: str, value: Any) -> None:
    """Raise UsageError for a text that is neither UTF-8 nor the name of a file."""
    for text in value if isinstance(value, list) else [value]:
        if text is not None and HALF.search(text) and not os.path.lexists(text):
            raise UsageError(f"{name}: {shown(text)} is not valid UTF-8; enter it in a UTF-8 terminal")


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object, printed: set[str]
) -> None:
    """Print each warning of semcal once, in one line, and other warnings as Python does; none with -q."""
    if issubclass(category, SemcalWarning):
        if str(message) not in printed:  # several workers may give the same warning
            printed.add(str(message))
            info(f"warning: {message}")
    else:
        info(warnings.formatwarning(message, category, filename, lineno).rstrip())
