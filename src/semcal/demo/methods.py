"""Every method of the paper on the three Atlas sets: `python -m semcal.demo.methods OUT`.

Recalibrators are fitted to calibration-train, chosen for each measure on validation, and the test questions
are asked once, under what was chosen. `OUT/methods.json` holds all figures, `OUT/methods.md` the tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from semcal.demo.paths import language_model_dir, nli_model_dir
from semcal.demo.questions import SETS, QuestionSet, load_set
from semcal.engine import load_equivalence, load_model
from semcal.experiment.selection import Candidate, Selection, select
from semcal.experiment.sweep import fit_candidates, sample_candidates
from semcal.pipeline import Asking
from semcal.pipeline.assess import assess, scores_by_measure
from semcal.pipeline.fitting import METHODS, CalibrationSet, calibration_features
from semcal.pipeline.grade import grade_row
from semcal.pipeline.measure import measure_rows
from semcal.qa.grading import RuleGrader
from semcal.recalibration import SE, AnyRecalibrator, Base, Temperature
from semcal.records import dumps, writing
from semcal.semantics import MEASURES

__all__ = ["main"]

GRID = tuple(2 ** (k / 4) for k in range(-4, 9))
"""Temperatures of TS-grid: 1/2 to 4."""
ORDER = ("Base", "SE", "TS", "TS-grid", "ATS", "Platt")
Rows = list[dict[str, Any]]


def main(
    out: Annotated[Path, typer.Argument(help="A folder for the figures.")],
    questions: Annotated[int, typer.Option(help="Validation and test questions of each set.")] = 500,
    seed: Annotated[int, typer.Option(help="A run is a seed.")] = 0,
) -> None:
    """Fit, choose and test all methods on the three sets."""
    model, judge = load_model(language_model_dir()), load_equivalence(nli_model_dir())
    results = {}
    for name in SETS:
        results[name] = _run(model, judge, load_set(name), questions, seed)
        with writing(out / "methods.json") as handle:
            handle.write(dumps(results, indent=1) + "\n")
    with writing(out / "methods.md") as handle:
        handle.write(tables(json.loads((out / "methods.json").read_text(encoding="utf-8"))))


def _run(model: Any, judge: Any, one: QuestionSet, count: int, seed: int) -> dict[str, Any]:
    asking = Asking(one.few_shot)
    labelled = CalibrationSet.of(model, one.calibration_train, asking=asking)
    features = calibration_features(model, labelled, asking=asking, whole=True)
    candidates: dict[str, dict[Candidate, Any]] = {
        method: dict(fit_candidates(model, features, [method], seed=seed)) for method in METHODS
    }
    candidates["TS-grid"] = {Candidate(f"T = {t:.3f}"): Temperature(t, method="TS-grid") for t in GRID}
    typer.echo(f"{one.name}: {sum(map(len, candidates.values()))} candidates fitted", err=True)

    def sampled(
        questions: Sequence[Any], recalibrators: Mapping[Candidate, AnyRecalibrator], label: str
    ) -> dict[Candidate, Rows]:
        return sample_candidates(
            model,
            questions,
            recalibrators,
            asking=asking,
            equivalence=judge,
            seed=seed,
            max_new_tokens=24,
            progress=_told(f"{one.name}: {label}"),
        )

    every = {candidate: r for group in candidates.values() for candidate, r in group.items()}
    validation = sampled(one.validation[:count], every, "validation")
    chosen = {
        method: select({candidate: validation[candidate] for candidate in group}, seed=seed)
        for method, group in candidates.items()
    }
    needed: dict[Candidate, AnyRecalibrator] = {Candidate("Base"): Base(), Candidate("SE"): SE()}
    for selection in chosen.values():
        needed |= {entry.candidate: every[entry.candidate] for entry in selection.chosen.values()}
    test = sampled(one.test[:count], needed, "test")
    return {
        "selection": {method: selection.table() for method, selection in chosen.items()},
        "test": {method: _tested(test, chosen.get(method), method, seed) for method in ORDER},
    }


def _told(label: str) -> Callable[[int], None]:
    return lambda done: typer.echo(f"{label}: {done}", err=True)


def _tested(
    rows: Mapping[Candidate, Rows], selection: Selection | None, method: str, seed: int
) -> dict[str, Any]:
    """For each measure what was chosen, and its metrics on the test questions."""
    found = {}
    for measure in MEASURES:
        entry = selection.chosen[measure] if selection else None
        candidate = entry.candidate if entry else Candidate(method)
        a = (entry.measure_alpha if entry else None) or 0.5
        measured = measure_rows(rows[candidate], t_alpha=a, g_alpha=a)
        graded = [grade_row(row, grader=RuleGrader(), seed=seed) for row in measured]
        scores = scores_by_measure(graded, [measure])[measure]
        found[measure] = {
            "candidate": candidate.name,
            "measure_alpha": entry.measure_alpha if entry else None,
            **assess(scores, ci=True, seed=seed, resamples=200),
        }
    return found


def tables(results: Mapping[str, Any]) -> str:
    """Write the main table (ACE, AUROC, accuracy) and what was chosen as Markdown."""
    parts = []
    for metric, title in (("ace", "ACE"), ("auroc", "AUROC"), ("accuracy", "Accuracy")):
        parts.append(f"## {title}\n\n| set | method | " + " | ".join(MEASURES) + " |")
        parts.append("| --- | --- |" + " ---: |" * len(MEASURES))
        for name, result in results.items():
            for method in ORDER:
                cells = " | ".join(_cell(result["test"][method][measure], metric) for measure in MEASURES)
                parts.append(f"| {name} | {method} | {cells} |")
        parts.append("")
    parts.append("## Chosen on validation\n\n| set | method | " + " | ".join(MEASURES) + " |")
    parts.append("| --- | --- |" + " --- |" * len(MEASURES))
    for name, result in results.items():
        for method in ORDER[2:]:
            names = " | ".join(result["test"][method][measure]["candidate"] for measure in MEASURES)
            parts.append(f"| {name} | {method} | {names} |")
    return "\n".join(parts) + "\n"


def _cell(scores: Mapping[str, Any], metric: str) -> str:
    value = scores.get(metric)
    if value is None:
        return "–"
    return f"{value:.3f} ± {scores['se'][metric]:.3f}"


if __name__ == "__main__":
    typer.run(main)
