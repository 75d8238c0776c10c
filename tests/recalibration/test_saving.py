"""A recalibrator on disk comes back the same, or not at all; from the hub it is read by id and revision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import huggingface_hub.errors
import numpy as np
import pytest
import torch
from calibration_sets import PROVENANCE, made

from semcal.errors import StoreError, UsageError
from semcal.recalibration import (
    ATS,
    BlockShape,
    Platt,
    TemperatureScaling,
    from_pretrained,
    save_pretrained,
)
from semcal.recalibration.recalibrators import solver_of
from semcal.recalibration.records import LOSSES_KEPT, Schedule
from semcal.recalibration.sgd_solver import fit_ats, fit_platt, fit_ts


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    z = np.random.default_rng(0).standard_normal((50, 6)) * 3
    save_pretrained(TemperatureScaling("SS", 0.25).fit(z, z.argmax(1) % 5), tmp_path, provenance=PROVENANCE)
    return tmp_path / "recalibrator.json"


def test_what_is_written_comes_back(saved: Path) -> None:
    recalibrator, provenance = from_pretrained(saved.parent)
    assert provenance == PROVENANCE
    assert (recalibrator.loss, recalibrator.alpha) == ("SS", 0.25)
    assert recalibrator.temperature_ == json.loads(saved.read_text())["temperature"]
    assert recalibrator.certificate_.temperature == recalibrator.temperature_
    assert not {"solver", "sgd"} & json.loads(saved.read_text()).keys()
    assert (recalibrator.sgd_, solver_of(recalibrator)) == (None, "exact")


@pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")
def test_gradient_steps_are_kept_with_what_they_led_to(tmp_path: Path) -> None:
    one = made(0, questions=300)
    shape = BlockShape(16, 40, 4, 2, 6)
    schedule = Schedule(1e-3, 0.01, batch_size=1, seed=4)
    for training in (
        fit_ts(one.features, one.head, schedule=schedule),
        fit_ats(one.features, one.head, shape=shape, schedule=schedule),
        fit_platt(one.features, one.head, schedule=schedule),
    ):
        save_pretrained(training.recalibrator, tmp_path, provenance=PROVENANCE)
        again, _ = from_pretrained(tmp_path)
        assert again.sgd_ == training.recalibrator.sgd_
        assert (again.sgd_.steps, again.sgd_.schedule) == (600, schedule)
        assert len(again.sgd_.losses) == LOSSES_KEPT
        assert np.mean(again.sgd_.losses) == pytest.approx(np.mean(training.report["losses"]))
        assert solver_of(again) == "sgd"
    ts = fit_ts(one.features, one.head, schedule=schedule)
    save_pretrained(ts.recalibrator, tmp_path, provenance=PROVENANCE)
    again, _ = from_pretrained(tmp_path)
    assert again.sgd_.distance(again.temperature_) == ts.report["distance"] > 0
    assert "solver='sgd', steps=600, exact=1." in repr(again)


def test_an_edited_cut_or_missing_file_is_refused(saved: Path) -> None:
    whole = saved.read_bytes()
    edited = json.dumps({**json.loads(whole), "temperature": 1.0}).encode()
    for content in (edited, *(whole[:cut] for cut in (0, 1, 40, 400))):
        saved.write_bytes(content)
        with pytest.raises(StoreError, match=r"recalibrator\.json"):
            from_pretrained(saved.parent)
    saved.unlink()
    with pytest.raises(UsageError, match="semcal fit"):
        from_pretrained(saved.parent)


def test_another_model_or_prompt_is_refused(saved: Path) -> None:
    _, kept = from_pretrained(saved.parent)
    kept.check(model="renamed", revision="abc123", prompt_hash="p0")
    with pytest.raises(UsageError, match="tiny"):
        kept.check(model="tiny", revision="other")
    with pytest.raises(UsageError, match="prompt"):
        kept.check(model="tiny", revision="abc123", prompt_hash="p1")


def weighty(method: str) -> ATS | Platt:
    """An ATS or Platt of random weights."""
    made = ATS(BlockShape(8, 12, 2, 1, 4), loss="SS", alpha=0.5) if method == "ATS" else Platt(6)
    generator = torch.Generator().manual_seed(0)
    for weight in made.requires_grad_(False).parameters():
        weight += torch.randn(weight.shape, generator=generator)
    return made


@pytest.mark.parametrize("method", ["ATS", "Platt"])
def test_weights_come_back_bit_for_bit_and_frozen(method: str, tmp_path: Path) -> None:
    written = weighty(method)
    save_pretrained(written, tmp_path, provenance=PROVENANCE)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.safetensors", "recalibrator.json"]
    read, provenance = from_pretrained(tmp_path)
    assert provenance == PROVENANCE
    assert (read.method, read.loss, read.alpha) == (method, written.loss, written.alpha)
    for name, weight in written.state_dict().items():
        assert torch.equal(read.state_dict()[name], weight)
    assert not any(weight.requires_grad for weight in read.parameters())
    if isinstance(read, ATS):
        assert read.shape == written.shape


@pytest.mark.parametrize("method", ["ATS", "Platt"])
def test_damaged_weights_are_refused(method: str, tmp_path: Path) -> None:
    save_pretrained(weighty(method), tmp_path, provenance=PROVENANCE)
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    for broken in (b"", whole[:9], whole[:-1], whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:]):
        weights.write_bytes(broken)
        with pytest.raises(StoreError, match=r"model\.safetensors"):
            from_pretrained(tmp_path)
    weights.unlink()
    with pytest.raises(StoreError, match=r"model\.safetensors"):
        from_pretrained(tmp_path)


def test_a_temperature_saved_where_weights_lay_leaves_none_behind(tmp_path: Path) -> None:
    save_pretrained(weighty("Platt"), tmp_path, provenance=PROVENANCE)
    ts = TemperatureScaling().fit(np.eye(3), [0, 1, 1])
    save_pretrained(ts, tmp_path, provenance=PROVENANCE)
    assert [file.name for file in tmp_path.iterdir()] == ["recalibrator.json"]
    assert from_pretrained(tmp_path)[0].temperature_ == ts.temperature_


# ---- The hub


def test_an_id_and_a_revision_are_read_from_the_hub(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(repo_id: str, *, revision: str | None, **options: Any) -> str:
        assert (repo_id, revision, options["local_files_only"]) == ("me/ts", "c0ffee", False)
        return str(saved.parent)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr("semcal.hub_names.unreachable", lambda: None)
    recalibrator, provenance = from_pretrained("me/ts", revision="c0ffee")
    assert provenance == PROVENANCE
    assert recalibrator.temperature_ == from_pretrained(saved.parent)[0].temperature_


def test_a_path_never_asks_the_hub(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: Any, **__: Any) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr("semcal.hub_names.unreachable", asked)
    (tmp_path / "empty").mkdir()
    for path in (Path("me/ts"), "./me/ts", "no-such-ts", "a/b/c"):
        with pytest.raises(UsageError, match=f"{path}"):
            from_pretrained(path)
    with pytest.raises(UsageError, match=r"recalibrator\.json"):
        from_pretrained(str(tmp_path / "empty"))
    with pytest.raises(UsageError, match="revision"):
        from_pretrained(saved.parent, revision="main")


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
