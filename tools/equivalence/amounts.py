"""Pairs of answers that state amounts: units, bounds, times, shares, dates, numbers and formulas.

Each function makes a pair that means the same, or one that does not, or None where what was drawn does not
suit; `contrasts` draws again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random

#: Question, answer, other answer: as written, not in normal form.
Raw = tuple[str, str, str]
_HOURS = ("twelve", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven")
ROMAN = (
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
_ORDINALS = (
    *("", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"),
)


@cache
def words(file: str = "contrasts.txt") -> dict[str, list[str]]:
    """Lines of a file by section."""
    found: dict[str, list[str]] = {}
    for line in (Path(__file__).parent / file).read_text(encoding="utf-8").splitlines():
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


@cache
def written(section: str) -> list[tuple[str, list[list[str]]]]:
    """Questions of `written.txt`, each with groups of wordings of one answer."""
    found = []
    for line in words("written.txt").get(section, ()):
        question, *answers = line.split("|")
        found.append((question.strip(), [group.strip().split("=") for group in answers]))
    return found


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


def units(random: Random, same: bool) -> Raw | None:
    """An amount beside the same in other words or in another unit; another unit or number."""
    entry = [_unit(text) for text in random.choice(words()["units"]).split(": ")[1].split(", ")]
    names, size = random.choice(entry)
    number, way = _number(random), random.random()
    frame = random.choice(words()["frames of amounts"])
    first = frame.format(_amount(number, names, random))
    if way > 0.92:
        other = names if same else random.choice(entry)[0]
        pair = random.choice(names), random.choice(other)
        return ("which unit is it", *pair) if same or not set(names) & set(other) else None
    if same and way < 0.25:
        return _converted(names, size, entry, frame, random)
    if same:
        second = frame if random.random() < 0.5 else random.choice(("{}", "it is {}", "exactly {}"))
        spelled = _spelled(number) if random.random() < 0.3 else number
        return _how_much(random), first, second.format(_amount(spelled, names, random))
    if way > 0.65:
        second = frame if random.random() < 0.7 else "{}"
        return _how_much(random), first, second.format(_amount(_other_number(number, random), names, random))
    if way > 0.55:
        entry = [_unit(random.choice(random.choice(words()["units"]).split(": ")[1].split(", ")))]
    other = random.choice(entry)[0]
    return (
        None
        if set(other) & set(names)
        else (_how_much(random), first, frame.format(_amount(number, other, random)))
    )


def _unit(text: str) -> tuple[list[str], float]:
    """Names of a unit and its size."""
    *names, size = text.split()
    return [name.replace("-", " ") for name in names], float(size)


def _how_much(random: Random) -> str:
    much = random.choice(("much", "long", "large", "heavy", "far", "many"))
    what = random.choice(("it", "the dose", "this", "one of them", "the distance", "the total"))
    return f"how {much} is {what}"


def _converted(
    names: list[str], size: float, entry: list[tuple[list[str], float]], frame: str, random: Random
) -> Raw | None:
    """The same amount in two units of which one is a multiple of the other."""
    others = [(n, s) for n, s in entry if n != names and 1 < max(s / size, size / s) <= 100000]
    exact = [(n, s) for n, s in others if abs(size / s * 1e6 - round(size / s * 1e6)) < 1e-9]
    if not exact:
        return None
    other_names, other_size = random.choice(exact)
    value = random.choice((1, 2, 3, 5, 10, 0.5, 1.5, 2.5, 4, 12, 20, 100, 1000))
    second = _amount(value * size / other_size, other_names, random)
    return _how_much(random), frame.format(_amount(value, names, random)), frame.format(second)


def bounds(random: Random, same: bool) -> Raw | None:
    """At least, at most and the like, of a number or a time."""
    of_numbers = random.random() < 0.8
    entry = groups("bounds")[0 if of_numbers else 1]
    numbers = (str(random.randint(2, 30)), str(random.randint(1, 20) * 10), str(random.randint(1800, 2030)))
    number, unit = random.choice(numbers), random.choice(words()["bounded"])
    if not of_numbers:
        times = (str(random.randint(1500, 2030)), "monday", "may", "noon", "the war", "breakfast", "8 pm")
        number, unit = random.choice(times), ""
    frame = random.choice(
        ("{} {}", "{} {}", "it takes {} {}", "you need {} {}", "it was {} {}", "there are {} {}")
    )

    def say(side: int, number: str) -> str:
        amount = f"{number} {unit}".strip()
        after = {0: ("or more", "and above", "or over"), 1: ("or less", "or fewer", "and below")}.get(side)
        if after and of_numbers and random.random() < 0.3:
            return frame.format(amount, random.choice(after))
        return frame.format(random.choice(entry[side]), amount)

    asked = random.choice(words()["asked of bounds"])
    one, other = random.sample(range(len(entry)), 2)
    if same:
        return asked, say(one, number), say(one, number)
    if random.random() < 0.25:
        return (
            (asked, say(one, number), say(one, _other_number(number, random))) if number.isdigit() else None
        )
    return None if {one, other} in ({0, 2}, {1, 3}) else (asked, say(one, number), say(other, number))


def clock(random: Random, same: bool) -> Raw | None:
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
    other_minute = minute if changed != hour else random.choice([m for m in (0, 15, 30, 45) if m != minute])
    return asked, say(hour, minute), say(changed, other_minute)


def shares(random: Random, same: bool) -> Raw | None:
    """Shares, signs and multiples in several notations."""
    way = random.random()
    if way < 0.3:
        return _signs(random, same)
    if way < 0.4:
        found = sides([groups("multiples")[0]], random, same)
        return ("how much of it", *found) if found else None
    top, bottom = _share(random)
    other = (top, bottom) if same else _share(random)
    if not same and top / bottom == other[0] / other[1]:
        return None
    return (
        random.choice(words()["asked of shares"]),
        _say_share(top, bottom, random),
        _say_share(*other, random),
    )


def _signs(random: Random, same: bool) -> Raw:
    number = _number(random)
    positive = (number, f"+{number}", f"plus {number}", f"{number} above zero", f"a gain of {number}")
    negative = [f"-{number}", f"minus {number}", f"negative {number}"]
    negative += [f"{number} below zero", f"a loss of {number}"]
    pick, other = random.sample((positive, negative), 2)
    asked = random.choice(("what is the result", "how much is it", "what is the temperature"))
    return asked, random.choice(pick), random.choice(pick if same else other)


def _share(random: Random) -> tuple[int, int]:
    top, bottom = random.choice(words()["shares"]).split("/")
    return int(top), int(bottom)


def _say_share(top: int, bottom: int, random: Random) -> str:
    value = top / bottom
    part, parts = dict(zip((2, 3, 4, 5, 8, 10, 20), (line.split() for line in words()["parts of one"])))[
        bottom
    ]
    ways = [f"{top}/{bottom}", f"{top} out of {bottom}", f"{top} in {bottom}"]
    ways.append(f"a {part}" if top == 1 else f"{_HOURS[top]} {parts}")
    if bottom != 3:
        ways += [f"{value * 100:g}%", f"{value * 100:g} percent", f"{value:g}", f"{value:.2f}"]
        ways.append(f"{value * 100:g} per cent")
    return random.choice(("{}", "{}", "{} of them", "it is {}", "about {}")).format(random.choice(ways))


def numbered(random: Random, same: bool) -> Raw | None:
    roman, plain = (line.split(", ") for line in words()["numbered"])
    way = random.random()
    if way < 0.55:
        name, number = random.choice(roman), random.randint(1, 16)
        ordinal = random.random() < 0.5 and number <= 10

        def say(number: int) -> str:
            ways = [f"{name} {ROMAN[number]}", f"{name} {ROMAN[number]}", f"{name} {number}"]
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

    asked = random.choice((f"which {name} was it", "what was it called", "who was it", "which one is meant"))
    if same:
        return asked, say(number), say(number)
    other = int(_other_number(str(number), random).split(".")[0].replace(",", ""))
    other = random.randint(1, 16) if way < 0.55 else other
    return (asked, say(number), say(other)) if 0 < other != number else None


def dates(random: Random, same: bool) -> Raw | None:
    """Days, years before and after Christ, decades and centuries, days that have a name."""
    asked = random.choice(words()["asked of dates"])
    way = random.random()
    if way < 0.4:
        found = _days(random, same)
    elif way < 0.6:
        year = random.randint(2, 40) * 25
        eras = [[line.format(year) for line in side] for side in groups("eras")[0]]
        found = sides([eras], random, same)
    elif way < 0.8:
        found = _periods(random, same)
    else:
        one, other = random.sample(groups("days"), 2)
        found = sides([one], random, True) if same else (random.choice(one[0]), random.choice(other[0]))
    return (asked, *found) if found else None


def _days(random: Random, same: bool) -> tuple[str, str] | None:
    months = words()["months"][0].split()
    month, day, year = random.randrange(12), random.randint(1, 28), random.randint(1500, 2024)

    def say(month: int, day: int, year: int) -> str:
        name = months[month]
        end = "th" if 10 < day < 20 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
        forms = [f"{day} {name}", f"{name} {day}", f"the {day}{end} of {name}", f"{name} {day}{end}"]
        text = random.choice([*forms, f"{name[:3]} {day}"])
        text = text if year < 1700 else f"{text}, {year}"
        return random.choice(("{}", "on {}", "it was {}", "it happened on {}")).format(text)

    if same:
        return say(month, day, year), say(month, day, year)
    later = year + random.choice((1, -1, 10, 100))
    changed = [(month, day % 28 + 1, year), ((month + random.randint(1, 11)) % 12, day, year)]
    changed += [(month, day, later)] if min(later, year) >= 1700 else []
    return say(month, day, year), say(*random.choice(changed))


def _periods(random: Random, same: bool) -> tuple[str, str] | None:
    if random.random() < 0.5:
        lines, numbers = words()["decades"], [20, 30, 40, 50, 60, 70, 80, 90]
    else:
        lines, numbers = words()["centuries"], list(range(12, 21))
    one, other = random.sample(numbers, 2)
    names = dict(zip(range(20, 100, 10), (f"{line}ies" for line in words()["figures"][1].split())))
    first, second = (
        random.choice(lines).format(n=n, before=n - 1, name=names.get(n, "").replace("yies", "ies"))
        for n in (one, one if same else other)
    )
    return first, second


def numbers(random: Random, same: bool) -> Raw | None:
    asked = random.choice(
        ("how many are there", "what is the number", "how many people live there", "how much was it")
    )

    def say(value: int) -> str:
        forms = [f"{value:,}", str(value)]
        for size, names in (
            (1000, ("thousand", "k")),
            (1000000, ("million", "m")),
            (1000000000, ("billion", "bn")),
        ):
            if value >= size and value * 100 % size == 0 and value < size * 1000:
                forms += [f"{value / size:g} {names[0]}", f"{value / size:g}{names[1]}"]
        forms += {
            12: ["a dozen", "one dozen"],
            24: ["two dozen"],
            20: ["a score"],
            2: ["a pair", "a couple", "two"],
            100: ["a hundred"],
            1000: ["a thousand"],
            500000: ["half a million"],
            6: ["half a dozen"],
            1500000: ["one and a half million"],
        }.get(value, [])
        if 0 < value < 100:
            forms += [_spelled(str(value))]
        if 0 < value <= 16:
            forms += [ROMAN[value].upper()]
        return random.choice(("{}", "{}", "about {}", "{} of them", "there are {}")).format(
            random.choice(forms)
        )

    pool = (
        12,
        24,
        20,
        2,
        100,
        1000,
        500000,
        6,
        1500000,
        random.randint(1, 16),
        random.randint(1, 99) * 1000,
        random.randint(11, 99) * 100000,
        random.randint(1, 9) * 10**9,
        random.randint(1000, 9999),
    )
    value = random.choice(pool)
    if same:
        return asked, say(value), say(value)
    other = random.choice((value * 10, value * 1000, value + 1, random.choice(pool), value * 2))
    return (asked, say(value), say(other)) if other != value else None


def formulas(random: Random, same: bool) -> Raw | None:
    """Formulas and code with their operators, in lower case."""
    x, y = random.choice("abxyn"), random.choice("cdzkm")
    n, m = random.sample(range(2, 10), 2)
    entry = [[text.format(x=x, y=y, n=n, m=m) for text in side] for side in random.choice(_formulas())]
    found = sides([entry], random, same)
    asked = ("what is the result", "which expression is it", "what is the formula", "simplify")
    return (random.choice(asked), *found) if found else None


@cache
def _formulas() -> list[list[list[str]]]:
    """Lines whose sides stand about " | " and whose ways to write them about " ~ "."""
    return [[side.split(" ~ ") for side in line.split(" | ")] for line in words()["formulas"]]


def _number(random: Random) -> str:
    """A number as it stands in answers."""
    numbers = [
        *(str(random.randint(1, 12)), str(random.randint(1, 12)), str(random.randint(10, 99))),
        *(str(random.randint(10, 99) * 10), str(random.randint(100, 999))),
        *(f"{random.randint(0, 40)}.{random.randint(1, 9)}", f"{random.randint(1, 90)},000"),
        f"{random.randint(2, 90)} million",
    ]
    return random.choice(numbers)


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
    if not number.isdigit() or not 0 < int(number) < 100:
        return number
    small, tens = (line.split() for line in words()["figures"])
    ten, one = divmod(int(number), 10)
    if ten < 2:
        return small[int(number) - 1]
    return " ".join([tens[ten - 2], *small[one - 1 : one]] if one else [tens[ten - 2]])


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
        and name not in words()["short units"]
    ):
        return f"{text}{'' if random.random() < 0.5 else ' '}{name}"
    if text in ("1", "one") and name == names[min(1, len(names) - 1)]:
        name = names[0]
    return f"{text} {name}"
