"""The summary of a run: three sentences and a table.

The sentences state figures. A gain over Base is better or worse only if its interval excludes zero and both
sides have ten correct and ten wrong answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, product
from operator import itemgetter

from semcal.experiment.analyses.grid_scores import Record, Records
from semcal.experiment.analyses.score_analyses import MEASURE
from semcal.experiment.report.report_tables import (
    ABOVE_CHANCE,
    REPORT_TABLES,
    calibrated_differences,
    less_base,
)
from semcal.experiment.report.tables import (
    Column,
    RunResults,
    Table,
    TableCell,
    counted,
    flagged,
    flagged_cell,
    in_order,
    larger_is_better,
    mark,
    marks_note,
    mean_of,
    metric_title,
    number,
    select,
    value_at,
)
from semcal.text.columns import aligned


def compared_methods(methods: Sequence[str]) -> tuple[str, str]:
    """Return the methods before and after recalibration: Base or the first one, TS or the last."""
    return "Base" if "Base" in methods else methods[0], "TS" if "TS" in methods else methods[-1]


def listed(names: Sequence[str]) -> str:
    """Return names as text.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


# ---- Three sentences --------------------------------------------------------------------------------------


def sentences(results: RunResults) -> list[str]:
    """State the settings of a run, confidence and accuracy of each method, and gain over Base."""
    return list(filter(None, [facts(results), _confidence(results), _gains(results)]))


def facts(results: RunResults) -> str:
    """State the test questions, methods, runs and preset of a run."""
    sizes = {row["dataset"]: row["test"] for row in results["analyses"]["splits"]}
    tests = ", ".join(f"{name} ({counted(size, 'test question')})" for name, size in sizes.items())
    runs = "one run" if results["runs"] == 1 else f"{results['runs']} runs"
    calibrated = ["Calibrated"] * ("calibrated" in results["analyses"])
    refused = f"; {counted(results['problems'], 'row')} of the data rejected" if results["problems"] else ""
    served = "".join(
        f"; without {listed(names).replace('_', ' ')} for {model}, which is behind a server"
        for model, names in (results.get("left_out") or {}).items()
    )
    return (
        f"{tests}; {', '.join([*results['methods'], *calibrated])}; {runs} of "
        f"{counted(results['m'], 'sampled answer')} per question; preset {results['preset']}, seed "
        f"{results['seed']}{refused}{served}."
    )


def _confidence(results: RunResults) -> str:
    """State confidence and accuracy of each method, means over models and data sets."""
    by_method: dict[str, list[tuple[float, float]]] = {}
    for row in select(results["analyses"]["confidence"], {"measure": MEASURE}):
        confidence, accuracy = (value_at(row, (key, "mean")) for key in ("mean_confidence", "accuracy"))
        if confidence is not None and accuracy is not None:
            by_method.setdefault(row["method"], []).append((confidence, accuracy))
    parts = []
    for method, pairs in by_method.items():
        confidence, accuracy = (sum(values) / len(values) for values in zip(*pairs))
        parts.append(f"{method} {confidence:.0%} and {accuracy:.0%}")
    return f"Mean confidence ({MEASURE}) and accuracy: {', '.join(parts)}." if parts else ""


def _gains(results: RunResults) -> str:
    """Count the pairs of model and data set on which the gain of a method is clearly larger or smaller."""
    analyses = results["analyses"]
    rows = select(less_base("gain", results, analyses.get("against_base") or []), {"measure": MEASURE})
    of_calibrated = calibrated_differences(results, analyses.get("calibrated") or [])
    rows += select(of_calibrated, {"less": "Base", "metric": "gain"})
    verdicts: dict[str, list[bool | None]] = {}
    for row in rows:
        verdicts.setdefault(row["method"], []).append(None if row["too_few"] else row.get("better"))
    parts = [
        f"{method} better on {found.count(True)} and worse on {found.count(False)} of "
        f"{counted(len(found), 'data set' if len(results['models']) == 1 else 'pair')}"
        for method, found in verdicts.items()
    ]
    pairs = " (a pair is a model and a data set)" if len(results["models"]) > 1 else ""
    return f"Gain over Base: {'; '.join(parts)}{pairs}." if parts else ""


def cautions(results: RunResults) -> list[str]:
    """Return the warnings of the calibrations of a run."""
    return [
        f"Calibrated, {row['model']} on {row['dataset']}: {warning}."
        for row in results["analyses"].get("calibrated") or []
        for warning in row.get("calibration", {}).get("warnings", ())
    ]


def in_words(results: RunResults) -> list[str]:
    """Return the sentences and the tables of methods of a run (results.json), for a terminal."""
    (table,) = REPORT_TABLES["calibrated"].tables(results) or [headline_table(results)]
    rows = [[f"{column.group} {column.title}".strip() for column in table.columns]]
    rows += [[cell.text for cell in row] for row in table.rows]
    lines = [*sentences(results), *cautions(results)]
    if table.heads < 3:
        return [*lines, "", *aligned(rows, left=table.heads)]
    for (model, dataset), of_set in groupby(rows[1:], key=itemgetter(0, 1)):
        name = dataset if len(results["models"]) == 1 else f"{model} on {dataset}"
        columns = [[name, *rows[0][3:]], *(row[2:] for row in of_set)]
        lines += ["", *aligned(list(zip(*columns, strict=True)))]
    return lines


# ---- The table --------------------------------------------------------------------------------------------


def headline_table(results: RunResults) -> Table:
    """Return ACE, AUROC and accuracy of each method, means over measures and runs, by model and data set."""
    methods = in_order(results["methods"])
    metrics = ("ace", "auroc", "accuracy", "gain")
    body, shown = [], list[Record]()
    for model, dataset in product(results["models"], results["datasets"]):
        heads = [{"model": model, "dataset": dataset, "method": method} for method in methods]
        rows = flagged(results, heads)
        cells: list[TableCell] = []
        for metric in metrics:
            means = [
                _over_measures(row, select(results["analyses"]["confidence"], head), metric)
                for row, head in zip(rows, heads)
            ]
            cells += mark(means, larger=larger_is_better(metric))
        shown += rows
        body.append((TableCell(model), TableCell(dataset), *cells))
    columns = [Column(method, metric_title(metric)) for metric in metrics for method in methods]
    return Table(
        "headline",
        "ACE (lower is better), and AUROC, accuracy and gain of the selected answers (higher is better), of "
        "each method, mean over measures and runs; the best is bold; ⁼ marks ties after rounding"
        f"{ABOVE_CHANCE}{marks_note(shown)}",
        (Column("Model"), Column("Data set"), *columns),
        tuple(body),
        heads=2,
    )


def _over_measures(flags: Record, rows: Records, metric: str) -> TableCell:
    """Return the mean over the defined measures, also for the part above the noise floor."""
    rows = [row for row in rows if value_at(row, (metric, "mean")) is not None]
    mean = mean_of(row[metric]["mean"] for row in rows)
    return flagged_cell(number(mean), flags, mean_of(row.get(f"{metric}_floor") for row in rows))
