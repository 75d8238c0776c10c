"""Cold start: the overhead of commands, compared with the imports that they need.

    python -m benchmarks start

Each command runs in a separate process, with one thread and compiled bytecode, in rounds of all commands;
medians of the rounds. "of the imports" is relative to the CPU time of importing torch and transformers'
AutoTokenizer, AutoModelForCausalLM and AutoModelForSequenceClassification; "of plain models" to that of
loading both models of `semcal ask` with these classes. Light commands get four rows, `semcal calibrate` 250
questions with ten samples.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from semcal.demo.paths import language_model_dir, nli_model_dir

ROUNDS, WARM = 5, 1  # counted rounds, and earlier rounds that write bytecode
QUICK = {"ROUNDS": 1, "WARM": 0}
IMPORTS = """import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
"""
MODELS = f"""{IMPORTS}
lm, nli = {str(language_model_dir())!r}, {str(nli_model_dir())!r}
AutoTokenizer.from_pretrained(lm), AutoTokenizer.from_pretrained(nli)
AutoModelForCausalLM.from_pretrained(lm), AutoModelForSequenceClassification.from_pretrained(nli)
"""
ROWS = [
    {"id": str(n), "question": "Who?", "samples": ["Ana", "Ana", "Bo"], "log_likelihoods": [-1, -1, -2],
     "answers": "Ana" if n else "Bo"}
    for n in range(4)
]  # fmt: skip
#: Questions with ten samples for the calibration.
SAMPLES = [
    {"id": str(n), "question": f"Who built mill {n}?", "answers": "Ana" if n % 3 else "Bo",
     "samples": [("Ana", "Bo", "Cy")[n * draw % 7 % 3] for draw in range(10)],
     "log_likelihoods": [-1.0 - n * draw % 5 for draw in range(10)]}
    for n in range(250)
]  # fmt: skip
EXACT = ["--overwrite", "--equivalence", "exact", "--out"]
#: Name → arguments of Python; each light command reads the output of the one before.
COMMANDS = {
    "import torch and three classes": ["-c", IMPORTS],
    "load both models": ["-c", MODELS],
    "import numpy": ["-c", "import numpy"],
    "semcal --help": ["-m", "semcal", "--help"],
    "semcal cluster": ["-m", "semcal", "cluster", "0", *EXACT, "1"],
    "semcal measure": ["-m", "semcal", "measure", "1", "--out", "2", "--overwrite"],
    "semcal grade": ["-m", "semcal", "grade", "2", "--out", "3", "--overwrite"],
    "semcal metrics": ["-m", "semcal", "metrics", "3"],
    "semcal calibrate": ["-m", "semcal", "calibrate", "samples", *EXACT, "c"],
    "semcal ask": ["-m", "semcal", "ask", "Who governed Ruvorkreth?"],
}


def seconds(arguments: list[str], folder: Path) -> tuple[float, float]:
    """Return CPU and wall seconds of a process."""
    one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=folder, env=kept | one, check=True, capture_output=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def results() -> list[dict[str, Any]]:
    """Return a row for each command."""
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        stored: dict[str, list[dict[str, Any]]] = {"0": ROWS, "samples": SAMPLES}
        for name, rows in stored.items():
            (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        for counts in [False] * WARM + [True] * ROUNDS:
            for name, arguments in COMMANDS.items():
                took = seconds(arguments, folder)
                if counts:
                    measured[name].append(took)
    cpu = {name: statistics.median(one for one, _ in times) for name, times in measured.items()}
    imports, models = (cpu[name] for name in list(COMMANDS)[:2])
    return [
        {
            "command": name,
            "CPU s": cpu[name],
            "wall s": statistics.median(wall for _, wall in measured[name]),
            "of the imports": cpu[name] / imports,
            "of plain models": cpu[name] / models,
        }
        for name in COMMANDS
    ]
