"""Selection (spec section 6): for each measure the candidate of the lowest Brier score on validation.

The paper sweeps loss, α of selective smoothing, weight decay and, for T-SC and G-SC, their own α (here a).
Every score is kept, so that a report can show what the winner was chosen from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from semcal.errors import UsageError
from semcal.pipeline.grade import grade_clusters
from semcal.pipeline.measure import measure_rows
from semcal.pipeline.outcomes import Rows, Scored, lowest, scored_by_measure
from semcal.qa.grading import Grader, RuleGrader
from semcal.semantics import MEASURES

__all__ = [
    "MEASURE_ALPHAS",
    "WITH_ALPHA",
    "Candidate",
    "Entry",
    "Selection",
    "candidate_of",
    "select",
    "select_graded",
    "under_alphas",
]

#: The a of T-SC and G-SC that the paper tries.
MEASURE_ALPHAS = (0.5, 0.75, 1.25)
#: Measures that have an a.
WITH_ALPHA = ("T-SC", "G-SC")


@dataclass(frozen=True)
class Candidate:
    """One way to recalibrate.

    Attributes
    ----------
    name : str
        What it is called, unlike any other: "Base", "TS NLL", "ATS SS 0.25".
    loss : str or None
        "NLL" or "SS"; None where nothing was fitted (Base, SE).
    alpha : float or None
        The α of selective smoothing.
    weight_decay : float or None
        None where the method has none (TS).
    """

    name: str
    loss: str | None = None
    alpha: float | None = None
    weight_decay: float | None = None

    def complexity(self) -> tuple[bool, bool, float, float]:
        """What ties are settled by; lower is simpler."""
        return (
            self.loss is not None,
            self.loss != "NLL",
            self.alpha or 0.0,
            -1.0 if self.weight_decay is None else self.weight_decay,
        )


def candidate_of(method: str, loss: str, alpha: float | None, decay: float | None) -> Candidate:
    """What is fitted by a method with a loss, its α and a weight decay, by the name that tables give it."""
    parts = [method, loss, None if alpha is None else f"{alpha:g}", f"decay {decay:g}" if decay else None]
    return Candidate(" ".join(part for part in parts if part), loss, alpha, decay)


@dataclass(frozen=True)
class Entry:
    """A candidate under one measure.

    Attributes
    ----------
    candidate : Candidate
    measure : str
    measure_alpha : float or None
        The a of T-SC or G-SC, None for other measures.
    scored : Scored
        Brier score, ACE, AUROC and accuracy on validation, and how many questions counted.
    """

    candidate: Candidate
    measure: str
    measure_alpha: float | None
    scored: Scored

    def simplicity(self) -> tuple[float | bool, ...]:
        """What ties are settled by; lower is simpler."""
        distance = 0.0 if self.measure_alpha is None else abs(math.log(self.measure_alpha))
        return (*self.candidate.complexity(), round(distance, 12))


@dataclass(frozen=True)
class Selection:
    """What was chosen for each measure, and from what.

    Attributes
    ----------
    chosen : mapping of str to Entry
        By measure.
    entries : tuple of Entry
        Every candidate under every measure and a.
    """

    chosen: Mapping[str, Entry]
    entries: tuple[Entry, ...] = field(repr=False)

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
                **asdict(entry.scored),
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

    Parameters
    ----------
    candidates : mapping of Candidate to sequence of mappings
        Rows of the validation questions, sampled and clustered (`samples`, `log_likelihoods`, `clusters`,
        `answers`), the same questions for each.
    grader : Grader, optional
        What decides which answers are right; `RuleGrader` by default.
    seed : int
        Chooses the members of a cluster that are graded.
    measures : sequence of str
        A measure that is defined for no question is left out.
    measure_alphas : sequence of float
        The a to try for T-SC and G-SC.
    bins : int
        Bins of ACE.
    accuracy_within : float, optional
        How many standard errors (of the paired difference over questions) a candidate's accuracy may lie
        below the highest under the measure; one further below is not chosen. By default all count, as in the
        paper. But a candidate whose answers are nearly all wrong, each with little confidence, has a low
        Brier score, and then wins: 2 keeps it out.

    Returns
    -------
    Selection
        Its scores are those on which it was chosen, so they flatter the chosen: evaluate that once on test.

    Raises
    ------
    UsageError
        No candidate, names that repeat, no a, or a negative `accuracy_within`.
    FitError
        If none of the measures is defined for any question.
    InputError
        If the candidates do not hold the same questions, or a row lacks a field.
    """
    _check(candidates, measure_alphas, accuracy_within)
    judge = grader or RuleGrader()
    graded = {
        candidate: under_alphas(rows, [_verdicts(row, judge, seed) for row in rows], measure_alphas)
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
    """Choose as `select` does, from what `under_alphas` gives for each candidate."""
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
    found = scored_by_measure(
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
        measure: lowest(
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
