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

from semcal.report.tables import Cell, Column, Table, cell_of, metric_title, number

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
class Comparison:
    """One published number and ours."""

    names: tuple[str, str, str, str, str]  # model, data set, method, measure, metric
    paper: float
    paper_se: float | None
    ours: Any  # over runs, or a number
    digits: int = 3


@cache
def published(name: str) -> dict[str, Any]:
    """The content of one file of `TABLES`: {table, model?, rows}."""
    text = files(__name__).joinpath(f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def model_in_paper(path: str) -> str | None:
    """The paper's name of a model, by the last part of its directory or hub id; None for any other."""
    return MODELS.get(path.rstrip("/").rpartition("/")[2].lower())


def dataset_in_paper(source: str) -> str | None:
    """The paper's name of a data set, by its source; None for any other."""
    return DATASETS.get(source.lower())


def published_tables(results: Mapping[str, Any]) -> list[Table]:
    """The tables "paper, ours, difference" of a run, for the models and data sets that the paper has too.

    The `sources` of results.json say what each model and data set is.
    """
    sources = results.get("sources") or {"models": {}, "datasets": {}}
    models = {model_in_paper(path): name for name, path in sources["models"].items()}
    datasets = {dataset_in_paper(source): name for name, source in sources["datasets"].items()}
    compared = {name: list(_comparisons(name, results["analyses"], models, datasets)) for name in TABLES}
    return [_table(name, rows) for name, rows in compared.items() if rows]


def _comparisons(
    name: str,
    analyses: Mapping[str, list[dict[str, Any]]],
    models: Mapping[str | None, str],
    datasets: Mapping[str | None, str],
) -> Iterator[Comparison]:
    """Each published number of a table for which the run has one."""
    table = published(name)
    for row in table["rows"]:
        model, dataset = row.get("model", table.get("model")), row["dataset"]
        if dataset not in datasets or (model is not None and model not in models):
            continue
        ours = {"dataset": datasets[dataset]} | ({} if model is None else {"model": models[model]})
        for metric, paper, found in _ours(row, analyses, ours):
            names = (model or "", dataset, row.get("method", ""), row.get("measure", ""), metric)
            digits = 2 if metric in ("T", "change of rank") else 3
            yield Comparison(names, paper, row.get("se"), found, digits)


def _ours(
    row: Mapping[str, Any], analyses: Mapping[str, list[dict[str, Any]]], of: Mapping[str, str]
) -> Iterator[tuple[str, float, Any]]:
    """(name of the metric, published value, the run's: over runs or a number) of a published row."""

    def found(analysis: str, **where: Any) -> dict[str, Any]:
        rows = (one for one in analyses[analysis] if all(one[k] == v for k, v in {**of, **where}.items()))
        return next(rows, {})

    if "metric" in row:
        metric = row["metric"]
        analysis = "entropy" if metric.startswith("SE_") else "confidence"
        value = found(analysis, method=row["method"], measure=row["measure"]).get(metric)
        numbers = [(metric_title(metric), row["mean"], value)]
    elif "temperature" in row:
        value = found("temperatures", measure=row["measure"]).get("temperature")
        numbers = [("T", row["temperature"], value)]
    elif "beam" in row:
        numbers = [("accuracy, 4 beams", row["beam"], found("base_accuracies").get("beam"))]
    elif "test" in row:
        sizes = found("splits")
        numbers = [(split, row[split], sizes[split]) for split in ("calibration_train", "validation", "test")]
    elif "volatility" in row:
        changes = found("volatility", metrics=["ace", "mcb"])
        if changes:  # a method that was not run has a row of its own
            value = {**changes["per_method"], "Mean": changes["mean"]}.get(row["method"])
            yield "change of rank", row["volatility"], value
        return
    elif row["key"] == "agreement":
        value = found("agreement", measure="E-SC").get("agreement")
        numbers = [("agreement of gradings", row["value"], value)]
    else:
        return
    yield from (one for one in numbers if one[2] is not None)


def _table(name: str, rows: list[Comparison]) -> Table:
    headings = ("Model", "Data set", "Method", "Measure", "Metric")
    used = [i for i in range(len(headings)) if any(row.names[i] for row in rows)]
    return Table(
        f"paper-{name}",
        f"The paper's numbers ({published(name)['table']}), ours, and the difference (ours less the "
        "paper's); ± standard error over runs, in brackets the 95 % interval over questions",
        (*(Column(headings[i]) for i in used), *map(Column, ("Paper", "Ours", "Difference"))),
        tuple((*(Cell(row.names[i]) for i in used), *_cells(row)) for row in rows),
        heads=len(used),
    )


def _cells(row: Comparison) -> tuple[Cell, Cell, Cell]:
    ours = cell_of(row.ours, row.digits)
    paper = replace(number(row.paper, row.digits), error=row.paper_se)
    if ours.value is None:
        return paper, ours, number(None)
    difference = number(ours.value - row.paper, 0 if isinstance(row.paper, int) else row.digits)
    text = f"+{difference.text}" if ours.value > row.paper else difference.text
    return paper, ours, replace(difference, text=text)
