"""The answer to one question, found once: the reply, the log, the watch and the page read it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from semcal.calibration.calibration import Calibration, Threshold
from semcal.data.question import Question
from semcal.results import Answer


@dataclass(frozen=True)
class AnswerOutcome:
    """The answer to a question, and what it took."""

    answer: Answer  # with its row and its features
    form: str  # the normal form of the answer; "" of no answer
    prompt_tokens: int
    completion_tokens: int  # of all samples
    seconds: float  # of sampling
    cost: float | None
    n_draws: int  # of a model, at each temperature
    by_other_model: bool = False  # a reply of the server names another model than was asked for

    def followed_by(self, other: AnswerOutcome) -> AnswerOutcome:
        """Return another answer that was asked for after this one, with what both took."""
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
        cls, answer: Answer, calibration: Calibration, *, band: Threshold | None, covered: bool, alarm: bool
    ) -> ReplyVerdict:
        """Return the verdict on an answer, by the threshold of `band` if the request names its risk.

        There is no probability if the calibration does not cover the request. "No answer" abstains in any
        case, and so does everything during an alarm.
        """
        if answer.text is None:
            decision = "abstain" if answer.decision and covered else None
            return cls(None, answer.threshold if covered else None, True, decision)
        if not covered:
            return cls(None, None, alarm)
        threshold, abstained, decision = answer.threshold, answer.abstained, answer.decision
        if band is not None:
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
    route: str  # the model that answered
    template: str = ""  # the hash of the prompt's template
    uncovered: tuple[str, ...] = ()  # the parameters that the calibration does not cover
    overhead: float = 0.0  # seconds in which nothing was sampled
    audited: bool = False  # whether it is to be labeled in any case

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the reply, for clients that keep nothing else."""
        p = self.verdict.probability
        return {
            "x-semcal-probability": "null" if p is None else f"{p:.6g}",
            "x-semcal-abstained": "true" if self.verdict.abstained else "false",
            "x-semcal-calibration": self.calibration,
            "x-semcal-overhead-ms": f"{1000 * self.overhead:.1f}",
        }
