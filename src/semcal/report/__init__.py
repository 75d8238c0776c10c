"""Tables, figures and the self-contained page of a run."""

from semcal.report.figures import write_figure
from semcal.report.fit_figures import loss_figure, steps_figure
from semcal.report.opening import in_words
from semcal.report.table_writers import markdown
from semcal.report.tables import Cell, Column, Table

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
