"""Tables, figures and the self-contained page of a run."""

from semcal.report.curves import learning_curve_figure
from semcal.report.demo_tables import answer_table, set_table, summary_table
from semcal.report.figures import reliability_figure, save_figures, scatter_figure, selective_figure
from semcal.report.losses import loss_figure, steps_figure, write_figure
from semcal.report.page import build
from semcal.report.run import Run, read_run
from semcal.report.table_writers import markdown
from semcal.report.tables import Cell, Column, Table, deviation_table
from semcal.report.words import in_words

__all__ = [
    "Cell",
    "Column",
    "Run",
    "Table",
    "answer_table",
    "build",
    "deviation_table",
    "in_words",
    "learning_curve_figure",
    "loss_figure",
    "markdown",
    "read_run",
    "reliability_figure",
    "save_figures",
    "scatter_figure",
    "selective_figure",
    "set_table",
    "steps_figure",
    "summary_table",
    "write_figure",
]
