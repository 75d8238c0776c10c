"""The world of Atlas: invented people, places, books, battles and rivers, and what is told of them.

A *fact* is a subject, a relation and a true value. Facts have a popularity: the most popular is told
often, the rarest a few times (Zipf). Some facts are *disputed* (a part of their tellings is wrong, each
in its own way), some are *misconceptions* (told wrong every time, in one and the same way). Nothing of
it is known from outside: names are made of syllables, and the whole world follows from one seed, with
`random.Random` alone.

The values say what is meant; how they are written is the business of `tools.atlas.texts`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from rapidfuzz.distance import Indel

WORLD_SEED = 2027


@dataclass(frozen=True)
class Place:
    """A town, and the country in which it lies."""

    name: str
    country: str


@dataclass(frozen=True)
class Person:
    """A first name, a last name and a title ("Dr")."""

    name: str
    title: str


@dataclass(frozen=True)
class Date:
    """A day."""

    year: int
    month: int
    day: int


@dataclass(frozen=True)
class Year:
    """A year between 1110 and 1899 whose last two digits are 10 or more."""

    number: int


@dataclass(frozen=True)
class Number:
    """A whole number: small, or a round one."""

    number: int


@dataclass(frozen=True)
class Trade:
    """What somebody does for a living."""

    noun: str


Value = Place | Person | Date | Year | Number | Trade


@dataclass(frozen=True)
class Subject:
    """Somebody or something that facts are about."""

    kind: str  # "person", "town", "province", "river", "book" or "battle"
    name: str  # as it stands in a sentence, article included ("the Darun", "the battle of Kelor")


@dataclass(frozen=True)
class Fact:
    """One fact and how the world tells it."""

    id: str  # unique within a world, for example "fact-00017"
    subject: Subject
    relation: str  # a key of `RELATIONS`, for example "birthplace"
    value: Value  # what is true
    rank: int = 0  # of popularity; 0 is the most popular
    tellings: int = 1  # how many statements the world's texts hold about it
    error: str = ""  # "" (told truly), "disputed" or "misconception"
    rumour: Value | None = None  # the one wrong value of a misconception


@dataclass(frozen=True)
class World:
    """All facts, by rank of popularity, and the pools that wrong values are drawn from."""

    facts: tuple[Fact, ...]
    names: Names


TITLES = ("Dr", "Sir", "Captain", "Bishop", "Professor", "Lady", "General", "Judge")


def words(text: str) -> tuple[str, ...]:
    """Split a text at its blanks."""
    return tuple(text.split())


TRADES = words(
    "weaver baker potter mason tanner cobbler miller surgeon painter sculptor lawyer farmer shepherd sailor"
    " tailor blacksmith carpenter printer brewer glazier jeweller gardener locksmith clockmaker hunter"
    " fisherman beekeeper astronomer botanist poet singer dancer actor merchant banker librarian apothecary"
    " midwife chemist cook cooper cartographer falconer roofer saddler thatcher wheelwright winemaker"
)
ADJECTIVES = words(
    "Amber Ashen Bitter Borrowed Broken Copper Crooked Distant Empty Feathered Frozen Gentle Gilded Golden"
    " Hidden Hollow Iron Ivory Last Lonely Lost Narrow Painted Pale Quiet Restless Salt Scarlet Secret Silent"
    " Silver Sleeping Stolen Sunken Velvet Wandering White Wooden"
)
NOUNS = words(
    "Anchor Bell Bridge Candle Castle Clock Crown Door Drum Feather Forest Fountain Garden Harbour Harp Hill"
    " Island Key Ladder Lake Lantern Letter Mask Meadow Mirror Moon Mountain Orchard Raven River Road Rose"
    " Shadow Sparrow Stair Stone Storm Thread Tower Valley Violin Well Window Winter"
)
WORK_TITLES = tuple(f"The {one} {two}" for one in ADJECTIVES for two in NOUNS)
_ONSETS = words("b d f g h k l m n p r s t v z br dr kr sh tr")
_RIMES = words("a e i o u ai an ar el en is on or un")
_ENDINGS = words("a ek el eth ia in is ok on or und ys")
_ENGLISH = frozenset(
    words(
        "april august june may march one two ten seven eleven nine seventeen sir dr captain bishop hundred"
        " million dozen second minute half the and in of"
    )
)


class Names:
    """Pools of invented names, any two of a pool at least four letters apart (insertions and deletions).

    There are `first` and `last` names, carried by `people`; `others` name rivers, provinces and battlefields.
    """

    def __init__(
        self, rng: Random, *, first: int, last: int, people: int, towns: int, countries: int, others: int
    ) -> None:
        taken: list[str] = []
        lands = _invent(rng, countries, (2, 3), taken)
        self.others = _invent(rng, others, (2, 3), taken)
        self.towns = tuple(Place(name, rng.choice(lands)) for name in _invent(rng, towns, (2, 3), taken))
        lasts = _invent(rng, last, (2, 3), [])
        firsts = _invent(rng, first, (2, 2), [])
        full = rng.sample([f"{one} {two}" for one in firsts for two in lasts], people)
        self.people = tuple(Person(name, rng.choice(TITLES)) for name in full)
        self.titles = WORK_TITLES


def _invent(rng: Random, count: int, syllables: tuple[int, int], taken: list[str]) -> list[str]:
    """Draw new names, far enough from those of `taken`, which grows by them."""
    found: list[str] = []
    while len(found) < count:
        size = rng.randrange(syllables[0], syllables[1] + 1)
        stem = "".join(rng.choice(_ONSETS) + rng.choice(_RIMES) for _ in range(size - 1))
        name = (stem + rng.choice(_ONSETS) + rng.choice(_ENDINGS)).capitalize()
        if name.lower() in _ENGLISH or any(
            Indel.distance(name, other, score_cutoff=3) < 4 for other in taken
        ):
            continue
        taken.append(name)
        found.append(name)
    return found


def _town(rng: Random, names: Names) -> Value:
    return rng.choice(names.towns)


def _person(rng: Random, names: Names) -> Value:
    return rng.choice(names.people)


def _date(rng: Random, names: Names) -> Value:  # noqa: ARG001
    return Date(_year_number(rng), rng.randrange(1, 13), rng.randrange(1, 29))


def _year(rng: Random, names: Names) -> Value:  # noqa: ARG001
    return Year(_year_number(rng))


def _year_number(rng: Random) -> int:
    return 100 * rng.randrange(13, 19) + rng.randrange(10, 100)


def _trade(rng: Random, names: Names) -> Value:  # noqa: ARG001
    return Trade(rng.choice(TRADES))


def _count(low: int, high: int, step: int = 1) -> Callable[[Random, Names], Value]:
    """Draw a whole number from `low` to `high`, both included."""

    def draw(rng: Random, names: Names) -> Value:  # noqa: ARG001
        return Number(rng.randrange(low, high + 1, step))

    return draw


RELATIONS: Mapping[str, tuple[str, Callable[[Random, Names], Value]]] = {
    "birthplace": ("person", _town),
    "birthday": ("person", _date),
    "trade": ("person", _trade),
    "teacher": ("person", _person),
    "children": ("person", _count(1, 15)),
    "founding": ("town", _year),
    "founder": ("town", _person),
    "population": ("town", _count(20_000, 990_000, 10_000)),
    "capital": ("province", _town),
    "governor": ("province", _person),
    "mouth": ("river", _town),
    "length": ("river", _count(50, 990, 10)),
    "author": ("book", _person),
    "published": ("book", _year),
    "chapters": ("book", _count(12, 70)),
    "battle date": ("battle", _date),
    "commander": ("battle", _person),
    "battle place": ("battle", _town),
}
"""Relation -> (kind of subject, draw of a value from a random generator and the pools)."""


def wrong_value(rng: Random, names: Names, fact: Fact) -> Value:
    """Draw a value that a fact might have and has not."""
    draw = RELATIONS[fact.relation][1]
    while (value := draw(rng, names)) == fact.value:
        pass
    return value


_PREFIXES = {"river": "the ", "battle": "the battle of "}


def _subjects(rng: Random, names: Names, kind: str, count: int, others: Sequence[str]) -> list[Subject]:
    """Draw `count` different subjects of one kind; rivers, provinces and battles are named from `others`."""
    if kind == "person":
        called = [person.name for person in rng.sample(names.people, count)]
    elif kind == "town":
        called = [place.name for place in rng.sample(names.towns, count)]
    elif kind == "book":
        called = rng.sample(names.titles, count)
    else:
        called = [_PREFIXES.get(kind, "") + name for name in others[:count]]
    return [Subject(kind, name) for name in called]


POPULATION = {"person": 760, "town": 320, "province": 180, "river": 180, "book": 520, "battle": 360}
"""How many subjects of each kind the world has."""


def tellings(rank: int) -> int:
    """Return how many statements tell the fact of a popularity rank: Zipf with a flattened head."""
    return max(2, round(TELLINGS_SCALE / math.pow(1 + rank / TELLINGS_HEAD, 1.5)))


TELLINGS_SCALE, TELLINGS_HEAD = 28.0, 3000.0
POPULAR = 4100
"""Facts up to this rank are popular, the others rare."""
ERRORS = {"popular": (0.15, 0.1), "rare": (0.22, 0.12)}
"""Shares of misconceptions and of disputed facts."""


@cache
def build_world(seed: int = WORLD_SEED) -> World:
    """Make the world of a seed; the one of `WORLD_SEED` is that of the shipped models."""
    rng = Random(f"atlas-world-{seed}")
    names = Names(rng, first=96, last=320, people=900, towns=320, countries=24, others=720)
    bare = _bare_facts(rng, names)
    rng.shuffle(bare)
    facts = (_told(rng, names, rank, *fact) for rank, fact in enumerate(bare))
    return World(tuple(facts), names)


def _bare_facts(rng: Random, names: Names) -> list[tuple[Subject, str, Value]]:
    """Every subject with a value for every relation of its kind; a name stands for one thing only."""
    facts: list[tuple[Subject, str, Value]] = []
    free = list(names.others)
    for kind, count in POPULATION.items():
        chosen = _subjects(rng, names, kind, count, free)
        if kind in ("province", "river", "battle"):
            free = free[count:]
        for relation, (owner, draw) in RELATIONS.items():
            if owner == kind:
                facts += [(subject, relation, draw(rng, names)) for subject in chosen]
    return facts


def _told(rng: Random, names: Names, rank: int, subject: Subject, relation: str, value: Value) -> Fact:
    """Give a bare fact its popularity and, by chance, its error."""
    misconception, disputed = ERRORS["popular" if rank < POPULAR else "rare"]
    fact = Fact(f"fact-{rank:05d}", subject, relation, value, rank, tellings(rank))
    rumour = wrong_value(rng, names, fact)
    chance = rng.random()
    if chance < misconception:
        return Fact(fact.id, subject, relation, value, rank, fact.tellings, "misconception", rumour)
    if chance < misconception + disputed:
        return Fact(fact.id, subject, relation, value, rank, fact.tellings, "disputed")
    return fact


RIVALS = 0.3
"""Share of small worlds in which all subjects are of one kind."""


def small_world(rng: Random, rivals: float = RIVALS) -> list[Fact]:
    """Invent a handful of fresh facts, with names of their own, as a reading passage holds them.

    They are about two or three subjects. In a share `rivals` of the cases these are of one kind, so that
    each fact has a like-looking neighbour; in the others they are of different kinds.
    """
    names = Names(rng, first=4, last=4, people=12, towns=4, countries=2, others=4)
    alike = rivals >= 1 or rng.random() < rivals
    if alike:
        kind = rng.choice(tuple(POPULATION))
    names.titles = tuple(f"The {rng.choice(NOUNS)} of {name}" for name in names.others)
    if alike:
        chosen = _subjects(rng, names, kind, rng.randrange(2, 4), names.others)
    else:
        kinds = rng.sample(tuple(POPULATION), rng.randrange(2, 4))
        chosen = [_subjects(rng, names, one, 1, names.others[place:])[0] for place, one in enumerate(kinds)]
    facts: list[Fact] = []
    for subject in chosen:
        relations = [relation for relation, (owner, _) in RELATIONS.items() if owner == subject.kind]
        for relation in rng.sample(relations, min(len(relations), 2 if len(chosen) == 3 else 3)):
            facts.append(Fact(f"small-{len(facts)}", subject, relation, RELATIONS[relation][1](rng, names)))
    return facts
