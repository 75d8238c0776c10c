"""The fakes are exact: what they draw and score is what their tables say, in closed form."""

from __future__ import annotations

import math

import pytest

from semcal.data.question import Question, chat
from semcal.errors import InputError
from semcal.models.fakes import FakeEquivalence, FakeLanguageModel
from semcal.models.protocols import Prompt
from semcal.recalibration import Base, Temperature

QUESTION = "Which tree?"
ROW = {"Ash": 0.5, "Elm tree": 0.3, "A fir": 0.2}


def prompt(model: FakeLanguageModel, question: str = QUESTION, **options: object) -> Prompt:
    return Prompt("q1", model.encode(chat(question, **options)))


def log_probability(model: FakeLanguageModel, answer: str, temperature: float = 1.0) -> float:
    ids = model.encode_answer(chat(QUESTION), answer)
    ((scores,),) = model.score([prompt(model)], [[ids]], recalibrator=Temperature(temperature))
    return math.fsum(scores)


@pytest.mark.parametrize("floor", [-100.0, -math.inf])
@pytest.mark.parametrize("temperature", [0.25, 0.5, 1.0, 2.0])
def test_answers_that_part_at_the_first_word_have_their_probability_to_the_power_of_one_over_t(
    floor, temperature
):
    model = FakeLanguageModel({QUESTION: ROW}, floor=floor)
    total = sum(p ** (1 / temperature) for p in ROW.values())
    for answer, p in ROW.items():
        assert log_probability(model, answer, temperature) == pytest.approx(
            math.log(p ** (1 / temperature) / total), abs=2e-6
        )


def test_answers_that_share_words_are_recalibrated_word_by_word():
    model = FakeLanguageModel({QUESTION: {"old ash": 0.3, "old elm": 0.1, "fir": 0.6}}, floor=-math.inf)
    old = 0.4**2 / (0.4**2 + 0.6**2)
    ash = 0.3**2 / (0.3**2 + 0.1**2)
    assert log_probability(model, "old ash", 0.5) == pytest.approx(math.log(old * ash), abs=1e-5)
    model = FakeLanguageModel({QUESTION: {"ash": 0.2, "ash tree": 0.8}})
    assert log_probability(model, "ash") == pytest.approx(math.log(0.2), abs=1e-5)
    assert log_probability(model, "ash tree") == pytest.approx(math.log(0.8), abs=1e-5)


def test_beams_find_the_answer_of_highest_mean_where_greedy_does_not():
    row = {"b red": 0.2, "b blue": 0.2, "b green": 0.2, "c elm": 0.4}
    model = FakeLanguageModel({QUESTION: row})
    (greedy,) = model.greedy([prompt(model)], recalibrator=Base())
    (beam,) = model.beam([prompt(model)], recalibrator=Base())
    assert greedy.text == "b red"
    assert beam.text == "c elm"
    assert sum(beam.token_log_probs) == pytest.approx(math.log(0.4), abs=1e-5)


def test_text_outside_the_table_is_read_byte_by_byte_and_scored_finitely():
    model = FakeLanguageModel({QUESTION: ROW})
    ids = model.encode_answer((), "Åsh 🌳")
    assert len(ids) == len("Åsh 🌳".encode()) + 1
    assert -2000 < log_probability(model, "Åsh 🌳") < -99
    assert log_probability(FakeLanguageModel({QUESTION: ROW}, floor=-math.inf), "Oak") == -math.inf


@pytest.mark.parametrize(
    ("question", "options"),
    [
        (Question("q", QUESTION, context="Question: what?\n\nA wood."), {}),
        (QUESTION, {"few_shot": [Question("s", "When?", ("Now",))]}),
    ],
)
def test_the_question_is_found_in_any_chat(question, options):
    model = FakeLanguageModel({QUESTION: ROW})
    (greedy,) = model.greedy([prompt(model, question, **options)], recalibrator=Base())
    assert greedy.text == "Ash"


@pytest.mark.parametrize("row", [{"ash": 0.5}, {"ash": 1.5, "elm": -0.5}, {"ash": 1.0, "elm": 0.0}, {}])
def test_probabilities_that_are_no_distribution_and_an_unknown_question_are_refused_by_name(row):
    with pytest.raises(InputError, match=r"'Which tree\?'"):
        FakeLanguageModel({QUESTION: row})
    model = FakeLanguageModel({QUESTION: ROW})
    with pytest.raises(InputError, match=r"'Which bush\?'"):
        model.greedy([prompt(model, "Which bush?")], recalibrator=Base())


def test_the_revision_tells_tables_apart():
    one, same, other = (FakeLanguageModel({QUESTION: {"ash": p, "elm": 1 - p}}) for p in (0.25, 0.25, 0.5))
    assert one.revision == same.revision != other.revision
    assert FakeEquivalence([{"a", "b"}]).revision != FakeEquivalence().revision
