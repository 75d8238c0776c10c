"""Tables, figures and the self-contained page of a run."""

from semcal.experiment.report.cells import Cell, Column, Table
from semcal.experiment.report.summary import in_words
from semcal.experiment.report.table_writers import markdown
from semcal.plotting import loss_figure, steps_figure, write_figure

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
