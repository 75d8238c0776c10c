"""Recalibrators from the hub: read by id and revision, and never in place of a path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import huggingface_hub.errors
import pytest
import torch
from calibration_sets import PROVENANCE

from semcal.errors import StoreError, UsageError
from semcal.recalibration import TemperatureScaling, from_pretrained, save_pretrained


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    ts = TemperatureScaling().fit(torch.eye(4) * 3, [0, 1, 2, 0])
    save_pretrained(ts, tmp_path / "ts", provenance=PROVENANCE)
    return tmp_path / "ts"


def test_an_id_and_a_revision_are_read_from_the_hub(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(repo_id: str, *, revision: str | None, **options: Any) -> str:
        assert (repo_id, revision, options["local_files_only"]) == ("me/ts", "c0ffee", False)
        return str(saved)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr("semcal.hub_names.unreachable", lambda: None)
    recalibrator, provenance = from_pretrained("me/ts", revision="c0ffee")
    assert provenance == PROVENANCE
    assert recalibrator.temperature_ == from_pretrained(saved)[0].temperature_


def test_a_path_never_asks_the_hub(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: Any, **__: Any) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr("semcal.hub_names.unreachable", asked)
    for path in (Path("me/ts"), "./me/ts", "no-such-ts", "a/b/c"):
        with pytest.raises(UsageError, match=f"{path}"):
            from_pretrained(path)
    with pytest.raises(UsageError, match=r"recalibrator\.json"):
        from_pretrained(str(tmp_path))
    with pytest.raises(UsageError, match="revision"):
        from_pretrained(saved, revision="main")


@pytest.mark.parametrize(
    "error", [OSError("Name or service not known"), huggingface_hub.errors.HTTPError("cannot connect")]
)
def test_a_hub_that_cannot_be_reached_is_a_store_error(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr("semcal.hub_names.unreachable", lambda: None)
    with pytest.raises(StoreError, match=f"'me/ts'.*{error}"):
        from_pretrained("me/ts")
