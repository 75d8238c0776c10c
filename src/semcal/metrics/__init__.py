"""How good confidences are: calibration, discrimination, selective answering, and the errors of all these."""

from __future__ import annotations

from semcal.metrics.calibration import ace, ece, smooth_ece
from semcal.metrics.ranking import auroc
from semcal.metrics.scores import BrierDecomposition, Corp, brier, brier_decomposition, corp
from semcal.metrics.selective import SelectiveAccuracy, aurac, prr, selective_accuracy
from semcal.metrics.summaries import summary

__all__ = [
    "BrierDecomposition",
    "Corp",
    "SelectiveAccuracy",
    "ace",
    "aurac",
    "auroc",
    "brier",
    "brier_decomposition",
    "corp",
    "ece",
    "prr",
    "selective_accuracy",
    "smooth_ece",
    "summary",
]
