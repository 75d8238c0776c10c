"""Detection of names that an answer mentions only beside its answer: "Oslo, although Bergen was the capital".

The model accepts almost every long answer that contains the short answer. Here the long answer is split into
clauses. The short answer is an aside if it stands only in clauses that do not hold the answer: after
"although", "unlike" or "than", after the verb of a defeat, or after a semicolon if another clause has more
words of the question.
"""

from __future__ import annotations

import re

from semcal.meaning.words import any_listed, word_pattern
from semcal.text.values import STOP_WORDS

_CLAUSE = re.compile(
    r"(?<=\w{4})\.\s+|\s[-–]+\s|—|,(?!\d)\s*|[()]"
    r"|\s(?=(?:although|though|while|whereas|unlike|but|even though|followed by)\b)"
    r"|(?<!named)(?<!years)(?<!months)(?<!weeks)(?<!days)\s(?=after\b)",
    re.I,
)
_ASIDE = re.compile(rf"(?:and |or )?{any_listed('aside')}\b", re.I)
_BELIEF = word_pattern("beliefs")
_BEATEN = re.compile(
    r"\b(?:beat(?:s|ing)?|defeat(?:s|ed|ing)|overt(?:ook|aken|aking)|surpass(?:ed|es|ing)|edged out|than"
    r"|lost to|a contemporary of|(?:won|win|victory)\b[^,;]{0,40} (?:against|over))"
    r"(?: [\w' -]{1,40} (?:or|and)){0,5}"
    r"(?: (?:the|an?|any|all|every|most|other|either))? [\"']?$",
    re.I,
)
_PLACED = re.compile(
    r"\s(?:is|was|\w+(?:e[sd]|me|ks))\b(?: \w+){0,3}? ?\b(?:second|third|next|later|behind|afterwards)\b"
    r"|\s(?:is|was|are|were) (?:only|just|merely)\b"
    r"|\s(?:losing|finishing|trailing|coming (?:second|third|last|next))\b"
    r"|\sas an? (?:backup|fallback|alternative|substitute|runner-up)\b",
    re.I,
)
_STATED = re.compile(
    r"(?:it|that|this|they|he|she|the \w+)(?:'s| is| was| are| were)\b|but (?-i:[A-Z])", re.I
)
#: A list after "than", whose commas separate no clauses.
_NOUN = r"(?:(?:the|an?) )?[\w\0'-]+(?: [A-Z\0][\w'-]*){0,3}"
_LISTED = re.compile(rf"\bthan (?:{_NOUN}, ){{1,5}}{_NOUN},? (?:or|and) ")
_RELATIVE = re.compile(r"(?:which|who|that)\b")
_NAMES_IT = re.compile(r"\b(?:play|portray|name|known|call|alias|pseudonym|renam|becam)")
_NEGATED = re.compile(r"\b(?:not|never|no|nor|neither|none)\b|n't\b", re.I)
#: Words of questions for the loser, the second or the former one.
_ASKS_FOR_OTHER = word_pattern("other asked")
_PERSON = word_pattern("persons")
_BARE_NAME = re.compile(r"(?:but )?(?:(?:[A-Z][\w.'-]*|da|de|van|von|of) ?)+")
_NEAR = re.compile(r"near|close to|(?:north|south|east|west) of")
_HOW_MANY = re.compile(r"\bhow many (?:\w+ )??(\w{3,}?)(?:s|es)?\b", re.I)
_ARTICLE = re.compile("^(?:the|an?) ", re.I)
_LETTERS = 4  # first letters of a word, which stand for all its forms


def _content(text: str) -> frozenset[str]:
    words = re.findall(r"[^\W_]+", text.casefold())
    return frozenset(word[:_LETTERS] for word in words if len(word) > 1 and word not in STOP_WORDS)


def is_aside(question: str, text: str, name: str) -> bool:
    """Return whether an answer mentions a name only beside its answer.

    >>> is_aside("Which is the capital?", "The capital is Oslo, although Bergen is older", "Bergen")
    True
    >>> is_aside("Which is the capital?", "Although Bergen is older, the capital is Oslo", "Oslo")
    False
    """
    name = _ARTICLE.sub("", name.strip(" .'\""))
    if len(text) < len(name) + 12 or not name or name.casefold() not in text.casefold():
        return False
    named = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])", re.I)
    if not named.search(text) or _ASKS_FOR_OTHER.search(question):
        return False
    if name.isdigit() and (counted := _HOW_MANY.search(question)):
        return _counts_others(counted[1], text, name)
    asked, text = _content(question) - _content(name), named.sub("\0", text)
    text = _LISTED.sub(lambda match: match[0].replace(",", " or"), text)
    parts = [_CLAUSE.split(part) for part in text.split(";")]
    clauses = [(n, clause.strip()) for n, part in enumerate(parts) for clause in part if clause.strip()]

    def strength(clause: str) -> int:
        stated = 4 if clause == clauses[0][1] else 2  # the first clause often is the answer
        return len(_content(clause) & asked) + stated * (_STATED.match(clause) is not None)

    rivals = [
        (number, strength(clause), clause)
        for number, clause in clauses
        if not ("\0" in clause or _NEGATED.search(clause) or _ASIDE.match(clause))
        and not _BELIEF.search(clause)
        and _content(clause) - asked
    ]

    def is_beside(number: int, clause: str) -> bool:
        before, after = clause.split("\0", 1)
        won = _BEATEN.search(before)
        compared = won and won[0].startswith("than") and not _NEGATED.match(before)
        if compared or (won and name[0].isupper() and _content(clause) - asked):
            return True
        here = strength(clause)
        if _BELIEF.search(clause) and any(other >= here for _, other, _ in rivals):
            return True
        relative = None if _content(clause) & asked else _RELATIVE.match(clause)
        if relative and name.isdigit():
            return any(re.search(rf"\b\d{{{len(name)}}}\b", other) for _, _, other in rivals)
        personal = relative and _PERSON.search(question) and not _NAMES_IT.search(clause)
        if personal and any(other > 1 for _, other, _ in rivals):
            return True
        beside = _NEAR.match(clause) or (relative and _PERSON.search(question))
        named = [other for _, _, other in rivals if _BARE_NAME.fullmatch(other.removeprefix("but the "))]
        if beside and clauses[0][1] in named:  # "Ada, who married Bo", "Turin, near Milan"
            return True
        if relative and any(other.startswith("but ") for other in named):  # "not Bo, but Ada, who left Cy"
            return True
        stronger = [other_number for other_number, other, _ in rivals if other > here]
        aside = _ASIDE.match(clause)
        if aside and re.search("(?<!years )(?<!months )(?:before|after)$", aside[0]) and name[-1].isdigit():
            aside = None
        contrasted = (
            here == 0
            and clause == clauses[0][1]
            and any(other and text.startswith("but ") for _, other, text in rivals)
        )
        return contrasted or bool(stronger and (aside or _PLACED.match(after) or min(stronger) < number))

    return all(is_beside(number, clause) for number, clause in clauses if "\0" in clause)


def _counts_others(noun: str, text: str, number: str) -> bool:
    """Return whether a sentence counts the things that were asked for, with other numbers."""
    numbers = re.findall(rf"(\d+) (?:\w+ )?{noun}", text, re.I)
    stated = re.match(rf"\D*{number}\b", text)  # the first number
    sentences = re.search(r"\w[.!?]\s+[A-Z]", text)
    return bool(numbers) and number not in numbers and not (stated or sentences)
