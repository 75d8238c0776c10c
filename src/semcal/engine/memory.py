"""Sizes of memory as people write them, and as the engine counts them: in bytes."""

from __future__ import annotations

import re

from semcal.errors import UsageError, shown

__all__ = ["parse_size"]

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{unit}I": 2 ** (10 * power) for power, unit in enumerate("KMGT", 1)}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", re.IGNORECASE)
#: No process can address as many bytes.
LARGEST = 2**63


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
        If it is no such size, less than one byte, or more than a process can address.

    Examples
    --------
    >>> parse_size("2GB"), parse_size("1.5 GiB"), parse_size("512m"), parse_size(1000)
    (2000000000, 1610612736, 512000000, 1000)
    """
    size = text if isinstance(text, int) else _bytes(text)
    if not 1 <= size < LARGEST:
        raise UsageError(
            f"{shown(text)} is no size of memory; give bytes or a unit, such as 500MB, 2GB or 1.5GiB"
        )
    return int(size)


def _bytes(text: str) -> float:
    """The number that a text says; 0 for one that says none."""
    found = _SIZE.fullmatch(text)
    unit = _UNITS.get(found[2].upper()) if found else None
    return float(found[1]) * unit if found and unit else 0.0
