"""Grading against human judgements (docs/meaning-evidence.md); needs SEMCAL_DATA."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest

from benchmarks.grading_quality import (
    Judged,
    agreements,
    by_rules,
    judged_rows,
    plain_rule,
    squad_normal_form,
    without_numbers,
)
from semcal.data.datasets import load_questions
from semcal.grading.rules import RuleGrader

PUBLISHED = {
    ("NQ", "FiD"): 0.930,
    ("NQ", "GPT-3.5"): 0.847,
    ("NQ", "ChatGPT"): 0.807,
    ("NQ", "GPT-4"): 0.815,
    ("TriviaQA", "FiD"): 0.945,
    ("TriviaQA", "GPT-3.5"): 0.932,
    ("TriviaQA", "ChatGPT"): 0.928,
    ("TriviaQA", "GPT-4"): 0.920,
    ("NQ301", "12 systems"): 0.816,
}


@lru_cache(maxsize=1)
def judged(folder: Path) -> list[Judged]:
    return list(judged_rows(folder))


def test_the_plain_rule_reaches_its_known_figures(semcal_data):
    found = {cells[:2]: cells[3] for cells in agreements(judged(semcal_data), plain_rule, plain_rule)}
    for key, figure in PUBLISHED.items():
        assert found[key] == pytest.approx(figure, abs=0.00051)


def test_grading_is_nowhere_far_below_the_plain_rule_and_above_it_on_average(semcal_data):
    cells = list(agreements(judged(semcal_data), plain_rule, by_rules()))
    for _, _, n, plain, ours in cells[:-1]:
        assert ours - plain >= -max(0.003, 1.01 / n)  # a system with 29 answers may lose one of them
    assert all(ours >= plain for _, _, n, plain, ours in cells if n > 300)
    _, _, n, plain, ours = cells[-1]
    assert n == 13316
    assert ours - plain > 0.01


def test_the_number_and_date_normal_forms_help_grading(semcal_data):
    *_, without, with_them = list(
        agreements(judged(semcal_data), by_rules(normal_form=without_numbers), by_rules())
    )[-1]
    assert with_them - without > 0.005


def test_every_real_question_accepts_its_own_references(semcal_data):
    grader = RuleGrader()
    for name in ("squad", "nq_open", "triviaqa"):
        for question in load_questions(semcal_data / f"{name}_dev_sample.jsonl.gz"):
            for answer in question.answers:
                assert grader.grade(question.question, [answer], question.answers).correct


def test_squads_normaliser_is_transcribed_faithfully():
    assert squad_normal_form("The  Cat's 3.14 U.S. an-apple, A") == "cats 314 us anapple"
