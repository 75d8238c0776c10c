"""Where a calibration may be applied: beside which settings, to which model (spec section 11)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from semcal.engine.language_model import LanguageModel
from semcal.errors import SemcalWarning, UsageError, shown
from semcal.hub_names import NLI_MODEL
from semcal.pipeline.calibrated import Calibration

__all__ = ["as_calibration", "check_beside", "check_equivalence", "check_model"]


def as_calibration(given: Any) -> Calibration:
    """Return a calibration: as it is, or loaded from its directory, id or name."""
    if isinstance(given, str | Path):
        return Calibration.from_pretrained(given)
    if isinstance(given, Calibration):
        return given
    raise UsageError(
        f"the calibration is {shown(given)}; give what semcal.calibrate returns, or the directory that it "
        "was saved in"
    )


def check_beside(calibration: Calibration, given: Mapping[str, Any]) -> None:
    """Refuse settings that a calibration makes itself: UsageError that names them.

    `given` maps names, such as "m" or "--m", to values, None where they were left out. Few-shot examples are
    free where the calibration is of stored samples and does not know them, and so is `abstain_below` where it
    has no threshold.
    """
    free = {"few_shot"} if calibration.provenance is None else set()
    free |= {"abstain_below"} if calibration.threshold is None else set()
    names = [
        name
        for name, value in given.items()
        if value is not None and name.removeprefix("--").replace("-", "_") not in free
    ]
    if names:
        it = "it" if len(names) == 1 else "them"
        raise UsageError(
            f"{', '.join(names)} given beside a calibration, which sets {it} itself; leave {it} out, or "
            f"calibrate again with {it}"
        )


def check_equivalence(calibration: Calibration, name: str) -> None:
    """Refuse an equivalence of another name than the calibration's; directories go by their last part."""
    if _last_part(name) != _last_part(calibration.equivalence):
        raise UsageError(
            f"the calibration was made with the equivalence {shown(calibration.equivalence)}, not "
            f"{shown(name)}, which would find other meanings; leave it out, or calibrate again with it"
        )


def _last_part(name: str) -> str:
    embedded = NLI_MODEL.embedded
    return Path(embedded.load(name)() if name in embedded.names() else name).name


def check_model(calibration: Calibration, model: LanguageModel) -> None:
    """Raise UsageError unless the calibration was made with these weights and this prompt.

    One of stored samples does not know: SemcalWarning.
    """
    known = calibration.provenance
    if known is None:
        warnings.warn(
            "the calibration was made from stored samples: whether they came from "
            f"{model.name}, with this prompt and at this temperature, cannot be checked, and for others its "
            "probabilities do not hold",
            SemcalWarning,
            stacklevel=3,
        )
        return
    known.check(
        model=model.name,
        revision=model.revision,
        prompt_hash=calibration.asking.hash(model),
        what="calibration",
    )
