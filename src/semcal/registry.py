"""Checks of names with "did you mean"; objects by name; attributes of packages that are imported on use."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeVar

from semcal.errors import UsageError, naming_extra, shown


class Named(Protocol):
    """An object with a name."""

    @property
    def name(self) -> str:
        """The name in the registry."""


_Named = TypeVar("_Named", bound=Named)


def check_name(name: str, names: Iterable[str], *, what: str) -> str:
    """Return `name` if it is one of `names`; else UsageError, with the nearest of them.

    `what` is the kind of name in the message, such as "measure" or "method".

    >>> check_name("ECE", ["ECE", "ACE"], what="metric")
    'ECE'
    >>> check_name("E-CS", ["E-SC", "L-SC"], what="measure")
    Traceback (most recent call last):
    semcal.errors.UsageError: unknown measure 'E-CS'; did you mean 'E-SC'? Known: E-SC, L-SC
    """
    names = list(names)
    if isinstance(name, str) and name in names:
        return name
    near = difflib.get_close_matches(name, names, n=1) if isinstance(name, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise UsageError(f"unknown {what} {shown(name)}{hint} Known: {', '.join(names)}")


def option_name(name: str) -> str:
    """Return the option of a command that sets a field."""
    return f"--{name.replace('_', '-')}"


#: The arguments of `load_plugins`, for processes that start later.
PLUGINS: list[str] = []


def load_plugins(names: Iterable[str]) -> None:
    """Import modules that register entries, also of the working directory; UsageError if that fails."""
    if (names := list(names)) and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    for name in names:
        try:
            import_module(name)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            remedy = "give the name of a module that is installed or in the working directory, without .py"
            raise UsageError(f"plugins: {shown(name)} cannot be imported ({reason}); {remedy}") from error
        PLUGINS.extend({name} - {*PLUGINS})


class Catalogue(dict[str, _Named]):
    """Self-describing objects by name, in the order of registration.

    An unknown name raises a UsageError with the nearest known name; a duplicate name also raises one.

    >>> from semcal.metrics import METRICS
    >>> METRICS["auroc"].larger_is_better, METRICS.get("f1")
    (True, None)
    >>> METRICS["aurc"]
    Traceback (most recent call last):
    semcal.errors.UsageError: unknown metric 'aurc'; did you mean 'auroc'? Known: accuracy, ece, ...
    """

    def __init__(self, what: str, entries: Iterable[_Named] = ()) -> None:
        super().__init__()
        self.what = what
        for entry in entries:
            self.register(entry)

    def register(self, entry: _Named) -> _Named:
        """Add an entry under its name and return it."""
        if entry.name in self:
            raise UsageError(f"{self.what} {shown(entry.name)}: already registered. Choose another name.")
        self[entry.name] = entry
        return entry

    def __missing__(self, name: str) -> _Named:
        check_name(name, self, what=self.what)
        raise AssertionError  # pragma: no cover


def attribute(package: str, addresses: Mapping[str, str], name: str) -> Any:
    """Import an attribute of a package and store it in the package, for its `__getattr__`.

    `addresses` maps each name to the submodule that holds it: "" for a submodule of that name, ".other" for
    a module of the parent package. AttributeError is raised for other names.
    """
    if name not in addresses:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    with naming_extra(f"{package}.{name}"):
        module = import_module(f".{addresses[name] or name}", package)
    value = getattr(module, name) if addresses[name] else module
    setattr(sys.modules[package], name, value)
    return value
