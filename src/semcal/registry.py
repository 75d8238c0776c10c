"""Names to objects, looked up lazily, with "did you mean" for a name that is not there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from semcal.errors import UsageError, shown

__all__ = ["Registry", "check_name"]


def check_name(name: str, known: Iterable[str], *, what: str) -> str:
    """Return `name` if it is one of `known`.

    Parameters
    ----------
    name : str
        The name that was asked for.
    known : iterable of str
        The names that exist.
    what : str
        What is being named, for the message: "measure", "method".

    Raises
    ------
    UsageError
        With the nearest known name, if there is one.

    Examples
    --------
    >>> check_name("ECE", ["ECE", "ACE"], what="metric")
    'ECE'
    >>> check_name("E-CS", ["E-SC", "L-SC"], what="measure")
    Traceback (most recent call last):
    semcal.errors.UsageError: unknown measure 'E-CS'; did you mean 'E-SC'? Known: E-SC, L-SC
    """
    names = list(known)
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise UsageError(f"unknown {what} {shown(name)}{hint} Known: {', '.join(names)}")


class Registry:
    """A table of names and "module:object" addresses, imported only when asked for.

    Parameters
    ----------
    what : str
        What the names stand for, for error messages.
    addresses : mapping of str to str
        name → "module:object".
    """

    def __init__(self, what: str, addresses: Mapping[str, str]) -> None:
        self.what = what
        self._addresses = dict(addresses)

    def names(self) -> tuple[str, ...]:
        """All known names, in the order in which they were registered."""
        return tuple(self._addresses)

    def load(self, name: str) -> Any:
        """Import and return the object called `name`; UsageError if there is none."""
        module, _, attribute = self._addresses[check_name(name, self._addresses, what=self.what)].partition(
            ":"
        )
        return getattr(import_module(module), attribute)
