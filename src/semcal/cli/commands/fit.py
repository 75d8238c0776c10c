"""`semcal fit`: fit a temperature, or a larger recalibrator, to labelled questions."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from functools import cache as cached
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semcal.cli import options as opt
from semcal.cli.console import Output, open_unfinished, show, spending, unfinished, warn
from semcal.cli.fit_options import FitOptions
from semcal.cli.fit_runs import FitWork, remove_older_results
from semcal.cli.options import NO_SERVER, ServerOptions, server_settings
from semcal.cli.row_commands import BadRows, listed, read_labelled
from semcal.data.question import Question, group_ties
from semcal.data.splits import near_duplicates, question_key, warn_of_near_duplicates
from semcal.errors import StoreError, UsageError, shown
from semcal.files import dumps, read_object
from semcal.models.equivalence import names_a_server
from semcal.models.language_model import check_likelihoods
from semcal.recalibration.methods import FITTED
from semcal.store import SETTINGS

if TYPE_CHECKING:
    from semcal.models.language_model import PromptConfig

LabelledArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="Labelled questions {question, answers, context?}.")
]
FitFolderOption = Annotated[
    Path, typer.Option("--out", metavar="DIR", callback=opt.out_path, help="Directory of the recalibrator.")
]
MethodOption = Annotated[
    str, typer.Option(help=f"{', '.join(FITTED)} or TS-grid (temperatures tried on FILE).")
]
LossOption = Annotated[str, typer.Option(help="NLL, SS, or any (TS): one of several references is said.")]
AlphaOption = Annotated[float | None, typer.Option(help="The α of SS: 0.1, 0.25, 0.5 or 0.75.")]
SolverOption = Annotated[
    str | None, typer.Option(help="exact (TS), or sgd, the paper's schedule of gradient steps.")
]
WeightDecayOption = Annotated[float, typer.Option(min=0, help="Of sgd; the paper: 0 or 0.01.")]
LearningRateOption = Annotated[
    float | None, typer.Option(min=0, help="Of sgd; the paper: 1e-4 for TS, 1e-5 for ATS and Platt.")
]
FeaturesOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        callback=opt.out_path,
        help="Keep the hidden states here: an interrupted reading resumes, and further fits read the files.",
    ),
]
SelectOption = Annotated[
    bool,
    typer.Option(
        "--select",
        help="Try every loss, α and weight decay. For each measure the one of the highest gain on "
        "--validation is written to DIR/MEASURE; the table of all is DIR/selection.jsonl.",
    ),
]
ByOption = Annotated[
    str | None,
    typer.Option(
        help="What --select and TS-grid choose by: gain (accuracy less Brier score; the default), or brier, "
        "the paper's rule, which prefers answers that are nearly all wrong and known to be.",
    ),
]
ValidationOption = Annotated[
    str | None, typer.Option(metavar="FILE", help="Labelled questions to choose on.")
]
MeasureOption = Annotated[str, typer.Option(help="The measure whose choice is in DIR itself.")]
PlotOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        callback=opt.out_path,
        help="Draw the loss against T, or the loss of the steps (.pdf, .png, .svg).",
    ),
]


def command(
    file: LabelledArgument,
    model: opt.ModelOption,
    out: FitFolderOption,
    overwrite: opt.OverwriteOption = False,
    method: MethodOption = "TS",
    loss: LossOption = "NLL",
    alpha: AlphaOption = None,
    solver: SolverOption = None,
    weight_decay: WeightDecayOption = 0.0,
    learning_rate: LearningRateOption = None,
    features: FeaturesOption = None,
    select: SelectOption = False,
    by: ByOption = None,
    validation: ValidationOption = None,
    measure: MeasureOption = "E-SC",
    plot: PlotOption = None,
    equivalence: opt.EquivalenceOption = None,
    cache: opt.CacheOption = None,
    m: opt.SamplesOption = 10,
    max_new_tokens: opt.MaxNewTokensOption = None,
    few_shot: opt.FewShotOption = None,
    seed: opt.SeedOption = 0,
    columns: opt.ColumnsOption = None,
    limit: opt.LimitOption = None,
    json: opt.JsonOption = False,
    device: opt.DeviceOption = None,
    nli_device: opt.NliDeviceOption = None,
    dtype: opt.DtypeOption = None,
    dry_run: opt.DryRunOption = False,
    fresh: opt.FreshOption = False,
    server: ServerOptions = NO_SERVER,
) -> int:
    """Fit a recalibrator to labelled questions and write it to a directory.

    The frozen model reads every question and its answers once. TS is then solved exactly; ATS and Platt (and
    TS with --solver sgd) take the paper's gradient steps on the model's hidden states. TS-grid and --select
    also sample answers. Interrupted fits resume with the same command and give identical results; --fresh
    starts again.
    """
    options = FitOptions.of(locals())
    options.check(validation, plot, replace_plot=overwrite or output_of({"out": out}).begun)
    with BadRows() as bad:
        read = _read(file, validation, few_shot, columns, limit, bad)
        settings = server_settings(server, model, equivalence)
        language_model = opt.open_model(model, device=device, dtype=dtype, settings=settings)
        work = FitWork(language_model, *read, Path(file).name, features, out, bad)
        from semcal.models.sampling import Sampling

        sampling = Sampling((), work.asking, m, (seed,), max_new_tokens)
        if work.over_server:
            options.check_server(language_model.name, features=features, plot=plot)
            if options.from_samples:
                from semcal.recalibration.temperature import SE

                check_likelihoods(language_model, SE(), measure)
        if dry_run:
            return work.plan(options, sampling)
        kept = open_unfinished(out, work.key(options, sampling, equivalence), fresh=fresh)
        where: Any = {"device": nli_device or device, "cache": cache, "settings": settings}
        judge = cached(partial(opt.open_equivalence, equivalence, **where))
        served = judge() if names_a_server(equivalence) else None
        with spending("fit", model=language_model, equivalence=served):
            result = work.run(options, judge, sampling, kept, plot)
        remove_older_results(out, options)
        kept.finish()
        show(dumps(result) if json or not sys.stdout.isatty() else _in_words(result))
        return bad.exit_code()


def output_of(options: Mapping[str, Any]) -> Output:
    """The directory of the recalibrator; --overwrite replaces another recalibrator, and nothing else."""
    return folder_output(options["out"], "recalibrator")


def folder_output(out: Path, kind: str) -> Output:
    """The directory of what `calibration.json` holds; --overwrite replaces one of the same kind."""
    kept = unfinished(out)
    return Output(
        out,
        is_folder=True,
        begun=(kept / SETTINGS).is_file(),
        replaceable=_holds(out, kind),
        holds=f"a {kind} already",
        kept=kept,
    )


def _holds(folder: Path, kind: str) -> bool:
    """Whether a folder holds one of this kind; a damaged one is to be made again."""
    path = folder / "calibration.json"
    try:
        return path.is_file() and read_object(path, remedy="").get("kind", "recalibrator") == kind
    except StoreError:
        return True


def _read(
    file: str,
    validation: str | None,
    few_shot: Path | None,
    columns: Sequence[str] | None,
    limit: int | None,
    bad: BadRows,
) -> tuple[list[Question], list[Question], PromptConfig]:
    """The questions to fit to, those to choose on, and the few-shot examples: kept apart."""
    examples = opt.open_few_shot(few_shot) or ()
    questions = read_labelled(file, columns, bad, label="fit", limit=limit)
    check_apart(questions, examples, both="a few-shot example and a question to fit on")
    held_out = read_labelled(validation, columns, bad, label="fit") if validation else []
    check_apart(questions, held_out, both="a validation question and one to fit to")
    from semcal.models.language_model import PromptConfig

    return questions, held_out, PromptConfig(examples)


def check_apart(labelled: Sequence[Question], others: Sequence[Question], *, both: str) -> None:
    """Refuse questions that are fitted to and also used otherwise; `both` says as what.

    Warn of those that share a passage or a group with one that is fitted to, or ask nearly the same.
    """
    used = {question_key(question) for question in labelled}
    for question in others:
        if question_key(question) in used:
            raise UsageError(f"{question.question!r} is {both}; take it out of one file")
    ties = {tie for question in labelled for tie in group_ties(question)}
    related = [question.id for question in others if not ties.isdisjoint(group_ties(question))]
    if related:
        warn(
            f"warning: {len(related)} questions ({listed([shown(name) for name in related])}) share a "
            "passage or a group with questions to fit to, which flatters what is measured on them; keep a "
            "passage or group in one file"
        )
    warn_of_near_duplicates(near_duplicates({"fitted to": labelled, "others": others}))


def _in_words(result: Mapping[str, Any]) -> str:
    text = _choices_in_words(result) if "chosen" in result else _fit_in_words(result)
    drawn = f", plot in {result['plot']}" if "plot" in result else ""
    return f"{text}\nwritten to {result['path']}{drawn}"


def _choices_in_words(result: Mapping[str, Any]) -> str:
    """A line for each measure: what was chosen, and its scores on the questions that it was chosen on."""
    chosen = f"chosen by {result['by']}"
    heads = "".join(f" {name:>8}" for name in ("gain", "Brier", "ACE", "AUROC", "accuracy"))
    lines = [f"{'measure':<8} {chosen:<24}{heads}"]
    for measure, row in result["chosen"].items():
        name = row.get("candidate") or f"T = {row['temperature']:.3f}"
        of = "" if row.get("measure_alpha") is None else f", a = {row['measure_alpha']:g}"
        scores = "".join(f" {_number(row[key]):>8}" for key in ("gain", "brier", "ace", "auroc", "accuracy"))
        lines.append(f"{measure:<8} {name + of:<24}{scores}")
    return "\n".join(lines)


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def _fit_in_words(result: Mapping[str, Any]) -> str:
    data = f"{result['n_tokens']} tokens of {result['n_questions']} questions"
    if "steps" not in result and result["temperature"] is None:
        return (
            f"{result['method']} ({result['loss']} per token {result['loss_before']:.4f} before, "
            f"{result['loss_after']:.4f} now; {data})"
        )
    if "steps" not in result:
        error = ""
        unit = "question" if result["loss"] == "any" else "token"
        if result.get("interval"):
            low, high = result["interval"]
            error = f" ± {result['standard_error']:.4f}, 95 % [{low:.3f}, {high:.3f}]"
        return (
            f"T = {result['temperature']:.4f}{error} "
            f"({result['loss']} per {unit} {result['loss_before']:.4f} at T = 1, {result['loss_after']:.4f} "
            f"now; {data}){_route_in_words(result)}"
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


def _route_in_words(result: Mapping[str, Any]) -> str:
    """How T was fitted over a server."""
    if "route" not in result:
        return ""
    error = result["route_error"]
    return f"\nfitted over the server by {result['route']}, which adds {error:.2g} to the error"
