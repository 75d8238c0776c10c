"""What answers: threads that take what waits in one queue, and ask as `semcal ask` does.

A model on this machine has one thread, and what waits when it is free enters the next pass together. Over a
server each thread has connections of its own and takes one question at a time: so what a question costs is
known, and what was given up is no longer asked for.
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
from typing import Any, cast

from semcal.calibration.calibrated import Calibration
from semcal.calibration.features import features_of
from semcal.data.question import Question
from semcal.errors import InputError, QuestionError, UsageError
from semcal.models.equivalence import (
    EmbeddedEquivalence,
    Equivalence,
    ExactMatch,
    Triple,
    form_by,
    margins_by,
)
from semcal.models.protocols import Sampler, requests_a_question
from semcal.results import Answer, Results, score
from semcal.rows import AnswerKind
from semcal.serve.requests import ApiError, Coverage
from semcal.servers.client import ServerClient
from semcal.servers.sampler import ServerModel
from semcal.uncertainty import SemanticUQ

#: Questions that enter one pass at most; that of a block of `semcal ask`.
BATCH = 256
#: How long a pass waits for programs to ask again that the last one has answered, in parts of what that took:
#: in all, and for the next of them. Then they are asked together, and the replies are not sent during a pass.
WAIT, PAUSE = 1 / 4, 1 / 20


class BackendFailed(Exception):
    """A model server gave no answer to a question."""


@dataclass(frozen=True)
class AnswerOutcome:
    """The answer to a question, and what it took."""

    answer: Answer
    features: Mapping[str, float | None]
    form: str  # the normal form of the answer; "" of no answer
    prompt_tokens: int
    completion_tokens: int  # of all draws
    seconds: float  # of drawing
    cost: float | None
    n_draws: int  # of a model, at each temperature
    by_other_model: bool = False  # a reply of the server names another model than was asked for

    def followed_by(self, other: AnswerOutcome) -> AnswerOutcome:
        """Another answer that was asked for after this one, with what both took."""
        costs = [cost for cost in (self.cost, other.cost) if cost is not None]
        return replace(
            other,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            seconds=self.seconds + other.seconds,
            cost=sum(costs) if costs else None,
        )


@dataclass(eq=False)
class AnswerJob:
    """A question that waits for its answer; with `samples` the draws that there are already."""

    question: Question
    kind: AnswerKind
    samples: Mapping[str, Any] | None = None
    future: Future[AnswerOutcome] = field(default_factory=Future)

    def joins(self, batch: Mapping[str, list[AnswerJob]], first: AnswerJob) -> bool:
        """Whether it can be asked in one pass with others: ids are distinct, or questions the same."""
        if self.kind != first.kind or self.samples is not None or first.samples is not None:
            return self is first
        same_id = batch.get(self.question.id)
        return len(batch) < BATCH if same_id is None else same_id[0].question == self.question


class _Timed:
    """A model, and the seconds that were spent drawing from it."""

    def __init__(self, model: Sampler) -> None:
        self.model, self.seconds = model, 0.0

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.model, name)
        return self._timed(value) if name in ("sample", "greedy", "score", "next_tokens") else value

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            start = time.monotonic()
            try:
                return call(*arguments, **options)
            finally:
                self.seconds += time.monotonic() - start

        return timed


class _OneAtATime:
    """An equivalence that several threads share and that is asked by one of them at a time."""

    def __init__(self, equivalence: Equivalence) -> None:
        self._equivalence, self._lock = equivalence, threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._equivalence, name)

    def entails(self, triples: Sequence[Triple]) -> list[bool]:
        """Say for each triple whether the premise entails the hypothesis."""
        return [margin > 0 for margin in self.margins(triples)]

    def margins(self, triples: Sequence[Triple]) -> list[float]:
        """Return the margin of each triple."""
        with self._lock:
            return margins_by(self._equivalence, triples)


class Asker:
    """What asks in one thread: `SemanticUQ` on a model of its own."""

    def __init__(self, uq: SemanticUQ, model: Sampler) -> None:
        self._timed = _Timed(model)
        self._uq = copy.copy(uq)
        self._uq.model = cast("Sampler", self._timed)
        # what is of another template is told apart before, and the answer to it gets no probability
        self._uq.sampling = replace(uq.sampling, asking=replace(uq.asking, force=True))
        self._client: ServerClient | None = getattr(model, "client", None)
        if self._client is not None and uq.calibration and (made_with := uq.calibration.provenance):
            self._client.aliases = frozenset(made_with.server.get("answered_as", ()))
        #: Questions that enter one pass at most; over a server one, so that what it costs is known.
        self.batch = BATCH if self._client is None else 1

    def outcomes(self, jobs: Sequence[AnswerJob]) -> dict[str, AnswerOutcome | Exception]:
        """The answers to distinct questions of one kind by their ids, or why there is none."""
        uq, first = self._uq, jobs[0]
        seconds, (tokens_in, tokens_out, cost) = self._timed.seconds, self._spent()
        n_others = 0 if self._client is None else self._client.n_named_otherwise
        results = self._results(first, [job.question for job in jobs])
        if self._client is not None and first.samples is None:
            after_in, after_out, after_cost = self._spent()
            spent = (after_in - tokens_in, after_out - tokens_out)
            cost = None if after_cost is None or cost is None else after_cost - cost
        else:
            spent, cost = None, None
        features = _features(results, uq.calibration)
        rows = {t: {row.id: row for row in part} for t, part in results.rows_at.items()}
        outcomes: dict[str, AnswerOutcome | Exception] = {}
        for number, answer in enumerate(results):
            rows_of_answer = [part[answer.id].json for part in rows.values()]
            tokens = spent or (
                len(rows_of_answer[0].get("prompt_token_ids") or ()),
                sum(len(ids) for row in rows_of_answer for ids in row.get("token_ids") or ()),
            )
            outcomes[answer.id] = AnswerOutcome(
                answer,
                # of no answer nothing is learned
                {name: values[number] for name, values in features.items() if answer.text is not None},
                form_by(uq.equivalence)(answer.text or ""),
                *tokens,
                self._timed.seconds - seconds,
                cost,
                0 if first.samples is not None else len(answer.row.samples),
                self._client is not None and self._client.n_named_otherwise > n_others,
            )
        for name, error in results.failures.items():  # of a model on this machine a question is at fault
            outcomes[name] = error if self._client is None else BackendFailed(error.reason)
        return outcomes

    def give_up(self) -> None:
        """End what is asked of a server now; of a model on this machine a pass ends by itself."""
        if self._client is not None:
            self._client.close()

    def _results(self, first: AnswerJob, questions: Sequence[Question]) -> Results:
        if first.samples is None:
            return self._uq.answer_all(questions, progress=False, kind=first.kind)
        row = {**first.question.row(), **first.samples}
        return score([row], self._uq.equivalence, calibration=self._uq.calibration, progress=False)

    def _spent(self) -> tuple[int, int, float | None]:
        if self._client is None:
            return 0, 0, None
        usage = self._client.usage
        return usage.tokens_in, usage.tokens_out, usage.cost


def _features(results: Results, calibration: Calibration | None) -> dict[str, list[float | None]]:
    """What can be learnt from of each answer, which is more than the calibration's map reads."""
    if calibration is None or not len(results):
        return {}
    values = features_of(results.rows_at, calibration.answer_kind, calibration.requested).values
    return {
        name: [None if value != value else value for value in column.tolist()]
        for name, column in values.items()
    }


def make_askers(uq: SemanticUQ) -> list[Asker]:
    """One for a model on this machine; for a server as many as keep its concurrency busy."""
    model = uq.model
    if not isinstance(model, ServerModel):
        return [Asker(uq, model)]
    if not isinstance(uq.equivalence, ExactMatch | EmbeddedEquivalence) and not hasattr(
        uq.equivalence, "client"
    ):
        uq.equivalence = cast("Equivalence", _OneAtATime(uq.equivalence))
    settings = model.client.settings
    requests = requests_a_question(model, uq.m, len(uq.recalibrators))
    n_threads = math.ceil(settings.concurrency / max(1, requests))
    thread_settings = replace(settings, concurrency=settings.concurrency // n_threads)
    clients = [ServerClient(model.client.endpoint, thread_settings) for _ in range(n_threads)]
    return [Asker(uq, ServerModel(client, model.profile, chat=model.format)) for client in clients]


class Engine:
    """The queue and the threads that empty it."""

    def __init__(self, askers: Sequence[Asker], *, most: int) -> None:
        self._askers, self._most = askers, most
        self._waiting: deque[AnswerJob] = deque()
        self._under_way: dict[Asker, list[AnswerJob]] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._seconds = 1.0  # that a pass takes, by the last ones
        self._threads = [
            threading.Thread(target=self._work, args=(asker,), name=f"semcal-engine-{number}", daemon=True)
            for number, asker in enumerate(askers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def n_waiting(self) -> int:
        """How many questions wait."""
        return len(self._waiting)

    @property
    def is_alive(self) -> bool:
        """Whether all threads work."""
        return all(thread.is_alive() for thread in self._threads)

    def submit(self, job: AnswerJob) -> None:
        """Let a question wait for its turn; ApiError, with when to try again, if too many do."""
        with self._changed:
            if self._closing or len(self._waiting) >= self._most:
                passes = 1 + len(self._waiting) / (len(self._askers) * self._batch)
                seconds = min(60, max(1, round(passes * self._seconds)))
                reason = f"{self._most} questions wait already; try again in {seconds} s"
                raise ApiError(503, reason, code="overloaded", headers={"retry-after": str(seconds)})
            self._waiting.append(job)
            self._changed.notify()

    def withdraw(self, job: AnswerJob) -> None:
        """Give a question up: it leaves the queue, and what only it needs is no longer asked of a server."""
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

    def close(self, *, at_once: bool = False) -> None:
        """Answer what waits, and end the threads; or leave a pass under way to the end of the process."""
        with self._changed:
            self._closing = True
            if at_once:
                self._waiting.clear()
            self._changed.notify_all()
        for thread in self._threads if not at_once else ():
            thread.join()
        for asker in self._askers:
            asker.give_up()

    @property
    def _batch(self) -> int:
        return self._askers[0].batch

    def _work(self, asker: Asker) -> None:
        while batch := self._next(asker):
            start = time.monotonic()
            self._answer(asker, batch)
            seconds = time.monotonic() - start
            self._seconds += (seconds - self._seconds) / 4
            with self._changed:
                self._under_way.pop(asker, None)
                self._gather(sum(map(len, batch.values())), seconds)

    def _gather(self, n_answered: int, seconds: float) -> None:
        """Wait until as many questions have come as a pass has answered, or they come no more."""
        end = time.monotonic() + WAIT * seconds
        expected = min(len(self._waiting) + n_answered, self._batch) if n_answered > 1 else 0
        while (n := len(self._waiting)) < expected and not self._closing:
            self._changed.wait(min(PAUSE * seconds, max(0.0, end - time.monotonic())))
            if len(self._waiting) == n:
                return

    def _next(self, asker: Asker) -> dict[str, list[AnswerJob]]:
        """What enters the next pass, by the ids of questions; empty once all is done and it is closing."""
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
        """Answer each question; if a pass fails for one of them, each by itself."""
        try:
            outcomes = asker.outcomes([jobs[0] for jobs in batch.values()])
        except CancelledError:  # its connections were closed for a question that had been answered just then
            if any(not job.future.cancelled() for jobs in batch.values() for job in jobs):
                self._answer(asker, batch)
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, who waits is told, and the thread goes on
            if isinstance(error, InputError) and len(batch) > 1:
                for name, jobs in batch.items():
                    self._answer(asker, {name: jobs})
                return
            outcomes = dict.fromkeys(batch, cast("Any", error))
        for name, jobs in batch.items():
            for job in jobs:
                _resolve(job, outcomes.get(name) or QuestionError(name, "no answer"))


def _resolve(job: AnswerJob, outcome: AnswerOutcome | Exception) -> None:
    """Tell who waits, unless that was given up."""
    if not job.future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, Exception):
        job.future.set_exception(outcome)
    else:
        job.future.set_result(outcome)


class Tier:
    """A model with its calibration, and the engine that asks it.

    The calibration must read nothing but draws; UsageError otherwise.
    """

    def __init__(self, uq: SemanticUQ, route: str, *, queue: int) -> None:
        assert uq.calibration is not None
        if uq.calibration.columns:
            columns = ", ".join(column.name for column in uq.calibration.columns)
            raise UsageError(
                f"the calibration reads {columns} of each row, which requests do not hold; calibrate without "
                "--feature"
            )
        self.uq, self.calibration, self.route = uq, uq.calibration, route
        self.coverage = Coverage(uq.calibration, uq.sampling)
        self.engine = Engine(make_askers(uq), most=queue)
