"""`semcal status`: how much of a run is done."""

from __future__ import annotations

import sys
from collections import Counter

import typer

from semcal.cli import options as opt
from semcal.cli.console import warn
from semcal.records import dumps

__all__ = ["command"]


def command(
    run: opt.RunArgument,
    json: opt.JsonOption = False,
    quiet: opt.QuietOption = False,
    verbose: opt.VerboseOption = False,
) -> int:
    """Show how many blocks of each stage are done, and name damaged ones; exit code 0 if all are done.

    With -v also for each model and data set.
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
            warn(f"{model} on {dataset}: {'lacks ' + ', '.join(lacking) if lacking else 'complete'}")
    for damage in state.damaged:
        warn(f"error: {damage}")
    return 0 if state.complete else 1
