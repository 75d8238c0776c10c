"""Samples are spread over variants of the prompt: each question has all of them equally often."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_engine import language_model

from semcal.data.question import Question, Turn
from semcal.data.template import FORMS, FORMS_WITH_PASSAGE, WORDINGS, Template
from semcal.errors import InputError, UsageError
from semcal.models.fakes import FakeLanguageModel
from semcal.models.prompting import PromptConfig
from semcal.models.sample import Sampling, SamplingConfig, row_to_ask, sample_runs
from semcal.recalibration import Base

QUESTIONS = [Question(f"q{n}", f"Who built mill {n}?") for n in range(6)]
EXAMPLES = [{"question": f"Who wrote book {n}?", "answers": f"Ana {n}"} for n in range(3)]


def sampling(m: int = 10, **prompt: object) -> Sampling:
    return Sampling((Base(),), PromptConfig(EXAMPLES, **prompt), SamplingConfig(m=m, max_new_tokens=4))  # type: ignore[arg-type]


@given(st.integers(1, 12), st.integers(2, 5))
def test_each_question_has_all_variants_equally_often(m: int, n: int) -> None:
    starts = set()
    for question in QUESTIONS:
        found = sampling(m).variants_of(question, n)
        counts = Counter(found)
        assert len(found) == m
        assert max(counts.values()) - min(counts[k] for k in range(n)) <= 1
        starts.add(found[0])
    assert len(starts) > 1


def test_samples_are_those_of_the_prompt_of_their_variant() -> None:
    model, varied = language_model(), sampling(7, vary=3)
    progress: list[int] = []
    ((sampled,),) = sample_runs(model, QUESTIONS, varied, progress=progress.append)
    assert progress == sorted(set(progress))
    assert progress[-1] == len(QUESTIONS)
    assert len({draw.text for one in sampled for draw in one.draws}) > 5
    for question, one in zip(QUESTIONS, sampled):
        assert list(one.variants) == varied.variants_of(question, 3)
        for number, asking in enumerate(varied.asking.variants(question)):
            own = [draw.generation for draw, variant in zip(one.draws, one.variants) if variant == number]
            prompts = asking.prompts(model, [question])
            [scores] = model.score(prompts, [[each.token_ids for each in own]], recalibrator=Base())
            for generation, expected in zip(own, scores):
                assert generation.token_log_probs == pytest.approx(expected, abs=1e-4)


def test_a_row_records_the_variant_of_each_sample() -> None:
    ((sampled,),) = sample_runs(language_model(), QUESTIONS[:1], sampling(4, vary=2))
    row = sampled[0].add_to(row_to_ask(QUESTIONS[0]), tokens=True)
    assert sorted(row["prompt_variants"]) == [0, 0, 1, 1]
    assert row.take([0, 1])["prompt_variants"] == row["prompt_variants"][:2]
    assert "prompt_variants" not in row_to_ask(row.to_question())


def test_more_variants_than_samples_leave_some_variants_out() -> None:
    ((sampled,),) = sample_runs(
        FakeLanguageModel({"Who built mill 0?": {"Ana": 1.0}}), QUESTIONS[:1], sampling(2, vary=5)
    )
    assert len(sampled[0].draws) == 2
    assert len(set(sampled[0].variants)) == 2


def test_built_in_variants_word_instruction_and_question_in_other_ways() -> None:
    asking = PromptConfig(EXAMPLES, vary=5)
    for context, forms in ((None, FORMS), ("Ana built it.", FORMS_WITH_PASSAGE)):
        question = Question("q", "Who built it?", context=context)
        first, *others = asking.variants(question)
        assert first == PromptConfig(EXAMPLES)
        assert [one.template.system for one in others if one.template] == list(WORDINGS)
        assert [one.template.user for one in others if one.template] == list(forms)
        assert len({one.few_shot for one in others}) == 3


def test_own_texts_stay_and_only_the_order_of_examples_changes() -> None:
    own = Template("Be brief.", "{question}")
    variants = PromptConfig(EXAMPLES, template=own, vary=3).variants(QUESTIONS[0])
    assert {one.template for one in variants} == {own}
    assert len({one.few_shot for one in variants}) == 3
    chat = Question("q", "", messages=(Turn("user", "Who?"),))
    assert len({one.few_shot for one in PromptConfig(EXAMPLES, vary=3).variants(chat)}) == 3
    with pytest.raises(UsageError, match="vary"):
        PromptConfig(template=own, vary=2).variants(QUESTIONS[0])
    with pytest.raises(UsageError, match="vary"):
        PromptConfig(EXAMPLES, vary=4).variants(chat)
    with pytest.raises(UsageError, match="messages"):
        PromptConfig(EXAMPLES, vary=[{"user": "{question}"}]).variants(chat)


def test_templates_of_a_file_are_further_variants(tmp_path: Path) -> None:
    path = tmp_path / "variants.yaml"
    path.write_text('- {user: "Q: {question}"}\n- {user: "{question}", system: Be brief.}\n')
    prompt = PromptConfig(vary=path)
    users = [one.template.user if one.template else None for one in prompt.variants(QUESTIONS[0])]
    assert users == [None, "Q: {question}", "{question}"]


@pytest.mark.parametrize(
    "vary", [0, 6, -1, True, "nosuch.yaml", [], {"user": "{question}"}, [{"user": "no"}], 2.5]
)
def test_wrong_variants_are_rejected(vary: object) -> None:
    with pytest.raises((UsageError, InputError)):
        PromptConfig(EXAMPLES, vary=vary)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "vary", [4, [{"user": "Q: {question}"}, {"user": "{question}", "system": "Be brief."}]]
)
def test_the_description_of_a_prompt_names_its_variants(vary: object) -> None:
    model, prompt = language_model(), PromptConfig(EXAMPLES, vary=vary)  # type: ignore[arg-type]
    again = PromptConfig.from_description(json.loads(json.dumps(prompt.describe())))
    assert again.vary == prompt.vary
    assert again.hash(model) == prompt.hash(model)
    plain = PromptConfig(EXAMPLES)
    assert plain.hash(model) != prompt.hash(model)
    assert prompt.difference(plain)
    assert prompt.difference(again) is None
