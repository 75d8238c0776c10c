"""`semcal demo`: a calibration of stored answers about the real world, then the pipeline with a model."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from typer import Option

from semcal.cli import options as opt
from semcal.cli.calibrate import in_words
from semcal.cli.console import Output, info, paragraph, progress, show
from semcal.cli.grid_commands import (
    MachineOptions,
    open_grid,
    run_folder,
    show_plan,
    state_loader,
)
from semcal.errors import MissingExtraError
from semcal.files import dumps

#: Largest share of wrong answers among the given answers of the example set.
RISK = 0.2
#: Folder in the run folder with the calibration of the example set.
CALIBRATED = "example-set"


@dataclass(frozen=True)
class DemoOptions(MachineOptions):
    """The options of `semcal demo`."""

    quick: bool = Option(
        False,
        "--quick",
        help="Use one set of 300 questions in the second part, and fit only Calibrated: half the time.",
    )
    out: Path | None = opt.folder_option("Run folder (default: runs/demo, with --quick runs/demo-quick).")
    m: int = opt.SAMPLES
    seed: int = opt.RARE_SEED
    dtype: str | None = opt.DTYPE


def command(options: DemoOptions) -> int:
    """Show the gain of calibration on stored answers, then run the whole pipeline with a model.

    Part 1 calibrates stored answers to 419 questions about the real world, and needs no model. Part 2 uses
    the embedded model, which knows a fictional world, and writes a report. For each of three question sets,
    it learns a probability, a threshold and a temperature from 400 labeled questions. It samples ten answers
    to each of 300 test questions at T = 1, at T = 0.5 and at the learned temperature.

    With --quick, part 2 uses one set at T = 1. With --limit N, part 2 uses N questions of each split. With
    --json, part 1 is omitted. An interrupted demo resumes with the same command. The settings of part 2 are
    a file for semcal run: src/semcal/demo/demo.yaml (quick.yaml).
    """
    from semcal.demo.paths import settings_file
    from semcal.experiment.finished import forget, read_results
    from semcal.experiment.grid_settings import read_settings

    values = {
        "sampling.m": options.m,
        "seed": options.seed,
        "models.0.dtype": options.dtype,
        "memory": options.memory,
    }
    settings = read_settings(
        settings_file(quick=options.quick),
        [f"{key}={dumps(value)}" for key, value in values.items() if value is not None],
        limit=options.limit,
    )
    folder = _folder(options.out, quick=options.quick)
    if options.dry_run:
        return show_plan(settings, state_loader(settings, options, folder), folder, as_json=options.json)
    if options.fresh:
        forget(folder)
    if not options.json:
        _show_example_set(folder / CALIBRATED)
    if find_spec("torch") is None:
        raise MissingExtraError("torch", "models", "semcal demo")
    with open_grid(settings, folder, options) as grid:
        problems = grid.run()
    from semcal.experiment.report.build import in_words as results_in_words

    results = read_results(folder)
    if options.json:
        show(dumps(results))
    else:
        show()
        for line in results_in_words(results):
            show(paragraph(line) if line.endswith(".") else line)
    info(f"report: {folder / 'report.html'}")
    return 1 if problems else 0


def output_of(out: Path | None, quick: bool) -> Output:
    """Return the run folder; a folder that holds the folder of the example set was begun by this command."""
    folder = _folder(out, quick=quick)
    return run_folder(folder, begun=(folder / CALIBRATED).is_dir())


def _folder(out: Path | None, *, quick: bool) -> Path:
    return out or Path("runs/demo-quick" if quick else "runs/demo")


# ---- The example set ---------------------------------------------------------------------------------------


def _show_example_set(folder: Path) -> None:
    import semcal
    from semcal.demo import real

    rows = real.load()
    with progress("demo", len(rows)) as update:
        results = semcal.score(real.PATH, progress=update)
    calibration = results.calibrate(risk=RISK)
    path = calibration.save_pretrained(folder)
    model = rows[0]["sampled_by"]["model"]
    show(paragraph(f"Part 1: {len(rows)} questions about the real world. The samples of {model} are stored."))
    show(f"\n{in_words(calibration, path)}\n")
    show("Part 2: the whole pipeline with a model, which knows a fictional world.")
    show("Base: T = 1; SE: T = 0.5; TS: a fitted T; Calibrated: probabilities for Base.")
