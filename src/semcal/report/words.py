"""What a run showed, in words made from its figures and promising nothing beyond them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semcal.report.tables import LARGER_IS_BETTER, NAMES, counted

__all__ = ["Change", "Finding", "changes", "findings", "headlines", "in_words"]

Results = Mapping[str, Any]

#: The measure that the words are about: it needs no likelihoods, so every run has it.
MEASURE = "E-SC"

#: What each metric measures.
SUBJECTS = {"ace": "Calibration", "auroc": "Discrimination"}

VERDICTS = ("better", "worse", "no clear difference")


@dataclass(frozen=True)
class Change:
    """One metric before and after recalibration.

    Attributes
    ----------
    metric : str
        Its key in results.json.
    before, after : float, optional
        None where it is undefined.
    interval : tuple of float, optional
        The interval of after − before over questions, where the run computed one.
    """

    metric: str
    before: float | None
    after: float | None
    interval: tuple[float, float] | None = None

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`, or "undefined", "lower", "higher", "equal" where no interval says more.

        Examples
        --------
        >>> Change("ace", 0.18, 0.06, (-0.15, -0.09)).verdict, Change("ace", 0.18, 0.06).verdict
        ('better', 'lower')
        """
        if self.before is None or self.after is None:
            return "undefined"
        if self.interval is None:
            return _direction(self.after - self.before)
        low, high = self.interval
        if low <= 0 <= high:
            return "no clear difference"
        return "better" if (low > 0) == (self.metric in LARGER_IS_BETTER) else "worse"

    def parts(self) -> tuple[str, str, str]:
        """What changed, from what to what, and what that is worth."""
        name = f"{NAMES[self.metric]} of {MEASURE}"
        values = f"{_plain(self.before)} → {_plain(self.after)}"
        if self.before is None or self.after is None:
            return name, values, "undefined"
        if self.interval is None:
            return name, values, f"{self.verdict}, with no interval to tell it from chance"
        low, high = self.interval
        difference = f"{_signed(self.after - self.before)}, 95 % interval {_signed(low)} to {_signed(high)}"
        return name, values, f"{self.verdict} ({difference})"

    def in_words(self) -> str:
        """The change as a clause."""
        name, values, verdict = self.parts()
        return f"{name} {values}: {verdict}"


@dataclass(frozen=True)
class Finding:
    """What happened on one set.

    Attributes
    ----------
    name, setting : str
        The set, and in a few words what it asks.
    method, against : str
        What is compared with what.
    temperature : str
        What was fitted; "" where nothing was.
    changes : tuple of Change
    """

    name: str
    setting: str
    method: str
    against: str
    temperature: str
    changes: tuple[Change, ...]

    def in_words(self) -> str:
        """The finding as one line."""
        fitted = f"fitted temperature {self.temperature}" if self.temperature else ""
        clauses = [fitted, *(change.in_words() for change in self.changes)]
        return f"{self.name} ({self.setting}): " + "; ".join(filter(None, clauses)) + "."


def _direction(difference: float) -> str:
    if difference == 0:
        return "equal"
    return "lower" if difference < 0 else "higher"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}".replace("-", "−")


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def changes(results: Results, entry: Mapping[str, Any], method: str, against: str) -> tuple[Change, ...]:
    """ACE and AUROC of E-SC on one set under `against` and then under `method`."""
    return tuple(
        Change(
            metric,
            _figure(entry, against, metric),
            _figure(entry, method, metric),
            _interval(results, entry["name"], method, against, metric),
        )
        for metric in SUBJECTS
    )


def _figure(entry: Mapping[str, Any], method: str, metric: str) -> float | None:
    figures = entry["methods"].get(method, {}).get("measures", {}).get(MEASURE) or {}
    return _known(figures.get(metric))


def _known(value: Any) -> float | None:
    """A figure of this process or of a file: NaN in one, null in the other, is none."""
    return None if value is None or value != value else float(value)


def _interval(
    results: Results, name: str, method: str, against: str, metric: str
) -> tuple[float, float] | None:
    wanted = {"set": name, "method": method, "against": against, "measure": MEASURE, "metric": metric}
    for item in results.get("comparisons") or []:
        if all(item.get(key) == value for key, value in wanted.items()):
            low, high = map(_known, item.get("interval") or (None, None))
            return None if low is None or high is None else (low, high)
    return None


def findings(results: Results) -> list[Finding]:
    """Return what happened on each set: the fitted method (else the last one) against the first."""
    found = []
    for entry in results["sets"]:
        methods = list(entry["methods"])
        fit = entry.get("fit") or {}
        method = fit["method"] if fit.get("method") in methods else methods[-1]
        against = "Base" if "Base" in methods else methods[0]
        setting = f"{'open' if entry.get('open_book') else 'closed'} book, {counted(entry['n'], 'question')}"
        found.append(
            Finding(
                entry["name"],
                setting,
                method,
                against,
                _temperature(fit),
                changes(results, entry, method, against),
            )
        )
    return found


def _temperature(fit: Mapping[str, Any]) -> str:
    if fit.get("temperature") is None:
        return ""
    bound = ", at the bound of its range" if fit.get("at_bound") else ""
    return f"{fit['temperature']:.2f}{bound}"


def headlines(found: Sequence[Finding]) -> list[str]:
    """Return for calibration and for discrimination on how many sets the method helped."""
    compared = {(finding.method, finding.against) for finding in found}
    if len(found) < 2 or len(compared) > 1:
        return []
    method, against = compared.pop()
    return [
        f"{subject} of {MEASURE} ({NAMES[metric]}), {method} against {against}: "
        f"{_tally([_verdict(finding, metric) for finding in found])}."
        for metric, subject in SUBJECTS.items()
    ]


def _verdict(finding: Finding, metric: str) -> str:
    return next(change.verdict for change in finding.changes if change.metric == metric)


def _tally(verdicts: Sequence[str]) -> str:
    """ "better on 2 of 3 sets, worse on 1"."""
    order = [*VERDICTS, "lower", "higher", "equal", "undefined"]
    counts = [(verdict, verdicts.count(verdict)) for verdict in order if verdict in verdicts]
    (first, n), *rest = counts
    return ", ".join([f"{first} on {n} of {len(verdicts)} sets", *(f"{word} on {k}" for word, k in rest)])


def in_words(results: Results) -> list[str]:
    """Return what the run showed: a line for calibration, one for discrimination, and one for each set.

    Parameters
    ----------
    results : mapping
        The content of results.json. With `comparisons` (set, method, against, measure, metric,
        difference = method − against, interval), a change is called better or worse only where its
        interval leaves out zero; without them only its direction is told.

    Examples
    --------
    >>> figures = {"Base": {"ace": 0.18, "auroc": 0.79}, "TS": {"ace": 0.06, "auroc": 0.8}}
    >>> entry = {"name": "capitals", "n": 500, "fit": {"method": "TS", "temperature": 1.52},
    ...          "methods": {name: {"measures": {"E-SC": f}} for name, f in figures.items()}}
    >>> in_words({"sets": [entry], "comparisons": [{"set": "capitals", "method": "TS", "against": "Base",
    ...     "measure": "E-SC", "metric": metric, "difference": d, "interval": i}
    ...     for metric, d, i in [("ace", -0.12, [-0.15, -0.09]), ("auroc", 0.01, [-0.01, 0.03])]]})
    ['capitals (closed book, 500 questions): fitted temperature 1.52;
    ACE of E-SC 0.180 → 0.060: better (−0.120, 95 % interval −0.150 to −0.090);
    AUROC of E-SC 0.790 → 0.800: no clear difference (+0.010, 95 % interval −0.010 to +0.030).']
    """
    found = findings(results)
    return [*headlines(found), *(finding.in_words() for finding in found)]
