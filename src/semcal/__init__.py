"""Calibrated semantic uncertainty for question answering with language models.

>>> import semcal
>>> semcal.confidence([[[0, 1], [2]]], [[-0.7, -0.7, -2.3]], measure="E-SC").probabilities.round(3)
array([0.667, 0.333])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semcal import errors, metrics, recalibration
    from semcal.engine import load_equivalence, load_model
    from semcal.pipeline import SemanticUQ, fit
    from semcal.semantics import confidence, confidences

__version__ = "0.1.0"

_ADDRESSES = {
    "SemanticUQ": "semcal.pipeline",
    "confidence": "semcal.semantics",
    "confidences": "semcal.semantics",
    "errors": "",
    "fit": "semcal.pipeline",
    "load_equivalence": "semcal.engine",
    "load_model": "semcal.engine",
    "metrics": "",
    "recalibration": "",
}

__all__ = [
    "SemanticUQ",
    "__version__",
    "confidence",
    "confidences",
    "errors",
    "fit",
    "load_equivalence",
    "load_model",
    "metrics",
    "recalibration",
]


def __getattr__(name: str) -> Any:
    if name not in _ADDRESSES:
        raise AttributeError(f"module 'semcal' has no attribute {name!r}")
    module = _ADDRESSES[name]
    value = getattr(import_module(module), name) if module else import_module(f"semcal.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
