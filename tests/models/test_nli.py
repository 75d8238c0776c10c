"""The cross-encoder: verdicts as plain transformers gives them, whatever the batch; errors that help."""

from __future__ import annotations

import json
import random
import shutil
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_nli
import torch

from semcal.demo.paths import nli_model_dir
from semcal.errors import ModelError, SemcalWarning
from semcal.inputs import load_equivalence
from semcal.models import nli
from semcal.models.nli import CrossEncoder, entailment_index

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "old", "new", "red", "mira", "talso", "1620"]


def triples(n: int, *, seed: int = 0) -> list[tuple[str, str, str]]:
    rng = random.Random(seed)
    phrase = lambda longest: " ".join(rng.choices(WORDS, k=rng.randint(1, longest)))  # noqa: E731
    return [(f"Which is {phrase(5)}?", phrase(4), phrase(4)) for _ in range(n)]


def plain_verdicts(model: Any, tokenizer: Any, asked: list[tuple[str, str, str]]) -> list[bool]:
    """One pair at a time through the model's own forward; the label by its name."""
    verdicts = []
    for question, premise, hypothesis in asked:
        first, second = (f"Question: {question}\nAnswer: {answer}" for answer in (premise, hypothesis))
        with torch.no_grad():
            logits = model(**tokenizer(first, second, return_tensors="pt")).logits[0]
        verdicts.append(model.config.id2label[int(logits.argmax())].lower() == "entailment")
    return verdicts


@pytest.mark.parametrize("family", tiny_nli.FAMILIES)
def test_verdicts_are_those_of_plain_transformers_one_pair_at_a_time(family, tmp_path):
    loaded = load_equivalence(tiny_nli.save(tmp_path / family, family), device="cpu")
    asked = triples(40)
    expected = plain_verdicts(tiny_nli.model(family), tiny_nli.tokenizer(family), asked)
    assert loaded.entails(asked) == expected
    assert 10 < sum(expected) < 30


@pytest.mark.parametrize(
    ("labels", "seed"),
    [
        ({0: "entailment", 1: "neutral", 2: "contradiction"}, 8),
        (tiny_nli.LABELS, 8),
        ({0: "not_entailment", 1: "entailment"}, 19),
    ],
)
def test_the_label_order_comes_from_the_config(labels, seed, tmp_path):
    directory = tiny_nli.save(tmp_path / "m", labels=labels, seed=seed)
    asked, tokenizer = triples(30), tiny_nli.tokenizer("bert")
    expected = plain_verdicts(tiny_nli.model("bert", labels=labels, seed=seed), tokenizer, asked)
    assert load_equivalence(directory, device="cpu").entails(asked) == expected
    assert 0 < sum(expected) < 30


@pytest.mark.parametrize(
    "labels",
    [
        {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"},
        {0: "entailment", 1: "Entailment", 2: "neutral"},
        {0: "entailment"},
    ],
)
def test_labels_without_one_entailment_are_an_error_that_says_what_to_set(labels):
    with pytest.raises(ModelError, match=r"some-model.*id2label"):
        entailment_index(labels, name="some-model")


def test_a_checkpoint_without_a_trained_head_is_refused(tmp_path):
    directory = tiny_nli.save(tmp_path / "m")
    tiny_nli.model("bert").bert.save_pretrained(directory)
    config = json.loads((directory / "config.json").read_text())
    config["id2label"] = {str(index): label for index, label in tiny_nli.LABELS.items()}
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"classifier.*missing in its files"):
        load_equivalence(directory, device="cpu")


@pytest.mark.parametrize(("pad", "named"), [(None, "padding token"), ("<nothing>", "'<nothing>'")])
def test_a_tokenizer_without_padding_or_with_one_that_the_model_does_not_know_is_refused(
    pad, named, tmp_path
):
    folder = shutil.copytree(nli_model_dir(), tmp_path / "nli")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "pad_token": pad}))
    with pytest.raises(ModelError, match=named):
        load_equivalence(folder)


def encoder_of(family: str = "bert", model: Any = None) -> CrossEncoder:
    return CrossEncoder(model or tiny_nli.model(family), tiny_nli.tokenizer(family), name="m", revision="1")


@pytest.mark.parametrize("family", tiny_nli.FAMILIES)
@pytest.mark.parametrize("budget", [1, 300])
def test_the_batch_size_changes_no_verdict(family, budget, monkeypatch):
    encoder = encoder_of(family)
    asked = triples(40, seed=1)
    expected = encoder.entails(asked)
    monkeypatch.setitem(nli.BATCH_TOKENS, "cpu", budget)
    assert encoder.entails(asked) == expected
    assert encoder.entails(asked[::-1]) == expected[::-1]


class Wavering(torch.nn.Module):
    """Its margin is +0.00005 for a pair that is run alone, and -0.00005 in company."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(id2label={0: "entailment", 1: "other"}, max_position_embeddings=512)
        self.device = torch.device("cpu")
        self.sizes: list[int] = []

    def forward(self, input_ids: torch.Tensor, **_: torch.Tensor) -> Any:
        self.sizes.append(len(input_ids))
        margin = 5e-5 if len(input_ids) == 1 else -5e-5
        return SimpleNamespace(logits=torch.tensor([[margin, 0.0]] * len(input_ids)))


def test_a_close_verdict_is_decided_by_the_pair_run_alone():
    model = Wavering()
    encoder = encoder_of(model=model)
    assert encoder.entails(triples(5)) == [True] * 5
    assert model.sizes == [5, 1, 1, 1, 1, 1]


def test_logits_that_are_not_finite_are_an_error():
    model = tiny_nli.model("bert")
    with torch.no_grad():
        model.classifier.bias[0] = torch.nan
    with pytest.raises(ModelError, match="finite"):
        encoder_of(model=model).entails(triples(1))


@pytest.mark.parametrize("family", tiny_nli.FAMILIES)
def test_pairs_too_long_for_the_model_lose_the_beginning_of_the_question_and_say_so_once(family):
    encoder = encoder_of(family)
    long = ("one two three four five six seven eight " * 12, "red", "blue")
    with pytest.warns(SemcalWarning, match="1 of 4"):
        encoder.entails([*triples(3), long])
    encoder.entails([long])  # no second warning: warnings are errors
    ids = encoder._encode([long])[0]["input_ids"]
    assert len(ids) <= tiny_nli.POSITIONS - 2 * (family == "roberta")  # which reserves places for padding
    text = tiny_nli.tokenizer(family).decode(ids).lower()
    assert [word in text for word in ("red", "blue", "question")] == [True, True, False]


def test_a_checkpoint_in_half_precision_is_computed_in_float32(tmp_path):
    directory = tiny_nli.save(tmp_path)
    tiny_nli.model("bert").half().save_pretrained(directory)
    asked = triples(30)
    expected = plain_verdicts(tiny_nli.model("bert").half().float(), tiny_nli.tokenizer("bert"), asked)
    assert load_equivalence(directory, device="cpu").entails(asked) == expected
