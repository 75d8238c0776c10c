"""Language models and meanings: sampling, scoring, features; entailment and clusters. Imports are lazy."""

from __future__ import annotations

from typing import Any

from semcal.lazy import attribute

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
    return attribute(__name__, _ADDRESSES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
