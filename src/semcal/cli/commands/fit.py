"""`semcal fit`: labelled questions to a temperature."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

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
from semcal.registry import check_name

__all__ = ["command"]


def command(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Labelled questions {question, answers, context?}.")
    ],
    model: ModelOption,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Directory of the recalibrator.")],
    method: Annotated[str, typer.Option(help="TS.")] = "TS",
    loss: Annotated[str, typer.Option(help="NLL or SS.")] = "NLL",
    alpha: Annotated[float | None, typer.Option(help="The α of SS: 0.1, 0.25, 0.5 or 0.75.")] = None,
    solver: Annotated[str, typer.Option(help="exact.")] = "exact",
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
    """Fit a temperature to labelled questions and write it to a directory.

    The frozen model reads every question and its answers once; the optimum is then found exactly.
    """
    from semcal.experiment.environment import versions
    from semcal.pipeline import fit
    from semcal.recalibration.losses import check_loss

    check_name(method, ("TS",), what="method")
    check_name(solver, ("exact",), what="solver")
    check_loss(loss, alpha)
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file; name a directory for the recalibrator")
    bad = BadRows()
    questions = load_questions(file, on_bad_row=bad.report, answers_needed=True, limit=limit)
    examples = _apart(open_few_shot(few_shot) or (), questions)
    if dry_run:
        complain(
            f"would read {len(questions)} questions with {model} once and write {out / 'calibration.json'}"
        )
        return bad.exit_code()
    language_model = open_model(model, device=device, dtype=dtype)
    with progress("fit", len(questions)) as update:
        fitted = fit(
            language_model,
            questions,
            few_shot=examples,
            loss=loss,
            alpha=alpha,
            data=Path(file).name,
            versions=versions(),
            on_bad_question=bad.report,
            progress=update,
        )
    path = fitted.save_pretrained(out)
    _show(fitted, str(path), as_json=json or not sys.stdout.isatty())
    return bad.exit_code()


def _apart(examples: tuple[Question, ...], questions: list[Question]) -> tuple[Question, ...]:
    """Refuse few-shot examples that are fitted on as well: the model would read their answers twice."""
    used = {question_key(question) for question in questions}
    both = [example.question for example in examples if question_key(example) in used]
    if both:
        raise UsageError(
            f"{both[0]!r} is a few-shot example and a question to fit on; take it out of one file"
        )
    return examples


def _show(fitted: Any, path: str, *, as_json: bool) -> None:
    certificate = fitted.recalibrator.certificate_
    result = {
        "method": "TS",
        "temperature": fitted.temperature,
        "loss": fitted.recalibrator.loss,
        "alpha": fitted.recalibrator.alpha,
        "loss_before": certificate.loss_at_one,
        "loss_after": certificate.loss,
        "at_bound": certificate.at_bound,
        "n_questions": fitted.provenance.n_questions,
        "n_tokens": fitted.recalibrator.n_tokens_,
        "path": path,
    }
    if as_json:
        typer.echo(dumps(result))
    else:
        typer.echo(
            f"T = {fitted.temperature:.4f}  ({fitted.recalibrator.loss} per token "
            f"{certificate.loss_at_one:.4f} at T = 1, {certificate.loss:.4f} now; "
            f"{result['n_tokens']} tokens of {result['n_questions']} questions)\nwritten to {path}"
        )
    if certificate.at_bound:
        say(f"fit: the loss still falls beyond T = {fitted.temperature:g}, the bound; look at the data")
