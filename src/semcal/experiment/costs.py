"""What a run has cost, as environment.json has it: results hold no times (design.md, store)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from semcal.pipeline.memory_usage import Peak

__all__ = ["added", "fit_label", "higher"]

Record = Mapping[str, Any]
_FIT = "fit "


def fit_label(model: str, method: str) -> str:
    """What the time of a fit is counted towards.

    Examples
    --------
    >>> fit_label("llama 8b", "TS")
    'fit TS llama 8b'
    """
    return f"{_FIT}{method} {model}"


def added(
    before: Record, *, seconds: Mapping[str, float], peaks: Mapping[str, float], made: Mapping[str, int]
) -> dict[str, Any]:
    """Add what a session has spent to what is recorded.

    Parameters
    ----------
    before : mapping
        The record so far.
    seconds, peaks, made : mapping
        CPU seconds, memory (10⁶ bytes) and rows by stage; those of fits by `fit_label`.

    Returns
    -------
    dict
        {cpu_seconds, peak_memory_mb_by_stage, fits}: by stage, by stage, and {seconds, fits} by model and
        method.

    Examples
    --------
    >>> found = added({}, seconds={"fit TS a": 2.0, "fit ATS a": 1.0}, peaks={}, made={"fit TS a": 5})
    >>> found["cpu_seconds"], found["fits"]["a"]["TS"]
    ({'fit': 3.0}, {'seconds': 2.0, 'fits': 5})
    """
    spent: Counter[str] = Counter(before.get("cpu_seconds", {}))
    highest = dict(before.get("peak_memory_mb_by_stage", {}))
    for label, more in seconds.items():
        spent[_stage(label)] += more  # type: ignore[assignment]
    for label, peak in peaks.items():
        highest[_stage(label)] = max(peak, highest.get(_stage(label), 0.0))
    fits = {model: dict(of_model) for model, of_model in before.get("fits", {}).items()}
    for label in dict.fromkeys(label for label in (*seconds, *made) if label.startswith(_FIT)):
        method, _, model = label.removeprefix(_FIT).partition(" ")
        known = fits.setdefault(model, {}).get(method, {"seconds": 0.0, "fits": 0})
        fits[model][method] = {
            "seconds": known["seconds"] + seconds.get(label, 0.0),
            "fits": known["fits"] + made.get(label, 0),
        }
    return {"cpu_seconds": dict(spent), "peak_memory_mb_by_stage": highest, "fits": fits}


def higher(before: Record, peak: Peak) -> dict[str, Any]:
    """The higher of a session's peak of memory and the one on record, if that counts the same.

    Examples
    --------
    >>> before = Peak(900.0, "all of it").record()
    >>> higher(before, Peak(800.0, "all of it"))["peak_memory_mb"]
    900.0
    >>> higher(before, Peak(800.0, "something else"))["peak_memory_mb"]
    800.0
    """
    known = before.get("peak_memory_mb", 0.0) if before.get("peak_memory_counts") == peak.counts else 0.0
    return Peak(max(peak.mb, known), peak.counts).record()


def _stage(label: str) -> str:
    return "fit" if label.startswith(_FIT) else label
