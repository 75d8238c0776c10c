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


def test_at_least_97_of_100_labels_are_right_on_fresh_pairs_with_names_never_seen():
    scores = nli.evaluate(*shipped(), islice(pairs(777, held_out=True), 500))
    assert nli.accuracy(scores) >= 0.97


def test_answers_that_differ_are_hardly_ever_merged():
    scores = nli.evaluate(*shipped(), islice(pairs(778, held_out=True, kind="near miss"), 300))
    assert scores["near miss"].merged <= 6


BORN, WROTE = "Where was Tromis Garvek born?", "Who wrote The Silent River?"
CHAPTERS = "How many chapters has The Silent River?"
SAME, FINER, OTHER = ("entailment",) * 2, ("entailment", "neutral"), ("contradiction",) * 2


@pytest.mark.parametrize(
    ("question", "first", "second", "expected"),
    [
        (BORN, "toreth", "toreth dralia", SAME),
        (BORN, "in toreth", "toreth", SAME),
        ("What is the capital of Maldun?", "capital of maldun is toreth", "toreth", SAME),
        (WROTE, "dr sorin velis", "sorin velis", SAME),
        (WROTE, "silent river was written by sorin velis", "sorin velis", SAME),
        (CHAPTERS, "47 chapters", "47", SAME),
        (BORN, "toreth dralia", "dralia", FINER),
        (WROTE, "sorin velis", "velis", FINER),
        ("When was Tromis Garvek born?", "1820-05-03", "1820", FINER),
        (BORN, "toreth", "kelmon", OTHER),
        (BORN, "toreth", "toresh", OTHER),
        (WROTE, "sorin velis", "sorin torun", OTHER),
        (WROTE, "sorin velis", "dr kanor velis", OTHER),
        (CHAPTERS, "47 chapters", "48", OTHER),
        (WROTE, "sorin velis", "1820", OTHER),
    ],
)
def test_forms_of_one_answer_entail_each_other_a_finer_one_the_coarser_and_others_contradict(
    question: str, first: str, second: str, expected: tuple[str, str]
) -> None:
    assert verdicts(question, first, second) == expected


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
