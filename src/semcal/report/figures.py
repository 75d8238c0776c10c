"""How figures look: colours of methods, markers of measures, and a reliability diagram on given axes.

One colour is one method and one marker is one measure, everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from semcal import metrics

__all__ = [
    "INK",
    "MEASURE_MARKERS",
    "METHOD_COLOURS",
    "draw_reliability",
    "measure_marker",
    "method_colour",
]

#: A name of matplotlib's, or an offset with lengths of dashes and gaps.
LineStyle = str | tuple[float, tuple[float, ...]]

#: Okabe and Ito's colours, which people with any kind of colour vision can tell apart.
METHOD_COLOURS = {
    "Base": "#d55e00",
    "SE": "#cc79a7",
    "TS": "#0072b2",
    "ATS": "#009e73",
    "Platt": "#e69f00",
    "TS-grid": "#56b4e9",
}

#: Lines differ as well, for print without colour.
METHOD_LINES: dict[str, LineStyle] = {
    "Base": (0, (4, 1.5)),
    "SE": (0, (1, 1.2)),
    "TS": "-",
    "ATS": (0, (6, 1, 1, 1)),
    "Platt": (0, (3, 1, 1, 1, 1, 1)),
}

MEASURE_MARKERS = {
    "E-SC": "o",
    "L-SC": "s",
    "ML-SC": "D",
    "B-SC": "^",
    "T-SC": "v",
    "IC-SC": "P",
    "G-SC": "X",
}

INK, QUIET, RULE, BAND, OTHER = "#1f2328", "#656b73", "#d6dade", "#c3c9d0", "#767676"

#: The rejection rates at which selective accuracy is drawn: beyond 90 % too few questions are left.
REJECTION = np.linspace(0, 0.9, 46)

RELIABILITY_NOTE = (
    "How often answers of a given confidence are right. Calibrated answers lie on the diagonal; the grey "
    "band is where chance alone would put the line of a calibrated confidence nine times in ten. "
    "Line: isotonic (CORP) estimate. Points: bins of equal width, larger where they hold more questions. "
    "Below: how often each confidence occurs."
)

#: Resamples for a consistency band: its edges are read off a plot, not off a table.
RESAMPLES = 500

#: How the figures are set; held while a figure is made and while it is written.
STYLE: dict[Any, Any] = {
    "axes.edgecolor": QUIET,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.labelsize": 8.5,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9,
    "axes.titley": 1.0,  # above no ticks, so that no place has to be found for it
    "figure.facecolor": "none",
    "font.size": 8,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "semcal",
    "text.color": INK,
    "xtick.color": QUIET,
    "xtick.labelcolor": INK,
    "xtick.major.width": 0.6,
    "ytick.color": QUIET,
    "ytick.labelcolor": INK,
    "ytick.major.width": 0.6,
}


@contextmanager
def style() -> Iterator[None]:
    """Set figures as `STYLE` says while the block (or the decorated function) runs."""
    with matplotlib.rc_context(STYLE):
        yield


def method_colour(method: str) -> str:
    """The colour of a method, grey for one without a colour of its own."""
    return METHOD_COLOURS.get(method, OTHER)


def measure_marker(measure: str) -> str:
    """The marker of a measure, a star for one without a marker of its own."""
    return MEASURE_MARKERS.get(measure, "*")


def padded(values: Sequence[float]) -> tuple[float, float]:
    """Limits of an axis that leave some room around the values."""
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or 0.05
    return low - margin, high + margin


def draw_reliability(
    axes: Axes, below: Axes, confidence: NDArray[np.float64], correct: NDArray[np.bool_], colour: str
) -> None:
    """Draw the share of right answers against confidence, and below it how often each confidence occurs."""
    diagram = metrics.reliability_diagram(confidence, correct, resamples=RESAMPLES)
    axes.fill_between(
        diagram.confidence, diagram.band_low, diagram.band_high, color=BAND, alpha=0.7, linewidth=0
    )
    axes.plot([0, 1], [0, 1], color=QUIET, linewidth=0.7)
    axes.plot(diagram.confidence, diagram.recalibrated, color=colour, linewidth=1.5)
    axes.scatter(
        diagram.bin_confidence,
        diagram.bin_accuracy,
        s=8 + 90 * diagram.bin_count / len(confidence),
        color=colour,
        alpha=0.55,
        linewidths=0,
    )
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.tick_params(labelbottom=False)
    axes.set_ylabel("share right")
    shares, edges = np.histogram(confidence, bins=20, range=(0, 1))
    below.stairs(shares / len(confidence), edges, color=colour, alpha=0.55, fill=True)
    below.set_ylim(0, 1)
    below.set_yticks([0, 1], ["0 %", "100 %"])
    below.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    below.set_xlabel("confidence")
