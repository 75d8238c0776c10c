"""The paper's published numbers, one file a table, and a run's numbers beside them.

Each file names the table by its label in the paper and holds its rows: {dataset, method, measure, metric,
mean, se, best}, or what the table has instead. `overall` marks what is underlined.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from semcal.report.layout import index, over_runs_cell
from semcal.report.tables import NAMES, Cell, Column, Table, number

__all__ = ["TABLES", "dataset_in_paper", "model_in_paper", "published", "published_tables"]

#: The files, in the order of the paper's tables.
TABLES = (
    "splits",
    "accuracies",
    "main-llama",
    "main-qwen",
    "main-mistral",
    "entropy-short-conf",
    "entropy-short-vanilla",
    "entropy-conf",
    "entropy-vanilla",
    "temperatures",
    "brier-llama",
    "ace-mcb-qwen",
    "ace-ece-qwen",
    "volatility-qwen",
    "audits",
)
#: What a run calls a model (the last part of its path) → the paper's name of it.
MODELS = {
    "llama-3.1-8b-instruct": "Llama",
    "meta-llama-3.1-8b-instruct": "Llama",
    "qwen2.5-7b-instruct": "Qwen",
    "ministral-8b-instruct-2410": "Mistral",
}
#: What a run calls a data set (its source) → the paper's name of it.
DATASETS = {"triviaqa": "TriviaQA", "nq-open": "NQ", "squad": "SQuAD"}


@dataclass(frozen=True)
class Compared:
    """One published number and ours."""

    heads: tuple[str, str, str, str, str]  # model, data set, method, measure, metric
    paper: float
    paper_se: float | None
    ours: Any
    digits: int = 3


@cache
def published(name: str) -> dict[str, Any]:
    """The content of one file of `TABLES`: {table, model?, rows}."""
    text = files(__name__).joinpath(f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def model_in_paper(path: str) -> str | None:
    """The paper's name of a model, by the last part of its directory or hub id; None for any other.

    Examples
    --------
    >>> model_in_paper("Qwen/Qwen2.5-7B-Instruct"), model_in_paper("atlas")
    ('Qwen', None)
    """
    return MODELS.get(path.rstrip("/").rpartition("/")[2].lower())


def dataset_in_paper(source: str) -> str | None:
    """The paper's name of a data set, by its source; None for any other.

    Examples
    --------
    >>> dataset_in_paper("nq-open"), dataset_in_paper("my-questions.jsonl")
    ('NQ', None)
    """
    return DATASETS.get(source.lower())


def published_tables(results: Mapping[str, Any]) -> list[Table]:
    """The tables "paper, ours, difference" of a run, for the models and data sets that the paper has too.

    Parameters
    ----------
    results : mapping
        The content of results.json, whose `sources` say what each model and data set is.
    """
    sources = results.get("sources") or {"models": {}, "datasets": {}}
    ours = {
        "models": {model_in_paper(path): name for name, path in sources["models"].items()},
        "datasets": {dataset_in_paper(source): name for name, source in sources["datasets"].items()},
    }
    tables = []
    for name in TABLES:
        rows = list(_compared(name, results, ours))
        if rows:
            tables.append(_table(name, rows))
    return tables


def _compared(
    name: str, results: Mapping[str, Any], ours: Mapping[str, Mapping[str | None, str]]
) -> Iterator[Compared]:
    """Each published number of a table for which the run has one."""
    table = published(name)
    lookup = _Lookup(results)
    for row in table["rows"]:
        model, dataset = row.get("model", table.get("model")), row["dataset"]
        our_model, our_dataset = ours["models"].get(model), ours["datasets"].get(dataset)
        if our_dataset is None or (model is not None and our_model is None):
            continue
        for metric, paper, found in lookup.of(row, our_model, our_dataset):
            heads = (model or "", dataset, row.get("method", ""), row.get("measure", ""), metric)
            yield Compared(heads, paper, row.get("se"), found, 2 if metric in ("T", "change of rank") else 3)


class _Lookup:
    """The run's number for a published row."""

    def __init__(self, results: Mapping[str, Any]) -> None:
        found = results["analyses"]
        keys = ("model", "dataset", "method", "measure")
        self.confidence = index(found["confidence"], *keys)
        self.entropy = index(found["entropy"], *keys)
        self.temperatures = index(found["temperatures"], "model", "dataset", "measure")
        self.accuracies = index(found["base_accuracies"], "model", "dataset")
        self.splits = index(found["splits"], "dataset")
        self.agreement = index(found["agreement"], "model", "dataset", "measure")
        self.volatility = index(
            [row for row in found["volatility"] if row["metrics"] == ["ace", "mcb"]], "model", "dataset"
        )

    def of(self, row: Mapping[str, Any], model: str | None, dataset: str) -> Iterator[tuple[str, float, Any]]:
        """(name of the metric, published value, ours: over runs or a number)."""
        if "metric" in row:
            rows = self.entropy if row["metric"].startswith("SE_") else self.confidence
            found = rows.get((model, dataset, row["method"], row["measure"]))
            if found and found[row["metric"]]:
                yield NAMES.get(row["metric"], row["metric"]), row["mean"], found[row["metric"]]
        elif "temperature" in row:
            found = self.temperatures.get((model, dataset, row["measure"]))
            if found and found["temperature"] is not None:
                yield "T", row["temperature"], found["temperature"]
        elif "beam" in row:
            found = self.accuracies.get((model, dataset))
            if found and found["beam"]:
                yield "accuracy, 4 beams", row["beam"], found["beam"]
        elif "test" in row:
            for part in ("calibration_train", "validation", "test"):
                yield part, row[part], self.splits[dataset,][part]
        elif "volatility" in row:
            found = self.volatility.get((model, dataset))
            if found:
                ours = {**found["per_method"], "Mean": found["mean"]}.get(row["method"])
                yield "change of rank", row["volatility"], ours
        elif row["key"] == "agreement":
            found = self.agreement.get((model, dataset, "E-SC"))
            if found and found["agreement"] is not None:
                yield "agreement of gradings", row["value"], found["agreement"]


def _table(name: str, rows: list[Compared]) -> Table:
    heads = ("Model", "Data set", "Method", "Measure", "Metric")
    used = [i for i in range(len(heads)) if any(row.heads[i] for row in rows)]
    source = published(name)["table"]
    return Table(
        f"paper-{name}",
        f"The paper's numbers ({source}), ours, and the difference (ours less the paper's); ± standard error "
        "over runs, in brackets the 95 % interval over questions",
        (*(Column(heads[i]) for i in used), Column("Paper"), Column("Ours"), Column("Difference")),
        tuple((*(Cell(row.heads[i]) for i in used), *_cells(row)) for row in rows),
        heads=len(used),
    )


def _cells(row: Compared) -> tuple[Cell, Cell, Cell]:
    ours = over_runs_cell(row.ours, row.digits)
    paper = replace(number(row.paper, row.digits), error=row.paper_se)
    if ours.value is None:
        return paper, ours, number(None)
    difference = number(ours.value - row.paper, 0 if isinstance(row.paper, int) else row.digits)
    return (
        paper,
        ours,
        replace(difference, text=f"+{difference.text}" if ours.value > row.paper else difference.text),
    )
