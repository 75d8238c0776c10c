"""Samples without an answer (null): one meaning apart, never correct, which abstains where it leads."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_calibration import calibration, threshold

import semcal
from semcal.calibration.calibration import CalibrationConfig
from semcal.calibration.learning import calibrate_rows
from semcal.calibration.samples import measure_samples
from semcal.data.question import Question
from semcal.errors import InputError, SemcalWarning, UndefinedWarning
from semcal.grading.rules import RuleGrader
from semcal.models.clustering import ClusterConfig, cluster_rows
from semcal.models.equivalence import ExactMatch
from semcal.models.fakes import FakeEquivalence, FakeLanguageModel
from semcal.rows import Row
from semcal.serve.answered import Answered, AnswerOutcome, ReplyVerdict
from semcal.serve.replies import Completion, SemcalPart
from semcal.uncertainty import SemanticUQ
from tests.cli.invoking import semcal as command
from tests.cli.invoking import write
from tests.json_rows import answer_of, grade_row, measure_rows

QUESTION = {"id": "1", "question": "Who?", "answers": ["Ana"]}
LIKELY = [None, -1.0, None, -2.0, None]
MOSTLY: dict[str, Any] = {**QUESTION, "samples": [None, "Ana", None, "", None], "log_likelihoods": LIKELY}


def clustered(row: dict[str, Any], equivalence: Any = None) -> dict[str, Any]:
    (found,) = cluster_rows([Row(row)], ClusterConfig(equivalence or ExactMatch()))[0]
    return found.to_json()


def measured(row: dict[str, Any]) -> dict[str, Any]:
    return measure_rows([clustered(row)])[0]


def test_samples_without_an_answer_are_one_cluster_that_joins_no_other() -> None:
    row = clustered(MOSTLY, FakeEquivalence([{"ana", ""}]))
    assert row["clusters"] == [[0, 2, 4], [1], [3]]
    assert row["normal_forms"] == ["", "ana", "", "", ""]
    at = {**MOSTLY, "temperatures": [1.0, 1.0, 1.0, 0.5, 0.5], "samples": [None, "Ana", None, None, "Ana"]}
    assert clustered({**at, "log_likelihoods": None})["clusters"] == [[0, 2], [1], [3], [4]]
    with pytest.raises(InputError, match="'samples'"):
        _ = Row({**MOSTLY, "samples": [None, 3]}).samples
    with pytest.raises(InputError, match=r"the cluster \[0, 1\] holds samples with an answer and samples"):
        _ = Row({**MOSTLY, "clusters": [[0, 1], [2, 3, 4]]}).clusters


def test_it_counts_in_shares_and_leaves_the_other_likelihoods_known() -> None:
    assert Row(MOSTLY).log_likelihoods == [-math.inf, -1.0, -math.inf, -2.0, -math.inf]
    row = measured(MOSTLY)
    assert row["confidences"]["E-SC"] == pytest.approx([0.6, 0.2, 0.2])
    top = row["top_cluster"]
    assert {top[name] for name in top} - {top["E-SC"]} == {1}  # what reads likelihoods never chooses it
    large = math.exp(-1) / (math.exp(-1) + math.exp(-2))
    assert row["confidences"]["L-SC"] == pytest.approx([0.0, large, 1 - large])
    assert Row({**MOSTLY, "log_likelihoods": [None, -1.0, None, None, None]}).log_likelihoods is None


@pytest.mark.parametrize("likely", [[None, None, -3.0, -3.0], None])
def test_it_wins_no_tie(likely: Any) -> None:
    row = measured({**QUESTION, "samples": [None, None, "Ana", "Ana"], "log_likelihoods": likely})
    assert (row["top_cluster"]["E-SC"], row["tied"]) == (1, 2)
    sharper = {"samples": [None, "Ana", None, None], "temperatures": [1.0, 1.0, 0.5, 0.5]}
    row = measured({**QUESTION, **sharper, "log_likelihoods": None})
    assert row["top_cluster"]["E-SC"] == 1


def test_where_no_sample_has_an_answer_measures_of_likelihoods_are_null() -> None:
    rows = [{**QUESTION, "samples": [None, None], "log_likelihoods": [None, None]}, MOSTLY]
    none, some = measure_rows([clustered({**row, "id": str(n)}) for n, row in enumerate(rows)])
    assert none["confidence"].keys() == some["confidence"].keys()
    assert none["confidence"]["E-SC"] == 1.0
    assert {value for name, value in none["confidence"].items() if name != "E-SC"} == {None}
    correct = grade_row(none, grader=RuleGrader())["correct"]
    assert correct == dict.fromkeys(none["confidence"]) | {"E-SC": False}
    (unscored,) = measure_rows([clustered({**rows[0], "log_likelihoods": None})])
    assert list(unscored["confidence"]) == ["E-SC"]


def test_it_is_never_correct() -> None:
    row = grade_row(measured({**MOSTLY, "answers": ["", "none", "null", "None", "Ana"]}), grader=RuleGrader())
    assert row["cluster_correct"] == [False, True, False]
    assert row["correct"]["E-SC"] is False
    assert row["correct"]["L-SC"] is True


def test_a_question_that_it_leads_abstains_and_says_why() -> None:
    (answer,) = results = semcal.score([MOSTLY], "exact", progress=False)
    assert (answer.text, answer.confidence, answer.abstained) == (None, None, True)
    assert answer.reason == "no answer"
    assert answer.explanation == "3 of 5 samples gave no answer, 1 says Ana, 1 says nothing"
    assert [meaning.text for meaning in answer.meanings] == [None, "Ana", ""]
    with pytest.warns(UndefinedWarning):
        assert results.metrics("E-SC")["E-SC"]["accuracy"] == 0.0
    assert results.to_df().loc[0, "answer"] is None
    (other,) = semcal.score([MOSTLY], "exact", measure="L-SC", progress=False)
    assert (other.text, other.abstained, other.reason) == ("Ana", None, None)
    record = SemanticUQ(FakeLanguageModel({"Who?": {"Ana": 1.0}}), equivalence="exact").recalibrator
    assert {"answer": None, "reason": "no answer", "abstained": True}.items() <= answer.record(record).items()


def calibrated(row: dict[str, Any], **changed: Any) -> Any:
    with_calibration = calibration(m=5, **changed)
    ((best,), rows) = with_calibration.apply({1.0: [row]}), [Row(row)]
    return answer_of(rows[0].json, "E-SC", best, with_calibration.limit), best


def test_with_a_calibration_it_has_no_probability_and_the_others_have_theirs() -> None:
    row = measured(MOSTLY)
    for limit in (None, threshold(0.1)):
        answer, best = calibrated(row, threshold=limit)
        assert (answer.text, answer.confidence, answer.abstained) == (None, None, True)
        assert best.probabilities == pytest.approx((0.0, 0.1, 0.1))  # further = .2, by their shares
    minor = measured({**MOSTLY, "samples": [None, "Ana", "Ana", "Ana", "Bo"], "log_likelihoods": None})
    answer, best = calibrated(minor)
    assert answer.confidence == pytest.approx(0.1 + 0.6 * 0.6)
    assert best.probabilities == pytest.approx((0.0, 0.46, 0.2 * 0.54))
    two = (threshold(0.6), threshold(0.1))
    assert calibrated(row, threshold=two[1], thresholds=two)[1].decision == "abstain"


def test_a_reply_says_that_there_is_no_answer_and_nothing_is_learnt_from_it() -> None:
    answer, _ = calibrated(measured(MOSTLY), threshold=threshold(0.1))
    outcome = AnswerOutcome(answer, "", 1, 1, 0.0, None, 5)
    assert answer.features == {}
    for covered in (True, False):
        limited = calibration(threshold=threshold(0.1))
        verdict = ReplyVerdict.on(answer, limited, band=None, covered=covered, alarm=False)
        answered = Answered("1", Question("1", "Who?"), outcome, verdict, "c", "r")
        part = SemcalPart.of(answered, samples=True)
        reply = Completion.of(answered, part, "m", part.message("pass", "I do not know."))
        assert reply.choices[0].message.content == "I do not know."
        assert (part.answer, part.confidence, part.abstained, part.reason) == (None, None, True, "no answer")
        assert (part.meanings[0].text, part.meanings[0].samples) == (None, [None] * 3)


def labelled(n: int, without: int, seed: int = 0) -> list[Row]:
    """Questions with ten samples each; the last of them are mostly without an answer."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(n):
        sure = rng.beta(4, 1.2)
        texts: list[Any] = ["Ana" if rng.random() < sure else f"Bo {rng.integers(4)}" for _ in range(10)]
        if number >= n - without:
            texts[:7] = [None] * 7
        right = ["Ana"] if rng.random() < 0.8 * sure else ["Nobody"]
        rows.append(
            Row({"id": f"q{number}", "question": f"Who {number}?", "samples": texts, "answers": right})
        )
    return rows


def test_questions_without_an_answer_are_no_labels_of_a_map_and_count_as_wrong() -> None:
    grouping = ClusterConfig(ExactMatch())
    rows = labelled(200, 40)
    learning = CalibrationConfig(risks=0.4, delta=0.1)
    with pytest.warns(SemcalWarning, match=r"280 of 2000 samples have no answer; "):
        measured = measure_samples(rows, grouping)
    found = calibrate_rows(measured, ClusterConfig("exact"), config=learning)
    report, limit = found.report, found.threshold
    assert (report.no_answer, report.no_answer_samples) == (40, 280)
    assert (report.n, report.apart) == (160, 0)
    assert limit.n == 200  # so that the coverage is that of all questions
    assert limit.answered <= report.n
    every = calibrate_rows(measured, ClusterConfig("exact"))
    with_answers = calibrate_rows(measure_samples(rows[:160], grouping), grouping)
    assert every.map == with_answers.map
    assert every.report.base["accuracy"] == pytest.approx(with_answers.report.base["accuracy"] * 160 / 200)
    point = every.report.at_thresholds[0]
    assert (point.threshold, point.answered, point.coverage) == (0.0, 160, 0.8)  # the others abstain


@pytest.mark.filterwarnings("always:140 of 1200 samples have no answer")
def test_the_accuracies_of_a_share_and_of_a_probability_are_one(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [row.to_json() for row in labelled(120, 20)])
    assert command("calibrate", path, "--equivalence", "exact", "--out", tmp_path / "c")[0] == 0
    steps = (
        ("cluster", "--equivalence", "exact"),
        ("measure", "--calibration", tmp_path / "c"),
        ("grade",),
    )
    for name, *options in steps:
        code, out, told = command(name, path, *options)
        assert code == 0
        assert ("140 of 1200 samples have no answer; " in told) == (name == "cluster")
        path = write(tmp_path / f"{name}.jsonl", out)
    last = out[-1]
    assert (last["answer"], last["probability"], last["abstained"]) == (None, None, True)
    assert last["reason"] == "no answer"
    assert (last["answer_correct"], last["correct"]["E-SC"]) == (False, False)
    code, figures, told = command("metrics", path)
    assert "questions without an answer, which count as wrong, of probability 0: 20" in told
    share, p = ({one["measure"]: one for one in figures}[name] for name in ("E-SC", "Calibrated"))
    assert (share["n"], share["accuracy"]) == (p["n"], p["accuracy"]) == (120, pytest.approx(p["accuracy"]))


@pytest.mark.filterwarnings("ignore:.* samples have no answer")
def test_a_pipe_keeps_likelihoods_beside_null_samples(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    code, (row,), told = command(
        "cluster", write(tmp_path / "rows.jsonl", [MOSTLY]), "--equivalence", "exact"
    )
    assert (code, row["log_likelihoods"]) == (0, MOSTLY["log_likelihoods"])
    assert "unknown" not in told
    path.write_text('id,question,samples\n1,Who?,"[null, ""Ana"", null]"\n')
    assert command("cluster", path, "--equivalence", "exact")[1][0]["clusters"] == [[0, 2], [1]]
