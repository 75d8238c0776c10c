"""What every LanguageModel promises, held by the fake and by tiny checkpoints alike."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny_models
import torch

from semcal.data.question import Question, chat
from semcal.errors import UsageError
from semcal.models import load_model
from semcal.models.distribution import Greedy
from semcal.models.fakes import FakeLanguageModel
from semcal.models.protocols import LanguageModel, Prompt, SampleRequest
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
IMPLEMENTATIONS = ("fake", "exact fake", "llama", "mistral", "qwen2", "gpt2")


@pytest.fixture(scope="module", params=IMPLEMENTATIONS)
def model(request: Any, tmp_path_factory: Any) -> LanguageModel:
    if request.param == "fake":
        return FakeLanguageModel(TABLE)
    if request.param == "exact fake":
        return FakeLanguageModel(TABLE, floor=-math.inf)
    template = None if request.param == "gpt2" else tiny_models.TEMPLATE
    directory = tiny_models.save(
        tmp_path_factory.mktemp(request.param),
        request.param,
        template=template,
        tied=request.param == "qwen2",
    )
    return load_model(directory, device="cpu")


@pytest.fixture(scope="module")
def prompts(model: LanguageModel) -> list[Prompt]:
    return [Prompt(f"id-{i}", model.encode(chat(q, few_shot=SHOTS))) for i, q in enumerate(QUESTIONS)]


def answer(model: LanguageModel, question: str, text: str) -> tuple[int, ...]:
    return model.encode_answer(chat(question, few_shot=SHOTS), text)


def test_prompts_are_token_ids_that_begin_alike_and_differ_by_question(model, prompts):
    first, *others = (prompt.token_ids for prompt in prompts)
    assert all(isinstance(token, int) for token in first)
    assert model.encode(chat(QUESTIONS[0], few_shot=SHOTS)) == first
    for other in others:
        assert other[:20] == first[:20]
        assert other != first


def test_an_answer_ends_in_one_end_of_turn_and_is_scored_token_by_token(model, prompts):
    end = answer(model, QUESTIONS[0], "")[-1]
    for prompt, question, text in zip(prompts, QUESTIONS, ANSWERS):
        ids = answer(model, question, text)
        assert ids[-1] == end
        assert end not in ids[:-1]
        ((scores,),) = model.score([prompt], [[ids]], recalibrator=Base())
        assert len(scores) == len(ids)
        assert max(scores) <= 1e-6


def test_draws_have_the_promised_shape(model, prompts):
    end = answer(model, QUESTIONS[0], "")[-1]
    drawn = model.sample(
        SampleRequest(prompts, recalibrators=[Base(), SE()], m=7, seeds=[3], max_new_tokens=4)
    )[0]
    assert [[len(draws) for draws in per_prompt] for per_prompt in drawn] == [[7] * 3] * 2
    for generation in (g for per_prompt in drawn for draws in per_prompt for g in draws):
        assert 1 <= len(generation.token_ids) == len(generation.token_log_probs) <= 4
        assert generation.finished or len(generation.token_ids) == 4
        assert end not in generation.token_ids[:-1]
        assert max(generation.token_log_probs) <= 1e-6


@pytest.mark.parametrize("recalibrator", [Base(), SE(), Temperature(1.7)], ids=["Base", "SE", "1.7"])
def test_the_log_probabilities_recorded_while_drawing_are_those_of_scoring(recalibrator, model, prompts):
    (drawn,) = model.sample(
        SampleRequest(prompts, recalibrators=[recalibrator], m=5, seeds=[1], max_new_tokens=6)
    )[0]
    given = [[draw.token_ids for draw in draws] for draws in drawn]
    for draws, scores in zip(drawn, model.score(prompts, given, recalibrator=recalibrator)):
        for draw, score in zip(draws, scores):
            assert draw.token_log_probs == pytest.approx(score, abs=1e-4)


def test_a_draw_depends_on_seed_and_question_id_and_on_nothing_else(model, prompts):
    def drawn(asked, seed, m=6, recalibrators=()):
        of_last = model.sample(
            SampleRequest(asked, recalibrators=[*recalibrators, Base()], m=m, seeds=[seed])
        )[0][-1]
        return [[draw.token_ids for draw in draws[:6]] for draws in of_last]

    several = drawn(prompts, 5)
    assert [drawn([prompt], 5, 9, [SE()])[0] for prompt in prompts] == several
    assert drawn(prompts[::-1], 5)[::-1] == several
    assert drawn(prompts, 6) != several
    twin = Prompt("another id", prompts[0].token_ids)
    assert drawn([twin], 5) != several[:1]


def test_runs_that_share_a_pass_draw_what_they_draw_alone(model, prompts):
    methods = [Base(), Temperature(0.7)]
    together = model.sample(
        SampleRequest(prompts, recalibrators=methods, seeds=[5, 0, 5], m=3, max_new_tokens=6)
    )
    for seed, run in zip([5, 0, 5], together, strict=True):
        alone = model.sample(
            SampleRequest(prompts, recalibrators=methods, seeds=[seed], m=3, max_new_tokens=6)
        )[0]
        for ours, theirs in zip(run, alone, strict=True):
            for draws, same in zip(ours, theirs, strict=True):
                assert [d.token_ids for d in draws] == [d.token_ids for d in same]
                for one, other in zip(draws, same, strict=True):
                    assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-5)
    assert model.sample(SampleRequest(prompts, recalibrators=methods, seeds=[])) == []


def test_draws_from_a_number_on_are_those_of_a_call_for_all(model, prompts):
    how: dict[str, Any] = {"recalibrators": [Base(), SE()], "seeds": [5, 1], "max_new_tokens": 6}
    together = model.sample(SampleRequest(prompts, m=7, **how))
    parts = [
        model.sample(SampleRequest(prompts, first=first, m=m, **how)) for first, m in ((0, 2), (2, 1), (3, 4))
    ]
    for run in range(2):
        for of_recalibrator in range(2):
            for question in range(len(prompts)):
                drawn = [g for part in parts for g in part[run][of_recalibrator][question]]
                expected = together[run][of_recalibrator][question]
                assert [g.token_ids for g in drawn] == [g.token_ids for g in expected]


def test_the_greedy_answer_is_what_every_draw_becomes_as_the_temperature_falls(model, prompts):
    greedy = model.greedy(prompts, recalibrator=Base(), max_new_tokens=5)
    ways = [Temperature(1e-4), Greedy(), Greedy(SE())]
    for drawn in model.sample(SampleRequest(prompts, recalibrators=ways, m=2, seeds=[0], max_new_tokens=5))[
        0
    ]:
        for best, draws in zip(greedy, drawn):
            assert [draw.token_ids for draw in draws] == [best.token_ids] * 2
            assert draws[0].text == best.text
    scores = model.score(prompts, [[best.token_ids] for best in greedy], recalibrator=Base())
    for best, (score,) in zip(greedy, scores):
        assert best.token_log_probs == pytest.approx(score, abs=1e-4)


def test_the_beam_answer_is_scored_as_given(model, prompts):
    how = Temperature(0.6)
    found = model.beam(prompts, recalibrator=how, num_beams=3, max_new_tokens=5)
    scores = model.score(prompts, [[best.token_ids] for best in found], recalibrator=how)
    for best, (score,) in zip(found, scores):
        assert 1 <= len(best.token_ids) <= 5
        assert best.token_log_probs == pytest.approx(score, abs=1e-4)


def test_features_give_the_logits_of_the_answers_tokens_in_order(model, prompts):
    answers = [[answer(model, q, text), answer(model, q, "")] for q, text in zip(QUESTIONS, ANSWERS)]
    features = model.features(prompts, answers)
    flat = [ids for given in answers for ids in given]
    assert features.targets.tolist() == [token for ids in flat for token in ids]
    assert features.answer_question.tolist() == [i for i, given in enumerate(answers) for _ in given]
    assert features.target_start.diff().tolist() == [len(ids) for ids in flat]
    logits = model.logits(features.states[features.predicting_rows()])
    assert logits.dtype == torch.float32
    for recalibrator in (Base(), SE()):
        log_probs = recalibrator.log_probs(logits)
        assert log_probs.exp().sum(-1).tolist() == pytest.approx([1.0] * len(log_probs), abs=1e-4)
        found = log_probs[torch.arange(len(log_probs)), features.targets].tolist()
        scores = model.score(prompts, answers, recalibrator=recalibrator)
        expected = [value for given in scores for score in given for value in score]
        assert found == pytest.approx(expected, abs=1e-4)


def test_whole_sequences_hold_the_same_states_behind_those_of_the_prompt(model, prompts):
    answers = [[answer(model, q, text), answer(model, q, "")] for q, text in zip(QUESTIONS, ANSWERS)]
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


def test_a_cut_answer_is_its_first_tokens_and_an_end_of_turn(model, prompts):
    end = answer(model, QUESTIONS[0], "")[-1]
    ((draws,),) = model.sample(SampleRequest(prompts[:1], recalibrators=[Base()], m=8, seeds=[2]))[0]
    for draw in draws:
        whole = model.complete(draw, len(draw.text))
        assert whole[-1] == end
        assert model.complete(draw, 0)[-1] == end
        if draw.finished:
            assert whole == draw.token_ids


def test_no_prompts_give_no_answers(model, prompts):
    assert model.sample(SampleRequest([], recalibrators=[Base(), SE()]))[0] == [[], []]
    assert model.sample(SampleRequest(prompts, recalibrators=[]))[0] == []
    assert model.greedy([], recalibrator=Base()) == []
    assert model.beam([], recalibrator=Base()) == []
    assert model.score([], [], recalibrator=Base()) == []
    assert len(model.features([], []).targets) == 0


def test_less_than_one_draw_or_token_is_a_wrong_option(model, prompts):
    with pytest.raises(UsageError, match=r"\bm\b"):
        model.sample(SampleRequest(prompts, recalibrators=[Base()], m=0))[0]
    with pytest.raises(UsageError, match="max_new_tokens"):
        model.greedy(prompts, recalibrator=Base(), max_new_tokens=0)
    with pytest.raises(UsageError, match="num_beams"):
        model.beam(prompts, recalibrator=Base(), num_beams=0)


def test_progress_ends_at_the_number_of_questions(model, prompts):
    seen: list[int] = []
    model.sample(SampleRequest(prompts, recalibrators=[Base()], m=2), progress=seen.append)[0]
    assert seen == sorted(seen)
    assert seen[-1] == len(prompts)
