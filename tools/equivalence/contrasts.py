"""Pairs of answers that share most of their words, or none, where overlap says nothing about meaning.

Every kind gives as many pairs that mean the same as pairs that do not, made by the same templates: amounts,
bounds, times and shares; statements and their contraries; yes and no; roles; names; parts of a sentence.
The words stand in `contrasts.txt`, the names come from references.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

from rapidfuzz import fuzz

from semcal.text.normal_form import normal_form

#: Question, answer, other answer: as written, not in normal form.
Raw = tuple[str, str, str]
Maker = Callable[[Random, bool], Raw | None]
#: Shares among the pairs that are made here.
SHARES = {
    "units": 0.12,
    "bounds": 0.08,
    "clock": 0.05,
    "shares": 0.04,
    "statements": 0.04,
    "clauses": 0.09,
    "polarity": 0.07,
    "opposites": 0.09,
    "roles": 0.15,
    "near names": 0.09,
    "numbered names": 0.02,
    "passage": 0.03,
    "granularity": 0.01,
    "alternatives": 0.01,
    "languages": 0.02,
    "abbreviations": 0.02,
    "formulas": 0.01,
    "verbose": 0.01,
    "detail": 0.01,
    "dates": 0.02,
    "numbers": 0.01,
    "works": 0.01,
}
_ROMAN = (
    "",
    "i",
    "ii",
    "iii",
    "iv",
    "v",
    "vi",
    "vii",
    "viii",
    "ix",
    "x",
    "xi",
    "xii",
    "xiii",
    "xiv",
    "xv",
    "xvi",
)
_HOURS = ("twelve", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven")
_ORDINALS = (
    "",
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
)
#: Kinds whose labels depend on the question.
_ASKED = frozenset({"verbose", "polarity", "passage", "near names", "alternatives"})
_PEOPLE = frozenset({"P19", "P20", "P69", "P26", "P40", "P106", "P413"})
#: Facts in questions: pattern, what stands before the subject in a yes/no question, rest, rest of a statement.
_FACTS = [
    (re.compile(rf"{pattern}\??", re.IGNORECASE), *rest)
    for pattern, *rest in (
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
_YES = ("yes", "yes it is", "true", "correct", "that is correct", "that is true", "right", "indeed", "yes indeed", "it is true", "of course", "affirmative", "yes that is right", "absolutely", "I believe so", "yeah", "certainly")  # fmt: skip
_NO = ("no", "no it is not", "false", "incorrect", "that is incorrect", "that is false", "wrong", "that is not true", "not at all", "it is not true", "no way", "negative", "that is wrong", "that's not correct", "I do not think so", "nope", "certainly not")  # fmt: skip
_SAID = ("{}", "it is true that {}", "indeed {}", "{}, that is right", "it is a fact that {}", "yes, {}", "I believe that {}")  # fmt: skip
_DENIED = ("it is not true that {}", "it is false that {}", "it is not the case that {}", "it isn't true that {}", "nobody thinks that {}", "no, it is wrong that {}", "I do not believe that {}")  # fmt: skip
_QUESTIONS = ("which one is it", "what is said", "what happened", "what is true", "what can be said about it", "what does the text say", "which is right", "how would you describe it")  # fmt: skip
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


@cache
def words() -> dict[str, list[str]]:
    """Lines of `contrasts.txt` by section."""
    found: dict[str, list[str]] = {}
    for line in (Path(__file__).parent / "contrasts.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            section = found.setdefault(line[3:], [])
        elif not line.startswith("#"):
            section.append(line)
    return found


@cache
def groups(section: str) -> list[list[list[str]]]:
    """Lines as sides of names: lines part at line ends, sides at "|", names at "="."""
    return [[side.strip().split("=") for side in line.split("|")] for line in words()[section]]


@cache
def listed(section: str) -> list[list[list[str]]]:
    """The same where a comma parts the entries."""
    entries = [entry.strip() for line in words()[section] for entry in line.split(", ")]
    return [[side.split("=") for side in entry.split("|")] for entry in entries]


def sides(section: list[list[list[str]]], random: Random, same: bool) -> tuple[str, str] | None:
    """Two names of one side, or one of either of two."""
    entry = random.choice(section)
    if same:
        several = [side for side in entry if len(side) > 1]
        if not several:
            return None
        one, other = random.sample(random.choice(several), 2)
        return one, other
    if len(entry) < 2:
        return None
    one_side, other_side = random.sample(entry, 2)
    return random.choice(one_side), random.choice(other_side)


class Contrasts:
    """Makes pairs from word lists and from references: (question, answers, kind, context) and people's names."""

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
                for word in set(answer.split()):
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
            "units": self._units,
            "bounds": self._bounds,
            "clock": self._clock,
            "shares": self._shares,
            "statements": self._statements,
            "clauses": self._clauses,
            "polarity": self._polarity,
            "opposites": self._opposites,
            "roles": self._roles,
            "near names": self._near_names,
            "numbered names": self._numbered,
            "passage": self._passage,
            "granularity": self._granularity,
            "alternatives": self._alternatives,
            "languages": self._languages,
            "abbreviations": self._abbreviations,
            "formulas": self._formulas,
            "verbose": self._verbose,
            "detail": self._detail,
            "dates": self._dates,
            "numbers": self._numbers,
            "works": self._works,
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

    def _units(self, random: Random, same: bool) -> Raw | None:
        dimension, listing = random.choice(words()["units"]).split(": ")
        units = []
        for unit in listing.split(", "):
            *names, size = unit.split()
            units.append(([name.replace("-", " ") for name in names], float(size)))
        names, size = random.choice(units)
        number = _number(random)
        asked = f"how {random.choice(('much', 'long', 'large', 'heavy', 'far', 'many'))} is {random.choice(('it', 'the dose', 'this', 'one of them', 'the distance', 'the total'))}"
        frame = random.choice(
            (
                "{}",
                "{}",
                "{}",
                "it is {}",
                "about {}",
                "it takes {}",
                "it was {}",
                "{} per day",
                "a total of {}",
            )
        )
        way = random.random()
        if same:
            if way < 0.25 and len(units) > 1:  # the same amount in another unit
                others = [(n, s) for n, s in units if n != names and 1 < max(s / size, size / s) <= 100000]
                exact = [(n, s) for n, s in others if abs(size / s * 1e6 - round(size / s * 1e6)) < 1e-9]
                if not exact:
                    return None
                other_names, other_size = random.choice(exact)
                value = random.choice((1, 2, 3, 5, 10, 0.5, 1.5, 2.5, 4, 12, 20, 100, 1000))
                return (
                    asked,
                    frame.format(_amount(value, names, random)),
                    frame.format(_amount(value * size / other_size, other_names, random)),
                )
            second = frame if random.random() < 0.5 else random.choice(("{}", "it is {}", "exactly {}"))
            spelled = _spelled(number) if random.random() < 0.3 else number
            if way > 0.9:
                return "which unit is it", random.choice(names), random.choice(names)
            return (
                asked,
                frame.format(_amount(number, names, random)),
                second.format(_amount(spelled, names, random)),
            )
        others = [n for n, _ in units if n != names]
        if way < 0.6 and others:
            other = random.choice(others)
        elif way < 0.7:
            other = random.choice(random.choice(words()["units"]).split(": ")[1].split(", ")).split()[:-1]
            other = [name.replace("-", " ") for name in other]
        else:
            second = frame if random.random() < 0.7 else "{}"
            return (
                asked,
                frame.format(_amount(number, names, random)),
                second.format(_amount(_other_number(number, random), names, random)),
            )
        if set(other) & set(names):
            return None
        if random.random() < 0.1:
            return "which unit is it", random.choice(names), random.choice(other)
        return (
            asked,
            frame.format(_amount(number, names, random)),
            frame.format(_amount(number, other, random)),
        )

    def _bounds(self, random: Random, same: bool) -> Raw | None:
        entry = groups("bounds")[0 if random.random() < 0.8 else 1]
        units = (
            "people",
            "years",
            "days",
            "players",
            "dollars",
            "percent",
            "meters",
            "points",
            "hours",
            "times",
            "",
        )
        unit = random.choice(units)
        number = random.choice(
            (str(random.randint(2, 30)), str(random.randint(1, 20) * 10), str(random.randint(1800, 2030)))
        )
        if entry is groups("bounds")[1]:
            unit, number = (
                "",
                random.choice(
                    (str(random.randint(1500, 2030)), "monday", "may", "noon", "the war", "breakfast", "8 pm")
                ),
            )
        frame = random.choice(
            ("{} {}", "{} {}", "it takes {} {}", "you need {} {}", "it was {} {}", "there are {} {}")
        )

        def say(words_: Sequence[str], side: int) -> str:
            after = {0: ("or more", "and above", "or over"), 1: ("or less", "or fewer", "and below")}.get(
                side
            )
            if after and entry is groups("bounds")[0] and random.random() < 0.3:
                return frame.format(f"{number} {unit}".strip(), random.choice(after))
            return frame.format(random.choice(words_), f"{number} {unit}".strip())

        asked = random.choice(
            (
                "how many are needed",
                "how much is it",
                "when was it",
                "what is the limit",
                "how old must you be",
                "how long does it take",
            )
        )
        if same:
            side = random.randrange(len(entry))
            return asked, say(entry[side], side), say(entry[side], side)
        if random.random() < 0.25:
            number_now = number
            side = random.randrange(len(entry))
            first = say(entry[side], side)
            if not number_now.isdigit():
                return None
            number = _other_number(number_now, random)
            return asked, first, say(entry[side], side)
        one, other = random.sample(range(len(entry)), 2)
        if {one, other} in ({0, 2}, {1, 3}):
            return None
        return asked, say(entry[one], one), say(entry[other], other)

    def _clock(self, random: Random, same: bool) -> Raw | None:
        hour, minute = random.randint(0, 23), random.choice((0, 0, 0, 30, 15, 45, random.randint(1, 59)))

        def say(hour: int, minute: int) -> str:
            half = "am" if hour < 12 else "pm"
            part = "in the morning" if hour < 12 else "in the afternoon" if hour < 18 else "in the evening"
            short = hour % 12 or 12
            ways = [
                f"{short}:{minute:02d} {half}",
                f"{hour}:{minute:02d}",
                f"{short}:{minute:02d} {part}",
                f"{short}:{minute:02d} {half[0]}.m.",
            ]
            if minute == 0:
                ways += [
                    f"{short} {half}",
                    f"{short}{half}",
                    f"{_HOURS[hour % 12]} {part}",
                    f"{short} o'clock {part}",
                    f"at {short} {half}",
                ]
                ways += ["noon", "midday"] if hour == 12 else ["midnight"] if hour == 0 else []
            if minute == 30:
                ways.append(f"half past {_HOURS[hour % 12]} {part}")
            if minute == 15:
                ways.append(f"quarter past {_HOURS[hour % 12]} {part}")
            if minute == 45:
                ways.append(f"quarter to {_HOURS[(hour + 1) % 12]} {part if hour % 12 < 11 else ''}")
            return random.choice(("{}", "{}", "it starts at {}", "at {}")).format(random.choice(ways))

        asked = random.choice(
            ("when does it start", "what time is it", "when does the train leave", "at what time")
        )
        if same:
            return asked, say(hour, minute), say(hour, minute)
        changed = random.choice(((hour + 12) % 24, (hour + 12) % 24, (hour + 1) % 24, hour))
        other_minute = (
            minute if changed != hour else random.choice([m for m in (0, 15, 30, 45) if m != minute])
        )
        return asked, say(hour, minute), say(changed, other_minute)

    def _shares(self, random: Random, same: bool) -> Raw | None:
        parts = random.choice(
            (
                (1, 2),
                (1, 4),
                (3, 4),
                (1, 5),
                (2, 5),
                (4, 5),
                (1, 10),
                (3, 10),
                (7, 10),
                (9, 10),
                (1, 8),
                (1, 3),
                (2, 3),
                (1, 20),
            )
        )
        names = {
            2: ("half", "halves"),
            3: ("third", "thirds"),
            4: ("quarter", "quarters"),
            5: ("fifth", "fifths"),
            8: ("eighth", "eighths"),
            10: ("tenth", "tenths"),
            20: ("twentieth", "twentieths"),
        }
        asked = random.choice(
            (
                "what share is it",
                "how much of it",
                "what fraction",
                "what percentage of people",
                "what is the probability",
            )
        )

        def say(top: int, bottom: int) -> str:
            value = top / bottom
            ways = [f"{top}/{bottom}", f"{top} out of {bottom}", f"{top} in {bottom}"]
            ways.append(f"a {names[bottom][0]}" if top == 1 else f"{_HOURS[top]} {names[bottom][1]}")
            if bottom != 3:
                ways += [
                    f"{value * 100:g}%",
                    f"{value * 100:g} percent",
                    f"{value:g}",
                    f"{value * 100:g} per cent",
                    f"{value:.2f}",
                ]
            return random.choice(("{}", "{}", "{} of them", "it is {}", "about {}")).format(
                random.choice(ways)
            )

        way = random.random()
        if way < 0.3:  # signs
            number = _number(random)
            positive = (number, f"+{number}", f"plus {number}", f"{number} above zero", f"a gain of {number}")
            negative = (
                f"-{number}",
                f"minus {number}",
                f"negative {number}",
                f"{number} below zero",
                f"a loss of {number}",
            )
            pick = random.choice((positive, negative))
            other = pick if same else negative if pick is positive else positive
            return (
                random.choice(("what is the result", "how much is it", "what is the temperature")),
                random.choice(pick),
                random.choice(other),
            )
        if way < 0.4:
            entry = random.choice(
                (
                    ("double", "twice as much", "two times", "twofold"),
                    ("half as much", "half", "0.5 times"),
                    ("triple", "three times as much", "threefold"),
                    ("ten times as much", "tenfold", "10 times"),
                    ("the same", "equal", "as much"),
                )
            )
            entries = (
                ("double", "twice as much", "two times"),
                ("half as much", "half", "0.5 times"),
                ("triple", "three times as much", "threefold"),
                ("ten times as much", "tenfold"),
                ("the same amount", "equally much"),
            )
            other = entry if same else random.choice([e for e in entries if not set(e) & set(entry)])
            return asked, random.choice(entry), random.choice(other)
        if same:
            return asked, say(*parts), say(*parts)
        top, bottom = random.choice(
            [(1, 2), (1, 4), (3, 4), (1, 5), (4, 5), (1, 10), (9, 10), (2, 3), (1, 3), (1, 20)]
        )
        if top / bottom == parts[0] / parts[1]:
            return None
        return asked, say(*parts), say(top, bottom)

    # what is said, and its contrary

    def _fact(self, random: Random, other: bool = False) -> tuple[Fact, str]:
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
        """Answers to a yes/no question."""
        way = random.random()
        if way < 0.2:  # a question about a quality
            entry = [side for side in random.choice(groups("adjectives"))]
            positive, negative = (entry[0], entry[1]) if random.random() < 0.5 else (entry[1], entry[0])
            subject = random.choice(
                (
                    "it",
                    "this",
                    "he",
                    "the process",
                    "the animal",
                    "the result",
                    "the substance",
                    "the verdict",
                )
            )
            asked = f"is {subject} {positive[0]}?"
            yes = [
                *_YES,
                *(f"it is {p}" for p in positive),
                *positive,
                f"yes, it is {positive[0]}",
                f"yes, {random.choice(positive)}",
            ]
            no = [
                *_NO,
                *(f"it is {n}" for n in negative),
                *negative,
                f"it is not {positive[0]}",
                f"not {positive[0]}",
                f"no, it is {random.choice(negative)}",
                f"no, it isn't {positive[0]}",
                f"no, {random.choice(negative)}",
            ]
        elif way < 0.27:
            pairs = (
                (
                    ("ja", "yes", "ja, das stimmt", "ja, das ist richtig"),
                    ("nein", "no", "nein, das stimmt nicht", "nein, das ist falsch"),
                ),
                (
                    ("oui", "yes", "oui, c'est vrai", "oui bien sur"),
                    ("non", "no", "non, ce n'est pas vrai", "non, c'est faux"),
                ),
                (
                    ("si", "yes", "si, es verdad", "si claro"),
                    ("no", "no", "no, no es verdad", "no, es falso"),
                ),
            )
            yes_words, no_words = random.choice(pairs)
            asked, yes, no = (
                random.choice(("ist das wahr?", "est-ce vrai?", "es verdad?", "is it true?")),
                list(yes_words),
                list(no_words),
            )
        else:
            fact, other = self._fact(random)
            did, pronoun = fact.verb, fact.pronoun
            yes = [
                *_YES[:8],
                "yes",
                f"yes, {pronoun} {did}",
                f"{pronoun} {did}",
                f"yes, {fact.affirms}",
                fact.affirms,
                fact.affirms,
                random.choice(_YES),
                random.choice(_YES),
            ]
            no = [
                *_NO[:8],
                "no",
                f"no, {pronoun} {did} not",
                f"no, {pronoun} {did}n't",
                f"{pronoun} {did} not",
                f"no, {fact.denies}",
                fact.denies,
                _short_not(fact.denies),
                random.choice(_NO),
                random.choice(_NO),
            ]
            if other:
                no += [other, f"no, {other}", other]
            asked = fact.question
            if random.random() < 0.15:
                asked = random.choice(
                    (
                        f"is it true that {fact.affirms}?",
                        f"true or false: {fact.affirms}",
                        f"did you know that {fact.affirms}?",
                    )
                )
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
            names = [p for p in random.choice(beginnings.split(", ")).split("|")]
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
        one, other = self._two(random)
        kind = random.random()
        asked = random.choice(
            (*_QUESTIONS, f"what about {one} and {other}", "how are they related", "who did it")
        )
        if kind < 0.25:
            section = groups("relations")
            (r,), (s,) = random.choice(section)
            is_ = random.choice(("is", "was"))

            def related(a: str, b: str) -> list[str]:
                """`a` is the R of `b`."""
                return [
                    f"{a} {is_} the {r} of {b}",
                    f"{b} {is_} the {s} of {a}",
                    f"{a} {is_} {b}'s {r}",
                    f"{b} {is_} {a}'s {s}",
                    f"{b}'s {r} {is_} {a}",
                    f"the {r} of {b} {is_} {a}",
                    f"the {s} of {a} {is_} {b}",
                ]

            forward, backward = related(one, other), related(other, one)
        elif kind < 0.6:
            past, participle, active, inverse = random.choice(words()["verbs"]).split("|")
            is_ = "is" if past.split()[0].endswith("s") else "was"
            rest = past[len(past.split()[0]) :]
            active_forms = [past, *(active.split("=") if active else [])]
            adverb = random.choice(
                ("", "", "", "", f" in {random.randint(1000, 2020)}", " at last", " twice", " again")
            )

            def related(a: str, b: str) -> list[str]:
                """`a` did `b`."""
                forms = [f"{a} {verb} {b}{adverb}" for verb in active_forms]
                forms += [
                    f"{b} {is_} {participle}{'' if participle.endswith(rest.strip()) else rest} by {a}{adverb}"
                ] * 2
                forms += [f"{b} {verb} {a}{adverb}" for verb in (inverse.split("=") if inverse else ())]
                return [*forms, f"it was {a} who {past} {b}{adverb}", f"it was {b} that {a} {past}{adverb}"]

            forward, backward = related(one, other), related(other, one)
        elif kind < 0.85:
            up, down = random.choice(groups("comparisons"))
            is_ = random.choice(("is", "is", "was"))

            def related(a: str, b: str) -> list[str]:
                """`a` is more than `b`."""
                return [
                    *(f"{a} {is_} {w} {b}" for w in up),
                    *(f"{b} {is_} {w} {a}" for w in down),
                    f"{b} {is_} not {up[0]} {a}, it is {down[0]} it",
                    f"compared with {b}, {a} {is_} {up[0]} it",
                ]

            forward, backward = related(one, other), related(other, one)
        elif kind < 0.93:
            templates = random.choice(
                (
                    (
                        "from {a} to {b}",
                        "to {b} from {a}",
                        "starting in {a} and ending in {b}",
                        "it goes from {a} to {b}",
                    ),
                    (
                        "first {a}, then {b}",
                        "{a} and after that {b}",
                        "{a} before {b}",
                        "{b} after {a}",
                        "{a} followed by {b}",
                    ),
                    ("{a} sold it to {b}", "{b} bought it from {a}", "it was sold to {b} by {a}"),
                    (
                        "{a} gave the money to {b}",
                        "{b} got the money from {a}",
                        "{b} was given the money by {a}",
                    ),
                    ("{a} instead of {b}", "{a} rather than {b}", "not {b} but {a}", "{a}, not {b}"),
                    ("{a} minus {b}", "subtract {b} from {a}", "the difference of {a} less {b}"),
                    ("{a} divided by {b}", "the ratio of {a} to {b}", "{a} over {b}"),
                    ("{a} told {b} about it", "{b} heard about it from {a}", "{b} was told about it by {a}"),
                    (
                        "{a} won and {b} lost",
                        "{b} lost to {a}",
                        "{a} beat {b}",
                        "the winner was {a} and the loser {b}",
                    ),
                    (
                        "{a} leads to {b}",
                        "{b} is caused by {a}",
                        "{b} is the result of {a}",
                        "because of {a} there is {b}",
                    ),
                    ("{a} is a kind of {b}", "one kind of {b} is {a}", "every {a} is a {b}"),
                )
            )
            forward, backward = (
                [t.format(a=a, b=b) for t in templates] for a, b in ((one, other), (other, one))
            )
        else:
            verb = random.choice(words()["equal relations"][0].split(", "))
            third = random.choice(self._two(random))
            if third in (one, other):
                return None
            forward = [
                f"{one} {verb} {other}",
                f"{other} {verb} {one}",
                f"{one} {verb} {other}, and {other} {verb} {one}",
            ]
            backward = [
                f"{one} {verb} {third}",
                f"{third} {verb} {one}",
                f"{one} never {verb} {other}" if " " not in verb else f"{third} {verb} {other}",
            ]
        if same:
            first, second = random.sample(forward, 2)
            if random.random() < 0.25:
                second = random.choice(
                    (*_SAID, "{}", "{} as everyone knows", "the text says that {}")
                ).format(first)
            return asked, first, second
        first = random.choice(forward)
        if random.random() < 0.6:  # the very same words in the other order
            return (
                asked,
                first,
                backward[forward.index(first)] if len(forward) == len(backward) else random.choice(backward),
            )
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
        question, answers, kind, _ = random.choice(self._short)
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
            return (question, name, frame.format(_typo(name, random))) if len(name) > 6 else None
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
            first, second = set(one.split()), set(other.split())
            if (
                first <= second
                or second <= first
                or fuzz.ratio(one, other) > 90
                or self._together(one, other)
            ):
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
            [first, *middle, _typo(last, random)],
        ]
        return " ".join(random.choice(forms))

    def _numbered(self, random: Random, same: bool) -> Raw | None:
        roman, plain = (line.split(", ") for line in words()["numbered"])
        way = random.random()
        if way < 0.55:
            name, number = random.choice(roman), random.randint(1, 16)
            ordinal = random.random() < 0.5 and number <= 10

            def say(number: int) -> str:
                ways = [f"{name} {_ROMAN[number]}", f"{name} {_ROMAN[number]}", f"{name} {number}"]
                if number <= 10:
                    ways += [f"{name} the {_ORDINALS[number]}"] if ordinal else []
                title = random.choice(("", "", "", "king ", "emperor ")) if roman.index(name) < 15 else ""
                return title + random.choice(ways)

        else:
            name, number = (
                random.choice(plain),
                random.choice((random.randint(1, 20), random.randint(21, 99), random.randint(100, 800))),
            )

            def say(number: int) -> str:
                return random.choice(
                    (
                        f"{name} {number}",
                        f"{name} {number}",
                        f"the {name} {number}",
                        f"{name} number {number}",
                        f"it is {name} {number}",
                        f"{name} {_spelled(str(number))}",
                        str(number),
                    )
                )

        asked = random.choice(
            (f"which {name} was it", "what was it called", "who was it", "which one is meant")
        )
        if same:
            return asked, say(number), say(number)
        other = int(_other_number(str(number), random).split(".")[0].replace(",", ""))
        other = random.randint(1, 16) if way < 0.55 else other
        return (asked, say(number), say(other)) if 0 < other != number else None

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
                f"where is it",
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

    def _formulas(self, random: Random, same: bool) -> Raw | None:
        """Formulas and code with their operators, in lower case."""
        x, y, n, m = (
            random.choice("abxyn"),
            random.choice("cdzkm"),
            random.randint(2, 9),
            random.randint(2, 9),
        )
        entry = random.choice(
            (
                (
                    (f"{x} + {y}", f"{y} + {x}", f"{x}+{y}", f"{x} plus {y}"),
                    (f"{x} - {y}", f"{x} minus {y}", f"{x}-{y}"),
                    (f"{x} * {y}", f"{x}*{y}", f"{x} times {y}"),
                ),
                (
                    (f"{x}^{n}", f"{x}**{n}", f"{x} to the power of {n}"),
                    (f"{n}{x}", f"{n}*{x}", f"{n} * {x}"),
                    (f"{x}/{n}", f"{x} / {n}", f"{x} over {n}"),
                ),
                (
                    (f"{x} = {n}", f"{n} = {x}", f"{x} is {n}"),
                    (f"{x} = -{n}", f"{x} is -{n}"),
                    (f"{x} > {n}", f"{n} < {x}"),
                    (f"{x} < {n}", f"{n} > {x}"),
                ),
                (
                    (f"{x} == {y}", f"{y} == {x}"),
                    (f"{x} != {y}", f"{y} != {x}"),
                    (f"{x} >= {y}", f"{y} <= {x}"),
                ),
                (
                    (f"{n}{x} + {m}", f"{m} + {n}{x}", f"{n}*{x}+{m}"),
                    (f"{n}{x} - {m}", f"{n}*{x}-{m}"),
                    (f"{m}{x} + {n}", f"{m}*{x}+{n}")
                    if n != m
                    else (f"{n}{x} - {m + 1}", f"{n}*{x}-{m + 1}"),
                ),
                (
                    ("o(n)", "linear time"),
                    ("o(n^2)", "quadratic time", "o(n**2)"),
                    ("o(log n)", "logarithmic time"),
                    ("o(n log n)", "linearithmic time"),
                    ("o(1)", "constant time"),
                ),
                ((f"f({x})", f"f( {x} )"), (f"f(-{x})", f"f( -{x} )"), (f"-f({x})", f"-f( {x} )")),
                (
                    (f"sqrt({x})", f"{x}^(1/2)", f"the square root of {x}"),
                    (f"{x}^2", f"{x}*{x}", f"the square of {x}"),
                ),
                ((f"not {x}", f"!{x}", f"~{x}"), (f"{x}", f"({x})")),
                (
                    (f"{x} and {y}", f"{y} and {x}", f"{x} && {y}"),
                    (f"{x} or {y}", f"{y} or {x}", f"{x} || {y}"),
                ),
                (("na+", "na^+", "sodium ion"), ("na", "sodium"), ("cl-", "chloride ion")),
                (("co2", "carbon dioxide"), ("co", "carbon monoxide"), ("c2", "dicarbon")),
                (("h2o", "water"), ("h2o2", "hydrogen peroxide"), ("h2", "hydrogen")),
            )
        )
        found = sides([[list(side) for side in entry]], random, same)
        return (
            None
            if found is None
            else (
                random.choice(
                    ("what is the result", "which expression is it", "what is the formula", "simplify")
                ),
                *found,
            )
        )

    def _another(self, kind: str, answer: str, random: Random) -> str | None:
        """Another answer of a kind that shares no word with this one."""
        other = random.choice(self._kinds[kind])
        alike = set(answer.split()) & set(other.split()) or self._together(answer, other)
        return None if alike else other

    def _verbose(self, random: Random, same: bool) -> Raw | None:
        """A long answer beside a short one."""
        question, answers, kind, _ = random.choice(self._short)
        frames = words()["long"]
        answer = random.choice(answers)
        given = answer if same else self._another(kind, answer, random)
        if given is None:
            return None
        asked = question.rstrip("?")
        first = random.choice(frames).format(a=answer, q=asked)
        second = random.choice(frames).format(a=given, q=asked) if random.random() < 0.25 else random.choice(("{}", "it is {}")).format(given)
        return question, first, second

    def _detail(self, random: Random, same: bool) -> Raw | None:
        """A name and the same name with what is known about it."""
        subject, verb, rest, stated, answer, kind = random.choice(self._facts)
        who = "who" if kind in _PEOPLE else "which"
        told = stated.format(answer) if stated else f"{verb} {rest.format(answer)}"
        detailed = random.choice((f"{subject}, {who} {told}", f"{subject} ({who} {told})", f"{subject}, the one {who} {told}", f"{subject}, and {subject.split()[-1]} {told}"))
        asked = random.choice(("who is it", "which one is it", "what is the name", "what is it called"))
        if same:
            return asked, random.choice((subject, f"it is {subject}", f"{subject} I think")), detailed
        other, *_, other_kind = random.choice(self._facts)
        way = random.random()
        if set(other.lower().split()) & set(subject.lower().split()) or (way < 0.6 and other_kind != kind):
            return None
        if way < 0.6:
            return asked, random.choice((other, f"{other}, {who} {told}")), detailed
        return asked, random.choice((answer, f"{subject} and {other}", f"{subject} or {other}")), random.choice((detailed, subject))

    def _dates(self, random: Random, same: bool) -> Raw | None:
        asked = random.choice(("when was it", "when did it happen", "on which day", "what is the date", "in what period"))
        way = random.random()
        if way < 0.4:
            months = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December")
            month, day, year = random.randrange(12), random.randint(1, 28), random.randint(1500, 2024)

            def say(month: int, day: int, year: int) -> str:
                name = months[month]
                end = "th" if 10 < day < 20 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
                forms = (f"{day} {name}", f"{name} {day}", f"the {day}{end} of {name}", f"{name} {day}{end}", f"{name[:3]} {day}")
                text = random.choice(forms)
                text = text if year < 1700 else f"{text}, {year}"
                return random.choice(("{}", "on {}", "it was {}", "it happened on {}")).format(text)

            if same:
                return asked, say(month, day, year), say(month, day, year)
            changed = random.choice(((month, day % 28 + 1, year), ((month + random.randint(1, 11)) % 12, day, year), (month, day, year + random.choice((1, -1, 10, 100)))))
            if changed[2] != year and min(changed[2], year) < 1700:
                return None
            return asked, say(month, day, year), say(*changed)
        if way < 0.6:
            year = random.randint(2, 40) * 25
            bc, ad = (f"{year} BC", f"{year} BCE", f"{year} before Christ", f"in {year} B.C."), (f"{year} AD", f"{year} CE", f"AD {year}", f"in the year {year} AD")
            pick = random.choice((bc, ad))
            return asked, random.choice(pick), random.choice(pick if same else ad if pick is bc else bc)
        if way < 0.8:
            decades = {20: "twenties", 30: "thirties", 40: "forties", 50: "fifties", 60: "sixties", 70: "seventies", 80: "eighties", 90: "nineties"}
            decade = random.choice(list(decades))
            century = random.randint(11, 20)

            def of(decade: int, century: int) -> str:
                if way < 0.7:
                    return random.choice((f"the 19{decade}s", f"the {decades[decade]}", f"in the '{decade}s", f"during the 19{decade}s"))
                return random.choice((f"{century}th century", f"the {century - 1}00s", f"in the {century}th century"))

            other = (decade, century) if same else (random.choice([d for d in decades if d != decade]), century + random.choice((1, -1)))
            return asked, of(decade, century), of(*other)
        found = sides(groups("days"), random, True)
        if found is None or same:
            return (asked, *found) if found else None
        one, other = (random.choice(entry[0]) for entry in random.sample(groups("days"), 2))
        return asked, one, other

    def _numbers(self, random: Random, same: bool) -> Raw | None:
        asked = random.choice(("how many are there", "what is the number", "how many people live there", "how much was it"))

        def say(value: int) -> str:
            forms = [f"{value:,}", str(value)]
            for size, names in ((1000, ("thousand", "k")), (1000000, ("million", "m")), (1000000000, ("billion", "bn"))):
                if value >= size and value * 100 % size == 0 and value < size * 1000:
                    forms += [f"{value / size:g} {names[0]}", f"{value / size:g}{names[1]}"]
            forms += {12: ["a dozen", "one dozen"], 24: ["two dozen"], 20: ["a score"], 2: ["a pair", "a couple", "two"], 100: ["a hundred"], 1000: ["a thousand"], 500000: ["half a million"], 6: ["half a dozen"], 1500000: ["one and a half million"]}.get(value, [])
            if 0 < value < 100:
                forms += [_spelled(str(value))]
            if 0 < value <= 16:
                forms += [_ROMAN[value].upper()]
            return random.choice(("{}", "{}", "about {}", "{} of them", "there are {}")).format(random.choice(forms))

        pool = (12, 24, 20, 2, 100, 1000, 500000, 6, 1500000, random.randint(1, 16), random.randint(1, 99) * 1000, random.randint(11, 99) * 100000, random.randint(1, 9) * 10**9, random.randint(1000, 9999))
        value = random.choice(pool)
        if same:
            return asked, say(value), say(value)
        other = random.choice((value * 10, value * 1000, value + 1, random.choice(pool), value * 2))
        return (asked, say(value), say(other)) if other != value else None

    def _works(self, random: Random, same: bool) -> Raw | None:
        """A title with what is said about it, or the next of a series."""
        title = random.choice(self._names)
        author = random.choice(self._people)
        asked = random.choice(("which film is it", "what is the book called", "what is the title", "which song is it", "what was played"))
        if same:
            return asked, title, random.choice((f"{title} (film)", f"the film {title}", f"{title}, a novel by {author}", f"{title} by {author}", f"the book {title}", f"it is called {title}", f"{author}'s {title}", f"{title}, the movie", f"the song {title} by {author}"))
        number = random.randint(2, 5)
        more = random.choice((f"{title} {number}", f"{title} {_ROMAN[number]}", f"{title}: part {number}", f"return of {title}", f"{title} returns", f"son of {title}", f"{title} and {author.split()[-1]}", f"the making of {title}", f"{random.choice(self._names)}, a novel by {author}"))
        return asked, random.choice((title, f"{title} by {author}", f"the film {title}")), more


def _number(random: Random) -> str:
    """A number as it stands in answers."""
    return random.choice((
        str(random.randint(1, 12)), str(random.randint(1, 12)), str(random.randint(10, 99)), str(random.randint(10, 99) * 10),
        str(random.randint(100, 999)), f"{random.randint(0, 40)}.{random.randint(1, 9)}", f"{random.randint(1, 90)},000", f"{random.randint(2, 90)} million",
    ))  # fmt: skip


def _other_number(number: str, random: Random) -> str:
    """Another number that looks like it."""
    figures = [i for i, c in enumerate(number) if c.isdigit()]
    way = random.random()
    if way < 0.25 and number.isdigit():
        return str(int(number) + random.choice((1, 2, 10, -1) if int(number) > 1 else (1, 2, 10)))
    if way < 0.4 and number.isdigit():
        return number + "0"
    if way < 0.5 and number.isdigit() and len(number) > 1 and number[0] != number[1] and number[1] != "0":
        return number[1] + number[0] + number[2:]
    place = random.choice(figures)
    changed = random.choice([c for c in "123456789" if c != number[place]])
    return number[:place] + changed + number[place + 1 :]


def _spelled(number: str) -> str:
    """Small numbers in words."""
    small = (
        "",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
        "thirteen",
        "fourteen",
        "fifteen",
        "sixteen",
        "seventeen",
        "eighteen",
        "nineteen",
    )
    tens = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
    if not number.isdigit() or not 0 < int(number) < 100:
        return number
    value = int(number)
    return small[value] if value < 20 else f"{tens[value // 10]} {small[value % 10]}".strip()


def _amount(number: float | str, names: Sequence[str], random: Random) -> str:
    """A number and one of the names of a unit; currency signs stand before the number."""
    text = number if isinstance(number, str) else f"{number:.10g}"
    name = random.choice(names)
    if name in "$€£¥":
        return f"{name}{text}"
    if name in ("°", "°C", "°F") or (
        len(name) <= 4
        and name == name.lower()
        and random.random() < 0.3
        and name
        not in (
            "foot",
            "feet",
            "inch",
            "mile",
            "year",
            "day",
            "days",
            "hour",
            "pint",
            "bits",
            "bit",
            "acre",
            "yard",
            "week",
            "cent",
            "time",
            "page",
            "goal",
        )
    ):
        return f"{text}{'' if random.random() < 0.5 else ' '}{name}"
    if text in ("1", "one") and name == names[min(1, len(names) - 1)]:
        name = names[0]
    return f"{text} {name}"


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
