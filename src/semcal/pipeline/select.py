"""Select on validation (spec section 6): for each measure the candidate of the lowest Brier score.

`select` compares sampled and clustered answers under any candidates; `fit_and_select` is the paper's sweep
over loss, α of selective smoothing, weight decay, and for T-SC and G-SC their own α (here a).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from semcal.engine.equivalence import Equivalence
from semcal.engine.language_model import LanguageModel
from semcal.errors import UsageError
from semcal.pipeline.calibration import CalibrationSet, calibration_features
from semcal.pipeline.candidate_scores import Rows, Score, candidate_scores, lowest_brier
from semcal.pipeline.candidate_trials import fit_candidates, sample_candidates
from semcal.pipeline.candidates import MEASURE_ALPHAS, WITH_ALPHA, Candidate, candidate_fits
from semcal.pipeline.fitting import METHODS
from semcal.pipeline.grade import grade_clusters
from semcal.pipeline.measure import measure_rows
from semcal.pipeline.prompting import Asking
from semcal.pipeline.store import Store
from semcal.qa.datasets import Question
from semcal.qa.grading import Grader, RuleGrader
from semcal.recalibration import PAPER_LOSSES, Fitted, Provenance, save_pretrained, warn_if_few
from semcal.registry import check_name
from semcal.semantics import MEASURES

__all__ = [
    "Entry",
    "FittedSelection",
    "Selection",
    "fit_and_select",
    "save_choices",
    "select",
    "select_graded",
    "under_alphas",
]

#: What `calibration.json` keeps of the scores by which it was chosen.
KEPT_SCORES = ("measure", "measure_alpha", "brier", "ace", "auroc", "accuracy", "n")


@dataclass(frozen=True)
class Entry:
    """A candidate under one measure, with its score on validation."""

    candidate: Candidate
    measure: str
    measure_alpha: float | None  # the a of T-SC or G-SC, None for other measures
    score: Score

    def simplicity(self) -> tuple[Any, ...]:
        """What ties are settled by; lower is simpler."""
        distance = 0.0 if self.measure_alpha is None else abs(math.log(self.measure_alpha))
        return (*self.candidate.complexity(), round(distance, 12))


@dataclass(frozen=True)
class Selection:
    """What was chosen for each measure, and from what."""

    chosen: Mapping[str, Entry]  # by measure
    entries: tuple[Entry, ...] = field(repr=False)  # every candidate under every measure and a

    def table(self) -> list[dict[str, Any]]:
        """One dict an entry: measure, candidate and its settings, measure_alpha, scores, chosen."""
        return [
            {
                "measure": entry.measure,
                "candidate": entry.candidate.name,
                "loss": entry.candidate.loss,
                "alpha": entry.candidate.alpha,
                "weight_decay": entry.candidate.weight_decay,
                "measure_alpha": entry.measure_alpha,
                **asdict(entry.score),
                "chosen": entry is self.chosen[entry.measure],
            }
            for entry in self.entries
        ]


def select(
    candidates: Mapping[Candidate, Rows],
    *,
    grader: Grader | None = None,
    seed: int = 0,
    measures: Sequence[str] = MEASURES,
    measure_alphas: Sequence[float] = MEASURE_ALPHAS,
    bins: int = 15,
    accuracy_within: float | None = None,
) -> Selection:
    """Choose for each measure the candidate, and the a of T-SC and G-SC, of the lowest Brier score.

    Scores within 1e-12 of the lowest are tied with it. Of tied ones the simplest wins: nothing fitted before
    NLL before SS; of two SS the smaller α; no weight decay before 0 before more; of two a the one nearer to
    1 (smaller |log a|; B-SC is T-SC with a = 1); after that the candidate given first.

    `candidates` maps each to its rows of the same validation questions, sampled and clustered. A measure that
    is defined for no question is left out. By default accuracy does not count, as in the paper; but then a
    candidate whose answers are nearly all wrong, each with little confidence, has a low Brier score and wins.
    `accuracy_within=2` leaves out those whose accuracy is more than 2 standard errors (of the paired
    difference over questions) below the highest. The scores flatter what was chosen by them.
    """
    _check(candidates, measure_alphas, accuracy_within)
    chosen = grader or RuleGrader()
    graded = {
        candidate: under_alphas(rows, [_verdicts(row, chosen, seed) for row in rows], measure_alphas)
        for candidate, rows in candidates.items()
    }
    return select_graded(
        graded, measures=measures, measure_alphas=measure_alphas, bins=bins, accuracy_within=accuracy_within
    )


def select_graded(
    candidates: Mapping[Candidate, Sequence[Rows]],
    *,
    measures: Sequence[str] = MEASURES,
    measure_alphas: Sequence[float] = MEASURE_ALPHAS,
    bins: int = 15,
    accuracy_within: float | None = None,
) -> Selection:
    """Choose as `select` does, from what `under_alphas` returns for each candidate."""
    _check(candidates, measure_alphas, accuracy_within)
    graded = list(candidates.values())
    keys = {
        measure: [
            (number, i)
            for number in range(len(graded))
            for i in range(len(measure_alphas) if measure in WITH_ALPHA else 1)
        ]
        for measure in measures
    }
    found = candidate_scores(
        {measure: [graded[number][i] for number, i in keys[measure]] for measure in measures}, bins=bins
    )
    names = list(candidates)
    entries = {
        measure: [
            Entry(names[number], measure, measure_alphas[i] if measure in WITH_ALPHA else None, one)
            for (number, i), one in zip(keys[measure], scored)
        ]
        for measure, scored in found.items()
    }
    chosen = {
        measure: lowest_brier(
            of_measure, found[measure], simplicity=Entry.simplicity, accuracy_within=accuracy_within
        )
        for measure, of_measure in entries.items()
    }
    return Selection(chosen, tuple(entry for of_measure in entries.values() for entry in of_measure))


def _check(
    candidates: Mapping[Candidate, object], measure_alphas: Sequence[float], accuracy_within: float | None
) -> None:
    names = [candidate.name for candidate in candidates]
    if not names or len(set(names)) < len(names):
        raise UsageError(f"selection needs one candidate or more, each with a name of its own, got {names}")
    if not measure_alphas:
        raise UsageError("selection needs at least one a for T-SC and G-SC, such as 0.5")
    if accuracy_within is not None and not accuracy_within >= 0:
        raise UsageError(f"accuracy_within is a number of standard errors, 0 or more, got {accuracy_within}")


def under_alphas(
    rows: Rows, verdicts: Sequence[Sequence[bool]], alphas: Sequence[float] = MEASURE_ALPHAS
) -> list[list[dict[str, Any]]]:
    """Measure rows with each a, given the verdict on each cluster of each row; a list of rows for each a."""
    return [
        [
            {**row, "correct": _correct(row["top_cluster"], verdict)}
            for row, verdict in zip(measure_rows(rows, t_alpha=a, g_alpha=a), verdicts)
        ]
        for a in alphas
    ]


def _verdicts(row: Mapping[str, Any], grader: Grader, seed: int) -> list[bool]:
    return [grade.correct for grade in grade_clusters(row, grader=grader, seed=seed)]


def _correct(top: Mapping[str, int | None], verdict: Sequence[bool]) -> dict[str, bool | None]:
    return {measure: None if cluster is None else verdict[cluster] for measure, cluster in top.items()}


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
) -> FittedSelection:
    """Fit every candidate, sample the validation questions under each, and choose for every measure.

    One pass of the model over the calibration set, one over the validation questions. `store` is a folder
    for the hidden states; `learning_rate` that of ATS and Platt; `progress` maps a label and a total to a
    function that gets the number of finished items. `keep` is a folder for trainings and finished blocks of
    questions: the same call resumes from there with identical results.
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
        progress=shown("validation", len(validation)),
        keep=Store(keep) if keep else None,
    )
    return FittedSelection(fitted, select(rows, grader=grader, seed=seed, accuracy_within=accuracy_within))


def save_choices(
    chosen: Mapping[str, Fitted],
    table: Sequence[Mapping[str, Any]],
    folder: Path,
    *,
    provenance: Provenance,
    measure: str,
) -> dict[str, dict[str, Any]]:
    """Save the recalibrator of each measure in `folder`/MEASURE, that of `measure` also in `folder` itself.

    Each keeps the scores by which it was chosen. Returns the chosen rows of the table by measure.
    """
    check_name(measure, chosen, what="measure")
    found = {row["measure"]: dict(row) for row in table if row["chosen"]}
    for name, path in [*((name, folder / name) for name in chosen), (measure, folder)]:
        scores = {key: found[name].get(key) for key in KEPT_SCORES}
        save_pretrained(chosen[name], path, provenance=replace(provenance, validation=scores))
    return found
