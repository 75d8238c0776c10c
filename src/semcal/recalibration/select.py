"""Selection of a recalibrator among candidates, by scores on common validation questions (spec section 6).

`fit_and_select` is the paper's sweep: it fits every candidate to one set of features, samples answers with
each candidate in common passes of the model, and selects for each measure the candidate with the highest gain
(or the lowest Brier score) on validation. For T-SC and G-SC it also tries values of their own α (here a).

TS-grid (`choose_temperatures`) selects among temperatures in the same way. It needs labeled questions and
samples, but neither logits nor gradients, so it works for models that can only be sampled. It takes m samples
per question and temperature, whereas TS reads the reference answers once.

This module loads torch only for fitting and sampling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from semcal import metrics
from semcal.data.question import Question
from semcal.errors import FitError, QuestionError, UsageError
from semcal.grading.grade import grade_clusters, grade_row, grade_together
from semcal.grading.rules import RuleGrader
from semcal.measures import MEASURES
from semcal.measuring import MeasureOptions, measure_rows
from semcal.models.clustering import ClusterConfig, ClusterStep
from semcal.models.protocols import LanguageModel, Sampler
from semcal.models.sample import SampleStep, Sampling, question_blocks
from semcal.recalibration.files import Provenance
from semcal.recalibration.methods import FITTED, FitTask, paper_schedule, run_fit
from semcal.recalibration.records import PAPER_LOSSES, Loss, check_enough, warn_if_few
from semcal.rows import Grades, Json, Row, Rows, check_distinct, warn_of_failures
from semcal.steps import Block, Stage, WorkerState, run_stages
from semcal.store import Store
from semcal.workers import SerialExecutor

if TYPE_CHECKING:
    from semcal.models.features import FitFeatures
    from semcal.models.protocols import AnyRecalibrator
    from semcal.recalibration.exact_solver import LogPartitionTable
    from semcal.recalibration.fit_data import FitData
    from semcal.recalibration.records import Fitted

#: Weight decays of ATS and Platt in the paper.
WEIGHT_DECAYS = (0.0, 0.01)
#: Values of a for T-SC and G-SC in the paper.
MEASURE_ALPHAS = (0.5, 0.75, 1.25)
#: Temperatures of TS-grid: 1/4 to 4 in steps of a factor of 2^(1/4), with 1/2 (SE), 1 (Base) and 2.
GRID = tuple(2 ** (k / 4) for k in range(-8, 9))
#: Maximum difference of tied scores, so that rounding does not decide.
TIE = 1e-12
#: Validation scores in `recalibrator.json`.
KEPT_SCORES = ("measure", "measure_alpha", "gain", "brier", "ace", "auroc", "accuracy", "n")

_Key = TypeVar("_Key", bound=Hashable)
_Choice = TypeVar("_Choice")

# ---- Candidates


@dataclass(frozen=True)
class Candidate:
    """A method with a loss and a weight decay."""

    name: str  # unique: "Base", "TS NLL", "ATS SS 0.25"
    loss: str | None = None  # "NLL", "SS" or "any"; None without a fit (Base, SE)
    alpha: float | None = None  # the α of selective smoothing
    weight_decay: float | None = None  # None for methods without weight decay (TS)


@dataclass(frozen=True)
class CandidateFit:
    """One fit: all losses of TS together, or one candidate of a method with weight decays."""

    method: str
    solver: str  # "exact" or "sgd"
    losses: tuple[Loss, ...]
    weight_decay: float | None
    run: int = 0  # the run whose seed the fit uses; 0 if all runs share the fit

    @property
    def candidates(self) -> list[Candidate]:
        """The candidates, in the order of the losses."""
        decay, found = self.weight_decay, []
        for loss, alpha in self.losses:
            parts = [self.method, loss]
            parts += [] if alpha is None else [f"{alpha:g}"]
            parts += [f"decay {decay:g}"] if decay else []
            found.append(Candidate(" ".join(parts), loss, alpha, decay))
        return found

    @property
    def names(self) -> list[str]:
        """Names of the candidates."""
        return [candidate.name for candidate in self.candidates]

    @property
    def reads_table(self) -> bool:
        """True if the fit reads losses from a shared `LogPartitionTable`."""
        return self.solver == "sgd" and FITTED[self.method].tabulated


def candidate_fits(
    methods: Iterable[str],
    *,
    losses: Sequence[Loss],
    weight_decays: Sequence[float] = WEIGHT_DECAYS,
    solver: str = "exact",
) -> list[CandidateFit]:
    """Return the fits of methods, by their losses; `solver` applies to methods with several solvers."""
    fits = []
    for name in methods:
        method = FITTED[name]
        chosen = solver if solver in method.solvers else method.solvers[0]
        possible = [loss for loss in losses if loss[0] in method.losses]
        groups = [[loss] for loss in possible] if method.weight_decays else [possible]
        decays = weight_decays if method.weight_decays else (None,)
        fits += [CandidateFit(name, chosen, tuple(group), decay) for decay in decays for group in groups]
    return fits


def fit_candidate(
    model: LanguageModel,
    features: FitFeatures,
    fit: CandidateFit,
    *,
    learning_rate: float | None = None,
    seed: int = 0,
    table: LogPartitionTable | None = None,
) -> dict[Candidate, Fitted]:
    """Run one fit on stored features; some methods ignore `learning_rate` and use their own."""
    method = FITTED[fit.method]
    schedule = paper_schedule(
        fit.method,
        weight_decay=fit.weight_decay or 0.0,
        learning_rate=None if method.own_learning_rate else learning_rate,
        seed=seed,
    )
    task = FitTask(model, features, fit.losses, fit.solver, schedule, table=table)
    results = run_fit(fit.method, task)
    return dict(zip(fit.candidates, (result.recalibrator for result in results), strict=True))


def sample_candidates(
    model: Sampler,
    questions: Sequence[Question],
    recalibrators: Mapping[_Key, AnyRecalibrator],
    sampling: Sampling,
    cluster: ClusterConfig,
    *,
    progress: Callable[[int], None] | None = None,
    keep: Store | None = None,
    on_bad_question: Callable[[QuestionError], None] | None = None,
) -> dict[_Key, list[Row]]:
    """Sample and cluster questions with every candidate; return rows by candidate, in the order of questions.

    The candidates share the random numbers, and in each block (`question_blocks`) one pass of the model and
    one clustering. `keep` stores finished blocks; `progress` receives the number of finished questions. A
    question without answers of the server is omitted for all candidates and passed to `on_bad_question`,
    which warns by default.
    """
    sampling = replace(sampling, recalibrators=tuple(recalibrators.values()))
    names = tuple(map(str, range(len(recalibrators))))
    rows: dict[str, list[Row]] = {name: [] for name in names}
    failures: dict[str, QuestionError] = {}
    steps = SampleStep(sampling, names=names), ClusterStep(cluster.linkage, cluster.merge_refusals)
    revisions: Json = {}
    if keep is not None:
        revisions = {
            "model": model.revision,
            "prompt": sampling.asking.hash(model),
            "equivalence": [cluster.judge.name, cluster.judge.revision],
        }
    stage = Stage(steps, revisions)
    for block in run_stages(
        (Block(stage, rows_of) for rows_of in question_blocks(model, map(Row.of, questions), sampling)),
        workers=SerialExecutor(WorkerState(model, cluster.judge)),
        store=keep,
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


# ---- Scores and choices


@dataclass(frozen=True)
class Score:
    """Scores of one candidate for one measure, on the questions with a confidence for all candidates."""

    gain: float
    brier: float
    ace: float
    auroc: float  # NaN if all answers are correct, or none
    accuracy: float  # depends on the answer that the measure selects
    n: int  # number of counted questions


def candidate_scores(candidates: Mapping[str, Sequence[Rows]], *, bins: int = 15) -> dict[str, list[Score]]:
    """Return a dict of measure → one score per candidate, from measure → graded rows of each candidate.

    The rows of the candidates are of the same questions, in any order; a row without the measure counts as
    null. A measure that is null for all questions is omitted (without log-likelihoods, all but E-SC);
    FitError if no measure is left.
    """
    scores = {}
    for measure, rows_of in candidates.items():
        confidence, correct = _paired(rows_of, measure)
        if confidence.shape[1]:
            scores[measure] = [
                Score(
                    gain=metrics.gain(p, c),
                    brier=metrics.brier(p, c),
                    ace=metrics.ace(p, c, bins=bins),
                    auroc=metrics.auroc(p, c),
                    accuracy=float(np.mean(c)),
                    n=len(c),
                )
                for p, c in zip(confidence, correct)
            ]
    if not scores:
        raise FitError(
            "measures: all are null for every question. Include E-SC, or pass samples with log-likelihoods"
        )
    return scores


def _paired(candidates: Sequence[Rows], measure: str) -> NDArray[np.float64]:
    """Return confidence and correctness (2, C, N) of the questions that are null for no candidate.

    A null of one candidate must not be an advantage.
    """
    by_id = [{row.id: row for row in rows} for rows in candidates]
    values = [
        [
            (rows[name].measured.confidence.get(measure), rows[name].graded.of_measure(measure))
            for rows in by_id
        ]
        for name in by_id[0]
    ]
    defined = [pairs for pairs in values if not any(None in pair for pair in pairs)]
    table = np.array(defined, dtype=np.float64).reshape(len(defined), len(by_id), 2)
    return table.transpose(2, 1, 0)


def choose(
    choices: Sequence[_Choice],
    scores: Sequence[Score],
    *,
    simplicity: Callable[[_Choice], Any],
    by: str = "gain",
) -> _Choice:
    """Return the choice with the highest gain, or `by` "brier" with the lowest Brier score.

    Scores within 1e-12 of the best are tied. Among tied choices the simplest wins, then the first.
    """
    losses = [-score.gain if by == "gain" else score.brier for score in scores]
    least = min(losses)
    return min((choice for choice, loss in zip(choices, losses) if loss <= least + TIE), key=simplicity)


@dataclass(frozen=True)
class Entry:
    """A candidate with a measure, and its score on validation."""

    candidate: Candidate
    measure: str
    measure_alpha: float | None  # the a of T-SC or G-SC, None for other measures
    score: Score

    def simplicity(self) -> tuple[Any, ...]:
        """Return the sort key for ties; a smaller key is simpler."""
        it = self.candidate
        decay = -1.0 if it.weight_decay is None else it.weight_decay
        distance = 0.0 if self.measure_alpha is None else abs(math.log(self.measure_alpha))
        return it.loss is not None, it.loss != "NLL", it.alpha or 0.0, decay, round(distance, 12)


@dataclass(frozen=True)
class Selection:
    """The selected entry for each measure, and all entries."""

    chosen: Mapping[str, Entry]  # by measure
    entries: tuple[Entry, ...] = field(repr=False)  # every candidate with every measure and a

    def table(self) -> list[Json]:
        """Return one dict per entry: measure, candidate and its settings, measure_alpha, scores, chosen."""
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
    candidates: Mapping[Candidate, Sequence[Rows]],
    *,
    measure_alphas: Sequence[float] = MEASURE_ALPHAS,
    bins: int = 15,
    by: str = "gain",
) -> Selection:
    """Select for each measure the candidate, and a for T-SC and G-SC, with the highest gain.

    `candidates` maps candidates to the rows of `under_alphas` for the same validation questions. Among tied
    entries the simplest wins, in this order: no fit, then NLL, then SS; the smaller α of SS; no weight decay,
    then 0, then more; a closer to 1; the first candidate. `by="brier"` is the paper's rule, the lowest Brier
    score: it prefers a candidate whose answers are nearly all wrong with little confidence.
    """
    tried = {
        name: [
            (candidate, a, rows)
            for candidate, under in candidates.items()
            for a, rows in zip(measure_alphas if measure.parameter else (None,), under)
        ]
        for name, measure in MEASURES.items()
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


def under_alphas(
    rows: Rows,
    verdicts: Sequence[Sequence[bool]],
    alphas: Sequence[float] = MEASURE_ALPHAS,
    ties: str = "likelier",
) -> list[list[Row]]:
    """Measure rows with each a, given the grade of each cluster of each row; return a list of rows per a."""

    def graded(row: Row, verdict: Sequence[bool]) -> Row:
        top = row.top_clusters.items()
        return row.add(Grades(correct={name: None if at is None else verdict[at] for name, at in top}))

    return [
        [graded(*pair) for pair in zip(measure_rows(rows, MeasureOptions(a, a, ties=ties)), verdicts)]
        for a in alphas
    ]


# ---- The sweep


@dataclass(frozen=True)
class Sweep:
    """Settings of a sweep: methods, learning rate and rule of selection."""

    methods: Collection[str]
    learning_rate: float | None = None  # learning rate of ATS and Platt; None: the paper's
    store: Path | None = None  # folder for the hidden states
    by: str = "gain"  # as in `select`


def fit_and_select(
    model: LanguageModel,
    labelled: FitData,
    validation: Sequence[Question],
    sampling: Sampling,
    cluster: ClusterConfig,
    sweep: Sweep,
    *,
    progress: Callable[[str, int], Callable[[int], None]] | None = None,
    keep: Path | None = None,
) -> tuple[dict[str, Fitted], Selection]:
    """Fit every candidate, sample the validation questions with each, and select by measure.

    Return the selected recalibrator by measure, and the selection. The model reads the labeled questions
    once, and samples the validation questions once. `progress` maps a label and a total to a function that
    receives the number of finished items. `keep` is a folder for finished blocks of questions: the same call
    samples only the remaining blocks, with identical results.
    """
    from semcal.recalibration.exact_solver import tabulate
    from semcal.recalibration.fit_data import fit_features

    def shown(label: str, total: int) -> Callable[[int], None] | None:
        return None if progress is None else progress(label, total)

    warn_if_few(len(labelled.questions))
    (seed,) = sampling.seeds
    features = fit_features(
        model,
        labelled,
        asking=sampling.asking,
        whole=sweep.store is not None or any(FITTED[name].reads_sequences for name in sweep.methods),
        store=sweep.store,
        progress=shown("features", len(labelled.questions)),
    )
    fits = candidate_fits(sweep.methods, losses=PAPER_LOSSES)
    finished = shown("fit", sum(len(fit.losses) for fit in fits))
    table = tabulate(features, model.logits) if any(fit.reads_table for fit in fits) else None
    fitted: dict[Candidate, Fitted] = {}
    for fit in fits:
        fitted |= fit_candidate(
            model, features, fit, learning_rate=sweep.learning_rate, seed=seed, table=table
        )
        if finished is not None:
            finished(len(fitted))
    rows = sample_candidates(
        model,
        validation,
        fitted,
        sampling,
        cluster,
        progress=shown("validation", len(validation)),
        keep=Store(keep) if keep else None,
    )
    verdicts = grade_together(
        RuleGrader(),
        lambda marks: {
            candidate: [[grade.correct for grade in grade_clusters(row, grader=marks).values()] for row in of]
            for candidate, of in rows.items()
        },
    )
    graded = {candidate: under_alphas(of, verdicts[candidate]) for candidate, of in rows.items()}
    selection = select(graded, by=sweep.by)
    return {measure: fitted[entry.candidate] for measure, entry in selection.chosen.items()}, selection


def save_choices(
    chosen: Mapping[str, Fitted],
    table: Sequence[Json],
    folder: Path,
    *,
    provenance: Provenance,
    measure: str,
    by: str,
) -> dict[str, Json]:
    """Save the recalibrator of each measure in `folder`/MEASURE, and that of `measure` also in `folder`.

    Each file has the validation scores and the rule of selection (`by`). Return the selected rows of the
    table by measure.
    """
    from semcal.recalibration.files import save_pretrained

    rows: dict[str, Json] = {row["measure"]: dict(row) for row in table if row["chosen"]}
    for name, path in [*((name, folder / name) for name in chosen), (measure, folder)]:
        scores = {"by": by, **{key: rows[name].get(key) for key in KEPT_SCORES}}
        save_pretrained(chosen[name], path, provenance=replace(provenance, validation=scores))
    return rows


# ---- TS-grid


@dataclass(frozen=True)
class TemperatureGrid:
    """The selected temperature for each measure, with the scores of the grid."""

    method: ClassVar[str] = "TS-grid"
    temperatures: Mapping[str, float]  # by measure
    grid: tuple[float, ...] = field(repr=False)
    scores: Mapping[str, Sequence[Score]] = field(repr=False)  # by measure, for each temperature of the grid
    by: str = field(default="gain", repr=False)  # rule of selection, "gain" or "brier"

    @property
    def recalibrators(self) -> dict[str, Fitted]:
        """The recalibrator for answers selected by each measure."""
        from semcal.recalibration.recalibrators import GridTemperature

        return {
            measure: GridTemperature(temperature, measure=measure, by=self.by)
            for measure, temperature in self.temperatures.items()
        }

    def table(self) -> list[Json]:
        """Return one dict per measure and temperature: measure, temperature, gain, brier, …, chosen."""
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
    from semcal.models.distribution import Temperature

    grid = [Temperature(t).temperature for t in temperatures]
    if not grid or len(set(grid)) < len(grid):
        raise UsageError(f"temperatures: got {list(temperatures)}. Pass one or more distinct temperatures")
    return grid


def choose_temperatures(rows: Mapping[float, Rows], *, by: str = "gain") -> TemperatureGrid:
    """Select for each measure the temperature with the highest gain, from graded rows at each temperature.

    Among ties the temperature closest to 1 wins (smallest |log T|), of T and 1/T the larger. `by="brier"`
    selects the lowest Brier score instead. FitError below 5 questions, a warning below 50.
    """
    grid = _checked_grid(list(rows))
    questions = min(map(len, rows.values()))
    check_enough(questions, of="to choose a temperature by")
    warn_if_few(questions, of="to choose a temperature by")
    scores = candidate_scores({measure: list(rows.values()) for measure in MEASURES})
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
    cluster: ClusterConfig,
    *,
    progress: Callable[[int], None] | None = None,
    keep: Store | None = None,
    on_bad_question: Callable[[QuestionError], None] | None = None,
) -> dict[float, list[Row]]:
    """Sample, cluster, measure and grade questions at several temperatures; return rows by temperature.

    The questions have reference answers and distinct ids. The other parameters are the same as in
    `sample_candidates`, with temperatures as candidates.
    """
    from semcal.models.distribution import Temperature

    grid = _checked_grid(temperatures)
    check_distinct(question.id for question in questions)
    candidates = {t: Temperature(t, method=TemperatureGrid.method) for t in grid}
    sampled = sample_candidates(
        model,
        questions,
        candidates,
        sampling,
        cluster,
        progress=progress,
        keep=keep,
        on_bad_question=on_bad_question,
    )
    measured = {t: measure_rows(rows) for t, rows in sampled.items()}
    return grade_together(
        RuleGrader(),
        lambda marks: {
            t: [grade_row(row, grader=marks).set(temperature=t) for row in rows]
            for t, rows in measured.items()
        },
    )
