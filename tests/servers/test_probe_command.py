"""semcal probe: what it prints, and what it says where something is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from semcal.cli import server_commands
from semcal.cli.app import app
from tests.servers.fake_server import FakeServer
from tests.servers.test_probe import LLAMA, OPENAI


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(app, ["probe", *map(str, arguments)])


def table(monkeypatch: pytest.MonkeyPatch, **quirks: Any) -> dict[str, str]:
    """What a terminal shows: the text beside each name."""
    with FakeServer(**quirks) as server:
        monkeypatch.setattr(server_commands, "_for_people", lambda _: True)
        result = run(server.url)
    assert result.exit_code == 0, result.output
    return {line[:30].rstrip(): line[30:] for line in result.stdout.splitlines()}


def test_json_holds_the_profile_and_what_follows(own_cache: Path) -> None:
    with FakeServer(**LLAMA) as server:
        result = run(server.name, "--json")
        again = run(server.url, "--json")
    found = json.loads(result.stdout)
    assert (found["server"], found["model"], found["max_n"], found["whole_vocabulary"]) == (
        "llama.cpp",
        "fake",
        4,
        True,
    )
    assert found["consequences"]["sampling"] == "10 answers to a question take 10 requests"
    assert "probe: 0 requests" not in result.stderr
    assert json.loads(again.stdout) == found
    assert "probe: 2 requests" in again.stderr  # the models and the version
    assert len(list((own_cache / "servers").iterdir())) == 1


def test_the_table_says_what_llama_cpp_does_and_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = table(monkeypatch, **LLAMA)
    assert shown["answers to a request (n)"] == "up to 4, which differ"
    assert shown["log-probabilities of draws"] == "raw: at T = 1, whatever T is; at T on request"
    assert shown["alternatives of a token"] == "all 302"
    assert shown["truncation of draws"] == "not seen"
    assert shown["measures"] == "all at every T; of answers that are cut with --config server.tokenizer=DIR"
    assert shown["fits"].startswith("semcal fit --config server.tokenizer=DIR by ")


@pytest.mark.filterwarnings("ignore:.* refuses fields:semcal.errors.SemcalWarning")
def test_the_table_says_what_openai_lacks_and_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = table(monkeypatch, **OPENAI)
    assert shown["temperature"] == "at most 2"
    assert shown["measures"].startswith("all at T = 1, E-SC at others: OpenAI at http://127.0.0.1:")
    assert "E-SC alone" in shown["measures"]
    assert shown["fits"].startswith("semcal fit --method TS-grid, semcal calibrate: OpenAI at http://127.")
    assert shown["every request states"] == "top_p 1, presence_penalty 0, frequency_penalty 0"


def test_a_server_that_truncates_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = table(monkeypatch, truncates="always", log_probs="masked")
    assert shown["truncation of draws"].startswith("found: ")
    assert shown["sampling"] == (
        "refused, for draws are cut; start vLLM with --generation-config vllm, or record the cut with "
        "--config server.allow_truncation=true"
    )
    assert shown["measures"].startswith("E-SC: vLLM at http://127.0.0.1:")


def test_a_key_is_sent_and_never_shown(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-very-secret\n")
    with FakeServer(key="sk-very-secret", **LLAMA) as server:
        refused = run(server.url)
        result = run(server.url, "--json", "--api-key-file", tmp_path / "key")
    assert refused.exit_code == 1
    assert "SEMCAL_API_KEY" in refused.stderr
    assert result.exit_code == 0
    assert "very-secret" not in result.output + refused.output


def test_an_address_that_makes_no_sense_is_wrong_usage() -> None:
    for url in ("127.0.0.1:8000", "openai:ftp://a/v1", "http://user:password@host/v1"):
        result = run(url)
        assert result.exit_code == 2
        assert "password@" not in result.output


def test_a_server_that_is_not_there_is_an_error_that_names_it() -> None:
    with FakeServer() as server:
        url = server.url
    result = run(url)
    assert result.exit_code == 1
    assert url in result.stderr
