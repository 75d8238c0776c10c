"""Two grids: the paper's methods on two data sets, and Calibrated on a model and a server."""

from __future__ import annotations

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
        {"name": name, "source": name, "calibration_train": 14, "validation": 6, "test": 6}
        for name in ("atlas-rare", "atlas-reading")
    ],
    "equivalence": "atlas",
    "methods": ["Base", "SE", "TS", "ATS", "Platt"],
    "runs": {"count": 2},
    "sampling": {"m": 3, "max_new_tokens": {"closed_book": 16, "open_book": 16}, "counts": [2]},
    "fitting": {"losses": [["NLL", None], ["SS", 0.25]], "weight_decays": [0.0], "learning_rate": 1e-3},
    "evaluation": {"resamples": 100},
    "extras": {"figure_files": False},
}


def write_paper_grid() -> None:
    """Run the grid of the paper's methods on two data sets."""
    Path("config.yaml").write_text(yaml_text(SOUND))
    store_output("run", "run", "config.yaml", "--out", "run", "--workers", 1)


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
