"""scikit-learn's names by keyword: the same result for every function, and refusals in words."""

from __future__ import annotations

import warnings
from inspect import signature
from types import FunctionType

import pytest
from sklearn.metrics import brier_score_loss, roc_auc_score

from semcal import metrics
from semcal.errors import UndefinedWarning, UsageError

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
