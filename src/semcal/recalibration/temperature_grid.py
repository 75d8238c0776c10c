"""TS-grid: for each measure the temperature whose confidences have the highest gain (spec section 6).

It needs labelled questions and samples, no logits and no gradients, so it serves models that can only be
sampled. It costs m draws for each question and temperature, where TS reads the reference answers once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from semcal.data.question import Question
from semcal.errors import QuestionError, UsageError
from semcal.grading.grade import grade_row, grade_together
from semcal.grading.rules import Grader, RuleGrader
from semcal.inputs import as_equivalence, as_model, as_questions
from semcal.measures import MEASURES
from semcal.measuring import DEFAULTS, MeasureOptions, measure_rows
from semcal.models.clustering import Grouping
from semcal.models.equivalence import Equivalence
from semcal.models.language_model import PromptConfig, Sampler
from semcal.models.sampling import Sampling
from semcal.progress import ShowProgress, shown_progress
from semcal.recalibration.fit_and_select import sample_candidates
from semcal.recalibration.provenance import check_enough, warn_if_few
from semcal.recalibration.saving import Fitted
from semcal.recalibration.select import GRID, Score, candidate_scores, choose
from semcal.recalibration.temperature import GridTemperature, Temperature
from semcal.registry import check_name
from semcal.rows import Json, Row, as_rows, check_distinct
from semcal.store import Store


@dataclass(frozen=True)
class TemperatureGrid:
    """One temperature for each measure, and what it was chosen from."""

    method: ClassVar[str] = "TS-grid"
    temperatures: Mapping[str, float]  # by measure
    grid: tuple[float, ...] = field(repr=False)
    scores: Mapping[str, Sequence[Score]] = field(repr=False)  # by measure, for each temperature of the grid
    by: str = field(default="gain", repr=False)  # what they were chosen by, "gain" or "brier"

    def recalibrator(self, measure: str) -> GridTemperature:
        """The recalibrator to sample with when answers are chosen by `measure`."""
        check_name(measure, self.temperatures, what="measure")
        return GridTemperature(self.temperatures[measure], measure=measure, by=self.by)

    @property
    def recalibrators(self) -> dict[str, Fitted]:
        """The recalibrator of each measure."""
        return {measure: self.recalibrator(measure) for measure in self.temperatures}

    @property
    def at_edge(self) -> tuple[str, ...]:
        """Measures whose temperature is the lowest or highest of the grid: the best one may lie beyond."""
        ends = (min(self.grid), max(self.grid))
        return tuple(measure for measure, t in self.temperatures.items() if t in ends)

    def table(self) -> list[dict[str, Any]]:
        """One dict for each measure and temperature: measure, temperature, gain, brier, …, chosen."""
        return [
            {
                "measure": measure,
                "temperature": t,
                **asdict(score),
                "chosen": self.temperatures[measure] == t,
            }
            for measure, scores in self.scores.items()
            for t, score in zip(self.grid, scores)
        ]


def _checked_grid(temperatures: Sequence[float]) -> list[float]:
    grid = [Temperature(t).temperature for t in temperatures]
    if not grid or len(set(grid)) < len(grid):
        raise UsageError(f"the grid needs one temperature or more, each once, got {list(temperatures)}")
    return grid


def choose_temperatures(
    rows: Mapping[float, Sequence[Row | Json]],
    *,
    measures: Collection[str] = MEASURES,
    bins: int = 15,
    by: str = "gain",
) -> TemperatureGrid:
    """Choose for each measure the temperature of the highest gain, from graded rows at each.

    Ties go to the temperature nearest to 1 (smallest |log T|), of T and 1/T to the larger; `by="brier"`
    takes the lowest Brier score instead. FitError below 5 questions, a warning below 50.
    """
    grid = _checked_grid(list(rows))
    questions = min(map(len, rows.values()))
    check_enough(questions, of="to choose a temperature by")
    warn_if_few(questions, of="to choose a temperature by")
    scores = candidate_scores({measure: list(map(as_rows, rows.values())) for measure in measures}, bins=bins)
    chosen = {
        measure: choose(grid, of_measure, simplicity=lambda t: (round(abs(math.log(t)), 12), -t), by=by)
        for measure, of_measure in scores.items()
    }
    return TemperatureGrid(chosen, tuple(grid), scores, by)


def rows_at_temperatures(
    model: Sampler,
    questions: Sequence[Question],
    temperatures: Sequence[float],
    sampling: Sampling,
    clustering: Grouping,
    *,
    grader: Grader | None = None,
    options: MeasureOptions = DEFAULTS,
    progress: Callable[[int], None] | None = None,
    keep: Store | None = None,
    on_bad_question: Callable[[QuestionError], None] | None = None,
) -> dict[float, list[Row]]:
    """Sample, cluster, measure and grade the same questions at several temperatures: temperature → rows.

    The temperatures share the random numbers, and in each block of questions one pass of the model and one
    clustering, so that each verdict is asked for once. The questions have reference answers and distinct ids;
    `keep` holds finished blocks, from which the same call resumes with identical results. A question that a
    server failed at is left out everywhere; its error goes to `on_bad_question`, or is raised.
    """
    grid = _checked_grid(temperatures)
    check_distinct(question.id for question in questions)
    sampled = sample_candidates(
        model,
        questions,
        {t: Temperature(t, method=TemperatureGrid.method) for t in grid},
        sampling,
        clustering,
        progress=progress,
        keep=keep,
        on_bad_question=on_bad_question,
    )
    measured = {t: measure_rows(rows, options) for t, rows in sampled.items()}
    (seed,) = sampling.seeds
    return grade_together(
        grader or RuleGrader(),
        lambda marks: {
            t: [grade_row(row, grader=marks, seed=seed).set(temperature=t) for row in rows]
            for t, rows in measured.items()
        },
    )


def fit_grid(
    model: Sampler | str | Path,
    questions: Any,
    *,
    equivalence: Equivalence | str | Path | None = None,
    temperatures: Sequence[float] = GRID,
    measures: Collection[str] = MEASURES,
    bins: int = 15,
    by: str = "gain",
    asking: PromptConfig | None = None,
    grader: Grader | None = None,
    m: int = 10,
    seed: int = 0,
    max_new_tokens: int | None = None,
    linkage: str = "components",
    progress: ShowProgress = True,
    keep: Store | None = None,
) -> TemperatureGrid:
    """Fit TS-grid: choose one temperature for each measure by the gain of sampled answers.

    `questions` are labelled as in `semcal.fit`, a few hundred, kept apart from those the result is tested on;
    `keep` as in `rows_at_temperatures`, sampling as in `semcal.calibrate`, the rest as in
    `choose_temperatures`.

    Examples
    --------
    A model that is sure and half the time wrong needs a high temperature:

    >>> from semcal.models.fakes import FakeEquivalence, FakeLanguageModel
    >>> table = {f"Who built mill {i}?": {"Ana.": 0.95, "Bo.": 0.05} for i in range(40)}
    >>> labelled = [Question(q, q, ("Ana" if i % 2 else "Cy",)) for i, q in enumerate(table)]
    >>> found = fit_grid(FakeLanguageModel(table), labelled, equivalence=FakeEquivalence(),
    ...                  temperatures=(0.5, 1, 2, 4), measures=("E-SC",))
    >>> found.temperatures, found.at_edge
    ({'E-SC': 2.0}, ())
    """
    model, questions = as_model(model), as_questions(questions, labelled=True)
    check_enough(len(questions), of="to choose a temperature by")
    with shown_progress(progress, "fit", len(questions)) as update:
        rows = rows_at_temperatures(
            model,
            questions,
            temperatures,
            Sampling((), asking or PromptConfig(), m, (seed,), max_new_tokens),
            Grouping(as_equivalence(equivalence), linkage),
            grader=grader,
            progress=update,
            keep=keep,
        )
    return choose_temperatures(rows, measures=measures, bins=bins, by=by)
