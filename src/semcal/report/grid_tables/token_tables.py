"""Tables beside the claim that ATS overfits filler: losses against scores, and losses by class of token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from semcal.report.layout import in_order, index
from semcal.report.tables import Cell, Column, Table, number

__all__ = ["token_tables"]

Results = Mapping[str, Any]
Row = Mapping[str, Any]

NLL = {"train_nll": "calibration-train", "validation_nll": "validation"}
SCORES = {"ace": "ACE", "auroc": "AUROC", "brier": "Brier score"}
#: What is told of each class of tokens, and with how many digits.
OF_CLASS = {"share": ("Share", 3), "nll": ("NLL", 3), "temperature": ("T", 2)}


def token_tables(results: Results) -> list[Table]:
    """The tables that the results allow."""
    made = (_losses(results), _classes(results["analyses"].get("fits") or []))
    return [table for table in made if table is not None]


def _losses(results: Results) -> Table | None:
    """NLL of the fits that a method chose among those of one loss, beside the scores under them."""
    rows, fits = results["analyses"]["losses"], results["analyses"].get("fits")
    if not rows or not fits:
        return None
    known = index(fits, "model", "dataset", "candidate")
    groups: dict[tuple[str, ...], list[Row]] = {
        (model, dataset, _fitted(method, loss)): []
        for model in results["models"]
        for dataset in results["datasets"]
        for method in in_order(results["methods"])
        for loss in ("NLL", "SS")
    }
    for row in rows:
        fit = known.get((row["model"], row["dataset"], row["candidate"]), {})
        groups[row["model"], row["dataset"], _fitted(row["method"], row["loss"])].append({**fit, **row})
    return Table(
        "losses",
        "NLL (nats) of the reference tokens under the fits that each method chose among those of one loss, "
        "and the scores of the answers drawn under them: means over measures and runs",
        (
            *map(Column, ("Model", "Data set", "Method and loss")),
            *(Column(part, "NLL") for part in NLL.values()),
            *map(Column, SCORES.values()),
        ),
        tuple(
            (
                *map(Cell, head),
                *(_mean(row.get(key) for row in own) for key in NLL),
                *(_mean(row[key]["mean"] for row in own) for key in SCORES),
            )
            for head, own in groups.items()
            if own
        ),
        heads=3,
    )


def _fitted(method: str, loss: str) -> str:
    """A method with the loss that it was fitted by; Base and SE have none, and stand under each."""
    return method if method in ("Base", "SE") else f"{method} by {loss}"


def _classes(fits: Sequence[Row]) -> Table | None:
    """Share, NLL and temperature of each class of tokens, under what was fitted by NLL."""
    shown = [fit for fit in fits if fit["loss"] in (None, "NLL") and fit["classes"]]
    if not shown:
        return None
    classes = list(shown[0]["classes"])
    return Table(
        "token-classes",
        "Tokens of the validation answers by class: their share, and under Base, SE and every fit by NLL "
        "their mean NLL (nats) and temperature (Platt has none)",
        (
            *map(Column, ("Model", "Data set", "Candidate")),
            *(Column(name, title) for title, _ in OF_CLASS.values() for name in classes),
        ),
        tuple(
            (
                *(Cell(fit[key]) for key in ("model", "dataset", "candidate")),
                *(
                    number(fit["classes"].get(name, {}).get(key), digits)
                    for key, (_, digits) in OF_CLASS.items()
                    for name in classes
                ),
            )
            for fit in shown
        ),
        heads=3,
    )


def _mean(values: Iterable[float | None]) -> Cell:
    """The mean of what is known."""
    known = [value for value in values if value is not None]
    return number(sum(known) / len(known) if known else None)
