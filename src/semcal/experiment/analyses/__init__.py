"""All numbers of a report, computed from the stored samples of a finished run without a model.

`analyse(folder)` writes results.json (schema 4); equal samples give equal bytes::

    {"schema": 4, "preset", "seed", "models", "datasets", "methods", "measures", "runs", "m",
     "sources": {"models": {name: path}, "datasets": {name: source}},
     "analyses": {name: rows}, "contrasts": [...], "problems": n}

Rows are objects. An analysis has the name of its function in `answer_analyses` or `score_analyses`, whose
docstring lists the fields. *Over runs* means {mean, se, runs, interval}: mean and standard error over runs
(the paper's ±; `se` null for one run), the value of each run, and the 95% bootstrap interval over questions
([low, high], or null if not computed). Undefined values are null.

=================== =======================================================================
name                rows by
=================== =======================================================================
splits              dataset (table 1)
prompts             model, dataset (figure 8)
base_accuracies     model, dataset (table 2)
answers             model, dataset, candidate
confidence          model, dataset, method, measure (tables 2, 3, 8, 9, 10, figure 3)
entropy             model, dataset, method, measure (tables 4–6)
temperatures        dataset, model, measure (table 7)
refits              model, dataset, candidate
fits                model, dataset, candidate
volatility          model, dataset, metrics (table 11)
agreement           model, dataset, measure (table 13)
deciding_rules      model, dataset, measure
selective           model, dataset, method, measure (figures 4, 5)
generations         model, dataset, method, measure, draws (figure 6)
losses              loss, model, dataset, method, measure (figure 7)
distributions       model, dataset, method, measure (figure 9)
correlations        model, dataset, method (figure 10)
paired              model, dataset, measure, quantity, against
against_base        model, dataset, method, measure
transfer            model, fitted_on, used_on, measure
calibrated          model, dataset, method; only with the method Calibrated, which then also has
                    a row for E-SC in `confidence` and `selective`
=================== =======================================================================

The report writes the sheet of table 12 (`answer_analyses.audit_sheet`). Contrasts are the rows of
`contrasts.claim_contrasts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semcal.experiment.analyses import answer_analyses, score_analyses
from semcal.experiment.analyses.contrasts import claim_contrasts, gain_contrasts
from semcal.experiment.analyses.grid_scores import (
    CellScores,
    PairScores,
    ScoreRow,
    ScoreRows,
    undefined_as_null,
)
from semcal.experiment.finished import RESULTS_SCHEMA, FinishedRun, read_finished
from semcal.experiment.grid_settings import CALIBRATED
from semcal.files import dumps, writing
from semcal.workers import Executor, SerialExecutor

__all__ = ["analyse", "pair_analysis"]

#: Attributes of a run in results.json.
OF_THE_RUN = ("models", "datasets", "methods", "measures", "runs", "m")
#: Analyses of the selections of a run.
OF_RUN = (
    answer_analyses.splits,
    answer_analyses.prompts,
    answer_analyses.temperatures,
    answer_analyses.refits,
    answer_analyses.fits,
)
#: Analyses of the rows of one model on one data set.
OF_CELL = (
    answer_analyses.base_accuracies,
    answer_analyses.answers,
    score_analyses.confidence,
    score_analyses.entropy,
    score_analyses.volatility,
    answer_analyses.agreement,
    answer_analyses.deciding_rules,
    score_analyses.selective,
    score_analyses.generations,
    score_analyses.losses,
    score_analyses.distributions,
    score_analyses.correlations,
    score_analyses.paired,
    score_analyses.against_base,
    score_analyses.transfer,
)


def analyse(folder: Path, out: Path | None = None, executor: Executor[Any] | None = None) -> ScoreRow:
    """Compute all analyses of a run folder's stored samples; write results.json to `out`, and return it.

    `out` is the run folder by default. `executor`, by default this process, does the work for each (model,
    data set); results do not depend on it. InputError for another folder, StoreError, which names the file,
    if a file is missing or damaged.
    """
    run, executor = read_finished(folder), executor or SerialExecutor(None)
    cells = dict(zip(run.pairs, executor.map(pair_analysis, run.parts(), stage="report")))
    analyses = {rows_of.__name__: rows_of(run) for rows_of in OF_RUN}
    for cell in cells.values():
        for name, rows in cell.rows.items():
            analyses.setdefault(name, []).extend(rows)
    with undefined_as_null():
        contrasts = claim_contrasts(
            run,
            {pair: cell.scores for pair, cell in cells.items()},
            [cell.by_draws for cell in cells.values() if cell.by_draws],
        )
    if run.calibrated:  # after the paper's methods, and its claims about them
        wordings = {pair: cell.wordings for pair, cell in cells.items() if cell.wordings is not None}
        contrasts += gain_contrasts(wordings, score_analyses.MEASURE)
        for name in ("confidence", "selective"):
            analyses[name].sort(key=lambda row: bool(row["method"] == CALIBRATED))
    content = {
        "schema": RESULTS_SCHEMA,
        **({"left_out": run.left_out} if run.left_out else {}),
        "preset": run.settings.preset,
        "seed": run.settings.seed,
        **{name: getattr(run, name) for name in OF_THE_RUN},
        "sources": {
            "models": {model.name: model.path for model in run.settings.models},
            "datasets": {dataset.name: dataset.source for dataset in run.settings.datasets},
        },
        "analyses": analyses,
        "contrasts": contrasts,
        "problems": len(run.refused()),
    }
    with writing(Path(folder if out is None else out) / "results.json") as handle:
        handle.write(dumps(content, indent=1) + "\n")
    return content


@dataclass(frozen=True, eq=False)
class PairAnalysis:
    """The analyses of one model on one data set, made by any process."""

    rows: dict[str, ScoreRows]  # rows by name of analysis
    scores: PairScores
    by_draws: dict[int, PairScores]  # number of samples → scores; empty if all rows have m samples
    wordings: PairScores | None = None  # scores of answers in one wording, with the method Calibrated


def pair_analysis(run: FinishedRun) -> PairAnalysis:
    """Analyze a run with a single (model, data set) pair (`FinishedRun.parts`)."""
    (pair,) = run.pairs
    cell, wordings = CellScores(run, *pair), None
    with undefined_as_null():
        rows = {rows_of.__name__: rows_of(cell) for rows_of in OF_CELL}
        if run.calibrated:
            key, wordings = score_analyses.KEY, score_analyses.one_wording(cell)
            rows["calibrated"] = score_analyses.calibrated(cell, wordings)
            of_answers = {"candidate": "Base", "measure_alpha": None}
            scores = score_analyses.scores_of(wordings, key)
            rows["confidence"].append({**cell.names(*key), **of_answers, **scores})
            rows["selective"].append({**cell.names(*key), **score_analyses.selective_of(wordings, key)})
    return PairAnalysis(rows, cell.pair, cell.by_draws, wordings)
