"""The paper's published numbers, one file a table, and a run's numbers beside them.

Each file names the table by its label in the paper and holds its rows: {dataset, method, measure, metric,
mean, se, best}, or what the table has instead. `overall` marks what is underlined.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from semcal.experiment.report.cells import Cell, Results, Row, Rows, cell_of, metric_title, number

__all__ = ["TABLES", "comparisons", "dataset_in_paper", "model_in_paper", "published"]

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

#: Metrics that the paper gives with two digits.
TWO_DIGITS = ("T", "change of rank")


@cache
def published(name: str) -> dict[str, Any]:
    """The content of one file of `TABLES`: {table, model?, rows}."""
    text = files(__name__).joinpath(f"{name}.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def model_in_paper(path: str) -> str | None:
    """The paper's name of a model, by the last part of its directory or hub id; None for any other."""
    return MODELS.get(path.rstrip("/").rpartition("/")[2].lower())


def dataset_in_paper(source: str) -> str | None:
    """The paper's name of a data set, by its source; None for any other."""
    return DATASETS.get(source.lower())


def comparisons(name: str, results: Results, _: Rows = ()) -> list[Row]:
    """Each published number of a table for which a run has one, beside ours, with their names.

    The `sources` of results.json say what each model and data set is.
    """
    sources = results.get("sources") or {"models": {}, "datasets": {}}
    models = {model_in_paper(path): model for model, path in sources["models"].items()}
    datasets = {dataset_in_paper(source): dataset for dataset, source in sources["datasets"].items()}
    table = published(name)
    rows: list[Row] = []
    for row in table["rows"]:
        model, dataset = row.get("model", table.get("model")), row["dataset"]
        if dataset not in datasets or (model is not None and model not in models):
            continue
        where = {"dataset": datasets[dataset]} | ({} if model is None else {"model": models[model]})
        for metric, paper, ours in _ours(row, results["analyses"], where):
            names: dict[str, Any] = {"model": model or "", "dataset": dataset, "metric": metric}
            names |= {key: row.get(key, "") for key in ("method", "measure")}
            rows.append(names | _cells(paper, row.get("se"), ours, digits=2 if metric in TWO_DIGITS else 3))
    return rows


def _ours(
    row: Row, analyses: Mapping[str, Rows], names: Mapping[str, str]
) -> Iterator[tuple[str, float, Any]]:
    """(name of the metric, published value, the run's: over runs or a number) of a published row."""

    def first(analysis: str, **where: Any) -> Row:
        key_values = {**names, **where}
        rows = (ours for ours in analyses[analysis] if all(ours[k] == v for k, v in key_values.items()))
        return next(rows, {})

    if "metric" in row:
        metric = row["metric"]
        analysis = "entropy" if metric.startswith("SE_") else "confidence"
        value = first(analysis, method=row["method"], measure=row["measure"]).get(metric)
        numbers = [(metric_title(metric), row["mean"], value)]
    elif "temperature" in row:
        value = first("temperatures", measure=row["measure"]).get("temperature")
        numbers = [("T", row["temperature"], value)]
    elif "beam" in row:
        numbers = [("accuracy, 4 beams", row["beam"], first("base_accuracies").get("beam"))]
    elif "test" in row:
        sizes = first("splits")
        numbers = [(split, row[split], sizes[split]) for split in ("calibration_train", "validation", "test")]
    elif "volatility" in row:
        changes = first("volatility", metrics=["ace", "mcb"])
        if changes:  # a method that was not run has a row of its own
            value = {**changes["per_method"], "Mean": changes["mean"]}.get(row["method"])
            yield "change of rank", row["volatility"], value
        return
    elif row["key"] == "agreement":
        value = first("agreement", measure="E-SC").get("agreement")
        numbers = [("agreement of gradings", row["value"], value)]
    else:
        return
    yield from (entry for entry in numbers if entry[2] is not None)


def _cells(paper: float, paper_se: float | None, ours: Any, *, digits: int) -> dict[str, Cell]:
    """The published number, ours (over runs, or a number), and ours less the paper's."""
    cells = {"paper": replace(number(paper, digits), error=paper_se), "ours": cell_of(ours, digits)}
    value = cells["ours"].value
    if value is None:
        return cells | {"difference": number(None)}
    difference = number(value - paper, 0 if isinstance(paper, int) else digits)
    text = f"+{difference.text}" if value > paper else difference.text
    return cells | {"difference": replace(difference, text=text)}
