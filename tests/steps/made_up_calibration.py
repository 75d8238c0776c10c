"""A calibration whose probabilities can be worked out by hand."""

from __future__ import annotations

from typing import Any

from semcal.calibration.calibration import Calibration, Threshold
from semcal.calibration.report import CalibrationReport, CandidateScore
from semcal.metrics.probability_maps import MapCandidate, ProbabilityMap
from semcal.models.prompting import PromptConfig
from semcal.models.protocols import LanguageModel
from semcal.recalibration.files import Provenance

#: p = .1 + .6 share, of E-SC at the answer's temperature.
OF_THE_SHARE = ProbabilityMap(
    MapCandidate("isotonic", ("E-SC",)), {"thresholds": (0.0, 1.0), "values": (0.1, 0.7)}, (0.5,)
)
#: p = 1 / (1 + exp(−(largest share at T = 2))).
OF_ANOTHER_TEMPERATURE = ProbabilityMap(
    MapCandidate("logistic", ("E-SC at T=2",)), {"slopes": (1.0,), "intercept": (0.0,)}, (0.5,)
)
#: p = 1 / (1 + exp(−likelihood)); −1 where that is unknown.
OF_THE_LIKELIHOOD = ProbabilityMap(
    MapCandidate("logistic", ("likelihood",)), {"slopes": (1.0,), "intercept": (0.0,)}, (-1.0,)
)


def calibration(**changed: Any) -> Calibration:
    """A calibration of 10 draws at T = 1 without a threshold, of samples from a file."""
    tried = (CandidateScore("isotonic(E-SC)", 0.3, 0.1, 0.02),)
    report = CalibrationReport(100, 0, "isotonic(E-SC)", tried, {}, {})
    settings: dict[str, Any] = {
        "map": OF_THE_SHARE,
        "further": 0.2,
        "m": 10,
        "temperature": 1.0,
        "temperatures": (),
        "equivalence": "exact",
        "linkage": "components",
        "answer_format": "whole",
        "threshold": None,
        "report": report,
    }
    return Calibration(**settings | changed)


def threshold(value: float | None) -> Threshold:
    """A threshold for a risk of 10 %."""
    return Threshold(value, 0.1, 0.05, 100, 40, 1, 0.09)


def provenance(model: LanguageModel, asking: PromptConfig | None = None) -> Provenance:
    """Of a calibration of a model's own samples."""
    asked = asking or PromptConfig()
    return Provenance(model.name, model.revision, asked.describe(), asked.hash(model), "made-up", "d0", 100)
