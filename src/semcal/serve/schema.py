"""What replies hold and which errors there are, as /openapi.json describes them."""

from __future__ import annotations

from functools import partial
from types import GenericAlias
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, create_model

from semcal.calibration.calibration import DecisionWord
from semcal.rows import AnswerKind
from semcal.serve.guard import OPEN
from semcal.serve.requests import Drawing
from semcal.serve.service import Service

Description = dict[int | str, dict[str, Any]]
#: Headers of replies, behind x-semcal-.
HEADERS = ("probability", "abstained", "calibration", "overhead-ms")


def _object(name: str, **fields: Any) -> Any:
    """A model of these fields and no others; of one that may be absent the type stands in a tuple."""
    kinds: dict[str, Any] = {key: (kind, ...) for key, kind in fields.items()}
    kinds |= {key: (*kind, None) for key, kind in fields.items() if isinstance(kind, tuple)}
    return create_model(name, __config__=ConfigDict(extra="forbid", strict=True), **kinds)


_list: Any = partial(GenericAlias, list)
_NUMBER, _FLAG, _TEXT = float | None, bool | None, str | None
_MEANING = _object("Meaning", text=_TEXT, share=_NUMBER, probability=_NUMBER, samples=(list[str | None],))
_BAND = _object("Band", risk=float, delta=float, threshold=_NUMBER, n=int)
_SEMCAL = _object(
    "Semcal",
    **dict.fromkeys(("id", "calibration", "route"), str),
    answer=_TEXT,
    reason=(str,),
    **dict.fromkeys(("confidence", "score", "threshold", "entropy"), _NUMBER),
    abstained=_FLAG,
    thresholds=_list(_BAND) | None,
    decision=DecisionWord | None,
    meanings=_list(_MEANING),
    m=int,
    tied=int | None,
    answer_kind=AnswerKind,
    explanation=_TEXT,
    uncovered=(list[str],),
    audit=(bool,),
)
_TOKENS = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), int)
_USAGE = _object("Usage", **_TOKENS, semcal=_object("UsageSemcal", probability=_NUMBER, abstained=_FLAG))
_MESSAGE = _object("Reply", role=Literal["assistant"], content=_TEXT, refusal=_TEXT)
_CHOICE = _object("Choice", index=int, message=_MESSAGE, finish_reason=Literal["stop"], logprobs=None)
_NAMES = dict.fromkeys(("id", "model", "system_fingerprint"), str)
_OF_CHAT: dict[str, Any] = {"object": Literal["chat.completion"], "created": int, "choices": _list(_CHOICE)}
COMPLETION = _object("Completion", **_NAMES, **_OF_CHAT, usage=_USAGE, semcal=_SEMCAL)
CHECKED = _object("Checked", id=str, object=Literal["semcal.check"], usage=_USAGE, semcal=_SEMCAL)
_LABELLED = _object("Labelled", id=str, correct=bool, counts=bool)
LABELLED = _object("LabelledList", object=Literal["list"], data=_list(_LABELLED))
MODEL = _object("Model", id=str, object=Literal["model"], created=int, owned_by=str)
MODELS = _object("ModelList", object=Literal["list"], data=_list(MODEL))
HEALTH = _object("Health", status=Literal["ok"])
_STATUS, _LOG = Literal["ready", "draining", "failed"], Literal["off", "ok", "cannot be written"]
READY = _object("Ready", status=_STATUS, missing=list[str], log=_LOG, alarm=bool, waiting=int)
_VERSIONS = dict.fromkeys(("semcal", "model", "calibration"), str)
VERSION = _object("Version", **_VERSIONS, revision=_TEXT, answer_kind=AnswerKind)
_GROUP = dict[str, Any]
STATE = _object(
    "State",
    **dict.fromkeys(("models", "examples"), list[str]),
    **dict.fromkeys(("labelled", "thresholds"), list[_GROUP]),
    **dict.fromkeys(("calibration", "compared", "on_alarm"), str),
    answer_kind=AnswerKind,
    watch=_GROUP | None,
)
_ERROR = _object("Error", message=str, type=str, param=_TEXT, code=str)
ERRORS = _object("Errors", error=_ERROR, id=(str,), semcal=(_SEMCAL,))  # the last of abstentions

FAULTS: Description = {
    "4XX": {"model": ERRORS, "description": "Refused: the message says why, and what to do"},
    "5XX": {"model": ERRORS, "description": "No answer: later, or by the operator's hand, there is one"},
}


def replies(model: type[BaseModel], *statuses: int, **further: Any) -> Description:
    """What a path replies with where all is well, and with which other statuses it says the same."""
    return {status: {"model": model, **further} for status in (200, *statuses)}


def answers(model: type[BaseModel], *, streamed: bool = False) -> Description:
    """What a path replies with that answers; its id can be labelled."""
    headers = {f"x-semcal-{name}": {"schema": {"type": "string"}} for name in HEADERS}
    label = {"operationId": "label", "requestBody": {"id": "$response.body#/id", "correct": True}}
    content: dict[str, Any] = {"text/event-stream": {}} if streamed else {}
    return replies(model, headers=headers, links={"label": label}, content=content)


def name_values(description: dict[str, Any], service: Service) -> None:
    """Say which models, risks and values this service takes."""
    bodies = {name: body["properties"] for name, body in description["components"]["schemas"].items()}
    risks = [band.risk_limit for band in service.calibration.all_thresholds]
    bodies["Options"]["risk"]["enum"] = [*risks, None]
    bodies["CheckRequest"]["model"]["enum"] = [*service.models, None]
    bodies["ChatRequest"]["model"]["enum"] = list(service.models)
    if service.settings.keys or service.settings.label_keys:
        description["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        description["security"] = [{"key": []}]
        for path in OPEN & description["paths"].keys():
            description["paths"][path]["get"]["security"] = []
    for name in Drawing.model_fields if service.settings.uncovered == "answer" else ():
        del bodies["ChatRequest"][name]["enum"]
