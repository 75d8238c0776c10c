"""Apply a calibration: to stored rows, and beside which settings and to which model (spec section 11)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from semcal.engine.language_model import LanguageModel
from semcal.errors import InputError, SemcalWarning, UsageError, shown
from semcal.hub_names import NLI_MODEL, is_hub_id
from semcal.pipeline.calibrated import Calibration
from semcal.pipeline.measure import check_measurable, measure_rows
from semcal.pipeline.rows import clusters_of, identity, samples_of
from semcal.pipeline.sample_features import rows_by_temperature

__all__ = [
    "as_calibration",
    "calibrated_rows",
    "check_beside",
    "check_calibratable",
    "check_equivalence",
    "check_model",
    "drawn_for",
    "equivalence_of",
]


Row = Mapping[str, Any]


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


def equivalence_of(calibration: Calibration) -> str:
    """Return what to load where no equivalence is given; UsageError if only a directory's name is known."""
    name = calibration.equivalence
    for embedded in NLI_MODEL.embedded.names():
        if name in (embedded, _last_part(embedded)):
            return embedded
    if name == "exact" or is_hub_id(name) or Path(name).is_dir():
        return name
    raise UsageError(
        f"the calibration was made with the NLI model {shown(name)}; give its directory (--equivalence)"
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


def check_calibratable(row: Mapping[str, Any]) -> None:
    """Raise InputError unless `calibrated_rows` can measure the row."""
    check_measurable(row)
    clusters_of(row, len(samples_of(row)))


def drawn_for(calibration: Calibration, rows: Sequence[Mapping[str, Any]]) -> dict[float | None, list[Row]]:
    """Split rows into those at each temperature that the calibration reads, that of the answer first.

    UsageError if a row lacks one.
    """
    first = calibration.temperature
    drawn: dict[float | None, list[Row]] = {t: [] for t in (first, *calibration.temperatures)}
    for row in rows:
        split = rows_by_temperature([row])
        own = None if None in split else next(iter(split)) if first is None else first
        for t, of_one in drawn.items():
            chosen = own if t == first else t
            if chosen not in split:
                raise UsageError(
                    f"question {identity(row)!r} has no draws at T = {chosen:g}, and the calibration reads "
                    "some; sample at this temperature too, or calibrate with what the rows have"
                )
            of_one.append(split[chosen][0])
    return drawn


def calibrated_rows(
    rows: Sequence[Mapping[str, Any]], calibration: Calibration, *, t_alpha: float = 0.5, g_alpha: float = 0.5
) -> list[dict[str, Any]]:
    """Measure clustered rows, and add `answer`, `probability`, `threshold` and `abstained`.

    Raises
    ------
    UsageError
        If a row has another number of draws than the calibration was made with, or lacks a temperature.
    """
    alphas = {"t_alpha": t_alpha, "g_alpha": g_alpha}
    drawn = drawn_for(calibration, rows)
    measured = {t: measure_rows(of_one, **alphas) for t, of_one in drawn.items()}
    try:
        found = calibration.apply(measured)
    except InputError as error:
        raise UsageError(str(error)) from error
    limit = calibration.threshold
    return [
        {
            **row,
            "answer": one.text,
            "probability": one.probability,
            "threshold": None if limit is None else limit.threshold,
            "abstained": one.abstained,
        }
        for row, one in zip(measure_rows(rows, temperature=calibration.temperature, **alphas), found)
    ]
