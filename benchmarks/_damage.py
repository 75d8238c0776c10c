"""Commands on damaged input, and rules for all their endings; see benchmarks.robustness."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

from typer.testing import CliRunner

from benchmarks._mutations import Change, changed_line
from semcal.cli.app import app

PATIENCE, HANGS, LONGEST = 30, 300, 2000
REPORTED = re.compile(r"^(\d+) bad rows? (?:was|were) left out", re.MULTILINE)
PYTHON_WARNING = re.compile(r"\.py:\d+: \w*Warning")
Arguments = Sequence[str | Path]


@dataclass(frozen=True)
class Ended:
    """The ending of a command."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    fault: str | None

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stdout.split("\n") if line]

    @property
    def reported(self) -> int:
        return sum(int(count) for count in REPORTED.findall(self.stderr))

    @property
    def refused(self) -> bool:
        """True if the command rejected its input as a whole."""
        return bool(re.search(r"^(error:|Error|Usage:|╭─ Error)", self.stderr, re.MULTILINE))


@dataclass
class Area:
    """The cases of one area, by ending, with violations of rules."""

    name: str
    ends: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def note(self, ended: Ended, words: str, faults: Sequence[str]) -> None:
        """Count a case."""
        how = "refused" if ended.refused else "with rows reported" if ended.reported else "done"
        self.ends["cases"] += 1
        self.ends[how] += 1
        self.ends["rows reported"] += ended.reported
        if faults:
            self.violations.append(f"{self.name}: {words}: {'; '.join(faults)}")

    def row(self) -> dict[str, Any]:
        """The counts as a row of a table."""
        keys = ("cases", "done", "with rows reported", "refused", "rows reported")
        return {
            "area": self.name,
            **{key: self.ends[key] for key in keys},
            "violations": len(self.violations),
        }


@contextmanager
def _bounded() -> Iterator[None]:
    """Stop a hanging command; on a busy machine, it may take several times its processor time."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"not done after {HANGS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(HANGS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def semcal(*arguments: str | Path) -> Ended:
    """Run a command in this process."""
    start = process_time()
    with _bounded():
        result = CliRunner().invoke(app, [str(one) for one in arguments])
    fault = None
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        fault = f"{type(result.exception).__name__}: {str(result.exception)[:200]}"
    return Ended(result.exit_code, result.stdout, result.stderr, process_time() - start, fault)


def faults_of(ended: Ended) -> list[str]:
    """Return the violated rules that hold for every command."""
    longest = max(map(len, ended.stderr.splitlines()), default=0)
    rules = {
        f"traceback of {ended.fault}": ended.fault is not None,
        "a traceback is printed": "Traceback (most recent" in ended.stderr,
        f"exit code {ended.code}": ended.code not in (0, 1, 2),
        "fails without a message": ended.fault is None and ended.code != 0 and not ended.stderr.strip(),
        f"took {ended.seconds:.0f} s": ended.seconds > PATIENCE,
        f"a line of {longest} characters": longest > LONGEST,
        "a warning from Python": PYTHON_WARNING.search(ended.stderr) is not None,
    }
    return [fault for fault, broken in rules.items() if broken]


@dataclass(frozen=True)
class RowCommand:
    """A command that writes a row for each row: its input, and its arguments after the file."""

    name: str
    lines: tuple[bytes, ...]
    arguments: tuple[str, ...] = ()
    model: bool = False

    def run(self, file: Path, lines: Sequence[bytes]) -> Ended:
        """Run it on a file of these lines."""
        file.write_bytes(b"\n".join(lines) + b"\n")
        return semcal(self.name, file, *self.arguments)


def row_case(command: RowCommand, whole: Ended, folder: Path, random: Random) -> tuple[Ended, str, list[str]]:
    """Damage one line of the input and compare the other rows with the undamaged run."""
    at = random.randrange(len(command.lines))
    line, words = changed_line(command.lines[at], random)
    lines = [*command.lines[:at], line, *command.lines[at + 1 :]]
    ended = command.run(folder / "rows.jsonl", lines)
    faults = faults_of(ended)
    if not faults and not ended.refused:
        faults = _row_faults(command, whole, ended, at, lines, folder)
    return ended, f"line {at + 1}: {words}", faults


def _row_faults(
    command: RowCommand, whole: Ended, ended: Ended, at: int, lines: list[bytes], folder: Path
) -> list[str]:
    given, out = sum(bool(line.strip()) for line in lines), ended.rows
    if given != len(out) + ended.reported:
        return [f"{given} rows in, {len(out)} out, {ended.reported} reported"]
    exact = not command.model or len(out) < given
    if command.model and len(out) < given:  # left out: the others are what they are without it
        expected = command.run(folder / "others.jsonl", [*lines[:at], *lines[at + 1 :]]).rows
    else:
        rows = whole.rows
        expected = [*rows[:at], *rows[at + 1 :]]
    written = {row.get("id"): row for row in out}
    lost = [row["id"] for row in expected if row["id"] not in written]
    changed = [
        row["id"] for row in expected if row["id"] in written and not same(written[row["id"]], row, exact)
    ]
    faults = [f"rows {changed} changed with another"] if changed else []
    return [*faults, *([f"rows {lost} lost with another"] if len(lost) > 1 else [])]


def same(a: Any, b: Any, exact: bool) -> bool:
    """Return whether rows are equal, or equal within 1e-4 if other questions in the batch may change them."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key], exact) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y, exact) for x, y in zip(a, b))
    if not exact and isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= 1e-4
    return bool(a == b)


def file_case(
    arguments: Callable[[Path], Arguments], file: Path, change: Change, random: Random
) -> tuple[Ended, str, list[str]]:
    """Damage one file, run the command, and put the file back."""
    before = file.read_bytes()
    damaged, words = change(before, random)
    file.write_bytes(damaged)
    try:
        ended = semcal(*arguments(file))
    finally:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(before)
    return ended, f"{file.name}: {words}", faults_of(ended)
