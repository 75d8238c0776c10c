"""What users give in Python is made uniform, or refused with a sentence that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import semcal
from semcal.data.datasets import as_questions
from semcal.data.question import Question
from semcal.errors import FitError, InputError, ModelError, SemcalError, UsageError
from semcal.files import write_rows
from semcal.models.fakes import FakeLanguageModel
from semcal.recalibration.fit import as_recalibrator
from tests.json_rows import as_sample_rows

polars = pytest.importorskip("polars")

ROWS = [
    {"id": "a", "question": "Who wrote it?", "answers": ["Ana"], "group": 1},
    {"id": "b", "question": "When?", "answers": ["1843", "in 1843"], "group": 2},
]
EXPECTED = [
    Question("a", "Who wrote it?", ("Ana",), extra={"group": 1}),
    Question("b", "When?", ("1843", "in 1843"), extra={"group": 2}),
]
SAMPLED = [
    {"id": "a", "question": "Who?", "samples": ["Ana", "Bo"], "log_likelihoods": [-0.5, -1.5]},
    {"id": "b", "question": "When?", "samples": ["1843", "1844"], "log_likelihoods": None},
]


def test_questions_are_the_same_from_a_file_dicts_and_tables(tmp_path: Path) -> None:
    write_rows(tmp_path / "q.jsonl", ROWS)
    arrays = pandas.DataFrame(ROWS).assign(answers=[np.array(row["answers"]) for row in ROWS])
    for given in (tmp_path / "q.jsonl", str(tmp_path / "q.jsonl"), ROWS, iter(ROWS), pandas.DataFrame(ROWS)):
        assert as_questions(given, labelled=True) == EXPECTED
    assert as_questions(arrays, labelled=True) == as_questions(polars.DataFrame(ROWS)) == EXPECTED
    assert as_questions(EXPECTED) == EXPECTED


def test_texts_are_named_by_themselves_and_rows_without_ids_by_their_number() -> None:
    twice = as_questions(["Who?", "When?", "Who?", "Who?"])
    assert [q.id for q in twice] == ["Who?", "When?", "Who? (2)", "Who? (3)"]
    assert {q.question for q in twice} == {"Who?", "When?"}
    table = pandas.DataFrame({"question": ["Who?", "When?"], "answers": ["Ana", "1843"]})
    assert as_questions(table) == as_questions(table, labelled=True)
    assert as_questions(table) == [
        Question("1", "Who?", ("Ana",)),
        Question("2", "When?", ("1843",)),
    ]


def test_samples_are_the_same_from_a_file_dicts_tables_and_cells_of_text(tmp_path: Path) -> None:
    write_rows(tmp_path / "s.jsonl", SAMPLED)
    table = pandas.DataFrame(SAMPLED)
    table.to_csv(tmp_path / "s.csv", index=False)  # lists as Python writes them
    table.to_parquet(tmp_path / "s.parquet")
    texts = table.assign(samples=['["Ana", "Bo"]', '["1843", "1844"]'])
    for given in (
        tmp_path / "s.jsonl",
        SAMPLED,
        table,
        polars.DataFrame(SAMPLED),
        texts,
        tmp_path / "s.parquet",
    ):
        assert as_sample_rows(given) == SAMPLED
    assert as_sample_rows(tmp_path / "s.csv") == SAMPLED


def test_a_column_of_whole_numbers_is_one_of_reference_answers() -> None:
    """pandas makes floats of it where one is missing."""
    samples, answers = [["1988", "1987"]] * 3, [1988, None, 0]
    table = pandas.DataFrame({"question": ["When?"] * 3, "samples": samples, "answers": answers})
    assert [row.get("answers") for row in as_sample_rows(table)] == [["1988"], None, ["0"]]
    assert [one.answers for one in as_questions(table)] == [("1988",), (), ("0",)]


def test_missing_cells_of_a_table_are_no_answers_and_ids_are_numbered() -> None:
    table = pandas.DataFrame(
        {
            "question": ["Who?", "When?"],
            "samples": [("Ana", "Bo"), ("1843",)],
            "answers": ["Ana", float("nan")],
            "asked": pandas.to_datetime(["2024-01-02", None]),
            "level": pandas.array([1, None], dtype="Int64"),
        }
    )
    assert as_sample_rows(table) == [
        {"id": "1", "question": "Who?", "samples": ["Ana", "Bo"], "answers": ["Ana"]}
        | {"asked": "2024-01-02T00:00:00", "level": 1},
        {"id": "2", "question": "When?", "samples": ["1843"], "asked": None, "level": None},
    ]


class NoModel:
    """Neither a model nor anything else."""


WRONG_QUESTIONS: list[tuple[Any, str]] = [
    (None, "questions: got None"),
    ([], "questions is empty"),
    (pandas.DataFrame(), "questions is empty"),
    ([["Who?"]], r"questions\[0\]: got"),
    (["Who?", {"question": "When?"}], r"questions\[0\]: got"),
    ([""], r"questions\[0\] is empty. Leave it out"),
    ("Who wrote it?", r"questions: no such file: 'Who wrote it\?'"),
    ({"question": "Who?"}, "questions: got"),
    ([{"q": "Who?"}], r"questions\[0\]: no \"question\" \(the row's keys: q\)"),
    ([{"question": "Who?", "id": 1.5}], r'questions\[0\]: "id" must be a text or a whole number, got 1.5'),
    ([{"question": "Who?", "answers": [1.5]}], r'"answers" must hold texts or whole numbers, got 1.5: write'),
    ([{"question": "Who?", "image": b"x"}], r"questions\[0\]: a cell .*bytes.*Leave it out"),
    ([ROWS[0], ROWS[0]], r"questions\[1\] \(id 'a'\): .*Give each question its own"),
    ([ROWS[0], {"question": "?"}], r'questions\[1\]: no "id"'),
    (pandas.DataFrame({"text": ["Who?"]}), r"questions.iloc\[0\]: no \"question\""),
    (pandas.DataFrame([["a", "b"]], columns=["question"] * 2), "questions: 2 columns"),
    (FakeLanguageModel({}), "questions: got"),
]


@pytest.mark.parametrize(("given", "message"), WRONG_QUESTIONS)
def test_what_holds_no_questions_is_refused_with_its_place_and_what_to_do(given: Any, message: str) -> None:
    with pytest.raises((InputError, UsageError), match=message):
        semcal.SemanticUQ(FakeLanguageModel({"Who?": {"Ana": 1.0}})).ask_many(given)


WRONG_SAMPLES: list[tuple[Any, str]] = [
    (None, "samples: got None"),
    ([{"question": "Who?", "sample": "Ana"}], r"'samples' is missing; the keys are question, sample"),
    ([{"question": "Who?", "samples": []}], r"samples\[0\]: 'samples' must"),
    ([{"question": "Who?", "samples": "Ana"}], r'expected a list of texts like \["a", "b"\], got \'Ana\''),
    ([{"question": "Who?", "samples": [1]}], r"samples\[0\]: 'samples' must"),
    ([{"samples": ["Ana"]}], r"samples\[0\]: no 'question'"),
    ([SAMPLED[0], SAMPLED[0]], "the question id 'a' occurs twice"),
    ([SAMPLED[0], {"question": "?", "samples": ["a"]}], "'id': missing in 1 of 2 rows of samples"),
    ([{**SAMPLED[0], "log_likelihoods": [0.5, 1.0]}], r"samples\[0\] \(id 'a'\): 'log_likelihoods' must"),
    ([{**SAMPLED[0], "temperatures": "hot"}], r"'temperatures': expected a list like \[1, 0.5\], got 'hot'"),
    ([{**SAMPLED[0], "context": 5}], r"samples\[0\] \(id 'a'\): 'context' must be the passage as a text"),
    ([{**SAMPLED[0], "group": [1]}], r"samples\[0\] \(id 'a'\): 'group' must be a text or a number"),
    ([{**SAMPLED[0], "log_likelihoods": [-1]}], "'log_likelihoods' must hold 2 numbers, one a sample"),
]


@pytest.mark.parametrize(("given", "message"), WRONG_SAMPLES)
def test_what_holds_no_samples_is_refused_with_its_place_and_what_to_do(given: Any, message: str) -> None:
    with pytest.raises((InputError, UsageError), match=message):
        semcal.score(given)


MODEL = FakeLanguageModel({"Who?": {"Ana": 1.0}})
LABELLED = [{"question": "Who?", "answers": "Ana"}]
FIVE = [{"id": str(n), **LABELLED[0]} for n in range(5)]
WRONG_CALLS: list[tuple[Callable[[], Any], str]] = [
    (lambda: semcal.ask_many(NoModel, ["Who?"]), "^model: .*NoModel"),
    (lambda: semcal.calibrate("./none", LABELLED), "./none': the dir"),
    (lambda: semcal.score(SAMPLED, "nil"), "nil': the dir"),
    (lambda: semcal.SemanticUQ(MODEL, equivalence=MODEL), "^equivalence: .* got"),
    (lambda: semcal.score(SAMPLED, grader="rule"), "did you mean 'rules'"),
    (lambda: semcal.score(SAMPLED, "exact", grader="nli"), "^grader: .nli"),
    (lambda: semcal.score(SAMPLED, measure="E-CS"), "did you mean 'E-SC'"),
    (lambda: semcal.score(SAMPLED, measure="L-SC"), "has no log-likelihoods"),
    (lambda: as_recalibrator([1]), r"^recalibrator: got \[1\]"),
    (lambda: semcal.SemanticUQ(MODEL, recalibrator=0), "temperature"),
    (lambda: semcal.score(SAMPLED, calibration=3), "^calibration: .* got 3"),
    (lambda: semcal.calibrate(MODEL, ["Who?"]), "^labeled: got texts"),
    (lambda: semcal.calibrate(MODEL, LABELLED), "^questions: got 1 "),
    (lambda: semcal.score(SAMPLED).calibrate(), "^questions: got 0 "),
    (lambda: semcal.calibrate(MODEL, LABELLED, risk=10), "risk is 10; expected a share"),
    (lambda: semcal.calibrate(MODEL, LABELLED, seed=-1), "seed is -1; expected a whole"),
    (
        lambda: semcal.calibrate(MODEL, FIVE, temperatures="hot"),
        "temperatures is 'hot'; expected a positive number",
    ),
    (lambda: semcal.SemanticUQ(MODEL, few_shot="Who is it?"), "few_shot: no such file: 'Who is it"),
    (lambda: semcal.ask_many(MODEL, ["Who?"], progress="yes"), "progress is 'yes'"),
    (lambda: semcal.load_model(3), "the language model is 3; give a checkpoint"),
    (lambda: semcal.Fit.from_pretrained(None), "the recalibrator is None; give the directory"),
    (lambda: semcal.ask_many(MODEL, ["Who?"], m="ten"), "m is 'ten'; expected a positive whole number"),
    (lambda: semcal.calibrate(MODEL, FIVE, m=1), "^m = 1: "),
    (lambda: semcal.SemanticUQ(MODEL, linkage="average"), "linkage"),
    (lambda: semcal.SemanticUQ(MODEL, abstain_below="low"), "^abstain_below is 'low'"),
    (lambda: semcal.SemanticUQ(MODEL, truncation=0.9), "truncation: got 0.9"),
    (lambda: semcal.ask_many(MODEL, ["Who?"], max_new_tokens="x"), "max_new_tokens is 'x'"),
    (lambda: semcal.fit(MODEL, FIVE, los="SS"), "'los'.*loss"),
]


@pytest.mark.parametrize(("call", "message"), WRONG_CALLS)
def test_a_wrong_call_is_refused_with_a_sentence(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(SemcalError, match=message) as refused:
        call()
    assert isinstance(refused.value, InputError | UsageError | ModelError | FitError)
