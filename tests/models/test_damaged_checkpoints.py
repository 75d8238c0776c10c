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
from transformers import CanineConfig, DogeConfig, PretrainedConfig

import semcal
from semcal.data.question import chat
from semcal.errors import ModelError
from semcal.hub_names import LANGUAGE_MODEL, locate
from semcal.models.language_model import Prompt, SampleRequest
from semcal.models.loading import check_settings
from semcal.recalibration import Base


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tiny_models.save(tmp_path / "tiny")


@pytest.fixture
def nli(tmp_path: Path) -> Path:
    tiny_nli.model("bert").save_pretrained(tmp_path / "nli")
    tiny_nli.tokenizer("bert").save_pretrained(tmp_path / "nli")
    return tmp_path / "nli"


def change(directory: Path, file: str = "config.json", **values: Any) -> None:
    """Write values into a settings file, which need not be there."""
    path = directory / file
    content = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**content, **values}))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"vocab_size": 0}, "its config.json says vocab_size = 0; at least 1 is needed"),
        ({"vocab_size": "many"}, "its configuration: .*vocab_size"),
        ({"num_hidden_layers": 0}, "says num_hidden_layers = 0; at least 1"),
        ({"num_hidden_layers": 10**30}, r"says num_hidden_layers = 10{19}…; no model has more than 100000"),
        ({"text_config": {"num_hidden_layers": 10**9}}, "says num_hidden_layers = 1000000000…"),
        ({"num_labels": 10**9}, "says num_labels"),
        ({"num_key_value_heads": 0}, "its weights: a value in its files is wrong or missing .ZeroDivision"),
        ({"hidden_act": "guess"}, "a value in its files is wrong or missing .KeyError: 'guess'"),
        ({"max_position_embeddings": []}, "its configuration: .*max_position_embeddings"),
        ({"intermediate_size": 48}, "its weights: their shapes are not those that its config.json says"),
        ({"eos_token_id": [2, 1.5]}, "eos_token_id"),
        ({"quantization_config": {"quant_method": "guess"}}, "'guess'}, whose quant_method .* not know; use"),
        ({"quantization_config": 7}, "quantization_config = 7, whose quant_method"),
        ({"quantization_config": {"bits": 4}}, "quant_method transformers does not know"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "its weights: .*requires optimum"),
        (
            {"quantization_config": {"load_in_4bit": True}},
            "its weights: .*bitsandbytes",
        ),
    ],
)
def test_a_wrong_value_in_the_configuration_is_one_error_that_names_it(
    checkpoint: Path, values: dict[str, Any], reason: str
) -> None:
    change(checkpoint, **values)
    with pytest.raises(ModelError, match=reason):
        semcal.load_model(checkpoint)


@pytest.mark.parametrize("kind", [CanineConfig, DogeConfig])  # hash buckets and experts: 16384
def test_the_largest_counts_of_known_models_are_taken(tmp_path: Path, kind: type[PretrainedConfig]) -> None:
    kind().save_pretrained(tmp_path)
    check_settings("a model", locate(str(tmp_path), LANGUAGE_MODEL))


@pytest.mark.parametrize("value", ["many", "", True, [2, 1.5], {"a": 1}])
def test_an_end_of_text_that_is_no_token_is_named(checkpoint: Path, value: Any) -> None:
    change(checkpoint, "generation_config.json", eos_token_id=value)
    with pytest.raises(ModelError, match=r"eos_token_id is .* a token's number is needed"):
        semcal.load_model(checkpoint)


def test_an_end_of_text_that_the_model_cannot_draw_ends_nothing(checkpoint: Path) -> None:
    change(checkpoint, "generation_config.json", eos_token_id=[2, -1, 10**19])
    model = semcal.load_model(checkpoint)
    assert model.format.eos == {2}
    prompt = Prompt("q", model.encode(chat("Who?")))
    assert (
        len(model.sample(SampleRequest([prompt], recalibrators=[Base()], m=2, max_new_tokens=2))[0][0][0])
        == 2
    )


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("config.json", "[" * 10**5, "its configuration: "),
        ("config.json", "[1]", "its configuration: "),
        ("tokenizer_config.json", "[1]", "its tokenizer: a value in its files is wrong"),
        ("tokenizer_config.json", '{"model_max_length": "many"}', "a value in its files is wrong"),
        ("tokenizer.json", "{}", "its tokenizer: .*added_tokens"),
        ("generation_config.json", "[1]", "its weights: a value in its files is wrong"),
    ],
)
def test_a_damaged_file_is_one_error(checkpoint: Path, file: str, content: str, reason: str) -> None:
    (checkpoint / file).write_text(content)
    with pytest.raises(ModelError, match=f"cannot load the language model 'tiny': {reason}"):
        semcal.load_model(checkpoint)


class Harm:
    """What a pickle makes when it is loaded: the file `made`."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.made),)


@pytest.mark.parametrize("kind", ["language model", "NLI model"])
def test_pickled_weights_that_hold_more_than_tensors_are_not_run(
    checkpoint: Path, nli: Path, tmp_path: Path, kind: str
) -> None:
    directory, load = {
        "language model": (checkpoint, semcal.load_model),
        "NLI model": (nli, semcal.load_equivalence),
    }[kind]
    torch.save({"a": Harm(tmp_path / "made")}, directory / "pytorch_model.bin")
    load(directory)  # the safetensors beside it are preferred
    (directory / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=f"{kind} .* more than tensors, and no such code is run; use"):
        load(directory)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "processor_config.json"])
@pytest.mark.parametrize("kind", ["language model", "NLI model"])
def test_a_directory_that_asks_for_code_of_its_own_is_refused_by_name(
    checkpoint: Path, nli: Path, file: str, kind: str
) -> None:
    directory, load, known = {
        "language model": (checkpoint, semcal.load_model, "llama"),
        "NLI model": (nli, semcal.load_equivalence, "bert"),
    }[kind]
    change(directory, file, auto_map={"AutoConfig": "own.Config", "AutoTokenizer": ["own.Slow", None]})
    with pytest.raises(ModelError) as caught:
        load(directory)
    assert f"{directory / file} asks for code of its own (auto_map: own.Config, " in str(caught.value)
    assert f"transformers has a {known} of its own: take auto_map out of {file}" in str(caught.value)
    change(directory, model_type="abacus")
    with pytest.raises(ModelError, match="transformers itself does not know 'abacus': use a checkpoint"):
        load(directory)


@pytest.mark.parametrize("value", [{"id2label": 7}, {"vocab_size": -1}, {"num_hidden_layers": 10**30}])
def test_a_wrong_value_of_an_nli_model_is_one_error(nli: Path, value: dict[str, Any]) -> None:
    change(nli, **value)
    with pytest.raises(ModelError, match="cannot load the NLI model 'nli': its config"):
        semcal.load_equivalence(nli)
