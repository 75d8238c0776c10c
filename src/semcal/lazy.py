"""Names of a package that are imported when they are first asked for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

__all__ = ["attribute"]


def attribute(package: str, addresses: Mapping[str, str], name: str) -> Any:
    """Import what a package calls `name`, and keep it there: the work of its `__getattr__`.

    Parameters
    ----------
    package : str
    addresses : mapping of str to str
        Name → the submodule that holds it; "" for a submodule of that name.
    name : str

    Raises
    ------
    AttributeError
        If the package has no such name.
    """
    if name not in addresses:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    module = import_module(f"{package}.{addresses[name] or name}")
    value = getattr(module, name) if addresses[name] else module
    setattr(sys.modules[package], name, value)
    return value
