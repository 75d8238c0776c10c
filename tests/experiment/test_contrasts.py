"""Verdicts on made-up runs where they are known: the contrasts behind each claim hold, and do not."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_grid import HEATS, Grid, edited, write_grid

from semcal.errors import UndefinedWarning
from semcal.experiment.analyses import contrasts
from semcal.experiment.analyses.contrasts import (
    FAILS,
    FEWEST,
    HOLDS,
    OPEN,
    OPEN_BOOK,
    TS_CLAIMS,
    Claim,
    claim_contrasts,
    components,
)
from semcal.experiment.analyses.grid_scores import (
    TOO_FEW,
    CellScores,
    PairScores,
    ScoreArrays,
    verdict,
)
from semcal.experiment.analyses.score_analyses import QUANTITIES
from semcal.experiment.finished import read_finished
from semcal.experiment.grid_settings import Evaluation

#: The model is four times sharper than its knowledge, and TS takes that back.
SHARP: dict[str, Any] = {"overconfidence": 4.0, "heats": {"TS NLL": 4.0, "TS SS 0.25": 4.0}}
#: The model is calibrated as it is, and TS makes it sharper.
SPOILT: dict[str, Any] = {"overconfidence": 1.0, "heats": {"TS NLL": 0.3, "TS SS 0.25": 0.3}}
#: All methods are alike.
ALIKE: dict[str, Any] = {"overconfidence": 2.0, "heats": dict.fromkeys(HEATS, 1.0)}
#: All that TS is said to be better in; what it costs in accuracy is no claim.
TS_IS_BETTER = [claim.text for quantity, _, claim in TS_CLAIMS if quantity != "accuracy"]
Rows = list[dict[str, Any]]


def scores_of(folder: Path, **world: Any) -> CellScores:
    small: dict[str, Any] = {"models": ("m",), "datasets": {"d": False}, "counts": (), "runs": 2, "n": 150}
    return CellScores(read_finished(write_grid(folder, Grid(**small | world))), "m", "d")


def rows_of(scores: CellScores, pair: PairScores | None = None, by_draws: Any = ()) -> Rows:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)
        return claim_contrasts(scores.run, {("m", "d"): pair or scores.pair}, by_draws)


def verdicts(scores: CellScores, claim: str) -> list[str]:
    return [row["verdict"] for row in rows_of(scores) if row["claim"] == claim]


@pytest.fixture(scope="module")
def sharp(tmp_path_factory: pytest.TempPathFactory) -> CellScores:
    return scores_of(tmp_path_factory.mktemp("sharp"), **SHARP)


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> CellScores:
    return scores_of(tmp_path_factory.mktemp("spoilt"), n=400, **SPOILT)


@pytest.mark.parametrize(
    ("low", "high", "interval", "expected"),
    [
        (0.0, np.inf, (0.001, 0.02), HOLDS),
        (0.0, np.inf, (0.001, 0.004), FAILS),  # sure, and too small to count
        (0.0, np.inf, (-0.02, 0.004), FAILS),
        (0.0, np.inf, (-0.02, 0.006), OPEN),
        (0.0, np.inf, (0.0, 0.0), FAILS),
        (-0.03, 0.03, (-0.02, 0.03), HOLDS),
        (-0.03, 0.03, (-0.02, 0.04), OPEN),
        (-0.03, 0.03, (0.031, 0.04), FAILS),
        (-np.inf, 0.0, (0.0, 0.0), HOLDS),
        (-np.inf, 0.0, (1e-6, 1e-6), FAILS),
        (0.0, np.inf, (np.nan, np.nan), OPEN),
    ],
)
def test_a_verdict_says_where_the_interval_lies(low: float, high: float, interval: Any, expected) -> None:
    margin = 0.005 if (low, high) == (0.0, np.inf) else 0.0
    assert Claim("", "", low=low, high=high, margin=margin).verdict(*interval) == expected


def test_ts_is_better_where_it_takes_overconfidence_back(sharp: CellScores) -> None:
    found = [row["verdict"] for row in rows_of(sharp) if row["claim"] in TS_IS_BETTER]
    assert found == [HOLDS] * 15


def test_ts_is_not_better_where_it_spoils_a_calibrated_model(spoilt: CellScores) -> None:
    found = {row["verdict"] for row in rows_of(spoilt) if row["claim"] in TS_IS_BETTER}
    assert found == {FAILS}


def test_with_few_questions_nothing_is_decided_by_an_interval_over_them(tmp_path: Path) -> None:
    rows = rows_of(scores_of(tmp_path, n=FEWEST - 1, **SHARP))
    assert {row["verdict"] for row in rows} == {TOO_FEW}


@pytest.mark.parametrize("method", ["Base", "TS"])
def test_nine_correct_answers_of_a_method_decide_no_claim_about_it(tmp_path: Path, method: str) -> None:
    scores = scores_of(tmp_path, **SHARP)
    pair = scores.pair
    for right, expected in ((9, True), (10, False)):
        correct = np.tile(np.arange(pair.n) < right, (2, 1)).astype(float)
        few = {
            key: replace(arrays, correct=correct) if key[0] == method else arrays
            for key, arrays in pair.arrays.items()
        }
        found = rows_of(scores, replace(pair, arrays=few))
        by_contrast = {row["contrast"]: row["verdict"] == TOO_FEW for row in found}
        assert by_contrast["AUROC of TS less that of Base"] is expected
        assert by_contrast["AUROC of TS less that of SE"] is (expected and method == "TS")
        assert by_contrast["AUROC of SE_conf less that of SE_vanilla, all methods"] is expected


def test_a_calibrated_method_is_not_worse_for_confidences_near_one_half() -> None:
    """Both methods are calibrated; the flat one has the larger ACE of 300 questions by chance alone."""
    raw, judged = [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        sure = rng.uniform(size=300) < 0.5
        correct = (rng.uniform(size=300) < np.where(sure, 0.93, 0.07)).astype(float)[None]
        near = rng.uniform(-0.02, 0.02, size=300)
        arrays = {
            (method, "E-SC"): ScoreArrays(p[None] + near, correct, -p[None], correct)
            for method, p in (("TS", np.full(300, 0.5)), ("Base", np.where(sure, 0.93, 0.07)))
        }
        pair = PairScores(arrays, 300, 0, Evaluation(resamples=100), (seed,), bootstrapped=("ace",))
        ace = QUANTITIES["ace"]
        for differences, of in ((raw, ace.difference), (judged, ace.judged_difference)):
            interval = of(pair, "E-SC", "TS", "Base").interval()
            differences.append(verdict((interval.low, interval.high), larger_is_better=False))
    assert raw.count("worse") >= 10
    assert judged.count("worse") + judged.count("better") <= 2


def test_methods_that_are_alike_have_no_benefit_and_no_component(tmp_path: Path) -> None:
    scores = scores_of(tmp_path, **ALIKE, flips=0.0)
    assert set(verdicts(scores, TS_IS_BETTER[0])) == {FAILS}
    assert set(verdicts(scores, contrasts.COMPONENTS.text)) == {FAILS}


def test_components_are_those_of_the_analysis_of_variance() -> None:
    rng = np.random.default_rng(0)
    i, j = 5, 7
    table = rng.normal(size=(i, 1)) + 0.3 * rng.normal(size=(1, j)) + 0.05 * rng.normal(size=(i, j))
    mean = table.mean()
    rows = sum(j * (table[a].mean() - mean) ** 2 for a in range(i)) / (i - 1)
    columns = sum(i * (table[:, b].mean() - mean) ** 2 for b in range(j)) / (j - 1)
    residuals = sum(
        (table[a, b] - table[a].mean() - table[:, b].mean() + mean) ** 2 for a in range(i) for b in range(j)
    ) / ((i - 1) * (j - 1))
    found = components(table)
    expected = [(rows - residuals) / j, (columns - residuals) / i]
    assert [float(part) for part in found] == pytest.approx(expected)


@pytest.mark.parametrize("greedy_is_worse", [True, False])
def test_the_answer_of_the_surest_meaning_against_a_greedy_one(tmp_path: Path, greedy_is_worse: bool) -> None:
    """Greedy answers whose correctness has nothing to do with the entropy; or entropy that knows it best."""
    scores = scores_of(tmp_path, n=80, methods=("Base",), overconfidence=2.0)

    def answered(k: int, row: dict[str, Any]) -> dict[str, Any]:
        right = k % 2 == 0 if greedy_is_worse else row["semantic_entropy"]["E-SC"] < 0.4
        return row | {"greedy_correct": right}

    edited(scores.run.folder, answered)
    expected = HOLDS if greedy_is_worse else FAILS
    assert verdicts(scores, contrasts.VARIANTS_CLAIM.text) == [expected]


def drawn_pair(gap: float, order: float) -> PairScores:
    """Two thousand questions: confidences too high by `gap`, that rank the better the higher `order`."""
    rng = np.random.default_rng(0)
    chance = rng.uniform(0.3, 0.7, size=(1, 2000))
    spread = chance + order * (rng.random((1, 2000)) < 0.5) * 0.2
    correct = (rng.random((1, 2000)) < spread).astype(float)
    arrays = ScoreArrays(np.clip(spread + gap, 0, 1), correct, spread, correct)
    return PairScores({("TS", "E-SC"): arrays}, 2000, 0, Evaluation(resamples=100), (0, 0))


@pytest.mark.parametrize(
    ("gaps", "orders", "expected"),
    [
        ({5: 0.2, 10: 0.05, 15: 0.04, 25: 0.03}, {}, [HOLDS, HOLDS]),
        ({5: 0.03, 10: 0.05, 15: 0.1, 25: 0.2}, {}, [FAILS, HOLDS]),
        ({5: 0.2, 10: 0.05, 15: 0.04, 25: 0.03}, {25: 3.0}, [HOLDS, FAILS]),
        ({5: 0.2, 10: 0.05}, {}, [HOLDS]),
        ({5: 0.2, 8: 0.1}, {}, [HOLDS]),
        ({}, {}, []),
    ],
)
def test_gains_with_the_number_of_draws(tmp_path: Path, gaps, orders, expected: list[str]) -> None:
    scores = scores_of(tmp_path, n=5, methods=("TS",))
    by_draws = {k: drawn_pair(gap, orders.get(k, 0.0)) for k, gap in gaps.items()}
    rows = rows_of(scores, drawn_pair(0.1, 0.0), [by_draws] if by_draws else [])
    assert [row["verdict"] for row in rows if row["source"] == contrasts.DRAWS.source] == expected


def open_book_scores(folder: Path, **change: Any) -> CellScores:
    """TS answers as Base does; a confidence becomes what `change`, by method, makes of (p, correct)."""
    heats = {"TS NLL": 1.0, "TS SS 0.25": 1.0}
    scores = scores_of(folder, datasets={"d": True}, methods=("Base", "TS"), overconfidence=1.0, heats=heats)
    for method, changed in change.items():

        def surer(_: int, row: dict[str, Any], changed: Any = changed) -> dict[str, Any]:
            stated = {name: changed(p, row["correct"][name]) for name, p in row["confidence"].items()}
            return row | {"confidence": stated}

        edited(scores.run.folder, surer, f"samples/*/*/{method}*/*.jsonl")
    return scores


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"TS": lambda p, correct: 0.5 * p + 0.25 * correct}, [HOLDS, HOLDS]),  # ranks well, underconfident
        ({"TS": lambda _, correct: 0.01 + 0.98 * correct}, [HOLDS, FAILS]),  # gains in calibration as well
        ({"TS": lambda p, _: 1.0 - p / 2}, [FAILS, HOLDS]),  # ranks the wrong way round
        ({}, [FAILS, HOLDS]),  # no gain at all
    ],
)
def test_gains_on_an_open_book_set(tmp_path: Path, monkeypatch, change: Any, expected: list[str]) -> None:
    scores = open_book_scores(tmp_path, **change)
    monkeypatch.setattr(contrasts, "CALIBRATED_AT", 1.0)
    assert verdicts(scores, OPEN_BOOK) == expected
    monkeypatch.setattr(contrasts, "CALIBRATED_AT", 0.0)
    assert verdicts(scores, OPEN_BOOK) == []


def test_what_ts_costs_in_accuracy_stands_beside_its_benefits(sharp: CellScores) -> None:
    (row,) = (row for row in rows_of(sharp) if row["contrast"] == "accuracy of TS less that of Base")
    pair = sharp.pair
    differences = [
        pair.by_run["TS", measure]["accuracy"].mean() - pair.by_run["Base", measure]["accuracy"].mean()
        for measure in sharp.run.measures
    ]
    assert row["value"] == pytest.approx(np.mean(differences))
