"""What a reader sees first: what Calibrated gains where it was run, or else what recalibration changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semcal.experiment.grid_settings import CALIBRATED
from semcal.report.summary import Change, Finding, findings, headlines, listed, tally
from semcal.report.tables import Row, counted, metric_title, number

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
        return " ".join([f"As they come, confidences are off by {before}; {then}", *self.advice])

    @property
    def advice(self) -> list[str]:
        """From which confidence on to answer, if a threshold was asked for, and what to beware of."""
        return [*self._threshold(), *(f"Beware: {one}." for one in self.calibration["warnings"])]

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
        here = "" if wrong is None else f" (here {_percent(wrong)})"
        return [
            f"Answer from {number(found['threshold'], 2).text}: {_percent(answered)} answered, at most "
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
    told = "; ".join(f"{metric_title(metric)} {tally(of_metric)}" for metric, of_metric in verdicts.items())
    return f"Calibrated against Base: {told}; accuracy is the same, since the answers are."


def in_words(results: Results) -> list[str]:
    """What a run (results.json) showed: what Calibrated gains on each set, and what recalibration changed."""
    calibrated, recalibrated = calibrated_findings(results), findings(results)
    if not calibrated:
        return [*headlines(recalibrated), *(one.line for one in recalibrated)]
    asked = [row["test"] for row in results["analyses"]["splits"]]
    labels = listed(sorted({str(one.calibration["labels"]) for one in calibrated}, key=int))
    lines = [
        f"Asked: {counted(sum(asked), 'question')} of {listed(results['datasets'])}, "
        f"{counted(results['m'], 'answer')} to each, grouped by meaning.",
        "Base: the confidence is the share of the largest group. Calibrated: the probability that its answer",
        f"is right, learnt from {labels} other questions with answers. ACE: how far confidences are off;",
        "in brackets what chance alone would show.",
        "",
        *_before_and_after(calibrated),
        "",
        *(f"{one.name}: {sentence}" for one in calibrated for sentence in one.advice),
    ]
    if len(results["methods"]) > 1:
        lines += headlines(recalibrated)
    return lines


def _before_and_after(found: Sequence[CalibratedFinding]) -> list[str]:
    """A table: a line a set, with confidence and ACE of both."""
    wide = max(len(one.name) for one in found)
    lines = [f"{'':<{wide}}   right   Base says  ACE             Calibrated says  ACE"]
    for one in found:
        (ace,) = (change for change in one.changes if change.metric == "ace")
        off = [
            f"{number(value).text} ({number(chance).text})"
            for value, chance in zip((ace.before, ace.after), one.chance)
        ]
        right, base, calibrated = map(_percent, (one.right[0], *one.claimed))
        lines.append(f"{one.name:<{wide}}   {right:>5}   {base:>9}  {off[0]}   {calibrated:>15}  {off[1]}")
    return lines


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"
