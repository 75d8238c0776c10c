"""Pairs of answers to one question, with whether they mean the same, to train the equivalence model on.

Read from the folder of data (SEMCAL_DATA): references of NQ-open, SQuAD and EntityQuestions (train
samples), judged pairs of answers to NQ questions, and natural language inference. Beside them the
classes of names of the rules, and the pairs of Atlas. All texts are normal forms, as clustering gives
them. A share of the judged questions, by a hash, is kept apart.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from rapidfuzz import fuzz

from semcal.meaning.rules import read_classes
from semcal.text.normal_form import normal_form
from tools.atlas import nli_pairs
from tools.equivalence.contrasts import Contrasts

#: Sources of judged pairs whose licence allows training.
JUDGED = ("evouna_nq_open", "nq301", "efficientqa")
#: One judged question in so many is kept apart.
HELD_OUT = 8
#: Share of the pairs that each kind gives.
SHARES = {
    "judged": 0.25,
    "other answer": 0.05,
    "same passage": 0.02,
    "aliases": 0.07,
    "names": 0.05,
    "sentences": 0.05,
    "classes": 0.03,
    "lists": 0.02,
    "refusals": 0.01,
    "atlas": 0.01,
    "inference": 0.02,
    "edited inference": 0.05,
    "contrasts": 0.37,
}
_REFUSALS = (
    *("i do not know", "i am not sure", "unknown", "i cannot answer that", "no answer", "it is not known"),
    *("sorry i do not have that information", "there is not enough information", "not mentioned", "none"),
)
_FRAMES = (
    *("it is {}", "answer is {}", "it was {}", "that would be {}", "i think it is {}", "{} i believe"),
    *("it is called {}", "{} is answer", "probably {}", "i believe it was {}", "it is known as {}"),
)
_SENTENCE = r"(?<=[a-z)]\.)\s+(?=[A-Z])"
#: Questions that a statement can be made of: S is what is asked about, A the answer.
_STATEMENTS = [
    (re.compile(pattern), statement)
    for pattern, statement in (
        (r"where was (.+) born", "S was born in A"),
        (r"where did (.+) die", "S died in A"),
        (r"where was (.+) educated", "S went to A"),
        (r"where was (.+) founded", "S was founded in A"),
        (r"where is headquarter of (.+)", "S is based in A"),
        (r"where (?:is|was) (.+?)(?: located)?", "S is located in A"),
        (r"what is capital of (.+)", "capital of S is A"),
        (r"what kind of work does (.+) do", "S works as A"),
        (r"what type of music does (.+) play", "S is known for A"),
        (r"what position does (.+) play", "S plays as A"),
        (r"what is (.+) famous for", "S is best known for A"),
        (r"what music label is (.+) represented by", "S is signed to A"),
        (r"which language was (.+) written in", "S was written in A"),
        (r"which country (?:is|was) (.+) (?:located|created) in", "S is from A"),
        (r"which company is (.+) produced by", "S is made by A"),
        (r"who is (.+) married to", "S is spouse of A"),
        (r"who is author of (.+)", "A wrote S"),
        (r"who was (.+) created by", "S was created by A"),
        (r"who is (.+?)s? child", "A is child of S"),
        (r"who performed (.+)", "S is song by A"),
        (r"who (?:is|was) (.+)", "A is S"),
        (r"who (.+)", "A S"),
        (r"what (?:is|was|are) (.+)", "S is A"),
        (r"which (\w+) (?:is|was) (.+)", "A S"),
    )
]


@dataclass(frozen=True)
class Pair:
    """Two answers to one question in normal form; `same` if they mean the same."""

    question: str
    first: str
    second: str
    same: bool


@dataclass(frozen=True)
class _Reference:
    question: str
    answers: tuple[str, ...]
    kind: str
    context: str


def read(folder: Path, name: str) -> list[dict[str, Any]]:
    """Read a gzipped JSONL file of the folder of data."""
    with gzip.open(folder / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def is_held_out(question: str) -> bool:
    """Return whether a judged question is kept apart from training."""
    return crc32(" ".join(question.lower().split()).encode()) % HELD_OUT == 0


def judged_pairs(folder: Path, *, held_out: bool) -> list[Pair]:
    """Judged pairs whose normal forms differ.

    Where a question has several references, two right answers may name different things: those that share no
    word are left out.
    """
    found = []
    for row in read(folder, "equivalence_pairs_from_labels_a"):
        if row["source"] not in JUDGED or is_held_out(row["question"]) != held_out:
            continue
        first, second = normal_form(row["a"]), normal_form(row["b"])
        apart = row["same"] and row["n_refs"] > 1 and not set(first.split()) & set(second.split())
        if first != second and not apart:
            found.append(Pair(row["question"], first, second, row["same"]))
    return found


class Pairs:
    """An endless, seeded stream of pairs.

    `embed` gives unit vectors of texts: answers whose vectors are near are the hardest negatives.
    """

    def __init__(self, folder: Path, embed: Callable[[list[str]], NDArray[np.float32]]) -> None:
        self._references = list(_references(folder))
        several = [r for r in self._references if len(r.answers) > 1]
        self._aliased = [(r, one, other) for r in several for one, other in combinations(r.answers[:8], 2)]
        self._people = [r for r in self._references if _is_person(r)]
        self._passages = defaultdict(list)
        for reference in self._references:
            if reference.context:
                self._passages[reference.context].append(reference.answers[0])
        self._squad = [r for r in self._references if len(self._passages.get(r.context, ())) > 1]
        self._judged = judged_pairs(folder, held_out=False)
        self._inference: list[Pair] = []
        self._edited: list[Pair] = []
        for row in read(folder, "nli_train_sample"):
            if row["label"] in ("entailment", "contradiction"):
                premise, hypothesis = normal_form(row["premise"]), normal_form(row["hypothesis"])
                kept = self._edited if row["source"] == "cad_snli" else self._inference
                kept.append(Pair("", premise, hypothesis, row["label"] == "entailment"))
        self._classes = list(_classes())
        aliases = [(one, other) for _, one, other in self._aliased if _related(one, other)]
        self._group = _groups([*aliases, *(names for _, members in self._classes for names in members)])
        self.answers = sorted({r.answers[0] for r in self._references})
        place = {answer: i for i, answer in enumerate(self.answers)}
        self._kinds = defaultdict(list)
        for reference in self._references:
            self._kinds[reference.kind].append(reference.answers[0])
        self._place = place
        self._neighbours = _nearest(embed(self.answers), 40)
        self.contrasts = Contrasts(
            [(r.question, r.answers, r.kind, r.context) for r in self._references],
            sorted({r.answers[0] for r in self._people}),
            lambda one, other: self._group.get(one, one) == self._group.get(other, other),
        )

    def stream(self, seed: int, part: int, count: int) -> list[Pair]:
        """Return `count` pairs: the same for the same seed and part."""
        random = Random(f"{seed}:{part}")
        atlas = nli_pairs.pairs(seed * 1_000_003 + part)
        makers: dict[str, Callable[[Random], Pair | None]] = {
            "judged": self._judged_pair,
            "other answer": self._other_answer,
            "same passage": self._same_passage,
            "aliases": self._aliases,
            "names": self._names,
            "sentences": self._sentences,
            "classes": self._class_pair,
            "lists": self._lists,
            "refusals": self._refusals,
            "atlas": lambda _: _from_atlas(next(atlas)),
            "inference": lambda random: random.choice(self._inference),
            "edited inference": lambda random: random.choice(self._edited),
            "contrasts": lambda random: Pair(*self.contrasts.pair(random)),
        }
        kinds, shares = list(SHARES), list(SHARES.values())
        found: list[Pair] = []
        while len(found) < count:
            pair = makers[random.choices(kinds, shares)[0]](random)
            if pair is not None and pair.first != pair.second and pair.first and pair.second:
                if random.random() < 0.5:
                    pair = Pair(pair.question, pair.second, pair.first, pair.same)
                found.append(pair)
        return found

    def differ(self, one: str, other: str) -> bool:
        """Return whether two answers may be taken to differ: neither alias, part nor near spelling."""
        if self._group.get(one, one) == self._group.get(other, other):
            return False
        first, second = set(one.split()), set(other.split())
        return not (first <= second or second <= first or fuzz.ratio(one, other) >= 82)

    def _other(self, reference: _Reference, random: Random) -> str | None:
        """An answer to another question, most often of the same kind, that differs from every reference."""
        way = random.random()
        if way < 0.45:
            near = self._neighbours[self._place[reference.answers[0]]]
            other = self.answers[near[min(int(random.expovariate(0.12)), len(near) - 1)]]
        elif way < 0.9:
            other = random.choice(self._kinds[reference.kind])
        else:
            other = random.choice(self.answers)
        return other if all(self.differ(answer, other) for answer in reference.answers) else None

    def _other_answer(self, random: Random) -> Pair | None:
        """A reference and another answer; or, to another question still, two answers of one kind."""
        reference = random.choice(self._references)
        other = self._other(reference, random)
        if other is None:
            return None
        asked = reference
        if random.random() < 0.4:
            asked = (
                random.choice(self._references) if random.random() < 0.3 else self._of_kind(reference, random)
            )
        first = _framed(random.choice(reference.answers), random, 0.12)
        return Pair(asked.question, first, _framed(other, random, 0.12), False)

    def _of_kind(self, reference: _Reference, random: Random) -> _Reference:
        for _ in range(20):
            found = random.choice(self._references)
            if found.kind.split()[0] == reference.kind.split()[0]:
                return found
        return reference

    def _same_passage(self, random: Random) -> Pair | None:
        """Two answers that one passage gives to two questions."""
        reference = random.choice(self._squad)
        other = random.choice(self._passages[reference.context])
        if not self.differ(reference.answers[0], other):
            return None
        return Pair(reference.question, reference.answers[0], other, False)

    def _aliases(self, random: Random) -> Pair | None:
        """An answer in a frame; two references that look like one name; or two that do not."""
        if random.random() < 0.3:
            reference = random.choice(self._references)
            answer = random.choice(reference.answers)
            return Pair(reference.question, answer, _framed(answer, random, 1.0), True)
        reference, first, second = random.choice(self._aliased)
        same = _related(first, second)
        if not same and not self.differ(first, second):
            return None
        return Pair(reference.question, _framed(first, random, 0.1), _framed(second, random, 0.1), same)

    def _names(self, random: Random) -> Pair | None:
        """A person by another form of the name, or another person who shares a part of it."""
        reference = random.choice(self._people)
        name = reference.answers[0].split()
        first, last = name[0], name[-1]
        if random.random() < 0.5:
            middle = random.choice("abcdefghjlmprstw")
            given = random.choice(self._people).answers[0].split()[0]
            other = random.choice(
                [
                    [last],
                    [last],
                    [first, middle, last],
                    [first, given, last],
                    [first[0], last],
                    [random.choice(("sir", "dr", "mr", "president", "professor")), *name],
                    [first, last],
                ]
            )
            return Pair(reference.question, _framed(" ".join(name), random, 0.15), " ".join(other), True)
        stranger = random.choice(self._people).answers[0].split()
        other = random.choice([[first, stranger[-1]], [stranger[0], last], stranger, [stranger[-1]]])
        if (other[0] == first and other[-1] == last) or not self.differ(" ".join(name), " ".join(other)):
            return None
        return Pair(reference.question, " ".join(name), _framed(" ".join(other), random, 0.15), False)

    def _sentences(self, random: Random) -> Pair | None:
        """An answer or a sentence beside a sentence that gives it, or gives another; some sentences go on."""
        reference = random.choice(self._squad if random.random() < 0.4 else self._references)
        answer = random.choice(reference.answers)
        sentence = _sentence(reference, answer)
        if sentence is None:
            return None
        way, beside = random.random(), answer
        if random.random() < 0.5:
            beside = _framed(answer, random, 1.0)
        if way < 0.5:
            return Pair(reference.question, beside, _longer(sentence, reference, random), True)
        other = self._other(reference, random)
        if other is None:
            return None
        if way < 0.75:
            given = _framed(other, random, 0.5)
            return Pair(reference.question, given, _longer(sentence, reference, random), False)
        changed = re.sub(rf"(?<!\w){re.escape(answer)}(?!\w)", other.replace("\\", ""), sentence)
        if changed == sentence:
            return None
        second = random.choice((beside, sentence))
        return Pair(reference.question, _longer(changed, reference, random), second, False)

    def _judged_pair(self, random: Random) -> Pair:
        return random.choice(self._judged)

    def _class_pair(self, random: Random) -> Pair | None:
        questions, members = random.choice(self._classes)
        asked = random.choice(questions)
        if random.random() < 0.25:
            asked = random.choice(self._references).question
        if random.random() < 0.3:
            several = [names for names in members if len(names) > 1]
            if not several:
                return None
            first, second = random.sample(random.choice(several), 2)
            return Pair(asked, _framed(first, random, 0.15), _framed(second, random, 0.15), True)
        one, other = (random.choice(names) for names in random.sample(members, 2))
        if self._group.get(one) == self._group.get(other) or set(one.split()) & set(other.split()) == set(
            one.split()
        ):
            return None
        return Pair(asked, _framed(one, random, 0.15), _framed(other, random, 0.15), False)

    def _lists(self, random: Random) -> Pair | None:
        """Lists in another order mean the same; with another member, one more or one less, they do not."""
        questions, members = random.choice(self._classes)
        if len(members) < 12:
            return None
        *listed, stranger = (names[0] for names in random.sample(members, random.randint(3, 6)))
        same = random.random() < 0.5
        others, place = list(listed), random.randrange(len(listed))
        if same or random.random() < 0.5:
            random.shuffle(others)
        if not same:
            way = random.random()
            others[place : place + 1] = (
                [] if way < 0.35 else [stranger] if way < 0.75 else [others[place], stranger]
            )
        first, second = _joined(listed, random), _joined(others, random)
        return Pair(random.choice(questions), normal_form(first), normal_form(second), same)

    def _refusals(self, random: Random) -> Pair:
        reference = random.choice(self._references)
        refusal = random.choice(_REFUSALS)
        if random.random() < 0.3:
            return Pair(reference.question, refusal, random.choice(_REFUSALS), True)
        return Pair(reference.question, random.choice(reference.answers), refusal, False)


def unrelated_pairs(references: list[tuple[str, str]], random: Random, count: int) -> list[Pair]:
    """Pairs of answers to two other questions of the kind that is asked: the same first two words."""
    kinds = defaultdict(list)
    for question, answer in references:
        kinds[" ".join(question.lower().split()[:2])].append((question, answer))
    large = [kind for kind in kinds.values() if len(kind) > 5]
    found: list[Pair] = []
    while len(found) < count:
        (question, _), (_, one), (_, other) = random.sample(random.choice(large), 3)
        first, second = normal_form(one), normal_form(other)
        if first != second and first not in second and second not in first:
            found.append(Pair(question, first, second, False))
    return found


def _references(folder: Path) -> Iterator[_Reference]:
    for name in ("nq_open", "squad", "entityquestions"):
        for row in read(folder, f"{name}_train_sample"):
            answers = tuple(dict.fromkeys(normal_form(a) for a in row["answers"] if 0 < len(a) < 80))
            if answers:
                question = row["question"].strip()
                kind = row.get("relation") or " ".join(question.lower().split()[:2])
                yield _Reference(question, answers, kind, row.get("context", ""))


def _related(one: str, other: str) -> bool:
    """Return whether two references of one question look like names of one thing."""
    first, second = one.split(), other.split()
    letters = {"".join(word[0] for word in words) for words in (first, second)}
    part = set(first) <= set(second) or set(second) <= set(first)
    return part or bool(letters & {one, other}) or first[-1] == second[-1] or fuzz.ratio(one, other) >= 75


def _is_person(reference: _Reference) -> bool:
    words = reference.answers[0].split()
    asked = reference.question.lower()
    company = reference.kind in ("P127", "P112", "P170")
    return (
        asked.startswith("who")
        and not company
        and 2 <= len(words) <= 3
        and all(w.isalpha() for w in words)
        and len(words[-1]) > 3
    )


def _classes() -> Iterator[tuple[list[str], list[list[str]]]]:
    for questions, members in read_classes():
        yield questions, [[normal_form(name) for name in names] for names in members]


def _groups(aliases: list[Any]) -> dict[str, str]:
    """Map each name to one of the names that some question takes for the same."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    for names in aliases:
        for other in names[1:]:
            parent[root(other)] = root(names[0])
    return {name: root(name) for name in parent}


def _nearest(vectors: NDArray[np.float32], count: int) -> NDArray[np.int32]:
    """Indices (n, count) of the nearest other rows of unit vectors (n, d), nearest first."""
    found: list[NDArray[np.int32]] = []
    for start in range(0, len(vectors), 1000):
        likeness = vectors[start : start + 1000] @ vectors.T
        likeness[np.arange(len(likeness)), np.arange(start, start + len(likeness))] = -2
        top = np.argpartition(-likeness, count, axis=1)[:, :count]
        order = np.argsort(-np.take_along_axis(likeness, top, axis=1), axis=1)
        found.append(np.take_along_axis(top, order, axis=1).astype(np.int32))
    return np.concatenate(found)


def _joined(members: list[str], random: Random) -> str:
    """A list as it stands in an answer."""
    *first, last = members
    way = random.choice(("{}, {}", "{} and {}", "{} and {}", "{}, and {}", "{} & {}"))
    frame = random.choice(("{}", "{}", "{}", "they are {}", "it is {}"))
    return frame.format(way.format(", ".join(first), last) if first else last)


def _longer(text: str, reference: _Reference, random: Random) -> str:
    """The text, or at times the text and a further sentence of its own passage."""
    sentences = [normal_form(one) for one in re.split(_SENTENCE, reference.context)[:4]]
    further = [one for one in sentences if one != text and 4 <= len(one.split()) <= 25]
    return f"{text} {random.choice(further)}" if further and random.random() < 0.2 else text


def _framed(answer: str, random: Random, share: float) -> str:
    """The answer, or with this probability a short sentence around it."""
    return random.choice(_FRAMES).format(answer) if random.random() < share else answer


def _sentence(reference: _Reference, answer: str) -> str | None:
    """A sentence that gives the answer: of the passage, or made of the question."""
    if reference.context:
        for sentence in re.split(_SENTENCE, reference.context):
            plain = normal_form(sentence)
            if len(plain.split()) <= 35 and re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", plain):
                return plain
        return None
    asked = normal_form(reference.question)
    for pattern, statement in _STATEMENTS:
        found = pattern.fullmatch(asked)
        if found:
            parts = {"S": found.groups()[-1], "A": answer}
            return " ".join(parts.get(word, word) for word in statement.split())
    return None


def _from_atlas(pair: nli_pairs.Pair) -> Pair:
    return Pair(pair.question, pair.first, pair.second, pair.equivalent)
