"""Each door of the formulas refuses what cannot be used, and names it; odd kinds of numbers pass."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from semcal import measures, metrics
from semcal.errors import InputError, UndefinedWarning, UsageError
from semcal.metrics import (
    auroc,
    bootstrap,
    correlations,
    ece,
    joint_bootstrap,
    mean_and_standard_error,
    noise_floor,
    rank_volatility,
    reliability_diagram,
    risk_controlled_threshold,
    selective_accuracy,
    summaries,
    summary,
)

P, C = [0.25, 0.5, 0.75, 1.0], [0, 1, 0, 1]
PAIR: tuple[list[float], list[int]] = ([0.2, 0.7], [0, 1])
RUNS = [[0.1, 0.9]] * 2, [[0, 1]] * 2
risk = partial(risk_controlled_threshold, [0.5], [1])

#: A function, its arguments, and a part of the message of an InputError.
INPUTS: list[tuple[Any, tuple[Any, ...], str]] = [
    (summary, ([0.5, 1.1], [1, 0]), r"confidence\[1\] is 1.1"),
    (summary, ([-0.01, 0.5], [1, 0]), r"confidence\[0\] is -0.01"),
    (summary, ([0.5, math.nan], [1, 0]), r"confidence\[1\] is NaN"),
    (summary, ([0.5, None], [1, 0]), r"confidence\[1\] is NaN"),
    (summary, ([0.5, "high"], [1, 0]), "confidence.*'high'"),
    (summary, ([0.5, 0.5], [1, 0.5]), r"correct\[1\] is 0.5"),
    (summary, ([0.5, 0.5], [1, None]), r"correct\[1\] is nan"),
    (summary, ([0.5], [1, 0]), "1 .* 2 "),
    (summary, ([], []), "confidence"),
    (summary, ([[0.5]], [[1]]), r"shape \(1, 1\)"),
    (summaries, ([[0.5, 0.5], [0.5, 1.5]], [[1, 0], [1, 0]]), r"confidence\[1\] is 1.5"),
    (summaries, ([[0.5, 0.5]], [[1, 2]]), r"correct\[1\] is 2"),
    (summaries, ([0.5, 0.5], [1, 0]), "confidence"),
    (summaries, ([[0.5, 0.5]], [[1]]), r"shape \(1, 2\) and correct \(1, 1\)"),
    (summaries, ([[0.5], [0.5, 0.5]], [[1], [1, 0]]), "confidence"),
    (summaries, ([[]], [[]]), "confidence"),
    (noise_floor, ([0.5, 0.5], [1]), "2 .* 1 "),
    (partial(noise_floor, groups=["a"]), PAIR, "groups"),
    (noise_floor, ([0.5, 1.2],), r"confidence\[1\]"),
    (reliability_diagram, ([1.5], [1]), r"confidence\[0\]"),
    (auroc, ([0.1, math.nan], [0, 1]), r"score\[1\] is NaN"),
    (bootstrap, (RUNS[0], [0, 1]), "2 runs"),
    (bootstrap, (0.3, 1), r"\(N,\)"),
    (partial(bootstrap, groups=["a", "b"]), ([0.2, 0.8, 0.5], [0, 1, 1]), "groups"),
    (partial(joint_bootstrap, groups=[["a"], ["b"]]), ({"it": PAIR},), "groups"),
    (partial(bootstrap, groups=[1.0, math.nan]), PAIR, "groups"),
    (joint_bootstrap, ({"first": PAIR, "second": ([0.1, 0.2, 0.3], [0, 1, 1])},), "first: 2, second: 3"),
    *((mean_and_standard_error, (values,), "run") for values in ([], [[0.1, 0.2]], 0.5)),
    *((rank_volatility, ([[0.1, 0.2]], second), "shapes") for second in ([[0.1]], [0.1, 0.2])),
    (correlations, ({},), "questions"),
    (correlations, ({"a": [1, 2], "b": [1]},), "questions"),
    (correlations, ({"a": [[1]]},), "questions"),
    (correlations, ({"a": [1, math.nan], "b": [1, 2]},), "questions"),
    (partial(risk_controlled_threshold, risk_limit=0.1), ([-2.0], [1]), "probability"),
]
#: A function, its options, and a part of the message of a UsageError.
OPTIONS: list[tuple[Any, dict[str, Any], str]] = [
    (partial(ece, *PAIR), {"bins": 2.5}, "bins"),
    (partial(noise_floor, *PAIR), {"metric": "brier"}, "'brier'"),
    (partial(noise_floor, *PAIR), {"draws": 0}, "draws"),
    (partial(bootstrap, *PAIR), {"metrics": ["acc"]}, "metric"),
    (partial(bootstrap, *PAIR), {"resamples": 1}, "resample"),
    (partial(selective_accuracy, *PAIR), {}, "rejection"),
    (partial(selective_accuracy, *PAIR), {"threshold": 0.5, "rejection": 0.5}, "rejection"),
    *((partial(selective_accuracy, *PAIR), {"rejection": rate}, "rate") for rate in (-0.1, 1.1, math.nan)),
    (risk, {"risk_limit": 1.0}, "risk_limit"),
    *((risk, {"risk_limit": 0.1, "thresholds": grid}, "thresholds") for grid in ([], [0.5, math.nan])),
    (risk, {"risk_limit": 0.1, "thresholds": [0.4, 0.6], "start": 0.3}, r"0\.4"),
    (risk, {"risk_limit": 0.1, "start": "likeliest"}, "start"),
]


@pytest.mark.parametrize(("function", "arguments", "named"), INPUTS)
def test_input_that_cannot_be_used_is_refused_by_name(function: Any, arguments: Any, named: str) -> None:
    with pytest.raises(InputError, match=named):
        function(*arguments)


@pytest.mark.parametrize(("function", "options", "named"), OPTIONS)
def test_options_that_make_no_sense_are_refused_by_name(function: Any, options: Any, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        function(**options)


# ---- Numbers of other kinds are taken with the right result, or refused in words

U = [[-0.5, -0.25, -2.0], [-1.0, -1.0, -4.0]]
CLUSTERS = [[[0, 1], [2]], [[0], [1, 2]]]


TAKEN: dict[str, Callable[[list[float]], Any]] = {
    "a tensor": torch.tensor,
    "an array of float16": lambda x: np.array(x, np.float16),
    "an array of objects": lambda x: np.array(x, object),
    "fractions": lambda x: [Fraction(value) for value in x],
    "a table's column": pd.Series,
    "a masked array without masks": lambda x: np.ma.array(x, mask=False),
}
REFUSED: dict[str, Callable[[list[float]], Any]] = {
    "complex numbers": lambda x: np.array(x, complex),
    "texts": lambda x: [str(value) for value in x],
    "dates": lambda x: np.array([int(value) for value in x], "M8[s]"),
    "masked values": lambda x: np.ma.array(x, mask=[True] + [False] * (len(x) - 1)),
    "a number beyond float64": lambda x: [10**400, *x[1:]],
    "rows of different lengths": lambda x: [x, x[:1]],
    "a set": set,
    "nothing": lambda _: None,
}


@pytest.mark.parametrize("kind", TAKEN)
def test_numbers_of_other_kinds_give_the_result_of_plain_ones(kind: str) -> None:
    assert metrics.summary(TAKEN[kind](P), C) == metrics.summary(P, C)
    expected = measures.confidence(CLUSTERS, U, measure=measures.MEASURES)
    for name, found in measures.confidence(
        CLUSTERS, [TAKEN[kind](row) for row in U], measure=measures.MEASURES
    ).items():
        assert found.probabilities.tolist() == expected[name].probabilities.tolist()


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_number_is_refused_and_the_argument_named(kind: str) -> None:
    with pytest.raises(InputError, match="confidence"):
        metrics.summary(REFUSED[kind](P), C)
    with pytest.raises(InputError, match=r"log_likelihoods|log-likelihood"):
        measures.confidence(CLUSTERS, [REFUSED[kind](U[0]), U[1]], measure="L-SC")


OF_OPTION: dict[str, Callable[[Any], object]] = {
    "bins": lambda x: metrics.ece(P, C, bins=x),
    "bins of a summary": lambda x: metrics.summary(P, C, bins=x),
    "resamples": lambda x: metrics.bootstrap(P, C, resamples=x),
    "resamples of a diagram": lambda x: metrics.reliability_diagram(P, C, resamples=x),
    "risk_limit": lambda x: metrics.risk_controlled_threshold(P, C, risk_limit=x),
    "delta": lambda x: metrics.risk_controlled_threshold(P, C, risk_limit=0.1, delta=x),
    "t_alpha": lambda x: measures.confidence(CLUSTERS, U, measure="T-SC", t_alpha=x),
    "g_alpha": lambda x: measures.confidence(CLUSTERS, U, measure="G-SC", g_alpha=x),
}


@pytest.mark.parametrize("option", OF_OPTION)
def test_options_of_the_wrong_kind_are_refused_with_what_was_got(option: str) -> None:
    for value in ("ten", None, math.nan, -1, 0, math.inf, 10**400, [1, 2], True):
        with pytest.raises(UsageError, match=option.split()[0]):
            OF_OPTION[option](value)


def test_seeds_and_measures_of_the_wrong_kind_are_refused() -> None:
    for seed in ("ten", -1, 0.5):
        with pytest.raises(UsageError, match="seed"):
            metrics.bootstrap(P, C, resamples=3, seed=seed)
    for measure in ("ten", None, 0, []):
        with pytest.raises(UsageError, match="measure"):
            measures.confidence(CLUSTERS, U, measure=measure)


def test_options_that_are_numbers_of_another_kind_are_taken() -> None:
    assert len({metrics.ece(P, C, bins=bins) for bins in (3, np.int64(3), torch.tensor(3), 3.0)}) == 1


def test_clusters_of_texts_are_refused() -> None:
    with pytest.raises(InputError, match="clusters"):
        measures.confidence([[["0", "1"]]])
    with pytest.raises(InputError, match="clusters"):
        measures.number_of_clusters([[[10**400]]])


def test_numbers_nested_hundreds_deep_are_refused() -> None:
    nested: object = 0.5
    for _ in range(900):
        nested = [nested]
    with pytest.raises(InputError, match="confidence"):
        metrics.ece(nested, [True])


def test_a_warning_names_the_line_that_asked() -> None:
    calls = (
        lambda: metrics.auroc(P, [1] * 4),
        lambda: metrics.bootstrap(P, [1] * 4, metrics=["auroc"], resamples=5),
        lambda: metrics.mean_and_standard_error([0.5]),
    )
    for call in calls:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        assert [(one.category, one.filename) for one in caught] == [(UndefinedWarning, __file__)]
