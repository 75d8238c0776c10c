"""How an answer is read travels with samples, rows and calibrations, and is compared where it counts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import semcal
from semcal.data.question import Question
from semcal.errors import InputError, UsageError
from semcal.meaning.answer import AnswerFormat
from semcal.models.fakes import FakeLanguageModel
from semcal.models.sample import SampleStep, Sampling, SamplingConfig, sample_runs
from semcal.recalibration import Base
from semcal.rows import Row
from semcal.steps import WorkerState
from tests.cli.invoking import semcal as command
from tests.cli.invoking import write

JSON = '{{"town": " {} ", "sure": " yes "}}'
REPLIES = {
    JSON.format("Mirna"): 0.5,
    JSON.format("Orlin"): 0.25,
    "<think>Hm it": 0.15,
    "<think>Hm</think> Mirna": 0.1,
}
POINTER = "json:/town"


def drawn(name: str = "auto") -> list[Any]:
    sampling = Sampling((Base(),), config=SamplingConfig(60, max_new_tokens=20, answer_format=name))
    model = FakeLanguageModel({"Where?": REPLIES}, floor=-math.inf)
    (((sampled,),),) = sample_runs(model, [Question("q", "Where?")], sampling)
    return list(sampled.draws)


def test_the_likelihood_of_a_value_in_json_is_that_of_its_tokens_given_all_before() -> None:
    found = {draw.generation.text: draw for draw in drawn(POINTER)}
    mirna, orlin = (found[JSON.format(town)] for town in ("Mirna", "Orlin"))
    assert (mirna.text, mirna.likelihood, mirna.finished) == ("Mirna", "sampled", True)
    assert mirna.log_likelihood == pytest.approx(math.log(2 / 3), abs=1e-6)
    assert (orlin.text, orlin.log_likelihood) == ("Orlin", pytest.approx(math.log(1 / 3), abs=1e-6))
    assert found["<think>Hm</think> Mirna"].text is None


def test_reasoning_alone_is_no_answer_and_leaves_the_other_likelihoods_known() -> None:
    model = FakeLanguageModel({"Where?": REPLIES}, floor=-math.inf)
    step = SampleStep(
        Sampling((Base(),), config=SamplingConfig(40, max_new_tokens=20, answer_format=POINTER)), full=True
    )
    (row,) = step([Row({"id": "q", "question": "Where?"})], WorkerState(model, None), lambda _: None)
    none = [text is None for text in row["samples"]]
    assert row["answer_format"] == POINTER
    assert 0 < sum(none) < 40
    assert none == [value is None for value in row["log_likelihoods"]]
    assert (
        none
        == [value is None for value in row["likelihood"]]
        == [value is None for value in row["token_scores"]]
    )
    assert all(row["generations"])
    assert "refusals" not in row
    assert Row(row.json).samples == row["samples"]


TABLE = {
    f"Who built mill {i}?": {"It is a mill of old. The answer is Ana.": 0.7, "Bo. He did.": 0.3}
    for i in range(60)
}
LABELED = [{"question": q, "answers": "It is a mill of old" if i % 3 else "Bo"} for i, q in enumerate(TABLE)]


@pytest.fixture(scope="module")
def model() -> FakeLanguageModel:
    return FakeLanguageModel(TABLE)


@pytest.fixture(scope="module")
def learned(model: FakeLanguageModel) -> semcal.Calibration:
    options: dict[str, Any] = {"equivalence": "exact", "temperatures": [1.0], "max_new_tokens": 20}
    return semcal.calibrate(model, LABELED, answer_format="first", progress=False, **options)


def test_a_calibration_brings_its_format_and_refuses_another(
    model: FakeLanguageModel, learned: semcal.Calibration, tmp_path: Path
) -> None:
    learned.save_pretrained(tmp_path)
    for calibration in (learned, semcal.Calibration.from_pretrained(tmp_path)):
        assert calibration.answer_format == "first"
        uq = semcal.SemanticUQ(model, calibration=calibration, answer_format="first")
        assert uq.sampling.answer_format == AnswerFormat("first")
        assert semcal.SemanticUQ(model, calibration=calibration).sampling.answer_format == AnswerFormat(
            "first"
        )
        with pytest.raises(UsageError, match="--answer-format"):
            semcal.SemanticUQ(model, calibration=calibration, answer_format="auto")
    assert {text for meaning in uq.ask(LABELED[0]["question"]).meanings for text in meaning.samples} == {
        "It is a mill of old",
        "Bo",
    }
    plain = semcal.SemanticUQ(model, equivalence="exact", max_new_tokens=20).ask(LABELED[0]["question"])
    assert plain.text == "Ana"


def test_a_calibration_is_refused_for_rows_that_were_read_otherwise(
    learned: semcal.Calibration, tmp_path: Path
) -> None:
    learned.save_pretrained(tmp_path / "learned")
    row = {"id": "q", "question": "Who?", "samples": ["Ana"] * 10, "clusters": [list(range(10))]}
    row["log_likelihoods"] = [-0.5] * 10
    for changed, code in (({"answer_format": "first"}, 0), ({"answer_format": "auto"}, 2), ({}, 2)):
        file = write(tmp_path / "rows.jsonl", [row | changed])
        found, _, stderr = command("measure", file, "--calibration", tmp_path / "learned")
        assert found == code
        assert code == 0 or "'first'" in stderr


def test_stored_rows_without_a_format_count_as_whole_and_several_formats_are_refused() -> None:
    rows = [
        {
            "id": str(i),
            "question": f"Who {i}?",
            "answers": "Ana" if i % 3 else "Bo",
            "samples": ["Ana"] * (5 + i % 5) + ["Bo"] * (5 - i % 5),
        }
        for i in range(60)
    ]
    found = semcal.score(rows, equivalence="exact", progress=False).calibrate()
    assert found.answer_format == "whole"
    with pytest.raises(InputError, match="'answer_format'"):
        semcal.score(
            [rows[0] | {"answer_format": "auto"}, *rows[1:]], equivalence="exact", progress=False
        ).calibrate()
