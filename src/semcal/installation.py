"""Versions of packages and the machine, for the record of a run."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("semcal", "torch", "transformers", "numpy", "scipy", "rapidfuzz", "matplotlib")


def versions() -> dict[str, str | None]:
    """Return the installed version of each package that results depend on (None if absent)."""
    installed: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            installed[package] = None
    return installed


def environment() -> dict[str, Any]:
    """Return versions of packages and data of the machine as plain data."""
    return {
        "versions": versions(),
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
    }
