"""Jobs of a grid on one block of questions: from greedy answers to rows with calibrated probabilities.

`semcal.models.sampling.SampleJob` draws the answers. Rows are told apart by (candidate, run, m, id), and
every job keeps the order of the rows that it is given.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from semcal.data.question import GROUP, Question, data_hash
from semcal.errors import QuestionError, SemcalWarning
from semcal.experiment.fit_jobs import ModelIdentity
from semcal.experiment.grid_blocks import Choice, Choices, Selected
from semcal.experiment.grid_settings import Calibrating, Clustering, Grading
from semcal.grading.grade import grade_clusters
from semcal.grading.rules import members_to_grade
from semcal.installation import versions
from semcal.measuring import MeasureOptions, measure_rows, scores_by_measure
from semcal.models.clustering import ClusterStep, cluster_answers
from semcal.models.language_model import PromptConfig
from semcal.recalibration.choosing import Candidate, Selection, select_graded, under_alphas
from semcal.rows import FAILED, Json, Row, RowsAt
from semcal.steps import RecalibratorSource, WorkerState
from semcal.text.first_answer import first_answer
from semcal.text.normal_form import normal_form
from semcal.workers import Progress

if TYPE_CHECKING:
    from semcal.recalibration.provenance import Provenance


Rows = list[Row]
Lines = Sequence[str]


@dataclass(frozen=True)
class AnswerBlock:
    """A block of questions, and what is known of their answers so far: rows as JSON."""

    questions: tuple[Question, ...]
    m: int
    sampled: Lines
    clustered: Lines | None = None
    graded: Lines | None = None

    def key(self) -> dict[str, Any]:
        """Its content, as it names blocks."""
        known = {"sampled": self.sampled, "clustered": self.clustered, "graded": self.graded}
        return {
            "questions": [question.row() for question in self.questions],
            **{name: lines for name, lines in known.items() if lines is not None},
        }

    def drawn(self) -> Rows:
        """The rows with their questions, cut to each number of draws."""
        texts = {question.id: question.question for question in self.questions}
        rows = cut_to_counts([Row(json.loads(line)) for line in self.sampled], self.m)
        return [row.set(question=texts[row.id]) for row in rows]

    def rows(self) -> Iterator[Row]:
        """The rows with questions, reference answers and clusters."""
        assert self.clustered is not None
        answers = {question.id: list(question.answers) for question in self.questions}
        for row, groups in zip(self.drawn(), map(json.loads, self.clustered), strict=True):
            assert row["id"] == groups["id"]
            yield row.set(**groups, answers=answers[row.id])

    def grades(self) -> Iterator[dict[str, Any]]:
        """The grades of the clusters of each row."""
        assert self.graded is not None
        return map(json.loads, self.graded)


def cut_to_counts(rows: Sequence[Row], m: int) -> Rows:
    """Cut rows to their first m draws, and those with `counts` to each of these as well.

    >>> row = Row({"id": "1", "counts": [1, 3], "samples": ["a", "b", "c"], "log_likelihoods": [-1, -2, -3]})
    >>> [cut.samples for cut in cut_to_counts([row], 2)]
    [['a', 'b'], ['a'], ['a', 'b', 'c']]
    """
    return [
        row.take(range(min(count, len(row.samples)))).set(m=count)
        for row in rows
        for count in (m, *row.json.get("counts", ()))
    ]


@dataclass(frozen=True)
class GreedyPass:
    """The greedy answers ("greedy") and those of 4 beams ("beam") under one recalibrator."""

    source: RecalibratorSource
    run: int
    kinds: tuple[str, ...]

    def key(self) -> dict[str, Any]:
        """What it is, as it names blocks."""
        return {**self.source.key(), "run": self.run, "kinds": list(self.kinds)}


@dataclass(frozen=True)
class GreedyJob:
    """The most likely answers, token by token and by 4 beams, and whether they are right."""

    stage: ClassVar[str] = "greedy"
    questions: tuple[Question, ...]
    asking: PromptConfig
    passes: tuple[GreedyPass, ...]
    grading: Grading
    max_new_tokens: int

    def key(self) -> dict[str, Any]:
        """What its rows depend on beside the model."""
        return {
            "questions": [question.row() for question in self.questions],
            "recalibrators": [one.key() for one in self.passes],
            "grading": self.grading.model_dump(),
            "longest": self.max_new_tokens,
        }

    def __call__(self, state: WorkerState, progress: Progress) -> Rows:
        """Answer."""
        del progress
        model, grader = state.model, self.grading.grader()
        prompts = self.asking.prompts(model, self.questions)
        rows: Rows = []
        for one in self.passes:
            recalibrator = state.recalibrator(one.source)
            for kind in one.kinds:
                generate: Any = model.greedy if kind == "greedy" else state.language_model.beam
                generations = generate(prompts, recalibrator=recalibrator, max_new_tokens=self.max_new_tokens)
                for question, generation in zip(self.questions, generations):
                    row = Row({"id": question.id, "candidate": one.source.name, "run": one.run, "kind": kind})
                    if isinstance(generation, QuestionError):
                        rows.append(row.set(**{FAILED: generation.reason}))
                        continue
                    text = first_answer(generation.text, question.question).text
                    grade = grader.grade(question.question, [text], question.answers)
                    rows.append(row.set(text=text, correct=grade.correct))
        return rows


@dataclass(frozen=True)
class ClusterAnswersJob:
    """The answers of each row by meaning, at each number of draws."""

    stage: ClassVar[str] = "cluster"
    block: AnswerBlock
    clustering: Clustering

    def key(self) -> dict[str, Any]:
        """What its rows depend on beside the equivalence."""
        return {**self.block.key(), "m": self.block.m, **self.clustering.model_dump()}

    def __call__(self, state: WorkerState, progress: Progress) -> Rows:
        """Cluster."""
        step = ClusterStep(self.clustering.linkage, self.clustering.merge_refusals)
        rows = step(self.block.drawn(), state, progress)
        return [Row({key: row[key] for key in ("id", "normal_forms", "clusters")}) for row in rows]


@dataclass(frozen=True)
class GradeJob:
    """Every cluster of each row graded by rules."""

    stage: ClassVar[str] = "grade"
    block: AnswerBlock
    grading: Grading
    seeds: tuple[int, ...]  # one a run

    def key(self) -> dict[str, Any]:
        """What its rows depend on."""
        how = {"m": self.block.m, "grading": self.grading.model_dump(), "seeds": list(self.seeds)}
        return {**self.block.key(), **how}

    def __call__(self, state: WorkerState, progress: Progress) -> Rows:
        """Grade."""
        del state, progress
        grader, rows = self.grading.grader(), list[Row]()
        for row in self.block.rows():
            grades = grade_clusters(
                row,
                grader=grader,
                seed=self.seeds[row["run"]],
                limit=self.grading.members,
                likeliest=self.grading.choice == "likeliest",
            )
            correct, rule = [grade.correct for grade in grades], [grade.rule for grade in grades]
            rows.append(Row({"id": row["id"], "correct": correct, "rule": rule}))
        return rows


@dataclass(frozen=True)
class EntailmentJob:
    """What each measure puts first graded by entailment: rows with `top_cluster`, one verdict a measure."""

    stage: ClassVar[str] = "nli"
    needs: ClassVar[tuple[str, ...]] = (
        *("id", "question", "answers", "normal_forms", "clusters", "top_cluster"),
    )
    rows: tuple[Mapping[str, Any], ...]
    grading: Grading
    seed: int

    def key(self) -> dict[str, Any]:
        """What its rows depend on beside the equivalence."""
        return {"rows": list(self.rows), "grading": self.grading.model_dump(), "seed": self.seed}

    def __call__(self, state: WorkerState, progress: Progress) -> Rows:
        """Grade."""
        del progress
        pairs: dict[tuple[str, str, str], None] = {}
        pairs_of = [self._pairs(row) for row in self.rows]
        for of_row in pairs_of:
            for of_cluster in of_row.values():
                pairs |= dict.fromkeys(pair for pair in of_cluster if pair[1] and pair[2])
        found = cluster_answers(
            [pair[0] for pair in pairs], [pair[1:] for pair in pairs], state.equivalence
        ).clusters
        same = {pair for pair, clusters in zip(pairs, found) if len(clusters) == 1}
        verdicts = [
            {
                measure: None if index is None else any(pair in same for pair in pairs[index])
                for measure, index in row["top_cluster"].items()
            }
            for row, pairs in zip(self.rows, pairs_of)
        ]
        return [Row({"id": row["id"], "correct_nli": nli}) for row, nli in zip(self.rows, verdicts)]

    def _pairs(self, row: Mapping[str, Any]) -> dict[int, list[tuple[str, str, str]]]:
        """The pairs of texts that decide on each cluster which a measure puts first."""
        found = {}
        for index in sorted({index for index in row["top_cluster"].values() if index is not None}):
            members = members_to_grade(
                row["clusters"][index], seed=self.seed, question_id=row["id"], limit=self.grading.members
            )
            found[index] = [
                (row["question"], row["normal_forms"][i], normal_form(reference))
                for i in members
                for reference in row["answers"]
            ]
        return found


Graded = dict[str, list[list[Row]]]
LOSSES = ("NLL", "SS")


@dataclass(frozen=True)
class SelectJob:
    """What is chosen, from all losses and from each alone, at each number of draws; and all scores."""

    stage: ClassVar[str] = "select"
    candidates: Mapping[str, list[Candidate]]  # by method
    blocks: tuple[AnswerBlock, ...]
    m: int
    counts: tuple[int, ...]  # further numbers of draws
    measure_alphas: tuple[float, ...]
    by: str
    bins: int
    score_maps: bool = False  # whether what score maps are learnt from is told as well
    ties: str = "likelier"

    def key(self) -> dict[str, Any]:
        """What its row depends on."""
        return {
            "methods": {method: list(map(asdict, given)) for method, given in self.candidates.items()},
            "blocks": [block.key() for block in self.blocks],
            "m": self.m,
            "counts": list(self.counts),
            "measure_alphas": list(self.measure_alphas),
            "by": self.by,
            "bins": self.bins,
            "ties": self.ties,
            **({"score_maps": True} if self.score_maps else {}),
        }

    def __call__(self, state: WorkerState, progress: Progress) -> list[Json]:
        """Choose."""
        del state, progress
        graded = self._graded()
        chosen_at = {
            count: {method: self._chosen(of, given) for method, given in self.candidates.items()}
            for count, of in graded.items()
        }
        chosen = chosen_at[self.m]
        by_loss: dict[str, Choices] = {}
        for loss in LOSSES:
            of_loss = {
                method: [candidate for candidate in candidates if candidate.loss == loss]
                for method, candidates in self.candidates.items()
            }
            by_loss[loss] = {
                method: _choices(self._chosen(graded[self.m], candidates))
                for method, candidates in of_loss.items()
                if candidates
            }
        selected = Selected(
            methods={method: _choices(selection) for method, selection in chosen.items()},
            by_loss=by_loss,
            by_draws={
                str(count): {method: _choices(selection) for method, selection in chosen_at[count].items()}
                for count in self.counts
            },
            table=[
                {"method": method, **row} for method, selection in chosen.items() for row in selection.table()
            ],
            validation_scores=self._of_base(graded[self.m], chosen) if self.score_maps else None,
        )
        return [selected.model_dump()]

    def _of_base(self, graded: Graded, chosen: Mapping[str, Selection]) -> dict[str, dict[str, list[Any]]]:
        """Measure → confidence and correctness of Base on validation, from which score maps are learnt."""
        found: dict[str, dict[str, list[Any]]] = {}
        for measure, entry in chosen["Base"].chosen.items():
            place = self.measure_alphas.index(entry.measure_alpha) if entry.measure_alpha else 0
            scores = scores_by_measure(graded["Base"][place], [measure])[measure]
            found[measure] = {"confidence": list(scores.confidence), "correct": list(scores.correct)}
        return found

    def _chosen(self, graded: Graded, candidates: list[Candidate]) -> Selection:
        return select_graded(
            {candidate: graded[candidate.name] for candidate in candidates},
            measure_alphas=self.measure_alphas,
            bins=self.bins,
            by=self.by,
        )

    def _graded(self) -> dict[int, Graded]:
        """Number of draws → candidate → for each a of T-SC and G-SC the graded rows of all questions."""
        rows: dict[tuple[int, str], Rows] = {}
        verdicts: dict[tuple[int, str], list[list[bool]]] = {}
        for block in self.blocks:
            for row, grades in zip(block.rows(), block.grades(), strict=True):
                key = row["m"], row["candidate"]
                rows.setdefault(key, []).append(
                    Row({name: row[name] for name in ("id", "clusters", "log_likelihoods")})
                )
                verdicts.setdefault(key, []).append(grades["correct"])
        found: dict[int, Graded] = {}
        for (count, name), of_one in rows.items():
            found.setdefault(count, {})[name] = under_alphas(
                of_one, verdicts[count, name], self.measure_alphas, self.ties
            )
        return found


def _choices(selection: Selection) -> dict[str, Choice]:
    return {
        measure: Choice.of(entry.candidate, entry.measure_alpha)
        for measure, entry in selection.chosen.items()
    }


@dataclass(frozen=True)
class MeasureJob:
    """The rows of a block of test questions, group after group: a candidate, a run, a number of draws."""

    stage: ClassVar[str] = "measure"
    block: AnswerBlock
    greedy: Sequence[str]
    measure_alphas: Mapping[str, Sequence[float]]  # candidate → the a of T-SC and of G-SC
    measure_alphas_at: Mapping[str, Mapping[str, Sequence[float]]]  # the same at other numbers of draws
    model: str
    dataset: str
    ties: str = "likelier"

    def key(self) -> dict[str, Any]:
        """What its rows depend on."""
        return {
            **self.block.key(),
            "m": self.block.m,
            "greedy": self.greedy,
            "measure_alphas": self.measure_alphas,
            "measure_alphas_at": self.measure_alphas_at,
            "model_name": self.model,
            "dataset": self.dataset,
            "ties": self.ties,
        }

    def __call__(self, state: WorkerState, progress: Progress) -> Rows:
        """Measure."""
        del state, progress
        groups: dict[tuple[str, int, int], Rows] = {}
        for row, grades in zip(self.block.rows(), self.block.grades(), strict=True):
            key = (row["candidate"], row["run"], row["m"])
            groups.setdefault(key, []).append(row.set(grades=grades))
        shared = {question.id: passage_and_group(question) for question in self.block.questions}
        answers = {
            (row["kind"], row["candidate"], row["run"], row["id"]): row
            for row in map(json.loads, self.greedy)
        }
        rows: Rows = []
        for (candidate, _, count), of_group in groups.items():
            alphas = self.measure_alphas_at.get(str(count), self.measure_alphas)[candidate]
            rows += [
                self._row(row, shared[row["id"]], answers)
                for row in measure_rows(of_group, MeasureOptions(alphas[0], alphas[1], ties=self.ties))
            ]
        return rows

    def _row(
        self,
        row: Row,
        shared: Mapping[str, Any],
        answers: Mapping[tuple[str, str, int, str], Mapping[str, Any]],
    ) -> Row:
        """A finished row; its greedy answer is Base's where the method keeps the argmax."""
        name, run, id = row["candidate"], row["run"], row["id"]

        def answer(kind: str) -> Mapping[str, Any] | None:
            return answers.get((kind, name, run, id)) or answers.get((kind, name, 0, id))

        single = answer("greedy") or answers["greedy", "Base", 0, id]
        beam = answer("beam")
        top, grades = row["top_cluster"], row["grades"]
        fields = {
            "id": id,
            "question": row["question"],
            "answers": row["answers"],
            **shared,
            "model": self.model,
            "dataset": self.dataset,
            **{key: row[key] for key in ("candidate", "run", "samples", "log_likelihoods", "likelihood")},
            **{key: row[key] for key in ("normal_forms", "clusters", "confidences", "semantic_entropy")},
            **{key: row[key] for key in ("confidence", "top_cluster")},
            **{
                key: {name: None if index is None else grades[key][index] for name, index in top.items()}
                for key in ("correct", "rule")
            },
            "greedy": single["text"],
            "greedy_correct": single["correct"],
            **({"beam": beam["text"], "beam_correct": beam["correct"]} if beam else {}),
        }
        return Row(fields)


def passage_and_group(question: Question) -> dict[str, Any]:
    """The fields of a question that say which others share something with it."""
    return {key: value for key, value in question.row().items() if key in ("context", GROUP)}


@dataclass(frozen=True)
class CalibrateJob:
    """The probability that Base's answer is right, learnt from labelled questions; kept in the run folder."""

    stage: ClassVar[str] = "calibrate"
    blocks: tuple[AnswerBlock, ...]
    m: int
    candidates: Mapping[float, str]  # temperature → whose draws are read at it; those of the answer first
    how: Calibrating
    grading: Grading
    seed: int
    identity: ModelIdentity
    asking: PromptConfig
    equivalence: str
    linkage: str
    dataset: str
    max_new_tokens: int
    folder: str  # where the calibration is kept, relative to the run folder
    ties: str = "likelier"

    def key(self) -> dict[str, Any]:
        """What its rows depend on beside the model."""
        names = ("m", "seed", "equivalence", "linkage", "dataset", "max_new_tokens", "folder", "ties")
        return {
            "blocks": [block.key() for block in self.blocks],
            "candidates": {f"{t:g}": name for t, name in self.candidates.items()},
            "how": self.how.model_dump(),
            "grading": self.grading.model_dump(),
            **{name: getattr(self, name) for name in names},
        }

    def __call__(self, state: WorkerState, progress: Progress) -> list[Json]:
        """Learn."""
        from semcal.calibration.learn import Learning, SamplesOrigin, calibrate_rows

        del progress
        asked = {question.id: question for block in self.blocks for question in block.questions}
        chosen = dict(list(asked.items())[: self.how.questions])
        drawn: dict[str, Rows] = {name: [] for name in self.candidates.values()}
        for row in (row for block in self.blocks for row in block.rows()):
            if row["id"] in chosen and (row["m"], row["run"]) == (self.m, 0) and row["candidate"] in drawn:
                drawn[row["candidate"]].append(row.set(**passage_and_group(chosen[row["id"]])))
        with warnings.catch_warnings():  # of few questions the grid has warned; the rest is in the report
            warnings.simplefilter("ignore", SemcalWarning)
            found = calibrate_rows(
                {
                    t: measure_rows(drawn[name], MeasureOptions(ties=self.ties))
                    for t, name in self.candidates.items()
                },
                self.equivalence,
                self.linkage,
                Learning(
                    self.how.risk,
                    self.how.delta,
                    self.seed,
                    self.grading.grader(),
                    learn_temperature=False,  # Calibrated gives Base's answers
                ),
                SamplesOrigin(
                    self._provenance(state, list(chosen.values())), max_new_tokens=self.max_new_tokens
                ),
            )
        found.save_pretrained(state.folder / self.folder)
        threshold = None if found.threshold is None else asdict(found.threshold)
        return [
            {
                "temperatures": list(found.temperatures),
                "map": asdict(found.map),
                "further": found.further,
                "threshold": threshold,
                "report": asdict(found.report),
            }
        ]

    def _provenance(self, state: WorkerState, labelled: Sequence[Question]) -> Provenance:
        from semcal.recalibration.provenance import Provenance

        return Provenance(
            model=state.model.name,
            revision=self.identity.revision,
            prompt=self.asking.describe(),
            prompt_hash=self.identity.prompt,
            data=f"{self.dataset}, labelled questions of the run",
            data_hash=data_hash(labelled),
            n_questions=len(labelled),
            seed=self.seed,
            versions=versions(),
        )


@dataclass(frozen=True)
class ApplyJob:
    """Base's answers to a block of test questions in one wording, and the probability that each is right."""

    stage: ClassVar[str] = "apply"
    folder: str  # of the calibration, relative to the run folder
    calibration: Sequence[str]  # its row, as JSON
    #: For each run: temperature → finished rows as JSON, those of the answer first.
    runs: Sequence[Mapping[float, Sequence[str]]]
    grading: Grading

    def key(self) -> dict[str, Any]:
        """What its rows depend on."""
        return {
            "folder": self.folder,
            "calibration": list(self.calibration),
            "runs": [{f"{t:g}": list(lines) for t, lines in rows.items()} for rows in self.runs],
            "grading": self.grading.model_dump(),
        }

    def __call__(self, state: WorkerState, progress: Progress) -> Rows:
        """Apply."""
        from semcal.calibration.calibrated import Calibration

        del progress
        calibration = Calibration.from_pretrained(state.folder / self.folder)
        grader, found = self.grading.grader(), list[Row]()
        for lines_at in self.runs:
            rows: RowsAt = {t: [Row(json.loads(line)) for line in lines] for t, lines in lines_at.items()}
            for row, one in zip(next(iter(rows.values())), calibration.apply(rows)):
                grade = grader.grade(row["question"], [one.text], row["answers"])
                share = len(row["clusters"][one.meaning]) / len(row["samples"])
                found.append(Row({"id": row["id"], **asdict(one), "share": share, "correct": grade.correct}))
        return found
