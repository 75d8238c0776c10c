"""Language models (sampling, scoring, features) and equivalence of answers (entailment, clusters)."""

from __future__ import annotations

from typing import Any

from semcal.registry import attribute

_ADDRESSES = {
    "Capabilities": "language_model",
    "CausalLanguageModel": "causal_lm",
    "Clustering": "clustering",
    "Generation": "language_model",
    "LanguageModel": "language_model",
    "Prompt": "language_model",
    "Truncation": "drawing",
    "cluster_answers": "clustering",
    "load_model": "loading",
}

__all__ = sorted(_ADDRESSES)


def __getattr__(name: str) -> Any:
    return attribute(__name__, _ADDRESSES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
