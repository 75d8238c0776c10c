"""`semcal merge`: the run folders of shards put together."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from semcal.cli.claims import Claim
from semcal.cli.console import complain, say
from semcal.cli.options import JsonOption, QuietOption, VerboseOption
from semcal.records import dumps

__all__ = ["claim", "command"]


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder to bring everything into.")],
    shards: Annotated[
        list[Path], typer.Argument(metavar="SHARD...", help="Run folders that semcal run --shard wrote.")
    ],
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Bring the finished blocks of shards into one run folder; name those that are damaged or contradict."""
    from semcal.experiment.folders import merge, state_of

    merged = merge(run, shards)
    for reason in merged.refused:
        complain(f"error: {reason}")
    state = state_of(run)
    missing = {stage: count for stage, count in state.missing().items() if count}
    if json or not sys.stdout.isatty():
        content = {"run": str(run), "copied": merged.copied, "present": merged.present, "missing": missing}
        typer.echo(dumps({**content, "refused": list(merged.refused)}))
    lacking = ", ".join(f"{count} of {stage}" for stage, count in missing.items())
    say(
        f"merge: {merged.copied} files brought in, {merged.present} were there; "
        + (f"missing: {lacking}" if lacking else "all blocks are there: semcal run writes the rest")
    )
    return 1 if merged.refused else 0


def claim(options: Mapping[str, Any]) -> Claim:
    """The run folder that everything is brought into; one that is none is left alone."""
    run = options["run"]
    return Claim(run, is_folder=True, begun=(run / "settings.yaml").is_file(), replaceable=False)
