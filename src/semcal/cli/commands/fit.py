"""`semcal fit`: labelled questions to a temperature."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from semcal.cli.choosing import keep_apart
from semcal.cli.claims import Claim, refuse_existing, unfinished
from semcal.cli.complaints import BadRows
from semcal.cli.console import complain
from semcal.cli.executors import open_unfinished
from semcal.cli.fitting import Wanted, Work, check_options, forget_others
from semcal.cli.loading import open_equivalence, open_few_shot, open_model
from semcal.cli.options import (
    CacheOption,
    ColumnsOption,
    DeviceOption,
    DryRunOption,
    DtypeOption,
    EquivalenceOption,
    FewShotOption,
    FreshOption,
    JsonOption,
    LimitOption,
    MaxNewTokensOption,
    ModelOption,
    NliDeviceOption,
    OverwriteOption,
    QuietOption,
    SamplesOption,
    SeedOption,
    VerboseOption,
    out_path,
)
from semcal.cli.reading import open_labelled
from semcal.errors import StoreError
from semcal.pipeline.store import SETTINGS
from semcal.records import dumps, read_object

__all__ = ["claim", "command"]


def command(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Labelled questions {question, answers, context?}.")
    ],
    model: ModelOption,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", callback=out_path, help="Directory of the recalibrator.")
    ],
    overwrite: OverwriteOption = False,
    method: Annotated[str, typer.Option(help="TS, ATS, Platt or TS-grid.")] = "TS",
    loss: Annotated[str, typer.Option(help="NLL or SS.")] = "NLL",
    alpha: Annotated[float | None, typer.Option(help="The α of SS: 0.1, 0.25, 0.5 or 0.75.")] = None,
    solver: Annotated[
        str | None, typer.Option(help="exact (TS), or sgd, the paper's schedule of gradient steps.")
    ] = None,
    weight_decay: Annotated[float, typer.Option(min=0, help="Of sgd; the paper: 0 or 0.01.")] = 0.0,
    learning_rate: Annotated[
        float | None, typer.Option(min=0, help="Of sgd; the paper: 1e-4 for TS, 1e-5 for ATS and Platt.")
    ] = None,
    features: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            callback=out_path,
            help="Keep the hidden states here, for further fits of this model.",
        ),
    ] = None,
    select: Annotated[
        bool, typer.Option("--select", help="Try every loss, α and weight decay; choose on --validation.")
    ] = False,
    keep_accuracy: Annotated[
        bool,
        typer.Option(
            "--keep-accuracy", help="Choose among candidates whose accuracy is within 2 standard errors."
        ),
    ] = False,
    learning_curve: Annotated[
        bool, typer.Option("--learning-curve", help="Show how many labels TS needs, on --validation.")
    ] = False,
    validation: Annotated[
        str | None, typer.Option(metavar="FILE", help="Labelled questions to choose or to measure on.")
    ] = None,
    measure: Annotated[
        str,
        typer.Option(help="The measure whose choice stands in DIR itself, or whose learning curve is shown."),
    ] = "E-SC",
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=out_path,
            help="Draw the loss against T, the loss of the steps, or the learning curve (.pdf, .png, .svg).",
        ),
    ] = None,
    equivalence: EquivalenceOption = None,
    cache: CacheOption = None,
    m: SamplesOption = 10,
    max_new_tokens: MaxNewTokensOption = None,
    few_shot: FewShotOption = None,
    seed: SeedOption = 0,
    columns: ColumnsOption = None,
    limit: LimitOption = None,
    json: JsonOption = False,
    device: DeviceOption = None,
    nli_device: NliDeviceOption = None,
    dtype: DtypeOption = None,
    dry_run: DryRunOption = False,
    fresh: FreshOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Fit a recalibrator to labelled questions and write it to a directory.

    The frozen model reads every question and its answers once. TS is then solved exactly; ATS and Platt
    (and TS on demand) take the paper's gradient steps on what the model's hidden states were. With
    --features these states are kept: an interrupted reading goes on, and further fits read the file.

    With --select every loss, α and weight decay of the method is tried, and for each measure the one of
    the lowest Brier score on the --validation questions is kept in DIR/MEASURE; the table of all is
    DIR/selection.jsonl. TS-grid tries temperatures in the same way on FILE itself, from samples alone.
    That is the paper's rule; answers that are nearly all wrong, and known to be, have a low Brier score
    too: --keep-accuracy leaves candidates out that cost accuracy.

    With --learning-curve TS is also fitted to 25, 50, 100, … of the questions, and ACE and Brier score of
    each fit are measured on the --validation questions; the table is DIR/learning-curve.jsonl.

    Interrupted, it goes on where it was with the same command; --fresh starts again.
    """
    wanted = Wanted(
        method,
        solver,
        loss,
        alpha,
        weight_decay,
        learning_rate,
        select,
        keep_accuracy,
        learning_curve,
        measure,
        seed,
    )
    check_options(wanted, validation=validation, plot=plot)
    if plot is not None and not (overwrite or claim({"out": out}).begun):
        refuse_existing("--plot", plot)
    with BadRows() as bad:
        examples = open_few_shot(few_shot) or ()
        questions = open_labelled(file, columns, bad, label="fit", limit=limit)
        keep_apart(questions, examples, both="a few-shot example and a question to fit on")
        judging = open_labelled(validation, columns, bad, label="fit") if validation else []
        keep_apart(questions, judging, both="a validation question and one to fit to")
        language_model = open_model(model, device=device, dtype=dtype)
        work = Work(language_model, questions, judging, examples, Path(file).name, features, out, bad)
        sampling = {"m": m, "seed": seed, "max_new_tokens": max_new_tokens}
        if dry_run:
            _plan(work, wanted, sampling)
            return bad.exit_code()
        kept = open_unfinished(out, work.key(wanted, {**sampling, "equivalence": equivalence}), fresh=fresh)
        if wanted.samples:
            judge = open_equivalence(equivalence, device=nli_device or device, cache=cache)
            result = work.sampled(wanted, judge, sampling, kept, plot)
        else:
            result = work.fitted(wanted, kept, plot)
        forget_others(out, wanted)
        kept.finish()
        typer.echo(dumps(result) if json or not sys.stdout.isatty() else _in_words(result, measure))
        return bad.exit_code()


def claim(options: Mapping[str, Any]) -> Claim:
    """The directory of the recalibrator; another one is replaced with --overwrite, and nothing else."""
    out = options["out"]
    kept = unfinished(out)
    return Claim(
        out,
        is_folder=True,
        begun=(kept / SETTINGS).is_file(),
        replaceable=_is_recalibrator(out),
        holds="a recalibrator already",
        kept=kept,
    )


def _is_recalibrator(folder: Path) -> bool:
    """Whether a folder holds a recalibrator; a damaged one is to be fitted again."""
    path = folder / "calibration.json"
    try:
        return path.is_file() and read_object(path, remedy="").get("kind", "recalibrator") == "recalibrator"
    except StoreError:
        return True


def _plan(work: Work, wanted: Wanted, sampling: Mapping[str, Any]) -> None:
    """Say what would be read and written; the model is asked for its size, and not run on any question."""
    from semcal.pipeline import Asking
    from semcal.pipeline.fitting import CalibrationSet

    asking, model = Asking(work.examples), work.model
    labelled = CalibrationSet.of(model, work.questions, asking=asking, on_bad_question=lambda _: None)
    parts = []
    if wanted.method != "TS-grid":
        whole = wanted.method == "ATS" or work.features is not None
        size = labelled.manifest(model, asking=asking, whole=whole).bytes / 1e6
        place = f"in {work.features}" if work.features else "in memory"
        parts.append(f"read {len(labelled.questions)} questions once, keep {size:.1f} MB of states {place}")
    if wanted.samples:
        asked = labelled.questions if wanted.method == "TS-grid" else work.validation
        under = wanted.ways()
        parts.append(f"sample {sampling['m']} answers to each of {len(asked)} questions under {under}")
    complain(f"would, with {model.name}, {', '.join(parts)}, and write {work.out / 'calibration.json'}")


def _in_words(result: Mapping[str, Any], measure: str) -> str:
    if "chosen" in result:
        text = _choices_in_words(result)
    elif "learning_curve" in result:
        from semcal.cli.learning import curve_in_words

        curve = curve_in_words(result["learning_curve"], measure, result["labels_needed"])
        text = f"{_fit_in_words(result)}\n\n{curve}"
    else:
        text = _fit_in_words(result)
    drawn = f", plot in {result['plot']}" if "plot" in result else ""
    return f"{text}\nwritten to {result['path']}{drawn}"


def _choices_in_words(result: Mapping[str, Any]) -> str:
    """A line for each measure: what was chosen, and its scores on the questions that it was chosen on."""
    lines = [f"{'measure':<8} {'chosen':<24} {'Brier':>8} {'ACE':>8} {'AUROC':>8} {'accuracy':>8}"]
    for measure, row in result["chosen"].items():
        name = row.get("candidate") or f"T = {row['temperature']:.3f}"
        of = "" if row.get("measure_alpha") is None else f", a = {row['measure_alpha']:g}"
        scores = "".join(f" {_number(row[key]):>8}" for key in ("brier", "ace", "auroc", "accuracy"))
        lines.append(f"{measure:<8} {name + of:<24}{scores}")
    return "\n".join(lines)


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def _fit_in_words(result: Mapping[str, Any]) -> str:
    data = f"{result['n_tokens']} tokens of {result['n_questions']} questions"
    if "steps" not in result:
        error = ""
        if result["interval"]:
            low, high = result["interval"]
            error = f" ± {result['standard_error']:.4f}, 95 % [{low:.3f}, {high:.3f}]"
        return (
            f"T = {result['temperature']:.4f}{error} "
            f"({result['loss']} per token {result['loss_before']:.4f} at T = 1, {result['loss_after']:.4f} "
            f"now; {data})"
        )
    found = away = ""
    if result["temperature"] is not None:
        found = f" by sgd, T = {result['temperature']:.4f}"
        away = (
            f"\nthe optimum of this loss is T = {result['exact_temperature']:.4f}, {result['distance']:.3f} "
            "away in log T; --solver exact finds it"
        )
    return (
        f"{result['method']}{found} after {result['steps']} steps ({result['loss']} per token "
        f"{result['loss_before']:.4f} before, {result['loss_after']:.4f} now; {data}){away}"
    )
