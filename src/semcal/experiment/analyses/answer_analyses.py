"""Analyses of questions, fits and answers, without scores, and of grading.

Sizes of the splits, prompts, temperatures and fits, as selections record them (tables 1 and 7, figure 8);
accuracies of the base model (table 2); numbers of distinct answers and meanings; grading by rules against
grading by entailment (table 13); and the sheet for judging clusters by hand (table 12).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from itertools import product

import numpy as np

from semcal.arrays import Floats
from semcal.data.question import several
from semcal.errors import InputError
from semcal.experiment.analyses.grid_scores import (
    CellScores,
    Columns,
    Record,
    Records,
    ScoreRow,
    ScoreRows,
    base_candidate,
    over_runs,
)
from semcal.experiment.finished import FinishedRun
from semcal.meaning.answer import is_refusal
from semcal.metrics import bootstrap
from semcal.metrics.intervals import wilson_interval
from semcal.rows import NO_ANSWER

FIT_KEYS = (
    "candidate",
    "method",
    "loss",
    "alpha",
    "weight_decay",
    "temperature",
    "at_bound",
    "parameters",
    "train_nll",
    "validation_nll",
    "top_changed",
    "order_changed",
)


def splits(run: FinishedRun) -> ScoreRows:
    """Return rows {dataset, open_book, calibration_train, validation, test}, equal for all models.

    If test questions share a passage or a value in the field `group`, `test_groups` is the number of these
    groups, which intervals resample.
    """
    return [
        {
            "dataset": dataset,
            "open_book": run.open_book(dataset),
            **{split: selection["sizes"][split] for split in ("calibration_train", "validation", "test")},
            **({"test_groups": selection["test_groups"]} if "test_groups" in selection else {}),
        }
        for dataset in run.datasets
        for selection in [run.selections[run.models[0], dataset]]
    ]


def prompts(run: FinishedRun) -> ScoreRows:
    """Return rows {model, dataset, open_book, prompt}: the exact prompt of the first test question."""
    return [
        {"model": model, "dataset": dataset, "open_book": run.open_book(dataset)}
        | {"prompt": run.selections[model, dataset].get("prompt")}
        for model, dataset in run.pairs
    ]


def temperatures(run: FinishedRun) -> ScoreRows:
    """Return rows of TS, {dataset, model, measure, temperature, candidate, loss, alpha, at_bound}."""
    rows: ScoreRows = []
    for dataset, model in product(run.datasets, run.models) if "TS" in run.methods else ():
        selection = run.selections[model, dataset]
        choices = selection["methods"].get("TS")
        at_bound = {fit["candidate"]: fit.get("at_bound") for fit in selection.get("fits", [])}
        for measure in run.measures if choices else ():
            choice = choices.get(measure, {})
            row: ScoreRow = {"dataset": dataset, "model": model, "measure": measure}
            row |= {key: choice.get(key) for key in ("temperature", "candidate", "loss", "alpha")}
            rows.append(row | {"at_bound": at_bound.get(choice.get("candidate"))})
    return rows


def refits(run: FinishedRun) -> ScoreRows:
    """Return rows {model, dataset, candidate, temperature}: T over runs (`over_runs`) of separate fits.

    Empty if one fit served all runs.
    """
    rows = []
    for model, dataset in run.pairs:
        by_candidate: dict[str, list[float]] = {}
        for fit in run.selections[model, dataset].get("fits", []):
            if fit.get("temperature") is not None:
                of_runs = fit.get("temperature_of_run", [fit["temperature"]])
                by_candidate.setdefault(fit["candidate"], []).extend(of_runs)
        rows += [
            {"model": model, "dataset": dataset, "candidate": candidate, "temperature": over_runs(values)}
            for candidate, values in by_candidate.items()
            if len(values) > 1
        ]
    return rows


def fits(run: FinishedRun) -> ScoreRows:
    """Return rows {model, dataset} with the recorded values `FIT_KEYS` of each fit, null if missing."""
    return [
        {"model": model, "dataset": dataset, **{key: fit.get(key) for key in FIT_KEYS}}
        for model, dataset in run.pairs
        for fit in run.selections[model, dataset].get("fits", [])
    ]


# ---- Answers ----------------------------------------------------------------------------------------------


def base_accuracies(cell: CellScores) -> ScoreRows:
    """Return rows {model, dataset, greedy, beam}, each over runs (`over_runs`), null if missing.

    Neither is random, so the standard error over runs is 0; the interval is over questions.
    """
    runs = cell.runs_of(base_candidate(cell.run, cell.model, cell.dataset))
    greedy = [columns.greedy_correct for columns in runs]
    beam = [columns.beam_correct for columns in runs if columns.beam_correct is not None]
    return [
        {
            **cell.place,
            "greedy": _accuracy(cell, greedy, runs),
            "beam": _accuracy(cell, beam, runs) if len(beam) == len(runs) else None,
        }
    ]


def _accuracy(cell: CellScores, correct: Sequence[Floats], runs: Sequence[Columns]) -> ScoreRow:
    table = np.stack(correct)
    intervals = bootstrap(
        table,
        table,
        metrics=["accuracy"],
        groups=several(runs[0].ties),
        resamples=cell.run.settings.evaluation.resamples,
        seed=cell.run.settings.seed,
    )
    return over_runs([float(flags.mean()) for flags in correct], intervals["accuracy"])


def answers(cell: CellScores) -> ScoreRows:
    """Return rows {model, dataset, candidate, methods, distinct, meanings, refusals} on the samples.

    Distinct answers and meanings are means per question; refusals is a share of all samples.
    """
    users: dict[str, list[str]] = {}
    for (method, _), candidate in cell.chosen().items():
        if method not in users.setdefault(candidate, []):
            users[candidate].append(method)
    return [
        {**cell.place, "candidate": candidate, "methods": methods}
        | {
            key: float(np.mean([getattr(columns, key) for columns in cell.runs_of(candidate)]))
            for key in ("distinct", "meanings", "refusals")
        }
        for candidate, methods in users.items()
    ]


def agreement(cell: CellScores) -> ScoreRows:
    """Compare the two gradings of Base's selected answers in run 0.

    Rows are {model, dataset, measure, n, agreement, interval, lexical_only, nli_only}: the share of questions
    on which both agree with its 95% interval (Wilson), and the shares that only one accepts. Empty if answers
    were not graded by entailment.
    """
    rows = []
    for columns in _base(cell):
        for measure, nli in (columns.correct_nli or {}).items():
            lexical = columns.correct[measure]
            graded = ~np.isnan(lexical) & ~np.isnan(nli)
            n = int(graded.sum())
            row: ScoreRow = {**cell.place, "measure": measure, "n": n}
            row |= dict.fromkeys(("agreement", "interval", "lexical_only", "nli_only"))
            if n:
                by_words, by_entailment = lexical[graded] == 1, nli[graded] == 1
                share = float(np.mean(by_words == by_entailment))
                error = math.sqrt(share * (1 - share)) / math.sqrt(n)
                row |= {
                    "agreement": share,
                    "interval": list(wilson_interval(share, error, n, level=0.95)),
                    "lexical_only": float(np.mean(by_words & ~by_entailment)),
                    "nli_only": float(np.mean(by_entailment & ~by_words)),
                }
            rows.append(row)
    return rows


def deciding_rules(cell: CellScores) -> ScoreRows:
    """Return rows {model, dataset, measure, n, rules}: how often each rule decided for Base in run 0."""
    return [
        {**cell.place, "measure": measure}
        | {"n": columns.rules[measure].total(), "rules": dict(sorted(columns.rules[measure].items()))}
        for columns in _base(cell)
        for measure in cell.run.measures
    ]


def _base(cell: CellScores) -> list[Columns]:
    if "Base" not in cell.run.methods:
        return []
    return cell.runs_of(cell.choice("Base", cell.run.measures[0])["candidate"], first=1)


# ---- The audit (table 12) ----------------------------------------------------------------------------------

#: Number of questions on a sheet, as in the paper.
AUDITED = 100
#: The criteria: a row has an empty column for each criterion and judge.
CRITERIA = ("every cluster one meaning", "no two clusters the same meaning")
JUDGES = ("human", "judge model")


def audit_sheet(run: FinishedRun, model: str, dataset: str, *, n: int = AUDITED) -> ScoreRows:
    """Return n random questions of one model and data set, with Base's samples of run 0 by cluster.

    The questions have the smallest hashes of (seed, id), so a sheet does not depend on the order of rows.

    Rows are {id, question, clusters, refusals, "human: …", …}: the distinct answers of each cluster with
    their counts, the number of clusters of refusals, and an empty column for each judge and criterion.
    """
    rows = run.rows(model, dataset, base_candidate(run, model, dataset))
    sheet = sorted(rows, key=lambda row: blake2b(f"{run.settings.seed}/{row['id']}".encode()).digest())[:n]
    return [
        {
            "id": row["id"],
            "question": row["question"],
            "clusters": [_listed([row["samples"][i] for i in cluster]) for cluster in row["clusters"]],
            "refusals": sum(is_refusal(row["samples"][cluster[0]] or "") for cluster in row["clusters"]),
            **{f"{judge}: {criterion}": None for judge in JUDGES for criterion in CRITERIA},
        }
        for row in sheet
    ]


def audit_result(sheet: Records, *, judge: str = "human") -> ScoreRow:
    """Count a sheet (`audit_sheet`, or rows of its CSV file) that `judge` has filled in with yes and no.

    Return {n, accuracy, errors}: the share of questions that meet both criteria (null if none was judged),
    and the number of failures by criterion, separately for questions with two or more refusals. InputError if
    a column is missing, or an entry is neither yes, no nor empty.

    >>> row = {"refusals": "2", "human: every cluster one meaning": "yes"}
    >>> audit_result([row | {"human: no two clusters the same meaning": "no"}])
    {'n': 1, 'accuracy': 0.0, 'errors': {'one meaning split, refusals': 1}}
    """
    judged, errors = [], Counter[str]()
    for number, row in enumerate(sheet, start=1):
        one_meaning, all_apart = (_answer(row, f"{judge}: {criterion}", number) for criterion in CRITERIA)
        if one_meaning is None or all_apart is None:
            continue
        judged.append(one_meaning and all_apart)
        if not one_meaning:
            errors["meanings merged"] += 1
        if not all_apart:
            errors[f"one meaning split, {'refusals' if int(row['refusals']) > 1 else 'other'}"] += 1
    return {
        "n": len(judged),
        "accuracy": sum(judged) / len(judged) if judged else None,
        "errors": dict(sorted(errors.items())),
    }


def _listed(texts: Sequence[str | None]) -> list[str]:
    counts = Counter(f"({NO_ANSWER})" if text is None else text for text in texts)
    return [text if count == 1 else f"{text} (×{count})" for text, count in counts.items()]


def _answer(row: Record, column: str, number: int) -> bool | None:
    if column not in row:
        raise InputError(
            f"row {number} of the sheet has no column {column!r}. Keep all columns of the sheet."
        )
    text = str(row[column] if row[column] is not None else "").strip().lower()
    if text not in ("", "yes", "no", "true", "false"):
        raise InputError(f"row {number}, {column!r}: expected yes, no or nothing, got {row[column]!r}")
    return None if not text else text in ("yes", "true")
