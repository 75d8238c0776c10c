"""Rows that share a passage or a value in the field `group` are resampled together, and it is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from semcal import metrics
from semcal.data.datasets import question_from_row
from semcal.data.question import Question, data_hash, group_labels, ties_of
from semcal.errors import InputError, RowError
from semcal.files import JsonLine
from semcal.measuring import assess
from tests.json_rows import check_assessable, paired_scores, scores_by_measure


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


def test_rows_that_share_nothing_are_resampled_one_by_one() -> None:
    given = rows(None)
    (plain,) = assess(scores_by_measure(given), ci=True, resamples=50).values()
    apart = [row | {"context": f"Passage {row['id']}", "group": None} for row in given]
    (alone,) = assess(scores_by_measure(apart), ci=True, resamples=50).values()
    assert "groups" not in plain
    assert plain == alone


def test_candidates_know_the_groups_of_their_common_questions() -> None:
    given = [
        {"id": str(i), "context": f"Passage {i // 2}", "confidence": {"E-SC": p}, "correct": {"E-SC": True}}
        for i, p in enumerate([0.5, 0.5, None, 0.5, 0.5])
    ]
    groups = paired_scores([given, given], "E-SC").groups
    assert groups is not None
    assert groups.tolist() == [0, 0, 1, 2]
    assert paired_scores([given[3:]], "E-SC").groups is None


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
