"""The language model that comes with the package: its files, its start, and what it can do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from semcal.demo import questions as stored
from semcal.demo.paths import (
    language_model_dir,
    mistral_model_dir,
    nli_model_dir,
    qwen2_model_dir,
    recalibrator_dir,
)
from semcal.demo.questions import SETS, load_set
from semcal.errors import UsageError
from semcal.grading.rules import RuleGrader
from semcal.meaning.answer import first_answer
from semcal.models import load_model
from semcal.models.prompting import PromptConfig
from semcal.recalibration import Base, from_pretrained
from tools.atlas import nli
from tools.atlas.nli_pairs import LABELS, Pair, pairs
from tools.atlas.questions import data_files

#: Greedy accuracy on validation questions that each set was made for.
REGIMES = {"atlas-trivia": (0.55, 0.75), "atlas-rare": (0.25, 0.45), "atlas-reading": (0.85, 0.97)}


SHAPES = {"llama": language_model_dir(), "qwen2": qwen2_model_dir(), "mistral": mistral_model_dir()}


@pytest.mark.parametrize("folder", [*SHAPES.values(), nli_model_dir()], ids=[*SHAPES, "nli"])
def test_the_weights_are_float16_and_below_15_megabytes(folder: Path) -> None:
    path = folder / "model.safetensors"
    assert path.stat().st_size <= 15e6
    with safe_open(path, framework="pt") as weights:
        tensors = [weights.get_tensor(key) for key in weights.keys()]  # noqa: SIM118
    assert {tensor.dtype for tensor in tensors if tensor.is_floating_point()} == {torch.float16}
    assert sum(tensor.numel() for tensor in tensors) <= (3e6 if folder == nli_model_dir() else 6e6)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_a_plain_hugging_face_directory_with_a_training_log(shape: str) -> None:
    folder = SHAPES[shape]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert 2e6 <= sum(p.numel() for p in model.parameters()) <= 6e6
    assert tokenizer.chat_template
    assert "post-training" in (folder / "training.log").read_text()
    assert json.loads((folder / "config.json").read_text())["model_type"] == shape


def test_its_recalibrator_was_fitted_on_these_weights() -> None:
    _, provenance = from_pretrained(recalibrator_dir())
    model = load_model(language_model_dir())
    provenance.check(
        model=model.name,
        revision=model.revision,
        prompt_hash=PromptConfig.from_description(provenance.prompt).hash(model),
    )


def test_the_texts_of_sampled_tokens_are_together_their_text() -> None:
    spoken = load_model(language_model_dir()).format
    for text in ('{"city": "Orléans", "n": [1, null]}', "日本 and 7 €", ""):
        ids = spoken.tokenizer.encode(text, add_special_tokens=False)
        assert "".join(spoken.pieces(ids)) == spoken.text(ids)
        assert len(spoken.pieces(ids)) == len(ids)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_greedy_answers_to_validation_questions_are_in_their_regime(name: str) -> None:
    model, one, grader = load_model(language_model_dir()), load_set(name), RuleGrader()
    prompts = PromptConfig(one.few_shot).prompts(model, one.validation)
    answers = model.greedy(prompts, recalibrator=Base(), max_new_tokens=24)
    right = [
        grader.grade(question.question, [first_answer(answer.text).text], question.answers).correct
        for question, answer in zip(one.validation, answers)
    ]
    low, high = REGIMES[name]
    assert low <= sum(right) / len(right) <= high


# ---- The world of Atlas, its wordings and its question sets: the same everywhere, disjoint, complete -------

_FINGERPRINT = """
import hashlib, sys
from semcal.demo.questions import SETS, load_set
from tools.atlas.questions import facts_by_use
from tools.atlas.world import build_world
text = repr((build_world().facts, facts_by_use()["training"], [load_set(name) for name in SETS]))
assert "torch" not in sys.modules
print(hashlib.sha256(text.encode()).hexdigest())
"""


def test_world_and_questions_are_those_that_the_shipped_models_learnt():
    prints = {
        subprocess.run(
            [sys.executable, "-c", _FINGERPRINT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert prints == {"1b2e4e6e8fe495043d972397d6675c26a8a5fdad1ed8f8562f1859dbf73eed06"}


def test_the_package_holds_exactly_what_the_generator_makes():
    folder = Path(stored.__file__).parent
    for name, text in data_files().items():
        assert (folder / name).read_text(encoding="utf-8") == text, "run python -m tools.atlas.questions"


def test_an_unknown_set_is_refused_with_the_names_of_the_known():
    with pytest.raises(UsageError, match="atlas-reading"):
        load_set("atlas-history")


# ---- The shipped NLI model of Atlas, and how it is trained -------------------------------------------------


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
