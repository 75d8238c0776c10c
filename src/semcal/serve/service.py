"""The service behind `semcal serve`, without HTTP: answer a request, decide, and log the reply."""

from __future__ import annotations

import asyncio
import math
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from semcal.calibration.calibration import Calibration
from semcal.calibration.production import is_in_share
from semcal.calibration.watch import PromiseWatch
from semcal.data.question import Question, user_turn
from semcal.errors import (
    BudgetError,
    InputError,
    ModelError,
    QuestionError,
    ServerError,
    StoreError,
    UsageError,
    shown,
)
from semcal.fields.schema import Schema
from semcal.files import dumps
from semcal.registry import check_name
from semcal.reply_log import Reply, ReplyLog
from semcal.serve.answered import Answered, AnswerOutcome, ReplyVerdict
from semcal.serve.configuration import ServeSettings
from semcal.serve.engine import AnswerJob, AnswerSource, Engine, Tier
from semcal.serve.guard import note, note_failure
from semcal.serve.labels import LabelTaker
from semcal.serve.replies import CLIENT_GONE, ApiError, Readiness, ServiceState, TakenLabel
from semcal.serve.requests import (
    CHAT,
    CHECK,
    ChatRequest,
    CheckRequest,
    Label,
    Message,
    Options,
    Query,
    given_document,
)
from semcal.servers.client import ServerClient
from semcal.uncertainty import SemanticUQ

#: Buckets of the histogram of seconds.
BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
#: Largest number of messages in a request.
MOST_MESSAGES = 100
#: Number of probabilities that the watch tests together, because a test of each alone takes long.
OBSERVED = 20
_Result = TypeVar("_Result")


class Metrics:
    """The metrics for Prometheus."""

    def __init__(self, engine: Engine, watch: PromiseWatch | None) -> None:
        self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        self.requests = counter("semcal_requests", "Requests by outcome", ["outcome"])
        self.seconds = Histogram(
            "semcal_seconds", "Seconds from a request to its reply", buckets=BUCKETS, registry=self.registry
        )
        self.draws = counter("semcal_draws", "Sampled answers")
        self.cost = counter("semcal_cost", "Cost of requests to model servers, by their prices")
        self.unlogged = counter("semcal_unlogged", "Replies that could not be logged")
        gauge("semcal_queue", "Waiting questions").set_function(lambda: engine.n_waiting)
        if watch is not None:
            gauge("semcal_alarm", "1 during an alarm of the watch").set_function(lambda: watch.alarm)
            e_value = gauge("semcal_e_value", "Evidence against a promise", ["watch"])
            limit = gauge("semcal_e_limit", "Evidence that raises an alarm", ["watch"])
            for name, test in watch.tests.items():
                limit.labels(name).set(1 / test.alpha)
                e_value.labels(name).set_function(partial(getattr, test, "e_value"))


class ModelServers:
    """The model servers behind a service by part: "model", "fallback", "equivalence".

    A check requests the list of models, which is free, at most once in `fresh_for` seconds.
    """

    def __init__(self, models: Mapping[str, AnswerSource]) -> None:
        equivalence = models["model"].equivalence
        parts: dict[str, object] = {name: uq.model for name, uq in models.items()}
        parts["equivalence"] = getattr(equivalence, "inner", equivalence)
        self.fresh_for = 5.0
        self.clients = {
            name: ServerClient(client.endpoint, replace(client.settings, retries=0, timeout=3.0, ledger=[]))
            for name, part in parts.items()
            if (client := getattr(part, "client", None)) is not None
        }
        self._asked, self._silent = -math.inf, list[str]()
        self._asking = asyncio.Lock()

    async def silent(self) -> list[str]:
        """Return the parts whose servers do not answer, or reject the key."""
        async with self._asking:
            if time.monotonic() - self._asked >= self.fresh_for:
                asked = (asyncio.to_thread(_is_silent, client) for client in self.clients.values())
                answers = zip(self.clients, await asyncio.gather(*asked))
                self._silent = [name for name, is_silent in answers if is_silent]
                self._asked = time.monotonic()
            return self._silent

    def close(self) -> None:
        """Close the connections."""
        for client in self.clients.values():
            client.close()


def _is_silent(client: ServerClient) -> bool:
    """Return whether a server does not answer, or answers with an error that questions would get too."""
    try:
        client.get("/models")
    except ServerError as error:
        return error.status is None or error.status >= 500 or error.status in (401, 403)
    return False


@dataclass(frozen=True)
class Waiting:
    """A request in progress: a function that returns when its client is gone, its time limit, its start."""

    gone: Callable[[], Awaitable[None]]
    limit: float  # seconds
    start: float = field(default_factory=time.monotonic)


class Service:
    """A model with its calibration that answers requests.

    `names` are the names of the model and the calibration in requests. If the model abstains, the model of
    `fallback` answers with its own calibration. Several processes may share the log. The page offers the
    questions of `examples`.
    """

    def __init__(
        self,
        uq: AnswerSource,
        settings: ServeSettings,
        *,
        names: tuple[str, str] | None = None,
        fallback: SemanticUQ | None = None,
        log: ReplyLog | None = None,
        watch: PromiseWatch | None = None,
        examples: Sequence[str] = (),
    ) -> None:
        model, learned = names or (uq.model.name, "calibration")
        self.n_open = 0  # number of requests for answers without a reply
        tier = partial(Tier, queue=settings.queue, n_open=lambda: self.n_open)
        self.primary = tier(uq, model)
        self.fallback = None
        if fallback is not None:
            self.fallback = tier(fallback, fallback.model.name)
            self._check_fallback(self.fallback)
            if watch is not None:
                watch.leave_out_questions()
        self.calibration, self.engine = self.primary.calibration, self.primary.engine
        self.schema: Schema | None = self.primary.coverage.schema  # if answers are documents
        self.settings, self.log, self.watch = settings, log, watch
        self.models, self.examples = (model, f"{model}@{learned}"), examples
        self.metrics = Metrics(self.engine, watch)
        self.servers = ModelServers({"model": uq} | ({} if fallback is None else {"fallback": fallback}))
        self.labels = LabelTaker(log, watch, self.primary)
        self.draining = False
        self.is_log_failing = False
        self._unobserved = list[float]()  # probabilities of replies that the watch has not seen
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="semcal-log")

    def _check_fallback(self, fallback: Tier) -> None:
        """Raise UsageError unless there is a threshold, and both models sample single answers."""
        both = (self.primary.calibration, fallback.calibration)
        are_sampled = all(isinstance(one, Calibration) and one.answer_kind != "given" for one in both)
        if not are_sampled or not self.primary.calibration.all_thresholds:
            raise UsageError(
                "--fallback requires calibrations of single answers that the models sample, the first with a "
                "threshold. Run semcal calibrate with --risk, or omit --fallback"
            )

    def close(self) -> None:
        """End the threads after the last reply, and close the log."""
        for tier in self._tiers:
            tier.engine.close()
        self.labels.close()
        self.servers.close()
        self._writer.shutdown()
        if self.log is not None:
            self.log.close()

    # ---- Requests

    @contextmanager
    def open_request(self) -> Iterator[None]:
        """Count a request during the block, so that the next pass waits until its client can ask again."""
        self.n_open += 1
        try:
            yield
        finally:
            self.n_open -= 1

    async def chat(self, request: ChatRequest, gone: Callable[[], Awaitable[None]]) -> Answered:
        """Answer a request; ApiError if it is rejected, or if `gone` returns before the answer."""
        waiting, options = Waiting(gone, self.settings.request_timeout), request.semcal or Options()
        self._check_model(request.model)
        self._check_options(options)
        self._check_size(request.messages)
        if self.calibration.answer_kind == "given":
            reason = "the calibration is for given answers; send the answer to /v1/semcal/check"
            raise ApiError(400, reason, code="wrong_calibration")
        query = self.primary.coverage.read(request)
        self._check_covered(query)
        answered = await self._answer(self.primary, query, options, waiting)
        if self.fallback is not None and answered.verdict.abstained and not self._alarmed:
            query = self.fallback.coverage.read(request)
            try:
                self._check_covered(query, always=True)
                answered = await self._answer(self.fallback, query, options, waiting, after=answered.outcome)
            except ApiError as error:  # the first model's abstention is the reply
                note("fallback", code=error.code, param=error.param)
        return await self._finish(answered, waiting)

    async def check(self, request: CheckRequest, gone: Callable[[], Awaitable[None]]) -> Answered:
        """Compute the probability of a given answer; errors as in `chat`."""
        waiting, options = Waiting(gone, self.settings.request_timeout), request.semcal or Options()
        coverage = self.primary.coverage
        self._check_model(request.model or self.models[0])
        self._check_options(options)
        if self.calibration.score is not None or request.row is not None:
            return await self._check_row(request, options, waiting)
        if self.calibration.answer_kind != "given":
            reason = f"the calibration is for {self.calibration.answer_kind} answers, not for given answers"
            raise ApiError(400, f"{reason}; calibrate with --answer given", code="wrong_calibration")
        is_plain = request.messages is None
        if is_plain == (request.question is None) or (request.context is not None and not is_plain):
            raise ApiError(400, "expected either 'messages', or 'question' (and 'context'); send one of them")
        self._check_size(request.messages or (), *request.texts)
        answer: Any = request.answer
        if self.schema is not None:
            answer = given_document(answer, self.schema)
        elif not isinstance(answer, str) or not answer.strip():
            raise ApiError(400, "'answer' must be a text that is not empty; send one", param="answer")
        if request.messages is not None:
            query = coverage.question(request.messages)
        else:
            query = coverage.plain(request.question or "", request.context)
        self._check_covered(query)
        query = replace(query, question=replace(query.question, extra={"answer": answer}))
        samples = request.given_samples(self.calibration.m)
        answered = await self._answer(self.primary, query, options, waiting, samples=samples)
        return await self._finish(answered, waiting)

    async def _check_row(self, request: CheckRequest, options: Options, waiting: Waiting) -> Answered:
        row, others = request.row, (request.question, request.messages, request.answer, request.samples)
        is_score = self.calibration.score is not None
        if not is_score or row is None or any(value is not None for value in others):
            kind, expected = (
                ("a score", "'row' alone") if is_score else ("samples", "'question' and 'answer'")
            )
            raise ApiError(400, f"the calibration is of {kind}; send {expected}", param="row")
        self._check_size((), dumps(row), param="row")
        query = Query(Question(str(row.get("id", "")), "", extra={"row": row}))
        answered = await self._answer(self.primary, query, options, waiting, samples=row)
        return await self._finish(answered, waiting)

    def _check_model(self, name: str) -> None:
        """Raise ApiError unless a request may name this model."""
        try:
            check_name(name, self.models, what="model")
        except UsageError as error:
            raise ApiError(404, str(error), code="model_not_found", param="model") from None

    @property
    def _tiers(self) -> list[Tier]:
        """The models that may answer a request."""
        return [self.primary] if self.fallback is None else [self.primary, self.fallback]

    @property
    def _columns(self) -> set[str]:
        """The columns that a request must bring."""
        return {name for tier in self._tiers for name in tier.coverage.columns}

    def _check_options(self, options: Options) -> None:
        for tier in self._tiers:
            tier.coverage.check_options(options)
        if unknown := sorted({*(options.columns or ())} - self._columns):
            names = ", ".join(sorted(self._columns)) or "none"
            reason = f"semcal.columns: the calibration reads {names}, not {shown(unknown[0])}; omit it"
            raise ApiError(400, reason, param="semcal.columns")

    def _check_size(self, messages: Sequence[Message], *further: str, param: str = "messages") -> None:
        limit = self.settings.max_characters
        if len(messages) > MOST_MESSAGES:
            reason = f"{len(messages)} messages, expected at most {MOST_MESSAGES}; send fewer"
            raise ApiError(400, reason, code="too_many_messages", param="messages")
        text = "".join((*(message.text for message in messages), *further))
        text.encode()
        if len(text) > limit:
            reason = f"the texts have {len(text)} characters, expected at most {limit}; shorten them"
            raise ApiError(400, reason, code="too_long", param=param)

    def _check_covered(self, query: Query, *, always: bool = False) -> None:
        if query.uncovered and (always or self.settings.uncovered == "refuse"):
            param, reason = query.uncovered[0]
            reason += " (an operator may answer it without a probability: --uncovered answer)"
            raise ApiError(400, reason, code="not_covered", param=param)

    @property
    def _alarmed(self) -> bool:
        """True if everything abstains."""
        return self.watch is not None and self.watch.alarm and self.settings.on_alarm == "abstain"

    async def _answer(
        self,
        tier: Tier,
        query: Query,
        options: Options,
        waiting: Waiting,
        *,
        samples: Mapping[str, Any] | None = None,
        after: AnswerOutcome | None = None,
    ) -> Answered:
        """Answer a question, with the verdict; `after` is the outcome of a model that abstained."""
        band, query = tier.coverage.threshold_for(options.risk), tier.coverage.with_columns(query, options)
        outcome = await self._outcome(
            tier, AnswerJob(query.question, tier.calibration.answer_kind, samples), waiting
        )
        is_other_model = outcome.by_other_model and not tier.uq.asking.force
        if is_other_model and self.settings.uncovered == "refuse":
            reason = (
                "another model than the calibration's answered; the operator can correct --model, or start "
                "with --force if the server uses another name for it"
            )
            raise ApiError(502, reason, code="other_model")
        self.metrics.draws.inc(outcome.n_draws * len(tier.uq.recalibrators))
        outcome = outcome if after is None else after.followed_by(outcome)
        uncovered = (*(name for name, _ in query.uncovered), *["model"] * is_other_model)
        verdict = ReplyVerdict.on(
            outcome.answer,
            tier.calibration,
            band=band,
            covered=not uncovered,
            alarm=self._alarmed,
        )
        reply_id = f"chatcmpl-{uuid.uuid4().hex}"
        return Answered(
            *(reply_id, query.question, outcome, verdict, tier.calibration.id, tier.route),
            template=tier.template_hash(query.question),
            uncovered=uncovered,
            overhead=max(0.0, time.monotonic() - waiting.start - outcome.seconds),
            audited=is_in_share(reply_id, self.settings.audit),
        )

    async def _outcome(self, tier: Tier, job: AnswerJob, waiting: Waiting) -> AnswerOutcome:
        """Return the outcome of the engine; withdraw a job whose client is gone, or that takes too long."""
        tier.engine.submit(job)
        try:
            return await self._wait(job.future, waiting)
        except QuestionError as error:  # without the id, which may be long
            raise ApiError(400, error.reason) from error
        except (InputError, UsageError) as error:
            raise ApiError(400, str(error)) from error
        except (BudgetError, ServerError, ModelError) as error:
            note_failure("backend", error)
            reason = "the model server did not answer, and the log has its error; try again later"
            raise ApiError(502, reason, code="backend_failed") from error
        finally:
            if not job.future.done():
                await asyncio.shield(asyncio.to_thread(tier.engine.withdraw, job))

    async def _wait(self, future: Future[_Result], waiting: Waiting) -> _Result:
        """Return the result of another thread; ApiError if it takes too long, or if the client is gone."""
        result, leaving = asyncio.wrap_future(future), asyncio.ensure_future(waiting.gone())
        result.add_done_callback(lambda done: done.cancelled() or done.exception())  # without a waiting task
        either: set[asyncio.Future[Any]] = {result, leaving}
        try:
            left = max(0.0, waiting.start + waiting.limit - time.monotonic())
            await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if result.done():
                return result.result()
            if leaving.done():
                raise ApiError(CLIENT_GONE, "the client is gone", code="cancelled")
            raise ApiError(504, f"no answer within {waiting.limit:g} s; try again later", code="timeout")
        finally:
            leaving.cancel()

    async def _finish(self, answered: Answered, waiting: Waiting) -> Answered:
        if self.log is not None:
            logged = self._writer.submit(self._write, self.log, self._logged(answered))
            await asyncio.wrap_future(logged)
        verdict = answered.verdict
        if verdict.probability is not None:
            self._unobserved.append(verdict.probability)
            if len(self._unobserved) == OBSERVED:
                self.observe_replies()
        self.metrics.cost.inc(max(0.0, answered.outcome.cost or 0.0))
        self.metrics.seconds.observe(time.monotonic() - waiting.start)
        self.metrics.requests.labels("abstained" if verdict.abstained else "answered").inc()
        return answered

    def observe_replies(self) -> None:
        """Let the watch test the probabilities of the last replies; call it before its state is read."""
        probabilities, self._unobserved = self._unobserved, []
        if self.watch is not None:
            before = self.watch.shift
            self.watch.observe(*probabilities)
            if before is None and self.watch.shift is not None:
                note("questions", warning=self.watch.shift)

    async def take_labels(
        self, labels: Sequence[Label], gone: Callable[[], Awaitable[None]], key: str = ""
    ) -> list[TakenLabel]:
        """Add labels sent with `key`, unless the client is gone."""
        waiting, given_up = Waiting(gone, self.settings.request_timeout), threading.Event()
        self._check_size((), *(text for label in labels for text in label.references), param="reference")
        future = self.labels.submit(labels, key, lambda: not given_up.is_set())
        try:
            return await self._wait(future, waiting)
        finally:
            given_up.set()
            future.cancel()

    def count(self, path: str, outcome: str) -> None:
        """Count the outcome of a request for an answer."""
        if path in (CHAT, CHECK):
            self.metrics.requests.labels(outcome).inc()

    # ---- The log

    def _logged(self, answered: Answered) -> Reply:
        outcome, verdict, texts = answered.outcome, answered.verdict, None
        row = {name: value for name, value in answered.question.row().items() if name != "id"}
        if self.settings.log_texts:
            texts = {**row, "answer": outcome.answer.text, "samples": outcome.answer.row.json.get("samples")}
        row.pop("answer", None)
        content = int.from_bytes(sha256(dumps([row, outcome.form]).encode()).digest()[:8], signed=True)
        is_score, is_named = self.calibration.score is not None, bool(answered.question.id)
        return Reply(
            id=answered.id,
            time=time.time(),
            template=answered.template,
            features=outcome.answer.features,
            answer=outcome.form if self.settings.answers and (outcome.form or not is_score) else None,
            probability=verdict.probability,
            threshold=verdict.threshold,
            abstained=bool(verdict.abstained),
            route=answered.route,
            cost=outcome.cost,
            audited=answered.audited,
            texts=texts,
            calibration=answered.calibration,
            content=content if is_named else None,  # equal scores may be of different questions
        )

    def _write(self, log: ReplyLog, reply: Reply) -> None:
        """Log a reply. A failure is counted and noted, and replies continue."""
        try:
            log.add(reply)
        except StoreError as error:
            if not self.is_log_failing:
                note("log", fault=str(error))
            self.is_log_failing = True
            self.metrics.unlogged.inc()
        else:
            self.is_log_failing = False
        self.labels.read_new()

    # ---- State

    async def readiness(self) -> Readiness:
        """Return whether questions are answered, the missing parts, and whether replies are logged."""
        missing = await self.servers.silent()
        failed = any(part != "fallback" for part in missing)
        return Readiness(
            status="draining" if self.draining else "failed" if failed else "ready",
            missing=missing,
            log="off" if self.log is None else "cannot be written" if self.is_log_failing else "ok",
            alarm=self.watch is not None and self.watch.alarm,
            waiting=self.engine.n_waiting,
        )

    @property
    def state(self) -> ServiceState:
        """The data of the page besides replies."""
        self.observe_replies()
        calibration, watch = self.calibration, self.watch
        labelled, asking = list[Any](), self.primary.uq.asking
        promised = [(one, one.sentence) for one in calibration.all_thresholds]
        if isinstance(calibration, Calibration):
            labelled = [asdict(group) for group in calibration.report.like]
        else:
            promised = calibration.promises
        passage = Question("", "{question}", context="{context}")
        form = asking.template and asking.template.user
        return ServiceState(
            models=self.models,
            calibration=calibration.id,
            answer_kind=calibration.answer_kind,
            labelled=labelled,
            thresholds=[{**asdict(one), "sentence": sentence} for one, sentence in promised],
            watch=None if watch is None else {"alarm": watch.alarm, "tests": watch.courses},
            on_alarm=self.settings.on_alarm,
            examples=[*self.examples],
            columns=sorted(self._columns),
            documents=None if self.schema is None else dict(self.schema.json),
            form=(form or user_turn(passage).content) if asking.open_book else None,
        )
