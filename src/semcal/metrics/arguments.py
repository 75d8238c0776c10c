"""What metrics accept: confidences or scores, outcomes, groups, runs, also by scikit-learn's names."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, currentframe, signature
from typing import Any, ParamSpec, Protocol, Self, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from semcal.arrays import as_numbers, as_option
from semcal.errors import InputError, UndefinedWarning, UsageError

Floats = NDArray[np.float64]
Labels = Sequence[Hashable] | NDArray[Any]
Groups = NDArray[np.intp]
"""The number of each question's group: 0, 1, … in order of first appearance."""

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

#: A probability outside [0, 1] by no more than this is a rounding error and is clipped.
OUTSIDE = 1e-6


class BothNames(Protocol[P, R]):
    """A function that takes its first two arguments as declared, or as y_prob or y_score, and y_true."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    def __call__(self, *, y_true: ArrayLike, y_prob: ArrayLike, **options: Any) -> R: ...

    @overload
    def __call__(self, *, y_true: ArrayLike, y_score: ArrayLike, **options: Any) -> R: ...


def both_names(function: Callable[P, R]) -> BothNames[P, R]:
    """Let a function of (confidence or score, correct) be called with scikit-learn's names as well.

    `y_prob` is the first and `y_true` the second argument; where any score will do, `y_score` is the first
    too. They stand in another order there, so they are taken by keyword alone. UsageError if one of them is
    missing, or given beside the argument that it stands for.

    Examples
    --------
    >>> from semcal.metrics import brier
    >>> brier(y_true=[1, 0], y_prob=[0.9, 0.6]) == brier([0.9, 0.6], [1, 0])
    True
    >>> brier(y_true=[1, 0])
    Traceback (most recent call last):
    semcal.errors.UsageError: brier got y_true alone; give y_prob and y_true, or confidence and correct
    """
    first, second = list(signature(function).parameters.values())[:2]
    name = getattr(function, "__name__", "this function")
    firsts = ("y_prob", "y_score") if first.name == "score" else ("y_prob",)
    hint = f"give {' or '.join(firsts)} and y_true, or {first.name} and {second.name}"

    @wraps(function)
    def with_both(*args: Any, **options: Any) -> Any:
        if not any(alias in options for alias in ("y_true", "y_prob", "y_score")):
            return function(*args, **options)
        aliases = [alias for alias in ("y_prob", "y_score", "y_true") if alias in options]
        if args or first.name in options or second.name in options:
            raise UsageError(f"{name} got {' and '.join(aliases)} beside arguments of its own names; {hint}")
        if "y_score" in aliases and "y_score" not in firsts:
            raise UsageError(f"{name} takes probabilities, not any score: give them as y_prob, not y_score")
        if len(aliases) == 3:
            raise UsageError(f"{name} got y_prob and y_score; {hint}")
        if aliases == ["y_true"] or ("y_true" not in aliases and second.default is Parameter.empty):
            raise UsageError(f"{name} got {aliases[0]} alone; {hint}")
        renamed = dict.fromkeys(firsts, first.name) | {"y_true": second.name}
        return function(**{renamed.get(key, key): value for key, value in options.items()})  # type: ignore[call-arg]

    return with_both


def check_same_length(values: Floats, correct: Floats) -> None:
    """Refuse outcomes that cannot belong to the values."""
    if len(values) != len(correct):
        raise InputError(
            f"there are {len(values)} confidences and {len(correct)} outcomes; give one outcome for each"
        )


def as_scores(score: ArrayLike, argument: str) -> Floats:
    """A non-empty vector of numbers without NaN."""
    values = _vector(score, argument)
    nan = np.flatnonzero(np.isnan(values))
    if len(nan):
        raise InputError(
            f"{argument}[{nan[0]}] is NaN, which has no place in a ranking; leave the question out, "
            "or use a measure that is defined for it"
        )
    return values


def as_probabilities(confidence: ArrayLike) -> Floats:
    """A non-empty vector of probabilities, rounding errors clipped."""
    values = as_scores(confidence, "confidence")
    outside = np.flatnonzero((values < -OUTSIDE) | (values > 1 + OUTSIDE))
    if len(outside):
        raise InputError(
            f"confidence[{outside[0]}] is {values[outside[0]]}; expected a probability in [0, 1]: "
            "AUROC, AURAC, PRR and selective accuracy take any score, calibration metrics do not"
        )
    return np.clip(values, 0.0, 1.0)


def as_correct(correct: ArrayLike) -> Floats:
    """A non-empty vector of outcomes, 1 for correct and 0 for not."""
    values = _vector(correct, "correct")
    odd = np.flatnonzero((values != 0) & (values != 1))
    if len(odd):
        raise InputError(f"correct[{odd[0]}] is {values[odd[0]]}; expected true or false (1 or 0)")
    return values


def as_pairs(confidence: ArrayLike, correct: ArrayLike) -> tuple[Floats, Floats]:
    """As many probabilities and outcomes."""
    p, c = as_probabilities(confidence), as_correct(correct)
    check_same_length(p, c)
    return p, c


def as_groups(labels: Labels | None, n: int) -> Groups | None:
    """Number the groups of n questions; None if each is a group of its own."""
    if labels is None:
        return None
    members = labels.tolist() if isinstance(labels, np.ndarray) else list(labels)
    if len(members) != n:
        raise InputError(f"there are {len(members)} groups for {n} questions; give each one's label")
    first: dict[Hashable, int] = {}
    try:
        numbers = np.array([first.setdefault(label, len(first)) for label in members], np.intp)
    except TypeError as error:
        raise InputError(
            f"groups holds something that is no label ({error}); expected texts or numbers"
        ) from error
    if any(label != label for label in first):
        raise InputError("groups holds NaN; expected a text or a number for each question")
    return None if len(first) == n else numbers


@dataclass(frozen=True, eq=False)
class Runs:
    """Values and outcomes of R runs on the same N questions."""

    confidences: Sequence[Floats]  # R times [N]; absent where any score was given
    scores: Sequence[Floats]  # what questions are ranked by
    correct: Sequence[Floats]
    weights: Floats | None  # [R] share of each run in the mean, equal by default

    @classmethod
    def of(
        cls,
        confidence: ArrayLike,
        correct: ArrayLike,
        score: ArrayLike | None = None,
        *,
        any_score: bool = False,
        weights: ArrayLike | None = None,
    ) -> Self:
        """Check arrays of shape (N,) or (R, N), and weights (R,)."""
        outcomes = [as_correct(row) for row in _rows(correct, "correct")]
        ranked_by = confidence if score is None else score
        scores = [as_scores(row, "score") for row in _rows(ranked_by, "score")]
        _check_pairs(scores, outcomes)
        shares = None if weights is None else _shares(weights, len(outcomes))
        if any_score:
            return cls(scores, scores, outcomes, shares)
        probabilities = [as_probabilities(row) for row in _rows(confidence, "confidence")]
        _check_pairs(probabilities, outcomes)
        return cls(probabilities, scores if score is not None else probabilities, outcomes, shares)

    @property
    def n(self) -> int:
        """Number of questions."""
        return len(self.correct[0])


def _rows(values: ArrayLike, argument: str) -> list[Floats]:
    """One array a run."""
    array = as_numbers(values, argument)
    if array.ndim not in (1, 2) or not array.size:
        raise InputError(
            f"{argument} has shape {array.shape}; expected (N,) for one run or (R, N) for several"
        )
    return list(np.atleast_2d(array))


def _shares(weights: ArrayLike, runs: int) -> Floats:
    """Non-negative weights of the runs, made to add up to 1."""
    values = as_scores(weights, "weights")
    if len(values) != runs or (values < 0).any() or not 0 < values.sum() < np.inf:
        raise InputError(
            f"weights is {values.tolist()}; expected {runs} non-negative finite numbers, one a run, not all 0"
        )
    shares: Floats = values / values.sum()
    return shares


def _check_pairs(values: Sequence[Floats], correct: Sequence[Floats]) -> None:
    """Refuse outcomes that cannot belong to the values, run by run."""
    if len(values) != len(correct):
        raise InputError(
            f"there are confidences of {len(values)} runs, outcomes of {len(correct)}; give as many"
        )
    for pair in zip(values, correct):
        check_same_length(*pair)


def _vector(values: ArrayLike, argument: str) -> Floats:
    """`values` as a one-dimensional, non-empty array of float64."""
    array = as_numbers(values, argument)
    if array.ndim != 1:
        raise InputError(f"{argument} has shape {array.shape}; expected one value a question, shape (N,)")
    if not len(array):
        raise InputError(f"{argument} is empty; a metric needs at least one question")
    return array


def warn_undefined(message: str) -> None:
    """Warn, at the line that called into this package, that something is NaN."""
    frame, level = currentframe(), 1
    while frame is not None and frame.f_globals["__name__"].startswith("semcal.metrics"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UndefinedWarning, stacklevel=level)


def check_bins(bins: int) -> int:
    """A positive number of bins."""
    return int(as_option(bins, "bins", "a positive whole number, such as 15", low=0, whole=True))
