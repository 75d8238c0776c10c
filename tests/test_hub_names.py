"""What a name stands for: an embedded directory, a directory here, a hub id, or nothing, said at once."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from semcal import hub_names
from semcal.errors import ModelError, UsageError
from semcal.hub_names import LANGUAGE_MODEL, NLI_MODEL, RECALIBRATOR, Location, locate


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("models/tiny", "atlas"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub_names, "unreachable", lambda: "the hub sleeps")
    monkeypatch.setattr(hub_names, "is_cached", lambda *_, **__: False)
    return tmp_path


def test_an_embedded_name_comes_first_and_a_directory_of_that_name_is_a_path(here: Path) -> None:
    assert locate("atlas", LANGUAGE_MODEL).name == "language_model"
    assert locate("atlas", NLI_MODEL).name == "nli_model"
    assert (Path(locate("atlas", RECALIBRATOR).source) / "recalibrator.json").is_file()
    for path in ("./atlas", Path("atlas")):
        assert locate(path, LANGUAGE_MODEL) == Location("atlas", "atlas")


@pytest.mark.parametrize(
    ("name", "kind", "known"),
    [
        ("atls", LANGUAGE_MODEL, "'atlas'"),
        ("exakt", NLI_MODEL, "'exact'.* equivalence"),
        ("models", LANGUAGE_MODEL, "config.json"),
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(here: Path, name: str, kind: Any, known: str) -> None:
    with pytest.raises(ModelError, match=f"{name}.*{known}"):
        locate(name, kind)


def test_an_id_is_asked_for_taken_from_the_cache_or_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=r"'me/ts'.*the hub sleeps"):
        locate("me/ts", RECALIBRATOR)
    monkeypatch.setattr(hub_names, "is_cached", lambda *_, **__: True)
    assert locate("me/ts", RECALIBRATOR) == Location("me/ts", "me/ts", on_hub=True, cached=True)
    monkeypatch.setattr(hub_names, "unreachable", lambda: None)
    assert locate("me/ts", RECALIBRATOR) == Location("me/ts", "me/ts", on_hub=True)


def test_offline_is_honoured_and_a_closed_port_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in str(hub_names.unreachable())
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
        assert "127.0.0.1" in str(hub_names.unreachable())  # bound, and nobody listens
        listening.listen()
        assert hub_names.unreachable() is None
    assert "cannot be reached" in str(hub_names.unreachable())
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"http": "http://proxy"})
    monkeypatch.setattr("urllib.request.proxy_bypass", lambda _: False)
    assert hub_names.unreachable() is None
