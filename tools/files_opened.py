"""Count the modules of semcal that run for a question, a row, a labeled example or a grid job.

    python -m tools.files_opened                 # ask, sample, fit, grid: one line each
    python -m tools.files_opened -v fit          # with the modules, in the order in which they first run
    PYTHONPATH=OTHER/src python tools/files_opened.py      # of another checkout

A module counts if one of its functions runs. Imports, class bodies, decorators, other calls during imports,
and code that dataclasses generate do not count. Every case is a command in its own process, with the embedded
models and one worker. `grid` ends when the first block of the stage "sample" is in the run folder. Modules
that first run after the weights of a language model are requested are counted again; the others read options,
questions and settings.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

CASES = ("ask", "sample", "fit", "grid")
QUESTION = "Who governed Ruvorkreth?"
CONFIG = """\
preset: sound
models: [{name: Llama, path: atlas}]
datasets: [{name: atlas-rare, source: atlas-rare, calibration_train: 8, validation: 4, test: 4}]
equivalence: atlas
methods: [Base]
runs: {count: 1}
sampling: {m: 2, max_new_tokens: {closed_book: 24, open_book: 24}, counts: []}
evaluation: {resamples: 100}
"""
#: Events of the profiler after which a block may be in its place.
_MOVES = (os.replace, os.rename, os.link)


class Recorder:
    """Records, as a profile function, which modules of a package hold a function that ran."""

    def __init__(self, package: Path, done: Callable[[], bool] | None = None) -> None:
        self.package = f"{package}{os.sep}"
        self.ran: dict[str, bool] = {}  # module → whether it first ran after the weights were requested
        self._loading = False
        self._done = done
        self._settled: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Handle an event of `sys.setprofile`."""
        if event == "call":
            if frame.f_code not in self._settled:
                self._called(frame)
        elif event == "c_return" and argument in _MOVES and self._done is not None and self._done():
            self.stop()

    def start(self) -> None:
        """Record this thread and the threads that it starts."""
        threading.setprofile(self)
        sys.setprofile(self)

    def stop(self) -> None:
        """Print the result as JSON, and end the process."""
        sys.setprofile(None)
        sys.__stdout__.write(json.dumps(self.ran) + "\n")  # type: ignore[union-attr]
        sys.__stdout__.flush()  # type: ignore[union-attr]
        os._exit(0)

    def _called(self, frame: FrameType) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(self.package):
            self._loading |= code.co_name == "from_pretrained" and code.co_filename.endswith(
                "modeling_utils.py"
            )
            self._settled.add(code)
        elif code.co_flags & inspect.CO_OPTIMIZED and not self._importing(
            frame
        ):  # neither a module nor a class body
            self._settled.add(code)
            self.ran.setdefault(code.co_filename.removeprefix(self.package), self._loading)

    def _importing(self, frame: FrameType | None) -> bool:
        """Return whether the caller is importing a module of the package."""
        while frame is not None:
            code = frame.f_code
            if code.co_name == "<module>" and code.co_filename.startswith(self.package):
                return True
            frame = frame.f_back
        return False


def main() -> None:
    """Run the cases and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("-v", "--verbose", action="store_true", help="also list the modules")
    parser.add_argument("--record", metavar="FOLDER", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if unknown := set(given.cases) - set(CASES):
        parser.error(f"unknown case {', '.join(sorted(unknown))}; known: {', '.join(CASES)}")
    if given.record:
        record(given.cases[0], given.record)
        return
    print(f"{'':8}{'modules':>8}{'of these, first run after the model is requested':>52}")
    for case in given.cases or CASES:
        ran = modules_of(case)
        print(f"{case:8}{len(ran):8}{sum(ran.values()):52}")
        if given.verbose:
            print(*(f"    {'*' if late else ' '} {module}" for module, late in ran.items()), sep="\n")


def modules_of(case: str) -> dict[str, bool]:
    """Return module → whether it runs only after the request for the model's weights, for one case."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder)
        command = [sys.executable, __file__, case, "--record", name]
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(package().parent), "OMP_NUM_THREADS": "1"},
            check=False,
        )
        if done.returncode or not done.stdout:
            raise SystemExit(f"{case}: ended with exit code {done.returncode} before it was recorded")
        found: dict[str, bool] = json.loads(done.stdout.splitlines()[-1])
        return found


def package() -> Path:
    """Return the folder of the imported semcal."""
    import semcal

    return Path(semcal.__file__).resolve().parent


def write_inputs(folder: Path) -> None:
    """Write a few questions with answers, and the settings of a small grid."""
    from semcal.demo.questions import load_set

    rows = [
        {"id": one.id, "question": one.question, "answers": list(one.answers)}
        for one in load_set("atlas-rare").calibration_train[:6]
    ]
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "grid.yaml").write_text(CONFIG)


def record(case: str, folder: Path) -> None:
    """Run a command in this process and print the modules that ran."""
    from typer.testing import CliRunner

    from semcal.cli.app import app

    questions, out = str(folder / "questions.jsonl"), str(folder / "run")
    commands = {
        "ask": ["ask", QUESTION, "--workers", "1"],
        "sample": ["sample", questions, "--model", "atlas", "--m", "4", "--workers", "1", "--out", out],
        "fit": ["fit", questions, "--model", "atlas", "--out", out],
        "grid": ["run", str(folder / "grid.yaml"), "--workers", "1", "--out", out],
    }
    words = commands[case]
    recorder = Recorder(package(), has_sampled(folder) if case == "grid" else None)
    recorder.start()
    result = CliRunner().invoke(app, words)
    sys.setprofile(None)
    if result.exit_code or case == "grid":
        sys.exit(f"semcal {' '.join(words)}: exit code {result.exit_code}\n{result.output}")
    recorder.stop()


def has_sampled(folder: Path) -> Callable[[], bool]:
    """Return a function that checks for a finished block of the stage "sample" in the run folder."""
    return lambda: any(
        "sample" in (path.parent.name, path.stem.partition("-")[0])
        for path in (folder / "run").rglob("*.jsonl")
    )


if __name__ == "__main__":
    main()
