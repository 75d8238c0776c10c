"""How the embedded language model does on validation questions: `python -m tools.atlas.validate`.

This is what world, training and model were settled by; no test question is asked.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from typer.testing import CliRunner

from semcal.cli.app import app
from semcal.data.question import Question
from semcal.demo.paths import language_model_dir
from semcal.demo.questions import SETS, load_set

COLUMNS = ("set", "method", "T", "greedy", "accuracy", "confidence", "ACE", "AUROC", "strings", "meanings")
#: A temperature at which the likeliest token is drawn.
GREEDY = 1e-3


def main(
    model: Annotated[Path | None, typer.Option(help="A model directory, not the embedded one.")] = None,
) -> None:
    """Print E-SC of Base, SE and TS on the validation questions of the three sets as a Markdown table."""
    typer.echo("| " + " | ".join(COLUMNS) + " |\n|" + " --- |" * len(COLUMNS))
    for name in SETS:
        for row in evaluate(model or language_model_dir(), name):
            cells = [f"{row[column]:.3f}" for column in COLUMNS[2:]]
            typer.echo(f"| {name} | {row['method']} | " + " | ".join(cells) + " |")


def evaluate(model: Path, name: str) -> list[dict[str, Any]]:
    """Answer the validation questions of a set with Base, SE and TS; a row with `COLUMNS` for each."""
    atlas = load_set(name)
    with tempfile.TemporaryDirectory() as folder:
        few_shot, training, validation = (
            _written(Path(folder) / part, getattr(atlas, part))
            for part in ("few_shot", "calibration_train", "validation")
        )
        asked = ["--model", str(model), "--few-shot", str(few_shot)]
        fitted = Path(folder) / "ts"
        _semcal("fit", str(training), *asked, "--out", str(fitted))
        sample = ["sample", str(validation), *asked, "--max-new-tokens", "24"]
        greedy = _scores(_semcal(*sample, "--temperature", str(GREEDY), "--m", "1"))["accuracy"]
        temperatures = {
            "Base": 1.0,
            "SE": 0.5,
            "TS": json.loads((fitted / "recalibrator.json").read_text())["temperature"],
        }
        return [
            {"set": name, "method": method, "T": temperature, "greedy": greedy}
            | _scores(_semcal(*sample, "--temperature", str(temperature)))
            for method, temperature in temperatures.items()
        ]


def _scores(samples: str) -> dict[str, float]:
    """E-SC of sampled rows, and how many different answers and meanings a question has in the mean."""
    graded = samples
    for command in (["cluster", "-", "--equivalence", "atlas"], ["measure", "-"], ["grade", "-"]):
        graded = _semcal(*command, stdin=graded)
    rows = [json.loads(line) for line in graded.splitlines()]
    e_sc = json.loads(_semcal("metrics", "-", "--measure", "E-SC", stdin=graded))
    return {
        "accuracy": e_sc["accuracy"],
        "confidence": e_sc["mean_confidence"],
        "ACE": e_sc["ace"],
        "AUROC": e_sc["auroc"],
        "strings": fmean(len(set(row["samples"])) for row in rows),
        "meanings": fmean(len(row["clusters"]) for row in rows),
    }


def _written(path: Path, questions: Sequence[Question]) -> Path:
    """Write questions as JSON Lines."""
    path = path.with_suffix(".jsonl")
    path.write_text("".join(json.dumps(question.row()) + "\n" for question in questions), encoding="utf-8")
    return path


def _semcal(*arguments: str, stdin: str = "") -> str:
    """What a command prints."""
    done = CliRunner().invoke(app, list(arguments), input=stdin)
    if done.exit_code:
        raise SystemExit(f"semcal {' '.join(arguments)}: {done.stderr}")
    return done.stdout


if __name__ == "__main__":
    typer.run(main)
