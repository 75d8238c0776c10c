"""Every method of the paper on the three Atlas sets: `python -m semcal.demo.methods OUT`.

Recalibrators are fitted to calibration-train, chosen for each measure on validation, and the test questions
are asked once, under what was chosen. `OUT/methods.json` holds all figures, `OUT/methods.md` the tables.
Features, fits and samples stay in OUT, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from semcal.demo.method_tables import KEPT, PLAIN, markdown
from semcal.demo.paths import language_model_dir, nli_model_dir
from semcal.demo.questions import SETS, QuestionSet, load_set
from semcal.engine import load_equivalence, load_model
from semcal.experiment.diagnosis import token_effects
from semcal.experiment.grid_candidates import grid_temperatures
from semcal.pipeline import Asking
from semcal.pipeline.assess import Scores, assess, fit_scores, recalibrate_rows, scores_by_measure
from semcal.pipeline.calibration import CalibrationSet, calibration_features
from semcal.pipeline.candidate_trials import fit_candidates, sample_candidates
from semcal.pipeline.candidates import Candidate
from semcal.pipeline.fitting import METHODS, mean_loss_of
from semcal.pipeline.grade import grade_row
from semcal.pipeline.measure import measure_rows
from semcal.pipeline.select import Selection, select
from semcal.pipeline.store import Store
from semcal.qa.datasets import Question
from semcal.qa.grading import RuleGrader
from semcal.qa.token_classes import token_classes
from semcal.recalibration import (
    SE,
    AnyRecalibrator,
    Base,
    CalibrationFeatures,
    Temperature,
    fit_temperatures,
    from_pretrained,
    save_pretrained,
    temperature_of,
)
from semcal.records import dumps, writing
from semcal.semantics import MEASURES

__all__ = ["main"]

#: The paper's 60 000 questions make thirty times the steps of 2000: longer steps carry as far.
FAR = 30 * 1e-5
#: How candidates are chosen: as the paper does, and among those that keep the accuracy.
RULES = {"": None, KEPT: 2.0}
MAX_NEW_TOKENS = 24
#: Written into the folder of a method's fits when all of them are there.
DONE = "fits.json"
#: Questions on which the cost of a sampled token is measured, and how often.
TIMED, TIMES = 50, 3
Rows = list[dict[str, Any]]
Recalibrators = dict[Candidate, AnyRecalibrator]


def main(
    out: Annotated[Path, typer.Argument(help="A folder for the figures.")],
    questions: Annotated[int, typer.Option(help="Validation and test questions of each set.")] = 500,
    seed: Annotated[int, typer.Option(help="Seed of all random draws: another seed, another run.")] = 0,
) -> None:
    """Fit, choose and test all methods on the three sets."""
    torch.set_num_threads(1)
    model, judge = load_model(language_model_dir()), load_equivalence(nli_model_dir())
    benches = {name: Bench.of(model, judge, load_set(name), out, questions, seed) for name in SETS}
    fitted = {name: bench.temperature() for name, bench in benches.items()}
    results = {}
    for name, bench in benches.items():
        others = {other: temperature for other, temperature in fitted.items() if other != name}
        results[name] = bench.run(others)
        with writing(out / "methods.json") as handle:
            handle.write(dumps(results, indent=1) + "\n")
    with writing(out / "methods.md") as handle:
        handle.write(markdown(json.loads((out / "methods.json").read_text(encoding="utf-8"))))


def _say(text: str) -> None:
    typer.echo(text, err=True)


@dataclass(frozen=True)
class Bench:
    """One set of questions, and what all methods are tried on."""

    model: Any
    judge: Any
    one: QuestionSet
    asking: Asking
    store: Store
    labelled: CalibrationSet
    features: CalibrationFeatures
    count: int
    seed: int

    @classmethod
    def of(cls, model: Any, judge: Any, one: QuestionSet, out: Path, count: int, seed: int) -> Bench:
        asking = Asking(one.few_shot)
        labelled = CalibrationSet.of(model, one.calibration_train, asking=asking)
        _say(f"{one.name}: features")
        kept = out / "features" / one.name
        features = calibration_features(model, labelled, asking=asking, whole=True, store=kept)
        return cls(model, judge, one, asking, Store(out), labelled, features, count, seed)

    def temperature(self) -> float:
        """T of TS NLL."""
        (fit,) = fit_temperatures(self.features, self.model.logits, losses=[("NLL", None)], seed=self.seed)
        return fit.temperature

    def run(self, others: Mapping[str, float]) -> dict[str, Any]:
        """Everything about one set; `others` are temperatures that were fitted to other sets."""
        groups, seconds = self.fitted()
        every = {candidate: r for group in groups.values() for candidate, r in group.items()}
        validation = self.sampled(self.one.validation[: self.count], {**self.plain(), **every}, "validation")
        chosen = {
            method + suffix: select(
                {candidate: validation[candidate] for candidate in group},
                seed=self.seed,
                accuracy_within=within,
            )
            for suffix, within in RULES.items()
            for method, group in groups.items()
        }
        needed = {**self.plain(), Candidate("TS NLL"): every[Candidate("TS NLL", "NLL")]}
        for selection in chosen.values():
            needed |= {entry.candidate: every[entry.candidate] for entry in selection.chosen.values()}
        moved = {Candidate(f"T of {name}"): Temperature(t) for name, t in others.items()}
        test = self.sampled(self.one.test[: self.count], {**needed, **moved}, "test")
        return {
            "candidates": self.described(groups),
            "selection": {method: selection.table() for method, selection in chosen.items()},
            "test": {
                **{name: _tested(test, None, name, self.seed) for name in PLAIN},
                **{name: _tested(test, selection, name, self.seed) for name, selection in chosen.items()},
                **{candidate.name: _tested(test, None, candidate.name, self.seed) for candidate in moved},
                **self.score_level(validation[Candidate("Base")], test[Candidate("Base")]),
            },
            "costs": self.costs(groups, seconds),
        }

    def plain(self) -> Recalibrators:
        """What is not fitted."""
        return {Candidate("Base"): Base(), Candidate("SE"): SE()}

    def fitted(self) -> tuple[dict[str, Recalibrators], dict[str, float]]:
        """The candidates of every method, and the processor time of one fit in seconds."""
        rates = {**dict.fromkeys(METHODS), "ATS far": FAR, "Platt far": FAR}
        groups: dict[str, Recalibrators] = {}
        seconds = {}
        for name, rate in rates.items():
            folder = self.store.root / "fits" / self.one.name / name
            if not (folder / DONE).exists():
                self._fit(name, rate, folder)
            record = json.loads((folder / DONE).read_text(encoding="utf-8"))
            seconds[name] = record["seconds"]
            groups[name] = {
                Candidate(**candidate): from_pretrained(folder / str(number))[0]
                for number, candidate in enumerate(record["candidates"])
            }
        groups["TS-grid"] = {
            Candidate(name): Temperature(t, method="TS-grid") for name, t in grid_temperatures().items()
        }
        return groups, seconds

    def _fit(self, name: str, rate: float | None, folder: Path) -> None:
        """Fit the candidates of one method and keep them; what is kept last says that all are there."""
        _say(f"{self.one.name}: fitting {name}")
        method, start = name.split()[0], time.process_time()
        found = fit_candidates(self.model, self.features, [method], learning_rate=rate, seed=self.seed)
        record = {
            "seconds": (time.process_time() - start) / len(found),
            "candidates": [asdict(replace(c, name=c.name.replace(method, name))) for c in found],
        }
        provenance = self.labelled.provenance(
            self.model, asking=self.asking, data=self.one.name, seed=self.seed, versions={}
        )
        for number, recalibrator in enumerate(found.values()):
            save_pretrained(recalibrator, folder / str(number), provenance=provenance)
        with writing(folder / DONE) as handle:
            handle.write(dumps(record) + "\n")

    def sampled(
        self, questions: Sequence[Question], recalibrators: Recalibrators, label: str
    ) -> dict[Candidate, Rows]:
        """Rows of the questions under every candidate, block by block from disk where they are there."""
        return sample_candidates(
            self.model,
            questions,
            recalibrators,
            asking=self.asking,
            equivalence=self.judge,
            seed=self.seed,
            max_new_tokens=MAX_NEW_TOKENS,
            progress=lambda done: _say(f"{self.one.name}: {label} {done} of {len(questions)}"),
            keep=self.store,
        )

    def described(self, groups: Mapping[str, Recalibrators]) -> list[dict[str, Any]]:
        """Losses, temperatures and changes of order of every candidate, by token class too."""
        tried = [group for method, group in groups.items() if method != "TS-grid"]
        every = {c.name: r for group in (self.plain(), *tried) for c, r in group.items()}
        held_out = CalibrationSet.of(self.model, self.one.validation, asking=self.asking)
        validation = calibration_features(self.model, held_out, asking=self.asking, whole=True)
        _say(f"{self.one.name}: losses of {len(every)} candidates")
        unseen = token_effects(self.model, validation, every)
        classes = self._classes(held_out)
        method_of = {c.name: method for method, group in groups.items() for c in group}
        return [
            {
                "method": method_of.get(name, name),
                "candidate": name,
                "temperature": temperature_of(recalibrator),
                "train_nll": mean_loss_of(self.model, self.features, recalibrator),
                "validation_nll": unseen[name].mean_nll,
                "top_changed": float(unseen[name].top_changed.mean()),
                "order_changed": float(unseen[name].order_changed.mean()),
                "classes": unseen[name].by_class(classes),
            }
            for name, recalibrator in every.items()
        ]

    def _classes(self, labelled: CalibrationSet) -> list[str]:
        stops, decode = self.model.format.stops, self.model.tokenizer.convert_ids_to_tokens
        return [
            name
            for answers in labelled.answers
            for answer in answers
            for name in token_classes(decode(answer), end_of_turn=[token in stops for token in answer])
        ]

    def score_level(self, validation: Rows, test: Rows) -> dict[str, Any]:
        """Base, its confidences mapped by what was learnt on validation."""
        learnt, asked = (_graded(rows, 0.5, self.seed) for rows in (validation, test))
        found = {}
        for kind in ("isotonic", "beta", "platt"):
            mapped = recalibrate_rows(asked, fit_scores(learnt, kind))
            assessed = _assessed(scores_by_measure(mapped, MEASURES), self.seed)
            found[f"Base + {kind}"] = {
                measure: {"candidate": kind, **numbers} for measure, numbers in assessed.items()
            }
        return found

    def costs(
        self, groups: Mapping[str, Recalibrators], seconds: Mapping[str, float]
    ) -> dict[str, dict[str, Any]]:
        """Parameters, processor seconds of a fit, and of a thousand sampled tokens, of each method."""
        tried = {"Base": Base(), **{name: next(iter(groups[name].values())) for name in METHODS}}
        prompts = self.asking.prompts(self.model, self.one.validation[:TIMED])
        taken: dict[str, list[float]] = {name: [] for name in tried}
        for _ in range(TIMES):
            for name, recalibrator in tried.items():
                start = time.process_time()
                (drawn,) = self.model.sample(
                    prompts, recalibrators=[recalibrator], seed=self.seed, max_new_tokens=MAX_NEW_TOKENS
                )
                tokens = sum(len(one.token_ids) for draws in drawn for one in draws)
                taken[name].append(1000 * (time.process_time() - start) / tokens)
        return {
            name: {
                "parameters": _parameters(recalibrator),
                "fit_seconds": seconds.get(name),
                "seconds_per_thousand_tokens": sorted(taken[name])[TIMES // 2],
            }
            for name, recalibrator in tried.items()
        }


def _parameters(recalibrator: AnyRecalibrator) -> int:
    if isinstance(recalibrator, torch.nn.Module):
        return sum(weight.numel() for weight in recalibrator.parameters())
    return int(recalibrator.method == "TS")


def _graded(rows: Rows, measure_alpha: float, seed: int) -> Rows:
    measured = measure_rows(rows, t_alpha=measure_alpha, g_alpha=measure_alpha)
    return [grade_row(row, grader=RuleGrader(), seed=seed) for row in measured]


def _tested(
    rows: Mapping[Candidate, Rows], selection: Selection | None, name: str, seed: int
) -> dict[str, Any]:
    """For each measure what was chosen, and its metrics on the test questions."""
    found = {}
    for measure in MEASURES:
        entry = selection.chosen[measure] if selection else None
        candidate = entry.candidate if entry else Candidate(name)
        graded = _graded(rows[candidate], (entry.measure_alpha if entry else None) or 0.5, seed)
        found[measure] = {
            "candidate": candidate.name,
            "measure_alpha": entry.measure_alpha if entry else None,
            **_assessed(scores_by_measure(graded, [measure]), seed)[measure],
        }
    return found


def _assessed(scores: Mapping[str | None, Scores], seed: int) -> dict[str | None, dict[str, Any]]:
    return assess(scores, ci=True, seed=seed, resamples=200)


if __name__ == "__main__":
    typer.run(main)
