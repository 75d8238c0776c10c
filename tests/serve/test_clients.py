"""What the official client sees: sync, async, streaming, errors; and what stands beside the answer."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

import semcal
from semcal.models.fakes import FakeLanguageModel
from tests.serve.serving import SANG, TABLE, WHERE, WROTE, Running, running, uq_of
from tools import try_clients


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as one:
        yield one


def asked(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_a_completion_is_the_answer_of_ask_with_its_probability(server: Running) -> None:
    reply = server.client.chat.completions.create(model="fake", messages=asked(WROTE))
    expected = uq_of().ask(WROTE)
    assert reply.choices[0].message.content == expected.text == "Ana Velis"
    assert reply.choices[0].finish_reason == "stop"
    beside = reply.semcal
    assert beside["confidence"] == expected.confidence == pytest.approx(0.1 + 0.6 * expected.score)
    assert beside["explanation"] == expected.explanation
    assert [meaning["text"] for meaning in beside["meanings"]] == [it.text for it in expected.meanings]
    assert "samples" not in beside["meanings"][0]
    assert (beside["abstained"], beside["threshold"], beside["m"]) == (False, 0.6, 10)
    assert reply.usage.semcal == {"probability": expected.confidence, "abstained": False}
    draws = expected.row.json["token_ids"]
    assert reply.usage.completion_tokens == sum(map(len, draws))
    assert reply.usage.prompt_tokens == len(expected.row.json["prompt_token_ids"])
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_headers_say_what_clients_see_that_keep_nothing_else(server: Running) -> None:
    raw = server.client.chat.completions.with_raw_response.create(model="fake", messages=asked(SANG))
    beside = raw.parse().semcal
    assert float(raw.headers["x-semcal-probability"]) == pytest.approx(beside["confidence"], rel=1e-5)
    assert raw.headers["x-semcal-abstained"] == "true"
    assert raw.headers["x-semcal-calibration"] == beside["calibration"]
    assert float(raw.headers["x-semcal-overhead-ms"]) >= 0
    assert raw.headers["x-request-id"]
    assert raw.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in raw.headers


@pytest.mark.parametrize("style", ["sentence", "refusal", "pass", "error"])
def test_an_abstention_is_said_in_the_way_of_the_operator(style: str) -> None:
    with running(abstain=style, abstain_text="No.") as server:
        if style == "error":
            with pytest.raises(openai.UnprocessableEntityError) as caught:
                server.client.chat.completions.create(model="fake", messages=asked(SANG), stream=True)
            assert caught.value.code == "abstained"
            assert caught.value.response.json()["semcal"]["abstained"] is True
            metrics = server.get("/metrics").text
            assert 'semcal_requests_total{outcome="abstained"} 1.0' in metrics
            assert 'outcome="refused"' not in metrics
        else:
            reply = server.client.chat.completions.create(model="fake", messages=asked(SANG))
            message = reply.choices[0].message
            answer = uq_of().ask(SANG).text
            expected = {"sentence": ("No.", None), "refusal": (None, "No."), "pass": (answer, None)}
            assert (message.content, message.refusal) == expected[style]
            assert (reply.semcal["abstained"], reply.semcal["answer"]) == (True, answer)
        good = server.client.chat.completions.create(model="fake", messages=asked(WHERE))
        assert good.choices[0].message.content == "Mirna"


def test_a_stream_says_the_same_in_pieces(server: Running) -> None:
    whole = server.client.chat.completions.create(model="fake", messages=asked(WROTE))
    chunks = list(
        server.client.chat.completions.create(
            model="fake", messages=asked(WROTE), stream=True, stream_options={"include_usage": True}
        )
    )
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == whole.choices[0].message.content
    *_, last, usage = chunks
    assert last.choices[0].finish_reason == "stop"
    assert chunks[0].semcal == last.semcal
    assert last.semcal["confidence"] == whole.semcal["confidence"]
    assert usage.choices == []
    assert usage.usage.total_tokens == whole.usage.total_tokens
    assert len({chunk.id for chunk in chunks}) == 1
    plain = server.client.chat.completions.create(model="fake", messages=asked(WROTE), stream=True)
    assert all(chunk.choices and chunk.usage is None for chunk in plain)


def test_a_refusal_streams_as_one() -> None:
    with (
        running(abstain="refusal") as server,
        server.client.chat.completions.stream(model="fake", messages=asked(SANG)) as stream,
    ):
        final = stream.get_final_completion()
    assert final.choices[0].message.refusal == "I am not sure enough to answer this."
    assert not final.choices[0].message.content


def test_options_of_one_request_choose_what_is_listed(server: Running) -> None:
    reply = server.client.chat.completions.create(
        model="fake", messages=asked(SANG), extra_body={"semcal": {"meanings": 2, "samples": True}}
    )
    expected = uq_of().ask(SANG)
    listed = reply.semcal["meanings"]
    assert [meaning["samples"] for meaning in listed] == [list(it.samples) for it in expected.meanings[:2]]


def test_models_are_listed_with_and_without_the_calibration(server: Running) -> None:
    assert [model.id for model in server.client.models.list()] == ["fake", "fake@calibration"]
    with pytest.raises(openai.NotFoundError) as caught:
        server.client.chat.completions.create(model="fakes", messages=asked(WROTE))
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_state_is_told_in_the_usual_places(server: Running) -> None:
    assert server.get("/health").json() == {"status": "ok"}
    ready = {"status": "ready", "missing": [], "log": "off", "alarm": False, "waiting": 0}
    assert server.get("/ready").json() == ready
    version = server.get("/version").json()
    assert version["semcal"] == semcal.__version__
    assert version["revision"] == FakeLanguageModel(TABLE).revision
    assert set(server.get("/openapi.json").json()["paths"]) >= {"/v1/chat/completions", "/v1/semcal/check"}


def test_metrics_count_requests_by_what_came_of_them() -> None:
    with running() as server:
        for text in (WROTE, SANG, SANG):
            server.chat(text)
        server.chat(WROTE, n=2)
        lines = server.get("/metrics").text.splitlines()
    for line in (
        'semcal_requests_total{outcome="answered"} 1.0',
        'semcal_requests_total{outcome="abstained"} 2.0',
        'semcal_requests_total{outcome="refused"} 1.0',
        "semcal_draws_total 30.0",
        "semcal_seconds_count 3.0",
        "semcal_queue 0.0",
    ):
        assert line in lines


@pytest.mark.parametrize("style", ["sentence", "refusal", "error"])
def test_clients_see_what_the_table_of_the_docs_says(style: str, capsys: pytest.CaptureFixture[str]) -> None:
    with running(abstain=style) as server:
        asking = ("--model", "fake", "--answered", WROTE, "--abstained", SANG)
        assert try_clients.main([f"{server.url}/v1", *asking]) == 0, capsys.readouterr().out
    shown = capsys.readouterr().out
    assert shown.startswith(f"--abstain {style}\n")
    assert shown.count("| yes |\n") >= 4  # ways of the openai client; others where they are installed
