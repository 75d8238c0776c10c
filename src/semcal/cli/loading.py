"""Models, judges and prompts from their options; `atlas` stands for what comes with the package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from semcal.errors import RowError, UsageError
from semcal.registry import check_name

if TYPE_CHECKING:
    from semcal.engine import Equivalence, LanguageModel
    from semcal.pipeline import Asking, Fit
    from semcal.pipeline.models import Models
    from semcal.qa.datasets import Question
    from semcal.qa.grading import Grader
    from semcal.recalibration import AnyRecalibrator

__all__ = [
    "ATLAS",
    "open_equivalence",
    "open_few_shot",
    "open_fit",
    "open_grader",
    "open_model",
    "open_models",
    "open_recalibrator",
    "weights_of",
]

#: The name of the embedded model, in --model and --equivalence.
ATLAS = "atlas"


def open_model(
    name: str, *, device: str | None = None, dtype: str | None = None, memory: str | None = None
) -> LanguageModel:
    """Load a language model; "atlas" is the embedded one."""
    from semcal.engine import load_model

    if name == ATLAS:
        from semcal.demo.paths import language_model_dir

        return load_model(language_model_dir(), device=device, dtype=dtype, memory=memory)
    return load_model(name, device=device, dtype=dtype, memory=memory)


def open_equivalence(
    name: str | None, *, device: str | None = None, cache: Path | None = None
) -> Equivalence:
    """Load what decides whether answers mean the same; "atlas" is the embedded NLI model."""
    from semcal.engine import load_equivalence

    if name == ATLAS:
        from semcal.demo.paths import nli_model_dir

        return load_equivalence(nli_model_dir(), device=device, cache=cache)
    return load_equivalence(name or "exact", device=device, cache=cache)


def open_models(
    model: str | None,
    equivalence: str | None,
    *,
    device: str | None = None,
    dtype: str | None = None,
    memory: str | None = None,
    cache: Path | None = None,
) -> Models:
    """Load what a process that works for a command holds: either model, or both."""
    from semcal.pipeline.models import Models

    return Models(
        None if model is None else open_model(model, device=device, dtype=dtype, memory=memory),
        None if equivalence is None else open_equivalence(equivalence, device=device, cache=cache),
    )


def weights_of(*, model: str | None = None, equivalence: str | None = None) -> int | None:
    """Bytes of the weights of models that are named as in the options; None if one is not here yet."""
    from semcal.demo.paths import language_model_dir, nli_model_dir
    from semcal.pipeline.sharing import on_disk

    places = [
        language_model_dir() if model == ATLAS else _place(model),
        nli_model_dir() if equivalence == ATLAS else _place(equivalence),
    ]
    wanted = [model is not None, equivalence not in (None, "exact")]
    sizes = [on_disk(place) if place else 0 for place, needed in zip(places, wanted) if needed]
    return sum(sizes) if all(sizes) else None


def _place(name: str | None) -> Path | None:
    """The directory of a checkpoint: the one named, or where the hub's files are kept."""
    if name is None or Path(name).expanduser().is_dir():
        return None if name is None else Path(name).expanduser()
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, "config.json")
    except ValueError:  # no hub id either; loading it will say so
        return None
    return Path(found).parent if isinstance(found, str) else None


def open_grader(
    name: str, *, rouge: bool, equivalence: str | None, device: str | None, cache: Path | None
) -> Grader:
    """Return the grader by rules, or by entailment."""
    check_name(name, ("rules", "nli"), what="grader")
    if name == "rules":
        from semcal.qa.grading import RuleGrader

        return RuleGrader(rouge=rouge)
    if equivalence in (None, "exact"):
        raise UsageError("--grader nli needs an NLI model; give its directory with --equivalence")
    from semcal.pipeline.grade import EntailmentGrader

    return EntailmentGrader(open_equivalence(equivalence, device=device, cache=cache))


def open_few_shot(path: Path | None) -> tuple[Question, ...] | None:
    """Read answered examples from a file; None without one."""
    if path is None:
        return None
    from semcal.qa.datasets import load_questions

    try:
        return tuple(load_questions(path, answers_needed=True))
    except RowError as error:
        raise UsageError(f"the few-shot examples in {path}: {error}") from error


def open_fit(directory: Path) -> Fit:
    """Read a recalibrator directory with the prompt that it was fitted with."""
    from semcal.pipeline import Asking, Fit
    from semcal.recalibration import from_pretrained

    recalibrator, provenance = from_pretrained(directory)
    return Fit(recalibrator, provenance, Asking.from_description(provenance.prompt))


def open_recalibrator(
    model: LanguageModel,
    *,
    directory: Path | None,
    temperature: float | None,
    few_shot: tuple[Question, ...] | None,
    force: bool,
) -> tuple[AnyRecalibrator, Asking]:
    """Return the recalibrator that the options name, checked against the model, and the prompt to use."""
    from semcal.pipeline import Asking
    from semcal.recalibration import Base, Temperature

    if directory is not None and temperature is not None:
        raise UsageError("give --recalibrator or --temperature, not both")
    asking = Asking(few_shot or ())
    if directory is None:
        return (Base() if temperature is None else Temperature(temperature)), asking
    fit = open_fit(directory)
    if few_shot is None:
        asking = fit.asking
    if not force:
        fit.provenance.check(model=model.name, revision=model.revision, prompt_hash=asking.hash(model))
    return fit.recalibrator, asking
