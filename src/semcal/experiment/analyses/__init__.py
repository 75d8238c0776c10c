"""Every number of a report, computed from the stored samples of a finished run: no model is needed.

`analyse(folder)` writes results.json (schema 3), the same bytes whenever the samples are the same::

    {"schema": 3, "preset", "seed", "models", "datasets", "methods", "measures", "runs", "m",
     "sources": {"models": {name: path}, "datasets": {name: source}},
     "analyses": {name: rows}, "rules": {"version", "since"}, "claims": [...], "findings": [...],
     "problems": n}

Rows are objects; their fields are in the docstring of the function that makes them. *Over runs* means
{mean, se, runs, interval}: mean and standard error over runs (the paper's ±; `se` null for one run), the
value of each run, and the 95 % bootstrap interval over questions ([low, high], or null where none is
computed). What is undefined is null.

=================== ========================================== ============================================
name                rows by                                    made by
=================== ========================================== ============================================
splits              dataset (table 1)                          `answers.splits`
prompts             model, dataset (figure 8)                  `answers.prompts`
base_accuracies     model, dataset (table 2)                   `answers.base_accuracies`
answers             model, dataset, candidate                  `answers.answers`
confidence          model, dataset, method, measure            `scores_by_method.confidence`
                    (tables 2, 3, 8, 9, 10, figure 3)
entropy             model, dataset, method, measure            `scores_by_method.entropy`
                    (tables 4–6)
temperatures        dataset, model, measure (table 7)          `answers.temperatures`
refits              model, dataset, candidate                  `answers.refits`
fits                model, dataset, candidate                  `answers.fits`
volatility          model, dataset, metrics (table 11)         `scores_by_method.volatility`
agreement           model, dataset, measure (table 13)         `grading.agreement`
deciding_rules      model, dataset, measure                    `grading.deciding_rules`
rules_alone         model, dataset, rule                       `grading.rules_alone`
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
growth              model, dataset                             `answers.growth`
remedies            model, dataset                             `grading.ablation_clusters`
remedy_scores       model, dataset, measure, metric            `grading.ablation_scores`
score_maps          model, dataset, map, measure; there only   `scores_by_setting.score_maps`
                    with `extras.score_maps`
calibrated          model, dataset, method; there only with    `calibrated.calibrated`
                    the method Calibrated, of which there is
                    then a row under E-SC in `confidence` and
                    in `selective` too
=================== ========================================== ============================================

The sheet of table 12 has no number: the report writes it (`answers.audit_sheet`). Claims and findings, which
go beyond the paper, are rows of `claims.statements.Claim`, judged by the rules of that version.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semcal.errors import UndefinedWarning
from semcal.experiment.analyses.answers import (
    answers,
    base_accuracies,
    fits,
    growth,
    prompts,
    refits,
    splits,
    temperatures,
)
from semcal.experiment.analyses.calibrated import KEY, OF_CALIBRATED, calibrated, gain_findings, one_wording
from semcal.experiment.analyses.claims import judge
from semcal.experiment.analyses.claims.other_claims import findings
from semcal.experiment.analyses.claims.statements import RULES, Claim
from semcal.experiment.analyses.contrasts import against_base, paired_tests
from semcal.experiment.analyses.grading import (
    Ablation,
    ablation_clusters,
    ablation_scores,
    ablations,
    agreement,
    deciding_rules,
    rules_alone,
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
from semcal.experiment.analyses.scores_by_setting import generations, losses, score_maps, transfer
from semcal.experiment.finished import RESULTS_SCHEMA, FinishedRun, read_finished
from semcal.records import dumps, writing
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
#: Made for one (model, data set) at a time, of its rows or of its scores.
OF_ROWS: Mapping[str, Callable[[FinishedRun], Rows]] = {"rules_alone": rules_alone, "growth": growth}
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
    found = results(read_finished(folder), executor or SerialExecutor(None))
    with writing(Path(folder if out is None else out) / "results.json") as handle:
        handle.write(dumps(found, indent=1) + "\n")
    return found


def results(run: FinishedRun, executor: Executor[Any]) -> dict[str, Any]:
    """The content of results.json."""
    pairs = list(executor.map(pair_analysis, run.parts(), stage="report"))
    analyses = {name: rows_of(run) for name, rows_of in OF_RUN.items()}
    analyses |= {name: [row for pair in pairs for row in pair.rows[name]] for name in pairs[0].rows}
    scores = GridScores(
        run,
        {pair: found.scores for pair, found in zip(run.pairs, pairs)},
        {pair: found.by_draws for pair, found in zip(run.pairs, pairs)},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)  # what is undefined is null, and so reported
        claims = [claim.row() for claim in _judged(scores, analyses)]
        beyond = [claim.row() for claim in findings([one for pair in pairs for one in pair.ablations])]
    if run.calibrated:  # after the paper's claims, which are about the other methods
        wordings = {pair: one.wordings for pair, one in zip(run.pairs, pairs) if one.wordings is not None}
        beyond += [claim.row() for claim in gain_findings(wordings, analyses["calibrated"])]
        for name in ("confidence", "selective"):
            analyses[name] += [row for pair in pairs for row in pair.of_calibrated[name]]
    left_out = {"left_out": run.left_out} if run.left_out else {}
    return {
        "schema": RESULTS_SCHEMA,
        **left_out,
        **{name: getattr(run, name) for name in ("preset", "seed", "models", "datasets", "methods")},
        **{name: getattr(run, name) for name in ("measures", "runs", "m")},
        "sources": {
            "models": {one["name"]: one["path"] for one in run.settings["models"]},
            "datasets": {one["name"]: one["source"] for one in run.settings["datasets"]},
        },
        "analyses": analyses,
        "rules": RULES,
        "claims": claims,
        "findings": beyond,
        "problems": run.problems,
    }


def _judged(scores: GridScores, analyses: Mapping[str, Rows]) -> list[Claim]:
    """The paper's claims, judged on the models that served all methods."""
    run = scores.run.with_all_methods()
    of = {name: [row for row in rows if row.get("model") in run.models] for name, rows in analyses.items()}
    pairs = {pair: scores.pair(*pair) for pair in run.pairs}
    return judge(GridScores(run, pairs, {pair: scores.by_draws(*pair) for pair in run.pairs}), of)


@dataclass(frozen=True, eq=False)
class PairAnalysis:
    """What the analyses make of one model on one data set, in any process."""

    rows: dict[str, Rows]  # by name of analysis
    scores: PairScores
    by_draws: dict[int, PairScores]  # number of draws → scores; empty where all rows have m draws
    ablations: list[Ablation]  # one where the answers were clustered twice, else none
    wordings: PairScores | None = None  # of answers in one wording, with the method Calibrated
    of_calibrated: dict[str, Rows] = field(default_factory=dict)  # its rows, by name of analysis


def pair_analysis(run: FinishedRun) -> PairAnalysis:
    """Analyse a run of which one (model, data set) is looked at (`FinishedRun.parts`)."""
    (pair,) = run.pairs
    scores = GridScores(run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)  # what is undefined is null, and so reported
        rows = {name: rows_of(run) for name, rows_of in OF_ROWS.items()}
        rows |= {name: rows_of(scores) for name, rows_of in OF_SCORES.items()}
        twice = list(ablations(scores))
        rows |= {"remedies": ablation_clusters(twice), "remedy_scores": ablation_scores(twice)}
        if "validation_scores" in run.selections[pair]:
            rows["score_maps"] = score_maps(scores)
        wordings, of_calibrated = None, {}
        if run.calibrated:
            wordings = one_wording(scores, pair)
            rows["calibrated"] = calibrated(run, pair, wordings)
            names = row_names(*pair, *KEY)
            own = {key: value for key, value in rows["calibrated"][-1].items() if key not in OF_CALIBRATED}
            of_calibrated = {
                "confidence": [names | {"candidate": "Base", "measure_alpha": None} | own],
                "selective": [names | selective_of(wordings, KEY)],
            }
    return PairAnalysis(rows, scores.pair(*pair), scores.by_draws(*pair), twice, wordings, of_calibrated)
