"""What every request passes before it is read, and every reply after it: keys, limits, headers, the log."""

from __future__ import annotations

import json
import logging
import re
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from semcal.files import dumps
from semcal.serve.configuration import ServeSettings
from semcal.serve.requests import CHAT, CHECK, LABELS, ApiError

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

LOGGER = logging.getLogger("semcal.serve")
#: The page: its paths, its files in the folder `page`, and their types.
PAGE = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
#: What may be asked without a key.
OPEN = ("/health", "/ready", *PAGE)
#: Ids of requests that are echoed.
_ID = re.compile(r"[!-~]{1,128}")
_LOCAL = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


def note(event: str, **values: Any) -> None:
    """Log an event as a line of JSON, without texts of requests or answers."""
    LOGGER.info(dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "event": event, **values}))


class Guard:
    """An ASGI application around another."""

    def __init__(self, app: App, settings: ServeSettings) -> None:
        self.app, self.settings = app, settings

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Refuse what may not be asked; pass on the rest, with its id."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, headers = time.monotonic(), _headers(scope)
        client_id = headers.get("x-request-id", "")
        request_id = client_id if _ID.fullmatch(client_id) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        status, size, limit = 0, 0, self.settings.max_body

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = dict(message.get("headers", ()))
                further = [(name, value) for name, value in HEADERS if name not in own]
                further.append((b"x-request-id", request_id.encode()))
                message = {**message, "headers": [*message.get("headers", ()), *further]}
            await send(message)

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limit:
                raise _too_large(limit)
            return message

        try:
            self._check(scope, headers)
            await self.app(scope, limited, answer)
        except ApiError as error:
            await _refuse(answer, error, status)
        except UnicodeEncodeError:
            half = ApiError(400, "a text holds half a character, which is no text", code="invalid_request")
            await _refuse(answer, half, status)
        except Exception as error:  # noqa: BLE001 - the client gets no trace, and the log no text
            places = [f"{frame.name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
            note("error", request_id=request_id, type=type(error).__name__, trace=places[-8:])
            reason = f"something went wrong here; the log names the request {request_id}"
            await _refuse(answer, ApiError(500, reason, code="internal_error"), status)
        finally:
            seconds = round(time.monotonic() - start, 4)
            request = {"request_id": request_id, "method": scope["method"], "path": scope["path"][:100]}
            note("request", **request, status=status, seconds=seconds, **scope["state"].get("noted", {}))

    def _check(self, scope: Message, headers: dict[str, str]) -> None:
        """ApiError for a request without a key, of another page, or whose body is too large or no JSON."""
        keys, path = self.settings.keys, scope["path"]
        if keys and path not in OPEN and scope["method"] != "OPTIONS":
            scheme, _, key = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not self.settings.admits(key.strip()):
                reason = "this needs a key of this server; send it as 'Authorization: Bearer KEY'"
                raise ApiError(401, reason, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
        if not keys and not _LOCAL.fullmatch(headers.get("host", "localhost").lower()):
            reason = "this server is for its own machine, at localhost or 127.0.0.1; others need a key"
            raise ApiError(403, reason, code="wrong_host")
        if scope["method"] == "POST" and path in (CHAT, CHECK, LABELS):
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                reason = f"send JSON, with the header content-type: application/json, not {kind[:60]!r}"
                raise ApiError(415, reason, code="unsupported_media_type")
            length = headers.get("content-length", "0")
            if length.isdecimal() and int(length[:20]) > self.settings.max_body:
                raise _too_large(self.settings.max_body)


def _headers(scope: Message) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _too_large(limit: int) -> ApiError:
    reason = f"the body is larger than {limit} bytes; shorten the messages"
    return ApiError(413, reason, code="body_too_large")


async def _refuse(send: Send, error: ApiError, status: int) -> None:
    """Send an error, unless a reply has begun, which then ends early."""
    if status:
        return
    headers = [(name.encode(), value.encode()) for name, value in error.headers.items()]
    headers.append((b"content-type", b"application/json"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(error.body).encode()})
