"""What tells two recalibrators apart: their settings, and their weights where they have any."""

from __future__ import annotations

import hashlib

from torch import nn

from semcal.recalibration.attentive import AnyRecalibrator
from semcal.recalibration.platt import Platt

__all__ = ["fingerprint"]


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
