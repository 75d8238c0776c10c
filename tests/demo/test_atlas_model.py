"""The language model that comes with the package: its files, its start, and what it can do."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from semcal.demo.paths import (
    language_model_dir,
    mistral_model_dir,
    qwen2_model_dir,
    recalibrator_dir,
)
from semcal.demo.questions import SETS, load_set
from semcal.grading.rules import RuleGrader
from semcal.meaning.answer import first_answer
from semcal.models import load_model
from semcal.models.prompting import PromptConfig
from semcal.recalibration import Base, from_pretrained
from tools.atlas.copying import start_copying

#: Greedy accuracy on validation questions that each set was made for.
REGIMES = {"atlas-trivia": (0.55, 0.75), "atlas-rare": (0.25, 0.45), "atlas-reading": (0.85, 0.97)}


SHAPES = {"llama": language_model_dir(), "qwen2": qwen2_model_dir(), "mistral": mistral_model_dir()}


@pytest.mark.parametrize("folder", SHAPES.values(), ids=SHAPES)
def test_the_weights_are_float16_and_below_15_megabytes(folder: Path) -> None:
    path = folder / "model.safetensors"
    assert path.stat().st_size <= 15e6
    with safe_open(path, framework="pt") as weights:
        assert {str(weights.get_tensor(key).dtype) for key in weights.keys()} == {"torch.float16"}  # noqa: SIM118


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


def test_a_fresh_model_copies_what_repeats_before_any_training() -> None:
    config = LlamaConfig(
        vocab_size=2000, hidden_size=256, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        rope_parameters={"rope_type": "default", "rope_theta": 200_000.0},
    )  # fmt: skip
    model = start_copying(LlamaForCausalLM(config), 0).eval()
    tokens = random.Random(0).sample(range(10, 2000), 60)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[1, *tokens, *tokens]])).logits[0]
    copied = logits[62:-1].argmax(-1) == torch.tensor(tokens[2:])
    assert copied.float().mean() > 0.7


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
