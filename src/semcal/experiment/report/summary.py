"""What a run shows at a glance: what was run, what recalibration and Calibrated changed; words and a table.

The words are made from the figures and promise nothing beyond them: a change is better or worse only where
its interval leaves out zero and both sides have ten correct and ten wrong answers. Gain leads; ACE is
compared above its noise floor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from semcal.experiment.analyses.grid_scores import (
    BETTER,
    FEWEST_OF_A_KIND,
    TOO_FEW,
    UNCLEAR,
    WORSE,
    above_floor,
    judged_interval,
    verdict,
)
from semcal.experiment.analyses.score_analyses import MEASURE, SUREST
from semcal.experiment.finished import FinishedRun
from semcal.experiment.grid_settings import CALIBRATED
from semcal.experiment.report.report_tables import ABOVE_CHANCE
from semcal.experiment.report.tables import (
    Cell,
    Column,
    Results,
    Row,
    Rows,
    Table,
    answers_suffice,
    counted,
    error_and_floor,
    flagged,
    flagged_cell,
    in_order,
    larger_is_better,
    mark,
    marks_note,
    metric_title,
    number,
    select,
    signed,
    value_at,
)

#: What each metric measures.
SUBJECTS = {"gain": "Accuracy and calibration", "ace": "Calibration", "auroc": "Discrimination"}
VERDICTS = (BETTER, WORSE, UNCLEAR, TOO_FEW, "lower", "higher", "equal", "undefined")


@dataclass(frozen=True)
class Change:
    """One metric of E-SC before and after recalibration."""

    metric: str  # its key in results.json
    before: float | None
    after: float | None
    interval: tuple[float, float] | None = None  # of after − before over questions
    floors: tuple[float | None, float | None] = (None, None)  # of an error of calibration by chance alone
    enough: bool = True  # whether both sides have enough correct and wrong answers
    measure: str | None = MEASURE  # None where one measure is not the matter

    @classmethod
    def between(
        cls,
        metric: str,
        before: Row,
        after: Row,
        interval: Sequence[float] | None,
        measure: str | None = MEASURE,
    ) -> Change:
        """The change of a metric between two methods, rows of `confidence` or `calibrated`."""
        (old, old_floor), (new, new_floor) = (error_and_floor(row, metric) for row in (before, after))
        ends = None if interval is None else (interval[0], interval[1])
        enough = answers_suffice(before, after)
        return cls(metric, old, new, ends, (old_floor, new_floor), enough, measure)

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`; without an interval no more than the direction.

        >>> Change("ace", 0.18, 0.06, (-0.15, -0.09)).verdict, Change("ace", 0.18, 0.06).verdict
        ('better', 'lower')
        >>> Change("ace", 0.178, 0.335, (0.02, 0.30), floors=(0.152, 0.250)).verdict
        'no clear difference'
        """
        if self.before is None or self.after is None:
            return "undefined"
        if not self.enough:
            return TOO_FEW
        if self.interval is None:
            return "equal" if self.after == self.before else "lower" if self.after < self.before else "higher"
        judged = judged_interval(self.interval, (self.after, self.floors[1]), (self.before, self.floors[0]))
        return verdict(judged, larger_is_better=larger_is_better(self.metric))

    @property
    def name(self) -> str:
        name = metric_title(self.metric)
        return name if self.measure is None else f"{name} of {self.measure}"

    @property
    def values(self) -> str:
        return _arrow(self.before, self.after)

    @property
    def above(self) -> tuple[float | None, float | None]:
        """An error of calibration above its noise floor, before and after."""
        old, new = (
            None if error is None else above_floor(error, floor)
            for error, floor in zip((self.before, self.after), self.floors)
        )
        return old, new

    @property
    def explained(self) -> str:
        """The verdict with what it rests on."""
        if self.before is None or self.after is None:
            return "undefined"
        old, new = self.floors
        by_chance = "" if None in self.floors else f"; chance alone would show {_arrow(old, new)}"
        if not self.enough:
            needed = f"{FEWEST_OF_A_KIND} correct and {FEWEST_OF_A_KIND} wrong answers"
            return f"{self.verdict} (each method needs {needed}){by_chance}"
        if self.interval is None:
            return f"{self.verdict}, with no interval to tell it from chance{by_chance}"
        after, before = (self.after, new), (self.before, old)
        low, high = map(signed, judged_interval(self.interval, after, before))
        difference = signed(above_floor(*after) - above_floor(*before))
        above = " above chance" if by_chance else ""
        return f"{self.verdict} ({difference}{above}, 95 % interval {low} to {high}){by_chance}"


def _arrow(before: float | None, after: float | None) -> str:
    return f"{number(before).text} → {number(after).text}"


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

    def change(self, metric: str) -> Change:
        """The change of one of the metrics."""
        return next(change for change in self.changes if change.metric == metric)

    @property
    def sentence(self) -> str:
        """Confidence beside accuracy, before and after, in plain words."""
        (claimed, claimed_after), (right, later) = self.claimed, self.right
        if claimed is None or right is None:
            return f"{MEASURE} is undefined here."
        before = f"{self.against} claims {claimed:.0%} on average and is right {right:.0%} of the time"
        before += _off(claimed, right)
        if claimed_after is None or later is None or self.method == self.against:
            return f"{before}."
        after = f"{self.method} claims {claimed_after:.0%} and is right {later:.0%}"
        return f"{before}; {after}{_off(claimed_after, later)}."

    @property
    def line(self) -> str:
        """All of it as one line."""
        fitted = f"fitted temperature {self.temperature}" if self.temperature else ""
        changes = (f"{change.name} {change.values}: {change.explained}" for change in self.changes)
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


# ---- Findings ---------------------------------------------------------------------------------------------


def compared_methods(methods: Sequence[str]) -> tuple[str, str]:
    """What stands for before and after recalibration: Base or the first method, TS or the last."""
    return "Base" if "Base" in methods else methods[0], "TS" if "TS" in methods else methods[-1]


def findings(results: Results) -> list[Finding]:
    """What recalibration changed for each model and data set."""
    return [_finding(results, *place) for place in product(results["models"], results["datasets"])]


def _finding(results: Results, model: str, dataset: str) -> Finding:
    analyses = results["analyses"]
    against, method = compared_methods(results["methods"])
    (split,) = select(analyses["splits"], {"dataset": dataset})
    place = {"model": model, "dataset": dataset, "measure": MEASURE}
    before, after = (
        next(iter(select(analyses["confidence"], {**place, "method": name})), {})
        for name in (against, method)
    )
    intervals = {
        row["quantity"]: row["interval"]
        for row in select(analyses["paired"], {**place, "method": method, "against": against})
    }
    less_base = next(iter(select(analyses.get("against_base") or [], {**place, "method": method})), {})
    # "gain" of `paired` is another
    intervals["gain"] = value_at(less_base, ("gain", "interval")) if against == "Base" else None
    temperature = ""
    for row in select(analyses["temperatures"], place) if method == "TS" else ():
        if row["temperature"] is not None:
            at_bound = ", at the bound of its range" if row["at_bound"] else ""
            temperature = f"{row['temperature']:.2f}{at_bound}"
    return Finding(
        name=_place(results, model, dataset),
        setting=f"{'open' if split['open_book'] else 'closed'} book, {counted(split['test'], 'question')}",
        method=method,
        against=against,
        temperature=temperature,
        claimed=(_mean(before, "mean_confidence"), _mean(after, "mean_confidence")),
        right=(_mean(before, "accuracy"), _mean(after, "accuracy")),
        changes=tuple(Change.between(metric, before, after, intervals.get(metric)) for metric in SUBJECTS),
    )


def _place(results: Results, model: str, dataset: str) -> str:
    return dataset if len(results["models"]) == 1 else f"{model} on {dataset}"


def _mean(row: Row, metric: str) -> float | None:
    return value_at(row, (metric, "mean"))  # type: ignore[no-any-return]


def headlines(changes: Sequence[Finding]) -> list[str]:
    """For calibration and for discrimination on how many sets the method helped; none for one set."""
    if len(changes) < 2:
        return []
    return [
        f"{subject} of {MEASURE} ({metric_title(metric)}), {changes[0].method} against {changes[0].against}: "
        f"{tally(_verdicts(changes, metric))}."
        for metric, subject in SUBJECTS.items()
    ]


def _verdicts(findings: Sequence[Finding], metric: str) -> list[str]:
    return [change.verdict for finding in findings for change in finding.changes if change.metric == metric]


def tally(verdicts: Sequence[str]) -> str:
    """ "better on 2 of 3 sets, worse on 1"; of one set "better"."""
    if len(verdicts) == 1:
        return verdicts[0]
    counts = [(verdict, verdicts.count(verdict)) for verdict in VERDICTS if verdict in verdicts]
    (first, n), *further = counts
    return ", ".join([f"{first} on {n} of {len(verdicts)} sets", *(f"{word} on {k}" for word, k in further)])


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
    tests = ", ".join(f"{name} ({counted(size, 'test question')})" for name, size in zip(run.datasets, sizes))
    runs = "one run" if run.runs == 1 else f"{run.runs} runs"
    rows = counted(results["problems"], "row")
    methods = ", ".join(run.settings["methods"])
    refused = f" Refused: {rows} of the data." if results["problems"] else ""
    served = "".join(
        f" Left out for {model}, which is behind a server: {', '.join(names).replace('_', ' ')}."
        for model, names in run.left_out.items()
    )
    return (
        f"{tests}; {methods}; {runs} of {counted(run.m, 'sampled answer')} a question; preset {run.preset}, "
        f"seed {run.seed}.{refused}{served}"
    )


def headline_table(results: Results) -> Table:
    """ACE, AUROC and accuracy of each method, means over measures and runs: a row a model and data set."""
    methods = in_order(results["methods"])
    metrics = ("ace", "auroc", "accuracy", "gain")
    body, shown = [], list[Row]()
    for model, dataset in product(results["models"], results["datasets"]):
        heads = [{"model": model, "dataset": dataset, "method": method} for method in methods]
        rows = flagged(results, heads)
        cells: list[Cell] = []
        for metric in metrics:
            means = [
                _over_measures(row, select(results["analyses"]["confidence"], head), metric)
                for row, head in zip(rows, heads)
            ]
            cells += mark(means, larger=larger_is_better(metric))
        shown += rows
        body.append((Cell(model), Cell(dataset), *cells))
    columns = [Column(method, metric_title(metric)) for metric in metrics for method in methods]
    return Table(
        "headline",
        "ACE (lower is better), and AUROC, accuracy and gain of the selected answers (higher is better), of "
        "each method, mean over measures and runs; the best in bold; ⁼ marks ties at the digits shown"
        f"{ABOVE_CHANCE}{marks_note(shown)}",
        (Column("Model"), Column("Data set"), *columns),
        tuple(body),
        heads=2,
    )


def _over_measures(flags: Row, rows: Rows, metric: str) -> Cell:
    """The mean over the measures that are defined, of what is above the noise floor as well."""
    defined = [row for row in rows if _mean(row, metric) is not None]
    floors = [floor for row in defined if (floor := row.get(f"{metric}_floor")) is not None]
    mean = sum(_mean(row, metric) or 0.0 for row in defined) / len(defined) if defined else None
    return flagged_cell(number(mean), flags, sum(floors) / len(floors) if floors else None)


# ---- Calibrated -------------------------------------------------------------------------------------------

#: What Calibrated is to change; of these accuracy stays as it is.
CALIBRATED_METRICS = ("gain", "ace", "auroc")


@dataclass(frozen=True)
class CalibratedFinding(Finding):
    """What Calibrated changed for one model and data set."""

    calibration: Row  # as in `analyses.calibrated`

    @property
    def sentence(self) -> str:
        """What the gain does, how far confidences are off before and after, and the threshold, if any."""
        gain, ace = self.change("gain"), self.change("ace")
        labels = counted(self.calibration["labels"], "labelled question")
        outcome = f"Calibrated on {labels}, gain {gain.values}: {gain.explained}."
        if self.calibration["chosen"].startswith("none"):
            outcome = f"No map learnt from {labels} is clearly better, so confidences stay as they are."
        off = f"Beyond chance, confidences are off by {_arrow(*ace.above)} (ACE {ace.values}"
        if None not in ace.floors:
            off += f"; chance alone would show {_arrow(*ace.floors)}"
        return " ".join([outcome, *self.surest, f"{off}).", *self.advice])

    @property
    def surest(self) -> list[str]:
        """What the confidence of the surest answers is worth before and after."""
        surest = self.calibration.get("surest")  # a run kept from before has none
        if not surest or surest["n"] < FEWEST_OF_A_KIND:
            return []
        return [
            f"Of the {counted(surest['n'], 'answer')} that Base is at least {_percent(SUREST)} sure of (mean "
            f"{_percent(surest['share'])}), {_percent(surest['correct'])} are right; Calibrated says "
            f"{_percent(surest['probability'])}."
        ]

    @property
    def advice(self) -> list[str]:
        """From which confidence on to answer, if a threshold was asked for, and what to beware of."""
        return [*self._threshold(), *(f"Beware: {warning}." for warning in self.calibration["warnings"])]

    def _threshold(self) -> list[str]:
        promise, apart = self.calibration["threshold"], self.calibration["apart"]
        if promise is None:
            return []
        limit = f"{100 * promise['risk_limit']:.3g} %"
        if promise["threshold"] is None:
            needed = promise["questions_needed"]
            more = (
                f"; about {needed} would be needed"
                if needed
                else ", and more would not help: even the surest answers are wrong too often"
            )
            return [
                f"No threshold keeps errors within {limit} ({apart} questions kept apart show none{more})."
            ]
        answered, wrong = self.calibration["answered"], self.calibration["wrong"]
        observed = "" if wrong is None else f" (observed {_percent(wrong)})"
        return [
            f"Answer from {number(promise['threshold'], 2).text}: {_percent(answered)} answered, at most "
            f"{limit} of them wrong with {100 * (1 - promise['delta']):.3g} % confidence{observed}."
        ]

    @property
    def line(self) -> str:
        """All of it as one line."""
        return f"{self.name}: {self.sentence[0].lower()}{self.sentence[1:]}"


def calibrated_findings(results: Results) -> list[CalibratedFinding]:
    """What Calibrated changed for each model and data set; empty where it was not run."""
    rows = results["analyses"].get("calibrated") or []
    findings = []
    for row in select(rows, {"method": CALIBRATED}):
        place = {"model": row["model"], "dataset": row["dataset"]}
        (base,) = select(rows, {**place, "method": "Base"})
        changes = []
        for metric in CALIBRATED_METRICS:
            tested = row["against"]["Base"][metric]
            interval = None if tested is None else tested["interval"]
            changes.append(Change.between(metric, base, row, interval, measure=None))
        findings.append(
            CalibratedFinding(
                name=_place(results, row["model"], row["dataset"]),
                setting=counted(row["n"], "test question"),
                method=CALIBRATED,
                against="Base",
                temperature="",
                claimed=(base["mean_confidence"]["mean"], row["mean_confidence"]["mean"]),
                right=(base["accuracy"]["mean"], row["accuracy"]["mean"]),
                changes=tuple(changes),
                calibration=row["calibration"],
            )
        )
    return findings


def calibrated_headline(changes: Sequence[CalibratedFinding]) -> str:
    """On how many sets each metric became better."""
    counts = "; ".join(
        f"{metric_title(metric)} {tally(_verdicts(changes, metric))}" for metric in CALIBRATED_METRICS
    )
    return f"Calibrated against Base: {counts}; accuracy is the same, since the answers are."


def in_words(results: Results) -> list[str]:
    """What a run (results.json) showed: what Calibrated gains on each set, and what recalibration changed."""
    calibrated, recalibrated = calibrated_findings(results), findings(results)
    if not calibrated:
        return [*headlines(recalibrated), *(finding.line for finding in recalibrated)]
    sizes = [row["test"] for row in results["analyses"]["splits"]]
    labels = listed(sorted({str(finding.calibration["labels"]) for finding in calibrated}, key=int))
    lines = [
        f"Asked: {counted(sum(sizes), 'question')} of {listed(results['datasets'])}, "
        f"{counted(results['m'], 'answer')} to each, grouped by meaning.",
        "Base: the confidence is the share of the largest group. Calibrated: the probability that its answer",
        f"is right, learnt from {labels} other questions with answers. Off: how far confidences lie beside",
        "the share that is right, beyond chance (ACE). Gain: accuracy less Brier score, larger is better.",
        "",
        *_before_and_after(calibrated),
        "",
    ]
    for finding in calibrated:
        said = f"Calibrated against Base by gain: {finding.change('gain').explained}."
        lines += [f"{finding.name}: {sentence}" for sentence in [said, *finding.surest, *finding.advice]]
    if len(results["methods"]) > 1:
        lines += headlines(recalibrated)
    return lines


def _before_and_after(calibrated: Sequence[CalibratedFinding]) -> list[str]:
    """A table: a line a set, with confidence, distance and gain of both."""
    wide = max(len(finding.name) for finding in calibrated)
    lines = [f"{'':<{wide}}   right   Base says    off    gain   Calibrated says    off    gain"]
    for finding in calibrated:
        gain, ace = finding.change("gain"), finding.change("ace")
        (base_off, off), (base_gain, its_gain) = ace.above, (gain.before, gain.after)
        right, base, after = map(_percent, (finding.right[0], *finding.claimed))
        texts = [number(value).text for value in (base_off, base_gain, off, its_gain)]
        lines.append(
            f"{finding.name:<{wide}}   {right:>5}   {base:>9}  {texts[0]:>5}  {texts[1]:>6}   {after:>15}  "
            f"{texts[2]:>5}  {texts[3]:>6}"
        )
    return lines


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"
