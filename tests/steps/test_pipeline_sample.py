"""Samples and their likelihoods, where the model's probabilities are known in closed form."""

from __future__ import annotations

import math

import pytest

from semcal.data.question import Question
from semcal.models.fakes import FakeLanguageModel
from semcal.models.prompting import PromptConfig
from semcal.recalibration import SE, Base
from tests.json_rows import fields_of, sample_questions, sample_runs

TABLE = {
    "Who?": {"Ana Velis.": 0.5, "Bo.": 0.25, "Bo. He wrote it.": 0.15, "": 0.1},
    "How far?": {"seven miles and a half or so": 1.0},
}
QUESTIONS = [Question("q1", "Who?"), Question("q2", "How far?")]


def draws(recalibrator=None, *, m: int = 40, max_new_tokens: int = 10, floor: float = -math.inf):
    model = FakeLanguageModel(TABLE, floor=floor)
    (sampled,) = sample_questions(
        model, QUESTIONS, recalibrators=[recalibrator or Base()], m=m, seed=3, max_new_tokens=max_new_tokens
    )
    return sampled


def test_a_whole_generation_keeps_the_likelihood_it_was_sampled_with() -> None:
    found = {d.text: d for d in draws()[0].draws if d.likelihood == "sampled"}
    # tokens: "Ana" (.5), " Velis." (1), end (1); "Bo." (.4), end (.25 / .4); empty: end at once (.1)
    assert found["Ana Velis"].log_likelihood == pytest.approx(math.log(0.5) / 3, abs=1e-6)
    assert found["Bo"].log_likelihood == pytest.approx(math.log(0.25) / 2, abs=1e-6)
    assert found[""].log_likelihood == pytest.approx(math.log(0.1), abs=1e-6)


def test_an_answer_that_was_cut_is_scored_again_with_its_end_of_turn() -> None:
    cut = [d for d in draws()[0].draws if d.generation.text == "Bo. He wrote it."]
    assert cut
    for draw in cut:
        assert (draw.text, draw.likelihood) == ("Bo", "rescored")
        assert draw.log_likelihood == pytest.approx(math.log(0.25) / 2, abs=1e-6)


def test_an_answer_that_met_the_token_limit_is_scored_again() -> None:
    (draw, *_) = draws(max_new_tokens=3, floor=-30.0)[1].draws
    assert (draw.text, draw.generation.finished, draw.likelihood) == ("seven miles and", False, "rescored")
    # three certain tokens, then an end of turn that the table does not allow: logit -30
    assert draw.log_likelihood == pytest.approx(-30 / 4, abs=1e-3)


def test_likelihoods_are_those_of_the_recalibrated_distribution() -> None:
    found = {d.text: d for d in draws(SE())[0].draws}
    total = 0.5**2 + 0.4**2 + 0.1**2
    assert found["Ana Velis"].log_likelihood == pytest.approx(math.log(0.25 / total) / 3, abs=1e-6)


def test_recalibrators_share_their_random_numbers_and_a_seed_is_a_run() -> None:
    model = FakeLanguageModel(TABLE)
    twice = sample_questions(model, QUESTIONS, recalibrators=[Base(), Base()], m=20, seed=1)
    assert twice[0] == twice[1]
    other = sample_questions(model, QUESTIONS[::-1], recalibrators=[Base()], m=20, seed=1)[0][::-1]
    assert other == twice[0]
    assert sample_questions(model, QUESTIONS, recalibrators=[Base()], m=20, seed=2)[0] != twice[0]


def test_a_row_holds_what_the_file_contract_says() -> None:
    fields = fields_of(draws(m=2)[0])
    per_draw = {"generations", "token_ids", "token_log_probs", "samples", "log_likelihoods", "likelihood"}
    per_draw |= {"token_scores", "finished"}
    assert set(fields) == per_draw | {"prompt_token_ids", "answer_format"}
    assert {len(fields[key]) for key in per_draw} == {2}
    for ids, log_probs in zip(fields["token_ids"], fields["token_log_probs"]):
        assert len(ids) == len(log_probs) > 0


def test_few_shot_examples_stand_before_every_question() -> None:
    asking = PromptConfig((Question("e", "What?", ("That",)),))
    assert [turn.content for turn in asking.chat(QUESTIONS[0])][1:] == [
        "Question: What?",
        "That.",
        "Question: Who?",
    ]
    assert PromptConfig.from_description(asking.describe()).chat(QUESTIONS[0]) == asking.chat(QUESTIONS[0])
    model = FakeLanguageModel(TABLE)
    assert asking.hash(model) != PromptConfig().hash(model)


def test_runs_in_one_pass_are_those_of_separate_calls() -> None:
    model, under = FakeLanguageModel(TABLE), [Base(), SE()]
    runs = sample_runs(model, QUESTIONS, recalibrators=under, seeds=[3, 1], m=5)
    assert runs == [sample_questions(model, QUESTIONS, recalibrators=under, seed=s, m=5) for s in (3, 1)]


LED = {"Who?": {"Sure! Ana.": 0.3, "Sure! Bo. He": 0.1, "Ana.": 0.2, "Who? Bo.": 0.2, "Answer:Cy.": 0.2}}


def test_the_likelihood_of_an_answer_is_that_behind_what_leads_to_it() -> None:
    (sampled,) = sample_questions(
        FakeLanguageModel(LED, floor=-math.inf),
        QUESTIONS[:1],
        recalibrators=[Base()],
        m=60,
        max_new_tokens=10,
    )
    found = {d.generation.text: d for d in sampled[0].draws}
    assert {raw: d.text for raw, d in found.items()} == {
        "Sure! Ana.": "Ana",
        "Sure! Bo. He": "Bo",
        "Ana.": "Ana",
        "Who? Bo.": "Bo",
        "Answer:Cy.": "Answer:Cy",
    }
    led, asked = found["Sure! Ana."], found["Who? Bo."]
    assert (led.likelihood, led.log_likelihood) == ("sampled", pytest.approx(math.log(0.75) / 2, abs=1e-6))
    assert (asked.likelihood, asked.log_likelihood) == ("sampled", pytest.approx(0, abs=1e-6))
    assert found["Sure! Bo. He"].likelihood == "rescored"
    assert found["Sure! Bo. He"].log_likelihood == -math.inf  # "Bo." never ends the turn


def test_a_draw_is_unfinished_where_its_first_answer_reaches_the_limit() -> None:
    table = {"Who?": {"Ana Velis of Toreth": 0.5, "Bo. He wrote it": 0.3, "Cy": 0.2}}
    (sampled,) = sample_questions(
        FakeLanguageModel(table), QUESTIONS[:1], recalibrators=[Base()], m=40, max_new_tokens=2
    )
    ends = {d.text: d.finished for d in sampled[0].draws}
    assert ends == {"Ana Velis": False, "Bo": True, "Cy": True}
    assert fields_of(sampled[0])["finished"] == [d.finished for d in sampled[0].draws]
