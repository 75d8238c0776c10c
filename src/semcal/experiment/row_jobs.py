"""Jobs of a grid that need no model: what is chosen on validation, and the rows of the test questions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from semcal.experiment.answer_jobs import clustered
from semcal.experiment.selection import Candidate, Selection, select_graded, under_alphas
from semcal.experiment.shelf import Shelf
from semcal.pipeline.assess import scores_by_measure
from semcal.pipeline.measure import measure_rows
from semcal.pipeline.processes import Tell
from semcal.qa.questions import GROUP

__all__ = ["measure", "select"]

Rows = list[dict[str, Any]]
Spec = Mapping[str, Any]
LOSSES = ("NLL", "SS")


def select(shelf: Shelf, spec: Spec, tell: Tell) -> Rows:
    """Choose for each method and measure, from all losses and from each alone; with the table of scores.

    And from all losses at each further number of draws.
    """
    del shelf, tell
    graded_at = _graded(spec)
    graded = graded_at[spec["m"]]
    among = {method: [Candidate(**one) for one in given] for method, given in spec["methods"].items()}
    how = {key: spec[key] for key in ("measure_alphas", "bins", "accuracy_within")}
    chosen_at = {
        count: {
            method: select_graded({candidate: of[candidate.name] for candidate in candidates}, **how)
            for method, candidates in among.items()
        }
        for count, of in graded_at.items()
    }
    chosen = chosen_at[spec["m"]]
    by_loss: dict[str, dict[str, Any]] = {loss: {} for loss in LOSSES}
    for method, candidates in among.items():
        for loss, found in by_loss.items():
            of_loss = [candidate for candidate in candidates if candidate.loss == loss]
            if of_loss:
                some = select_graded({one: graded[one.name] for one in of_loss}, **how)
                found[method] = _choices(some)
    return [
        {
            "methods": {method: _choices(selection) for method, selection in chosen.items()},
            "by_loss": by_loss,
            "by_draws": {
                str(count): {method: _choices(selection) for method, selection in chosen_at[count].items()}
                for count in spec["counts"]
            },
            "table": [
                {"method": method, **row} for method, selection in chosen.items() for row in selection.table()
            ],
            **(
                {"validation_scores": _scores_of_base(spec, graded, chosen)} if spec.get("score_maps") else {}
            ),
        }
    ]


def _scores_of_base(
    spec: Spec, graded: Mapping[str, Sequence[Rows]], chosen: Mapping[str, Selection]
) -> dict[str, dict[str, list[Any]]]:
    """Measure → confidence and correctness of Base on validation, from which score maps are learnt."""
    alphas = list(spec["measure_alphas"])
    found: dict[str, dict[str, list[Any]]] = {}
    for measure, entry in chosen["Base"].chosen.items():
        rows = graded["Base"][alphas.index(entry.measure_alpha) if entry.measure_alpha else 0]
        scores = scores_by_measure(rows, [measure])[measure]
        found[measure] = {"confidence": list(scores.confidence), "correct": list(scores.correct)}
    return found


def _graded(spec: Spec) -> dict[int, dict[str, list[list[dict[str, Any]]]]]:
    """Number of draws → candidate → for each a of T-SC and G-SC the graded rows of all questions."""
    rows: dict[tuple[int, str], Rows] = {}
    verdicts: dict[tuple[int, str], list[list[bool]]] = {}
    for block in spec["blocks"]:
        for row, grades in zip(clustered({**spec, **block}), map(json.loads, block["graded"]), strict=True):
            key = row["m"], row["candidate"]
            rows.setdefault(key, []).append(
                {name: row[name] for name in ("id", "clusters", "log_likelihoods")}
            )
            verdicts.setdefault(key, []).append(grades["correct"])
    found: dict[int, dict[str, list[list[dict[str, Any]]]]] = {}
    for (count, name), of_one in rows.items():
        found.setdefault(count, {})[name] = under_alphas(
            of_one, verdicts[count, name], spec["measure_alphas"]
        )
    return found


def _choices(selection: Selection) -> dict[str, dict[str, Any]]:
    return {
        measure: {
            "candidate": entry.candidate.name,
            "measure_alpha": entry.measure_alpha,
            "loss": entry.candidate.loss,
            "alpha": entry.candidate.alpha,
            "weight_decay": entry.candidate.weight_decay,
        }
        for measure, entry in selection.chosen.items()
    }


def measure(shelf: Shelf, spec: Spec, tell: Tell) -> Rows:
    """The rows of a block of test questions, group after group: a candidate, a run, a number of draws."""
    del shelf, tell
    shared = {
        row["id"]: {key: row[key] for key in ("context", GROUP) if key in row} for row in spec["questions"]
    }
    graded = map(json.loads, spec["graded"])
    answers = _by_kind(spec["greedy"])
    groups: dict[tuple[str, int, int], Rows] = {}
    for row, grades in zip(clustered(spec), graded, strict=True):
        key = (row["candidate"], row["run"], row["m"])
        groups.setdefault(key, []).append({**row, "grades": grades})
    rows: Rows = []
    for (candidate, _, count), of_group in groups.items():
        t_alpha, g_alpha = spec["measure_alphas_at"].get(str(count), spec["measure_alphas"])[candidate]
        rows += [
            _row(row, spec, shared[row["id"]], answers)
            for row in measure_rows(of_group, t_alpha=t_alpha, g_alpha=g_alpha)
        ]
    return rows


def _row(
    row: Mapping[str, Any],
    spec: Spec,
    shared: Mapping[str, Any],
    answers: Mapping[tuple[str, str, int, str], Mapping[str, Any]],
) -> dict[str, Any]:
    """A finished row; its greedy answer is Base's where the method leaves the likeliest token what it is."""
    name, run, id = row["candidate"], row["run"], row["id"]

    def answer(kind: str) -> Mapping[str, Any] | None:
        return answers.get((kind, name, run, id)) or answers.get((kind, name, 0, id))

    single = answer("greedy") or answers["greedy", "Base", 0, id]
    beam = answer("beam")
    top, grades = row["top_cluster"], row["grades"]
    return {
        "id": id,
        "question": row["question"],
        "answers": row["answers"],
        **shared,
        "model": spec["model_name"],
        "dataset": spec["dataset"],
        **{key: row[key] for key in ("candidate", "run", "samples", "log_likelihoods", "likelihood")},
        **{key: row[key] for key in ("normal_forms", "clusters", "confidences", "semantic_entropy")},
        **{key: row[key] for key in ("confidence", "top_cluster")},
        "correct": {name: None if index is None else grades["correct"][index] for name, index in top.items()},
        "rule": {name: None if index is None else grades["rule"][index] for name, index in top.items()},
        "greedy": single["text"],
        "greedy_correct": single["correct"],
        **({"beam": beam["text"], "beam_correct": beam["correct"]} if beam else {}),
    }


def _by_kind(lines: Sequence[str]) -> dict[tuple[str, str, int, str], dict[str, Any]]:
    rows = map(json.loads, lines)
    return {(row["kind"], row["candidate"], row["run"], row["id"]): row for row in rows}
