"""`semcal status`: what of a run is done, and what is missing."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from semcal.cli.console import complain
from semcal.cli.options import JsonOption, QuietOption, VerboseOption
from semcal.records import dumps

__all__ = ["command"]


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, as semcal run writes it.")],
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Show how many blocks of each stage are there, and name damaged ones; exit code 0 if all is there.

    With -v for each model and data set.
    """
    from semcal.experiment.folders import state_of
    from semcal.experiment.grid_blocks import STAGES

    state = state_of(run)
    missing = state.missing()
    if json or not sys.stdout.isatty():
        stages = {stage: [state.total(stage) - missing[stage], state.total(stage)] for stage in STAGES}
        content = {"complete": state.complete, "stages": stages, "damaged": list(state.damaged)}
        typer.echo(dumps({**content, "rows": [state.rows, len(state.expected)]}))
    else:
        for stage in STAGES:
            if state.total(stage):
                typer.echo(f"{stage:<10} {state.total(stage) - missing[stage]:>6} of {state.total(stage)}")
        typer.echo(f"{'rows':<10} {state.rows:>6} of {len(state.expected)}")
    if verbose:
        for (model, dataset), expected in state.expected.items():
            done = state.done.get((model, dataset), Counter())
            lacking = [f"{expected[s] - done[s]} {s}" for s in STAGES if done[s] < expected[s]]
            complain(f"{model} on {dataset}: {'lacks ' + ', '.join(lacking) if lacking else 'complete'}")
    for damage in state.damaged:
        complain(f"error: {damage}")
    return 0 if state.complete else 1
