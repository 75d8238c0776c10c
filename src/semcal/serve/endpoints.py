"""The HTTP interface of `semcal serve`: paths of OpenAI's API that clients use, and paths of semcal."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, cast

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from semcal import __version__
from semcal.errors import UsageError
from semcal.serve import replies
from semcal.serve.answered import Answered
from semcal.serve.configuration import ServeSettings
from semcal.serve.connections import BACKLOG, Connection
from semcal.serve.guard import PAGE, Guard
from semcal.serve.replies import AnswerPart, ApiError, DocumentPart, JsonReply, ReplyList, SemcalPart
from semcal.serve.requests import (
    CHAT,
    CHECK,
    LABELS,
    SCHEMA_OPTIONS,
    ChatRequest,
    CheckRequest,
    Covered,
    Items,
    Label,
    Options,
    body_error,
)
from semcal.serve.service import Service

#: Content policy of the page: only its own files, and no text as markup.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
#: Headers of answers, as `Answered.headers`.
ANSWER_HEADERS = [f"x-semcal-{name}" for name in ("probability", "abstained", "calibration", "overhead-ms")]
_REFUSED = {"model": replies.ErrorReply, "description": "Rejected: the message has the reason and the remedy"}
_FAILED = {"model": replies.ErrorReply, "description": "No answer: try again later, or ask the operator"}
LabelBatch = Annotated[Items[Label], Field(max_length=1000)]


def make_app(service: Service) -> FastAPI:
    """Return the application of a service."""
    app = FastAPI(
        title="semcal",
        version=__version__,
        docs_url=None,
        redirect_slashes=False,  # a redirect would name the host of the request
        redoc_url=None,
        responses={"4XX": _REFUSED, "5XX": _FAILED},
        default_response_class=JsonReply,
        generate_unique_id_function=lambda route: route.name,
    )
    _take_errors(app)
    _add_answers(app, service)
    _add_state(app, service)
    _add_page(app)
    app.add_middleware(Guard, settings=service.settings, count=service.count)
    if service.settings.cors:  # outside of the guard, so that a page can read errors
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.settings.cors,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # clients send further headers
            expose_headers=["x-request-id", *ANSWER_HEADERS],
        )
    _describe_values(app.openapi(), service)
    return app


def _add_answers(app: FastAPI, service: Service) -> None:
    link = {"operationId": "label", "requestBody": {"id": "$response.body#/id", "correct": True}}
    headers = {name: {"schema": {"type": "string"}} for name in ANSWER_HEADERS}
    answers: dict[str, Any] = {"headers": headers, "links": {"label": link}}

    def described(request: Request, body: ChatRequest | CheckRequest, answered: Answered) -> AnswerPart:
        """Return the object `semcal` of a reply, and note the reply in the log of requests."""
        verdict, options = answered.verdict, body.semcal or Options()
        noted = {"id": answered.id, "probability": verdict.probability, "abstained": verdict.abstained}
        request.state.noted.update(noted)
        if service.schema is not None:
            only = options.fields == "accepted"
            return DocumentPart.of(answered, samples=options.samples, accepted_only=only)
        return SemcalPart.of(answered, most=options.meanings, samples=options.samples)

    @app.post(
        CHAT,
        response_model=replies.Completion,  # for /openapi.json
        responses={200: answers | {"content": {"text/event-stream": {}}}},
    )
    async def chat(request: Request, body: ChatRequest) -> Response:
        """Answer the last message, with the probability that the answer is right, or abstain."""
        with service.open_request():
            answered, settings = await service.chat(body, lambda: _gone(request)), service.settings
        semcal = described(request, body, answered)
        if settings.abstain == "error" and answered.verdict.abstained:
            reason = f"abstained: {settings.abstain_text}"
            raise ApiError(422, reason, code="abstained", headers=answered.headers, semcal=semcal)
        tool = None if service.schema is None or body.tool is None else str(body.tool["name"])
        message = semcal.message(settings.abstain, settings.abstain_text, tool)
        reply = replies.Completion.of(answered, semcal, body.model, message)
        if body.stream:
            include_usage = bool(body.stream_options and body.stream_options.include_usage)
            events = reply.events(include_usage=include_usage)
            return StreamingResponse(events, headers=answered.headers, media_type="text/event-stream")
        return JsonReply(reply.model_dump(exclude_unset=True), headers=answered.headers)

    @app.post(CHECK, response_model_exclude_unset=True, responses={200: answers})
    async def check(request: Request, body: CheckRequest, head: Response) -> replies.CheckedAnswer:
        """Return the probability that a given answer is right."""
        with service.open_request():
            answered = await service.check(body, lambda: _gone(request))
        semcal = described(request, body, answered)
        head.headers.update(answered.headers)
        usage = replies.TokenUsage.of(answered)
        return replies.CheckedAnswer(id=answered.id, object="semcal.check", semcal=semcal, usage=usage)

    @app.post(LABELS)
    async def label(request: Request, body: Label | LabelBatch) -> ReplyList[replies.TakenLabel]:
        """Accept labels for answers by the ids of their replies: one label, or a list.

        For equal answers to equal questions the first label counts; later labels are stored.
        """
        labels = body if isinstance(body, list) else [body]
        taken = await service.take_labels(labels, lambda: _gone(request), request.state.key)
        return ReplyList(object="list", data=taken)


def _add_state(app: FastAPI, service: Service) -> None:

    @app.get("/v1/models")
    async def models() -> ReplyList[replies.ServedModel]:
        """List the names of the model for requests."""
        kind = partial(replies.ServedModel, object="model", created=0, owned_by="semcal")
        return ReplyList(object="list", data=[kind(id=name) for name in service.models])

    @app.get("/health")
    async def health() -> replies.Health:
        """Return that the server runs."""
        return replies.Health(status="ok")

    @app.get("/ready", responses={503: {"model": replies.Readiness}})
    async def ready(head: Response) -> replies.Readiness:
        """Return whether questions are answered, the missing parts, and whether replies are logged."""
        readiness = await service.readiness()
        head.status_code = 200 if readiness.status == "ready" else 503
        return readiness

    @app.get("/version")
    async def version() -> replies.Versions:
        """Return the versions of semcal, the model and the calibration."""
        return replies.Versions(
            semcal=__version__,
            model=service.primary.route,
            revision=service.primary.uq.model.revision,
            calibration=service.calibration.id,
        )

    @app.get("/v1/semcal/state")
    async def state() -> replies.ServiceState:
        """Return thresholds with the calibration's labeled questions, and the state of the watch."""
        return service.state

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Return metrics for Prometheus."""
        service.observe_replies()
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _add_page(app: FastAPI) -> None:
    for path, (name, kind) in PAGE.items():
        content = Path(__file__).with_name("page").joinpath(name).read_bytes()

        async def file(_: Request, content: bytes = content, kind: str = kind) -> Response:
            return Response(content, media_type=kind, headers={"content-security-policy": POLICY})

        app.add_route(path, file, include_in_schema=False)


def _take_errors(app: FastAPI) -> None:
    """Turn errors of FastAPI into errors in OpenAI's shape, which the guard sends."""

    @app.exception_handler(RequestValidationError)
    async def invalid_body(request: Request, error: RequestValidationError) -> Response:
        raise body_error(request.url.path, error.errors())

    @app.exception_handler(HTTPException)
    async def no_path(request: Request, error: HTTPException) -> Response:
        if isinstance(error.__cause__, ApiError):  # the body is too large
            raise error.__cause__
        path, message, code = request.url.path, str(error.detail), "invalid_request"
        if error.status_code == 404:
            message = f"unknown path {path}; clients need a base URL that ends in /v1, as in /openapi.json"
            code = "unknown_path"
        elif error.status_code == 400:
            message, code = "the body is not valid JSON, or nested too deeply", "invalid_json"
        elif error.status_code == 405:
            message, code = f"{path} does not support {request.method}", "method_not_allowed"
        raise ApiError(error.status_code, message, code=code, headers=error.headers or {})


def _describe_values(description: dict[str, Any], service: Service) -> None:
    """Add the models, risks and values of this service to /openapi.json."""
    bodies = {name: body["properties"] for name, body in description["components"]["schemas"].items()}
    risks = [band.risk_limit for band in service.calibration.all_thresholds]
    bodies["Options"]["risk"]["enum"] = [*risks, None]
    bodies["CheckRequest"]["model"]["enum"] = [*service.models, None]
    bodies["ChatRequest"]["model"]["enum"] = list(service.models)
    for name in SCHEMA_OPTIONS if service.schema is not None else ():
        bodies["ChatRequest"][name].pop("enum")
    for name in Covered.model_fields if service.settings.uncovered == "answer" else ():
        bodies["ChatRequest"][name].pop("enum", None)


async def _gone(request: Request) -> None:
    """Return when the client of a request, whose body was read, disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


# ---- The server


class HttpServer(uvicorn.Server):
    """A server that ends at SIGTERM or Ctrl-C after running requests, and at once at a second Ctrl-C."""

    def __init__(self, service: Service) -> None:
        config = uvicorn.Config(
            make_app(service),
            log_config=None,
            log_level="error",  # the log of requests has the errors of clients
            http=cast("Any", partial(Connection, settings=service.settings)),
            ws="none",
            backlog=BACKLOG,
            lifespan="off",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=round(service.settings.grace),
        )
        super().__init__(config)
        self.service = service

    def answer(self, bound: socket.socket) -> None:
        """Answer requests until a signal, or until `should_exit`."""
        try:
            self.run(sockets=[bound])
        finally:
            self.service.close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal; it is not raised again, because the server ends normally."""
        del frame
        self.service.draining = True
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


@contextmanager
def listening(settings: ServeSettings) -> Iterator[socket.socket]:
    """Return a socket at the address of the settings; UsageError if the address is not available."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        bound = socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(
            f"cannot listen on {settings.host}, port {settings.port}: {reason}; pass another --port or --host"
        ) from error
    # also for connections: head and body are sent separately, and the body would wait for a confirmation
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with bound:
        yield bound
