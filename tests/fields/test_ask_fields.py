"""`ask_many` and `check` with a calibration of fields: documents are sampled under its schema."""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel

import semcal
from semcal.errors import UsageError
from semcal.models.fakes import FakeLanguageModel

RIGHT, WRONG = '{"name": "Mirna", "n": 7}', '{"name": "Mirna", "n": 9}'


class Form(BaseModel):
    name: str
    n: int


@pytest.fixture(scope="module")
def model():
    likely = {f"Read form {number}.": 0.9 if number % 3 else 0.3 for number in range(30)}
    return FakeLanguageModel({text: {RIGHT: p, WRONG: 1 - p} for text, p in likely.items()})


def forms(n=30, **more):
    return [{"question": f"Read form {i}.", "answers": {"name": "Mirna", "n": 7}, **more} for i in range(n)]


@pytest.fixture(scope="module")
def calibrations(model):
    """Calibrations of modal and of given documents, from samples of the same prompt."""
    made = {}
    for kind in ("modal", "given"):
        learned = semcal.calibrate_fields(
            [
                {**row, "samples": [RIGHT if i % 3 else WRONG] * 4, "answer": RIGHT if i % 2 else WRONG}
                for i, row in enumerate(forms())
            ],
            semcal.ClusterConfig("exact"),
            Form,
            answer=kind,
        )
        made[kind] = learned
    return made


def test_questions_are_asked_and_graded(model, calibrations):
    found = semcal.ask_many(model, forms(8), calibration=calibrations["modal"], progress=False)
    assert "8 graded" in repr(found)
    for one in found:
        row = one.row
        assert {json.dumps(json.loads(text)) for text in row["samples"]} <= {RIGHT, WRONG}
        assert 0 < row["fields"]["/n"]["probability"] < 1
        smallest, mean = row["fields"]["/n"]["token_scores"]
        assert 0 < smallest <= mean <= 1
    (text,) = semcal.ask_many(model, ["Read form 1."], calibration=calibrations["modal"], progress=False)
    assert {*text.row["fields"]} == {"/name", "/n"}


def test_given_documents_are_checked_as_objects_texts_or_objects_of_pydantic(model, calibrations):
    given = [Form(name="Mirna", n=9), RIGHT, {"name": "Mirna", "n": 8}]
    found = semcal.check(model, forms(3), given, calibration=calibrations["given"], progress=False)
    assert [one.row["fields"]["/n"]["value"] for one in found] == [9, 7, 8]
    assert found[2].row["fields"]["/n"]["share"] == 0
    with pytest.raises(UsageError, match="answers"):
        semcal.check(model, forms(3), given[:2], calibration=calibrations["given"])
    with pytest.raises(UsageError, match="answers"):
        semcal.check(model, forms(3), given, calibration=calibrations["modal"])


def test_options_that_the_calibration_sets_are_refused(model, calibrations):
    with pytest.raises(UsageError, match="temperatures"):
        semcal.ask_many(model, forms(1), calibration=calibrations["modal"], temperatures=(0.5,))
