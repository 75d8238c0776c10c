"""`semcal demo`: the main job on the embedded model, from questions to a report."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from semcal.cli.console import debug, info, nli_calls, progress, warn
from semcal.cli.executors import choose_workers, open_executor
from semcal.cli.loading import ATLAS, open_models
from semcal.cli.options import (
    DeviceOption,
    DryRunOption,
    DtypeOption,
    FreshOption,
    JsonOption,
    LimitOption,
    MemoryOption,
    NliDeviceOption,
    OverwriteOption,
    QuietOption,
    SamplesOption,
    SeedOption,
    VerboseOption,
    WorkersOption,
    out_path,
)
from semcal.cli.output import Output
from semcal.errors import StoreError
from semcal.records import clear_folder, dumps, own_files, read_object

__all__ = ["command", "output_of"]

#: Longest generation of the embedded model, whose small vocabulary spells a date in words in many tokens.
MAX_NEW_TOKENS = 24
VERDICTS = "verdicts.sqlite"


def command(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", callback=out_path, help="The run folder.")
    ] = Path("runs/demo"),
    overwrite: OverwriteOption = False,
    m: SamplesOption = 10,
    seed: SeedOption = 0,
    limit: LimitOption = None,
    json: JsonOption = False,
    device: DeviceOption = None,
    nli_device: NliDeviceOption = None,
    dtype: DtypeOption = None,
    dry_run: DryRunOption = False,
    fresh: FreshOption = False,
    workers: WorkersOption = None,
    memory: MemoryOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Compare Base, SE and TS on three question sets of the embedded world, and write a report.

    For each set: a temperature is fitted on its 2000 calibration questions; ten answers to each of its
    500 test questions are sampled at T = 1, at T = 0.5 and at the fitted T, clustered by meaning,
    measured and graded. With --limit N, N questions of each part are used. Interrupt it as you like: the
    same command goes on where it was.
    """
    from semcal.demo.questions import SETS, load_set
    from semcal.experiment.environment import Clock
    from semcal.experiment.settings import Settings

    clock = Clock()
    if dry_run:
        return _plan([_limited(load_set(name), limit) for name in SETS], m, out)
    if fresh and _is_run(out):
        clear_folder(out)
    settings = Settings(
        m=m, seed=seed, max_new_tokens_closed_book=MAX_NEW_TOKENS, max_new_tokens_open_book=MAX_NEW_TOKENS
    )
    plan = choose_workers(
        workers, "demo", device=device, blocks=None, model=ATLAS, equivalence=ATLAS, at_once=True
    )
    load = partial(
        open_models,
        ATLAS,
        ATLAS,
        device=device,
        dtype=dtype,
        memory=memory,
        nli_device=nli_device,
        cache=out / VERDICTS,
    )
    with open_executor(plan, load, at_once=True, devices=(device, nli_device)) as (executor, _):
        sets = [_limited(load_set(name), limit) for name in SETS]  # while the workers import
        from semcal.experiment.comparison import Comparison

        begun = time.process_time()
        clock.add({"start": begun})
        meanwhile = partial(import_module, "semcal.report")  # it takes its time
        comparison = Comparison(executor, out, settings, progress, clock, meanwhile)
        results = comparison.run(sets)
        if executor.n_processes:  # what this process has done meanwhile: rows read and written
            clock.add({"keep": time.process_time() - begun - clock.seconds["measure and grade"]})
        from semcal.report import build

        with clock.stage("report"):
            page = build(
                out, share=lambda function, items: list(executor.map(function, items, stage="report"))
            )
        if executor.n_processes:
            clock.add({"report": executor.seconds["report"]})
        comparison.write_costs()
        if json:
            typer.echo(dumps(results))
        else:
            _show(results)
        if comparison.calls:
            info(f"demo: {nli_calls(comparison.held.equivalence, comparison.calls, comparison.pairs)}")
        for line in clock.table():
            debug(line)
        info(f"report: {page}  ({clock.elapsed:.0f} s)")
    return 0


def _limited(one: Any, limit: int | None) -> Any:
    if limit is None:
        return one
    return replace(one, calibration_train=one.calibration_train[:limit], test=one.test[:limit])


def output_of(options: Mapping[str, Any]) -> Output:
    """The run folder; the verdict file alone is of a demo that was killed before it wrote its settings."""
    out = options["out"]
    begun = _is_run(out) or (out.is_dir() and all(path.name.startswith(VERDICTS) for path in own_files(out)))
    return Output(out, is_folder=True, begun=begun, kept=out)


def _is_run(out: Path) -> bool:
    """Whether a folder is a run of the demo."""
    path = out / "settings.json"
    try:
        return path.is_file() and "preset" in read_object(path, remedy="")
    except StoreError:
        return False


def _plan(sets: list[Any], m: int, out: Path) -> int:
    for one in sets:
        warn(
            f"{one.name}: fit on {len(one.calibration_train)} questions; {m} answers at 3 temperatures "
            f"to each of {len(one.test)} questions ({3 * m * len(one.test)} answers)"
        )
    warn(f"writes {out}/results.json, samples/, recalibrators/ and report.html")
    return 0


def _show(results: dict[str, Any]) -> None:
    """Print the tables and what happened."""
    from rich.console import Console

    from semcal.cli.tables import comparison_table
    from semcal.report import in_words

    console = Console(width=None if sys.stdout.isatty() else 140)
    for metric in ("ace", "auroc"):
        console.print(comparison_table(results, metric))
        console.print()
    for line in in_words(results):
        console.print(line, markup=False, highlight=False)
