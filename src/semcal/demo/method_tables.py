"""The tables of `semcal.demo.methods` as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from semcal.semantics import MEASURES

__all__ = ["KEPT", "PLAIN", "markdown"]

#: Rows where nothing is chosen, and those where a candidate is chosen for each measure.
PLAIN, CHOSEN = ("Base", "SE", "TS NLL"), ("TS", "TS-grid", "ATS", "ATS far", "Platt", "Platt far")
#: Marks what was chosen among the candidates that keep the accuracy.
KEPT = ", accuracy kept"
METRICS = {"ace": "ACE", "auroc": "AUROC", "brier": "Brier", "accuracy": "Accuracy"}
Results = Mapping[str, Any]


def markdown(results: Results) -> str:
    """All tables, from what `methods.json` holds."""
    parts = [
        *(
            _metric(results, metric, f"{title} on test{rule}", rule)
            for rule in ("", KEPT)
            for metric, title in METRICS.items()
        ),
        *(_chosen(results, rule) for rule in ("", KEPT)),
        _losses(results),
        _classes(results),
        _transfer(results),
        _score_level(results),
        _costs(results),
    ]
    return "\n\n".join(parts) + "\n"


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    rule = f"| {' | '.join('---' if i < 2 else '---:' for i in range(len(head)))} |"
    return "\n".join([f"## {title}", "", f"| {' | '.join(head)} |", rule, *lines])


def _metric(results: Results, metric: str, title: str, rule: str) -> str:
    rows = (
        [name, method, *(_cell(result["test"][method][measure], metric) for measure in MEASURES)]
        for name, result in results.items()
        for method in (*PLAIN, *(name + rule for name in CHOSEN))
    )
    return _table(title, ["set", "method", *MEASURES], rows)


def _cell(scores: Mapping[str, Any], metric: str) -> str:
    value = scores.get(metric)
    return "–" if value is None else f"{value:.3f} ± {scores['se'][metric]:.3f}"


def _chosen(results: Results, rule: str) -> str:
    rows = (
        [name, method, *(_choice(result["test"][method][measure], result) for measure in MEASURES)]
        for name, result in results.items()
        for method in (name + rule for name in CHOSEN)
    )
    return _table(f"Chosen on validation, by Brier score{rule}", ["set", "method", *MEASURES], rows)


def _choice(scores: Mapping[str, Any], result: Results) -> str:
    name = str(scores["candidate"])
    temperature = {row["candidate"]: row["temperature"] for row in result["candidates"]}.get(name)
    return name if temperature is None else f"{name} (T {temperature:.2f})"


def _losses(results: Results) -> str:
    rows = (
        [
            name,
            row["candidate"],
            f"{row['train_nll']:.4f}",
            f"{row['validation_nll']:.4f}",
            f"{100 * row['top_changed']:.2f} %",
            f"{100 * row['order_changed']:.2f} %",
            *_validated(result, row),
        ]
        for name, result in results.items()
        for row in result["candidates"]
    )
    head = ["set", "candidate", "NLL train", "NLL validation", "top token changed", "top ten changed"]
    return _table("Losses beside semantic scores (E-SC, validation)", [*head, "ACE", "AUROC", "Brier"], rows)


def _validated(result: Results, row: Mapping[str, Any]) -> list[str]:
    """ACE, AUROC and Brier of E-SC on validation."""
    entries = [e for e in result["selection"].get(row["method"], []) if e["measure"] == "E-SC"]
    found = next((e for e in entries if e["candidate"] == row["candidate"]), None)
    return ["–"] * 3 if found is None else [_number(found[key]) for key in ("ace", "auroc", "brier")]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


SHOWN = (
    "Base",
    "TS NLL",
    "ATS NLL",
    "ATS far NLL",
    "Platt NLL",
    "Platt far NLL",
    "TS SS 0.5",
    "ATS far SS 0.5",
)


def _classes(results: Results) -> str:
    rows = (
        [
            name,
            row["candidate"],
            token_class,
            f"{100 * one['share']:.0f} %",
            _number(one["nll"]),
            f"{100 * one['share_of_nll']:.0f} %",
            _number(one["temperature"]),
        ]
        for name, result in results.items()
        for row in result["candidates"]
        if row["candidate"] in SHOWN
        for token_class, one in row["classes"].items()
        if one["share"]
    )
    head = ["set", "candidate", "token class", "share of tokens", "NLL", "share of loss", "mean T"]
    return _table("By token class (reference answers, validation)", head, rows)


def _transfer(results: Results) -> str:
    rows = (
        [name, method, *(_cell(scores[measure], "ace") for measure in MEASURES)]
        for name, result in results.items()
        for method, scores in result["test"].items()
        if method in ("Base", "TS NLL") or method.startswith("T of ")
    )
    return _table("Transfer: ACE on test at a temperature of another set", ["set", "T", *MEASURES], rows)


def _score_level(results: Results) -> str:
    rows = (
        [name, method, *(_cell(scores[measure], "ace") for measure in MEASURES)]
        for name, result in results.items()
        for method, scores in result["test"].items()
        if method == "Base" or method.startswith("Base + ")
    )
    return _table("Score-level recalibration of Base: ACE on test", ["set", "map", *MEASURES], rows)


def _costs(results: Results) -> str:
    rows = (
        [
            name,
            method,
            f"{cost['parameters']:,}",
            "–" if cost["fit_seconds"] is None else f"{cost['fit_seconds']:.1f}",
            f"{cost['seconds_per_thousand_tokens']:.2f}",
        ]
        for name, result in results.items()
        for method, cost in result["costs"].items()
    )
    head = ["set", "method", "parameters", "seconds of a fit", "seconds for 1000 sampled tokens"]
    return _table("Costs (processor time of one thread)", head, rows)
