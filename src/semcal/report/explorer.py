"""The questions of a run as the compact JSON that page.js reads, safe inside a script element."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from semcal.records import parse_float
from semcal.report.run import Run

__all__ = ["as_bit", "as_log", "explorer_data", "script_json"]

#: What may not stand in the text of a script element, or in UTF-8 at all (lone surrogates).
UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")

Row = Mapping[str, Any]


def script_json(value: Any) -> str:
    r"""Return `value` as compact JSON that no HTML parser takes for markup.

    Examples
    --------
    >>> script_json({"answer": "</script>"})
    '{"answer":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def explorer_data(run: Run) -> dict[str, Any]:
    """Return what page.js shows; its head comment has the shape."""
    rules: dict[str, int] = {}
    sets = [
        {
            "name": name,
            "questions": [_question(row) for row in _first_rows(methods)],
            "rows": _aligned(methods, run.measures, rules),
        }
        for name, methods in run.rows.items()
    ]
    return {"measures": run.measures, "methods": run.methods, "rules": list(rules), "sets": sets}


def _first_rows(methods: Mapping[str, Sequence[Row]]) -> list[Row]:
    """One row for each question that any method answered, in order of appearance."""
    found: dict[str, Row] = {}
    for rows in methods.values():
        for row in rows:
            found.setdefault(str(row["id"]), row)
    return list(found.values())


def _question(row: Row) -> dict[str, Any]:
    question = {"id": str(row["id"]), "question": row["question"], "answers": row.get("answers") or []}
    return {**question, "context": row["context"]} if row.get("context") else question


def _aligned(
    methods: Mapping[str, Sequence[Row]], measures: Sequence[str], rules: dict[str, int]
) -> dict[str, list[Any]]:
    """The entries of each method in the order of the questions, null where it has none."""
    ids = [str(row["id"]) for row in _first_rows(methods)]
    aligned = {}
    for method, rows in methods.items():
        entries = {str(row["id"]): _entry(row, measures, rules) for row in rows}
        aligned[method] = [entries.get(item) for item in ids]
    return aligned


def _entry(row: Row, measures: Sequence[str], rules: dict[str, int]) -> list[Any]:
    """[clusters, top, correct, entropy, rule] of a row, the last four by measure."""
    given = [row.get("rule", {}).get(measure) for measure in measures]
    return [
        [_cluster(row, index, measures) for index in range(len(row["clusters"]))],
        [row["top_cluster"].get(measure) for measure in measures],
        [as_bit(row["correct"].get(measure)) for measure in measures],
        [_rounded(row["semantic_entropy"].get(measure)) for measure in measures],
        [None if rule is None else rules.setdefault(rule, len(rules)) for rule in given],
    ]


def _cluster(row: Row, index: int, measures: Sequence[str]) -> list[Any]:
    """[members, confidence by measure, right?] of a cluster."""
    known = row.get("log_likelihoods") or [None] * len(row["samples"])
    counts: dict[tuple[str, Any], int] = {}
    for i in row["clusters"][index]:
        member = (row["samples"][i], as_log(known[i]))
        counts[member] = counts.get(member, 0) + 1
    parts = [row["confidences"].get(measure) for measure in measures]
    return [
        [[text, log, count] for (text, log), count in counts.items()],
        [None if part is None else _rounded(part[index]) for part in parts],
        as_bit(row["cluster_correct"][index]),
    ]


def as_log(value: Any) -> float | str | None:
    """A log-likelihood to three decimals; JSON has no infinity."""
    number = parse_float(value)
    if number is None:
        return None
    return "-inf" if math.isinf(number) else round(number, 3)


def _rounded(value: float | None) -> float | int | None:
    """Four decimals are more than the page shows; whole numbers lose their point."""
    if value is None:
        return None
    short = round(value, 4)
    return int(short) if short.is_integer() else short


def as_bit(value: bool | None) -> int | None:
    """A truth value as 1 or 0, which is shorter."""
    return None if value is None else int(value)
