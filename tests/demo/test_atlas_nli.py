"""The shipped NLI model of Atlas, and how it is trained."""

from __future__ import annotations

from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from semcal.demo.paths import nli_model_dir
from tools.atlas import nli
from tools.atlas.nli_pairs import LABELS, Pair, pairs

WEIGHTS = nli_model_dir() / "model.safetensors"


@cache
def shipped() -> tuple[Any, Any]:
    """The model and tokenizer, loaded as any user's."""
    folder = nli_model_dir()
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(folder)


def verdicts(question: str, first: str, second: str) -> tuple[str, str]:
    """Labels of both directions."""
    pair = Pair("", question, first, second, 0, 0)
    forward, backward = nli.predict(*shipped(), [pair, pair.reversed()])
    return LABELS[forward], LABELS[backward]


def test_weights_are_float16_and_small():
    assert WEIGHTS.stat().st_size <= 15_000_000
    with safe_open(WEIGHTS, "pt") as file:
        tensors = [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118
    assert {tensor.dtype for tensor in tensors if tensor.is_floating_point()} == {torch.float16}
    assert sum(tensor.numel() for tensor in tensors) <= 3_000_000


def test_the_config_names_the_three_labels():
    config = shipped()[0].config
    assert [config.id2label[index] for index in range(3)] == list(LABELS)


def test_the_folder_holds_a_plain_checkpoint_and_the_log_of_its_making():
    names = {path.name for path in nli_model_dir().iterdir()}
    assert {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "training.log",
    } <= names


def test_at_least_97_of_100_labels_are_right_on_fresh_pairs_with_names_never_seen():
    scores = nli.evaluate(*shipped(), islice(pairs(777, held_out=True), 500))
    assert nli.accuracy(scores) >= 0.97


def test_answers_that_differ_are_hardly_ever_merged():
    scores = nli.evaluate(*shipped(), islice(pairs(778, held_out=True, kind="near miss"), 300))
    assert scores["near miss"].merged <= 6


@pytest.mark.parametrize(
    ("question", "first", "second"),
    [
        ("Where was Tromis Garvek born?", "toreth", "toreth dralia"),
        ("Where was Tromis Garvek born?", "in toreth", "toreth"),
        ("What is the capital of Maldun?", "capital of maldun is toreth", "toreth"),
        ("Who wrote The Silent River?", "dr sorin velis", "sorin velis"),
        ("Who wrote The Silent River?", "silent river was written by sorin velis", "sorin velis"),
        ("How many chapters has The Silent River?", "47 chapters", "47"),
    ],
)
def test_forms_of_one_answer_entail_each_other(question, first, second):
    assert verdicts(question, first, second) == ("entailment", "entailment")


@pytest.mark.parametrize(
    ("question", "first", "second"),
    [
        ("Where was Tromis Garvek born?", "toreth dralia", "dralia"),
        ("Who wrote The Silent River?", "sorin velis", "velis"),
        ("When was Tromis Garvek born?", "1820-05-03", "1820"),
    ],
)
def test_the_more_specific_answer_entails_the_other_and_not_the_reverse(question, first, second):
    assert verdicts(question, first, second) == ("entailment", "neutral")


@pytest.mark.parametrize(
    ("question", "first", "second"),
    [
        ("Where was Tromis Garvek born?", "toreth", "kelmon"),
        ("Where was Tromis Garvek born?", "toreth", "toresh"),
        ("Who wrote The Silent River?", "sorin velis", "sorin torun"),
        ("Who wrote The Silent River?", "sorin velis", "dr kanor velis"),
        ("How many chapters has The Silent River?", "47 chapters", "48"),
        ("Who wrote The Silent River?", "sorin velis", "1820"),
    ],
)
def test_other_answers_contradict_each_other(question, first, second):
    assert verdicts(question, first, second) == ("contradiction", "contradiction")


def test_the_tokenizer_cuts_names_into_syllables_and_keeps_the_two_sides_apart():
    tokenizer = nli.build_tokenizer()
    encoded = tokenizer("toreth", "toreth")
    assert encoded["token_type_ids"] == sorted(encoded["token_type_ids"])
    assert tokenizer.unk_token_id not in encoded["input_ids"]


def test_the_shipped_tokenizer_is_the_one_that_the_code_builds():
    text = ("Question: Who taught Ana Toreth?\nAnswer: dr velis", "Answer: 1820-05-03")
    assert dict(shipped()[1](*text)) == dict(nli.build_tokenizer()(*text))


def test_training_repeats_itself_and_leaves_the_global_generator_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(nli, "STEPS", 2)
    monkeypatch.setattr(nli, "FINAL_PAIRS", 20)
    state = torch.get_rng_state()
    lines: list[str] = []
    for name in ("one", "two"):
        nli.train(tmp_path / name, seed=5, log=lines.append)
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two
    assert torch.equal(state, torch.get_rng_state())
    assert (tmp_path / "two" / "training.log").read_text(encoding="utf-8").splitlines() == lines[
        len(lines) // 2 :
    ]
