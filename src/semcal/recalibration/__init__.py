"""Recalibrators of token distributions (spec section 6): Base, SE, TS, ATS and Platt, and their fits.

Imports are lazy, so that processes without torch can check the labeled questions of a fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semcal.registry import attribute

if TYPE_CHECKING:
    from semcal.models.distribution import SE, Base, Temperature
    from semcal.models.features import BlockShape, FitFeatures
    from semcal.models.protocols import TokenDistribution
    from semcal.recalibration.files import Contents, Provenance, from_pretrained, save_pretrained
    from semcal.recalibration.methods import RECALIBRATORS, FitResult, FitTask, Method
    from semcal.recalibration.modules import ATS, Platt
    from semcal.recalibration.recalibrators import GridTemperature, TemperatureScaling

_ADDRESSES = {
    "ATS": "modules",
    "Base": ".models.distribution",
    "BlockShape": ".models.features",
    "Contents": "files",
    "FitFeatures": ".models.features",
    "FitResult": "methods",
    "FitTask": "methods",
    "GridTemperature": "recalibrators",
    "Method": "methods",
    "Platt": "modules",
    "Provenance": "files",
    "RECALIBRATORS": "methods",
    "SE": ".models.distribution",
    "Temperature": ".models.distribution",
    "TemperatureScaling": "recalibrators",
    "TokenDistribution": ".models.protocols",
    "from_pretrained": "files",
    "save_pretrained": "files",
}

__all__ = [
    "ATS",
    "RECALIBRATORS",
    "SE",
    "Base",
    "BlockShape",
    "Contents",
    "FitFeatures",
    "FitResult",
    "FitTask",
    "GridTemperature",
    "Method",
    "Platt",
    "Provenance",
    "Temperature",
    "TemperatureScaling",
    "TokenDistribution",
    "from_pretrained",
    "save_pretrained",
]


def __getattr__(name: str) -> Any:
    return attribute(__name__, _ADDRESSES, name)


def __dir__() -> list[str]:
    return __all__
