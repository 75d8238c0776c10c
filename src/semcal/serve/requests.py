"""Requests in the shape of OpenAI's chat completions, and their coverage by a calibration.

A probability holds for answers that are sampled like those of the labeled questions. Options that change the
sampling or the form of a reply are rejected, or ignored and named if the operator allows it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field

from semcal.calibration.calibration import Calibration, Threshold
from semcal.calibration.fields import FieldCalibration
from semcal.data.question import Question, Turn, turns_of
from semcal.data.template import Template
from semcal.errors import InputError, UsageError, shown
from semcal.fields.documents import read_document
from semcal.fields.schema import JsonValue, Schema, parse_schema
from semcal.files import dumps
from semcal.models.distribution import temperature_of
from semcal.models.sample import Sampling
from semcal.registry import check_name
from semcal.serve.replies import ApiError

CHAT, CHECK, LABELS = "/v1/chat/completions", "/v1/semcal/check", "/v1/semcal/labels"
#: Options that name the schema of a document.
SCHEMA_OPTIONS = ("response_format", "tools", "tool_choice")
#: Maximum difference between a temperature and that of the calibration.
_CLOSE = 1e-9
#: Number of digits of the hash that distinguishes chats with equal last turns.
_DIGITS = 16
Style = Literal["sentence", "refusal", "pass", "error"]
"""The form of an abstention."""

# ---- Bodies

_Item = TypeVar("_Item")
#: A list with one error at most, because a million errors of a large body would fill the memory.
Items = Annotated[list[_Item], Field(fail_fast=True)]
_MESSAGES = [[{"role": "user", "content": "Who wrote The Amber Gate?"}]]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class ContentPart(_Body):
    """A part of a message."""

    model_config = ConfigDict(extra="allow")
    type: str = Field(json_schema_extra={"enum": ["text"]})
    text: str | None = None


class Message(_Body):
    """A message of a chat."""

    model_config = ConfigDict(extra="allow")
    role: str = Field(json_schema_extra={"enum": ["system", "developer", "user", "assistant"]})
    content: str | Items[ContentPart] | None = None

    @property
    def text(self) -> str:
        """The text; several parts are joined by line breaks."""
        parts = self.content if isinstance(self.content, list) else []
        return self.content if isinstance(self.content, str) else "\n".join(part.text or "" for part in parts)


class Options(_Body):
    """Options of semcal in a request."""

    risk: float | None = None  # one of the certified risks
    meanings: int | None = Field(default=None, ge=1)  # number of listed meanings
    samples: bool = False  # whether samples are listed
    fields: Literal["accepted"] | None = None  # null for fields of a document that are not accepted
    columns: dict[str, str | float | bool | None] | None = None  # values that the calibration reads


class StreamOptions(_Body):
    """Options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


def _only(*values: Any) -> Any:
    """Return a field that may be null or one of these values."""
    return Field(default=None, json_schema_extra={"enum": [*values, None]})


class Covered(_Body):
    """Options that change the sampling or the form of a reply, with the values that do not."""

    n: int | None = _only(1)
    top_p: float | None = _only(1)
    top_k: int | None = _only(0, -1)
    min_p: float | None = _only(0)
    presence_penalty: float | None = _only(0)
    frequency_penalty: float | None = _only(0)
    repetition_penalty: float | None = _only(1)
    logit_bias: dict[str, Any] | None = _only({})
    stop: str | Items[str] | None = _only([])
    tools: Items[dict[str, Any]] | None = _only([])
    reasoning_effort: str | None = _only()
    logprobs: bool | None = _only(False)
    top_logprobs: int | None = _only(0)
    response_format: dict[str, Any] | None = _only({"type": "text"})
    tool_choice: str | dict[str, Any] | None = _only("none", "auto")


class ChatRequest(Covered):
    """A request to /v1/chat/completions."""

    model: str
    messages: Items[Message] = Field(min_length=1, examples=_MESSAGES)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    semcal: Options | None = None
    temperature: float | None = None
    # options without effect here
    seed: int | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    parallel_tool_calls: bool | None = None

    def not_covered(self, read: Sequence[str] = ()) -> Iterator[tuple[str, Any]]:
        """Yield the options with values that are not covered, except those that are `read`."""
        for name, entry in Covered.model_fields.items():
            value = getattr(self, name)
            if name not in read and value not in cast("Any", entry.json_schema_extra)["enum"]:
                yield name, value

    @property
    def tool(self) -> dict[str, Any] | None:
        """The function whose arguments are the document: the only one, or the one in `tool_choice`."""
        choice = self.tool_choice
        if choice == "none" or (not self.tools and choice in (None, "auto")):
            return None
        functions = [_function(tool, f"tools.{place}") for place, tool in enumerate(self.tools or ())]
        if isinstance(choice, dict):
            functions = [one for one in functions if choice.get("function") == {"name": one["name"]}]
        elif choice not in (None, "auto", "required"):
            functions = []
        if len(functions) != 1:
            reason = (
                "the calibration has one schema; send one function in 'tools', or name one in tool_choice"
            )
            raise ApiError(400, reason, param="tool_choice")
        return functions[0]


def _function(tool: Mapping[str, Any], param: str) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        reason = f"{param}: expected a function with 'name' and 'parameters', got {shown(tool)}; send one"
        raise ApiError(400, reason, param=param)
    return function


class CheckRequest(_Body):
    """A request to /v1/semcal/check: an answer and its question or messages, or a row with a score."""

    model: str | None = None
    messages: Items[Message] | None = Field(default=None, min_length=1, examples=_MESSAGES)
    question: str | None = None
    context: str | None = None
    answer: str | dict[str, Any] | None = None  # an object if answers are documents
    row: dict[str, Any] | None = None  # as of `semcal measure`, if the calibration is of a score
    samples: Items[str | dict[str, Any] | None] | None = None  # existing samples; null means no answer
    log_likelihoods: Items[float | None] | None = None
    semcal: Options | None = None

    def given_samples(self, m: int) -> dict[str, Any] | None:
        """Return the m samples of the request as in a row, None without any; ApiError for other numbers."""
        if self.samples is None:
            if self.log_likelihoods is not None:
                raise ApiError(400, "'log_likelihoods' require 'samples'; send both")
            return None
        if len(self.samples) != m:
            n = len(self.samples)
            reason = f"'samples' has {n} answers, expected {m} as in the calibration; send {m}"
            raise ApiError(400, reason, param="samples")
        likelihoods = {} if self.log_likelihoods is None else {"log_likelihoods": self.log_likelihoods}
        return {"samples": [_text(sample) for sample in self.samples], **likelihoods}

    @property
    def texts(self) -> list[str]:
        """All texts but those of messages."""
        texts = (self.question, self.context, self.answer, *(self.samples or ()))
        return [text for one in texts if (text := _text(one))]


class Label(_Body):
    """The correctness of the answer of a reply, or correct answers; of a document, the reference."""

    id: str
    correct: bool | None = None
    reference: str | Items[str] | dict[str, Any] | None = None

    @property
    def references(self) -> list[str]:
        """All correct answers of the label; the reference of a document is one text of JSON."""
        one = _text(self.reference) if isinstance(self.reference, str | dict) else None
        return [one] if one is not None else list(self.reference or ())


def _text(value: str | dict[str, Any] | None) -> str | None:
    """Return a document as text, and any other value as it is."""
    return dumps(value) if isinstance(value, dict) else value


# ---- Questions


@dataclass(frozen=True)
class Query:
    """The question of a request, and its parts that the calibration does not cover."""

    question: Question
    uncovered: tuple[tuple[str, str], ...] = ()  # names of parameters, each with a sentence


@dataclass(frozen=True)
class Coverage:
    """The coverage of a calibration: its template and its sampling."""

    calibration: Calibration | FieldCalibration
    sampling: Sampling

    @cached_property
    def schema(self) -> Schema | None:
        """The schema of the answers if they are documents."""
        return self.calibration.parsed if isinstance(self.calibration, FieldCalibration) else None

    @property
    def template(self) -> Template:
        """The template of the calibration's prompt."""
        return self.sampling.asking.template or Template()

    def read(self, request: ChatRequest) -> Query:
        """Return the question of a request; ApiError unless it asks for documents with the schema."""
        if self.schema is not None:
            check_schema(request, self.schema)
        query = self.question(request.messages)
        return replace(query, uncovered=(*query.uncovered, *self._drawn_otherwise(request, query.question)))

    def question(self, messages: Sequence[Message]) -> Query:
        """Return the question of messages; ApiError if they do not only hold texts."""
        try:
            turns = turns_of([_plain(message, place) for place, message in enumerate(messages)])
        except InputError as error:
            raise ApiError(400, str(error), code="invalid_messages", param="messages") from error
        question = Question(_id_of(turns), "", messages=turns)
        template = Template.of(question)
        if not self.template.roles:
            *before, last = turns
            if before in ([], [Turn("system", self.template.system or "")]):
                fields = self.template.read(last.content)
                if fields is None and "{context}" not in (self.template.user or ""):
                    fields = {"question": last.content}
                if fields is not None:
                    text = fields["question"]
                    question = Question(text, text, context=fields.get("context"))
                    return self._as_labelled(question, "messages")
            if turns[0].role != "system":  # the calibration's system message precedes a single question
                template = replace(template, system=self.template.system)
        difference = self.template.difference(template, question)
        if difference is None:
            return Query(question)
        if template.system != self.template.system:  # the message belongs to the operator
            difference = "the system message differs"
        reason = f"the calibration was learned with another prompt: {difference}; send such messages, or "
        return Query(question, (("messages", f"{reason}calibrate with yours"),))

    def plain(self, text: str, context: str | None) -> Query:
        """Return a question without messages, in the calibration's template."""
        question = Question(text, text, context=context)
        if not text.strip():
            raise ApiError(400, "'question' is empty; send a text", param="question")
        if self.template.roles:
            reason = f"the calibration is for messages ({', '.join(self.template.roles)}); send 'messages'"
            return Query(question, (("question", reason),))
        return self._as_labelled(question, "context")

    def _as_labelled(self, question: Question, param: str) -> Query:
        """Return a question, covered if it has a passage like the labeled questions or the template."""
        asking, user = self.sampling.asking, self.template.user
        if user is not None:
            asking = replace(asking, open_book="{context}" in user)
        difference = asking.passage_difference(question)
        return Query(question, () if difference is None else ((param, difference),))

    def _drawn_otherwise(self, request: ChatRequest, question: Question) -> list[tuple[str, str]]:
        """Return the options of a request that change the sampling, each with a sentence."""
        uncovered, value = [], request.temperature
        temperature, limit = temperature_of(self.sampling.recalibrators[0]), self.sampling.limit(question)
        if value is not None and (temperature is None or abs(value - temperature) > _CLOSE):
            at = "with its recalibrator" if temperature is None else f"at {temperature:g}"
            uncovered.append(("temperature", f"answers are sampled {at}, not at temperature {value:g}"))
        for name, value in request.not_covered(() if self.schema is None else SCHEMA_OPTIONS):
            uncovered.append((name, f"answers are sampled without {name} {shown(value)}"))
        for name in ("max_tokens", "max_completion_tokens"):
            if (value := getattr(request, name)) is not None and value < limit:
                reason = f"answers have up to {limit} tokens, and {name} {value} would truncate some"
                uncovered.append((name, reason))
        return [(name, f"{reason}; omit it") for name, reason in uncovered]

    def check_options(self, options: Options) -> None:
        """Raise ApiError for an option that does not apply to the answers of this calibration."""
        is_flat = self.schema is None
        for name in ("fields",) if is_flat else ("risk", "meanings"):
            if getattr(options, name) is not None:
                kind = "single answers" if is_flat else "documents"
                reason = f"semcal.{name} does not apply, because the calibration is of {kind}; omit it"
                raise ApiError(400, reason, param=f"semcal.{name}")
        for name in self.columns:
            if name not in (options.columns or {}):
                reason = f"semcal.columns: {name!r} is missing, which the calibration reads; send it, or null"
                raise ApiError(400, reason, param="semcal.columns")

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that a request must bring; none for a score, which comes in a row with its columns."""
        learned = self.calibration
        if isinstance(learned, FieldCalibration):
            return () if learned.by is None else (learned.by,)
        return tuple(column.name for column in learned.columns) if learned.score is None else ()

    def with_columns(self, query: Query, options: Options) -> Query:
        """Return a query whose question has the columns of the calibration."""
        if not self.columns:
            return query
        values = options.columns or {}
        extra = {**query.question.extra, **{name: values[name] for name in self.columns}}
        return replace(query, question=replace(query.question, extra=extra))

    def threshold_for(self, risk: float | None) -> Threshold | None:
        """Return the threshold for a risk of a request; ApiError for a risk without a threshold."""
        bands = self.calibration.all_thresholds
        found = [band for band in bands if risk is not None and abs(band.risk_limit - risk) <= _CLOSE]
        if risk is None or found:
            return found[0] if found else None
        certified = ", ".join(f"{band.risk_limit:g}" for band in bands) or "none"
        reason = f"the calibration has no threshold for the risk {risk:g}; send a certified one: {certified}"
        raise ApiError(400, reason, code="unknown_risk", param="semcal.risk")


def check_schema(request: ChatRequest, schema: Schema) -> None:
    """Raise ApiError unless a request asks for a document with this schema, as its format or of a tool."""
    tool, form = request.tool, request.response_format or {"type": "text"}
    param = "response_format" if tool is None else "tools"
    holder = form.get("json_schema") if tool is None else tool
    is_valid = form.get("type") == "json_schema" if tool is None else form == {"type": "text"}
    if not is_valid or not isinstance(holder, dict):
        expected = "{'type': 'json_schema', 'json_schema': {'name': …, 'schema': …}}, or absent with 'tools'"
        reason = f"the calibration is of documents, so response_format must be {expected}"
        raise ApiError(400, f"{reason}, got {shown(form)}; send the schema", param="response_format")
    try:
        asked = parse_schema(holder.get("schema" if tool is None else "parameters"))
    except InputError as error:
        raise ApiError(400, f"{param}: {error}", code="invalid_schema", param=param) from error
    if asked.hash != schema.hash:
        reason = f"{param}: the calibration was learned with another schema"
        remedy = "send its schema, which /v1/semcal/state has, or calibrate with yours"
        raise ApiError(400, f"{reason}; {remedy}", code="other_schema", param=param)


def given_document(answer: str | dict[str, Any], schema: Schema) -> JsonValue:
    """Return a given document; ApiError if it is not valid under the schema."""
    try:
        return read_document(schema, answer) if isinstance(answer, str) else schema.root.read(answer)
    except InputError as error:
        reason = f"'answer' is not valid under the schema of the calibration: {error}; correct it"
        raise ApiError(400, reason, param="answer") from error


def _id_of(turns: Sequence[Turn]) -> str:
    """Return the last turn, with a hash of earlier turns, as the seed of random numbers."""
    *before, last = turns
    if not before:
        return last.content
    content = json.dumps([[turn.role, turn.content] for turn in before])
    return f"{last.content} ({hashlib.sha256(content.encode()).hexdigest()[:_DIGITS]})"


def _plain(message: Message, place: int) -> dict[str, Any]:
    """Return a message as in semcal's rows: the developer role becomes system, and text parts are joined."""
    further = {name: value for name, value in (message.model_extra or {}).items() if value not in (None, [])}
    role = "system" if message.role == "developer" else message.role
    for part in message.content if isinstance(message.content, list) else ():
        if part.type != "text" or part.text is None:
            reason = f"has a part of type {shown(part.type)}; the calibration covers only text"
            raise InputError(f'"messages"[{place}] {reason}')
    return {"role": role, "content": message.text, **further}


# ---- Errors of bodies


#: The bodies of paths, for messages on unknown keys.
_BODIES: Mapping[str, type[BaseModel]] = {CHAT: ChatRequest, CHECK: CheckRequest, LABELS: Label}


def body_error(path: str, errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """Return the error for an invalid body, with the nearest name for an unknown key."""
    if path == LABELS and isinstance(errors[0].get("input"), list):  # without the errors of a single label
        errors = [error for error in errors if "Label" not in error["loc"]] or errors
    first = next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])
    place = [str(part) for part in first["loc"] if part not in ("body", "Label", "list[Label]")]
    param = ".".join(place) or None
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not valid JSON: {first['ctx']['error']}", code="invalid_json")
    if first["type"] == "extra_forbidden":
        parts: dict[str, type[BaseModel]] = {"semcal": Options, "stream_options": StreamOptions}
        model = (parts.get(place[0]) if len(place) > 1 else None) or _BODIES.get(path, Label)
        try:
            check_name(place[-1], model.model_fields, what="key")
        except UsageError as error:
            return ApiError(400, f"{param}: {error}", code="unknown_parameter", param=param)
    text = first["msg"][:1].lower() + first["msg"][1:]
    got = "" if first["type"] == "missing" else f", got {shown(first.get('input'))}"
    return ApiError(400, f"{param or 'the body'}: {text}{got}", param=param)
