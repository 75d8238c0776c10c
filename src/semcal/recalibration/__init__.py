"""Recalibrators of token distributions (spec section 6): Base, SE, TS, ATS and Platt, and their fits.

Imports are lazy: what a name stands for (`places`) is asked by processes that need no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semcal.lazy import attribute

if TYPE_CHECKING:
    from semcal.recalibration.attentive import ATS, AnyRecalibrator, BlockShape
    from semcal.recalibration.enough import check_enough, warn_if_few
    from semcal.recalibration.exact import Certificate
    from semcal.recalibration.greedy import Greedy
    from semcal.recalibration.identity import fingerprint, single_temperature, solver_of, temperature_of
    from semcal.recalibration.one_pass import PAPER_LOSSES, TemperatureFit, fit_temperatures
    from semcal.recalibration.partitions import log_partitions, log_probs_at
    from semcal.recalibration.platt import Platt
    from semcal.recalibration.provenance import Provenance
    from semcal.recalibration.saving import Fitted, from_pretrained, save_pretrained
    from semcal.recalibration.schedule import GradientSteps, Schedule, paper_schedule
    from semcal.recalibration.sequences import inverse_temperatures
    from semcal.recalibration.sgd import Training, Watch, fit_ats, fit_platt, fit_ts
    from semcal.recalibration.suffixes import Head, Suffixes
    from semcal.recalibration.tables import Tables, tabulate
    from semcal.recalibration.temperature import (
        SE,
        Base,
        GridTemperature,
        Recalibrator,
        Temperature,
        TemperatureScaling,
    )
    from semcal.recalibration.training_store import TrainingStore

_ADDRESSES = {
    "ATS": "attentive",
    "AnyRecalibrator": "attentive",
    "Base": "temperature",
    "BlockShape": "attentive",
    "Certificate": "exact",
    "Fitted": "saving",
    "GradientSteps": "schedule",
    "Greedy": "greedy",
    "GridTemperature": "temperature",
    "Head": "suffixes",
    "PAPER_LOSSES": "one_pass",
    "Platt": "platt",
    "Provenance": "provenance",
    "Recalibrator": "temperature",
    "SE": "temperature",
    "Schedule": "schedule",
    "Suffixes": "suffixes",
    "Tables": "tables",
    "Temperature": "temperature",
    "TemperatureFit": "one_pass",
    "TemperatureScaling": "temperature",
    "Training": "sgd",
    "TrainingStore": "training_store",
    "Watch": "sgd",
    "check_enough": "enough",
    "fingerprint": "identity",
    "fit_ats": "sgd",
    "fit_platt": "sgd",
    "fit_temperatures": "one_pass",
    "fit_ts": "sgd",
    "from_pretrained": "saving",
    "inverse_temperatures": "sequences",
    "log_partitions": "partitions",
    "log_probs_at": "partitions",
    "paper_schedule": "schedule",
    "save_pretrained": "saving",
    "single_temperature": "identity",
    "solver_of": "identity",
    "tabulate": "tables",
    "temperature_of": "identity",
    "warn_if_few": "enough",
}

__all__ = [
    "ATS",
    "PAPER_LOSSES",
    "SE",
    "AnyRecalibrator",
    "Base",
    "BlockShape",
    "Certificate",
    "Fitted",
    "GradientSteps",
    "Greedy",
    "GridTemperature",
    "Head",
    "Platt",
    "Provenance",
    "Recalibrator",
    "Schedule",
    "Suffixes",
    "Tables",
    "Temperature",
    "TemperatureFit",
    "TemperatureScaling",
    "Training",
    "TrainingStore",
    "Watch",
    "check_enough",
    "fingerprint",
    "fit_ats",
    "fit_platt",
    "fit_temperatures",
    "fit_ts",
    "from_pretrained",
    "inverse_temperatures",
    "log_partitions",
    "log_probs_at",
    "paper_schedule",
    "save_pretrained",
    "single_temperature",
    "solver_of",
    "tabulate",
    "temperature_of",
    "warn_if_few",
]


def __getattr__(name: str) -> Any:
    return attribute(__name__, _ADDRESSES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
