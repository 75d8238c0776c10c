"""Scores by method, measure and setting: tables 3 to 6 and 8 to 11, figures 3 to 7, 9 and 10.

Each analysis makes the rows of one model on one data set. Calibrated is compared with the methods of the run
on one wording of each answer: the most frequent wording of the meaning that E-SC selects. It has Base's
answers, so its accuracy is Base's; only the probability differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from semcal.arrays import Floats
from semcal.data.question import several
from semcal.experiment.analyses.grid_scores import (
    BETTER,
    NO_FLOORS,
    VARIANTS,
    WORSE,
    CellScores,
    MethodMeasure,
    PairScores,
    ScoreArrays,
    ScoreRow,
    ScoreRows,
    contrast_summary,
    over_runs,
    undefined_as_null,
    verdict,
)
from semcal.experiment.grid_settings import CALIBRATED
from semcal.grading.grade import grade_texts
from semcal.grading.rules import Grader
from semcal.measuring import wordings
from semcal.metrics import METRICS, Contrast, auroc, rank_volatility, selective_accuracy
from semcal.metrics import correlations as pearson
from semcal.rows import Row

#: Metrics in the order of results.json, before those of other packages.
ORDER = (
    "accuracy",
    "ace",
    "ece",
    "mcb",
    "auroc",
    "brier",
    "gain",
    "reliability",
    "resolution",
    "uncertainty",
    "refinement",
    "dsc",
    "unc",
    "aurac",
    "prr",
    "smooth_ece",
    "mean_confidence",
)
#: The measures of the short table of entropies.
SHORT = ("E-SC", "L-SC", "IC-SC", "G-SC")
#: Rejected shares of the least confident questions, and the last one of the slope.
REJECTION = tuple(round(0.05 * i, 2) for i in range(19))
SLOPE_TO = 0.5
#: Compared pairs of metrics; the paper has no table of the second pair.
VOLATILITY_OF = (("ace", "mcb"), ("ace", "ece"))
#: The methods of the paper's figures.
SHOWN = ("Base", "SE", "TS")
#: Bins of the histograms, (low, high], the first one closed on the left.
EDGES = tuple(round(0.05 * i, 2) for i in range(21))
#: The candidate whose temperature is used on other data sets.
TRANSFERRED = "TS NLL"
#: Metrics at another data set's T, and their maximum number of resamples.
COMPARED = ("ace", "brier", "auroc")
COMPARED_RESAMPLES = 200


# ---- Metrics of every method for every measure ------------------------------------------------------------


def confidence(cell: CellScores) -> ScoreRows:
    """Compute every metric of every method for every measure (tables 3 and 8 to 10, figure 3).

    Rows are {model, dataset, method, measure, candidate, measure_alpha, n, undefined} and an `over_runs`
    entry for each metric, all null if the measure is undefined for every question. Refinement is uncertainty
    − resolution. Reliability and resolution are over unique confidence values. The noise floors of ACE and
    ECE are ace_floor (mean) and ace_floor_95 (quantile), means over runs, and ace_p, the p value of
    calibration (for several runs, twice their mean; Vovk and Wang, 2020).
    """
    return [
        {
            **cell.names(*key),
            **{name: cell.choice(*key).get(name) for name in ("candidate", "measure_alpha")},
            **scores_of(cell.pair, key),
        }
        for key in cell.keys
    ]


def scores_of(pair: PairScores, key: MethodMeasure) -> ScoreRow:
    """Return the metrics of one method for one measure, as in `confidence`."""
    scores: ScoreRow = {"n": pair.n, "undefined": pair.undefined}
    for metric in dict.fromkeys((*ORDER, *METRICS)):
        if key not in pair.arrays:
            scores[metric] = None
        elif metric == "refinement":
            scores[metric] = pair.difference(key, "uncertainty", "resolution")
        else:
            scores[metric] = pair.over_runs(key, metric)
    return {**scores, **pair.floors.get(key, NO_FLOORS)}


def entropy(cell: CellScores) -> ScoreRows:
    """Compute the AUROC of −semantic entropy (tables 4 to 6).

    Rows are {model, dataset, method, measure, SE_conf, SE_vanilla, vanilla, greedy_differs}: `over_runs`
    entries for both variants, the answer of SE_vanilla (greedy or beam), and the share of questions whose
    greedy answer differs from Base's (null without Base). For SE_conf, a meaning is correct if any of its
    graded members is (`grading.members`).
    """
    rows = []
    for key in cell.keys:
        row = cell.names(*key) | dict.fromkeys(VARIANTS)
        if (arrays := cell.pair.arrays.get(key)) is not None:
            for variant, correct in arrays.by_variant.items():
                areas = [auroc(-nats, right) for nats, right in zip(arrays.entropy, correct)]
                interval = cell.pair.entropies.interval((*key, variant), "auroc")
                row[variant] = over_runs(areas, interval)
        row |= {"vanilla": cell.run.settings.grading.vanilla, "greedy_differs": _greedy_differs(cell, *key)}
        rows.append(row)
    return rows


def _greedy_differs(cell: CellScores, method: str, measure: str) -> float | None:
    if "Base" not in cell.run.methods:
        return None
    runs, base_runs = (cell.runs_of(cell.choice(name, measure)["candidate"]) for name in (method, "Base"))
    pairs = zip(runs, base_runs)
    return float(np.mean([np.mean([a != b for a, b in zip(run.greedy, base.greedy)]) for run, base in pairs]))


def selective(cell: CellScores) -> ScoreRows:
    """Compute the accuracy of answered questions by the share of rejected ones (figures 4 and 5).

    Rows are {model, dataset, method, measure, rejection, accuracy, se, slope, gain}: mean and standard error
    over runs at each rejection rate (lists); the least-squares slope of accuracy over rejection rates from 0%
    to 50%; the gain AURAC − accuracy with its interval over questions.
    """
    return [{**cell.names(*key), **selective_of(cell.pair, key)} for key in cell.pair.arrays]


def selective_of(pair: PairScores, key: MethodMeasure) -> ScoreRow:
    """Return the curve of one method for one measure, as in `selective`."""
    arrays = pair.arrays[key]
    curves = np.stack(
        [
            selective_accuracy(confidence, correct, rejection=REJECTION).accuracy
            for confidence, correct in zip(arrays.confidence, arrays.correct)
        ]
    )  # (R, rejection rates)
    points = [over_runs(column) for column in curves.T]
    inside = np.array(REJECTION) <= SLOPE_TO
    rates = np.array(REJECTION)[inside]
    centred = rates - rates.mean()
    return {
        "rejection": list(REJECTION),
        "accuracy": [point["mean"] for point in points],
        "se": [point["se"] for point in points],
        "slope": over_runs(curves[:, inside] @ centred / (centred @ centred)),
        "gain": pair.difference(key, "aurac", "accuracy"),
    }


def volatility(cell: CellScores) -> ScoreRows:
    """Compare the rankings of methods by two metrics, from unrounded means over runs (table 11).

    Rows are {model, dataset, metrics: [first, second], per_method: {method: mean |change of rank|}, mean,
    chance}. Ties share their mean rank; `chance` is the value for unrelated rankings.
    """
    methods, pair = cell.run.methods, cell.pair
    measures = [name for name in cell.run.measures if (methods[0], name) in pair.arrays]
    rows = []
    for metrics in VOLATILITY_OF if pair.arrays else ():
        first, second = (
            np.array([[pair.by_run[method, name][metric].mean() for name in measures] for method in methods])
            for metric in metrics
        )  # [methods, measures that are defined]
        with undefined_as_null():
            ranks = rank_volatility(first, second)
        per_method = dict(zip(methods, ranks.per_method.tolist()))
        rows.append(
            {**cell.place, "metrics": list(metrics), "per_method": per_method}
            | {"mean": ranks.mean, "chance": chance_volatility(len(methods))}
        )
    return rows


def chance_volatility(methods: int) -> float:
    r"""Return the mean |change of rank| between two random rankings of K methods, (K² − 1) / 3K."""
    return (methods**2 - 1) / (3 * methods)


# ---- Distributions and correlations of confidences --------------------------------------------------------


def distributions(cell: CellScores) -> ScoreRows:
    """Compute histograms of the confidences of all runs together (figure 9).

    Rows are {model, dataset, method, measure, edges, share, median, at_one}: `share` is the share of
    questions in each bin, `at_one` the share with confidence 1 (within 1e-9).
    """
    rows = []
    for key, arrays in cell.pair.arrays.items():
        if key[0] in SHOWN:
            values = arrays.confidence.ravel()
            counts = np.histogram(-values, bins=-np.array(EDGES[::-1]))[0][::-1]  # bins are open on the left
            row = {**cell.names(*key), "edges": list(EDGES), "share": (counts / len(values)).tolist()}
            row |= {"median": float(np.median(values)), "at_one": float(np.mean(values >= 1 - 1e-9))}
            rows.append(row)
    return rows


def correlations(cell: CellScores) -> ScoreRows:
    """Compute Pearson correlations of the measures over all runs together (figure 10).

    Rows are {model, dataset, method, measures, matrix, n, mean, least}: `mean` and `least` are over the pairs
    of different measures. Values of constant measures are null.
    """
    rows = []
    for method in SHOWN:
        columns = {
            measure: arrays.confidence.ravel()
            for (name, measure), arrays in cell.pair.arrays.items()
            if name == method
        }
        if len(columns) < 2 or len(next(iter(columns.values()))) < 2:
            continue
        with undefined_as_null():
            pairwise = pearson(columns)
        apart = pairwise.matrix[~np.eye(len(columns), dtype=bool)]
        defined = not np.isnan(apart).any()
        rows.append(
            {
                **cell.place,
                "method": method,
                "measures": list(pairwise.names),
                "matrix": pairwise.matrix.tolist(),
                "n": pairwise.n,
                "mean": float(apart.mean()) if defined else None,
                "least": float(apart.min()) if defined else None,
            }
        )
    return rows


# ---- Methods against each other on the same questions -----------------------------------------------------

#: The value, with resamples, of a method and a measure for one model on one data set.
ContrastOf = Callable[[PairScores, str, str], Contrast]


@dataclass(frozen=True)
class Quantity:
    """A quantity for the comparison of two methods: its name, value and direction."""

    name: str
    contrast: ContrastOf
    larger_is_better: bool = True
    judged_by: ContrastOf | None = None  # the value for verdicts, if different
    outcomes: str = "correct"  # the field of `ScoreArrays` with the correctness of answers

    def difference(self, pair: PairScores, measure: str, method: str, against: str) -> Contrast:
        """Return the value of a method minus that of another for one measure."""
        return self.contrast(pair, method, measure) - self.contrast(pair, against, measure)

    def judged_difference(self, pair: PairScores, measure: str, method: str, against: str) -> Contrast:
        """Return the difference for verdicts: for ACE, of the parts above the noise floors."""
        judged_by = self.judged_by or self.contrast
        return judged_by(pair, method, measure) - judged_by(pair, against, measure)


def _metric(name: str) -> ContrastOf:
    return lambda pair, method, measure: pair.resampled.contrast((method, measure), name)


def _above_floor(pair: PairScores, method: str, measure: str) -> Contrast:
    return pair.above_floor((method, measure), "ace")


def _entropy(variant: str) -> ContrastOf:
    return lambda pair, method, measure: pair.entropies.contrast((method, measure, variant), "auroc")


def _selective_gain(pair: PairScores, method: str, measure: str) -> Contrast:
    return _metric("aurac")(pair, method, measure) - _metric("accuracy")(pair, method, measure)


QUANTITIES = {
    "ace": Quantity("ACE", _metric("ace"), larger_is_better=False, judged_by=_above_floor),
    "brier": Quantity("Brier score", _metric("brier"), larger_is_better=False),
    "auroc": Quantity("AUROC", _metric("auroc")),
    "accuracy": Quantity("accuracy", _metric("accuracy")),
    "SE_conf": Quantity("AUROC of SE_conf", _entropy("SE_conf")),
    "SE_vanilla": Quantity("AUROC of SE_vanilla", _entropy("SE_vanilla"), outcomes="vanilla_correct"),
    "gain": Quantity("AURAC − accuracy", _selective_gain),
}


def paired(cell: CellScores) -> ScoreRows:
    """Compare TS with each other method.

    Rows are {model, dataset, measure, quantity, method, against, difference, interval, p, better}: the value
    of TS minus that of the other method, with its 95% interval and two-sided p value over questions. `better`
    is true or false if the interval (for ACE, of the difference above the noise floors) excludes 0. It is
    null otherwise, and if either method has fewer than ten correct or ten wrong answers. "gain" is AURAC −
    accuracy here (the metric gain is in `against_base`). Empty without TS.
    """
    return [
        {**cell.names("TS", measure), "quantity": name, "against": method}
        | _paired_test(quantity, cell.pair, measure, method)
        for method in cell.run.methods
        if method != "TS"
        for name, quantity in QUANTITIES.items()
        for measure in cell.pair.measures_of("TS", method)
    ]


def _paired_test(quantity: Quantity, pair: PairScores, measure: str, method: str) -> ScoreRow:
    difference = quantity.difference(pair, measure, "TS", method)
    if np.isnan(difference.value):
        return dict.fromkeys(("difference", "interval", "p", "better"))
    summary = contrast_summary(difference)
    judged = quantity.judged_difference(pair, measure, "TS", method).interval()
    found = verdict(
        (judged.low, judged.high),
        larger_is_better=quantity.larger_is_better,
        enough=pair.has_enough([("TS", measure), (method, measure)], quantity.outcomes),
    )
    better = {BETTER: True, WORSE: False}.get(found)
    return {"difference": summary.pop("value"), **summary, "better": better}


def against_base(cell: CellScores) -> ScoreRows:
    """Compare accuracy and gain of each method with Base on the same questions.

    Rows are {model, dataset, method, measure, accuracy, gain}: the differences {value, interval, p}, tested
    over questions. Rows without a measure (null) hold the mean over measures. Empty without Base.
    """
    rows = []
    for method in cell.run.methods:
        measures = cell.pair.measures_of("Base", method)
        if method == "Base" or not measures:
            continue
        differences: dict[str, list[Contrast]] = {}
        for metric in ("accuracy", "gain"):
            contrast = _metric(metric)
            parts = [
                contrast(cell.pair, method, measure) - contrast(cell.pair, "Base", measure)
                for measure in measures
            ]
            differences[metric] = [*parts, Contrast.mean(parts)]
        rows += [
            {**cell.place, "method": method, "measure": measure}
            | {metric: contrast_summary(parts[place]) for metric, parts in differences.items()}
            for place, measure in enumerate([*measures, None])
        ]
    return rows


# ---- Other settings: numbers of samples, losses, temperatures, maps ---------------------------------------


def generations(cell: CellScores) -> ScoreRows:
    """Compute ACE and AUROC at several numbers of samples (figure 6).

    Rows are {model, dataset, method, measure, draws, candidate, ace, auroc}, with metrics over runs. All
    numbers of samples are cut from one sampling of the largest. Candidates are chosen at m samples, or with
    `sampling.reselect` at each number. Only the runs that have all numbers are used.
    """
    return [
        {
            **cell.names(*key),
            "draws": draws,
            "candidate": cell.choice(*key, draws=draws)["candidate"],
            **{metric: pair.over_runs(key, metric) for metric in ("ace", "auroc")},
        }
        for draws, pair in cell.by_draws.items()
        for key in pair.arrays
    ]


def losses(cell: CellScores) -> ScoreRows:
    """Compute ACE, AUROC and Brier score by the loss of fits (figure 7).

    Rows are {loss, model, dataset, method, measure, candidate, ace, auroc, brier}, each metric as {mean, sd}.
    Every method is chosen again among its candidates of one loss; Base and SE have no loss and are listed for
    both. The standard deviation is over runs, null for one run.
    """
    rows = []
    for loss, by_method in cell.selection.get("by_loss", {}).items():
        methods = cell.selection["methods"]
        chosen = {method: methods[method] for method in cell.run.methods if method in ("Base", "SE")}
        chosen |= by_method
        candidates = {
            (method, measure): chosen[method][measure]["candidate"]
            for method, measure in cell.keys
            if measure in chosen.get(method, ())
        }
        pair = cell.scored(candidates)
        rows += [
            {
                "loss": loss,
                **cell.names(*key),
                "candidate": candidates[key],
                **{metric: _spread(pair.by_run[key][metric]) for metric in ("ace", "auroc", "brier")},
            }
            for key in pair.arrays
        ]
    return rows


def _spread(values: Floats) -> ScoreRow:
    if np.isnan(values).any():
        return {"mean": None, "sd": None}
    return {"mean": float(values.mean()), "sd": float(values.std(ddof=1)) if len(values) > 1 else None}


def transfer(cell: CellScores) -> ScoreRows:
    """Compute metrics at temperatures that were fitted on another data set.

    Rows are {model, fitted_on, used_on, temperature, measure, n, accuracy, ace, ace_floor, brier, auroc},
    with metrics over runs. Rows of the data set's own T (TS by NLL) have `fitted_on` = `used_on`. Empty with
    one data set.
    """
    run, sources = cell.run, cell.selection.get("transfer") or {}
    if not sources:
        return []
    candidates = {source: entry["candidate"] for source, entry in sources.items()}
    if run.samples_path(cell.model, cell.dataset, TRANSFERRED, 0).exists():
        candidates = {cell.dataset: TRANSFERRED} | candidates
    pair = cell.scored(
        {(source, measure): name for source, name in candidates.items() for measure in run.measures},
        resamples=COMPARED_RESAMPLES,
        bootstrapped=COMPARED,
    )
    fits = [fit for fit in cell.selection.get("fits", []) if fit["candidate"] == TRANSFERRED]
    temperatures = {cell.dataset: fits[0].get("temperature") if fits else None}
    temperatures |= {source: entry["temperature"] for source, entry in sources.items()}
    return [
        {"model": cell.model, "fitted_on": source, "used_on": cell.dataset}
        | {"temperature": temperatures[source], "measure": measure}
        | {metric: pair.over_runs((source, measure), metric) for metric in ("accuracy", *COMPARED)}
        | {"n": pair.n, "ace_floor": pair.floors[source, measure]["ace_floor"]}
        for source, measure in pair.arrays
    ]


# ---- Calibrated -------------------------------------------------------------------------------------------

#: The measure of Calibrated and of the sentences of a report; every run has it, as it needs no likelihoods.
MEASURE = "E-SC"
KEY = (CALIBRATED, MEASURE)
#: Minimum share of samples of a sure answer of Base.
SUREST = 0.9
OF_AGAINST = ("accuracy", "mean_confidence", "ace", "brier", "auroc", "gain")


def one_wording(cell: CellScores) -> PairScores:
    """Return the scores of Calibrated, and of every method with E-SC, on answers in one wording."""
    run, place = cell.run, (cell.model, cell.dataset)
    by_run = [run.calibrated_rows(*place, number) for number in range(run.runs)]
    grader = run.settings.grading.grader()
    values = {
        method: [_answers(cell, method, number, grader) for number in range(run.runs)]
        for method in run.methods
        if method != "Base"
    }
    values["Base"] = [[(row["share"], row["correct"]) for row in rows] for rows in by_run]
    values[CALIBRATED] = [[(row["probability"] or 0.0, row["correct"]) for row in rows] for rows in by_run]
    arrays = {}
    for method in (*run.methods, CALIBRATED):
        p, correct = np.moveaxis(np.array(values[method], dtype=np.float64), -1, 0)
        arrays[method, MEASURE] = ScoreArrays(p, correct, entropy=1 - p, vanilla_correct=correct)
    ties = cell.runs_of(cell.choice("Base", MEASURE)["candidate"])[0].ties
    return replace(cell.pair, arrays=arrays, n=len(ties), undefined=0, groups=several(ties))


def _answers(cell: CellScores, method: str, number: int, grader: Grader) -> list[tuple[float, bool]]:
    """Return the E-SC of each answer of a method, and the correctness of its most frequent wording."""
    answers = []
    candidate = cell.choice(method, MEASURE)["candidate"]
    for row in cell.run.rows(cell.model, cell.dataset, candidate, number):
        text = wordings(Row(row))[row["top_cluster"][MEASURE]]
        grade = grade_texts(grader, row["question"], [text], row["answers"])
        answers.append((row["confidence"][MEASURE], grade.correct))
    return answers


def calibrated(cell: CellScores, scores: PairScores) -> ScoreRows:
    """Compare Calibrated with every method on the answers of E-SC, each in one wording.

    Rows are {model, dataset, method, measure} and the fields of `confidence`. The last row, of Calibrated,
    also has `against`: {method: {metric: {value, interval, p}}}, its value minus that of the other method for
    `OF_AGAINST`; and `calibration`: {labels, apart, chosen, warnings, surest, threshold, answered, wrong},
    the last two being the share of answered test questions and the share of wrong answers among them.
    `surest` is {n, share, probability, correct}: the number of answers with a share of at least `SUREST`, and
    their means; null without any.
    """
    rows = [{**cell.names(*key), **scores_of(scores, key)} for key in scores.arrays]
    against = {}
    for method in cell.run.methods:
        differences = {
            metric: scores.resampled.contrast(KEY, metric)
            - scores.resampled.contrast((method, MEASURE), metric)
            for metric in OF_AGAINST
        }
        against[method] = {
            metric: None if np.isnan(difference.value) else contrast_summary(difference)
            for metric, difference in differences.items()
        }
    rows[-1] |= {"against": against, "calibration": _calibration(cell)}
    return rows


def _calibration(cell: CellScores) -> ScoreRow:
    run, place = cell.run, (cell.model, cell.dataset)
    content = run.calibration(*place)
    report, threshold = content["report"], content["threshold"]
    every = [row for number in range(run.runs) for row in run.calibrated_rows(*place, number)]
    surest = [row for row in every if row["share"] >= SUREST]
    rows = every if threshold is not None else []
    answered = [row["correct"] for row in rows if not row["abstained"]]
    means = {
        key: float(np.mean([row[key] or 0.0 for row in surest])) if surest else None
        for key in ("share", "probability", "correct")
    }
    return {
        "labels": report["n"],
        "apart": report["apart"],
        "chosen": report["chosen"],
        "warnings": report["warnings"],
        "surest": {"n": len(surest), **means} if surest else None,
        "threshold": threshold,
        "answered": len(answered) / len(rows) if rows else None,
        "wrong": 1 - sum(answered) / len(answered) if answered else None,
    }
