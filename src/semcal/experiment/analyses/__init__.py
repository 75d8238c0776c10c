"""Every number of a report, computed from the stored samples of a finished run: no model is needed.

`analyse(folder)` writes results.json (schema 4), the same bytes whenever the samples are the same::

    {"schema": 4, "preset", "seed", "models", "datasets", "methods", "measures", "runs", "m",
     "sources": {"models": {name: path}, "datasets": {name: source}},
     "analyses": {name: rows}, "contrasts": [...], "problems": n}

Rows are objects; their fields are in the docstring of the function that makes them. *Over runs* means
{mean, se, runs, interval}: mean and standard error over runs (the paper's ±; `se` null for one run), the
value of each run, and the 95 % bootstrap interval over questions ([low, high], or null where none is
computed). What is undefined is null.

=================== ========================================== ============================================
name                rows by                                    made by
=================== ========================================== ============================================
splits              dataset (table 1)                          `answer_analyses.splits`
prompts             model, dataset (figure 8)                  `answer_analyses.prompts`
base_accuracies     model, dataset (table 2)                   `answer_analyses.base_accuracies`
answers             model, dataset, candidate                  `answer_analyses.answers`
confidence          model, dataset, method, measure            `scores_by_method.confidence`
                    (tables 2, 3, 8, 9, 10, figure 3)
entropy             model, dataset, method, measure            `scores_by_method.entropy`
                    (tables 4–6)
temperatures        dataset, model, measure (table 7)          `answer_analyses.temperatures`
refits              model, dataset, candidate                  `answer_analyses.refits`
fits                model, dataset, candidate                  `answer_analyses.fits`
volatility          model, dataset, metrics (table 11)         `scores_by_method.volatility`
agreement           model, dataset, measure (table 13)         `answer_analyses.agreement`
deciding_rules      model, dataset, measure                    `answer_analyses.deciding_rules`
selective           model, dataset, method, measure            `scores_by_method.selective`
                    (figures 4, 5)
generations         model, dataset, method, measure, draws     `scores_by_setting.generations`
                    (figure 6)
losses              loss, model, dataset, method, measure      `scores_by_setting.losses`
                    (figure 7)
distributions       model, dataset, method, measure (figure 9) `scores_by_method.distributions`
correlations        model, dataset, method (figure 10)         `scores_by_method.correlations`
paired              model, dataset, measure, quantity, against `contrasts.paired_tests`
against_base        model, dataset, method, measure            `contrasts.against_base`
transfer            model, fitted_on, used_on, measure         `scores_by_setting.transfer`
score_maps          model, dataset, map, measure; there only   `scores_by_setting.score_maps`
                    with `extras.score_maps`
calibrated          model, dataset, method; there only with    `scores_by_setting.calibrated`
                    the method Calibrated, of which there is
                    then a row under E-SC in `confidence` and
                    in `selective` too
=================== ========================================== ============================================

The sheet of table 12 has no number: the report writes it (`answer_analyses.audit_sheet`). Contrasts are the
rows of `contrasts.claim_contrasts`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semcal.errors import UndefinedWarning
from semcal.experiment.analyses.answer_analyses import (
    agreement,
    answers,
    base_accuracies,
    deciding_rules,
    fits,
    prompts,
    refits,
    splits,
    temperatures,
)
from semcal.experiment.analyses.contrasts import (
    against_base,
    claim_contrasts,
    gain_contrasts,
    paired_tests,
)
from semcal.experiment.analyses.grid_scores import GridScores, PairScores, row_names
from semcal.experiment.analyses.scores_by_method import (
    confidence,
    correlations,
    distributions,
    entropy,
    selective,
    selective_of,
    volatility,
)
from semcal.experiment.analyses.scores_by_setting import (
    KEY,
    OF_CALIBRATED,
    calibrated,
    generations,
    losses,
    one_wording,
    score_maps,
    transfer,
)
from semcal.experiment.finished import RESULTS_SCHEMA, FinishedRun, read_finished
from semcal.files import dumps, writing
from semcal.workers import Executor, SerialExecutor

__all__ = ["analyse", "pair_analysis", "results"]

Rows = list[dict[str, Any]]
OF_RUN: Mapping[str, Callable[[FinishedRun], Rows]] = {
    "splits": splits,
    "prompts": prompts,
    "temperatures": temperatures,
    "refits": refits,
    "fits": fits,
}
#: Made for one (model, data set) at a time.
OF_SCORES: Mapping[str, Callable[[GridScores], Rows]] = {
    "base_accuracies": base_accuracies,
    "answers": answers,
    "confidence": confidence,
    "entropy": entropy,
    "volatility": volatility,
    "agreement": agreement,
    "deciding_rules": deciding_rules,
    "selective": selective,
    "generations": generations,
    "losses": losses,
    "distributions": distributions,
    "correlations": correlations,
    "paired": paired_tests,
    "against_base": against_base,
    "transfer": transfer,
}


def analyse(folder: Path, out: Path | None = None, executor: Executor[Any] | None = None) -> dict[str, Any]:
    """Compute everything from the stored samples of a run folder; write results.json to `out`, and return it.

    `out` is the run folder by default. `executor` does the work, a (model, data set) at a time, by default
    this process; the results are the same. InputError if it is no run folder, StoreError if a file is missing
    or damaged; the message names it.
    """
    content = results(read_finished(folder), executor or SerialExecutor(None))
    with writing(Path(folder if out is None else out) / "results.json") as handle:
        handle.write(dumps(content, indent=1) + "\n")
    return content


def results(run: FinishedRun, executor: Executor[Any]) -> dict[str, Any]:
    """The content of results.json."""
    pairs = list(executor.map(pair_analysis, run.parts(), stage="report"))
    analyses = {name: rows_of(run) for name, rows_of in OF_RUN.items()}
    analyses |= {name: [row for pair in pairs for row in pair.rows[name]] for name in pairs[0].rows}
    scores = GridScores(
        run,
        {pair: analysis.scores for pair, analysis in zip(run.pairs, pairs)},
        {pair: analysis.by_draws for pair, analysis in zip(run.pairs, pairs)},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)  # what is undefined is null, and so reported
        contrasts = claim_contrasts(scores, analyses)
    if run.calibrated:  # after the paper's claims, which are about the other methods
        wordings = {
            pair: entry.wordings for pair, entry in zip(run.pairs, pairs) if entry.wordings is not None
        }
        contrasts += gain_contrasts(wordings, KEY[1])
        for name in ("confidence", "selective"):
            analyses[name] += [row for pair in pairs for row in pair.of_calibrated[name]]
    left_out = {"left_out": run.left_out} if run.left_out else {}
    return {
        "schema": RESULTS_SCHEMA,
        **left_out,
        **{name: getattr(run, name) for name in ("preset", "seed", "models", "datasets", "methods")},
        **{name: getattr(run, name) for name in ("measures", "runs", "m")},
        "sources": {
            "models": {entry["name"]: entry["path"] for entry in run.settings["models"]},
            "datasets": {entry["name"]: entry["source"] for entry in run.settings["datasets"]},
        },
        "analyses": analyses,
        "contrasts": contrasts,
        "problems": run.problems,
    }


@dataclass(frozen=True, eq=False)
class PairAnalysis:
    """What the analyses make of one model on one data set, in any process."""

    rows: dict[str, Rows]  # by name of analysis
    scores: PairScores
    by_draws: dict[int, PairScores]  # number of draws → scores; empty where all rows have m draws
    wordings: PairScores | None = None  # of answers in one wording, with the method Calibrated
    of_calibrated: dict[str, Rows] = field(default_factory=dict)  # its rows, by name of analysis


def pair_analysis(run: FinishedRun) -> PairAnalysis:
    """Analyse a run of which one (model, data set) is looked at (`FinishedRun.parts`)."""
    (pair,) = run.pairs
    scores = GridScores(run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)  # what is undefined is null, and so reported
        rows = {name: rows_of(scores) for name, rows_of in OF_SCORES.items()}
        if "validation_scores" in run.selections[pair]:
            rows["score_maps"] = score_maps(scores)
        wordings, of_calibrated = None, {}
        if run.calibrated:
            wordings = one_wording(scores, pair)
            rows["calibrated"] = calibrated(run, pair, wordings)
            names = row_names(*pair, *KEY)
            scored = {key: value for key, value in rows["calibrated"][-1].items() if key not in OF_CALIBRATED}
            of_calibrated = {
                "confidence": [names | {"candidate": "Base", "measure_alpha": None} | scored],
                "selective": [names | selective_of(wordings, KEY)],
            }
    return PairAnalysis(rows, scores.pair(*pair), scores.by_draws(*pair), wordings, of_calibrated)
