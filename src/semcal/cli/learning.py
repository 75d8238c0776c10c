"""`semcal fit --learning-curve`: how many labelled questions the temperature needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semcal.cli.console import say, stages
from semcal.records import write_rows

if TYPE_CHECKING:
    from semcal.engine import Equivalence, LanguageModel
    from semcal.experiment.learning_curve import LearningCurve
    from semcal.pipeline import Asking
    from semcal.qa.datasets import Question
    from semcal.recalibration import CalibrationFeatures

__all__ = ["curve_in_words", "learn"]

#: The table, beside the recalibrator.
TABLE = "learning-curve.jsonl"
#: How far from the ACE of all labels few labels may be to count as enough.
MARGIN = 0.01


def learn(
    model: LanguageModel,
    features: CalibrationFeatures,
    validation: Sequence[Question],
    *,
    asking: Asking,
    judge: Equivalence,
    how: Mapping[str, Any],
    keep: Path,
    out: Path,
) -> LearningCurve:
    """Compute the learning curve and write its table."""
    from semcal.experiment.labels import curve_of_labels

    with stages() as shown:
        curve = curve_of_labels(
            model, features, validation, asking=asking, equivalence=judge, progress=shown, keep=keep, **how
        )
    if curve.outside:
        say(f"fit: {curve.outside} temperatures lie beyond the grid; its nearest end stands for them")
    write_rows(out / TABLE, curve.table())
    return curve


def curve_in_words(table: Sequence[Mapping[str, Any]], measure: str, needed: Mapping[str, int]) -> str:
    """The curve of one measure, a line for each number of labels."""
    of_measure = [row for row in table if row["measure"] == measure]
    by_metric = {
        metric: {row["n"]: row for row in of_measure if row["metric"] == metric}
        for metric in ("ace", "brier")
    }
    head = f"{'labels':>7} {'T':>7}" + "".join(
        f"   {name:>6} {'of subsets':>14} {'95 %':>14}" for name in ("ACE", "Brier")
    )
    lines = [f"{measure} on validation", head]
    for n, row in by_metric["ace"].items():
        cells = "".join(_cells(by_metric[metric][n]) for metric in by_metric)
        lines.append(f"{n or 'none':>7} {row['temperature']:>7.3f}{cells}")
    most = max(by_metric["ace"])
    lines.append(
        f"from {needed[measure]} labels on nearly every subset comes within {MARGIN:g} of the ACE of {most}"
    )
    return "\n".join(lines)


def _cells(row: Mapping[str, Any]) -> str:
    luck = f"[{row['subset_low']:.3f}, {row['subset_high']:.3f}]" if row["subsets"] > 1 else ""
    interval = f"[{row['low']:.3f}, {row['high']:.3f}]"
    return f"   {row['mean']:>6.3f} {luck:>14} {interval:>14}"
