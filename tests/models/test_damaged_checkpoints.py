"""Checkpoints that are damaged, or made to do harm: one error in words, and nothing of theirs is run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import tiny_nli
import torch
from tiny_engine import flat, sample

import semcal
from semcal.data.question import chat
from semcal.errors import ModelError
from semcal.models.protocols import Prompt
from semcal.recalibration import Base


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tiny_models.save(tmp_path / "tiny")


@pytest.fixture
def nli(tmp_path: Path) -> Path:
    return tiny_nli.save(tmp_path / "nli")


def change(directory: Path, file: str = "config.json", **values: Any) -> None:
    """Write values into a settings file, which need not be there."""
    path = directory / file
    content = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**content, **values}))


def test_an_end_of_text_that_the_model_cannot_draw_ends_nothing(checkpoint: Path) -> None:
    change(checkpoint, "generation_config.json", eos_token_id=[2, -1, 10**19])
    model = semcal.load_model(checkpoint)
    assert model.format.eos == {2}
    prompt = Prompt("q", model.encode(chat("Who?")))
    assert len(flat(sample(model, [Base()], [prompt], m=2, max_new_tokens=2))) == 2


def settings(**values: Any) -> Any:
    """Damage: values in config.json."""
    return lambda directory: change(directory, **values)


def content(file: str, text: str) -> Any:
    """Damage: a file that holds this text."""
    return lambda directory: (directory / file).write_text(text)


def ends(value: Any) -> Any:
    """Damage: this end of a text."""
    return lambda directory: change(directory, "generation_config.json", eos_token_id=value)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (settings(vocab_size="many"), "vocab_size"),
        (settings(num_hidden_layers=0), "layers"),
        (settings(num_hidden_layers=3), r"layers\.2"),
        (settings(num_hidden_layers=10**30), "num_hidden_layers"),
        (settings(num_labels=10**9), "num_labels"),
        (settings(num_key_value_heads=0), "ZeroDivision"),
        (settings(hidden_act="guess"), "'guess'"),
        (settings(max_position_embeddings=[]), "max_position_embeddings"),
        (settings(intermediate_size=48), "weights: .*shapes"),
        (settings(model_type="abacus"), "abacus"),
        (ends("many"), "a value in its files"),
        (settings(quantization_config={"quant_method": "gptq", "bits": 4}), "optimum"),
        (settings(quantization_config={"load_in_4bit": True}), "bitsandbytes"),
        (settings(quantization_config={"quant_method": "fractions", "bits": 4}), "quantization_config"),
        *((content("config.json", text), "configuration") for text in ("[" * 10**5, "[1]")),
        (content("tokenizer_config.json", "[1]"), "tokenizer"),
        (content("tokenizer_config.json", '{"model_max_length": "many"}'), "tiny"),
        (content("tokenizer.json", "{}"), "tokenizer: .*added_tokens"),
        (content("generation_config.json", "[1]"), "weights"),
        (lambda directory: os.truncate(directory / "model.safetensors", 9000), "weights: .*safetensors"),
        (lambda directory: (directory / "model.safetensors").unlink(), "weights"),
        (lambda directory: [path.unlink() for path in directory.glob("*token*")], "tokenizer"),
        (lambda directory: (directory / "config.json").unlink(), r"config\.json"),
    ],
)
def test_a_damaged_checkpoint_is_one_error_that_names_the_value_or_the_part(
    checkpoint: Path, damage: Any, named: str
) -> None:
    damage(checkpoint)
    with pytest.raises(ModelError, match=named):
        semcal.load_model(checkpoint)


@pytest.mark.parametrize("value", [{"id2label": 7}, {"vocab_size": -1}, {"num_hidden_layers": 10**30}])
def test_a_wrong_value_of_an_nli_model_is_one_error(nli: Path, value: dict[str, Any]) -> None:
    change(nli, **value)
    with pytest.raises(ModelError, match="'nli'"):
        semcal.load_equivalence(nli)


class Harm:
    """What a pickle makes when it is loaded: the file `made`."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.made),)


@pytest.fixture(params=["language model", "NLI model"])
def kind(checkpoint: Path, nli: Path, request: Any) -> tuple[Path, Any]:
    """A directory, and what loads it."""
    if request.param == "NLI model":
        return nli, semcal.load_equivalence
    return checkpoint, semcal.load_model


def test_pickled_weights_that_hold_more_than_tensors_are_not_run(
    kind: tuple[Path, Any], tmp_path: Path
) -> None:
    directory, load = kind
    torch.save({"a": Harm(tmp_path / "made")}, directory / "pytorch_model.bin")
    load(directory)  # the safetensors beside it are preferred
    (directory / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=directory.name):
        load(directory)
    assert not (tmp_path / "made").exists()


def test_code_in_a_directory_is_not_run(kind: tuple[Path, Any], tmp_path: Path) -> None:
    directory, load = kind
    (directory / "own.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'made')!r}).touch()")
    for file in ("config.json", "tokenizer_config.json"):
        change(directory, file, auto_map={"AutoConfig": "own.Config", "AutoTokenizer": ["own.Slow", None]})
    load(directory)  # by the classes of transformers
    change(directory, model_type="abacus")
    with pytest.raises(ModelError, match="never run"):
        load(directory)
    assert not (tmp_path / "made").exists()
