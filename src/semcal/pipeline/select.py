"""Select on validation (spec section 6): for each measure the candidate of the lowest Brier score.

`select` compares sampled and clustered answers under any candidates, and tries for T-SC and G-SC their own α
(here a).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from semcal.errors import UsageError
from semcal.pipeline.candidate_scores import Rows, Score, candidate_scores, lowest_brier
from semcal.pipeline.candidates import MEASURE_ALPHAS, WITH_ALPHA, Candidate
from semcal.pipeline.grade import grade_clusters
from semcal.pipeline.measure import measure_rows
from semcal.qa.grading import Grader, RuleGrader
from semcal.semantics import MEASURES

__all__ = [
    "Entry",
    "Selection",
    "select",
    "select_graded",
    "under_alphas",
]


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
