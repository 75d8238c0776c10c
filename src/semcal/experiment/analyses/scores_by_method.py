"""Every method under every measure: tables 3 to 6 and 8 to 11, figures 3 to 5, 9 and 10."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from semcal.errors import UndefinedWarning
from semcal.experiment.analyses.grid_scores import (
    VARIANTS,
    Floats,
    GridScores,
    Key,
    PairScores,
    over_runs,
    row_names,
)
from semcal.metrics import METRICS, Contrast, auroc, rank_volatility, selective_accuracy
from semcal.metrics import correlations as pearson
from semcal.metrics.frequencies import draw_counts
from semcal.metrics.overview import noise_floors

#: In the order of results.json; those of other packages come after.
ORDER = (
    *("accuracy", "ace", "ece", "mcb", "auroc", "brier", "gain", "reliability", "resolution", "uncertainty"),
    *("refinement", "dsc", "unc", "aurac", "prr", "smooth_ece", "mean_confidence"),
)
#: Errors of calibration with a noise floor: all but SmoothECE, whose floor takes twenty times as long.
FLOORED = ("ace", "ece")
#: The measures of the short table of entropies.
SHORT = ("E-SC", "L-SC", "IC-SC", "G-SC")
#: Shares of the least confident questions that are rejected, and how far the slope is taken.
REJECTION = tuple(round(0.05 * i, 2) for i in range(19))
SLOPE_TO = 0.5
#: The second is the paper's second comparison, without a table of its own.
VOLATILITY_OF = (("ace", "mcb"), ("ace", "ece"))
#: The methods of the paper's figures.
SHOWN = ("Base", "SE", "TS")
#: Bins of the histograms, (low, high], the first one closed on the left.
EDGES = tuple(round(0.05 * i, 2) for i in range(21))
#: A confidence whose variance is no larger varies by rounding alone.
CONSTANT = 1e-24


def confidence(scores: GridScores) -> list[dict[str, Any]]:
    """Compute every metric of every method under every measure (tables 3 and 8 to 10, figure 3).

    {model, dataset, method, measure, candidate, measure_alpha, n, undefined} and one of `over_runs` for each
    metric; all of these are null where the measure is undefined for every question. Refinement is
    uncertainty − resolution. Reliability and resolution are over unique confidence values. Beside ACE and ECE
    what calibrated confidences would show: ace_floor (mean) and ace_floor_95 (quantile), means over runs, and
    ace_p, the p value of calibration, of several runs twice its mean (Vovk and Wang, 2020); null where ACE
    depends on the order of rows.
    """
    run = scores.run
    return [
        {
            **row_names(model, dataset, method, measure),
            **{key: chosen.get(key) for key in ("candidate", "measure_alpha")},
            **scores_of(pair, (method, measure)),
        }
        for model, dataset in run.pairs
        for pair in [scores.pair(model, dataset)]
        for method in run.methods
        for measure in run.measures
        for chosen in [run.choice(model, dataset, method, measure)]
    ]


def scores_of(pair: PairScores, key: Key) -> dict[str, Any]:
    """The metrics of one method under one measure, as in `confidence`."""
    counted = {"n": pair.n, "undefined": pair.undefined}
    return (
        counted
        | {metric: _metric(pair, key, metric) for metric in dict.fromkeys((*ORDER, *METRICS))}
        | _floors(pair, key)
    )


def _metric(pair: PairScores, key: Key, metric: str) -> dict[str, Any] | None:
    if key not in pair.arrays:
        return None
    return pair.refinement(key) if metric == "refinement" else pair.over_runs(key, metric)


def _floors(pair: PairScores, key: Key) -> dict[str, float | None]:
    """The noise floors of one method under one measure, as in `confidence`."""
    options = pair.options
    by_name: dict[str, float | None] = {
        f"{metric}_{name}": None for metric in FLOORED for name in ("floor", "floor_95", "p")
    }
    if key not in pair.arrays:
        return by_name
    arrays = pair.arrays[key]
    runs = [
        noise_floors(
            np.clip(p, 0.0, 1.0),
            correct,
            FLOORED,
            groups=pair.groups,
            bins=options.bins,
            draws=options.resamples,
            seed=np.random.default_rng(options.seed),
        )
        for p, correct in zip(arrays.confidence, arrays.correct)
    ]
    for metric in FLOORED[options.ace == "reference" :]:
        floors = [run[metric] for run in runs]
        p_value = float(np.mean([floor.p_value for floor in floors]))
        by_name[f"{metric}_floor"] = float(np.mean([floor.mean for floor in floors]))
        by_name[f"{metric}_floor_95"] = float(np.mean([floor.quantile_95 for floor in floors]))
        by_name[f"{metric}_p"] = p_value if len(floors) == 1 else min(1.0, 2 * p_value)
    return by_name


def entropy(scores: GridScores) -> list[dict[str, Any]]:
    """Compute the AUROC of −semantic entropy (tables 4 to 6).

    {model, dataset, method, measure, SE_conf, SE_vanilla, vanilla, greedy_differs}: each
    variant as `over_runs` gives it, whether SE_vanilla is of the greedy answer or of beams, and the share of
    questions whose greedy answer is another than Base's (null without Base). SE_conf calls a meaning right
    where any of the members is that were graded (`grading.members`).
    """
    run = scores.run
    return [
        {
            **row_names(model, dataset, method, measure),
            **{variant: _entropy_auroc(pair, (method, measure), variant) for variant in VARIANTS},
            "vanilla": pair.options.vanilla,
            "greedy_differs": _greedy_differs(scores, model, dataset, method, measure),
        }
        for model, dataset in run.pairs
        for pair in [scores.pair(model, dataset)]
        for method in run.methods
        for measure in run.measures
    ]


def _entropy_auroc(pair: PairScores, key: Key, variant: str) -> dict[str, Any] | None:
    if key not in pair.arrays:
        return None
    arrays = pair.arrays[key]
    areas = [auroc(-nats, correct) for nats, correct in zip(arrays.entropy, arrays.by_variant[variant])]
    return over_runs(pair.options.auroc(areas), pair.entropies.interval((*key, variant), "auroc"))


def _greedy_differs(scores: GridScores, model: str, dataset: str, method: str, measure: str) -> float | None:
    run = scores.run
    if "Base" not in run.methods:
        return None
    ours, base = (
        scores.runs_of(model, dataset, run.choice(model, dataset, name, measure)["candidate"])
        for name in (method, "Base")
    )
    return float(np.mean([np.mean([a != b for a, b in zip(x.greedy, y.greedy)]) for x, y in zip(ours, base)]))


def selective(scores: GridScores) -> list[dict[str, Any]]:
    """Compute the accuracy of the answered questions against the share rejected (figures 4 and 5).

    {model, dataset, method, measure, rejection, accuracy, se, slope, gain}: mean and standard error over runs
    at each rejection rate (lists); the least-squares slope of accuracy over rejection rates from 0 to 50 %;
    the gain AURAC − accuracy with its interval over questions.
    """
    return [
        {**row_names(model, dataset, *key), **selective_of(pair, key)}
        for model, dataset in scores.run.pairs
        for pair in [scores.pair(model, dataset)]
        for key in pair.arrays
    ]


def selective_of(pair: PairScores, key: Key) -> dict[str, Any]:
    """The curve of one method under one measure, as in `selective`."""
    arrays = pair.arrays[key]
    curves = np.stack(
        [
            selective_accuracy(confidence, correct, rejection=REJECTION).accuracy
            for confidence, correct in zip(arrays.confidence, arrays.correct)
        ]
    )  # (R, rejection rates)
    points = [over_runs(column) for column in curves.T]
    return {
        "rejection": list(REJECTION),
        "accuracy": [point["mean"] for point in points],
        "se": [point["se"] for point in points],
        "slope": over_runs(_slopes(curves)),
        "gain": _gain(pair, key),
    }


def _slopes(curves: Floats) -> Floats:
    """Least-squares slope (R,) of each curve over the rejection rates up to 50 %."""
    inside = np.array(REJECTION) <= SLOPE_TO
    rates = np.array(REJECTION)[inside]
    centred = rates - rates.mean()
    slopes: Floats = curves[:, inside] @ centred / (centred @ centred)
    return slopes


def _gain(pair: PairScores, key: Key) -> dict[str, Any]:
    difference = pair.resampled.contrast(key, "aurac") - pair.resampled.contrast(key, "accuracy")
    by_run = pair.by_run[key]
    return over_runs(by_run["aurac"] - by_run["accuracy"], difference.interval())


def volatility(scores: GridScores) -> list[dict[str, Any]]:
    """Compare how two metrics rank the methods, by unrounded means over runs (table 11).

    {model, dataset, metrics: [first, second], per_method: {method: mean |change of rank|}, mean, chance},
    where ties share their mean rank and `chance` is what unrelated rankings would give.
    """
    methods = scores.run.methods
    rows = []
    for model, dataset in scores.run.pairs:
        pair = scores.pair(model, dataset)
        if not pair.arrays:
            continue
        for metrics in VOLATILITY_OF:
            first, second = (_means(scores, pair, metric) for metric in metrics)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UndefinedWarning)
                ranks = rank_volatility(first, second)
            per_method = dict(zip(methods, ranks.per_method.tolist()))
            rows.append(
                {"model": model, "dataset": dataset, "metrics": list(metrics), "per_method": per_method}
                | {"mean": ranks.mean, "chance": chance_volatility(len(methods))}
            )
    return rows


def chance_volatility(methods: int) -> float:
    r"""Mean |change of rank| between two random rankings of K methods, (K² − 1) / 3K."""
    return (methods**2 - 1) / (3 * methods)


def _means(scores: GridScores, pair: PairScores, metric: str) -> Floats:
    """[methods, measures that are defined]."""
    methods = scores.run.methods
    measures = [name for name in scores.run.measures if (methods[0], name) in pair.arrays]
    return np.array(
        [[pair.by_run[method, measure][metric].mean() for measure in measures] for method in methods]
    )


def distributions(scores: GridScores) -> list[dict[str, Any]]:
    """{model, dataset, method, measure, edges, share, median, at_one}: the confidences of all runs together.

    `share` is that of the questions in each bin, `at_one` that of confidence 1 (within 1e-9).
    """
    rows = []
    for model, dataset in scores.run.pairs:
        for (method, measure), arrays in scores.pair(model, dataset).arrays.items():
            if method not in SHOWN:
                continue
            values = arrays.confidence.ravel()
            counts = np.histogram(-values, bins=-np.array(EDGES[::-1]))[0][::-1]  # bins open on the left
            rows.append(
                {
                    **row_names(model, dataset, method, measure),
                    "edges": list(EDGES),
                    "share": (counts / len(values)).tolist(),
                    "median": float(np.median(values)),
                    "at_one": float(np.mean(values >= 1 - 1e-9)),
                }
            )
    return rows


def correlations(scores: GridScores) -> list[dict[str, Any]]:
    """{model, dataset, method, measures, matrix, n, mean, least}: Pearson, over all runs together.

    `mean` and `least` are over the pairs of different measures; null where a measure is constant.
    """
    rows = []
    for model, dataset in scores.run.pairs:
        pair = scores.pair(model, dataset)
        for method in SHOWN:
            columns = {
                measure: arrays.confidence.ravel()
                for (name, measure), arrays in pair.arrays.items()
                if name == method
            }
            if len(columns) < 2 or len(next(iter(columns.values()))) < 2:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UndefinedWarning)
                pairwise = pearson(columns)
            apart = pairwise.matrix[~np.eye(len(columns), dtype=bool)]
            defined = not np.isnan(apart).any()
            rows.append(
                {
                    "model": model,
                    "dataset": dataset,
                    "method": method,
                    "measures": list(pairwise.names),
                    "matrix": pairwise.matrix.tolist(),
                    "n": pairwise.n,
                    "mean": float(apart.mean()) if defined else None,
                    "least": float(apart.min()) if defined else None,
                }
            )
    return rows


def mean_correlation(pair: PairScores, method: str) -> Contrast | None:
    """`mean` of `correlations`, and the same in resamples of the questions, those of a data set in common.

    None with fewer than two measures or questions, or where a measure is constant.
    """
    confidences = [arrays.confidence for (name, _), arrays in pair.arrays.items() if name == method]
    if len(confidences) < 2 or pair.n < 2:
        return None
    values = np.stack(confidences)
    values = values - values.mean(axis=(1, 2), keepdims=True)
    rng = np.random.default_rng(pair.options.seed)
    counts = draw_counts(pair.n, pair.options.resamples, rng, pair.groups).T
    means = _mean_pearson(values, np.concatenate([np.ones((pair.n, 1)), counts], axis=1))
    return None if np.isnan(means[0]) else Contrast(float(means[0]), means[1:])


def _mean_pearson(values: Floats, counts: Floats) -> Floats:
    """Mean correlation of S measures in R runs of N questions [S, R, N], these as often as counts [N, B]."""
    times = values.shape[1] * counts.sum(axis=0)
    mean = values.sum(axis=1) @ counts / times
    product = np.einsum("arn,brn->abn", values, values) @ counts / times
    covariance = product - mean[:, None] * mean
    variance = np.einsum("aab->ab", covariance)
    scale = np.sqrt(np.where(variance > CONSTANT, variance, np.nan))
    apart = ~np.eye(len(values), dtype=bool)
    mean_of: Floats = (covariance / (scale[:, None] * scale))[apart].mean(axis=0)
    return mean_of
