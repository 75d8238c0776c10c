"""Extraction of the answer from a generation (spec 5.1), and detection of refusals.

`AnswerFormat` reads the answer by one of several rules, without the markup of reasoning, channels, fences,
tags and JSON. The first answer is the first sentence of the first line after lead-ins such as "Sure!". A
title that looks like a lead-in has no punctuation mark after it ("Sure Thing") or continues with a capital
letter ("Certainly, Maybe").

A refusal begins with one of the English `PHRASES` and then names no answer: "I don't know who wrote it" is a
refusal, "I'm not sure, but probably Ana Velis" is not. Words that may be an answer ("unknown", "nobody") are
not refusals, and neither is a phrase that continues like a title ("I Don't Know How to Love Him"). The
setting cluster.merge_refusals merges refusals.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import Any

from semcal.errors import UsageError, shown
from semcal.meaning.words import any_listed, listed_words, word_pairs, word_pattern

_TITLES, _BEFORE_NUMBERS, _ENDINGS, _OPENERS, _SMALL_WORDS = map(
    listed_words, ("abbreviated titles", "before numbers", "endings", "openers", "small words")
)
_BEHIND_NUMBERS = _OPENERS | listed_words("openers behind numbers")
_ARTICLES = " der die das den dem des im am zum vom beim ein eine einer"  # before an ordinal; the first is ""
_ORDINAL_NUMBER = re.compile(
    r"(?<![^\s(])(?:\d{1,2}(?:st|nd|rd|th)?|(?=[IVXLC]{2})C{0,3}(?:X[LC]|L?X{0,3})(?:I[VX]|V?I{0,3})|X|V)"
)

_CLOSERS = "\"'”’)]」』）"
_STOP = re.compile(
    rf"(?<![.!?])[.!?]++[{re.escape(_CLOSERS)}]*+(?=\s|$)|[。！？｡]++[{re.escape(_CLOSERS)}]*+"
)
_LAST_WORD = re.compile(r"[^\s(\[\"'“‘]+$")
_DOTTED = re.compile(r"(?:[^\W\d_]{1,3}\.)+[^\W\d_]{1,3}")
_INITIAL_BEFORE = re.compile(r"(?:^|[\s(])[^\W\d_]\.\s*$")
_DATED = re.compile(  # words after an ordinal, in languages that capitalize nouns
    r"\s(?:(?i:jan|feb|mar|mär|apr|may|mai|jun|jul|aug|sep|o[ck]t|nov|de[cz])[a-zä]{0,6}\b"
    r"|J[aä]nner\b|Jahr|Weltkrieg|[^\W\d_]+\.?\s\d{3,4}\b)"
)
#: Interjections that begin a title or a sentence if alone before "!", and the remainder of such a title.
_INTERJECTION = re.compile(r"oh|o|ah|hey|wow|hmm+", re.IGNORECASE)
_TITLE_REMAINDER = re.compile(
    r"(?:\s(?:[^\W\d_a-z][\w'’-]{0,40}|of|the|a|an|in|and|to|for|with),?){1,6}!(?=\s|$)"
)
_NEXT_WORD = re.compile(r"\s*[\"'“‘(\[]*(?P<word>[^\W_]+)(?P<dot>\.?)")
_SPECIAL = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<｜[^<>\n]{1,40}｜>|</?s>"
    r"|<(?:bos|eos|pad|unk|(?:start|end)_of_turn|end_of_utterance|\|?turn\|?)>"
)
_HAPPY = r"I(?:['’]d| would) be (?:happy|glad) to (?:help|assist|answer)|I can (?:help|answer)"
_AGREED = any_listed("agreed")
_EXCLAIMED = any_listed("exclaimed")  # may be an answer without an exclamation mark
_ANSWER_LABEL = (
    r"(?i:(?:(?:the|my|your|short|final|correct|best) ){0,3}(?:answer|response|reply|antwort|réponse"
    r"|respuesta|risposta|resposta)(?: is)?)"
)
_TO = r"(?i: to (?:(?:the|your|this) question|[^\n:]{1,200})(?: is)?)?"
_OPENED, _CLOSED = r"(?:[#>*_`]{1,6}[ \t]{0,3}){0,3}", r"[*_`]{0,3}[ \t]{0,3}"
_COLON = rf"{_CLOSED}[:：]{_CLOSED}"
_GOES_ON_SMALL = rf"(?:the|it|it['’]s|that|that['’]s|this|here|here['’]s|in)\b|{_HAPPY}|{_ANSWER_LABEL}\s?:"
_LEAD_IN = re.compile(
    rf"(?:{_SPECIAL.pattern}|\[/?INST\])(?:(?:assistant|model)(?=[:\s<]|$):?)?"
    rf"|(?:(?:{_AGREED})(?:\.|!+(?!\s[Mm]agazine)|,(?=\s(?:{_GOES_ON_SMALL})))|(?:{_EXCLAIMED})!+"
    rf"|(?:{_HAPPY})[^.!?:\n]{{0,80}}[.!:])(?:\s?[\U0001f300-\U0001faff☺]+)?(?=\s|$)"
    r"|(?:答案|答え)(?:[是为は][:：]?|[:：])|assistant(?=\n\s*\S)"
    rf"|{_OPENED}(?:A|(?i:ans|assistant|(?:here(?:['’]s| is) )?{_ANSWER_LABEL}{_TO})){_COLON}(?=\s|$)"
    rf"|(?:(?i:(?:final )?answer|the answer is)|(?:#{{1,6}} ?|[*_]{{2}}){_ANSWER_LABEL}){_CLOSED}(?=\n)"
)
_ORDINAL = r"\d{3}\b|[NBRQK]?[a-h][1-8]\b|(?:F+C|FSV|S[CV]|TS[CV]|SSV|VfB|VfL|Bundesliga|Liga|Mai)\b"
_ORDINAL += r"|[^\W\d_]+\.?[ \t]\d{3,4}\b"  # a date
_MARK = re.compile(rf"(?:\(?1[.)](?![ \t]+(?:{_ORDINAL}))|[*•]|[-–](?![ \t]*[$£€¥]?[.,]?\d))[ \t]+(?=\S)")
_UNBROKEN = re.compile(rf"\d{{1,2}}\.[ \t]+(?:{_ORDINAL})|OK! [Mm]agazine")  # its stop ends no sentence
_QUESTION_LABEL = re.compile(rf"{_OPENED}(?i:question|q|user|human){_COLON}")
_ANY_QUESTION = re.compile(r"[^\n?]*(?:\?(?=\s)|\n)")
#: A question before its answer in one line, and the words that a question has.
_ASKED = re.compile(r"[^\n?？。！\"“]{6,300}?(?:\?[\"”’*_]*[ \t]+(?=[^\sa-z]|\d)|？[」』]?\s*(?=\S))")
_ASKS = re.compile(
    rf"？|\A(?:is|are|was|were|do|does|did|can|could|will|would|has|have|had)\b|\b{any_listed('asking')}\b",
    re.I,
)
_BLANKS, _WORD, _BEHIND = re.compile(r"\s*"), re.compile(r"\w+"), re.compile(r"[^\w\s]*")

#: Marks of reasoning: every closing mark may close every opening mark.
_TAG = r"(?:\w+:)?(?:think(?:ing)?|thoughts?|reason(?:ing)?|reflection|scratchpad|longcat_think)"
_REASONING = re.compile(
    rf"(?P<opens><{_TAG}>|\[THINK\]|◁think▷|<\|channel>thought\b|here(?:'s| is) my thought process:"
    r"|<\|(?:begin_of_thought|begin_of_thinking|start_thinking)\|>)"
    rf"|</{_TAG}>|\[/THINK\]|◁/think▷|<channel\|>|here(?:'s| is) my response:"
    r"|<\|(?:end_of_thought|end_of_thinking|end_thinking)\|>",
    re.IGNORECASE,
)
_SPECIALS = re.compile(
    rf"(?:\s*+(?:{_SPECIAL.pattern}|\[/?INST\])(?:(?:assistant|model)(?=[:\s<]|$):?)?)*+\s*+"
)
_FINAL = re.compile(r"<\|channel\|>\s*final\b(?:[^<]|<\|constrain\|>){0,80}<\|message\|>")
_CHANNEL = re.compile(r"\s*(?:<\|start\|>\s*\w*)?<\|channel\|>")
#: Channels of a reply that was decoded without special tokens.
_BARE_CHANNEL = re.compile(r"\s*(?:assistant)?(?:analysis|commentary)(?P<begins>(?=[A-Z\"“]))?")
_BARE_FINAL = "assistantfinal"
_FENCE = re.compile(r"(?P<marks>`{3,}|~{3,})(?:[ \t]*(?P<language>[\w+#.-]*)[ \t]*\n|(?=[^`~\n]+(?P=marks)))")
_FENCED_JSON = re.compile(r"```(?:json)?\s*(?P<json>[{\[])", re.IGNORECASE)
_BRACKET = re.compile(r"(?P<json>[{\[])")
_PROSE = frozenset(
    ("", "json", "text", "txt", "plaintext", "plain", "markdown", "md")
)  # fenced, but not code
_TAGGED = re.compile(
    r"(?P<opens><(?:final_?)?(?:answer|response|solution)>|<\|begin_of_(?:box|solution)\|>|<\|start_response\|>)"
    r"|</(?:final_?)?(?:answer|response|solution)>|<\|end_of_(?:box|solution)\|>|<\|end_response\|>",
    re.IGNORECASE,
)
_CLOSING_MARKUP = re.compile(rf"(?:[\s\"'`~}}\])$*_.]|</\w+>|{_SPECIAL.pattern})*+")
_ANSWER_KEYS = ("answer", "final_answer", "result", "output")
_ASIDE_WORDS = "reasoning explanation rationale thought thoughts thinking analysis steps confidence"
_SENTENCE = r"(?:^|(?<=[.!?:;。]\s)|(?<=[.!?;]\s\s))"
_THUS = r"(?:(?:so|thus|therefore|hence|then|finally)[, ]{1,2})?"
#: Marks of a final answer. Marks that are not `strong` also occur in sentences that are not reasoning.
_MARKER = re.compile(
    rf"(?P<strong>{_SENTENCE}{_OPENED}{_THUS}(?:the |my |our )?final answer(?: is)?"
    rf"(?:{_COLON}|{_CLOSED}(?=\n)|\s(?=\S))|^{_OPENED}(?-i:ANSWER){_COLON}"
    r"|^\#{4}(?=[ \t]*\S[^\n]*\s*\Z|[ \t]*[-+$€£]?\d[\d.,/]*%?[ \t]*$))"
    rf"|{_SENTENCE}{_OPENED}{_THUS}{_ANSWER_LABEL}(?: to [^.:\n]{{1,80}}?)?(?: is)?{_COLON}"
    r"|(?:^|(?<=[.!?:;,]\s)|(?<=[.!?:;,]\s\s)|\b(?:so|thus|therefore|hence|then),?\s)(?:the|my|our) "
    r"(?:correct |right |best |short )?answer (?:to [^.:\n]{1,80}? )?(?:is|would be|must be)\b"
    r"(?! (?:as follows|(?:not |un|well[ -])(?:provided|given|specified|known|clear)))(?:\s?:|\sthat\b)?"
    r"|\b(?:die (?:richtige |korrekte )?antwort (?:ist|lautet)|la (?:bonne )?réponse est|la respuesta"
    r" (?:correcta )?es|la risposta (?:corretta )?è|a resposta (?:correta )?é)\b(?: also| donc)?(?:\s?:)?"
    r"|(?:(?<=[。！？，\n])|所以|因此)(?:正确)?(?:答案|答え)[是为為は][:：]?",
    re.IGNORECASE | re.MULTILINE,
)
_BOX = re.compile(r"(?P<opens>\\(?:boxed|fbox)\s{0,3}\{)|\\[\\{}]|[{}]")
_BOXED_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\{([^{}]*)\}")
#: A line that introduces its answer: "The colors are:"; the items of a list; text before the end of a fence.
_INTRODUCTION = re.compile(r"(?P<line>\w+[,']? [^\n]{4,200}[:：][*_]{0,2})[ \t]*\n\s*(?=\S)")
_ITEMS = re.compile(r"(?:(?:[-*•]|\d{1,2}[.)])[ \t]+\S[^\n]*(?:\n\s*(?=[-*•\d])|(?=\n|\Z))){2,}")
_FENCED_TEXT = re.compile(r"(?:(?!\n\s*[`~]{3})[\s\S])+")
_ASKS_FOR_SEVERAL = word_pattern("asking for several")
_NEXT_TURN = re.compile(rf"\n{_OPENED}(?:question|q|user|human|context|passage)\s?[:：]", re.IGNORECASE)
#: Minimum words before a weak marker: fewer words are the answer ("Paris. The answer is famous").
_REASONED = 4
_WORD_OR_SIGN = re.compile("[\u3005-\u30ff\u3400-\u9fff]|[^\\s\u3005-\u30ff\u3400-\u9fff]+")
#: Maximum number of last markers that are tried, because no text may follow the last markers.
_TRIES = 3


class _Number(float):
    """A number of a JSON text with its spelling, because 1.50 is more precise than 1.5."""

    def __init__(self, text: str) -> None:
        self.text = text


_JSON = json.JSONDecoder(parse_float=_Number)


@dataclass(frozen=True)
class AnswerSpan:
    """The answer in a generation, and its place in the raw text."""

    text: str  # the answer, stripped, without the full stop of its sentence
    end: int  # end in the raw text, full stop or closing markup included: `raw[:end]` is scored
    start: int = 0  # start in the raw text; 0 if only blanks precede the answer
    #: True if the answer is complete: a newline, the end of a sentence or closing markup follows.
    closed: bool = field(default=True, compare=False, repr=False)
    #: True if the answer ends inside markup (JSON, a tag), so that no end of turn is expected after it.
    embedded: bool = field(default=False, compare=False, repr=False)


@dataclass(frozen=True)
class AnswerFormat:
    """The rule that reads the answer from a generation.

    Parameters
    ----------
    name : str
        "auto": the content of an answer tag, the answer in a JSON object, the last marked answer after
        reasoning ("The answer is", "####", a box), or the first answer; the first of these rules that finds
        an answer decides. "first": the first answer (`first_answer`). "final": the last marked answer.
        "whole": the text after reasoning. "json" or "json:/pointer" (RFC 6901): a value of a JSON text.
        "regex:PATTERN": the group of a regular expression.

    Raises
    ------
    UsageError
        If the format is unknown, or its pattern or pointer is invalid.

    Examples
    --------
    >>> AnswerFormat().read('{"answer": "Canberra"}').text, AnswerFormat().read("<think>Is it Canberra?")
    ('Canberra', None)
    >>> AnswerFormat("json:/city/0").read('{"city": ["Lima", "Cusco"]}')
    AnswerSpan(text='Lima', end=16, start=11)
    """

    name: str = "auto"

    def __post_init__(self) -> None:
        kind, colon, argument = self.name.partition(":")
        if kind == "regex" and colon:
            _pattern(argument)
        elif kind == "json" and colon:
            _keys(argument)
        elif self.name not in ("auto", "first", "final", "whole", "json"):
            raise UsageError(
                f"--answer-format: {shown(self.name)} is not an answer format. Pass auto, first, final, "
                "whole, json, json:/POINTER or regex:PATTERN"
            )

    def read(self, text: str | None, question: str = "") -> AnswerSpan | None:
        """Return the answer in a generation, or None.

        The result is None if the content is null, if the reasoning never closes or no text follows it, or if
        the format finds no answer. An empty generation is the empty answer. A repeated `question` is skipped.
        """
        start = None if text is None else _answer_start(text)
        if text is None or start is None:
            return None
        kind, _, argument = self.name.partition(":")
        if not text[start:].strip():
            is_empty = not start and kind in ("auto", "first", "whole")
            return AnswerSpan("", 0, closed=False) if is_empty else None
        if kind == "first":
            return _first(text, start, len(text), question)
        part = _said(text, start)
        if kind == "regex":
            match = _pattern(argument).search(text[part.start : part.end])
            if match is None or match[1] is None:
                return None
            group = part.within(part.start + match.start(1), part.start + match.end(1))
            return replace(group, outer=group.end * (group.end < part.end)).whole()
        if kind == "json":
            value = _json_value(part, _keys(argument) if argument else None, anywhere=True)
            return None if value is None else value.whole()
        if kind == "whole":
            return part.whole()
        return _marked(part, question) if kind == "final" else _auto(part, question)


@lru_cache(maxsize=32)
def _pattern(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(
            f"--answer-format: {shown(pattern)} is not a regular expression ({error}). Correct the pattern"
        ) from None
    if compiled.groups != 1:
        raise UsageError(
            f"--answer-format: {shown(pattern)} has {compiled.groups} groups, expected one. Put the answer "
            "in a pair of parentheses, and write other pairs as (?:…)"
        )
    return compiled


def _keys(pointer: str) -> list[str]:
    if not pointer.startswith("/") or re.search(r"~(?![01])", pointer):
        raise UsageError(
            f"--answer-format: {shown(pointer)} is not a JSON pointer. Pass one such as json:/answer or "
            "json:/answers/0, with ~1 for / and ~0 for ~ in a key"
        )
    return [key.replace("~1", "/").replace("~0", "~") for key in pointer[1:].split("/")]


@dataclass(frozen=True)
class _Part:
    """The part of a generation from `start` to `end`, without outer blanks."""

    text: str  # the generation
    start: int
    end: int
    outer: int = 0  # end of the markup that closes the part; 0 without such markup
    value: str | None = None  # decoded text of a part that is written with escapes

    def within(self, start: int, end: int, outer: int | None = None) -> _Part:
        """Return a part of this part, with its own closing markup unless `outer` is None."""
        inner = self.text[start:end]
        begun = start + len(inner) - len(inner.lstrip())
        ended = max(begun, end - len(inner) + len(inner.rstrip()))
        return _Part(self.text, begun, ended, self.outer if outer is None else outer)

    def span(self, found: AnswerSpan) -> AnswerSpan:
        """Return an answer in this part, with the markup after it if the answer ends the part."""
        if not self.outer or self.text[found.end : self.end].strip():
            return found
        closed = _CLOSING_MARKUP.match(self.text, self.outer).end()  # type: ignore[union-attr]
        end = closed if closed == len(self.text) else self.outer
        return replace(found, end=end, closed=True, embedded=True)

    def whole(self) -> AnswerSpan | None:
        """Return the whole part as the answer; None if it is empty."""
        if self.start == self.end or self.value == "":
            return None
        text = self.text[self.start : self.end] if self.value is None else self.value
        closed = self.end < len(self.text.rstrip())
        return self.span(AnswerSpan(text, self.end, _passed(self.text, self.start), closed))


def _passed(text: str, start: int) -> int:
    """Return the start of an answer, or 0 if only blanks precede it."""
    return start if text[:start].strip() else 0


def _answer_start(text: str) -> int | None:
    """Return the place after reasoning and channels; None if the reasoning never closes."""
    start, bare = 0, _BARE_CHANNEL.match(text)
    if finals := [match.end() for match in _FINAL.finditer(text)]:
        start = finals[-1]
    elif _CHANNEL.match(text):
        return None
    elif bare and (begun := text.rfind(_BARE_FINAL)) >= 0:
        start = begun + len(_BARE_FINAL)
    elif bare and bare["begins"] is not None:
        return None
    return _reasoning_end(text, start)


def _reasoning_end(text: str, start: int) -> int | None:
    """Return the place after the blocks of reasoning; None if they never close.

    Only blocks at the beginning count, because an answer may mention the marks. The opening mark of the first
    block may be missing, because it can be part of the prompt.
    """
    begun = _SPECIALS.match(text, start).end()  # type: ignore[union-attr]
    end = opened = start
    depth, content = 0, None
    for mark in _REASONING.finditer(text, start):
        if mark["opens"] is not None:
            if not depth:
                if text[max(end, begun) : mark.start()].strip():
                    break  # the answer has begun
                opened = mark.start()
            depth += 1
            continue
        if not depth and end > start:  # no block is open: the answer or the reasoning mentions the mark
            content = len(text.rstrip()) if content is None else content
            if mark.end() >= content:
                break
        depth, end = max(0, depth - 1), mark.end()
    return None if depth and end <= opened else end


def split_reasoning(text: str) -> tuple[str, str | None]:
    """Return the reasoning, and the text after it: None if the reasoning never closes.

    >>> split_reasoning("<think>A lake?</think> Mirna."), split_reasoning("A lake?</think>Mirna.")
    (('A lake?', 'Mirna.'), ('A lake?', 'Mirna.'))
    >>> split_reasoning("<think>A la"), split_reasoning(" Mirna.")
    (('A la', None), ('', ' Mirna.'))
    """
    start = _answer_start(text)
    if start == 0:
        return "", text
    reasoning = _REASONING.sub("", text[:start]).strip()
    return reasoning, None if start is None else text[start:].lstrip()


def opened_reasoning(prompt: str) -> str:
    """Return the mark that opens reasoning at the end of a prompt, such as "<think>"; "" without a mark.

    >>> opened_reasoning("Who?<|assistant|><think>\\n"), opened_reasoning("<think>\\n</think>\\n")
    ('<think>', '')
    """
    *_, last = None, *_REASONING.finditer(prompt)
    is_open = last is not None and last["opens"] is not None and not prompt[last.end() :].strip()
    return last[0] if last is not None and is_open else ""


def _said(text: str, start: int) -> _Part:
    begun = _SPECIALS.match(text, start).end()  # type: ignore[union-attr]
    if begun == len(text):
        begun = start
    specials = (mark.start() for mark in _SPECIAL.finditer(text, begun + 1))
    end = next((place for place in specials if not _TAGGED.match(text, place)), len(text))
    return _Part(text, 0, 0).within(begun, end)


def _auto(part: _Part, question: str) -> AnswerSpan | None:
    """Return the answer by the first rule that finds one: a tag, JSON, a marker, the first answer."""
    part = _tagged(part) or part
    if (value := _json_value(part, None)) is not None:
        return value.whole()
    fence = _FENCE.match(part.text, part.start, part.end)
    if fence:
        close = part.text.find(fence["marks"], fence.end(), part.end)
        outer = close + len(fence["marks"]) if close >= 0 else None
        inner = part.within(fence.end(), part.end if close < 0 else close, outer)
        part = inner if inner.start < inner.end else part
        if (fence["language"] or "").lower() not in _PROSE:
            return part.whole()
    if part.start == part.end:
        return None
    found = _marked(part, question, reasoned=True)
    return found or part.span(_first(part.text, part.start, part.end, question))


def _tagged(part: _Part) -> _Part | None:
    """Return the content of the last answer tag, also of a tag without its opening or closing mark."""
    found, opened = None, part.start
    for mark in _TAGGED.finditer(part.text, part.start, part.end):
        if mark["opens"] is not None:
            opened = mark.end()
        elif opened >= 0:
            found, opened = part.within(opened, mark.start(), mark.end()), -1
    if found is None and part.start < opened:
        return part.within(opened, part.end)
    return found


def _json_value(part: _Part, keys: list[str] | None, *, anywhere: bool = False) -> _Part | None:
    """Return the value of a JSON text at `keys`; without keys, its answer (`_answering`).

    The result is None if the part has no JSON text, and an empty part if the value is missing or null. The
    JSON text begins the part or is in a fence; with `anywhere` it may begin at one of the first brackets.
    """
    text, starts = part.text, [part.start]
    for pattern in (_FENCED_JSON, _BRACKET)[: 1 + anywhere]:
        starts += [
            mark.start("json") for mark in islice(pattern.finditer(text, part.start, part.end), _TRIES)
        ]
    for start in starts:
        try:
            value, end = _JSON.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        is_whole = end >= part.end if start == part.start else anywhere
        if isinstance(value, dict) or (is_whole and (anywhere or isinstance(value, list))):  # not "[1] Paris"
            path, value = _answering(value) if keys is None else _pointed(value, keys)
            return _located(part, start, end, path, value)
    return None


def _pointed(value: Any, keys: list[str]) -> tuple[list[str], Any]:
    """Return the object keys on the path of a JSON pointer, and its value, None if it is missing."""
    path = []
    for key in keys:
        if isinstance(value, list):
            is_index = re.fullmatch(r"0|[1-9]\d{0,8}", key) and int(key) < len(value)
            value = value[int(key)] if is_index else None
        else:
            value = value.get(key) if isinstance(value, dict) else None
            path.append(key)
    return path, value


def _answering(value: Any) -> tuple[list[str], Any]:
    """Return the keys and the value of the answer in an object: an answer key, or the only scalar."""
    path = []
    while isinstance(value, dict):
        names = {key: key.casefold().replace(" ", "_") for key in value}
        named = [key for key, name in names.items() if name in _ANSWER_KEYS]
        scalars = [key for key, name in names.items() if name not in _ASIDE_WORDS.split()]
        scalars = [key for key in scalars if not isinstance(value[key], dict | list | None)]
        if not named and len(scalars) != 1:
            break
        path.append((named or scalars)[-1])
        value = value[path[-1]]
    return path, value


def _located(part: _Part, start: int, end: int, path: list[str], value: Any) -> _Part:
    """Find a value, after its keys, in the JSON text between two places, and return its part."""
    text, at = part.text, start
    if isinstance(value, str | _Number):
        said = value.strip() if isinstance(value, str) else value.text
    else:
        said = json.dumps(value, ensure_ascii=False)
    if value is None or not said:
        return _Part(text, end, end)
    for key in path:
        quoted = json.dumps(key, ensure_ascii=False)
        at = max(at, text.find(quoted, at, end) + len(quoted))
    begun = text.find(said, at, end)
    if begun < 0:  # written in another way, such as with escapes
        return replace(part.within(at, end, end), value=said)
    stop = begun + len(said)
    return part.within(begun, stop, stop + text.startswith('"', stop))


def _marked(part: _Part, question: str, *, reasoned: bool = False) -> AnswerSpan | None:
    """Return the last marked answer; with `reasoned`, a weak mark counts only after reasoning."""
    part, text = (part if reasoned else _tagged(part) or part), part.text
    next_turn = _NEXT_TURN.search(text, _lead_end(text, question, part.start), part.end)
    end = next_turn.start() if next_turn else part.end
    marks = [
        (mark.start(), mark.end(), mark["strong"] is not None)
        for mark in _MARKER.finditer(text, part.start, end)
    ]
    box = _last_box(text, part.start, end)
    marks += [(box.start, -1, True)] if box else []
    for start, behind, strong in sorted(marks)[: -_TRIES - 1 : -1]:
        if reasoned and not strong and len(_WORD_OR_SIGN.findall(text, part.start, start)) < _REASONED:
            continue
        if box and behind < 0:
            return box.whole()
        if text[behind:end].strip(" \t\n*_`.:"):
            found = part.span(_first(text, behind, end, "", in_list=False))
            is_formula = found.text.count("$") == 2 and found.text[0] == found.text[-1] == "$"
            return (
                replace(found, text=found.text.strip("$ ")) if is_formula and len(found.text) > 2 else found
            )
    if not reasoned and part.outer:
        return part.span(_first(text, part.start, end, question))
    return None


def _last_box(text: str, start: int, end: int) -> _Part | None:
    r"""Return the content of the last closed \boxed{} with balanced braces."""
    opened, found = list[tuple[bool, int]](), None
    for mark in _BOX.finditer(text, start, end):
        if mark["opens"] or mark[0] == "{":
            opened.append((mark["opens"] is not None, mark.end()))
        elif mark[0] == "}" and opened:
            is_box, begun = opened.pop()
            found = (begun, mark.start(), mark.end()) if is_box else found
    if found is None:
        return None
    box = _Part(text, 0, 0).within(*found)
    inner = _BOXED_TEXT.fullmatch(text, box.start, box.end)
    box = box.within(*inner.span(1), box.outer) if inner else box
    return box if box.start < box.end else None


def first_answer(text: str, question: str = "") -> AnswerSpan:
    """Cut the first answer out of a generation.

    Leading white space and lead-ins are skipped: reasoning, special tokens as text, an interjection of
    agreement or praise, a label, the first mark of a list, `question` or any question after "Question:", and
    a question that is answered in the same line. If only lead-ins are present, they are the answer. The
    answer ends at the first newline, or at the end of its first sentence. A line with a colon at its end
    introduces the answer: the next line, a list or a fenced block; a list is whole if the question asks for
    several things. A full stop inside initials,
    abbreviations, decimals or dates ("9. November") does not end a sentence. After an initial or an
    abbreviation that may end a sentence ("U.S.", "Jr."), a sentence ends if the next word is capitalized and
    typically opens sentences ("The", "It"). The full stop of an abbreviation is kept. For white space the
    answer is empty, with `end` 0.

    >>> first_answer("J. R. R. Tolkien. He also wrote poems.")
    AnswerSpan(text='J. R. R. Tolkien', end=17, start=0)
    >>> first_answer("Washington D.C. is the capital").text, first_answer("Paris\\nQuestion: ...").text
    ('Washington D.C. is the capital', 'Paris')
    >>> first_answer("Sure! **Answer:** Paris.").text, first_answer("Sure Thing").text
    ('Paris', 'Sure Thing')
    """
    start = _answer_start(text) or 0
    return _first(text, start if text[start:].strip() else 0, len(text), question)


def _first(text: str, begun: int, stop: int, question: str, *, in_list: bool = True) -> AnswerSpan:
    """Return the first answer between two places; without `in_list`, "1." is a number, not a list mark."""
    is_cut, text = bool(text[stop:].strip()), text[:stop]
    margin = _BLANKS.match(text, begun).end()  # type: ignore[union-attr]
    start = _lead_end(text, question, margin, in_list=in_list)
    is_bare = not text[start:].strip(" \t\n*_`.")  # the text has only a lead-in
    start = margin if is_bare else start
    if start == len(text):
        return AnswerSpan("", 0, closed=False)
    introduction = _INTRODUCTION.match(text, start)
    if introduction and not _NEXT_TURN.match(text, introduction.end("line")):
        at = introduction.end()
        fence = _FENCE.match(text, at)
        block = _ITEMS.match(text, at) or (fence and _FENCED_TEXT.match(text, fence.end()))
        if block:
            return AnswerSpan(block[0].strip(), block.end(), at, closed=is_cut or block.end() < len(text))
        start = _lead_end(text, question, at)
    elif _ASKS_FOR_SEVERAL.search(question):
        at = max(margin, text.rfind("\n", 0, start) + 1)
        if items := _ITEMS.match(text, at):
            closed = is_cut or items.end() < len(text)
            return AnswerSpan(items[0].strip(), items.end(), _passed(text, at), closed)
    passed = _passed(text, start)
    first_line = text[start:].splitlines()[0]
    special = _SPECIAL.search(first_line, 1)
    line = (text[:start] + first_line[: special and special.start()]).rstrip()
    ended = is_cut or ((special is not None or len(first_line) < len(text) - start) and not is_bare)
    unbroken = _UNBROKEN.match(line, start)
    for mark in _STOP.finditer(line, unbroken.end() if unbroken else start):
        ends = _ends_sentence(line, start, mark)
        if ends or mark.end() == len(line):
            answer = _without_full_stop(line[start : mark.end()])
            return AnswerSpan(answer, mark.end(), passed, ended or (ends and not is_bare))
    answer = line[start:]
    if passed and answer.endswith("**") and answer.count("**") == 1 < len(answer) - 1:  # "**Answer: Paris**"
        answer = _without_full_stop(answer.removesuffix("**").rstrip())
    return AnswerSpan(answer, len(line), passed, ended)


def _lead_end(text: str, question: str, begun: int, *, in_list: bool = True) -> int:
    """Return the place after the lead-ins of an answer; `begun` if another question follows."""
    at, marked = begun, False
    while True:
        at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
        lead = _LEAD_IN.match(text, at) or (None if marked else _MARK.match(text, at))
        if lead and (in_list or lead.re is _LEAD_IN or "1" not in lead[0]):
            at, marked = lead.end(), marked or lead.re is _MARK
            continue
        reasoning = _REASONING.match(text, at)
        if reasoning and reasoning["opens"] and (end := _reasoning_end(text, at) or at) > at:
            at = end
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
            return _end_of_answered(text, at)
        at = end


def _end_of_answered(text: str, at: int) -> int:
    """Return the end of a question at `at` that is answered in the same line, else `at`."""
    asked = _ASKED.match(text, at)
    if asked is None or not _ASKS.search(asked[0]):
        return at
    words = asked[0].split()
    is_title = not any(word[:1].islower() for word in words[1:2]) and not any(
        len(word) > 3 and word[:1].islower() and word.rstrip(",?") not in _SMALL_WORDS for word in words[1:]
    )
    return at if is_title and "?" in asked[0] else asked.end()


def _end_of_echo(text: str, place: int, question: str) -> int:
    """Return the end of the repeated question at `place`, or `place` if the question is not repeated."""
    at = place
    for word in _WORD.findall(question):
        match = _WORD.search(text, at)
        if not match or match[0].casefold() != word.casefold():
            return place
        at = match.end()
    end = _BEHIND.match(text, at).end()  # type: ignore[union-attr]
    marks = text[at:end]
    return end if at > place and (any(c in marks for c in "?.:!") or text[end : end + 1] in "\n") else place


def _ends_sentence(line: str, start: int, stop: re.Match[str]) -> bool:
    """Return whether a stop with more text after it closes a sentence."""
    signs = stop[0].rstrip(_CLOSERS)
    following = _NEXT_WORD.match(line, stop.end())
    word = following["word"] if following else ""
    if signs.endswith("..."):
        return False
    if signs.strip("."):
        if word.casefold() in ("inc", "ltd"):  # "Yahoo! Inc."
            return False
        if word[:1].islower() or stop[0][0] not in ".!?":  # "Yahoo! is"
            return not word[:1].islower()
        is_interjection = signs == "!" and _INTERJECTION.fullmatch(line, start, stop.start())
        return not (is_interjection or (signs == "!" and _TITLE_REMAINDER.match(line, stop.end())))
    before = _last_word(line[max(start, stop.start() - 40) : stop.start()])
    place = max(start, stop.start() - len(before))
    if _ORDINAL_NUMBER.fullmatch(line, place, stop.start()) and word.casefold() not in _BEHIND_NUMBERS:
        if word[:1].islower() or _DATED.match(line, stop.end()):  # "9. November"
            return False
        if word[:1].isalpha() and _last_word(line[start:place].rstrip()) in _ARTICLES.split(" "):
            return False
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
    if answer.endswith("。"):
        return answer[:-1].rstrip()
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

#: Regular expressions of the beginnings of refusals, without articles and contractions.
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

_WORDS = word_pairs("contractions")
_COURTESY, _GOES_ON, _HEDGE, _FILLER = map(any_listed, ("courtesies", "going on", "hedges", "fillers"))

_REFUSAL = re.compile(rf"({_COURTESY} )*({'|'.join(PHRASES)}) (?=$|({_GOES_ON}|{_HEDGE}) )")
_HEDGED = re.compile(rf"\b({_HEDGE}) (({_FILLER}) )*")


def is_refusal(text: str) -> bool:
    """Return whether an answer, or its normal form, is a refusal.

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
    """Return lower-case words without contractions and articles, each with a blank after it."""
    words = re.findall(r"\w+", re.sub("['’`]", "", text.casefold()))
    return "".join(f"{word} " for word in (_WORDS.get(word, word) for word in words) if word)
