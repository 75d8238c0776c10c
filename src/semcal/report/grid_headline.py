"""What a grid run shows at a glance: what was run, how many claims hold, each method's main scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semcal.experiment.finished import FinishedRun
from semcal.report.layout import in_order
from semcal.report.tables import NAMES, Cell, Column, Table, mark, number

__all__ = ["facts", "headline", "headline_table"]

Results = Mapping[str, Any]

#: Which way each metric of the headline counts.
LARGER = {"ace": False, "auroc": True, "accuracy": True}
WORDS = {"holds": "hold", "does not": "do not", "not decidable here": "cannot be decided here"}


def facts(run: FinishedRun, results: Results) -> str:
    """What was asked of which methods, and how often."""
    sizes = [run.selections[run.models[0], name]["sizes"]["test"] for name in run.datasets]
    asked = ", ".join(f"{name} ({size} test questions)" for name, size in zip(run.datasets, sizes))
    runs = "one run" if run.runs == 1 else f"{run.runs} runs"
    rows = "1 row" if results["problems"] == 1 else f"{results['problems']} rows"
    refused = f" Refused: {rows} of the data." if results["problems"] else ""
    return (
        f"{asked}; {', '.join(run.methods)}; {runs} of {run.m} sampled answers a question; preset "
        f"{run.preset}, seed {run.seed}.{refused}"
    )


def headline(results: Results) -> str:
    """How many of the paper's claims hold.

    Examples
    --------
    >>> headline({"claims": [{"verdict": "holds"}, {"verdict": "does not"}, {"verdict": "holds"}]})
    'Of 3 claims of the paper 2 hold, 1 do not.'
    """
    verdicts = [claim["verdict"] for claim in results["claims"]]
    told = [f"{verdicts.count(name)} {words}" for name, words in WORDS.items() if name in verdicts]
    return f"Of {len(verdicts)} claims of the paper {', '.join(told)}."


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
