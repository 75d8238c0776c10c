"""Run the notebooks, and write them with their outputs, also as pages of the docs.

    python -m tools.notebooks                 # make notebooks/NAME.ipynb from each notebooks/NAME.py
    python -m tools.notebooks calibrate       # only one notebook
    python -m tools.notebooks --samples       # write notebooks/samples.jsonl for score.py

A notebook is a pair: edit NAME.py (jupytext, py:percent), and make NAME.ipynb from it. The extra docs is
needed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "notebooks"
SECONDS = 300


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.notebooks", description="Run the notebooks.")
    parser.add_argument("names", nargs="*", help="names of notebooks; all by default")
    parser.add_argument("--samples", action="store_true", help="write the samples for score.py")
    given = parser.parse_args(words)
    if given.samples:
        write_samples(FOLDER / "samples.jsonl")
        return
    for path in [FOLDER / f"{name}.py" for name in given.names] or sorted(FOLDER.glob("*.py")):
        print(run(path))


def run(path: Path) -> Path:
    """Run NAME.py in a kernel, and write NAME.ipynb with the outputs; SystemExit for errors and warnings."""
    import jupytext
    import nbclient

    os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # tqdm, without ipywidgets
    notebook = jupytext.read(path)
    here = {"metadata": {"path": str(FOLDER)}}
    nbclient.NotebookClient(notebook, timeout=SECONDS, resources=here, coalesce_streams=True).execute()
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _is_progress(output)]
            if said := [output.text for output in cell.outputs if output.get("name") == "stderr"]:
                raise SystemExit(f"{path.name}, cell {number}: {said[0]}")
    written = path.with_suffix(".ipynb")
    written.write_text(
        json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8"
    )
    return written


def _is_progress(output: Mapping[str, Any]) -> bool:
    """Return whether an output is only a line of progress."""
    return output.get("name") == "stderr" and not re.sub(
        r"\r?\w+: \d+ of \d+ \((\d+ s|\d+:\d+ min)\)|\s", "", output["text"]
    )


def page(notebook: Mapping[str, Any]) -> str:
    """Return a notebook as Markdown for the docs, with its stored outputs."""
    return "\n\n".join(part for cell in notebook["cells"] for part in _parts(cell)) + "\n"


def _parts(cell: Mapping[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        shown = {kind: "".join(text) for kind, text in output.get("data", {}).items()}
        text = "".join(output.get("text", "")) or shown.get("text/plain", "")
        if "image/png" in shown:
            yield _html(f'<img alt="Figure" src="data:image/png;base64,{shown["image/png"].strip()}">')
        elif "text/html" in shown:
            yield _html(f'<div class="table-wrapper notebook">{shown["text/html"]}</div>')
        elif text:
            yield _html(f'<div class="highlight notebook"><pre>{escape(text.rstrip())}</pre></div>')


def _html(text: str) -> str:
    return "```{raw} html\n" + text + "\n```"


def write_samples(path: Path, n: int = 200) -> None:
    """Write sampled answers of a model in the repository, as another program would."""
    import semcal
    from semcal.data import load_questions
    from semcal.files import write_rows

    found = semcal.ask_many(
        "atlas-mistral",
        load_questions("atlas-trivia", split="validation", limit=n),
        few_shot=load_questions("atlas-trivia", split="few_shot"),
    )
    keys = ("id", "question", "relation", "answers", "samples")
    write_rows(
        path,
        (
            {key: row[key] for key in keys}
            | {"log_likelihoods": [round(value, 4) for value in row["log_likelihoods"]]}
            for row in found.rows
        ),
    )


if __name__ == "__main__":
    main()
