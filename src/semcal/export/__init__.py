"""A fitted temperature for other programs: sampling settings, logits processor, hub."""

from __future__ import annotations

from typing import Any

from semcal.registry import attribute

_ADDRESSES = {
    "SERVERS": "sampling_parameters",
    "TemperatureProcessor": "logits_processor",
    "generation_config": "sampling_parameters",
    "origin": "sampling_parameters",
    "push_to_hub": "sampling_parameters",
    "request_parameters": "sampling_parameters",
}

__all__ = sorted(_ADDRESSES)


def __getattr__(name: str) -> Any:
    return attribute(__name__, _ADDRESSES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
