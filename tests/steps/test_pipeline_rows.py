"""Rows through measure, cluster and grade: contracts, and errors that name field, value and remedy."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest

from semcal import metrics
from semcal.data.datasets import question_from_row
from semcal.data.question import Question, data_hash, group_labels, ties_of
from semcal.errors import InputError, RowError, UndefinedWarning
from semcal.files import JsonLine
from semcal.grading.grade import EntailmentGrader
from semcal.grading.rules import RuleGrader
from semcal.measuring import assess
from semcal.models.equivalence import ExactMatch
from semcal.models.fakes import FakeEquivalence
from semcal.rows import warn_of_cut_draws
from tests.json_rows import (
    check_assessable,
    check_clusterable,
    check_gradable,
    check_measurable,
    cluster_rows,
    grade_row,
    measure_rows,
    scores_by_measure,
)

ROW = {"id": "q", "clusters": [[0, 2], [1]], "log_likelihoods": [-1.0, -2.0, -1.0], "note": "kept"}


def test_measure_adds_all_seven_measures_and_keeps_other_keys() -> None:
    (row,) = measure_rows([ROW])
    assert row["note"] == "kept"
    assert list(row["confidences"]) == ["E-SC", "L-SC", "ML-SC", "B-SC", "T-SC", "IC-SC", "G-SC"]
    assert row["confidences"]["E-SC"] == pytest.approx([2 / 3, 1 / 3])
    large = 2 * math.exp(-1) / (2 * math.exp(-1) + math.exp(-2))
    assert row["confidence"]["L-SC"] == pytest.approx(large)
    assert row["semantic_entropy"]["L-SC"] == pytest.approx(
        -large * math.log(large) - (1 - large) * math.log(1 - large)
    )
    assert row["top_cluster"]["L-SC"] == 0


def test_rows_with_and_without_likelihoods_may_be_mixed() -> None:
    rows = measure_rows([{**ROW, "log_likelihoods": None}, ROW, {**ROW, "log_likelihoods": [None, -1, -1]}])
    assert [list(row["confidence"]) for row in rows][0::2] == [["E-SC"], ["E-SC"]]
    assert len(rows[1]["confidence"]) == 7


def test_a_measure_that_is_undefined_is_null() -> None:
    (row,) = measure_rows([{"id": "q", "clusters": [[0, 1], [2]], "log_likelihoods": ["-inf", -1.0, -1.0]}])
    assert row["confidence"]["E-SC"] == pytest.approx(2 / 3)
    assert row["confidences"]["B-SC"] == [0.0, 1.0]
    with pytest.warns(UndefinedWarning) as caught:
        (row,) = measure_rows([{"id": "q", "clusters": [[0, 1]], "log_likelihoods": ["-inf", -1.0]}])
    assert {str(warning.message)[:4] for warning in caught} >= {"B-SC", "T-SC"}
    assert (row["confidence"]["B-SC"], row["top_cluster"]["B-SC"], row["confidences"]["B-SC"]) == (
        None,
        None,
        None,
    )


CLUSTERED = {
    "id": "q",
    "question": "Where?",
    "answers": ["Toreth"],
    "samples": ["Toreth.", "Karun", "toreth"],
    "clusters": [[0, 2], [1]],
    "top_cluster": {"E-SC": 0, "B-SC": 1, "T-SC": None},
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clusters": [[0], [1]]}, "'log_likelihoods' must hold 2 numbers"),
        ({"clusters": [[0, 1], [1]]}, "'clusters'"),
        ({"clusters": [[0, 1], []]}, "'clusters'"),
        ({"log_likelihoods": [-1, -1, "x"]}, "expected a number"),
        ({"log_likelihoods": [-1, -1, 0.5]}, "'log_likelihoods'"),
        ({"log_likelihoods": ["-inf", "-inf", "-inf"]}, "'log_likelihoods' are all -inf"),
        ({"id": None}, "'id' must be"),
    ],
)
def test_a_row_that_cannot_be_measured_says_why(change, message) -> None:
    with pytest.raises(InputError, match=message):
        check_measurable({**ROW, **change})
    with pytest.raises(InputError, match="run `semcal cluster` first"):
        check_measurable({"id": "q", "log_likelihoods": None})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": None}, "'answers'"),
        ({"answers": [True]}, "must hold texts or whole numbers, got True: write it in quotes"),
        ({"answers": [10**400]}, "must hold texts or whole numbers, got a whole number of about 400 digits"),
        ({"top_cluster": {"E-SC": 2}}, "'top_cluster'"),
        ({"prediction": 3}, "'prediction'"),
        ({"samples": ["a"]}, "'clusters'"),
        *(({"finished": wrong}, "'finished'") for wrong in ([True], "yes", [1, 0, 1], [True, "", False], {})),
    ],
)
def test_a_row_that_cannot_be_clustered_or_graded_says_why(change, message) -> None:
    check = check_clusterable if "finished" in change else check_gradable
    with pytest.raises(InputError, match=message):
        check({**CLUSTERED, **change})


def test_cluster_adds_normal_forms_and_clusters_in_order_of_appearance() -> None:
    rows = [{"id": "q", "question": "How many?", "samples": ["Twenty.", "thirty", "20", "a score"]}]
    (row,), calls = cluster_rows(rows, equivalence=FakeEquivalence([{"20", "score"}]))
    assert row["normal_forms"] == ["20", "30", "20", "score"]
    assert row["clusters"] == [[0, 2, 3], [1]]
    assert calls > 0
    (row,), calls = cluster_rows(rows, equivalence=ExactMatch())
    assert (row["clusters"], calls) == ([[0, 2], [1], [3]], 0)


def test_grade_says_for_each_measure_whether_its_top_cluster_is_right() -> None:
    row = grade_row(CLUSTERED, grader=RuleGrader())
    assert row["correct"] == {"E-SC": True, "B-SC": False, "T-SC": None}
    assert row["cluster_correct"] == [True, False]
    assert row["rule"]["T-SC"] is None


def test_a_cluster_is_graded_by_its_commonest_wording_and_not_by_any_of_its_members() -> None:
    merged = {**CLUSTERED, "samples": ["Karun", "Toreth", "Karun"], "clusters": [[0, 1, 2]]}
    row = grade_row({**merged, "top_cluster": {"E-SC": 0}}, grader=RuleGrader())
    assert (row["correct"], row["cluster_correct"]) == ({"E-SC": False}, [False])
    everyone = {"samples": ["Karun", "Toreth"], "clusters": [[0, 1]], "top_cluster": {"E-SC": 0}}
    for likely, correct in ((None, False), ([-1.0, -2.0], False), ([-2.0, -1.0], True)):
        row = grade_row({**CLUSTERED, **everyone, "log_likelihoods": likely}, grader=RuleGrader())
        assert row["correct"] == {"E-SC": correct}  # of equally common wordings the likelier, or the first


def test_the_graded_wording_is_that_of_the_calibrated_answer_where_sharper_samples_settle_it() -> None:
    several = {
        "id": "q",
        "answers": ["Toreth"],
        "samples": ["Karun", "Toreth", "Toreth", "Toreth"],
        "temperatures": [1.0, 1.0, 0.5, 0.5],
        "clusters": [[0, 1], [2, 3]],
        "top_cluster": {"E-SC": 0},
    }
    assert grade_row(several, grader=RuleGrader())["correct"] == {"E-SC": True}


def test_grade_takes_one_prediction_or_several() -> None:
    given = {"id": "q", "answers": ["Toreth"]}
    assert grade_row({**given, "prediction": "toreth"}, grader=RuleGrader())["correct"] is True
    assert grade_row({**given, "prediction": ["Karun", "Toreth"]}, grader=RuleGrader())["correct"] is True
    assert grade_row({**given, "prediction": "Karun"}, grader=RuleGrader())["correct"] is False


@pytest.mark.parametrize("answers", [1988, ["Toreth", 1988]])
def test_whole_numbers_are_references(answers) -> None:
    given = {"id": "q", "answers": answers}
    assert grade_row({**given, "prediction": "in 1988"}, grader=RuleGrader())["correct"] is True
    assert grade_row({**given, "prediction": "in 1989"}, grader=RuleGrader())["correct"] is False


def test_grading_by_entailment_needs_both_directions_and_respects_numbers() -> None:
    grader = EntailmentGrader(
        FakeEquivalence([{"nyc", "new york"}, {"7", "8"}], entailments=[("soho", "nyc")])
    )
    assert grader.grade("Where?", ["NYC"], ["New York"]).correct
    assert not grader.grade("Where?", ["Soho"], ["NYC"]).correct
    assert not grader.grade("How many?", ["seven"], ["8"]).correct
    assert not grader.grade("Where?", [""], ["NYC"]).correct


def test_a_number_at_the_end_of_a_draw_that_was_cut_keeps_no_meanings_apart() -> None:
    row = {"id": 1, "question": "When?", "samples": ["December 194", "December 1941", "1942"]}
    same = FakeEquivalence([{"december 194", "1941-12", "1942"}])
    clusters = {}
    for finished in ([True] * 3, [None] * 3, [False, True, True]):
        ((clustered,), _) = cluster_rows([{**row, "finished": finished}], equivalence=same)
        clusters[finished[0]] = clustered["clusters"]
    # the first joins one of the two others, which differ
    assert clusters == {True: [[0], [1], [2]], None: [[0], [1], [2]], False: [[0, 2], [1]]}


@pytest.mark.parametrize(
    ("cut", "of", "none", "said"),
    [
        (2, 10, 0, "2 of 10 samples reached the token limit"),
        (0, 10, 2, "2 of 10 samples have no answer"),
        (
            1,
            10,
            1,
            "1 of 10 samples reached the token limit before the answer ended and 1 of 10",
        ),
        (0, 10, 1, ""),
    ],
)
def test_cut_samples_and_those_without_an_answer_are_told_where_they_are_more_than_a_tenth(
    cut: int, of: int, none: int, said: str
) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warn_of_cut_draws(cut, of, none)
    assert [str(one.message)[: len(said)] for one in found] == [said] * bool(said)


# ---- Rows that share a passage or a value in the field `group` are resampled together, and it is said ------


def rows(key: str | None, value: Any = lambda group: f"Passage {group}.") -> list[dict[str, Any]]:
    rng = np.random.default_rng(2)
    found = []
    for group in range(30):
        confidence, right = round(float(rng.random()), 2), bool(rng.random() < 0.5)
        for number in range(int(rng.integers(1, 6))):
            row = {"id": f"{group}.{number}", "confidence": confidence, "correct": right}
            found.append(row | ({} if key is None else {key: value(group)}))
    return found


@pytest.mark.parametrize(("key", "value"), [("context", lambda g: f"Passage {g}. "), ("group", lambda g: g)])
def test_metrics_resample_passages_and_groups_and_count_them(key: str, value: Any) -> None:
    given = rows(key, value)
    (found,) = assess(scores_by_measure(given), ci=True, resamples=100, seed=3).values()
    p, c = ([row[name] for row in given] for name in ("confidence", "correct"))
    labels = [row["id"].split(".")[0] for row in given]
    expected = metrics.bootstrap(p, c, groups=labels, metrics=["accuracy", "brier"], resamples=100, seed=3)
    assert found["groups"] == 30
    for name, interval in expected.items():
        assert found["se"][name] == pytest.approx(interval.standard_error)
        assert found["interval"][name] == pytest.approx([interval.low, interval.high])


@pytest.mark.parametrize("value", [["a"], {"a": 1}, float("nan")])
def test_a_group_that_is_no_label_is_a_bad_row(value: Any) -> None:
    row = {"question": "Who?", "group": value}
    with pytest.raises(RowError, match="'group'"):
        question_from_row(JsonLine(3, row))
    with pytest.raises(InputError, match="'group'"):
        check_assessable({"confidence": 0.5, "correct": True, "group": value})


def test_groups_join_through_passages_and_only_they_change_the_hash_of_the_questions() -> None:
    joined = [{"group": 0}, {"context": "Kent"}, {"group": 0, "context": " kent"}, {"group": ""}, {}]
    assert group_labels(map(ties_of, joined)).tolist() == [0, 0, 0, 1, 2]
    plain = [Question("1", "Who?", ("Ada",), extra={"level": 2})]
    assert data_hash(plain) == data_hash([Question("1", "Who?", ("Ada",))])
    assert data_hash(plain) != data_hash([Question("1", "Who?", ("Ada",), extra={"group": "g"})])
