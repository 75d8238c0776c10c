"""Results on pretrained models: the tables of docs/real-results.md, from the runs of configs/real-*.yaml.

    python -m benchmarks.real RUN …                              # all tables as Markdown
    python -m benchmarks.real --table thresholds RUN …           # one table
    SEMCAL_DATA=FOLDER python -m benchmarks.real --label RUN …   # asks the questions for `labels`
    SEMCAL_DATA=FOLDER python -m benchmarks.real --monte-carlo RUN …     # Monte Carlo temperature beside Base
    python -m benchmarks.real --judge openai:URL#MODEL RUN …     # a second grader, and a second equivalence
    python -m benchmarks.real --figure docs/real-results.svg RUN …
    python -m benchmarks.real --keep FOLDER --commit COMMIT RUN …    # docs/real-results/NAME/results.json

A table uses the rows of the test questions of each run; only `--label`, `--judge` and `--monte-carlo` use a
model. Scores are those of E-SC, the share of the largest meaning; intervals are 95%, over questions (or
groups of questions on one passage).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import NotRun
from benchmarks.__main__ import table
from benchmarks._damage import semcal
from benchmarks.calibrate import graded
from semcal import load_equivalence, load_model, metrics
from semcal.calibration.calibration import Calibration
from semcal.calibration.features import AnswerFeatures, candidates_for, features_of
from semcal.calibration.learning import LearningOptions, calibrate_rows
from semcal.calibration.samples import measure_samples
from semcal.calibration.thresholds import kept_apart, set_threshold
from semcal.data.question import several
from semcal.data.splits import question_ties
from semcal.demo.paths import language_model_dir
from semcal.errors import SemcalWarning, UndefinedWarning
from semcal.experiment.analyses.grid_scores import CellScores, contrast_summary
from semcal.experiment.finished import (
    FinishedRun,
    calibration_folder,
    read_environment,
    read_finished,
    read_results,
)
from semcal.experiment.grid_plan import Parts, essentials, load_parts
from semcal.experiment.grid_settings import read_settings, slug
from semcal.files import dumps, write_rows
from semcal.grading.judge import JUDGE, load_judge
from semcal.grading.rules import Grader
from semcal.measuring import measure_at
from semcal.metrics.probability_maps import choose_map, part_of
from semcal.models.causal_lm import CausalLanguageModel
from semcal.models.clustering import ClusterConfig
from semcal.models.distribution import Temperature
from semcal.models.equivalence import CachedEquivalence
from semcal.models.prompting import PromptConfig
from semcal.models.sample import Sampling, SamplingConfig, sample_runs
from semcal.recalibration.select import sample_candidates
from semcal.rows import Row
from semcal.text.normal_form import normal_form

MEASURE = "E-SC"
LOSSES = ("Base", "TS NLL", "TS any")
SPLITS, TARGETS = 200, tuple(np.arange(1, 11) / 20)
LABELS, SUBSETS = (50, 100, 250, 500), 10
GRID = """\
preset: sound
models:
- {{name: one, path: {}}}
datasets:
- {{name: trivia, source: atlas-trivia, calibration_train: 30, validation: 10, test: 20}}
methods: [Base, SE, TS, Calibrated]
calibrated: {{questions: 30}}
runs: {{count: 1}}
sampling: {{m: 4}}
equivalence: default
evaluation: {{resamples: 100}}
fitting: {{losses: [[NLL, null]]}}
extras: {{beams: false, entailment: false, transfer: false, token_losses: false, figure_files: false}}
"""
QUICK = {"SPLITS": 2, "LABELS": (20, 30), "SUBSETS": 1}
TableRows = Iterator[dict[str, Any]]


def cells(run: FinishedRun) -> Iterator[CellScores]:
    return (CellScores(run, model, dataset) for model, dataset in run.pairs)


def place(cell: CellScores) -> dict[str, Any]:
    return {"model": cell.model, "set": cell.dataset}


def rows_at(run: FinishedRun, model: str, dataset: str) -> dict[float | None, list[Row]]:
    """Return the test answers of Base and SE in the first run."""
    return {t: list(map(Row, run.rows(model, dataset, name, 0))) for t, name in ((1.0, "Base"), (0.5, "SE"))}


def groups_of(rows: Sequence[Row]) -> np.ndarray | None:
    return several([question_ties(row.json) for row in rows])


# ---- Tables


def scores(run: FinishedRun) -> TableRows:
    """Yield metrics of methods on answers in one wording."""
    analyses = read_results(run.folder)["analyses"]
    rejected = {
        (row["model"], row["dataset"], row["method"], row["measure"]): row for row in analyses["selective"]
    }
    for row in analyses["calibrated"]:
        curve = rejected[row["model"], row["dataset"], row["method"], row["measure"]]
        at_80 = dict(zip(curve["rejection"], curve["accuracy"]))[0.2]
        yield {
            "model": row["model"],
            "set": row["dataset"],
            "method": row["method"],
            "accuracy": with_interval(row["accuracy"]),
            "confidence": row["mean_confidence"]["mean"],
            "ACE": with_interval(row["ace"]),
            "noise floor, 95%": row["ace_floor_95"],
            "AUROC": with_interval(row["auroc"]),
            "gain": with_interval(row["gain"]),
            "E-AURC": excess(row["accuracy"]["mean"], row["aurac"]["mean"], row["n"]),
            "accuracy at 80%": at_80,
        }


def with_interval(entry: Mapping[str, Any] | None) -> str:
    if entry is None or entry["mean"] is None:
        return "–"
    interval = entry["interval"]
    return f"{entry['mean']:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")


def excess(accuracy: float, aurac: float | None, n: int) -> float | None:
    """Return E-AURC (Geifman, Uziel and El-Yaniv, 2019): the area under risk and coverage minus the best."""
    if aurac is None:
        return None
    oracle = np.minimum(1.0, accuracy * n / np.arange(1, n + 1)).mean()
    return float(oracle - aurac)


def losses(run: FinishedRun) -> TableRows:
    """Yield TS by loss: T, and accuracy and gain minus Base's, graded as in the run."""
    for cell in cells(run):
        temperature = {fit["candidate"]: fit["temperature"] for fit in cell.selection["fits"]}
        names = [name for name in LOSSES if run.samples_path(*cell_names(cell), name, 0).exists()]
        pair = cell.scored({(name, MEASURE): name for name in names})
        for name in names:
            figures = {
                key: pair.over_runs((name, MEASURE), key)["mean"] for key in ("accuracy", "ace", "auroc")
            }
            differences = {
                f"{key} minus Base's": None if name == "Base" else difference(pair, name, key)
                for key in ("accuracy", "gain", "auroc")
            }
            yield {
                **place(cell),
                "candidate": name,
                "T": temperature.get(name, 1.0),
                **figures,
                **differences,
            }


def cell_names(cell: CellScores) -> tuple[str, str]:
    return cell.model, cell.dataset


def difference(pair: Any, name: str, metric: str, against: str = "Base") -> str:
    of_one, of_other = (pair.resampled.contrast((key, MEASURE), metric) for key in (name, against))
    summary = contrast_summary(of_one - of_other)
    return told(summary["value"], summary["interval"])


def against(run: FinishedRun) -> TableRows:
    """Yield differences with E-SC: TS minus each, graded as in the run; Calibrated minus each."""
    analyses = read_results(run.folder)["analyses"]
    for row in analyses["paired"]:
        if row["measure"] == MEASURE and row["quantity"] in ("auroc", "ace", "accuracy"):
            yield {
                "model": row["model"], "set": row["dataset"], "what": f"TS minus {row['against']}",
                "metric": row["quantity"], "difference": told(row["difference"], row["interval"]),
            }  # fmt: skip
    for row in analyses["calibrated"]:
        for method, by_metric in row.get("against", {}).items():
            for metric in ("gain", "ace", "auroc"):
                if (found := by_metric[metric]) is not None:
                    yield {
                        "model": row["model"], "set": row["dataset"], "what": f"Calibrated minus {method}",
                        "metric": metric, "difference": told(found["value"], found["interval"]),
                    }  # fmt: skip


def told(value: float | None, interval: Sequence[float] | None) -> str:
    if value is None or interval is None:
        return "–"
    low, high = interval
    return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"


def thresholds(run: FinishedRun) -> TableRows:
    """Yield results of thresholds on 200 splits of the test questions into a labeled and a new half.

    `TCE` is the mean over targets 0.05 to 0.5 of the realized minus the promised risk, if there is a
    threshold.
    """
    for cell in cells(run):
        at = rows_at(run, *cell_names(cell))
        features, rows = features_of(at), at[1.0]
        right, groups = graded(rows, features.answers), groups_of(rows)
        found = [split(features, right, groups, seed) for seed in range(SPLITS)]
        gaps = [rate - risk for one in found for risk, (_, rate) in one.items() if rate is not None]
        for risk in TARGETS if gaps else ():
            met = [one[risk] for one in found if one[risk][1] is not None]
            rates = [rate for _, rate in met]
            if round(risk, 2) in (0.1, 0.2, 0.3, 0.5):
                yield {
                    **place(cell),
                    "accuracy": right.mean(),
                    "promised": float(risk),
                    "splits with a threshold": len(met) / SPLITS,
                    "answered": np.mean([share for share, _ in met]) if met else None,
                    "realised": np.mean(rates) if met else None,
                    "exceeded, share of splits": sum(rate > risk for rate in rates) / SPLITS,
                    "TCE": float(np.mean(gaps)),
                }


def split(
    features: AnswerFeatures, right: np.ndarray, groups: np.ndarray | None, seed: int
) -> dict[float, tuple[float, float | None]]:
    """Return target → the answered share of one half, and the wrong share of it; None without a threshold."""
    label = np.arange(len(right)) if groups is None else groups
    order = np.random.default_rng([seed, 27]).permutation(label.max() + 1)
    labelled = np.isin(label, order[: len(order) // 2])
    apart = np.zeros(len(right), dtype=bool)
    apart[labelled] = kept_apart(int(labelled.sum()), of(groups, labelled), seed)
    fitted = labelled & ~apart
    values = part_of(features.values, fitted)
    candidates = candidates_for(AnswerFeatures((), (), values, features.probabilities))
    how: dict[str, Any] = {"groups": of(groups, fitted), "seed": seed}
    chosen = choose_map(values, right[fitted], candidates, **how).map
    tested, met = (chosen.scores(part_of(features.values, part)) for part in (apart, ~labelled))
    found: dict[float, tuple[float, float | None]] = {}
    for risk in TARGETS:
        limit = set_threshold(tested, right[apart], risk, 0.05, groups=of(groups, apart), seed=seed).threshold
        answered = met >= limit if limit is not None else np.zeros(len(met), dtype=bool)
        rate = float(1 - right[~labelled][answered].mean()) if answered.any() else None
        found[risk] = float(answered.mean()), rate
    return found


def of(groups: np.ndarray | None, part: np.ndarray) -> np.ndarray | None:
    """Return the groups of a part with new numbers."""
    return None if groups is None else np.unique(groups[part], return_inverse=True)[1]


def moved(runs: Sequence[FinishedRun]) -> TableRows:
    """Yield metrics of the calibration of each data set on the test questions of all data sets."""
    places = [(run, *pair) for run in runs for pair in run.pairs]
    for home, model, source in places:
        calibration = Calibration.from_pretrained(home.folder / calibration_folder(model, source))
        for run, name, target in places:
            if name == model:
                used = used_on(calibration, rows_at(run, model, target))
                yield {"model": model, "learnt on": source, "used on": target} | used


def used_on(calibration: Calibration, at: Mapping[float | None, list[Row]]) -> dict[str, Any]:
    """Return metrics of the probabilities and the threshold of a calibration on test questions."""
    needed = {t: at[t] for t in (calibration.temperature, *calibration.temperatures)}
    answers = calibration.apply(needed)
    right = graded(next(iter(needed.values())), [answer.text for answer in answers])
    p = np.array([answer.probability for answer in answers])
    answered = np.array([not answer.abstained for answer in answers])
    limit, numbers = calibration.threshold, metrics.summary(p, right)
    is_set = limit is not None and limit.threshold is not None
    return {
        "accuracy": right.mean(),
        "probability": p.mean(),
        "ACE": numbers["ace"],
        "by chance": numbers["ace_floor"],
        "promised": None if limit is None else limit.risk_limit,
        "threshold": None if limit is None else limit.threshold,
        "answered": answered.mean() if is_set else None,
        "wrong": 1 - right[answered].mean() if is_set and answered.any() else None,
    }


def cost(run: FinishedRun) -> TableRows:
    """Yield CPU seconds of each stage of the whole run, and the peak memory of a process."""
    environment = read_environment(run.folder)
    seconds, peaks = environment["cpu_seconds"], environment["peak_memory_mb_by_stage"]
    for stage in ("features", "fit", "sample", "cluster", "greedy"):
        if stage in seconds:
            yield {
                "models": ", ".join(run.models), "stage": stage, "CPU s": seconds[stage],
                "peak MB of a process": peaks.get(stage),
            }  # fmt: skip


def equivalences(run: FinishedRun) -> TableRows:
    """Yield metrics of Base's answers with clusters of the embedded model, and of equal normal forms."""
    exact = ClusterConfig(load_equivalence("exact"))
    for cell in cells(run):
        stored = rows_at(run, *cell_names(cell))[1.0]
        for name, rows in (("default", stored), ("exact", grouped(stored, exact))):
            yield {**place(cell), "equivalence": name} | of_share(rows)


def grouped(
    stored: Sequence[Row], grouping: ClusterConfig, progress: Callable[[int], None] | None = None
) -> list[Row]:
    """Return the samples of stored rows, clustered and measured again."""
    kept = ("id", "question", "samples", "answers", "log_likelihoods", "context")
    bare = [Row({key: row[key] for key in kept if key in row.json}) for row in stored]
    (rows,) = measure_samples(bare, grouping, progress=progress).values()
    return rows


def of_share(rows: Sequence[Row], grader: Grader | None = None) -> dict[str, Any]:
    """Return metrics of the share of the largest meaning with a grader."""
    features = features_of({None: rows})
    right, share = graded(rows, features.answers, grader), features.values[MEASURE]
    numbers = metrics.summary(share, right)
    return {
        "meanings per question": np.mean([len(row.clusters) for row in rows]),
        "accuracy": right.mean(),
        "confidence": share.mean(),
        "ACE": numbers["ace"],
        "AUROC": numbers["auroc"],
        "gain": numbers["gain"],
    }


def judged(run: FinishedRun, judge: str) -> TableRows:
    """Yield results of a judge (`--judge`) as grader of 200 test questions, and as equivalence of 25."""
    verdicts = run.folder / "judged.sqlite"  # kept as they come: what was stopped goes on there
    by_judge = load_judge(JUDGE + judge, cache=verdicts)
    grouping = ClusterConfig(CachedEquivalence(load_equivalence(judge), verdicts))
    for cell in cells(run):
        stored = rows_at(run, *cell_names(cell))[1.0]
        for n, equivalence, grader in (
            (200, "default", "rules"),
            (200, "default", "judge"),
            (25, "default", "rules"),
            (25, "judge", "rules"),
        ):
            rows = stored[:n]
            if equivalence == "judge":
                rows = grouped(rows, grouping, lambda n: print(f"{n} of 25 questions", file=sys.stderr))
            yield {
                **place(cell), "questions": len(rows), "equivalence": equivalence, "grader": grader,
                **of_share(rows, by_judge if grader == "judge" else None),
            }  # fmt: skip


def labels(run: FinishedRun) -> TableRows:
    """Yield results of Calibrated on the test questions, learned from random subsets of labels."""
    for cell in cells(run):
        path = labelled_path(run, *cell_names(cell))
        if not path.exists():
            continue
        with path.open(encoding="utf-8") as lines:
            labelled = measure_at({1.0: [Row(json.loads(line)) for line in lines]})[1.0]
        rows = rows_at(run, *cell_names(cell))[1.0]
        for count in (count for count in LABELS if count <= len(labelled)):
            figures = [
                of_labels([labelled[i] for i in chosen], rows)
                for seed in range(SUBSETS if count < len(labelled) else 1)
                for chosen in [np.random.default_rng([seed, count]).permutation(len(labelled))[:count]]
            ]
            yield {**place(cell), "labels": count} | {
                key: np.mean([one[key] for one in figures]) for key in figures[0]
            }


def of_labels(labelled: Sequence[Row], rows: Sequence[Row]) -> dict[str, float]:
    calibration = calibrate_rows(
        {1.0: labelled}, ClusterConfig("default"), options=LearningOptions(fixed_temperature=True)
    )
    features = features_of({1.0: rows})
    right, share = graded(rows, features.answers), features.values[MEASURE]
    p = np.array([answer.probability for answer in calibration.apply({1.0: rows})])
    gain, of_base = metrics.gain(p, right), metrics.gain(share, right)
    return {"gain": gain, "gain minus Base's": gain - of_base, "ACE": float(metrics.ace(p, right))}


def audit(run: FinishedRun) -> TableRows:
    """Yield a hundred questions for a reader: different answers of Base that count as one meaning."""
    rng = random.Random(0)
    sizes = [100 // len(run.datasets) + (i < 100 % len(run.datasets)) for i in range(len(run.datasets))]
    for cell, size in zip(cells(run), sizes):
        rows = list(map(Row, run.rows(*cell_names(cell), "Base", 0)))
        for row in rng.sample(rows, min(size, len(rows))):
            groups = [
                list(dict.fromkeys(normal_form(row.samples[i]) for i in cluster)) for cluster in row.clusters
            ]
            joined = " ; ".join(" = ".join(forms) for forms in groups if len(forms) > 1)
            yield {**place(cell), "question": row.question, "counted as one": joined or None}


def draw(folders: Sequence[Path], path: Path) -> None:
    """Draw gain and accuracy of each method with intervals: one row of panels for each model, one per set."""
    from matplotlib.figure import Figure

    shown = {
        (row["model"], row["dataset"], row["method"]): row
        for folder in folders
        for row in read_results(folder)["analyses"]["calibrated"]
    }
    models, sets, methods = (list(dict.fromkeys(key[place] for key in shown)) for place in range(3))
    figure = Figure(figsize=(3.1 * len(sets), 0.4 + 2.3 * len(models)), layout="constrained")
    panels = figure.subplots(len(models), len(sets), sharex=True, squeeze=False)
    for axes, (model, name) in zip(panels.flat, product(models, sets)):
        found = [shown.get((model, name, method)) for method in methods]
        for metric, offset, colour in (("gain", 0.14, "#1b5e8c"), ("accuracy", -0.14, "#b3541e")):
            for at, row in enumerate(found):
                if row is not None:
                    mean, ends = row[metric]["mean"], np.array([row[metric]["interval"]])
                    error = abs(ends.T - mean)
                    axes.errorbar(mean, -at + offset, xerr=error, fmt="o", ms=4, color=colour, label=metric)
        axes.set_visible(any(found))  # hidden if it was not run
        axes.axvline(0, color="#888888", linewidth=0.8)
        axes.set_yticks(-np.arange(len(methods)), methods)
        axes.set_title(f"{model}, {name}", fontsize=10)
    legend = dict(zip(*reversed(panels[0, 0].get_legend_handles_labels())))
    figure.legend(legend.values(), legend, loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path)
    print(path)


_ALL: tuple[Callable[..., TableRows], ...] = (
    scores, losses, against, thresholds, moved, equivalences, labels, cost, audit,
)  # fmt: skip
TABLES = {entry.__name__: entry for entry in _ALL}


# ---- The labeled questions, asked like the test questions


def labelled_path(run: FinishedRun, model: str, dataset: str) -> Path:
    return run.folder / "labelled" / slug(model) / f"{slug(dataset)}.jsonl"


def asked(
    run: FinishedRun, labelled: int = 0
) -> Iterator[tuple[str, str, CausalLanguageModel, Parts, Sampling]]:
    """Yield each model and data set of a run, with the loaded model, the questions, and Base's settings.

    There are at least `labelled` questions of calibration-train.
    """
    settings = read_settings(run.folder / "settings.yaml")
    for model in settings.models:
        loaded = load_model(model.path, dtype=model.dtype)
        for dataset in settings.datasets:
            most = max(dataset.calibration_train or 0, labelled)
            parts = load_parts(dataset.model_copy(update={"calibration_train": most}))
            asking = PromptConfig(tuple(map(essentials, parts.few_shot)))
            longest = settings.max_new_tokens(open_book=parts.open_book)
            config = SamplingConfig(settings.sampling.m, settings.seeds[0], max_new_tokens=longest)
            sampling = Sampling((Temperature(1.0),), asking, config)
            yield model.name, dataset.name, loaded, parts, sampling


def label(run: FinishedRun) -> None:
    """Ask Base at least 500 questions of calibration-train, ten samples each, and write the clusters."""
    grouping = grouping_of(run)
    for model, dataset, loaded, parts, sampling in asked(run, max(LABELS)):
        path = labelled_path(run, model, dataset)
        if not path.exists():
            under = {1.0: sampling.recalibrators[0]}
            rows = sample_candidates(loaded, list(parts.calibration_train), under, sampling, grouping)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_rows(path, (row.json for row in rows[1.0]))
            print(path)


def grouping_of(run: FinishedRun) -> ClusterConfig:
    settings = read_settings(run.folder / "settings.yaml")
    return ClusterConfig(load_equivalence(settings.equivalence), settings.clustering.linkage)


def monte_carlo(run: FinishedRun) -> TableRows:
    """Yield Monte Carlo temperature (arXiv 2502.18389): each sample at its own T from 0.25 to 1.75."""
    temperatures = np.random.default_rng(0).permutation(0.25 + 1.5 * (np.arange(10) + 0.5) / 10)
    grouping = grouping_of(run)
    for model, dataset, loaded, parts, sampling in asked(run):
        questions = list(parts.test)
        rows = [question.row() | {"samples": []} for question in questions]
        for number, t in enumerate(temperatures):
            config = replace(sampling.config, m=1)
            rule = Temperature(float(t))
            under = replace(sampling, recalibrators=(rule,), config=config, first=number)
            ((drawn,),) = sample_runs(loaded, questions, under)
            for row, sampled in zip(rows, drawn):
                row["samples"].append(sampled.draws[0].text)
        base = rows_at(run, model, dataset)[1.0]
        for name, of_method in (("Base", base), ("MCT", grouped(list(map(Row, rows)), grouping))):
            yield {"model": model, "set": dataset, "method": name} | of_share(of_method)


def keep(run: FinishedRun, folder: Path, commit: str) -> None:
    """Write results.json without texts of questions, with the hashes of the models and the commit."""
    results = read_results(run.folder)
    results["analyses"]["prompts"] = []
    settings = read_settings(run.folder / "settings.yaml")
    models = {
        model.name: hashlib.sha256(Path(model.path).read_bytes()).hexdigest() for model in settings.models
    }
    results["made_by"] = {"commit": commit, "sha256": models}
    path = folder / run.folder.name / "results.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dumps(results) + "\n", encoding="utf-8")
    print(path)


def quick_runs(folder: Path) -> list[list[str]]:
    """Make a grid of a few questions of the embedded world, without another model."""
    from tools.gguf import write_gguf

    write_gguf(language_model_dir(), folder / "atlas.gguf")
    (folder / "grid.yaml").write_text(GRID.format(folder / "atlas.gguf"))
    run = folder / "run"
    ended = semcal("run", folder / "grid.yaml", "--out", run, "--workers", "1")
    if ended.code:
        raise RuntimeError(ended.fault or ended.stderr)
    figure, kept = str(folder / "figure.svg"), str(folder / "kept")
    return [
        ["--label", str(run)],
        [str(run)],
        ["--table", "audit", str(run)],
        ["--monte-carlo", str(run)],
        ["--figure", figure, str(run)],
        ["--keep", kept, "--commit", "none", str(run)],
    ]


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    parser.add_argument("--table", choices=TABLES, help="print only this table")
    parser.add_argument("--judge", metavar="openai:URL#MODEL", help="print `judged` with this model")
    parser.add_argument(
        "--monte-carlo", action="store_true", help="print `monte_carlo`, which uses the models"
    )
    parser.add_argument("--label", action="store_true", help="ask the labeled questions for `labels`")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw gain and accuracy of each method")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write results.json without texts there")
    parser.add_argument("--commit", help="commit of the runs, for --keep")
    given = parser.parse_args(arguments)
    if not given.runs:
        raise NotRun("RUN …, folders that `semcal run configs/real-….yaml` wrote")
    warnings.simplefilter("ignore", SemcalWarning)
    warnings.simplefilter("ignore", UndefinedWarning)
    if given.figure:  # tables that only need results.json
        draw(given.runs, given.figure)
        return
    runs = [read_finished(folder) for folder in given.runs]
    if given.label:
        for run in runs:
            label(run)
        return
    if given.keep:
        if given.commit is None:
            parser.error("--keep needs --commit")
        for run in runs:
            keep(run, given.keep, given.commit)
        return
    if given.monte_carlo:
        show(monte_carlo, [row for run in runs for row in monte_carlo(run)])
        return
    if given.judge:
        show(judged, [row for run in runs for row in judged(run, given.judge)])
        return
    for name in [given.table] if given.table else [name for name in TABLES if name != "audit"]:
        if name == "moved":
            show(moved, list(moved(runs)))
        else:
            show(TABLES[name], [row for run in runs for row in TABLES[name](run)])


def show(entry: Callable[..., TableRows], rows: list[dict[str, Any]]) -> None:
    """Print a table with its name and description."""
    if rows:
        about = (entry.__doc__ or "").splitlines()[0]
        print(f"## {entry.__name__}\n\n{about}\n\n{table(rows)}\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
