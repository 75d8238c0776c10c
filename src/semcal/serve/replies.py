"""Models of the replies, for sending and for /openapi.json.

A field with a default is absent if it is not set.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict
from starlette.responses import JSONResponse

from semcal.calibration.calibration import DecisionWord
from semcal.fields.documents import with_values
from semcal.fields.rows import DOCUMENT, FIELDS, INVALID, REVIEW
from semcal.files import dumps
from semcal.rows import AnswerKind
from semcal.serve.answered import Answered

#: The status of a reply whose client has disconnected.
CLIENT_GONE = 499
_Item = TypeVar("_Item")


class JsonReply(JSONResponse):
    """A reply in semcal's JSON: infinities as texts, undefined numbers as null."""

    def render(self, content: Any) -> bytes:
        """Return the bytes."""
        return dumps(content).encode()


class _Content(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


# ---- Answers


class ListedMeaning(_Content):
    """A meaning among the samples."""

    text: str | None
    share: float | None
    probability: float | None
    samples: list[str | None] = []  # if the request asks for them


class _Part(_Content):
    @classmethod
    def _with(cls, values: Mapping[str, Any]) -> Self:
        """Return the part with these values; optional ones are set if they are not empty."""
        fields = cls.model_fields.items()
        return cls(**{name: values[name] for name, one in fields if one.is_required() or values[name]})


class SemcalPart(_Part):
    """The object `semcal` of a reply: the keys of `semcal ask --json`, and the model that answered."""

    id: str  # id of the reply
    answer: str | None
    confidence: float | None
    score: float | None
    abstained: bool | None
    reason: str | None = None  # if there is no answer
    threshold: float | None
    thresholds: list[dict[str, int | float | None]] | None
    decision: DecisionWord | None
    entropy: float | None
    meanings: list[ListedMeaning]
    m: int
    tied: int | None
    answer_kind: AnswerKind
    calibration: str
    explanation: str | None
    route: str
    uncovered: tuple[str, ...] = ()  # if the calibration does not cover the request
    audit: bool = False  # if the reply is marked for a label

    @classmethod
    def of(cls, answered: Answered, *, most: int | None = None, samples: bool = False) -> Self:
        """Describe an answer with its first `most` meanings, and with `samples` their samples."""
        answer, verdict = answered.outcome.answer, answered.verdict
        has_probability = verdict.probability is not None
        values = vars(answer) | vars(verdict) | vars(answered) | {"audit": answered.audited}
        values |= {"answer": answer.text, "confidence": verdict.probability, "reason": answer.reason}
        values["m"] = len(m) if isinstance(m := answer.row.json.get("samples"), list) else 0
        values["explanation"] = (answer if has_probability else replace(answer, like=None)).explanation
        values["meanings"] = [
            ListedMeaning(
                text=meaning.text,
                share=meaning.share,
                probability=meaning.probability if has_probability else None,
                **({"samples": list(meaning.samples)} if samples else {}),
            )
            for meaning in answer.meanings[:most]
        ]
        return cls._with(values)

    def message(self, style: str, sentence: str, tool: str | None = None) -> AssistantMessage:  # noqa: ARG002
        """Return the answer, or an abstention in the style of the operator."""
        content, refusal = self.answer, None
        if content is None or (self.abstained and style != "pass"):
            content, refusal = (None, sentence) if style == "refusal" else (sentence, None)
        return AssistantMessage(role="assistant", content=content, refusal=refusal)


class DocumentPart(_Part):
    """The object `semcal` of a reply with a document: keys of `semcal ask`, and the model that answered."""

    id: str  # id of the reply
    answer: dict[str, Any] | None
    fields: dict[str, dict[str, Any]]  # value, probability, share, accepted and alternatives by JSON Pointer
    document: dict[Literal["probability", "accepted"], float | bool | None]  # all fields are right
    review: list[str]  # fields that are not accepted, the least probable first
    reason: str | None = None  # if there is no answer
    invalid_samples: int
    samples: list[str | None] = []  # if the request asks for them
    m: int
    answer_kind: AnswerKind
    calibration: str
    route: str
    uncovered: tuple[str, ...] = ()  # if the calibration does not cover the request
    audit: bool = False  # if the reply is marked for a label

    @classmethod
    def of(cls, answered: Answered, *, samples: bool = False, accepted_only: bool = False) -> Self:
        """Describe a document; without a probability of the document no field has one."""
        row, verdict = answered.outcome.answer.row.json, answered.verdict
        blocks, document, review = row[FIELDS], row[DOCUMENT], row[REVIEW]
        if verdict.probability is None:
            nothing = {"probability": None, "accepted": False if verdict.abstained else None}
            blocks = {path: {**block, **nothing} for path, block in blocks.items()}
            document, review = nothing, [*blocks]
        answer = row["answer"]
        values = vars(answered) | {"fields": blocks, "document": document, "review": review}
        values |= {
            "answer": with_values(answer, dict.fromkeys(review)) if accepted_only and answer else answer
        }
        values |= {"samples": row["samples"] if samples else [], "m": len(row["samples"])}
        values |= {"invalid_samples": row[INVALID], "reason": row.get("reason")}
        values |= {"answer_kind": answered.outcome.answer.answer_kind, "audit": answered.audited}
        return cls._with(values)

    def message(self, style: str, sentence: str, tool: str | None = None) -> AssistantMessage:
        """Return the document, as the arguments of a `tool` if there is one, or a refusal.

        A document below its threshold is sent unless the operator chose another style of abstention. Without
        a document, and during an alarm, the reply is a refusal, because a sentence is no document.
        """
        is_refused, is_alarm = self.document["accepted"] is False, self.document["probability"] is None
        is_sent = style == "pass" or not is_refused or (style == "sentence" and not is_alarm)
        text = dumps(self.answer)
        said: dict[str, Any] = {"content": text if tool is None else None, "refusal": None}
        if self.answer is None or not is_sent:
            said = {"content": None, "refusal": sentence}
        elif tool is not None:
            function: dict[Literal["name", "arguments"], str] = {"name": tool, "arguments": text}
            said["tool_calls"] = [ToolCall(id=f"call_{self.id[-32:]}", type="function", function=function)]
        return AssistantMessage(role="assistant", **said)


AnswerPart = SemcalPart | DocumentPart
"""The object `semcal` of a reply."""


class TokenUsage(_Content):
    """The tokens of all samples, and the verdict."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    semcal: dict[str, float | bool | None]

    @classmethod
    def of(cls, answered: Answered) -> TokenUsage:
        """Count the tokens of an answer."""
        tokens_in, tokens_out = answered.outcome.prompt_tokens, answered.outcome.completion_tokens
        return cls(
            prompt_tokens=tokens_in,
            completion_tokens=tokens_out,
            total_tokens=tokens_in + tokens_out,
            semcal={"probability": answered.verdict.probability, "abstained": answered.verdict.abstained},
        )


class ToolCall(_Content):
    """A call of the function that the request defines."""

    id: str
    type: Literal["function"]
    function: dict[Literal["name", "arguments"], str]


class AssistantMessage(_Content):
    """The answer, or the abstention."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    tool_calls: list[ToolCall] = []

    @property
    def end(self) -> Literal["stop", "tool_calls"]:
        """The reason for the end of the message."""
        return "tool_calls" if self.tool_calls else "stop"


class Choice(_Content):
    """The only choice of a completion."""

    index: int
    message: AssistantMessage
    finish_reason: Literal["stop", "tool_calls"]
    logprobs: None


class Completion(_Content):
    """The reply to a chat."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str  # as the request named it
    choices: list[Choice]
    usage: TokenUsage
    semcal: AnswerPart

    @classmethod
    def of(cls, answered: Answered, semcal: AnswerPart, model: str, message: AssistantMessage) -> Completion:
        """Return the reply with this message."""
        return cls(
            id=answered.id,
            object="chat.completion",
            created=int(time.time()),
            model=model,
            choices=[Choice(index=0, message=message, finish_reason=message.end, logprobs=None)],
            usage=TokenUsage.of(answered),
            semcal=semcal,
        )

    async def events(self, *, include_usage: bool) -> AsyncIterator[bytes]:
        """Yield the reply as a stream: the message, the end, and with `include_usage` the usage.

        The first event holds the whole message, because LiteLLM loses the text of a later refusal.
        """
        whole = self.model_dump(exclude_unset=True) | {"object": "chat.completion.chunk"}
        (choice,), usage = whole.pop("choices"), whole.pop("usage")
        message, end = choice.pop("message"), choice["finish_reason"]
        for index, call in enumerate(message.get("tool_calls", ())):
            call["index"] = index
        for delta, reason in ((message, None), ({}, end)):
            yield _event({**whole, "choices": [choice | {"delta": delta, "finish_reason": reason}]})
        if include_usage:
            yield _event({**whole, "choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"


def _event(content: Mapping[str, Any]) -> bytes:
    return b"data: " + dumps(content).encode() + b"\n\n"


class CheckedAnswer(_Content):
    """The probability that a given answer is right."""

    id: str
    object: Literal["semcal.check"]
    semcal: AnswerPart
    usage: TokenUsage


# ---- Labels, and the state of the server


class ReplyList(_Content, Generic[_Item]):
    """A list in OpenAI's shape."""

    object: Literal["list"]
    data: list[_Item]


class TakenLabel(_Content):
    """An accepted label; it does not count if an equal answer was labeled before."""

    id: str
    correct: bool
    counts: bool


class ServedModel(_Content):
    """A name of the model for requests."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class Health(_Content):
    """The server runs."""

    status: Literal["ok"]


class Readiness(_Content):
    """The readiness of the server, with its missing parts."""

    status: Literal["ready", "draining", "failed"]
    missing: list[str]  # model servers: of model, equivalence, fallback
    log: Literal["off", "ok", "cannot be written"]
    alarm: bool
    waiting: int


class Versions(_Content):
    """The versions of semcal, the model and the calibration."""

    semcal: str
    model: str
    revision: str | None
    calibration: str


class ServiceState(_Content):
    """The data of the page besides replies."""

    models: tuple[str, ...]
    calibration: str
    answer_kind: AnswerKind
    labelled: list[dict[str, Any]]
    thresholds: list[dict[str, Any]]
    watch: dict[str, Any] | None
    on_alarm: str
    examples: list[str]
    documents: dict[str, Any] | None = None  # if answers are documents: their JSON Schema
    columns: list[str] = []
    form: str | None = None  # of a user's turn with a passage, with {question} and {context}


# ---- Errors


class ErrorReply(_Content):
    """An error in OpenAI's shape; for an abstention, it describes the answer."""

    error: dict[Literal["message", "type", "param", "code"], str | None]
    id: str = ""
    semcal: AnswerPart | None = None


@dataclass(eq=False)
class ApiError(Exception):
    """An error in reply to a request; the message has the remedy."""

    status: int
    message: str
    _: KW_ONLY
    code: str = "invalid_request"
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    semcal: AnswerPart | None = None  # for an abstention

    @property
    def outcome(self) -> str:
        """The outcome for metrics."""
        return self.code if self.status >= CLIENT_GONE else "refused"

    @property
    def reply(self) -> JsonReply:
        """The body of the reply."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        said = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        further = {} if self.semcal is None else {"id": self.semcal.id, "semcal": self.semcal}
        content = ErrorReply.model_validate({"error": said, **further})
        return JsonReply(content.model_dump(exclude_unset=True), self.status, self.headers)
