"""Pairs of answers with their relation, for training and testing the NLI model of Atlas.

Every pair answers one question of the world's wordings with freshly invented names, both sides in normal
form, as clustering asks for them. Names fall into two shares by a hash: those of held-out pairs never occur
in training. What counts as what stands in NLI.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from zlib import crc32

from semcal.text.normal_form import normal_form
from tools.atlas import texts
from tools.atlas.texts import MONTHS
from tools.atlas.world import (
    RELATIONS,
    TITLES,
    Date,
    Fact,
    Names,
    Number,
    Person,
    Place,
    Subject,
    Trade,
    Value,
    Year,
)

LABELS = ("entailment", "neutral", "contradiction")
ENTAILMENT, NEUTRAL, CONTRADICTION = range(3)


@dataclass(frozen=True)
class Pair:
    """Two answers to one question, and how they stand to each other.

    Attributes
    ----------
    kind : str
        A key of `KINDS`.
    question : str
    first, second : str
        Two different normal forms.
    forward, backward : int
        Indices into `LABELS`: first as premise of second, second as premise of first.
    """

    kind: str
    question: str
    first: str
    second: str
    forward: int
    backward: int

    @property
    def equivalent(self) -> bool:
        """Whether each answer entails the other."""
        return self.forward == self.backward == ENTAILMENT

    def reversed(self) -> Pair:
        """Swap the two answers."""
        return Pair(self.kind, self.question, self.second, self.first, self.backward, self.forward)


_SAME = (ENTAILMENT, ENTAILMENT)
_NARROWER = (ENTAILMENT, NEUTRAL)
_UNRELATED = (NEUTRAL, NEUTRAL)
_OTHER = (CONTRADICTION, CONTRADICTION)

Draft = tuple[str, str, tuple[int, int]]
"""Two written answers, not yet in normal form, and the labels of both directions."""


def pairs(seed: int, *, held_out: bool = False, kind: str | None = None) -> Iterator[Pair]:
    """Yield pairs without end.

    Parameters
    ----------
    seed : int
    held_out : bool
        Whether to use the names that are kept for tests, or those for training.
    kind : str, optional
        Yield this kind only; by default all, as often as `KINDS` weighs them.

    Examples
    --------
    >>> pair = next(pairs(0, kind="paraphrase"))
    >>> pair.equivalent, pair.first != pair.second
    (True, True)
    """
    rng = Random(f"atlas-nli-{seed}-{held_out}")
    kinds, weights = list(KINDS), [entry.share for entry in KINDS.values()]
    while True:
        names = fresh_names(rng, held_out=held_out)
        for _ in range(PAIRS_PER_POOL):
            chosen = kind or rng.choices(kinds, weights)[0]
            pair = _pair(rng, names, chosen)
            if pair.first != pair.second:
                yield pair.reversed() if rng.random() < 0.5 else pair


PAIRS_PER_POOL = 1000
"""Pairs drawn from one pool of invented names before the next one is made."""
POOL = 250
"""Invented words in a pool: countries, towns, first and last names, and others."""
HELD_OUT_SHARE = 8
"""One name in so many is kept for tests."""


def is_held_out(name: str) -> bool:
    """Say whether an invented word is kept for tests, by a hash of its letters."""
    return crc32(name.lower().encode()) % HELD_OUT_SHARE == 0


def fresh_names(rng: Random, *, held_out: bool) -> Names:
    """Invent a pool of names, all of them of one share."""
    names = Names(rng, first=2, last=2, people=1, towns=1, countries=1, others=1)
    words = [word for word in _invented(rng) if is_held_out(word) == held_out]
    while len(words) < POOL:
        words += [word for word in _invented(rng) if is_held_out(word) == held_out]
    lands, towns, firsts, lasts, names.others = (words[start::5] for start in range(5))
    names.towns = tuple(Place(town, rng.choice(lands[: len(towns) // 8])) for town in towns)
    called = [f"{rng.choice(firsts)} {rng.choice(lasts)}" for _ in range(2 * len(words))]
    names.people = tuple(Person(name, rng.choice(TITLES)) for name in called)
    return names


def _invented(rng: Random) -> list[str]:
    towns = Names(rng, first=2, last=2, people=1, towns=300, countries=1, others=1).towns
    return [place.name for place in towns]


def _pair(rng: Random, names: Names, kind: str) -> Pair:
    """Invent a fact, write two answers to a question about it, and bring them to normal form."""
    fact = _fact(rng, names, KINDS[kind].values)
    first, second, labels = KINDS[kind].write(rng, names, fact)
    return Pair(kind, texts.question(rng, fact), normal_form(first), normal_form(second), *labels)


def _fact(rng: Random, names: Names, allowed: tuple[type, ...]) -> Fact:
    """Invent a fact with a value of an allowed type."""
    while True:
        relation, (kind, draw) = rng.choice(list(RELATIONS.items()))
        value = draw(rng, names)
        if isinstance(value, allowed):
            return Fact("invented", _subject(rng, names, kind), relation, value)


_PREFIXES = {"river": "the ", "battle": "the battle of "}


def _subject(rng: Random, names: Names, kind: str) -> Subject:
    if kind == "book":
        return Subject(kind, rng.choice(names.titles))
    if kind == "person":
        return Subject(kind, rng.choice(names.people).name)
    return Subject(kind, _PREFIXES.get(kind, "") + rng.choice(names.others))


# How an answer is written


def _written(rng: Random, fact: Fact, value: Value, *, plain: float = 0.75) -> str:
    """Write a value as a bare form, or else as a phrase or a whole sentence."""
    chance = rng.random()
    if chance < plain:
        return texts.draw_form(rng, value)
    if chance < plain + (1 - plain) / 2:
        return _phrase(rng, fact, value)
    return texts.statement(rng, fact, value)


_UNITS = {"children": "children", "population": "people", "length": "miles", "chapters": "chapters"}


def _phrase(rng: Random, fact: Fact, value: Value) -> str:
    """Write a value with the small words that go with it: "in Toreth", "by Ana Velis", "47 chapters"."""
    form = texts.draw_form(rng, value)
    match value:
        case Place():
            return f"{rng.choice(('in', 'near', 'at', 'the town of', 'it is'))} {form}"
        case Person():
            return f"{rng.choice(('by', 'it was'))} {form}"
        case Number():
            return f"{form} {_UNITS[fact.relation]}"
        case Trade():
            return f"{rng.choice(('as', 'he was'))} {form}"
    return f"{rng.choice(('on', 'it was') if isinstance(value, Date) else ('in', 'the year'))} {form}"


# The kinds of pairs


def _paraphrase(rng: Random, names: Names, fact: Fact) -> Draft:  # noqa: ARG001
    """One value, written in two ways; a person's title says nothing about who it is."""
    value = other = fact.value
    if isinstance(value, Person) and rng.random() < 0.3:
        other = replace(value, title=rng.choice(TITLES))
    return _written(rng, fact, value, plain=0.65), _written(rng, fact, other, plain=0.65), _SAME


def _more_specific(rng: Random, names: Names, fact: Fact) -> Draft:  # noqa: ARG001
    """A value and a part of what it says."""
    match fact.value:
        case Place() as place if rng.random() < 0.75:
            return texts.forms(place)[1], place.country, _NARROWER
        case Place() as place:
            side = rng.choice(("northern", "southern", "eastern", "western"))
            return f"{side} {place.name}", place.name, _NARROWER
        case Person() as person:
            part = rng.choice((person.name.split()[1], person.name.split()[0]))
            called = f"{person.title} {part}" if rng.random() < 0.3 else part
            return _written(rng, fact, person), called, _NARROWER
        case Date() as date:
            vaguer = (str(date.year), f"{MONTHS[date.month - 1]} {date.year}")
            return _written(rng, fact, date), rng.choice(vaguer), _NARROWER
    raise TypeError(f"nothing is vaguer than {fact.value!r}")


def _different(rng: Random, names: Names, fact: Fact) -> Draft:
    """Two values that have nothing to do with each other."""
    value = fact.value
    while not _disjoint(value, other := RELATIONS[fact.relation][1](rng, names)):
        pass
    one, two = (_part(rng, v) if rng.random() < 0.1 else _written(rng, fact, v) for v in (value, other))
    return one, two, _OTHER


def _disjoint(one: Value, two: Value) -> bool:
    """Whether two values have no word in common, titles apart."""
    return _words(one).isdisjoint(_words(two))


def _words(value: Value) -> set[str]:
    full = value.name if isinstance(value, Person) else texts.forms(value)[-1]
    return set(full.replace(",", "").split())


def _part(rng: Random, value: Value) -> str:
    """The country of a town, one name of a person, or the whole of anything else."""
    match value:
        case Place():
            return value.country
        case Person():
            return rng.choice(value.name.split())
    return texts.draw_form(rng, value)


def _near_miss(rng: Random, names: Names, fact: Fact) -> Draft:
    """Two names that share much: a syllable differs, or one of two words, or one breaks off."""
    if isinstance(fact.value, Place | Person) and rng.random() < 0.1:
        part = garbled(rng, _part(rng, fact.value), rng.choice(names.others))
        return _written(rng, fact, fact.value), part, _OTHER
    match fact.value:
        case Place() as place if rng.random() < 0.2:
            other = replace(place, country=_near_name(rng, names, place.country))
            return texts.forms(place)[1], texts.forms(other)[1], _OTHER
        case Place() as place:
            nearly: Value = replace(place, name=_near_name(rng, names, place.name))
            if rng.random() < 0.2:
                return texts.forms(place)[1], texts.forms(nearly)[1], _OTHER
        case Person() as person:
            nearly = replace(person, name=_near_person(rng, names, person.name))
        case Trade() as trade:
            nearly = Trade(garbled(rng, trade.noun, rng.choice(names.others).lower()))
        case _:
            raise TypeError(f"no name: {fact.value!r}")
    return _written(rng, fact, fact.value), _written(rng, fact, nearly), _OTHER


def _near_person(rng: Random, names: Names, name: str) -> str:
    """Change the first name, the last name, or rarely both a little."""
    first, last = name.split()
    which = rng.random()
    if which < 0.55:
        return f"{first} {_near_name(rng, names, last)}"
    if which < 0.9:
        return f"{_near_name(rng, names, first)} {last}"
    return f"{garbled(rng, first, first)} {garbled(rng, last, last)}"


def _near_name(rng: Random, names: Names, name: str) -> str:
    """Another name of the pool, or mostly a garbled one."""
    other = rng.choice(names.others)
    return garbled(rng, name, other) if rng.random() < 0.7 or other == name else other


def garbled(rng: Random, name: str, other: str) -> str:
    """Spoil a name as a language model does that knows it half; never returns the name itself.

    Parameters
    ----------
    rng : random.Random
    name, other : str
        The name to be spoilt, and one whose letters may get into it.

    Examples
    --------
    >>> spoilt = {garbled(Random(seed), "Toreth", "Kelmaria") for seed in range(99)}
    >>> len(spoilt) > 30, "Toreth" in spoilt
    (True, False)
    """
    while True:
        spoilt = rng.choice(_SPOILS)(rng, name, other)
        if len(spoilt) >= 2 and spoilt.lower() != name.lower():
            return spoilt.capitalize() if name[0].isupper() else spoilt


def _cut(rng: Random, name: str, other: str) -> str:  # noqa: ARG001
    """Break off: "Toreth" -> "Tor"."""
    return name[: rng.randrange(2, max(3, len(name)))]


def _crossed(rng: Random, name: str, other: str) -> str:
    """Begin as one, end as the other: "Toreth", "Kelmaria" -> "Tomaria"."""
    if rng.random() < 0.5:
        name, other = other, name
    return name[: rng.randrange(1, len(name))] + other[rng.randrange(1, len(other)) :]


def _replaced(rng: Random, name: str, other: str) -> str:
    """Put a piece of the other in the place of one of the same length or nearly: "Tormath"."""
    start, size = rng.randrange(len(name)), rng.randrange(1, 4)
    begin = rng.randrange(len(other))
    return name[:start] + other[begin : begin + rng.randrange(1, 4)] + name[start + size :]


def _letter(rng: Random, name: str, other: str) -> str:
    """Drop, double or change one letter: "Toeth"."""
    place = rng.randrange(len(name))
    middle = rng.choice(("", name[place] * 2, rng.choice(other)))
    return name[:place] + middle + name[place + 1 :]


_SPOILS: tuple[Callable[[Random, str, str], str], ...] = (_cut, _crossed, _replaced, _replaced, _letter)


def _number_differs(rng: Random, names: Names, fact: Fact) -> Draft:
    """Two numbers, years or dates, at least one of them among words."""
    draw = RELATIONS[fact.relation][1]
    while (other := draw(rng, names)) == fact.value:
        pass
    if rng.random() < 0.5:
        other = _near_number(rng, fact.value)
    return _written(rng, fact, fact.value, plain=0.4), _written(rng, fact, other, plain=0.4), _OTHER


def _number_forms(rng: Random, names: Names, fact: Fact) -> Draft:  # noqa: ARG001
    """One number, year or date, at least once among words."""
    return _written(rng, fact, fact.value, plain=0.0), _written(rng, fact, fact.value, plain=0.5), _SAME


def _near_number(rng: Random, value: Value) -> Value:
    """Change one part of a number, year or date."""
    match value:
        case Number(number):
            step = 10_000 if number >= 20_000 else 1
            return Number(number + step * rng.randrange(1, 6))
        case Year(number):
            return Year(number + rng.choice((-100, -10, -1, 1, 10, 100)))
        case Date(year, month, day):
            moved = (
                Date(year + 1, month, day),
                Date(year, month % 12 + 1, day),
                Date(year, month, day % 28 + 1),
            )
            return rng.choice(moved)
    raise TypeError(f"no number, year or date: {value!r}")


def _wrong_type(rng: Random, names: Names, fact: Fact) -> Draft:
    """An answer, and one to another sort of question."""
    strange = tuple(kind for kind in _ANY if not isinstance(fact.value, kind))
    stranger = _fact(rng, names, strange)
    return _written(rng, fact, fact.value), _written(rng, stranger, stranger.value), _OTHER


REFUSALS = (
    "I do not know.",
    "I don't know.",
    "I am not sure.",
    "I'm not sure.",
    "I cannot answer that.",
    "No idea.",
    "I have no idea.",
    "It is not known.",
    "It cannot be determined.",
    "Not stated.",
    "There is no information.",
)


def _refusal(rng: Random, names: Names, fact: Fact) -> Draft:  # noqa: ARG001
    """An answer, and none: a refusal, or now and then an empty text."""
    none = "" if rng.random() < 0.1 else rng.choice(REFUSALS)
    return _written(rng, fact, fact.value), none, _UNRELATED


@dataclass(frozen=True)
class Kind:
    """A kind of pair: its share of all, the values that it is made of, and how it is written."""

    share: float
    values: tuple[type, ...]
    write: Callable[[Random, Names, Fact], Draft]


_NAMES = (Place, Person, Trade)
_NUMBERS = (Number, Year, Date)
_ANY = _NAMES + _NUMBERS

KINDS = {
    "paraphrase": Kind(0.26, _NAMES, _paraphrase),
    "more specific": Kind(0.10, (Place, Person, Date), _more_specific),
    "different": Kind(0.16, _NAMES, _different),
    "near miss": Kind(0.32, _NAMES, _near_miss),
    "number forms": Kind(0.04, _NUMBERS, _number_forms),
    "number differs": Kind(0.05, _NUMBERS, _number_differs),
    "wrong type": Kind(0.04, _ANY, _wrong_type),
    "refusal": Kind(0.03, _ANY, _refusal),
}
"""The kinds of pairs; numbers are rare among them, for most are told apart without the model."""
