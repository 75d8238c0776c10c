"""What a run has cost, as tables: its fits, its recalibrators, its stages, and how they grow.

Times are those of environment.json, the one file of a run that is not the same twice; so these tables stand
on the page and in cost-*.md, .csv and .tex, and in nothing that is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semcal.report.layout import in_order
from semcal.report.tables import Cell, Column, Table, number

__all__ = ["cost_tables"]

Results = Mapping[str, Any]
Record = Mapping[str, Any]

#: Stage → the exponents of m and of L, the length of an answer: those that the paper states ("Evaluation
#: Computational Complexity"), and those that `python -m benchmarks stages` has measured (docs/benchmarks.md).
GROWTH: Mapping[str, tuple[str, str, str, str]] = {
    "sample": ("1", "1", "0.5", "1.0"),
    "cluster": ("2", "–", "1.4", "1.0"),
    "measure": ("negligible", "–", "0.1", "0.0"),
    "grade": ("–", "–", "0.3", "0.4"),
}
COMPLEXITY = (
    "The paper states that m answers of L tokens cost O(mL) to generate, which dominates, O(mL) to score, "
    "and O(m²) comparisons to cluster, which a small NLI model makes cheap; the rest is negligible. Here "
    "answers share their beginnings, likelihoods are read off while drawing, and equal answers are asked "
    "about once."
)


def cost_tables(results: Results, record: Record) -> list[Table]:
    """The tables that the environment record allows; none without one.

    Parameters
    ----------
    results : mapping
        The content of results.json.
    record : mapping
        The content of environment.json.
    """
    made = (_fits(results, record), _stages(record))
    return [table for table in made if table is not None]


def _fits(results: Results, record: Record) -> Table | None:
    rows = [
        row
        for model in results["models"]
        for method in in_order(results["methods"])
        if (row := _fit(results, record, model, method)) is not None
    ]
    if not rows:
        return None
    return Table(
        "cost-fits",
        "Recalibrators: parameters, CPU seconds of a fit (features not counted, the tables that fits share "
        "counted towards the first), and CPU time for each sampled token beyond that of Base, prompts "
        "included: the same answers scored under each, the fastest of several rounds (a few per cent "
        "are noise)",
        (
            *map(Column, ("Model", "Method", "Parameters", "Fits", "Seconds a fit")),
            *(Column(unit, "Overhead a token") for unit in ("µs", "% of Base")),
        ),
        tuple(rows),
        heads=2,
    )


def _fit(results: Results, record: Record, model: str, method: str) -> tuple[Cell, ...] | None:
    sizes = [
        fit["parameters"]
        for fit in results["analyses"].get("fits", [])
        if (fit["model"], fit["method"]) == (model, method)
    ]
    if not sizes or method in ("Base", "SE"):
        return None
    spent = record.get("fits", {}).get(model, {}).get(method)
    each = spent["seconds"] / spent["fits"] if spent and spent["fits"] else None
    more, share = _overhead(record.get("overhead", {}).get(model, []), method)
    return (
        *(Cell(model), Cell(method), number(max(sizes))),
        *(number(spent["fits"] if spent else None), number(each, 2)),
        *(number(more, 1), number(share, 1)),
    )


def _overhead(timed: list[Mapping[str, Any]], method: str) -> tuple[float | None, float | None]:
    """Microseconds a token beyond Base, and their share of Base's in per cent."""
    by_method = {row["method"]: row["seconds"] / row["tokens"] for row in timed if row["tokens"]}
    if not by_method.get("Base") or method not in by_method:
        return None, None
    more = by_method[method] - by_method["Base"]
    return 1e6 * more, 100 * more / by_method["Base"]


def _stages(record: Record) -> Table | None:
    seconds: Mapping[str, float] = record.get("cpu_seconds", {})
    whole = sum(seconds.values())
    if not whole:
        return None
    ranked = sorted(seconds.items(), key=lambda pair: -pair[1])
    return Table(
        "cost-stages",
        f"CPU seconds of each stage and its share of {whole:.0f}. {COMPLEXITY} b of a growth with m^b and "
        "L^b: as stated, and as `python -m benchmarks stages` measured it on a random model "
        "(docs/benchmarks.md)",
        (
            *map(Column, ("Stage", "Seconds", "Share, %")),
            *(Column(size, of) for of in ("Paper", "Benchmark") for size in ("m", "L")),
        ),
        tuple(
            (
                Cell(stage),
                number(spent, 1),
                number(100 * spent / whole, 1),
                *map(Cell, GROWTH.get(stage, ("–",) * 4)),
            )
            for stage, spent in ranked
        ),
    )
