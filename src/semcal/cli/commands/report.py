"""`semcal report`: the report of a run, made again from what the run has stored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from semcal.cli.options import JsonOption, OverwriteOption, QuietOption, VerboseOption, out_path
from semcal.cli.output import Output
from semcal.errors import UsageError
from semcal.records import dumps, own_files

__all__ = ["command", "output_of"]

#: What a report of semcal run consists of.
REPORT = ("results.json", "results.md", "report.html", "report-files.json", "tables", "figures")


def command(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder, such as semcal run or semcal demo writes.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            callback=out_path,
            help="Where to write the report of semcal run; RUN by default.",
        ),
    ] = None,
    overwrite: OverwriteOption = False,
    figures: Annotated[
        bool,
        typer.Option(
            "--figures",
            help="Also write figures that the run leaves to its page (semcal demo) as PDF and PNG.",
        ),
    ] = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Make results, tables, figures and report.html of a run from its stored samples; no model is needed."""
    from semcal.cli.executors import report_executor
    from semcal.experiment.finished import is_grid_run

    if not is_grid_run(run):
        raise UsageError(
            f"{run} is no run folder: it has no settings.yaml; make one with `semcal run` or `semcal demo "
            f"--out {run}`"
        )
    with report_executor(run) as executor:
        from semcal.report.build import remake

        page = remake(run, out, executor, figures=figures)
    paths = [(out or run) / "results.json", page]
    typer.echo(dumps({"files": [str(path) for path in paths]}) if json else "\n".join(map(str, paths)))
    return 0


def output_of(options: Mapping[str, Any]) -> Output | None:
    """The run's own folder, or one in which nothing but a report lies."""
    run, out = options["run"], options["out"] or options["run"]
    if not run.is_dir():
        return None
    own = out.is_dir() and (out.samefile(run) or all(path.name in REPORT for path in own_files(out)))
    return Output(out, is_folder=True, begun=own)
