"""The commands whose output is stored: rows, fits, `ask`, `export`, and a small grid killed and resumed."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from typer.testing import CliRunner

from semcal.cli.app import app
from semcal.demo.questions import load_set

# Facts of the machine and what it took; blocks and the page stand behind and before what is compared.
NOT_COMPARED = ("environment.json", "blocks/", "work/", "report.html", "report-files.json", "tables/cost-")
TEXT = {".json", ".jsonl", ".md", ".html", ".svg", ".tex", ".csv", ".txt", ".yaml", ".py"}

GRID: dict[str, Any] = {
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
FITS: dict[str, Sequence[str]] = {
    "ts": (),
    "ts-ss": ("--loss", "SS", "--alpha", "0.5"),
    "ts-sgd": ("--solver", "sgd"),
    "ats": ("--method", "ATS", "--learning-rate", "1e-3"),
    "platt": ("--method", "Platt", "--learning-rate", "1e-3"),
    "ts-grid": ("--method", "TS-grid"),
    "ts-selected": ("--select",),
    "ts-selected-by-brier": ("--select", "--by", "brier"),
}
SAMPLED_FITS = ("ts-grid", "ts-selected", "ts-selected-by-brier")
EXPORTS = ("generation-config", "logits-processor", "openai", "vllm", "sglang", "llama.cpp", "ollama")


def write_everything(folder: Path) -> None:
    """Run all commands and leave what they write in a folder: files, and stdout as NAME.txt."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True)
    _rows(folder / "pipe")
    _fits(folder / "fit")
    _exports(folder / "export", folder / "fit" / "ts")
    _grid(folder / "grid")


def stored_files(folder: Path) -> dict[str, str]:
    """The text files of a folder that are compared, by their path in it."""
    return dict(_stored(folder))


def _stored(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and path.suffix in TEXT and not any(part in name for part in NOT_COMPARED):
            yield name, path.read_text(encoding="utf-8")


def _run(*arguments: object, stdin: str = "") -> str:
    """What a command prints on stdout; any other end than 0 is an error that shows it."""
    result = CliRunner().invoke(app, [str(one) for one in arguments], input=stdin)
    if result.exit_code:
        raise RuntimeError(f"semcal {' '.join(map(str, arguments))}: {result.stderr}") from result.exception
    return result.stdout


def _questions(path: Path, part: str, count: int) -> Path:
    """Questions of Atlas that the model knows badly, as JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    questions = getattr(load_set("atlas-rare"), part)[:count]
    fields = map(dataclasses.asdict, questions)
    rows = [{k: v for k, v in one.items() if v not in (None, {}, False)} for one in fields]
    path.write_text("".join(json.dumps({**row, **row.pop("extra", {})}) + "\n" for row in rows))
    return path


def _rows(folder: Path) -> None:
    questions = _questions(folder / "questions.jsonl", "test", 20)
    steps: Mapping[str, Sequence[object]] = {
        "sample": ("--model", "atlas", "--max-new-tokens", 24, "--seed", 3),
        "cluster": ("--equivalence", "atlas"),
        "measure": (),
        "grade": (),
        "metrics": ("--ci",),
    }
    text = questions.read_text()
    for command, options in steps.items():
        text = _run(command, "-", *options, stdin=text)
        (folder / f"{command}.txt").write_text(text)
    sure = _run("sample", questions, "--model", "atlas", "--temperature", 0.7, "--m", 3, "--limit", 5)
    (folder / "sample-at-temperature.txt").write_text(sure)
    one = "Who governed Ruvorkreth?"
    (folder / "ask.txt").write_text(
        _run("ask", one, "--model", "atlas", "--equivalence", "atlas", "--recalibrator", "atlas", "--json")
    )


def _fits(folder: Path) -> None:
    labelled = _questions(folder / "labelled.jsonl", "calibration_train", 40)
    validation = _questions(folder / "validation.jsonl", "validation", 12)
    for name, options in FITS.items():
        arguments: list[object] = ["--model", "atlas", "--out", folder / name, *options]
        if name in SAMPLED_FITS:
            arguments += ["--equivalence", "atlas", "--m", 4, "--max-new-tokens", 24]
        if "--select" in options:
            arguments += ["--validation", validation]
        (folder / f"{name}.txt").write_text(
            _run("fit", labelled, *arguments, "--json").replace(str(folder), ".")
        )


def _exports(folder: Path, recalibrator: Path) -> None:
    folder.mkdir()
    for form in EXPORTS:
        (folder / f"{form}.txt").write_text(_run("export", recalibrator, "--format", form))


def _grid(folder: Path) -> None:
    """The grid in a process that is killed with a part of its blocks done, and then resumed."""
    folder.mkdir()
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(GRID, sort_keys=False))
    run = folder / "run"
    command = [sys.executable, "-m", "semcal", "run", str(config), "--out", str(run), "--workers", "1", "-q"]
    with subprocess.Popen(command) as process:
        while process.poll() is None and _finished_blocks(run) < 12:
            time.sleep(0.05)
        if process.poll() is not None:
            raise RuntimeError("the grid ended before it could be killed")
        process.send_signal(signal.SIGKILL)
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _finished_blocks(run: Path) -> int:
    return sum(1 for _ in (run / "blocks").rglob("*.jsonl")) if run.is_dir() else 0
