"""How good confidences are: calibration, discrimination, selective answering, and the errors of all these."""

from __future__ import annotations

from semcal.metrics.calibration import ace, ace_in_row_order, ece, smooth_ece
from semcal.metrics.common_resamples import CommonResamples, Contrast, common_resamples
from semcal.metrics.comparisons import Correlations, RankVolatility, correlations, rank_volatility
from semcal.metrics.diagrams import ReliabilityDiagram, reliability_diagram
from semcal.metrics.intervals import (
    Interval,
    MeanOverRuns,
    PairedTest,
    bootstrap,
    mean_and_standard_error,
    paired_test,
)
from semcal.metrics.overview import summaries, summary
from semcal.metrics.ranking import auroc
from semcal.metrics.recalibration import (
    SCORE_RECALIBRATORS,
    BetaCalibration,
    IsotonicCalibration,
    PlattCalibration,
    ScoreRecalibrator,
)
from semcal.metrics.risk import RiskControlledThreshold, risk_controlled_threshold
from semcal.metrics.scores import BrierDecomposition, Corp, brier, brier_decomposition, corp
from semcal.metrics.selective import SelectiveAccuracy, aurac, prr, selective_accuracy

__all__ = [
    "SCORE_RECALIBRATORS",
    "BetaCalibration",
    "BrierDecomposition",
    "CommonResamples",
    "Contrast",
    "Corp",
    "Correlations",
    "Interval",
    "IsotonicCalibration",
    "MeanOverRuns",
    "PairedTest",
    "PlattCalibration",
    "RankVolatility",
    "ReliabilityDiagram",
    "RiskControlledThreshold",
    "ScoreRecalibrator",
    "SelectiveAccuracy",
    "ace",
    "ace_in_row_order",
    "aurac",
    "auroc",
    "bootstrap",
    "brier",
    "brier_decomposition",
    "common_resamples",
    "corp",
    "correlations",
    "ece",
    "mean_and_standard_error",
    "paired_test",
    "prr",
    "rank_volatility",
    "reliability_diagram",
    "risk_controlled_threshold",
    "selective_accuracy",
    "smooth_ece",
    "summaries",
    "summary",
]
