"""A recalibrator on disk comes back the same, or not at all; from the hub it is read by id and revision.

An edited file whose checksums were made right again is an error that names file and key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import huggingface_hub
import huggingface_hub.errors
import numpy as np
import pytest
import torch
from calibration_sets import made as made_set
from safetensors.torch import load_file, save_file

from semcal.errors import SemcalError, StoreError, UsageError
from semcal.files import file_checksum, json_checksum
from semcal.models.distribution import temperature_of
from semcal.recalibration import (
    ATS,
    BlockShape,
    GridTemperature,
    Platt,
    Provenance,
    TemperatureScaling,
    from_pretrained,
    save_pretrained,
)
from semcal.recalibration.recalibrators import solver_of
from semcal.recalibration.records import LOSSES_KEPT, GradientSteps, Schedule
from semcal.recalibration.sgd_solver import fit_ats, fit_platt, fit_ts

PROMPT = {
    "system": "Answer.",
    "few_shot": [{"question": "Which?", "answer": "That.", "context": "This or that."}],
}
PROVENANCE = Provenance("tiny", "abc", PROMPT, "p", "made-up", "d", 3, 0, {"torch": "2"}, {"brier": 0.1})
STEPS = GradientSteps(Schedule(1e-3, 0.01, max_norm=1.0), 12, 0.01, (2.0, 1.5), 1.25)
#: What is put in the place of every value in turn.
STRANGE: list[Any] = [None, True, False, 0, -1, 2.5, 10**400, float("nan"), float("inf"), -float("inf")]
STRANGE += ["", "x" * 999, [], [[1]], {}, {"a": None}, "NaN", 2**64, 1e-320]


def recalibrator(kind: str) -> Any:
    if kind.startswith("TS-grid"):
        return GridTemperature(0.8, measure="E-SC", by="brier" if "brier" in kind else "gain")
    if kind in ("TS", "TS by steps"):
        logits = np.random.default_rng(0).standard_normal((50, 6)) * 3
        made: Any = TemperatureScaling("SS", 0.25).fit(logits, logits.argmax(1) % 5)
    else:
        made = Platt(6) if kind == "Platt" else ATS(BlockShape(8, 12, 2, 1, 4), loss="SS", alpha=0.5)
        generator = torch.Generator().manual_seed(0)
        for weight in made.requires_grad_(False).parameters():
            weight += torch.randn(weight.shape, generator=generator)
    if kind != "TS":
        made.sgd_ = STEPS
    return made


KINDS = ("TS", "TS by steps", "TS-grid", "TS-grid by brier", "ATS", "Platt")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_pretrained(recalibrator("TS"), tmp_path, provenance=PROVENANCE)


def test_what_is_written_comes_back(saved: Path) -> None:
    read, provenance = from_pretrained(saved.parent)
    assert provenance == PROVENANCE
    assert (read.loss, read.alpha) == ("SS", 0.25)
    assert read.temperature_ == json.loads(saved.read_text())["temperature"]
    assert read.certificate_.temperature == read.temperature_
    assert not {"solver", "sgd"} & json.loads(saved.read_text()).keys()
    assert (read.sgd_, solver_of(read)) == (None, "exact")


@pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")
def test_gradient_steps_are_kept_with_what_they_led_to(tmp_path: Path) -> None:
    one = made_set(0, questions=300)
    shape = BlockShape(16, 40, 4, 2, 6)
    schedule = Schedule(1e-3, 0.01, batch_size=1, seed=4)
    ts = fit_ts(one.features, one.head, schedule=schedule)
    ats = fit_ats(one.features, one.head, shape=shape, schedule=schedule)
    for training in (fit_platt(one.features, one.head, schedule=schedule), ats, ts):
        save_pretrained(training.recalibrator, tmp_path, provenance=PROVENANCE)
        again, _ = from_pretrained(tmp_path)
        assert again.sgd_ == training.recalibrator.sgd_
        assert (again.sgd_.steps, again.sgd_.schedule) == (600, schedule)
        assert len(again.sgd_.losses) == LOSSES_KEPT
        assert np.mean(again.sgd_.losses) == pytest.approx(np.mean(training.report["losses"]))
        assert solver_of(again) == "sgd"
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
    kept.check(model="renamed", revision="abc", prompt_hash="p")
    with pytest.raises(UsageError, match="tiny"):
        kept.check(model="tiny", revision="other")
    with pytest.raises(UsageError, match="prompt"):
        kept.check(model="tiny", revision="abc", prompt_hash="p1")


@pytest.mark.parametrize("method", ["ATS", "Platt"])
def test_weights_come_back_bit_for_bit_and_frozen(method: str, tmp_path: Path) -> None:
    made = recalibrator(method)
    save_pretrained(made, tmp_path, provenance=PROVENANCE)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.safetensors", "recalibrator.json"]
    read, provenance = from_pretrained(tmp_path)
    assert provenance == PROVENANCE
    assert (read.method, read.loss, read.alpha) == (method, made.loss, made.alpha)
    for name, weight in made.state_dict().items():
        assert torch.equal(read.state_dict()[name], weight)
    assert not any(weight.requires_grad for weight in read.parameters())
    if isinstance(read, ATS):
        assert read.shape == made.shape


@pytest.mark.parametrize("method", ["ATS", "Platt"])
def test_damaged_weights_are_refused(method: str, tmp_path: Path) -> None:
    save_pretrained(recalibrator(method), tmp_path, provenance=PROVENANCE)
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
    save_pretrained(recalibrator("Platt"), tmp_path, provenance=PROVENANCE)
    ts = TemperatureScaling().fit(np.eye(3), [0, 1, 1])
    save_pretrained(ts, tmp_path, provenance=PROVENANCE)
    assert [file.name for file in tmp_path.iterdir()] == ["recalibrator.json"]
    assert from_pretrained(tmp_path)[0].temperature_ == ts.temperature_


# ---- Edited files with the right checksums


def written(kind: str, folder: Path) -> dict[str, Any]:
    """The content of a recalibrator's file, without its checksum."""
    content = json.loads(save_pretrained(recalibrator(kind), folder, provenance=PROVENANCE).read_text())
    del content["sha256"]
    return content


def sealed(content: dict[str, Any], folder: Path) -> None:
    """Write a content with the checksum that belongs to it."""
    text = json.dumps({**content, "sha256": json_checksum(content)})
    (folder / "recalibrator.json").write_text(text)


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a tree."""
    if before:
        yield before
    if isinstance(value, (dict, list)):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(one, (*before, key))


def changed(content: dict[str, Any], place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    own = deepcopy(content)
    inside: Any = own
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    return own


def used(folder: Path) -> None:
    """Read a recalibrator and do with it what commands do."""
    found, provenance = from_pretrained(folder)
    temperature = temperature_of(found)
    if temperature is not None:
        assert 0 < temperature < float("inf")
        assert isinstance(temperature, float)
    steps = getattr(found, "sgd_", None)
    if steps is not None:
        assert isinstance(steps.schedule, Schedule)
        if temperature is not None:
            f"{steps.distance(temperature):.3g} {steps.exact_temperature:g}"
    repr(found)
    solver_of(found)
    f"{provenance.revision[:12]}{provenance.n_questions:d}"


@pytest.mark.parametrize("kind", KINDS)
def test_no_value_in_the_file_can_be_anything_but_what_it_is_meant_to_be(kind: str, tmp_path: Path) -> None:
    content = written(kind, tmp_path)
    told: list[tuple[Any, Any, SemcalError]] = []
    for place in places(content):
        for value in STRANGE:
            sealed(changed(content, place, value), tmp_path)
            try:
                used(tmp_path)
            except SemcalError as error:
                told.append((place, value, error))
    for place, value, error in told:
        assert type(error) is StoreError, (place, value)
        assert str(error).startswith(f"{tmp_path / 'recalibrator.json'}"), (place, value)
        assert len(str(error)) < 900, (place, value)
    assert len(told) > 7 * len(list(places(content)))


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_that_is_missing_is_named(kind: str, tmp_path: Path) -> None:
    content = written(kind, tmp_path)
    for key in content.keys() - {"solver", "sgd", "schema", "method", "kind"}:
        sealed({name: value for name, value in content.items() if name != key}, tmp_path)
        with pytest.raises(StoreError, match=rf"recalibrator\.json: {key} "):
            from_pretrained(tmp_path)


@pytest.mark.parametrize("schema", [True, 1.0, "1", None, 2, 10**400])
def test_another_schema_is_refused(schema: Any, tmp_path: Path) -> None:
    sealed({**written("TS", tmp_path), "schema": schema}, tmp_path)
    with pytest.raises(StoreError, match="schema"):
        from_pretrained(tmp_path)


TEXTS = ["", "[]", "null", "1", '"x"', "{", '{"sha256": 1}', "[" * 100000, "\x00", "\ufeff{}"]
TEXTS += ['{"schema": 1, "a": ' * 900 + "1" + "}" * 900, '{"schema": 1, "a": "\\ud800"}']
TEXTS += [f'{{"a": {"9" * 5000}}}']


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text[:12]))
def test_a_file_of_anything_else_is_one_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "recalibrator.json").write_text(text, encoding="utf-8")
    with pytest.raises(StoreError, match=r"recalibrator\.json"):
        from_pretrained(tmp_path)


#: A change of the tensors of Platt or ATS.
TENSORS: list[tuple[str, Any]] = [
    ("Platt", lambda t: t.update(bias=t["bias"].double())),
    ("Platt", lambda t: t.update(bias=t["bias"][:1])),
    ("Platt", lambda t: t.update(more=torch.ones(1))),
    ("Platt", lambda t: t.pop("bias")),
    ("Platt", lambda t: t["bias"][1:2].fill_(-float("inf"))),
    ("ATS", lambda t: t["down.weight"].view(-1)[1:2].fill_(float("nan"))),
]


@pytest.mark.parametrize(("kind", "change"), TENSORS)
def test_tensors_that_do_not_fit_or_are_no_numbers_are_refused(
    kind: str, change: Any, tmp_path: Path
) -> None:
    content, weights = written(kind, tmp_path), tmp_path / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(weights).items()}
    change(tensors)
    save_file(tensors, weights)
    content["weights"]["sha256"] = file_checksum(weights)
    sealed(content, tmp_path)
    with pytest.raises(StoreError, match=r"model\.safetensors: "):
        from_pretrained(tmp_path)


@pytest.mark.parametrize("size", [2**31 - 1, 2**40, 10**30])
def test_a_size_beyond_memory_is_refused_before_memory_is_asked_for(size: int, tmp_path: Path) -> None:
    content = written("Platt", tmp_path)
    sealed(changed(content, ("shape", "vocabulary"), size), tmp_path)
    with pytest.raises(StoreError):
        from_pretrained(tmp_path)
    content = written("ATS", tmp_path)
    for name in ("hidden_size", "intermediate_size", "heads"):
        sealed(changed(content, ("shape", name), size), tmp_path)
        with pytest.raises(StoreError):
            from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "file", ["../../etc/passwd", "/etc/passwd", "weights/../model.safetensors", "", None, 3]
)
def test_no_other_file_of_weights_can_be_named(file: Any, tmp_path: Path) -> None:
    content = written("Platt", tmp_path)
    sealed(changed(content, ("weights", "file"), file), tmp_path)
    with pytest.raises(StoreError, match=r"weights\.file: "):
        from_pretrained(tmp_path)


# ---- The hub


def test_an_id_and_a_revision_are_read_from_the_hub(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(repo_id: str, *, revision: str | None, **options: Any) -> str:
        assert (repo_id, revision, options["local_files_only"]) == ("me/ts", "c0ffee", False)
        return str(saved.parent)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr("semcal.hub_names.unreachable", lambda: None)
    read, provenance = from_pretrained("me/ts", revision="c0ffee")
    assert provenance == PROVENANCE
    assert read.temperature_ == from_pretrained(saved.parent)[0].temperature_


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
