"""The paper's sweep: every loss, α and weight decay of TS, ATS and Platt from one set of features (spec 6).

All candidates are then sampled on the validation questions in one pass and compared by `select`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from semcal.engine.equivalence import Equivalence
from semcal.engine.language_model import LanguageModel
from semcal.experiment.blocks import in_blocks
from semcal.experiment.selection import Candidate, Selection, candidate_of, select
from semcal.pipeline.cluster import cluster_rows
from semcal.pipeline.fitting import METHODS, CalibrationSet, calibration_features
from semcal.pipeline.prompting import Asking
from semcal.pipeline.sample import sample_mixed_at
from semcal.pipeline.store import Stage, Store
from semcal.pipeline.stored_fits import train_stored
from semcal.qa.datasets import Question
from semcal.qa.grading import Grader
from semcal.recalibration import (
    PAPER_LOSSES,
    AnyRecalibrator,
    CalibrationFeatures,
    Fitted,
    TemperatureScaling,
    TrainingCallbacks,
    TrainingStore,
    fingerprint,
    fit_temperatures,
    tabulate,
    warn_if_few,
)
from semcal.registry import check_name

__all__ = ["WEIGHT_DECAYS", "Sweep", "fit_candidates", "sample_candidates", "sweep"]

#: The weight decays of ATS and Platt that the paper tries.
WEIGHT_DECAYS = (0.0, 0.01)


@dataclass(frozen=True)
class Sweep:
    """Fitted candidates and what was chosen from them.

    Attributes
    ----------
    fitted : dict of Candidate to recalibrator
        Every candidate.
    selection : Selection
        For each measure the candidate of the lowest Brier score on validation, and the whole table.
    """

    fitted: dict[Candidate, Fitted]
    selection: Selection

    def recalibrator(self, measure: str) -> Fitted:
        """The recalibrator that was chosen for a measure."""
        return self.fitted[self.selection.chosen[measure].candidate]


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
    """Fit every candidate of the paper to stored features: five of TS, ten of ATS and ten of Platt.

    Parameters
    ----------
    learning_rate : float, optional
        Of ATS and Platt; the paper's 1e-5 by default.
    keep : TrainingStore, optional
        Where finished trainings, and the state of an interrupted one, are kept and looked for.
    """
    found: dict[Candidate, Fitted] = {}
    tables = tabulate(features, model.logits) if "ATS" in methods else None
    for method in methods:
        check_name(method, METHODS, what="method")
        if method == "TS":
            for exact in fit_temperatures(features, model.logits, losses=PAPER_LOSSES, seed=seed):
                found[candidate_of(method, exact.loss, exact.alpha, None)] = TemperatureScaling.from_fit(
                    exact
                )
            if progress is not None:
                progress(len(found))
            continue
        for decay, (loss, alpha) in product(WEIGHT_DECAYS, PAPER_LOSSES):
            found[candidate_of(method, loss, alpha, decay)] = train_stored(
                model,
                features,
                method=method,
                loss=loss,
                alpha=alpha,
                weight_decay=decay,
                learning_rate=learning_rate,
                seed=seed,
                table=tables,
                callbacks=TrainingCallbacks(store=keep),
            ).recalibrator
            if progress is not None:
                progress(len(found))
    return found


def sample_candidates(
    model: LanguageModel,
    questions: Sequence[Question],
    recalibrators: Mapping[Candidate, AnyRecalibrator],
    *,
    asking: Asking,
    equivalence: Equivalence,
    m: int = 10,
    seed: int = 0,
    max_new_tokens: int | None = None,
    linkage: str = "components",
    progress: Callable[[int], None] | None = None,
    keep: Store | None = None,
) -> dict[Candidate, list[dict[str, Any]]]:
    """Sample and cluster questions under every candidate, in common passes of the model.

    With `keep`, finished blocks of questions are kept there and looked for.
    """
    how: dict[str, Any] = {"m": m, "seed": seed, "max_new_tokens": max_new_tokens}
    settings = {
        **how,
        "model": model.revision,
        "prompt": asking.hash(model),
        "recalibrators": [fingerprint(recalibrator) for recalibrator in recalibrators.values()],
        "equivalence": [equivalence.name, equivalence.revision],
        "linkage": linkage,
    }

    def drawn(block: Sequence[Question]) -> list[dict[str, Any]]:
        sampled = sample_mixed_at(
            model, block, recalibrators=list(recalibrators.values()), asking=asking, **how
        )
        rows = [
            {**question.row(), **one.fields()} for under in sampled for question, one in zip(block, under)
        ]
        return cluster_rows(rows, equivalence=equivalence, linkage=linkage)[0]

    return in_blocks(
        recalibrators, questions, drawn, stage=Stage(keep, "candidates", settings), progress=progress
    )


def sweep(
    model: LanguageModel,
    labelled: CalibrationSet,
    validation: Sequence[Question],
    *,
    asking: Asking,
    equivalence: Equivalence,
    methods: Sequence[str] = METHODS,
    grader: Grader | None = None,
    store: Path | None = None,
    m: int = 10,
    seed: int = 0,
    max_new_tokens: int | None = None,
    learning_rate: float | None = None,
    accuracy_within: float | None = None,
    progress: Callable[[str, int], Callable[[int], None]] | None = None,
    keep: Path | None = None,
) -> Sweep:
    """Fit every candidate, sample the validation questions under each, and choose for every measure.

    Parameters
    ----------
    model : LanguageModel
        The frozen model: one pass over the calibration set, one over the validation questions.
    labelled : CalibrationSet
        What is fitted to.
    validation : sequence of Question
        Labelled questions that are neither fitted to nor tested on.
    asking : Asking
        Few-shot examples.
    equivalence, grader
        What decides which answers mean the same, and which are right.
    methods : sequence of {"TS", "ATS", "Platt"}
        What to try.
    store : Path, optional
        A folder for the hidden states.
    m, seed, max_new_tokens
        Of the sampling.
    learning_rate : float, optional
        Of ATS and Platt; the paper's 1e-5 by default.
    accuracy_within : float, optional
        As in `select`.
    progress : callable, optional
        Maps a label and a total to what is told how much is done.
    keep : Path, optional
        A folder for finished trainings, the state of an interrupted one, and finished blocks of validation
        questions: the same call goes on from there, to the same result. It is not removed at the end.
    """

    def tell(label: str, total: int) -> Callable[[int], None] | None:
        return None if progress is None else progress(label, total)

    warn_if_few(len(labelled.questions))
    whole = "ATS" in methods or store is not None
    features = calibration_features(
        model,
        labelled,
        asking=asking,
        whole=whole,
        store=store,
        progress=tell("features", len(labelled.questions)),
    )
    fitted = fit_candidates(
        model,
        features,
        methods,
        learning_rate=learning_rate,
        seed=seed,
        progress=tell("fit", sum(5 if method == "TS" else 10 for method in methods)),
        keep=labelled.training_store(model, keep / "trainings" if keep else None, asking=asking, whole=whole),
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
        progress=tell("validation", len(validation)),
        keep=Store(keep) if keep else None,
    )
    return Sweep(fitted, select(rows, grader=grader, seed=seed, accuracy_within=accuracy_within))
