"""The question sets of Atlas: trivia, rare and reading, each cut into splits with disjoint facts.

Everything is generated in code from one seed in about a second; nothing here loads torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from random import Random

from semcal.demo import texts
from semcal.demo.world import POPULAR, RIVALS, WORLD_SEED, Fact, build_world, small_world
from semcal.errors import UsageError
from semcal.qa.questions import Question

SETS = ("atlas-trivia", "atlas-rare", "atlas-reading")
SIZES = {"calibration_train": 2000, "validation": 500, "test": 500}
FEW_SHOT = {"atlas-trivia": 10, "atlas-rare": 10, "atlas-reading": 4}

Asked = tuple[str, str, Fact]
"""A question about a fact, its answer in a drawn form, and the fact."""


@dataclass(frozen=True)
class QuestionSet:
    """One set of questions; no two of them, in whatever split, ask for the same fact.

    The first reference of a question is in a drawn form; its `extra` names the relation and, closed book, how
    often and how truly the fact is told.
    """

    name: str
    open_book: bool  # whether every question brings a passage
    few_shot: tuple[Question, ...]
    calibration_train: tuple[Question, ...]
    validation: tuple[Question, ...]
    test: tuple[Question, ...]


@cache
def load_set(name: str) -> QuestionSet:
    """Generate a question set.

    Parameters
    ----------
    name : {"atlas-trivia", "atlas-rare", "atlas-reading"}

    Raises
    ------
    UsageError
        If there is no such set.

    Examples
    --------
    >>> atlas = load_set("atlas-reading")
    >>> len(atlas.few_shot), len(atlas.calibration_train), len(atlas.validation), len(atlas.test)
    (4, 2000, 500, 500)
    """
    if name not in SETS:
        raise UsageError(f"no question set {name!r} in Atlas: use one of {', '.join(SETS)}")
    total = FEW_SHOT[name] + sum(SIZES.values())
    if name == "atlas-reading":
        questions = _reading_questions(name, total)
    else:
        questions = _closed_questions(name, question_facts(name))
    few_shot, rest = questions[: FEW_SHOT[name]], iter(questions[FEW_SHOT[name] :])
    splits = {split: tuple(next(rest) for _ in range(size)) for split, size in SIZES.items()}
    return QuestionSet(name, name == "atlas-reading", tuple(few_shot), **splits)


def question_facts(name: str) -> tuple[Fact, ...]:
    """Return the facts that a closed-book set asks for, in the order of its questions."""
    return facts_by_use()[name]


@cache
def facts_by_use() -> dict[str, tuple[Fact, ...]]:
    """Deal out the facts of the world, each to one use, in a drawn order.

    "atlas-trivia" gets popular facts and "atlas-rare" rare ones. Of the others those that are told truly are
    for "training", those that some texts get wrong are "unasked".
    """
    rng = Random(f"atlas-shares-{WORLD_SEED}")
    facts = build_world().facts
    popular, rare = list(facts[:POPULAR]), list(facts[POPULAR:])
    rng.shuffle(popular)
    rng.shuffle(rare)
    size = FEW_SHOT["atlas-trivia"] + sum(SIZES.values())
    left = popular[size:] + rare[size:]
    training = [fact for fact in left if not fact.error]
    rng.shuffle(training)
    return {
        "atlas-trivia": tuple(popular[:size]),
        "atlas-rare": tuple(rare[:size]),
        "training": tuple(training),
        "unasked": tuple(fact for fact in left if fact.error),
    }


def _closed_questions(name: str, facts: Sequence[Fact]) -> list[Question]:
    """Ask for each fact once, in a drawn wording, with the first reference in a drawn form."""
    rng = Random(f"{name}-{WORLD_SEED}")
    return [
        Question(
            id=f"{name}-{number:04d}",
            question=texts.question(rng, fact),
            answers=texts.references(fact.value, texts.draw_form(rng, fact.value)),
            extra={"relation": fact.relation, "tellings": fact.tellings, "error": fact.error},
        )
        for number, fact in enumerate(facts)
    ]


def _reading_questions(name: str, count: int) -> list[Question]:
    """Invent passages about nobody and nothing of the world, and ask one question about each."""
    known = _known_names()
    stream = reading_stream(Random(f"{name}-{WORLD_SEED}"), ASKED_RIVALS)
    fresh = (example for example in stream if known.isdisjoint(_names_in(example[0])))
    return [
        Question(
            id=f"{name}-{number:04d}",
            question=asked,
            answers=texts.references(fact.value, form),
            context=passage,
            extra={"relation": fact.relation},
        )
        for number, (passage, ((asked, form, fact), *_)) in zip(range(count), fresh)
    ]


def _known_names() -> set[str]:
    """Return the names of the world: one word for a place, two for a person."""
    names = build_world().names
    return (
        {place.name for place in names.towns} | {person.name for person in names.people} | set(names.others)
    )


def _names_in(passage: str) -> set[str]:
    """Return what may be a name in a passage: every word, and every two words that follow one another."""
    words = passage.replace(",", "").replace(".", "").split()
    return {*words, *(f"{one} {two}" for one, two in pairwise(words))}


def reading_stream(rng: Random, rivals: float = RIVALS) -> Iterator[tuple[str, list[Asked]]]:
    """Yield, without end, a fresh passage with a question about each of its facts, in a drawn order."""
    while True:
        facts = small_world(rng, rivals)
        rng.shuffle(facts)
        passage, written = texts.passage(rng, facts)
        asked = [
            (texts.question(rng, fact), _answer_form(rng, fact, form), fact)
            for fact, form in zip(facts, written)
        ]
        rng.shuffle(asked)
        yield passage, asked


def _answer_form(rng: Random, fact: Fact, written: str) -> str:
    """Draw the form of an answer to a question about a passage: mostly as it stands there."""
    if rng.random() < SAME_FORM:
        return written
    return rng.choice(texts.readable_forms(fact.value, written))


SAME_FORM = 0.9
"""Share of reading answers copied as they stand in the passage; the others are in any form it allows."""
ASKED_RIVALS = 0.15
"""Share of the passages of atlas-reading whose subjects are all of one kind; the model learns with more."""
