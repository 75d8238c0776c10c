"""What is known of a recalibrator: its fingerprint, its one temperature if it has one, how it was fitted."""

from __future__ import annotations

import hashlib

from torch import nn

from semcal.errors import FitError, UsageError
from semcal.recalibration.attentive import ATS, AnyRecalibrator
from semcal.recalibration.platt import Platt
from semcal.recalibration.temperature import GridTemperature, Recalibrator, TemperatureScaling

__all__ = ["fingerprint", "single_temperature", "solver_of", "temperature_of"]


def fingerprint(recalibrator: AnyRecalibrator | Platt) -> str:
    """Return a text that is the same for recalibrators of the same distribution, on every machine.

    Examples
    --------
    >>> from semcal.recalibration import SE
    >>> fingerprint(SE())
    'SE(temperature=0.5)'
    """
    if not isinstance(recalibrator, nn.Module):
        return repr(recalibrator)
    digest = hashlib.sha256()
    for name, weight in sorted(recalibrator.state_dict().items()):
        digest.update(name.encode() + weight.detach().cpu().contiguous().numpy().tobytes())
    return f"{recalibrator.method}({recalibrator.extra_repr()}, weights={digest.hexdigest()[:32]})"


def temperature_of(recalibrator: Recalibrator | ATS | Platt) -> float | None:
    """Return the one T by which a recalibrator divides every logit; None where there is none (yet)."""
    temperature = getattr(recalibrator, "temperature_", getattr(recalibrator, "temperature", None))
    return temperature if isinstance(temperature, float) else None


def solver_of(recalibrator: Recalibrator | ATS | Platt) -> str | None:
    """Return how a recalibrator was fitted, "exact", "sgd" or "grid"; None for one that was not.

    Examples
    --------
    >>> from semcal.recalibration import Base, TemperatureScaling
    >>> solver_of(Base()), solver_of(TemperatureScaling().fit([[1.0, 0.0]] * 4, [0, 0, 0, 1]))
    (None, 'exact')
    """
    if getattr(recalibrator, "sgd_", None) is not None:
        return "sgd"
    if isinstance(recalibrator, GridTemperature):
        return "grid"
    return "exact" if isinstance(recalibrator, TemperatureScaling) else None


def single_temperature(recalibrator: Recalibrator | ATS | Platt) -> float:
    """Return the one T by which a recalibrator divides every logit.

    Raises
    ------
    UsageError
        If it has none: ATS and Platt change each token's logits in their own way.
    FitError
        If it is not fitted yet.

    Examples
    --------
    >>> from semcal.recalibration import SE
    >>> single_temperature(SE())
    0.5
    """
    temperature = temperature_of(recalibrator)
    if temperature is not None:
        return temperature
    if recalibrator.method == "TS":
        raise FitError("this TemperatureScaling has no temperature yet; call fit first")
    raise UsageError(
        f"{recalibrator.method} has no single temperature, so no other program can be told it; "
        "fit one with `semcal fit --method TS`, or sample with semcal itself"
    )
