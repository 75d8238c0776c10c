"""scikit-learn's argument names, y_true with y_prob or y_score, for functions of (confidence, correct)."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from numpy.typing import ArrayLike

from semcal.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


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
    both = f"give {' or '.join(firsts)} and y_true, or {first.name} and {second.name}"

    @wraps(function)
    def with_both(*args: Any, **options: Any) -> Any:
        if not any(alias in options for alias in ("y_true", "y_prob", "y_score")):
            return function(*args, **options)
        given = [alias for alias in ("y_prob", "y_score", "y_true") if alias in options]
        if args or first.name in options or second.name in options:
            raise UsageError(f"{name} got {' and '.join(given)} beside arguments of its own names; {both}")
        if "y_score" in given and "y_score" not in firsts:
            raise UsageError(f"{name} takes probabilities, not any score: give them as y_prob, not y_score")
        if len(given) == 3:
            raise UsageError(f"{name} got y_prob and y_score; {both}")
        if given == ["y_true"] or ("y_true" not in given and second.default is Parameter.empty):
            raise UsageError(f"{name} got {given[0]} alone; {both}")
        renamed = dict.fromkeys(firsts, first.name) | {"y_true": second.name}
        return function(**{renamed.get(key, key): value for key, value in options.items()})  # type: ignore[call-arg]

    return with_both
