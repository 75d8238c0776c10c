"""Conversion of arrays, tensors, tables and options to float64, with checks.

A tensor is recognized by its method `detach`, so only numpy is imported.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semcal.errors import InputError, UsageError, shown

Floats = NDArray[np.float64]
#: Kinds of numeric dtypes: bool, int, float.
NUMERIC = "biuf"


def as_numbers(values: Any, name: str) -> Floats:
    """Return an array of float64 of any shape; `name` is for messages.

    `values` are numbers or truth values: nested lists, arrays, tensors on any device (also bfloat16 or
    requiring grad), pandas objects. None becomes NaN. InputError is raised for texts, complex numbers, dates,
    masked values, numbers beyond float64 and rows of different lengths.

    >>> as_numbers([[True, 0.5], [1, None]], "confidence")
    array([[1. , 0.5],
           [1. , nan]])
    >>> as_numbers(["0.5"], "confidence")
    Traceback (most recent call last):
    semcal.errors.InputError: confidence holds a str_, got ['0.5']; expected numbers
    """
    try:
        array = np.asarray(_plain(values, name))
        for value in array.ravel() if array.dtype.kind not in NUMERIC else ():
            is_number = isinstance(value, (numbers.Real, np.bool_)) or type(value).__name__ in _DECIMALS
            if value is not None and not is_number:
                kind = type(value).__name__
                raise InputError(f"{name} holds a {kind}, got {shown(values)}; expected numbers")
        return np.asarray(array, dtype=np.float64)
    except InputError:
        raise
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{name} holds no numbers of equal lengths ({reason}); expected numbers") from error


_DECIMALS = ("Decimal", "bfloat16")


def _plain(values: Any, name: str) -> Any:
    if np.ma.is_masked(values):
        raise InputError(
            f"{name} holds masked values. Leave these questions out (values.compressed()), or fill them."
        )
    if hasattr(values, "detach"):
        tensor = values.detach().cpu()
        wide = tensor if tensor.is_complex() else tensor.double()
        return wide.numpy()
    if isinstance(values, (list, tuple)) and any(
        hasattr(item, "detach") or isinstance(item, (list, tuple, np.ma.MaskedArray)) for item in values
    ):
        return [_plain(item, name) for item in values]
    return values


def as_option(
    value: Any,
    name: str,
    expected: str,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    whole: bool = False,
) -> float:
    """Return an option that is one number strictly between two others.

    UsageError, which ends with `expected`, is raised for other values, and with `whole` for fractions.

    >>> as_option("ten", "bins", "a positive whole number, such as 15", low=0, whole=True)
    Traceback (most recent call last):
    semcal.errors.UsageError: bins is 'ten'; expected a positive whole number, such as 15
    """
    number = value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
    real = isinstance(number, numbers.Real) and not isinstance(number, bool)
    try:
        option = float(number) if real else math.nan
    except OverflowError:
        option = math.inf
    if not low < option < high or (whole and not option.is_integer()):
        raise UsageError(f"{name} is {shown(value)}; expected {expected}")
    return option


def as_generator(seed: Any) -> np.random.Generator:
    """Return the random generator of a seed; UsageError for an invalid seed."""
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"seed is {shown(seed)}; expected a whole number of 0 or more, or a numpy.random.Generator"
        ) from error


def check_seed(seed: Any) -> None:
    """Raise UsageError for a seed that is no whole number of 0 or more."""
    if not isinstance(seed, numbers.Integral) or isinstance(seed, bool) or seed < 0:
        raise UsageError(f"seed is {shown(seed)}; expected a whole number of 0 or more")


def as_list(values: Any) -> list[Any]:
    """Return the values of a sequence or array, or one value, as a list.

    >>> as_list("length"), as_list(0.1), as_list(np.array([0.1, 0.2]))
    (['length'], [0.1], [0.1, 0.2])
    """
    values = values.tolist() if hasattr(values, "tolist") else values
    is_one = isinstance(values, str) or not isinstance(values, Iterable)
    return [values] if is_one else list(values)
