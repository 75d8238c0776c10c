"""Threads that answer the questions of one queue, as `semcal ask` does.

A model on this machine has one thread, which answers all waiting questions in one pass. For a server, each
thread has its own connections and answers one question at a time, so that the cost of a question is known,
and withdrawn questions cause no further requests.
"""

from __future__ import annotations

import copy
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, cast

from semcal.calibration.calibration import Calibration
from semcal.calibration.features import scored_row
from semcal.data.question import Question
from semcal.data.template import Template
from semcal.errors import InputError, QuestionError, ServerError
from semcal.models.distribution import Temperature
from semcal.models.equivalence import (
    EmbeddedEquivalence,
    Equivalence,
    ExactMatch,
    Triple,
    form_by,
    margins_by,
)
from semcal.models.prompting import PromptConfig
from semcal.models.protocols import Sampler, requests_a_question
from semcal.models.sample import Sampling, SamplingConfig
from semcal.results import Answer, Results, score, scored_answers
from semcal.rows import AnswerKind, Row
from semcal.serve.answered import AnswerOutcome
from semcal.serve.documents import DocumentSource
from semcal.serve.replies import ApiError
from semcal.serve.requests import Coverage
from semcal.servers.client import ServerClient
from semcal.servers.sampler import ServerModel
from semcal.uncertainty import SemanticUQ

#: What answers the questions of a service.
AnswerSource = SemanticUQ | DocumentSource
#: Maximum number of questions in a pass, as in a block of `semcal ask`.
BATCH = 256
#: Maximum wait for the next questions of clients with finished answers, as shares of the last pass's time: in
#: all, and for each next question once all replies are made. So these questions share a pass, and no reply is
#: made during a pass.
WAIT, PAUSE = 1 / 2, 1 / 10
#: Number of seconds after which a client of a full queue may try again.
RETRY_AFTER = "2"


@dataclass(eq=False)
class AnswerJob:
    """A question that waits for its answer, with `samples` if they exist already."""

    question: Question
    kind: AnswerKind
    samples: Mapping[str, Any] | None = None
    future: Future[AnswerOutcome] = field(default_factory=Future)

    def joins(self, batch: Mapping[str, list[AnswerJob]], first: AnswerJob) -> bool:
        """Return whether it can share a pass: ids are distinct, or questions equal."""
        if self.kind != first.kind or self.samples is not None or first.samples is not None:
            return self is first
        same_id = batch.get(self.question.id)
        return len(batch) < BATCH if same_id is None else same_id[0].question == self.question

    def resolve(self, outcome: AnswerOutcome | Exception) -> None:
        """Set the outcome, unless the job was withdrawn."""
        if not self.future.set_running_or_notify_cancel():
            return
        if isinstance(outcome, Exception):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


class _OneAtATime:
    """An equivalence that several threads share, used by one at a time."""

    def __init__(self, equivalence: Equivalence) -> None:
        self._equivalence, self._lock = equivalence, threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._equivalence, name)

    def entails(self, triples: Sequence[Triple]) -> list[bool]:
        """Return for each triple whether the premise entails the hypothesis."""
        return [margin > 0 for margin in self.margins(triples)]

    def margins(self, triples: Sequence[Triple]) -> list[float]:
        """Return the margin of each triple."""
        with self._lock:
            return margins_by(self._equivalence, triples)


class ScoreSource:
    """Stand in for `SemanticUQ` if the calibration is of a score, which requests bring; no model is asked."""

    name, revision = "scores", "scores"  # of the model

    def __init__(self, calibration: Calibration) -> None:
        self.calibration, self.equivalence, self.model = calibration, ExactMatch(), self
        self.asking, self.recalibrators = PromptConfig(), {None: Temperature(1.0)}
        self.sampling = Sampling((Temperature(1.0),), self.asking, SamplingConfig())


class Asker:
    """The source of answers in one thread with its own model."""

    def __init__(self, uq: AnswerSource, model: Sampler) -> None:
        self._uq = copy.copy(uq)
        self._uq.model = model
        # questions with another template were detected before, and their answers get no probability
        self._uq.sampling = replace(uq.sampling, asking=replace(uq.asking, force=True))
        self._client: ServerClient | None = getattr(model, "client", None)
        made_with = uq.calibration.provenance if isinstance(uq.calibration, Calibration) else None
        if self._client is not None and made_with is not None:
            self._client.aliases = frozenset(made_with.server.get("answered_as", ()))
        #: Maximum number of questions in a pass; one for a server, so that its cost is known.
        self.batch = BATCH if self._client is None else 1

    def outcomes(self, jobs: Sequence[AnswerJob]) -> dict[str, AnswerOutcome | Exception]:
        """Return the answers to distinct questions of one kind by id, or the reason for a missing answer."""
        if self._uq.calibration is not None and self._uq.calibration.score is not None:
            (job,) = jobs  # jobs with samples, or a row with a score, share no pass
            row = scored_row(Row({"id": "", **(job.samples or {})}))
            (answer,) = scored_answers([row], self._uq.calibration)
            return {job.question.id: AnswerOutcome(answer, self._form(answer), 0, 0, 0.0, None, 0)}
        is_given = jobs[0].samples is not None
        usage = None if self._client is None or is_given else self._client.usage
        start, before, n_others = time.monotonic(), copy.copy(usage), self._n_others
        results = self._results(jobs)
        seconds, tokens, cost = time.monotonic() - start, None, None
        if usage is not None and before is not None:
            tokens = (usage.tokens_in - before.tokens_in, usage.tokens_out - before.tokens_out)
            cost = None if usage.cost is None or before.cost is None else usage.cost - before.cost
        further = [{row.id: row for row in rows} for rows in results.rows_at.values()]
        outcomes: dict[str, AnswerOutcome | Exception] = {}
        for answer in results:
            rows = [rows[answer.id].json for rows in further]
            counted = (
                len(rows[0].get("prompt_token_ids") or ()),
                sum(len(ids) for row in rows for ids in row.get("token_ids") or ()),
            )
            outcomes[answer.id] = AnswerOutcome(
                answer,
                self._form(answer),
                *(tokens or counted),
                seconds,
                cost,
                0 if is_given else len(answer.row.samples),
                self._n_others > n_others,
            )
        for name, error in results.failures.items():  # for a model on this machine, the question is the cause
            outcomes[name] = error if self._client is None else ServerError(error.reason)
        return outcomes

    @property
    def _n_others(self) -> int:
        """Return the number of replies that named another model than the request."""
        return 0 if self._client is None else self._client.n_named_otherwise

    def _form(self, answer: Answer) -> str:
        """Return the logged form of an answer: of a document its JSON, otherwise the normal form."""
        text = answer.text or ""
        return text if isinstance(self._uq, DocumentSource) else form_by(self._uq.equivalence)(text)

    def _results(self, jobs: Sequence[AnswerJob]) -> Results:
        first = jobs[0]
        row = {**first.question.row(), **(first.samples or {})}
        if isinstance(self._uq, DocumentSource):
            if first.samples is None:
                return self._uq.answer_all([job.question for job in jobs], kind=first.kind)
            return self._uq.read([Row(row)])
        if first.samples is None:
            questions = [job.question for job in jobs]
            return self._uq.answer_all(questions, progress=False, kind=first.kind)
        return score([row], self._uq.equivalence, calibration=self._uq.calibration, progress=False)

    def give_up(self) -> None:
        """Stop requests to a server now; a pass of a model on this machine ends by itself."""
        if self._client is not None:
            self._client.close()


def make_askers(uq: AnswerSource) -> list[Asker]:
    """Return one asker for a model on this machine, or as many as a server's concurrency allows."""
    model = uq.model
    if not isinstance(model, ServerModel):
        return [Asker(uq, model)]
    is_thread_safe = isinstance(uq.equivalence, ExactMatch | EmbeddedEquivalence)
    if not is_thread_safe and not hasattr(uq.equivalence, "client"):
        uq.equivalence = cast("Equivalence", _OneAtATime(uq.equivalence))
    settings = model.client.settings
    requests = requests_a_question(model, uq.m, len(uq.recalibrators))
    n_threads = math.ceil(settings.concurrency / max(1, requests))
    thread_settings = replace(settings, concurrency=settings.concurrency // n_threads)
    clients = [ServerClient(model.client.endpoint, thread_settings) for _ in range(n_threads)]
    return [Asker(uq, ServerModel(client, model.profile, chat=model.format)) for client in clients]


class Engine:
    """The queue and the threads that empty it; `n_open` returns the number of requests without a reply."""

    def __init__(self, askers: Sequence[Asker], *, most: int, n_open: Callable[[], int] = lambda: 0) -> None:
        self._askers, self._most, self._batch = askers, most, askers[0].batch
        self._n_open = n_open
        self._waiting: deque[AnswerJob] = deque()
        self._under_way: dict[Asker, list[AnswerJob]] = {}
        self._changed = threading.Condition()
        self._closing = False
        for asker in askers:
            threading.Thread(target=self._work, args=(asker,), name="semcal-engine", daemon=True).start()

    @property
    def n_waiting(self) -> int:
        """The number of waiting questions."""
        return len(self._waiting)

    def submit(self, job: AnswerJob) -> None:
        """Add a question to the queue; ApiError if the queue is full."""
        with self._changed:
            if self._closing or len(self._waiting) >= self._most:
                reason = f"{self._most} questions are waiting; try again later"
                raise ApiError(503, reason, code="overloaded", headers={"retry-after": RETRY_AFTER})
            self._waiting.append(job)
            self._changed.notify()

    def withdraw(self, job: AnswerJob) -> None:
        """Remove a question from the queue, and stop requests to a server that only it needs."""
        job.future.cancel()
        idle = []
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
            for asker, jobs in self._under_way.items():
                if job in jobs:
                    jobs.remove(job)
                    idle += [asker] if not jobs else []
        for asker in idle:
            asker.give_up()

    def close(self) -> None:
        """End the threads; a pass, or a question that waits, has no client any more."""
        with self._changed:
            self._closing = True
            self._waiting.clear()
            self._changed.notify_all()
        for asker in self._askers:
            asker.give_up()

    def _work(self, asker: Asker) -> None:
        while batch := self._next(asker):
            start = time.monotonic()
            self._answer(asker, batch)
            seconds = time.monotonic() - start
            with self._changed:
                self._under_way.pop(asker, None)
                self._gather(sum(map(len, batch.values())), seconds)

    def _gather(self, n_answered: int, seconds: float) -> None:
        """Wait until as many questions have arrived as the last pass answered, or until no more arrive."""
        end = time.monotonic() + WAIT * seconds
        expected = min(len(self._waiting) + n_answered, self._batch) if n_answered > 1 else 0
        while (n := len(self._waiting)) < expected and not self._closing:
            self._changed.wait(min(PAUSE * seconds, max(0.0, end - time.monotonic())))
            if len(self._waiting) == n and (self._n_open() <= n or time.monotonic() >= end):
                return

    def _next(self, asker: Asker) -> dict[str, list[AnswerJob]]:
        """Return the next pass by ids of questions; empty if the queue is empty and closing."""
        with self._changed:
            while not self._waiting:
                if self._closing:
                    return {}
                self._changed.wait()
            first, batch, passed = self._waiting[0], dict[str, list[AnswerJob]](), deque[AnswerJob]()
            while self._waiting and len(batch) < self._batch:
                job = self._waiting.popleft()
                if job.joins(batch, first):
                    batch.setdefault(job.question.id, []).append(job)
                else:
                    passed.append(job)
            self._waiting.extendleft(reversed(passed))
            self._under_way[asker] = [job for jobs in batch.values() for job in jobs]
            return batch

    def _answer(self, asker: Asker, batch: Mapping[str, list[AnswerJob]]) -> None:
        """Answer each question; if a pass fails for one of them, answer them one by one."""
        outcomes: Mapping[str, AnswerOutcome | Exception]
        try:
            outcomes = asker.outcomes([jobs[0] for jobs in batch.values()])
        except CancelledError:  # its connections were closed for a question that was just answered
            if any(not job.future.cancelled() for jobs in batch.values() for job in jobs):
                self._answer(asker, batch)
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, who waits is told, and the thread goes on
            if isinstance(error, InputError) and len(batch) > 1:
                for name, jobs in batch.items():
                    self._answer(asker, {name: jobs})
                return
            outcomes = dict.fromkeys(batch, error)
        for name, jobs in batch.items():
            for job in jobs:
                job.resolve(outcomes.get(name) or QuestionError(name, "no answer"))


class Tier:
    """A model with its calibration and engine."""

    def __init__(self, uq: AnswerSource, route: str, *, queue: int, n_open: Callable[[], int]) -> None:
        assert uq.calibration is not None
        self.uq, self.calibration, self.route = uq, uq.calibration, route
        self.coverage = Coverage(uq.calibration, uq.sampling)
        self.engine = Engine(make_askers(uq), most=queue, n_open=n_open)
        # limited, because a client may change its system message each time
        self._hash = lru_cache(1000)(lambda one: replace(uq.asking, template=one).hash(uq.model))

    def template_hash(self, question: Question) -> str:
        """Return the hash of the prompt's template that a question is asked with; "" for a score."""
        if self.calibration.score is not None:
            return ""
        return self._hash(Template.of(question) if question.messages else self.coverage.template)
