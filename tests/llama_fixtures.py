"""A server of llama.cpp with the embedded language model, for the tests marked `servers`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from semcal.demo.paths import language_model_dir
from semcal.servers.client import ServerClient
from semcal.servers.probing import probe, write_profile
from semcal.servers.protocol import ServerProfile
from semcal.servers.settings import Endpoint, ServerSettings


@pytest.fixture(scope="session")
def language_model_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded language model as a GGUF of float32; do not change it."""
    if find_spec("gguf") is None:
        pytest.skip("gguf is not installed; install it with: pip install 'semcal[dev]'")
    from tools.gguf import write_gguf

    path = tmp_path_factory.mktemp("gguf") / "atlas.gguf"
    write_gguf(language_model_dir(), path)
    return path


@pytest.fixture(scope="session")
def llama_server(language_model_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL (http://127.0.0.1:PORT/v1) of llama.cpp's server with the embedded language model, "atlas".

    Ask it for one answer at a time: after n > 1 its cache may give wrong answers to others.
    """
    with own_llama_server(language_model_gguf, tmp_path_factory) as url:
        yield url


@pytest.fixture(scope="session")
def llama_profile(language_model_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> ServerProfile:
    """What a probe finds out about it; another server was asked, for probes ask for several answers."""
    with (
        own_llama_server(language_model_gguf, tmp_path_factory) as url,
        ServerClient(Endpoint(url), ServerSettings()) as client,
    ):
        return probe(client)


@pytest.fixture(scope="session")
def llama_cache(
    llama_server: str, llama_profile: ServerProfile, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder for SEMCAL_CACHE with that profile of `llama_server`, so that nothing probes it."""
    cache = tmp_path_factory.mktemp("cache")
    profile = replace(llama_profile, url=llama_server)
    write_profile(cache / "servers", profile)
    return cache


@contextmanager
def own_llama_server(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of llama.cpp while the block lasts."""
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed; install it with: pip install 'semcal[dev]'")
    from tools.llama_server import llama_server

    with llama_server(gguf, log=tmp_path_factory.mktemp("server") / "log") as url:
        yield url
