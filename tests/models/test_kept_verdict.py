"""The engine's comparison with the plain model is made once for a checkpoint, and its verdict kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_models import save

import semcal
from semcal.errors import SemcalWarning
from semcal.models.distribution import Base
from semcal.models.engine import tree_cache
from semcal.models.protocols import Prompt


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("model"))


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The networks that were compared with their models."""
    networks: list[Any] = []
    plain = tree_cache._expected_logits

    def expected(network: Any) -> Any:
        networks.append(network)
        return plain(network)

    monkeypatch.setattr(tree_cache, "_expected_logits", expected)
    return networks


def verdicts(cache: Path) -> list[Path]:
    return sorted((cache / "attention").glob("*.json")) if (cache / "attention").exists() else []


def log_probs(directory: Path) -> list[float]:
    model = semcal.load_model(directory, device="cpu")
    assert model.attention == "three levels"
    prompts = [Prompt("a", (1, 5, 9, 7)), Prompt("b", (1, 5, 9, 8, 3))]
    scores = model.score(prompts, [[(4, 6)], [(2, 8, 9)]], recalibrator=Base())
    return [value for of_prompt in scores for answer in of_prompt for value in answer]


def test_the_second_load_compares_nothing_and_gives_the_same_numbers(
    directory: Path, compared: list[Any], own_cache: Path
) -> None:
    first = log_probs(directory)
    assert (len(compared), len(verdicts(own_cache))) == (1, 1)
    assert log_probs(directory) == first
    assert len(compared) == 1


def test_what_the_verdict_depends_on_is_compared_anew(
    directory: Path, compared: list[Any], own_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    semcal.load_model(directory, device="cpu")
    semcal.load_model(directory, device="cpu", dtype="bfloat16")
    assert len(compared) == 2
    semcal.load_model(save(tmp_path / "other", seed=7), device="cpu")
    assert len(compared) == 3
    monkeypatch.setattr(tree_cache.transformers, "__version__", "5.0.99")
    semcal.load_model(directory, device="cpu")
    assert (len(compared), len(verdicts(own_cache))) == (4, 4)


def test_a_model_in_memory_is_always_compared(directory: Path, compared: list[Any], own_cache: Path) -> None:
    known = semcal.load_model(directory, device="cpu")
    for _ in range(2):
        semcal.models.CausalLanguageModel(known.network.model, known.tokenizer, name="mine", revision="r1")
    assert (len(compared), len(verdicts(own_cache))) == (3, 1)


@pytest.mark.parametrize("damage", ["text", "sizes", "folder", "no cache"])
def test_a_verdict_that_cannot_be_read_is_made_again(
    directory: Path, compared: list[Any], own_cache: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = log_probs(directory)
    (path,) = verdicts(own_cache)
    found = json.loads(path.read_text())
    if damage == "text":
        path.write_text(path.read_text()[:-20])
    elif damage == "no cache":
        monkeypatch.setenv("SEMCAL_CACHE", str(path))
    elif damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_text(json.dumps(found | {"width": 3}))
    assert log_probs(directory) == first
    assert len(compared) == 2
    if damage not in ("folder", "no cache"):
        assert json.loads(path.read_text()) == found


def test_the_fallback_is_told_of_every_time(
    directory: Path, compared: list[Any], own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("no attention of ours")

    monkeypatch.setattr(tree_cache, "_patch", refuse)
    for _ in range(2):
        with pytest.warns(SemcalWarning, match="runs in the plain way"):
            assert semcal.load_model(directory, device="cpu").attention == "plain"
    assert (len(compared), verdicts(own_cache)) == (2, [])
