"""How good confidences are: calibration, discrimination, selective answering, and the errors of all these."""

from __future__ import annotations

from semcal.metrics.bootstrapping import bootstrap, joint_bootstrap, paired_test
from semcal.metrics.calibration import ace, ace_in_row_order, ece, smooth_ece
from semcal.metrics.decompositions import (
    BrierDecomposition,
    Corp,
    ReliabilityDiagram,
    brier,
    brier_decomposition,
    corp,
    gain,
    reliability_diagram,
)
from semcal.metrics.grader_agreement import Agreement, agreement
from semcal.metrics.intervals import (
    Contrast,
    Interval,
    JointBootstrap,
    MeanOverRuns,
    PairedTest,
    mean_and_standard_error,
)
from semcal.metrics.overview import METRICS, Metric, NoiseFloor, noise_floor, summaries, summary
from semcal.metrics.ranking import (
    Correlations,
    RankVolatility,
    aurac,
    auroc,
    correlations,
    prr,
    rank_volatility,
)
from semcal.metrics.score_recalibration import (
    SCORE_RECALIBRATORS,
    BetaCalibration,
    IsotonicCalibration,
    PlattCalibration,
    ScoreRecalibrator,
)
from semcal.metrics.selective import SelectiveAccuracy, selective_accuracy
from semcal.metrics.thresholds import RiskControlledThreshold, risk_controlled_threshold

__all__ = [
    "METRICS",
    "SCORE_RECALIBRATORS",
    "Agreement",
    "BetaCalibration",
    "BrierDecomposition",
    "Contrast",
    "Corp",
    "Correlations",
    "Interval",
    "IsotonicCalibration",
    "JointBootstrap",
    "MeanOverRuns",
    "Metric",
    "NoiseFloor",
    "PairedTest",
    "PlattCalibration",
    "RankVolatility",
    "ReliabilityDiagram",
    "RiskControlledThreshold",
    "ScoreRecalibrator",
    "SelectiveAccuracy",
    "ace",
    "ace_in_row_order",
    "agreement",
    "aurac",
    "auroc",
    "bootstrap",
    "brier",
    "brier_decomposition",
    "corp",
    "correlations",
    "ece",
    "gain",
    "joint_bootstrap",
    "mean_and_standard_error",
    "noise_floor",
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
