"""Sizes of memory as people write them, and as the engine counts them: in bytes."""

from __future__ import annotations

import re

from semcal.errors import UsageError

__all__ = ["parse_size"]

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{unit}I": 2 ** (10 * power) for power, unit in enumerate("KMGT", 1)}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", re.IGNORECASE)


def parse_size(text: str | int) -> int:
    """Return a number of bytes.

    Parameters
    ----------
    text : str or int
        Bytes, or a number with a unit: kB, MB, GB, TB are powers of 1000, KiB, MiB, GiB, TiB of 1024. The B
        may be left out, and large or small letters do not matter.

    Raises
    ------
    UsageError
        If it is no such size, or less than one byte.

    Examples
    --------
    >>> parse_size("2GB"), parse_size("1.5 GiB"), parse_size("512m"), parse_size(1000)
    (2000000000, 1610612736, 512000000, 1000)
    """
    found = _SIZE.fullmatch(str(text))
    unit = found[2].upper() if found else None
    if found is None or unit not in _UNITS or int(float(found[1]) * _UNITS[unit]) < 1:
        raise UsageError(f"{text!r} is no size of memory; give bytes or a unit, such as 500MB, 2GB or 1.5GiB")
    return int(float(found[1]) * _UNITS[unit])
