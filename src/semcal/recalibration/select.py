"""Candidates to choose from, their scores on the same questions, and the choice (spec section 6).

For each measure `select` takes the candidate of the highest gain (or the lowest Brier score) on validation;
for T-SC and G-SC it also tries their own α (here a).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from semcal import metrics
from semcal.data.question import several
from semcal.errors import FitError, InputError, UsageError
from semcal.grading.grade import grade_clusters, grade_together
from semcal.grading.rules import Grader, RuleGrader
from semcal.measures import MEASURES
from semcal.measuring import MeasureOptions, measure_rows
from semcal.recalibration.methods import FITTED
from semcal.recalibration.provenance import CHOSEN_BY
from semcal.registry import check_name
from semcal.rows import Grades, Row, check_distinct

#: The weight decays of ATS and Platt that the paper tries.
WEIGHT_DECAYS = (0.0, 0.01)
#: The a of T-SC and G-SC that the paper tries.
MEASURE_ALPHAS = (0.5, 0.75, 1.25)
#: Temperatures of TS-grid: 1/4 to 4 in steps of a factor of 2^(1/4), with 1/2 (SE), 1 (Base) and 2.
GRID = tuple(2 ** (k / 4) for k in range(-8, 9))
#: Scores this close to the best are tied with it: rounding must not choose.
TIE = 1e-12

Rows = Sequence[Row]
Loss = tuple[str, float | None]
_Choice = TypeVar("_Choice")


@dataclass(frozen=True)
class Candidate:
    """One way to recalibrate."""

    name: str  # unique: "Base", "TS NLL", "ATS SS 0.25"
    loss: str | None = None  # "NLL", "SS" or "any"; None where nothing was fitted (Base, SE)
    alpha: float | None = None  # the α of selective smoothing
    weight_decay: float | None = None  # None where the method has none (TS)

    def complexity(self) -> tuple[Any, ...]:
        """What ties are settled by; lower is simpler."""
        return (
            self.loss is not None,
            self.loss != "NLL",
            self.alpha or 0.0,
            -1.0 if self.weight_decay is None else self.weight_decay,
        )


def candidate_of(method: str, loss: str, alpha: float | None, decay: float | None) -> Candidate:
    """The candidate of a method with a loss, its α and a weight decay, named as in tables."""
    parts = [method, loss, None if alpha is None else f"{alpha:g}", f"decay {decay:g}" if decay else None]
    return Candidate(" ".join(part for part in parts if part), loss, alpha, decay)


@dataclass(frozen=True)
class CandidateFit:
    """One fit: all losses of TS together, or one candidate of a method with weight decays."""

    method: str
    solver: str  # "exact" or "sgd"
    losses: tuple[Loss, ...]
    weight_decay: float | None
    run: int = 0  # whose seed it has; 0 where all runs share one fit

    @property
    def candidates(self) -> list[Candidate]:
        """What is fitted, in the order of the losses."""
        return [candidate_of(self.method, *loss, self.weight_decay) for loss in self.losses]

    @property
    def names(self) -> list[str]:
        """The names of the candidates."""
        return [candidate.name for candidate in self.candidates]

    @property
    def reads_table(self) -> bool:
        """Whether it reads losses from a `LogPartitionTable` that others share."""
        return self.solver == "sgd" and FITTED[self.method].tabulated


def candidate_fits(
    methods: Iterable[str],
    *,
    losses: Sequence[Loss],
    weight_decays: Sequence[float] = WEIGHT_DECAYS,
    solver: str = "exact",
) -> list[CandidateFit]:
    """The fits of methods by the losses that they have; `solver` is that of methods that have several."""
    fits = []
    for name in methods:
        method = FITTED[name]
        chosen = solver if solver in method.solvers else method.solvers[0]
        possible = [loss for loss in losses if loss[0] in method.losses]
        groups = [[loss] for loss in possible] if method.weight_decays else [possible]
        decays = weight_decays if method.weight_decays else (None,)
        fits += [CandidateFit(name, chosen, tuple(group), decay) for decay in decays for group in groups]
    return fits


@dataclass(frozen=True)
class Score:
    """How one candidate did under one measure, on the questions that have a confidence under all."""

    gain: float
    brier: float
    ace: float
    auroc: float  # NaN where all or none are right
    accuracy: float  # moves with what the measure answers
    n: int  # questions that count


@dataclass(frozen=True, eq=False)
class PairedScores:
    """Confidence and correctness of N questions under each of C candidates, for one measure."""

    confidence: NDArray[np.float64]  # (C, N)
    correct: NDArray[np.bool_]  # (C, N)
    ids: tuple[str, ...]  # the N questions that count
    undefined: int  # left out: the measure is null under some candidate, which must gain nothing by that
    groups: NDArray[np.intp] | None = None  # (N,) by passage or field `group`; None where each is its own

    def scores(self, *, bins: int = 15) -> list[Score]:
        """Measure every candidate."""
        return [
            Score(
                gain=metrics.gain(p, c),
                brier=metrics.brier(p, c),
                ace=metrics.ace(p, c, bins=bins),
                auroc=metrics.auroc(p, c),
                accuracy=float(np.mean(c)),
                n=len(self.ids),
            )
            for p, c in zip(self.confidence, self.correct)
        ]


def paired_scores(candidates: Sequence[Rows], measure: str) -> PairedScores:
    """Gather one measure of graded rows of several candidates on the same questions, in any order.

    A row without the measure counts as null. InputError if a question occurs twice, or not under all.
    """
    by_id = [_by_id(rows) for rows in candidates]
    for candidate in by_id[1:]:
        for missing in by_id[0].keys() ^ candidate.keys():
            raise InputError(
                f"question {missing!r} is not there under every candidate; candidates are compared on the "
                "same questions"
            )
    values = {
        name: [(row.measured.confidence.get(measure), row.graded.of_measure(measure)) for row in rows]
        for name, rows in zip(by_id[0], zip(*(map(rows_of.__getitem__, by_id[0]) for rows_of in by_id)))
    }
    defined = {name: pairs for name, pairs in values.items() if not any(None in pair for pair in pairs)}
    shape = (len(defined), len(by_id), 2)
    table = np.array(list(defined.values()), dtype=np.float64).reshape(shape).transpose(2, 1, 0)
    groups = several(by_id[0][name].ties for name in defined)
    return PairedScores(table[0], table[1] == 1, tuple(defined), len(values) - len(defined), groups)


def _by_id(rows: Rows) -> dict[str, Row]:
    check_distinct(row.id for row in rows)
    return {row.id: row for row in rows}


def candidate_scores(candidates: Mapping[str, Sequence[Rows]], *, bins: int = 15) -> dict[str, list[Score]]:
    """Measure → a score for each candidate, from measure → graded rows of each candidate.

    A measure that is defined for no question (without log-likelihoods all but E-SC) is left out; FitError if
    none is left.
    """
    paired = {
        check_name(measure, MEASURES, what="measure"): paired_scores(rows, measure)
        for measure, rows in candidates.items()
    }
    scores = {measure: pairs.scores(bins=bins) for measure, pairs in paired.items() if pairs.ids}
    if not scores:
        raise FitError(
            "no question has a confidence under any of the measures; there is nothing to choose by"
        )
    return scores


def choose(
    choices: Sequence[_Choice],
    scores: Sequence[Score],
    *,
    simplicity: Callable[[_Choice], Any],
    by: str = "gain",
) -> _Choice:
    """Return the choice of the highest gain, or of the lowest score `by` "brier"; ties go to the simplest.

    Scores within 1e-12 of the best are tied with it; of equally simple choices the first wins.

    Examples
    --------
    >>> scores = [Score(gain, brier, 0, 0, 0, 1) for gain, brier in ((0, 0.1), (0.2, 0.2), (0.2, 0.2))]
    >>> [choose(["a", "bbb", "cc"], scores, simplicity=len, by=by) for by in ("gain", "brier")]
    ['cc', 'a']
    """
    check_name(by, CHOSEN_BY, what="rule of choice")
    losses = [-score.gain if by == "gain" else score.brier for score in scores]
    least = min(losses)
    return min((choice for choice, loss in zip(choices, losses) if loss <= least + TIE), key=simplicity)


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
    measures: Collection[str] = MEASURES,
    measure_alphas: Sequence[float] = MEASURE_ALPHAS,
    bins: int = 15,
    by: str = "gain",
) -> Selection:
    """Choose for each measure the candidate, and the a of T-SC and G-SC, of the highest gain.

    Scores within 1e-12 of the best are tied with it. Of tied ones the simplest wins: nothing fitted before
    NLL before SS; of two SS the smaller α; no weight decay before 0 before more; of two a the one nearer to
    1 (smaller |log a|; B-SC is T-SC with a = 1); after that the candidate given first.

    `candidates` maps each to its rows of the same validation questions, sampled and clustered. A measure that
    is defined for no question is left out. `by="brier"` is the paper's rule, the lowest Brier score: then a
    candidate whose answers are nearly all wrong, each with little confidence, wins. The scores flatter what
    was chosen by them.
    """
    _check(candidates, measure_alphas)
    correct = grade_together(
        grader or RuleGrader(),
        lambda marks: {
            candidate: [
                [grade.correct for grade in grade_clusters(row, grader=marks, seed=seed)] for row in rows
            ]
            for candidate, rows in candidates.items()
        },
    )
    graded = {
        candidate: under_alphas(rows, correct[candidate], measure_alphas)
        for candidate, rows in candidates.items()
    }
    return select_graded(graded, measures=measures, measure_alphas=measure_alphas, bins=bins, by=by)


def select_graded(
    candidates: Mapping[Candidate, Sequence[Rows]],
    *,
    measures: Collection[str] = MEASURES,
    measure_alphas: Sequence[float] = MEASURE_ALPHAS,
    bins: int = 15,
    by: str = "gain",
) -> Selection:
    """Choose as `select` does, from what `under_alphas` returns for each candidate."""
    _check(candidates, measure_alphas)
    tried = {
        measure: [
            (candidate, a, rows)
            for candidate, under in candidates.items()
            for a, rows in zip(measure_alphas if MEASURES[measure].parameter else (None,), under)
        ]
        for measure in measures
    }
    scores = candidate_scores(
        {measure: [rows for *_, rows in of_measure] for measure, of_measure in tried.items()}, bins=bins
    )
    entries = {
        measure: [
            Entry(candidate, measure, a, score) for (candidate, a, _), score in zip(tried[measure], scored)
        ]
        for measure, scored in scores.items()
    }
    chosen = {
        measure: choose(of_measure, scores[measure], simplicity=Entry.simplicity, by=by)
        for measure, of_measure in entries.items()
    }
    return Selection(chosen, tuple(entry for of_measure in entries.values() for entry in of_measure))


def _check(candidates: Mapping[Candidate, object], measure_alphas: Sequence[float]) -> None:
    names = [candidate.name for candidate in candidates]
    if not names or len(set(names)) < len(names):
        raise UsageError(f"selection needs one candidate or more, each with a name of its own, got {names}")
    if not measure_alphas:
        raise UsageError("selection needs at least one a for T-SC and G-SC, such as 0.5")


def under_alphas(
    rows: Rows,
    verdicts: Sequence[Sequence[bool]],
    alphas: Sequence[float] = MEASURE_ALPHAS,
    ties: str = "likelier",
) -> list[list[Row]]:
    """Measure rows with each a, given the verdict on each cluster of each row; a list of rows for each a."""
    return [
        [
            row.add(Grades(correct=_correct(row.top_clusters, verdict)))
            for row, verdict in zip(measure_rows(rows, MeasureOptions(a, a, ties=ties)), verdicts)
        ]
        for a in alphas
    ]


def _correct(top: Mapping[str, int | None], verdict: Sequence[bool]) -> dict[str, bool | None]:
    return {measure: None if cluster is None else verdict[cluster] for measure, cluster in top.items()}
