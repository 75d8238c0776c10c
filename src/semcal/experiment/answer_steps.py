"""Steps of a grid from questions to rows with calibrated probabilities.

The steps of `semcal.models.sample` and `semcal.models.clustering` sample and cluster answers. Rows are
identified by (candidate, run, m, id), and every step keeps their order.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from semcal.data.question import GROUP, data_hash
from semcal.errors import QuestionError, SemcalWarning, ServerError
from semcal.experiment.grid_plan import CandidateChoice, Choices, Selected
from semcal.experiment.grid_settings import Calibrating, ClusteringSettings, Grading
from semcal.grading.grade import EntailmentGrader, Members, grade_clusters, grade_texts, grade_together
from semcal.grading.rules import Grader, members_to_grade
from semcal.meaning.answer import AnswerFormat
from semcal.measuring import MeasureOptions, measure_rows
from semcal.models.prompting import PromptConfig
from semcal.models.sample import SampleStep, read_answer
from semcal.recalibration.select import Candidate, Selection, select, under_alphas
from semcal.rows import FAILED, Json, Row, Rows, failures_of
from semcal.steps import RecalibratorSource, Step, WorkerState
from semcal.workers import Progress, versions

if TYPE_CHECKING:
    pass

# ---- Answers


def cut_to_counts(rows: Rows, m: int) -> list[Row]:
    """Cut rows to their first m samples, and rows with `counts` also to each of these numbers.

    >>> row = Row({"id": "1", "counts": [1, 3], "samples": ["a", "b", "c"], "log_likelihoods": [-1, -2, -3]})
    >>> [cut.samples for cut in cut_to_counts([row], 2)]
    [['a', 'b'], ['a'], ['a', 'b', 'c']]
    """
    return [
        row.take(range(min(count, len(row.samples)))).set(m=count)
        for row in rows
        for count in (m, *row.json.get("counts", ()))
    ]


def _answered(rows: list[Row]) -> list[Row]:
    """Return the rows; ServerError if a server answered no question, so that the block is not stored."""
    failures = list(failures_of(rows).values())
    if failures and len(failures) == len({row.id for row in rows}):
        raise ServerError(
            f"the server answered none of {len(failures)} questions of a block, first {failures[0]}. Run the "
            "same command again to resume, or remove these questions from the data."
        )
    return rows


@dataclass(frozen=True)
class SamplePasses(Step):
    """Step that samples the answers of several passes of the model, one after another."""

    name: ClassVar[str] = "sample"
    needs: ClassVar[tuple[str, ...]] = ("model",)
    passes: tuple[SampleStep, ...]

    def __call__(self, rows: Rows, models: WorkerState, progress: Progress) -> list[Row]:
        return _answered([row for one in self.passes for row in one(rows, models, progress)])


@dataclass(frozen=True)
class GreedyPass:
    """The greedy answers ("greedy") and those of 4 beams ("beam") with one recalibrator."""

    source: RecalibratorSource
    run: int
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class GreedyStep(Step):
    """Step that decodes the most likely answers, token by token and with 4 beams, and grades them."""

    name: ClassVar[str] = "greedy"
    needs: ClassVar[tuple[str, ...]] = ("model",)
    asking: PromptConfig
    passes: tuple[GreedyPass, ...]
    grading: Grading
    max_new_tokens: int
    answer_format: AnswerFormat

    def __call__(self, rows: Rows, models: WorkerState, *_: object) -> list[Row]:
        model, grader = models.model, self.grading.grader()
        questions = [row.to_question() for row in rows]
        prompts = self.asking.prompts(model, questions)
        answers = []
        for greedy_pass in self.passes:
            recalibrator, name = models.recalibrator(greedy_pass.source), greedy_pass.source.name
            for kind in greedy_pass.kinds:
                generate: Any = model.greedy if kind == "greedy" else models.language_model.beam
                generations = generate(prompts, recalibrator=recalibrator, max_new_tokens=self.max_new_tokens)
                for question, generation in zip(questions, generations):
                    row = Row({"id": question.id, "candidate": name, "run": greedy_pass.run, "kind": kind})
                    if isinstance(generation, QuestionError):
                        answers.append(Row({**row.json, FAILED: generation.reason}))
                        continue
                    found = read_answer(self.answer_format, question, generation)
                    text = None if found is None else found.text
                    grade = grade_texts(grader, question.question, [text], question.answers)
                    answers.append(row.set(text=text, correct=grade.correct))
        return _answered(answers)


def members_of(row: Row, grading: Grading, seed: int) -> Members | None:
    """Return the rule that chooses the graded members of a cluster, None to grade the answer."""
    if grading.choice == "given":
        return None
    likely = row.log_likelihoods if grading.choice == "likeliest" else None

    def members(cluster: Sequence[int]) -> Sequence[int]:
        first = None if likely is None else max(cluster, key=likely.__getitem__)
        return members_to_grade(cluster, seed=seed, question_id=row.id, limit=grading.members, first=first)

    return members


@dataclass(frozen=True)
class GradeMeaningsStep(Step):
    """Step that grades every cluster of each row by rules."""

    name: ClassVar[str] = "grade"
    needs: ClassVar[tuple[str, ...]] = ()
    grading: Grading
    seeds: tuple[int, ...]  # one for each run

    def __call__(self, rows: Rows, *_: object) -> list[Row]:
        """Return the rows with `correct` and `rule` of each cluster."""
        grader, graded = self.grading.grader(), []
        for row in rows:
            members = members_of(row, self.grading, self.seeds[row["run"]])
            grades = grade_clusters(row, grader=grader, members=members).values()
            correct, rule = [grade.correct for grade in grades], [grade.rule for grade in grades]
            graded.append(row.set(correct=correct, rule=rule))
        return graded


@dataclass(frozen=True)
class EntailmentStep(Step):
    """Step that grades the answer of each measure by entailment: one verdict each, in `correct_nli`."""

    name: ClassVar[str] = "nli"
    needs: ClassVar[tuple[str, ...]] = ("equivalence",)
    grading: Grading
    seed: int

    def __call__(self, rows: Rows, models: WorkerState, *_: object) -> list[Row]:
        verdicts = grade_together(
            EntailmentGrader(models.equivalence), lambda marks: [self._verdicts(row, marks) for row in rows]
        )
        return [row.set(correct_nli=correct) for row, correct in zip(rows, verdicts)]

    def _verdicts(self, row: Row, grader: Grader) -> dict[str, bool | None]:
        top, members = row["top_cluster"], members_of(row, self.grading, self.seed)
        chosen = sorted({index for index in top.values() if index is not None})
        grades = grade_clusters(row, grader=grader, members=members, only=chosen)
        return {measure: None if index is None else grades[index].correct for measure, index in top.items()}


# ---- Choice and measures

Graded = dict[str, list[list[Row]]]
"""Candidate → for each a of T-SC and G-SC the graded rows of all questions."""
LOSSES = ("NLL", "SS")


@dataclass(frozen=True)
class SelectStep(Step):
    """Step that chooses candidates at each number of samples, from all losses and from each loss alone."""

    name: ClassVar[str] = "select"
    needs: ClassVar[tuple[str, ...]] = ()
    candidates: Mapping[str, Sequence[Candidate]]  # by method
    m: int
    counts: tuple[int, ...]  # further numbers of samples
    measure_alphas: tuple[float, ...]
    by: str
    bins: int
    ties: str = "likelier"

    def __call__(self, rows: Rows, *_: object) -> list[Row]:
        graded = self._graded(rows)
        at_m = self._select(graded[self.m], self.candidates)
        by_loss = {
            loss: {
                method: [candidate for candidate in tried if candidate.loss == loss]
                for method, tried in self.candidates.items()
            }
            for loss in LOSSES
        }
        selected = Selected(
            methods=_choices(at_m),
            by_loss={loss: _choices(self._select(graded[self.m], of)) for loss, of in by_loss.items()},
            by_draws={
                str(count): _choices(self._select(graded[count], self.candidates)) for count in self.counts
            },
            table=[
                {"method": method, **row} for method, selection in at_m.items() for row in selection.table()
            ],
        )
        return [Row(selected.model_dump())]

    def _select(self, graded: Graded, candidates: Mapping[str, Sequence[Candidate]]) -> dict[str, Selection]:
        """Return the selection of each method with candidates."""
        return {
            method: select(
                {candidate: graded[candidate.name] for candidate in tried},
                measure_alphas=self.measure_alphas,
                bins=self.bins,
                by=self.by,
            )
            for method, tried in candidates.items()
            if tried
        }

    def _graded(self, rows: Rows) -> dict[int, Graded]:
        """Return number of samples → the rows of each candidate."""
        groups: dict[tuple[int, str], list[Row]] = {}
        for row in rows:
            groups.setdefault((row["m"], row["candidate"]), []).append(row)
        graded: dict[int, Graded] = {}
        keys = ("id", "samples", "clusters", "log_likelihoods")
        for (count, name), of_group in groups.items():
            bare = [Row({key: row[key] for key in keys if key in row}) for row in of_group]
            verdicts = [row["correct"] for row in of_group]
            graded.setdefault(count, {})[name] = under_alphas(bare, verdicts, self.measure_alphas, self.ties)
        return graded


def _choices(selections: Mapping[str, Selection]) -> Choices:
    return {
        method: {
            measure: CandidateChoice.of(entry.candidate, entry.measure_alpha)
            for measure, entry in selection.chosen.items()
        }
        for method, selection in selections.items()
    }


#: Keys of finished rows: of the question, of its samples, and of their measures.
ASKED_KEYS = ("id", "question", "answers", "context", GROUP)
SAMPLED_KEYS = ("candidate", "run", "samples", "log_likelihoods", "likelihood", "normal_forms", "clusters")
MEASURED_KEYS = ("confidences", "semantic_entropy", "confidence", "top_cluster")


@dataclass(frozen=True)
class GridMeasureStep(Step):
    """Step that measures blocks of test questions in groups by candidate, run and number of samples.

    The rows of greedy and beam answers have a `kind`.
    """

    name: ClassVar[str] = "measure"
    needs: ClassVar[tuple[str, ...]] = ()
    measure_alphas: Mapping[str, Sequence[float]]  # candidate → the a of T-SC and of G-SC
    measure_alphas_at: Mapping[str, Mapping[str, Sequence[float]]]  # at other numbers of samples
    model: str
    dataset: str
    ties: str = "likelier"

    def __call__(self, rows: Rows, *_: object) -> list[Row]:
        groups: dict[tuple[str, int, int], list[Row]] = {}
        greedy: dict[tuple[str, str, int, str], Json] = {}
        for row in rows:
            if "kind" in row:
                greedy[row["kind"], row["candidate"], row["run"], row["id"]] = row
            else:
                groups.setdefault((row["candidate"], row["run"], row["m"]), []).append(row)
        finished = []
        for (candidate, _run, count), of_group in groups.items():
            alphas = self.measure_alphas_at.get(str(count), self.measure_alphas)[candidate]
            measured = measure_rows(of_group, MeasureOptions(alphas[0], alphas[1], ties=self.ties))
            finished += [self._finished(row, greedy) for row in measured]
        return finished

    def _finished(self, row: Row, greedy: Mapping[tuple[str, str, int, str], Json]) -> Row:
        """Return a finished row; its greedy answer is Base's if the method keeps the argmax."""
        name, run, id = row["candidate"], row["run"], row["id"]

        def answer(kind: str) -> Json | None:
            return greedy.get((kind, name, run, id)) or greedy.get((kind, name, 0, id))

        single, beam = answer("greedy") or greedy["greedy", "Base", 0, id], answer("beam")
        finished = {key: row[key] for key in ASKED_KEYS if key in row}
        finished |= {"model": self.model, "dataset": self.dataset}
        finished |= {key: row[key] for key in (*SAMPLED_KEYS, *MEASURED_KEYS)}
        for key in ("correct", "rule"):
            finished[key] = {
                measure: None if index is None else row[key][index]
                for measure, index in row["top_cluster"].items()
            }
        finished |= {"greedy": single["text"], "greedy_correct": single["correct"]}
        if beam:
            finished |= {"beam": beam["text"], "beam_correct": beam["correct"]}
        return Row(finished)


# ---- The method Calibrated


@dataclass(frozen=True)
class CalibrateStep(Step):
    """Step that learns the probability that Base's answer is correct, and stores it in the run folder."""

    name: ClassVar[str] = "calibrate"
    needs: ClassVar[tuple[str, ...]] = ("model",)
    m: int
    temperatures: Mapping[str, float]  # temperatures of the candidates; that of the answer first
    settings: Calibrating
    grading: Grading
    clustering: ClusteringSettings
    equivalence: str
    seed: int
    revision: str
    prompt_hash: str
    asking: PromptConfig
    dataset: str
    max_new_tokens: int
    folder: str  # folder of the calibration, relative to the run folder

    def __call__(self, rows: Rows, models: WorkerState, *_: object) -> list[Row]:
        """Learn from the first questions."""
        from semcal.calibration.calibration import CalibrationConfig
        from semcal.calibration.learning import LearningOptions, calibrate_rows
        from semcal.calibration.samples import SamplesOrigin
        from semcal.models.clustering import ClusterConfig
        from semcal.recalibration.files import Provenance

        labelled = set(list(dict.fromkeys(row.id for row in rows))[: self.settings.questions])
        drawn: dict[str, list[Row]] = {name: [] for name in self.temperatures}
        for row in rows:
            if row.id in labelled and (row["m"], row["run"]) == (self.m, 0) and row["candidate"] in drawn:
                drawn[row["candidate"]].append(row)
        questions = [row.to_question() for row in drawn[next(iter(drawn))]]
        provenance = Provenance(
            model=models.model.name,
            revision=self.revision,
            prompt=self.asking.describe(),
            prompt_hash=self.prompt_hash,
            data=f"{self.dataset}, labeled questions of the run",
            data_hash=data_hash(questions),
            n_questions=len(questions),
            seed=self.seed,
            versions=versions(),
        )
        origin = SamplesOrigin(provenance, max_new_tokens=self.max_new_tokens)
        learning = LearningOptions(self.seed, fixed_temperature=True, origin=origin)  # with Base's answers
        options = MeasureOptions(ties=self.clustering.ties)
        # the grid has warned of few questions; the report has the other warnings
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SemcalWarning)
            calibration = calibrate_rows(
                {t: measure_rows(drawn[name], options) for name, t in self.temperatures.items()},
                ClusterConfig(self.equivalence, self.clustering.linkage, self.clustering.merge_refusals),
                CalibrationConfig(
                    risks=() if self.settings.risk is None else self.settings.risk,
                    delta=self.settings.delta,
                    grader=self.grading.grader(),
                ),
                learning,
            )
        calibration.save_pretrained(models.folder / self.folder)
        learned = {
            "temperatures": list(calibration.temperatures),
            "map": asdict(calibration.map),
            "further": calibration.further,
            "threshold": None if calibration.threshold is None else asdict(calibration.threshold),
            "report": asdict(calibration.report),
        }
        return [Row(learned)]


@dataclass(frozen=True)
class ApplyStep(Step):
    """Step that returns Base's test answers in one wording, with the probability that each is correct.

    Rows are finished rows, run after run; the temperature of the answer comes first.
    """

    name: ClassVar[str] = "apply"
    needs: ClassVar[tuple[str, ...]] = ()
    folder: str  # folder of the calibration, relative to the run folder
    learned: str  # hash of the calibration
    temperatures: Mapping[str, float]  # temperatures of the candidates
    grading: Grading

    def __call__(self, rows: Rows, models: WorkerState, *_: object) -> list[Row]:
        from semcal.calibration.calibration import Calibration

        calibration = Calibration.from_pretrained(models.folder / self.folder)
        runs: dict[int, dict[float | None, list[Row]]] = {}
        for row in rows:
            at = runs.setdefault(row["run"], {})
            at.setdefault(self.temperatures[row["candidate"]], []).append(row)
        grader = self.grading.grader()
        answers = []
        for rows_at in runs.values():
            for row, decided in zip(next(iter(rows_at.values())), calibration.apply(rows_at)):
                grade = grade_texts(grader, row["question"], [decided.text], row["answers"])
                share = len(row["clusters"][decided.meaning]) / len(row["samples"])
                stored = asdict(decided)
                del stored["features"]  # known from the samples of the row
                answers.append(Row({"id": row["id"], **stored, "share": share, "correct": grade.correct}))
        return answers
