"""Count the frames on the stack when a command draws its first token.

    python -m tools.stack_depth                 # ask, sample, grid, calibrate: frames of semcal, and of all
    python -m tools.stack_depth -v grid         # with the functions of semcal, the outermost first

Every case is a command of its own process on the embedded models, with one worker, so that it draws in the
process that reads the options. Frames of this script do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from tools.files_opened import QUESTION, write_inputs

CASES = ("ask", "sample", "grid", "calibrate")


def main() -> None:
    """Run the cases and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("-v", "--verbose", action="store_true", help="also list the functions of semcal")
    parser.add_argument("--record", metavar="FOLDER", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"unknown case {', '.join(sorted(unknown))}; known: {', '.join(CASES)}")
    if options.record:
        record(options.cases[0], options.record)
    print(f"{'':10}{'semcal':>8}{'all':>6}")
    for case in options.cases or CASES:
        functions, total = stack_of(case)
        print(f"{case:10}{len(functions):8}{total:6}")
        if options.verbose:
            print(*(f"    {function}" for function in functions), sep="\n")


def stack_of(case: str) -> tuple[list[str], int]:
    """The functions of semcal on the stack of a case, and the number of all frames."""
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(Path(folder))
        command = [sys.executable, "-m", "tools.stack_depth", case, "--record", folder]
        result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if result.returncode or not result.stdout:
            raise SystemExit(f"{case}: ended with exit code {result.returncode} before a token was drawn")
        functions, total = json.loads(result.stdout.splitlines()[-1])
        return functions, total


def record(case: str, folder: Path) -> NoReturn:
    """Run a command in this process until it draws a token, and print its stack as JSON."""
    from typer.testing import CliRunner

    from semcal.cli.app import app
    from semcal.models import drawing

    def stop(*_: Any) -> NoReturn:
        frames = [frame for frame in _callers(sys._getframe(1)) if frame.f_globals["__name__"] != "__main__"]
        names = [f"{frame.f_globals['__name__']}.{frame.f_code.co_qualname}" for frame in frames[::-1]]
        functions = [name for name in names if name.startswith("semcal.")]
        sys.__stdout__.write(json.dumps([functions, len(frames)]) + "\n")  # type: ignore[union-attr]
        sys.__stdout__.flush()  # type: ignore[union-attr]
        os._exit(0)

    vars(drawing)["draw_by_weights"] = stop
    questions, out = str(folder / "questions.jsonl"), str(folder / "run")
    words = {
        "ask": ["ask", QUESTION, "--workers", "1"],
        "sample": ["sample", questions, "--model", "atlas", "--m", "4", "--workers", "1", "--out", out],
        "grid": ["run", str(folder / "grid.yaml"), "--workers", "1", "--out", out],
        "calibrate": ["calibrate", questions, "--model", "atlas", "--out", out],
    }
    result = CliRunner().invoke(app, words[case])
    sys.exit(f"semcal {' '.join(words[case])}: exit code {result.exit_code}\n{result.output}")


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


if __name__ == "__main__":
    main()
