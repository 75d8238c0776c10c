"""The normal form on public answers (docs/meaning-evidence.md); needs SEMCAL_DATA."""

from __future__ import annotations

import re

from benchmarks.text_quality import (
    SAMPLES,
    became_date,
    golden_verdicts,
    group_verdicts,
    pair_verdicts,
    sample_answers,
)


def share(verdicts: list[bool]) -> float:
    return sum(verdicts) / len(verdicts)


def test_every_golden_string_has_its_normal_form(semcal_data):
    assert share(golden_verdicts(semcal_data)) == 1


def test_equal_and_unequal_numbers_are_told_apart(semcal_data):
    assert share(pair_verdicts(semcal_data)) >= 0.995


def test_references_in_words_have_the_normal_form_of_those_in_digits(semcal_data):
    assert share(group_verdicts(semcal_data)) >= 0.96


def test_no_answer_without_a_year_and_a_month_becomes_a_date(semcal_data):
    month = re.compile(r"jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|[0-9]+[/.-][0-9]+", re.IGNORECASE)
    dated = [
        answer for name in SAMPLES for answer in sample_answers(semcal_data, name) if became_date(answer)
    ]
    assert len(dated) > 1000
    assert [answer for answer in dated if not (month.search(answer) and re.search("[0-9]{4}", answer))] == []
