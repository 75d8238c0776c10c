"""Tables beyond the paper's: claims and their verdicts, deviations, paired tests, transfer, fits, answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from semcal.report.layout import columns_of, index, over_runs_cell
from semcal.report.tables import Cell, Column, Table, mark, number

__all__ = ["further_tables"]

Results = Mapping[str, Any]
QUANTITIES = {
    "ace": "ACE",
    "brier": "Brier score",
    "auroc": "AUROC",
    "accuracy": "accuracy",
    "SE_conf": "AUROC of SE_conf",
    "SE_vanilla": "AUROC of SE_vanilla",
    "gain": "AURAC − accuracy",
}


def further_tables(results: Results) -> list[Table]:
    """The tables that the results allow."""
    made = (
        claims_table(results),
        *(paired_table(results, quantity) for quantity in QUANTITIES),
        transfer_table(results, "ace"),
        transfer_table(results, "brier"),
        score_maps_table(results),
        refits_table(results),
        fits_table(results),
        answers_table(results),
        rules_table(results),
        rules_alone_table(results),
    )
    return [table for table in made if table is not None]


def claims_table(results: Results) -> Table:
    """Every claim with its verdict and the figures that decided."""
    return Table(
        "claims",
        "The paper's claims, and what becomes of them in this run",
        (Column("Claim"), Column("Where"), Column("Verdict"), Column("Because")),
        tuple(
            tuple(Cell(claim[key]) for key in ("claim", "source", "verdict", "because"))
            for claim in results["claims"]
        ),
        heads=4,
    )


def paired_table(results: Results, quantity: str) -> Table | None:
    """The paired tests of TS in one quantity, by model, data set and other method."""
    rows = [row for row in results["analyses"]["paired"] if row["quantity"] == quantity]
    if not rows:
        return None
    found = index(rows, "model", "dataset", "against", "measure")
    heads = list(dict.fromkeys((row["model"], row["dataset"], row["against"]) for row in rows))
    measures = columns_of(results["measures"])
    return Table(
        f"paired-{quantity.lower().replace('_', '-')}",
        f"{QUANTITIES[quantity]} of TS less that of each other method on the same questions, with its 95 % "
        "interval over questions; in bold where TS is shown to be better, in brackets where worse",
        (Column("Model"), Column("Data set"), Column("TS less"), *map(Column, measures)),
        tuple(
            (*map(Cell, head), *(_difference(found.get((*head, name))) for name in measures))
            for head in heads
        ),
        heads=3,
    )


def _difference(row: Mapping[str, Any] | None) -> Cell:
    if row is None or row["difference"] is None:
        return number(None)
    cell = number(row["difference"])
    text = cell.text if row["difference"] < 0 else f"+{cell.text}"
    worse = row["better"] is False
    return replace(
        cell,
        text=f"({text})" if worse else text,
        best=row["better"] is True,
        interval=tuple(row["interval"]),
    )


def transfer_table(results: Results, metric: str) -> Table | None:
    """A metric at the temperature fitted on each data set, the mean over measures; the best in bold."""
    rows = results["analyses"]["transfer"]
    if not rows:
        return None
    body = []
    for model in results["models"]:
        for used in results["datasets"]:
            cells = [_mean(rows, metric, model, source, used) for source in results["datasets"]]
            body.append((Cell(model), Cell(used), *mark(cells, larger=False)))
    return Table(
        f"transfer-{metric}",
        f"{QUANTITIES[metric]} under T (TS by NLL) fitted on one data set and used on another, mean over "
        "measures and runs",
        (Column("Model"), Column("Used on"), *(Column(name, "Fitted on") for name in results["datasets"])),
        tuple(body),
        heads=2,
    )


def _mean(rows: Sequence[Mapping[str, Any]], metric: str, model: str, source: str, used: str) -> Cell:
    values = [
        row[metric]["mean"]
        for row in rows
        if (row["model"], row["fitted_on"], row["used_on"]) == (model, source, used)
    ]
    known = [value for value in values if value is not None]
    return number(sum(known) / len(known) if known else None)


def score_maps_table(results: Results) -> Table | None:
    """ACE of Base's confidence, mapped by what was learnt on validation questions."""
    rows = results["analyses"].get("score_maps")
    if not rows:
        return None
    found = index(rows, "model", "dataset", "map", "measure")
    plain = index(results["analyses"]["confidence"], "model", "dataset", "method", "measure")
    found |= {(*key[:2], "none", key[3]): row for key, row in plain.items() if key[2] == "Base"}
    measures = columns_of(results["measures"])
    heads = dict.fromkeys(
        (row["model"], row["dataset"], name) for row in rows for name in ("none", row["map"])
    )
    return Table(
        "score-maps",
        "ACE of Base with its confidence as it is, and mapped by what validation questions taught; the "
        "answers and their accuracy stay the same",
        (Column("Model"), Column("Data set"), Column("Map"), *map(Column, measures)),
        tuple(
            (
                *map(Cell, head),
                *(over_runs_cell((found.get((*head, name)) or {}).get("ace")) for name in measures),
            )
            for head in heads
        ),
        heads=3,
    )


def refits_table(results: Results) -> Table | None:
    """Temperatures over runs that fitted anew; None where one fit served all."""
    rows = results["analyses"]["refits"]
    if not rows:
        return None
    return Table(
        "refits",
        "Temperatures over runs, each with a fit of its own: mean ± standard error over runs",
        (Column("Model"), Column("Data set"), Column("Candidate"), Column("T")),
        tuple(
            (
                *(Cell(row[key]) for key in ("model", "dataset", "candidate")),
                over_runs_cell(row["temperature"]),
            )
            for row in rows
        ),
        heads=3,
    )


def fits_table(results: Results) -> Table | None:
    """What was fitted: size, temperature, losses, and changes of the order of tokens."""
    rows = results["analyses"].get("fits")
    if not rows:
        return None
    return Table(
        "fits",
        "Fits: NLL of the reference tokens (nats), and the share of positions where another token becomes"
        " the most likely or the ten most likely change order (* T at its bound)",
        (
            *map(Column, ("Model", "Data set", "Candidate", "Parameters", "T")),
            *(Column(part, "NLL") for part in ("calibration-train", "validation")),
            *(Column(part, "Changed") for part in ("first token", "order of ten")),
        ),
        tuple(
            (
                *(Cell(row[key]) for key in ("model", "dataset", "candidate")),
                number(row["parameters"]),
                _temperature(row),
                *(number(row[key]) for key in ("train_nll", "validation_nll")),
                *(number(row[key], 4) for key in ("top_changed", "order_changed")),
            )
            for row in rows
        ),
        heads=3,
    )


def _temperature(row: Mapping[str, Any]) -> Cell:
    cell = number(row["temperature"], 2)
    return replace(cell, text=f"{cell.text}*") if row["at_bound"] else cell


def answers_table(results: Results) -> Table:
    """What the draws of a question hold, by candidate."""
    return Table(
        "answers",
        f"Distinct answers and meanings among {results['m']} draws (means per question), and the share of "
        "draws that refuse to answer",
        (
            *map(Column, ("Model", "Data set", "Candidate", "Used by")),
            *map(Column, ("Distinct answers", "Meanings", "Refusals")),
        ),
        tuple(
            (
                *(Cell(row[key]) for key in ("model", "dataset", "candidate")),
                Cell(", ".join(row["methods"])),
                number(row["distinct"], 2),
                number(row["meanings"], 2),
                number(row["refusals"]),
            )
            for row in results["analyses"]["answers"]
        ),
        heads=4,
    )


def rules_table(results: Results) -> Table | None:
    """How often each rule of grading decided."""
    rows = results["analyses"]["deciding_rules"]
    if not rows:
        return None
    rules = sorted({rule for row in rows for rule in row["rules"]})
    return Table(
        "deciding-rules",
        "Share of Base's answers in run 0 on which each rule of grading decided",
        (*map(Column, ("Model", "Data set", "Measure")), *map(Column, rules)),
        tuple(
            (
                *(Cell(row[key]) for key in ("model", "dataset", "measure")),
                *(number(row["rules"].get(rule, 0) / row["n"]) for rule in rules),
            )
            for row in rows
        ),
        heads=3,
    )


def rules_alone_table(results: Results) -> Table | None:
    """What grading would say if one rule alone decided, or the first few of them."""
    rows = results["analyses"].get("rules_alone")
    if not rows:
        return None
    wrong = ("false_positives", "false_negatives")
    return Table(
        "rules-alone",
        "Share of Base's answers (E-SC, run 0) that a rule of grading accepts alone, and with the rules "
        "before it; what it accepts or rejects alone against grading by entailment",
        (
            *map(Column, ("Model", "Data set", "Rule", "Alone", "With those before")),
            Column("accepted wrongly", "Against entailment"),
            Column("rejected wrongly", "Against entailment"),
        ),
        tuple(
            (
                *(Cell(row[key]) for key in ("model", "dataset", "rule")),
                number(row["alone"]),
                number(row["up_to"]),
                *(number((row["against_nli"] or {}).get(key)) for key in wrong),
            )
            for row in rows
        ),
        heads=3,
    )
