"""What a run shows at a glance: what was run, what recalibration changed, in words and in one table.

The words are made from the figures and promise nothing beyond them: a change is better or worse only where
its interval leaves out zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from semcal.experiment.finished import FinishedRun
from semcal.report.against_base import flagged, less_accurate_note
from semcal.report.tables import (
    Cell,
    Column,
    Table,
    counted,
    in_order,
    larger_is_better,
    mark,
    metric_title,
    number,
)

Results = Mapping[str, Any]
Row = Mapping[str, Any]

#: The measure that the words are about: it needs no likelihoods, so every run has it.
MEASURE = "E-SC"
#: What each metric measures.
SUBJECTS = {"ace": "Calibration", "auroc": "Discrimination"}
VERDICTS = ("better", "worse", "no clear difference", "lower", "higher", "equal", "undefined")
#: A verdict on claims as said of one claim and of several.
CLAIMS = {
    "holds": ("holds", "hold"),
    "does not hold": ("does not", "do not"),
    "not decidable here": ("cannot be decided here", "cannot be decided here"),
}


@dataclass(frozen=True)
class Change:
    """One metric of E-SC before and after recalibration."""

    metric: str  # its key in results.json
    before: float | None
    after: float | None
    interval: tuple[float, float] | None = None  # of after − before over questions
    floor: float | None = None  # what an error of calibration would be after it by chance alone
    measure: str | None = MEASURE  # None where one measure is not the matter

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`; without an interval no more than the direction.

        >>> Change("ace", 0.18, 0.06, (-0.15, -0.09)).verdict, Change("ace", 0.18, 0.06).verdict
        ('better', 'lower')
        """
        if self.before is None or self.after is None:
            return "undefined"
        if self.interval is None:
            return "equal" if self.after == self.before else "lower" if self.after < self.before else "higher"
        low, high = self.interval
        if low <= 0 <= high:
            return "no clear difference"
        return "better" if (low > 0) == larger_is_better(self.metric) else "worse"

    @property
    def name(self) -> str:
        name = metric_title(self.metric)
        return name if self.measure is None else f"{name} of {self.measure}"

    @property
    def values(self) -> str:
        return f"{number(self.before).text} → {number(self.after).text}"

    @property
    def explained(self) -> str:
        """The verdict with what it rests on."""
        if self.before is None or self.after is None:
            return "undefined"
        chance = "" if self.floor is None else f", where chance alone would show {number(self.floor).text}"
        if self.interval is None:
            return f"{self.verdict}, with no interval to tell it from chance{chance}"
        low, high = map(_signed, self.interval)
        return f"{self.verdict} ({_signed(self.after - self.before)}, 95 % interval {low} to {high}){chance}"


@dataclass(frozen=True)
class Finding:
    """What recalibration changed for one model on one data set."""

    name: str
    setting: str  # in a few words what was asked
    method: str
    against: str
    temperature: str  # what was fitted; "" where nothing was
    claimed: tuple[float | None, float | None]  # mean confidence before and after
    right: tuple[float | None, float | None]  # accuracy before and after
    changes: tuple[Change, ...]

    @property
    def sentence(self) -> str:
        """Confidence beside accuracy, before and after, in plain words."""
        (claimed, now), (right, later) = self.claimed, self.right
        if claimed is None or right is None:
            return f"{MEASURE} is undefined here."
        before = f"{self.against} claims {claimed:.0%} on average and is right {right:.0%} of the time"
        before += _off(claimed, right)
        if now is None or later is None or self.method == self.against:
            return f"{before}."
        return f"{before}; {self.method} claims {now:.0%} and is right {later:.0%}{_off(now, later)}."

    @property
    def line(self) -> str:
        """All of it as one line."""
        fitted = f"fitted temperature {self.temperature}" if self.temperature else ""
        changes = (f"{one.name} {one.values}: {one.explained}" for one in self.changes)
        return f"{self.name} ({self.setting}): " + "; ".join(filter(None, [fitted, *changes])) + "."


def _off(claimed: float, right: float) -> str:
    """By how many points a mean confidence lies beside the accuracy.

    >>> _off(0.73, 0.66), _off(0.56, 0.64), _off(0.5, 0.501)
    (' (7 points too sure)', ' (8 points too modest)', ' (as sure as it is right)')
    """
    points = round(100 * claimed) - round(100 * right)
    if not points:
        return " (as sure as it is right)"
    return f" ({counted(abs(points), 'point')} too {'sure' if points > 0 else 'modest'})"


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


# ---- Findings ---------------------------------------------------------------------------------------------


def compared_methods(methods: Sequence[str]) -> tuple[str, str]:
    """What stands for before and after recalibration: Base or the first method, TS or the last."""
    return "Base" if "Base" in methods else methods[0], "TS" if "TS" in methods else methods[-1]


def findings(results: Results) -> list[Finding]:
    """What recalibration changed for each model and data set."""
    against, method = compared_methods(results["methods"])
    splits = {row["dataset"]: row for row in results["analyses"]["splits"]}
    found = []
    for model in results["models"]:
        for dataset in results["datasets"]:
            of = {
                row["method"]: row
                for row in results["analyses"]["confidence"]
                if (row["model"], row["dataset"], row["measure"]) == (model, dataset, MEASURE)
            }
            before, after = of.get(against, {}), of.get(method, {})
            book = "open" if splits[dataset]["open_book"] else "closed"
            found.append(
                Finding(
                    dataset if len(results["models"]) == 1 else f"{model} on {dataset}",
                    f"{book} book, {counted(splits[dataset]['test'], 'question')}",
                    method,
                    against,
                    _temperature(results, model, dataset, method),
                    (_mean(before, "mean_confidence"), _mean(after, "mean_confidence")),
                    (_mean(before, "accuracy"), _mean(after, "accuracy")),
                    tuple(
                        Change(
                            metric,
                            _mean(before, metric),
                            _mean(after, metric),
                            _interval(results, model, dataset, metric, method, against),
                            after.get(f"{metric}_floor"),
                        )
                        for metric in SUBJECTS
                    ),
                )
            )
    return found


def _mean(row: Row, metric: str) -> float | None:
    entry = row.get(metric)
    return None if entry is None else entry["mean"]


def _interval(
    results: Results, model: str, dataset: str, metric: str, method: str, against: str
) -> tuple[float, float] | None:
    wanted = {"model": model, "dataset": dataset, "measure": MEASURE, "quantity": metric}
    wanted |= {"method": method, "against": against}
    for row in results["analyses"]["paired"]:
        if row["interval"] is not None and all(row[key] == value for key, value in wanted.items()):
            low, high = row["interval"]
            return low, high
    return None


def _temperature(results: Results, model: str, dataset: str, method: str) -> str:
    """The temperature that TS uses for E-SC."""
    wanted = (model, dataset, MEASURE)
    for row in results["analyses"]["temperatures"] if method == "TS" else ():
        if (row["model"], row["dataset"], row["measure"]) == wanted and row["temperature"] is not None:
            return f"{row['temperature']:.2f}" + (", at the bound of its range" if row["at_bound"] else "")
    return ""


def headlines(found: Sequence[Finding]) -> list[str]:
    """For calibration and for discrimination on how many sets the method helped; none for one set."""
    if len(found) < 2:
        return []
    return [
        f"{subject} of {MEASURE} ({metric_title(metric)}), {found[0].method} against {found[0].against}: "
        f"{tally([change.verdict for one in found for change in one.changes if change.metric == metric])}."
        for metric, subject in SUBJECTS.items()
    ]


def tally(verdicts: Sequence[str]) -> str:
    """ "better on 2 of 3 sets, worse on 1"; of one set "better"."""
    if len(verdicts) == 1:
        return verdicts[0]
    counts = [(verdict, verdicts.count(verdict)) for verdict in VERDICTS if verdict in verdicts]
    (first, n), *rest = counts
    return ", ".join([f"{first} on {n} of {len(verdicts)} sets", *(f"{word} on {k}" for word, k in rest)])


# ---- What was run -----------------------------------------------------------------------------------------


def listed(names: Sequence[str]) -> str:
    """Names as words.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def facts(run: FinishedRun, results: Results) -> str:
    """What was asked of which methods, and how often."""
    sizes = [run.selections[run.models[0], name]["sizes"]["test"] for name in run.datasets]
    asked = ", ".join(f"{name} ({counted(size, 'test question')})" for name, size in zip(run.datasets, sizes))
    runs = "one run" if run.runs == 1 else f"{run.runs} runs"
    rows = counted(results["problems"], "row")
    methods = ", ".join(run.settings["methods"])
    refused = f" Refused: {rows} of the data." if results["problems"] else ""
    served = "".join(
        f" Left out for {model}, which is behind a server: {', '.join(names).replace('_', ' ')}."
        for model, names in run.left_out.items()
    )
    if run.with_all_methods().models != run.models:
        served += " Claims are judged on the other models."
    return (
        f"{asked}; {methods}; {runs} of {counted(run.m, 'sampled answer')} a question; preset {run.preset}, "
        f"seed {run.seed}.{refused}{served}"
    )


def claims_in_words(results: Results) -> str:
    """How many of the paper's claims hold.

    >>> claims_in_words({"claims": [{"verdict": one} for one in ("holds", "does not hold", "holds")]})
    'Of 3 claims of the paper 2 hold, 1 does not.'
    """
    verdicts = [claim["verdict"] for claim in results["claims"]]
    counts = {name: verdicts.count(name) for name in CLAIMS}
    told = [f"{n} {CLAIMS[name][n > 1]}" for name, n in counts.items() if n]
    return f"Of {len(verdicts)} claims of the paper {', '.join(told)}."


def rules_note(results: Results) -> str:
    """By which rules claims were judged, and that these were not all fixed before results were seen."""
    rules = results["rules"]
    return (
        f"Judged by version {rules['version']} of the rules, of {rules['since']}. They were not all fixed "
        "beforehand: as results of the embedded grid came in, a tolerance was widened and rules were made "
        "stricter (docs/analyses.md, Versions of the rules)."
    )


def headline_table(results: Results) -> Table:
    """ACE, AUROC and accuracy of each method, means over measures and runs: a row a model and data set."""
    methods = in_order(results["methods"])
    metrics = ("ace", "auroc", "accuracy", "gain")
    body, noted = [], ""
    for model in results["models"]:
        for dataset in results["datasets"]:
            heads = [{"model": model, "dataset": dataset, "method": method} for method in methods]
            rows = flagged(results, heads)
            noted = noted or less_accurate_note(rows)
            cells = [
                cell
                for metric in metrics
                for cell in mark(
                    [_over_measures(results, row, metric) for row in rows], larger=larger_is_better(metric)
                )
            ]
            body.append((Cell(model), Cell(dataset), *cells))
    columns = [Column(method, metric_title(metric)) for metric in metrics for method in methods]
    return Table(
        "headline",
        "ACE (lower is better), and AUROC, accuracy and gain of the selected answers (higher is better), of "
        "each method, mean over measures and runs; the best in bold; ⁼ marks ties at the digits shown"
        f"{noted}",
        (Column("Model"), Column("Data set"), *columns),
        tuple(body),
        heads=2,
    )


def _over_measures(results: Results, of: Row, metric: str) -> Cell:
    """The mean over the measures that are defined."""
    values = [
        mean
        for row in results["analyses"]["confidence"]
        if all(row[key] == of[key] for key in ("model", "dataset", "method"))
        and (mean := _mean(row, metric)) is not None
    ]
    cell = number(sum(values) / len(values) if values else None)
    return replace(cell, less_accurate=of["less_accurate"])
