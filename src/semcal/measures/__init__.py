"""Formulas on clusters of sampled answers: the seven measures and entropies."""

from __future__ import annotations

from semcal.measures.formulas import (
    MEASURES,
    ClusterStatistics,
    Measure,
    SemanticConfidence,
    confidence,
    number_of_clusters,
    predictive_entropy,
    semantic_entropy_monte_carlo,
    semantic_entropy_rao_blackwell,
)

__all__ = [
    "MEASURES",
    "ClusterStatistics",
    "Measure",
    "SemanticConfidence",
    "confidence",
    "number_of_clusters",
    "predictive_entropy",
    "semantic_entropy_monte_carlo",
    "semantic_entropy_rao_blackwell",
]
