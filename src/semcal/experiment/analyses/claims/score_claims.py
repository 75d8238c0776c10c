"""Claims about scores: TS against other methods, variants of entropy, numbers of draws, method or measure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from semcal.experiment.analyses.claims.statements import (
    CALIBRATED,
    ENTROPY_VARIANTS,
    FAILS,
    HOLDS,
    MARGIN,
    METHOD_AGAINST_MEASURE,
    METHOD_STATEMENTS,
    NUMBER_OF_DRAWS,
    OPEN,
    OPEN_BOOK,
    QUANTITY_WORDS,
    STABLE,
    Claim,
    MethodStatement,
    absent,
    all_of,
    positive,
    refuting,
)
from semcal.experiment.analyses.columns import Floats
from semcal.experiment.analyses.contrasts import (
    benefit,
    contrast_summary,
    contrast_text,
    entropy_contrast,
    measures_of,
    pooled_benefit,
)
from semcal.experiment.analyses.grid_scores import GridScores, PairScores
from semcal.experiment.finished import Pair
from semcal.metrics import Contrast

Rows = Sequence[Mapping[str, Any]]

# ---- TS against other methods -----------------------------------------------------------------------------

_NO_AUROC = "AUROC is undefined on every model and data set: all answers are right, or all are wrong."
_NO_QUESTION = "No question counts: some measure gives each of them no confidence under some method."
#: Why methods that were run cannot be compared.
UNDEFINED = {"ace": _NO_QUESTION, "auroc": _NO_AUROC, "SE_conf": _NO_AUROC, "gain": _NO_QUESTION}


def method_claims(scores: GridScores, selective: Rows) -> list[Claim]:
    """Judge the claims that TS is better than others; the rows of `selective` are further evidence."""
    return [method_claim(scores, statement, selective) for statement in METHOD_STATEMENTS]


def method_claim(scores: GridScores, statement: MethodStatement, selective: Rows = ()) -> Claim:
    """Judge one claim that TS is better than others."""
    quantity, methods = statement.quantity, scores.run.methods
    others = [name for name in statement.others if name in methods and "TS" in methods]
    pooled = {
        other: found
        for other in others
        if (found := pooled_benefit(scores, quantity, "TS", other)) is not None
    }
    missing = absent(("TS", *statement.others), methods)
    if not pooled:
        return statement.undecidable(UNDEFINED[quantity] if others else missing)
    accuracy = {other: pooled_benefit(scores, "accuracy", "TS", other) for other in pooled}
    evidence = {
        "pooled": {other: contrast_summary(contrast) for other, contrast in pooled.items()},
        "by_dataset": _by_dataset(scores, quantity, list(pooled)),
        "cells": {other: _wins(scores, quantity, other) for other in pooled},
        "accuracy": {other: contrast_summary(one) for other, one in accuracy.items() if one is not None},
    }
    if quantity == "gain":
        evidence["slope"] = _slopes(selective, ["TS", *pooled])
    verdicts = [
        positive(pooled[other], parts=len(statement.others)) if other in pooled else OPEN
        for other in statement.others
    ]
    because = " ".join(filter(None, [_benefit_text(evidence, quantity), missing]))
    return statement.judged(all_of(verdicts), because, evidence)


def _slopes(rows: Rows, methods: Sequence[str]) -> dict[str, float]:
    """Slope of selective accuracy up to 50 % rejected, mean over models, data sets and measures."""
    slopes = [(row["method"], row["slope"]["mean"]) for row in rows]
    found = {name: [value for method, value in slopes if method == name] for name in methods}
    return {name: float(np.mean(values)) for name, values in found.items() if values}


def _by_dataset(scores: GridScores, quantity: str, others: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"dataset": dataset, "against": other, **contrast_summary(found)}
        for dataset in scores.run.datasets
        for pairs in [[pair for pair in scores.run.pairs if pair[1] == dataset]]
        for other in others
        if (found := pooled_benefit(scores, quantity, "TS", other, pairs=pairs)) is not None
    ]


def _wins(scores: GridScores, quantity: str, other: str) -> dict[str, int]:
    """In how many (model, data set, measure) TS is shown to be better, to be worse, and neither."""
    counts = {"better": 0, "worse": 0, "neither": 0}
    for model, dataset in scores.run.pairs:
        pair = scores.pair(model, dataset)
        for measure in measures_of(pair, scores):
            found = benefit(quantity, pair, measure, "TS", other).interval()
            counts["better" if found.low > 0 else "worse" if found.high < 0 else "neither"] += 1
    return counts


def _benefit_text(evidence: dict[str, Any], quantity: str) -> str:
    parts = []
    for other, found in evidence["pooled"].items():
        wins, rows = evidence["cells"][other], [r for r in evidence["by_dataset"] if r["against"] == other]
        worse = [row["dataset"] for row in rows if row["interval"][1] < 0]
        where_worse = f" (worse on {', '.join(worse)})" if worse and len(rows) > 1 else ""
        parts.append(
            f"against {other} {contrast_text(found)}, better in {wins['better']}"
            f" and worse in {wins['worse']} of {sum(wins.values())} cells{where_worse}"
        )
    accuracy = ", ".join(f"under {other} {contrast_text(one)}" for other, one in evidence["accuracy"].items())
    slopes = ", ".join(
        f"{round(value, 3) + 0.0:.3f} under {name}" for name, value in evidence.get("slope", {}).items()
    )
    return (
        f"Benefit of TS ({QUANTITY_WORDS[quantity]}): {'; '.join(parts)}."
        f"{f' Slope from 0 to 50 % rejected: {slopes}.' if slopes else ''}"
        f" Accuracy of the selected answers under TS less that {accuracy}."
    )


def open_book_claim(scores: GridScores, *, calibrated_at: float = CALIBRATED) -> Claim:
    """Judge TS on open-book data sets on which Base has an ACE of at most `calibrated_at`."""
    run = scores.run
    if missing := absent(("Base", "TS"), run.methods):
        return OPEN_BOOK.undecidable(missing)
    base = {pair: _base_ace(scores, pair) for pair in run.pairs if run.open_book(pair[1])}
    calibrated = [pair for pair, value in base.items() if value <= calibrated_at]
    shown = ", ".join(
        f"{' on '.join(pair)} {'undefined' if np.isinf(value) else f'{value:.3f}'}"
        f"{' (does not count)' if calibrated and value > calibrated_at else ''}"
        for pair, value in base.items()
    )
    if not base:
        return OPEN_BOOK.undecidable("The run has no open-book data set.")
    if not calibrated:
        return OPEN_BOOK.undecidable(
            f"On no open-book data set is Base calibrated (ACE at most {calibrated_at}): {shown}."
        )
    auroc, ace = (pooled_benefit(scores, name, "TS", "Base", pairs=calibrated) for name in ("auroc", "ace"))
    if auroc is None or ace is None:
        return OPEN_BOOK.undecidable(
            f"Where Base is calibrated all answers are right, or all wrong; its ACE: {shown}."
        )
    evidence = {"auroc": contrast_summary(auroc), "ace": contrast_summary(ace)}
    no_gain = HOLDS if ace.interval().high < MARGIN else FAILS if refuting(ace, parts=2).low > 0 else OPEN
    benefits = ", ".join(f"in {name.upper()} {contrast_text(one)}" for name, one in evidence.items())
    because = f"Benefit of TS over Base {benefits}. ACE of Base: {shown}."
    verdict = all_of([positive(auroc, parts=2), no_gain])
    return OPEN_BOOK.judged(verdict, because, {**evidence, "pairs": calibrated})


def _base_ace(scores: GridScores, pair: Pair) -> float:
    found = scores.pair(*pair)
    values = [found.by_run["Base", name]["ace"].mean() for name in measures_of(found, scores)]
    return float(np.mean(values)) if values else np.inf


# ---- Variants of semantic entropy -------------------------------------------------------------------------


def variants_claim(scores: GridScores) -> Claim:
    """Judge SE_conf against SE_vanilla, with the same of one member as further evidence."""
    known = _less_vanilla(scores, "SE_conf")
    if not known:
        return ENTROPY_VARIANTS.undecidable(
            "Under no method and measure are there right and wrong answers both among the selected and among "
            "the greedy ones, so AUROC is undefined."
        )
    by_method = {method: Contrast.mean(found) for method, found in known.items()}
    pooled = Contrast.mean(one for found in known.values() for one in found)
    verdict = positive(pooled)
    loses = any(refuting(one, len(by_method)).high < 0 for one in by_method.values())
    single = _less_vanilla(scores, "SE_conf_one_member")
    evidence: dict[str, Any] = {
        "pooled": contrast_summary(pooled),
        "by_method": {method: contrast_summary(one) for method, one in by_method.items()},
        "one_member": _mean_summary(one for found in single.values() for one in found),
        "one_member_by_method": {method: _mean_summary(found) for method, found in single.items()},
    }
    shown = (("", "pooled", "by_method"), (" (one member)", "one_member", "one_member_by_method"))
    sentences = [
        f"SE_conf{name} less SE_vanilla is {contrast_text(evidence[pooled])} in AUROC: "
        + ", ".join(f"{contrast_text(one)} under {method}" for method, one in evidence[of_methods].items())
        for name, pooled, of_methods in shown
        if evidence[pooled] is not None
    ]
    verdict = OPEN if verdict == HOLDS and loses else verdict
    return ENTROPY_VARIANTS.judged(verdict, f"{'. '.join(sentences)}.", evidence)


def _less_vanilla(scores: GridScores, variant: str) -> dict[str, list[Contrast]]:
    """By method, AUROC of a variant less that of SE_vanilla wherever both are defined."""
    found = {
        method: [
            entropy_contrast(pair, method, measure, variant)
            - entropy_contrast(pair, method, measure, "SE_vanilla")
            for model, dataset in scores.run.pairs
            for pair in [scores.pair(model, dataset)]
            for measure in measures_of(pair, scores)
        ]
        for method in scores.run.methods
    }
    known = {method: [one for one in of if not np.isnan(one.value)] for method, of in found.items()}
    return {method: of for method, of in known.items() if of}


def _mean_summary(parts: Iterable[Contrast]) -> dict[str, Any] | None:
    known = list(parts)
    return contrast_summary(Contrast.mean(known)) if known else None


# ---- Numbers of draws -------------------------------------------------------------------------------------


def draws_claim(by_draws: Mapping[Pair, Mapping[int, PairScores]]) -> Claim:
    """Judge gains with the number of draws from the scores at each number, by (model, data set)."""
    numbers = sorted(set.intersection(*(set(found) for found in by_draws.values()))) if by_draws else []
    if not numbers or numbers[0] >= 10 or numbers[-1] <= 15 or not any(10 <= k <= 15 for k in numbers):
        shown = f"rows at {', '.join(map(str, numbers))}" if numbers else "one number of draws"
        return NUMBER_OF_DRAWS.undecidable(
            f"The run has {shown}; it takes fewer than 10 draws, 10 to 15, and more."
        )
    ace, auroc = (_means_by_draws(by_draws, numbers, metric) for metric in ("ace", "auroc"))
    if not ace or not auroc:
        return NUMBER_OF_DRAWS.undecidable(
            "Under no method and measure are there right and wrong answers at every number of draws."
        )
    pooled = {k: Contrast.mean([of[k] for of in ace.values()]) for k in numbers}
    gain = pooled[numbers[0]] - pooled[numbers[-1]]
    early = pooled[numbers[0]] - pooled[max(k for k in numbers if k <= 15)]
    steps = {
        method: {k: of[k] - of[numbers[-1]] for k in numbers[:-1] if k >= 10} for method, of in auroc.items()
    }
    parts = 2 + sum(map(len, steps.values()))
    gained = positive(gain, parts=parts)
    verdicts = [
        gained,
        positive(early - gain * (2 / 3), margin=0.0, parts=parts) if gained == HOLDS else OPEN,
        all_of([_is_stable(step, parts) for of in steps.values() for step in of.values()]),
    ]
    evidence: dict[str, Any] = {
        "ace": {method: {str(k): one.value for k, one in of.items()} for method, of in ace.items()},
        "auroc": {method: {str(k): one.value for k, one in of.items()} for method, of in auroc.items()},
        "gain": contrast_summary(gain),
        "share_of_gain_by_15": early.value / gain.value if gain.value > 0 else 0.0,
        "change_of_auroc": {
            method: {str(k): contrast_summary(step) for k, step in of.items()} for method, of in steps.items()
        },
        "parts": verdicts,
    }
    return NUMBER_OF_DRAWS.judged(all_of(verdicts), _draws_text(evidence, numbers), evidence)


def _draws_text(evidence: Mapping[str, Any], numbers: Sequence[int]) -> str:
    """The gain in ACE, of all methods and of each, and the method whose AUROC moves most."""
    first, last = (str(numbers[i]) for i in (0, -1))
    by_method = ", ".join(
        f"{method} {of[first]:.3f} to {of[last]:.3f}" for method, of in evidence["ace"].items()
    )
    moves = [
        (method, k, step) for method, of in evidence["change_of_auroc"].items() for k, step in of.items()
    ]
    method, k, most = max(moves, key=lambda move: abs(move[2]["value"]))
    gain = evidence["gain"]
    share = f", {evidence['share_of_gain_by_15']:.0%} of that by 15 draws" if gain["value"] > 0 else ""
    return (
        f"ACE at {first} draws less that at {last}: {contrast_text(gain)}{share} ({by_method}). AUROC at 10 "
        f"draws or more less that at {last} is furthest from 0 under {method}, at {k} draws: "
        f"{contrast_text(most)}."
    )


def _is_stable(step: Contrast, parts: int) -> str:
    """Whether a change of AUROC is within ±`STABLE`."""
    found, wide = step.interval(), refuting(step, parts)
    if wide.low > STABLE or wide.high < -STABLE:
        return FAILS
    return HOLDS if found.low >= -STABLE and found.high <= STABLE else OPEN


def _means_by_draws(
    by_draws: Mapping[Pair, Mapping[int, PairScores]], numbers: Sequence[int], metric: str
) -> dict[str, dict[int, Contrast]]:
    """Method → number of draws → mean over where the metric is defined at every number."""
    known: dict[str, list[dict[int, Contrast]]] = {}
    for found in by_draws.values():
        for key in found[numbers[0]].arrays:
            of = {k: found[k].resampled.contrast(key, metric) for k in numbers if key in found[k].arrays}
            if len(of) == len(numbers) and not any(np.isnan(one.value) for one in of.values()):
                known.setdefault(key[0], []).append(of)
    return {
        method: {k: Contrast.mean([of[k] for of in those]) for k in numbers}
        for method, those in known.items()
    }


# ---- Method against measure -------------------------------------------------------------------------------


def components_claim(scores: GridScores) -> Claim:
    """Judge whether methods or measures move ACE and AUROC more."""
    found = {metric: _component_differences(scores, metric) for metric in ("ace", "auroc")}
    if not all(found.values()):
        return METHOD_AGAINST_MEASURE.undecidable(_why_no_components(scores))
    pooled = {metric: Contrast.mean(one for one, _ in parts) for metric, parts in found.items()}
    evidence: dict[str, Any] = {
        metric: {
            "difference_of_roots": contrast_summary(pooled[metric]),
            "method": float(np.mean([row["method"] for _, row in parts])),
            "measure": float(np.mean([row["measure"] for _, row in parts])),
            "by_pair": [row for _, row in parts],
        }
        for metric, parts in found.items()
    }
    because = "; ".join(
        f"{metric.upper()}: standard deviation {of['method']:.3f} over methods, "
        f"{of['measure']:.3f} over measures"
        for metric, of in evidence.items()
    )
    verdict = all_of([positive(one, margin=0.0, parts=len(pooled)) for one in pooled.values()])
    return METHOD_AGAINST_MEASURE.judged(verdict, f"{because}.", evidence)


def _why_no_components(scores: GridScores) -> str:
    if len(scores.run.methods) < 2:
        return "The run has one method; it takes two."
    if all(len(measures_of(scores.pair(*pair), scores)) < 2 for pair in scores.run.pairs):
        return "Fewer than two measures are defined; it takes two."
    return (
        "On no model and data set are ACE and AUROC defined for every method and measure: AUROC takes right "
        "and wrong answers."
    )


def _component_differences(scores: GridScores, metric: str) -> list[tuple[Contrast, dict[str, Any]]]:
    """For each pair the root of the method's component less that of the measure's."""
    methods, parts = scores.run.methods, []
    for model, dataset in scores.run.pairs:
        pair = scores.pair(model, dataset)
        measures = measures_of(pair, scores)
        if len(measures) < 2 or len(methods) < 2:
            continue
        table = [
            [pair.resampled.contrast((method, measure), metric) for measure in measures] for method in methods
        ]
        here = [np.sqrt(part) for part in components(np.array([[one.value for one in row] for row in table]))]
        if np.isnan(here).any():
            continue
        by_method, by_measure = components(np.array([[one.resampled for one in row] for row in table]))
        drawn = np.sqrt(by_method) - np.sqrt(by_measure)
        row = {"model": model, "dataset": dataset, "method": float(here[0]), "measure": float(here[1])}
        parts.append((Contrast(float(here[0] - here[1]), drawn), row))
    return parts


def components(table: Floats) -> tuple[Floats, Floats]:
    r"""Variance components of rows and of columns of a two-way table (I, J, ...) with one value a cell.

    With I rows, J columns, mean squares of rows, columns and rest,

    .. math:: \sigma^2_\text{rows} = \max(0, (MS_\text{rows} - MS_\text{rest}) / J), \qquad
              \sigma^2_\text{columns} = \max(0, (MS_\text{columns} - MS_\text{rest}) / I).
    """
    i, j = table.shape[:2]
    mean = table.mean(axis=(0, 1))
    rows, columns = table.mean(axis=1), table.mean(axis=0)
    rest = table - rows[:, None] - columns[None] + mean
    ms_rows = j * ((rows - mean) ** 2).sum(0) / (i - 1)
    ms_columns = i * ((columns - mean) ** 2).sum(0) / (j - 1)
    ms_rest = (rest**2).sum((0, 1)) / ((i - 1) * (j - 1))
    return np.maximum(0.0, (ms_rows - ms_rest) / j), np.maximum(0.0, (ms_columns - ms_rest) / i)
