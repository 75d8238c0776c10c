"""Where a server is and how it is asked: what is none is refused by name, and no key is ever shown."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semcal.errors import UsageError
from semcal.servers.settings import Endpoint, ServerSettings, read_api_key

SECRET = "sk-very-secret"


@pytest.mark.parametrize(
    ("name", "url", "model"),
    [
        ("openai:http://127.0.0.1:8000/v1#small", "http://127.0.0.1:8000/v1", "small"),
        ("http://127.0.0.1:8000/v1#small", "http://127.0.0.1:8000/v1", "small"),
        ("openai:http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000/v1", None),
        ("openai:https://host/v1#org/model-7b", "https://host/v1", "org/model-7b"),
        ("openai:https://host#", "https://host", None),
        ("openai:http://[::1]:8000/v1", "http://[::1]:8000/v1", None),
    ],
)
def test_a_name_is_a_url_and_a_model(name: str, url: str, model: str | None) -> None:
    assert Endpoint.parse(name) == Endpoint(url, model)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        *((f"openai:{url}", "http://") for url in ("localhost:8000/v1", "ftp://host/v1", "")),
        *((f"openai:http://{rest}", "http://127.0.0.1:8000/v1") for rest in ("", "/v1", ":8000/v1")),
        *((f"openai:http://{host}/v1", host) for host in ("host:80x", "host:99999", "[::1", "my host")),
        ("openai:http://host/v1/chat/completions", "http://host/v1"),
        *((f"http://{rest}/v1", "api_key_file") for rest in (f"user:{SECRET}@host", f"{SECRET}@host")),
        *((f"{rest}host/v1?key={SECRET}", "api_key_file") for rest in ("http://", "")),
    ],
)
def test_a_url_that_makes_no_sense_is_refused_and_a_secret_in_it_not_shown(name: str, named: str) -> None:
    with pytest.raises(UsageError) as error:
        Endpoint.parse(name)
    assert named in str(error.value)
    assert SECRET not in "".join(traceback.format_exception(error.value))


@given(st.text(max_size=40))
def test_any_text_is_an_endpoint_or_a_usage_error(text: str) -> None:
    for name in (text, "http://" + text, "openai:https://h/" + text):
        try:
            found = Endpoint.parse(name)
        except UsageError:
            continue
        assert Endpoint.parse(f"openai:{found.url}#{found.model or ''}") == found


@pytest.mark.parametrize(
    ("given", "option"),
    [
        *(({"concurrency": value}, "server.concurrency") for value in (0, 1.5, True)),
        ({"retries": -1}, "server.retries"),
        *(({"timeout": value}, "server.timeout") for value in (0, float("nan"), float("inf"))),
        ({"max_tokens_total": 0}, "server.max_tokens_total"),
        ({"max_cost": -1, "price_in": 1, "price_out": 1}, "server.max_cost"),
        ({"price_in": -0.1, "price_out": 1}, "server.price_in"),
        ({"price_in": 1, "price_out": "two"}, "server.price_out"),
        ({"max_cost": 1, "price_in": 1}, "server.price_out"),
        ({"price_out": 1}, "server.price_in"),
        *(({"api_key": key}, "API key") for key in ("two words", "ümlaut", "line\nbreak")),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_its_option(given: dict[str, Any], option: str) -> None:
    with pytest.raises(UsageError, match=option) as error:
        ServerSettings(**given)
    assert given.get("api_key", SECRET) not in str(error.value)


def test_the_least_that_makes_sense_is_taken_and_the_key_does_not_stand_in_the_repr() -> None:
    ServerSettings(concurrency=1, retries=0, timeout=0.01, max_tokens_total=1, price_in=0, price_out=0.0)
    assert SECRET not in repr(ServerSettings(max_cost=1e-6, price_in=0, price_out=2, api_key=SECRET))


def test_the_key_is_the_first_line_of_the_file_else_of_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"  {SECRET} \r\nsomething else\n")
    environment = {"SEMCAL_API_KEY": " other\n"}
    assert read_api_key(file, environment) == SECRET
    assert read_api_key(None, environment) == "other"
    assert read_api_key(None, {"SEMCAL_API_KEY": " "}) is read_api_key(None, {}) is None


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe\x00", b"two words\n", None])
def test_a_key_file_without_a_key_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match="api_key_file") as error:
        read_api_key(file, {})
    assert "two words" not in str(error.value)
