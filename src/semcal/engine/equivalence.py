"""Does one answer entail another? The protocol, and its forms without a model (spec section 5, point 4).

An equivalence decides *directed* entailment between normal forms and nothing else. Equality of normal
forms, both directions, rules about numbers and dates, and linkage are built on top of it in `clustering`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

#: The name of the model that comes with the package, which is used where nothing is given.
DEFAULT = "default"
#: (question, premise answer, hypothesis answer); the answers are normal forms.
Triple = tuple[str, str, str]


class Equivalence(Protocol):
    """Directed entailment between two answers to one question.

    Every implementation keeps three promises: verdicts come back in the order of the triples, a verdict
    depends on its own triple alone and not on the rest of the call, and the same name and revision give
    the same verdicts (they are the key under which verdicts are stored on disk).
    """

    @property
    def name(self) -> str:
        """The model's id or directory name, or what stands for it: "exact"."""

    @property
    def revision(self) -> str:
        """The commit or the hash of the model; another revision may decide otherwise."""

    def entails(self, triples: Sequence[Triple]) -> list[bool]:
        """Say for each (question, premise, hypothesis) whether the premise entails the hypothesis."""


@runtime_checkable
class Deciding(Equivalence, Protocol):
    """An equivalence that gives each verdict as soon as it is there."""

    def decide(self, triples: Sequence[Triple], keep: Callable[[Triple, bool], None]) -> dict[Triple, bool]:
        """Decide on distinct triples; `keep` gets each verdict that is worth keeping, in any thread."""


@dataclass(frozen=True)
class ExactMatch:
    """Answers mean the same if and only if their normal forms are equal: no model at all.

    >>> ExactMatch().entails([("Capital of Peru?", "lima", "lima"), ("Capital of Peru?", "lima", "cusco")])
    [True, False]
    """

    name: str = "exact"
    revision: str = "1"

    def entails(self, triples: Sequence[Triple]) -> list[bool]:
        """Say for each triple whether its two answers are the same string."""
        return [premise == hypothesis for _, premise, hypothesis in triples]


def address_of(equivalence: Equivalence) -> str:
    """Return what `semcal.load_equivalence` loads it from; its name where it was made in memory."""
    return str(getattr(equivalence, "address", equivalence.name))


def names_a_server(name: object) -> bool:
    """Return whether it names a server: openai:URL#MODEL, or the URL of a cross-encoder service."""
    return isinstance(name, str) and name.startswith(("openai:", "http:", "https:"))


def side_of(question: str, answer: str) -> str:
    """Return what a cross-encoder reads as one side of a pair (spec section 5, point 4).

    >>> print(side_of(" Who? ", "ada"))
    Question: Who?
    Answer: ada
    """
    return f"Question: {question.strip()}\nAnswer: {answer}"


class FakeEquivalence:
    """An equivalence given by a list: groups of answers that mean the same, and one-way entailments.

    Answers of one group entail each other, whatever the question; of each pair in `entailments` the first
    entails the second. `asked` lists every triple so far, in order.

    >>> fake = FakeEquivalence([{"nyc", "new york"}], entailments=[("soho", "nyc")])
    >>> fake.entails([("Where?", "nyc", "new york"), ("Where?", "soho", "nyc"), ("Where?", "nyc", "soho")])
    [True, True, False]
    >>> len(fake.asked)
    3
    """

    def __init__(
        self,
        groups: Iterable[Collection[str]] = (),
        *,
        entailments: Iterable[tuple[str, str]] = (),
        name: str = "fake",
    ) -> None:
        self._entailed = {(a, b) for group in map(set, groups) for a in group for b in group}
        self._entailed |= set(entailments)
        self.name = name
        content = json.dumps(sorted(self._entailed), sort_keys=True)
        self.revision = hashlib.sha256(content.encode()).hexdigest()[:12]
        self.asked: list[Triple] = []

    def entails(self, triples: Sequence[Triple]) -> list[bool]:
        """Say for each (question, premise, hypothesis) whether the premise entails the hypothesis."""
        self.asked += triples
        return [a == b or (a, b) in self._entailed for _, a, b in triples]
