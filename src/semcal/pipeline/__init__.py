"""One question or many: sample, cluster, measure, grade; and the fit of a temperature. Imports are lazy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semcal.registry import attribute

if TYPE_CHECKING:
    from semcal.pipeline.answer import Answer, Meaning
    from semcal.pipeline.ask import SemanticUQ
    from semcal.pipeline.assess import fit_scores, recalibrate_rows
    from semcal.pipeline.cluster import cluster_rows
    from semcal.pipeline.fitting import Fit, fit
    from semcal.pipeline.grade import EntailmentGrader, grade_row
    from semcal.pipeline.measure import measure_rows
    from semcal.pipeline.prompting import PromptConfig
    from semcal.pipeline.sample import Sampled, sample_questions
    from semcal.pipeline.temperature_grid import (
        TemperatureGrid,
        choose_temperatures,
        fit_grid,
        rows_at_temperatures,
    )

_ADDRESSES = {
    "Answer": "answer",
    "PromptConfig": "prompting",
    "EntailmentGrader": "grade",
    "Fit": "fitting",
    "Meaning": "answer",
    "Sampled": "sample",
    "SemanticUQ": "ask",
    "TemperatureGrid": "temperature_grid",
    "choose_temperatures": "temperature_grid",
    "cluster_rows": "cluster",
    "fit": "fitting",
    "fit_grid": "temperature_grid",
    "fit_scores": "assess",
    "grade_row": "grade",
    "measure_rows": "measure",
    "recalibrate_rows": "assess",
    "rows_at_temperatures": "temperature_grid",
    "sample_questions": "sample",
}

__all__ = [
    "Answer",
    "EntailmentGrader",
    "Fit",
    "Meaning",
    "PromptConfig",
    "Sampled",
    "SemanticUQ",
    "TemperatureGrid",
    "choose_temperatures",
    "cluster_rows",
    "fit",
    "fit_grid",
    "fit_scores",
    "grade_row",
    "measure_rows",
    "recalibrate_rows",
    "rows_at_temperatures",
    "sample_questions",
]


def __getattr__(name: str) -> Any:
    return attribute(__name__, _ADDRESSES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
