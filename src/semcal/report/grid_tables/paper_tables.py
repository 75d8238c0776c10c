"""The paper's tables of a run, 1 to 13 (12, the audit, is a sheet and stands in audit.csv)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from semcal.experiment.analyses.scores_by_method import SHORT
from semcal.experiment.paths import slug
from semcal.report.layout import (
    Block,
    Row,
    columns_of,
    in_order,
    index,
    method_table,
    over_runs_cell,
)
from semcal.report.tables import NAMES, Cell, Column, Table, number

__all__ = ["paper_tables"]

Results = Mapping[str, Any]
BOLD = "Best of each measure and data set in bold, ⁼ where several show the same digits"


def paper_tables(results: Results) -> list[Table]:
    """Every table of the paper that the results allow, in its order; those by model once a model."""
    each = [(model, *arguments) for arguments in BY_MODEL for model in results["models"]]
    return [
        splits_table(results),
        accuracies_table(results),
        *(make(results, model, name) for model, name, make in each),
        *filter(None, [temperatures_table(results)]),
        *filter(None, [volatility_table(results, metrics) for metrics in (["ace", "mcb"], ["ace", "ece"])]),
        *filter(None, [agreement_table(results)]),
    ]


def splits_table(results: Results) -> Table:
    """Table 1: sizes of the parts, with data sets as columns."""
    rows = results["analyses"]["splits"]
    parts = (
        ("Calibration", "Training", "calibration_train"),
        ("Calibration", "Validation", "validation"),
        ("Final Evaluation", "Test", "test"),
    )
    return Table(
        "01-splits",
        "Sizes of the parts of each data set",
        (Column("Stage"), Column("Split"), *(Column(row["dataset"]) for row in rows)),
        tuple((Cell(stage), Cell(split), *(number(row[key]) for row in rows)) for stage, split, key in parts),
        heads=2,
    )


def accuracies_table(results: Results) -> Table:
    """Table 2: accuracies of the base models in percent, by beams and greedy."""
    found = index(results["analyses"]["base_accuracies"], "model", "dataset")
    ways = (("4 beams", "beam"), ("greedy", "greedy"))
    columns = [Column(dataset, title) for title, _ in ways for dataset in results["datasets"]]
    return Table(
        "02-accuracies",
        "Accuracy of the base models on the test questions in percent, with its 95 % interval over questions",
        (Column("Model"), *columns),
        tuple(
            (
                Cell(model),
                *(_percent(found[model, dataset][key]) for _, key in ways for dataset in results["datasets"]),
            )
            for model in results["models"]
        ),
    )


def _percent(found: Row | None) -> Cell:
    """Decoding without chance has no spread over runs, so the interval alone stands beside it."""
    if found is None:
        return number(None)
    cell = number(100 * found["mean"], 1)
    low, high = found["interval"]
    return replace(cell, interval=(100 * low, 100 * high))


def _metric(key: str, larger: bool, title: str | None = None) -> Block:
    return Block(title or NAMES[key], lambda row: row[key], larger)


def _unmarked(key: str) -> Block:
    return Block(key.capitalize(), lambda row: row[key], None)


def _of_methods(
    analysis: str,
    caption: str,
    *blocks: Block,
    measures: Sequence[str] | None = None,
    underline: bool = False,
    extra: Block | None = None,
) -> Callable[[Results, str, str], Table]:
    """A table a model, from the rows of one analysis."""

    def made(results: Results, model: str, name: str) -> Table:
        kept = columns_of(measures or results["measures"])
        under = "; the best of a data set underlined" if underline else ""
        return method_table(
            results["analyses"][analysis],
            name=f"{name}-{slug(model)}",
            caption=f"{caption} for {model}: {_spread(results)}. {BOLD}{under}.",
            model=model,
            datasets=results["datasets"],
            methods=in_order(results["methods"]),
            measures=kept,
            blocks=blocks,
            underline=underline,
            extra=extra,
        )

    return made


def _spread(results: Results) -> str:
    """What stands beside a number."""
    if results["runs"] == 1:
        return "of one run, with the 95 % interval over questions"
    return "mean ± standard error over runs, and the 95 % interval over questions"


ACE = _metric("ace", False)
CONF = _metric("SE_conf", True, "(a) SE_conf")
VANILLA = _metric("SE_vanilla", True, "(b) SE_vanilla")
ONE_MEMBER = _metric("SE_conf_one_member", True, "(c) SE_conf (one member)")
DIFFERS = Block("Greedy answer unlike Base's", lambda row: row["greedy_differs"], None)
DECOMPOSED = ("brier", "reliability", "resolution", "uncertainty", "refinement")

#: (name, how it is made) of the tables that there is one of for each model.
BY_MODEL = (
    (
        "02b-selected-accuracies",
        _of_methods("confidence", "Accuracy of the selected answer", _metric("accuracy", True)),
    ),
    (
        "03-main",
        _of_methods(
            "confidence", "ACE (lower is better) and AUROC (higher is better)", ACE, _metric("auroc", True)
        ),
    ),
    (
        "04-entropy-short",
        _of_methods(
            "entropy",
            "AUROC of −entropy, judged by (a) the most confident meaning, right where any of several of its "
            "members is, (b) one greedy answer, and (c) one member of the most confident meaning,",
            CONF,
            VANILLA,
            ONE_MEMBER,
            measures=SHORT,
            underline=True,
        ),
    ),
    (
        "05-entropy-conf",
        _of_methods(
            "entropy",
            "AUROC of −entropy, judged by the most confident meaning, right where any of several of its "
            "members is,",
            CONF,
            underline=True,
        ),
    ),
    (
        "06-entropy-vanilla",
        _of_methods(
            "entropy",
            "AUROC of −entropy, judged by one greedy answer of the method,",
            VANILLA,
            underline=True,
            extra=DIFFERS,
        ),
    ),
    ("08-brier", _of_methods("confidence", "Brier score (lower is better)", _metric("brier", False))),
    (
        "08b-brier-parts",
        _of_methods(
            "confidence",
            "Brier score = reliability − resolution + uncertainty over unique confidences, and refinement = "
            "uncertainty − resolution,",
            *(_unmarked(key) for key in DECOMPOSED),
        ),
    ),
    ("09-ace-mcb", _of_methods("confidence", "ACE beside CORP-MCB", ACE, _metric("mcb", False, "CORP-MCB"))),
    ("10-ace-ece", _of_methods("confidence", "ACE beside ECE", ACE, _metric("ece", False))),
    (
        "selective",
        _of_methods(
            "selective",
            "How fast accuracy rises as the least confident questions are rejected: its slope from 0 to 50 % "
            "rejected, and AURAC − accuracy,",
            _metric("slope", True, "Slope"),
            _metric("gain", True, "AURAC − accuracy"),
        ),
    ),
)


def temperatures_table(results: Results) -> Table | None:
    """Table 7: the temperatures chosen, data set × model × measure; None without TS."""
    found = index(results["analyses"]["temperatures"], "dataset", "model", "measure")
    if not found:
        return None
    return Table(
        "07-temperatures",
        "Temperatures that TS chose for each measure (* at the bound of the fit)",
        (Column("Data set"), Column("Model"), *map(Column, columns_of(results["measures"]))),
        tuple(
            (
                Cell(dataset),
                Cell(model),
                *(
                    _temperature(found.get((dataset, model, measure)))
                    for measure in columns_of(results["measures"])
                ),
            )
            for dataset in results["datasets"]
            for model in results["models"]
        ),
        heads=2,
    )


def _temperature(row: Row | None) -> Cell:
    cell = number(row["temperature"] if row else None, 2)
    return replace(cell, text=f"{cell.text}*") if row and row["at_bound"] else cell


def volatility_table(results: Results, metrics: list[str]) -> Table | None:
    """Table 11: mean |change of rank| by method, model and data set; None where there is nothing to rank."""
    rows = [row for row in results["analyses"]["volatility"] if row["metrics"] == metrics]
    if not rows or len(results["methods"]) < 2:
        return None
    first, second = (NAMES[key] for key in metrics)
    body = [
        (Cell(method), *(number(row["per_method"][method], 2) for row in rows))
        for method in in_order(results["methods"])
    ]
    means = (Cell("Mean"), *(replace(number(row["mean"], 2), best=True) for row in rows))
    chance = rows[0]["chance"]
    return Table(
        f"11-volatility-{second.lower()}",
        f"Mean change of rank of the methods from {first} to {second}; unrelated rankings would change by "
        f"{chance:.2f}",
        (Column("Method"), *(Column(row["dataset"], row["model"]) for row in rows)),
        (*body, means),
    )


def agreement_table(results: Results) -> Table | None:
    """Table 13: agreement of grading by words with grading by entailment; None where that was not asked."""
    rows = [row for row in results["analyses"]["agreement"] if row["n"]]
    if not rows:
        return None
    keys = ("agreement", "lexical_only", "nli_only")
    return Table(
        "13-agreement",
        "Agreement of grading by words with grading by entailment on Base's answers of run 0, its 95 % "
        "interval (Wilson), and the shares that one alone accepts",
        (
            *map(Column, ("Model", "Data set", "Measure", "Questions", "Agreement")),
            Column("Words alone"),
            Column("Entailment alone"),
        ),
        tuple(
            (
                *(Cell(row[key]) for key in ("model", "dataset", "measure")),
                number(row["n"]),
                replace(over_runs_cell(row[keys[0]]), interval=tuple(row["interval"])),
                *(number(row[key]) for key in keys[1:]),
            )
            for row in rows
        ),
        heads=3,
    )
