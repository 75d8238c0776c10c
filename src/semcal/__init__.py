"""Calibrated semantic uncertainty for question answering with language models.

Learn a calibration with `calibrate` (a model), `score(rows).calibrate` (stored samples), `ScoreCalibrator`
(scores) or `calibrate_fields` (documents). Apply it with `ask_many`, `check` and `score`.

>>> import semcal
>>> semcal.confidence([[[0, 1], [2]]], [[-0.7, -0.7, -2.3]], measure="E-SC").probabilities.round(3)
array([0.667, 0.333])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semcal.registry import attribute

if TYPE_CHECKING:
    from semcal import errors, metrics, recalibration
    from semcal.calibration.calibration import Calibration, CalibrationConfig
    from semcal.calibration.calibrator import Calibrator, calibrate
    from semcal.calibration.fields import FieldCalibration, calibrate_fields
    from semcal.calibration.scores import ScoreCalibrator
    from semcal.data.datasets import Questions
    from semcal.data.question import Question
    from semcal.inputs import EquivalenceLike, ModelLike, Samples, load_equivalence
    from semcal.measures import confidence
    from semcal.models.clustering import ClusterConfig
    from semcal.models.load import load_model
    from semcal.models.prompting import PromptConfig
    from semcal.models.sample import SamplingConfig
    from semcal.recalibration.fit import Fit, RecalibratorLike, fit
    from semcal.results import Answer, Results, score
    from semcal.servers.sampler import load_server
    from semcal.uncertainty import SemanticUQ, ask_many, check

__version__ = "0.1.0"

#: Name → the module that holds it, imported when the name is first used.
_ADDRESSES = {
    "Answer": "results",
    "Calibration": "calibration.calibration",
    "CalibrationConfig": "calibration.calibration",
    "Calibrator": "calibration.calibrator",
    "ClusterConfig": "models.clustering",
    "EquivalenceLike": "inputs",
    "FieldCalibration": "calibration.fields",
    "Fit": "recalibration.fit",
    "ModelLike": "inputs",
    "PromptConfig": "models.prompting",
    "Question": "data.question",
    "Questions": "data.datasets",
    "RecalibratorLike": "recalibration.fit",
    "Results": "results",
    "Samples": "inputs",
    "ScoreCalibrator": "calibration.scores",
    "SamplingConfig": "models.sample",
    "SemanticUQ": "uncertainty",
    "ask_many": "uncertainty",
    "calibrate": "calibration.calibrator",
    "calibrate_fields": "calibration.fields",
    "check": "uncertainty",
    "confidence": "measures",
    "errors": "",
    "fit": "recalibration.fit",
    "load_equivalence": "inputs",
    "load_model": "models.load",
    "load_server": "servers.sampler",
    "metrics": "",
    "recalibration": "",
    "score": "results",
}

__all__ = [
    "Answer",
    "Calibration",
    "CalibrationConfig",
    "Calibrator",
    "ClusterConfig",
    "EquivalenceLike",
    "FieldCalibration",
    "Fit",
    "ModelLike",
    "PromptConfig",
    "Question",
    "Questions",
    "RecalibratorLike",
    "Results",
    "Samples",
    "SamplingConfig",
    "ScoreCalibrator",
    "SemanticUQ",
    "__version__",
    "ask_many",
    "calibrate",
    "calibrate_fields",
    "check",
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
