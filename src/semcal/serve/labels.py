"""Labels of replies: graded, logged, and passed to the watch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from typing import Any

from semcal.calibration.calibration import Calibration
from semcal.calibration.fields import FieldCalibration
from semcal.calibration.watch import PromiseWatch
from semcal.errors import InputError, SemcalError, StoreError, shown
from semcal.grading.grade import as_grader
from semcal.reply_log import Reply, ReplyLog
from semcal.serve.documents import is_correct
from semcal.serve.engine import Tier
from semcal.serve.guard import note, note_failure
from semcal.serve.replies import ApiError, TakenLabel
from semcal.serve.requests import Label

#: Minimum number of seconds between two reads of labels that other processes accepted or struck.
READ_EVERY = 1.0
#: Graders that do not read the question.
_WITHOUT_QUESTION = ("", "rules", "RuleGrader", "exact", "letter")


class LabelTaker:
    """Accept labels for the replies in a log, in one thread, and pass them to the watch.

    Several processes may share the log: each accepts labels for the replies of all, and its watch reads the
    labels that the others accepted.
    """

    def __init__(self, log: ReplyLog | None, watch: PromiseWatch | None, tier: Tier) -> None:
        self.log, self.watch = log, watch
        self.calibration, self.equivalence = tier.calibration, tier.uq.equivalence
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="semcal-labels")
        self._last_read = time.monotonic()

    def close(self) -> None:
        """End the thread; a label that waits has no client any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def submit(
        self, labels: Sequence[Label], key: str, is_wanted: Callable[[], bool]
    ) -> Future[list[TakenLabel]]:
        """Process labels sent with `key`."""
        return self._thread.submit(self._take, labels, key, is_wanted)

    def read_new(self) -> None:
        """Let the watch read labels that other processes accepted or struck, unless it read some just now."""
        if time.monotonic() - self._last_read >= READ_EVERY:
            self._last_read = time.monotonic()
            with suppress(RuntimeError):  # the service ends
                self._thread.submit(self._tell_watch)  # a failure of the log is noted when it is written

    def _tell_watch(self) -> None:
        if self.log is not None and self.watch is not None:
            self.watch.read_labels(self.log, (self.calibration.id,))

    def _take(self, labels: Sequence[Label], key: str, is_wanted: Callable[[], bool]) -> list[TakenLabel]:
        """Log all labels or none and update the watch, unless the client is gone."""
        if (log := self.log) is None:
            raise ApiError(409, "the server has no log; start it with --log FILE", code="no_log")
        verdicts = dict[str, bool]()
        try:
            for place, label in enumerate(labels):
                if not is_wanted():
                    return []
                correct = self._verdict(label, log.reply(label.id), f"labels.{place}")
                if verdicts.setdefault(label.id, correct) != correct:
                    reason = f"the reply {shown(label.id)} has two different labels; send one"
                    raise ApiError(400, reason)
            counted = log.label(verdicts, key)
            self._tell_watch()
        except StoreError as error:
            note("log", fault=str(error))
            reason = "the log cannot be used, so no label was accepted; try again later"
            raise ApiError(503, reason, code="log_failed") from error
        ids = [label.id for label in labels]
        return [TakenLabel(id=id, correct=verdicts[id], counts=id in counted) for id in ids]

    def _verdict(self, label: Label, reply: Reply | None, param: str) -> bool:
        """Return whether a label calls its reply correct; ApiError if the label is invalid."""
        if (label.correct is None) == (not label.references):
            raise ApiError(400, "expected either 'correct' or 'reference'; send one of them", param=param)
        if not all(text.strip() for text in label.references):
            reason = "a reference is empty; send its text, or 'correct'"
            raise ApiError(400, reason, param=param)
        if reply is None:
            reason = f"the log has no reply with the id {shown(label.id)}; send the 'id' of a reply"
            raise ApiError(404, reason, code="unknown_reply", param=param)
        if label.correct is not None:
            return label.correct
        if isinstance(self.calibration, FieldCalibration) != isinstance(label.reference, dict):
            expected = "an object" if isinstance(self.calibration, FieldCalibration) else "a text, or several"
            raise ApiError(400, f"'reference' must be {expected}; send it, or 'correct'", param=param)
        if reply.answer is None:
            reason = "the log has no answers to grade; send 'correct'"
            raise ApiError(409, reason, code="no_answers", param=param)
        if isinstance(label.reference, dict) and isinstance(self.calibration, FieldCalibration):
            try:
                return bool(reply.answer) and is_correct(reply.answer, label.reference, self.calibration)
            except InputError as error:
                raise ApiError(400, f"'reference': {error}", param=param) from error
        return self._grade(reply, reply.answer, label.references, param)

    @cached_property
    def grader(self) -> Any:
        """The grader of the labeled answers of the calibration."""
        assert isinstance(self.calibration, Calibration)
        name = self.calibration.grader
        return as_grader("rules" if name == "RuleGrader" else name, self.equivalence)

    def _grade(self, reply: Reply, answer: str, references: list[str], param: str) -> bool:
        assert isinstance(self.calibration, Calibration)
        texts: Mapping[str, Any] = reply.texts or {}
        question, name = str(texts.get("question") or ""), self.calibration.grader or ""
        if not question and name not in _WITHOUT_QUESTION:
            reason = f"the grader {name} needs questions, and the log has none; send 'correct'"
            raise ApiError(409, reason, code="no_question", param=param)
        try:
            return bool(self.grader.grade(question, [answer], references).correct)
        except SemcalError as error:
            note_failure("grader", error)
            reason = f"the grader {name} returned no verdict; send 'correct', or try again later"
            raise ApiError(502, reason, code="grader_failed", param=param) from error
