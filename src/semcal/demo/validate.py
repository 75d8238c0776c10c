"""How the embedded language model does on validation questions: `python -m semcal.demo.validate`.

This is what world, training and model were settled by; no test question is asked.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.testing import CliRunner

from semcal.cli.app import app
from semcal.demo.paths import language_model_dir, nli_model_dir
from semcal.demo.questions import SETS, load_set
from semcal.qa.datasets import Question
from semcal.records import dumps

__all__ = ["main", "validated"]

COLUMNS = ("set", "method", "T", "accuracy", "confidence", "ACE", "AUROC", "strings", "meanings")
LONGEST = ("--max-new-tokens", "24")


def main(
    model: Annotated[Path | None, typer.Option(help="A model directory, not the embedded one.")] = None,
) -> None:
    """Print E-SC of Base, SE and TS on the validation questions of the three sets as a Markdown table."""
    typer.echo("| " + " | ".join(COLUMNS) + " |\n|" + " --- |" * len(COLUMNS))
    for name in SETS:
        for method, found in validated(name, model or language_model_dir()).items():
            numbers = " | ".join(f"{number:.3f}" for number in found.values())
            typer.echo(f"| {name} | {method} | {numbers} |")


def validated(
    name: str, model: Path, methods: Sequence[str] = ("Base", "SE", "TS")
) -> dict[str, dict[str, float]]:
    """Method → the numbers of `COLUMNS` under E-SC on the validation questions of a set."""
    one = load_set(name)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        few_shot, labelled, asked = (
            _written(folder / f"{part}.jsonl", getattr(one, part))
            for part in ("few_shot", "calibration_train", "validation")
        )
        how = ("--model", str(model), "--few-shot", str(few_shot))
        heats = {"Base": 1.0, "SE": 0.5}
        if "TS" in methods:
            fit = json.loads(_run("fit", str(labelled), *how, "--out", str(folder / "ts"), "--json"))
            heats["TS"] = fit["temperature"]
        found = {}
        for method in methods:
            text = _run("sample", str(asked), *how, *LONGEST, "--temperature", str(heats[method]))
            for step in (
                ("cluster", "-", "--equivalence", str(nli_model_dir())),
                ("measure", "-"),
                ("grade", "-"),
            ):
                text = _run(*step, stdin=text)
            found[method] = {"T": heats[method], **_numbers(text)}
        return found


def _numbers(graded: str) -> dict[str, float]:
    scores: dict[str, Any] = json.loads(_run("metrics", "-", "--measure", "E-SC", "--json", stdin=graded))
    rows = [json.loads(line) for line in graded.splitlines()]
    return {
        **{key: scores[key] for key in ("accuracy", "mean_confidence", "ace", "auroc")},
        "strings": sum(len(set(row["samples"])) for row in rows) / len(rows),
        "meanings": sum(len(row["clusters"]) for row in rows) / len(rows),
    }


def _written(path: Path, questions: Sequence[Question]) -> Path:
    path.write_text("".join(dumps(question.row()) + "\n" for question in questions), encoding="utf-8")
    return path


def _run(*arguments: str, stdin: str = "") -> str:
    """What a command prints."""
    result = CliRunner().invoke(app, list(arguments), input=stdin, catch_exceptions=False)
    if result.exit_code:
        raise RuntimeError(f"semcal {' '.join(arguments)}: {result.stderr}")
    return result.stdout


if __name__ == "__main__":
    typer.run(main)
