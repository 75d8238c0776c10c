"""The world of Atlas, its wordings and its question sets: the same everywhere, disjoint, complete."""

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from semcal.demo import questions as stored
from semcal.demo.questions import SETS, load_set
from semcal.errors import UsageError
from semcal.text.normal_form import normal_form
from tools.atlas import texts
from tools.atlas.facts import told_value, training_facts
from tools.atlas.questions import data_files, question_facts
from tools.atlas.texts import number_words
from tools.atlas.world import WORLD_SEED, Person, Trade, Year, build_world, small_world

SPLITS = ("few_shot", "calibration_train", "validation", "test")
CLOSED = ("atlas-trivia", "atlas-rare")

_FINGERPRINT = """
import hashlib, sys
from semcal.demo.questions import SETS, load_set
from tools.atlas.questions import facts_by_use
from tools.atlas.world import build_world
text = repr((build_world().facts, facts_by_use()["training"], [load_set(name) for name in SETS]))
assert "torch" not in sys.modules
print(hashlib.sha256(text.encode()).hexdigest())
"""


def _questions(name):
    question_set = load_set(name)
    return [question for split in SPLITS for question in getattr(question_set, split)]


def test_world_and_questions_are_those_that_the_shipped_models_learnt():
    prints = {
        subprocess.run(
            [sys.executable, "-c", _FINGERPRINT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert prints == {"1b2e4e6e8fe495043d972397d6675c26a8a5fdad1ed8f8562f1859dbf73eed06"}


def test_the_package_holds_exactly_what_the_generator_makes():
    folder = Path(stored.__file__).parent
    for name, text in data_files().items():
        assert (folder / name).read_text(encoding="utf-8") == text, "run python -m tools.atlas.questions"


def test_another_seed_makes_another_world():
    ours, other = build_world(), build_world(WORLD_SEED + 1)
    assert len(ours.facts) == len(other.facts)
    assert {fact.subject.name for fact in ours.facts if fact.subject.kind == "person"}.isdisjoint(
        fact.subject.name for fact in other.facts
    )


@pytest.mark.parametrize("name", SETS)
def test_every_set_has_its_sizes(name):
    question_set = load_set(name)
    assert [len(getattr(question_set, split)) for split in SPLITS] == [
        4 if question_set.open_book else 10,
        2000,
        500,
        500,
    ]
    assert question_set.open_book == (name == "atlas-reading")
    assert all((question.context is not None) == question_set.open_book for question in _questions(name))


def test_no_fact_is_asked_twice_or_used_for_tuning():
    shares = [*(question_facts(name) for name in CLOSED), training_facts()]
    keys = [(fact.subject, fact.relation) for share in shares for fact in share]
    assert len(keys) == len(set(keys))
    assert [len(share) for share in shares[:2]] == [3010, 3010]
    assert len(shares[2]) > 1000
    assert not any(fact.error for fact in training_facts())


@pytest.mark.parametrize("name", SETS)
def test_no_question_of_a_set_stands_in_it_twice(name):
    questions = _questions(name)
    assert len({question.id for question in questions}) == len(questions)
    assert len({(question.question, question.context) for question in questions}) == len(questions)


def test_passages_are_about_nobody_and_nothing_of_the_world():
    names = build_world().names
    single = {place.name for place in names.towns} | set(names.others)
    people = {tuple(person.name.split()) for person in names.people}
    for question in _questions("atlas-reading"):
        words = re.findall(r"\w+", question.context)
        assert single.isdisjoint(words)
        assert people.isdisjoint(pairwise(words))


def test_popular_facts_are_told_more_often_than_rare_ones():
    trivia, rare = ([fact.tellings for fact in question_facts(name)] for name in CLOSED)
    assert min(trivia) >= max(rare)


def test_a_misconception_is_always_told_in_the_same_wrong_way():
    world, rng = build_world(), Random(0)
    wrong = [fact for fact in world.facts if fact.error == "misconception"]
    assert 0.1 < len(wrong) / len(world.facts) < 0.4
    for fact in wrong[:50]:
        told = {told_value(rng, world.names, fact) for _ in range(5)}
        assert told == {fact.rumour}
        assert fact.value not in told


def test_all_forms_of_numbers_and_dates_have_one_normal_form():
    for fact in build_world().facts[::7]:
        if not isinstance(fact.value, Person) and fact.relation not in ("capital", "birthplace"):
            forms = [form for form in texts.forms(fact.value) if "," not in form or form[0].isdigit()]
            assert len({normal_form(form) for form in forms}) == 1, forms


def test_names_are_no_numbers_to_the_normal_form():
    world = build_world()
    for name in [place.name for place in world.names.towns] + [person.name for person in world.names.people]:
        assert normal_form(name) == name.lower()


def test_the_first_reference_is_a_drawn_form_and_the_last_the_canonical_one():
    for name in CLOSED:
        for question, fact in zip(_questions(name), question_facts(name), strict=True):
            forms = texts.forms(fact.value)
            assert question.answers[0] in forms
            assert question.answers[-1] == forms[0]


def test_a_reading_answer_can_be_read_off_its_passage():
    for seed in range(200):
        rng = Random(seed)
        facts = small_world(rng)
        passage, written = texts.passage(rng, facts)
        for fact, form in zip(facts, written, strict=True):
            assert form in passage
            assert form in texts.readable_forms(fact.value, form)


def test_number_words_are_read_back_by_the_normal_form():
    for number in [*range(1, 120), *range(120, 1000, 10), *range(10_000, 1_000_000, 10_000)]:
        assert normal_form(number_words(number)) == str(number)


def test_years_in_words_are_read_back_by_the_normal_form():
    for number in range(1310, 1900):
        if number % 100 >= 10:
            digits, words = texts.forms(Year(number))
            assert normal_form(words) == normal_form(digits) == str(number)


def test_articles_of_trades_follow_the_vowel():
    assert texts.forms(Trade("astronomer"))[1] == "an astronomer"


def test_an_unknown_set_is_refused_with_the_names_of_the_known():
    with pytest.raises(UsageError, match="atlas-trivia, atlas-rare, atlas-reading"):
        load_set("atlas-history")
