"""The paper's tables of a run, 1 to 13 (12, the audit, is a sheet: audit.csv)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from semcal.experiment.analyses.scores_by_method import SHORT
from semcal.experiment.grid_settings import slug
from semcal.report.against_base import flagged, less_accurate_note
from semcal.report.tables import (
    Cell,
    Field,
    Row,
    Table,
    flat_table,
    in_order,
    measures_in_order,
    metric_title,
    number,
    pivot,
)

Results = Mapping[str, Any]
CALIBRATED_NOTE = "; Calibrated maps E-SC of Base, and is graded on the one wording that it answers with"
BOLD = "Best of each measure and data set in bold; ⁼ marks ties at the digits shown"


def paper_tables(results: Results) -> list[Table]:
    """Every table of the paper that the results allow, in its order; those by model once a model."""
    analyses = results["analyses"]
    tables = [
        _splits(analyses["splits"]),
        _accuracies(results),
        *(one.of(results, model) for one in METHOD_TABLES for model in results["models"]),
        _temperatures(results),
        *(_volatility(results, metrics) for metrics in (["ace", "mcb"], ["ace", "ece"])),
        _agreement(analyses["agreement"]),
    ]
    return [table for table in tables if table is not None]


def _splits(rows: Sequence[Row]) -> Table:
    splits = (
        ("Calibration", "Training", "calibration_train"),
        ("Calibration", "Validation", "validation"),
        ("Final Evaluation", "Test", "test"),
    )
    return pivot(
        "01-splits",
        "Sizes of the parts of each data set",
        [
            {"stage": stage, "split": split, "dataset": row["dataset"], "n": row[key]}
            for stage, split, key in splits
            for row in rows
        ],
        {"stage": "Stage", "split": "Split"},
        [Field(row["dataset"], "n", where={"dataset": row["dataset"]}) for row in rows],
    )


def _accuracies(results: Results) -> Table:
    return pivot(
        "02-accuracies",
        "Accuracy of the base models on the test questions in percent, with its 95 % interval over questions",
        results["analyses"]["base_accuracies"],
        {"model": "Model"},
        [
            Field(dataset, partial(_percent, key), title, where={"dataset": dataset})
            for title, key in (("4 beams", "beam"), ("greedy", "greedy"))
            for dataset in results["datasets"]
        ],
    )


def _percent(key: str, row: Row) -> Cell:
    """Decoding without chance has no spread over runs, so it has its interval alone."""
    found = row[key]
    if found is None:
        return number(None)
    low, high = found["interval"]
    return replace(number(100 * found["mean"], 1), interval=(100 * low, 100 * high))


# ---- One table a model: data sets × methods, metrics × measures -------------------------------------------


@dataclass(frozen=True)
class MethodTable:
    """The paper's layout: rows are data sets × methods, columns metrics × measures."""

    name: str
    analysis: str
    caption: str
    metrics: tuple[tuple[str, str, bool | None], ...]  # (key, heading, whether larger is better)
    measures: tuple[str, ...] = ()  # all by default
    underline: bool = False  # whether the best of a data set is underlined
    extra: tuple[str, str] | None = None  # (key, heading) of a last column, which shows the first measure

    def of(self, results: Results, model: str) -> Table:
        """The table of one model."""
        measures = measures_in_order(self.measures or results["measures"])
        fields = [
            Field(measure, key, title, where={"measure": measure}, larger=larger)
            for key, title, larger in self.metrics
            for measure in measures
        ]
        if self.extra:
            key, title = self.extra
            fields.append(Field(f"{title}, {measures[0]}", key, where={"measure": measures[0]}))
        spread = "mean ± standard error over runs, and the 95 % interval over questions"
        if results["runs"] == 1:
            spread = "of one run, with the 95 % interval over questions"
        under = "; the best of a data set underlined" if self.underline else ""
        rows = flagged(results, [row for row in results["analyses"][self.analysis] if row["model"] == model])
        methods = dict.fromkeys([*results["methods"], *(row["method"] for row in rows)])
        note = f"{under}{less_accurate_note(rows)}{CALIBRATED_NOTE if 'Calibrated' in methods else ''}"
        return pivot(
            f"{self.name}-{slug(model)}",
            f"{self.caption} for {model}: {spread}. {BOLD}{note}.",
            rows,
            {"dataset": "Data set", "method": "Method"},
            fields,
            heads=product(results["datasets"], in_order(list(methods))),
            underline=self.underline,
        )


def floor_columns(metric: str) -> tuple[tuple[str, str, bool | None], ...]:
    """What an error of calibration is by chance alone."""
    return (
        (f"{metric}_floor", "by chance", None),
        (f"{metric}_floor_95", "95 % by chance", None),
        (f"{metric}_p", "p", None),
    )


ACE = ("ace", "ACE", False)
CONF = ("SE_conf", "(a) SE_conf", True)
VANILLA = ("SE_vanilla", "(b) SE_vanilla", True)
METHOD_TABLES = (
    MethodTable(
        "02b-selected-accuracies",
        "confidence",
        "Accuracy of the selected answer",
        (("accuracy", "accuracy", True),),
    ),
    MethodTable(
        "03-main",
        "confidence",
        "ACE (lower is better) and AUROC (higher is better)",
        (ACE, ("auroc", "AUROC", True)),
    ),
    MethodTable(
        "03b-ace-by-chance",
        "confidence",
        "ACE beside that of calibrated confidences by chance (mean and 95 % quantile), and p of calibration,",
        (ACE, *floor_columns("ace")),
    ),
    MethodTable(
        "04-entropy-short",
        "entropy",
        "AUROC of −entropy, judged by (a) the most confident meaning, right where any of several of its "
        "members is, (b) one greedy answer, and (c) one member of the most confident meaning,",
        (CONF, VANILLA, ("SE_conf_one_member", "(c) SE_conf (one member)", True)),
        measures=SHORT,
        underline=True,
    ),
    MethodTable(
        "05-entropy-conf",
        "entropy",
        "AUROC of −entropy, judged by the most confident meaning, right where any of several of its "
        "members is,",
        (CONF,),
        underline=True,
    ),
    MethodTable(
        "06-entropy-vanilla",
        "entropy",
        "AUROC of −entropy, judged by one greedy answer of the method,",
        (VANILLA,),
        underline=True,
        extra=("greedy_differs", "Greedy answer unlike Base's"),
    ),
    MethodTable(
        "08-brier", "confidence", "Brier score (lower is better)", (("brier", "Brier score", False),)
    ),
    MethodTable(
        "08c-gain",
        "confidence",
        "Gain = accuracy − Brier score (higher is better)",
        (("gain", "gain", True),),
    ),
    MethodTable(
        "08b-brier-parts",
        "confidence",
        "Brier score = reliability − resolution + uncertainty over unique confidences, and refinement = "
        "uncertainty − resolution,",
        tuple(
            (key, key.capitalize(), None)
            for key in ("brier", "reliability", "resolution", "uncertainty", "refinement")
        ),
    ),
    MethodTable("09-ace-mcb", "confidence", "ACE beside CORP-MCB", (ACE, ("mcb", "CORP-MCB", False))),
    MethodTable("10-ace-ece", "confidence", "ACE beside ECE", (ACE, ("ece", "ECE", False))),
    MethodTable(
        "10b-ece-by-chance",
        "confidence",
        "ECE beside that of calibrated confidences by chance (mean and 95 % quantile), and p of calibration,",
        (("ece", "ECE", False), *floor_columns("ece")),
    ),
    MethodTable(
        "selective",
        "selective",
        "How fast accuracy rises as the least confident questions are rejected: its slope from 0 to 50 % "
        "rejected, and AURAC − accuracy,",
        (("slope", "Slope", True), ("gain", "AURAC − accuracy", True)),
    ),
)

# ---- Temperatures, volatility, agreement ------------------------------------------------------------------


def _temperatures(results: Results) -> Table | None:
    """Table 7: the temperatures chosen; None without TS."""
    rows = results["analyses"]["temperatures"]
    measures = measures_in_order(results["measures"])
    if not rows:
        return None
    return pivot(
        "07-temperatures",
        "Temperatures that TS chose for each measure (* at the bound of the fit)",
        rows,
        {"dataset": "Data set", "model": "Model"},
        [Field(measure, fitted_temperature, where={"measure": measure}) for measure in measures],
        heads=product(results["datasets"], results["models"]),
    )


def fitted_temperature(row: Row) -> Cell:
    """The temperature of a fit, with a star where it is at its bound."""
    cell = number(row["temperature"], 2)
    return replace(cell, text=f"{cell.text}*") if row["at_bound"] else cell


def _volatility(results: Results, metrics: list[str]) -> Table | None:
    """Table 11: mean |change of rank| by method, model and data set; None where there is nothing to rank."""
    found = [row for row in results["analyses"]["volatility"] if row["metrics"] == metrics]
    if not found or len(results["methods"]) < 2:
        return None
    first, second = (metric_title(key) for key in metrics)
    changes = [
        {**row, "method": method, "change": row["per_method"].get(method)}
        for method in in_order(results["methods"])
        for row in found
    ]
    changes += [
        {**row, "method": "Mean", "change": replace(number(row["mean"], 2), best=True)} for row in found
    ]
    return pivot(
        f"11-volatility-{second.lower()}",
        f"Mean change of rank of the methods from {first} to {second}; unrelated rankings would change by "
        f"{found[0]['chance']:.2f}",
        changes,
        {"method": "Method"},
        [
            Field(row["dataset"], "change", row["model"], 2, {key: row[key] for key in ("model", "dataset")})
            for row in found
        ],
    )


def _agreement(rows: Sequence[Row]) -> Table | None:
    """Table 13: agreement of grading by words with that by entailment; None without the latter."""
    known = [row for row in rows if row["n"]]
    if not known:
        return None
    return flat_table(
        "13-agreement",
        "Agreement of grading by words with grading by entailment on Base's answers of run 0, its 95 % "
        "interval (Wilson), and the shares that one alone accepts",
        known,
        {"model": "Model", "dataset": "Data set", "measure": "Measure"},
        Field("Questions", "n"),
        Field("Agreement", lambda row: replace(number(row["agreement"]), interval=tuple(row["interval"]))),
        Field("Words alone", "lexical_only"),
        Field("Entailment alone", "nli_only"),
    )
