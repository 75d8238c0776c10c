"""Grade predictions against references by rules on their words (spec section 7).

Texts are compared by their normal form. A rule can only accept, and a prediction is correct if any rule
accepts it against any reference. Therefore a verdict depends neither on the order of the references nor on
earlier grades.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Protocol, runtime_checkable

from rapidfuzz.distance import LCSseq
from rapidfuzz.fuzz import ratio

from semcal.errors import InputError, shown
from semcal.meaning.rules import compare, contradicts
from semcal.meaning.wording import plain, wording_of
from semcal.registry import check_name
from semcal.text import cache_texts
from semcal.text.normal_form import asks_for_code, code_form, letter_form, normal_form
from semcal.text.values import FUNCTION_WORDS, Values, contradict, month_and_day, one_era, values_of

RULES = ("equality", "containment", "date", "fuzzy", "F1", "same")
"""The default rules, in this order; "ROUGE-L", "exact" and "letter" are optional."""


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of the rules.

    >>> lenient = RuleGrader(thresholds=Thresholds(numerals=False))
    >>> lenient.grade("Who?", ["Henry VII"], ["Henry VIII"])
    Grade(correct=True, rule='fuzzy')
    """

    fuzzy: float = 90.0  # minimum ratio (0 to 100) of two texts
    fuzzy_above: bool = False  # True if the ratio must exceed `fuzzy`
    f1: float = 0.5  # the F1 must exceed this threshold
    rouge_l: float = 0.3  # the F-measure must exceed this threshold
    numerals: bool = True  # reject wrong values and contradictions, and fuzzy matches of texts with digits


@dataclass(frozen=True)
class Grade:
    """A verdict and its reason."""

    correct: bool
    rule: str  # the rule that accepted the answer; "none" without such a rule, "empty" without a text


class Grader(Protocol):
    """An object that decides whether an answer is correct."""

    def grade(self, question: str, predictions: Sequence[str], references: Sequence[str]) -> Grade:
        """Return the verdict on `predictions`; one correct prediction is enough."""


GradeRequest = tuple[str, tuple[str, ...], tuple[str, ...]]
"""Question, predictions and references: the arguments of `Grader.grade`."""


@runtime_checkable
class BatchGrader(Grader, Protocol):
    """A grader that is faster if it grades many answers at once."""

    def grade(self, question: str, predictions: Sequence[str], references: Sequence[str]) -> Grade:
        """Return the verdict on `predictions`; one correct prediction is enough."""
        (grade,) = self.grade_all([(question, tuple(predictions), tuple(references))])
        return grade

    def grade_all(self, requests: Sequence[GradeRequest]) -> list[Grade]:
        """Return the verdict on each request, equal to that of `grade`."""


class RuleGrader:
    """A grader that uses rules on the words, without a model.

    The rules, in this order; each rule tries every reference:

    - *equality*: the normal forms are equal, eras in either spelling ("753 BCE", "753 BC"; "AD 70", "70 CE");
    - *containment*: the prediction contains the reference as whole words, with its unit in any spelling, and
      no value is wrong;
    - *date*: containment after the dates of the prediction are cut to the granularity of the reference: the
      reference "1988" accepts any date in 1988, "April 30" accepts that day in any year;
    - *fuzzy*: rapidfuzz's ratio of the texts is at least 90, neither text has a digit, no value is wrong;
    - *F1*: SQuAD's F1 of the words that are not in the question exceeds 0.5, and no value is wrong;
    - *same*: the prediction, or its text after "the answer is", and the reference are one value, name or
      polarity in two notations (`semcal.meaning.rules.compare`): "60%" and "0.6", "5000 m" and "5 km";
    - *ROUGE-L* (optional): its F-measure exceeds 0.3, and no value is wrong;
    - *exact* (optional, instead of equality): equality, but if the question or the references have codes,
      case, dots and signs count;
    - *letter* (optional): the texts are equal after Unicode NFC and without outer blanks.

    Values are numbers, dates, eras, amounts, Roman numerals, naming letters and signs (`semcal.text.values`).
    A value is wrong if each text has a value that the other lacks: "Henry VII" and "Henry VIII". An extra
    value in only one text (a year in brackets) is not a contradiction. Containment, fuzzy and F1 also reject
    a prediction that contradicts the reference by a denial or by another polarity, unit, bound, name or
    operator (`semcal.meaning.rules.contradicts`).

    An empty prediction is wrong, and an empty reference matches nothing. If the question has all words of a
    reference, only two rules apply: equality, and containment unless all added words are in the question, too
    ("X or Y?" for "X"; `FUNCTION_WORDS` do not count).

    Parameters
    ----------
    rouge : bool
        Add ROUGE-L to the rules.
    rules : sequence of str
        Names of the rules, in order.
    thresholds : Thresholds, optional
        Thresholds that replace the defaults.

    Raises
    ------
    UsageError
        If a rule is unknown.

    Examples
    --------
    >>> grader = RuleGrader()
    >>> grader.grade("When?", ["In December 1988."], ["1988"])
    Grade(correct=True, rule='date')
    >>> grader.grade("Who?", ["Henry VII"], ["Henry VIII"])
    Grade(correct=False, rule='none')
    """

    def __init__(
        self,
        *,
        rouge: bool = False,
        rules: Sequence[str] = RULES,
        thresholds: Thresholds | None = None,
    ) -> None:
        self.rules = (*rules, "ROUGE-L") if rouge and "ROUGE-L" not in rules else tuple(rules)
        self.thresholds = thresholds or Thresholds()
        self._accepts = [(rule, _ACCEPTS[check_name(rule, _ACCEPTS, what="rule")]) for rule in self.rules]

    def grade(self, question: str, predictions: Sequence[str], references: Sequence[str]) -> Grade:
        """Return the verdict on `predictions`, the forms of one answer; one correct form is enough.

        An empty question means that the question is unknown, and no prediction is an echo of it.

        Raises
        ------
        InputError
            If `predictions` or `references` is empty.
        """
        for name, texts in (("predictions", predictions), ("references", references)):
            if isinstance(texts, str) or not texts:
                raise InputError(
                    f"{name}: expected a list of one or more texts, got {shown(texts)}. Pass a list"
                )
        forms = [text for text in map(_prepared, references) if text.form]
        question_words = frozenset(_prepared(question).words)
        rule = "empty"
        for prediction in map(_prepared, predictions):
            if prediction.form:
                rule = self._rule(question, prediction, forms, question_words)
                if rule != "none":
                    return Grade(True, rule)
        return Grade(False, rule)

    def _rule(
        self, question: str, prediction: _Text, references: Sequence[_Text], question_words: frozenset[str]
    ) -> str:
        for rule, accepts in self._accepts:
            values_count = self.thresholds.numerals and rule not in _VALUES_DO_NOT_COUNT
            for reference in references:
                pair = prediction, reference
                if rule == "F1":
                    pair = _without(prediction, question_words), _without(reference, question_words)
                if (
                    accepts(question, *pair, self.thresholds)
                    and not (values_count and contradict(pair[0].values, pair[1].values, finer=True))
                    and not (values_count and contradicts(question, prediction.raw, reference.raw))
                    and not _is_echo(rule, prediction, reference, question_words)
                ):
                    return rule
        return "none"


def _is_echo(rule: str, prediction: _Text, reference: _Text, question_words: frozenset[str]) -> bool:
    """Return whether a prediction only repeats words that both the question and the reference have."""
    if rule in _NO_ECHOES or not question_words.issuperset(reference.words):
        return False
    # auxiliary verbs count as added words, because they make a statement
    added = set(prediction.words).difference(reference.words, FUNCTION_WORDS)
    return rule != "containment" or (bool(added) and added <= question_words)


class _Text:
    """A normal form, and cached properties for the rules."""

    def __init__(self, form: str, full_form: str = "", text: str = "") -> None:
        self.form = form
        self.text = text
        self.raw = plain(text)
        self.full_form = full_form or form  # source of the values
        self.padded = f" {form} "
        self.words = form.split()

    @cached_property
    def counts(self) -> Counter[str]:
        return Counter(self.words)

    @cached_property
    def has_digit(self) -> bool:
        return _DIGIT.search(self.form) is not None

    @cached_property
    def values(self) -> Values:
        return values_of(self.full_form)

    @cached_property
    def dates(self) -> tuple[str, ...]:
        """The dates with a month or a day, in ISO form."""
        return tuple(word for word in self.words if "-" in word and _ISO.fullmatch(word))

    @cached_property
    def coarser(self) -> tuple[str, ...]:
        """The padded forms with dates cut to the month, and to the year."""
        months = _ISO.sub(lambda date: date[0][:7], self.padded)
        return months, _ISO.sub(lambda date: date[0][:4], self.padded)

    @cached_property
    def month_and_day(self) -> tuple[str, str] | None:
        return month_and_day(self.form)


_DIGIT = re.compile(r"\d")
_ISO = re.compile(r"(?<!\S)\d{4}-(?:0[1-9]|1[0-2])(?:-(?:0[1-9]|[12]\d|3[01]))?(?!\S)")


@cache_texts(1 << 15)
def _prepared(text: str) -> _Text:
    return _Text(one_era(normal_form(plain(text))), text=text)


@cache_texts(1 << 15, lambda text: len(text.text))
def _without(text: _Text, words: frozenset[str]) -> _Text:
    """Return a text without some words that still has the values of the whole text."""
    return _Text(" ".join([word for word in text.words if word not in words]), text.full_form, text.text)


def _equality(_question: str, prediction: _Text, reference: _Text, _: Thresholds) -> bool:
    return prediction.form == reference.form


def _containment(_question: str, prediction: _Text, reference: _Text, _: Thresholds) -> bool:
    if reference.padded in prediction.padded:
        return True
    if reference.has_digit and wording_of(reference.raw).units:
        words = [" ".join(wording_of(text.raw).words) for text in (reference, prediction)]
        return f" {words[0]} " in f" {words[1]} "
    return reference.form in prediction.form and _WIDE.fullmatch(reference.form) is not None


def _date(_question: str, prediction: _Text, reference: _Text, _: Thresholds) -> bool:
    if not prediction.dates:
        return False
    if reference.month_and_day is not None:
        month, day = reference.month_and_day
        return any(date[5:7] == month and (not day or date[8:] == day) for date in prediction.dates)
    before_christ = f"{reference.padded}bc "  # "1066-10-14 bc" contains "1066"
    return any(reference.padded in form and before_christ not in form for form in prediction.coarser)


def _fuzzy(_question: str, prediction: _Text, reference: _Text, at: Thresholds) -> bool:
    """Match by edit distance; a Roman-looking word that both texts share ("Malcolm X") is not a numeral."""
    if at.numerals and (prediction.has_digit or reference.has_digit):
        return False
    similarity = ratio(prediction.form, reference.form, score_cutoff=at.fuzzy)
    if similarity < at.fuzzy or (at.fuzzy_above and similarity == at.fuzzy):
        return False
    return not at.numerals or prediction.values.numbers == reference.values.numbers


def _f1(_question: str, prediction: _Text, reference: _Text, at: Thresholds) -> bool:
    lengths = len(prediction.words), len(reference.words)
    if 2 * min(lengths) <= at.f1 * sum(lengths):
        return False  # even if the longer text contained all words of the shorter
    return squad_f1(prediction.counts, reference.counts) > at.f1


def _rouge(_question: str, prediction: _Text, reference: _Text, at: Thresholds) -> bool:
    if squad_f1(prediction.counts, reference.counts) <= at.rouge_l:
        return False  # a common subsequence has at most as many words as the texts share
    return rouge_l(prediction.words, reference.words) > at.rouge_l


def _same(question: str, prediction: _Text, reference: _Text, _: Thresholds) -> bool:
    stated = _STATED.search(prediction.raw)
    return bool(
        compare(question, prediction.raw, reference.raw)
        or (stated and _prepared(stated[1]).form == reference.form)
        or (stated and compare(question, stated[1], reference.raw))
    )


def _exact(question: str, prediction: _Text, reference: _Text, at: Thresholds) -> bool:
    if asks_for_code(question, [reference.raw]):
        return code_form(prediction.raw) == code_form(reference.raw)
    return _equality(question, prediction, reference, at)


def _letter(_question: str, prediction: _Text, reference: _Text, _: Thresholds) -> bool:
    return letter_form(prediction.text) == letter_form(reference.text)


#: Chinese and Japanese text, which has no blanks between words.
_WIDE = re.compile("[\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff]{2,}")
_STATED = re.compile(r"[.!?:]\s+(?:[Tt]he |[Ff]inal ){0,2}[Aa]nswer(?: is|:)\s+([^\n]{1,80})$")
#: Rules that do not check values, because texts that they accept cannot contradict each other.
_VALUES_DO_NOT_COUNT = ("equality", "date", "same", "exact", "letter")
_NO_ECHOES = ("equality", "same", "exact", "letter")
_ACCEPTS: dict[str, Callable[[str, _Text, _Text, Thresholds], bool]] = {
    "equality": _equality,
    "containment": _containment,
    "date": _date,
    "fuzzy": _fuzzy,
    "F1": _f1,
    "same": _same,
    "ROUGE-L": _rouge,
    "exact": _exact,
    "letter": _letter,
}


def squad_f1(prediction: Counter[str], reference: Counter[str]) -> float:
    """Return SQuAD's F1 of two normal forms, in [0, 1], from the counts of their words.

    References
    ----------
    Rajpurkar et al., SQuAD: 100,000+ questions for machine comprehension of text, 2016.

    Examples
    --------
    >>> squad_f1(Counter("city of york".split()), Counter(["york"]))
    0.5
    """
    shared = sum([min(count, prediction[word]) for word, count in reference.items() if word in prediction])
    return 2 * shared / (prediction.total() + reference.total()) if shared else 0.0


def rouge_l(prediction: Sequence[str], reference: Sequence[str]) -> float:
    """Return the ROUGE-L F-measure of the words of two normal forms, in [0, 1].

    This is twice the length of the longest common subsequence over the sum of the lengths, without stemming.

    References
    ----------
    Lin, ROUGE: a package for automatic evaluation of summaries, 2004.

    Examples
    --------
    >>> rouge_l("city of old york".split(), "old city of york".split())
    0.75
    """
    common = LCSseq.similarity(prediction, reference)
    return 2 * common / (len(prediction) + len(reference)) if common else 0.0


def members_to_grade(
    cluster: Sequence[int],
    *,
    seed: int,
    question_id: str,
    limit: int = 4,
) -> tuple[int, ...]:
    """Return up to `limit` random members of a cluster to grade, ascending, without replacement.

    Members are ranked by a hash of (seed, question id, None, member), so the choice depends neither on
    earlier choices nor on the order of the cluster.

    >>> members_to_grade([3, 1], seed=0, question_id="q1")
    (1, 3)
    >>> len(members_to_grade(range(10), seed=0, question_id="q1"))
    4
    """

    def rank(member: int) -> bytes:
        stream = repr((int(seed), question_id, None, int(member)))
        return blake2b(stream.encode(), digest_size=16).digest()

    return tuple(sorted(sorted(cluster, key=rank)[:limit]))
