"""Recalibrators of token distributions (spec section 6): Base, SE, TS, ATS and Platt, and their fits.

Imports are lazy, so that processes without torch can check the size of a calibration set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semcal.registry import attribute

if TYPE_CHECKING:
    from semcal.models.distribution import SE as SE
    from semcal.models.distribution import AnyRecalibrator as AnyRecalibrator
    from semcal.models.distribution import Base as Base
    from semcal.models.distribution import Greedy as Greedy
    from semcal.models.distribution import Temperature as Temperature
    from semcal.models.distribution import TokenDistribution as TokenDistribution
    from semcal.models.distribution import fingerprint as fingerprint
    from semcal.models.distribution import temperature_of as temperature_of
    from semcal.models.features import BlockShape as BlockShape
    from semcal.models.features import CalibrationFeatures as CalibrationFeatures
    from semcal.recalibration.attentive import ATS as ATS
    from semcal.recalibration.attentive import Fitted as Fitted
    from semcal.recalibration.attentive import Head as Head
    from semcal.recalibration.attentive import inverse_temperatures as inverse_temperatures
    from semcal.recalibration.exact_fit import LogPartitionTable as LogPartitionTable
    from semcal.recalibration.exact_fit import fit_temperatures as fit_temperatures
    from semcal.recalibration.exact_fit import log_partitions as log_partitions
    from semcal.recalibration.exact_fit import tabulate as tabulate
    from semcal.recalibration.methods import RECALIBRATORS as RECALIBRATORS
    from semcal.recalibration.methods import FitResult as FitResult
    from semcal.recalibration.methods import FitTask as FitTask
    from semcal.recalibration.methods import Method as Method
    from semcal.recalibration.methods import paper_schedule as paper_schedule
    from semcal.recalibration.optimum import Certificate as Certificate
    from semcal.recalibration.provenance import PAPER_LOSSES as PAPER_LOSSES
    from semcal.recalibration.provenance import GradientSteps as GradientSteps
    from semcal.recalibration.provenance import Provenance as Provenance
    from semcal.recalibration.provenance import Schedule as Schedule
    from semcal.recalibration.provenance import check_enough as check_enough
    from semcal.recalibration.provenance import warn_if_few as warn_if_few
    from semcal.recalibration.saving import from_pretrained as from_pretrained
    from semcal.recalibration.saving import save_pretrained as save_pretrained
    from semcal.recalibration.temperature import Contents as Contents
    from semcal.recalibration.temperature import GridTemperature as GridTemperature
    from semcal.recalibration.temperature import TemperatureFit as TemperatureFit
    from semcal.recalibration.temperature import TemperatureScaling as TemperatureScaling
    from semcal.recalibration.temperature import single_temperature as single_temperature
    from semcal.recalibration.temperature import solver_of as solver_of
    from semcal.recalibration.trained import ModuleContents as ModuleContents
    from semcal.recalibration.trained import Platt as Platt
    from semcal.recalibration.training import Training as Training
    from semcal.recalibration.training import fit_ats as fit_ats
    from semcal.recalibration.training import fit_platt as fit_platt
    from semcal.recalibration.training import fit_ts as fit_ts

_MODULES = {
    ".models.distribution": "SE AnyRecalibrator Base Greedy Temperature TokenDistribution fingerprint "
    "temperature_of",
    ".models.features": "BlockShape CalibrationFeatures",
    "attentive": "ATS Fitted Head inverse_temperatures",
    "exact_fit": "LogPartitionTable fit_temperatures log_partitions tabulate",
    "methods": "RECALIBRATORS FitResult FitTask Method paper_schedule",
    "provenance": "PAPER_LOSSES GradientSteps Provenance Schedule check_enough warn_if_few",
    "saving": "from_pretrained save_pretrained",
    "optimum": "Certificate",
    "temperature": "Contents GridTemperature TemperatureFit TemperatureScaling single_temperature solver_of",
    "trained": "ModuleContents Platt",
    "training": "Training fit_ats fit_platt fit_ts",
}
_ADDRESSES = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = sorted(_ADDRESSES)


def __getattr__(name: str) -> Any:
    return attribute(__name__, _ADDRESSES, name)


def __dir__() -> list[str]:
    return __all__
