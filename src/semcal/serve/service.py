"""What `semcal serve` does with a request, but for HTTP: ask, decide, write down, take labels."""

from __future__ import annotations

import asyncio
import math
import re
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property, partial
from hashlib import sha256
from typing import Any, TypeAlias, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from semcal import __version__
from semcal.calibration.production import is_in_share
from semcal.data.question import Question
from semcal.data.template import Template
from semcal.errors import (
    BudgetError,
    InputError,
    ModelError,
    QuestionError,
    SemcalError,
    ServerError,
    StoreError,
    UsageError,
    shown,
)
from semcal.files import dumps
from semcal.grading.grade import as_grader
from semcal.registry import check_name
from semcal.serve.configuration import ServeSettings
from semcal.serve.engine import AnswerJob, AnswerOutcome, BackendFailed, Engine, Tier
from semcal.serve.guard import note
from semcal.serve.log import Reply, ReplyLog
from semcal.serve.replies import ReplyVerdict, Served
from semcal.serve.requests import (
    CHAT,
    CHECK,
    ApiError,
    ChatRequest,
    CheckRequest,
    Label,
    Message,
    Options,
    Query,
)
from semcal.serve.watch import PromiseWatch
from semcal.servers.client import ServerClient
from semcal.uncertainty import SemanticUQ

#: The status of a model server in a message.
_STATUS = re.compile(r"\bHTTP \d{3}\b")
#: Seconds that the log has in any case, whatever drawing took.
LEAST_FOR_LOG = 2.0
#: Buckets of the histogram of seconds.
BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)


class Metrics:
    """What Prometheus reads."""

    def __init__(self, engine: Engine, watch: PromiseWatch | None, *, model: str, calibration: str) -> None:
        self.registry = CollectorRegistry()
        facts = {"version": __version__, "model": model, "calibration": calibration}
        Info("semcal", "What answers", registry=self.registry).info(facts)
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        self.requests = counter("semcal_requests", "Requests by what came of them", ["outcome"])
        self.seconds = Histogram(
            "semcal_seconds", "From a request to its reply", buckets=BUCKETS, registry=self.registry
        )
        self.draws = counter("semcal_draws", "Answers drawn")
        self.cost = counter("semcal_cost", "What model servers charged, by their prices")
        self.labels = counter("semcal_labels", "Labels by what they say", ["correct"])
        self.unlogged = counter("semcal_unlogged", "Replies that could not be written down")
        gauge("semcal_queue", "Questions that wait").set_function(lambda: engine.n_waiting)
        if watch is not None:
            alarm = gauge("semcal_alarm", "Whether a promise was shown not to hold")
            alarm.set_function(lambda: watch.alarm)
            e_value = gauge("semcal_e_value", "Evidence against a promise", ["watch"])
            limit = gauge("semcal_e_limit", "The evidence that is an alarm", ["watch"])
            notice = gauge("semcal_notice", "Whether there is some evidence against a promise", ["watch"])
            for name, test in watch.tests.items():
                notice.labels(name).set_function(partial(getattr, test, "notice"))
                limit.labels(name).set(1 / test.alpha)
                e_value.labels(name).set_function(partial(getattr, test, "e_value"))


class ModelServers:
    """The model servers behind a service, by the part that each is: which of them do not answer.

    Each is asked for its models, which costs nothing, at most once in `fresh_for` seconds.
    """

    def __init__(self, models: Mapping[str, SemanticUQ]) -> None:
        equivalence = models["model"].equivalence
        parts: dict[str, object] = {name: uq.model for name, uq in models.items()}
        parts["equivalence"] = getattr(equivalence, "inner", equivalence)
        clients = {name: getattr(part, "client", None) for name, part in parts.items()}
        self.fresh_for = 5.0
        self._clients = {
            name: ServerClient(client.endpoint, replace(client.settings, retries=0, timeout=3.0, ledger=[]))
            for name, client in clients.items()
            if client is not None
        }
        self._asked, self._silent = -math.inf, list[str]()
        self._asking = asyncio.Lock()

    async def silent(self) -> list[str]:
        """Return the parts whose servers do not answer, or refuse the key."""
        async with self._asking:
            if time.monotonic() - self._asked >= self.fresh_for:
                asked = (asyncio.to_thread(_is_silent, client) for client in self._clients.values())
                answers = zip(self._clients, await asyncio.gather(*asked))
                self._silent = [name for name, is_silent in answers if is_silent]
                self._asked = time.monotonic()
            return self._silent

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            client.close()


def _is_silent(client: ServerClient) -> bool:
    """Whether a server gives no answer, or one that it would give to questions too; some have no /models."""
    try:
        client.get("/models")
    except ServerError as error:
        return error.status is None or error.status >= 500 or error.status in (401, 403)
    return False


class ClientGone(Exception):
    """Nobody waits for the reply any more."""


Gone: TypeAlias = Callable[[], Awaitable[None]]
"""Returns when the client of a request goes away."""
_Result = TypeVar("_Result")


class Service:
    """A model with its calibration, as it answers requests.

    `names` are what requests call the model and the calibration. What the model abstains from, the model of
    `fallback` answers, by its own calibration. Each reply is also written to the label log, which
    services share; all labels are there. The page offers the questions of `examples`.
    """

    def __init__(
        self,
        uq: SemanticUQ,
        settings: ServeSettings,
        *,
        names: tuple[str, str] | None = None,
        fallback: SemanticUQ | None = None,
        log: ReplyLog | None = None,
        label_log: ReplyLog | None = None,
        watch: PromiseWatch | None = None,
        examples: Sequence[str] = (),
    ) -> None:
        model, learnt = names or (uq.model.name, "calibration")
        self.primary = primary = Tier(uq, model, queue=settings.queue)
        self.fallback = None
        if fallback is not None:
            self.fallback = Tier(fallback, fallback.model.name, queue=settings.queue)
            self._check_fallback(self.fallback)
            if watch is not None:
                watch.leave_out_questions()
        self.uq, self.calibration, self.settings = uq, primary.calibration, settings
        self.log, self.watch, self.examples = log, watch, examples
        self.label_log = label_log or log
        self.models = (model, f"{model}@{learnt}")
        self.revision = uq.model.revision
        self.coverage, self.engine = primary.coverage, primary.engine
        self.metrics = Metrics(self.engine, watch, model=model, calibration=self.calibration.id)
        self.servers = ModelServers({"model": uq} | ({} if fallback is None else {"fallback": fallback}))
        self.draining = False
        self.n_given_up = 0  # requests that an end at once left without an answer
        self.log_fault: str | None = None
        self._templates: dict[tuple[str, Template], str] = {}
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="semcal-log")
        self._labelling = threading.Lock()
        self._reading: Future[None] | None = None  # of labels for the watch
        self._grading = ThreadPoolExecutor(1, thread_name_prefix="semcal-grading")
        self._plain = ThreadPoolExecutor(1, thread_name_prefix="semcal-labels")  # those that need no grading

    def _check_fallback(self, fallback: Tier) -> None:
        """UsageError unless there is a threshold to fall back from, and answers to fall back to."""
        if self.primary.calibration.threshold is None:
            raise UsageError(
                "--fallback answers what lies below the threshold, and the calibration has none; "
                "calibrate with --risk"
            )
        if "given" in (self.primary.calibration.answer_kind, fallback.calibration.answer_kind):
            raise UsageError("--fallback is for answers of models, and a calibration is of given ones")

    def close(self, *, at_once: bool = False) -> None:
        """Answer what waits, or nothing more, and close the log."""
        self.engine.close(at_once=at_once)
        if self.fallback is not None:
            self.fallback.engine.close(at_once=at_once)
        for thread in (self._grading, self._plain):
            thread.shutdown(wait=not at_once, cancel_futures=at_once)
        self.servers.close()
        self._writer.shutdown()
        for log in (self.log, self.label_log):
            if log is not None:
                log.close()

    # ---- Requests

    async def chat(self, request: ChatRequest, gone: Gone) -> Served:
        """The reply to a request; ApiError for what is refused, ClientGone where `gone` returns before it."""
        start, options = time.monotonic(), request.semcal or Options()
        until = start + self.settings.request_timeout
        self.check_model(request.model)
        self._check_size(request.messages)
        if self.calibration.answer_kind == "given":
            reason = "the calibration is of given answers; ask how likely one is right at /v1/semcal/check"
            raise ApiError(400, reason, code="wrong_calibration")
        self.coverage.check_risk(options)
        query = self.coverage.read(request)
        self._check_covered(query)
        tier, job = self.primary, AnswerJob(query.question, self.calibration.answer_kind)
        outcome = await self._outcome(tier, job, gone, until)
        verdict = self._verdict(tier, outcome, query, options)
        if self.fallback is not None and verdict.abstained and not self._alarmed:
            stronger = await self._fall_back(self.fallback, request, options, gone, until)
            if stronger is not None:
                query, second = stronger
                self._count_draws(outcome, tier)
                tier, outcome = self.fallback, outcome.followed_by(second)
        return await self._served(tier, request.model, query, outcome, options, start, until)

    async def _fall_back(
        self, tier: Tier, request: ChatRequest, options: Options, gone: Gone, until: float
    ) -> tuple[Query, AnswerOutcome] | None:
        """The answer of the stronger model; None where that fails, or its calibration does not cover it."""
        query = tier.coverage.read(request)
        if query.uncovered:
            note("fallback", uncovered=[name for name, _ in query.uncovered])
            return None
        try:
            tier.coverage.check_risk(options)
            job = AnswerJob(query.question, tier.calibration.answer_kind)
            return query, await self._outcome(tier, job, gone, until)
        except ApiError as error:
            note("fallback", code=error.code)
            return None

    async def check(self, request: CheckRequest, gone: Gone) -> Served:
        """The probability of a given answer."""
        start, options = time.monotonic(), request.semcal or Options()
        until = start + self.settings.request_timeout
        if request.model is not None:
            self.check_model(request.model)
        if self.calibration.answer_kind != "given":
            reason = f"the calibration is of {self.calibration.answer_kind} answers, not of given ones"
            raise ApiError(400, f"{reason}; calibrate with --answer given", code="wrong_calibration")
        self.coverage.check_risk(options)
        if (request.messages is None) == (request.question is None):
            raise ApiError(400, "give 'messages' or 'question', one of them")
        texts = (request.question, request.context, request.answer, *(request.samples or ()))
        self._check_size(request.messages or (), *(text for text in texts if text))
        if not request.answer.strip():
            raise ApiError(400, "the answer is empty; there is nothing to check")
        if request.messages is None:
            query = self.coverage.plain(request.question or "", request.context)
        elif request.context is None:
            query = self.coverage.question(request.messages)
        else:
            reason = "'context' goes with a 'question'; put it into the messages"
            raise ApiError(400, reason, param="context")
        self._check_covered(query)
        question = replace(query.question, extra={"answer": request.answer})
        tier, model = self.primary, request.model or self.models[0]
        job = AnswerJob(question, "given", _draws_of(request, self.calibration.m))
        outcome = await self._outcome(tier, job, gone, until)
        return await self._served(tier, model, query, outcome, options, start, until)

    def check_model(self, name: str) -> None:
        """ApiError unless a request may name this model."""
        try:
            check_name(name, self.models, what="model")
        except UsageError as error:
            raise ApiError(404, str(error), code="model_not_found", param="model") from None

    def _check_size(
        self,
        messages: Sequence[Message],
        *further: str,
        param: str = "messages",
        remedy: str = "shorten them",
    ) -> None:
        """ApiError for more messages, or longer texts, than are taken; UnicodeEncodeError for no text."""
        limit = self.settings.max_characters
        if len(messages) > self.settings.max_messages:
            reason = f"{len(messages)} messages are more than {self.settings.max_messages}; send fewer"
            raise ApiError(400, reason, code="too_many_messages", param="messages")
        text = "".join((*(message.text for message in messages), *further))
        text.encode()
        if len(text) > limit:
            reason = f"the texts have {len(text)} characters, more than {limit}; {remedy}"
            raise ApiError(400, reason, code="too_long", param=param)

    def _check_covered(self, query: Query) -> None:
        """ApiError for what the calibration does not cover, unless that is answered without a probability."""
        if query.uncovered and self.settings.uncovered == "refuse":
            param, reason = query.uncovered[0]
            reason += " (an operator may answer it without a probability: --uncovered answer)"
            raise ApiError(400, reason, code="not_covered", param=param)

    async def _wait(self, future: Future[_Result], gone: Gone, until: float) -> _Result:
        """Return the result of another thread; ClientGone, or ApiError if it takes too long."""
        result, leaving = asyncio.wrap_future(future), asyncio.ensure_future(gone())
        result.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may wait for it
        either: set[asyncio.Future[Any]] = {result, leaving}
        try:
            left = max(0.0, until - time.monotonic())
            await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if result.done():
                return result.result()
            if leaving.done():
                raise ClientGone
            limit = self.settings.request_timeout
            raise ApiError(504, f"no answer within {limit:g} s; try again later", code="timeout")
        except asyncio.CancelledError:
            self.n_given_up += 1
            raise
        finally:
            leaving.cancel()

    async def _outcome(self, tier: Tier, job: AnswerJob, gone: Gone, until: float) -> AnswerOutcome:
        """The answer of an engine; what nobody waits for any more, or takes too long, is given up."""
        engine = tier.engine
        engine.submit(job)
        try:
            outcome = await self._wait(job.future, gone, until)
            refuses = self.settings.uncovered == "refuse" and not tier.uq.asking.force
            if outcome.by_other_model and refuses:
                reason = (
                    "another model answered than the calibration's; the operator can correct --model, or "
                    "start with --force if the server uses another name for it"
                )
                raise ApiError(502, reason, code="other_model")
            return outcome
        except QuestionError as error:  # without its id, which may be long
            raise ApiError(400, error.reason) from error
        except (InputError, UsageError) as error:
            raise ApiError(400, str(error)) from error
        except BudgetError as error:
            _note_failure("backend", error)
            reason = "what this server may spend is spent; its operator can raise the limit"
            raise ApiError(503, reason, code="budget_spent") from error
        except (ServerError, BackendFailed, ModelError) as error:
            _note_failure("backend", error)
            status = _STATUS.search(str(error))
            reason = f" ({status[0]})" if status else ""
            if self.settings.show_backend_errors and isinstance(error, BackendFailed):
                reason = f": {error}"
            reason = f"the model server gave no answer{reason}; try again later"
            raise ApiError(502, reason, code="backend_failed") from error
        finally:
            if not job.future.done():
                await asyncio.shield(asyncio.to_thread(engine.withdraw, job))

    @property
    def _alarmed(self) -> bool:
        """Whether everything abstains."""
        return self.watch is not None and self.watch.alarm and self.settings.on_alarm == "abstain"

    def _verdict(self, tier: Tier, outcome: AnswerOutcome, query: Query, options: Options) -> ReplyVerdict:
        names = tuple(name for name, _ in query.uncovered)
        if outcome.by_other_model and not tier.uq.asking.force:
            names += ("model",)
        return ReplyVerdict.of(outcome, tier.calibration, options, uncovered=names, alarm=self._alarmed)

    def _count_draws(self, outcome: AnswerOutcome, tier: Tier) -> None:
        self.metrics.draws.inc(outcome.n_draws * len(tier.uq.recalibrators))

    async def _served(
        self,
        tier: Tier,
        model: str,
        query: Query,
        outcome: AnswerOutcome,
        options: Options,
        start: float,
        until: float,
    ) -> Served:
        """The reply, written down."""
        reply_id = f"chatcmpl-{uuid.uuid4().hex}"
        served = Served(
            id=reply_id,
            model=model,
            outcome=outcome,
            verdict=self._verdict(tier, outcome, query, options),
            options=options,
            calibration=tier.calibration.id,
            route=tier.route,
            style=self.settings.abstain,
            sentence=self.settings.abstain_text,
            overhead=max(0.0, time.monotonic() - start - outcome.seconds),
            audited=is_in_share(reply_id, self.settings.audit),
        )
        if self.log is not None:
            await self._log(self._reply(served, tier, query.question), until)
        if self.watch is not None and tier is self.primary and served.verdict.probability is not None:
            self.watch.observe(served.verdict.probability)
        self._count_draws(outcome, tier)
        self.metrics.cost.inc(max(0.0, outcome.cost or 0.0))
        self.metrics.seconds.observe(time.monotonic() - start)
        self.metrics.requests.labels("abstained" if served.verdict.abstained else "answered").inc()
        return served

    async def missing(self) -> list[str]:
        """Return the parts that do not work now: engine, model, equivalence, fallback."""
        return ["engine"] * (not self.engine.is_alive) + await self.servers.silent()

    @property
    def state(self) -> dict[str, Any]:
        """What the page shows beside replies."""
        calibration, watch = self.calibration, self.watch
        return {
            "models": self.models,
            "calibration": calibration.id,
            "answer_kind": calibration.answer_kind,
            "compared": "score" if calibration.map.candidate.kind == "constant" else "confidence",
            "labelled": [asdict(group) for group in calibration.report.like],
            "thresholds": [{**asdict(one), "sentence": one.sentence} for one in calibration.all_thresholds],
            "watch": None if watch is None else {"alarm": watch.alarm, "tests": watch.courses},
            "on_alarm": self.settings.on_alarm,
            "examples": self.examples,
        }

    # ---- The log

    def _reply(self, served: Served, tier: Tier, question: Question) -> Reply:
        outcome, verdict = served.outcome, served.verdict
        texts: dict[str, Any] | None = None
        if self.settings.log_texts:
            row = {key: value for key, value in question.row().items() if key != "id"}
            meanings = [vars(meaning) for meaning in outcome.answer.meanings]
            texts = {**row, "answer": outcome.answer.text, "meanings": meanings}
        return Reply(
            id=served.id,
            time=time.time(),
            template=self._template_hash(tier, question),
            features=outcome.features,
            answer=outcome.form if self.settings.answers else None,
            probability=verdict.probability,
            threshold=verdict.threshold,
            abstained=bool(verdict.abstained),
            route=served.route,
            cost=outcome.cost,
            audited=served.audited,
            texts=texts,
            calibration=served.calibration,
            content=_content(question, outcome.form),
        )

    def _template_hash(self, tier: Tier, question: Question) -> str:
        template = Template.of(question) if question.messages else tier.coverage.template
        key = tier.route, template
        if len(self._templates) > 1000:  # of a client that changes its system message each time
            self._templates.clear()
        if key not in self._templates:
            self._templates[key] = replace(tier.uq.asking, template=template).hash(tier.uq.model)
        return self._templates[key]

    async def _log(self, reply: Reply, until: float) -> None:
        """Write a reply down, within the time of its request or a little more."""
        writing = asyncio.wrap_future(self._writer.submit(self._write, reply))
        left = max(LEAST_FOR_LOG, until - time.monotonic())
        done, _ = await asyncio.wait({writing}, timeout=left)
        if done:
            writing.result()
        else:
            writing.cancel()
            self._note_unlogged("the log takes too long; see that its disk works")

    def _write(self, reply: Reply) -> None:
        """Write a reply down; where that fails replies go on, and it is counted and said."""
        assert self.log is not None
        assert self.label_log is not None
        try:
            self.log.add(reply)
            if self.label_log is not self.log:
                self.label_log.add(reply)
        except StoreError as error:
            self._note_unlogged(str(error))
        else:
            self.log_fault = None
        is_idle = self._reading is None or self._reading.done()
        if is_idle and (self._alarmed or self.label_log is not self.log):
            with suppress(RuntimeError):  # the service ends
                self._reading = self._plain.submit(self._read_new_labels)

    def _read_new_labels(self) -> None:
        """Let the watch take labels that other services wrote, and heed that some were struck."""
        try:
            with self._labelling:
                self._tell_watch()
        except StoreError as error:
            note("log", fault=str(error))

    def _note_unlogged(self, fault: str) -> None:
        if self.log_fault is None:
            note("log", fault=fault)
        self.log_fault = fault
        self.metrics.unlogged.inc()

    def count(self, path: str, outcome: str) -> None:
        """Count what came of a request for an answer."""
        if path in (CHAT, CHECK):
            self.metrics.requests.labels(outcome).inc()

    # ---- Labels

    @cached_property
    def _grader(self) -> Any:
        """What graded the labelled answers of the calibration."""
        name = self.calibration.grader
        return as_grader("rules" if name == "RuleGrader" else name, self.uq.equivalence)

    async def take_labels(self, labels: Sequence[Label], gone: Gone, key: str = "") -> list[dict[str, Any]]:
        """Take labels in the thread that grades; what nobody waits for any more is given up.

        `key` says who sends them.
        """
        references = [label.reference or () for label in labels]
        texts = [text for one in references for text in ([one] if isinstance(one, str) else one)]
        self._check_size((), *texts, param="reference", remedy="send fewer labels at a time, or shorter ones")
        until, given_up = time.monotonic() + self.settings.request_timeout, threading.Event()
        thread = self._grading if any(label.reference for label in labels) else self._plain
        future = thread.submit(self.label, labels, key, is_wanted=lambda: not given_up.is_set())
        try:
            return await self._wait(future, gone, until)
        finally:
            given_up.set()
            future.cancel()

    def label(
        self, labels: Sequence[Label], key: str = "", *, is_wanted: Callable[[], bool] = lambda: True
    ) -> list[dict[str, Any]]:
        """Write labels down, all or none of them, and tell the watch; none that are not wanted any more."""
        if self.label_log is None:
            raise ApiError(409, "nothing is logged here; start with --log FILE", code="no_log")
        verdicts = dict[str, tuple[Reply, bool]]()
        try:
            for place, label in enumerate(labels):
                if not is_wanted():
                    return []
                verdict = self._verdict_of(label, f"labels.{place}")
                if verdicts.setdefault(label.id, verdict) != verdict:
                    reason = f"the reply {shown(label.id)} is labelled twice, and differently; send one"
                    raise ApiError(400, reason)
            with self._labelling:
                counted = self.label_log.label({id: correct for id, (_, correct) in verdicts.items()}, key)
                for reply_id, is_new in counted.items():
                    if is_new:
                        self.metrics.labels.labels(str(verdicts[reply_id][1]).lower()).inc()
                self._tell_watch()
        except StoreError as error:
            note("log", fault=str(error))
            reason = "the log cannot be used, so no label was taken; try again later"
            raise ApiError(503, reason, code="log_failed") from error
        return [
            {"id": label.id, "correct": verdicts[label.id][1], "counts": label.id in counted}
            for label in labels
        ]

    def _tell_watch(self) -> None:
        if self.label_log is not None and self.watch is not None:
            self.watch.read_new_labels(self.label_log, (self.calibration.id,))

    def _verdict_of(self, label: Label, param: str) -> tuple[Reply, bool]:
        """A reply, and what its label says; ApiError where that is nothing, or cannot be taken."""
        assert self.log is not None
        assert self.label_log is not None
        references = [label.reference] if isinstance(label.reference, str) else label.reference or []
        if (label.correct is None) == (not references):
            raise ApiError(400, "give 'correct' or 'reference', one of them", param=param)
        if not all(text.strip() for text in references):
            reason = "a reference is empty, which no answer can match; send its text, or 'correct'"
            raise ApiError(400, reason, param=param)
        reply = self.label_log.reply(label.id)
        if reply is None and (reply := self.log.reply(label.id)) is not None:
            self.label_log.add(reply)  # which could not be written to when this one was given
        if reply is None:
            reason = f"there is no reply with the id {shown(label.id)} in the log; give the 'id' of a reply"
            raise ApiError(404, reason, code="unknown_reply", param=param)
        correct = label.correct
        if correct is None:
            if reply.answer is None:
                reason = "answers are not kept here, so none can be graded; send 'correct'"
                raise ApiError(409, reason, code="no_answers", param=param)
            correct = self._grade(reply, references, param)
        return reply, correct

    def _grade(self, reply: Reply, references: list[str], param: str) -> bool:
        """Whether the grader of the calibration calls a logged answer right; ApiError where it cannot."""
        question = (reply.texts or {}).get("question")
        name = self.calibration.grader or ""
        if not question and name not in ("", "rules", "RuleGrader", "exact", "letter"):
            reason = f"the grader {name} reads questions, and the log holds none; send 'correct'"
            raise ApiError(409, reason, code="no_question", param=param)
        try:
            return bool(self._grader.grade(str(question or ""), [reply.answer or ""], references).correct)
        except SemcalError as error:
            _note_failure("grader", error)
            reason = f"the grader {name} gave no verdict; send 'correct', or try again later"
            raise ApiError(502, reason, code="grader_failed", param=param) from error


def _content(question: Question, form: str | None) -> int:
    """Hash a question and an answer's normal form, by which equal replies are known."""
    row = {name: value for name, value in question.row().items() if name not in ("id", "answer")}
    return int.from_bytes(sha256(dumps([row, form]).encode()).digest()[:8], signed=True)


def _note_failure(event: str, error: Exception) -> None:
    """Log what a server says; of what is wrong with a request, which may quote its texts, the kind alone."""
    is_of_server = isinstance(error, ServerError | BudgetError | BackendFailed)
    why = {"reason": str(error)} if is_of_server else {}
    note(event, type=type(error).__name__, **why)


def _draws_of(request: CheckRequest, m: int) -> dict[str, Any] | None:
    """The m draws that a request brings; None where they are to be drawn."""
    if request.samples is None:
        if request.log_likelihoods is not None:
            raise ApiError(400, "'log_likelihoods' go with 'samples'; send both")
        return None
    if len(request.samples) != m:
        reason = (
            f"'samples' holds {len(request.samples)} draws, and the calibration was made with {m}; send {m}"
        )
        raise ApiError(400, reason, param="samples")
    likelihoods = {} if request.log_likelihoods is None else {"log_likelihoods": request.log_likelihoods}
    return {"samples": request.samples, **likelihoods}
