"""`semcal merge`: put the run folders of shards together."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from semcal.cli import options as opt
from semcal.cli.console import info, warn
from semcal.cli.output import Output
from semcal.records import dumps

__all__ = ["command", "output_of"]


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder to copy into.")],
    shards: Annotated[
        list[Path], typer.Argument(metavar="SHARD...", help="Run folders that semcal run --shard wrote.")
    ],
    json: opt.JsonOption = False,
    quiet: opt.QuietOption = False,
    verbose: opt.VerboseOption = False,
) -> int:
    """Copy the finished blocks of shards into one run folder; name damaged or contradictory ones."""
    from semcal.experiment.folders import merge, state_of

    merged = merge(run, shards)
    for reason in merged.refused:
        warn(f"error: {reason}")
    state = state_of(run)
    missing = {stage: count for stage, count in state.missing().items() if count}
    if json or not sys.stdout.isatty():
        content = {"run": str(run), "copied": merged.copied, "present": merged.present, "missing": missing}
        typer.echo(dumps({**content, "refused": list(merged.refused)}))
    lacking = ", ".join(f"{count} of {stage}" for stage, count in missing.items())
    info(
        f"merge: {merged.copied} files brought in, {merged.present} were there; "
        + (f"missing: {lacking}" if lacking else "all blocks are there: semcal run writes the rest")
    )
    return 1 if merged.refused else 0


def output_of(options: Mapping[str, Any]) -> Output:
    """The run folder, if it is one; anything else is left alone."""
    run = options["run"]
    return Output(run, is_folder=True, begun=(run / "settings.yaml").is_file(), replaceable=False)
