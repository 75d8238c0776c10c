"""A grid that is killed with a part of its blocks done, and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

SOUND: dict[str, Any] = {
    "preset": "sound",
    "models": [{"name": "Llama", "path": "atlas"}],
    "datasets": [
        {"name": name, "source": name, "calibration_train": 32, "validation": 12, "test": 12}
        for name in ("atlas-rare", "atlas-reading")
    ],
    "equivalence": "atlas",
    "methods": ["Base", "SE", "TS", "ATS", "Platt"],
    "runs": {"count": 2},
    "sampling": {"m": 4, "max_new_tokens": {"closed_book": 24, "open_book": 24}, "counts": [2, 6]},
    "fitting": {"losses": [["NLL", None], ["SS", 0.25]], "weight_decays": [0.0], "learning_rate": 1e-3},
    "evaluation": {"resamples": 200},
}
#: Blocks of the first grid that are there when it is killed.
BLOCKS = 12


def write_killed_grid() -> None:
    """The grid of the paper's methods in a process that is killed, and in another that resumes it."""
    config, run = Path("config.yaml"), Path("run")
    config.write_text(yaml.safe_dump(SOUND, sort_keys=False))
    command = [sys.executable, "-m", "semcal", "run", str(config), "--out", str(run), "--workers", "1", "-q"]
    with subprocess.Popen(command) as process:
        while process.poll() is None and _finished_blocks(run) < BLOCKS:
            time.sleep(0.05)
        if process.poll() is not None:
            raise RuntimeError("the grid ended before it could be killed")
        process.send_signal(signal.SIGKILL)
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _finished_blocks(run: Path) -> int:
    return sum(1 for _ in (run / "blocks").rglob("*.jsonl")) if run.is_dir() else 0
