"""Pairs of answers that share most of their words, or none, where overlap says nothing about meaning.

Every kind gives as many pairs that mean the same as pairs that do not, made by the same templates: amounts,
bounds, times and shares; statements and their contraries; yes and no; roles; names; parts of a sentence.
The words stand in `contrasts.txt`, the names come from references.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from rapidfuzz import fuzz

from semcal.text.normal_form import normal_form
from tools.equivalence import amounts
from tools.equivalence.amounts import ROMAN, Raw, groups, listed, sides, words, written

Maker = Callable[[Random, bool], Raw | None]
#: Shares among the pairs that are made here.
SHARES = {
    "units": 0.06,
    "bounds": 0.04,
    "clock": 0.03,
    "shares": 0.02,
    "statements": 0.03,
    "clauses": 0.06,
    "polarity": 0.05,
    "opposites": 0.07,
    "roles": 0.09,
    "near names": 0.12,
    "numbered names": 0.02,
    "passage": 0.05,
    "granularity": 0.03,
    "alternatives": 0.03,
    "languages": 0.02,
    "abbreviations": 0.04,
    "formulas": 0.01,
    "verbose": 0.08,
    "detail": 0.03,
    "dates": 0.01,
    "numbers": 0.01,
    "works": 0.01,
    "explained": 0.09,
}
#: Kinds whose labels depend on the question.
_ASKED = frozenset({"explained", "verbose", "polarity", "passage", "near names", "alternatives"})
_PEOPLE = frozenset({"P19", "P20", "P69", "P26", "P40", "P106", "P413"})
#: Facts in questions: pattern, verb before the subject of a yes/no question, rest, rest of a statement.
_FACTS: list[tuple[re.Pattern[str], str, str, str]] = [
    (re.compile(rf"{pattern}\??", re.IGNORECASE), verb, rest, stated)
    for pattern, verb, rest, stated in (
        ("where was (.+) born", "was", "born in {}", ""),
        ("where did (.+) die", "did", "die in {}", "died in {}"),
        ("where was (.+) educated", "was", "educated at {}", ""),
        ("where was (.+) founded", "was", "founded in {}", ""),
        (r"where is the headquarters? of (.+)", "is", "based in {}", ""),
        ("where is (.+) located", "is", "in {}", ""),
        ("what is the capital of (.+)", "does", "have {} as its capital", "has {} as its capital"),
        ("what kind of work does (.+) do", "does", "work as a {}", "works as a {}"),
        ("what type of music does (.+) play", "does", "play {}", "plays {}"),
        ("what position does (.+) play", "does", "play {}", "plays {}"),
        ("what is (.+) famous for", "is", "famous for {}", ""),
        ("what music label is (.+) represented by", "is", "signed to {}", ""),
        ("which language was (.+) written in", "was", "written in {}", ""),
        ("which country (?:is|was) (.+) (?:located|created) in", "is", "from {}", ""),
        ("which company is (.+) produced by", "is", "produced by {}", ""),
        ("who is (.+) married to", "is", "married to {}", ""),
        ("who is the author of (.+)", "was", "written by {}", ""),
        ("who was (.+) created by", "was", "created by {}", ""),
        ("who owns (.+)", "is", "owned by {}", ""),
        ("who founded (.+)", "was", "founded by {}", ""),
        ("who performed (.+)", "was", "performed by {}", ""),
    )
]
_YES = (
    *("yes", "yes it is", "true", "correct", "that is correct", "that is true", "right", "indeed"),
    *("yes indeed", "it is true", "of course", "affirmative", "yes that is right", "absolutely"),
    *("I believe so", "yeah", "certainly"),
)
_NO = (
    *("no", "no it is not", "false", "incorrect", "that is incorrect", "that is false", "wrong"),
    *("that is not true", "not at all", "it is not true", "no way", "negative", "that is wrong"),
    *("that's not correct", "I do not think so", "nope", "certainly not"),
)
_SAID = (
    *("{}", "it is true that {}", "indeed {}", "{}, that is right", "it is a fact that {}"),
    *("yes, {}", "I believe that {}"),
)
_DENIED = (
    *("it is not true that {}", "it is false that {}", "it is not the case that {}"),
    *("it isn't true that {}", "nobody thinks that {}", "no, it is wrong that {}"),
    "I do not believe that {}",
)
_QUESTIONS = (
    *("which one is it", "what is said", "what happened", "what is true"),
    *("what can be said about it", "what does the text say", "which is right"),
    "how would you describe it",
)
_ENTITY = re.compile(r"(?<![.!?] )(?<!^)\b[A-Z][\w'-]*(?:(?: of| the| de| von)? [A-Z][\w'-]*)*")
_FIGURE = re.compile(
    r"(?<![\w.,])[$£€]?[0-9][0-9.,]*[0-9](?: (?:million|billion|percent))?%?|(?<![\w.,])[0-9]%?"
)


class Fact(NamedTuple):
    """A yes/no question, the sentence that affirms it, and the one that denies it."""

    question: str
    affirms: str
    denies: str
    verb: str
    pronoun: str


class Contrasts:
    """Makes pairs from words and from references (question, answers, kind, context) and people's names."""

    def __init__(
        self,
        references: Sequence[tuple[str, tuple[str, ...], str, str]],
        people: Sequence[str],
        together: Callable[[str, str], bool],
    ) -> None:
        self._references = references
        self._people = [name for name in people if 2 <= len(name.split()) <= 3]
        self._together = together
        self._facts = []
        for question, answers, kind, _ in references:
            for pattern, verb, rest, stated in _FACTS:
                match = pattern.fullmatch(question)
                if match:
                    self._facts.append((match[1], verb, rest, stated or "", answers[0], kind))
                    break
        self._kinds: dict[str, list[str]] = defaultdict(list)
        self._sharing: dict[str, list[str]] = defaultdict(list)
        for answer, kind in dict.fromkeys((r[1][0], r[2]) for r in references):
            self._kinds[kind].append(answer)
            if len(answer) < 45:
                for word in sorted(set(answer.split())):
                    self._sharing[word].append(answer)
        self._several = [w for w, names in self._sharing.items() if 2 <= len(names) <= 80 and len(w) > 2]
        self._names = sorted(
            {a for r in references for a in r[1][:1] if 5 <= len(a) < 30 and not a[0].isdigit()}
        )
        self._by_start: dict[str, list[str]] = defaultdict(list)
        for name in self._names:
            self._by_start[name[:3]].append(name)
        self._passages = [r for r in references if r[3]]
        self._short = [r for r in references if 0 < len(r[1][0]) < 40]
        self._makers: dict[str, Maker] = {
            "units": amounts.units,
            "bounds": amounts.bounds,
            "clock": amounts.clock,
            "shares": amounts.shares,
            "statements": self._statements,
            "clauses": self._clauses,
            "polarity": self._polarity,
            "opposites": self._opposites,
            "roles": self._roles,
            "near names": self._near_names,
            "numbered names": amounts.numbered,
            "passage": self._passage,
            "granularity": self._granularity,
            "alternatives": self._alternatives,
            "languages": self._languages,
            "abbreviations": self._abbreviations,
            "formulas": amounts.formulas,
            "verbose": self._verbose,
            "detail": self._detail,
            "dates": amounts.dates,
            "numbers": amounts.numbers,
            "works": self._works,
            "explained": self._explained,
        }

    def pair(self, random: Random) -> tuple[str, str, str, bool]:
        """Return question, two answers in normal form that differ, and whether they mean the same."""
        kind = random.choices(list(SHARES), list(SHARES.values()))[0]
        return self.of_kind(kind, random)

    def of_kind(self, kind: str, random: Random) -> tuple[str, str, str, bool]:
        """The same, of one kind."""
        same = random.random() < 0.5
        while True:
            made = self._makers[kind](random, same)
            if made is None:
                continue
            question, one, other = made
            if kind != "formulas":
                one, other = normal_form(one), normal_form(other)
            if one and other and one != other:
                if kind not in _ASKED and random.random() < 0.1:
                    question = random.choice(self._short)[0]
                return question, one, other, same

    # amounts

    # what is said, and its contrary

    def _fact(self, random: Random) -> tuple[Fact, str]:
        """A fact of a reference or of our own list, and a sentence that gives another answer or ""."""
        if random.random() < 0.35:
            subject, verb, rest, *more = random.choice(words()["facts"]).split("|")
            stated = more[0] if more else ""
            pronoun = "they" if subject.endswith("s") and verb in ("are", "were", "can", "do") else "it"
            return _as_fact(subject, verb, rest, stated, pronoun), ""
        subject, verb, rest, stated, answer, kind = random.choice(self._facts)
        pronoun = random.choice(("he", "she")) if kind in _PEOPLE else "it"
        fact = _as_fact(subject, verb, rest.format(answer), stated.format(answer), pronoun)
        wrong = random.choice(self._kinds[kind])
        if wrong == answer or self._together(wrong, answer) or set(wrong.split()) & set(answer.split()):
            return fact, ""
        return fact, _as_fact(
            subject if random.random() < 0.4 else pronoun,
            verb,
            rest.format(wrong),
            stated.format(wrong),
            pronoun,
        ).affirms

    def _statements(self, random: Random, same: bool) -> Raw | None:
        """A statement and what denies it; two ways to say either."""
        if random.random() < 0.25:
            question, answers, _, _ = random.choice(self._short)
            answer = random.choice(answers)
            yes = (
                "it is {}",
                "it was {}",
                "the answer is {}",
                "{}",
                "it must be {}",
                "definitely {}",
                "I think it is {}",
                "that is {}",
            )
            no = (
                "it is not {}",
                "it isn't {}",
                "not {}",
                "the answer is not {}",
                "it was never {}",
                "it is anything but {}",
                "I do not think it is {}",
                "it cannot be {}",
                "certainly not {}",
                "it wasn't {}",
                "it was not {}",
                "no, not {}",
                "it is false that it is {}",
            )
            kind = random.random() < 0.5
            one, other = (yes, yes) if same and kind else (no, no) if same else (yes, no)
            return question, random.choice(one).format(answer), random.choice(other).format(answer)
        fact, _ = self._fact(random)
        affirmed = [frame.format(fact.affirms) for frame in _SAID]
        denied = [
            fact.denies,
            fact.denies,
            fact.denies,
            _short_not(fact.denies),
            f"in fact {fact.denies}",
            f"no, {fact.denies}",
            *(f.format(fact.affirms) for f in _DENIED),
        ]
        asked = random.choice(
            (fact.question, "", "is that so", random.choice(_QUESTIONS), "what is known about it")
        )
        if same:
            pick = affirmed if random.random() < 0.5 else denied
            return asked, random.choice(pick), random.choice(pick)
        first = fact.affirms if random.random() < 0.6 else random.choice(affirmed)
        return asked, first, random.choice(denied)

    def _clauses(self, random: Random, same: bool) -> Raw | None:
        section = groups("clauses" if random.random() < 0.6 else "paraphrases")
        found = sides(section, random, same)
        if found is None:
            return None
        frame = random.choice(("{}", "{}", "{}", "I think that {}", "because {}", "{}, as far as I know"))
        one, other = (
            (frame.format(found[0]), found[1])
            if random.random() < 0.4
            else (frame.format(found[0]), frame.format(found[1]))
        )
        return random.choice(_QUESTIONS), one, other

    def _polarity(self, random: Random, same: bool) -> Raw | None:
        """Answers to a yes/no question: about a quality, in another language, or about a fact."""
        way = random.random()
        if way < 0.2:
            asked, yes, no = _quality(random)
        elif way < 0.27:
            sides_of = random.choice(groups("yes and no"))
            asked = random.choice(("ist das wahr?", "est-ce vrai?", "es verdad?", "is it true?"))
            yes, no = sides_of
        else:
            fact, other = self._fact(random)
            asked, (yes, no) = fact.question, _replies(fact, random)
            no += [other, f"no, {other}", other] if other else []
            if random.random() < 0.15:
                frames = ("is it true that {}?", "true or false: {}", "did you know that {}?")
                asked = random.choice(frames).format(fact.affirms)
        if same:
            pick = yes if random.random() < 0.5 else no
            return asked, random.choice(pick), random.choice(pick)
        return asked, random.choice(yes), random.choice(no)

    def _opposites(self, random: Random, same: bool) -> Raw | None:
        kind = random.choices(("adjectives", "events", "nouns", "parts"), (4, 3, 2, 2))[0]
        subject = random.choice(
            (
                "it",
                "it",
                "the price",
                "he",
                "she",
                "the number",
                "the company",
                "the team",
                "the temperature",
                "the man",
            )
        )
        if kind == "parts":
            return self._word_parts(random, same)
        found = sides(groups(kind), random, same)
        if found is None:
            return None
        frames = {
            "adjectives": (
                "{}",
                "{}",
                f"{subject} is {{}}",
                f"{subject} was {{}}",
                "considered {}",
                "very {}",
                "it is {} there",
                f"I think {subject} is {{}}",
            ),
            "events": (
                f"{subject} {{}}",
                f"{subject} {{}}",
                "{}",
                f"{subject} {{}} in {random.randint(1900, 2020)}",
                f"{subject} {{}} in the end",
            ),
            "nouns": ("{}", "{}", "it was a {}", "the {}", "there was a {}", "it is the {}"),
        }[kind]
        first = random.choice(frames)
        second = first if random.random() < 0.65 or kind == "events" else random.choice(frames)
        return random.choice(_QUESTIONS), first.format(found[0]), second.format(found[1])

    def _word_parts(self, random: Random, same: bool) -> Raw | None:
        """Words with another beginning or end; the same words in another number or frame."""
        beginnings, ends = words()["parts"]
        if random.random() < 0.35:
            names = random.choice(beginnings.split(", ")).split("|")
            stem = random.choice(
                (
                    "thermia",
                    "tension",
                    "cellular",
                    "phase",
                    "molecule",
                    "cycle",
                    "scope",
                    "gram",
                    "national",
                    "sonic",
                    "morph",
                    "structure",
                    "state",
                    "load",
                    "port",
                    "glyceride",
                    "chromatic",
                    "bar",
                )
            )
            options = [name + stem for name in names]
        else:
            options = random.choice(ends.split(", ")).split("|")
            if random.random() < 0.25 and len(options[0]) > 4:
                before = random.choice(
                    ("carbon", "sodium", "potassium", "iron", "copper", "nitrogen", "calcium")
                )
                options = [f"{before} {option}" for option in options]
        one, other = random.sample(options, 2)
        if same:
            typo = _typo(one, random)
            return (
                random.choice(_QUESTIONS),
                one,
                random.choice(
                    (
                        f"it is {one}",
                        f"the {one}",
                        f"{one}s",
                        f"it is called {one}",
                        typo,
                        one.replace(" ", "-") + " that is",
                    )
                ),
            )
        frame = random.choice(("{}", "{}", "it is {}", "the {}"))
        return random.choice(_QUESTIONS), frame.format(one), frame.format(other)

    # who does what to whom

    def _roles(self, random: Random, same: bool) -> Raw | None:
        """Who does what to whom; the same the other way round."""
        one, other = self._two(random)
        kind = random.random()
        asked = random.choice(
            (*_QUESTIONS, f"what about {one} and {other}", "how are they related", "who did it")
        )
        if kind < 0.93:
            draw = (
                _relation if kind < 0.25 else _deed if kind < 0.6 else _comparison if kind < 0.85 else _order
            )
            templates = draw(random)
            forward, backward = (
                [t.format(a=a, b=b) for t in templates] for a, b in ((one, other), (other, one))
            )
        else:
            verb = random.choice(words()["equal relations"][0].split(", "))
            third = random.choice(self._two(random))
            if third in (one, other):
                return None
            forward = [f"{one} {verb} {other}", f"{other} {verb} {one}"]
            forward.append(f"{one} {verb} {other}, and {other} {verb} {one}")
            backward = [f"{one} {verb} {third}", f"{third} {verb} {one}", f"{third} {verb} {other}"]
        if same:
            first, second = random.sample(forward, 2)
            if random.random() < 0.25:
                frames = (*_SAID, "{}", "{} as everyone knows", "the text says that {}")
                second = random.choice(frames).format(first)
            return asked, first, second
        first = random.choice(forward)
        if random.random() < 0.6:  # the very same words in the other order
            return asked, first, backward[forward.index(first)]
        return asked, first, random.choice(backward)

    def _two(self, random: Random) -> tuple[str, str]:
        """Two names of one kind that share no word."""
        for _ in range(50):
            way = random.random()
            if way < 0.4:
                pool: Sequence[str] = words()["things"][0].split(", ")
            elif way < 0.75:
                pool = self._people
            else:
                pool = self._kinds[random.choice(list(self._kinds))]
            one, other = random.choice(pool), random.choice(pool)
            if way >= 0.4 and random.random() < 0.4:
                one, other = one.split()[-1], other.split()[-1]
            if not set(one.split()) - {"the"} & set(other.split()) and max(len(one), len(other)) < 40:
                return one, other
        return "the cat", "the dog"

    # names

    def _near_names(self, random: Random, same: bool) -> Raw | None:
        question, answers, _, _ = random.choice(self._short)
        name = answers[0]
        if any(c.isdigit() for c in name):
            return None
        parts = name.split()
        frame = random.choice(("{}", "{}", "{}", "it was {}", "{} I think"))
        way = random.random()
        if same:
            if name in self._people_set and len(parts) > 1 and way < 0.6:
                return question, frame.format(name), self._other_form(parts, random)
            if len(answers) > 1 and way < 0.75:
                one, other = random.sample(answers, 2)
                shared = set(one.split()) & set(other.split())
                return (question, one, frame.format(other)) if shared else None
            return (question, name, frame.format(_respelled(name, random))) if len(name) > 6 else None
        if way < 0.25:  # a word put before a name makes another of it
            options = random.choice(words()["qualities"][0].split(", ")).split("|")
            one, other = random.sample(options, 2)
            if len(parts) > 2 or name in self._people_set:
                return None
            second = f"{other} {name}" if random.random() < 0.6 else name
            return question, frame.format(f"{one} {name}"), second
        if way < 0.5 and name in self._people_set and len(parts) > 1:  # relatives
            given = random.choice(self._people).split()[0]
            stranger = random.choice(self._people).split()[-1]
            other = random.choice(
                (
                    f"{given} {parts[-1]}",
                    f"{given} {parts[-1]}",
                    f"{parts[0]} {stranger}",
                    f"{given} {' '.join(parts[1:])}",
                )
            )
            second = " ".join(parts)
            if {given, stranger} & set(parts) or fuzz.ratio(other, second) > 92 or given[0] == parts[0][0]:
                return None
            return question, frame.format(second), other
        if way < 0.75:  # another answer with a common word
            word = random.choice(self._several)
            one, other = random.sample(self._sharing[word], 2)
            own, further = set(one.split()), set(other.split())
            if own <= further or further <= own or fuzz.ratio(one, other) > 90 or self._together(one, other):
                return None
            return question, one, frame.format(other)
        near = self._by_start[name[:3]]
        other = random.choice(near) if near else name
        if (
            other == name
            or not 55 <= fuzz.ratio(name, other) < 92
            or self._together(name, other)
            or set(other.split()) <= set(parts)
            or set(parts) <= set(other.split())
        ):
            return None
        return question, name, frame.format(other)

    @property
    def _people_set(self) -> frozenset[str]:
        if not hasattr(self, "_people_names"):
            self._people_names = frozenset(self._people)
        return self._people_names

    def _other_form(self, parts: list[str], random: Random) -> str:
        first, *middle, last = parts
        nick = {name: e[0] for e in listed("nicknames") for name in e[0]}
        short = random.choice(nick[first]) if first in nick else first
        title = random.choice(
            (
                "sir",
                "dr",
                "mr",
                "mrs",
                "president",
                "professor",
                "king",
                "general",
                "saint",
                "lord",
                "captain",
                "pope",
                "senator",
            )
        )
        forms = [
            [last],
            [first[0], last],
            [first, random.choice("abcdefghjklmnprstw"), last],
            [title, *parts],
            [title, last],
            [last, first],
            [first, last],
            [short, last],
            [short, *middle, last],
            [first, random.choice(self._people).split()[0], last],
            [_typo(first, random), last],
            [first, *middle, _respelled(last, random)],
        ]
        return " ".join(random.choice(forms))

    def _passage(self, random: Random, same: bool) -> Raw | None:
        """A sentence with the answer in it: beside the answer, or beside something else that stands in it."""
        question, answers, _, context = random.choice(self._passages)
        answer = random.choice(answers)
        for sentence in re.split(r"(?<=[a-z)]\.)\s+(?=[A-Z])", context):
            if len(sentence) < 260 and answer in normal_form(sentence):
                break
        else:
            return None
        frame = random.choice(("{}", "{}", "{}", "it was {}", "it is {}", "the answer is {}"))
        numeric = any(c.isdigit() for c in answer)
        asked_words = set(normal_form(question).split())
        others = [normal_form(found) for found in (_FIGURE if numeric else _ENTITY).findall(sentence)]
        others = [o for o in others if o and not set(o.split()) & (set(answer.split()) | asked_words)]
        way = random.random()
        if same:
            if not others and random.random() < 0.6:
                return None
            return question, sentence if way < 0.6 else frame.format(answer), frame.format(answer)
        if not others:
            return None
        return question, sentence if way < 0.6 else frame.format(answer), frame.format(random.choice(others))

    def _granularity(self, random: Random, same: bool) -> Raw | None:
        places = [entry[0] for entry in listed("places")]
        place, *around = random.choice(places)
        asked = random.choice(
            (
                "where is it",
                "where was he born",
                "which city is it",
                "where did it happen",
                "where does she live",
                "what is the place",
            )
        )
        inside = random.choice(
            (
                f"{place}, {around[0]}",
                f"{place}, {around[-1]}",
                f"{place} in {around[0]}",
                f"{place} ({around[-1]})",
                ", ".join([place, *around]),
            )
        )
        frame = random.choice(("{}", "{}", "in {}", "it is in {}", "he was born in {}"))
        if same:
            return asked, random.choice((place, f"in {place}")), frame.format(inside)
        stranger = random.choice(places)
        other = random.choice(
            (
                around[0],
                around[-1],
                around[-1],
                stranger[0],
                f"{stranger[0]}, {around[-1]}",
                f"somewhere in {around[-1]}",
            )
        )
        if other.split(",")[0] == place:
            return None
        return asked, random.choice((place, inside, inside)), frame.format(other)

    def _alternatives(self, random: Random, same: bool) -> Raw | None:
        """One name beside a sentence that also names another."""
        question, answers, kind, _ = random.choice(self._short)
        answer, other = answers[0], random.choice(self._kinds[kind])
        if set(answer.split()) & set(other.split()) or self._together(answer, other):
            return None
        chosen = (
            "{a}, not {b}",
            "{a} rather than {b}",
            "not {b} but {a}",
            "it is {a}; many think it is {b}",
            "it was not {b}, it was {a}",
            "{a} (and not {b})",
            "I first thought {b}, but it is {a}",
            "it is {a} and not {b}",
            "{a} instead of {b}",
        )
        both = (
            "{a} and {b}",
            "either {a} or {b}",
            "{a} or {b}",
            "both {a} and {b}",
            "{a}, {b}",
            "neither {a} nor {b}",
        )
        if same:
            if random.random() < 0.15:
                return (
                    question,
                    random.choice(("{a} and {b}", "both {a} and {b}")).format(a=answer, b=other),
                    random.choice(("{b} and {a}", "{b}, {a}")).format(a=answer, b=other),
                )
            return (
                question,
                random.choice(("{}", "it is {}")).format(answer),
                random.choice(chosen).format(a=answer, b=other),
            )
        if random.random() < 0.6:
            return (
                question,
                random.choice(("{}", "it is {}")).format(other),
                random.choice(chosen).format(a=answer, b=other),
            )
        return question, answer, random.choice(both).format(a=answer, b=other)

    def _languages(self, random: Random, same: bool) -> Raw | None:
        entries = [entry[0] for entry in listed("languages")]
        place = random.randrange(len(entries))
        one, other = random.sample(entries[place], 2)
        frame = random.choice(("{}", "{}", "{}", "it is {}", "es ist {}", "c'est {}", "es {}"))
        if same:
            return random.choice(_QUESTIONS), one, frame.format(other)
        near = entries[max(0, min(len(entries) - 1, place + random.choice((-3, -2, -1, 1, 2, 3))))]
        strange = random.choice(near)
        return None if strange in entries[place] else (random.choice(_QUESTIONS), one, frame.format(strange))

    def _abbreviations(self, random: Random, same: bool) -> Raw | None:
        if random.random() < 0.5:
            return self._written("short", random, same)
        entries = [entry[0] for entry in listed("abbreviations")]
        asked = random.choice(
            ("what does it stand for", "what is it", "which organization", "which one is it")
        )
        if random.random() < 0.6:
            entry = random.choice(entries)
            if same:
                one, other = random.sample(entry, 2)
                return asked, one, other
            near = [
                e
                for e in entries
                if e is not entry and (e[1][0] == entry[1][0] or len(e[1]) == len(entry[1]))
            ]
            if not near:
                return None
            return asked, random.choice(entry), random.choice(random.choice(near))
        name = random.choice(self._several)
        name = random.choice(self._sharing[name])
        parts = [p for p in name.split() if p not in ("of", "and", "the", "for")]
        if not 2 <= len(parts) <= 5 or not name.replace(" ", "").isalpha():
            return None
        letters = [p[0] for p in parts]
        if not same:
            letters[random.randrange(len(letters))] = random.choice("abcdefghilmnoprstw")
            if letters == [p[0] for p in parts]:
                return None
        return asked, name, "".join(letters)

    def _another(self, kind: str, answer: str, random: Random) -> str | None:
        """Another answer of a kind that shares no word with this one."""
        other = random.choice(self._kinds[kind])
        alike = set(answer.split()) & set(other.split()) or self._together(answer, other)
        return None if alike else other

    def _explained(self, random: Random, same: bool) -> Raw | None:
        """Two of the written wordings of an answer to why or how, or of two answers."""
        return self._written("explained", random, same)

    def _written(self, section: str, random: Random, same: bool) -> Raw | None:
        if not written(section):
            return None
        question, answers = random.choice(written(section))
        found = sides([answers], random, same)
        return found and (question or random.choice(_QUESTIONS), *found)

    def _verbose(self, random: Random, same: bool) -> Raw | None:
        """A long answer beside a short one."""
        if random.random() < 0.6:
            return self._written("verbose", random, same)
        question, answers, kind, _ = random.choice(self._short)
        frames = words()["long"]
        answer = random.choice(answers)
        other = self._another(kind, answer, random)
        if other is None:
            return None
        asked = question.rstrip("?")
        first = answer if random.random() < 0.3 else random.choice(frames).format(a=answer, q=asked)
        if random.random() < 0.3:
            first = self._fact_of(question, answer) or first
        mentioned = random.random() < 0.65
        if mentioned and random.random() < 0.7:
            first = first.rstrip(".") + random.choice(words()["beside"]).format(b=other)
        elif mentioned:
            first = random.choice(words()["before it"]).format(b=other, a=first)
        given = answer if same else other
        second = (
            random.choice(frames).format(a=given, q=asked)
            if random.random() < 0.25
            else random.choice(("{}", "it is {}")).format(given)
        )
        return question, first, second

    def _fact_of(self, question: str, answer: str) -> str | None:
        """The sentence that a question and its answer make, where a pattern of questions knows how."""
        for pattern, verb, rest, stated in _FACTS:
            match = pattern.fullmatch(question)
            if match:
                return _as_fact(match[1], verb, rest.format(answer), stated.format(answer), "").affirms
        return None

    def _detail(self, random: Random, same: bool) -> Raw | None:
        """A name and the same name with what is known about it."""
        if random.random() < 0.5:
            return self._written("detail", random, same)
        subject, verb, rest, stated, answer, kind = random.choice(self._facts)
        who = "who" if kind in _PEOPLE else "which"
        told = stated.format(answer) if stated else f"{verb} {rest.format(answer)}"
        detailed = random.choice(
            (
                f"{subject}, {who} {told}",
                f"{subject} ({who} {told})",
                f"{subject}, the one {who} {told}",
                f"{subject}, and {subject.split()[-1]} {told}",
            )
        )
        asked = random.choice(("who is it", "which one is it", "what is the name", "what is it called"))
        if same:
            return asked, random.choice((subject, f"it is {subject}", f"{subject} I think")), detailed
        other, *_, other_kind = random.choice(self._facts)
        way = random.random()
        if set(other.lower().split()) & set(subject.lower().split()) or (way < 0.6 and other_kind != kind):
            return None
        if way < 0.6:
            return asked, random.choice((other, f"{other}, {who} {told}")), detailed
        return (
            asked,
            random.choice((answer, f"{subject} and {other}", f"{subject} or {other}")),
            random.choice((detailed, subject)),
        )

    def _works(self, random: Random, same: bool) -> Raw | None:
        """A title with what is said about it, or the next of a series."""
        title = random.choice(self._names)
        author = random.choice(self._people)
        asked = random.choice(
            (
                "which film is it",
                "what is the book called",
                "what is the title",
                "which song is it",
                "what was played",
            )
        )
        if same:
            return (
                asked,
                title,
                random.choice(
                    (
                        f"{title} (film)",
                        f"the film {title}",
                        f"{title}, a novel by {author}",
                        f"{title} by {author}",
                        f"the book {title}",
                        f"it is called {title}",
                        f"{author}'s {title}",
                        f"{title}, the movie",
                        f"the song {title} by {author}",
                    )
                ),
            )
        number = random.randint(2, 5)
        more = random.choice(
            (
                f"{title} {number}",
                f"{title} {ROMAN[number]}",
                f"{title}: part {number}",
                f"return of {title}",
                f"{title} returns",
                f"son of {title}",
                f"{title} and {author.split()[-1]}",
                f"the making of {title}",
                f"{random.choice(self._names)}, a novel by {author}",
            )
        )
        return asked, random.choice((title, f"{title} by {author}", f"the film {title}")), more


def _quality(random: Random) -> tuple[str, list[str], list[str]]:
    """A question about a quality, answers that affirm it, and answers that deny it."""
    positive, negative = random.sample(random.choice(groups("adjectives")), 2)
    p, n = random.choice(positive), random.choice(negative)
    things = ("it", "this", "he", "the process", "the animal", "the result", "the substance", "the verdict")
    asked = f"is {random.choice(things)} {positive[0]}?"
    yes = [*_YES, *(f"it is {word}" for word in positive), *positive]
    no = [*_NO, *(f"it is {word}" for word in negative), *negative]
    yes += [f"yes, it is {positive[0]}", f"yes, {p}"]
    no += [f"it is not {positive[0]}", f"not {positive[0]}", f"no, it is {n}", f"no, {n}"]
    return asked, yes, [*no, f"no, it isn't {positive[0]}"]


def _replies(fact: Fact, random: Random) -> tuple[list[str], list[str]]:
    """Answers that affirm a fact, and answers that deny it."""
    did, he = fact.verb, fact.pronoun
    yes = [*_YES[:8], "yes", f"yes, {he} {did}", f"{he} {did}", f"yes, {fact.affirms}", fact.affirms]
    no = [*_NO[:8], "no", f"no, {he} {did} not", f"no, {he} {did}n't", f"{he} {did} not"]
    no += [f"no, {fact.denies}", fact.denies, _short_not(fact.denies)]
    return [*yes, fact.affirms, *random.sample(_YES, 2)], [*no, *random.sample(_NO, 2)]


def _relation(random: Random) -> list[str]:
    """Ways to say that {a} is the R of {b}."""
    (r,), (s,) = random.choice(groups("relations"))
    is_ = random.choice(("is", "was"))
    return [line.format(r=r, s=s, is_=is_, a="{a}", b="{b}") for line in words()["relation"]]


def _deed(random: Random) -> list[str]:
    """Ways to say that {a} did something to {b}."""
    past, participle, active, inverse = random.choice(words()["verbs"]).split("|")
    is_ = "is" if past.split()[0].endswith("s") else "was"
    rest = past[len(past.split()[0]) :]
    rest = "" if participle.endswith(rest.strip()) else rest
    when = ("", "", "", "", f" in {random.randint(1000, 2020)}", " at last", " twice", " again")
    adverb = random.choice(when)
    found = [f"{{a}} {verb} {{b}}{adverb}" for verb in (past, *active.split("=")) if verb]
    found += [f"{{b}} {is_} {participle}{rest} by {{a}}{adverb}"] * 2
    found += [f"{{b}} {verb} {{a}}{adverb}" for verb in inverse.split("=") if verb]
    return [*found, f"it was {{a}} who {past} {{b}}{adverb}", f"it was {{b}} that {{a}} {past}{adverb}"]


def _comparison(random: Random) -> list[str]:
    """Ways to say that {a} is more than {b}."""
    up, down = random.choice(groups("comparisons"))
    is_ = random.choice(("is", "is", "was"))
    found = [f"{{a}} {is_} {word} {{b}}" for word in up] + [f"{{b}} {is_} {word} {{a}}" for word in down]
    found.append(f"{{b}} {is_} not {up[0]} {{a}}, it is {down[0]} it")
    return [*found, f"compared with {{b}}, {{a}} {is_} {up[0]} it"]


def _order(random: Random) -> list[str]:
    """Ways to name {a} and {b} in an order that means something."""
    return random.choice(groups("orders"))[0]


#: Letters that one transcription writes for those of another.
_SPELLINGS = [
    *(("ch", "tch"), ("ch", "tsch"), ("sh", "sch"), ("v", "w"), ("i", "y"), ("y", "iy"), ("k", "c")),
    *(("ph", "f"), ("ai", "ay"), ("ei", "ey"), ("kh", "h"), ("j", "y"), ("ou", "u"), ("z", "s")),
]


def _respelled(name: str, random: Random) -> str:
    """The name in another transcription, or with a misspelling."""
    found = [pair for pair in (*_SPELLINGS, *(pair[::-1] for pair in _SPELLINGS)) if pair[0] in name[1:]]
    if not found or random.random() < 0.4:
        return _typo(name, random)
    one, other = random.choice(found)
    return name[0] + name[1:].replace(one, other, 1)


def _typo(name: str, random: Random) -> str:
    """The name with one letter doubled, dropped or changed places with the next."""
    place = random.randrange(1, len(name) - 1) if len(name) > 3 else 1
    if not name[place : place + 2].isalpha() or len(name) < 5:
        return name
    return random.choice((
        name[:place] + name[place] + name[place:],
        name[:place] + name[place + 1 :],
        name[:place] + name[place + 1] + name[place] + name[place + 2 :],
    ))  # fmt: skip


def _as_fact(subject: str, verb: str, rest: str, stated: str, pronoun: str) -> Fact:
    question = f"{verb} {subject} {rest}?"
    affirms = f"{subject} {stated}" if stated else f"{subject} {verb} {rest}"
    return Fact(
        question, affirms, f"{subject} {'cannot' if verb == 'can' else verb + ' not'} {rest}", verb, pronoun
    )


def _short_not(sentence: str) -> str:
    """is not → isn't."""
    return re.sub(r"\b(is|was|are|were|did|does|has) not\b", r"\1n't", sentence, count=1).replace(
        "cannot", "can't"
    )
