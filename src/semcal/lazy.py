"""Lazy imports of a package's names."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

__all__ = ["attribute"]


def attribute(package: str, addresses: Mapping[str, str], name: str) -> Any:
    """Import an attribute of a package and set it there, as the body of its `__getattr__`.

    `addresses` maps each name to the submodule that holds it, "" for a submodule of that name; AttributeError
    for any other name.
    """
    if name not in addresses:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    module = import_module(f"{package}.{addresses[name] or name}")
    value = getattr(module, name) if addresses[name] else module
    setattr(sys.modules[package], name, value)
    return value
