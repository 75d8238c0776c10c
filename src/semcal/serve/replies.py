"""Replies in the shape of OpenAI's chat completions, with what semcal says of the answer beside it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from semcal.calibration.calibration import Calibration
from semcal.files import dumps
from semcal.serve.engine import AnswerOutcome
from semcal.serve.requests import Options, Style


@dataclass(frozen=True)
class ReplyVerdict:
    """What is said of an answer: its probability, and whether it is held back."""

    probability: float | None
    threshold: float | None
    abstained: bool | None  # None where no risk was certified
    decision: str | None = None
    uncovered: tuple[str, ...] = ()  # the parameters that the calibration does not cover

    @classmethod
    def of(
        cls,
        outcome: AnswerOutcome,
        calibration: Calibration,
        options: Options,
        *,
        uncovered: tuple[str, ...] = (),
        alarm: bool = False,
    ) -> ReplyVerdict:
        """That of an answer: none where the calibration does not cover it, abstention during an alarm.

        "No answer" abstains in any case.
        """
        answer = outcome.answer
        if answer.text is None:
            decision = "abstain" if answer.decision and not uncovered else None
            return cls(None, None if uncovered else answer.threshold, True, decision, uncovered)
        if uncovered:
            return cls(None, None, alarm, uncovered=uncovered)
        threshold, abstained, decision = answer.threshold, answer.abstained, answer.decision
        if options.risk is not None:
            risk = options.risk
            band = min(calibration.all_thresholds, key=lambda band: abs(band.risk_limit - risk))
            constant = calibration.map.candidate.kind == "constant"
            score = answer.score if constant else answer.confidence
            threshold, decision = band.threshold, None
            abstained = threshold is None or score is None or score < threshold
        if alarm:
            return cls(None, threshold, True, "abstain" if decision else None)
        return cls(answer.confidence, threshold, abstained, decision)


@dataclass(frozen=True)
class Served:
    """An answer as it is sent."""

    id: str  # of the reply
    model: str  # as the request named it
    outcome: AnswerOutcome
    verdict: ReplyVerdict
    options: Options
    calibration: str  # its id
    route: str  # the model that answered
    style: Style  # how an abstention is said
    sentence: str
    overhead: float  # seconds in which nothing was drawn
    audited: bool = False  # whether it is to be labelled in any case

    @property
    def semcal(self) -> dict[str, Any]:
        """The object `semcal` of a reply: keys of `semcal ask --json`, and who answered."""
        answer, verdict = self.outcome.answer, self.verdict
        has_probability = verdict.probability is not None
        return {
            "id": self.id,
            "answer": answer.text,
            "confidence": verdict.probability,
            "score": answer.score,
            "abstained": verdict.abstained,
            **({} if answer.reason is None else {"reason": answer.reason}),
            "threshold": verdict.threshold,
            "thresholds": answer.thresholds,
            "decision": verdict.decision,
            "entropy": answer.entropy,
            "meanings": [
                {
                    "text": meaning.text,
                    "share": meaning.share,
                    "probability": meaning.probability if has_probability else None,
                    **({"samples": list(meaning.samples)} if self.options.samples else {}),
                }
                for meaning in answer.meanings[: self.options.meanings]
            ],
            "m": len(answer.row.samples),
            "tied": answer.tied,
            "answer_kind": answer.answer_kind,
            "calibration": self.calibration,
            "explanation": (answer if has_probability else replace(answer, like=None)).explanation,
            "route": self.route,
            **({"uncovered": list(verdict.uncovered)} if verdict.uncovered else {}),
            **({"audit": True} if self.audited else {}),
        }

    @property
    def message(self) -> dict[str, Any]:
        """What the assistant says."""
        text = self.outcome.answer.text
        if text is not None and (not self.verdict.abstained or self.style == "pass"):
            return {"role": "assistant", "content": text, "refusal": None}
        if self.style == "refusal":
            return {"role": "assistant", "content": None, "refusal": self.sentence}
        return {"role": "assistant", "content": self.sentence, "refusal": None}

    @property
    def usage(self) -> dict[str, Any]:
        """The tokens of all draws."""
        tokens_in, tokens_out = self.outcome.prompt_tokens, self.outcome.completion_tokens
        return {
            "prompt_tokens": tokens_in,
            "completion_tokens": tokens_out,
            "total_tokens": tokens_in + tokens_out,
            "semcal": {"probability": self.verdict.probability, "abstained": self.verdict.abstained},
        }

    @property
    def headers(self) -> dict[str, str]:
        """What clients see that keep nothing else."""
        p = self.verdict.probability
        return {
            "x-semcal-probability": "null" if p is None else f"{p:.6g}",
            "x-semcal-abstained": "true" if self.verdict.abstained else "false",
            "x-semcal-calibration": self.calibration,
            "x-semcal-overhead-ms": f"{1000 * self.overhead:.1f}",
        }

    def completion(self) -> dict[str, Any]:
        """The whole reply."""
        choice = {"index": 0, "message": self.message, "finish_reason": "stop", "logprobs": None}
        return {
            **self._frame("chat.completion"),
            "choices": [choice],
            "usage": self.usage,
            "semcal": self.semcal,
        }

    async def events(self, *, include_usage: bool) -> AsyncIterator[bytes]:
        """The reply as a stream of events: what is said, its end, and with `include_usage` that.

        All is said in the first one: of a refusal in a later one LiteLLM loses the text. `semcal` stands in
        both.
        """
        frame = self._frame("chat.completion.chunk")
        further = {"semcal": self.semcal} | ({"usage": None} if include_usage else {})
        for delta, reason in ((self.message, None), ({}, "stop")):
            choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
            yield _event({**frame, "choices": [choice], **further})
        if include_usage:
            yield _event({**frame, "choices": [], "usage": self.usage})
        yield b"data: [DONE]\n\n"

    def _frame(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": int(time.time()),
            "model": self.model,
            "system_fingerprint": f"semcal-{self.calibration}",
        }


def _event(content: Mapping[str, Any]) -> bytes:
    return b"data: " + dumps(content).encode() + b"\n\n"
