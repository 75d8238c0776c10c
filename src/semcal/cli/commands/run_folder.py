"""Commands on a run folder, as `semcal run` writes it: `status` and `report`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semcal.cli import options as opt
from semcal.cli.console import Output, show, warn
from semcal.errors import UsageError
from semcal.files import dumps, own_files

if TYPE_CHECKING:
    from semcal.workers import Executor

#: What processes that make a report import before they part.
REPORTING = ("semcal.experiment.analyses", "semcal.experiment.report.build")
#: What a report of semcal run consists of.
REPORT = ("results.json", "results.md", "report.html", "report-files.json", "tables", "figures")


def status(run: opt.RunArgument, json: opt.JsonOption = False, verbose: opt.VerboseOption = False) -> int:
    """Show how many blocks of each stage are done, and name damaged ones; exit code 0 if all are done.

    With -v also for each model and data set.
    """
    from semcal.experiment.finished import state_of
    from semcal.experiment.grid_plan import STAGES

    state = state_of(run)
    missing = state.missing()
    if json or not sys.stdout.isatty():
        stages = {stage: [state.total(stage) - missing[stage], state.total(stage)] for stage in STAGES}
        content = {"complete": state.complete, "stages": stages, "damaged": list(state.damaged)}
        show(dumps({**content, "rows": [state.rows, len(state.expected)]}))
    else:
        for stage in STAGES:
            if state.total(stage):
                show(f"{stage:<10} {state.total(stage) - missing[stage]:>6} of {state.total(stage)}")
        show(f"{'rows':<10} {state.rows:>6} of {len(state.expected)}")
    if verbose:
        for (model, dataset), expected in state.expected.items():
            done = state.done.get((model, dataset), Counter())
            lacking = [f"{expected[s] - done[s]} {s}" for s in STAGES if done[s] < expected[s]]
            warn(f"{model} on {dataset}: {'lacks ' + ', '.join(lacking) if lacking else 'complete'}")
    for damage in state.damaged:
        warn(f"error: {damage}")
    return 0 if state.complete else 1


def report(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder, such as semcal run or semcal demo writes.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            callback=opt.out_path,
            help="Where to write the report of semcal run; RUN by default.",
        ),
    ] = None,
    overwrite: opt.OverwriteOption = False,
    figures: Annotated[
        bool,
        typer.Option(
            "--figures",
            help="Also write figures that the run leaves to its page (semcal demo) as PDF and PNG.",
        ),
    ] = False,
    json: opt.JsonOption = False,
) -> int:
    """Make results, tables, figures and report.html of a run from its stored samples; no model is needed."""
    from semcal.experiment.finished import is_grid_run

    if not is_grid_run(run):
        raise UsageError(
            f"{run} is no run folder: it has no settings.yaml; make one with `semcal run` or `semcal demo "
            f"--out {run}`"
        )
    with _executor(run) as executor:
        from semcal.experiment.report.build import remake

        page = remake(run, out, executor, figures=figures)
    warn_of_less_accurate(out or run)
    paths = [(out or run) / "results.json", page]
    show(dumps({"files": [str(path) for path in paths]}) if json else "\n".join(map(str, paths)))
    return 0


def warn_of_less_accurate(folder: Path) -> None:
    """Name on stderr the methods that are significantly less accurate than Base."""
    from semcal.experiment.finished import read_results
    from semcal.experiment.report.report_tables import less_accurate_in_words

    for line in less_accurate_in_words(read_results(folder)):
        warn(f"warning: {line}")


def report_output(options: Mapping[str, Any]) -> Output | None:
    """The run's own folder, or one in which nothing but a report lies."""
    run, out = options["run"], options["out"] or options["run"]
    if not run.is_dir():
        return None
    own = out.is_dir() and (out.samefile(run) or all(path.name in REPORT for path in own_files(out)))
    return Output(out, is_folder=True, begun=own)


@contextmanager
def _executor(run: Path) -> Iterator[Executor[None]]:
    """A process for each processor; they begin to import before this process does.

    A run of one model on one data set is not shared.
    """
    from semcal.workers import ProcessExecutor, SerialExecutor, plan_workers

    pairs = len(list((run / "selection").glob("*/*.json")))
    count = plan_workers(None, weights=0, blocks=pairs).n_workers
    with (
        ProcessExecutor(_nothing, count, preload=REPORTING) if count > 1 else SerialExecutor(None) as executor
    ):
        yield executor


def _nothing() -> None:
    """What a process needs to have loaded for a report."""
