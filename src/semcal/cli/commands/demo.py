"""`semcal demo`: a small grid of the embedded world."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semcal.cli import options as opt
from semcal.cli.commands.run import LoadOptions, carry_out
from semcal.cli.console import Output, info, show, warn
from semcal.files import dumps

if TYPE_CHECKING:
    from semcal.experiment.grid_settings import GridSettings

__all__ = ["command", "output_of"]

QuickOption = Annotated[
    bool, typer.Option("--quick", help="60 questions of one set, and nothing fitted but Calibrated.")
]
DemoFolderOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        callback=opt.out_path,
        help="The run folder; by default runs/demo, with --quick runs/demo-quick.",
    ),
]


def command(
    quick: QuickOption = False,
    out: DemoFolderOption = None,
    overwrite: opt.OverwriteOption = False,
    m: opt.SamplesOption = 10,
    seed: opt.SeedOption = 0,
    limit: opt.LimitOption = None,
    json: opt.JsonOption = False,
    device: opt.DeviceOption = None,
    nli_device: opt.NliDeviceOption = None,
    dtype: opt.DtypeOption = None,
    dry_run: opt.DryRunOption = False,
    fresh: opt.FreshOption = False,
    workers: opt.WorkersOption = None,
    memory: opt.MemoryOption = None,
) -> int:
    """Show what calibration gains on three question sets of the embedded world, and write a report.

    For each set: the probability that an answer is right, and a threshold to abstain below, are learnt
    from 400 labelled questions, and a temperature is fitted to 400. Ten answers to each of 300 test
    questions are sampled at T = 1, at T = 0.5 and at the fitted T, clustered by meaning, measured and
    graded. With --quick, 300 labelled questions and 60 test questions of one set are sampled at T = 1. With
    --limit N, N questions of each part are used. Interrupt it as you like: the same command goes on where
    it was. Its settings are a file for semcal run, src/semcal/demo/demo.yaml (quick.yaml).
    """
    from semcal.demo.paths import settings_file
    from semcal.experiment.finished import forget
    from semcal.experiment.grid_settings import read_settings

    given = {"sampling.m": m, "seed": seed, "models.0.dtype": dtype, "memory": memory}
    settings = read_settings(
        settings_file(quick=quick),
        [f"{key}={dumps(value)}" for key, value in given.items() if value is not None],
        limit=limit,
    )
    folder = _folder(out, quick=quick)
    if dry_run:
        return _plan(settings, folder)
    if fresh:
        forget(folder)
    problems = carry_out(settings, folder, workers, None, LoadOptions(device, nli_device, settings.memory))
    _show(folder, as_json=json)
    return 1 if problems else 0


def output_of(options: Mapping[str, Any]) -> Output:
    """The run folder."""
    out = _folder(options["out"], quick=options["quick"])
    return Output(out, is_folder=True, begun=(out / "settings.yaml").is_file(), kept=out)


def _folder(out: Path | None, *, quick: bool) -> Path:
    return out or Path("runs/demo-quick" if quick else "runs/demo")


def _plan(settings: GridSettings, out: Path) -> int:
    for one in settings.datasets:
        labelled = min(settings.calibrated.questions, one.calibration_train or 0)
        fit = f"fit on {one.calibration_train} questions; " if "TS" in settings.methods else ""
        at = f"at {len(settings.methods) - 1} temperatures " if fit else ""
        warn(
            f"{one.name}: {fit}{settings.sampling.m} answers at T = 1 "
            f"to each of {labelled} labelled questions, and {at}to each of {one.test} others"
        )
    warn(f"writes {out}/results.json, samples/, recalibrators/, tables/ and report.html")
    return 0


def _show(out: Path, *, as_json: bool) -> None:
    """What happened, in a few lines."""
    from semcal.experiment.finished import read_results
    from semcal.experiment.report import in_words

    results = read_results(out)
    show(dumps(results) if as_json else "\n".join(in_words(results)))
    info(f"report: {out / 'report.html'}")
