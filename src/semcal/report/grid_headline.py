"""What a grid run shows at a glance: what was run, how many claims hold, each method's main scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semcal.experiment.finished import FinishedRun
from semcal.report.tables import NAMES, Cell, Column, Table, counted, in_order, mark, number

__all__ = ["facts", "headline", "headline_table", "rules_note"]

Results = Mapping[str, Any]

#: Which way each metric of the headline counts.
LARGER = {"ace": False, "auroc": True, "accuracy": True}
#: A verdict as said of one claim and of several.
WORDS = {
    "holds": ("holds", "hold"),
    "does not hold": ("does not", "do not"),
    "not decidable here": ("cannot be decided here", "cannot be decided here"),
}


def facts(run: FinishedRun, results: Results) -> str:
    """What was asked of which methods, and how often."""
    sizes = [run.selections[run.models[0], name]["sizes"]["test"] for name in run.datasets]
    asked = ", ".join(f"{name} ({counted(size, 'test question')})" for name, size in zip(run.datasets, sizes))
    runs = "one run" if run.runs == 1 else f"{run.runs} runs"
    rows = counted(results["problems"], "row")
    refused = f" Refused: {rows} of the data." if results["problems"] else ""
    return (
        f"{asked}; {', '.join(run.methods)}; {runs} of {counted(run.m, 'sampled answer')} a question; preset "
        f"{run.preset}, seed {run.seed}.{refused}"
    )


def headline(results: Results) -> str:
    """How many of the paper's claims hold.

    Examples
    --------
    >>> headline({"claims": [{"verdict": "holds"}, {"verdict": "does not hold"}, {"verdict": "holds"}]})
    'Of 3 claims of the paper 2 hold, 1 does not.'
    """
    verdicts = [claim["verdict"] for claim in results["claims"]]
    counts = {name: verdicts.count(name) for name in WORDS}
    told = [f"{n} {WORDS[name][n > 1]}" for name, n in counts.items() if n]
    return f"Of {len(verdicts)} claims of the paper {', '.join(told)}."


def rules_note(results: Results) -> str:
    """By which rules claims were judged, and that these were not all fixed before results were seen."""
    rules = results["rules"]
    return (
        f"Judged by version {rules['version']} of the rules, of {rules['since']}. They were not all fixed "
        "beforehand: as results of the embedded grid came in, a tolerance was widened and rules were made "
        "stricter (docs/analyses.md, Versions of the rules)."
    )


def headline_table(results: Results) -> Table:
    """ACE, AUROC and accuracy of each method, means over measures and runs: a row a model and data set."""
    methods = in_order(results["methods"])
    body = []
    for model in results["models"]:
        for dataset in results["datasets"]:
            cells = [
                cell
                for metric, larger in LARGER.items()
                for cell in mark(
                    [_mean(results, model, dataset, method, metric) for method in methods], larger=larger
                )
            ]
            body.append((Cell(model), Cell(dataset), *cells))
    columns = [Column(method, NAMES[metric]) for metric in LARGER for method in methods]
    return Table(
        "headline",
        "ACE (lower is better), and AUROC and accuracy of the selected answers (higher is better), of each "
        "method, mean over measures and runs; the best in bold, ⁼ where several show the same digits",
        (Column("Model"), Column("Data set"), *columns),
        tuple(body),
        heads=2,
    )


def _mean(results: Results, model: str, dataset: str, method: str, metric: str) -> Cell:
    """The mean over the measures that are defined."""
    values = [
        row[metric]["mean"]
        for row in results["analyses"]["confidence"]
        if (row["model"], row["dataset"], row["method"]) == (model, dataset, method)
        and row[metric] is not None
        and row[metric]["mean"] is not None
    ]
    return number(sum(values) / len(values) if values else None)
