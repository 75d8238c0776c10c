"""Models, equivalences, recalibrators and few-shot examples from their options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from semcal.cli.console import loading
from semcal.errors import RowError, UsageError
from semcal.registry import check_name

if TYPE_CHECKING:
    from semcal.engine import Equivalence, LanguageModel
    from semcal.hub_names import Location
    from semcal.pipeline import PromptConfig
    from semcal.pipeline.worker_state import WorkerState
    from semcal.qa.grading import Grader
    from semcal.qa.questions import Question
    from semcal.recalibration.attentive import AnyRecalibrator

__all__ = [
    "ATLAS",
    "open_equivalence",
    "open_few_shot",
    "open_grader",
    "open_model",
    "open_models",
    "open_recalibrator",
    "weights_of",
]

#: The embedded models, in --model, --equivalence and --recalibrator.
ATLAS = "atlas"


def open_model(
    name: str, *, device: str | None = None, dtype: str | None = None, memory: str | None = None
) -> LanguageModel:
    """Load a language model."""
    with loading():
        from semcal.engine import load_model

        return load_model(name, device=device, dtype=dtype, memory=memory)


def open_equivalence(
    name: str | None, *, device: str | None = None, cache: Path | None = None
) -> Equivalence:
    """Load an equivalence: exact by default, or an NLI model."""
    with loading():
        from semcal.engine import load_equivalence

        return load_equivalence(name or "exact", device=device, cache=cache)


def open_models(
    model: str | None,
    equivalence: str | None,
    *,
    device: str | None = None,
    dtype: str | None = None,
    memory: str | None = None,
    nli_device: str | None = None,
    cache: Path | None = None,
) -> WorkerState:
    """Load the models that a worker needs: either, or both."""
    with loading():
        from semcal.pipeline.worker_state import WorkerState

        return WorkerState(
            None if model is None else open_model(model, device=device, dtype=dtype, memory=memory),
            None
            if equivalence is None
            else open_equivalence(equivalence, device=nli_device or device, cache=cache),
        )


def weights_of(*, model: str | None = None, equivalence: str | None = None) -> int | None:
    """Bytes of the weights of models that are named as in the options; None if one is not on disk yet."""
    from semcal.hub_names import LANGUAGE_MODEL, NLI_MODEL, locate
    from semcal.pipeline.worker_plan import on_disk

    places = [] if model is None else [locate(model, LANGUAGE_MODEL)]
    places += [] if equivalence in (None, "exact") else [locate(equivalence, NLI_MODEL)]
    sizes = [on_disk(folder) if (folder := _folder(place)) else 0 for place in places]
    return sum(sizes) if all(sizes) else None


def _folder(place: Location) -> Path | None:
    """The directory of a checkpoint: its own, or that of the hub's cache."""
    if not place.on_hub:
        return Path(place.source)
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(place.source, "config.json")
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


def open_recalibrator(
    model: LanguageModel, name: str | None, temperature: float | None, few_shot: Path | None, *, force: bool
) -> tuple[AnyRecalibrator, PromptConfig]:
    """Return the recalibrator that the options name, checked against the model, and the prompt to use."""
    from semcal.pipeline import Fit, PromptConfig
    from semcal.recalibration.temperature import Base, Temperature

    if name is not None and temperature is not None:
        raise UsageError("give --recalibrator or --temperature, not both")
    examples = open_few_shot(few_shot)
    if name is None:
        return (Base() if temperature is None else Temperature(temperature)), PromptConfig(examples or ())
    fit = Fit.from_pretrained(name)
    asking = fit.asking if examples is None else PromptConfig(examples)
    if not force:
        fit.provenance.check(model=model.name, revision=model.revision, prompt_hash=asking.hash(model))
    return fit.recalibrator, asking
