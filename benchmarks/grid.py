"""CPU time of the grid of `semcal demo` by stage, and the share of the time outside of models.

    python -m benchmarks grid

The command runs in a new process with one thread. *outside of jobs* is its time for settings, data, hashes,
and reading and writing blocks. The shares leave out the imports and the first part of the demo ("start"),
and loading both models ("identify").
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

OPTIONS: tuple[str, ...] = ()
QUICK = {"OPTIONS": ("--quick", "--m", "3", "--limit", "60")}
#: Names of stages in the record of a run, with clearer names.
NAMES = {"main": "outside of jobs"}
LOADING = ("start", "identify")


def results() -> list[dict[str, Any]]:
    """Return a row for each stage, the largest first."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "run"
        command = [sys.executable, "-m", "semcal", "demo", "--workers", "1", "--out", str(out), *OPTIONS]
        subprocess.run(command, check=True, capture_output=True)
        seconds = json.loads((out / "environment.json").read_text())["cpu_seconds"]
    total = sum(spent for name, spent in seconds.items() if name not in LOADING)
    ranked = sorted(seconds.items(), key=lambda pair: -pair[1])
    return [
        {
            "stage": NAMES.get(name, name),
            "CPU s": spent,
            "share": None if name in LOADING else spent / total,
        }
        for name, spent in ranked
    ]


if __name__ == "__main__":
    from benchmarks.__main__ import table

    print(table(results()))
