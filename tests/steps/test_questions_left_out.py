"""Questions that a model cannot encode are left out and named, as those that are too long for it are."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from semcal.data.question import Question, Turn
from semcal.errors import InputError, QuestionError
from semcal.experiment.grid_steps import CheckStep
from semcal.models.fakes import FakeLanguageModel
from semcal.models.prompting import PromptConfig
from semcal.recalibration.fit_data import FitData
from semcal.rows import Row
from semcal.steps import WorkerState


class Picky(FakeLanguageModel):
    """Refuses texts with "<s>", as a tokenizer that is not of the tokenizers library does."""

    def encode(self, chat: Sequence[Turn]) -> tuple[int, ...]:
        if "<s>" in chat[-1].content:
            raise InputError("the text spells <s>")
        return super().encode(chat)

    def encode_answer(self, chat: Sequence[Turn], answer: str) -> tuple[int, ...]:
        if "<s>" in answer:
            raise InputError("the answer spells <s>")
        return super().encode_answer(chat, answer)


QUESTIONS = [
    *(Question(str(n), f"Which mill is number {n}?", ("a",)) for n in range(6)),
    Question("marked", "What is <s>?", ("a mark",)),
    Question("answered", "Which mark is it?", ("<s>",)),
]


@pytest.fixture
def model() -> Picky:
    return Picky({question.question: {question.answers[0]: 1.0} for question in QUESTIONS})


def test_a_fit_leaves_them_out(model: Picky) -> None:
    told: list[QuestionError] = []
    found = FitData.of(model, QUESTIONS, asking=PromptConfig(), on_bad_question=told.append)
    assert [question.id for question in found.questions] == [str(n) for n in range(6)]
    assert len(found.prompts) == len(found.answers) == 6
    assert [(error.question_id, error.reason) for error in told] == [
        ("marked", "the text spells <s>"),
        ("answered", "the answer spells <s>"),
    ]
    with pytest.raises(QuestionError, match="question 'marked': the text spells <s>"):
        FitData.of(model, QUESTIONS, asking=PromptConfig())


def test_a_grid_leaves_them_out(model: Picky) -> None:
    parts = {"validation": QUESTIONS, "test": QUESTIONS[:1]}
    rows = [Row.of(question).set(part=part) for part, of_part in parts.items() for question in of_part]
    _, *bad = CheckStep(PromptConfig(), max_new_tokens=4)(rows, WorkerState(model), lambda _: None)
    assert bad == [
        {"part": "validation", "id": "marked", "reason": "the text spells <s>"},
        {"part": "validation", "id": "answered", "reason": "the answer spells <s>"},
    ]
