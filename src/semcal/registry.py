"""Checks of names, with "did you mean"; objects by name, and names of a package, imported on use."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, TypeVar

from semcal.errors import UsageError, naming_extra, shown


class Named(Protocol):
    """What has a name."""

    @property
    def name(self) -> str:
        """By which it is registered."""


_Named = TypeVar("_Named", bound=Named)


def check_name(name: str, names: Iterable[str], *, what: str) -> str:
    """Return `name` if it is one of `names`; else UsageError, with the nearest of them.

    `what` is what it names, for the message: "measure", "method".

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
    """Return the option of a command that sets a field.

    >>> option_name("max_new_tokens")
    '--max-new-tokens'
    """
    return f"--{name.replace('_', '-')}"


class Registry:
    """Objects by name, as "module:object" addresses that are imported on use; `what` is for messages."""

    def __init__(self, what: str, addresses: Mapping[str, str]) -> None:
        self.what = what
        self._addresses = dict(addresses)

    def names(self) -> tuple[str, ...]:
        """Return all known names, in the order of registration."""
        return tuple(self._addresses)

    def load(self, name: str) -> Any:
        """Import and return the object called `name`; UsageError if there is none."""
        address = self._addresses[check_name(name, self._addresses, what=self.what)]
        module, _, attribute = address.partition(":")
        return getattr(import_module(module), attribute)


#: The modules that `load_plugins` was told, for processes that start later.
PLUGINS: list[str] = []
#: The entry points of installed packages that register something.
ENTRY_POINTS = "semcal.plugins"


def load_plugins(names: Iterable[str] = ()) -> None:
    """Import the modules of users that register entries: those of the entry points, then those named.

    A named module may lie in the working directory. UsageError if one cannot be imported.
    """
    for entry in entry_points(group=ENTRY_POINTS):
        _import_plugin(entry.module, f"the entry point {entry.name!r} of {ENTRY_POINTS}")
    if (names := list(names)) and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    for name in names:
        _import_plugin(name, "plugins")
        PLUGINS.extend({name} - {*PLUGINS})


def _import_plugin(name: str, origin: str) -> None:
    try:
        import_module(name)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        remedy = "give the name of a module that is installed or lies in the working directory, without .py"
        raise UsageError(f"{origin}: {shown(name)} cannot be imported ({reason}); {remedy}") from error


class Catalogue(dict[str, _Named]):
    """Objects that say all about themselves, by name, in the order of registration.

    An unknown name is a UsageError with the nearest known one; so is a name that is registered twice.

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
            raise UsageError(f"there is a {self.what} called {shown(entry.name)} already; take another name")
        self[entry.name] = entry
        return entry

    def __missing__(self, name: str) -> _Named:
        check_name(name, self, what=self.what)
        raise AssertionError  # pragma: no cover


def attribute(package: str, addresses: Mapping[str, str], name: str) -> Any:
    """Import an attribute of a package and set it there, as the body of its `__getattr__`.

    `addresses` maps each name to the submodule that holds it, "" for a submodule of that name, ".other"
    for a module of the package above; AttributeError for any other name.
    """
    if name not in addresses:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    with naming_extra(f"{package}.{name}"):
        module = import_module(f".{addresses[name] or name}", package)
    value = getattr(module, name) if addresses[name] else module
    setattr(sys.modules[package], name, value)
    return value
