"""The tables of a grid run, made from results.json alone, their files in three formats, and its costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from semcal.experiment.analyses.answers import audit_sheet
from semcal.experiment.finished import FinishedRun, read_environment
from semcal.records import writing
from semcal.report.further_tables import CANDIDATE, further_tables
from semcal.report.paper_tables import paper_tables
from semcal.report.published import published_tables
from semcal.report.table_writers import csv_lines, csv_text, markdown, markdown_text, table_latex
from semcal.report.tables import Field, Row, Table, flat_table, in_order

Results = Mapping[str, Any]


def grid_tables(results: Results) -> list[Table]:
    """Every table of a run: the paper's in its order, published numbers beside ours, and those beyond."""
    tables = [*paper_tables(results), *published_tables(results), *further_tables(results)]
    growth = _growth(results["analyses"].get("growth"))
    tables += [] if growth is None else [growth]
    note = resampled_groups(results)
    if not note:
        return tables
    return [
        replace(table, caption=f"{table.caption}. {note}") if "over questions" in table.caption else table
        for table in tables
    ]


def resampled_groups(results: Results) -> str:
    """Of which data sets intervals resample groups of questions, and how many; "" where none do."""
    of = [
        f"{row['dataset']} ({row['test_groups']} groups)"
        for row in results["analyses"]["splits"]
        if "test_groups" in row
    ]
    return f"Questions of one passage or group are resampled together: {', '.join(of)}" if of else ""


def write_tables(run: FinishedRun, results: Results, folder: Path) -> list[Path]:
    """Write NAME.md, NAME.csv and NAME.tex of every table, and 12-audit.csv; returns their paths."""
    texts = {}
    for table in [*grid_tables(results), *cost_tables(results, read_environment(run.folder))]:
        caption = markdown_text(table.caption, begins=True)
        texts[f"{table.name}.md"] = f"{caption}\n\n{markdown(table)}\n"
        texts[f"{table.name}.csv"] = csv_text(table)
        texts[f"{table.name}.tex"] = f"{table_latex(table)}\n"
    texts["12-audit.csv"] = _audit(run)
    for name, text in texts.items():
        with writing(folder / name) as handle:
            handle.write(text)
    return [folder / name for name in texts]


def _audit(run: FinishedRun) -> str:
    """The sheet of the first model on the first closed-book data set (else the first one)."""
    closed = [name for name in run.datasets if not run.open_book(name)]
    sheet = audit_sheet(run, run.models[0], (closed or run.datasets)[0])
    rows = [
        {**row, "clusters": " || ".join(" | ".join(cluster) for cluster in row["clusters"])} for row in sheet
    ]
    return csv_lines([list(sheet[0]), *(list(row.values()) for row in rows)])


# ---- Growth and costs --------------------------------------------------------------------------------------


def _growth(rows: Sequence[Row] | None) -> Table | None:
    """What clustering has to compare at each number of draws; None where all rows have as many."""
    if not rows:
        return None

    def pairs_at(draws: int, row: Row) -> float | None:
        found: Mapping[int, float] = dict(zip(row["draws"], row["pairs"]["mean"]))
        return found.get(draws)

    return flat_table(
        "growth",
        "Ordered pairs of distinct answers to a question, which clustering compares at most, by number of "
        "draws m, and the b of m^b through them (all draws distinct: 2 and a little more); of distinct "
        "answers and meanings the b alone",
        rows,
        CANDIDATE,
        *(
            Field(f"m = {draws}", partial(pairs_at, draws), "Pairs", 1)
            for draws in sorted({draws for row in rows for draws in row["draws"]})
        ),
        *(Field(name, (name, "exponent"), "b", 2) for name in ("pairs", "distinct", "meanings")),
    )


EXPONENTS = ("Paper m", "Paper L", "Benchmark m", "Benchmark L")
#: Stage → the exponents of m and of L, the length of an answer: those that the paper states ("Evaluation
#: Computational Complexity"), and those that `python -m benchmarks stages` has measured (docs/benchmarks.md).
GROWTH: Mapping[str, tuple[str, str, str, str]] = {
    "sample": ("1", "1", "0.5", "1.0"),
    "cluster": ("2", "–", "1.4", "1.0"),
    "measure": ("negligible", "–", "0.1", "0.0"),
    "grade": ("–", "–", "0.3", "0.4"),
}


def cost_tables(results: Results, record: Row) -> list[Table]:
    """What the run has cost, as far as its environment record (environment.json) says.

    Times differ from run to run: these tables are on the page and in cost-*.md, .csv and .tex alone.
    """
    tables = (_fit_costs(results, record), _stage_costs(record.get("cpu_seconds", {})))
    return [table for table in tables if table is not None]


def _fit_costs(results: Results, record: Row) -> Table | None:
    rows = [
        row
        for model in results["models"]
        for method in in_order(results["methods"])
        if (row := _fit_cost(results, record, model, method)) is not None
    ]
    if not rows:
        return None
    return flat_table(
        "cost-fits",
        "Recalibrators: parameters, CPU seconds of a fit (features not counted, the tables that fits share "
        "counted towards the first), and CPU time for each sampled token beyond that of Base, prompts "
        "included: the same answers scored under each, the fastest of several rounds (a few per cent "
        "are noise)",
        rows,
        {"model": "Model", "method": "Method"},
        Field("Parameters", "parameters"),
        Field("Fits", "fits"),
        Field("Seconds a fit", "seconds", digits=2),
        Field("µs", "more", "Overhead a token", 1),
        Field("% of Base", "share", "Overhead a token", 1),
    )


def _fit_cost(results: Results, record: Row, model: str, method: str) -> dict[str, Any] | None:
    sizes = [
        fit["parameters"]
        for fit in results["analyses"].get("fits", [])
        if (fit["model"], fit["method"]) == (model, method)
    ]
    if not sizes or method in ("Base", "SE"):
        return None
    spent = record.get("fits", {}).get(model, {}).get(method)
    more, share = _overhead(record.get("overhead", {}).get(model, []), method)
    return {
        "model": model,
        "method": method,
        "parameters": max(sizes),
        "fits": spent["fits"] if spent else None,
        "seconds": spent["seconds"] / spent["fits"] if spent and spent["fits"] else None,
        "more": more,
        "share": share,
    }


def _overhead(timed: Sequence[Row], method: str) -> tuple[float | None, float | None]:
    """Microseconds a token beyond Base, and their share of Base's in per cent."""
    by_method = {row["method"]: row["seconds"] / row["tokens"] for row in timed if row["tokens"]}
    if not by_method.get("Base") or method not in by_method:
        return None, None
    more = by_method[method] - by_method["Base"]
    return 1e6 * more, 100 * more / by_method["Base"]


def _stage_costs(seconds: Mapping[str, float]) -> Table | None:
    whole = sum(seconds.values())
    if not whole:
        return None
    return flat_table(
        "cost-stages",
        f"CPU seconds of each stage and its share of {whole:.0f}. The paper states that m answers of L "
        "tokens cost O(mL) to generate, which dominates, O(mL) to score, and O(m²) comparisons to cluster, "
        "which a small NLI model makes cheap; the rest is negligible. Here answers share their beginnings, "
        "likelihoods are read off while drawing, and equal answers are asked about once. b of a growth with "
        "m^b and L^b: as stated, and as `python -m benchmarks stages` measured it on a random model "
        "(docs/benchmarks.md)",
        [
            {"stage": stage, "seconds": spent, "share": 100 * spent / whole}
            | dict(zip(EXPONENTS, GROWTH.get(stage, ("–",) * 4)))
            for stage, spent in sorted(seconds.items(), key=lambda pair: -pair[1])
        ],
        {"stage": "Stage"},
        Field("Seconds", "seconds", digits=1),
        Field("Share, %", "share", digits=1),
        *(Field(name.partition(" ")[2], name, name.partition(" ")[0]) for name in EXPONENTS),
    )
