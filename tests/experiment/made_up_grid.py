"""A whole run folder of the grid, made up from a seed: no model, no real question.

What an imagined model knows about a question is a distribution over a few meanings, and the right one is
drawn from it; so it would be calibrated if it answered from that. It answers from a sharper one
(`overconfidence`), and a candidate of temperature T from that one flattened by T: at T = overconfidence it is
calibrated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from semcal.experiment.grid_settings import slug
from semcal.files import dumps, write_rows
from semcal.measures import MEASURES, confidence
from semcal.text.normal_form import normal_form
from semcal.yaml_files import yaml_text

METHODS = ("Base", "SE", "TS", "ATS", "Platt")
#: The temperature that each candidate's distribution has in effect; those of TS stand in the selection.
HEATS = {
    "Base": 1.0,
    "SE": 0.5,
    "TS NLL": 2.0,
    "TS SS 0.25": 2.3,
    "ATS NLL decay 0.01": 1.3,
    "ATS SS 0.5": 1.2,
    "Platt NLL": 1.25,
    "Platt SS 0.5": 1.1,
}
#: For each method the candidate of the one loss and of the other, and the measures that chose the other.
CANDIDATES = {
    "Base": ("Base", "Base", ()),
    "SE": ("SE", "SE", ()),
    "TS": ("TS NLL", "TS SS 0.25", ("L-SC", "IC-SC")),
    "ATS": ("ATS NLL decay 0.01", "ATS SS 0.5", ("B-SC",)),
    "Platt": ("Platt NLL", "Platt SS 0.5", MEASURES),
}
ALPHAS = {"T-SC": 0.75, "G-SC": 0.5}
SYLLABLES = re.findall(r"\w+", "bel cor dun el fal gri hol is mar nor os pel tor ul ves")
FIT = {"weight_decay": None, "temperature": None, "at_bound": None, "parameters": 0}


@dataclass(frozen=True)
class Grid:
    """What is made up."""

    models: Sequence[str] = ("alpha-1b", "beta/2b")
    #: Name → whether each question has a passage.
    datasets: Mapping[str, bool] = field(
        default_factory=lambda: {"made-up-trivia": False, "made-up-reading": True}
    )
    methods: Sequence[str] = METHODS
    runs: int = 3
    n: int = 40
    m: int = 10
    seed: int = 0
    #: How much sharper than its knowledge the model is; None: 2, and 1.2 with passages.
    overconfidence: float | None = None
    heats: Mapping[str, float] = field(default_factory=dict)  # in place of those of `HEATS`
    flips: float = 0.2  # share of questions whose greedy answer Platt changes
    counts: Sequence[int] = (5, 10, 15, 20, 25)  # numbers of draws of figure 6, for run 0
    null: str | None = None  # a measure that is null for the first question
    resamples: int = 100

    def heat(self, candidate: str) -> float:
        """The temperature of a candidate."""
        return self.heats.get(candidate, HEATS.get(candidate, 1.7))

    def candidates(self, dataset: str) -> list[str]:
        """All that are sampled on a data set."""
        found = [name for method in self.methods for name in CANDIDATES[method][:2]]
        return [*dict.fromkeys(found), *self.transfers(dataset)]

    def transfers(self, dataset: str) -> dict[str, str]:
        """Candidate → the other data set whose temperature it has."""
        return {f"T of {other}": other for other in self.datasets if other != dataset}


def write_grid(folder: Path, grid: Grid | None = None, *, problems: Sequence[Mapping[str, Any]] = ()) -> Path:
    """Write a whole run folder, all but what `analyse` and the report write, and return it."""
    grid = grid or Grid()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.yaml").write_text(yaml_text(settings(grid)))
    (folder / "environment.json").write_text(dumps({"versions": {"semcal": "0.1.0"}, "cores": 2}))
    if problems:
        write_rows(folder / "problems.jsonl", problems)
    for number, model in enumerate(grid.models):
        for dataset, open_book in grid.datasets.items():
            asked = questions(grid, dataset, model=number, open_book=open_book)
            path = f"{slug(model)}/{slug(dataset)}"
            (folder / "selection" / slug(model)).mkdir(parents=True, exist_ok=True)
            chosen = selection(grid, model, dataset, open_book=open_book)
            (folder / "selection" / f"{path}.json").write_text(dumps(chosen))
            for candidate in grid.candidates(dataset):
                write_samples(
                    folder / "samples" / path / slug(candidate), grid, model, dataset, candidate, asked
                )
    return folder


def settings(grid: Grid) -> dict[str, Any]:
    """The settings that analyses read; the others have their defaults."""
    return {
        "seed": grid.seed,
        "models": [{"name": name, "path": f"models/{slug(name)}"} for name in grid.models],
        "datasets": [{"name": name, "source": name} for name in grid.datasets],
        "equivalence": "exact",
        "methods": list(grid.methods),
        "runs": {"count": grid.runs},
        "sampling": {"m": grid.m, "counts": list(grid.counts)},
        "evaluation": {"resamples": grid.resamples},
    }


def edited(folder: Path, change: Callable[[int, Any], Any], pattern: str = "samples/*/*/*/*.jsonl") -> Path:
    """Change the rows of some files: number and row → the row, or None if it was changed in place."""
    for path in folder.glob(pattern):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        write_rows(path, [change(number, row) or row for number, row in enumerate(rows)])
    return folder


# Questions and rows


def questions(grid: Grid, dataset: str, *, model: int, open_book: bool) -> list[dict[str, Any]]:
    """The test questions of a data set, the answers that may be given, and their probabilities at T = 1."""
    order = list(grid.datasets).index(dataset)
    asked = np.random.default_rng([grid.seed, order, 0])
    knows = np.random.default_rng([grid.seed, order, model, 1])
    sharper = grid.overconfidence or (1.2 if open_book else 2.0)
    found = []
    for number in range(grid.n):
        names = ["".join(asked.choice(SYLLABLES, size=3)).capitalize() for _ in range(7)]
        place, towns = names[0], names[1:]
        sure = knows.beta(9, 2) if open_book else knows.beta(1.6, 1.2)
        knowledge = np.array([sure, *((1 - sure) * np.array([0.5, 0.2, 0.15, 0.1, 0.05]))])
        right = int(knows.choice(6, p=knowledge))
        towns[0], towns[right] = towns[right], towns[0]  # the right town is the same for all models
        row: dict[str, Any] = {
            "id": f"{dataset}-{number:04d}",
            "question": f"Which town is the seat of the province of {place}?",
            "answers": [towns[right], f"the town of {towns[right]}"],
        }
        if open_book:
            row["context"] = f"{place} is a province. Its seat is {towns[right]}."
        item = {"row": row, "texts": [towns[0], f"{towns[0]}, {place}", *towns[1:]], "right": right}
        found.append(item | {"p": knowledge**sharper / (knowledge**sharper).sum()})
    return found


def write_samples(
    folder: Path, grid: Grid, model: str, dataset: str, candidate: str, asked: Sequence[Mapping[str, Any]]
) -> None:
    """Write the rows of one candidate: every run at m draws, run 0 at the other counts."""
    chosen = {name for method in grid.methods for name in CANDIDATES[method][:2]}
    names = {"model": model, "dataset": dataset, "candidate": candidate}
    for run in range(grid.runs):
        rows = rows_of(grid, candidate, asked, run=run, m=grid.m)
        write_rows(folder / f"run{run}.jsonl", [{**row, **names, "run": run} for row in rows])
    for k in grid.counts if candidate in chosen else ():
        if k != grid.m:
            rows = rows_of(grid, candidate, asked, run=0, m=k)
            write_rows(folder / f"run0.n{k}.jsonl", [{**row, **names, "run": 0} for row in rows])


def rows_of(
    grid: Grid, candidate: str, asked: Sequence[Mapping[str, Any]], *, run: int, m: int
) -> list[dict[str, Any]]:
    """The rows of one candidate and run: sampled, clustered, measured and graded."""
    drawn = [
        sampled(grid, candidate, item, uniforms)
        for item, uniforms in zip(asked, uniforms_of(grid, run, len(asked))[:, :m])
    ]
    results = confidence(
        [row["clusters"] for row in drawn],
        [row["log_likelihoods"] for row in drawn],
        t_alpha=ALPHAS["T-SC"],
        g_alpha=ALPHAS["G-SC"],
        measure=MEASURES,
    )
    split = {name: result.per_question() for name, result in results.items()}
    rows = []
    for i, row in enumerate(drawn):
        item, right = asked[i], row.pop("right")
        tops = {name: int(result.top_cluster[i]) for name, result in results.items()}
        correct = {name: right[top] for name, top in tops.items()}
        measured = {
            "confidences": {name: split[name][i].tolist() for name in results},
            "semantic_entropy": {name: float(result.entropy[i]) for name, result in results.items()},
            "confidence": {name: float(result.confidence[i]) for name, result in results.items()},
            "top_cluster": tops,
            "correct": correct,
            "rule": {name: "equality" if fine else "none" for name, fine in correct.items()},
        }
        if i == 0 and grid.null:
            for key in measured.values():
                key[grid.null] = None  # type: ignore[index]
        extra = greedy(grid, candidate, item, number=i)
        if candidate == "Base":
            extra |= {"beam": extra["greedy"], "beam_correct": extra["greedy_correct"] or i % 10 == 3}
            if run == 0 and m == grid.m:
                extra["correct_nli"] = {name: fine != (i % 8 == 5) for name, fine in correct.items()}
        rows.append({**item["row"], **row, **measured, **extra})
    return rows


def uniforms_of(grid: Grid, run: int, n: int) -> np.ndarray:
    """What the draws of a run are made from, common to all candidates: the first k of them are those of k."""
    return np.random.default_rng([grid.seed, 7, run]).random((n, 30))


def sampled(grid: Grid, candidate: str, item: Mapping[str, Any], uniforms: np.ndarray) -> dict[str, Any]:
    """Draws of one question at the candidate's temperature, clustered by meaning."""
    p = item["p"] ** (1 / grid.heat(candidate))
    p = np.array([0.7 * p[0], 0.3 * p[0], *p[1:]]) / p.sum()
    drawn = np.minimum(np.searchsorted(np.cumsum(p), uniforms), len(p) - 1)
    meanings = np.array([0, 0, 1, 2, 3, 4, 5])[drawn].tolist()
    order = list(dict.fromkeys(meanings))
    samples = [item["texts"][i] for i in drawn]
    return {
        "samples": samples,
        "log_likelihoods": (np.log(p[drawn]) / 3).tolist(),
        "likelihood": ["sampled"] * len(samples),
        "normal_forms": [_normal_form(text) for text in samples],
        "clusters": [[i for i, meaning in enumerate(meanings) if meaning == wanted] for wanted in order],
        "right": [meaning == item["right"] for meaning in order],
    }


def greedy(grid: Grid, candidate: str, item: Mapping[str, Any], *, number: int) -> dict[str, Any]:
    """The greedy answer, which Platt changes for some questions."""
    flipped = candidate.startswith("Platt") and number % 100 < round(100 * grid.flips)
    best = 1 if flipped else int(np.argmax(item["p"]))
    return {"greedy": item["texts"][best + 1 if best else 0], "greedy_correct": best == item["right"]}


_normal_form = lru_cache(maxsize=None)(normal_form)


# The selection


def selection(grid: Grid, model: str, dataset: str, *, open_book: bool) -> dict[str, Any]:
    """What was chosen for a model and data set, and from what."""
    fitted = [method for method in ("TS", "ATS", "Platt") if method in grid.methods]
    return {
        "model": model,
        "dataset": dataset,
        "open_book": open_book,
        "sizes": {"calibration_train": 12 * grid.n, "validation": grid.n, "test": grid.n},
        "prompt": f"<|user|>\n{'Context: …' if open_book else ''}Question: Which town?<|end|>\n<|assistant|>",
        "methods": {
            method: {measure: choice(grid, method, measure) for measure in MEASURES}
            for method in grid.methods
        },
        "by_loss": {
            loss: {method: {m: choice(grid, method, m, loss=loss) for m in MEASURES} for method in fitted}
            for loss in ("NLL", "SS")
        },
        "transfer": {
            other: {"candidate": name, "temperature": grid.heat(name)}
            for name, other in grid.transfers(dataset).items()
        },
        "fits": [fit(grid, method, CANDIDATES[method][i]) for method in fitted for i in (0, 1)],
    }


def choice(grid: Grid, method: str, measure: str, *, loss: str | None = None) -> dict[str, Any]:
    """The candidate that a method uses for a measure; of one loss, or of the better one."""
    nll, ss, other = CANDIDATES[method]
    name = {"NLL": nll, "SS": ss, None: ss if measure in other else nll}[loss]
    return {"candidate": name, "measure_alpha": ALPHAS.get(measure), **parts(grid, name)}


def parts(grid: Grid, candidate: str) -> dict[str, Any]:
    """Loss, α, weight decay and temperature of a candidate, read off its name."""
    words = candidate.split()
    loss = words[1] if len(words) > 1 else None
    method = words[0]
    return {
        "loss": loss,
        "alpha": float(words[2]) if loss == "SS" else None,
        "weight_decay": None if method in ("Base", "SE", "TS") else 0.01 if "decay" in words else 0.0,
        "temperature": grid.heat(candidate) if method in ("Base", "SE", "TS") else None,
    }


def fit(grid: Grid, method: str, candidate: str) -> dict[str, Any]:
    """The record of one fit: ATS fits the training tokens best and the validation tokens worst."""
    train = {"TS": 1.10, "ATS": 0.70, "Platt": 1.05}[method]
    validation = {"TS": 1.12, "ATS": 1.30, "Platt": 1.15}[method]
    return {
        **FIT,
        "candidate": candidate,
        "method": method,
        **parts(grid, candidate),
        "at_bound": False if method == "TS" else None,
        "parameters": {"TS": 1, "ATS": 5000, "Platt": 1000}[method],
        "train_nll": train,
        "validation_nll": validation,
        "top_changed": 0.04 if method == "Platt" else 0.0,
        "order_changed": 0.3 if method == "Platt" else 0.0,
    }
