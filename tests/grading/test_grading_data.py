"""Grading against human judgements (docs/meaning-evidence.md); needs SEMCAL_DATA."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from benchmarks import linkage
from benchmarks.grading_quality import (
    Judged,
    agreements,
    by_rules,
    judged_rows,
    plain_rule,
    rows_of,
)
from semcal.data.datasets import load_questions
from semcal.grading.rules import RuleGrader


@lru_cache(maxsize=1)
def judged(folder: Path) -> list[Judged]:
    return list(judged_rows(folder))


def test_grading_is_nowhere_far_below_the_plain_rule_and_above_it_on_average(semcal_data):
    cells = list(agreements(judged(semcal_data), plain_rule, by_rules()))
    for _, _, n, plain, ours in cells[:-1]:
        assert ours - plain >= -max(0.003, 1.01 / n)  # a system with 29 answers may lose one of them
    assert all(ours >= plain for _, _, n, plain, ours in cells if n > 300)
    _, _, n, plain, ours = cells[-1]
    assert n == 13316
    assert ours - plain > 0.01


def test_judgements_hold_ids_hashes_and_verdicts_and_no_text() -> None:
    for row in rows_of(linkage.GROUPS.parent / "answers.jsonl"):
        assert set(row) == {"set", "id", "answer_sha256", "model", "correct"}
        assert re.fullmatch("[0-9a-f]{16}", row["answer_sha256"])
    for row in rows_of(linkage.GROUPS):
        assert set(row) == {"set", "id", "model", "temperature", "forms", "meaning"}
        assert all(re.fullmatch("[0-9a-f]{16}", form) for form in row["forms"])


def test_every_real_question_accepts_its_own_references(semcal_data):
    grader = RuleGrader()
    for name in ("squad", "nq_open", "triviaqa"):
        for question in load_questions(semcal_data / f"{name}_dev_sample.jsonl.gz"):
            for answer in question.answers:
                assert grader.grade(question.question, [answer], question.answers).correct
