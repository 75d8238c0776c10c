"""Language models and meanings: sampling, scoring, features; entailment and clusters. Imports are lazy."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_ADDRESSES = {
    "CausalLanguageModel": "causal_lm",
    "Clustering": "clustering",
    "Generation": "language_model",
    "LanguageModel": "language_model",
    "Prompt": "language_model",
    "TemperatureProcessor": "processors",
    "Truncation": "truncation",
    "cluster_answers": "clustering",
    "fold": "folding",
    "load_equivalence": "equivalence",
    "load_model": "loading",
}

__all__ = sorted(_ADDRESSES)


def __getattr__(name: str) -> Any:
    if name not in _ADDRESSES:
        raise AttributeError(f"module 'semcal.engine' has no attribute {name!r}")
    value = getattr(import_module(f"semcal.engine.{_ADDRESSES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
