"""Plots of a reliability diagram and of selective accuracy; the one module here that loads matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes as Axes

if TYPE_CHECKING:
    from semcal.metrics.decompositions import ReliabilityDiagram
    from semcal.metrics.selective import SelectiveAccuracy

#: Two of Okabe and Ito's colours, which can be told apart with any kind of colour vision.
BLUE, VERMILION = "#0072b2", "#d55e00"
LEGEND: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "framealpha": 0.8}


def plot_reliability(diagram: ReliabilityDiagram, ax: Axes | None) -> Axes:
    """Bins as dots of the size of their share, the CORP curve, and the band of calibrated confidences."""
    ax = _unit_axes(ax, "confidence", "share correct")
    ax.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--", label="calibrated")
    band = (diagram.confidence, diagram.band_low, diagram.band_high)
    ax.fill_between(*band, color="0.9", linewidth=0, label=f"{diagram.level:.0%} band if calibrated")
    ax.plot(diagram.confidence, diagram.recalibrated, color=BLUE, linewidth=2, label="isotonic fit")
    share = diagram.bin_count / diagram.bin_count.sum()
    ax.scatter([], [], s=40, color=VERMILION, alpha=0.6, linewidth=0, label="bins")
    ax.scatter(
        diagram.bin_confidence,
        diagram.bin_accuracy,
        s=20 + 400 * share,
        color=VERMILION,
        alpha=0.6,
        linewidth=0,
        clip_on=False,
        zorder=3,
    )
    ax.set_aspect("equal")
    ax.legend(loc="upper left", fontsize="small", **LEGEND)
    return ax


def plot_selective(curve: SelectiveAccuracy, ax: Axes | None, threshold: float | None = None) -> Axes:
    """Accuracy among the answered by threshold, with the share answered, or by rejection rate."""
    by_threshold = curve.by == "threshold"
    ax = _unit_axes(ax, "threshold" if by_threshold else "share rejected", "share")
    order = np.argsort(curve.points)
    points, marker = curve.points[order], "." if len(order) < 30 else ""
    how: dict[str, Any] = {"linewidth": 2, "marker": marker}
    ax.plot(points, curve.accuracy[order], color=BLUE, label="correct among the answered", **how)
    if by_threshold:
        ax.plot(points, curve.coverage[order], color=VERMILION, label="answered", **how)
        if len(points) and not 0 <= points[0] <= points[-1] <= 1:
            ax.set_xlim(points[0], points[-1])
    if by_threshold and threshold is not None:
        ax.axvline(threshold, color="0.4", linestyle=":", label=f"threshold {threshold:.2f}")
    ax.legend(loc="lower left", fontsize="small", **LEGEND)
    return ax


def _unit_axes(ax: Axes | None, x: str, y: str) -> Axes:
    """Axes from 0 to 1 with labels; of a new figure if none are given."""
    if ax is None:
        ax = plt.subplots(figsize=(4.5, 4.5), layout="constrained")[1]
    ax.set(xlim=(0, 1), ylim=(0, 1.02), xlabel=x, ylabel=y)
    ax.spines[["top", "right"]].set_visible(False)
    return ax
