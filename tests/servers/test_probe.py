"""What the probe finds out about made-up servers, what it keeps of it, and what `semcal probe` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from semcal.cli.app import app
from semcal.errors import SemcalWarning, ServerError
from semcal.files import user_cache
from semcal.servers import probing
from semcal.servers.client import ServerClient
from semcal.servers.probing import probe, stored_profile
from semcal.servers.protocol import NEUTRAL, ServerProfile
from semcal.servers.settings import Endpoint, ServerSettings
from tests.cli.invoking import Terminal, semcal
from tests.servers import fake_model
from tests.servers.fake_server import LLAMA, FakeServer, Json, Refused


@contextmanager
def client_of(server: FakeServer, model: str | None = None, **settings: Any) -> Iterator[ServerClient]:
    with ServerClient(Endpoint(server.url, model), ServerSettings(**settings), first_wait=0.01) as client:
        yield client


def probed(**quirks: Any) -> ServerProfile:
    with FakeServer(**quirks) as server, client_of(server) as client:
        return probe(client)


SIZE = len(fake_model.VOCABULARY)
WHOLE = {"whole_vocabulary": True, "vocabulary": SIZE, "top_log_probs": SIZE}


@pytest.mark.parametrize(
    ("quirks", "expected"),
    [
        ({**LLAMA, "slots": 16}, {"max_n": 10, "total_slots": 16, "chosen_ids": False}),
        # a proxy before llama.cpp is asked for one answer at a time, like llama.cpp
        ({"server": "LiteLLM", "timings": True}, {"server": "LiteLLM", "max_n": 1, "together": 1}),
        ({"server": "LiteLLM"}, {"version": None, "max_n": 10}),
        ({"choices_alike": True}, {"choices_differ": False}),
        ({"slots": 7}, {"max_n": 7}),
        ({"n_at_most": 9}, {"max_n": 9}),
        ({"end_has_entry": False}, {"end_included": False}),
        ({"ids_in": False}, {"token_ids_in": False}),
        ({"prompt_scores": False}, {"scores_prompt": False}),
        ({"max_temperature": 1.5}, {"max_temperature": 1.5}),
        ({"max_temperature": 5.0}, {"max_temperature": 5.0}),
        ({"max_top_logprobs": 5}, {"top_log_probs": 5}),
        ({"max_top_logprobs": 0}, {"top_log_probs": 0}),
    ],
    ids=str,
)
def test_what_a_server_does_and_what_not_is_told_from_its_answers(
    quirks: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = probed(**quirks)
    assert {name: getattr(found, name) for name in expected} == expected


def test_a_server_that_takes_0_alone_for_top_k_gets_that_without_a_warning() -> None:
    class Zero(FakeServer):
        def _route(self, method: str, path: str, body: Json) -> Json:
            if body.get("top_k") == -1:
                raise Refused(400, "top_k must be 0 or more")
            return super()._route(method, path, body)

    with Zero() as server, client_of(server) as client:
        assert probe(client).neutral == {**NEUTRAL, "top_k": 0}


def test_a_server_that_promises_nothing_gets_the_least_of_everything() -> None:
    found = probed(
        n_ignored=True,
        log_probs=None,
        end_has_entry=False,
        completions=False,
        prompt_scores=False,
        chosen_ids=False,
        ids_out=False,
    )
    assert found == ServerProfile(found.url, found.model, found.server, found.version, found.max_length)


def test_a_model_that_is_not_listed_is_a_warning_and_no_name_takes_the_first() -> None:
    with FakeServer(models=("first", "second")) as server:
        for name, found in ((None, "first"), ("second", "second")):
            with client_of(server, name) as client:
                assert probe(client).model == found
        unlisted = pytest.warns(SemcalWarning, match="third; it lists first, second")
        refused = pytest.raises(ServerError, match="does not exist")
        with client_of(server, "third") as client, unlisted, refused:
            probe(client)
    nameless = pytest.raises(ServerError, match="/v1#NAME")
    with FakeServer(models=()) as server, client_of(server) as client, nameless:
        probe(client)


# What is kept


def stored(server: FakeServer, folder: Path, *, fresh: bool = False) -> tuple[Any, int]:
    """The profile, and how many requests that generate something it took, which a line announces."""
    before, lines = len(server.requests), list[str]()
    with client_of(server, profiles=folder, announce=lines.append) as client:
        found = stored_profile(client, fresh=fresh)
    asked = len(server.requests) - before
    assert [line.startswith(f"fake at {server.url}: ") for line in lines] == [True] * (asked > 10)
    return found, asked


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


def test_a_file_that_is_damaged_or_of_another_probe_is_asked_again(tmp_path: Path) -> None:
    with FakeServer(**LLAMA) as server:
        first, asked = stored(server, tmp_path)
        (path,) = tmp_path.iterdir()
        whole = path.read_text()
        for damaged in (
            whole[:-20],
            whole.replace('"max_n":4', '"max_n":9'),
            whole.replace(f'"probe":{probing.PROBE}', f'"probe":{probing.PROBE + 1}'),
        ):
            assert damaged != whole
            path.write_text(damaged)
            assert stored(server, tmp_path) == (first, asked)
            assert path.read_text() == whole


def test_vllm_started_anew_with_the_other_log_probabilities_is_seen_though_its_version_is_the_same(
    tmp_path: Path,
) -> None:
    with FakeServer(log_probs="raw") as server:
        first, asked = stored(server, tmp_path)
        again, few = stored(server, tmp_path)
        assert (again, first.log_probs) == (first, "raw")
        assert few < 10 < asked
        for log_probs in ("scaled", "raw"):
            server.quirks.log_probs = log_probs
            later, _ = stored(server, tmp_path)
            assert later.log_probs == log_probs
            assert stored(server, tmp_path)[0] == later


def test_a_folder_that_cannot_be_written_to_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with FakeServer(**LLAMA) as server:
        assert stored(server, tmp_path / "file" / "below")[0].server == "llama.cpp"


def test_a_server_that_is_busy_for_good_is_an_error_and_no_profile(tmp_path: Path) -> None:
    busy = pytest.raises(ServerError, match="Too many requests")
    with FakeServer(busy=100) as server, client_of(server, retries=1, profiles=tmp_path) as client, busy:
        stored_profile(client)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SEMCAL_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a/servers"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/semcal/servers"),
    ],
)
def test_profiles_are_kept_in_the_cache_of_the_user(
    environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEMCAL_CACHE", raising=False)
    for name, folder in environment.items():
        monkeypatch.setenv(name, folder)
    assert user_cache("servers") == Path(expected)


# The command


def test_the_command_prints_the_profile_and_what_follows_and_asks_again_only_what_it_must(
    own_cache: Path,
) -> None:
    with FakeServer(**LLAMA) as server:
        code, (found,), _ = semcal("probe", server.name, "--json")
        assert (code, found["consequences"]["sampling"]) == (0, "10 samples of a question take 10 requests")
        code, again, said = semcal("probe", server.url, "--json")
    assert (code, again) == (0, [found])
    assert "probe: 2 requests" in said  # the models and the version
    assert len(list((own_cache / "servers").iterdir())) == 1


def test_people_get_a_line_for_each_finding_and_consequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", terminal := Terminal())
    with FakeServer(truncates="always", log_probs="masked") as server:
        assert app(["probe", server.url], standalone_mode=False) == 0
    shown = {line[:30].rstrip(): line[30:] for line in terminal.getvalue().splitlines()}
    expected = {"truncated_to": "2 tokens", "sampling": "rejected, ", "measures": "only E-SC: "}
    assert all(shown[name].startswith(begins) for name, begins in expected.items())


def test_a_key_is_sent_and_neither_shown_nor_stored(tmp_path: Path, own_cache: Path) -> None:
    (tmp_path / "key").write_text("sk-very-secret\n")
    with FakeServer(key="sk-very-secret", models=("a", "b"), **LLAMA) as server:
        code, _, refused = semcal("probe", server.url)
        assert (code, "SEMCAL_API_KEY" in refused) == (1, True)
        for model in ("a", "b"):
            asked = ("probe", f"{server.url}#{model}", "--json", "--api-key-file", tmp_path / "key")
            code, (found,), said = semcal(*asked)
            assert (code, found["model"]) == (0, model)
            assert "very-secret" not in said + refused + json.dumps(found)
    files = list((own_cache / "servers").iterdir())
    assert len(files) == 2
    assert not any("secret" in path.read_text() for path in files)


def test_an_address_that_makes_no_sense_is_wrong_usage_and_a_server_that_is_not_there_an_error() -> None:
    with FakeServer() as server:
        gone = server.url
    for url, code in (("openai:ftp://a/v1", 2), ("http://user:password@host/v1", 2), (gone, 1)):
        found, _, said = semcal("probe", url)
        assert found == code
        assert "password@" not in said
    assert gone in said
