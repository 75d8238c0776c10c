"""The cross-encoder: verdicts as plain transformers gives them, whatever the batch; errors that help."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_nli
import torch

from semcal.demo.paths import nli_model_dir
from semcal.errors import ModelError, SemcalWarning
from semcal.models import nli
from semcal.models.loading import load_equivalence
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


@pytest.mark.parametrize("labels", [{0: "entailment", 1: "neutral", 2: "contradiction"}, tiny_nli.LABELS])
def test_the_label_order_comes_from_the_config(labels, tmp_path):
    directory = tiny_nli.save(tmp_path / "m", labels=labels)
    asked = triples(30)
    expected = plain_verdicts(tiny_nli.model("bert", labels=labels), tiny_nli.tokenizer("bert"), asked)
    assert load_equivalence(directory, device="cpu").entails(asked) == expected


def test_a_model_of_two_labels_is_enough(tmp_path):
    labels = {0: "not_entailment", 1: "entailment"}
    asked = triples(30)
    tiny = tiny_nli.model("bert", labels=labels, seed=19)
    expected = plain_verdicts(tiny, tiny_nli.tokenizer("bert"), asked)
    loaded = load_equivalence(tiny_nli.save(tmp_path / "m", labels=labels, seed=19), device="cpu")
    assert loaded.entails(asked) == expected
    assert 0 < sum(expected) < 30


@pytest.mark.parametrize(
    "labels",
    [
        {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"},
        {0: "entailment", 1: "Entailment", 2: "neutral"},
        {0: "entailment"},
        {0: "not_entailment", 1: "contradiction"},
    ],
)
def test_labels_without_one_entailment_are_an_error_that_says_what_to_set(labels):
    with pytest.raises(ModelError, match=r"some-model does not say.*Set id2label in its config\.json"):
        entailment_index(labels, name="some-model")


def test_a_checkpoint_with_nameless_labels_is_refused_by_name(tmp_path):
    directory = tiny_nli.save(tmp_path / "nameless", labels={0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"})
    with pytest.raises(ModelError, match=r"nameless.*LABEL_0.*Set id2label"):
        load_equivalence(directory, device="cpu")


def test_a_checkpoint_without_a_trained_head_is_refused(tmp_path):
    directory = tiny_nli.save(tmp_path / "m")
    tiny_nli.model("bert").bert.save_pretrained(directory)
    config = json.loads((directory / "config.json").read_text())
    config["id2label"] = {str(index): label for index, label in tiny_nli.LABELS.items()}
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"lack.*classifier"):
        load_equivalence(directory, device="cpu")


def test_a_directory_that_is_not_there_is_an_error_that_names_it(tmp_path):
    with pytest.raises(ModelError, match="nowhere"):
        load_equivalence(tmp_path / "nowhere", device="cpu")


def test_a_tokenizer_without_padding_is_refused():
    tokenizer = tiny_nli.tokenizer("bert")
    tokenizer.pad_token = None
    with pytest.raises(ModelError, match="padding token"):
        CrossEncoder(tiny_nli.model("bert"), tokenizer, name="m", revision="1")


@pytest.mark.parametrize("family", tiny_nli.FAMILIES)
@pytest.mark.parametrize("budget", [1, 300])
def test_the_batch_size_changes_no_verdict(family, budget, monkeypatch):
    encoder = CrossEncoder(tiny_nli.model(family), tiny_nli.tokenizer(family), name="m", revision="1")
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
    encoder = CrossEncoder(model, tiny_nli.tokenizer("bert"), name="m", revision="1")
    assert encoder.entails(triples(5)) == [True] * 5
    assert model.sizes == [5, 1, 1, 1, 1, 1]


def test_logits_that_are_not_finite_are_an_error():
    model = tiny_nli.model("bert")
    with torch.no_grad():
        model.classifier.bias[0] = torch.nan
    with pytest.raises(ModelError, match="not finite"):
        CrossEncoder(model, tiny_nli.tokenizer("bert"), name="m", revision="1").entails(triples(1))


@pytest.mark.parametrize("family", tiny_nli.FAMILIES)
def test_pairs_too_long_for_the_model_lose_the_beginning_of_the_question_and_say_so_once(family):
    tokenizer = tiny_nli.tokenizer(family)
    encoder = CrossEncoder(tiny_nli.model(family), tokenizer, name="m", revision="1")
    long = ("one two three four five six seven eight " * 12, "red", "blue")
    with pytest.warns(SemcalWarning, match=r"beginning of the question is cut \(1 of 4 pairs here\)"):
        encoder.entails([*triples(3), long])
    encoder.entails([long])  # no second warning: warnings are errors
    assert encoder.truncated == 2
    ids = encoder._encode([long])[0]["input_ids"]
    assert len(ids) <= tiny_nli.POSITIONS
    text = tokenizer.decode(ids)
    assert "red" in text
    assert "blue" in text
    assert "question" not in text.lower()


def test_a_position_table_that_reserves_places_for_padding_is_never_overrun():
    encoder = CrossEncoder(tiny_nli.model("roberta"), tiny_nli.tokenizer("roberta"), name="m", revision="1")
    with pytest.warns(SemcalWarning, match="at most 62 tokens"):
        assert len(encoder.entails([("nine " * 200, "red", "blue")])) == 1


def test_name_and_revision_tell_checkpoints_apart(tmp_path):
    one, other = (tiny_nli.save(tmp_path / str(seed) / "mini", seed=seed) for seed in (0, 1))
    first, second, again = (load_equivalence(path, device="cpu") for path in (one, other, one))
    assert (first.name, second.name) == ("mini", "mini")
    assert first.revision == again.revision != second.revision


def test_nothing_is_printed_while_loading(tmp_path, capfd):
    directory = tiny_nli.save(tmp_path / "m")
    capfd.readouterr()
    load_equivalence(directory, device="cpu", cache=tmp_path / "verdicts.sqlite")
    assert capfd.readouterr() == ("", "")


def test_a_checkpoint_in_half_precision_is_computed_in_float32(tmp_path):
    directory: Path = tmp_path / "half"
    tiny_nli.model("bert").half().save_pretrained(directory)
    tiny_nli.tokenizer("bert").save_pretrained(directory)
    asked = triples(30)
    expected = plain_verdicts(tiny_nli.model("bert").half().float(), tiny_nli.tokenizer("bert"), asked)
    assert load_equivalence(directory, device="cpu").entails(asked) == expected


def test_a_pad_token_that_the_model_does_not_know_is_told_when_it_is_loaded(tmp_path):
    folder = shutil.copytree(nli_model_dir(), tmp_path / "nli")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "pad_token": "<nothing>"}))
    with pytest.raises(ModelError, match=r"'<nothing>' beyond the \d+ tokens that the model knows"):
        load_equivalence(folder)
