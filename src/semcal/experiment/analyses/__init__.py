"""Every number of a report, computed from the stored samples of a finished run: no model is needed.

`analyse(folder)` writes results.json (schema 3), the same bytes whenever the samples are the same::

    {"schema": 3, "preset", "seed", "models", "datasets", "methods", "measures", "runs", "m",
     "sources": {"models": {name: path}, "datasets": {name: source}},
     "analyses": {name: rows}, "rules": {"version", "since"}, "claims": [...], "findings": [...],
     "deviations": [...], "problems": n}

Rows are objects; what they hold stands in the docstring of the function named after them. *Over runs* means
{mean, se, runs, interval}: mean and standard error over runs (the paper's ±; `se` null for one run), the
value of each run, and the 95 % bootstrap interval over questions ([low, high], or null where none is
computed). What is undefined is null.

=================== ========================================== =====================================
name                rows by                                    made by
=================== ========================================== =====================================
splits              dataset (table 1)                          `splits.splits`
prompts             model, dataset (figure 8)                  `splits.prompts`
base_accuracies     model, dataset (table 2)                   `accuracies.base_accuracies`
answers             model, dataset, candidate                  `accuracies.answers`
confidence          model, dataset, method, measure            `confidence.confidence`
                    (tables 2, 3, 8, 9, 10, figure 3)
entropy             model, dataset, method, measure            `entropy.entropy`
                    (tables 4–6)
temperatures        dataset, model, measure (table 7)          `temperatures.temperatures`
refits              model, dataset, candidate                  `temperatures.refits`
fits                model, dataset, candidate                  `fits.fits`
volatility          model, dataset, metrics (table 11)         `volatility.volatility`
agreement           model, dataset, measure (table 13)         `agreement.agreement`
deciding_rules      model, dataset, measure                    `agreement.deciding_rules`
rules_alone         model, dataset, rule                       `rules_alone.rules_alone`
selective           model, dataset, method, measure            `selective.selective`
                    (figures 4, 5)
generations         model, dataset, method, measure, draws     `generations.generations`
                    (figure 6)
losses              loss, model, dataset, method, measure      `losses.losses`
                    (figure 7)
distributions       model, dataset, method, measure (figure 9) `distributions.distributions`
correlations        model, dataset, method (figure 10)         `distributions.correlations`
paired              model, dataset, measure, quantity, against `contrasts.paired_tests`
transfer            model, fitted_on, used_on, measure         `transfer.transfer`
growth              model, dataset                             `growth.growth`
remedies            model, dataset                             `remedies.remedies`
remedy_scores       model, dataset, measure, metric            `remedies.remedy_scores`
score_maps          model, dataset, map, measure; there only   `score_maps.score_maps`
                    with `extras.score_maps`
=================== ========================================== =====================================

The sheet of table 12 is no number: the report writes it (`audit.audit_sheet`). Claims are rows of
`claims.verdicts.Claim`, and so are findings, which go beyond the paper; both are judged by the rules of
that version; deviations are {setting, here, paper}
in the order of the presets' table, without those in which run and paper are alike.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from semcal.errors import UndefinedWarning
from semcal.experiment.analyses.claims import RULES, judge
from semcal.experiment.analyses.findings import remedies_findings
from semcal.experiment.analyses.fits import fits
from semcal.experiment.analyses.parts import part_of
from semcal.experiment.analyses.scores import GridScores
from semcal.experiment.analyses.splits import prompts, splits
from semcal.experiment.analyses.temperatures import refits, temperatures
from semcal.experiment.finished import FinishedRun, read_finished
from semcal.experiment.grid_settings import GridSettings
from semcal.experiment.presets import deviations
from semcal.pipeline.crews import Alone, Crew
from semcal.records import dumps, writing

__all__ = ["SCHEMA", "GridScores", "analyse", "results"]

#: The schema of results.json.
SCHEMA = 3

OF_RUN: dict[str, Callable[[FinishedRun], list[dict[str, Any]]]] = {
    "splits": splits,
    "prompts": prompts,
    "temperatures": temperatures,
    "refits": refits,
    "fits": fits,
}


def analyse(folder: Path, out: Path | None = None, crew: Crew[Any] | None = None) -> dict[str, Any]:
    """Compute everything from the stored samples of a run folder, and write results.json.

    Parameters
    ----------
    folder : Path
        A run folder with its selections and samples.
    out : Path, optional
        The folder to write to; the run folder by default.
    crew : Crew, optional
        Who does the work, a (model, data set) at a time; this process by default. The results are the same.

    Returns
    -------
    dict
        What was written (this module's docstring).

    Raises
    ------
    InputError
        If it is no run folder.
    StoreError
        If a file is missing or damaged; the message names it.
    """
    found = results(read_finished(folder), crew or Alone(None))
    with writing(Path(folder if out is None else out) / "results.json") as handle:
        handle.write(dumps(found, indent=1) + "\n")
    return found


def results(run: FinishedRun, crew: Crew[Any]) -> dict[str, Any]:
    """The content of results.json."""
    parts = crew.each(part_of, run.parts(), stage="report")
    analyses = {name: made(run) for name, made in OF_RUN.items()}
    analyses |= {name: [row for part in parts for row in part.rows[name]] for name in parts[0].rows}
    scores = GridScores(
        run,
        {pair: part.scores for pair, part in zip(run.pairs, parts)},
        {pair: part.by_draws for pair, part in zip(run.pairs, parts)},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)  # what is undefined is null, and so reported
        claims = [claim.row() for claim in judge(scores, analyses)]
        findings = [one.row() for one in remedies_findings([one for part in parts for one in part.compared])]
    return {
        "schema": SCHEMA,
        "preset": run.preset,
        "seed": run.seed,
        "models": run.models,
        "datasets": run.datasets,
        "methods": run.methods,
        "measures": run.measures,
        "runs": run.runs,
        "m": run.m,
        "sources": {
            "models": {one["name"]: one["path"] for one in run.settings["models"]},
            "datasets": {one["name"]: one["source"] for one in run.settings["datasets"]},
        },
        "analyses": analyses,
        "rules": RULES,
        "claims": claims,
        "findings": findings,
        "deviations": _deviations(run),
        "problems": run.problems,
    }


def _deviations(run: FinishedRun) -> list[dict[str, Any]]:
    settings = GridSettings.model_validate(run.settings)
    sizes = {dataset: run.selections[run.models[0], dataset]["sizes"] for dataset in run.datasets}
    return [row.model_dump() for row in deviations(settings, sizes)]
