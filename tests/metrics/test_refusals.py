"""Each door of the metrics refuses what cannot be used, and names the argument."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest

from semcal.errors import InputError, UsageError
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
