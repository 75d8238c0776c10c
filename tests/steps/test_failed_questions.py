"""Questions that a server did not answer or a model cannot encode are named; the others are answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import semcal
from semcal.calibration.calibrator import CalibrationRecord, Calibrator, calibrate
from semcal.data.question import Question, Turn
from semcal.errors import InputError, QuestionError, SemcalWarning
from semcal.experiment.grid_steps import CheckStep
from semcal.models.equivalence import ExactMatch
from semcal.models.fakes import FakeLanguageModel
from semcal.models.prompting import PromptConfig
from semcal.models.sample import SampleStep, Sampling, SamplingConfig
from semcal.recalibration import Base
from semcal.recalibration.fit_data import FitData
from semcal.rows import FAILED, Row
from semcal.steps import WorkerState
from semcal.store import Store
from semcal.uncertainty import AskStep
from tests.json_rows import rows_at_temperatures

TABLE = {f"Who built mill {i}?": {"Ana.": 0.9, "Bo.": 0.1} for i in range(24)}
QUESTIONS = tuple(Question(f"q{i}", text, ("Ana" if i % 2 else "Bo",)) for i, text in enumerate(TABLE))


class Failing(FakeLanguageModel):
    """Gives no answers to some questions, and counts how often each is asked."""

    def __init__(self, *failing: str) -> None:
        super().__init__(TABLE)
        self.failing = failing
        self.asked: Counter[str] = Counter()

    def sample(self, request: Any, progress: Any = None) -> Any:
        prompts = request.prompts
        self.asked.update(prompt.question_id for prompt in prompts)
        return [
            [
                [
                    QuestionError(prompt.question_id, "HTTP 400: too long")
                    if prompt.question_id in self.failing
                    else draws
                    for prompt, draws in zip(prompts, of_prompts)
                ]
                for of_prompts in of_run
            ]
            for of_run in super().sample(request, progress)
        ]


def state(model: Failing) -> WorkerState:
    return WorkerState(model, ExactMatch())


def test_a_row_of_samples_says_why_there_are_none() -> None:
    step = SampleStep(Sampling((Base(),), config=SamplingConfig(4, max_new_tokens=10)), full=True)
    rows = step(list(map(Row.of, QUESTIONS[:3])), state(Failing("q1")), lambda _: None)
    assert [FAILED in row for row in rows] == [False, True, False]
    assert rows[1] == {**QUESTIONS[1].row(), FAILED: "HTTP 400: too long"}


def test_ask_many_answers_the_others_with_a_warning() -> None:
    with pytest.warns(SemcalWarning, match=r"2 of 24 .*'q1', 'q7'.*HTTP 400: too long"):
        found = semcal.ask_many(Failing("q1", "q7"), list(QUESTIONS))
    assert [answer.id for answer in found] == [q.id for q in QUESTIONS if q.id not in ("q1", "q7")]
    assert list(found.failures) == ["q1", "q7"]
    assert len(found.rows) == 22


def test_all_questions_that_failed_raise_the_first() -> None:
    with pytest.raises(QuestionError, match="q2"):
        semcal.ask_many(Failing("q2", "q3"), [QUESTIONS[2], QUESTIONS[3]])


def test_a_job_of_ask_keeps_the_place_of_a_question_that_failed() -> None:
    ways: Any = ({"recalibrator": 0.5}, {"recalibrator": 1.0})
    rows = AskStep(ways)(list(map(Row.of, QUESTIONS[:3])), state(Failing("q1")), lambda _: None)
    assert [row["id"] for row in rows] == ["q0", "q0", "q1", "q1", "q2", "q2"]
    assert [FAILED in row for row in rows] == [False, False, True, True, False, False]
    none = AskStep(ways)(list(map(Row.of, QUESTIONS[1:2])), state(Failing("q1")), lambda _: None)
    assert [row[FAILED] for row in none] == ["HTTP 400: too long"] * 2


def test_a_calibration_is_that_of_the_questions_that_were_answered() -> None:
    failing, told = Failing("q1", "q7"), list[QuestionError]()
    found = Calibrator(record=CalibrationRecord(on_bad_question=told.append)).fit(failing, list(QUESTIONS))
    assert [error.question_id for error in told] == ["q1", "q7"]
    kept = [question for question in QUESTIONS if question.id not in failing.failing]
    alone = calibrate(Failing(), kept)
    assert (found.report, found.provenance) == (alone.report, alone.provenance)
    with pytest.warns(SemcalWarning, match="2 of 24 questions"):
        calibrate(failing, list(QUESTIONS))


def test_what_failed_is_kept_and_not_asked_again(tmp_path: Path) -> None:
    failing = Failing("q1")
    for _ in range(2):
        told = list[QuestionError]()
        record = CalibrationRecord(keep=Store(tmp_path), on_bad_question=told.append)
        Calibrator(record=record).fit(failing, list(QUESTIONS))
        assert [error.question_id for error in told] == ["q1"]
    assert set(failing.asked.values()) == {1}


def test_temperatures_are_compared_on_the_questions_that_were_answered() -> None:
    with pytest.warns(SemcalWarning, match="1 of 24"):
        rows = rows_at_temperatures(Failing("q3"), QUESTIONS, [0.5, 1.0], equivalence=ExactMatch())
    assert [[row["id"] for row in of_one] for of_one in rows.values()] == [
        [question.id for question in QUESTIONS if question.id != "q3"]
    ] * 2


# ---- Questions that a model cannot encode


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


MARKED = [
    *(Question(str(n), f"Which mill is number {n}?", ("a",)) for n in range(6)),
    Question("marked", "What is <s>?", ("a mark",)),
    Question("answered", "Which mark is it?", ("<s>",)),
]


@pytest.fixture
def model() -> Picky:
    return Picky({question.question: {question.answers[0]: 1.0} for question in MARKED})


def test_a_fit_leaves_them_out(model: Picky) -> None:
    told: list[QuestionError] = []
    found = FitData.of(model, MARKED, asking=PromptConfig(), on_bad_question=told.append)
    assert [question.id for question in found.questions] == [str(n) for n in range(6)]
    assert len(found.prompts) == len(found.answers) == 6
    assert [(error.question_id, error.reason) for error in told] == [
        ("marked", "the text spells <s>"),
        ("answered", "the answer spells <s>"),
    ]
    with pytest.raises(QuestionError, match="question 'marked': the text spells <s>"):
        FitData.of(model, MARKED, asking=PromptConfig())


def test_a_grid_leaves_them_out(model: Picky) -> None:
    parts = {"validation": MARKED, "test": MARKED[:1]}
    rows = [Row.of(question).set(part=part) for part, of_part in parts.items() for question in of_part]
    _, *bad = CheckStep(PromptConfig(), max_new_tokens=4)(rows, WorkerState(model), lambda _: None)
    assert bad == [
        {"part": "validation", "id": "marked", "reason": "the text spells <s>"},
        {"part": "validation", "id": "answered", "reason": "the answer spells <s>"},
    ]
