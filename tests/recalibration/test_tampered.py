"""A recalibrator that was edited, its checksums made right again, is an error that names file and key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from semcal.errors import SemcalError, StoreError
from semcal.files import file_checksum, json_checksum
from semcal.models.distribution import temperature_of
from semcal.models.prompting import PromptConfig
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
from semcal.recalibration.records import GradientSteps, Schedule

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
        made.requires_grad_(False)
    if kind != "TS":
        made.sgd_ = STEPS
    return made


KINDS = ("TS", "TS by steps", "TS-grid", "TS-grid by brier", "ATS", "Platt")


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
    assert all(
        question.question and question.answers
        for question in PromptConfig.from_description(provenance.prompt).few_shot
    )


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
    assert len(told) > 10 * len(list(places(content)))


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


#: A change of the tensors of Platt or ATS, and a part of the message.
TENSORS: list[tuple[str, Any, str]] = [
    ("Platt", lambda t: t.update(bias=t["bias"].double()), "bias .*float64"),
    ("Platt", lambda t: t.update(bias=t["bias"][:1]), r"bias .*\[1\]"),
    ("Platt", lambda t: t.update(more=torch.ones(1)), "'more'"),
    ("Platt", lambda t: t.pop("bias"), "'bias'"),
    ("Platt", lambda t: t["bias"][1:2].fill_(-float("inf")), ".*: bias "),
    ("ATS", lambda t: t["down.weight"].view(-1)[1:2].fill_(float("nan")), r".*: down\.weight "),
    ("ATS", lambda t: t["down.weight"].view(-1)[1:2].fill_(float("inf")), r".*: down\.weight "),
]


@pytest.mark.parametrize(("kind", "change", "told"), TENSORS)
def test_tensors_that_do_not_fit_or_are_no_numbers_are_named(
    kind: str, change: Any, told: str, tmp_path: Path
) -> None:
    content, weights = written(kind, tmp_path), tmp_path / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(weights).items()}
    change(tensors)
    save_file(tensors, weights)
    content["weights"]["sha256"] = file_checksum(weights)
    sealed(content, tmp_path)
    with pytest.raises(StoreError, match=rf"model\.safetensors: .*{told}"):
        from_pretrained(tmp_path)


@pytest.mark.parametrize("size", [2**31 - 1, 2**40, 10**30])
def test_a_size_beyond_memory_is_refused_before_memory_is_asked_for(size: int, tmp_path: Path) -> None:
    content = written("Platt", tmp_path)
    sealed(changed(content, ("shape", "vocabulary"), size), tmp_path)
    with pytest.raises(StoreError, match=r"weight|vocabulary"):
        from_pretrained(tmp_path)
    content = written("ATS", tmp_path)
    for name in ("hidden_size", "intermediate_size", "heads"):
        sealed(changed(content, ("shape", name), size), tmp_path)
        with pytest.raises(StoreError, match=r"shape|not torch\.float32 of"):
            from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "file", ["../../etc/passwd", "/etc/passwd", "weights/../model.safetensors", "", None, 3]
)
def test_no_other_file_of_weights_can_be_named(file: Any, tmp_path: Path) -> None:
    content = written("Platt", tmp_path)
    sealed(changed(content, ("weights", "file"), file), tmp_path)
    with pytest.raises(StoreError, match=r"weights\.file: "):
        from_pretrained(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["recalibrator.json", "model.safetensors"])
def test_a_link_to_a_file_elsewhere_is_not_read(kind: str, name: str, tmp_path: Path) -> None:
    folder = tmp_path / "one"
    written(kind, folder)
    elsewhere = tmp_path / "elsewhere"
    path = folder / name
    if path.exists():
        path.rename(elsewhere)
    else:
        elsewhere.write_text("a secret")
    path.symlink_to(elsewhere)
    with pytest.raises(StoreError, match=rf"{name}: .*link"):
        from_pretrained(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_links_into_the_blobs_of_the_same_hub_repository_are_read(kind: str, tmp_path: Path) -> None:
    repository = tmp_path / "models--me--mine"
    folder = repository / "snapshots" / "0123abc"
    written(kind, folder)
    (repository / "blobs").mkdir()
    for number, path in enumerate(sorted(folder.iterdir())):
        path.rename(repository / "blobs" / str(number))
        path.symlink_to(Path("../../blobs", str(number)))
    used(folder)
    (tmp_path / "own").symlink_to(folder)  # the whole folder may be a link
    used(tmp_path / "own")
    other = tmp_path / "models--you--yours" / "snapshots" / "0123abc"
    other.mkdir(parents=True)
    (other / "recalibrator.json").symlink_to(repository / "blobs" / "0")
    with pytest.raises(StoreError, match="link"):
        from_pretrained(other)
