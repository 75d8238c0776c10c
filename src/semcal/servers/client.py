"""Requests to a server: concurrent, retried, counted, within a budget; and what their replies hold.

Each request has a connection of its own. Only their order ties replies to requests in HTTP/1.1, so on a
shared connection a reply that is sent twice would become the answer to the next request.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import threading
import time
import warnings
import weakref
import zlib
from collections.abc import AsyncIterable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from semcal.errors import BudgetError, SemcalWarning, ServerError, printable, shown
from semcal.rows import Json
from semcal.servers.settings import KEY_VARIABLE, ROUTES, Endpoint, ServerSettings, key_for
from semcal.store import KeptReplies, kept_replies

if TYPE_CHECKING:
    import httpx
    from tenacity import RetryCallState


class BodyError(Exception):
    """A body that cannot be read; not `passing` where it would come again: too large, or packed otherwise."""

    def __init__(self, reason: str, *, passing: bool = False) -> None:
        super().__init__(reason)
        self.passing = passing


async def read_body(chunks: AsyncIterable[bytes], encoding: str, limit: int) -> bytes:
    """Return the body that raw chunks make, unpacked: `limit` bytes at most, before and after.

    httpx would unpack whole chunks, and some megabytes of gzip may unpack to gigabytes. BodyError if the body
    is larger, damaged, or packed otherwise than by gzip.
    """
    packed = encoding.strip().lower() not in ("", "identity")
    if packed and encoding.strip().lower() != "gzip":
        raise BodyError(f"the reply is packed as {encoding:.60}, and requests accept gzip alone")
    unpacking, pieces, read, size = zlib.decompressobj(zlib.MAX_WBITS | 16), list[bytes](), 0, 0
    async for chunk in chunks:
        try:
            pieces.append(unpacking.decompress(chunk, limit + 1 - size) if packed else chunk)
        except zlib.error as error:
            raise BodyError(f"the reply is damaged: {error}", passing=True) from None
        read, size = read + len(chunk), size + len(pieces[-1])
        if max(read, size) > limit:
            raise BodyError(
                f"the reply is larger than {limit / 1e6:g} MB, sent or unpacked, and is not asked for again; "
                "semcal.load_server(..., max_reply_bytes=N) takes more"
            )
        if packed:
            await asyncio.sleep(0)  # a time-out holds while a reply is unpacked
    if packed and size and (unpacking.unused_data or not unpacking.eof):
        raise BodyError("the reply is damaged: its gzip ends too early, or more follows it", passing=True)
    return b"".join(pieces)


#: Seconds that a server may ask to wait before a request is asked again; at more it fails for good.
LONGEST_WAIT = 300.0
_PASSING = {408, 409, 425, 429, *range(500, 600)} - {501}
#: Statuses of gateways behind which the answer may have been made, and paid, all the same.
_LOST = {408, 502, 504}
#: No key, a wrong key, no credit: the same for all requests.
_REFUSED = {401, 402, 403}
#: Codes of an error in a body that are a status.
_STATUSES = {str(status): status for status in range(400, 600)}
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
        return Fault(f"no connection: {_cause(error)[:200] or type(error).__name__}", unreachable=True)
    if isinstance(error, (TimeoutError, httpx.TimeoutException)):
        remedy = "a longer server.timeout or a lower server.concurrency may help"
        return Fault(f"no reply within {timeout:g} s; {remedy}", lost=True)
    return Fault(f"the connection broke: {str(error)[:200] or type(error).__name__}", lost=True)


def _cause(error: BaseException) -> str:
    """What the system says of a connection that was not made."""
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


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
    return _fault_of_status(status, reason, content, reply.headers)


def _fault_within(status: int, error: Any, content: bytes) -> Fault:
    """Read an error in the body of a reply of success: by its code, if that is a status."""
    code = _STATUSES.get(str(error.get("code"))) if isinstance(error, Mapping) else None
    words = server_message(content).removesuffix(".")
    reason = f"HTTP {status} with an error: {words}" + (f" ({code})" if code else "")
    return Fault(reason, status) if code is None else _fault_of_status(code, reason, content, {})


def _fault_of_status(status: int, reason: str, content: bytes, headers: Mapping[str, str]) -> Fault:
    """Return the fault that a status from 400 on stands for."""
    if status in _REFUSED or (status == 429 and b"insufficient_quota" in content):
        return Fault(reason, status, passing=False, refused=True)
    wait = _asked_wait(headers)
    if wait is not None and wait > LONGEST_WAIT:
        return Fault(f"{reason} (asks to wait {wait:.0f} s)", status, passing=False)
    return Fault(reason, status, passing=status in _PASSING, lost=status in _LOST, wait=wait)


def server_words(text: str, *, api_key: str | None = None, width: int = 500) -> str:
    """Return words of a server for a message: one line of `width` letters that print, without the key."""
    text, secret = text[:_LETTERS], api_key or ""
    if 4 <= len(secret) < _PART and any(map(str.isdigit, secret)):  # "none" and "EMPTY" are no keys
        text = text.replace(secret, "(the key)")
    for key in dict.fromkeys((secret, quote(secret, safe=""))):  # as a redirect may hold it
        for start in range(len(key) - _PART + 1):
            parts = [key[start:end] for end in range(start + _PART, len(key) + 1) if key[start:end] in text]
            text = text.replace(parts[-1], "(the key)") if parts else text
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
        message = _said(json.loads(text))
    except (ValueError, RecursionError):
        message = _without_tags(text[:_LETTERS])
    return server_words(message, width=width)


def _without_tags(page: str) -> str:
    """The text of a page, in linear time."""
    before, *pieces = re.split(r"<(?:script|style)\b[^<>]*>", page)
    after = (re.split(r"</(?:script|style)>", piece, maxsplit=1)[-1] for piece in pieces)
    return re.sub(r"<[^<>]*>", " ", " ".join((before, *after)))


def _said(error: Any) -> str:
    """The message in any of the shapes that servers give it."""
    if isinstance(error, str):
        return error
    if isinstance(error, list):
        return "; ".join(map(_said, error[:3]))
    if not isinstance(error, Mapping):
        return json.dumps(error)
    if "msg" in error:  # of FastAPI's checks
        place = error.get("loc")
        return (".".join(map(str, place)) + ": " if isinstance(place, list) else "") + str(error["msg"])
    inner = next((error[key] for key in ("error", "message", "detail") if error.get(key)), None)
    return json.dumps(error) if inner is None else _said(inner)


def _asked_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds, from retry-after-ms or Retry-After (a number, or a date beside the server's own clock)."""
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        with suppress(ValueError):
            wait = float(headers.get(name, "")) / unit
            if 0 <= wait < math.inf:
                return wait
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
        clock = parsedate_to_datetime(headers.get("date") or format_datetime(datetime.now(UTC)))
        return max((date - clock).total_seconds(), 0.0)
    except (TypeError, ValueError):  # no dates, or one without a zone
        return None


@dataclass
class Usage:
    """What was asked and spent so far.

    Tokens of replies that were lost on the way, which a server may have made all the same, are counted as if
    they were as long as they may be.
    """

    requests: int = 0  # answered
    retries: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_lost: int = 0  # of those, in replies that were lost
    cost: float | None = None  # None without prices
    seconds: float = 0.0  # while requests were under way

    def text(self, *, rate: bool = True) -> str:
        """Return one line for people, with the number of requests a second or without.

        >>> Usage(1200, 3, 56000, 7800, 40, 0.0712, 60.0).text()
        '1200 requests (20/s, 3 retried), 56000 tokens in, 7800 out (up to 40 of these ...), cost 0.0712'
        """
        rates = [f"{self.requests / self.seconds:.3g}/s"] if rate and self.seconds else []
        retried = [f"{self.retries} retried"] if self.retries else []
        notes = f" ({', '.join([*rates, *retried])})" if rates or retried else ""
        lost = f" (up to {self.tokens_lost} of these for replies that never came)" if self.tokens_lost else ""
        cost = "" if self.cost is None else f", cost {self.cost:.4g}"
        return (
            f"{self.requests} requests{notes}, {self.tokens_in} tokens in, {self.tokens_out} out{lost}{cost}"
        )


class Budget:
    """Counts what is spent, and holds back requests that might pass a limit. Used in one event loop.

    What others of the same settings have spent counts, and what they have reserved as if it were spent.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._reserved = (0, 0)  # prompt and completion tokens of requests under way, at the worst
        self._under_way = 0
        self._clock = 0.0  # up to when `usage.seconds` counts
        self._settled = asyncio.Event()
        self.usage = Usage(cost=None if settings.price_in is None else 0.0)
        settings.ledger.append(self)

    async def reserve(self, worst: tuple[int, int]) -> None:
        """Set apart what a request may take at the worst: prompt and completion tokens.

        Waits while only what others have reserved stands in the way; BudgetError if what is spent does.
        """
        while (passed := self._passed(worst, self._reserved)) is not None:
            if self._passed(worst, (0, 0)) is not None:
                raise BudgetError(passed)
            await self._settled.wait()
        self._reserved = (self._reserved[0] + worst[0], self._reserved[1] + worst[1])
        self._clock = self._clock if self._under_way else time.monotonic()
        self._under_way += 1

    def settle(self, worst: tuple[int, int], spent: tuple[int, int], *, lost: bool = False) -> None:
        """Put what a try took in the place of what was set apart for it."""
        self._reserved = (self._reserved[0] - worst[0], self._reserved[1] - worst[1])
        usage, clock = self.usage, time.monotonic()
        usage.seconds += clock - self._clock
        self._clock, self._under_way = clock, self._under_way - 1
        usage.tokens_in += spent[0]
        usage.tokens_out += spent[1]
        usage.tokens_lost += sum(spent) if lost else 0
        if usage.cost is not None:
            usage.cost = self._price((usage.tokens_in, usage.tokens_out))
        self._settled.set()
        self._settled = asyncio.Event()

    def _price(self, tokens: tuple[int, int]) -> float:
        prices = (self._settings.price_in or 0.0, self._settings.price_out or 0.0)
        return (tokens[0] * prices[0] + tokens[1] * prices[1]) / 1e6

    def _passed(self, worst: tuple[int, int], reserved: tuple[int, int]) -> str | None:
        """Say which limit a request might pass beside what is spent and reserved; None if none."""
        settings = self._settings
        spent_in, spent_out = self.usage.tokens_in, self.usage.tokens_out
        for budget in settings.ledger:
            if budget is not self:
                spent_in += budget.usage.tokens_in + budget._reserved[0]
                spent_out += budget.usage.tokens_out + budget._reserved[1]
        total = (spent_in + reserved[0] + worst[0], spent_out + reserved[1] + worst[1])
        if settings.max_tokens_total is not None and sum(total) > settings.max_tokens_total:
            limit = f"server.max_tokens_total {settings.max_tokens_total}"
            spent, more = f"{spent_in + spent_out} tokens", f"{sum(worst)}"
        elif settings.max_cost is not None and self._price(total) > settings.max_cost:
            limit = f"server.max_cost {settings.max_cost:g}"
            spent, more = f"{self._price((spent_in, spent_out)):.6g}", f"{self._price(worst):.6g}"
        else:
            return None
        return (
            f"stopped before {limit} is passed: {spent} spent, and the next request may take {more} more "
            f"({self.usage.text()}); with --out, what was answered is kept, and the same command with a "
            "higher limit goes on from there (it counts from 0 again)"
        )


def tokens_of_reply(reply: Any, worst: tuple[int, int], *, echo: bool = False) -> tuple[int, int]:
    """Return the prompt and completion tokens of a reply.

    Completion tokens are those that have a log-probability, or those of `usage` if there are more: some
    servers' `usage` counts one choice of n, and some give a part of the tokens no entry. Without either, and
    for prompt tokens without `usage`, what the request may take at the worst; a count of 0 is none.
    """
    usage = reply.get("usage") if isinstance(reply, Mapping) else None
    counts = [_count(usage, name) for name in ("prompt_tokens", "completion_tokens")]
    tokens_in = counts[0] or worst[0]
    choices = reply.get("choices") if isinstance(reply, Mapping) else None
    entries = sum(_entries(choice) for choice in choices) if isinstance(choices, list) else 0
    if echo and entries:
        entries = max(entries - tokens_in * len(choices or ()), 0)
    return tokens_in, max(entries, counts[1]) or worst[1]


def _count(usage: Any, name: str) -> int:
    """A count that stands in `usage`; 0 if it is none, and ValueError if it is beyond all requests."""
    count = usage.get(name) if isinstance(usage, Mapping) else None
    if isinstance(count, int | float) and count > 10**12:
        raise ValueError(f"{name} is {shown(count)}")
    return max(count, 0) if isinstance(count, int) and not isinstance(count, bool) else 0


def _entries(choice: Any) -> int:
    """How many tokens of a choice have a log-probability."""
    log_probs = choice.get("logprobs") if isinstance(choice, Mapping) else None
    if not isinstance(log_probs, Mapping):
        return 0
    entries = log_probs.get("content") or log_probs.get("tokens")
    return len(entries) if isinstance(entries, list) else 0


Parsed = TypeVar("Parsed")
_Outcome = TypeVar("_Outcome")

#: So many requests in a row that failed for good, although their faults might pass, end the command.
IN_A_ROW = 10
#: Tries of a request while no server was found yet: a mistyped URL is noticed soon.
FIRST_TRIES = 3
#: Seconds: the second try comes after a random part of the first, each further one after up to twice that.
FIRST_WAIT, LONGEST_BACK_OFF = 0.5, 16.0
#: Seconds after which a waiting caller looks for Ctrl-C, and in which a connection must be there.
SIGNAL_WAIT, CONNECT = 0.5, 15.0
#: Names of other models that are kept, of those in replies.
MOST_NAMES = 20
#: What a server may add to the name of a model that was asked for: a date or a version, or "latest".
_VERSION = re.compile(r"(\.gguf|[-@:](latest|v?\d[-.\d]*))?")
#: Lists and objects of one reply: each takes thirty times its letters.
_CONTAINERS = 4 * 10**6
#: Letters that a token has at most, and letters of an answer beside them.
_LETTERS_A_TOKEN, _LETTERS_BESIDE = 100, 1000


@dataclass(frozen=True)
class ServerRequest:
    """A POST to a path below the URL, such as "/chat/completions"; "//tokenize" is below the host.

    A GET if its body is empty.
    """

    path: str
    body: Json
    prompt_tokens: int = 0  # known, or estimated from above: what a budget reserves
    max_tokens: int = 0  # of all choices together

    def with_fields(self, fields: Json) -> ServerRequest:
        """The request with further fields in its body; None takes one out."""
        body = {**self.body, **fields}
        return replace(self, body={name: value for name, value in body.items() if value is not None})


@dataclass(frozen=True)
class RequestFailed:
    """A request that failed for good: the server refused it, or all tries failed."""

    reason: str  # one sentence for a user, without the key
    status: int | None = None  # of the last answer; None where there was none


class ServerClient:
    """One server. Calls block; requests of all threads run at the same time, `settings.concurrency` of them.

    They run in an event loop in a thread of its own, from the first call until `close`.

    A fault that may pass (408, 409, 425, 429, 5xx but 501, a broken connection, a time-out, a damaged reply)
    is tried again up to `settings.retries` times, after an exponential back-off with full jitter, and not
    before the server asks for it (up to 5 minutes). Other statuses fail for good. What would fail for all
    other requests as well is a ServerError, which ends the command:

    - The key is refused or used up (401, 402, 403 if nothing was answered yet, 429 for want of quota).
    - The last tries of a request found no server, and no request sent meanwhile had a reply. Before
      anything was ever heard, there are 3 tries at most.
    - Ten requests in a row failed for good by faults that may pass, or by replies that cannot be read, and
      none was answered since their first tries.

    Warns once if a reply names another model than was asked for, a dated version of it apart.

    `transport` takes the place of the network, for tests (`httpx.MockTransport`); `first_wait` is the longest
    wait before the second try, in seconds.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        settings: ServerSettings,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        first_wait: float = FIRST_WAIT,
    ) -> None:
        self.endpoint = endpoint
        self.settings = settings
        self.api_key = key_for(endpoint, settings.api_key)
        self._budget = Budget(settings)
        self._transport = transport
        self._first_wait = first_wait
        self._starting = threading.Lock()
        self._running: _Running | None = None
        self._heard = 0.0  # when the last request was sent to which any reply came; 0: none
        self._failed_in_a_row = 0
        self.n_named_otherwise = 0  # replies that named another model than was asked for
        self.other_names: set[str] = set()  # the names in those replies, the first MOST_NAMES
        self.aliases: frozenset[str] = frozenset()  # names that replies may have beside the requested one

    @property
    def usage(self) -> Usage:
        """What was asked and spent so far."""
        return self._budget.usage

    def send_all(
        self,
        requests: Sequence[ServerRequest],
        parse: Callable[[Any], Parsed],
        *,
        progress: Callable[[int], None] | None = None,
        on_reply: Callable[[int, Parsed | RequestFailed], None] | None = None,
        in_turn: int = 1,
        at_once: int | None = None,
    ) -> list[Parsed | RequestFailed]:
        """Send all and return for each, in order, what `parse` makes of the answer, or why it failed.

        `parse` raises ValueError at an answer that is damaged, which is asked again. `progress` gets the
        number of requests that are done, `on_reply` the index of a request and what stands for it in the
        list, as soon as it is there. All are called in the client's own thread, in which each reply is also
        written down if `semcal.store.keeping_replies` is in force. Groups of `in_turn` requests
        are sent one after another, `at_once` groups at the same time, if these are fewer than the
        concurrency. ServerError if the server cannot be reached or refuses the key; BudgetError before the
        budget is passed.
        """
        results: dict[int, Parsed | RequestFailed] = {}
        indices, kept = range(len(requests)), kept_replies()
        groups = iter([indices[first : first + in_turn] for first in indices[::in_turn]])
        most = min(at_once or self.settings.concurrency, self.settings.concurrency, len(requests))

        async def work(running: _Running) -> None:
            for index in chain.from_iterable(groups):
                results[index] = await self._ask(running, requests[index], parse, kept)
                if on_reply is not None:
                    on_reply(index, results[index])
                if progress is not None:
                    progress(len(results))

        async def send(running: _Running) -> list[Parsed | RequestFailed]:
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(most):
                        group.create_task(work(running))
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None
            return [results[index] for index in indices]

        return self._call(send)

    def get(self, path: str) -> Any:
        """The JSON at a path; ServerError if there is none."""
        url, request = self._url(path), ServerRequest(path, {})
        answer = self._call(lambda running: self._ask(running, request, lambda reply: reply))
        if isinstance(answer, RequestFailed):
            wrong_url = answer.status == 200 and not self.usage.requests
            remedy = "; is it the URL of an OpenAI-style server? Mostly that ends in /v1" if wrong_url else ""
            raise ServerError(f"{url}: {answer.reason}{remedy}", answer.status)
        return answer

    def words(self, text: str, *, width: int = 200) -> str:
        """Words of the server as a message or a record may hold them: without the key, and cut."""
        return server_words(text, api_key=self.api_key, width=width)

    def close(self) -> None:
        """Cancel what is under way and close the connections; a later call opens them again."""
        with self._starting:
            running, self._running = self._running, None
        if running is not None:
            running.stop()

    def __enter__(self) -> ServerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, start: Callable[[_Running], Coroutine[Any, Any, _Outcome]]) -> _Outcome:
        """Run it in the client's thread and wait; whatever interrupts the waiting cancels it."""
        try:
            with self._starting:
                if self._running is None:
                    self._running = _Running(self._connections(), self.settings.concurrency)
                    weakref.finalize(self, self._running.stop, wait=False)
                running = self._running
            future = asyncio.run_coroutine_threadsafe(running.run(start), running.loop)
            # In short waits: where another thread took the signal, Ctrl-C reaches Python code between them.
            while not wait([future], timeout=SIGNAL_WAIT).done:
                pass
            return future.result()
        except Exception:
            raise
        except BaseException:  # Ctrl-C, also before the waiting has begun
            self.close()
            raise

    def _connections(self) -> httpx.AsyncClient:
        import httpx

        key = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return httpx.AsyncClient(
            headers={"accept-encoding": "gzip", **key},
            transport=self._transport,
            verify=not self.endpoint.url.startswith("http://"),  # which needs no certificates, slow to read
            timeout=httpx.Timeout(None, connect=CONNECT),  # another limit stands around a whole try
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    def _url(self, path: str) -> str:
        return self.endpoint.host + path[1:] if path.startswith("//") else self.endpoint.url + path

    async def _ask(
        self,
        running: _Running,
        request: ServerRequest,
        parse: Callable[[Any], Parsed],
        kept: KeptReplies | None = None,
    ) -> Parsed | RequestFailed:
        """Try until there is an answer, or a fault for good; what was kept is not asked again."""
        from tenacity import AsyncRetrying, retry_if_result, stop_after_attempt, wait_random_exponential

        asked = {"path": request.path, "body": request.body}
        if kept is not None and (reply := kept.find(asked)) is not None:
            with suppress(ValueError):
                return parse(reply)
        usage, answered, tries, since = self.usage, self.usage.requests, 0, time.monotonic()

        def keep(reply: Any) -> None:
            if kept is not None:
                kept.add(asked, reply)

        async def attempt() -> Parsed | Fault:
            nonlocal since, tries
            tries += 1
            if tries > 1:
                usage.retries += 1
                since = since if tries > 2 else time.monotonic()
            async with running.slots:
                result = await self._try(running.http, request, parse, keep)
            if not isinstance(result, Fault) or not result.unreachable:
                since = time.monotonic()
                return result
            return replace(result, passing=tries < FIRST_TRIES or self._heard > 0)

        back_off = wait_random_exponential(self._first_wait, LONGEST_BACK_OFF)
        retrying = AsyncRetrying(  # is in a cycle of references, so nothing of it may hold `self`
            retry=retry_if_result(lambda result: isinstance(result, Fault) and result.passing),
            wait=lambda state: (_fault(state).wait or 0.0) + back_off(state),
            stop=stop_after_attempt(self.settings.retries + 1),
            retry_error_callback=_fault,
        )
        result: Parsed | Fault = await retrying(attempt)
        if not isinstance(result, Fault):
            self._failed_in_a_row = 0
            return result
        gone = result.unreachable and self._heard < since
        return self._failed(request.path, result, tries, gone=gone, alone=usage.requests == answered)

    async def _try(
        self,
        http: httpx.AsyncClient,
        request: ServerRequest,
        parse: Callable[[Any], Parsed],
        keep: Callable[[Any], None],
    ) -> Parsed | Fault:
        """Ask once, within the budget."""
        worst = (request.prompt_tokens, request.max_tokens)
        await self._budget.reserve(worst)
        spent, lost = worst, True  # also if this is cancelled
        try:
            answer = await self._answer(http, request)
            if isinstance(answer, Fault):
                spent, lost = (worst, True) if answer.lost else ((0, 0), False)
                return answer
            try:
                _check_lengths(answer, request.body)
                parsed = parse(answer)
                spent = tokens_of_reply(answer, worst, echo=bool(request.body.get("echo")))
            except ValueError as error:
                return Fault(f"the reply is damaged: {error}", 200, lost=True)
            lost = False
            keep(answer)
            self.usage.requests += 1
            if isinstance(answer, dict):
                self._compare(request.body.get("model"), answer.get("model"))
            return parsed
        finally:
            self._budget.settle(worst, spent, lost=lost)

    def _compare(self, requested: Any, replied: Any) -> None:
        """Count replies that name another model, and warn once; folders before it and versions may differ."""
        if isinstance(replied, str) and self.words(replied) in self.aliases:
            return
        first, second = (str(name).casefold().rpartition("/")[2] for name in (requested, replied))
        first = first.removesuffix(".gguf").removesuffix("latest").rstrip("-:")
        matches = second.startswith(first) and _VERSION.fullmatch(second[len(first) :])
        if not isinstance(requested, str) or not isinstance(replied, str) or matches:
            return
        self.n_named_otherwise += 1
        if len(self.other_names) < MOST_NAMES:
            self.other_names.add(self.words(replied))
        if self.n_named_otherwise == 1:
            names = (
                f"was asked for the model {self.words(requested)}, and its replies name {self.words(replied)}"
            )
            reason = f"{self.endpoint.url} {names}; what is written is bound to the former"
            reason += "; if that is an alias, calibrate with it, or start semcal serve with --force"
            warnings.warn(reason, SemcalWarning, stacklevel=2)

    async def _answer(self, http: httpx.AsyncClient, request: ServerRequest) -> Any:
        """What the JSON of the reply holds, or a Fault."""
        import httpx

        method, url, body = "GET", self._url(request.path), None
        if request.body:
            method = "POST"
            body = json.dumps(request.body, separators=(",", ":"), allow_nan=False).encode()
        limit, start = self.settings.timeout, time.monotonic()
        try:
            sending = http.stream(method, url, content=body, headers=_JSON)
            async with asyncio.timeout(limit), sending as reply:
                encoding = reply.headers.get("content-encoding", "")
                assert isinstance(reply.stream, httpx.AsyncByteStream)
                content = await read_body(reply.stream, encoding, self.settings.max_reply_bytes)
        except (httpx.HTTPError, OSError, BodyError) as error:
            if isinstance(error, BodyError):
                self._heard = max(self._heard, start)
            return fault_of_error(error, limit)
        self._heard = max(self._heard, start)
        fault, expects = fault_of_reply(reply, content), dict if body else object
        return fault or _read(content, reply.status_code, expects)

    def _failed(self, path: str, fault: Fault, tries: int, *, gone: bool, alone: bool) -> RequestFailed:
        """What a fault for good means: for this request to a path, or by ServerError for all.

        `gone`: no server was found; `alone`: nothing was answered since the request's first try.
        """
        url, status = self.endpoint.url, fault.status
        reason = self.words(fault.reason, width=500) + (f" (the last of {tries} tries)" if tries > 1 else "")
        if gone:
            http = " (is it http://?)" if url.startswith("https:") else ""
            remedy = f"check the URL{http}, and that the server runs"
            raise ServerError(f"{url} cannot be reached: {reason}; {remedy}")
        if fault.refused and not (status == 403 and self.usage.requests):
            raise ServerError(f"{url} refuses all requests: {reason}{self._remedy(status)}")
        if alone and (fault.passing or fault.refused or fault.lost):
            self._failed_in_a_row += 1
            if self._failed_in_a_row >= IN_A_ROW:
                raise ServerError(
                    f"{url}: {IN_A_ROW} requests in a row failed, the last with: {reason}; with "
                    "--out, what was answered is kept, and the same command goes on from there"
                )
        if status == 404 and path in ROUTES and "/v" not in url.removeprefix(self.endpoint.host):
            reason += f"; should the URL be {url}/v1?"
        return RequestFailed(reason, status)

    def _remedy(self, status: int | None) -> str:
        if status in (401, 403):
            advice = "check the API key in" if self.api_key else "it needs an API key: give it by"
            ours = self.settings.api_key or not self.api_key
            return f"; {advice} " + (f"{KEY_VARIABLE} or --api-key-file" if ours else "OPENAI_API_KEY")
        return "; give the URL that it redirects to" if status is not None and status < 400 else ""


def _fault(state: RetryCallState) -> Fault:
    """Why the last try failed."""
    assert state.outcome is not None
    fault = state.outcome.result()
    assert isinstance(fault, Fault)
    return fault


_JSON = {"content-type": "application/json"}


def _read(content: bytes, status: int, expects: type) -> Any:
    """The JSON of a reply with a status of success, or a Fault."""
    try:
        value = _value(content)
    except ValueError as error:
        return Fault(f"the reply is damaged: {error}", status, lost=True)
    if isinstance(value, dict) and value.get("error") and not value.get("choices"):
        return _fault_within(status, value["error"], content)
    if not isinstance(value, expects):
        return Fault(f"the reply is damaged: a JSON {type(value).__name__}", status, lost=True)
    return value


def _check_lengths(reply: Any, body: Json) -> None:
    """ValueError for an answer that is longer than its tokens can be.

    Reasoning and signatures beside it are not limited by `max_tokens` everywhere, and not counted.
    """
    limit = body.get("max_tokens") or body.get("max_completion_tokens")
    choices = reply.get("choices") if isinstance(reply, dict) else None
    if limit is None or body.get("echo") or not isinstance(choices, list):
        return
    for choice in choices:
        if not isinstance(choice, dict):
            continue
        message = choice.get("message")
        answer = message.get("content") if isinstance(message, dict) else choice.get("text")
        parts = answer if isinstance(answer, list) else [{"text": answer}]
        texts = [part.get("text") for part in parts if isinstance(part, dict)]
        n = sum(len(text) for text in texts if isinstance(text, str))
        if n > _LETTERS_BESIDE + _LETTERS_A_TOKEN * limit:
            raise ValueError(f"an answer of at most {limit} tokens has {n} letters")


def _value(content: bytes) -> Any:
    """What JSON in UTF-8 says, of numbers up to 10^19 exactly; ValueError if it is none, or is no text."""
    if content.count(b"{") + content.count(b"[") > _CONTAINERS:
        raise ValueError(f"it has more than {_CONTAINERS} lists and objects")
    try:
        text = content.decode("utf-8-sig")
        value = json.loads(text, parse_int=lambda digits: (int if len(digits) < 20 else float)(digits))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError(f"no JSON, but {server_message(content, width=80)!r}") from None
    try:
        if b"\\ud" in content.lower():  # half a character, or a whole one of two halves
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half a character, which is no text") from None
    return value


class _Running:
    """An event loop in a thread of its own, and the connections that are used in it."""

    def __init__(self, http: httpx.AsyncClient, concurrency: int) -> None:
        self.http = http
        self.slots = asyncio.Semaphore(concurrency)
        self._calls: set[asyncio.Task[Any]] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),), daemon=True)
        self._thread.start()
        self._ready.wait()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._ready.set()
        await self._stopping.wait()
        for tasks in (self._calls.copy, self._others):  # a call cancels the tasks that it began
            under_way = tasks()
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
        await self.http.aclose()
        await asyncio.sleep(0)  # the turn of the loop in which connections end

    async def run(self, start: Callable[[_Running], Coroutine[Any, Any, _Outcome]]) -> _Outcome:
        """Await it as a call that `stop` cancels."""
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            return await start(self)
        finally:
            self._calls.remove(task)

    @staticmethod
    def _others() -> set[asyncio.Task[Any]]:
        return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}

    def stop(self, *, wait: bool = True) -> None:
        """Cancel all and end the thread.

        Without `wait` it ends later: garbage may be collected in the midst of an import, whose lock is
        needed to close the connections.
        """
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._stopping.set)
            if wait and self._thread is not threading.current_thread():
                self._thread.join()
