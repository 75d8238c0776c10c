"""The job of a grid that chooses on validation, for each method and measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from semcal.experiment.answer_jobs import AnswerBlock
from semcal.pipeline.assess import scores_by_measure
from semcal.pipeline.candidates import Candidate
from semcal.pipeline.executor import Progress
from semcal.pipeline.select import Selection, select_graded, under_alphas
from semcal.pipeline.worker_state import WorkerState

__all__ = ["SelectJob"]

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
    accuracy_within: float | None
    bins: int
    score_maps: bool = False  # whether what score maps are learnt from is told as well

    def key(self) -> dict[str, Any]:
        """What its row depends on."""
        return {
            "methods": {method: list(map(asdict, given)) for method, given in self.candidates.items()},
            "blocks": [block.key() for block in self.blocks],
            "m": self.m,
            "counts": list(self.counts),
            "measure_alphas": list(self.measure_alphas),
            "accuracy_within": self.accuracy_within,
            "bins": self.bins,
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
            accuracy_within=self.accuracy_within,
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
                of_one, verdicts[count, name], self.measure_alphas
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
