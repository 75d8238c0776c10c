"""Probabilities on stored samples: before and after calibration, by labels and by samples of a question.

`samples` prints these rows. Random questions of a set are labeled, and the map that they choose is used on
the other questions. All figures are means over the splits. "95% floor after" is the 95th percentile of the
ACE of a calibrated model, and "answered" the largest share of the surest answers with at most so many errors.

GPT-3.5 has no texts: equal likelihoods mean equal answers, and ROUGE-L from 0.5 on means a correct one. "all"
adds the likelihood of the answer, the number of its tokens, and the confidence that the model states in it.

`curve`: the gain with the first samples of each question, learned from all questions and out of fold, with
the difference to all samples ± its standard error; and the number of samples that `semcal calibrate --m auto`
chooses from 250 labels, with the number of splits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from semcal import metrics
from semcal.calibration.calibration import CalibrationConfig
from semcal.calibration.features import AnsweredRow, AnswerFeatures, Feature, candidates_for
from semcal.calibration.learning import draws_curve
from semcal.calibration.report import enough_samples
from semcal.grading.grade import rule_grader
from semcal.grading.rules import Grader
from semcal.metrics.probability_maps import Labelled, choose_map, part_of
from semcal.models.clustering import ClusterConfig
from semcal.models.equivalence import ExactMatch
from semcal.rows import RowsAt

LABELS, SPLITS, LABELS_OF_DRAWS, DRAWS = (100, 250, 500), 20, 250, (3, 5, 10)
GPT = "gpt35_nq"
TITLES = {
    "llama2-7b-chat_triviaqa": "Llama-2-7B-chat, TriviaQA",
    "llama2-7b-chat_nq": "Llama-2-7B-chat, NQ",
    "mistral-7b-instruct_triviaqa": "Mistral-7B-Instruct, TriviaQA",
    "mistral-7b-instruct_nq": "Mistral-7B-Instruct, NQ",
    GPT: "GPT-3.5, NQ",
}
#: Least ROUGE-L of a correct answer.
CORRECT = 0.5
#: Shares of wrong answers at which the share of given answers is measured.
ERRORS = (0.2, 0.1)
COUNTED = ("E-SC", "entropy", "meanings")
Graded = Callable[[str, str, int], tuple[AnswerFeatures, np.ndarray]]


def _stated(it: AnsweredRow) -> float | None:
    """Return the confidence that the model states in the sample that is the answer."""
    return None if it.text is None else float(it.row["verbalised"][it.row.samples.index(it.text)])


STATED = Feature("verbalised", _stated, is_share=True)


def counted(features: AnswerFeatures) -> AnswerFeatures:
    """Return the features that need no likelihoods and no stated confidence."""
    return replace(features, values={name: features.values[name] for name in COUNTED}, further=())


def grader_of(name: str, grader: str) -> Grader:
    """Return the named rules; for GPT-3.5 always equality with one of `correct_texts`."""
    return rule_grader("exact" if name == GPT else grader)


def correct_texts(row: dict[str, Any]) -> list[str]:
    """Return the names of GPT-3.5's correct samples as references."""
    return [text for text, rouge in zip(row["samples"], row["rouge"]) if rouge >= CORRECT] or ["none"]


def answered(p: np.ndarray, correct: np.ndarray, errors: float) -> float:
    """Return the largest multiple of 5% of the answers, the surest first, with at most this error rate."""
    rates = np.arange(19) / 20
    accuracy = np.array(metrics.selective_accuracy(p, correct, rejection=rates).accuracy)
    return float((1 - rates)[accuracy >= 1 - errors].max(initial=0))


def after_map(
    features: AnswerFeatures,
    correct: np.ndarray,
    labels: int,
    splits: int | None = None,
    *,
    with_floor: bool = False,
) -> dict[str, float]:
    """Return the figures of the share and of the calibrated probability, as means over the splits."""
    every = Labelled(features.values, correct, candidates_for(features))
    found: dict[str, list[float]] = {}
    for split in range(splits or SPLITS):
        is_labeled = np.random.default_rng([split, labels]).permutation(len(correct)) < labels
        chosen = choose_map(*every.part(is_labeled), seed=split).map
        test, tested = part_of(features.values, ~is_labeled), correct[~is_labeled]
        for name, p in {"before": test["E-SC"], "after": chosen.predict(test)}.items():
            figures = {
                "mean confidence": p.mean(),
                "ACE": metrics.ace(p, tested),
                "AUROC": metrics.auroc(p, tested),
                "gain": metrics.gain(p, tested),
                **{f"answered at {errors:.0%} errors": answered(p, tested, errors) for errors in ERRORS},
            }
            for figure, value in figures.items():
                found.setdefault(f"{figure} {name}", []).append(float(value))
        if with_floor:
            floor = metrics.noise_floor(p, draws=100, seed=split).quantile_95
            found.setdefault("95% floor after", []).append(floor)
    return {name: float(np.mean(values)) for name, values in sorted(found.items())}


def by_labels(
    graded: Graded, names: Sequence[tuple[str, str]], splits: int | None = None
) -> list[dict[str, Any]]:
    """Return one row for each set with its grader, and each number of labels."""
    rows = []
    for (name, grader), labels in product(names, LABELS):
        features, correct = graded(name, grader, 10)
        if labels >= len(correct):  # a part of the set
            continue
        figures = after_map(features, correct, labels, splits, with_floor=True)
        row = {"set": name, "grader": grader, "n": len(correct), "labels": labels}
        rows.append(row | {"accuracy": float(correct.mean())} | figures)
    return rows


def by_samples(
    graded: Graded, names: Sequence[tuple[str, str]], splits: int | None = None
) -> list[dict[str, Any]]:
    """Return one row for each set with its grader, its features, and each number of samples."""
    rows = []
    for (name, grader), m in product(names, DRAWS):
        features, correct = graded(name, grader, m)
        variants = {"counted": counted(features)} | ({"all": features} if name == GPT else {})
        for variant, chosen in variants.items():
            figures = after_map(chosen, correct, LABELS_OF_DRAWS, splits)
            row = {"set": name, "grader": grader, "features": variant, "samples": m}
            kept = ("ACE after", "AUROC after", "gain after")
            rows.append(row | {"accuracy": float(correct.mean())} | {key: figures[key] for key in kept})
    return rows


def by_curve(
    measured: Callable[[str], RowsAt], names: Sequence[tuple[str, str]], splits: int
) -> list[dict[str, Any]]:
    """Return one row for each set with its grader, and the gain for each number of samples."""
    found, cluster = [], ClusterConfig(ExactMatch())
    for name, grader in names:
        rows, config = measured(name), CalibrationConfig(grader=grader_of(name, grader))
        points, chosen = draws_curve(rows, cluster, config), Counter[int]()
        for split in range(splits):
            n = len(next(iter(rows.values())))
            labeled = np.random.default_rng([split, LABELS_OF_DRAWS]).permutation(n)[:LABELS_OF_DRAWS]
            part = {t: [of_t[i] for i in labeled] for t, of_t in rows.items()}
            chosen[enough_samples(draws_curve(part, cluster, config, seed=split))] += 1
        gains = {
            f"{point.m}": f"{point.gain:.3f} ({point.above:+.3f} ± {point.standard_error:.3f})"
            for point in points
        }
        auto = ", ".join(f"{m} ({count})" for m, count in sorted(chosen.items()))
        found.append({"set": name, "grader": grader} | gains | {"auto, 250 labels (splits)": auto})
    return found


def plot(rows: Sequence[dict[str, Any]], path: str) -> None:
    """Plot gain and ACE by number of labels, 0 for the share, of the rows of `by_labels`."""
    from matplotlib import pyplot as plt

    figure, (gain, ace) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    names = dict.fromkeys(row["set"] for row in rows)
    for name in names:
        of_set = [row for row in rows if row["set"] == name and row["grader"] != "exact"]
        labels = [0, *(row["labels"] for row in of_set)]
        for axes, key in ((gain, "gain"), (ace, "ACE")):
            values = [of_set[0][f"{key} before"], *(row[f"{key} after"] for row in of_set)]
            axes.plot(labels, values, marker="o", label=TITLES.get(name, name))
    floors = [float(np.mean([row["95% floor after"] for row in rows if row["labels"] == n])) for n in LABELS]
    ace.plot(LABELS, floors, color="gray", linestyle=":", label="95% noise floor, mean")
    for axes, title in ((gain, "Gain (larger is better)"), (ace, "ACE (smaller is better)")):
        axes.set(title=title, xlabel="labeled questions (0: share of samples)", xticks=(0, *LABELS))
    figure.legend(*ace.get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.savefig(path, dpi=110)
