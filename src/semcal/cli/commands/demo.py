"""`semcal demo`: a small grid on the embedded models, from questions to a report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from semcal.cli.commands.run import carry_out
from semcal.cli.console import Output, info, warn
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
from semcal.records import dumps

__all__ = ["command", "output_of"]


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
    same command goes on where it was. Its settings are a file for semcal run, src/semcal/demo/demo.yaml.
    """
    from semcal.demo.paths import settings_file
    from semcal.experiment.folders import forget
    from semcal.experiment.reading import read_settings

    given = {"sampling.m": m, "seed": seed, "models.0.dtype": dtype, "memory": memory}
    settings = read_settings(
        settings_file(),
        [f"{key}={dumps(value)}" for key, value in given.items() if value is not None],
        limit=limit,
    )
    if dry_run:
        return _plan(settings, out)
    if fresh:
        forget(out)
    how = {"device": device, "nli_device": nli_device, "memory": settings.memory}
    outcome = carry_out(settings, out, None, workers, None, how)
    _show(out, as_json=json)
    return 1 if outcome.problems else 0


def output_of(options: Mapping[str, Any]) -> Output:
    """The run folder."""
    out = options["out"]
    return Output(out, is_folder=True, begun=(out / "settings.yaml").is_file(), kept=out)


def _plan(settings: Any, out: Path) -> int:
    for one in settings.datasets:
        warn(
            f"{one.name}: fit on {one.calibration_train} questions; {settings.sampling.m} answers at 3 "
            f"temperatures to each of {one.test} questions ({3 * settings.sampling.m * one.test} answers)"
        )
    warn(f"writes {out}/results.json, samples/, recalibrators/, tables/ and report.html")
    return 0


def _show(out: Path, *, as_json: bool) -> None:
    """What happened, in a few lines."""
    from semcal.experiment.finished import read_results
    from semcal.report import in_words

    results = read_results(out)
    typer.echo(dumps(results) if as_json else "\n".join(in_words(results)))
    info(f"report: {out / 'report.html'}")
