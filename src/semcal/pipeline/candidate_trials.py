"""Candidates tried: their fits to one set of features, and their answers to questions in common passes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from semcal.engine.equivalence import Equivalence
from semcal.engine.language_model import LanguageModel
from semcal.pipeline.candidates import Candidate, CandidateFit, candidate_fits
from semcal.pipeline.cluster import cluster_rows
from semcal.pipeline.fitting import METHODS, train_stored
from semcal.pipeline.prompting import Asking
from semcal.pipeline.sample import sample_mixed_at
from semcal.pipeline.store import Stage, Store
from semcal.qa.datasets import Question
from semcal.recalibration import (
    PAPER_LOSSES,
    AnyRecalibrator,
    CalibrationFeatures,
    Fitted,
    LogPartitionTable,
    TemperatureScaling,
    TrainingCallbacks,
    TrainingStore,
    fingerprint,
    fit_temperatures,
    tabulate,
)
from semcal.registry import check_name

__all__ = ["fit_candidate", "fit_candidates", "sample_candidates"]

#: Questions that are sampled together.
BLOCK = 64

Key = TypeVar("Key", bound=Hashable)


def fit_candidate(
    model: LanguageModel,
    features: CalibrationFeatures,
    one: CandidateFit,
    *,
    learning_rate: float | None = None,
    batch_size: int = 4,
    warm_up: float = 0.1,
    seed: int = 0,
    table: LogPartitionTable | None = None,
    keep: TrainingStore | None = None,
) -> dict[Candidate, Fitted]:
    """Carry out one fit on stored features; TS by sgd has its own learning rate."""
    if one.solver == "exact":
        found = fit_temperatures(features, model.logits, losses=list(one.losses), seed=seed)
        return dict(zip(one.candidates, [TemperatureScaling.from_fit(exact) for exact in found]))
    return {
        candidate: train_stored(
            model,
            features,
            method=one.method,
            loss=loss,
            alpha=alpha,
            weight_decay=one.weight_decay or 0.0,
            learning_rate=None if one.method == "TS" else learning_rate,
            batch_size=batch_size,
            warm_up=warm_up,
            seed=seed,
            table=table,
            callbacks=TrainingCallbacks(store=keep),
        ).recalibrator
        for candidate, (loss, alpha) in zip(one.candidates, one.losses)
    }


def fit_candidates(
    model: LanguageModel,
    features: CalibrationFeatures,
    methods: Sequence[str] = METHODS,
    *,
    learning_rate: float | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
    keep: TrainingStore | None = None,
) -> dict[Candidate, Fitted]:
    """Fit every candidate of the paper to stored features; `progress` gets the number of finished ones.

    `learning_rate` is that of ATS and Platt (the paper's by default). `keep` holds finished trainings and the
    state of an interrupted one.
    """
    for method in methods:
        check_name(method, METHODS, what="method")
    table = tabulate(features, model.logits) if "ATS" in methods else None
    found: dict[Candidate, Fitted] = {}
    for one in candidate_fits(methods, losses=PAPER_LOSSES):
        found |= fit_candidate(
            model, features, one, learning_rate=learning_rate, seed=seed, table=table, keep=keep
        )
        if progress is not None:
            progress(len(found))
    return found


def sample_candidates(
    model: LanguageModel,
    questions: Sequence[Question],
    recalibrators: Mapping[Key, AnyRecalibrator],
    *,
    asking: Asking,
    equivalence: Equivalence,
    m: int = 10,
    seed: int = 0,
    max_new_tokens: int | None = None,
    linkage: str = "components",
    progress: Callable[[int], None] | None = None,
    keep: Store | None = None,
) -> dict[Key, list[dict[str, Any]]]:
    """Sample and cluster questions under every candidate: rows by candidate, in the order of the questions.

    The candidates share the random numbers, and in each block of 64 questions one pass of the model and one
    clustering. Finished blocks are kept in `keep`; `progress` gets the number of finished questions.
    """
    how: dict[str, Any] = {"m": m, "seed": seed, "max_new_tokens": max_new_tokens}
    settings = keep and {
        **how,
        "model": model.revision,
        "prompt": asking.hash(model),
        "recalibrators": [fingerprint(recalibrator) for recalibrator in recalibrators.values()],
        "equivalence": [equivalence.name, equivalence.revision],
        "linkage": linkage,
    }
    stage = Stage(keep, "candidates", settings or {})
    rows: dict[Key, list[dict[str, Any]]] = {key: [] for key in recalibrators}
    for start in range(0, len(questions), BLOCK):
        block = questions[start : start + BLOCK]

        def clustered(block: Sequence[Question] = block) -> list[dict[str, Any]]:
            under = sample_mixed_at(
                model, block, recalibrators=list(recalibrators.values()), asking=asking, **how
            )
            drawn = [
                {
                    **question.row(),
                    **{key: fields[key] for key in ("samples", "log_likelihoods", "likelihood")},
                }
                for sampled in under
                for question, fields in zip(block, (one.fields() for one in sampled))
            ]
            return cluster_rows(drawn, equivalence=equivalence, linkage=linkage)[0]

        found = stage.rows([question.row() for question in block], clustered)
        for number, of_one in enumerate(rows.values()):
            of_one += found[number * len(block) : (number + 1) * len(block)]
        if progress is not None:
            progress(start + len(block))
    return rows
