"""Conversion of arrays, tables and options to float64, with checks."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semcal.errors import InputError, UsageError, shown

Floats = NDArray[np.float64]
#: Kinds of dtypes that may hold numbers: bool, int, float, object.
NUMERIC = "biufO"


def as_numbers(values: Any, name: str) -> Floats:
    """Return an array of float64 of any shape; `name` is for messages.

    `values` are numbers or truth values: nested lists, arrays, pandas objects, tensors on the CPU. None
    becomes NaN. InputError is raised for texts, complex numbers, dates, masked values, numbers beyond float64
    and rows of different lengths.

    >>> as_numbers([[True, 0.5], [1, None]], "confidence")
    array([[1. , 0.5],
           [1. , nan]])
    >>> as_numbers(["0.5"], "confidence")
    Traceback (most recent call last):
    semcal.errors.InputError: confidence: got ['0.5'] (dtype <U3). Pass numbers
    """
    try:
        array = np.asarray(values)
        if array.dtype.kind not in NUMERIC or np.ma.is_masked(values):
            raise TypeError(f"dtype {array.dtype}" if array.dtype.kind not in NUMERIC else "masked values")
        return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{name}: got {shown(values)} ({reason}). Pass numbers") from error


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
    try:
        option = math.nan if isinstance(value, (str, bool)) else float(value)
    except (TypeError, ValueError, OverflowError):
        option = math.nan
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
