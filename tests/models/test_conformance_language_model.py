"""What every LanguageModel promises beside what every Sampler does, held by fakes and by tiny checkpoints."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny_models
import torch
from tiny_engine import sample

from semcal.data.question import Question, chat
from semcal.errors import UsageError
from semcal.models import load_model
from semcal.models.fakes import FakeLanguageModel
from semcal.models.protocols import LanguageModel, Prompt
from semcal.recalibration import SE, Base, Temperature

QUESTIONS = [
    "Who painted the lighthouse of Orvane?",
    "When was it built?",
    "Which river runs through Belmar?",
]
ANSWERS = ["Mira Talso.", "1875.", "The Sull."]
SHOTS = [Question("shot", "Who built the mill?", ("Odo Brand",))]
TABLE = {
    QUESTIONS[0]: {"Mira Talso.": 0.4, "Mira T.": 0.2, "Odo Brand.": 0.3, "": 0.1},
    QUESTIONS[1]: {
        "1875.": 0.4,
        "In 1875.": 0.35,
        "In the year 1875, as far as anybody now alive can tell.": 0.25,
    },
    QUESTIONS[2]: {"The Sull.": 0.6, "The Tarn.": 0.4},
}


@pytest.fixture(scope="module", params=("fake", "exact fake", "llama", "gpt2"))
def model(request: Any, tmp_path_factory: Any) -> LanguageModel:
    if "fake" in request.param:
        return FakeLanguageModel(TABLE, floor=-math.inf if "exact" in request.param else -100.0)
    template = None if request.param == "gpt2" else tiny_models.TEMPLATE
    folder = tmp_path_factory.mktemp(request.param)
    return load_model(tiny_models.save(folder, request.param, template=template), device="cpu")


@pytest.fixture(scope="module")
def prompts(model: LanguageModel) -> list[Prompt]:
    return [Prompt(f"id-{i}", model.encode(chat(q, few_shot=SHOTS))) for i, q in enumerate(QUESTIONS)]


def answer(model: LanguageModel, question: str, text: str) -> tuple[int, ...]:
    return model.encode_answer(chat(question, few_shot=SHOTS), text)


@pytest.fixture(scope="module")
def answers(model: LanguageModel) -> list[list[tuple[int, ...]]]:
    return [[answer(model, q, text), answer(model, q, "")] for q, text in zip(QUESTIONS, ANSWERS)]


def test_an_answer_ends_in_one_end_of_turn_and_is_scored_token_by_token(model, prompts, answers):
    for prompt, (ids, (*_, end)) in zip(prompts, answers):
        assert ids[-1] == end
        assert end not in ids[:-1]
        ((scores,),) = model.score([prompt], [[ids]], recalibrator=Base())
        assert len(scores) == len(ids)
        assert max(scores) <= 1e-6


def test_the_log_probabilities_recorded_while_drawing_are_those_of_scoring(model, prompts):
    methods = [Base(), SE(), Temperature(1.7)]
    for method, drawn in zip(methods, sample(model, methods, prompts, m=5, seeds=[1], max_new_tokens=6)):
        given = [[draw.token_ids for draw in draws] for draws in drawn]
        for draws, scores in zip(drawn, model.score(prompts, given, recalibrator=method)):
            for draw, score in zip(draws, scores):
                assert draw.token_log_probs == pytest.approx(score, abs=1e-4)


def test_greedy_and_beam_answers_are_scored_as_given(model, prompts):
    how = Temperature(0.6)
    for found in (
        model.greedy(prompts, recalibrator=how, max_new_tokens=5),
        model.beam(prompts, recalibrator=how, num_beams=3, max_new_tokens=5),
    ):
        scores = model.score(prompts, [[best.token_ids] for best in found], recalibrator=how)
        for best, (score,) in zip(found, scores):
            assert 1 <= len(best.token_ids) <= 5
            assert best.token_log_probs == pytest.approx(score, abs=1e-4)


def test_features_give_the_logits_of_the_answers_tokens_in_order(model, prompts, answers):
    features = model.features(prompts, answers)
    flat = [ids for given in answers for ids in given]
    assert features.targets.tolist() == [token for ids in flat for token in ids]
    assert features.answer_question.tolist() == [i for i, given in enumerate(answers) for _ in given]
    assert features.target_start.diff().tolist() == [len(ids) for ids in flat]
    logits = model.logits(features.states[features.predicting_rows()])
    assert features.states.dtype == logits.dtype == torch.float32
    for recalibrator in (Base(), SE()):
        log_probs = recalibrator.log_probs(logits)
        assert log_probs.exp().sum(-1).tolist() == pytest.approx([1.0] * len(log_probs), abs=1e-4)
        found = log_probs[torch.arange(len(log_probs)), features.targets].tolist()
        scores = model.score(prompts, answers, recalibrator=recalibrator)
        expected = [value for given in scores for score in given for value in score]
        assert found == pytest.approx(expected, abs=1e-4)


def test_whole_sequences_hold_the_same_states_behind_those_of_the_prompt(model, prompts, answers):
    alone = model.features(prompts, answers)
    for shared in (None, 3):
        whole = model.features(prompts, answers, whole=True, shared=shared)
        own = [len(prompt.token_ids) - len(whole.prefix) for prompt in prompts]
        assert whole.prompt_length.tolist() == own
        assert shared is None or len(whole.prefix) == shared
        assert len(whole.states) == len(alone.states) + sum(own) - len(prompts)
        torch.testing.assert_close(
            whole.states[whole.predicting_rows()], alone.states[alone.predicting_rows()], rtol=0, atol=1e-4
        )


def test_a_cut_answer_is_its_first_tokens_and_an_end_of_turn(model, prompts, answers):
    end = answers[0][1][-1]
    ((draws,),) = sample(model, [Base()], prompts[:1], m=8, seeds=[2])
    for draw in draws:
        whole = model.complete(draw, len(draw.text))
        assert whole[-1] == model.complete(draw, 0)[-1] == end
        assert not draw.finished or whole == draw.token_ids


def test_no_prompts_give_no_answers(model, prompts):
    assert sample(model, [], prompts) == []
    assert model.beam([], recalibrator=Base()) == []
    assert model.score([], [], recalibrator=Base()) == []
    assert len(model.features([], []).targets) == 0
    with pytest.raises(UsageError, match="num_beams"):
        model.beam(prompts, recalibrator=Base(), num_beams=0)
