"""Tables, figures and the self-contained page of a run."""

from semcal.report.curves import learning_curve_figure
from semcal.report.losses import loss_figure, steps_figure, write_figure
from semcal.report.summary import in_words
from semcal.report.tables import Cell, Column, Table, deviation_table, markdown

__all__ = [
    "Cell",
    "Column",
    "Table",
    "deviation_table",
    "in_words",
    "learning_curve_figure",
    "loss_figure",
    "markdown",
    "steps_figure",
    "write_figure",
]
