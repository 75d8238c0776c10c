"""`semcal fit`: labelled questions to a temperature."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semcal.cli.choosing import choose_by_grid, choose_by_sweep, keep_apart
from semcal.cli.console import complain, progress, say
from semcal.cli.loading import open_equivalence, open_few_shot, open_model
from semcal.cli.options import (
    CacheOption,
    DeviceOption,
    DryRunOption,
    DtypeOption,
    EquivalenceOption,
    FewShotOption,
    JsonOption,
    LimitOption,
    MaxNewTokensOption,
    ModelOption,
    NliDeviceOption,
    QuietOption,
    SamplesOption,
    SeedOption,
    VerboseOption,
    out_path,
)
from semcal.cli.streams import BadRows
from semcal.errors import UsageError
from semcal.qa.datasets import Question, load_questions
from semcal.records import dumps
from semcal.registry import check_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from semcal.engine import LanguageModel

__all__ = ["command"]


def command(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Labelled questions {question, answers, context?}.")
    ],
    model: ModelOption,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", callback=out_path, help="Directory of the recalibrator.")
    ],
    method: Annotated[str, typer.Option(help="TS, ATS, Platt or TS-grid.")] = "TS",
    loss: Annotated[str, typer.Option(help="NLL or SS.")] = "NLL",
    alpha: Annotated[float | None, typer.Option(help="The α of SS: 0.1, 0.25, 0.5 or 0.75.")] = None,
    solver: Annotated[
        str | None, typer.Option(help="exact (TS), or sgd, the paper's schedule of gradient steps.")
    ] = None,
    weight_decay: Annotated[float, typer.Option(min=0, help="Of sgd; the paper: 0 or 0.01.")] = 0.0,
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
    validation: Annotated[
        str | None, typer.Option(metavar="FILE", help="Labelled questions to choose on.")
    ] = None,
    measure: Annotated[
        str, typer.Option(help="The measure whose choice stands in DIR itself (--select, TS-grid).")
    ] = "E-SC",
    equivalence: EquivalenceOption = None,
    cache: CacheOption = None,
    m: SamplesOption = 10,
    max_new_tokens: MaxNewTokensOption = None,
    few_shot: FewShotOption = None,
    seed: SeedOption = 0,
    limit: LimitOption = None,
    json: JsonOption = False,
    device: DeviceOption = None,
    nli_device: NliDeviceOption = None,
    dtype: DtypeOption = None,
    dry_run: DryRunOption = False,
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
    """
    from semcal.experiment.environment import versions
    from semcal.pipeline import Asking
    from semcal.pipeline.fitting import CalibrationSet

    _check_options(method, solver, loss, alpha, weight_decay, select=select, validation=validation, out=out)
    bad = BadRows()
    examples = open_few_shot(few_shot) or ()
    questions = load_questions(file, on_bad_row=bad.report, answers_needed=True, limit=limit)
    keep_apart(questions, examples, both="a few-shot example and a question to fit on")
    judging = load_questions(validation, on_bad_row=bad.report, answers_needed=True) if validation else []
    keep_apart(questions, judging, both="a validation question and one to fit to")
    language_model = open_model(model, device=device, dtype=dtype)
    if dry_run:
        _plan(language_model, questions, examples, method=method, features=features, out=out)
        return bad.exit_code()
    if not select and method != "TS-grid":
        settings = {
            "method": method,
            "solver": solver,
            "loss": loss,
            "alpha": alpha,
            "weight_decay": weight_decay,
            "seed": seed,
            "store": features,
            "data": Path(file).name,
            "on_bad_question": bad.report,
        }
        result = _fitted(language_model, questions, examples, settings, out)
    else:
        common: dict[str, Any] = {
            "judge": open_equivalence(equivalence, device=nli_device or device, cache=cache),
            "how": {"m": m, "seed": seed, "max_new_tokens": max_new_tokens},
            "measure": measure,
            "out": out,
        }
        asking = Asking(examples)
        labelled = CalibrationSet.of(language_model, questions, asking=asking, on_bad_question=bad.report)
        provenance = labelled.provenance(
            language_model, asking=asking, data=Path(file).name, seed=seed, versions=versions()
        )
        common |= {"asking": asking, "provenance": provenance}
        if method == "TS-grid":
            result = choose_by_grid(language_model, labelled.questions, **common)
        else:
            result = choose_by_sweep(
                language_model, labelled, judging, methods=[method], features=features, **common
            )
    typer.echo(dumps(result) if json or not sys.stdout.isatty() else _in_words(result))
    return bad.exit_code()


def _check_options(
    method: str,
    solver: str | None,
    loss: str,
    alpha: float | None,
    weight_decay: float,
    *,
    select: bool,
    validation: str | None,
    out: Path,
) -> None:
    from semcal.pipeline.fitting import METHODS, check_method

    check_name(method, (*METHODS, "TS-grid"), what="method")
    if method != "TS-grid":
        check_method(method, solver, loss, alpha)
    if select and (validation is None or method == "TS-grid"):
        raise UsageError(
            "TS-grid chooses on FILE itself; leave --select out"
            if method == "TS-grid"
            else "--select chooses on questions of their own; give them with --validation FILE"
        )
    if validation is not None and not select:
        raise UsageError("--validation goes with --select")
    if weight_decay and (solver == "exact" or (method == "TS" and solver is None)):
        raise UsageError("--weight-decay is for --solver sgd; the exact solution of TS has none")
    if (out / "calibration.json").exists():
        say(f"fit: the recalibrator in {out} will be replaced")
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file; name a directory for the recalibrator")


def _fitted(
    model: LanguageModel,
    questions: list[Question],
    examples: tuple[Question, ...],
    settings: dict[str, Any],
    out: Path,
) -> dict[str, Any]:
    """Fit one recalibrator and keep it."""
    from semcal.experiment.environment import versions
    from semcal.pipeline import fit
    from semcal.recalibration import temperature_of

    with progress("fit", len(questions)) as update:
        fitted = fit(model, questions, few_shot=examples, versions=versions(), progress=update, **settings)
    path = fitted.save_pretrained(out)
    if fitted.report.get("at_bound"):
        say(f"fit: the loss still falls beyond T = {fitted.temperature:g}, the bound; look at the data")
    return {
        "method": fitted.recalibrator.method,
        "temperature": temperature_of(fitted.recalibrator),
        "loss": fitted.recalibrator.loss,
        "alpha": fitted.recalibrator.alpha,
        **fitted.report,
        "n_questions": fitted.provenance.n_questions,
        "path": str(path),
    }


def _plan(
    model: LanguageModel,
    questions: list[Question],
    examples: tuple[Question, ...],
    *,
    method: str,
    features: Path | None,
    out: Path,
) -> None:
    """Say what would be read and written; the model is asked for its size, and not run on any question."""
    from semcal.pipeline import Asking
    from semcal.pipeline.fitting import CalibrationSet

    asking = Asking(examples)
    labelled = CalibrationSet.of(model, questions, asking=asking, on_bad_question=lambda _: None)
    whole = method == "ATS" or features is not None
    size = labelled.manifest(model, asking=asking, whole=whole).bytes / 1e6
    complain(
        f"would read {len(labelled.questions)} questions with {model.name} once, keep {size:.1f} MB of "
        f"hidden states {f'in {features}' if features else 'in memory'} and write {out / 'calibration.json'}"
    )


def _in_words(result: Mapping[str, Any]) -> str:
    text = _choices_in_words(result) if "chosen" in result else _fit_in_words(result)
    return f"{text}\nwritten to {result['path']}"


def _choices_in_words(result: Mapping[str, Any]) -> str:
    """A line for each measure: what was chosen, and its scores on the questions that it was chosen on."""
    lines = [f"{'measure':<8} {'chosen':<24} {'Brier':>8} {'ACE':>8} {'AUROC':>8} {'accuracy':>8}"]
    for measure, row in result["chosen"].items():
        name = row.get("candidate") or f"T = {row['temperature']:.3f}"
        of = "" if row.get("measure_alpha") is None else f", a = {row['measure_alpha']:g}"
        scores = "".join(f" {row[key]:>8.3f}" for key in ("brier", "ace", "auroc", "accuracy"))
        lines.append(f"{measure:<8} {name + of:<24}{scores}")
    return "\n".join(lines)


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
    found = "" if result["temperature"] is None else f", T = {result['temperature']:.4f}"
    return (
        f"{result['method']}{found} after {result['steps']} steps ({result['loss']} per token "
        f"{result['loss_before']:.4f} before, {result['loss_after']:.4f} now; {data})"
    )
