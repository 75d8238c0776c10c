"""Plots of a reliability diagram and of selective accuracy; the one module here that loads matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes as Axes

if TYPE_CHECKING:
    from semcal.metrics.decompositions import ReliabilityDiagram
    from semcal.metrics.selective import SelectiveAccuracy


def plot_reliability(diagram: ReliabilityDiagram, ax: Axes | None) -> Axes:
    """Bins as dots of the size of their share, the CORP curve, and the band of calibrated confidences."""
    ax = _unit_axes(ax, "confidence", "share correct")
    ax.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--", label="calibrated")
    band = (diagram.confidence, diagram.band_low, diagram.band_high)
    ax.fill_between(*band, color="0.85", linewidth=0, label=f"{diagram.level:.0%} band if calibrated")
    ax.plot(diagram.confidence, diagram.recalibrated, color="C0", linewidth=1.5, label="isotonic fit")
    share = diagram.bin_count / diagram.bin_count.sum()
    ax.scatter(
        diagram.bin_confidence, diagram.bin_accuracy, s=20 + 400 * share, color="C1", alpha=0.7, label="bins"
    )
    ax.set_aspect("equal")
    ax.legend(loc="upper left", frameon=False, fontsize="small")
    return ax


def plot_selective(curve: SelectiveAccuracy, ax: Axes | None) -> Axes:
    """Accuracy among the answered by threshold, with the share answered, or by rejection rate."""
    by_threshold = curve.by == "threshold"
    ax = _unit_axes(ax, "threshold" if by_threshold else "share rejected", "share")
    order = np.argsort(curve.points)
    points, marker = curve.points[order], "." if len(order) < 30 else ""
    ax.plot(points, curve.accuracy[order], color="C0", marker=marker, label="correct among the answered")
    if by_threshold:
        ax.plot(points, curve.coverage[order], color="C1", marker=marker, label="answered")
        if len(points) and not 0 <= points[0] <= points[-1] <= 1:
            ax.set_xlim(points[0], points[-1])
    ax.legend(loc="lower left", frameon=False, fontsize="small")
    return ax


def _unit_axes(ax: Axes | None, x: str, y: str) -> Axes:
    """Axes from 0 to 1 with labels; of a new figure if none are given."""
    if ax is None:
        ax = plt.subplots(figsize=(4.5, 4.5))[1]
    ax.set(xlim=(0, 1), ylim=(0, 1.02), xlabel=x, ylabel=y)
    return ax
