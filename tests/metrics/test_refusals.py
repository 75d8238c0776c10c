"""Each door of the metrics refuses what cannot be used, and names the argument."""

from __future__ import annotations

import math
import warnings
from functools import partial
from inspect import signature
from types import FunctionType
from typing import Any

import pytest
from sklearn.metrics import brier_score_loss, roc_auc_score

from semcal import metrics
from semcal.errors import InputError, UndefinedWarning, UsageError
from semcal.metrics import (
    agreement,
    auroc,
    bootstrap,
    correlations,
    ece,
    joint_bootstrap,
    mean_and_standard_error,
    noise_floor,
    paired_test,
    rank_volatility,
    reliability_diagram,
    risk_controlled_threshold,
    selective_accuracy,
    summaries,
    summary,
)

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
    (summaries, ([[0.5, 0.5], [0.5, 1.5]], [[1, 0], [1, 0]]), r"set 1: confidence\[1\] is 1.5"),
    (summaries, ([[0.5, 0.5]], [[1, 2]]), r"set 0: correct\[1\] is 2"),
    (summaries, ([0.5, 0.5], [1, 0]), r"confidence has shape \(2,\)"),
    (summaries, ([[0.5, 0.5]], [[1]]), r"shape \(1, 2\) and correct \(1, 1\)"),
    (summaries, ([[0.5], [0.5, 0.5]], [[1], [1, 0]]), "confidence"),
    (summaries, ([[]], [[]]), r"shape \(1, 0\)"),
    (noise_floor, ([0.5, 0.5], [1]), "2 .* 1 "),
    (partial(noise_floor, groups=["a"]), PAIR, "groups"),
    (noise_floor, ([0.5, 1.2],), r"confidence\[1\]"),
    (reliability_diagram, ([1.5], [1]), r"confidence\[0\]"),
    (auroc, ([0.1, math.nan], [0, 1]), r"score\[1\] is NaN"),
    (bootstrap, (RUNS[0], [0, 1]), "2 runs"),
    (bootstrap, (0.3, 1), r"\(N,\)"),
    (partial(bootstrap, groups=["a", "b"]), ([0.2, 0.8, 0.5], [0, 1, 1]), "groups"),
    (partial(joint_bootstrap, groups=[["a"], ["b"]]), ({"it": PAIR},), "groups"),
    (partial(paired_test, groups=[1.0, math.nan]), (*PAIR, *PAIR), "groups"),
    (paired_test, (*PAIR, [0.1, 0.2, 0.3], [0, 1, 1]), "first: 2, second: 3"),
    *(
        (partial(bootstrap, metrics=["brier"], weights=weights), RUNS, "weights")
        for weights in ([1], [1, -1], [0, 0], [1, math.inf], [1, math.nan])
    ),
    *((mean_and_standard_error, (values,), "run") for values in ([], [[0.1, 0.2]], 0.5)),
    *((rank_volatility, ([[0.1, 0.2]], second), "shapes") for second in ([[0.1]], [0.1, 0.2])),
    (correlations, ({},), "questions"),
    (correlations, ({"a": [1, 2], "b": [1]},), "questions"),
    (correlations, ({"a": [[1]]},), "questions"),
    (correlations, ({"a": [1, math.nan], "b": [1, 2]},), "questions"),
    (agreement, ([1, 0, 1], [1, 0]), "3 .* 2 "),
    (agreement, ([1, 0], [1, 0.5]), r"correct\[1\] is 0.5"),
    (partial(risk_controlled_threshold, risk_limit=0.1), ([-2.0], [1]), "probability"),
]
#: A function, its options, and a part of the message of a UsageError.
OPTIONS: list[tuple[Any, dict[str, Any], str]] = [
    *(
        (partial(function, *PAIR), {"bins": bins}, "bins")
        for function in (ece, summary, noise_floor)
        for bins in (0, -1, 2.5, math.inf, 10**400)
    ),
    (partial(noise_floor, *PAIR), {"metric": "brier"}, "'brier'"),
    (partial(noise_floor, *PAIR), {"draws": 0}, "draws"),
    *((partial(reliability_diagram, *PAIR), {name: 0}, name) for name in ("level", "resamples", "bins")),
    (partial(bootstrap, *PAIR), {"metrics": ["acc"]}, "metric"),
    (partial(bootstrap, *PAIR), {"level": 1.0}, "level"),
    (partial(bootstrap, *PAIR), {"resamples": 1}, "resample"),
    (partial(selective_accuracy, *PAIR), {}, "rejection"),
    (partial(selective_accuracy, *PAIR), {"threshold": 0.5, "rejection": 0.5}, "rejection"),
    *((partial(selective_accuracy, *PAIR), {"rejection": rate}, "rate") for rate in (-0.1, 1.1, math.nan)),
    *((risk, {"risk_limit": limit}, "risk_limit") for limit in (0.0, 1.0)),
    (risk, {"risk_limit": 0.1, "delta": 0}, "delta"),
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


# ---- scikit-learn's names by keyword: the same result for every function, and refusals in words ------------

P, C = [0.25, 0.5, 0.75, 1.0, 0.5], [0, 1, 0, 1, 1]
FURTHER = {
    "selective_accuracy": {"rejection": [0.2]},
    "risk_controlled_threshold": {"risk_limit": 0.5},
    "label_free_threshold": {"risk_limit": 0.5},
    "bootstrap": {"resamples": 20},
    "reliability_diagram": {"resamples": 20},
    "summary": {"draws": 20},
    "slices": {"values": ["a", "b", "a", "b", "a"]},
}


def functions() -> dict[str, tuple[str, ...]]:
    """Public functions of (confidence or score, correct) → the names of these two."""
    found = {}
    for name in metrics.__all__:
        function = getattr(metrics, name)
        if isinstance(function, FunctionType):
            pair = tuple(signature(function).parameters)[:2]
            if pair[1:] == ("correct",):
                found[name] = pair
    return found


@pytest.mark.parametrize("name", functions())
def test_scikit_learns_names_give_the_result_of_ours(name: str) -> None:
    function, first = getattr(metrics, name), functions()[name][0]
    p, c = ([P], [C]) if name == "summaries" else (P, C)
    expected = repr(function(p, c, **FURTHER.get(name, {})))
    assert repr(function(**{first: p, "correct": c}, **FURTHER.get(name, {}))) == expected
    assert repr(function(y_true=c, y_prob=p, **FURTHER.get(name, {}))) == expected
    if first == "score":
        assert repr(function(y_true=c, y_score=p, **FURTHER.get(name, {}))) == expected
    else:
        with pytest.raises(UsageError, match="y_prob"):
            function(y_true=c, y_score=p, **FURTHER.get(name, {}))


def test_they_mean_what_they_mean_there() -> None:
    assert metrics.brier(y_true=C, y_prob=P) == pytest.approx(brier_score_loss(y_true=C, y_proba=P))
    assert metrics.auroc(y_true=C, y_score=P) == pytest.approx(roc_auc_score(y_true=C, y_score=P))


@pytest.mark.parametrize("name", functions())
@pytest.mark.parametrize(
    ("args", "options"),
    [
        ((P,), {"y_true": C}),
        ((P, C), {"y_true": C, "y_prob": P}),
        ((), {"correct": C, "y_prob": P}),
        ((), {"y_true": C}),
    ],
)
def test_half_of_the_names_or_both_kinds_are_refused(name: str, args, options) -> None:
    with pytest.raises(UsageError, match=f"{name} got y_"):
        getattr(metrics, name)(*args, **options, **FURTHER.get(name, {}))


def test_both_kinds_of_scores_are_refused_and_no_outcomes_where_they_are_needed() -> None:
    with pytest.raises(UsageError, match="y_score"):
        metrics.auroc(y_true=C, y_prob=P, y_score=P)
    with pytest.raises(UsageError, match="y_true"):
        metrics.ece(y_prob=P)
    assert metrics.noise_floor(y_prob=P, draws=20).mean == metrics.noise_floor(P, draws=20).mean


def test_a_warning_names_the_line_that_asked() -> None:
    calls = (
        lambda: metrics.auroc(P, [1] * 5),
        lambda: metrics.auroc(y_true=[1] * 5, y_score=P),
        lambda: metrics.bootstrap(P, [1] * 5, metrics=["auroc"], resamples=5),
        lambda: metrics.mean_and_standard_error([0.5]),
    )
    for call in calls:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        assert [(one.category, one.filename) for one in caught] == [(UndefinedWarning, __file__)]
