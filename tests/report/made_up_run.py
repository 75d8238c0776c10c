"""A run folder in the agreed format, made up from a seed: no model, no real question.

Each question has a right answer, a rival and some strays; how sure the imagined model is of one of them
is spread over questions, and a temperature flattens or sharpens it.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from made_up_grid import SYLLABLES

from semcal.errors import UndefinedWarning
from semcal.metrics import summary
from semcal.records import dumps, write_rows
from semcal.semantics import MEASURES, confidences

TEMPERATURES = {"Base": 1.0, "SE": 0.5, "TS": 1.6}
KNOWLEDGE = {"made-up-trivia": 0.62, "made-up-rare": 0.34, "made-up-reading": 0.9}
METRICS = ("accuracy", "ace", "auroc", "brier", "ece")


def name(random: np.random.Generator) -> str:
    """A place that does not exist."""
    return "".join(random.choice(SYLLABLES, size=random.integers(2, 4))).capitalize()


def question(
    random: np.random.Generator, *, number: int, knowledge: float, open_book: bool
) -> dict[str, Any]:
    """A question with the answers that may be given, their probabilities at T = 1 and which are right."""
    place, right, rival = (name(random) for _ in range(3))
    strays = [name(random) for _ in range(5)]
    knows = random.random() < knowledge
    sure = random.beta(6, 1) if knows or random.random() < 0.3 else random.beta(2, 2)
    first, second = (right, rival) if knows else (rival, right)
    answers = [first, f"{first}, {place}", second, *strays]
    p = np.array([0.7 * sure, 0.3 * sure, 0.6 * (1 - sure), *([0.08 * (1 - sure)] * 5)])
    row: dict[str, Any] = {
        "id": f"q{number:04d}",
        "question": f"Which town is the seat of the province of {place}?",
        "answers": [right, f"the town of {right}"],
    }
    if open_book:
        row["context"] = f"{place} is a province. Its seat is {right}, and its largest port is {rival}. " * 4
    return {
        "row": row,
        "answers": answers,
        "p": p / p.sum(),
        "meaning": [0, 0, 1, 2, 3, 4, 5, 6],
        "right": right,
    }


def sampled(
    random: np.random.Generator, asked: dict[str, Any], *, temperature: float, m: int
) -> dict[str, Any]:
    """The row of a question with m answers drawn at a temperature, clustered by meaning."""
    p = asked["p"] ** (1 / temperature)
    p /= p.sum()
    drawn = random.choice(len(p), size=m, p=p)
    meanings = [asked["meaning"][i] for i in drawn]
    order = list(dict.fromkeys(meanings))
    samples = [asked["answers"][i] for i in drawn]
    clusters = [[i for i, meaning in enumerate(meanings) if meaning == wanted] for wanted in order]
    return {
        **asked["row"],
        "samples": samples,
        "normal_forms": [text.lower() for text in samples],
        "log_likelihoods": [float(np.log(p[i]) / 3) for i in drawn],
        "likelihood": "sampled",
        "clusters": clusters,
        "cluster_correct": [samples[cluster[0]].startswith(asked["right"]) for cluster in clusters],
    }


def measured(rows: list[dict[str, Any]], *, null: str | None) -> list[dict[str, Any]]:
    """The rows with all measures, and their correctness; the measure `null` is null everywhere."""
    results = confidences([row["clusters"] for row in rows], [row["log_likelihoods"] for row in rows])
    split = {key: result.per_question() for key, result in results.items()}
    added = []
    for i, row in enumerate(rows):
        tops = {key: None if key == null else int(r.top_cluster[i]) for key, r in results.items()}
        parts = {key: None if key == null else split[key][i].tolist() for key in split}
        added.append(
            {
                **row,
                "confidences": parts,
                "confidence": {k: None if p is None else max(p) for k, p in parts.items()},
                "top_cluster": tops,
                "semantic_entropy": {
                    k: None if k == null else float(r.entropy[i]) for k, r in results.items()
                },
                "correct": {k: None if t is None else row["cluster_correct"][t] for k, t in tops.items()},
                "rule": {k: None if t is None else "exact" for k, t in tops.items()},
            }
        )
    return added


def figures(rows: list[dict[str, Any]], measure: str) -> dict[str, Any]:
    """The figures of one measure, as results.json holds them."""
    pairs = [(row["confidence"][measure], row["correct"][measure]) for row in rows]
    known = [(p, c) for p, c in pairs if p is not None]
    if not known:
        return {"n": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)
        found = summary([p for p, _ in known], [c for _, c in known])
    error = {key: 0.4 / np.sqrt(len(known)) for key in METRICS if np.isfinite(found[key])}
    interval = {key: [found[key] - 2 * e, found[key] + 2 * e] for key, e in error.items()}
    return {**found, "se": error, "interval": interval}


def comparisons(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """TS against Base under E-SC, with an interval of a made-up width."""
    base, ts = (entry["methods"][method]["measures"]["E-SC"] for method in ("Base", "TS"))
    found = []
    for metric in ("ace", "auroc"):
        if np.isnan(base[metric]) or np.isnan(ts[metric]):
            continue
        d = ts[metric] - base[metric]
        shared = {"set": entry["name"], "method": "TS", "against": "Base", "measure": "E-SC"}
        found.append(
            {**shared, "metric": metric, "difference": d, "interval": [d - 0.03, d + 0.03], "p": 0.01}
        )
    return found


def made_up_set(
    folder: Path,
    set_name: str,
    *,
    n: int,
    m: int,
    seed: int,
    measures: tuple[str, ...],
    null: str | None,
    all_right: bool,
) -> dict[str, Any]:
    """Write the rows of one set and return its entry of results.json."""
    random = np.random.default_rng([seed, len(set_name), n])
    open_book = set_name == "made-up-reading"
    knowledge = 1.0 if all_right else KNOWLEDGE[set_name]
    asked = [question(random, number=i, knowledge=knowledge, open_book=open_book) for i in range(n)]
    methods = {}
    for method, temperature in TEMPERATURES.items():
        rows = [sampled(random, item, temperature=temperature, m=m) for item in asked]
        if all_right:
            rows = [{**row, "cluster_correct": [True] * len(row["clusters"])} for row in rows]
        rows = measured(rows, null=null)
        path = f"samples/{set_name}/{method}.jsonl"
        write_rows(folder / path, rows)
        methods[method] = {
            "temperature": temperature,
            "rows": path,
            "distinct_answers": float(np.mean([len(set(row["samples"])) for row in rows])),
            "meanings": float(np.mean([len(row["clusters"]) for row in rows])),
            "measures": {measure: figures(rows, measure) for measure in measures},
        }
    fit = {"method": "TS", "loss": "NLL", "temperature": 1.6, "at_bound": False, "n_questions": 4 * n}
    fit |= {"n_tokens": 17 * n, "nll_before": 1.31, "nll_after": 1.02}
    accuracy = float(np.mean([item["answers"][0] == item["right"] for item in asked]))
    return {"name": set_name, "open_book": open_book, "n": n, "fit": fit, "greedy_accuracy": accuracy} | {
        "methods": methods
    }


def write_run(
    folder: Path,
    *,
    seed: int = 0,
    sets: tuple[str, ...] = tuple(KNOWLEDGE),
    n: int = 40,
    m: int = 10,
    measures: tuple[str, ...] = MEASURES,
    null: str | None = None,
    all_right: bool = False,
) -> Path:
    """Write a whole run and return its folder."""
    how: dict[str, Any] = {"n": n, "m": m, "seed": seed, "measures": measures}
    entries = [made_up_set(folder, s, **how, null=null, all_right=all_right) for s in sets]
    results = {
        "schema": 1,
        "preset": "sound",
        "seed": seed,
        "m": m,
        "measures": list(measures),
        "methods": list(TEMPERATURES),
        "model": {"name": "made-up-model", "revision": "0123abc"},
        "equivalence": {"name": "exact"},
        "sets": entries,
        "comparisons": [item for entry in entries for item in comparisons(entry)],
        "deviations": [{"setting": "linkage", "here": "components", "paper": "greedy"}],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(dumps(results, indent=1), encoding="utf-8")
    (folder / "settings.json").write_text(dumps({"m": m, "seed": seed, "linkage": "components"}))
    environment = {"versions": {"semcal": "0.1.0"}, "cores": 2, "seconds": {"sample": 61.25, "fit": 0.123456}}
    (folder / "environment.json").write_text(dumps(environment))
    return folder


def edit_row(folder: Path, path: str, **changes: Any) -> None:
    """Change fields of the first row of a file of rows."""
    first, *others = (folder / path).read_text(encoding="utf-8").split("\n")
    edited = json.dumps({**json.loads(first), **changes})
    (folder / path).write_text("\n".join([edited, *others]), encoding="utf-8")
