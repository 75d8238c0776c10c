"""Language models (samples, scores, features) and the equivalence of answers (entailment, clusters)."""

from __future__ import annotations

from typing import Any

from semcal.registry import attribute

_ADDRESSES = {
    "Capabilities": "protocols",
    "CausalLanguageModel": "causal_lm",
    "Clustering": "clustering",
    "Generation": "protocols",
    "LanguageModel": "protocols",
    "Prompt": "protocols",
    "Truncation": "engine.draw",
    "cluster_answers": "clustering",
    "load_model": "load",
}

__all__ = sorted(_ADDRESSES)


def __getattr__(name: str) -> Any:
    return attribute(__name__, _ADDRESSES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
