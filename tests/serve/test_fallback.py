"""A stronger model answers what the first one abstains from, by its own calibration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semcal.calibration.calibration import Calibration
from semcal.calibration.watch import PromiseWatch
from semcal.data.template import Template
from semcal.errors import ServerError, UsageError
from semcal.models.fakes import FakeLanguageModel
from semcal.models.prompting import PromptConfig
from semcal.reply_log import ReplyLog
from semcal.serve.configuration import ServeSettings
from semcal.serve.service import Service
from tests.serve.serving import SANG, WHERE, WROTE, running, uq_of
from tests.serve.test_reply_labels import RecordingWatch

SYSTEM = {"role": "system", "content": Template().system}


class Stronger(FakeLanguageModel):
    """It is sure of one more question, and may fail."""

    def __init__(self, *, fails: bool = False) -> None:
        sure, unsure = {"Cy Orn": 0.98, "Di Ase": 0.02}, {"Sel": 0.5, "Orl": 0.5}
        super().__init__({SANG: sure, WROTE: {"Flo": 1.0}, WHERE: unsure})
        self.name, self.fails, self.calls = "stronger", fails, 0

    def sample(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        if self.fails:
            raise ServerError("it is gone")
        return super().sample(*arguments, **options)


def test_what_lies_below_the_threshold_is_answered_by_the_stronger_model(tmp_path: Path) -> None:
    """By its own threshold; what the first answers never reaches it. The log and the costs say who it was."""
    stronger, log = Stronger(), ReplyLog(tmp_path / "log.sqlite")
    with running(fallback=uq_of(stronger, limit=0.5), log=log) as server:
        first, second = server.chat(WROTE), server.chat(SANG)
        assert first.json()["semcal"]["route"] != "stronger"
        assert stronger.calls == 1
        body = second.json()
        assert (body["semcal"]["route"], body["semcal"]["answer"]) == ("stronger", "Cy Orn")
        assert (body["semcal"]["abstained"], body["semcal"]["threshold"]) == (False, 0.5)
        assert body["choices"][0]["message"]["content"] == "Cy Orn"
        assert body["semcal"]["calibration"] != first.json()["semcal"]["calibration"]
        assert second.headers["x-semcal-probability"] == f"{body['semcal']['confidence']:.6g}"
        ids = [reply.json()["id"] for reply in (first, second)]
        assert [log.reply(name).route for name in ids] == [server.service.primary.route, "stronger"]  # type: ignore[union-attr]
        alone = running(uq_of(limit=0.6))
        with alone as other:
            tokens = other.chat(SANG).json()["usage"]
        assert body["usage"]["prompt_tokens"] == 2 * tokens["prompt_tokens"]
        assert body["usage"]["completion_tokens"] > tokens["completion_tokens"]


@pytest.mark.parametrize(
    ("fails", "second", "messages", "is_asked"),
    [
        (True, {}, [], True),
        (False, {"asking": PromptConfig(template=Template("Be brief."))}, [SYSTEM], False),
    ],
)
def test_a_stronger_model_that_fails_or_has_another_prompt_leaves_the_abstention(
    fails: bool, second: Any, messages: list[Any], is_asked: bool
) -> None:
    stronger = Stronger(fails=fails)
    with running(fallback=uq_of(stronger, **second)) as server:
        reply = server.chat([*messages, {"role": "user", "content": SANG}])
        body = reply.json()["semcal"]
    assert (reply.status_code, body["abstained"], body["route"]) == (200, True, server.service.primary.route)
    assert stronger.calls == is_asked


@pytest.mark.parametrize("alarm", [False, True])
def test_the_stronger_model_may_abstain_too_and_is_not_asked_during_an_alarm(alarm: bool) -> None:
    stronger, watch = Stronger(), RecordingWatch(alarm=alarm)
    with running(uq_of(limit=0.71), fallback=uq_of(stronger, limit=0.6), watch=watch) as server:
        body = server.chat(WHERE).json()["semcal"]
    assert (stronger.calls, body["abstained"], body["route"] == "stronger") == (not alarm, True, not alarm)


def test_with_a_stronger_model_probabilities_are_not_those_of_all_questions(tmp_path: Path) -> None:
    """So nothing is said of the questions; the hash of a prompt is that of the model which was asked."""
    atlas, log = Calibration.from_pretrained("atlas"), ReplyLog(tmp_path / "log.sqlite")
    watch = PromiseWatch.of(atlas)
    assert "questions" in watch.tests
    stronger = uq_of(Stronger(), limit=0.5)
    with running(fallback=stronger, log=log, watch=watch) as server:
        assert "questions" not in watch.tests
        replies = [log.reply(server.chat(text).json()["id"]) for text in (WROTE, SANG)]
        assert replies[1].template == stronger.asking.hash(stronger.model)  # type: ignore[union-attr]
        again = PromiseWatch.of(atlas)
        again.read(log, [atlas.id])
        assert "questions" not in again.tests


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        ({"limit": None}, {}, "--fallback"),
        ({"answer_kind": "given"}, {}, "--fallback"),
        ({}, {"answer_kind": "given"}, "--fallback"),
    ],
)
def test_what_cannot_be_passed_on_is_refused_at_the_start(first: Any, second: Any, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        Service(uq_of(**first), ServeSettings(), fallback=uq_of(Stronger(), **second))
