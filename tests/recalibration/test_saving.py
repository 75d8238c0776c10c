"""A recalibrator on disk comes back the same, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from semcal.errors import StoreError, UsageError
from semcal.recalibration import Provenance, TemperatureScaling, from_pretrained, save_pretrained

PROVENANCE = Provenance("tiny", "abc123", {"few_shot": []}, "p0", "made-up", "d0", 3, 0, {"torch": "2"})


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    z = np.random.default_rng(0).standard_normal((50, 6)) * 3
    save_pretrained(TemperatureScaling("SS", 0.25).fit(z, z.argmax(1) % 5), tmp_path, provenance=PROVENANCE)
    return tmp_path / "calibration.json"


def test_what_is_written_comes_back(saved: Path) -> None:
    recalibrator, provenance = from_pretrained(saved.parent)
    assert provenance == PROVENANCE
    assert (recalibrator.loss, recalibrator.alpha) == ("SS", 0.25)
    assert recalibrator.temperature_ == json.loads(saved.read_text())["temperature"]
    assert recalibrator.certificate_.temperature == recalibrator.temperature_


def test_an_edited_temperature_is_refused(saved: Path) -> None:
    content = json.loads(saved.read_text())
    saved.write_text(json.dumps({**content, "temperature": 1.0}))
    with pytest.raises(StoreError, match="changed after it was written"):
        from_pretrained(saved.parent)


@pytest.mark.parametrize("cut", [0, 1, 40, 400])
def test_a_truncated_file_is_refused(saved: Path, cut: int) -> None:
    saved.write_bytes(saved.read_bytes()[:cut])
    with pytest.raises(StoreError, match="damaged"):
        from_pretrained(saved.parent)


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="semcal fit"):
        from_pretrained(tmp_path)


def test_another_model_or_prompt_is_refused(saved: Path) -> None:
    _, kept = from_pretrained(saved.parent)
    kept.check(model="renamed", revision="abc123", prompt_hash="p0")
    with pytest.raises(UsageError, match="fitted on tiny"):
        kept.check(model="tiny", revision="other")
    with pytest.raises(UsageError, match="another prompt"):
        kept.check(model="tiny", revision="abc123", prompt_hash="p1")
