"""Features on disk: the same as in memory, whole or absent, and refused where they do not belong."""

from __future__ import annotations

import errno
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from semcal.data.question import chat
from semcal.errors import StoreError
from semcal.models.fakes import FakeLanguageModel
from semcal.models.protocols import Prompt
from semcal.recalibration import FitFeatures, feature_store
from semcal.recalibration.feature_store import Manifest, stored_features

QUESTIONS = [f"How far is mill {number}?" for number in range(7)]
MODEL = FakeLanguageModel({q: {"seven miles": 0.75, "nine": 0.25} for q in QUESTIONS})
PROMPTS = [Prompt(f"q{number}", MODEL.encode(chat(q))) for number, q in enumerate(QUESTIONS)]
ANSWERS = [[MODEL.encode_answer((), text) for text in ("seven miles", "nine")] for _ in QUESTIONS]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_store, "BLOCK", 3)


def manifest(*, whole: bool) -> Manifest:
    return Manifest.of(MODEL, PROMPTS, ANSWERS, data_hash="d", prompt_hash="p", whole=whole)


def stored(folder: Path, wanted: Manifest, model: Any = MODEL) -> FitFeatures:
    return stored_features(folder, wanted, model, PROMPTS, ANSWERS)


class Stopping:
    """A model that is interrupted when it reads its n-th block."""

    def __init__(self, blocks: int) -> None:
        self.left = blocks

    def __getattr__(self, name: str):
        return getattr(MODEL, name)

    def features(self, *args, **options):
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return MODEL.features(*args, **options)


@pytest.mark.parametrize("whole", [False, True])
def test_a_store_holds_what_the_model_says_and_as_many_bytes_as_it_said(tmp_path: Path, whole: bool) -> None:
    wanted = manifest(whole=whole)
    found = stored(tmp_path, wanted)
    direct = MODEL.features(PROMPTS, ANSWERS, whole=whole, shared=wanted.shared)
    for name in ("prefix", "states", "answer_start", "target_start", "targets", "prompt_start"):
        assert torch.equal(getattr(found, name), getattr(direct, name)), name
    assert (tmp_path / "states.bin").stat().st_size == wanted.bytes


def test_an_interrupted_reading_leaves_nothing_and_a_finished_one_is_not_done_again(tmp_path: Path) -> None:
    wanted = manifest(whole=True)
    with pytest.raises(KeyboardInterrupt):
        stored(tmp_path, wanted, Stopping(2))
    assert list(tmp_path.iterdir()) == []
    before = stored(tmp_path, wanted)
    after = stored(tmp_path, wanted, Stopping(0))
    assert torch.equal(before.states, after.states)


def test_the_features_of_something_else_are_refused(tmp_path: Path) -> None:
    stored(tmp_path, manifest(whole=False))
    for wanted, key in (
        (replace(manifest(whole=False), data_hash="other"), "data_hash"),
        (manifest(whole=True), "whole"),
    ):
        with pytest.raises(StoreError, match=key):
            stored(tmp_path, wanted)


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    class Full:
        def __getattr__(self, name: str):
            return getattr(MODEL, name)

        def features(self, *args, **options):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"states\.bin"):
        stored(tmp_path, manifest(whole=True), Full())
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("not to be touched")
    (tmp_path / "features").mkdir()
    (tmp_path / "features" / "states.bin").symlink_to(mine)
    stored(tmp_path / "features", manifest(whole=True))
    assert mine.read_text() == "not to be touched"


def mutated(folder: Path, other: Path, rng: random.Random) -> str:
    """Change one file of a store in a random way; which way."""
    path = rng.choice(sorted(folder.iterdir()))
    raw, way = bytearray(path.read_bytes()), rng.choice(("flip", "flip", "cut", "gone", "foreign"))
    place = rng.randrange(len(raw))
    if way == "gone":
        path.unlink()
        return way
    if way == "flip":
        raw[place] ^= rng.randrange(1, 256)
    path.write_bytes({"flip": raw, "cut": raw[:place]}.get(way) or (other / path.name).read_bytes())
    return way


@pytest.mark.parametrize("whole", [False, True])
def test_a_changed_folder_is_refused_or_gives_the_same_features(tmp_path: Path, whole: bool) -> None:
    """What no file says any more is read by the model again."""
    wanted, rng = manifest(whole=whole), random.Random(13)
    expected = stored(tmp_path / "whole", wanted)
    order = [PROMPTS[::-1], ANSWERS[::-1]]
    other = Manifest.of(MODEL, *order, data_hash="other", prompt_hash="p", whole=whole)
    stored_features(tmp_path / "other", other, MODEL, *order)
    counts: Counter[str] = Counter()
    for number in range(200):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", folder)
        way = mutated(folder, tmp_path / "other", rng)
        try:
            found = stored(folder, wanted)
        except StoreError:
            counts["refused"] += 1
        else:
            counts["the same"] += 1
            for name in ("prefix", "states", "targets"):
                assert torch.equal(getattr(found, name), getattr(expected, name)), (number, way, name)
        shutil.rmtree(folder)
    assert counts["refused"] > 100
    assert counts["the same"] > 10
