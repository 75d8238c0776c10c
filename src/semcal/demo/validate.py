"""How the embedded language model does on validation questions: `python -m semcal.demo.validate`.

This is what world, training and model were settled by; no test question is asked.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from semcal.demo.paths import language_model_dir, nli_model_dir
from semcal.demo.questions import SETS, load_set
from semcal.engine import load_equivalence, load_model
from semcal.experiment.comparison import METHODS, Comparison
from semcal.experiment.settings import Settings
from semcal.pipeline.executor import SerialExecutor
from semcal.pipeline.worker_state import WorkerState

__all__ = ["main", "silent"]

COLUMNS = ("set", "method", "T", "greedy", "accuracy", "confidence", "ACE", "AUROC", "strings", "meanings")


@contextmanager
def silent(_label: str, _total: int | None) -> Iterator[Callable[[int], None]]:
    """Show no progress."""
    yield lambda _done: None


def main(
    model: Annotated[Path | None, typer.Option(help="A model directory, not the embedded one.")] = None,
) -> None:
    """Print E-SC of Base, SE and TS on the validation questions of the three sets as a Markdown table."""
    typer.echo("| " + " | ".join(COLUMNS) + " |\n|" + " --- |" * len(COLUMNS))
    comparison = Comparison(
        executor=SerialExecutor(
            WorkerState(load_model(model or language_model_dir()), load_equivalence(nli_model_dir()))
        ),
        out=Path(tempfile.mkdtemp()),
        settings=Settings(max_new_tokens_closed_book=24, max_new_tokens_open_book=24, resamples=100),
        progress=silent,
    )
    for name in SETS:
        one = load_set(name)
        (found,) = comparison.run([replace(one, test=one.validation)])["sets"]
        for method in METHODS:
            typer.echo(_line(name, method, found))


def _line(name: str, method: str, found: Mapping[str, Any]) -> str:
    of = found["methods"][method]
    e_sc = of["measures"]["E-SC"]
    numbers = (
        of["temperature"],
        found["greedy_accuracy"],
        *(e_sc[metric] for metric in ("accuracy", "mean_confidence", "ace", "auroc")),
        of["distinct_answers"],
        of["meanings"],
    )
    return f"| {name} | {method} | " + " | ".join(f"{number:.3f}" for number in numbers) + " |"


if __name__ == "__main__":
    typer.run(main)
