"""A training that is killed goes on from its state on disk and ends at the same bytes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from calibration_sets import made
from safetensors import SafetensorError
from torch import Tensor

from semcal.errors import StoreError
from semcal.recalibration import (
    BlockShape,
    Schedule,
    Training,
    TrainingCallbacks,
    TrainingStore,
    fit_ats,
    fit_platt,
    fit_ts,
)
from semcal.recalibration.saving import write_tensors

pytestmark = pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")

SHAPE = BlockShape(16, 40, 4, 2, 6)
SCHEDULE = Schedule(0.003, 0.01, max_norm=1.0, epochs=2)
STEPS = 10
SET = made(3, questions=20, references=2, tokens=5)


class KilledError(Exception):
    """Stands for a kill after a step."""


def train(method: str, callbacks: TrainingCallbacks | None = None, **how: Any) -> Training:
    how = {"schedule": SCHEDULE, "callbacks": callbacks, **how}
    if method == "ATS":
        return fit_ats(SET.features, SET.head, shape=SHAPE, **how)
    return (fit_ts if method == "TS" else fit_platt)(SET.features, SET.head, **how)


def killed_after(steps: int, store: TrainingStore, method: str) -> None:
    def progress(done: int, total: int) -> None:
        assert total == STEPS
        if done == steps:
            raise KilledError

    with pytest.raises(KilledError):
        train(method, TrainingCallbacks(progress, store))


def weights(training: Training) -> list[Tensor]:
    one = training.recalibrator
    if isinstance(one, torch.nn.Module):
        return list(one.state_dict().values())
    return [torch.tensor([one.temperature_, *vars(one.certificate_).values()], dtype=torch.float64)]


@pytest.mark.parametrize("method", ["TS", "ATS", "Platt"])
@pytest.mark.parametrize("kills", [(1,), (4, 5), (2, 6, 9), (10,)])
def test_a_killed_training_ends_at_the_same_bytes(
    method: str, kills: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "semcal.recalibration.training.CHUNK", 40 * 25
    )  # logits of some steps are made together
    whole = train(method)
    store = TrainingStore(tmp_path, {"data": "d"}, interval=0)
    monkeypatch.setattr("semcal.recalibration.training_store.SHARE", float("inf"))
    for steps in kills:
        killed_after(steps, store, method)
    told: list[int] = []
    again = train(method, TrainingCallbacks(lambda done, _: told.append(done), store))
    assert told == list(range(kills[-1] + 1, STEPS + 1))
    assert again.losses == whole.losses
    assert all(torch.equal(a, b) for a, b in zip(weights(again), weights(whole), strict=True))
    assert again.recalibrator.sgd_ == whole.recalibrator.sgd_


def test_a_state_belongs_to_one_training(tmp_path: Path) -> None:
    store = TrainingStore(tmp_path, {"data": "d"}, interval=0)
    train("TS", TrainingCallbacks(store=store))
    others = [
        (TrainingStore(tmp_path, {"data": "e"}), {}),
        (store, {"loss": "SS", "alpha": 0.5}),
        (store, {"schedule": Schedule(0.003, 0.02, max_norm=1.0)}),
    ]
    for other, how in others:
        told: list[int] = []
        train("TS", TrainingCallbacks(lambda done, _, told=told: told.append(done), other), **how)
        assert told == list(range(1, STEPS + 1))
    assert len(list(tmp_path.glob("*.safetensors"))) == 4


def test_a_short_training_writes_its_end_alone_and_a_finished_one_takes_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TrainingStore(tmp_path, {})
    with monkeypatch.context() as patch:
        written: list[int] = []
        patch.setattr(
            "semcal.recalibration.training_store.write_tensors",
            lambda _path, tensors: written.append(len(tensors["losses"])),
        )
        train("Platt", TrainingCallbacks(store=store))
    assert written == [STEPS]
    first = train("Platt", TrainingCallbacks(store=store))
    told: list[int] = []
    again = train("Platt", TrainingCallbacks(lambda done, _: told.append(done), store))
    assert told == []
    assert all(torch.equal(a, b) for a, b in zip(weights(first), weights(again), strict=True))


def test_a_damaged_state_is_named(tmp_path: Path) -> None:
    store = TrainingStore(tmp_path, {}, interval=0)
    train("TS", TrainingCallbacks(store=store))
    (path,) = tmp_path.glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(StoreError, match=f"{path}, the state of a training, is damaged; delete it"):
        train("TS", TrainingCallbacks(store=store))


def test_a_disk_without_room_is_told_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr("semcal.recalibration.saving.save_file", full)
    with pytest.raises(StoreError, match=r"cannot write .*state\.safetensors \(I/O error: No space"):
        write_tensors(tmp_path / "state.safetensors", {"a": torch.zeros(2)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", ["TS", "ATS", "Platt"])
def test_a_changed_state_is_refused_or_ends_at_the_same_bytes(method: str, tmp_path: Path) -> None:
    """Flipped, cut, emptied, or another training's state under this name."""
    whole = train(method)
    store = TrainingStore(tmp_path, {}, interval=0)
    killed_after(4, store, method)
    (path,) = tmp_path.glob("*.safetensors")
    raw, rng = path.read_bytes(), random.Random(13)
    others = TrainingStore(tmp_path / "other", {"data": "e"}, interval=0)
    killed_after(4, others, method)
    (other,) = (tmp_path / "other").glob("*.safetensors")
    places = [*range(60), *(rng.randrange(len(raw)) for _ in range(60))]  # the head, and anywhere
    changes = [raw[:at] + bytes([raw[at] ^ rng.randrange(1, 256)]) + raw[at + 1 :] for at in places]
    changes += [raw[:at] for at in places[::10]] + [b"", other.read_bytes(), raw + b"x"]
    refused = 0
    for changed in changes:
        path.write_bytes(changed)
        try:
            again = train(method, TrainingCallbacks(store=store))
        except StoreError:
            refused += 1
        else:
            assert all(torch.equal(a, b) for a, b in zip(weights(again), weights(whole), strict=True))
            assert again.losses == whole.losses
    assert refused > len(changes) - 5
