"""Calibrated semantic uncertainty for question answering with language models.

>>> import semcal
>>> semcal.confidence([[[0, 1], [2]]], [[-0.7, -0.7, -2.3]], measure="E-SC").probabilities.round(3)
array([0.667, 0.333])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semcal.registry import attribute

if TYPE_CHECKING:
    from semcal import errors, metrics, recalibration
    from semcal.calibration.calibrated import Calibration
    from semcal.calibration.from_model import calibrate
    from semcal.engine.loading import load_equivalence, load_model
    from semcal.engine.servers.sampler import load_server
    from semcal.pipeline.fitting import Fit, RecalibratorLike, fit
    from semcal.pipeline.inputs import EquivalenceLike, ModelLike, Questions, Samples
    from semcal.qa.questions import Question
    from semcal.results import Answer, Results, score
    from semcal.semantics import confidence
    from semcal.uncertainty import SemanticUQ, ask_many

__version__ = "0.1.0"

#: Name → the module that holds it, imported when the name is first used.
_ADDRESSES = {
    "Answer": "results",
    "Calibration": "calibration.calibrated",
    "EquivalenceLike": "pipeline.inputs",
    "Fit": "pipeline.fitting",
    "ModelLike": "pipeline.inputs",
    "Question": "qa.questions",
    "Questions": "pipeline.inputs",
    "RecalibratorLike": "pipeline.fitting",
    "Results": "results",
    "Samples": "pipeline.inputs",
    "SemanticUQ": "uncertainty",
    "ask_many": "uncertainty",
    "calibrate": "calibration.from_model",
    "confidence": "semantics",
    "confidences": "semantics",  # the old name, for a release
    "errors": "",
    "fit": "pipeline.fitting",
    "load_equivalence": "engine.loading",
    "load_model": "engine.loading",
    "load_server": "engine.servers.sampler",
    "metrics": "",
    "recalibration": "",
    "score": "results",
}

__all__ = [
    "Answer",
    "Calibration",
    "EquivalenceLike",
    "Fit",
    "ModelLike",
    "Question",
    "Questions",
    "RecalibratorLike",
    "Results",
    "Samples",
    "SemanticUQ",
    "__version__",
    "ask_many",
    "calibrate",
    "confidence",
    "errors",
    "fit",
    "load_equivalence",
    "load_model",
    "load_server",
    "metrics",
    "recalibration",
    "score",
]


def __getattr__(name: str) -> Any:
    return attribute(__name__, _ADDRESSES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
