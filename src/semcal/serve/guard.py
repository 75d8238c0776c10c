"""Checks of every request before it is read, and headers and the log of every reply."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import traceback
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from semcal.errors import BudgetError, ServerError
from semcal.files import dumps
from semcal.serve.configuration import KEY_DIGITS, ServeSettings, admits, hashed
from semcal.serve.replies import ApiError
from semcal.serve.requests import CHAT, CHECK, LABELS
from semcal.servers.settings import is_loopback

LOGGER = logging.getLogger("semcal.serve")
#: Paths of the page, with their files in the folder `page` and their types.
PAGE = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
#: Paths that need no key.
OPEN = {"/health", "/ready", *PAGE}
#: Ids of requests that replies repeat.
_ID = re.compile(r"[!-~]{1,128}")
#: The port in a header "host".
_PORT = re.compile(r":\d*$")
#: Default headers of replies.
HEADERS = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


def note(event: str, **values: Any) -> None:
    """Log an event as one line of JSON, without texts of requests or answers."""
    level, now = logging.ERROR if event == "error" else logging.INFO, time.gmtime()
    LOGGER.log(level, dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", now), "event": event, **values}))


def note_failure(event: str, error: Exception) -> None:
    """Log an error, with its text only if it comes from a server, because others may quote requests."""
    reason = {"reason": str(error)} if isinstance(error, ServerError | BudgetError) else {}
    note(event, type=type(error).__name__, **reason)


class Guard:
    """An ASGI application around another."""

    def __init__(self, app: ASGIApp, settings: ServeSettings, count: Callable[[str, str], None]) -> None:
        self.app, self.settings, self.count = app, settings, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject invalid requests, and pass others on with an id."""
        start, headers = time.monotonic(), dict(Headers(scope=scope).items())
        client_id = headers.get("x-request-id", "")
        request_id = client_id if _ID.fullmatch(client_id) else uuid.uuid4().hex
        noted = scope.setdefault("state", {})["noted"] = dict[str, Any]()  # further fields of the log
        status, limited = 0, _limited(receive, self.settings, start)

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                reply_headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    reply_headers.setdefault(name, value)
                reply_headers["x-request-id"] = request_id
            await send(message)

        async def refuse(error: ApiError) -> None:
            """Send an error; a reply that has begun ends early instead."""
            noted["code"] = error.code
            if error.code != "abstained":  # counted as a reply
                self.count(scope["path"], error.outcome)
            if not status:
                await error.reply(scope, limited, answer)

        try:
            self._check(scope, headers)
            await self.app(scope, limited, answer)
        except ApiError as error:
            await refuse(error)
        except asyncio.CancelledError:  # the server stops without a reply
            await refuse(ApiError(503, "the server is stopping; try again later", code="stopping"))
        except UnicodeEncodeError:
            await refuse(ApiError(400, "a text has half a character; send valid Unicode"))
        except Exception as error:  # noqa: BLE001 - the client gets no trace, and the log no text
            places = [f"{frame.name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
            note("error", request_id=request_id, type=type(error).__name__, trace=places[-8:])
            reason = f"internal error; the log of the server has details under request {request_id}"
            await refuse(ApiError(500, reason, code="internal_error"))
        finally:
            took = round(time.monotonic() - start, 4)
            request = {"request_id": request_id, "method": scope["method"], "path": scope["path"][:100]}
            note("request", **request, status=status, seconds=took, **noted)

    def _check(self, scope: Scope, headers: Mapping[str, str]) -> None:
        path = scope["path"]
        is_label = path == LABELS and bool(self.settings.label_keys)
        keys = self.settings.label_keys if is_label else self.settings.keys
        scope["state"]["key"] = ""
        if keys and path not in OPEN and scope["method"] != "OPTIONS":
            scheme, _, key = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not admits(keys, key.strip()):
                kind = "key for labels" if is_label else "key"
                reason = f"this path requires a {kind}; send it as 'Authorization: Bearer KEY'"
                raise ApiError(401, reason, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
            scope["state"]["key"] = hashed(key.strip())[:KEY_DIGITS]
        host = _PORT.sub("", headers.get("host", "localhost")).strip("[]")
        if not self.settings.keys and not is_loopback(host):
            reason = "without a key, this server only accepts localhost or 127.0.0.1 as its host; set a key"
            raise ApiError(403, reason, code="wrong_host")
        if scope["method"] == "POST" and path in (CHAT, CHECK, LABELS):
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                reason = f"send JSON, with the header content-type: application/json, not {kind[:60]!r}"
                raise ApiError(415, reason, code="unsupported_media_type")


def _limited(receive: Receive, settings: ServeSettings, start: float) -> Receive:
    """Return `receive` with the limits of a body; ApiError beyond them."""
    seconds, size = settings.read_timeout, 0
    is_read = False  # the body; after it, only the end of the connection can follow

    async def limited() -> Message:
        nonlocal size, is_read
        try:
            left = start + seconds - time.monotonic()  # one deadline for the whole body
            message = await (receive() if is_read else asyncio.wait_for(receive(), left))
        except TimeoutError:
            reason = f"the body did not arrive within {seconds:g} s; send it at once"
            raise ApiError(408, reason, code="body_timeout", headers={"connection": "close"}) from None
        is_read = not message.get("more_body", False)
        size += len(message.get("body", b""))
        if size > settings.max_body:
            reason = f"the body is larger than {settings.max_body} bytes; shorten the messages"
            raise ApiError(413, reason, code="body_too_large")
        return message

    return limited
