"""Numbers of other kinds at the door of the formulas: taken with the right result, or refused in words."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from semcal import measures, metrics
from semcal.errors import InputError, SemcalError, UndefinedWarning, UsageError

P, C = [0.25, 0.5, 0.75, 1.0], [0, 1, 0, 1]
U = [[-0.5, -0.25, -2.0], [-1.0, -1.0, -4.0]]
CLUSTERS = [[[0, 1], [2]], [[0], [1, 2]]]


class Series:
    """What pandas holds: it knows its array."""

    def __init__(self, values: Any, dtype: Any = None) -> None:
        self.values = np.asarray(values, dtype=dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.values if dtype is None else self.values.astype(dtype)

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def tolist(self) -> list[Any]:
        return list(self.values.tolist())


TAKEN: dict[str, Callable[[list[float]], Any]] = {
    "a tensor that requires grad": lambda x: torch.tensor(x, requires_grad=True),
    "a tensor of bfloat16": lambda x: torch.tensor(x, dtype=torch.bfloat16),
    "a tensor of float16 that requires grad": lambda x: torch.tensor(
        x, dtype=torch.float16, requires_grad=True
    ),
    "a list of tensors": lambda x: list(torch.tensor(x, dtype=torch.float64).unbind()),
    "an array of float16": lambda x: np.array(x, np.float16),
    "an array of long doubles": lambda x: np.array(x, np.longdouble),
    "an array of objects": lambda x: np.array(x, object),
    "decimals": lambda x: [Decimal(str(value)) for value in x],
    "fractions": lambda x: [Fraction(value) for value in x],
    "a table's column": Series,
    "a table's column of objects": lambda x: Series(x, object),
    "a masked array without masks": lambda x: np.ma.array(x, mask=False),
}
REFUSED: dict[str, Callable[[list[float]], Any]] = {
    "complex numbers": lambda x: np.array(x, complex),
    "a complex tensor": lambda x: torch.tensor(x, dtype=torch.complex64),
    "texts": lambda x: [str(value) for value in x],
    "texts among objects": lambda x: np.array([str(value) for value in x], object),
    "bytes": lambda x: np.array([str(value).encode() for value in x]),
    "dates": lambda x: np.array([int(value) for value in x], "M8[s]"),
    "masked values": lambda x: np.ma.array(x, mask=[True] + [False] * (len(x) - 1)),
    "a number beyond float64": lambda x: [10**400, *x[1:]],
    "rows of different lengths": lambda x: [x, x[:1]],
    "a generator": lambda x: (value for value in x),
    "a set": set,
    "nothing": lambda _: None,
}
OF_CONFIDENCE: dict[str, Callable[[Any], Any]] = {
    "summary": lambda p: metrics.summary(p, C),
    "summaries": lambda p: metrics.summaries([p], [C]),
    "ece": lambda p: metrics.ece(p, C),
    "smooth_ece": lambda p: metrics.smooth_ece(p, C),
    "auroc": lambda p: metrics.auroc(p, C),
    "selective_accuracy": lambda p: metrics.selective_accuracy(p, C, rejection=[0.5]).accuracy,
    "thresholds": lambda p: metrics.selective_accuracy(P, C, threshold=p).accuracy,
    "risk": lambda p: metrics.risk_controlled_threshold(p, C, risk_limit=0.5).threshold,
    "bootstrap": lambda p: metrics.bootstrap(p, C, metrics=["brier"], resamples=5)["brier"],
    "common": lambda p: metrics.joint_bootstrap({0: (p, C)}, metrics=["brier"], resamples=5).estimates,
    "diagram": lambda p: metrics.reliability_diagram(p, C, resamples=3).count,
    "correlations": lambda p: metrics.correlations({"a": p, "b": P[::-1]}).matrix,
    "runs": lambda p: metrics.mean_and_standard_error(p),
}


def same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other)


def pairs(kinds: dict[str, Any]) -> list[tuple[str, str]]:
    """Each kind at one function and the first kind at all functions, which convert by `semcal.arrays`."""
    return [*product(kinds, ["summary"]), *product(list(kinds)[:1], OF_CONFIDENCE)]


@pytest.mark.filterwarnings("ignore::semcal.errors.UndefinedWarning")
@pytest.mark.parametrize(("kind", "function"), pairs(TAKEN))
def test_numbers_of_other_kinds_give_the_result_of_plain_ones(kind: str, function: str) -> None:
    measure = OF_CONFIDENCE[function]
    assert same(measure(TAKEN[kind](P)), measure(P))


@pytest.mark.filterwarnings("ignore::semcal.errors.UndefinedWarning")
@pytest.mark.parametrize(("kind", "function"), pairs(REFUSED))
def test_what_is_no_number_is_refused_and_the_argument_named(kind: str, function: str) -> None:
    with pytest.raises(InputError if function != "thresholds" else SemcalError) as caught:
        OF_CONFIDENCE[function](REFUSED[kind](P))
    assert any(
        name in str(caught.value) for name in ("confidence", "score", "threshold", "values", "measures")
    )


@pytest.mark.parametrize("kind", TAKEN)
def test_log_likelihoods_of_other_kinds_give_the_result_of_plain_ones(kind: str) -> None:
    expected = measures.confidence(CLUSTERS, U, measure=measures.MEASURES)
    whole = "array" in kind or kind.startswith("a tensor")
    for given in ([TAKEN[kind](row) for row in U], *([TAKEN[kind](U)] if whole else [])):
        for name, found in measures.confidence(CLUSTERS, given, measure=measures.MEASURES).items():
            assert same(found.probabilities, expected[name].probabilities)
    assert same(measures.predictive_entropy([TAKEN[kind](row) for row in U]), measures.predictive_entropy(U))


@pytest.mark.parametrize("kind", REFUSED)
def test_log_likelihoods_that_are_no_numbers_are_refused(kind: str) -> None:
    with pytest.raises(InputError, match=r"log_likelihoods|log-likelihood"):
        measures.confidence(CLUSTERS, [REFUSED[kind](U[0]), U[1]], measure="L-SC")


def test_log_likelihoods_whose_sums_would_overflow_are_refused() -> None:
    with pytest.raises(InputError, match=r"question 1 .*-1e\+308"):
        measures.confidence([[[0]], [[0, 1]]], [[-1.0], [-1e308, -1e308]], measure="B-SC")
    sharp = {"t_alpha": 1e-20, "measure": "T-SC"}
    with pytest.raises(UsageError, match="1e-20"):
        measures.confidence([[[0, 1], [2]]], [[-1e299, -1e299, -1.0]], **sharp)
    found = measures.confidence([[[0, 1], [2]]], [[-1e299, -1e299, -1e298]], measure="B-SC")
    assert found.probabilities.tolist() == [0.0, 1.0]
    with pytest.warns(UndefinedWarning, match="sample of likelihood 0"):
        measures.confidence([[[0, 1]]], [[-np.inf, -1.0]], measure="B-SC")


OPTIONS: dict[str, Callable[[Any], object]] = {
    "bins": lambda x: metrics.ece(P, C, bins=x),
    "bins of a summary": lambda x: metrics.summary(P, C, bins=x),
    "bins of rows in order": lambda x: metrics.ace_in_row_order(P, C, bins=x),
    "end_weight": lambda x: metrics.smooth_ece(P, C, end_weight=x),
    "level": lambda x: metrics.bootstrap(P, C, level=x, resamples=3),
    "resamples": lambda x: metrics.bootstrap(P, C, resamples=x),
    "resamples of a test": lambda x: metrics.paired_test(P, C, P, C, resamples=x),
    "resamples in common": lambda x: metrics.joint_bootstrap({0: (P, C)}, resamples=x),
    "seed": lambda x: metrics.bootstrap(P, C, resamples=3, seed=x),
    "level of a diagram": lambda x: metrics.reliability_diagram(P, C, level=x),
    "resamples of a diagram": lambda x: metrics.reliability_diagram(P, C, resamples=x),
    "risk_limit": lambda x: metrics.risk_controlled_threshold(P, C, risk_limit=x),
    "delta": lambda x: metrics.risk_controlled_threshold(P, C, risk_limit=0.1, delta=x),
    "t_alpha": lambda x: measures.confidence(CLUSTERS, U, measure="T-SC", t_alpha=x),
    "g_alpha": lambda x: measures.confidence(CLUSTERS, U, measure="G-SC", g_alpha=x),
    "measure": lambda x: measures.confidence(CLUSTERS, U, measure=x),
}


@pytest.mark.parametrize(
    "value", ["ten", None, float("nan"), -1, 1j, [1, 2], {}, np.array([0.5, 0.7]), object()]
)
@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_the_wrong_kind_are_refused_with_what_was_got(option: str, value: Any) -> None:
    if option == "seed" and (value is None or isinstance(value, list)):
        pytest.skip("a seed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)
        with pytest.raises(UsageError) as caught:
            OPTIONS[option](value)
    assert option.split()[0] in str(caught.value) or "unknown measure" in str(caught.value)


def test_options_that_are_numbers_of_another_kind_are_taken() -> None:
    assert (
        metrics.ece(P, C, bins=np.int64(3))
        == metrics.ece(P, C, bins=torch.tensor(3))
        == metrics.ece(P, C, bins=3)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedWarning)
        several = [
            metrics.bootstrap(P, C, level=level, resamples=resamples, metrics=["brier"])
            for level, resamples in ((0.5, 9), (np.float32(0.5), 9.0), (torch.tensor(0.5), np.int8(9)))
        ]
    assert several[0] == several[1] == several[2]
    found = [measures.confidence(CLUSTERS, U, measure="T-SC", t_alpha=a) for a in (0.5, torch.tensor(0.5))]
    assert same(found[0].probabilities, found[1].probabilities)


def test_clusters_and_relations_of_texts_are_refused() -> None:
    with pytest.raises(InputError, match="clusters"):
        measures.confidence([[["0", "1"]]])
    with pytest.raises(InputError, match="clusters"):
        measures.number_of_clusters([[[10**400]]])
    for related in ([["yes", "no"], ["no", "yes"]], [[1, 0], [1]], [[1j]]):
        with pytest.raises(InputError, match="related"):
            measures.components(related)
    with pytest.raises(InputError, match="related"):
        measures.greedy([[1, None], [None, 1]])
    assert measures.components(torch.eye(2, requires_grad=True)) == [[0], [1]]


def test_numbers_nested_hundreds_deep_are_refused() -> None:
    nested: object = 0.5
    for _ in range(900):
        nested = [nested]
    with pytest.raises(InputError, match="confidence"):
        metrics.ece(nested, [True])
