"""The report of a calibration: what was tried, chosen and measured, and what it says of that in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import Field

Share = Annotated[float, Field(ge=0, le=1)]
LabelCount = Annotated[int, Field(ge=0)]
#: Warnings with these words say why no map was learned.
ONE_PROBABILITY = "all get one probability"


@dataclass(frozen=True)
class CandidateScore:
    """The cross-validated gain of a map that was tried."""

    name: str
    gain: float
    above: float  # that of no map
    standard_error: float
    weight: Share = 0.0  # in the average of maps that gives probabilities


@dataclass(frozen=True)
class TemperatureScore:
    """The cross-validated gain of answers at a temperature."""

    temperature: float | None
    gain: float
    above: float  # that of answers at the first temperature
    standard_error: float


@dataclass(frozen=True)
class CurvePoint:
    """The gain above Base with a part of the labels."""

    labels: int
    gain_above_base: float


@dataclass(frozen=True)
class DrawsPoint:
    """The cross-validated gain with the first draws of each temperature."""

    m: int
    gain: float
    above: float  # that of all draws
    standard_error: float


@dataclass(frozen=True)
class LikeAnswers:
    """Labelled questions whose answers got like probabilities out of fold (shares, under a constant)."""

    low: Share
    high: Share
    n: LabelCount
    right: LabelCount


@dataclass(frozen=True)
class AtThreshold:
    """Labelled questions that are answered from a threshold on, out of fold (by shares, under a constant)."""

    threshold: Share
    answered: LabelCount
    wrong: LabelCount
    coverage: Share  # answered, of all questions that the map was fitted to and those without an answer


@dataclass(frozen=True)
class AddedLabels:
    """Labels that came back in production, and how a calibration that was learnt again has used them."""

    fit: LabelCount  # that the map was fitted to
    apart: LabelCount  # audited ones that the threshold was set on
    unlabelled: LabelCount  # audited replies without a label
    left_out: Mapping[str, LabelCount]  # why others are not used → how many
    assumed_wrong: LabelCount = 0  # of those for the threshold: without a label, which count as wrong

    @property
    def labeled(self) -> int:
        """How many labels were used."""
        return self.fit + self.apart - self.assumed_wrong


@dataclass(frozen=True)
class CalibrationReport:
    """What was chosen and how good it is; figures of the calibrated probability are out of fold."""

    n: int  # labelled questions that the map was fitted to
    apart: int  # labelled questions that the threshold alone was set on
    chosen: str
    candidates: tuple[CandidateScore, ...]
    base: Mapping[str, float | None]  # accuracy, mean_confidence, ace, …; None where undefined
    calibrated: Mapping[str, float | None]
    learning_curve: tuple[CurvePoint, ...]
    warnings: tuple[str, ...] = ()
    #: Further labeled questions, whose most frequent meaning is "no answer": all wrong.
    no_answer: LabelCount = 0
    no_answer_samples: LabelCount = 0  # of all labeled questions, at the temperature of the answer
    base_at_one: Mapping[str, float | None] | None = None  # at T = 1, where others were tried
    temperatures: tuple[TemperatureScore, ...] = ()
    first: tuple[str, ...] = ()  # what to know and do before anything else
    like: tuple[LikeAnswers, ...] = ()  # ascending; all labelled questions that the map was fitted to
    draws_curve: tuple[DrawsPoint, ...] = ()  # where it was asked for; the last is of all draws
    added: AddedLabels | None = None  # counted in `n` and `apart`
    at_thresholds: tuple[AtThreshold, ...] = ()  # ascending; no promise for other questions

    def to_json(self) -> dict[str, Any]:
        """Return it as an object of a file, without what was not asked for."""
        contents = asdict(self)
        for name in ("draws_curve", "added", "no_answer", "no_answer_samples", "at_thresholds"):
            if not contents[name]:
                del contents[name]
        return contents

    def like_answers(self, score: float) -> LikeAnswers | None:
        """The labelled questions whose answers scored like this one; None if there are none."""
        return min(self.like, key=lambda one: max(one.low - score, score - one.high, 0.0), default=None)

    @property
    def why(self) -> str:
        """What was chosen, and by how much it is ahead."""
        best = max(self.candidates, key=lambda candidate: candidate.above)
        if self.chosen.startswith("constant"):
            p = (sum(one.right for one in self.like) + 1) / (self.n + 2)
            reason = next((one for one in self.warnings if ONE_PROBABILITY in one), None)
            usual = f"No map is better than one probability for all answers, {p:.3f}"
            why = usual if reason is None else f"All answers have the probability {p:.3f}: {reason}"
            return (
                f"{why}; which are likelier to be right the share tells, with which a threshold is compared."
            )
        chosen = next(candidate for candidate in self.candidates if candidate.name == self.chosen)
        n_maps = sum(candidate.weight > 0 for candidate in self.candidates)
        averaged = ""
        if n_maps > 1:
            which = "the share" if self.chosen.startswith("none") else "this one"
            averaged = (
                f" Probabilities are the mean of {n_maps} maps, weighted by their gain; {which} has "
                f"{chosen.weight:.2f} of the weight."
            )
        if self.chosen.startswith("none"):
            return (
                f"The answer gets its share (as good as any map that was learned): the best, {best.name}, "
                f"would gain {best.above:+.3f} ± {best.standard_error:.3f}, no more than chance.{averaged}"
            )
        return (
            f"Chosen: {self.chosen}, whose cross-validated gain is {chosen.above:+.3f} ± "
            f"{chosen.standard_error:.3f} above that of the share as it is.{averaged}"
        )

    @property
    def answered_at(self) -> str | None:
        """At which temperature answers are drawn, and why; None where one alone was at hand."""
        best = max(self.temperatures[1:], key=lambda at: at.above, default=None)
        if best is None:
            return None
        by = f"{best.above:+.3f} ± {best.standard_error:.3f}"
        if best.above > best.standard_error:
            return f"Answers are drawn at T = {best.temperature:g}, which gains {by} above T = 1."
        return f"Answers are drawn at T = 1; at T = {best.temperature:g} they would gain {by}."

    @property
    def advice(self) -> tuple[str, ...]:
        """What further labels would bring, if there are enough to say; and what fewer draws would cost."""
        return (*self._advice_on_labels, *self._advice_on_draws)

    @property
    def _advice_on_draws(self) -> Iterator[str]:
        if not self.draws_curve:
            return
        *fewer, full = self.draws_curve
        if not fewer:
            return
        yield (
            f"Gain by draws, from the first of each temperature ({full.m} at hand, {full.gain:.3f}): "
            + ", ".join(f"{p.m}: {p.above:+.3f} ± {p.standard_error:.3f}" for p in fewer)
        )
        enough = next((p.m for p in fewer if p.m > 1 and p.above >= -p.standard_error), None)
        if enough is not None:
            yield f"{enough} draws lose no more than a standard error (--m {enough})."

    @property
    def _advice_on_labels(self) -> tuple[str, ...]:
        halves = [point for point in self.learning_curve if point.labels <= self.n / 2]
        if not halves:
            return ()
        half, full = halves[-1], self.learning_curve[-1]
        before, after = (point.gain_above_base for point in (half, full))
        return (
            f"Gain above Base: {before:+.3f} with {half.labels} labels, {after:+.3f} with "
            f"{full.labels}; twice as many would add about {max(0.0, after - before) / 2:.3f}.",
        )
