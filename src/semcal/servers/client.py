"""Requests to a server: concurrent, retried, counted, and within a budget.

Each request has its own connection. In HTTP/1.1 only the order connects replies with requests, so on a
shared connection a reply that is sent twice would become the answer to the next request.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import threading
import time
import warnings
import weakref
from collections.abc import AsyncIterable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from semcal.errors import BudgetError, SemcalWarning, ServerError, printable, shown
from semcal.files import inside
from semcal.rows import Json
from semcal.servers.settings import KEY_VARIABLE, Endpoint, ServerSettings, key_for
from semcal.store import KeptReplies, kept_replies

if TYPE_CHECKING:
    import httpx
    from tenacity import RetryCallState


class BodyError(Exception):
    """A body that is too large or compressed, which a retry would not change."""


async def read_body(chunks: AsyncIterable[bytes], encoding: str, limit: int) -> bytes:
    """Join the chunks of a body of at most `limit` bytes; BodyError if it is larger or compressed.

    Requests accept no compression, because a few megabytes of it may unpack to gigabytes.
    """
    if encoding.strip().lower() not in ("", "identity"):
        raise BodyError(
            f"the reply has the encoding {encoding:.60}, although requests accept none. Switch the "
            "compression of replies off at the server"
        )
    pieces, size = list[bytes](), 0
    async for chunk in chunks:
        pieces.append(chunk)
        size += len(chunk)
        if size > limit:
            raise BodyError(
                f"the reply is larger than {limit / 1e6:g} MB and is not requested again. To accept it, pass "
                "max_reply_bytes=N to semcal.load_server"
            )
    return b"".join(pieces)


#: Maximum seconds that a server may ask to wait before a retry; after a longer request the fault is final.
LONGEST_WAIT = 300.0
_PASSING = {408, 409, 425, 429, *range(500, 600)} - {501}
#: Statuses of gateways; the server behind them may still have generated and charged the answer.
_LOST = {408, 502, 504}
#: No key, a wrong key, no credit: the fault applies to all requests.
_REFUSED = {401, 402, 403}
#: Maximum bytes and letters of a reply that are read for a message.
_BYTES, _LETTERS = 10**6, 20_000
#: Minimum letters of a part of a key that is hidden, because a message may be cut within the key.
_PART = 8


@dataclass(frozen=True)
class Fault:
    """The reason why an attempt failed."""

    reason: str  # with raw text of the server, which `server_words` makes printable
    status: int | None = None
    passing: bool = True  # True if a retry may succeed
    refused: bool = False  # True if all requests will fail
    unreachable: bool = False  # True if no connection was established
    lost: bool = False  # True if the server may still have generated and charged an answer
    wait: float | None = None  # seconds to wait, as requested by the server


def fault_of_error(error: Exception, timeout: float) -> Fault:
    """Return the fault for an error of httpx, or for a time-out of `timeout` seconds."""
    import httpx

    if isinstance(error, BodyError):
        return Fault(str(error), passing=False, lost=True)
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
        return Fault(f"no connection: {_cause(error)[:200] or type(error).__name__}", unreachable=True)
    if isinstance(error, (TimeoutError, httpx.TimeoutException)):
        remedy = "Increase server.timeout, or reduce server.concurrency"
        return Fault(f"no reply within {timeout:g} s. {remedy}", lost=True)
    return Fault(f"the connection broke: {str(error)[:200] or type(error).__name__}", lost=True)


def _cause(error: BaseException) -> str:
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    return str(error)


def fault_of_reply(reply: httpx.Response, content: bytes = b"") -> Fault | None:
    """Return the fault for a status other than 2xx with this body; None for 2xx."""
    status = reply.status_code
    if 200 <= status < 300:
        return None
    words = server_message(content).removesuffix(".")
    reason = f"HTTP {status}" + (f": {words}" if words else "")
    if 300 <= status < 400:
        location = reply.headers.get("location", "")
        reason += f" (redirects to {location:.200}). Pass that URL"
        return Fault(reason, status, passing=False, refused=True)
    if status in _REFUSED or (status == 429 and b"insufficient_quota" in content):
        return Fault(reason, status, passing=False, refused=True)
    wait = _asked_wait(reply.headers)
    if wait is not None and wait > LONGEST_WAIT:
        return Fault(f"{reason} (asks to wait {wait:.0f} s)", status, passing=False)
    return Fault(reason, status, passing=status in _PASSING, lost=status in _LOST, wait=wait)


def server_words(text: str, *, api_key: str | None = None, width: int = 500) -> str:
    """Return text of a server as one line of at most `width` printable letters, without the API key."""
    text, secret = text[:_LETTERS], api_key or ""
    if 4 <= len(secret) < _PART and any(map(str.isdigit, secret)):  # "none" and "EMPTY" are not keys
        text = text.replace(secret, "(the key)")
    for key in dict.fromkeys((secret, quote(secret, safe=""))):  # a redirect may contain the quoted key
        for start in range(len(key) - _PART + 1):
            parts = [key[start:end] for end in range(start + _PART, len(key) + 1) if key[start:end] in text]
            text = text.replace(parts[-1], "(the key)") if parts else text
    line = " ".join(text.split())
    return printable(line if len(line) <= width else line[: width - 3] + "...", keep="")


def server_message(content: bytes, *, width: int = 200) -> str:
    """Return the error message of a server in one line of at most `width` letters.

    Examples
    --------
    >>> server_message(b'{"error": {"message": "n is too large", "code": 400}}')
    'n is too large'
    """
    text = content[:_BYTES].decode(errors="replace")
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return server_words(text, width=width)
    while isinstance(said, Mapping):
        inner = next((said[key] for key in ("error", "message", "detail") if said.get(key)), None)
        if inner is None:
            break
        said = inner
    return server_words(said if isinstance(said, str) else json.dumps(said), width=width)


def _asked_wait(headers: Mapping[str, str]) -> float | None:
    """Return the seconds in retry-after-ms or Retry-After, None if the server states none."""
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        with suppress(ValueError):
            wait = float(headers.get(name, "")) / unit
            if 0 <= wait < math.inf:
                return wait
    return None


@dataclass
class Usage:
    """Requests, tokens and cost so far.

    A lost reply, which a server may still have generated, counts with its maximum length.
    """

    requests: int = 0  # answered requests
    retries: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_lost: int = 0  # tokens of lost replies, included in the counts above
    cost: float | None = None  # None without prices
    seconds: float = 0.0  # time with requests in progress

    def text(self) -> str:
        """Return one line for users.

        >>> Usage(1200, 3, 56000, 7800, 40, 0.0712, 60.0).text()
        '1200 requests (20/s, 3 retried), 56000 tokens in, 7800 out (up to 40 of these ...), cost 0.0712'
        """
        rates = [f"{self.requests / self.seconds:.3g}/s"] if self.seconds else []
        retried = [f"{self.retries} retried"] if self.retries else []
        notes = f" ({', '.join([*rates, *retried])})" if rates or retried else ""
        lost = f" (up to {self.tokens_lost} of these for lost replies)" if self.tokens_lost else ""
        cost = "" if self.cost is None else f", cost {self.cost:.4g}"
        return (
            f"{self.requests} requests{notes}, {self.tokens_in} tokens in, {self.tokens_out} out{lost}{cost}"
        )


class Budget:
    """The tokens and cost of a client, and a gate for requests that might exceed a limit.

    Amounts that other clients with the same settings have spent or reserved count as spent. Use a budget in
    only one event loop.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._reserved = (0, 0)  # maximum prompt and completion tokens of requests in progress
        self._under_way = 0
        self._clock = 0.0  # time up to which `usage.seconds` counts
        self._settled = asyncio.Event()
        self.usage = Usage(cost=None if settings.price_in is None else 0.0)
        settings.ledger.append(self)

    async def reserve(self, worst: tuple[int, int]) -> None:
        """Reserve the maximum prompt and completion tokens of a request.

        The call waits if only reservations exceed the limit; BudgetError if spent tokens exceed it.
        """
        while (passed := self._passed(worst, self._reserved)) is not None:
            if self._passed(worst, (0, 0)) is not None:
                raise BudgetError(passed)
            await self._settled.wait()
        self._reserved = (self._reserved[0] + worst[0], self._reserved[1] + worst[1])
        self._clock = self._clock if self._under_way else time.monotonic()
        self._under_way += 1

    def settle(self, worst: tuple[int, int], spent: tuple[int, int], *, lost: bool = False) -> None:
        """Replace the reservation of an attempt by its actual tokens."""
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
        """Return a message about the limit that a request might exceed, or None."""
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
            f"{limit}: {spent} spent, and the next request may need {more} more ({self.usage.text()}). Run "
            "the same command with a higher limit: with --out, finished answers are kept, and the count "
            "starts from 0 again"
        )


def tokens_of_reply(reply: Any, worst: tuple[int, int]) -> tuple[int, int]:
    """Return the prompt and completion tokens of a reply.

    The number of completion tokens is the larger of two counts: tokens with a log-probability, and `usage`.
    Some servers count only one of n choices in `usage`, and some omit entries of tokens. A missing or zero
    count is replaced by the maximum of the request in `worst`.
    """
    counts, choices, entries = [0, 0], inside(reply, "choices"), 0
    for place, name in enumerate(("prompt_tokens", "completion_tokens")):
        count = inside(reply, "usage", name)
        if isinstance(count, int | float) and count > 10**12:
            raise ValueError(f"{name} is {shown(count)}")
        if isinstance(count, int) and not isinstance(count, bool):
            counts[place] = max(count, 0)
    for choice in choices if isinstance(choices, list) else ():
        listed = inside(choice, "logprobs", "content") or inside(choice, "logprobs", "tokens")
        entries += len(listed) if isinstance(listed, list) else 0
    return counts[0] or worst[0], max(entries, counts[1]) or worst[1]


Parsed = TypeVar("Parsed")
_Outcome = TypeVar("_Outcome")

#: Number of consecutive requests with exhausted retries that ends the command.
IN_A_ROW = 10
#: Attempts of a request before any reply of the server, so that a mistyped URL fails soon.
FIRST_TRIES = 3
#: Maximum seconds before the second attempt, and before any attempt: the maximum doubles, the wait is random.
FIRST_WAIT, LONGEST_BACK_OFF = 0.5, 16.0
#: Seconds between checks for Ctrl-C of a waiting caller, and seconds to establish a connection.
SIGNAL_WAIT, CONNECT = 0.5, 15.0
#: Maximum number of recorded names of other models in replies.
MOST_NAMES = 20
#: Suffixes that a server may add to the name of a model: a date, a version, or "latest".
_VERSION = re.compile(r"(\.gguf|[-@:](latest|v?\d[-.\d]*))?")
#: Maximum letters per token, and additional letters per answer.
_LETTERS_A_TOKEN, _LETTERS_BESIDE = 100, 1000


@dataclass(frozen=True)
class ServerRequest:
    """A POST to a path below the URL, such as "/chat/completions"; "//tokenize" is below the host.

    The request is a GET if its body is empty.
    """

    path: str
    body: Json
    prompt_tokens: int = 0  # exact number or upper bound, for the budget
    max_tokens: int = 0  # maximum tokens of all choices together

    def with_fields(self, fields: Json) -> ServerRequest:
        """Return the request with additional fields in its body; the value None removes a field."""
        body = {**self.body, **fields}
        return replace(self, body={name: value for name, value in body.items() if value is not None})


@dataclass(frozen=True)
class RequestFailed:
    """A request that the server refused, or of which all attempts failed."""

    reason: str  # one sentence for a user, without the key
    status: int | None = None  # status of the last reply; None without a reply


class ServerClient:
    """A client of one server.

    Calls block; at most `settings.concurrency` requests of all threads run at the same time, in an event loop
    in a separate thread, from the first call until `close`. Transient faults (408, 409, 425, 429, 5xx except
    501, a broken connection, a time-out, a damaged reply) are retried, with an exponential back-off that is
    at least as long as the server asks for (up to 5 minutes). ServerError, which ends the command, if the key
    is rejected or has no quota, if the last attempt of a request found no server, or if ten consecutive
    requests failed and none was answered meanwhile.

    `transport` replaces the network in tests; `first_wait` is the maximum wait before the second attempt.
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
        self._heard = False  # True after any reply of the server
        self._failed_in_a_row = 0
        self.n_named_otherwise = 0  # number of replies with the name of another model
        self.other_names: set[str] = set()  # the first MOST_NAMES names in such replies
        self.aliases: frozenset[str] = frozenset()  # further valid names of the model in replies

    @property
    def usage(self) -> Usage:
        """Requests, tokens and cost so far."""
        return self._budget.usage

    def send_all(
        self,
        requests: Sequence[ServerRequest],
        parse: Callable[[Any], Parsed],
        *,
        on_reply: Callable[[int, Parsed | RequestFailed], None] | None = None,
        in_turn: int = 1,
        at_once: int | None = None,
    ) -> list[Parsed | RequestFailed]:
        """Send all requests and return, in order, each parsed reply, or the reason of the failure.

        `parse` raises ValueError for a damaged reply, which is then requested again. `on_reply` receives the
        index and the result of each request as soon as it is known. Both run in the client's thread, which
        also stores replies if `semcal.store.keeping_replies` is active. The requests of a group of `in_turn`
        are sent one after another, and `at_once` groups run at the same time, limited by the concurrency.
        ServerError if the server cannot be reached or rejects the key; BudgetError before a limit is
        exceeded.
        """
        if not requests:
            return []
        results: dict[int, Parsed | RequestFailed] = {}
        indices, kept = range(len(requests)), kept_replies()
        groups = iter([indices[first : first + in_turn] for first in indices[::in_turn]])
        most = min(at_once or self.settings.concurrency, self.settings.concurrency, len(requests))

        async def work(running: _Running) -> None:
            for index in chain.from_iterable(groups):
                results[index] = await self._ask(running, requests[index], parse, kept)
                if on_reply is not None:
                    on_reply(index, results[index])

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
        """Return the JSON at a path; ServerError without JSON."""
        url, request = self._url(path), ServerRequest(path, {})
        answer = self._call(lambda running: self._ask(running, request, lambda reply: reply))
        if isinstance(answer, RequestFailed):
            raise ServerError(f"{url}: {answer.reason}", answer.status)
        return answer

    def words(self, text: str, *, width: int = 200) -> str:
        """Return text of the server for a message or a record: without the API key, and shortened."""
        return server_words(text, api_key=self.api_key, width=width)

    def close(self) -> None:
        """Cancel all requests and close the connections; a later call opens them again."""
        with self._starting:
            running, self._running = self._running, None
        if running is not None:
            running.stop()

    def __enter__(self) -> ServerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, start: Callable[[_Running], Coroutine[Any, Any, _Outcome]]) -> _Outcome:
        """Run `start` in the client's thread and wait; an interrupt of the wait cancels it."""
        try:
            with self._starting:
                if self._running is None:
                    self._running = _Running(self._connections(), self.settings.concurrency)
                    weakref.finalize(self, self._running.stop, wait=False)
                running = self._running
            future = asyncio.run_coroutine_threadsafe(running.run(start), running.loop)
            # Short waits: if another thread received the signal, Ctrl-C takes effect between them.
            while not wait([future], timeout=SIGNAL_WAIT).done:
                pass
            return future.result()
        except Exception:
            raise
        except BaseException:  # Ctrl-C, also before the wait
            self.close()
            raise

    def _connections(self) -> httpx.AsyncClient:
        import httpx

        key = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return httpx.AsyncClient(
            headers={"accept-encoding": "identity", **key},
            transport=self._transport,
            verify=not self.endpoint.url.startswith("http://"),  # reading certificates is slow
            timeout=httpx.Timeout(None, connect=CONNECT),  # `_answer` limits a whole attempt
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
        """Return a stored reply, or try until there is an answer or a final fault."""
        from tenacity import AsyncRetrying, retry_if_result, stop_after_attempt, wait_random_exponential

        asked = {"path": request.path, "body": request.body}
        if kept is not None and (reply := kept.find(asked)) is not None:
            with suppress(ValueError):
                return parse(reply)
        usage, answered, tries = self.usage, self.usage.requests, 0

        def keep(reply: Any) -> None:
            if kept is not None:
                kept.add(asked, reply)

        async def attempt() -> Parsed | Fault:
            nonlocal tries
            tries += 1
            usage.retries += tries > 1
            async with running.slots:
                result = await self._try(running.http, request, parse, keep)
            if isinstance(result, Fault) and result.unreachable:
                return replace(result, passing=tries < FIRST_TRIES or self._heard)
            return result

        back_off = wait_random_exponential(self._first_wait, LONGEST_BACK_OFF)
        retrying = AsyncRetrying(  # is in a reference cycle, so it must not refer to `self`
            retry=retry_if_result(lambda result: isinstance(result, Fault) and result.passing),
            wait=lambda state: (_fault(state).wait or 0.0) + back_off(state),
            stop=stop_after_attempt(self.settings.retries + 1),
            retry_error_callback=_fault,
        )
        result: Parsed | Fault = await retrying(attempt)
        if not isinstance(result, Fault):
            self._failed_in_a_row = 0
            return result
        return self._failed(result, tries, alone=usage.requests == answered)

    async def _try(
        self,
        http: httpx.AsyncClient,
        request: ServerRequest,
        parse: Callable[[Any], Parsed],
        keep: Callable[[Any], None],
    ) -> Parsed | Fault:
        """Send a request once, within the budget."""
        worst = (request.prompt_tokens, request.max_tokens)
        await self._budget.reserve(worst)
        spent, lost = worst, True  # also after a cancellation
        try:
            answer = await self._answer(http, request)
            if isinstance(answer, Fault):
                spent, lost = (worst, True) if answer.lost else ((0, 0), False)
                return answer
            try:
                _check_lengths(answer, request.body)
                parsed = parse(answer)
                spent = tokens_of_reply(answer, worst)
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
        """Count replies with the name of another model, and warn once; folders and versions may differ."""
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
            reason = (
                f"{self.endpoint.url}: requests name the model {self.words(requested)}, and replies name "
                f"{self.words(replied)}; results are recorded for the requested name. If that name is an "
                "alias, calibrate with it, or start semcal serve with --force"
            )
            warnings.warn(reason, SemcalWarning, stacklevel=2)

    async def _answer(self, http: httpx.AsyncClient, request: ServerRequest) -> Any:
        import httpx

        method, url, body = "GET", self._url(request.path), None
        if request.body:
            method = "POST"
            body = json.dumps(request.body, separators=(",", ":"), allow_nan=False).encode()
        limit = self.settings.timeout
        try:
            sending = http.stream(method, url, content=body, headers=_JSON)
            async with asyncio.timeout(limit), sending as reply:
                self._heard = True
                encoding = reply.headers.get("content-encoding", "")
                assert isinstance(reply.stream, httpx.AsyncByteStream)
                content = await read_body(reply.stream, encoding, self.settings.max_reply_bytes)
        except (httpx.HTTPError, OSError, BodyError) as error:
            return fault_of_error(error, limit)
        fault, expects = fault_of_reply(reply, content), dict if body else object
        return fault or _read(content, reply.status_code, expects)

    def _failed(self, fault: Fault, tries: int, *, alone: bool) -> RequestFailed:
        """Return the failure of one request, or raise ServerError if all requests would fail.

        `alone`: no request was answered after the first attempt of this one.
        """
        url, status = self.endpoint.url, fault.status
        reason = self.words(fault.reason, width=500) + (
            f" (the last of {tries} attempts)" if tries > 1 else ""
        )
        if fault.unreachable:
            raise ServerError(f"{url} cannot be reached: {reason}. Check the URL, and start the server")
        if fault.refused and not (status == 403 and self.usage.requests):
            keys = f"{KEY_VARIABLE}, server.api_key_file or OPENAI_API_KEY"
            remedy = f". Check the API key in {keys}" if status in (401, 403) else ""
            raise ServerError(f"{url} rejects all requests: {reason}{remedy}")
        if alone and (fault.passing or fault.refused or fault.lost):
            self._failed_in_a_row += 1
            if self._failed_in_a_row >= IN_A_ROW:
                raise ServerError(
                    f"{url}: {IN_A_ROW} requests in a row failed, the last with: {reason}. Run the same "
                    "command again later: with --out, finished answers are kept"
                )
        if status in (200, 404) and not self.usage.requests:
            reason += ". Check the URL of the server, which usually ends in /v1"
        return RequestFailed(reason, status)


def _fault(state: RetryCallState) -> Fault:
    assert state.outcome is not None
    fault = state.outcome.result()
    assert isinstance(fault, Fault)
    return fault


_JSON = {"content-type": "application/json"}


def _read(content: bytes, status: int, expects: type) -> Any:
    try:
        value = _value(content)
    except ValueError as error:
        return Fault(f"the reply is damaged: {error}", status, lost=True)
    if isinstance(value, dict) and value.get("error") and not value.get("choices"):
        code = inside(value, "error", "code")
        reason = f"HTTP {status} with an error: {server_message(content)}"
        return Fault(reason if code is None else f"{reason} ({shown(code)})", status)
    if not isinstance(value, expects):
        kind = type(value).__name__
        return Fault(f"the reply is damaged: unexpected JSON value of type {kind}", status, lost=True)
    return value


def _check_lengths(reply: Any, body: Json) -> None:
    """Raise ValueError for an answer with more letters than its tokens can have.

    Reasoning and signatures do not count, because not all servers limit them by `max_tokens`.
    """
    limit = body.get("max_tokens") or body.get("max_completion_tokens")
    choices = inside(reply, "choices")
    if limit is None or not isinstance(choices, list):
        return
    for choice in choices:
        answer = inside(choice, "message", "content") or inside(choice, "text")
        texts = [inside(part, "text") for part in answer] if isinstance(answer, list) else [answer]
        n = sum(len(text) for text in texts if isinstance(text, str))
        if n > _LETTERS_BESIDE + _LETTERS_A_TOKEN * limit:
            raise ValueError(f"an answer of at most {limit} tokens has {n} letters")


def _value(content: bytes) -> Any:
    """Parse JSON in UTF-8, with exact integers up to 10^19; ValueError if it is not valid JSON or text."""
    try:
        text = content.decode("utf-8-sig")
        value = json.loads(text, parse_int=lambda digits: (int if len(digits) < 20 else float)(digits))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError(f"expected JSON, got {server_message(content, width=80)!r}") from None
    try:
        if b"\\ud" in content.lower():  # half a character, or a whole one of two halves
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("it contains half a character") from None
    return value


class _Running:
    """An event loop in a separate thread, with its connections."""

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
        for tasks in (self._calls.copy, self._others):  # a call cancels its own tasks
            under_way = tasks()
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
        await self.http.aclose()
        await asyncio.sleep(0)  # connections end in this turn of the loop

    async def run(self, start: Callable[[_Running], Coroutine[Any, Any, _Outcome]]) -> _Outcome:
        """Await `start` as a call that `stop` cancels."""
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
        """Cancel all tasks and end the thread.

        Without `wait` the thread ends later: garbage collection may run during an import, and closing the
        connections needs the import lock.
        """
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._stopping.set)
            if wait and self._thread is not threading.current_thread():
                self._thread.join()
