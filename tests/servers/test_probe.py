"""What the probe finds out about made-up servers, and what it keeps of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semcal.errors import SemcalWarning, ServerError
from semcal.files import user_cache
from semcal.servers import probing
from semcal.servers.client import ServerClient
from semcal.servers.probing import probe, stored_profile
from semcal.servers.protocol import NEUTRAL, ServerProfile
from semcal.servers.settings import Endpoint, ServerSettings
from tests.golden.servers import FAULTS
from tests.servers import fake_model
from tests.servers.fake_server import LLAMA, OPENAI, FakeServer, Json, Refused
from tests.servers.fault_proxy import FaultProxy


@contextmanager
def client_of(server: FakeServer, model: str | None = None, **settings: Any) -> Iterator[ServerClient]:
    with ServerClient(Endpoint(server.url, model), ServerSettings(**settings), first_wait=0.01) as client:
        yield client


def probed(**quirks: Any) -> ServerProfile:
    with FakeServer(**quirks) as server, client_of(server) as client:
        return probe(client)


SIZE = len(fake_model.VOCABULARY)
TAKEN = {"token_ids_in": True, "truncated_to": None, "max_temperature": None, "neutral": NEUTRAL}


@pytest.mark.parametrize(
    ("quirks", "expected"),
    [
        (
            {"drawn_takes_a_place": True},
            {
                **TAKEN,
                "server": "vLLM",
                "version": "0.0.1",
                "model": "fake",
                "max_length": 1024,
                "max_n": 10,
                "choices_differ": True,
                "seed": True,
                "token_ids_out": True,
                "end_included": True,
                "log_probs": "raw",
                "scaled_on_request": False,
                "chosen_ids": True,
                "top_log_probs": 20,
                "whole_vocabulary": False,
                "scores_prompt": "prompt_logprobs",
            },
        ),
        (
            {"log_probs": "scaled", "max_top_logprobs": -1},
            {"log_probs": "scaled", "whole_vocabulary": True, "vocabulary": SIZE, "top_log_probs": SIZE},
        ),
        (
            LLAMA,
            {
                **TAKEN,
                "server": "llama.cpp",
                "version": "0.0.1",
                "max_n": 4,
                "choices_differ": True,
                "log_probs": "raw",
                "scaled_on_request": True,
                "chosen_ids": False,
                "scores_prompt": None,
                "whole_vocabulary": True,
                "vocabulary": SIZE,
                "top_log_probs": SIZE,
            },
        ),
    ],
    ids=["vLLM as it starts", "vLLM that lists all tokens, at T", "llama.cpp"],
)
def test_a_server_is_told_from_its_answers(quirks: dict[str, Any], expected: dict[str, Any]) -> None:
    found = vars(probed(**quirks))
    assert {name: found[name] for name in expected} == expected


def test_openai_is_asked_only_for_what_it_knows() -> None:
    with (
        FakeServer(**OPENAI) as server,
        client_of(server) as client,
        pytest.warns(SemcalWarning, match="top_k, min_p, repetition_penalty, repeat_penalty") as told,
    ):
        found = probe(client)
    assert (found.server, found.max_temperature, found.max_n) == ("OpenAI", 2.0, 10)
    assert found.neutral == {"top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    assert len(told) == 1
    assert server.url in str(told[0].message)
    assert (found.token_ids_in, found.scores_prompt) == (False, None)
    assert (found.log_probs, found.top_log_probs) == ("raw", 20)


def test_a_server_that_takes_0_alone_for_top_k_gets_that_without_a_warning() -> None:
    class Zero(FakeServer):
        def _route(self, method: str, path: str, body: Json) -> Json:
            if body.get("top_k") == -1:
                raise Refused(400, "top_k must be 0 or more")
            return super()._route(method, path, body)

    with Zero() as server, client_of(server) as client:
        assert probe(client).neutral == {**NEUTRAL, "top_k": 0}


def test_a_proxy_before_llama_cpp_is_asked_for_one_answer_at_a_time_like_llama_cpp() -> None:
    found = probed(server="LiteLLM", timings=True)
    assert (found.server, found.version, found.max_n, found.together) == ("LiteLLM", None, 1, 1)
    assert probed(server="LiteLLM").max_n == 10


def test_a_server_that_promises_nothing_gets_the_least_of_everything() -> None:
    found = probed(
        n_ignored=True,
        seed_ignored=True,
        log_probs=None,
        end_has_entry=False,
        completions=False,
        prompt_scores=None,
        chosen_ids=False,
        ids_out=False,
    )
    least = ServerProfile(found.url, found.model, found.server, found.version, found.max_length)
    assert found == least


@pytest.mark.parametrize(
    ("quirks", "name", "value"),
    [
        ({"seed_ignored": True}, "seed", False),
        ({"choices_alike": True}, "choices_differ", False),
        ({"n_ignored": True}, "max_n", 1),
        ({"slots": 7}, "max_n", 7),
        ({"n_at_most": 4}, "max_n", 4),
        ({"n_at_most": 9}, "max_n", 9),
        ({"end_has_entry": False}, "end_included", False),
        ({"ids_in": False}, "token_ids_in", False),
        ({"prompt_scores": "echo"}, "scores_prompt", "echo"),
        ({"prompt_scores": None}, "scores_prompt", None),
        ({"max_temperature": 1.5}, "max_temperature", 1.5),
        ({"max_temperature": 1.0}, "max_temperature", 1.0),
        ({"max_temperature": 5.0}, "max_temperature", 5.0),
        ({"max_top_logprobs": 5}, "top_log_probs", 5),
        ({"max_top_logprobs": 0}, "top_log_probs", 0),
    ],
)
def test_each_thing_that_a_server_does_not_do_is_seen(
    quirks: dict[str, Any], name: str, value: object
) -> None:
    assert getattr(probed(**quirks), name) == value


@pytest.mark.parametrize("reasons", ["field", "inline"])
def test_a_model_that_always_begins_with_the_same_thought_is_not_said_to_be_truncated(reasons: str) -> None:
    with FakeServer(reasons=reasons, ids_in=False) as server, client_of(server) as client:
        found = probe(client)
    assert len(server.requests) < 150
    assert found.truncated_to is None
    assert found.log_probs is None


@pytest.mark.parametrize("seed", [2, 3])
def test_replies_that_are_damaged_on_the_way_are_no_evidence(seed: int) -> None:
    with FakeServer(log_probs="scaled") as server:
        with client_of(server) as client:
            undisturbed = probe(client)
        faults: dict[str, Any] = {"share": 0.3, "seed": seed, "faults": FAULTS, "at_most": 2}
        with (
            FaultProxy(server.port, **faults) as proxy,
            ServerClient(Endpoint(proxy.url, "fake"), ServerSettings(), first_wait=0.01) as client,
        ):
            assert replace(probe(client), url=server.url) == undisturbed
            assert client.usage.retries > 10


def test_a_server_that_ignores_the_temperature_is_seen() -> None:
    class Greedy(ServerClient):
        def send_all(self, requests: Any, parse: Any, **how: Any) -> Any:
            greedy = [replace(one, body={**one.body, "temperature": 0}) for one in requests]
            return super().send_all(greedy, parse, **how)

    with FakeServer(log_probs=None) as server, Greedy(Endpoint(server.url), ServerSettings()) as client:
        assert probe(client).truncated_to == "1 token: 5 answers at T = 100 were the same"


def test_log_probabilities_of_what_truncation_leaves_are_told_from_those_at_t() -> None:
    found = probed(truncates="always", log_probs="masked")
    assert found.log_probs == "masked"
    assert found.truncated_to is not None
    assert found.truncated_to.endswith("tokens (all others have probability 0)")


def test_a_model_that_is_not_listed_is_a_warning_and_no_name_takes_the_first() -> None:
    with FakeServer(models=("first", "second")) as server:
        with client_of(server) as client:
            assert probe(client).model == "first"
        with client_of(server, "second") as client:
            assert probe(client).model == "second"
        unlisted = pytest.warns(SemcalWarning, match=r"the model third; it lists first, second")
        refused = pytest.raises(ServerError, match=r"refuses the plainest question.*does not exist")
        with client_of(server, "third") as client, unlisted, refused:
            probe(client)


def test_a_host_that_answers_without_v1_too_but_not_as_openai_does_is_refused() -> None:
    class Both(FakeServer):  # as llama.cpp, whose /completions is its own
        def _route(self, method: str, path: str, body: Json) -> Json:
            return super()._route(method, path if path.startswith("/v1") else f"/v1{path}", body)

    with (
        Both() as server,
        ServerClient(Endpoint(server.host), ServerSettings()) as client,
        pytest.raises(ServerError, match=f"is under /v1; give {server.url}$"),
    ):
        probe(client)


def test_a_server_without_models_needs_a_name() -> None:
    nameless = pytest.raises(ServerError, match=r"lists no models; name one: http://127.0.0.1:\d+/v1#NAME")
    with FakeServer(models=()) as server, client_of(server) as client, nameless:
        probe(client)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first findings are enough where it does not matter what is stored."""
    monkeypatch.setattr(probing, "_OF_SAMPLES", probing._OF_SAMPLES[:4])


def stored(
    server: FakeServer, folder: Path, *, fresh: bool = False, key: str | None = None
) -> tuple[Any, int]:
    """The profile, and how many requests that generate something it took."""
    before = len(server.requests)
    with client_of(server, profiles=folder, api_key=key) as client:
        found = stored_profile(client, fresh=fresh)
    return found, len(server.requests) - before


def test_a_profile_is_kept_until_the_version_changes_or_fresh_is_asked_for(tmp_path: Path) -> None:
    with FakeServer(**LLAMA) as server:
        first, asked = stored(server, tmp_path)
        assert asked > 20
        assert stored(server, tmp_path) == (first, 0)
        assert stored(server, tmp_path, fresh=True) == (first, asked)
        server.quirks.version = "0.0.2"
        later, again = stored(server, tmp_path)
        assert (later.version, again) == ("0.0.2", asked)
        assert stored(server, tmp_path) == (later, 0)


@pytest.mark.parametrize(("before", "after"), [("raw", "scaled"), ("scaled", "raw")])
def test_vllm_started_anew_with_the_other_log_probabilities_is_seen_though_its_version_is_the_same(
    tmp_path: Path, before: str, after: str
) -> None:
    with FakeServer(log_probs=before) as server:
        first, asked = stored(server, tmp_path)
        again, few = stored(server, tmp_path)
        assert (again, first.log_probs) == (first, before)
        assert few < 10 < asked
        server.quirks.log_probs = after
        later, _ = stored(server, tmp_path)
        assert later.log_probs == after
        assert stored(server, tmp_path)[0] == later


def test_what_samples_do_not_need_is_asked_for_later_and_a_line_says_that_a_probe_begins(
    tmp_path: Path,
) -> None:
    lines: list[str] = []
    with FakeServer() as server:
        counts = []
        for whole in (False, False, True, True, False):
            before = len(server.requests)
            with client_of(server, profiles=tmp_path, announce=lines.append) as client:
                found = stored_profile(client, whole=whole)
            counts.append(len(server.requests) - before)
            assert (found.truncated_to, found.chosen_ids) == (None, len(counts) > 2)
    confirmed, first = counts[1], counts[0]
    assert first <= 40
    assert counts[2] > confirmed == counts[3] == counts[4]
    assert [line.startswith(f"fake at {server.url}: finding out") for line in lines] == [True, True]


@pytest.mark.usefixtures("quick")
def test_a_profile_of_another_version_of_the_probe_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeServer(**LLAMA) as server:
        _, asked = stored(server, tmp_path)
        monkeypatch.setattr("semcal.servers.probing.PROBE", probing.PROBE + 1)
        assert stored(server, tmp_path)[1] == asked


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-20],
        lambda _: "",
        lambda _: "[]",
        lambda text: text.replace('"max_n":4', '"max_n":9'),
        lambda text: text.replace(f'"probe":{probing.PROBE}', '"probe":"1"'),
        lambda text: json.dumps({**json.loads(text), "checksum": "0"}),
        lambda _: "\x00" * 50,
    ],
)
def test_a_damaged_file_is_asked_again(damage: Any, tmp_path: Path) -> None:
    with FakeServer(**LLAMA) as server:
        first, asked = stored(server, tmp_path)
        (path,) = tmp_path.iterdir()
        whole = path.read_text()
        assert damage(whole) != whole
        path.write_text(damage(whole))
        assert stored(server, tmp_path) == (first, asked)
        assert path.read_text() == whole


@pytest.mark.usefixtures("quick")
def test_no_key_is_stored(tmp_path: Path) -> None:
    with FakeServer(**LLAMA, key="sk-very-secret") as server:
        found, _ = stored(server, tmp_path, key="sk-very-secret")
    (path,) = tmp_path.iterdir()
    assert "secret" not in path.read_text() + repr(found)


@pytest.mark.usefixtures("quick")
def test_a_folder_that_cannot_be_written_to_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with FakeServer(**LLAMA) as server, pytest.warns(SemcalWarning, match="could not be stored"):
        found, _ = stored(server, tmp_path / "file" / "below")
    assert found.server == "llama.cpp"


@pytest.mark.usefixtures("quick")
def test_two_models_of_one_server_have_a_profile_each(tmp_path: Path) -> None:
    with FakeServer(**LLAMA, models=("a", "b")) as server:
        for model in ("a", "b"):
            with client_of(server, model, profiles=tmp_path) as client:
                assert stored_profile(client).model == model
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("environment", "platform", "expected"),
    [
        ({"SEMCAL_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "linux", "/a/servers"),
        ({"XDG_CACHE_HOME": "/b"}, "darwin", "/b/semcal/servers"),
        ({"LOCALAPPDATA": "/c"}, "win32", "/c/semcal/servers"),
        ({}, "linux", "~/.cache/semcal/servers"),
        ({}, "darwin", "~/Library/Caches/semcal/servers"),
    ],
)
def test_profiles_are_kept_in_the_cache_of_the_user(
    environment: dict[str, str], platform: str, expected: str
) -> None:
    assert user_cache("servers", environment, platform) == Path(expected).expanduser()


def test_a_server_that_is_busy_for_good_is_an_error_and_no_profile(tmp_path: Path) -> None:
    busy = pytest.raises(ServerError, match=r"Too many requests")
    with FakeServer(busy=100) as server, client_of(server, retries=1, profiles=tmp_path) as client, busy:
        stored_profile(client)
    assert list(tmp_path.iterdir()) == []
