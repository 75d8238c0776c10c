"""Run every benchmark, print Markdown, and write the rows to runs/bench.json.

python -m benchmarks [NAME ...]
python -m benchmarks --quick [NAME ...]
python -m benchmarks NAME --OPTION ...

`--quick` runs each benchmark in its declared tiny size as a test; the figures have no meaning, and are
written to runs/bench-quick.json. The exit status is 1 if a benchmark fails or prints no row.
"""

from __future__ import annotations

import gzip
import json
import os
import pkgutil
import platform
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO
from unittest.mock import patch

import benchmarks
from benchmarks import DATA, NotRun

OUT, QUICK_OUT = Path("runs/bench.json"), Path("runs/bench-quick.json")
#: Number of evenly spread blocks, and of rows in a block, that a quick run reads of each longer file.
BLOCKS, BLOCK = 8, 40
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Outcome:
    """The outcome of one benchmark."""

    name: str
    rows: Rows  # of `results`
    printed: int  # rows of all tables
    seconds: float  # of processor time, including its processes
    failure: str  # empty if there was none


def main(arguments: Sequence[str]) -> int:
    quick = arguments[:1] == ["--quick"]
    names = list(arguments[quick:])
    known = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__))
    modules = [name for name in known if not name.startswith("_")]
    if not quick and len(names) > 1 and names[0] in modules and names[1].startswith("-"):
        return import_module(f"benchmarks.{names[0]}").main(names[1:]) or 0
    unknown = sorted(set(names) - set(modules))
    if unknown:
        print(f"unknown benchmark {unknown[0]!r}; known: {', '.join(modules)}", file=sys.stderr)
        return 2
    with part_of_data() if quick else patch.dict(os.environ):
        found = [run(name, quick=quick) for name in names or modules]
    out = QUICK_OUT if quick else OUT
    out.parent.mkdir(parents=True, exist_ok=True)
    rows = {one.name: one.rows for one in found if one.rows}
    out.write_text(
        json.dumps({"schema": 1, "environment": environment(), "benchmarks": rows}, indent=1) + "\n"
    )
    print(table([{"benchmark": one.name, "rows": one.printed, "CPU s": one.seconds} for one in found]))
    print(f"{sum(one.seconds for one in found):.0f} s of processor time. Rows are in {out}.")
    for one in found:
        if one.failure:
            print(f"{one.name} failed: {one.failure}", file=sys.stderr)
    return int(any(one.failure for one in found))


def run(name: str, *, quick: bool = False) -> Outcome:
    """Run one benchmark. A failure is printed with its traceback, and does not stop the others."""
    start, failure, rows = processor_seconds(), "", Rows()
    with redirect_stdout(Copied(sys.stdout)) as said, warnings.catch_warnings():
        try:
            module = import_module(f"benchmarks.{name}")
            print(f"## {name}\n\n{(module.__doc__ or '').partition(chr(10))[0]}\n", flush=True)
            rows = quick_rows(module) if quick else rows_of(module)
        except NotRun as needs:
            print(table([{"benchmark": name, "outcome": str(needs)}]))
        except (Exception, SystemExit) as error:  # noqa: BLE001
            traceback.print_exc(file=sys.stdout)
            failure = f"{type(error).__name__}: {error}"
    printed = table_rows(said.getvalue())
    seconds = processor_seconds() - start
    print(f"{name}: {printed} rows, {seconds:.1f} s of processor time\n", flush=True)
    return Outcome(
        name, rows, printed, seconds, failure or ("" if printed else "it printed no row of a table")
    )


def rows_of(module: ModuleType, arguments: Sequence[str] = ()) -> Rows:
    """Run a module once, and return its rows, if any."""
    if arguments or not hasattr(module, "results"):
        if status := module.main(arguments):
            raise SystemExit(status)
        return []
    rows: Rows = module.results()
    print(table(rows) if rows else "", flush=True)
    return rows


def quick_rows(module: ModuleType) -> Rows:
    """Run a module in its tiny size."""
    constants = getattr(module, "QUICK", None)
    if constants is None:
        raise AttributeError("QUICK is missing: a dict from names of constants to tiny values; declare it")
    unknown = sorted(set(constants) - set(vars(module)))
    if unknown:
        raise AttributeError(
            f"QUICK names {', '.join(unknown)}, which the module does not have; correct the name"
        )
    with (
        patch.multiple(module, **constants) if constants else patch.dict({}),
        tempfile.TemporaryDirectory() as place,
    ):
        runs = module.quick_runs(Path(place)) if hasattr(module, "quick_runs") else [[]]
        return [row for arguments in runs for row in rows_of(module, arguments)]


class Copied(StringIO):
    """A stream that stores the printed text and passes it on."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(text)
        return super().write(text)

    def flush(self) -> None:
        self.stream.flush()


@contextmanager
def part_of_data() -> Iterator[None]:
    """Set SEMCAL_DATA to a folder with a part of each file during the block."""
    whole = Path(os.environ.get(DATA, ""))
    with tempfile.TemporaryDirectory() as place, patch.dict(os.environ):
        if DATA in os.environ and whole.is_dir():
            for file in whole.glob("*.json"):
                (Path(place) / file.name).write_bytes(file.read_bytes())
            for file in whole.glob("*.jsonl.gz"):
                with gzip.open(file) as lines, gzip.open(Path(place) / file.name, "wb", 1) as part:
                    part.writelines(spread(list(lines)))
            os.environ[DATA] = place
        yield


def spread(lines: list[bytes]) -> list[bytes]:
    """Return blocks of lines from all parts of a file, because rows of one question are mostly adjacent."""
    if len(lines) <= BLOCKS * BLOCK:
        return lines
    starts = (len(lines) * block // BLOCKS for block in range(BLOCKS))
    return [line for start in starts for line in lines[start : start + BLOCK]]


def table_rows(text: str) -> int:
    """Count the rows of Markdown tables, without heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rules = sum(not line.strip("|-: ") for line in lines)
    return len(lines) - 2 * rules


def processor_seconds() -> float:
    """Return the processor time of this process and of its finished child processes."""
    return sum(os.times()[:4])


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as a Markdown table; a row may lack keys."""
    head = list(dict.fromkeys(key for row in rows for key in row))
    lines = [head, ["---"] * len(head), *([cell(row.get(key)) for key in head] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def cell(value: Any) -> str:
    """Return a number with three significant digits, a dash for None, and other values as text."""
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def environment() -> dict[str, str]:
    """Return the versions and the machine of the figures."""
    packages = {name: version(name) for name in ("numpy", "scipy", "semcal")}
    return {"python": platform.python_version(), "machine": platform.machine(), **packages}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
