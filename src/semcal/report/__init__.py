"""Tables, figures and the self-contained page of a run."""

from semcal.report.cells import Cell, Column, Table
from semcal.report.fit_figures import loss_figure, steps_figure
from semcal.report.plotting import write_figure
from semcal.report.summary import in_words
from semcal.report.table_writers import markdown

__all__ = [
    "Cell",
    "Column",
    "Table",
    "in_words",
    "loss_figure",
    "markdown",
    "steps_figure",
    "write_figure",
]
