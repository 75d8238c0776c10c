"""The answer to one question, made once for the reply, the log, the watch and the page."""

from __future__ import annotations

from dataclasses import dataclass, replace

from semcal.calibration.calibration import Calibration, Threshold
from semcal.calibration.fields import FieldCalibration
from semcal.data.question import Question
from semcal.results import Answer


@dataclass(frozen=True)
class AnswerOutcome:
    """The answer to a question, and its costs."""

    answer: Answer  # with row and features
    form: str  # normal form of the answer, "" for no answer
    prompt_tokens: int
    completion_tokens: int  # for all samples
    seconds: float  # seconds of the pass that sampled the answer
    cost: float | None
    n_draws: int  # samples of a model at each temperature
    by_other_model: bool = False  # a reply of the server names another model than the request

    def followed_by(self, other: AnswerOutcome) -> AnswerOutcome:
        """Return a later answer to the same question, with the costs of both."""
        costs = [cost for cost in (self.cost, other.cost) if cost is not None]
        return replace(
            other,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            seconds=self.seconds + other.seconds,
            cost=sum(costs) if costs else None,
        )


@dataclass(frozen=True)
class ReplyVerdict:
    """The probability of an answer, and whether the reply abstains."""

    probability: float | None
    threshold: float | None
    abstained: bool | None  # None if no risk was certified
    decision: str | None = None

    @classmethod
    def on(
        cls,
        answer: Answer,
        calibration: Calibration | FieldCalibration,
        *,
        band: Threshold | None,
        covered: bool,
        alarm: bool,
    ) -> ReplyVerdict:
        """Return the verdict on an answer, with the threshold of `band` if the request names its risk.

        There is no probability if the calibration does not cover the request. "No answer" always abstains,
        and during an alarm every reply abstains.
        """
        if answer.text is None:
            decision = "abstain" if answer.decision and covered else None
            return cls(None, answer.threshold if covered else None, True, decision)
        if not covered:
            return cls(None, None, alarm)
        threshold, abstained, decision = answer.threshold, answer.abstained, answer.decision
        if band is not None and isinstance(calibration, Calibration):
            score = answer.score if calibration.map.candidate.kind == "constant" else answer.confidence
            order = score if calibration.ordering is None else answer.features.get(calibration.ordering)
            threshold, decision = band.threshold, None
            abstained = order is None or not calibration.accepts(order, band)
        if alarm:
            return cls(None, threshold, True, "abstain" if decision else None)
        return cls(answer.confidence, threshold, abstained, decision)


@dataclass(frozen=True)
class Answered:
    """A question with its answer and the verdict on it."""

    id: str  # of the reply
    question: Question
    outcome: AnswerOutcome
    verdict: ReplyVerdict
    calibration: str  # its id
    route: str  # name of the model that answered
    template: str = ""  # hash of the prompt's template
    uncovered: tuple[str, ...] = ()  # parameters that the calibration does not cover
    overhead: float = 0.0  # seconds outside of the passes that sampled
    audited: bool = False  # whether it is marked for a label

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the reply, for clients that drop other fields."""
        p = self.verdict.probability
        return {
            "x-semcal-probability": "null" if p is None else f"{p:.6g}",
            "x-semcal-abstained": "true" if self.verdict.abstained else "false",
            "x-semcal-calibration": self.calibration,
            "x-semcal-overhead-ms": f"{1000 * self.overhead:.1f}",
        }
