"""The paper's sweep: fit every candidate to one set of features, sample answers under each, and select.

All candidates answer the questions in common passes of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from semcal.engine.equivalence import Equivalence
from semcal.engine.language_model import LanguageModel, Sampler
from semcal.errors import QuestionError
from semcal.pipeline.calibration_set import CalibrationSet, calibration_features
from semcal.pipeline.cluster import cluster_rows
from semcal.pipeline.fitting import METHODS, train_stored
from semcal.pipeline.progress import Advance, note_block, note_resumed
from semcal.pipeline.prompting import PromptConfig
from semcal.pipeline.rows import FAILED, failures_of, warn_of_failures
from semcal.pipeline.sample import BLOCK_TOKENS, asked_row, question_blocks, sample_mixed_at
from semcal.pipeline.select import Candidate, CandidateFit, Selection, candidate_fits, select
from semcal.pipeline.store import Stage, Store
from semcal.qa.grading import Grader
from semcal.qa.questions import Question
from semcal.recalibration.attentive import AnyRecalibrator, fingerprint
from semcal.recalibration.exact_fit import PAPER_LOSSES, LogPartitionTable, fit_temperatures, tabulate
from semcal.recalibration.features import CalibrationFeatures
from semcal.recalibration.provenance import Provenance, warn_if_few
from semcal.recalibration.saving import Fitted, save_pretrained
from semcal.recalibration.temperature import TemperatureScaling
from semcal.registry import check_name

#: What `calibration.json` keeps of the scores by which it was chosen.
KEPT_SCORES = ("measure", "measure_alpha", "gain", "brier", "ace", "auroc", "accuracy", "n")

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
) -> dict[Candidate, Fitted]:
    """Fit every candidate of the paper to stored features; `progress` gets the number of finished ones.

    `learning_rate` is that of ATS and Platt (the paper's by default).
    """
    for method in methods:
        check_name(method, METHODS, what="method")
    table = tabulate(features, model.logits) if "ATS" in methods else None
    found: dict[Candidate, Fitted] = {}
    for one in candidate_fits(methods, losses=PAPER_LOSSES):
        found |= fit_candidate(model, features, one, learning_rate=learning_rate, seed=seed, table=table)
        if progress is not None:
            progress(len(found))
    return found


def sample_candidates(
    model: Sampler,
    questions: Sequence[Question],
    recalibrators: Mapping[Key, AnyRecalibrator],
    *,
    asking: PromptConfig,
    equivalence: Equivalence,
    m: int = 10,
    seed: int = 0,
    max_new_tokens: int | None = None,
    linkage: str = "components",
    progress: Callable[[int], None] | None = None,
    keep: Store | None = None,
    on_bad_question: Callable[[QuestionError], None] | None = None,
) -> dict[Key, list[dict[str, Any]]]:
    """Sample and cluster questions under every candidate: rows by candidate, in the order of the questions.

    The candidates share the random numbers, and in each block (`question_blocks`) one pass of the model and
    one clustering. Finished blocks are kept in `keep`; `progress` gets how many questions are finished, once
    for each. One to which a server gave no answers is left out for all, told to `on_bad_question`, by default
    with a warning.
    """
    how: dict[str, Any] = {"m": m, "seed": seed, "max_new_tokens": max_new_tokens}
    settings = keep and {
        **how,
        "model": model.revision,
        "prompt": asking.hash(model),
        "recalibrators": [fingerprint(recalibrator) for recalibrator in recalibrators.values()],
        "equivalence": [equivalence.name, equivalence.revision],
        "linkage": linkage,
        "block_tokens": BLOCK_TOKENS,
    }
    stage = Stage(keep, "candidates", settings or {})
    under = list(recalibrators.values())
    rows: dict[Key, list[dict[str, Any]]] = {key: [] for key in recalibrators}

    def clustered(block: Sequence[Question], told: Callable[[int], None]) -> list[dict[str, Any]]:
        sampled = sample_mixed_at(model, block, recalibrators=under, asking=asking, progress=told, **how)
        drawn = [
            {**asked_row(question), **one.scored()}
            for of_one in sampled
            for question, one in zip(block, of_one)
        ]
        answered = [row for row in drawn if FAILED not in row]
        done = iter(cluster_rows(answered, equivalence=equivalence, linkage=linkage)[0])
        return [row if FAILED in row else next(done) for row in drawn]

    done = 0
    for block in question_blocks(model, questions, m=m, ways=len(under), max_new_tokens=max_new_tokens):
        inputs, told = [question.row() for question in block], Advance(progress, done)
        found = stage.find(inputs)
        if found is None:
            note_block(progress)
            found = stage.keep(inputs, clustered(block, told))
        else:
            note_resumed(progress, len(block))
        for number, of_one in enumerate(rows.values()):
            of_one += found[number * len(block) : (number + 1) * len(block)]
        told(len(block))
        done += len(block)
    failures = failures_of([row for of_one in rows.values() for row in of_one])
    if on_bad_question is None:
        warn_of_failures(failures, len(questions))
    else:
        for error in failures.values():
            on_bad_question(error)
    return {key: [row for row in of_one if row["id"] not in failures] for key, of_one in rows.items()}


@dataclass(frozen=True)
class FittedSelection:
    """Every fitted candidate, and what was chosen from them."""

    fitted: Mapping[Candidate, Fitted]
    selection: Selection

    @property
    def recalibrators(self) -> dict[str, Fitted]:
        """The recalibrator that was chosen for each measure."""
        return {measure: self.fitted[entry.candidate] for measure, entry in self.selection.chosen.items()}


def fit_and_select(
    model: LanguageModel,
    labelled: CalibrationSet,
    validation: Sequence[Question],
    *,
    asking: PromptConfig,
    equivalence: Equivalence,
    methods: Sequence[str] = METHODS,
    grader: Grader | None = None,
    store: Path | None = None,
    m: int = 10,
    seed: int = 0,
    max_new_tokens: int | None = None,
    learning_rate: float | None = None,
    by: str = "gain",
    progress: Callable[[str, int], Callable[[int], None]] | None = None,
    keep: Path | None = None,
) -> FittedSelection:
    """Fit every candidate, sample the validation questions under each, and choose for every measure by gain.

    One pass of the model over the calibration set, one over the validation questions. `store` is a folder
    for the hidden states; `learning_rate` that of ATS and Platt; `by` as in `select`; `progress` maps a label
    and a total to a function that gets the number of finished items. `keep` is a folder for
    finished blocks of questions: the same call samples only the others, with identical results.
    """

    def shown(label: str, total: int) -> Callable[[int], None] | None:
        return None if progress is None else progress(label, total)

    warn_if_few(len(labelled.questions))
    whole = "ATS" in methods or store is not None
    features = calibration_features(
        model,
        labelled,
        asking=asking,
        whole=whole,
        store=store,
        progress=shown("features", len(labelled.questions)),
    )
    fitted = fit_candidates(
        model,
        features,
        methods,
        learning_rate=learning_rate,
        seed=seed,
        progress=shown("fit", sum(len(fit.losses) for fit in candidate_fits(methods, losses=PAPER_LOSSES))),
    )
    rows = sample_candidates(
        model,
        validation,
        fitted,
        asking=asking,
        equivalence=equivalence,
        m=m,
        seed=seed,
        max_new_tokens=max_new_tokens,
        progress=shown("validation", len(validation)),
        keep=Store(keep) if keep else None,
    )
    return FittedSelection(fitted, select(rows, grader=grader, seed=seed, by=by))


def save_choices(
    chosen: Mapping[str, Fitted],
    table: Sequence[Mapping[str, Any]],
    folder: Path,
    *,
    provenance: Provenance,
    measure: str,
    by: str,
) -> dict[str, dict[str, Any]]:
    """Save the recalibrator of each measure in `folder`/MEASURE, that of `measure` also in `folder` itself.

    Each keeps its scores on validation, and which of them decided (`by`). Returns the chosen rows of the
    table by measure.
    """
    check_name(measure, chosen, what="measure")
    found = {row["measure"]: dict(row) for row in table if row["chosen"]}
    for name, path in [*((name, folder / name) for name in chosen), (measure, folder)]:
        scores = {"by": by, **{key: found[name].get(key) for key in KEPT_SCORES}}
        save_pretrained(chosen[name], path, provenance=replace(provenance, validation=scores))
    return found
