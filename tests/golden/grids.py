"""Grids: one killed with a part of its blocks done and resumed, and one of maps over a model and a server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from semcal.yaml_files import yaml_text
from tests.golden.invoking import store_output
from tests.golden.questions import mill_questions, questions_of, write_rows
from tests.servers.fake_server import FakeServer

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
    config.write_text(yaml_text(SOUND))
    command = [sys.executable, "-m", "semcal", "run", str(config), "--out", str(run), "--workers", "1", "-q"]
    with subprocess.Popen(command) as process:
        while process.poll() is None and _finished_blocks(run) < BLOCKS:
            time.sleep(0.05)
        if process.poll() is not None:
            raise RuntimeError("the grid ended before it could be killed")
        process.send_signal(signal.SIGKILL)
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _finished_blocks(run: Path) -> int:
    return sum(1 for _ in (run / "blocks").glob("*/*.jsonl")) if run.is_dir() else 0


def write_calibrated_grid() -> None:
    """Base, TS-grid and Calibrated with a threshold, on a model and on a server, which cannot serve Platt.

    Each knows half of the questions.
    """
    atlas = questions_of("calibration_train", 20, "atlas-trivia")
    mixed = [row for pair in zip(atlas, mill_questions(20)) for row in pair]
    write_rows("mixed.jsonl", mixed)
    with FakeServer(log_probs="scaled") as server:
        served = {"name": "served", "path": server.name, "server": {"concurrency": 1}}
        Path("config.yaml").write_text(yaml_text(_calibrated(served)))
        store_output("run", "run", "config.yaml", "--out", "run", "--json")


def _calibrated(served: dict[str, Any]) -> dict[str, Any]:
    sizes = {"calibration_train": 14, "validation": 10, "test": 10, "few_shot": 2}
    return {
        "models": [{"name": "Llama", "path": "atlas"}, served],
        "datasets": [{"name": "mixed", "source": "mixed.jsonl", **sizes}],
        "equivalence": "exact",
        "methods": ["Base", "Platt", "TS-grid", "Calibrated"],
        "runs": {"count": 1},
        "sampling": {"m": 4, "counts": [3], "max_new_tokens": {"closed_book": 8}},
        "fitting": {"losses": [["NLL", None]], "weight_decays": [0.0], "learning_rate": 1e-3},
        "calibrated": {"questions": 20, "risk": 0.5, "delta": 0.2},
        "evaluation": {"resamples": 100},
        "extras": {"beams": False, "figure_files": False},
    }
