"""Text that people read keeps the rules of language: verbs, nouns that name the thing, short sentences."""

from __future__ import annotations

from functools import cache

import pytest

from tools import language, reading


@cache
def texts() -> list[language.Text]:
    return [*language.code_texts(), *language.help_texts(), *language.pages()]


def places(rule: str) -> list[str]:
    return [
        f"{one.text.place}: {one.rule}" for one in language.findings(texts()) if one.rule.startswith(rule)
    ]


@pytest.mark.parametrize("rule", ["clause", "verb"])
def test_texts_begin_with_a_noun_or_a_verb(rule: str) -> None:
    assert language.shares(texts())[rule] <= 0.01, places(rule)


def test_help_messages_and_pages_use_the_words_of_the_field() -> None:
    assert places("word") == []


def test_breaches_of_each_rule_are_found() -> None:
    broken = [
        language.Text("a", "docstring", "What the answer is sampled with."),
        language.Text("b", "function", "Settings of a run."),
        language.Text("c", "message", "the folder of 40 rows"),
        language.Text("d", "page", "A rule is learnt, and `learnt` is a word of the code."),
    ]
    assert [one.rule for one in language.findings(broken)] == ["clause", "verb", "verb", "word 'learnt'"]
    assert language.shares(broken) == {"clause": 1 / 3, "verb": 1.0}


def test_how_to_pages_have_short_sentences_and_few_words() -> None:
    pages = [one for one in reading.pages() if one.kind == "How-to"]
    assert pages
    assert {one.name: one.median for one in pages if one.median > 18} == {}
    assert {one.name: one.words for one in pages if one.words > 600} == {}


def test_pages_are_easy_to_read() -> None:
    assert {one.name: one.ease for one in reading.pages() if one.ease < 40 and one.kind != "Evidence"} == {}


def test_all_pages_together_stay_short() -> None:
    made = {reading.DOCS / "reference" / f"{name}.md" for name in ("cli", "config", "api", "glossary")}
    pages = {one for one in reading.DOCS.rglob("*.md") if "_build" not in one.parts} - made
    assert sum(reading.word_count(one.read_text("utf-8")) for one in pages) <= 35_000
    assert reading.word_count(reading.paths()[0].read_text("utf-8")) <= 700
