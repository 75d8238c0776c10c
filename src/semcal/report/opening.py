"""What a reader sees first: what Calibrated gains where it was run, or else what recalibration changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semcal.experiment.grid_settings import CALIBRATED
from semcal.report.summary import Change, Finding, findings, headlines, tally
from semcal.report.tables import NAMES, Row, counted, number

Results = Mapping[str, Any]
#: What Calibrated is to change; of these accuracy stays as it is.
METRICS = ("gain", "ace", "auroc")


@dataclass(frozen=True)
class CalibratedFinding(Finding):
    """What Calibrated changed for one model and data set."""

    chance: tuple[float | None, float | None]  # ACE of calibrated confidences, before and after
    calibration: Mapping[str, Any]  # as in `analyses.calibrated`

    @property
    def sentence(self) -> str:
        """How far confidences are off before and after, and the threshold, if one was asked for."""
        before, after = (
            f"{number(value).text} ({words}{number(chance).text} is chance)"
            for value, chance, words in zip(
                next((one.before, one.after) for one in self.changes if one.metric == "ace"),
                self.chance,
                ("ACE; ", ""),
            )
        )
        labels = counted(self.calibration["labels"], "labelled question")
        then = f"calibrated on {labels} by {after}."
        if self.calibration["chosen"].startswith("none"):
            then = f"no map learnt from {labels} is clearly better, so they stay as they are."
        beware = [f"Beware: {one}." for one in self.calibration["warnings"]]
        return " ".join(
            [f"As they come, confidences are off by {before}; {then}", *self._threshold(), *beware]
        )

    def _threshold(self) -> list[str]:
        found, apart = self.calibration["threshold"], self.calibration["apart"]
        if found is None:
            return []
        limit = f"{100 * found['risk_limit']:.3g} %"
        if found["threshold"] is None:
            needed = found["questions_needed"]
            more = (
                f"; about {needed} would be needed"
                if needed
                else ", and more would not help: even the surest answers are wrong too often"
            )
            return [
                f"No threshold keeps errors within {limit} ({apart} questions kept apart show none{more})."
            ]
        answered, wrong = self.calibration["answered"], self.calibration["wrong"]
        here = "" if wrong is None else f" (here {100 * wrong:.0f} %)"
        return [
            f"Answer from {number(found['threshold'], 2).text}: {100 * answered:.0f} % answered, at most "
            f"{limit} of them wrong with {100 * (1 - found['delta']):.3g} % confidence{here}."
        ]

    @property
    def line(self) -> str:
        """All of it as one line."""
        return f"{self.name}: {self.sentence[0].lower()}{self.sentence[1:]}"


def calibrated_findings(results: Results) -> list[CalibratedFinding]:
    """What Calibrated changed for each model and data set; empty where it was not run."""
    rows = results["analyses"].get("calibrated") or []
    of = {(row["model"], row["dataset"], row["method"]): row for row in rows}
    found = []
    for (model, dataset, method), row in of.items():
        if method != CALIBRATED:
            continue
        base, against = of[model, dataset, "Base"], row["against"]["Base"]
        found.append(
            CalibratedFinding(
                name=dataset if len(results["models"]) == 1 else f"{model} on {dataset}",
                setting=counted(row["n"], "test question"),
                method=CALIBRATED,
                against="Base",
                temperature="",
                claimed=(base["mean_confidence"]["mean"], row["mean_confidence"]["mean"]),
                right=(base["accuracy"]["mean"], row["accuracy"]["mean"]),
                changes=tuple(_change(metric, base, row, against[metric]) for metric in METRICS),
                chance=(base["ace_floor"], row["ace_floor"]),
                calibration=row["calibration"],
            )
        )
    return found


def _change(metric: str, base: Row, row: Row, tested: Row | None) -> Change:
    interval = None if tested is None else (tested["interval"][0], tested["interval"][1])
    return Change(metric, base[metric]["mean"], row[metric]["mean"], interval, measure=None)


def calibrated_headline(found: Sequence[CalibratedFinding]) -> str:
    """On how many sets each metric became better."""
    verdicts = {
        metric: [one.verdict for each in found for one in each.changes if one.metric == metric]
        for metric in METRICS
    }
    told = "; ".join(f"{NAMES[metric]} {tally(of_metric)}" for metric, of_metric in verdicts.items())
    return f"Calibrated against Base: {told}; accuracy is the same, since the answers are."


def in_words(results: Results) -> list[str]:
    """What a run showed: what Calibrated gains on each set, where it was run, and what recalibration changed.

    Parameters
    ----------
    results : mapping
        The content of results.json.
    """
    calibrated, recalibrated = calibrated_findings(results), findings(results)
    if not calibrated:
        return [*headlines(recalibrated), *(one.line for one in recalibrated)]
    lines = [*(one.line for one in calibrated), calibrated_headline(calibrated)]
    return [*lines, *headlines(recalibrated)] if len(results["methods"]) > 1 else lines
