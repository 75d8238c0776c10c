"""Verdicts on made-up runs where they are known: every claim is seen to hold and seen not to."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_grid import HEATS, Grid, write_grid

from semcal.errors import UndefinedWarning
from semcal.experiment.analyses.claims import judge, other_claims
from semcal.experiment.analyses.claims.other_claims import (
    _everywhere,
    correlations_claim,
    filler_claim,
    grading_claim,
    independence_claim,
    judged_correlations,
    metrics_claim,
    order_claim,
)
from semcal.experiment.analyses.claims.score_claims import (
    components,
    draws_claim,
    method_claim,
    open_book_claim,
    variants_claim,
)
from semcal.experiment.analyses.claims.statements import FAILS, HOLDS, METHOD_STATEMENTS, OPEN, positive
from semcal.experiment.analyses.grading import agreement
from semcal.experiment.analyses.grid_scores import (
    RESAMPLES_BY_DRAWS,
    GridScores,
    MetricOptions,
    PairScores,
    ScoreArrays,
)
from semcal.experiment.analyses.scores_by_method import correlations, mean_correlation, selective, volatility
from semcal.experiment.finished import read_finished
from semcal.metrics import Contrast

#: The model is four times sharper than its knowledge, and TS takes that back.
SHARP: dict[str, Any] = {"overconfidence": 4.0, "heats": {"TS NLL": 4.0, "TS SS 0.25": 4.0}}
#: The model is calibrated as it is, and TS makes it sharper.
SPOILT: dict[str, Any] = {"overconfidence": 1.0, "heats": {"TS NLL": 0.3, "TS SS 0.25": 0.3}}
#: All methods are alike.
ALIKE: dict[str, Any] = {
    "overconfidence": 2.0,
    "heats": dict.fromkeys(HEATS, 1.0),
}
BY_METHOD = (
    "calibration",
    "discrimination",
    "calibration, expressive methods",
    "discrimination, expressive methods",
    "semantic entropy",
    "selective accuracy",
)


def scores_of(folder: Path, **world: Any) -> GridScores:
    small: dict[str, Any] = {
        "models": ("m",),
        "datasets": {"d": False},
        "counts": (),
        "runs": 2,
        "n": 150,
    }
    return GridScores(read_finished(write_grid(folder, Grid(**small | world))))


def verdicts(scores: GridScores) -> dict[str, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)
        analyses = {
            "volatility": volatility(scores),
            "agreement": agreement(scores),
            "selective": selective(scores),
        }
        return {claim.key: claim.verdict for claim in judge(scores, analyses)}


@pytest.fixture(scope="module")
def sharp(tmp_path_factory: pytest.TempPathFactory) -> GridScores:
    return scores_of(tmp_path_factory.mktemp("sharp"), **SHARP)


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> GridScores:
    return scores_of(tmp_path_factory.mktemp("spoilt"), n=400, **SPOILT)


def test_ts_is_better_where_it_takes_overconfidence_back(sharp: GridScores) -> None:
    found = verdicts(sharp)
    assert {key: found[key] for key in BY_METHOD} == dict.fromkeys(BY_METHOD, HOLDS)


def test_ts_is_not_better_where_it_spoils_a_calibrated_model(spoilt: GridScores) -> None:
    found = verdicts(spoilt)
    assert {key: found[key] for key in BY_METHOD} == dict.fromkeys(BY_METHOD, FAILS)


def test_few_questions_leave_methods_undecided(tmp_path: Path) -> None:
    found = verdicts(scores_of(tmp_path, n=20, overconfidence=2.0, heats={"TS NLL": 1.3, "TS SS 0.25": 1.3}))
    assert found["calibration"] == found["discrimination"] == OPEN


def test_methods_that_are_alike_have_no_benefit_and_no_component(tmp_path: Path) -> None:
    found = verdicts(scores_of(tmp_path, **ALIKE, flips=0.0))
    assert found["calibration"] == found["discrimination"] == FAILS
    assert found["method against measure"] == FAILS


def test_methods_that_differ_more_than_measures_do_have_the_larger_component(sharp: GridScores) -> None:
    assert verdicts(sharp)["method against measure"] == HOLDS


def test_components_are_those_of_the_analysis_of_variance() -> None:
    rng = np.random.default_rng(0)
    i, j = 5, 7
    table = rng.normal(size=(i, 1)) + 0.3 * rng.normal(size=(1, j)) + 0.05 * rng.normal(size=(i, j))
    mean = table.mean()
    rows = sum(j * (table[a].mean() - mean) ** 2 for a in range(i)) / (i - 1)
    columns = sum(i * (table[:, b].mean() - mean) ** 2 for b in range(j)) / (j - 1)
    rest = sum(
        (table[a, b] - table[a].mean() - table[:, b].mean() + mean) ** 2 for a in range(i) for b in range(j)
    ) / ((i - 1) * (j - 1))
    found = components(table)
    assert [float(part) for part in found] == pytest.approx([(rows - rest) / j, (columns - rest) / i])


@pytest.mark.parametrize("greedy_is_worse", [True, False])
def test_the_answer_of_the_surest_meaning_against_a_greedy_one(tmp_path: Path, greedy_is_worse: bool) -> None:
    """Greedy answers whose correctness has nothing to do with the entropy; or entropy that knows it best."""
    scores = scores_of(tmp_path, n=80, methods=("Base",), overconfidence=2.0)
    for path in scores.run.folder.glob("samples/*/*/*/*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for k, row in enumerate(rows):
            row["greedy_correct"] = k % 2 == 0 if greedy_is_worse else row["semantic_entropy"]["E-SC"] < 0.4
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert verdicts(scores)["SE_conf"] == (HOLDS if greedy_is_worse else FAILS)


def test_a_gain_of_se_conf_under_one_method_does_not_hide_a_loss_under_another(tmp_path: Path) -> None:
    """Under TS greedy answers have nothing to do with the entropy; under Base it knows them best."""
    scores = scores_of(tmp_path, n=80, methods=("Base", "TS"), overconfidence=2.0)
    for path in scores.run.folder.glob("samples/*/*/*/*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        ts = path.parent.name.startswith("TS")
        for row in rows:
            entropy = row["semantic_entropy"]["E-SC"]
            row["greedy_correct"] = entropy > 0.7 if ts else entropy < 0.4
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    claim = variants_claim(scores)
    assert claim.evidence["pooled"]["interval"][0] > 0
    assert claim.evidence["by_method"]["Base"]["interval"][1] < 0
    assert claim.verdict == OPEN
    assert "under Base" in claim.because


def drawn_pair(gap: float, order: float) -> PairScores:
    """Two thousand questions: confidences too high by `gap`, that rank the better the higher `order`."""
    rng = np.random.default_rng(0)
    chance = rng.uniform(0.3, 0.7, size=(1, 2000))
    spread = chance + order * (rng.random((1, 2000)) < 0.5) * 0.2
    correct = (rng.random((1, 2000)) < spread).astype(float)
    arrays = ScoreArrays(np.clip(spread + gap, 0, 1), correct, spread, correct)
    return PairScores(
        {("TS", "E-SC"): arrays}, 2000, 0, MetricOptions(15, "sound", None, "greedy", 100, (0, 0))
    )


@pytest.mark.parametrize(
    ("gaps", "orders", "expected"),
    [
        ({5: 0.2, 10: 0.05, 15: 0.04, 25: 0.03}, {}, HOLDS),
        ({5: 0.03, 10: 0.05, 15: 0.1, 25: 0.2}, {}, FAILS),
        ({5: 0.2, 10: 0.19, 15: 0.18, 25: 0.03}, {}, FAILS),
        ({5: 0.2, 10: 0.05, 15: 0.04, 25: 0.03}, {25: 3.0}, FAILS),
        ({5: 0.2, 10: 0.05}, {}, OPEN),
        ({5: 0.2, 8: 0.1, 25: 0.05}, {}, OPEN),
    ],
)
def test_gains_with_the_number_of_draws(gaps, orders, expected: str) -> None:
    by_draws = {("m", "d"): {k: drawn_pair(gap, orders.get(k, 0.0)) for k, gap in gaps.items()}}
    assert draws_claim(by_draws).verdict == expected
    assert draws_claim({}).verdict == OPEN


def test_auroc_that_rises_under_one_method_and_falls_under_another_does_move() -> None:
    """Their mean hardly does."""
    gaps, spread = {5: 0.2, 10: 0.05, 15: 0.04, 25: 0.03}, {5: 0.4, 10: 0.4, 15: 0.8, 25: 1.2}
    found = {}
    for k, gap in gaps.items():
        up, down = (drawn_pair(gap, order) for order in (spread[k], 1.6 - spread[k]))
        found[k] = replace(up, arrays={("SE", "E-SC"): up.arrays["TS", "E-SC"], **down.arrays})
    claim = draws_claim({("m", "d"): found})
    means = [np.mean([of[k] for of in claim.evidence["auroc"].values()]) for k in ("10", "25")]
    assert abs(means[0] - means[1]) < 0.03
    assert claim.evidence["parts"] == [HOLDS, HOLDS, FAILS]
    assert (
        "AUROC at 10 draws or more less that at 25 is furthest from 0 under SE, at 10 draws" in claim.because
    )


def test_the_interval_that_refutes_reaches_no_further_than_resamples_do() -> None:
    comparisons = 2 + 5 * 3  # the gain, two thirds of it, and five methods at 10, 15 and 20 draws
    assert RESAMPLES_BY_DRAWS * 0.05 / comparisons / 2 >= 1


def open_book_scores(folder: Path, **change: Any) -> GridScores:
    """TS answers as Base does; a confidence becomes what `change`, by method, makes of (p, correct)."""
    heats = {"TS NLL": 1.0, "TS SS 0.25": 1.0}
    scores = scores_of(folder, datasets={"d": True}, methods=("Base", "TS"), overconfidence=1.0, heats=heats)
    for method, of in change.items():
        for path in scores.run.folder.glob(f"samples/*/*/{method}*/*.jsonl"):
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            for row in rows:
                correct = row["correct"]
                row["confidence"] = {name: of(p, correct[name]) for name, p in row["confidence"].items()}
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return scores


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"TS": lambda p, correct: 0.5 * p + 0.25 * correct}, HOLDS),  # ranks well, underconfident
        ({"TS": lambda _, correct: 0.01 + 0.98 * correct}, FAILS),  # gains in calibration as well
        ({"TS": lambda p, _: 1.0 - p / 2}, FAILS),  # ranks the wrong way round
        ({}, FAILS),  # no gain at all
    ],
)
def test_gains_on_an_open_book_set(tmp_path: Path, change: Any, expected: str) -> None:
    scores = open_book_scores(tmp_path, **change)
    assert open_book_claim(scores, calibrated_at=1.0).verdict == expected
    assert open_book_claim(scores, calibrated_at=0.0).verdict == OPEN


def test_open_book_sets_that_do_not_count_are_named(tmp_path: Path) -> None:
    scores = scores_of(
        tmp_path, datasets={"good": True, "bad": True}, overconfidence={"good": 1.0, "bad": 6.0}, n=60
    )
    base = {
        name: np.mean([scores.pair("m", name).by_run["Base", k]["ace"].mean() for k in scores.run.measures])
        for name in ("good", "bad")
    }
    claim = open_book_claim(scores, calibrated_at=float(np.mean(list(base.values()))))
    told = f"m on good {base['good']:.3f}, m on bad {base['bad']:.3f} (does not count)"
    assert told in claim.because


def with_fits(scores: GridScores, change: Any) -> GridScores:
    for selection in scores.run.selections.values():
        for fit in selection["fits"]:
            change(fit)
    return scores


def better_training_of_ts(fit: dict[str, Any]) -> None:
    fit["train_nll"] = 0.5 if fit["method"] == "TS" else 0.7


def content_alone(fit: dict[str, Any]) -> None:
    if fit["method"] == "ATS":
        for name, one in fit["classes"].items():
            one["nll"] = 0.1 if name == "content" else 1.1


def no_classes(fit: dict[str, Any]) -> None:
    fit["classes"] = {}


def test_ats_overfits_filler_where_it_saves_there_and_loses_in_meaning(tmp_path: Path) -> None:
    assert filler_claim(scores_of(tmp_path, **SHARP)).verdict == HOLDS


@pytest.mark.parametrize(
    ("change", "expected"), [(better_training_of_ts, FAILS), (content_alone, FAILS), (no_classes, OPEN)]
)
def test_ats_does_not_overfit_filler_when_a_part_fails(tmp_path: Path, change: Any, expected: str) -> None:
    scores = with_fits(scores_of(tmp_path, n=40, **SHARP), change)
    assert filler_claim(scores).verdict == expected


def test_ats_does_not_overfit_filler_where_it_is_better_in_meaning(spoilt: GridScores) -> None:
    found = filler_claim(spoilt)
    assert found.evidence["parts"][:2] == [HOLDS, HOLDS]
    assert found.evidence["parts"][2] != HOLDS


@pytest.mark.parametrize(
    ("method", "value", "expected"),
    [("TS", 0.0, HOLDS), ("TS", 1e-6, FAILS), ("ATS", 1e-6, FAILS), ("Platt", 0.0, FAILS)],
)
def test_the_order_of_tokens(tmp_path: Path, method: str, value: float, expected: str) -> None:
    def change(fit: dict[str, Any]) -> None:
        if fit["method"] == method:
            fit |= {"top_changed": value, "order_changed": value}

    assert order_claim(with_fits(scores_of(tmp_path, n=20), change)).verdict == expected


def test_what_platt_does_to_accuracy_is_told(tmp_path: Path) -> None:
    claim = order_claim(scores_of(tmp_path, n=20))
    lost = claim.evidence["accuracy_of_platt_less_base"]["value"]
    assert f"Accuracy under Platt less that under Base: {lost:+.3f}" in claim.because


def test_the_order_of_tokens_is_open_without_platt(tmp_path: Path) -> None:
    assert order_claim(scores_of(tmp_path, n=20, methods=("Base", "TS", "ATS"))).verdict == OPEN


@pytest.mark.parametrize(("mean", "expected"), [(0.79, HOLDS), (0.81, FAILS), (float("nan"), OPEN)])
def test_metrics_agree_when_ranks_move_less_than_half_as_by_chance(sharp, mean: float, expected: str) -> None:
    rows = [{"metrics": ["ace", name], "mean": mean, "chance": 1.6} for name in ("mcb", "ece")]
    assert metrics_claim(sharp, rows).verdict == expected


def test_independence_is_judged_by_computing_it(sharp: GridScores, monkeypatch: pytest.MonkeyPatch) -> None:
    assert independence_claim(sharp).verdict == HOLDS
    monkeypatch.setattr(other_claims, "ece", lambda *_: 0.0)
    assert independence_claim(sharp).verdict == FAILS


@pytest.mark.parametrize(
    ("means", "half", "expected"),
    [
        ((0.95, 0.96, 0.7), 0.004, HOLDS),
        ((0.95, 0.74, 0.7), 0.004, FAILS),
        ((0.95, 0.88, 0.7), 0.004, FAILS),  # they differ without TS
        ((0.95, 0.96, 0.92), 0.004, FAILS),
        ((0.7, 0.7, 0.95), 0.004, FAILS),
        ((0.91, 0.96, 0.7), 0.03, OPEN),  # above 0.9, and other questions could say otherwise
    ],
)
def test_measures_differ_more_under_ts(means: tuple[float, ...], half: float, expected: str) -> None:
    found = {name: around(mean, half) for name, mean in zip(("Base", "SE", "TS"), means)}
    assert judged_correlations(found).verdict == expected


def test_without_ts_it_is_open_whether_measures_differ_under_it(tmp_path: Path) -> None:
    assert correlations_claim(scores_of(tmp_path, n=20, methods=("Base", "SE"))).verdict == OPEN


def test_the_mean_correlation_and_its_resamples_are_those_of_numpy(sharp: GridScores) -> None:
    pair, measures = sharp.pair("m", "d"), sharp.run.measures
    found = mean_correlation(pair, "TS")
    assert found is not None
    (row,) = (row for row in correlations(sharp) if row["method"] == "TS")
    assert found.value == pytest.approx(row["mean"], abs=1e-12)
    drawn = np.random.default_rng(pair.options.seed).integers(pair.n, size=(pair.options.resamples, pair.n))
    for b in (0, 7, 99):
        columns = [pair.arrays["TS", measure].confidence[:, drawn[b]].ravel() for measure in measures]
        matrix = np.corrcoef(columns)
        assert found.resampled[b] == pytest.approx((matrix.sum() - 7) / 42, abs=1e-10)


def test_a_measure_that_is_constant_has_no_correlation(sharp: GridScores) -> None:
    pair = sharp.pair("m", "d")
    flat = replace(pair.arrays["TS", "E-SC"], confidence=np.full((2, pair.n), 0.3))
    assert mean_correlation(replace(pair, arrays={**pair.arrays, ("TS", "E-SC"): flat}), "TS") is None


@pytest.mark.parametrize(
    ("share", "n", "expected"), [(0.91, 2000, HOLDS), (0.8, 2000, FAILS), (0.87, 100, OPEN), (0.9, 0, OPEN)]
)
def test_gradings_agree(share: float, n: int, expected: str) -> None:
    rows = [{"model": "m", "dataset": "d", "measure": "E-SC", "n": n, "agreement": share}]
    assert grading_claim(rows).verdict == expected


def test_models_that_answer_the_same_questions_add_no_certainty() -> None:
    one = {"dataset": "d", "measure": "E-SC", "n": 400, "agreement": 0.88}
    found = [grading_claim([{**one, "model": f"m{k}"} for k in range(models)]) for models in (1, 9)]
    assert [claim.verdict for claim in found] == [OPEN, OPEN]
    assert found[0].evidence["interval"] == pytest.approx(found[1].evidence["interval"])


def around(value: float, half: float = 0.004) -> Contrast:
    """A value with its resamples spread evenly on both sides: a 95 % interval of ± 0.95 `half`."""
    return Contrast(value, value + np.linspace(-half, half, 2001))


@pytest.mark.parametrize(
    ("value", "parts", "expected"),
    [
        (0.01, 1, HOLDS),
        (0.0045, 1, HOLDS),
        (0.001, 1, FAILS),
        (0.00115, 1, FAILS),
        (0.00115, 4, OPEN),  # refuted by itself, and not as one of four
        (-0.01, 4, FAILS),
    ],
)
def test_a_part_of_a_claim_is_refuted_with_correction_for_their_number(value, parts, expected: str) -> None:
    assert positive(around(value), parts=parts) == expected


def test_a_benefit_that_is_sure_but_does_not_count_is_none() -> None:
    assert positive(around(0.003, half=0.001)) == FAILS
    assert positive(around(0.003, half=0.001), margin=0.0) == HOLDS


def test_a_part_without_interval_holds_where_every_pair_agrees() -> None:
    assert [_everywhere(one) for one in ([0.1, 0.2], [0.3, -0.1], [0.1, -0.2], [])] == [
        HOLDS,
        OPEN,
        FAILS,
        OPEN,
    ]


def test_data_sets_on_which_ts_is_worse_are_named(tmp_path: Path) -> None:
    scores = scores_of(tmp_path, datasets={"good": False, "bad": False}, methods=("Base", "TS"), **SHARP)
    for path in scores.run.folder.glob("samples/m/bad/TS*/*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            row["confidence"] = dict.fromkeys(row["confidence"], 1.0)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    claim = method_claim(scores, METHOD_STATEMENTS[0])
    assert "cells (worse on bad)" in claim.because


def test_a_benefit_of_ts_is_told_with_what_it_costs_in_accuracy(tmp_path: Path) -> None:
    scores = scores_of(tmp_path, methods=("Base", "TS"), **SHARP)
    for path in scores.run.folder.glob("samples/*/*/TS*/*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for k, row in enumerate(rows):  # every other answer is wrong, and TS knows it
            if k % 2:
                row["correct"] = dict.fromkeys(row["correct"], False)
                row["confidence"] = {name: p / 100 for name, p in row["confidence"].items()}
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    claim = method_claim(scores, METHOD_STATEMENTS[1])
    lost = claim.evidence["accuracy"]["Base"]
    assert lost["interval"][1] < -0.2
    assert (
        f"Accuracy of the selected answers under TS less that under Base {lost['value']:+.3f}"
        in claim.because
    )


def test_the_slope_of_selective_accuracy_stands_beside_the_gain(sharp: GridScores) -> None:
    rows = selective(sharp)
    claim = method_claim(sharp, METHOD_STATEMENTS[5], rows)
    slope = np.mean([row["slope"]["mean"] for row in rows if row["method"] == "TS"])
    assert claim.evidence["slope"]["TS"] == pytest.approx(slope)
    assert f"Slope from 0 to 50 % rejected: {slope:.3f} under TS" in claim.because
    assert "Slope" not in method_claim(sharp, METHOD_STATEMENTS[0], rows).because


def test_every_claim_states_its_rule_and_what_decided(sharp: GridScores) -> None:
    analyses: dict[str, Any] = {"volatility": volatility(sharp), "agreement": [], "selective": []}
    claims = judge(sharp, analyses)
    assert len({claim.key for claim in claims}) == len(claims) == 16
    for claim in claims:
        assert claim.verdict in (HOLDS, FAILS, OPEN)
        assert min(len(claim.claim), len(claim.rule), len(claim.because)) > 20
        assert (claim.verdict == OPEN) or claim.evidence


def test_the_documentation_states_every_rule_as_it_is(sharp: GridScores) -> None:
    analyses: dict[str, Any] = {"volatility": [], "agreement": [], "selective": []}
    page = (Path(__file__).parents[2] / "docs" / "reference" / "claims.md").read_text(encoding="utf-8")
    for claim in judge(sharp, analyses):
        assert claim.claim in page
        assert claim.rule in page
