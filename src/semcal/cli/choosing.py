"""`semcal fit --select` and `--method TS-grid`: a recalibrator for each measure, and the table of all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semcal.cli.complaints import listed
from semcal.cli.console import complain, progress, say, stages
from semcal.errors import UsageError, shown
from semcal.qa.questions import group_ties
from semcal.qa.splits import near_duplicates, question_key, warn_of_near_duplicates
from semcal.records import write_rows
from semcal.registry import check_name

if TYPE_CHECKING:
    from semcal.engine import Equivalence, LanguageModel
    from semcal.pipeline import Asking
    from semcal.pipeline.fitting import CalibrationSet
    from semcal.qa.datasets import Question
    from semcal.recalibration import Fitted, Provenance

__all__ = ["choose_by_grid", "choose_by_sweep", "keep_apart"]

#: The table of all candidates, beside the recalibrators.
TABLE = "selection.jsonl"
#: What `calibration.json` keeps of the scores by which it was chosen.
KEPT = ("measure", "measure_alpha", "brier", "ace", "auroc", "accuracy", "n")
#: Share of the best candidate's accuracy below which a choice by Brier score is remarked upon.
WORTH = 0.8


def choose_by_sweep(
    model: LanguageModel,
    labelled: CalibrationSet,
    validation: Sequence[Question],
    *,
    asking: Asking,
    judge: Equivalence,
    methods: Sequence[str],
    features: Path | None,
    how: Mapping[str, Any],
    provenance: Provenance,
    measure: str,
    keep: Path,
    out: Path,
) -> dict[str, Any]:
    """Fit all candidates, choose for each measure on validation, and keep what was chosen."""
    from semcal.experiment.sweep import sweep

    with stages() as shown:
        found = sweep(
            model,
            labelled,
            validation,
            asking=asking,
            equivalence=judge,
            methods=methods,
            store=features,
            progress=shown,
            keep=keep,
            **how,
        )
    chosen = {name: found.recalibrator(name) for name in found.selection.chosen}
    table = found.selection.table()
    return _keep(chosen, table, model, provenance, measure, out)


def choose_by_grid(
    model: LanguageModel,
    questions: Sequence[Question],
    *,
    asking: Asking,
    judge: Equivalence,
    how: Mapping[str, Any],
    provenance: Provenance,
    measure: str,
    keep: Path,
    out: Path,
) -> dict[str, Any]:
    """Choose a temperature for each measure from samples alone, and keep them."""
    from semcal.experiment.blocks import rows_in_blocks
    from semcal.pipeline.grid import GRID, choose_temperatures

    sampling = {key: value for key, value in how.items() if key != "accuracy_within"}
    with progress("TS-grid", len(questions)) as update:
        rows = rows_in_blocks(
            model, questions, GRID, equivalence=judge, asking=asking, progress=update, keep=keep, **sampling
        )
    found = choose_temperatures(rows, accuracy_within=how["accuracy_within"])
    if found.at_edge:
        say(
            f"fit: the best temperature for {', '.join(found.at_edge)} is the last of the grid; "
            "it may lie beyond"
        )
    chosen = {name: found.recalibrator(name) for name in found.temperatures}
    return _keep(chosen, found.table(), model, provenance, measure, out)


def keep_apart(labelled: Sequence[Question], others: Sequence[Question], *, both: str) -> None:
    """Refuse questions that are fitted to and used otherwise as well; `both` says what such a one is.

    Warn of those that share a passage or a group with one that is fitted to, or ask nearly the same.
    """
    used = {question_key(question) for question in labelled}
    for question in others:
        if question_key(question) in used:
            raise UsageError(f"{question.question!r} is {both}; take it out of one file")
    ties = {tie for question in labelled for tie in group_ties(question)}
    related = [question.id for question in others if not ties.isdisjoint(group_ties(question))]
    if related:
        complain(
            f"warning: {len(related)} questions ({listed([shown(name) for name in related])}) share a "
            "passage or a group with questions to fit to, which flatters what is measured on them; keep a "
            "passage or group in one file"
        )
    warn_of_near_duplicates(near_duplicates({"fitted to": labelled, "others": others}))


def _traded_accuracy(table: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say where the lowest Brier score is that of answers which are mostly wrong, and known to be."""
    for row in filter(lambda row: row["chosen"], table):
        best = max(other["accuracy"] for other in table if other["measure"] == row["measure"])
        if row["accuracy"] < WORTH * best:
            yield (
                f"what was chosen for {row['measure']} is right in {row['accuracy']:.0%} of the questions, "
                f"the best candidate in {best:.0%}: wrong answers of little confidence score low; "
                "--keep-accuracy leaves such candidates out"
            )


def _keep(
    chosen: Mapping[str, Fitted],
    table: Sequence[Mapping[str, Any]],
    model: LanguageModel,
    provenance: Provenance,
    measure: str,
    out: Path,
) -> dict[str, Any]:
    """Write the choice of every measure, the one of `measure` in `out` itself; what was chosen and why."""
    from semcal.recalibration import save_pretrained

    check_name(measure, chosen, what="measure")
    found = {row["measure"]: dict(row) for row in table if row["chosen"]}
    for name, folder in [*((name, out / name) for name in chosen), (measure, out)]:
        scores = {key: found[name].get(key) for key in KEPT}
        save_pretrained(chosen[name], folder, provenance=replace(provenance, validation=scores))
    write_rows(out / TABLE, table)
    for warning in _traded_accuracy(table):
        complain(f"warning: {warning}")
    tried = len({row.get("candidate", row.get("temperature")) for row in table})
    say(f"fit: {tried} candidates on {model.name}, their scores under each measure in {out / TABLE}")
    return {
        "measure": measure,
        "chosen": found,
        "path": str(out / "calibration.json"),
    }
