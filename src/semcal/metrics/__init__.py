"""Metrics of confidences: calibration, discrimination, selective answering, and their errors."""

from __future__ import annotations

from semcal.metrics.calibration_errors import (
    ace,
    brier,
    ece,
    gain,
    smooth_ece,
)
from semcal.metrics.diagrams import (
    ReliabilityDiagram,
    SelectiveAccuracy,
    reliability_diagram,
    selective_accuracy,
)
from semcal.metrics.intervals import (
    Contrast,
    Interval,
    JointBootstrap,
    MeanOverRuns,
    PairedTest,
    Slice,
    bootstrap,
    joint_bootstrap,
    mean_and_standard_error,
    slices,
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
from semcal.metrics.thresholds import RiskControlledThreshold, label_free_threshold, risk_controlled_threshold

__all__ = [
    "METRICS",
    "Contrast",
    "Correlations",
    "Interval",
    "JointBootstrap",
    "MeanOverRuns",
    "Metric",
    "NoiseFloor",
    "PairedTest",
    "RankVolatility",
    "ReliabilityDiagram",
    "RiskControlledThreshold",
    "SelectiveAccuracy",
    "Slice",
    "ace",
    "aurac",
    "auroc",
    "bootstrap",
    "brier",
    "correlations",
    "ece",
    "gain",
    "joint_bootstrap",
    "label_free_threshold",
    "mean_and_standard_error",
    "noise_floor",
    "prr",
    "rank_volatility",
    "reliability_diagram",
    "risk_controlled_threshold",
    "selective_accuracy",
    "slices",
    "smooth_ece",
    "summaries",
    "summary",
]
