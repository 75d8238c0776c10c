"""Strict JSON for all files: `parse` a text, and find a `fault` in the result.

Python's json accepts too much: NaN, duplicate keys, any depth, lone surrogates.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from semcal.errors import InputError, shown

#: How deep lists and objects may be nested in a row.
DEEPEST = 100
TOO_DEEP = f"nested more than {DEEPEST} deep: leave out the key that holds this"
#: A lone surrogate: JSON can escape it, UTF-8 cannot encode it.
HALF = re.compile("[\\ud800-\\udfff]")

Keyed = tuple[str | None, Any]


class _Doubled(dict[str, Any]):
    """An object with a duplicate key: `key`."""

    key: str


class _TooLong(str):
    """The digits of a whole number that is too long for Python."""


class _Reading:
    """The state of one `parse`: whether something `odd` was found, for `fault` to report."""

    def __init__(self) -> None:
        self.odd = False

    def object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        data = dict(pairs)
        if len(data) == len(pairs):
            return data
        self.odd = True
        doubled = _Doubled(data)
        doubled.key = Counter(key for key, _ in pairs).most_common(1)[0][0]
        return doubled

    def constant(self, name: str) -> float:
        self.odd = self.odd or name == "NaN"
        return float(name)

    def whole(self, digits: str) -> int | _TooLong:
        try:
            return int(digits)
        except ValueError:
            self.odd = True
            return _TooLong(digits)


def parse(text: str) -> tuple[Any, bool]:
    """Return the value of a JSON text, and whether `fault` must check it; InputError if it is no JSON.

    >>> parse('{"id": 1, "samples": ["Ada"]}')
    ({'id': 1, 'samples': ['Ada']}, False)
    """
    reading = _Reading()
    how: dict[str, Any] = {"object_pairs_hook": reading.object, "parse_constant": reading.constant}
    try:
        try:
            data = json.loads(text, **how)
        except json.JSONDecodeError:
            raise
        except ValueError:  # a whole number of thousands of digits: read again, slower
            data = json.loads(text, **how, parse_int=reading.whole)
    except RecursionError:
        raise InputError(TOO_DEEP) from None
    except ValueError as error:
        raise InputError(f"not JSON ({error})") from None
    odd = reading.odd or "\\ud" in text or "\\uD" in text or text.count("[") + text.count("{") > DEEPEST
    return data, odd


def fault(data: Any) -> str | None:
    """Return why a parsed value cannot be used or written again; None if it can.

    >>> fault({"id": 1, "log_likelihoods": [-0.1, float("nan")]})
    "'log_likelihoods' holds NaN, which is no value of JSON: write null for a number that is not known"
    >>> fault(parse('{"id": 1, "id": 2}')[0])
    "the key 'id' occurs twice in one object: rename or remove one"
    """
    level: list[Keyed] = [(None, data)]
    for _ in range(DEEPEST + 1):
        for key, value in level:
            reason = _fault_of_one(key, value)
            if reason is not None:
                return reason
        level = [item for keyed in level for item in _inside(*keyed)]
        if not level:
            return None
    return TOO_DEEP


def _fault_of_one(key: str | None, value: Any) -> str | None:
    if isinstance(value, _Doubled):
        return f"the key {shown(value.key)} occurs twice in one object: rename or remove one"
    if isinstance(value, _TooLong):
        reason = f"a whole number of {len(value)} digits: write it as a text, in quotes"
    elif isinstance(value, float) and math.isnan(value):
        reason = "NaN, which is no value of JSON: write null for a number that is not known"
    elif isinstance(value, str) and (half := HALF.search(value)):
        reason = f"{half[0]!a}, half a character, which cannot be written: save the file as UTF-8"
    else:
        return None
    return f"{'a value' if key is None else shown(key)} holds {reason}"


def _inside(key: str | None, value: Any) -> Iterator[Keyed]:
    """The items of a list or an object, with their outermost key."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield key, name
            yield name if key is None else key, item
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield key, item
