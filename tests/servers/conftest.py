"""A server of llama.cpp with the embedded language model, for the tests marked `servers`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from semcal.demo.paths import language_model_dir


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
    """The URL (http://127.0.0.1:PORT/v1) of llama.cpp's server with the embedded language model, "atlas"."""
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed; install it with: pip install 'semcal[dev]'")
    from tools.llama_server import llama_server

    with llama_server(language_model_gguf, log=tmp_path_factory.mktemp("server") / "log") as url:
        yield url
