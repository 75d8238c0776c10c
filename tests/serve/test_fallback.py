"""A stronger model answers what the first one abstains from, by its own calibration."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from semcal.calibration.calibration import Calibration
from semcal.calibration.watch import PromiseWatch
from semcal.cli import options as opt
from semcal.cli import serve_command
from semcal.data.template import Template
from semcal.errors import ServerError, UsageError
from semcal.models.fakes import FakeLanguageModel
from semcal.models.prompting import PromptConfig
from semcal.reply_log import ReplyLog
from semcal.serve.configuration import ServeSettings
from semcal.serve.service import Service
from tests.serve.serving import SANG, WHERE, WROTE, running, uq_of
from tests.serve.test_deploying import parsed


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


def test_where_the_stronger_model_abstains_too_so_does_the_reply() -> None:
    stronger = Stronger()
    with running(uq_of(limit=0.71), fallback=uq_of(stronger, limit=0.6)) as server:
        body = server.chat(WHERE).json()
    assert stronger.calls == 1
    assert (body["semcal"]["route"], body["semcal"]["abstained"]) == ("stronger", True)


def test_a_stronger_model_that_fails_leaves_the_abstention() -> None:
    with running(fallback=uq_of(Stronger(fails=True))) as server:
        reply = server.chat(SANG)
        assert reply.status_code == 200
        body = reply.json()["semcal"]
        assert (body["abstained"], body["route"]) == (True, server.service.primary.route)


def test_a_prompt_that_the_second_calibration_does_not_cover_is_not_passed_on() -> None:
    stronger = Stronger()
    asking = PromptConfig(template=Template("Be brief."))
    messages = [
        {"role": "system", "content": Template().system},
        {"role": "user", "content": SANG},
    ]
    with running(fallback=uq_of(stronger, asking=asking)) as server:
        body = server.chat(messages).json()["semcal"]
    assert (stronger.calls, body["abstained"]) == (0, True)


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


def test_during_an_alarm_nothing_is_passed_on() -> None:
    class Alarmed:
        alarm, e_values, tests = True, dict[str, float](), dict[str, Any]()

        def update(self, reply: Any) -> None: ...

        def observe(self, probability: float) -> None: ...

        def leave_out_questions(self) -> None: ...

    stronger = Stronger()
    with running(fallback=uq_of(stronger), watch=Alarmed()) as server:
        assert server.chat(SANG).json()["semcal"]["abstained"] is True
    assert stronger.calls == 0


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


SERVER = "openai:http://127.0.0.1:9/v1#large"


@pytest.mark.parametrize(
    "names", [("atlas", SERVER), (SERVER, "atlas"), ("atlas", "atlas"), (SERVER, SERVER)]
)
def test_a_setting_for_one_of_the_models_is_left_to_that(
    names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Server settings are for a model behind a server; the number format is for a model that runs here."""
    settings = ("--config", "model.dtype=bfloat16", "--config", "server.concurrency=3")
    command = ("semcal", "serve", "--model", names[0], "--fallback", names[1])
    values = parsed([*command, "--fallback-calibration", "atlas", *settings])
    options, server = (
        kind(**{field.name: values[field.name] for field in fields(kind)})
        for kind in (serve_command.ServeOptions, opt.ServerOptions)
    )
    found: list[opt.ModelOptions] = []

    def load(self: opt.ModelOptions) -> Any:
        found.append(self)
        return SimpleNamespace(model=None, equivalence=None)

    monkeypatch.setattr(opt.ModelOptions, "__call__", load)
    monkeypatch.setattr("semcal.uncertainty.SemanticUQ", lambda model, **_: model)

    calibration = opt.open_calibration("atlas")
    serve_command._with_calibration(options, server, calibration, options.fallback)
    serve_command._fallback(options, server)
    assert [one.model for one in found] == list(names)
    for one in found:
        assert one.dtype == "bfloat16"
        assert (one.settings is not None and one.settings.concurrency == 3) == (SERVER in names)
