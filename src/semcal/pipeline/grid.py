"""TS-grid: for each measure the temperature whose confidences have the lowest Brier score (spec section 6).

It needs labelled questions and samples, no logits and no gradients, so it serves models that can only be
asked. What it costs: m draws for each question and temperature, where TS reads the reference answers once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypedDict, Unpack

from semcal.engine.equivalence import Equivalence
from semcal.engine.language_model import LanguageModel
from semcal.engine.loading import load_equivalence
from semcal.errors import InputError, UsageError
from semcal.pipeline.cluster import cluster_rows
from semcal.pipeline.grade import grade_row
from semcal.pipeline.measure import measure_rows
from semcal.pipeline.outcomes import Rows, Scored, lowest, scored_by_measure
from semcal.pipeline.prompting import Asking
from semcal.pipeline.rows import first_repeated
from semcal.pipeline.sample import Sampled, sample_mixed_at
from semcal.qa.datasets import Question, load_questions
from semcal.qa.grading import Grader, RuleGrader
from semcal.recalibration import GridTemperature, Temperature, check_enough, warn_if_few
from semcal.registry import check_name
from semcal.semantics import MEASURES

__all__ = [
    "GRID",
    "GridScore",
    "TemperatureGrid",
    "choose_temperatures",
    "fit_grid",
    "rows_at_temperatures",
]

#: From 1/4 to 4 in steps of a factor of 2^(1/4), 1/2 (SE), 1 (Base) and 2 among them.
GRID = tuple(2 ** (k / 4) for k in range(-8, 9))


@dataclass(frozen=True)
class GridScore:
    """One measure at one temperature."""

    temperature: float
    measure: str
    scored: Scored


@dataclass(frozen=True)
class TemperatureGrid:
    """One temperature for each measure, and what it was chosen from.

    Attributes
    ----------
    temperatures : mapping of str to float
        Measure → the temperature of the lowest Brier score; ties go to the one nearest to 1 (smallest
        |log T|), of T and 1/T to the larger.
    scores : tuple of GridScore
        Every temperature under every measure.
    """

    method: ClassVar[str] = "TS-grid"
    temperatures: Mapping[str, float]
    scores: tuple[GridScore, ...] = field(repr=False)

    def recalibrator(self, measure: str) -> GridTemperature:
        """The recalibrator to sample with when answers are chosen by `measure`."""
        check_name(measure, self.temperatures, what="measure")
        return GridTemperature(self.temperatures[measure], measure=measure)

    @property
    def at_edge(self) -> tuple[str, ...]:
        """Measures whose temperature is the lowest or highest tried: the best one may lie beyond."""
        tried = {score.temperature for score in self.scores}
        ends = (min(tried), max(tried))
        return tuple(measure for measure, chosen in self.temperatures.items() if chosen in ends)

    def table(self) -> list[dict[str, Any]]:
        """One dict for each measure and temperature: measure, temperature, brier, ace, …, chosen."""
        return [
            {
                "measure": score.measure,
                "temperature": score.temperature,
                **asdict(score.scored),
                "chosen": self.temperatures[score.measure] == score.temperature,
            }
            for score in self.scores
        ]


def _checked_grid(temperatures: Sequence[float]) -> list[float]:
    grid = [Temperature(t).temperature for t in temperatures]
    if not grid or len(set(grid)) < len(grid):
        raise UsageError(f"the grid needs one temperature or more, each once, got {list(temperatures)}")
    return grid


def choose_temperatures(
    rows: Mapping[float, Rows],
    *,
    measures: Sequence[str] = MEASURES,
    bins: int = 15,
    accuracy_within: float | None = None,
) -> TemperatureGrid:
    """Choose for each measure the temperature of the lowest Brier score.

    Parameters
    ----------
    rows : mapping of float to sequence of mappings
        Temperature → graded rows (`rows_at_temperatures`), for each the same questions.
    measures : sequence of str
        A measure that is defined for no question (without log-likelihoods all but E-SC) is left out.
    bins : int
        Bins of ACE.
    accuracy_within : float, optional
        How many paired standard errors a temperature's accuracy may lie below the highest; by default
        accuracy does not count. Without it a temperature so hot that nearly all answers are wrong, each with
        little confidence, can have the lowest Brier score.

    Raises
    ------
    FitError
        If there are fewer than 5 questions, or none of the measures is defined for any.

    Warns
    -----
    SemcalWarning
        Below 50 questions.

    Examples
    --------
    >>> def rows(p):
    ...     return [{"id": str(n), "confidence": {"E-SC": p}, "correct": {"E-SC": n < 20}} for n in range(50)]
    >>> found = choose_temperatures({1.0: rows(0.9), 2.0: rows(0.6)})
    >>> found.temperatures
    {'E-SC': 2.0}
    """
    grid = _checked_grid(list(rows))
    questions = min(map(len, rows.values()))
    check_enough(questions, of="to choose a temperature by")
    warn_if_few(questions, of="to choose a temperature by")
    found = scored_by_measure({measure: list(rows.values()) for measure in measures}, bins=bins)
    chosen = {
        measure: lowest(
            grid,
            scored,
            simplicity=lambda t: (round(abs(math.log(t)), 12), -t),
            accuracy_within=accuracy_within,
        )
        for measure, scored in found.items()
    }
    scores = [GridScore(t, measure, one) for measure, scored in found.items() for t, one in zip(grid, scored)]
    return TemperatureGrid(chosen, tuple(scores))


def rows_at_temperatures(
    model: LanguageModel,
    questions: Sequence[Question],
    temperatures: Sequence[float],
    *,
    equivalence: Equivalence,
    grader: Grader | None = None,
    asking: Asking | None = None,
    m: int = 10,
    seed: int = 0,
    max_new_tokens: int | None = None,
    linkage: str = "components",
    t_alpha: float = 0.5,
    g_alpha: float = 0.5,
    progress: Callable[[int], None] | None = None,
) -> dict[float, list[dict[str, Any]]]:
    """Sample, cluster, measure and grade the same questions at several temperatures.

    All temperatures share one engine pass over the prompts and their random numbers, and one clustering, so
    that each verdict is asked for once.

    Parameters
    ----------
    model : LanguageModel
        What answers.
    questions : sequence of Question
        With reference answers and distinct ids. Those with a passage and those without are two passes.
    temperatures : sequence of float
        Positive, distinct.
    equivalence, grader
        What decides which answers mean the same, and which are right (`RuleGrader` by default).
    asking : Asking, optional
        Few-shot examples; none by default.
    m, seed, linkage, t_alpha, g_alpha
        As in `SemanticUQ`; the seed also chooses which members of a cluster are graded.
    max_new_tokens : int, optional
        10 without a passage and 32 with one, by default.
    progress : callable, optional
        Called with the number of questions that are sampled at all temperatures.

    Returns
    -------
    dict of float to list of dict
        Temperature → rows in the order of `questions`.
    """
    grid = _checked_grid(temperatures)
    repeated = first_repeated([question.id for question in questions])
    if repeated is not None:
        raise InputError(f"the question id {repeated!r} occurs twice; ids must be distinct")
    sampled = sample_mixed_at(
        model,
        questions,
        recalibrators=[Temperature(t, method=TemperatureGrid.method) for t in grid],
        asking=asking or Asking(),
        m=m,
        seed=seed,
        max_new_tokens=max_new_tokens,
        progress=progress,
    )
    drawn = [
        {**question.row(), "temperature": t, **_kept(one)}
        for t, of_temperature in zip(grid, sampled)
        for question, one in zip(questions, of_temperature)
    ]
    clustered, _ = cluster_rows(drawn, equivalence=equivalence, linkage=linkage)
    measured = measure_rows(clustered, t_alpha=t_alpha, g_alpha=g_alpha)
    graded = [grade_row(row, grader=grader or RuleGrader(), seed=seed) for row in measured]
    size = len(questions)
    return {t: graded[i * size : (i + 1) * size] for i, t in enumerate(grid)}


def _kept(sampled: Sampled) -> dict[str, Any]:
    """What the later stages read of sampled answers."""
    fields = sampled.fields()
    return {key: fields[key] for key in ("samples", "log_likelihoods", "likelihood")}


class How(TypedDict, total=False):
    """The options of `rows_at_temperatures`."""

    grader: Grader | None
    asking: Asking | None
    m: int
    seed: int
    max_new_tokens: int | None
    linkage: str
    t_alpha: float
    g_alpha: float
    progress: Callable[[int], None] | None


def fit_grid(
    model: LanguageModel,
    questions: Sequence[Question] | str | Path,
    *,
    equivalence: Equivalence | str = "exact",
    temperatures: Sequence[float] = GRID,
    measures: Sequence[str] = MEASURES,
    bins: int = 15,
    accuracy_within: float | None = None,
    **how: Unpack[How],
) -> TemperatureGrid:
    """Fit TS-grid: choose one temperature for each measure by the Brier score of sampled answers.

    Parameters
    ----------
    model : LanguageModel
        From `semcal.load_model`. Only its `sample` is needed, and `score` for answers that were cut short.
    questions : sequence of Question, or a file
        Labelled; a few hundred, kept apart from those the result is tested on.
    equivalence : Equivalence or str
        "exact", or an NLI model or its directory, as in `SemanticUQ`.
    **how
        As in `rows_at_temperatures`.
    temperatures : sequence of float
        The grid; by default 17 from 1/4 to 4, a factor of 2^(1/4) apart.
    measures, bins, accuracy_within
        As in `choose_temperatures`.

    Raises
    ------
    FitError
        If there is no question, or no measure is defined for any.
    InputError
        If a question has no reference answer.

    Examples
    --------
    A model that is sure and half the time wrong needs a high temperature:

    >>> from semcal.engine.fakes import FakeEquivalence, FakeLanguageModel
    >>> table = {f"Who built mill {i}?": {"Ana.": 0.95, "Bo.": 0.05} for i in range(40)}
    >>> labelled = [Question(q, q, ("Ana" if i % 2 else "Cy",)) for i, q in enumerate(table)]
    >>> found = fit_grid(FakeLanguageModel(table), labelled, equivalence=FakeEquivalence(),
    ...                  temperatures=(0.5, 1, 2, 4), measures=("E-SC",))
    >>> found.temperatures, found.at_edge
    ({'E-SC': 4.0}, ('E-SC',))
    """
    if isinstance(questions, (str, Path)):
        questions = load_questions(questions, answers_needed=True)
    check_enough(len(questions), of="to choose a temperature by")
    judge = load_equivalence(equivalence) if isinstance(equivalence, str) else equivalence
    rows = rows_at_temperatures(model, questions, temperatures, equivalence=judge, **how)
    return choose_temperatures(rows, measures=measures, bins=bins, accuracy_within=accuracy_within)
