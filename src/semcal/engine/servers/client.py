"""Requests to a server: concurrent, retried, counted, within a budget."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from semcal.engine.servers.bodies import ENCODINGS, BodyError, read_body
from semcal.engine.servers.budget import Budget, Usage, tokens_of_reply
from semcal.engine.servers.faults import Fault, fault_of_error, fault_of_reply, server_message, server_words
from semcal.engine.servers.settings import KEY_VARIABLE, ROUTES, Endpoint, ServerSettings, key_for
from semcal.errors import MissingExtraError, SemcalWarning, ServerError

if TYPE_CHECKING:
    import httpx

Parsed = TypeVar("Parsed")
Found = TypeVar("Found")

#: So many requests in a row that failed for good, although their faults might pass, end the command.
IN_A_ROW = 10
#: Tries of a request while no server was found yet: a mistyped URL is noticed soon.
FIRST_TRIES = 3
#: Seconds: the second try comes after a random part of the first, each further one after up to twice that.
FIRST_WAIT, LONGEST_BACK_OFF = 0.5, 16.0
#: What a server may add to the name of a model that was asked for: a date or a version, or "latest".
_VERSION = re.compile(r"(\.gguf|[-@:](latest|v?\d[-.\d]*))?")
#: Lists and objects of one reply: each takes thirty times its letters.
_CONTAINERS = 4 * 10**6


@dataclass(frozen=True)
class ServerRequest:
    """A POST to a path below the URL, such as "/chat/completions"; "//tokenize" is below the host."""

    path: str
    body: Mapping[str, Any]
    prompt_tokens: int = 0  # known, or estimated from above: what a budget reserves
    max_tokens: int = 0  # of all choices together
    expects: type = dict  # what the JSON of the reply is: an object, or a list


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
    - The last tries of a request found no server, and nothing was heard of it in between. Before anything
      was ever heard, there are 3 tries at most.
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
        try:
            import httpx  # noqa: F401
        except ImportError as error:
            raise MissingExtraError("httpx", "api") from error
        self.endpoint = endpoint
        self.settings = settings
        self.api_key = key_for(endpoint, settings.api_key)
        self._budget = Budget(settings)
        self._transport = transport
        self._first_wait = first_wait
        self._starting = threading.Lock()
        self._running: _Running | None = None
        self._heard = 0  # replies of any kind
        self._failed_in_a_row = 0
        self._named_otherwise = False  # a reply named another model than was asked for

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
        each: Callable[[int, Parsed | RequestFailed], None] | None = None,
    ) -> list[Parsed | RequestFailed]:
        """Send all and return for each, in order, what `parse` makes of the answer, or why it failed.

        `parse` raises ValueError at an answer that is damaged, which is asked again. `progress` gets the
        number of requests that are done, `each` the index of a request and what stands for it in the list,
        as soon as it is there. All are called in the client's own thread. ServerError if the server cannot be
        reached or refuses the key; BudgetError before the budget is passed.
        """
        return self._call(lambda running: self._send_all(running, requests, parse, progress, each))

    def get(self, path: str) -> Any:
        """The JSON at a path; ServerError if there is none."""
        url = self._url(path)
        found = self._call(lambda running: self._ask(running.http, ("GET", url), _ANYTHING, lambda x: x))
        if isinstance(found, RequestFailed):
            other = found.status == 200 and not self.usage.requests
            remedy = "; is it the URL of an OpenAI-style server? Mostly that ends in /v1" if other else ""
            raise ServerError(f"{url}: {found.reason}{remedy}", found.status)
        return found

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

    def _call(self, start: Callable[[_Running], Coroutine[Any, Any, Found]]) -> Found:
        """Run it in the client's thread and wait; whatever interrupts the waiting cancels it."""
        try:
            with self._starting:
                if self._running is None:
                    self._running = _Running(self._connections(), self.settings.concurrency)
                    weakref.finalize(self, self._running.stop)
                running = self._running
            return asyncio.run_coroutine_threadsafe(start(running), running.loop).result()
        except Exception:
            raise
        except BaseException:  # Ctrl-C, also before the waiting has begun
            self.close()
            raise

    def _connections(self) -> httpx.AsyncClient:
        import httpx

        from semcal.engine.servers.transport import make_transport

        key = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        limit = self.settings.max_reply_bytes
        return httpx.AsyncClient(
            headers={"accept-encoding": ENCODINGS, **key},
            transport=self._transport or make_transport(self.endpoint.url, limit),
            timeout=None,  # one limit stands around a whole try
        )

    def _url(self, path: str) -> str:
        return self.endpoint.host + path[1:] if path.startswith("//") else self.endpoint.url + path

    async def _send_all(
        self,
        running: _Running,
        requests: Sequence[ServerRequest],
        parse: Callable[[Any], Parsed],
        progress: Callable[[int], None] | None,
        each: Callable[[int, Parsed | RequestFailed], None] | None,
    ) -> list[Parsed | RequestFailed]:
        found: dict[int, Parsed | RequestFailed] = {}
        numbered = iter(enumerate(requests))

        async def work() -> None:
            for index, request in numbered:
                async with running.slots:
                    address = ("POST", self._url(request.path))
                    found[index] = await self._ask(running.http, address, request, parse)
                if each is not None:
                    each(index, found[index])
                if progress is not None:
                    progress(len(found))

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self.settings.concurrency, len(requests))):
                    group.create_task(work())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [found[index] for index in range(len(requests))]

    async def _ask(
        self,
        http: httpx.AsyncClient,
        address: tuple[str, str],
        request: ServerRequest,
        parse: Callable[[Any], Parsed],
    ) -> Parsed | RequestFailed:
        """Try until there is an answer, or a fault for good."""
        heard, answered = self._heard, self.usage.requests
        most = self.settings.retries + 1
        for tries in range(1, most + 1):
            found = await self._try(http, address, request, parse)
            if not isinstance(found, Fault):
                self._failed_in_a_row = 0
                return found
            soon = found.unreachable and not self._heard and tries >= FIRST_TRIES
            if tries == most or soon or not found.passing:
                gone = found.unreachable and self._heard == heard
                alone = self.usage.requests == answered
                return self._failed(address[1], found, tries, gone=gone, alone=alone)
            heard = heard if found.unreachable else self._heard
            self.usage.retries += 1
            back_off = min(self._first_wait * 2 ** (tries - 1), LONGEST_BACK_OFF)
            await asyncio.sleep((found.wait or 0.0) + random.uniform(0, back_off))
        raise AssertionError("the last try returns")

    async def _try(
        self,
        http: httpx.AsyncClient,
        address: tuple[str, str],
        request: ServerRequest,
        parse: Callable[[Any], Parsed],
    ) -> Parsed | Fault:
        """Ask once, within the budget."""
        worst = (request.prompt_tokens, request.max_tokens)
        await self._budget.reserve(worst)
        spent, lost = worst, True  # also if this is cancelled
        try:
            answer = await self._answer(http, address, request)
            if isinstance(answer, Fault):
                spent, lost = (worst, True) if answer.lost else ((0, 0), False)
                return answer
            try:
                parsed = parse(answer)
                spent = tokens_of_reply(answer, worst, echo=bool(request.body.get("echo")))
            except ValueError as error:
                return Fault(f"the reply is damaged: {error}", lost=True)
            lost = False
            self.usage.requests += 1
            if isinstance(answer, dict) and not self._named_otherwise:
                self._compare(request.body.get("model"), answer.get("model"))
            return parsed
        finally:
            self._budget.settle(worst, spent, lost=lost)

    def _compare(self, asked: Any, other: Any) -> None:
        """Warn where a reply names another model; a folder before it and a version behind it may differ."""
        first, second = (str(name).casefold().rpartition("/")[2] for name in (asked, other))
        first = first.removesuffix(".gguf").removesuffix("latest").rstrip("-:")
        same = second.startswith(first) and _VERSION.fullmatch(second[len(first) :])
        if isinstance(asked, str) and isinstance(other, str) and not same:
            self._named_otherwise = True
            names = f"was asked for the model {self.words(asked)}, and its replies name {self.words(other)}"
            reason = f"{self.endpoint.url} {names}; what is written is bound to the former"
            warnings.warn(reason, SemcalWarning, stacklevel=2)

    async def _answer(self, http: httpx.AsyncClient, address: tuple[str, str], request: ServerRequest) -> Any:
        """What the JSON of the reply holds, or a Fault."""
        import httpx

        body = None
        if address[0] == "POST":
            body = json.dumps(request.body, separators=(",", ":"), allow_nan=False).encode()
        limit = self.settings.timeout
        try:
            sending = http.stream(*address, content=body, headers=_JSON)
            async with asyncio.timeout(limit), sending as reply:
                assert isinstance(reply.stream, httpx.AsyncByteStream)
                encoding = reply.headers.get("content-encoding", "")
                content = await read_body(reply.stream, encoding, self.settings.max_reply_bytes)
        except (httpx.HTTPError, OSError, BodyError) as error:
            self._heard += isinstance(error, BodyError)
            return fault_of_error(error, limit)
        self._heard += 1
        return fault_of_reply(reply, content) or _read(content, reply.status_code, request.expects)

    def _failed(self, asked: str, fault: Fault, tries: int, *, gone: bool, alone: bool) -> RequestFailed:
        """What a fault for good of the URL `asked` means: for this request, or by ServerError for all.

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
                    "--out, finished blocks are kept, and the same command goes on from there"
                )
        if status == 404 and asked.endswith(ROUTES) and "/v" not in url.removeprefix(self.endpoint.host):
            reason += f"; should the URL be {url}/v1?"
        return RequestFailed(reason, status)

    def _remedy(self, status: int | None) -> str:
        if status in (401, 403):
            given = "check the API key in" if self.api_key else "it needs an API key: give it by"
            ours = self.settings.api_key or not self.api_key
            return f"; {given} " + (f"{KEY_VARIABLE} or --api-key-file" if ours else "OPENAI_API_KEY")
        return "; give the URL that it redirects to" if status is not None and status < 400 else ""


_ANYTHING = ServerRequest("", {}, expects=object)
_JSON = {"content-type": "application/json"}


def _read(content: bytes, status: int, expects: type) -> Any:
    """The JSON of a reply with a status of success, or a Fault."""
    try:
        found = _value(content)
    except ValueError as error:
        return Fault(f"the reply is damaged: {error}", status, lost=True)
    if isinstance(found, dict) and found.get("error") and "choices" not in found:
        return Fault(f"HTTP {status} with an error: {server_message(content)}", status)
    if not isinstance(found, expects):
        return Fault(f"the reply is damaged: a JSON {type(found).__name__}", status, lost=True)
    return found


def _value(content: bytes) -> Any:
    """What JSON in UTF-8 says, of numbers up to 10^19 exactly; ValueError if it is none, or is no text."""
    if content.count(b"{") + content.count(b"[") > _CONTAINERS:
        raise ValueError(f"it has more than {_CONTAINERS} lists and objects")
    try:
        text = content.decode("utf-8-sig")
        found = json.loads(text, parse_int=lambda digits: (int if len(digits) < 20 else float)(digits))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError(f"no JSON, but {server_message(content, width=80)!r}") from None
    try:
        if b"\\ud" in content.lower():  # half a character, or a whole one of two halves
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half a character, which is no text") from None
    return found


class _Running:
    """An event loop in a thread of its own, and the connections that are used in it."""

    def __init__(self, http: httpx.AsyncClient, concurrency: int) -> None:
        self.http = http
        self.slots = asyncio.Semaphore(concurrency)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),), daemon=True)
        self._thread.start()
        self._ready.wait()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._ready.set()
        await self._stopping.wait()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.http.aclose()
        await asyncio.sleep(0)  # the turn of the loop in which connections end

    def stop(self) -> None:
        """Cancel all and end the thread."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._stopping.set)
            if self._thread is not threading.current_thread():
                self._thread.join()
