"""`semcal report`: the page of a run, made again from what the run has stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from semcal.cli.options import JsonOption, QuietOption, VerboseOption
from semcal.errors import UsageError
from semcal.records import dumps

__all__ = ["command"]


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, such as semcal demo writes.")],
    figures: Annotated[
        bool, typer.Option("--figures", help="Also write the figures as PDF and PNG.")
    ] = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Write report.html of a run folder from its stored samples; no model is needed."""
    from semcal.report import build, save_figures

    if not (run / "results.json").is_file():
        raise UsageError(
            f"{run} is no run folder: it has no results.json; make one with `semcal demo --out {run}`"
        )
    paths = [build(run)]
    if figures:
        paths += save_figures(run)
    typer.echo(dumps({"files": [str(path) for path in paths]}) if json else "\n".join(map(str, paths)))
    return 0
