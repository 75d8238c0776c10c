"""`semcal run`: the paper's grid from one YAML file, resumable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semcal.cli import options as opt
from semcal.cli.commands.run_folder import warn_of_less_accurate
from semcal.cli.console import Output, debug, info, progress, show, warn
from semcal.cli.executors import choose_workers, open_executor, show_peak
from semcal.cli.removed import CommandWithRemovals
from semcal.cli.row_commands import ProblemLog
from semcal.errors import ModelError, UsageError
from semcal.files import dumps

if TYPE_CHECKING:
    from semcal.experiment.fit_steps import GridState
    from semcal.experiment.grid import Grid
    from semcal.experiment.grid_plan import Problem
    from semcal.experiment.grid_settings import GridSettings
    from semcal.workers import Executor


@dataclass(frozen=True)
class LoadOptions:
    """What the models of a grid are loaded with."""

    device: str | None = None
    nli_device: str | None = None
    memory: str | int | None = None
    api_key_file: Path | None = None


class CLASS(CommandWithRemovals):
    """`--ray` without an address, last or before another option, means a local cluster."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give such a `--ray` its address."""
        following = [*args[1:], "-"]
        bare = [one == "--ray" and after.startswith("-") for one, after in zip(args, following)]
        return super().parse_args(
            ctx, ["--ray=local" if is_bare else one for one, is_bare in zip(args, bare)]
        )


ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML, such as configs/atlas.yaml.")]
RunFolderOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        callback=opt.out_path,
        help="The run folder; by default runs/ and CONFIG's name.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Override a setting; may be given several times."),
]
LimitOption = Annotated[
    int | None,
    typer.Option(min=1, callback=opt.countable, help="At most so many questions of each part of a data set."),
]
FromOption = Annotated[
    str | None, typer.Option("--from", metavar="STAGE", help="Do this stage and all after it again.")
]
RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="[ADDRESS]",
        help="Work on a Ray cluster: its address, auto, or (without one, last on the line) a local one.",
    ),
]


def command(
    config: ConfigArgument,
    out: RunFolderOption = None,
    overwrite: opt.OverwriteOption = False,
    overrides: SetOption = None,
    limit: LimitOption = None,
    start: FromOption = None,
    ray: RayOption = None,
    json: opt.JsonOption = False,
    device: opt.DeviceOption = None,
    nli_device: opt.NliDeviceOption = None,
    dry_run: opt.DryRunOption = False,
    fresh: opt.FreshOption = False,
    workers: opt.WorkersOption = None,
    memory: opt.MemoryOption = None,
    api_key_file: opt.ApiKeyFileOption = None,
) -> int:
    """Run models × data sets × methods × runs as a YAML file says, and write tables, figures and a report.

    Every method is fitted on calibration questions, chosen for each measure on validation questions, and
    evaluated once on the test questions. Interrupted runs resume with the same command and give identical
    results. Bad rows of the data are named and left out; the exit code is then 1.
    """
    from semcal.experiment.finished import forget, forget_from
    from semcal.experiment.grid_settings import read_settings

    given = [*(overrides or ()), *([] if memory is None else [f"memory={memory}"])]
    settings = read_settings(config, given, limit=limit)
    folder = _folder(out, config)
    loading = LoadOptions(device, nli_device, settings.memory, api_key_file)
    if dry_run:
        return _plan(settings, folder, partial(_open, folder, loading), as_json=json)
    if fresh:
        forget(folder)
    if start is not None:
        forget_from(folder, start)
    problems = carry_out(settings, folder, workers, ray, loading)
    _print_outcome(problems, folder, as_json=json)
    return 1 if problems else 0


def output_of(options: Mapping[str, Any]) -> Output:
    """The run folder."""
    folder = _folder(options["out"], options["config"])
    return Output(folder, is_folder=True, begun=(folder / "settings.yaml").is_file(), kept=folder)


def _folder(out: Path | None, config: Path) -> Path:
    return out or Path("runs") / config.stem


def _plan(settings: GridSettings, folder: Path, open_state: Callable[[], GridState], *, as_json: bool) -> int:
    from semcal.experiment.grid_plan import forecast

    try:
        model_is_here = opt.weights_of(model=settings.models[0].path) is not None
    except ModelError:
        model_is_here = False
    plan = forecast(settings, open_state if model_is_here else None)
    if as_json:
        show(dumps(plan.tree()))
        return 0
    show(
        f"{folder}: {len(settings.models)} models × {len(settings.datasets)} data sets × "
        f"{len(settings.methods)} methods × {settings.runs.count} runs, preset {settings.preset}"
    )
    for line in plan.lines():
        show(line)
    return 0


@contextmanager
def _executor(
    settings: GridSettings, folder: Path, workers: int | None, ray: str | None, loading: LoadOptions
) -> Iterator[tuple[Executor[GridState], GridState | None]]:
    """This process, worker processes, or a Ray cluster; and what this process holds.

    A process that only hands out work loads no model, and not even torch.
    """
    if ray is not None:
        from semcal.experiment.ray_executor import RayExecutor

        with RayExecutor(
            ray, partial(_open, folder.resolve(), loading), n_workers=workers, device=loading.device
        ) as cluster:
            debug(f"run: up to {cluster.n_workers} tasks at a time on Ray ({ray})")
            yield cluster, None
            show_peak(cluster)
        return
    limits = (one.server for one in settings.models if one.server is not None)
    if (workers or 1) > 1 and any(one.max_tokens_total or one.max_cost for one in limits):
        raise UsageError("each worker would spend a server's whole budget; leave --workers out")
    sizes = {model.path: opt.weights_of(model=model.path) for model in settings.models}
    largest = max(sizes, key=lambda path: (sizes[path] is None, sizes[path] or 0))
    plan = choose_workers(
        workers,
        "run",
        device=loading.device,
        blocks=None,
        model=largest,
        equivalence=settings.equivalence,
        at_once=True,
    )
    with open_executor(plan, partial(_open, folder, loading), at_once=True) as (executor, state):
        yield executor, state() if plan.n_workers == 1 else None


def _open(folder: Path, loading: LoadOptions) -> GridState:
    """What a process that works holds."""
    from semcal.experiment.fit_steps import open_grid_state

    return open_grid_state(
        folder,
        device=loading.device,
        nli_device=loading.nli_device,
        memory=loading.memory,
        api_key_file=loading.api_key_file,
    )


def carry_out(
    settings: GridSettings,
    folder: Path,
    workers: int | None,
    ray: str | None,
    loading: LoadOptions,
) -> list[Problem]:
    """Run a grid in a folder and write its report; return what was refused."""
    from semcal.experiment.environment import Clock
    from semcal.experiment.grid import Grid

    clock = Clock()
    problems = ProblemLog()

    def left_out(problem: Problem) -> None:
        mark = ": " if problem.line is None else ", "
        where = f"left out: {problem.where}{mark}"
        problems.add(problem.reason, line=problem.line, row_id=problem.row_id, where=where)

    def shown(label: str, total: int | None) -> AbstractContextManager[Callable[[int], None]]:
        problems.flush()  # the data are read, and work begins
        return progress(label, total)

    with _executor(settings, folder, workers, ray, loading) as (executor, state):
        clock.add({"start": time.process_time()})
        grid = Grid(
            settings,
            folder,
            executor,
            shown,
            on_problem=left_out,
            clock=clock,
            on_remade=info,
            while_starting=_import_report,
        )
        try:
            refused = grid.run()
            _release(executor, state)
            _record(grid)  # the report shows it
            with clock.stage("report"):
                _report(folder, executor)
        finally:
            problems.close()
            if (folder / "settings.yaml").exists():
                _record(grid)
    clock.add(executor.seconds)
    for line in clock.table():
        debug(line)
    return refused


def _release(executor: Executor[GridState], state: GridState | None) -> None:
    """Let go of the models: a report needs none."""
    from semcal.workers import trim_memory

    executor.release()
    if state is not None:
        state.clear()
    trim_memory()


def _record(grid: Grid) -> None:
    """Write down what was spent up to now; what is no stage's is this process's own."""
    own = sum(grid.executor.seconds.values()) if grid.executor.in_process else 0.0
    grid.clock.add({"main": time.process_time() - sum(grid.clock.seconds.values()) - own})
    grid.write_costs()


def _import_report() -> None:
    """Import what the report takes while nothing else is to be done here: 2 s less at the end."""
    import semcal.experiment.report.build  # noqa: F401


def _report(folder: Path, executor: Executor[Any]) -> None:
    """Analyses, tables, figures and the page, by this machine's worker processes; methods to beware of."""
    from semcal.experiment.report.build import remake
    from semcal.workers import ProcessExecutor

    remake(folder, executor=executor if isinstance(executor, ProcessExecutor) else None)
    warn_of_less_accurate(folder)


def _print_outcome(problems: Sequence[Problem], folder: Path, *, as_json: bool) -> None:
    if as_json:
        show(dumps({"run": str(folder), "complete": True, "problems": len(problems)}))
    else:
        show(f"{folder}: all done")
        for name in ("results.md", "report.html"):
            show(folder / name)
    if problems:
        warn(f"{len(problems)} rows of the data were left out: {folder / 'problems.jsonl'}")
