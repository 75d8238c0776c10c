"""The paper's sweep: fit every candidate to one set of features, sample answers under each, and select.

All candidates answer the questions in common passes of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from semcal.data.question import Question
from semcal.errors import QuestionError
from semcal.grading.rules import Grader
from semcal.models.clustering import ClusterStep, Grouping
from semcal.models.language_model import LanguageModel, Sampler
from semcal.models.sampling import BLOCK_TOKENS, SampleStep, Sampling, question_blocks
from semcal.recalibration.attentive import AnyRecalibrator, fingerprint
from semcal.recalibration.calibration_set import CalibrationSet, calibration_features
from semcal.recalibration.exact_fit import PAPER_LOSSES, LogPartitionTable, tabulate
from semcal.recalibration.features import CalibrationFeatures
from semcal.recalibration.methods import FITTED, FitTask, paper_schedule, run_fit
from semcal.recalibration.provenance import Provenance, warn_if_few
from semcal.recalibration.saving import Fitted, save_pretrained
from semcal.recalibration.select import Candidate, CandidateFit, Selection, candidate_fits, select
from semcal.registry import check_name
from semcal.rows import Row, warn_of_failures
from semcal.steps import WorkerState, run_steps
from semcal.store import Stage, Store
from semcal.workers import SerialExecutor

#: What `calibration.json` keeps of the scores by which it was chosen.
KEPT_SCORES = ("measure", "measure_alpha", "gain", "brier", "ace", "auroc", "accuracy", "n")

Key = TypeVar("Key", bound=Hashable)


def fit_candidate(
    model: LanguageModel,
    features: CalibrationFeatures,
    fit: CandidateFit,
    *,
    learning_rate: float | None = None,
    batch_size: int = 4,
    warm_up: float = 0.1,
    seed: int = 0,
    table: LogPartitionTable | None = None,
) -> dict[Candidate, Fitted]:
    """Carry out one fit on stored features; some methods have a learning rate of their own."""
    method = FITTED[fit.method]
    schedule = paper_schedule(fit.method, weight_decay=fit.weight_decay or 0.0, seed=seed)
    schedule = replace(schedule, batch_size=batch_size, warm_up=warm_up)
    if learning_rate is not None and not method.own_learning_rate:
        schedule = replace(schedule, learning_rate=learning_rate)
    task = FitTask(model, features, fit.losses, fit.solver, schedule, table=table)
    results = run_fit(fit.method, task)
    return dict(zip(fit.candidates, (result.recalibrator for result in results), strict=True))


def fit_candidates(
    model: LanguageModel,
    features: CalibrationFeatures,
    methods: Collection[str] = FITTED,
    *,
    learning_rate: float | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> dict[Candidate, Fitted]:
    """Fit every candidate of the paper to stored features; `progress` gets the number of finished ones.

    `learning_rate` is that of ATS and Platt (the paper's by default).
    """
    fits = candidate_fits(methods, losses=PAPER_LOSSES)
    table = tabulate(features, model.logits) if any(fit.reads_table for fit in fits) else None
    fitted: dict[Candidate, Fitted] = {}
    for fit in fits:
        fitted |= fit_candidate(model, features, fit, learning_rate=learning_rate, seed=seed, table=table)
        if progress is not None:
            progress(len(fitted))
    return fitted


def sample_candidates(
    model: Sampler,
    questions: Sequence[Question],
    recalibrators: Mapping[Key, AnyRecalibrator],
    sampling: Sampling,
    clustering: Grouping,
    *,
    progress: Callable[[int], None] | None = None,
    keep: Store | None = None,
    on_bad_question: Callable[[QuestionError], None] | None = None,
) -> dict[Key, list[Row]]:
    """Sample and cluster questions under every candidate: rows by candidate, in the order of the questions.

    The candidates share the random numbers, and in each block (`question_blocks`) one pass of the model and
    one clustering. Finished blocks are kept in `keep`; `progress` gets how many questions are finished, once
    for each. One to which a server gave no answers is left out for all, told to `on_bad_question`, by default
    with a warning.
    """
    sampling = replace(sampling, recalibrators=tuple(recalibrators.values()))
    names = tuple(map(str, range(len(recalibrators))))
    rows: dict[str, list[Row]] = {name: [] for name in names}
    failures: dict[str, QuestionError] = {}
    for block in run_steps(
        map(Row.of, questions),
        [SampleStep(sampling, names=names), ClusterStep(clustering.linkage)],
        workers=SerialExecutor(WorkerState(model, clustering.equivalence)),
        cut=lambda questions: question_blocks(model, questions, sampling),
        store=Stage(keep, "candidates", _key(model, sampling, clustering) if keep else {}),
        progress=progress or (lambda _: None),
    ):
        for row in block.rows:
            rows[row["candidate"]].append(row.without("candidate"))
        failures |= {row.id: QuestionError(row.id, reason) for row, reason in block.failures}
    if on_bad_question is None:
        warn_of_failures(failures, len(questions))
    else:
        for error in failures.values():
            on_bad_question(error)
    return dict(zip(recalibrators, rows.values()))


def _key(model: Sampler, sampling: Sampling, clustering: Grouping) -> dict[str, Any]:
    """What the rows depend on beside the questions."""
    return {
        "m": sampling.m,
        "seed": sampling.seeds[0],
        "max_new_tokens": sampling.max_new_tokens,
        "model": model.revision,
        "prompt": sampling.asking.hash(model),
        "recalibrators": [fingerprint(recalibrator) for recalibrator in sampling.recalibrators],
        "equivalence": [clustering.equivalence.name, clustering.equivalence.revision],
        "linkage": clustering.linkage,
        "block_tokens": BLOCK_TOKENS,
    }


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
    sampling: Sampling,
    clustering: Grouping,
    *,
    methods: Collection[str] = FITTED,
    grader: Grader | None = None,
    store: Path | None = None,
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
    (seed,) = sampling.seeds
    features = calibration_features(
        model,
        labelled,
        asking=sampling.asking,
        whole=store is not None or any(FITTED[name].reads_sequences for name in methods),
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
        sampling,
        clustering,
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
