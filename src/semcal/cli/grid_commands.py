"""Commands of the grid: `run`, `status` and `report`. Only they and `demo` need `semcal.experiment`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from typer import Argument, Option

from semcal.cli import options as opt
from semcal.cli.console import Output, debug, progress, show, warn
from semcal.cli.row_streams import ProblemLog
from semcal.errors import UsageError
from semcal.files import dumps, own_files

if TYPE_CHECKING:
    from semcal.experiment.grid import Grid
    from semcal.experiment.grid_plan import Problem
    from semcal.experiment.grid_settings import GridSettings
    from semcal.experiment.grid_steps import GridState
    from semcal.workers import Executor

#: Modules that processes for a report import before they fork.
REPORTING = ("semcal.experiment.analyses", "semcal.experiment.report.build")
#: The files of a report of semcal run.
REPORT = ("results.json", "results.md", "report.html", "tables", "figures")


class MachineOptions(Protocol):
    """The options of a grid's models and processes, which `run` and `demo` share."""

    @property
    def device(self) -> str | None: ...
    @property
    def nli_device(self) -> str | None: ...
    @property
    def workers(self) -> int | None: ...


def require_experiment() -> None:
    """Raise UsageError if this installation does not have the experiment."""
    if find_spec("semcal.experiment") is None:
        raise UsageError(
            "semcal.experiment, which runs grids, is missing in this installation. Install all of semcal."
        )


def run_folder(folder: Path, *, begun: bool = False) -> Output:
    """Return the run folder as the output of a command, which resumes there if it was begun."""
    begun = begun or (folder / "settings.yaml").is_file()
    return Output(folder, is_folder=True, begun=begun, work=folder)


@dataclass(frozen=True)
class RunOptions:
    """The options of `semcal run`."""

    grid: Path = Argument(
        metavar="GRID", help="File of the settings of the grid (YAML), such as configs/atlas.yaml."
    )
    out: Path | None = opt.folder_option("Run folder (default: runs/ with the name of GRID).")
    overwrite: bool = opt.OVERWRITE
    overrides: list[str] | None = Option(
        None, "--set", metavar="A.B=C", help="Setting that overrides the file; may be repeated."
    )
    limit: int | None = Option(
        None,
        min=1,
        callback=opt.countable,
        help="Largest number of questions of each part of a data set (default: all).",
    )
    ray: str | None = Option(
        None,
        metavar="[ADDRESS]",
        help="Ray cluster: an address, auto, or (without a value, last on the line) a local cluster; none by "
        "default.",
    )
    json: bool = opt.JSON
    device: str | None = opt.DEVICE
    nli_device: str | None = opt.NLI_DEVICE
    dry_run: bool = opt.DRY_RUN
    fresh: bool = opt.FRESH
    workers: int | None = opt.WORKERS
    memory: str | None = opt.MEMORY
    api_key_file: Path | None = opt.API_KEY_FILE


def run(options: RunOptions) -> int:
    """Compare methods on the models and data sets of a YAML file, and write tables, figures and a report.

    Each method is fitted to calibration questions. Validation questions choose a candidate of the method for
    each measure, and this candidate answers the test questions. An interrupted run resumes with the same
    command and gives identical results. Bad rows of the data are left out, and the exit code is then 1.
    """
    require_experiment()
    from semcal.experiment.finished import forget
    from semcal.experiment.grid_settings import read_settings

    changes = [*(options.overrides or ()), *([] if options.memory is None else [f"memory={options.memory}"])]
    settings = read_settings(options.grid, changes, limit=options.limit)
    folder = _run_folder(options.out, options.grid)
    if options.dry_run:
        return _plan(settings, _state_loader(settings, options, folder), folder, as_json=options.json)
    if options.fresh:
        forget(folder)
    with open_grid(settings, folder, options, ray=options.ray) as opened:
        problems = opened.run()
    if options.json:
        show(dumps({"run": str(folder), "complete": True, "problems": len(problems)}))
    else:
        show(f"{folder}: all done\n{folder / 'results.md'}\n{folder / 'report.html'}")
    if problems:
        warn(f"{len(problems)} rows of the data were left out: {folder / 'problems.jsonl'}")
    return 1 if problems else 0


def run_output(out: Path | None, grid: Path) -> Output:
    """Return the run folder."""
    return run_folder(_run_folder(out, grid))


def _run_folder(out: Path | None, grid: Path) -> Path:
    return out or Path("runs") / grid.stem


def _state_loader(settings: GridSettings, options: MachineOptions, folder: Path) -> Callable[[], GridState]:
    """Return the picklable function that loads the state of a worker."""
    from semcal.experiment.grid_steps import open_grid_state

    return partial(
        open_grid_state,
        folder,
        device=options.device,
        nli_device=options.nli_device,
        memory=settings.memory,
        api_key_file=getattr(options, "api_key_file", None),
    )


def _plan(settings: GridSettings, open_state: Callable[[], GridState], folder: Path, *, as_json: bool) -> int:
    from semcal.experiment.grid_plan import forecast

    plan = forecast(settings, open_state if opt.is_here(settings.models[0].path) else None)
    if as_json:
        show(dumps(plan.tree()))
        return 0
    show(
        f"{folder}: models {len(settings.models)}, data sets {len(settings.datasets)}, "
        f"methods {len(settings.methods)}, runs {settings.runs.count}, preset {settings.preset}"
    )
    for line in plan.lines():
        show(line)
    return 0


@contextmanager
def _executor(
    settings: GridSettings, folder: Path, options: MachineOptions, ray: str | None
) -> Iterator[tuple[Executor[GridState], GridState | None]]:
    """Return the executor, and the state of this process; None if it only distributes work."""
    if ray is not None:
        from semcal.experiment.ray_executor import RayExecutor

        load = _state_loader(settings, options, folder.resolve())
        with RayExecutor(ray, load, n_workers=options.workers, device=options.device) as cluster:
            debug(f"run: up to {cluster.n_workers} tasks at a time on Ray ({ray})")
            yield cluster, None
            opt.show_peak(cluster)
        return
    limits = (model.server for model in settings.models if model.server is not None)
    if (options.workers or 1) > 1 and any(server.max_tokens_total or server.max_cost for server in limits):
        raise UsageError(
            "--workers does not apply to a server with a budget, which each worker would spend; omit it"
        )
    sizes = {model.path: opt.weights_of(model=model.path) for model in settings.models}
    largest = max(sizes, key=lambda path: (sizes[path] is None, sizes[path] or 0))
    models = opt.ModelOptions(largest, settings.equivalence, device=options.device)
    plan = opt.choose_workers(options.workers, "run", models, at_once=True)
    load = _state_loader(settings, options, folder)
    with opt.open_executor(plan, load, at_once=True) as (executor, state):
        yield executor, state() if plan.n_workers == 1 else None


@contextmanager
def open_grid(
    settings: GridSettings, folder: Path, options: MachineOptions, ray: str | None = None
) -> Iterator[Grid]:
    """Yield a grid to run in a folder; the report is written at the end of the block."""
    from semcal.experiment.grid import Clock, Grid

    clock = Clock()
    problems = ProblemLog()

    def report_problem(problem: Problem) -> None:
        mark = ": " if problem.line is None else ", "
        where = f"left out: {problem.where}{mark}"
        problems.add(problem.reason, line=problem.line, row_id=problem.row_id, where=where)

    def show_progress(label: str, total: int | None) -> AbstractContextManager[Callable[[int], None]]:
        problems.flush()  # after the data are read, before the work
        return progress(label, total)

    with _executor(settings, folder, options, ray) as (executor, state):
        clock.add({"start": time.process_time()})
        grid = Grid(
            settings,
            folder,
            executor,
            show_progress,
            on_problem=report_problem,
            clock=clock,
        )
        try:
            yield grid
            _release(executor, state)
            _record(grid)  # the report shows it
            with clock.stage("report"):
                _report(folder, executor)
        finally:
            problems.close()
            if (folder / "settings.yaml").exists():
                _record(grid)


def _release(executor: Executor[GridState], state: GridState | None) -> None:
    from semcal.workers import trim_memory

    executor.release()
    if state is not None:
        state.clear()
    trim_memory()


def _record(grid: Grid) -> None:
    in_process = sum(grid.executor.seconds.values()) if grid.executor.works_here else 0.0
    grid.clock.add({"main": time.process_time() - sum(grid.clock.seconds.values()) - in_process})
    grid.write_costs()


def _report(folder: Path, executor: Executor[Any]) -> None:
    from semcal.experiment.report.build import remake
    from semcal.workers import ProcessExecutor

    remake(folder, executor=executor if isinstance(executor, ProcessExecutor) else None)


def status(
    run: Path = Argument(metavar="RUN", help="Run folder of semcal run."),
    json: bool = opt.JSON,
) -> int:
    """Show the number of finished blocks of each stage, and name damaged blocks.

    The exit code is 0 if all blocks are done, else 1.
    """
    require_experiment()
    from semcal.experiment.finished import state_of
    from semcal.experiment.grid_plan import STAGES

    state = state_of(run)
    stages = {stage: (n - state.missing[stage], n) for stage in STAGES if (n := state.planned[stage])}
    rows = state.n_written, state.n_pairs
    if json or not sys.stdout.isatty():
        show(dumps({"complete": state.complete, "stages": stages, "damaged": state.damaged, "rows": rows}))
    else:
        for name, (n_done, n_planned) in {**stages, "rows": rows}.items():
            show(f"{name:<10} {n_done:>6} of {n_planned}")
    for damage in state.damaged:
        warn(f"error: {damage}")
    return 0 if state.complete else 1


def report(
    run: Path = Argument(metavar="RUN", help="Run folder of semcal run or semcal demo."),
    out: Path | None = opt.folder_option("Folder for the report of semcal run (default: RUN)."),
    overwrite: bool = opt.OVERWRITE,
    figures: bool = Option(
        False,
        "--figures",
        help="Also write figures as PDF and PNG that are only on the page otherwise (semcal demo).",
    ),
    json: bool = opt.JSON,
) -> int:
    """Make results, tables, figures and report.html of a run from its stored samples, without a model."""
    require_experiment()
    from semcal.experiment.finished import is_grid_run

    if not is_grid_run(run):
        raise UsageError(
            f"{run}: expected a run folder, but settings.yaml is missing. Make one with `semcal run` or "
            f"`semcal demo --out {run}`."
        )
    with _report_executor(run) as executor:
        from semcal.experiment.report.build import remake

        page = remake(run, out, executor, figures=figures)
    paths = [(out or run) / "results.json", page]
    show(dumps({"files": [str(path) for path in paths]}) if json else "\n".join(map(str, paths)))
    return 0


def report_output(run: Path, out: Path | None) -> Output | None:
    """Return the run folder, or another folder that holds nothing but a report."""
    if not run.is_dir():
        return None
    out = out or run
    begun = out.is_dir() and (out.samefile(run) or all(path.name in REPORT for path in own_files(out)))
    return Output(out, is_folder=True, begun=begun)


@contextmanager
def _report_executor(run: Path) -> Iterator[Executor[None]]:
    """Return an executor with a process for each processor, or this process for one model and data set."""
    from semcal.workers import ProcessExecutor, SerialExecutor, plan_workers

    pairs = len(list((run / "selection").glob("*/*.json")))
    count = plan_workers(None, weights=0, blocks=pairs).n_workers
    with (
        ProcessExecutor(_nothing, count, preload=REPORTING) if count > 1 else SerialExecutor(None) as executor
    ):
        yield executor


def _nothing() -> None:
    """Return the state of a process for a report, which needs none."""
