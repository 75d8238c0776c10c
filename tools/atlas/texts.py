"""How the world of Atlas is written: surface forms of values, statements, questions, passages.

Every value has several *forms* of one meaning: digits or words, three date formats, a town with or
without its country, a person with or without title. `forms` lists them, the canonical one first;
`draw_form` draws one as the texts and the answers have them; `references` is what a grader gets.
"""

from __future__ import annotations

from random import Random

from tools.atlas.world import Date, Fact, Number, Person, Place, Subject, Trade, Value, Year

MONTHS, _ONES, _TENS = map(
    str.split,
    (
        "January February March April May June July August September October November December",
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
        " sixteen seventeen eighteen nineteen",
        "zero ten twenty thirty forty fifty sixty seventy eighty ninety",
    ),
)


def number_words(number: int) -> str:
    """Write a whole number under a million in words.

    >>> number_words(47), number_words(350), number_words(340_000)
    ('forty-seven', 'three hundred and fifty', 'three hundred and forty thousand')
    """
    if number < 20:
        return _ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens] + (f"-{_ONES[ones]}" if ones else "")
    if number < 1000:
        hundreds, below = divmod(number, 100)
        return f"{_ONES[hundreds]} hundred" + (f" and {number_words(below)}" if below else "")
    thousands, below = divmod(number, 1000)
    return f"{number_words(thousands)} thousand" + (f" {number_words(below)}" if below else "")


def forms(value: Value) -> tuple[str, ...]:
    """List the surface forms of a value, the canonical one first, all of one meaning.

    >>> forms(Date(1820, 5, 3))
    ('3 May 1820', 'May 3, 1820', '1820-05-03')
    >>> forms(Place("Toreth", "Maldia")), forms(Person("Ana Velis", "Dr"))
    (('Toreth', 'Toreth, Maldia'), ('Ana Velis', 'Dr Ana Velis'))
    >>> forms(Year(1820)), forms(Number(340_000))
    (('1820', 'eighteen twenty'), ('340,000', '340000', 'three hundred and forty thousand'))
    >>> forms(Trade("weaver"))
    ('weaver', 'a weaver')
    """
    match value:
        case Place():
            return value.name, f"{value.name}, {value.country}"
        case Person():
            return value.name, f"{value.title} {value.name}"
        case Date():
            month = MONTHS[value.month - 1]
            return (
                f"{value.day} {month} {value.year}",
                f"{month} {value.day}, {value.year}",
                f"{value.year}-{value.month:02d}-{value.day:02d}",
            )
        case Year():
            century, rest = divmod(value.number, 100)
            return str(value.number), f"{number_words(century)} {number_words(rest)}"
        case Number():
            plain, written = str(value.number), number_words(value.number)
            return (f"{value.number:,}", plain, written) if value.number > 999 else (plain, written)
        case Trade():
            article = "an" if value.noun[0] in "aeiou" else "a"
            return value.noun, f"{article} {value.noun}"


FORM_WEIGHTS = {1: (1.0,), 2: (0.65, 0.35), 3: (0.5, 0.3, 0.2)}
"""How often each form is written, by the number of forms."""


def draw_form(rng: Random, value: Value) -> str:
    """Draw one form of a value, as often as the texts of the world write it."""
    options = forms(value)
    chance = rng.random()
    for option, weight in zip(options, FORM_WEIGHTS[len(options)]):
        chance -= weight
        if chance < 0:
            return option
    return options[-1]


def references(value: Value, first: str | None = None) -> tuple[str, ...]:
    """List the references of a value: a written form (the canonical by default), then the canonical."""
    canonical = forms(value)[0]
    return tuple(dict.fromkeys((first or canonical, canonical)))


STATEMENTS: dict[str, tuple[str, ...]] = {
    "birthplace": (
        "{s} was born in {v}.",
        "{s} came from {v}.",
        "The birthplace of {s} was {v}.",
        "{s} was a child of {v}.",
    ),
    "birthday": (
        "{s} was born on {v}.",
        "The birthday of {s} was {v}.",
        "{s} came into the world on {v}.",
        "The life of {s} began on {v}.",
    ),
    "trade": (
        "{s} worked as {v}.",
        "By trade {s} was {v}.",
        "{s} earned a living as {v}.",
        "The trade of {s} was that of {v}.",
    ),
    "teacher": (
        "{s} was taught by {v}.",
        "The teacher of {s} was {v}.",
        "{s} was a pupil of {v}.",
        "{s} learnt everything from {v}.",
    ),
    "children": (
        "{s} had children, {v} in all.",
        "The children of {s} numbered {v}.",
        "{s} brought up {v} children.",
        "The number of children of {s} was {v}.",
    ),
    "founding": (
        "{s} was founded in {v}.",
        "The founding year of {s} was {v}.",
        "{s} goes back to {v}.",
        "The first stone of {s} was laid in {v}.",
    ),
    "founder": (
        "{s} was founded by {v}.",
        "The founder of {s} was {v}.",
        "{s} owes its beginning to {v}.",
        "The first house of {s} was built by {v}.",
    ),
    "population": (
        "{s} has a population of {v}.",
        "The population of {s} is {v}.",
        "{s} is home to {v} people.",
        "The people of {s} number {v}.",
    ),
    "capital": (
        "The capital of {s} is {v}.",
        "{s} has its capital in {v}.",
        "{s} is ruled from {v}.",
        "The chief town of {s} is {v}.",
    ),
    "governor": (
        "The governor of {s} was {v}.",
        "{s} was governed by {v}.",
        "{s} was under the rule of {v}.",
        "The head of {s} was {v}.",
    ),
    "mouth": (
        "{s} meets the sea at {v}.",
        "The mouth of {s} is at {v}.",
        "{s} ends at {v}.",
        "The last town on {s} is {v}.",
    ),
    "length": (
        "The length of {s} in miles is {v}.",
        "{s} is {v} miles long.",
        "{s} runs for {v} miles.",
        "The miles of {s} number {v}.",
    ),
    "author": (
        "{s} was written by {v}.",
        "The author of {s} was {v}.",
        "{s} is a book by {v}.",
        "{s} came from the pen of {v}.",
    ),
    "published": (
        "{s} was published in {v}.",
        "{s} first appeared in {v}.",
        "The first printing of {s} was in {v}.",
        "Readers first saw {s} in {v}.",
    ),
    "chapters": (
        "{s} has {v} chapters.",
        "The chapters of {s} number {v}.",
        "{s} is divided into {v} chapters.",
        "The number of chapters in {s} is {v}.",
    ),
    "battle date": (
        "The date of {s} was {v}.",
        "{s} took place on {v}.",
        "{s} was fought on {v}.",
        "The day of {s} was {v}.",
    ),
    "commander": (
        "{s} was won by {v}.",
        "The victor of {s} was {v}.",
        "The winning side at {s} was led by {v}.",
        "{s} made the name of {v}.",
    ),
    "battle place": (
        "{s} was fought near {v}.",
        "The place of {s} was near {v}.",
        "{s} took place outside {v}.",
        "The nearest town to {s} was {v}.",
    ),
}
"""Relation -> wordings of a statement; {s} is the subject, {v} a form of the value."""

QUESTIONS: dict[str, tuple[str, ...]] = {
    "birthplace": ("Where was {s} born?", "What was the birthplace of {s}?", "Which town did {s} come from?"),
    "birthday": ("When was {s} born?", "On which day was {s} born?", "What was the birthday of {s}?"),
    "trade": ("What was the trade of {s}?", "What did {s} work as?", "How did {s} earn a living?"),
    "teacher": ("Who taught {s}?", "Who was the teacher of {s}?", "Whose pupil was {s}?"),
    "children": ("How many children did {s} have?", "What was the number of children of {s}?"),
    "founding": (
        "When was {s} founded?",
        "What was the founding year of {s}?",
        "In which year was {s} founded?",
    ),
    "founder": ("Who founded {s}?", "Who was the founder of {s}?", "To whom does {s} owe its beginning?"),
    "population": ("What is the population of {s}?", "How many people live in {s}?"),
    "capital": ("What is the capital of {s}?", "From which town is {s} ruled?"),
    "governor": ("Who was the governor of {s}?", "Who governed {s}?"),
    "mouth": ("Where does {s} meet the sea?", "At which town does {s} end?"),
    "length": ("How many miles long is {s}?", "What is the length of {s} in miles?"),
    "author": ("Who wrote {s}?", "Who was the author of {s}?", "From whose pen is {s}?"),
    "published": ("When was {s} published?", "In which year did {s} first appear?"),
    "chapters": ("How many chapters has {s}?", "What is the number of chapters in {s}?"),
    "battle date": ("When was {s} fought?", "What was the date of {s}?", "On which day did {s} take place?"),
    "commander": ("Who won {s}?", "Who was the victor of {s}?", "Who led the winning side at {s}?"),
    "battle place": (
        "Where was {s} fought?",
        "What is the nearest town to {s}?",
        "Near which town was {s} fought?",
    ),
}
"""Relation -> wordings of a question."""


def statement(rng: Random, fact: Fact, value: Value) -> str:
    """Write one telling of a fact that states `value`, in a drawn wording and form."""
    return fill(rng.choice(STATEMENTS[fact.relation]), fact.subject, draw_form(rng, value))


def question(rng: Random, fact: Fact) -> str:
    """Write a question for a fact in a drawn wording."""
    return fill(rng.choice(QUESTIONS[fact.relation]), fact.subject)


def fill(wording: str, subject: Subject, form: str = "") -> str:
    """Put a subject and a form into a wording, the first letter in upper case."""
    text = wording.format(s=subject.name, v=form)
    return text[0].upper() + text[1:]


def passage(rng: Random, facts: list[Fact]) -> tuple[str, list[str]]:
    """Write facts as one passage; return it and the form in which each fact's value stands there."""
    written = [draw_form(rng, fact.value) for fact in facts]
    sentences = [
        fill(rng.choice(STATEMENTS[fact.relation]), fact.subject, form) for fact, form in zip(facts, written)
    ]
    return " ".join(sentences), written


def readable_forms(value: Value, written: str) -> tuple[str, ...]:
    """List the forms that a reader of `written` can give: what the passage left out cannot be told."""
    if isinstance(value, Place | Person):
        return tuple(form for form in forms(value) if len(form) <= len(written))
    return forms(value)
