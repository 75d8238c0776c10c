"""The metrics by name, each a function of a tally, for the summary, the bootstrap and the paired tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from semcal.errors import UsageError
from semcal.metrics.calibration import ace_of, ece_of, smooth_ece_of
from semcal.metrics.ranking import auroc_of
from semcal.metrics.scores import brier_of, brier_parts, corp_parts
from semcal.metrics.selective import aurac_of, prr_of
from semcal.metrics.tally import Floats, Tally

__all__ = ["METRICS", "Metric", "metric_named"]


@dataclass(frozen=True)
class Metric:
    """One number for each row of a tally, and what a bootstrap must know about it."""

    rows: Callable[[Tally, int], Floats]  # (tally, bins) -> [B]
    ranks: bool = False  # takes any score, not only probabilities
    raised: bool = False  # noise in the outcomes raises it, so resampling raises it further
    zero_if_calibrated: bool = False  # its true value is 0 exactly when the confidences are calibrated
    least: float = 0.0


def _error(rows: Callable[[Tally, int], Floats]) -> Metric:
    """An error of calibration."""
    return Metric(rows, raised=True, zero_if_calibrated=True)


#: In the order of a summary.
METRICS = {
    "accuracy": Metric(lambda t, _: t.accuracy, ranks=True),
    "ece": _error(ece_of),
    "ace": _error(ace_of),
    "brier": Metric(lambda t, _: brier_of(t)),
    "reliability": _error(lambda t, _: brier_parts(t)[0]),
    "resolution": Metric(lambda t, _: brier_parts(t)[1], raised=True),
    "uncertainty": Metric(lambda t, _: brier_parts(t)[2]),
    "mcb": _error(lambda t, _: corp_parts(t)[0]),
    "dsc": Metric(lambda t, _: corp_parts(t)[1], raised=True),
    "unc": Metric(lambda t, _: corp_parts(t)[2]),
    "auroc": Metric(lambda t, _: auroc_of(t), ranks=True),
    "aurac": Metric(lambda t, _: aurac_of(t), ranks=True),
    "prr": Metric(lambda t, _: prr_of(t), ranks=True, least=float("-inf")),
    "smooth_ece": _error(lambda t, _: smooth_ece_of(t)),
    "mean_confidence": Metric(lambda t, _: t.mean),
}


def metric_named(name: str) -> Metric:
    """The metric of that name."""
    if name not in METRICS:
        raise UsageError(f"unknown metric {name!r}; known: {', '.join(METRICS)}")
    return METRICS[name]
