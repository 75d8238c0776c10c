"""Write the pages of docs/reference that come from the program: the command line and the glossary.

python -m tools.reference_pages            # writes the pages
python -m tools.reference_pages --check    # fails if a page is not what it would write
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import typer

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
#: What stands for a value, by its type.
VALUES = {
    "<int range>": "N",
    "<int>": "N",
    "<float range>": "X",
    "<float>": "X",
    "<str>": "TEXT",
    "<path>": "PATH",
}
WRITTEN = "<!-- Written by `python -m tools.reference_pages`; do not change it by hand. -->"
#: Terms that the report's glossary has no need of, or says in view of its neighbour there.
TERMS = {
    "Base": "The model as it is, at temperature 1.",
    "DSC": "Discrimination: how far the {term}`CORP` curve beats a constant confidence, in Brier score.",
    "ECE": "Expected calibration error: the gap between confidence and accuracy, over bins of equal width.",
    "ML-SC": "The mean likelihood of the answers with this meaning, so that their number does not count.",
    "Platt": "Platt scaling: a factor and an offset for each token of the vocabulary.",
    "abstain": "Not to answer, because the confidence is below the {term}`threshold`.",
    "calibrated": "Of all answers given with confidence p, the share p is right.",
    "calibration": "What `semcal calibrate` learns: the probability that an answer is right, from samples.",
    "closed book": "A question without a passage; the model answers from memory.",
    "draw": "One sampled answer. `m` is the number of draws for a question.",
    "entailment": "One answer to the question implies another. An {term}`NLI` model decides it.",
    "equivalence": "What decides whether two answers mean the same: {term}`normal form`, {term}`NLI` "
    "model, or a model behind a server.",
    "first answer": "The part of a generation that is the answer: up to the first line break or "
    "the end of the first sentence.",
    "likelihood": "How probable an answer is to the model: e to the power of the mean log-probability of "
    "its tokens.",
    "linkage": "How pairs of answers become meanings: `components` joins all that are linked, `greedy` "
    "compares with the first answer of each meaning.",
    "meaning": "Answers of one question that entail each other, counted as one.",
    "NLI": "Natural language inference: does one text imply, contradict, or leave open another?",
    "normal form": "An answer without what does not matter: case, articles, spelling of numbers and dates.",
    "open book": "A question with a passage that holds the answer.",
    "preset": "A set of settings of a grid: `sound` (default), `paper`.",
    "recalibrator": "What changes the model's token probabilities: Base, SE, TS, ATS, Platt.",
    "reference answer": "An answer that people wrote; a label.",
    "risk": "The share of given answers that are wrong.",
    "semantic entropy": "The entropy of the shares of the meanings, in nats: 0 if all draws mean the same.",
    "server": "A program that answers over OpenAI-style HTTP: vLLM, SGLang, llama.cpp, Ollama, TGI, OpenAI.",
    "share": "How many of the draws have a meaning, divided by all: {term}`E-SC`.",
    "threshold": "The confidence from which on an answer is given.",
}


def command_line() -> str:
    """Return the page of all commands with their options."""
    from semcal.cli.app import app

    group: Any = typer.main.get_command(app)
    head = [
        "# Command line",
        "",
        WRITTEN,
        "",
        "What commands have in common: [Commands](../commands.md).",
        "",
    ]
    return "\n".join([*head, *(_command(name, command) for name, command in group.commands.items())])


def _command(name: str, command: Any) -> str:
    context = typer.Context(command)
    shown = [one for one in command.params if one.name != "help"]
    rows = [_row(*record) for one in shown if (record := one.get_help_record(context))]
    text = inspect.cleandoc(command.help or "")
    table = ["| option | what it does |", "| --- | --- |", *rows]
    return "\n".join([f"## {name}\n", f"{text}\n", *table, ""])


def _row(names: str, what: str) -> str:
    """An option or argument as a row of the table."""
    for kind, value in VALUES.items():
        names = names.replace(kind, value)
    text = " ".join(what.split()).replace("|", "\\|")
    return f"| `{' '.join(names.split())}` | {text} |"


def glossary() -> str:
    """Return the page of codes and terms: those of the report, and further ones."""
    from semcal.experiment.report import build

    found = {code: text for codes in build.glossary().values() for code, text in codes.items()}
    found |= TERMS
    entries = (
        f"{term}\n  {text}\n" for term, text in sorted(found.items(), key=lambda one: one[0].casefold())
    )
    return "\n".join(["# Glossary", "", WRITTEN, "", "```{glossary}", *entries, "```", ""])


PAGES = {"cli.md": command_line, "glossary.md": glossary}


def stale() -> list[str]:
    """Return the pages that are not what would be written."""
    there = {name: FOLDER / name for name in PAGES}
    return [
        name
        for name, page in PAGES.items()
        if not there[name].is_file() or there[name].read_text(encoding="utf-8") != page()
    ]


def main() -> int:
    """Write or check the pages, and return the exit code."""
    if "--check" in sys.argv[1:]:
        if found := stale():
            print(f"{', '.join(found)}: stale; run python -m tools.reference_pages", file=sys.stderr)
        return 1 if found else 0
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
