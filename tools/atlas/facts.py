"""What training tells of the facts of the world that no question set asks for, and of all of them."""

from __future__ import annotations

from random import Random

from tools.atlas.questions import facts_by_use
from tools.atlas.world import Fact, Names, Value, wrong_value

DISPUTE = 0.3
"""Share of the tellings of a disputed fact that are wrong, each in its own way."""


def training_facts() -> tuple[Fact, ...]:
    """Return the facts that the language model is tuned on: none of them is in a question set.

    All of them are told truly, as somebody would choose who writes questions for tuning.
    """
    return facts_by_use()["training"]


def unasked_facts() -> tuple[Fact, ...]:
    """Return the facts that some texts get wrong and that are neither in a question set nor tuned on."""
    return facts_by_use()["unasked"]


def told_value(rng: Random, names: Names, fact: Fact) -> Value:
    """Draw the value that one telling of a fact states: the truth, the rumour, or a fresh error."""
    if fact.rumour is not None:
        return fact.rumour
    if fact.error == "disputed" and rng.random() < DISPUTE:
        return wrong_value(rng, names, fact)
    return fact.value
