"""What may go wrong with a request: whether it may pass, when to ask again, and what to say."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from semcal.engine.servers.bodies import BodyError
from semcal.errors import printable

if TYPE_CHECKING:
    import httpx

#: Seconds that a server may ask to wait before a request is asked again; at more it fails for good.
LONGEST_WAIT = 300.0
_PASSING = {408, 409, 425, 429, *range(500, 600)} - {501}
#: Statuses of gateways behind which the answer may have been made, and paid, all the same.
_LOST = {408, 502, 504}
#: No key, a wrong key, no credit: the same for all requests.
_REFUSED = {401, 402, 403}
#: Bytes of a server, and letters of them, that are read for a message.
_BYTES, _LETTERS = 10**6, 20_000
#: So many letters of a key in a row are not shown: a message may have been cut within it.
_PART = 8


@dataclass(frozen=True)
class Fault:
    """Why a try gave no answer."""

    reason: str  # with words of the server as they came: `server_words` makes them fit to be shown
    status: int | None = None
    passing: bool = True  # the same request may be answered later
    refused: bool = False  # no request will be answered
    unreachable: bool = False  # no connection was made
    lost: bool = False  # an answer may have been made, and paid, all the same
    wait: float | None = None  # seconds, as the server asks for


def fault_of_error(error: Exception, timeout: float) -> Fault:
    """What an error of httpx, or a time-out of `timeout` seconds, means."""
    import httpx

    if isinstance(error, BodyError):
        return Fault(str(error), passing=error.passing, lost=True)
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
        return Fault(f"no connection: {str(error)[:200] or type(error).__name__}", unreachable=True)
    if isinstance(error, (TimeoutError, httpx.TimeoutException)):
        remedy = "a longer --timeout or a lower --concurrency may help"
        return Fault(f"no reply within {timeout:g} s; {remedy}", lost=True)
    return Fault(f"the connection broke: {str(error)[:200] or type(error).__name__}", lost=True)


def fault_of_reply(reply: httpx.Response, content: bytes = b"") -> Fault | None:
    """What a status other than 2xx, with this body, means; None for 2xx."""
    status = reply.status_code
    if 200 <= status < 300:
        return None
    words = server_message(content).removesuffix(".")
    reason = f"HTTP {status}" + (f": {words}" if words else "")
    if 300 <= status < 400:
        location = reply.headers.get("location", "")
        return Fault(f"{reason} (redirects to {location:.200})", status, passing=False, refused=True)
    if status in _REFUSED or (status == 429 and b"insufficient_quota" in content):
        return Fault(reason, status, passing=False, refused=True)
    wait = _asked_wait(reply.headers)
    if wait is not None and wait > LONGEST_WAIT:
        return Fault(f"{reason} (asks to wait {wait:.0f} s)", status, passing=False)
    return Fault(reason, status, passing=status in _PASSING, lost=status in _LOST, wait=wait)


def server_words(text: str, *, api_key: str | None = None, width: int = 500) -> str:
    """Return words of a server for a message: one line of `width` letters that print, without the key."""
    text, given = text[:_LETTERS], api_key or ""
    if 4 <= len(given) < _PART and any(map(str.isdigit, given)):  # "none" and "EMPTY" are no keys
        text = text.replace(given, "(the key)")
    for key in dict.fromkeys((given, quote(given, safe=""))):  # as a redirect may hold it
        for start in range(len(key) - _PART + 1):
            shown = [key[start:end] for end in range(start + _PART, len(key) + 1) if key[start:end] in text]
            text = text.replace(shown[-1], "(the key)") if shown else text
    line = " ".join(text.split())
    return printable(line if len(line) <= width else line[: width - 3] + "...", keep="")


def server_message(content: bytes, *, width: int = 200) -> str:
    """Return what a server says of an error, in one line of at most `width` letters.

    Examples
    --------
    >>> server_message(b'{"error": {"message": "n is too large", "code": 400}}')
    'n is too large'
    >>> server_message(b'{"detail": [{"loc": ["body", "n"], "msg": "not a number"}]}')
    'body.n: not a number'
    >>> server_message(b"<html><title>502</title><h1>Bad Gateway</h1></html>")
    '502 Bad Gateway'
    """
    text = content[:_BYTES].decode(errors="replace")
    try:
        said = _said(json.loads(text))
    except (ValueError, RecursionError):
        said = _without_tags(text[:_LETTERS])
    return server_words(said, width=width)


def _without_tags(page: str) -> str:
    """The text of a page, in linear time."""
    before, *others = re.split(r"<(?:script|style)\b[^<>]*>", page)
    after = (re.split(r"</(?:script|style)>", one, maxsplit=1)[-1] for one in others)
    return re.sub(r"<[^<>]*>", " ", " ".join((before, *after)))


def _said(found: Any) -> str:
    """The message in any of the shapes that servers give it."""
    if isinstance(found, str):
        return found
    if isinstance(found, list):
        return "; ".join(map(_said, found[:3]))
    if not isinstance(found, Mapping):
        return json.dumps(found)
    if "msg" in found:  # of FastAPI's checks
        place = found.get("loc")
        return (".".join(map(str, place)) + ": " if isinstance(place, list) else "") + str(found["msg"])
    inner = next((found[key] for key in ("error", "message", "detail") if found.get(key)), None)
    return json.dumps(found) if inner is None else _said(inner)


def _asked_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds, from retry-after-ms or Retry-After (a number, or a date beside the server's own clock)."""
    if (wait := _seconds(headers.get("retry-after-ms"))) is not None:
        return wait / 1000
    if (wait := _seconds(headers.get("retry-after"))) is not None:
        return wait
    try:
        then = parsedate_to_datetime(headers.get("retry-after", ""))
        now = parsedate_to_datetime(headers.get("date") or format_datetime(datetime.now(UTC)))
        return max((then - now).total_seconds(), 0.0)
    except (TypeError, ValueError):  # no dates, or one without a zone
        return None


def _seconds(text: str | None) -> float | None:
    try:
        wait = float(text or "")
    except ValueError:
        return None
    return wait if wait >= 0 and math.isfinite(wait) else None
