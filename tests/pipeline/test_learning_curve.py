"""How many labels does TS need? Subsets, interpolation between sampled temperatures, and intervals."""

from __future__ import annotations

import math
import random
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from semcal import metrics
from semcal.engine.fakes import FakeEquivalence, FakeLanguageModel
from semcal.errors import FitError, InputError, UsageError
from semcal.pipeline.calibration_set import CalibrationSet, calibration_features
from semcal.pipeline.fitting import fit
from semcal.pipeline.learning_curve import (
    SIZES,
    CurvePoint,
    LearningCurve,
    grid_weights,
    learning_curve,
    subset_fit,
    subset_temperatures,
)
from semcal.pipeline.prompting import PromptConfig
from semcal.pipeline.temperature_grid import rows_at_temperatures
from semcal.qa.questions import Question

GRID = tuple(2 ** (k / 4) for k in range(-2, 9))
MEASURES = ("E-SC", "L-SC")


@cache
def world(n: int = 240) -> tuple[FakeLanguageModel, tuple[Question, ...]]:
    """A model of two answers whose logits are three times what the truth calls for."""
    rng = random.Random(0)
    table, questions = {}, []
    for number in range(n):
        truth = rng.uniform(-3, 3)
        said = 1 / (1 + math.exp(-3 * truth))
        text = f"Who built mill {number}?"
        table[text] = {"Ana.": said, "Bo.": 1 - said}
        right = "Ana" if rng.random() < 1 / (1 + math.exp(-truth)) else "Bo"
        questions.append(Question(f"q{number}", text, (f"{right}.",)))
    return FakeLanguageModel(table), tuple(questions)


@cache
def validation_rows(grid: tuple[float, ...]):
    model, questions = world()
    return rows_at_temperatures(model, questions[:120], grid, equivalence=FakeEquivalence(), m=10)


def answers(p: list[float], right: list[bool]) -> list[dict]:
    return [
        {"id": str(i), "confidence": {"E-SC": q}, "correct": {"E-SC": c}}
        for i, (q, c) in enumerate(zip(p, right))
    ]


def features_of(model, questions):
    labelled = CalibrationSet.of(model, questions, asking=PromptConfig())
    return calibration_features(model, labelled, asking=PromptConfig())


def test_a_subset_is_fitted_as_if_it_were_all_there_is() -> None:
    model, questions = world()
    several = [
        Question(q.id, q.question, ("Ana.", "Bo.") if i % 3 else q.answers)
        for i, q in enumerate(questions[:30])
    ]
    features = features_of(model, several)
    chosen = np.array([2, 3, 11, 17, 28])
    found = subset_fit(model, features)(chosen)
    assert found == pytest.approx(fit(model, [several[i] for i in chosen]).temperature, rel=1e-4)
    smoothed = subset_fit(model, features, loss="SS", alpha=0.25)(chosen)
    assert smoothed == pytest.approx(
        fit(model, [several[i] for i in chosen], loss="SS", alpha=0.25).temperature, rel=1e-4
    )
    assert torch.equal(features.answer_question.unique(), torch.arange(30))


def test_subsets_are_nested_distinct_and_reproducible() -> None:
    seen: dict[int, list[tuple[int, ...]]] = {}

    def record(indices) -> float:
        seen.setdefault(len(indices), []).append(tuple(indices.tolist()))
        return 1.0

    told: list[int] = []
    subset_temperatures(record, 60, sizes=(5, 20, 60, 100), subsets=4, seed=1, progress=told.append)
    assert {size: len(found) for size, found in seen.items()} == {5: 4, 20: 4, 60: 1}
    assert all(set(few) < set(many) for few, many in zip(seen[5], seen[20]))
    assert all(list(found) == sorted(set(found)) for found in seen[20])
    assert len(set(seen[5])) == 4
    assert told == list(range(1, 10))
    first = {size: list(found) for size, found in seen.items()}
    seen.clear()
    subset_temperatures(record, 60, sizes=(5, 20, 60), subsets=4, seed=1)
    assert seen == first
    seen.clear()
    subset_temperatures(record, 60, sizes=(5,), subsets=4, seed=2)
    assert seen[5] != first[5]


def test_the_sizes_are_those_of_the_plan() -> None:
    assert SIZES == (25, 50, 100, 250, 500, 1000, 2000)


@given(
    st.lists(st.floats(0.01, 100), min_size=1, max_size=5),
    st.sets(st.floats(0.1, 10), min_size=1, max_size=6),
)
def test_weights_interpolate_any_function_linear_in_log_t(temperatures, nodes) -> None:
    grid = sorted(nodes)
    weights = grid_weights(temperatures, grid)
    assert weights.sum(1) == pytest.approx(1)
    assert (weights >= 0).all()
    inside = np.clip(temperatures, grid[0], grid[-1])
    assert weights @ (3 * np.log(grid) - 1) == pytest.approx(3 * np.log(inside) - 1, abs=1e-9)


def test_at_a_temperature_of_the_grid_the_metric_is_that_of_its_rows() -> None:
    rows = {
        1.0: answers([0.9, 0.8, 0.7], [True, False, True]),
        2.0: answers([0.6, 0.5, 0.7], [True, False, True]),
    }
    curve = learning_curve({10: [2.0, 2.0]}, rows, resamples=50)
    for point, p in zip(curve.of("E-SC", "brier"), ([0.9, 0.8, 0.7], [0.6, 0.5, 0.7])):
        assert point.mean == pytest.approx(metrics.brier(p, [1, 0, 1]))
        assert point.subset_low == point.subset_high == pytest.approx(point.mean)
    assert [(p.n, p.subsets) for p in curve.of("E-SC", "ace")] == [(0, 1), (10, 2)]


def test_between_two_temperatures_the_metric_is_interpolated_in_log_t() -> None:
    rows = {1.0: answers([0.9], [True]), 4.0: answers([0.5], [True])}
    curve = learning_curve({5: [2.0, 4.0, 50.0]}, rows, level=0.9, resamples=50)
    fitted = curve.of("E-SC", "brier")[1]
    values = [(0.01 + 0.25) / 2, 0.25, 0.25]
    assert fitted.mean == pytest.approx(np.mean(values))
    assert [fitted.subset_low, fitted.subset_high] == pytest.approx(np.quantile(values, [0.05, 0.95]))
    assert curve.outside == 1
    assert [row["temperature"] for row in curve.table() if row["metric"] == "brier"] == [1.0, 4.0]


def test_the_interval_over_questions_is_that_of_the_bootstrap() -> None:
    rows = validation_rows(GRID)
    curve = learning_curve({7: [GRID[6]]}, rows, measures=MEASURES, resamples=200, seed=5)
    p, c = ([row[key]["L-SC"] for row in rows[GRID[6]]] for key in ("confidence", "correct"))
    expected = metrics.bootstrap(p, c, metrics=("ace", "brier"), resamples=200, seed=5)
    for metric in ("ace", "brier"):
        point = curve.of("L-SC", metric)[1]
        interval = expected[metric]
        assert [point.mean, point.low, point.high] == pytest.approx(
            [interval.estimate, interval.low, interval.high]
        )


def test_interpolation_agrees_with_sampling_at_the_temperature_itself() -> None:
    between = tuple(math.sqrt(a * b) for a, b in pairwise(GRID[3:]))  # as far from the grid as can be
    direct = validation_rows(between)
    curve = {
        t: learning_curve({1: [t]}, validation_rows(GRID), measures=MEASURES, resamples=2) for t in between
    }
    errors = {"brier": [], "ace": []}
    for t in between:
        for measure in MEASURES:
            p, c = ([row[key][measure] for row in direct[t]] for key in ("confidence", "correct"))
            errors["brier"].append(curve[t].of(measure, "brier")[1].mean - metrics.brier(p, c))
            errors["ace"].append(curve[t].of(measure, "ace")[1].mean - metrics.ace(p, c))
    assert np.abs(errors["brier"]).max() < 0.012
    assert abs(np.mean(errors["brier"])) < 0.003
    assert np.abs(errors["ace"]).mean() < 0.02


def test_more_labels_bring_the_metric_down_and_its_spread_too() -> None:
    model, questions = world()
    features = features_of(model, questions[120:])
    temperatures = subset_temperatures(subset_fit(model, features), 120, sizes=(5, 30, 120), subsets=12)
    curve = learning_curve(temperatures, validation_rows(GRID), measures=("E-SC",), resamples=50)
    base, few, some, all_of_them = curve.of("E-SC", "ace")
    assert [base.n, few.n, some.n, all_of_them.n] == [0, 5, 30, 120]
    assert all_of_them.mean < base.mean - 0.05
    assert np.std(np.log(temperatures[30])) < np.std(np.log(temperatures[5]))
    assert some.subset_high - some.subset_low < few.subset_high - few.subset_low
    assert base.low <= base.mean <= base.high


def test_labels_needed_is_the_fewest_from_which_on_all_subsets_are_near_the_end() -> None:
    highs = {0: 0.30, 25: 0.12, 50: 0.16, 100: 0.13, 250: 0.12}
    points = [CurvePoint("E-SC", "ace", n, 5, 0.11, 0.1, high, 0.05, 0.2) for n, high in highs.items()]
    curve = LearningCurve(tuple(points), dict.fromkeys(highs, (1.0,)), 0)
    assert curve.labels_needed("E-SC", margin=0.02) == 100
    assert curve.labels_needed("E-SC", margin=0.012) == 250
    assert curve.labels_needed("E-SC", margin=0.5) == 0
    assert curve.labels_needed("E-SC", margin=0.001) == 250
    with pytest.raises(UsageError, match="no curve of B-SC, ace"):
        curve.labels_needed("B-SC")


def test_a_measure_that_is_null_everywhere_has_no_curve() -> None:
    curve = learning_curve({3: [1.0]}, {1.0: answers([0.9], [True])}, resamples=2)
    assert {point.measure for point in curve.points} == {"E-SC"}
    with pytest.raises(InputError, match="under any of the measures"):
        learning_curve({3: [1.0]}, {1.0: answers([0.9], [True])}, measures=("L-SC",))


def test_what_makes_no_sense_is_refused() -> None:
    one = {1.0: answers([0.9], [True])}
    for temperatures, rows in [({3: [0.0]}, one), ({3: [math.nan]}, one), ({3: [1.0]}, {-1.0: one[1.0]})]:
        with pytest.raises(UsageError, match="positive number"):
            learning_curve(temperatures, rows)
    for temperatures, rows in [({3: []}, one), ({3: [1.0]}, {})]:
        with pytest.raises(UsageError, match="needs rows"):
            learning_curve(temperatures, rows)
    with pytest.raises(FitError, match="4 labelled questions in the smallest subset, and at least 5"):
        subset_temperatures(lambda _: 1.0, 9, sizes=(4, 8))
    with pytest.raises(UsageError, match="expected a size and a subset at least"):
        subset_temperatures(lambda _: 1.0, 9, subsets=0)
    with pytest.raises(FitError, match="fewer than any"):
        subset_temperatures(lambda _: 1.0, 9)
