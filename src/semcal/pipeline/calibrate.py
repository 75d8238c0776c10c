"""Calibrate on labelled questions (spec section 11): asked of a model, or with stored samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from semcal.engine.equivalence import Equivalence, address_of
from semcal.engine.language_model import LanguageModel
from semcal.errors import UsageError
from semcal.pipeline.calibrate_rows import calibrate_rows
from semcal.pipeline.calibrated import Calibration
from semcal.pipeline.cluster import cluster_rows
from semcal.pipeline.fit_and_select import sample_candidates
from semcal.pipeline.measure import measure_rows
from semcal.pipeline.prompting import PromptConfig
from semcal.pipeline.rows import (
    answers_of,
    clusters_of,
    identity,
    log_likelihoods_of,
    question_of,
    samples_of,
    temperatures_of,
)
from semcal.pipeline.sample_features import rows_by_temperature
from semcal.pipeline.store import Store
from semcal.qa.grading import Grader
from semcal.qa.questions import Question, data_hash
from semcal.recalibration.attentive import AnyRecalibrator
from semcal.recalibration.provenance import Provenance, check_enough
from semcal.recalibration.saving import Fitted
from semcal.recalibration.temperature import Temperature, temperature_of

__all__ = ["TEMPERATURES", "calibrate", "calibrate_samples", "check_labelled_samples"]

#: Temperatures at which labelled questions are sampled: that of the answer, and a sharper one.
TEMPERATURES = (1.0, 0.5)


def calibrate(
    model: LanguageModel,
    labelled: Sequence[Question],
    *,
    equivalence: Equivalence,
    temperatures: Sequence[float] = TEMPERATURES,
    recalibrator: AnyRecalibrator | None = None,
    asking: PromptConfig | None = None,
    m: int = 10,
    seed: int = 0,
    max_new_tokens: int | None = None,
    linkage: str = "components",
    grader: Grader | None = None,
    risk: float | None = None,
    delta: float = 0.05,
    data: str | None = None,
    versions: Mapping[str, str | None] | None = None,
    progress: Callable[[int], None] | None = None,
    keep: Store | None = None,
) -> Calibration:
    """Sample labelled questions, and learn the probability that the model's answer is right.

    Parameters
    ----------
    model : LanguageModel
        What answers.
    labelled : sequence of Question
        With reference answers and distinct ids; a hundred are a start, 250 are good.
    equivalence : Equivalence
        Decides which answers mean the same.
    temperatures : sequence of float
        The answer comes from the draws at T = 1, which are always made. Draws at the others are features;
        they are drawn in the same pass, and a map that reads them is chosen only where that pays.
    recalibrator : Recalibrator or ATS, optional
        Takes the place of T = 1.
    asking : PromptConfig, optional
        Few-shot examples.
    m : int
        Draws at each temperature, 2 or more.
    data : str, optional
        Where the questions come from, for the record.
    progress : callable, optional
        Gets the number of questions that are sampled.
    keep : Store, optional
        Holds finished blocks, from which the same call resumes with identical results.

    Other parameters are those of :func:`calibrate_rows`.
    """
    check_enough(len(labelled), of="to calibrate on")
    if m < 2:
        raise UsageError(f"a share is taken among 2 draws or more, got m = {m}; 10 are usual")
    asking = asking or PromptConfig()
    own: dict[float | None, AnyRecalibrator] = {1.0: Temperature(1.0)}
    if recalibrator is not None:
        fixed = not isinstance(recalibrator, Fitted) and temperature_of(recalibrator)
        own = {fixed or None: recalibrator}
    sampled = sample_candidates(
        model,
        labelled,
        own | {t: Temperature(t) for t in temperatures if t != 1.0},
        asking=asking,
        equivalence=equivalence,
        m=m,
        seed=seed,
        max_new_tokens=max_new_tokens,
        linkage=linkage,
        progress=progress,
        keep=keep,
    )
    provenance = Provenance(
        model=model.name,
        revision=model.revision,
        prompt=asking.describe(),
        prompt_hash=asking.hash(model),
        data=data or "questions given in Python",
        data_hash=data_hash(labelled),
        n_questions=len(labelled),
        seed=seed,
        versions=versions or {},
    )
    return calibrate_rows(
        {t: measure_rows(rows) for t, rows in sampled.items()},
        equivalence=address_of(equivalence),
        linkage=linkage,
        grader=grader,
        risk=risk,
        delta=delta,
        seed=seed,
        max_new_tokens=max_new_tokens,
        provenance=provenance,
        recalibrator=recalibrator if isinstance(recalibrator, Fitted) else None,
    )


def check_labelled_samples(row: Mapping[str, Any]) -> None:
    """Raise InputError unless the row holds samples and the reference answers of its question."""
    identity(row)
    answers_of(row)
    m = len(samples_of(row))
    log_likelihoods_of(row, m)
    temperatures_of(row)
    if "clusters" in row:
        clusters_of(row, m)
    else:
        question_of(row)


def calibrate_samples(
    rows: Sequence[Mapping[str, Any]],
    *,
    equivalence: Equivalence,
    linkage: str = "components",
    **how: Any,
) -> Calibration:
    """Learn from stored samples the probability that the commonest answer is right; no model is needed.

    Parameters
    ----------
    rows : sequence of mappings
        Each with `id`, `question`, `samples` and `answers`; `log_likelihoods` where they are known, and
        `temperatures`, one a sample, where samples were drawn at several. Those that hold `clusters` are not
        clustered again.
    equivalence : Equivalence
        Decides which answers mean the same.

    Other parameters are those of :func:`calibrate_rows`.
    """
    for row in rows:
        check_labelled_samples(row)
    measured = {}
    for temperature, split in rows_by_temperature(rows).items():
        new = [row for row in split if "clusters" not in row]
        clustered = iter(cluster_rows(new, equivalence=equivalence, linkage=linkage)[0])
        measured[temperature] = measure_rows([row if "clusters" in row else next(clustered) for row in split])
    return calibrate_rows(measured, equivalence=address_of(equivalence), linkage=linkage, **how)
