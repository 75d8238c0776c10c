"""The claims of the paper as a table, each with the rule that it is judged by; thresholds and verdicts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from semcal.metrics import Contrast, Interval

#: The rules of claims and findings: their version, and since when it holds. docs/analyses.md lists every
#: version with the results that had been seen before it; tests/experiment/test_frozen_rules.py holds it.
RULES = {"version": 5, "since": "2026-11-22"}

HOLDS, FAILS, OPEN = "holds", "does not hold", "not decidable here"
#: A benefit smaller than this is none: half a point of ACE, AUROC, accuracy or Brier score.
MARGIN = 0.005
#: With fewer questions than this in a data set no interval over questions is believed.
FEWEST = 20
#: Base is calibrated where its ACE, averaged over measures, is at most this; 0.045 to 0.056 in the paper.
CALIBRATED = 0.06
#: AUROC within this of its value at the most draws is stable.
STABLE = 0.03
#: Measures are nearly alike above this correlation, and differ where it is lower by more than that.
NEARLY_ALIKE, LESS_ALIKE = 0.9, 0.05
#: Gradings agree on more than this share of the answers.
AGREEMENT = 0.85
#: The token classes that carry no content.
FILLER = ("stop word", "punctuation", "end of turn")


@dataclass(frozen=True)
class Statement:
    """A claim before it is judged."""

    key: str  # a short name
    claim: str  # what the paper says, in a sentence
    source: str  # where it says so
    rule: str  # when the claim holds, when it does not, and when that cannot be decided

    def judged(self, verdict: str, because: str, evidence: dict[str, Any]) -> Claim:
        """The claim with its verdict, the deciding figures as a sentence, and the numbers behind them."""
        return Claim(self.key, self.claim, self.source, self.rule, verdict, because, evidence)

    def undecidable(self, because: str) -> Claim:
        """The claim where this run says nothing about it, and why, as a sentence."""
        return self.judged(OPEN, because, {})


@dataclass(frozen=True)
class MethodStatement(Statement):
    """A claim that TS is better than some methods in one quantity."""

    quantity: str
    others: tuple[str, ...]


@dataclass(frozen=True)
class Claim(Statement):
    """A claim with its verdict: "holds", "does not hold" or "not decidable here"."""

    verdict: str
    because: str
    evidence: dict[str, Any] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


# ---- How verdicts are reached -----------------------------------------------------------------------------


def refuting(contrast: Contrast, parts: int) -> Interval:
    """The interval that one of the parts of a claim is refuted by: at 1 − 0.05 / parts (Bonferroni).

    All parts must hold, so that each is shown at 95 %; one that fails is enough to refute, and without the
    correction the more parts a claim has, the more often one would fail by chance.
    """
    return contrast.interval(level=1 - 0.05 / parts)


def positive(contrast: Contrast, *, margin: float = MARGIN, parts: int = 1) -> str:
    """Whether a value is above 0 by something that counts, judged by its interval over questions.

    It holds when the 95 % interval lies above 0 and reaches `margin`; it does not when the interval lies
    below `margin`, so that no benefit that counts is compatible with the data; otherwise they do not decide.

    >>> drawn = np.linspace(-0.01, 0.01, 100)
    >>> [positive(Contrast(value, value + drawn)) for value in (0.02, 0.004, -0.006, -0.02)]
    ['holds', 'not decidable here', 'does not hold', 'does not hold']
    >>> positive(Contrast(0.002, 0.002 + drawn / 10))
    'does not hold'
    """
    found = contrast.interval()
    if np.isnan(found.low):
        return OPEN
    if refuting(contrast, parts).high < margin:
        return FAILS
    return HOLDS if found.low > 0 and found.high >= margin else OPEN


def all_of(verdicts: Sequence[str]) -> str:
    """A claim of several parts holds when all of them do, and does not hold when one does not.

    >>> all_of(["holds", "not decidable here"]), all_of(["holds", "does not hold", "not decidable here"])
    ('not decidable here', 'does not hold')
    """
    if FAILS in verdicts:
        return FAILS
    return OPEN if OPEN in verdicts or not verdicts else HOLDS


def any_of(benefits: Sequence[Contrast]) -> str:
    """Whether something gains and nothing loses.

    >>> drawn = np.linspace(-0.01, 0.01, 100)
    >>> gain, open_, none, loss = (Contrast(x, x + drawn) for x in (0.02, 0.004, -0.006, -0.02))
    >>> [any_of(given) for given in ([gain, none], [gain, loss], [none], [none, open_], [open_, loss])]
    ['holds', 'not decidable here', 'does not hold', 'not decidable here', 'does not hold']
    """
    ends = [(found.low, found.high) for found in (one.interval() for one in benefits)]
    gains, loses = any(low > 0 for low, _ in ends), any(high < 0 for _, high in ends)
    if gains or loses:
        return OPEN if gains and loses else HOLDS if gains else FAILS
    return FAILS if all(high < MARGIN for _, high in ends) else OPEN


def with_enough_questions(claim: Claim, questions: int) -> Claim:
    """The claim as it was judged; left open where some data set has too few questions for intervals.

    Resamples of a handful of questions are too much alike: of one question the interval has no width.
    """
    if questions >= FEWEST or claim.verdict == OPEN:
        return claim
    few = "1 question counts" if questions == 1 else f"{questions} questions count"
    because = f"{claim.because} Not decided: of a data set {few}, and intervals take {FEWEST} or more."
    return replace(claim, verdict=OPEN, because=because)


def absent(wanted: Sequence[str], methods: Collection[str]) -> str:
    """Which of some methods were not run, as a sentence; "" where all were.

    >>> absent(["Base", "SE"], ["Base", "TS"]), absent(["Base", "SE"], ["TS"]), absent(["TS"], ["TS"])
    ('SE was not run.', 'Base and SE were not run.', '')
    """
    missing = [name for name in wanted if name not in methods]
    if not missing:
        return ""
    names = " and ".join(filter(None, [", ".join(missing[:-1]), missing[-1]]))
    return f"{names} {'was' if len(missing) == 1 else 'were'} not run."


# ---- The claims -------------------------------------------------------------------------------------------

#: How the text of a claim names each quantity.
QUANTITY_WORDS = {
    "ace": "lower ACE",
    "auroc": "higher AUROC of the confidence",
    "SE_conf": "higher AUROC of −entropy, SE_conf",
    "gain": "larger AURAC − accuracy",
}


_TS_RULE = (
    "The benefit of TS ({quantity}) is pooled over models, data sets and measures, paired by question. "
    "Against each of {others} its 95 % interval over questions must lie above 0 and reach +0.005; if "
    "against one the interval, at 95 % corrected for the {count} comparisons, lies below +0.005, the claim "
    "does not hold; else, or where one was not run, it is not decidable here."
)


def _ts_is_better(key: str, claim: str, source: str, quantity: str, *others: str) -> MethodStatement:
    rule = _TS_RULE.format(quantity=QUANTITY_WORDS[quantity], others=" and ".join(others), count=len(others))
    return MethodStatement(key, claim, source, rule, quantity, others)


METHOD_STATEMENTS = (
    _ts_is_better(
        "calibration",
        "TS improves semantic calibration over the base model at temperature 1 (Base) and 0.5 (SE).",
        "section 5.1",
        *("ace", "Base", "SE"),
    ),
    _ts_is_better(
        "discrimination",
        "TS improves discrimination over Base and SE.",
        "section 5.1",
        *("auroc", "Base", "SE"),
    ),
    _ts_is_better(
        "calibration, expressive methods",
        "TS is better calibrated than ATS and Platt.",
        "section 5.1",
        *("ace", "ATS", "Platt"),
    ),
    _ts_is_better(
        "discrimination, expressive methods",
        "TS discriminates better than ATS and Platt.",
        "section 5.1",
        *("auroc", "ATS", "Platt"),
    ),
    _ts_is_better(
        "semantic entropy",
        "TS improves semantic entropy as a score over Base and SE.",
        "section 5.2",
        *("SE_conf", "Base", "SE"),
    ),
    _ts_is_better(
        "selective accuracy",
        "TS makes accuracy rise faster as unsure answers are rejected.",
        "section 5.3",
        *("gain", "Base", "SE", "ATS", "Platt"),
    ),
)
ENTROPY_VARIANTS = Statement(
    "SE_conf",
    "Semantic entropy discriminates better when correctness is that of the most confident meaning "
    "(SE_conf) than when it is that of a greedy answer (SE_vanilla).",
    "section 5.2",
    "AUROC of SE_conf less that of SE_vanilla, pooled over models, data sets, methods and measures, "
    "paired by question: it holds if the 95 % interval over questions lies above 0 and reaches +0.005, and "
    "that of no method by itself, at 95 % corrected for their number, lies below 0; it does not if the first "
    "lies below +0.005; else it is not decidable here. SE_conf calls a meaning right where any of up to 4 of "
    "its members is (grading.members), SE_vanilla judges one text; the difference with one member in place "
    "of several stands beside it and decides nothing.",
)
NUMBER_OF_DRAWS = Statement(
    "number of generations",
    "Calibration improves with the number of sampled answers, with most of the gain by 10 to 15 of them; "
    "AUROC hardly moves.",
    "section 5.4",
    "On the runs that were sampled at every number of draws, means over models, data sets, methods, "
    "measures: (1) ACE at the fewest draws less ACE at the most has a 95 % interval over questions above 0 "
    "(below +0.005 it fails); (2) where it has, the gain at the largest number up to 15, less two thirds of "
    "the whole, has an interval above 0 (below 0 it fails); (3) AUROC of each method at every number of "
    f"draws from 10 on, less its AUROC at the most, has an interval within ±{STABLE} (one wholly outside "
    "fails). All three must hold; to fail, an interval at 95 % corrected for the number of comparisons must "
    "lie there.",
)
METHOD_AGAINST_MEASURE = Statement(
    "method against measure",
    "The choice of calibration method moves calibration and discrimination more than the choice of semantic "
    "measure.",
    "section 6",
    "Within each model and data set the table methods × measures of ACE (and of AUROC) has variance "
    "components of method and of measure (two-way, one value a cell). The difference of their roots, "
    "averaged over models and data sets, must have a 95 % interval over questions above 0, for ACE and "
    "for AUROC; one below 0, at 95 % corrected for the two, means that it does not hold.",
)
OPEN_BOOK = Statement(
    "open book",
    "On an open-book data set, where the base model is calibrated already, TS gains in discrimination and"
    " not in calibration.",
    "section 5.1",
    "Of the open-book (model, data set) those count where Base's ACE, averaged over measures, is at most "
    "0.06. Pooled over them and their measures, (1) the benefit of TS over Base in AUROC has a 95 % "
    "interval over questions above 0 that reaches +0.005 (below it, it fails), and (2) its benefit in ACE "
    "has an interval below +0.005 (above 0 it fails); to fail, at 95 % corrected for the two.",
)
FILLER_TOKENS = Statement(
    "filler tokens",
    "ATS fits the calibration tokens better than TS, by its effect on filler tokens, and yet is worse at "
    "meanings.",
    "appendix, inductive bias",
    "Among fits by NLL, averaged over weight decays: (1) the training NLL of ATS is below that of TS; (2) "
    "the NLL that ATS saves over TS is larger on filler tokens (stop words, punctuation, end of turn) than "
    "on content tokens, per token of the validation answers; (3) TS is better than ATS in semantic Brier "
    "score, pooled as for the other claims. (1) and (2) have no interval: they hold when they do for every "
    "model and data set, and fail when they do not on average. All three must hold; a part is not decidable "
    "where its numbers are missing.",
)
ORDER_OF_TOKENS = Statement(
    "order of tokens",
    "TS and ATS keep the model's ranking of tokens, Platt does not.",
    "appendix, inductive bias",
    "Over all fits, the share of positions where another token becomes the most likely, or the ten most "
    "likely change order, is exactly 0 for TS and for ATS, and above 0 for Platt.",
)
METRICS_AGREE = Statement(
    "metrics agree",
    "Conclusions do not depend on the calibration metric: ACE, ECE and CORP-MCB rank the methods alike.",
    "appendix, calibration metrics",
    "Mean |change of rank| of a method between ACE and MCB, and between ACE and ECE, averaged over "
    "models, data sets and measures: each is less than half of what unrelated rankings would give, (K² − "
    "1) / 3K for K methods. Not decidable with fewer than three methods.",
)
INDEPENDENCE = Statement(
    "independence",
    "Calibration and discrimination are independent: neither implies the other.",
    "appendix, joint evaluation",
    "The paper's two examples, computed: equal confidences of 0.5 for one right and one wrong answer have"
    " ECE 0 and AUROC 0.5; confidences 0.9 (wrong) and 0.99 (right) have AUROC 1 and an ECE above 0.4. It"
    " is a fact of logic; the correlation of ACE and AUROC over the cells of the run stands beside it.",
)
MEASURES_DIFFER = Statement(
    "measures differ under TS",
    "At the temperatures of Base and SE the measures are nearly reparameterisations of one another; under"
    " TS they differ.",
    "appendix, correlations",
    "The correlation between two measures, averaged over pairs of measures, models and data sets, must be "
    "above 0.9 under Base and under SE, and lower under TS by more than 0.05 than under each of them, all "
    "four with the 95 % interval over questions; where one of these intervals, at 95 % corrected for the "
    "four, lies on the other side, the claim does not hold.",
)
GRADINGS_AGREE = Statement(
    "grading",
    "Grading by words agrees with grading by entailment.",
    "appendix, correctness",
    "Share of Base's selected answers (run 0) on which both agree, averaged over measures, for each model"
    " and data set: pooled over them, Wilson's 95 % interval (of as many answers as there are questions, for"
    " models answer the same ones) lies above 0.85 (below it, the claim does not hold). Published: 0.91.",
)
#: Claims that are decided without intervals over questions, however few these are.
WITHOUT_INTERVALS = tuple(one.key for one in (ORDER_OF_TOKENS, INDEPENDENCE, GRADINGS_AGREE))

# ---- Beyond the paper -------------------------------------------------------------------------------------

_SAME_ANSWERS = (
    "The same answers are clustered with normal forms and with texts as SQuAD normalises them, all else "
    "equal, and compared question by question. "
)
NORMAL_FORMS_CLUSTERS = Statement(
    "remedies, clusters",
    "Reading numbers and dates before clustering makes clusters more right.",
    "beyond the paper",
    f"{_SAME_ANSWERS}Errors saved per labelled pair, pooled over models and data sets that have such pairs: "
    "it holds if the 95 % interval over questions lies above 0, it does not if it lies below +0.005.",
)
NORMAL_FORMS_SCORES = Statement(
    "remedies, scores",
    "Reading numbers and dates before clustering makes answers more accurate, or confidence better "
    "calibrated or more discriminating.",
    "beyond the paper",
    f"{_SAME_ANSWERS}The benefits in accuracy, ACE and AUROC are pooled over models, data sets and measures. "
    "It holds if the 95 % interval over questions of one lies above 0 and that of none below; it does not if "
    "all lie below +0.005, or one below 0 and none above; else it is not decidable.",
)
