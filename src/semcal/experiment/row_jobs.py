"""Jobs of a grid that need no model: what is chosen on validation, and the rows of the test questions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from semcal.experiment.answer_jobs import AnswerBlock
from semcal.pipeline.assess import scores_by_measure
from semcal.pipeline.measure import measure_rows
from semcal.pipeline.select import Candidate, Selection, select_graded, under_alphas
from semcal.pipeline.worker_state import WorkerState
from semcal.qa.questions import GROUP, Question
from semcal.workers import Progress

Rows = list[dict[str, Any]]
Graded = dict[str, list[list[dict[str, Any]]]]
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

    def __call__(self, state: WorkerState, progress: Progress) -> Rows:
        """Choose."""
        del state, progress
        graded = self._graded()
        chosen_at = {
            count: {method: self._chosen(of, given) for method, given in self.candidates.items()}
            for count, of in graded.items()
        }
        chosen = chosen_at[self.m]
        by_loss: dict[str, dict[str, Any]] = {loss: {} for loss in LOSSES}
        for method, candidates in self.candidates.items():
            for loss, found in by_loss.items():
                of_loss = [candidate for candidate in candidates if candidate.loss == loss]
                if of_loss:
                    found[method] = _choices(self._chosen(graded[self.m], of_loss))
        return [
            {
                "methods": {method: _choices(selection) for method, selection in chosen.items()},
                "by_loss": by_loss,
                "by_draws": {
                    str(count): {
                        method: _choices(selection) for method, selection in chosen_at[count].items()
                    }
                    for count in self.counts
                },
                "table": [
                    {"method": method, **row}
                    for method, selection in chosen.items()
                    for row in selection.table()
                ],
                **({"validation_scores": self._of_base(graded[self.m], chosen)} if self.score_maps else {}),
            }
        ]

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
                    {name: row[name] for name in ("id", "clusters", "log_likelihoods")}
                )
                verdicts.setdefault(key, []).append(grades["correct"])
        found: dict[int, Graded] = {}
        for (count, name), of_one in rows.items():
            found.setdefault(count, {})[name] = under_alphas(
                of_one, verdicts[count, name], self.measure_alphas, self.ties
            )
        return found


def _choices(selection: Selection) -> dict[str, dict[str, Any]]:
    return {
        measure: {
            "candidate": entry.candidate.name,
            "measure_alpha": entry.measure_alpha,
            "loss": entry.candidate.loss,
            "alpha": entry.candidate.alpha,
            "weight_decay": entry.candidate.weight_decay,
        }
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
            groups.setdefault(key, []).append({**row, "grades": grades})
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
                for row in measure_rows(of_group, t_alpha=alphas[0], g_alpha=alphas[1], ties=self.ties)
            ]
        return rows

    def _row(
        self,
        row: Mapping[str, Any],
        shared: Mapping[str, Any],
        answers: Mapping[tuple[str, str, int, str], Mapping[str, Any]],
    ) -> dict[str, Any]:
        """A finished row; its greedy answer is Base's where the method keeps the argmax."""
        name, run, id = row["candidate"], row["run"], row["id"]

        def answer(kind: str) -> Mapping[str, Any] | None:
            return answers.get((kind, name, run, id)) or answers.get((kind, name, 0, id))

        single = answer("greedy") or answers["greedy", "Base", 0, id]
        beam = answer("beam")
        top, grades = row["top_cluster"], row["grades"]
        return {
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


def passage_and_group(question: Question) -> dict[str, Any]:
    """The fields of a question that say which others share something with it."""
    return {key: value for key, value in question.row().items() if key in ("context", GROUP)}
