"""Tables of figures on a terminal: one layout for `calibrate`, `metrics`, `grade --audit` and `demo`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from semcal.cli.console import as_shown
from semcal.rows import Json
from semcal.text.columns import aligned, width_of

#: The figures that a reader looks for, with their names, in the order of a table.
MAIN = {
    "n": "questions",
    "accuracy": "accuracy",
    "mean_confidence": "mean confidence",
    "ace": "ACE",
    "ace_floor": "  noise floor",
    "ace_floor_95": "  noise floor, 95%",
    "auroc": "AUROC",
    "brier": "Brier score",
    "gain": "gain",
}
#: An explanation of the calibration error, for a reader who sees it for the first time.
ON_ACE = (
    "ACE is the mean gap between confidence and accuracy. An ACE up to the 95% noise floor can come from "
    "chance alone."
)
#: Entries of figures that are not rows of a table.
BESIDE = ("measure", "se", "interval", "risk", "by")
VERDICTS = {True: "yes", False: "NO", None: "?"}


def figure_lines(columns: Mapping[str, Json], width: int, *, every: bool = False) -> list[str]:
    """Return a table of figures, one column for each entry; further tables if the width is too small.

    Without `every`, figures of `MAIN` alone.
    """
    fullest = max(columns.values(), key=len)
    names = dict(_names(fullest, every=every))
    heads = ["", *names.values()]
    parts: list[list[list[str]]] = []
    for head, figures in columns.items():
        cells = [as_shown(head), *(_cell(figures, *key) for key in names)]
        if not parts or _width([heads, *parts[-1], cells]) > width:
            parts.append([])
        parts[-1].append(cells)
    lines: list[str] = []
    for part in parts:
        lines += [*([""] if lines else []), *aligned(list(zip(heads, *part)))]
    return lines


def slice_lines(figures: Json, column: str) -> list[str]:
    """Return a table of the calibration in each slice, and one of the risk where answers were given.

    Slices are the values of a column. "?" marks slices with too few questions to say.
    """
    parts = figures["by"]
    calibrated = [
        [
            part["value"],
            *map(number, (part["n"], part["mean_confidence"], part["accuracy"])),
            number(part["excess"], sign=True),
            interval(part["excess_interval"]),
            VERDICTS[part["calibrated"]],
        ]
        for part in parts
    ]
    answered = [
        [
            part["value"],
            *map(number, (part["answered"], part["risk"], part["risk_interval"])),
            VERDICTS[part["kept"]],
        ]
        for part in parts
        if part["answered"] is not None
    ]
    between = "95% interval"
    heads = [column, "questions", "confidence", "accuracy", "difference", between, "calibrated"]
    lines = aligned(_shown([heads, *calibrated]))
    if answered:
        heads = [column, "answered", "share wrong", between, "promise holds"]
        lines += ["", *aligned(_shown([heads, *answered]))]
    return [*lines, '"?": too few questions to say']


def _shown(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [list(map(as_shown, row)) for row in rows]


def number(value: Any, *, sign: bool = False) -> str:
    """Return a figure with three decimals, a count as it is, and "–" for an undefined value."""
    if value is None or value != value:
        return "–"
    if isinstance(value, float):
        return f"{value:{'+' if sign else ''}.3f}"
    if isinstance(value, list | tuple):
        return interval(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else as_shown(str(value))


def interval(ends: Sequence[float | None] | None) -> str:
    """Return an interval as [low, high]; "–" if it is undefined."""
    return "–" if ends is None else f"[{', '.join(map(number, ends))}]"


def _names(figures: Json, *, every: bool) -> Iterator[tuple[tuple[str, str | None], str]]:
    """Yield (key, inner key) and name of each row of a table."""
    from semcal.metrics import METRICS

    for key, name in MAIN.items():
        if key in figures:
            yield (key, None), name
    for key, value in figures.items() if every else ():
        if key not in MAIN and key not in BESIDE:
            name = METRICS[key].label if key in METRICS else key.replace("_", " ")
            inner = value if isinstance(value, dict) else (None,)
            yield from (((key, one), name if one is None else f"{name} {one}") for one in inner)


def _cell(figures: Json, key: str, inner: str | None) -> str:
    """Return a value, with its standard error and 95% interval if there are some."""
    value = figures.get(key) if inner is None else (figures.get(key) or {}).get(inner)
    error, ends = (figures.get(kind, {}).get(key) for kind in ("se", "interval"))
    if inner is not None or ends is None:
        return number(value)
    return f"{number(value)} ± {number(error)} {interval(ends)}"


def _width(columns: Sequence[Sequence[str]]) -> int:
    return sum(max(map(width_of, column)) + 2 for column in columns) - 2
