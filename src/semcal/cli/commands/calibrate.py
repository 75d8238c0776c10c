"""`semcal calibrate`: the probability that an answer is right, learnt from labelled questions or samples."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semcal.cli import options as opt
from semcal.cli.commands.fit import check_apart, folder_output
from semcal.cli.console import Output, info, open_unfinished, show, spending, successive_progress, warn
from semcal.cli.options import NO_SERVER, ServerOptions, server_settings
from semcal.cli.row_commands import BadRows, good_rows, open_rows, read_labelled
from semcal.data.question import data_hash
from semcal.errors import InputError, RowError, UsageError, shown
from semcal.files import dumps, own_files, read_rows
from semcal.rows import RECALIBRATOR, SAMPLES, Row

if TYPE_CHECKING:
    from semcal.calibration.calibrated import Calibration
    from semcal.calibration.from_samples import SamplesOrigin
    from semcal.grading.rules import Grader
    from semcal.models.equivalence import Equivalence

#: The columns that are read of stored samples.
FIELDS = (
    *("id", "question", "samples", "log_likelihoods", "temperatures"),
    *("answers", "clusters", "context", "group"),
)

LabelledArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="Labelled questions {question, answers, context?}; or, without --model, rows with samples too.",
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="DIR",
        help="What answers the questions: Hugging Face directory or id, or openai:URL#NAME of a server; "
        "atlas is the embedded model.",
    ),
]
FolderOption = Annotated[
    Path, typer.Option("--out", metavar="DIR", callback=opt.out_path, help="Directory of the calibration.")
]
RiskOption = Annotated[
    float | None,
    typer.Option(
        "--risk",
        metavar="R",
        help="Also set a threshold: at most this share of the answers from it on is wrong.",
    ),
]
DeltaOption = Annotated[
    float, typer.Option("--delta", help="Allowed probability that the share is larger after all.")
]
TemperaturesOption = Annotated[
    list[float] | None,
    typer.Option(
        "--temperatures",
        metavar="T",
        help="Draw at this temperature as well; may be repeated. 0.5 by default; 1 alone for none.",
    ),
]
DrawsOption = Annotated[
    int | None,
    typer.Option(
        "--m",
        callback=opt.countable,
        help="Answers to sample for each question, 10 by default; of samples the first of each temperature.",
    ),
]
NoSamplesOption = Annotated[
    bool, typer.Option("--no-samples", help=f"Do not keep what is sampled (DIR/{SAMPLES}).")
]


def command(
    file: LabelledArgument,
    out: FolderOption,
    model: ModelOption = None,
    equivalence: opt.EquivalenceOption = None,
    risk: RiskOption = None,
    delta: DeltaOption = 0.05,
    recalibrator: opt.RecalibratorOption = None,
    temperatures: TemperaturesOption = None,
    m: DrawsOption = None,
    linkage: opt.LinkageOption = "components",
    max_new_tokens: opt.MaxNewTokensOption = None,
    few_shot: opt.FewShotOption = None,
    grader: opt.GraderOption = "rules",
    cache: opt.CacheOption = None,
    seed: opt.KeptSeedOption = None,
    columns: opt.ColumnsOption = None,
    limit: opt.LimitOption = None,
    overwrite: opt.OverwriteOption = False,
    json: opt.JsonOption = False,
    device: opt.DeviceOption = None,
    nli_device: opt.NliDeviceOption = None,
    dtype: opt.DtypeOption = None,
    dry_run: opt.DryRunOption = False,
    fresh: opt.FreshOption = False,
    force: opt.ForceOption = False,
    no_samples: NoSamplesOption = False,
    server: ServerOptions = NO_SERVER,
) -> int:
    """Learn the probability that an answer is right, and with --risk a threshold to abstain below.

    Each question is answered m times; the commonest meaning is the answer, graded against the references. The
    probability is learnt from its share and other features of the samples, by the map of the highest
    cross-validated gain; none is used unless one beats the share itself. With --risk two in five of the
    questions are kept apart for the threshold. Give the directory to ask or measure with
    --calibration. Interrupted sampling resumes with the same command. What was sampled is kept in
    DIR/samples.jsonl: give that file for another risk, equivalence, grader or m without sampling again.
    """
    _check(locals())
    settings = server_settings(server, model, equivalence, grader.removeprefix("judge:"))
    with BadRows() as bad:
        if model is None or holds_kept_samples(file):
            judge = partial(opt.open_equivalence, equivalence, device=device, cache=cache, settings=settings)
            marks = partial(opt.open_grader, grader, cache=cache, settings=settings)
            rows = _read_samples(file, columns, limit, bad, equivalence)
            origin = _origin(rows, locals())
            kept_seed = 0 if origin.provenance is None else origin.provenance.seed
            calibration = _from_samples(
                rows, origin, judge, marks, locals(), seed=kept_seed if seed is None else seed
            )
        else:
            calibration = _from_model(locals(), bad)
        if calibration is None:
            return bad.exit_code()
        path = _save(calibration, out, file, no_samples=no_samples)
        for line in calibration.report.first:
            info(f"calibrate: {line}")
        in_words = not json and sys.stdout.isatty()
        show(_in_words(calibration, path) if in_words else _as_json(calibration, path))
        return bad.exit_code()


def _save(found: Calibration, out: Path, file: str, *, no_samples: bool) -> Path:
    """Write the calibration, and remove what an older one has left beside its file that this one lacks."""
    path = found.save_pretrained(out) if not no_samples else replace(found, samples=None).save_pretrained(out)
    if found.recalibrator is None:
        shutil.rmtree(out / RECALIBRATOR, ignore_errors=True)
    if (found.samples is None or no_samples) and Path(file).resolve() != (out / SAMPLES).resolve():
        (out / SAMPLES).unlink(missing_ok=True)
    return path


def holds_kept_samples(file: str | Path) -> bool:
    """Whether a file begins with a row that `semcal calibrate` sampled."""
    path = Path(file)
    first = next(iter(read_rows(path)), None) if path.suffix == ".jsonl" and path.is_file() else None
    with suppress(InputError):
        return not isinstance(first, RowError | None) and _is_kept(Row(first.data))
    return False


def _is_kept(row: Row) -> bool:
    """Whether the row is one that `semcal calibrate` sampled, and kept beside its calibration."""
    return row.sampled_by.command == "calibrate"


def output_of(options: Mapping[str, Any]) -> Output:
    """The directory of the calibration; --overwrite replaces another calibration, and nothing else.

    A directory that holds nothing but kept samples was begun by this command.
    """
    found = folder_output(options["out"], "calibration")
    held = own_files(found.path) if found.path.is_dir() else []
    samples = found.path / SAMPLES
    return replace(found, begun=True) if held == [samples] and holds_kept_samples(samples) else found


def _check(options: Mapping[str, Any]) -> None:
    for name in ("risk", "delta"):
        value = options[name]
        if value is not None and not 0 < value < 1:
            usual = "0.1" if name == "risk" else "0.05"
            raise UsageError(f"--{name} is a share between 0 and 1, such as {usual}, got {value:g}")
    stored = options["model"] is None
    kept = holds_kept_samples(options["file"])
    if stored or kept:
        refused = ["max_new_tokens", "fresh", "no_samples", *(["recalibrator", "few_shot"] if stored else [])]
        for name in (*refused, *([] if kept else ["temperatures"])):
            if options[name]:
                option = name.replace("_", "-")
                remedy = "leave it out" if kept else "give --model, or leave it out"
                raise UsageError(f"--{option} is for a model that is asked; {remedy}")


def _read_samples(
    file: str, columns: Sequence[str] | None, limit: int | None, bad: BadRows, equivalence: str | None
) -> Sequence[Row]:
    from itertools import islice

    from semcal.calibration.from_samples import check_labelled_samples

    read = open_rows(file, columns, check_labelled_samples, fields=FIELDS, label="calibrate", tables=True)
    rows = list(good_rows(islice(read, limit), bad))
    if not rows:
        raise InputError(
            f"no row of {file} can be used: stored samples need id, question, samples and answers; to have a "
            "model answer labelled questions, give it with --model"
        )
    if equivalence is None and any(row.has("clusters") for row in rows):
        raise UsageError(
            f"the rows of {file} are clustered already; say by what with --equivalence (exact, or the NLI "
            "model), since later samples must be grouped alike"
        )
    return rows


def _origin(rows: Sequence[Row], options: Mapping[str, Any]) -> SamplesOrigin:
    """What stored samples are from, as the calibration beside them or the model that is named tells."""
    from semcal.calibration.from_samples import origin_of

    seed: int | None = options["seed"]
    if options["model"] is None:
        return origin_of(rows, options["file"], seed=seed)
    from semcal.experiment.environment import versions
    from semcal.recalibration.calibration_set import provenance_of

    model = opt.open_model(
        options["model"], device=options["device"], dtype=options["dtype"], settings=options["settings"]
    )
    fitted, asking = opt.open_recalibrator(
        model, options["recalibrator"], None, options["few_shot"], force=options["force"]
    )
    provenance = partial(
        provenance_of,
        model,
        asking=asking,
        data=Path(options["file"]).name,
        versions=versions(),
        seed=rows[0].sampled_by.seed or 0 if seed is None else seed,
    )
    under = fitted if options["recalibrator"] else None
    info(f"calibrate: {options['file']} holds samples of {model.name}; nothing is sampled again")
    return origin_of(rows, options["file"], provenance=provenance, recalibrator=under)


def _from_samples(
    rows: Sequence[Row],
    origin: SamplesOrigin,
    open_judge: Callable[[], Equivalence],
    open_marks: Callable[[], Grader | str],
    options: Mapping[str, Any],
    *,
    seed: int,
) -> Calibration | None:
    from semcal.calibration.from_samples import calibrate_samples, measure_samples
    from semcal.grading.grade import as_grader
    from semcal.models.clustering import Grouping

    if options["dry_run"]:
        warn(f"would calibrate on the samples of {len(rows)} questions")
        return None
    clustering = Grouping(open_judge(), options["linkage"])
    marks = as_grader(open_marks(), clustering.equivalence)
    with spending("calibrate", equivalence=clustering.equivalence, grader=marks):
        return calibrate_samples(
            measure_samples(rows, clustering, m=options["m"], temperatures=options["temperatures"]),
            clustering,
            origin=origin,
            grader=marks,
            risk=options["risk"],
            delta=options["delta"],
            seed=seed,
        )


def _from_model(options: Mapping[str, Any], bad: BadRows) -> Calibration | None:
    file, m, out, seed = options["file"], options["m"] or 10, options["out"], options["seed"] or 0
    questions = read_labelled(file, options["columns"], bad, label="calibrate", limit=options["limit"])
    if any(_is_kept(Row(question.extra)) for question in questions):
        raise UsageError(
            f"{file} holds samples that semcal calibrate kept; give them as a file, samples.jsonl"
        )
    # only now, as it takes seconds
    from semcal.calibration.from_model import TEMPERATURES, calibrate
    from semcal.experiment.environment import versions
    from semcal.models.sampling import Sampling, plan_sampling
    from semcal.recalibration.temperature import Temperature
    from semcal.store import Store

    settings = options["settings"]
    model = opt.open_model(
        options["model"], device=options["device"], dtype=options["dtype"], settings=settings
    )
    recalibrator, asking = opt.open_recalibrator(
        model, options["recalibrator"], None, options["few_shot"], force=options["force"]
    )
    at = tuple(dict.fromkeys((1.0, *(options["temperatures"] or TEMPERATURES))))
    if options["dry_run"]:
        under = ", ".join(f"{t:g}" for t in at)
        what = f"{m} answers to each of {len(questions)} questions at T = {under}"
        warn(f"would sample {what}: {m * len(at) * len(questions)} answers; writes {out}")
        ways = (recalibrator, *map(Temperature, at[1:]))
        sampling = Sampling(ways, asking, m, max_new_tokens=options["max_new_tokens"])
        warn("\n".join(plan_sampling(model, questions, sampling)))
        return None
    check_apart(questions, asking.few_shot, both="a few-shot example and a labelled question")
    key = {
        "m": m,
        "max_new_tokens": options["max_new_tokens"],
        "temperatures": at,
        "seed": seed,
        "linkage": options["linkage"],
        "model": model.revision,
        "prompt": asking.hash(model),
        "data": data_hash(questions),
        "equivalence": options["equivalence"],
        "recalibrator": options["recalibrator"],
    }
    kept = open_unfinished(out, key, fresh=options["fresh"])
    by_id = {question.id: question for question in questions}
    equivalence = opt.open_equivalence(
        options["equivalence"],
        device=options["nli_device"] or options["device"],
        cache=options["cache"],
        settings=settings,
    )
    marks = opt.open_grader(options["grader"], cache=options["cache"], settings=settings)
    with (
        spending("calibrate", model=model, equivalence=equivalence, grader=marks),
        successive_progress() as begin,
    ):
        kept.begin()
        calibration = calibrate(
            model,
            questions,
            equivalence=equivalence,
            temperatures=at,
            recalibrator=recalibrator if options["recalibrator"] else None,
            few_shot=asking.few_shot,
            m=m,
            seed=seed,
            max_new_tokens=options["max_new_tokens"],
            linkage=options["linkage"],
            grader=marks,
            risk=options["risk"],
            delta=options["delta"],
            data=Path(file).name,
            versions=versions(),
            progress=begin("calibrate", len(questions)),
            keep=Store(kept.folder),
            on_bad_question=lambda error: bad.report(by_id[error.question_id].error(error.reason)),
        )
    kept.finish()
    return calibration


def _as_json(calibration: Calibration, path: Path) -> str:
    threshold = None if calibration.threshold is None else asdict(calibration.threshold)
    examples = {
        "examples": calibration.examples,
        "m": calibration.m,
        "threshold": threshold,
        "path": str(path),
    }
    return dumps({**asdict(calibration.report), **examples})


def _in_words(calibration: Calibration, path: Path) -> str:
    report = calibration.report
    apart = f" ({report.apart} more kept apart for the threshold)" if report.apart else ""
    names = {"accuracy": "accuracy", "mean_confidence": "confidence", "ace": "ACE", "ace_floor": "by chance"}
    names |= {"brier": "Brier", "auroc": "AUROC", "gain": "gain"}
    columns = [name for name in names if name in report.base]
    rows = [("Base", report.base), ("Calibrated", report.calibrated)]
    if report.base_at_one is not None:
        rows.insert(1, ("Base, T = 1", report.base_at_one))
    lines = [
        f"{report.n} labelled questions{apart}, {calibration.m} draws each",
        "".join([f"{'':<12}", *(f"{names[name]:>11}" for name in columns)]),
    ]
    for label, figures in rows:
        cells = ("–" if figures[name] is None else f"{figures[name]:.3f}" for name in columns)
        lines.append("".join([f"{label:<12}", *(f"{cell:>11}" for cell in cells)]))
    lines += [
        "Calibrated is measured out of fold, with temperature and map chosen anew in each fold; Base is the",
        "share of the same answers.",
    ]
    if report.answered_at is not None:
        lines.append(report.answered_at)
    unset = "No threshold was asked for; --risk sets one, below which ask abstains."
    lines += [
        "",
        report.why,
        *report.advice,
        calibration.threshold.sentence if calibration.threshold else unset,
    ]
    lines += ["", f"{len(calibration.examples)} of the answers, as they were graded:"]
    for one in calibration.examples:
        mark = "right" if one["correct"] else "wrong"
        answer, reference, question = (shown(one[name]) for name in ("answer", "reference", "question"))
        lines.append(f"  {mark}: {answer} to {question}; a reference: {reference}")
    lines += ["", f"written to {path}; semcal ask and measure: --calibration {path.parent}"]
    if calibration.samples is not None:
        lines.append(
            "another --risk, --equivalence, --grader or --m: semcal calibrate "
            f"{path.parent / SAMPLES} … --out ANOTHER"
        )
    return "\n".join(lines)
