"""Recalibrators of token distributions (spec section 6): Base, SE and TS."""

from semcal.recalibration.exact import Certificate
from semcal.recalibration.handover import (
    generation_config,
    push_to_hub,
    request_parameters,
    single_temperature,
)
from semcal.recalibration.saving import Provenance, from_pretrained, save_pretrained
from semcal.recalibration.suffixes import Suffixes
from semcal.recalibration.temperature import SE, Base, Recalibrator, Temperature, TemperatureScaling

__all__ = [
    "SE",
    "Base",
    "Certificate",
    "Provenance",
    "Recalibrator",
    "Suffixes",
    "Temperature",
    "TemperatureScaling",
    "from_pretrained",
    "generation_config",
    "push_to_hub",
    "request_parameters",
    "save_pretrained",
    "single_temperature",
]
