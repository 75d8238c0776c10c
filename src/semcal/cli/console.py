"""Messages and progress on stderr, results and tables on stdout, and checks and locks of --out.

`warn` always prints (errors, bad rows, requested information), `info` prints without -q, `debug` with -v;
`show` prints results. Untrusted text (answers, names, messages of servers) reaches a terminal only through
these functions, which remove escape sequences.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from semcal.errors import UsageError, printable
from semcal.files import LOCK, Json, file_lock, is_stream, own_files
from semcal.progress import bar, line_writer
from semcal.store import UnfinishedWork, remove_if_nothing_is_finished
from semcal.text import aligned, width_of

#: Seconds between two plain lines of progress.
INTERVAL = 5.0
#: Folders of finished work in the work folder of a command.
_WORK = ("blocks", "recalibrators")

_quiet = False
_verbose = False


def set_quiet(quiet: bool) -> None:
    """Silence `info`, `debug` and `progress` (option -q)."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    """Return whether -q was given."""
    return _quiet


def set_verbose(verbose: bool) -> None:
    """Let `debug` print (option -v)."""
    global _verbose
    _verbose = verbose


def warn(text: str) -> None:
    """Print a line on stderr, also with -q."""
    with suppress(OSError, ValueError):  # no other place for the message
        sys.stderr.write(printable(text) + "\n")
    flush(sys.stderr)


def info(text: str) -> None:
    """Print a line on stderr unless -q was given."""
    if not _quiet:
        warn(text)


def debug(text: str) -> None:
    """Print a line on stderr if -v was given, and not -q."""
    if _verbose:
        info(text)


def show(text: object = "") -> None:
    """Print a result on stdout: on a terminal as `as_shown` returns it, elsewhere unchanged."""
    sys.stdout.write(as_shown(str(text)) + "\n")
    sys.stdout.flush()


def as_shown(text: str) -> str:
    """Return a text, with unprintable characters replaced if stdout is a terminal."""
    return printable(text) if sys.stdout.isatty() else text


def terminal_width() -> int:
    """Return the number of columns of the terminal: 80 if it is unknown."""
    return shutil.get_terminal_size().columns


def paragraph(text: str, *, indent: str = "") -> str:
    """Return a text in lines that fit the terminal; all lines but the first begin with `indent`."""
    width = min(max(40, terminal_width()), 100)
    wrapper = textwrap.TextWrapper(
        width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return wrapper.fill(text)


def flush(stream: TextIO) -> int:
    """Flush a stream; on failure return 1 and close it, so that Python does not try again."""
    try:
        stream.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return 1
    return 0


@contextmanager
def progress(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show progress towards `total`: a bar on a terminal, a line every few seconds elsewhere.

    Yields a function that takes the number of finished items (not the increment). Commands in a pipe share a
    terminal, so they print lines with their names instead of bars that would overwrite each other.
    """
    if _quiet or total == 0:
        yield lambda _done: None
        return
    if sys.stderr.isatty() and not _in_a_pipe():
        with bar(label, total) as update:
            yield update
    else:
        yield line_writer(label, total, INTERVAL, warn)


@contextmanager
def successive_progress() -> Iterator[Callable[[str, int], Callable[[int], None]]]:
    """Show one `progress` after another: yield a function that begins or continues (label, total)."""
    updates: dict[str, Callable[[int], None]] = {}
    with ExitStack() as current:

        def begin(label: str, total: int) -> Callable[[int], None]:
            if label not in updates:
                current.close()
                updates[label] = current.enter_context(progress(label, total))
            return updates[label]

        yield begin


def _in_a_pipe() -> bool:
    """Return whether another command precedes or follows this one in a pipe."""
    return any(_is_pipe(stream) for stream in (sys.stdin, sys.stdout))


def _is_pipe(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):  # closed, or without a file
        return False


def nli_cost(name: str, costs: Mapping[str, int]) -> str:
    """Return the number of model `calls` for clustering, compared with all ordered `pairs`, as text."""
    calls, pairs = costs.get("calls", 0), costs.get("pairs", 0)
    text = f"{calls} NLI calls of {name}"
    return f"{text}, {pairs / calls:.1f} times fewer than for all {pairs} ordered pairs" if calls else text


@contextmanager
def spending(label: str, **roles: object) -> Iterator[None]:
    """Show the costs of `model`, `equivalence` and `grader` on servers at the end."""
    clients: dict[Any, str] = {}
    for role, inner in roles.items():
        for part in ("judge", "equivalence", "inner"):
            inner = getattr(inner, part, inner)
        if (client := getattr(inner, "client", None)) is not None:
            clients.setdefault(client, role)
    try:
        yield
    finally:
        for client, role in clients.items():
            if client.usage.requests:
                info(f"{label}: {f'{role}: ' * (len(clients) > 1)}{client.usage.text()}")
        replies = getattr(roles.get("model"), "replies", None)
        if replies is not None and replies.thought:
            cut = f", {replies.cut} of them without an answer" if replies.cut else ""
            info(f"{label}: {replies.thought} answers followed a thinking part, which is left out{cut}")
        for client in clients:  # now, because Python ignores Ctrl-C during garbage collection
            client.close()


@dataclass(frozen=True)
class Output:
    """The output of a command: the path of its --out, and the permitted contents."""

    path: Path
    is_folder: bool = False  # whether --out is a folder
    begun: bool = False  # this command created the folder, so it resumes there or replaces it
    replaceable: bool = True  # --overwrite may write to a folder that is not empty
    work: Path | None = None  # the folder of finished work

    def check(self, *, overwrite: bool) -> None:
        """Raise UsageError if other files are there."""
        if not self.is_folder:
            if self.path.is_dir():
                raise UsageError(f"--out {self.path} is a folder, expected a file. Pass another path.")
            if not overwrite:
                refuse_existing("--out", self.path)
            return
        if os.path.lexists(self.path) and not self.path.is_dir():
            raise UsageError(f"--out {self.path} is a file, expected a folder. Pass another path.")
        if self.begun or not self.path.is_dir() or not own_files(self.path):
            return
        if not (self.replaceable and overwrite):
            remedy = "Pass another folder" + (", or --overwrite to replace it" if self.replaceable else "")
            raise UsageError(f"--out {self.path} is not empty. {remedy}.")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing to the output during the block."""
        path = self.path.absolute()
        folder, name = (path, LOCK) if self.is_folder else (path.parent, f".{path.name}{LOCK}")
        busy = f"--out {self.path}: another process is writing there. Wait, or pass another --out."
        with ExitStack() as held:
            try:
                held.enter_context(_made(folder))
                held.enter_context(file_lock(folder / name, busy))
            except OSError as error:
                error.filename = str(self.path)
                raise
            try:
                yield
            finally:
                if self.work is not None and self.work != self.path:
                    remove_if_nothing_is_finished(self.work)


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Make a folder with its parents, and remove the empty ones at the end of the block."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for path in missing:
            with suppress(OSError):  # not empty
                path.rmdir()


@contextmanager
def reserved(output: Output | None, *, overwrite: bool, dry_run: bool) -> Iterator[None]:
    """Check the output before any work is done, and lock it during the block."""
    if output is None or (is_stream(output.path) and not output.is_folder):
        yield
        return
    output.check(overwrite=overwrite)
    if dry_run:
        yield
        return
    with output.locked():
        output.check(overwrite=overwrite)  # another process may have written it meanwhile
        yield


def output_file(out: Path | None) -> Output | None:
    """Return the output of a command whose --out is one file."""
    return None if out is None else Output(out)


def refuse_existing(option: str, path: Path) -> None:
    """Reject a file that exists; devices and pipes are accepted."""
    if os.path.lexists(path) and not is_stream(path):
        raise UsageError(f"{option} {path} already exists. Pass another file, or --overwrite to replace it.")


def unfinished(out: Path) -> Path:
    """Return the folder of finished work beside an --out file."""
    named = out if out.name else out.resolve()
    return named.with_name(named.name + ".unfinished")


def open_unfinished(out: Path, settings: Mapping[str, Any], *, fresh: bool) -> UnfinishedWork:
    """Open the finished work of an earlier call beside --out, and print a note if there is any."""
    work = UnfinishedWork(unfinished(out), settings, fresh=fresh)
    if work.resumed:
        info(f"resuming from {work.folder}")
    return work


def kept_message(output: Output | None) -> str:
    """Return a note on the finished work of an interrupted command and how to resume it; "" if none."""
    if output is None or output.work is None or not _holds_work(output.work):
        return ""
    return f"finished work is kept in {output.work}; the same command without --fresh resumes from there"


def _holds_work(folder: Path) -> bool:
    places = [folder / name for name in _WORK if os.path.isdir(folder / name)]  # noqa: PTH112 - any name
    return any(path.is_file() for place in places for path in place.rglob("*"))


# ---- Tables of figures -------------------------------------------------------------------------------------

#: The figures that a reader looks for, with their names, in the order of a table.
MAIN = {
    "n": "questions",
    "accuracy": "accuracy",
    "mean_confidence": "mean confidence",
    "ace": "ACE",
    "ace_floor": "  noise floor",
    "ace_floor_95": "  noise floor, 95%",
    "auroc": "AUROC",
    "brier": "Brier score",
    "gain": "gain",
}
#: An explanation of the calibration error, for a reader who sees it for the first time.
ON_ACE = (
    "ACE is the mean gap between confidence and accuracy. An ACE up to the 95% noise floor can come from "
    "chance alone."
)
#: Entries of figures that are not rows of a table.
BESIDE = ("measure", "se", "interval", "risk", "by")
VERDICTS = {True: "yes", False: "NO", None: "?"}


def figure_lines(columns: Mapping[str, Json], width: int, *, every: bool = False) -> list[str]:
    """Return a table of figures, one column for each entry; further tables if the width is too small.

    Without `every`, figures of `MAIN` alone.
    """
    fullest = max(columns.values(), key=len)
    names = dict(_names(fullest, every=every))
    heads = ["", *names.values()]
    parts: list[list[list[str]]] = []
    for head, figures in columns.items():
        cells = [as_shown(head), *(_cell(figures, *key) for key in names)]
        if not parts or _width([heads, *parts[-1], cells]) > width:
            parts.append([])
        parts[-1].append(cells)
    lines: list[str] = []
    for part in parts:
        lines += [*([""] if lines else []), *aligned(list(zip(heads, *part)))]
    return lines


def slice_lines(figures: Json, column: str) -> list[str]:
    """Return a table of the calibration in each slice, and one of the risk where answers were given.

    Slices are the values of a column. "?" marks slices with too few questions to say.
    """
    between = "95% interval"
    calibrated = [[column, "questions", "confidence", "accuracy", "difference", between, "calibrated"]]
    answered = [[column, "answered", "share wrong", between, "promise holds"]]
    for part in figures["by"]:
        means = map(number, (part["n"], part["mean_confidence"], part["accuracy"]))
        excess = number(part["excess"], sign=True), interval(part["excess_interval"])
        calibrated.append([part["value"], *means, *excess, VERDICTS[part["calibrated"]]])
        if part["answered"] is not None:
            shares = map(number, (part["answered"], part["risk"], part["risk_interval"]))
            answered.append([part["value"], *shares, VERDICTS[part["kept"]]])
    tables = [calibrated, answered] if len(answered) > 1 else [calibrated]
    lines = [line for table in tables for line in ("", *aligned([list(map(as_shown, row)) for row in table]))]
    unsure = any(row[-1] == "?" for table in tables for row in table)
    return [*lines[1:], *(['"?": too few questions for a verdict'] if unsure else [])]


def number(value: Any, *, sign: bool = False) -> str:
    """Return a figure with three decimals, a count as it is, and "–" for an undefined value."""
    if value is None or value != value:
        return "–"
    if isinstance(value, float):
        return f"{value:{'+' if sign else ''}.3f}"
    if isinstance(value, list | tuple):
        return interval(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else as_shown(str(value))


def interval(ends: Sequence[float | None] | None) -> str:
    """Return an interval as [low, high]; "–" if it is undefined."""
    return "–" if ends is None else f"[{', '.join(map(number, ends))}]"


def _names(figures: Json, *, every: bool) -> Iterator[tuple[tuple[str, str | None], str]]:
    """Yield (key, inner key) and name of each row of a table; figures beyond `MAIN` have their JSON keys."""
    for key, name in MAIN.items():
        if key in figures:
            yield (key, None), name
    for key, value in figures.items() if every else ():
        if key not in MAIN and key not in BESIDE:
            inner = value if isinstance(value, dict) else (None,)
            yield from (((key, one), f"{key} {one or ''}".rstrip()) for one in inner)


def _cell(figures: Json, key: str, inner: str | None) -> str:
    """Return a value, with its standard error and 95% interval if there are some."""
    value = figures.get(key) if inner is None else (figures.get(key) or {}).get(inner)
    error, ends = (figures.get(kind, {}).get(key) for kind in ("se", "interval"))
    if inner is not None or ends is None:
        return number(value)
    return f"{number(value)} ± {number(error)} {interval(ends)}"


def _width(columns: Sequence[Sequence[str]]) -> int:
    return sum(max(map(width_of, column)) + 2 for column in columns) - 2
