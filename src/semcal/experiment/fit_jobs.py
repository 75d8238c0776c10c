"""Jobs of a grid on calibration questions: what a model is and can read, features, fits, their diagnosis."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from semcal.engine.language_model import LanguageModel
from semcal.errors import QuestionError
from semcal.experiment.diagnosis import token_effects
from semcal.experiment.environment import versions
from semcal.experiment.question_sets import questions_of
from semcal.experiment.selection import candidate_of
from semcal.experiment.shelf import Shelf
from semcal.pipeline.fitting import CalibrationSet, calibration_features, mean_loss_of
from semcal.pipeline.processes import Tell
from semcal.pipeline.prompting import Asking
from semcal.pipeline.stored_fits import train_stored
from semcal.qa.datasets import Question
from semcal.qa.prompts import plain_text
from semcal.qa.token_classes import token_classes
from semcal.recalibration import (
    AnyRecalibrator,
    Fitted,
    TemperatureScaling,
    TrainingCallbacks,
    TrainingStore,
    fingerprint,
    fit_temperatures,
    save_pretrained,
    temperature_of,
)

__all__ = ["check", "diagnose", "features", "fit", "identify"]

Rows = list[dict[str, Any]]
Spec = Mapping[str, Any]


def identify(shelf: Shelf, spec: Spec, tell: Tell) -> Rows:
    """Revisions of the models, and hashes of the prompts of all data sets."""
    del tell
    model, judge = shelf.model(spec), shelf.judge(spec)
    prompts = {name: Asking(questions_of(rows)).hash(model) for name, rows in spec["few_shot"].items()}
    return [
        {
            "name": model.name,
            "revision": model.revision,
            "equivalence": [judge.name, judge.revision],
            "prompts": prompts,
        }
    ]


def check(shelf: Shelf, spec: Spec, tell: Tell) -> Rows:
    """The prompt of the first test question, and every question that the model cannot be asked."""
    del tell
    model, asking = shelf.model(spec), Asking(questions_of(spec["few_shot"]))
    longest = tuple(range(spec["longest"]))
    rows: Rows = []
    for part, given in spec["parts"].items():
        for question in questions_of(given):
            try:
                prompts = asking.prompts(model, [question])
                bad = model.invalid_prompts(prompts, [[*asking.answers(model, question), longest]])
            except QuestionError as error:
                bad = [error]
            rows += [{"part": part, "id": error.question_id, "reason": error.reason} for error in bad]
    first = questions_of(spec["parts"]["test"][:1])
    return [{"prompt": _written(model, asking, first[0])} if first else {"prompt": ""}, *rows]


def _written(model: LanguageModel, asking: Asking, question: Question) -> str:
    """A prompt with its special tokens written out; as plain text where there is no tokenizer."""
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        return plain_text(asking.chat(question))
    (prompt,) = asking.prompts(model, [question])
    return str(tokenizer.decode(prompt.token_ids, skip_special_tokens=False))


def features(shelf: Shelf, spec: Spec, tell: Tell) -> Rows:
    """Let the model read the calibration questions, into the folder for features."""
    del tell
    found = shelf.calibration(spec)
    return [{"questions": len(found.labelled.questions), "tokens": len(found.features.targets)}]


def fit(shelf: Shelf, spec: Spec, tell: Tell) -> Rows:
    """Fit candidates of one method and keep them in the run folder; a row for each."""
    del tell
    found = shelf.calibration(spec)
    model = shelf.model(spec)
    provenance = found.labelled.provenance(
        model,
        asking=found.asking,
        data=f"{spec['dataset']}, calibration-train",
        seed=spec["seed"],
        versions=versions(),
    )
    fitted = _temperatures(shelf, spec) if spec["solver"] == "exact" else _trained(shelf, spec)
    rows: Rows = []
    for (loss, alpha), recalibrator in fitted:
        candidate = candidate_of(spec["method"], loss, alpha, spec["weight_decay"])
        folder = spec["folders"][candidate.name]
        save_pretrained(recalibrator, shelf.folder / folder, provenance=provenance)
        rows.append(
            {
                "candidate": candidate.name,
                "run": spec["run"],
                "folder": folder,
                "fingerprint": fingerprint(recalibrator),
                "temperature": temperature_of(recalibrator),
                "at_bound": _at_bound(recalibrator),
                "parameters": _parameters(recalibrator),
                "train_nll": mean_loss_of(model, found.features, recalibrator),
            }
        )
    shutil.rmtree(shelf.folder / spec["trainings"], ignore_errors=True)
    return rows


def _temperatures(shelf: Shelf, spec: Spec) -> list[tuple[tuple[str, float | None], Fitted]]:
    points = [(loss, alpha) for loss, alpha in spec["losses"]]
    found = fit_temperatures(
        shelf.calibration(spec).features, shelf.model(spec).logits, losses=points, seed=spec["seed"]
    )
    return [(point, TemperatureScaling.from_fit(one)) for point, one in zip(points, found)]


def _trained(shelf: Shelf, spec: Spec) -> list[tuple[tuple[str, float | None], Fitted]]:
    found = shelf.calibration(spec)
    keep = TrainingStore(
        shelf.folder / spec["trainings"],
        {"data": spec["data_hash"], "model": spec["revision"], "prompt": spec["prompt"]},
    )
    schedule = {key: spec[key] for key in ("weight_decay", "learning_rate", "batch_size", "warm_up", "seed")}
    if spec["method"] == "TS":
        schedule |= {"weight_decay": 0.0, "learning_rate": None}
    fitted: list[tuple[tuple[str, float | None], Fitted]] = []
    for loss, alpha in spec["losses"]:
        training = train_stored(
            shelf.model(spec),
            found.features,
            method=spec["method"],
            loss=loss,
            alpha=alpha,
            table=None if spec["method"] == "Platt" else shelf.table(spec),
            callbacks=TrainingCallbacks(store=keep),
            **schedule,
        )
        fitted.append(((loss, alpha), training.recalibrator))
    return fitted


def _at_bound(recalibrator: AnyRecalibrator) -> bool | None:
    if isinstance(recalibrator, TemperatureScaling) and recalibrator.sgd_ is None:
        return recalibrator.certificate_.at_bound
    return None


def _parameters(recalibrator: AnyRecalibrator) -> int:
    if isinstance(recalibrator, torch.nn.Module):
        return sum(weight.numel() for weight in recalibrator.parameters())
    return int(recalibrator.method == "TS")


def diagnose(shelf: Shelf, spec: Spec, tell: Tell) -> Rows:
    """What each candidate does to the tokens of the validation answers (semcal.experiment.diagnosis)."""
    del tell
    model, asking = shelf.model(spec), Asking(questions_of(spec["few_shot"]))
    held_out = CalibrationSet.of(
        model,
        questions_of(spec["validation"]),
        asking=asking,
        on_bad_question=lambda _: None,
        fitted_to=False,
    )
    states = calibration_features(model, held_out, asking=asking, whole=spec["whole"])
    every = {one["name"]: shelf.recalibrator(one) for one in spec["recalibrators"]}
    classes = _classes(model, held_out.answers)
    train = shelf.calibration(spec).features
    plain = {name: mean_loss_of(model, train, every[name]) for name in spec["plain"]}
    return [
        {
            "candidate": name,
            **({"train_nll": plain[name]} if name in plain else {}),
            "validation_nll": effects.mean_nll,
            "top_changed": float(effects.top_changed.mean()),
            "order_changed": float(effects.order_changed.mean()),
            "classes": effects.by_class(classes) if classes else {},
        }
        for name, effects in token_effects(model, states, every).items()
    ]


def _classes(model: LanguageModel, answers: Sequence[Sequence[tuple[int, ...]]]) -> list[str]:
    """The class of each token of the answers; none where the model has no tokenizer."""
    tokenizer, chat = getattr(model, "tokenizer", None), getattr(model, "format", None)
    if tokenizer is None or chat is None:
        return []
    return [
        name
        for given in answers
        for answer in given
        for name in token_classes(
            tokenizer.convert_ids_to_tokens(answer), end_of_turn=[token in chat.stops for token in answer]
        )
    ]
