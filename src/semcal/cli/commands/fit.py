"""`semcal fit`: labelled questions to a temperature."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semcal.cli.console import complain, progress, say
from semcal.cli.loading import open_few_shot, open_model
from semcal.cli.options import (
    DeviceOption,
    DryRunOption,
    DtypeOption,
    FewShotOption,
    JsonOption,
    LimitOption,
    ModelOption,
    QuietOption,
    SeedOption,
    VerboseOption,
)
from semcal.cli.streams import BadRows
from semcal.errors import UsageError
from semcal.qa.datasets import Question, load_questions
from semcal.qa.splits import question_key
from semcal.records import dumps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from semcal.engine import LanguageModel
    from semcal.pipeline import Fit

__all__ = ["command"]


def command(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Labelled questions {question, answers, context?}.")
    ],
    model: ModelOption,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Directory of the recalibrator.")],
    method: Annotated[str, typer.Option(help="TS, ATS or Platt.")] = "TS",
    loss: Annotated[str, typer.Option(help="NLL or SS.")] = "NLL",
    alpha: Annotated[float | None, typer.Option(help="The α of SS: 0.1, 0.25, 0.5 or 0.75.")] = None,
    solver: Annotated[
        str | None, typer.Option(help="exact (TS), or sgd, the paper's schedule of gradient steps.")
    ] = None,
    weight_decay: Annotated[float, typer.Option(min=0, help="Of sgd; the paper: 0 or 0.01.")] = 0.0,
    features: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the hidden states here, for further fits of this model."),
    ] = None,
    few_shot: FewShotOption = None,
    seed: SeedOption = 0,
    limit: LimitOption = None,
    json: JsonOption = False,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    dry_run: DryRunOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Fit a recalibrator to labelled questions and write it to a directory.

    The frozen model reads every question and its answers once. TS is then solved exactly; ATS and Platt
    (and TS on demand) take the paper's gradient steps on what the model's hidden states were. With
    --features these states are kept: an interrupted reading goes on, and further fits read the file.
    """
    from semcal.experiment.environment import versions
    from semcal.pipeline import fit
    from semcal.pipeline.fitting import check_method

    check_method(method, solver, loss, alpha)
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file; name a directory for the recalibrator")
    bad = BadRows()
    questions = load_questions(file, on_bad_row=bad.report, answers_needed=True, limit=limit)
    examples = _apart(open_few_shot(few_shot) or (), questions)
    language_model = open_model(model, device=device, dtype=dtype)
    if dry_run:
        _plan(language_model, questions, examples, whole=method == "ATS", features=features, out=out)
        return bad.exit_code()
    with progress("fit", len(questions)) as update:
        fitted = fit(
            language_model,
            questions,
            method=method,
            solver=solver,
            few_shot=examples,
            loss=loss,
            alpha=alpha,
            weight_decay=weight_decay,
            seed=seed,
            store=features,
            data=Path(file).name,
            versions=versions(),
            on_bad_question=bad.report,
            progress=update,
        )
    path = fitted.save_pretrained(out)
    _show(fitted, str(path), as_json=json or not sys.stdout.isatty())
    return bad.exit_code()


def _plan(
    model: LanguageModel,
    questions: list[Question],
    examples: tuple[Question, ...],
    *,
    whole: bool,
    features: Path | None,
    out: Path,
) -> None:
    """Say what would be read and written; the model is asked for its size, and not run on any question."""
    from semcal.pipeline import Asking
    from semcal.pipeline.fitting import CalibrationSet

    asking = Asking(examples)
    labelled = CalibrationSet.of(model, questions, asking=asking, on_bad_question=lambda _: None)
    size = labelled.manifest(model, asking=asking, whole=whole).bytes / 1e6
    complain(
        f"would read {len(labelled.questions)} questions with {model.name} once, keep {size:.1f} MB of "
        f"hidden states {f'in {features}' if features else 'in memory'} and write {out / 'calibration.json'}"
    )


def _apart(examples: tuple[Question, ...], questions: list[Question]) -> tuple[Question, ...]:
    """Refuse few-shot examples that are fitted on as well: the model would read their answers twice."""
    used = {question_key(question) for question in questions}
    both = [example.question for example in examples if question_key(example) in used]
    if both:
        raise UsageError(
            f"{both[0]!r} is a few-shot example and a question to fit on; take it out of one file"
        )
    return examples


def _show(fitted: Fit, path: str, *, as_json: bool) -> None:
    recalibrator, report = fitted.recalibrator, fitted.report
    result = {
        "method": recalibrator.method,
        "temperature": getattr(recalibrator, "temperature_", None),
        "loss": recalibrator.loss,
        "alpha": recalibrator.alpha,
        **report,
        "n_questions": fitted.provenance.n_questions,
        "path": path,
    }
    typer.echo(dumps(result) if as_json else f"{_in_words(result)}\nwritten to {path}")
    if report.get("at_bound"):
        say(
            f"fit: the loss still falls beyond T = {result['temperature']:g}, the bound; look at the data",
        )


def _in_words(result: Mapping[str, Any]) -> str:
    data = f"{result['n_tokens']} tokens of {result['n_questions']} questions"
    if "steps" not in result:
        low, high = result["interval"]
        error = "" if math.isnan(result["standard_error"]) else f" ± {result['standard_error']:.4f}"
        return (
            f"T = {result['temperature']:.4f}{error}, 95 % [{low:.3f}, {high:.3f}] "
            f"({result['loss']} per token {result['loss_before']:.4f} at T = 1, {result['loss_after']:.4f} "
            f"now; {data})"
        )
    losses = result["losses"]
    quarter = max(1, len(losses) // 4)
    first, last = (sum(part) / quarter for part in (losses[:quarter], losses[-quarter:]))
    found = "" if result["temperature"] is None else f", T = {result['temperature']:.4f}"
    return (
        f"{result['method']}{found} after {result['steps']} steps ({result['loss']} per token {first:.4f} in "
        f"the first quarter of them, {last:.4f} in the last; {data})"
    )
