"""The first answer of a generation (spec 5.1), and whether an answer is a refusal.

The first answer is the first line, to the end of its first sentence, of what is said after lead-ins. A title
that looks like one has no mark behind it ("Sure Thing") or goes on with a capital ("Certainly, Maybe").

A refusal, merged by `semcal cluster --merge-refusals`, begins with one of the English `PHRASES` and then
names no answer: "I don't know who wrote it" is one, "I'm not sure, but probably Ana Velis" is not. Words that
may be an answer ("unknown", "nobody") are no refusal, nor is a phrase that continues like a title ("I Don't
Know How to Love Him").
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_TITLE_WORDS = (
    "mr mrs ms dr prof st ste mt ft gen col lt sgt cpl maj capt cmdr adm pvt rev hon gov sen rep pres supt"
    " messrs mme mlle fr vs cf"
)
_NUMBERED_WORDS = (
    "no nos vol op art fig ch pt pp sec ca approx jan feb mar apr jun jul aug sep sept oct nov dec"
)
_ENDING_WORDS = "jr sr inc ltd co corp bros etc esq al dept univ assn intl"
_OPENING_WORDS = (
    "the a an he she it they this that these those there his her its their we you in on at as when while"
    " after before although because if for but however also question answer context"
)
_TITLES = frozenset(_TITLE_WORDS.split())  # do not end a sentence, unless it is a name ("Amartya Sen.")
_BEFORE_NUMBERS = frozenset(_NUMBERED_WORDS.split())  # "No. 5"; but "No." is an answer
_ENDINGS = frozenset(_ENDING_WORDS.split())  # may end a sentence, and then keep their full stop
_OPENERS = frozenset(_OPENING_WORDS.split())  # capitalised after an abbreviation, they open a sentence

_CLOSERS = "\"'”’)]"
_STOP = re.compile(rf"(?<![.!?])[.!?]++[{re.escape(_CLOSERS)}]*+(?=\s|$)")
_LAST_WORD = re.compile(r"[^\s(\[\"'“‘]+$")
_DOTTED = re.compile(r"(?:[^\W\d_]{1,3}\.)+[^\W\d_]{1,3}")
_INITIAL_BEFORE = re.compile(r"(?:^|[\s(])[^\W\d_]\.\s*$")
_NEXT_WORD = re.compile(r"\s*[\"'“‘(\[]*(?P<word>[^\W_]+)(?P<dot>\.?)")
_THINKING = (("<think>", "</think>"), ("<thinking>", "</thinking>"), ("[THINK]", "[/THINK]"))
_SPECIAL = re.compile(r"<\|[^|<>\s]{1,40}\|>|<｜[^<>\n]{1,40}｜>|</?s>|<(?:bos|eos|(?:start|end)_of_turn)>")
_HAPPY = r"I(?:['’]d| would) be (?:happy|glad) to (?:help|assist|answer)|I can (?:help|answer)"
_AGREED = (
    r"[Ss]ure(?: thing)?|[Cc]ertainly|[Oo]f course|[Aa]bsolutely|[Dd]efinitely|[Oo]kay|O[Kk]|ok|[Aa]lright"
    r"|[Nn]o problem|[Gg]ot it|[Uu]nderstood|[Tt]hank(?:s| you) for asking"
    r"|(?:(?:[Tt]hat['’]s|[Tt]hat is|[Ww]hat) an? )?(?:[Gg]reat|[Gg]ood|[Ee]xcellent|[Ii]nteresting) question"
)
_EXCLAIMED = (  # may be an answer, but for an exclamation mark
    r"[Gg]reat|[Gg]ood|[Ee]xcellent|[Pp]erfect|[Ww]onderful|[Aa]wesome|[Ff]antastic|[Nn]ice|[Cc]orrect|[Rr]ight"
    r"|[Ee]xactly|[Ii]ndeed|[Tt]hank(?:s| you)|[Tt]hat['’]s (?:right|correct)|[Yy]ou['’]re (?:right|correct)"
)
_ANSWER_LABEL = r"(?i:(?:(?:the|my|your|short|final|correct|best) ){0,3}(?:answer|response|reply)(?: is)?)"
_TO = r"(?i: to (?:(?:the|your|this) question|[^\n:]{1,200})(?: is)?)?"
_OPENED, _CLOSED = r"(?:[#>*_`]{1,6}[ \t]{0,3}){0,3}", r"[*_`]{0,3}[ \t]{0,3}"
_COLON = rf"{_CLOSED}[:：]{_CLOSED}"
_GOES_ON_SMALL = rf"(?:the|it|it['’]s|that|that['’]s|this|here|here['’]s|in)\b|{_HAPPY}|{_ANSWER_LABEL}\s?:"
_LEAD_IN = re.compile(
    rf"(?:{_SPECIAL.pattern}|\[/?INST\])(?:(?:assistant|model)(?=[:\s<]|$):?)?"
    rf"|(?:(?:{_AGREED})(?:\.|!+(?!\s[Mm]agazine)|,(?=\s(?:{_GOES_ON_SMALL})))|(?:{_EXCLAIMED})!+"
    rf"|(?:{_HAPPY})[^.!?:\n]{{0,80}}[.!:])(?:\s?[\U0001f300-\U0001faff☺]+)?(?=\s|$)"
    rf"|{_OPENED}(?:A|(?i:ans|assistant|(?:here(?:['’]s| is) )?{_ANSWER_LABEL}{_TO})){_COLON}(?=\s|$)"
    rf"|(?:(?i:(?:final )?answer|the answer is)|(?:#{{1,6}} ?|[*_]{{2}}){_ANSWER_LABEL}){_CLOSED}(?=\n)"
)
_ORDINAL = r"\d{3}\b|[NBRQK]?[a-h][1-8]\b|(?:F+C|FSV|S[CV]|TS[CV]|SSV|VfB|VfL|Bundesliga|Liga|Mai)\b"
_MARK = re.compile(rf"(?:\(?1[.)](?![ \t]+(?:{_ORDINAL}))|[*•]|[-–](?![ \t]*[$£€¥]?[.,]?\d))[ \t]+(?=\S)")
_UNBROKEN = re.compile(rf"\d{{1,2}}\.[ \t]+(?:{_ORDINAL})|OK! [Mm]agazine")  # has no end of a sentence
_QUESTION_LABEL = re.compile(rf"{_OPENED}(?i:question|q|user|human){_COLON}")
_ANY_QUESTION = re.compile(r"[^\n?]*(?:\?(?=\s)|\n)")
_BLANKS, _WORD, _BEHIND = re.compile(r"\s*"), re.compile(r"\w+"), re.compile(r"[^\w\s]*")


@dataclass(frozen=True)
class FirstAnswer:
    """The first answer of a generation."""

    text: str  # the answer, stripped, without the full stop of its sentence
    end: int  # where it ends in the raw text, full stop included: `raw[:end]` is scored
    start: int = 0  # where it begins, if anything is passed over
    #: Whether it has come to its end: a newline or the end of a sentence was seen.
    closed: bool = field(default=True, compare=False, repr=False)


def first_answer(text: str, question: str = "") -> FirstAnswer:
    """Cut the first answer out of a generation.

    Leading white space is skipped, and what only leads to an answer: thinking, special tokens as text, an
    interjection of agreement or praise, a label, a list's first mark, `question` or any behind "Question:".
    If nothing else was said, the text stands. The answer ends at the first newline, or at the end of its
    first sentence. A full stop inside initials, abbreviations or decimals does not end a sentence. After an
    abbreviation that may come last ("U.S.", "Jr.") or an initial, a sentence ends if the next word is
    capitalised and typically opens sentences ("The", "It"). The full stop of an abbreviation is kept. For
    white space alone the answer is empty, with `end` 0.

    >>> first_answer("J. R. R. Tolkien. He also wrote poems.")
    FirstAnswer(text='J. R. R. Tolkien', end=17, start=0)
    >>> first_answer("Washington D.C. is the capital").text, first_answer("Paris\\nQuestion: ...").text
    ('Washington D.C. is the capital', 'Paris')
    >>> first_answer("Sure! **Answer:** Paris.").text, first_answer("Sure Thing").text
    ('Paris', 'Sure Thing')
    """
    margin = len(text) - len(text.lstrip())
    start = _lead_end(text, question, margin)
    is_bare = not text[start:].strip(" \t\n*_`.")  # a lead-in is all there is
    led = start > margin and not is_bare
    start = start if led else margin
    if start == len(text):
        return FirstAnswer("", 0, closed=False)
    first_line = text[start:].splitlines()[0]
    special = _SPECIAL.search(first_line, 1)
    line = (text[:start] + first_line[: special and special.start()]).rstrip()
    ended = (special is not None or len(first_line) < len(text) - start) and not is_bare
    unbroken = _UNBROKEN.match(line, start)
    for stop in _STOP.finditer(line, unbroken.end() if unbroken else start):
        ends = _ends_sentence(line, start, stop)
        if ends or stop.end() == len(line):
            answer = _without_full_stop(line[start : stop.end()])
            return FirstAnswer(answer, stop.end(), start if led else 0, ended or (ends and not is_bare))
    answer = line[start:]
    if led and answer.endswith("**") and answer.count("**") == 1 < len(answer) - 1:  # "**Answer: Paris**"
        answer = _without_full_stop(answer.removesuffix("**"))
    return FirstAnswer(answer, len(line), start if led else 0, ended)


def _lead_end(text: str, question: str, begun: int) -> int:
    """Where the answer begins behind all that only leads to it; `begun` if that is another question."""
    answer = split_thinking(text)[1]
    at = begun = len(text) - len(answer) if answer else begun
    marked = False
    while True:
        at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
        lead = _LEAD_IN.match(text, at) or (None if marked else _MARK.match(text, at))
        if lead:
            at, marked = lead.end(), marked or lead.re is _MARK
            continue
        label = _QUESTION_LABEL.match(text, at)
        place = label.end() if label else at
        end = _end_of_echo(text, place, question)
        if label and end == place:
            if at > begun:
                return begun
            next_question = _ANY_QUESTION.match(text, place)
            end = next_question.end() if next_question else place
        if end == place:
            return at
        at = end


def _end_of_echo(text: str, place: int, question: str) -> int:
    """Where the question ends that is said again at a place; that place if it is not."""
    at = place
    for word in _WORD.findall(question):
        match = _WORD.search(text, at)
        if not match or match[0].casefold() != word.casefold():
            return place
        at = match.end()
    end = _BEHIND.match(text, at).end()  # type: ignore[union-attr]
    marks = text[at:end]
    return end if at > place and (any(c in marks for c in "?.:!") or text[end : end + 1] in "\n") else place


def split_thinking(text: str) -> tuple[str, str]:
    """Return what was thought, and the answer behind it: "" where the text ends inside the thinking.

    Only what a text begins with counts: an answer may name the marks.

    >>> split_thinking("<think>A lake?</think> Mirna."), split_thinking("A lake?</think>Mirna.")
    (('A lake?', 'Mirna.'), ('A lake?', 'Mirna.'))
    >>> split_thinking("<think>A la"), split_thinking(" Mirna.")
    (('A la', ''), ('', ' Mirna.'))
    """
    for opening, closing in _THINKING:
        thought, closed, answer = text.partition(closing)
        begun = thought.lstrip().startswith(opening)
        if begun or (closed and opening not in thought):
            return thought.lstrip().removeprefix(opening).strip(), answer.lstrip()
    return "", text


def _ends_sentence(line: str, start: int, stop: re.Match[str]) -> bool:
    """Whether this stop, with more text after it, closes a sentence."""
    signs = stop[0].rstrip(_CLOSERS)
    following = _NEXT_WORD.match(line, stop.end())
    word = following["word"] if following else ""
    if signs.endswith("..."):
        return False
    if signs.strip("."):
        return not word[:1].islower()  # "Yahoo! is"
    before = _last_word(line[max(start, stop.start() - 40) : stop.start()])
    if before in _BEFORE_NUMBERS:
        return not word[:1].isdigit()
    initial = len(before) == 1 and before.isalpha()
    if not (initial or before in _TITLES or before in _ENDINGS or _DOTTED.fullmatch(before)):
        return True
    opens = word[:1].isupper() and word.casefold() in _OPENERS
    return opens and following is not None and not following["dot"]  # "A. I. Velis"


def _last_word(text: str) -> str:
    match = _LAST_WORD.search(text[-40:])
    return match[0].casefold() if match else ""


def _without_full_stop(answer: str) -> str:
    """Drop the closing full stop unless an abbreviation or a row of initials needs it."""
    if not answer.endswith(".") or answer.endswith("..."):
        return answer
    body = answer[:-1]
    word = _last_word(body)
    in_row = len(word) == 1 and _INITIAL_BEFORE.search(body[-20:-1]) is not None
    if word in _ENDINGS or _DOTTED.fullmatch(word) or in_row:
        return answer
    return body.rstrip()


# Refusals

_VERY = "really|actually|honestly|just|entirely|quite|completely|totally|absolutely|100"
_TELL = "answer|find|determine|provide|recall|remember|say|confirm|verify|identify|help|assist|give"
_SOME = "enough|any|sufficient|specific|more"
_FACTS = "information|context|details|knowledge|data"
_STATED = "known|clear|specified|mentioned|stated|provided|given|available"

#: How refusals begin, without articles and contractions; regular expressions.
PHRASES = (
    rf"(i )?(({_VERY}) )?do not (({_VERY}) )?(know|recall|remember)",
    rf"(i )?(am )?(({_VERY}) )?not (({_VERY}) )?(sure|certain|aware|familiar)",
    r"(i am )?(unsure|uncertain|unaware)",
    rf"(i )?(can not|could not|(am )?unable to|(am )?not able to) ({_TELL})",
    r"(i )?(have )?no (idea|clue|answer|knowledge)",
    rf"(i )?(do not have|have no|have not|need|would need|require) (access|(({_SOME}) )?({_FACTS}))",
    rf"(there (is|are) )?(no|not enough|insufficient) ({_FACTS})",
    r"((it|this|that|question|answer) )?(can not|could not) be (determined|answered|found|known)",
    rf"((it|this|that|question|answer) )?(is )?not ({_STATED})",
)

_WORDS = {
    "dont": "do not",
    "doesnt": "does not",
    "cant": "can not",
    "cannot": "can not",
    "couldnt": "could not",
    "isnt": "is not",
    "havent": "have not",
    "im": "i am",
    "a": "",
    "an": "",
    "the": "",
}
_COURTESY = (
    "(well|hmm|oh|but|however|unfortunately|honestly|sorry|apologies|i apologi[sz]e|i am (sorry|afraid)"
    "|as ai( language)?( model)?)"
)
_GOES_ON = (
    "who|whom|whose|what|when|where|which|whether|if|how (many|much|old|long|far|tall|big|often|exactly)"
    "|about|of|for|that|this|to|as|based|from|in|on|at|with|without|off|your|his|her|their|answer|question"
    "|enough|any|anything|much|exactly|specific|additional|definitive|accurate|exact|further|current"
)
_HEDGE = (
    "but|however|although|though|maybe|perhaps|probably|possibly"
    "|i think|i believe|i guess|i would (say|guess)|my (best )?guess"
)
_FILLER = (
    "i|think|believe|guess|would|say|it|is|was|be|may|might|could|that|answer|maybe|perhaps|probably|possibly"
)

_REFUSAL = re.compile(rf"({_COURTESY} )*({'|'.join(PHRASES)}) (?=$|({_GOES_ON}|{_HEDGE}) )")
_HEDGED = re.compile(rf"\b({_HEDGE}) (({_FILLER}) )*")


def is_refusal(text: str) -> bool:
    """Return whether an answer, or its normal form, only says that it has no answer.

    >>> [is_refusal(text) for text in ("I don't know.", "i am not sure who wrote it", "Sorry, no idea")]
    [True, True, True]
    >>> [is_refusal(text) for text in ("I'm not sure, but I think Ana Velis", "Unknown", "")]
    [False, False, False]
    """
    return _is_refusal(_plain_words(text))


def _is_refusal(plain: str) -> bool:
    opened = _REFUSAL.match(plain)
    if not opened:
        return False
    hedged = _HEDGED.search(plain, opened.end())
    named = plain[hedged.end() :] if hedged else ""
    return not named or _is_refusal(named)


def _plain_words(text: str) -> str:
    """Lower-case words without contractions and articles, each followed by a blank."""
    words = re.findall(r"\w+", re.sub("['’`]", "", text.casefold()))
    return "".join(f"{word} " for word in (_WORDS.get(word, word) for word in words) if word)
