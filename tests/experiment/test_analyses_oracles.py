"""Every number of an analysis against a literal transcription of its definition, or another library."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import brier_score_loss, roc_auc_score

from semcal.experiment.analyses.score_analyses import chance_volatility
from semcal.experiment.grid_settings import slug
from semcal.metrics import bootstrap, joint_bootstrap

RUNS = range(3)
CELLS = [
    ("alpha-1b", "made-up-trivia", "Base", "E-SC"),
    ("alpha-1b", "made-up-trivia", "TS", "L-SC"),
    ("beta/2b", "made-up-reading", "Platt", "G-SC"),
    ("beta/2b", "made-up-trivia", "ATS", "B-SC"),
]


@pytest.fixture
def results(grid_results: dict[str, Any]) -> dict[str, Any]:
    return grid_results


def row_of(results: dict[str, Any], analysis: str, cell: Sequence[str] = (), **named: Any) -> dict[str, Any]:
    """The row of a model, data set, method and measure, or of their first ones, and of other values."""
    wanted = {**dict(zip(("model", "dataset", "method", "measure"), cell)), **named}
    (found,) = [row for row in results["analyses"][analysis] if wanted.items() <= row.items()]
    return found


def candidate_of(folder: Path, model: str, dataset: str, method: str, measure: str) -> str:
    selection = json.loads((folder / "selection" / slug(model) / f"{slug(dataset)}.json").read_text())
    return selection["methods"][method][measure]["candidate"]


def rows_in(folder: Path, model: str, dataset: str, candidate: str, name: str) -> list[dict[str, Any]]:
    path = folder / "samples" / slug(model) / slug(dataset) / slug(candidate) / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def runs_in(folder: Path, model: str, dataset: str, method: str, measure: str) -> list[list[dict[str, Any]]]:
    candidate = candidate_of(folder, model, dataset, method, measure)
    return [rows_in(folder, model, dataset, candidate, f"run{run}") for run in RUNS]


def pairs_of(rows: list[dict[str, Any]], measure: str) -> tuple[list[float], list[bool]]:
    return [row["confidence"][measure] for row in rows], [row["correct"][measure] for row in rows]


def literal_ace(p: list[float], c: list[bool], bins: int = 15) -> float:
    """Sorted, tied ones sharing the mean of their correctness, cut into bins, larger ones first."""
    shared = {value: statistics.mean(float(y) for x, y in zip(p, c) if x == value) for value in p}
    ordered = sorted((value, shared[value]) for value in p)
    n, start, total = len(p), 0, 0.0
    for b in range(bins):
        size = n // bins + (b < n % bins)
        part = ordered[start : start + size]
        start += size
        total += size / n * abs(sum(y for _, y in part) / size - sum(x for x, _ in part) / size)
    return total


def literal_ece(p: list[float], c: list[bool], bins: int = 15) -> float:
    total = 0.0
    for b in range(bins):
        low, high = b / bins, (b + 1) / bins
        inside = [(x, y) for x, y in zip(p, c) if (low + 1e-6 < x <= high + 1e-6) or (b == 0 and x <= 1e-6)]
        if inside:
            gap = statistics.mean(float(y) for _, y in inside) - statistics.mean(x for x, _ in inside)
            total += len(inside) / len(p) * abs(gap)
    return total


def corp_mcb(p: list[float], c: list[bool]) -> float:
    fitted = IsotonicRegression(y_min=0, y_max=1).fit(p, np.array(c, float)).predict(p)
    return brier_score_loss(c, p) - float(np.mean((fitted - np.array(c, float)) ** 2))


LITERAL = {
    "ace": literal_ace,
    "ece": literal_ece,
    "mcb": corp_mcb,
    "auroc": lambda p, c: roc_auc_score(c, p),
    "brier": lambda p, c: brier_score_loss(c, p),
    "gain": lambda p, c: statistics.mean(2 * x * y - x * x for x, y in zip(p, c)),
    "accuracy": lambda _, c: sum(c) / len(c),
}


@pytest.mark.parametrize("metric", LITERAL)
@pytest.mark.parametrize("cell", CELLS)
def test_mean_and_error_over_runs_of_every_metric(results, grid_folder, cell, metric: str) -> None:
    found = row_of(results, "confidence", cell)
    values = [LITERAL[metric](*pairs_of(rows, cell[3])) for rows in runs_in(grid_folder, *cell)]
    assert found[metric]["runs"] == pytest.approx(values, abs=1e-12)
    assert found[metric]["mean"] == pytest.approx(statistics.mean(values), abs=1e-12)
    assert found[metric]["se"] == pytest.approx(statistics.stdev(values) / math.sqrt(3), abs=1e-12)
    assert (found["n"], found["undefined"]) == (40, 0)


INTERVALS = (
    *("accuracy", "ece", "ace", "brier", "gain", "reliability", "resolution", "uncertainty", "mcb", "dsc"),
    *("unc", "auroc", "aurac", "prr", "mean_confidence"),
)


@pytest.mark.parametrize("metric", INTERVALS)
def test_the_interval_is_the_bootstrap_over_questions(results, grid_folder, metric: str) -> None:
    cell = CELLS[1]
    runs = [pairs_of(rows, cell[3]) for rows in runs_in(grid_folder, *cell)]
    alone = bootstrap(
        [p for p, _ in runs],
        [c for _, c in runs],
        metrics=INTERVALS,
        resamples=100,
        seed=np.random.default_rng((0, 0)),
    )[metric]
    found = row_of(results, "confidence", cell)
    assert found[metric]["interval"] == pytest.approx([alone.low, alone.high])


@pytest.mark.parametrize(("metric", "literal"), [("ace", literal_ace), ("ece", literal_ece)])
def test_the_noise_floor_is_what_outcomes_drawn_from_the_confidences_show(
    results, grid_folder, metric, literal
) -> None:
    cell = CELLS[1]
    found = row_of(results, "confidence", cell)
    rng = np.random.default_rng(1)
    means, ends, p_values = [], [], []
    for rows in runs_in(grid_folder, *cell):
        p, c = pairs_of(rows, cell[3])
        drawn = [literal(p, (rng.random(len(p)) < p).tolist()) for _ in range(400)]
        means.append(statistics.mean(drawn))
        ends.append(np.quantile(drawn, 0.95))
        p_values.append(np.mean(np.array(drawn) >= literal(p, c)))
    assert found[f"{metric}_floor"] == pytest.approx(statistics.mean(means), rel=0.1)
    assert found[f"{metric}_floor_95"] == pytest.approx(statistics.mean(ends), rel=0.2)
    assert found[f"{metric}_p"] == pytest.approx(min(1.0, 2 * statistics.mean(p_values)), abs=0.15)


@pytest.mark.parametrize("metric", ["accuracy", "gain"])
def test_each_method_is_tested_against_base_on_the_same_questions(results, grid_folder, metric: str) -> None:
    measures = results["measures"]
    runs = {
        (method, name): tuple(
            zip(*(pairs_of(rows, name) for rows in runs_in(grid_folder, *CELLS[0][:2], method, name)))
        )
        for method in ("Base", "SE")
        for name in measures
    }
    common = joint_bootstrap(runs, metrics=[metric], resamples=100, seed=(0, 0))
    alone = [
        common.contrast(("SE", name), metric) - common.contrast(("Base", name), metric) for name in measures
    ]
    where = (*CELLS[0][:2], "SE")
    for name in measures:
        found = row_of(results, "against_base", where, measure=name)[metric]
        test = common.paired(("SE", name), ("Base", name), metric)
        assert found["value"] == pytest.approx(test.difference)
        assert found["interval"] == pytest.approx([test.low, test.high])
        assert found["p"] == test.p_value
    pooled = row_of(results, "against_base", where, measure=None)[metric]
    assert pooled["value"] == pytest.approx(statistics.mean(one.value for one in alone))
    resampled = np.mean([one.resampled for one in alone], axis=0)
    assert pooled["interval"][0] < np.median(resampled) < pooled["interval"][1]
    methods = {row["method"] for row in results["analyses"]["against_base"]}
    assert methods == {"SE", "TS", "ATS", "Platt"}


def test_the_interval_of_refinement_is_that_of_the_difference(results, grid_folder) -> None:
    found = row_of(results, "confidence", CELLS[1])
    runs = [pairs_of(rows, CELLS[1][3]) for rows in runs_in(grid_folder, *CELLS[1])]
    common = joint_bootstrap(
        {"it": ([p for p, _ in runs], [c for _, c in runs])},
        metrics=["uncertainty", "resolution"],
        resamples=100,
        seed=(0, 0),
    )
    alone = (common.contrast("it", "uncertainty") - common.contrast("it", "resolution")).interval()
    assert found["refinement"]["interval"] == pytest.approx([alone.low, alone.high])
    assert found["smooth_ece"]["interval"] is None


def test_brier_parts_add_up(results) -> None:
    for row in results["analyses"]["confidence"]:
        parts = {key: np.array(row[key]["runs"]) for key in ("brier", "reliability", "refinement")}
        assert parts["reliability"] + parts["refinement"] == pytest.approx(parts["brier"], abs=1e-12)


@pytest.mark.parametrize("cell", CELLS)
def test_entropies_rank_by_the_selected_and_by_the_greedy_answer(results, grid_folder, cell) -> None:
    found, measure = row_of(results, "entropy", cell), cell[3]
    conf, vanilla = [], []
    for rows in runs_in(grid_folder, *cell):
        score = [-row["semantic_entropy"][measure] for row in rows]
        conf.append(roc_auc_score([row["correct"][measure] for row in rows], score))
        vanilla.append(roc_auc_score([row["greedy_correct"] for row in rows], score))
    assert found["SE_conf"]["runs"] == pytest.approx(conf, abs=1e-12)
    assert found["SE_vanilla"]["runs"] == pytest.approx(vanilla, abs=1e-12)


@pytest.mark.parametrize(("method", "share"), [("TS", 0.0), ("Platt", 0.5)])
def test_where_the_greedy_answer_differs_from_bases(results, grid_folder, method: str, share: float) -> None:
    cell = ("alpha-1b", "made-up-reading", method, "E-SC")
    ours, base = (runs_in(grid_folder, *cell[:2], name, "E-SC")[0] for name in (method, "Base"))
    expected = sum(a["greedy"] != b["greedy"] for a, b in zip(ours, base)) / 40
    assert row_of(results, "entropy", cell)["greedy_differs"] == pytest.approx(expected)
    assert (expected > 0) == (share > 0)


def test_accuracies_of_greedy_and_beams(results, grid_folder) -> None:
    rows = rows_in(grid_folder, "beta/2b", "made-up-trivia", "Base", "run0")
    found = row_of(results, "base_accuracies", ("beta/2b", "made-up-trivia"))
    assert found["greedy"]["mean"] == pytest.approx(sum(row["greedy_correct"] for row in rows) / 40)
    assert found["beam"]["mean"] == pytest.approx(sum(row["beam_correct"] for row in rows) / 40)
    assert found["beam"]["mean"] > found["greedy"]["mean"]


def test_splits_prompts_and_fits_are_those_of_the_selection(results, grid_folder) -> None:
    selection = json.loads((grid_folder / "selection/beta_2b/made-up-reading.json").read_text())
    splits = {"dataset": "made-up-reading", "open_book": True, **selection["sizes"]}
    assert row_of(results, "splits", dataset="made-up-reading") == splits
    where = {"model": "beta/2b", "dataset": "made-up-reading"}
    assert row_of(results, "prompts", **where)["prompt"] == selection["prompt"]
    rows = [row for row in results["analyses"]["fits"] if where.items() <= row.items()]
    assert rows == [where | fit for fit in selection["fits"]]


def test_temperatures_are_those_of_the_candidate_that_each_measure_chose(results) -> None:
    rows = [row for row in results["analyses"]["temperatures"] if row["model"] == "alpha-1b"]
    found = {row["measure"]: row["temperature"] for row in rows if row["dataset"] == "made-up-trivia"}
    nll, ss = 2.0, 2.3
    assert found == {
        "E-SC": nll, "L-SC": ss, "ML-SC": nll, "B-SC": nll, "T-SC": nll, "IC-SC": ss, "G-SC": nll
    }  # fmt: skip


@pytest.mark.parametrize("second", ["mcb", "ece"])
def test_volatility_is_the_mean_change_of_rank(results, second: str) -> None:
    where = CELLS[0][:2]
    methods, measures = results["methods"], results["measures"]
    change = np.zeros(5)
    for measure in measures:
        rows = [row_of(results, "confidence", (*where, method, measure)) for method in methods]
        ranks = [stats.rankdata([row[metric]["mean"] for row in rows]) for metric in ("ace", second)]
        change += np.abs(ranks[0] - ranks[1]) / len(measures)
    found = row_of(results, "volatility", where, metrics=["ace", second])
    assert [found["per_method"][method] for method in methods] == pytest.approx(change)
    assert found["mean"] == pytest.approx(change.mean())


def test_chance_volatility_is_that_of_all_pairs_of_rankings() -> None:
    changes = [abs(a - b) for order in itertools.permutations(range(5)) for a, b in zip(range(5), order)]
    assert chance_volatility(5) == pytest.approx(statistics.mean(changes))


def test_agreement_of_the_two_gradings(results, grid_folder) -> None:
    rows = rows_in(grid_folder, "alpha-1b", "made-up-trivia", "Base", "run0")
    same = sum(row["correct"]["B-SC"] == row["correct_nli"]["B-SC"] for row in rows)
    lexical = sum(row["correct"]["B-SC"] and not row["correct_nli"]["B-SC"] for row in rows)
    found = row_of(results, "agreement", CELLS[0][:2], measure="B-SC")
    interval = stats.binomtest(same, 40).proportion_ci(method="wilson")
    assert found["agreement"] == pytest.approx(same / 40)
    assert found["lexical_only"] == pytest.approx(lexical / 40)
    assert found["interval"] == pytest.approx([interval.low, interval.high])


def test_how_often_each_rule_decided(results, grid_folder) -> None:
    rows = rows_in(grid_folder, "alpha-1b", "made-up-trivia", "Base", "run0")
    found = row_of(results, "deciding_rules", CELLS[0][:2], measure="E-SC")
    assert found["rules"] == dict(Counter(row["rule"]["E-SC"] for row in rows))


def literal_selective(p: list[float], c: list[bool], rate: float) -> float:
    """Mean over many orders of the tied ones: exactly, by the share of each tie group that is kept."""
    keep = len(p) - math.floor(len(p) * rate + 1e-9)
    right, left = 0.0, keep
    for value in sorted(set(p), reverse=True):
        group = [y for x, y in zip(p, c) if x == value]
        taken = min(left, len(group))
        right += taken * sum(group) / len(group)
        left -= taken
    return right / keep


@pytest.mark.parametrize("cell", CELLS[:2])
def test_selective_accuracy_its_slope_and_its_gain(results, grid_folder, cell) -> None:
    found, measure = row_of(results, "selective", cell), cell[3]
    rates = found["rejection"]
    curves, gains = [], []
    for rows in runs_in(grid_folder, *cell):
        p, c = pairs_of(rows, measure)
        curves.append([literal_selective(p, c, rate) for rate in rates])
        area = statistics.mean(literal_selective(p, c, 1 - k / 40) for k in range(1, 41))
        gains.append(area - sum(c) / 40)
    assert found["accuracy"] == pytest.approx(np.mean(curves, axis=0))
    assert found["se"] == pytest.approx(stats.sem(curves))
    upto = [i for i, rate in enumerate(rates) if rate <= 0.5]
    slopes = [stats.linregress([rates[i] for i in upto], [curve[i] for i in upto]).slope for curve in curves]
    assert found["slope"]["runs"] == pytest.approx(slopes)
    assert found["gain"]["runs"] == pytest.approx(gains)


def test_numbers_of_draws_are_compared_on_the_runs_that_have_them(results, grid_folder) -> None:
    candidate = candidate_of(grid_folder, *CELLS[1])
    for draws, name in ((5, "run0.n5"), (10, "run0"), (25, "run0.n25")):
        rows = rows_in(grid_folder, "alpha-1b", "made-up-trivia", candidate, name)
        found = row_of(results, "generations", CELLS[1], draws=draws)
        assert found["ace"]["runs"] == pytest.approx([literal_ace(*pairs_of(rows, "L-SC"))])
        assert found["ace"]["se"] is None


@pytest.mark.parametrize(("loss", "candidate"), [("NLL", "TS NLL"), ("SS", "TS SS 0.25")])
def test_losses_have_the_standard_deviation_over_runs(
    results, grid_folder, loss: str, candidate: str
) -> None:
    found = row_of(results, "losses", (*CELLS[1][:3], "E-SC"), loss=loss)
    runs = [rows_in(grid_folder, *CELLS[1][:2], candidate, f"run{run}") for run in RUNS]
    values = [literal_ace(*pairs_of(rows, "E-SC")) for rows in runs]
    assert found["candidate"] == candidate
    assert found["ace"] == pytest.approx({"mean": statistics.mean(values), "sd": statistics.stdev(values)})


def test_distributions_count_confidences_of_all_runs(results, grid_folder) -> None:
    cell = (*CELLS[1][:3], "E-SC")
    values = [p for rows in runs_in(grid_folder, *cell) for p in pairs_of(rows, "E-SC")[0]]
    found = row_of(results, "distributions", cell)
    edges = found["edges"]
    expected = [
        sum(low < p <= high or (low == 0 and p == 0) for p in values) / len(values)
        for low, high in itertools.pairwise(edges)
    ]
    assert found["share"] == pytest.approx(expected)
    assert found["median"] == statistics.median(values)
    assert found["at_one"] == pytest.approx(sum(p == 1 for p in values) / len(values))


def test_correlations_are_pearsons_over_all_runs(results, grid_folder) -> None:
    cell = CELLS[1][:3]
    found = row_of(results, "correlations", cell)
    columns = {
        measure: [p for rows in runs_in(grid_folder, *cell, measure) for p in pairs_of(rows, measure)[0]]
        for measure in ("E-SC", "L-SC")
    }
    i, j = (found["measures"].index(name) for name in columns)
    assert found["matrix"][i][j] == pytest.approx(stats.pearsonr(*columns.values()).statistic)
    matrix = np.array(found["matrix"])
    assert found["least"] == matrix.min()
    assert found["mean"] == pytest.approx((matrix.sum() - 7) / 42)


@pytest.mark.parametrize("metric", ["ace", "auroc"])
def test_paired_tests_are_those_of_the_two_methods_alone(results, grid_folder, metric: str) -> None:
    place = ("alpha-1b", "made-up-reading")
    found = row_of(results, "paired", place, measure="E-SC", quantity=metric, against="SE")
    methods: dict[str, Any] = {}
    for method in ("TS", "SE"):
        runs = [pairs_of(rows, "E-SC") for rows in runs_in(grid_folder, *place, method, "E-SC")]
        methods[method] = [p for p, _ in runs], [c for _, c in runs]
    both = joint_bootstrap(methods, metrics=[metric], resamples=100, seed=np.random.default_rng((0, 1)))
    test = both.paired("TS", "SE", metric)
    assert found["difference"] == pytest.approx(test.difference)
    assert found["interval"] == pytest.approx([test.low, test.high])
    assert found["p"] == pytest.approx(test.p_value)


def test_transfer_measures_the_temperature_of_the_other_data_set(results, grid_folder) -> None:
    where = {"model": "beta/2b", "used_on": "made-up-reading", "measure": "G-SC"}
    for source, candidate in (("made-up-trivia", "T of made-up-trivia"), ("made-up-reading", "TS NLL")):
        found = row_of(results, "transfer", **where, fitted_on=source)
        values = [
            brier_score_loss(*reversed(pairs_of(rows, "G-SC")))
            for r in RUNS
            for rows in [rows_in(grid_folder, "beta/2b", "made-up-reading", candidate, f"run{r}")]
        ]
        assert found["brier"]["runs"] == pytest.approx(values)


def test_what_the_draws_of_a_question_hold(results, grid_folder) -> None:
    found = row_of(results, "answers", CELLS[0][:2], candidate="TS NLL")
    rows = [row for r in RUNS for row in rows_in(grid_folder, *CELLS[0][:2], "TS NLL", f"run{r}")]
    assert found["distinct"] == pytest.approx(statistics.mean(len(set(row["samples"])) for row in rows))
    assert found["meanings"] == pytest.approx(statistics.mean(len(row["clusters"]) for row in rows))
    assert (found["methods"], found["refusals"]) == (["TS"], 0.0)
