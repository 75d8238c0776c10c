"""The generator of Atlas's question sets, which the package holds as data: `python -m tools.atlas.questions`.

Everything is generated from one seed in about a second; nothing here loads torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random

from semcal.data.question import Question
from semcal.demo import questions as stored
from semcal.demo.questions import PARTS, SETS
from semcal.files import dumps
from tools.atlas import texts
from tools.atlas.world import (
    POPULAR,
    RIVALS,
    WORLD_SEED,
    Fact,
    build_world,
    small_world,
)

Asked = tuple[str, str, Fact]
"""A question about a fact, its answer in a drawn form, and the fact."""


def generate_set(name: str) -> list[Question]:
    """Generate the questions of a set, those of its parts one after the other."""
    if name == "atlas-reading":
        return _reading_questions(name, sum(PARTS[name].values()))
    return _closed_questions(name, question_facts(name))


def data_files() -> dict[str, str]:
    """The files of the package that are generated: name → text."""
    sets = {name: "".join(dumps(one.row()) + "\n" for one in generate_set(name)) for name in SETS}
    return {f"{name}.jsonl": text for name, text in sets.items()}


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
    size = sum(PARTS["atlas-trivia"].values())
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


if __name__ == "__main__":
    for _file, _text in data_files().items():
        Path(stored.__file__).with_name(_file).write_text(_text, encoding="utf-8")
