"""The contrasts behind the paper's claims: where each lies, and whether the claim holds in a run.

Methods are compared on the same questions and runs. Models share the resamples of a data set's questions,
data sets have resamples of their own, so that contrasts can be pooled over both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from semcal.experiment.analyses.grid_scores import (
    TOO_FEW,
    Floats,
    GridScores,
    PairScores,
    Record,
    Records,
    Row,
    Rows,
)
from semcal.experiment.analyses.score_analyses import QUANTITIES, SHOWN, mean_correlation
from semcal.experiment.finished import Pair
from semcal.experiment.grid_settings import CALIBRATED
from semcal.metrics import Contrast
from semcal.metrics.intervals import wilson_interval

#: Verdicts on claims, beside `TOO_FEW`.
HOLDS, FAILS, OPEN = "holds", "does not hold", "not decidable here"
#: A benefit smaller than this is none: half a point of ACE, AUROC, accuracy or Brier score.
MARGIN = 0.005
#: With fewer questions than this in a data set no interval over questions is believed.
FEWEST = 20
#: Base is calibrated where its ACE, averaged over measures, is at most this; 0.045 to 0.056 in the paper.
CALIBRATED_AT = 0.06
#: AUROC within this of its value at the most draws is stable.
STABLE = 0.03
#: The token classes that carry no content.
FILLER = ("stop word", "punctuation", "end of turn")


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and where a contrast lies if it holds: above `low` and at most at `high`."""

    text: str
    source: str  # where the paper says so
    low: float = -np.inf
    high: float = np.inf
    margin: float = 0.0  # what `low` must be exceeded by to count

    def verdict(self, low: float, high: float) -> str:
        """Whether a contrast whose interval is [low, high] lies there, lies elsewhere, or neither is shown.

        >>> gain = Claim("TS gains", "section 5", low=0.0, margin=0.005)
        >>> gain.verdict(0.01, 0.03), gain.verdict(-0.01, 0.004), gain.verdict(-0.01, 0.03)
        ('holds', 'does not hold', 'not decidable here')
        """
        if np.isnan([low, high]).any():
            return OPEN
        if high <= self.low or high < self.low + self.margin or low > self.high:
            return FAILS
        return HOLDS if low > self.low and high <= self.high else OPEN

    def row(self, contrast: str, value: float, low: float, high: float, over: str = "") -> Row:
        """A row of `claim_contrasts`; `over` says what [low, high] is an interval over, "" if it is none."""
        return {
            "claim": self.text,
            "source": self.source,
            "contrast": contrast,
            "value": value,
            "interval": [low, high] if over else None,
            "over": over,
            "region": [None if np.isinf(end) else end for end in (self.low, self.high)],
            "verdict": self.verdict(low, high),
        }

    def of_questions(
        self,
        contrast: str,
        parts: Iterable[Contrast],
        pairs: Sequence[PairScores],
        *,
        enough: bool = True,
    ) -> Rows:
        """A row of the mean of some contrasts of `pairs`, with its 95 % interval over questions, if any.

        `enough` says whether the sides compared have enough correct and wrong answers (`_have_enough`).
        """
        defined = [part for part in parts if not np.isnan(part.value)]
        if not defined:
            return []
        interval = Contrast.mean(defined).interval()
        row = self.row(contrast, interval.estimate, interval.low, interval.high, "questions")
        enough = enough and min(pair.n for pair in pairs) >= FEWEST
        return [row if enough else {**row, "verdict": TOO_FEW}]

    def of_fits(self, contrast: str, values: Sequence[float]) -> Rows:
        """A row of the mean of some values, with their range over models and data sets; none without any."""
        defined = [value for value in values if not np.isnan(value)]
        if not defined:
            return []
        mean = float(np.mean(defined))
        return [self.row(contrast, mean, min(defined), max(defined), "models and data sets")]


def _have_enough(
    pairs: Sequence[PairScores], methods: Collection[str] | None = None, outcomes: str = "correct"
) -> bool:
    """Whether each of some methods, by default all, has enough correct and wrong answers in every pair."""
    return all(
        pair.has_enough([key for key in pair.arrays if methods is None or key[0] in methods], outcomes)
        for pair in pairs
    )


def _gain(text: str, source: str) -> Claim:
    return Claim(text, source, low=0.0, margin=MARGIN)


OTHERS = ("Base", "SE", "ATS", "Platt")
#: Quantity → the claim that TS is better in it, and than which methods.
TS_CLAIMS = (
    ("ace", ("Base", "SE"), _gain("TS improves semantic calibration over Base and SE", "section 5.1")),
    ("auroc", ("Base", "SE"), _gain("TS improves discrimination over Base and SE", "section 5.1")),
    ("ace", ("ATS", "Platt"), _gain("TS is better calibrated than ATS and Platt", "section 5.1")),
    ("auroc", ("ATS", "Platt"), _gain("TS discriminates better than ATS and Platt", "section 5.1")),
    ("SE_conf", ("Base", "SE"), _gain("TS improves semantic entropy over Base and SE", "section 5.2")),
    ("gain", OTHERS, _gain("TS makes accuracy rise faster as unsure answers are rejected", "section 5.3")),
    ("accuracy", OTHERS, _gain("What it costs: answers under TS are right more often", "no claim")),
)
VARIANTS_CLAIM = _gain(
    "Entropy discriminates better for the most confident meaning (SE_conf) than for a greedy answer",
    "section 5.2",
)
DRAWS, DRAWS_SOURCE = "Calibration gains with the number of answers, mostly by 10 to 15", "section 5.4"
COMPONENTS = Claim("The method moves the results more than the measure", "section 6", low=0.0)
OPEN_BOOK = "On a calibrated open-book set TS gains in discrimination only"
FILLER_TOKENS, BIAS = "ATS overfits filler tokens and loses in meaning", "appendix, inductive bias"
KEEP_ORDER = Claim("TS and ATS keep the order of tokens", BIAS, high=0.0)
CHANGE_ORDER = Claim("Platt changes the order of tokens", BIAS, low=0.0)
ALIKE = ("Measures are nearly alike under Base and SE, and differ under TS", "appendix, correlations")
GRADINGS = Claim("Grading by words agrees with grading by entailment", "appendix, correctness", low=0.85)
CALIBRATED_GAINS = _gain("Calibrated gains over Base", "beyond the paper")


def claim_contrasts(scores: GridScores, analyses: Mapping[str, Records]) -> Rows:
    """Contrasts behind the paper's claims, each pooled over models, data sets and measures.

    {claim, source, contrast, value, interval, over, region, verdict}: `interval` is the 95 % interval over
    questions, or the range over what `over` names, or null. The claim "holds" where it lies in the region
    (above its first end, up to the second), "does not hold" where it lies outside (a benefit below
    `MARGIN` is none), and else is "not decidable here". With fewer than `FEWEST` questions in a data set, or
    fewer than ten correct or ten wrong answers of a method compared, the verdict is "too few to say". ACE of
    methods is compared above the noise floors. What a run says nothing about has no row. Of `analyses`: fits,
    volatility, agreement.
    """
    pairs = [cell.pair for cell in scores.cells.values()]
    ts_rows = [
        row
        for name, methods, claim in TS_CLAIMS
        for method in methods
        for row in _benefit(claim, pairs, name, method)
    ]
    return [
        *ts_rows,
        *_entropy_contrasts(pairs),
        *_draws_contrasts(scores, pairs),
        *_component_contrasts(pairs),
        *_open_book_contrasts(scores),
        *_token_contrasts(pairs, list(scores.cells), analyses["fits"]),
        *_rank_contrasts(analyses["volatility"]),
        *_correlation_contrasts(pairs),
        *_grading_contrasts(analyses["agreement"]),
    ]


def gain_contrasts(pairs: Mapping[Pair, PairScores], measure: str) -> Rows:
    """Rows as of `claim_contrasts`: gain of Calibrated less that of Base for each model and data set."""
    rows = []
    for (model, dataset), pair in pairs.items():
        after, before = (
            pair.resampled.contrast((method, measure), "gain") for method in (CALIBRATED, "Base")
        )
        contrast = f"gain of Calibrated less that of Base, {model} on {dataset}"
        rows += CALIBRATED_GAINS.of_questions(
            contrast, [after - before], [pair], enough=_have_enough([pair], (CALIBRATED, "Base"))
        )
    return rows


def _benefit(claim: Claim, pairs: Sequence[PairScores], name: str, against: str) -> Rows:
    """How much better TS is than a method, over models, data sets and measures: above 0 is better."""
    quantity = QUANTITIES[name]
    first, second = ("TS", against) if quantity.larger_is_better else (against, "TS")
    sign = 1.0 if quantity.larger_is_better else -1.0
    parts = [
        quantity.judged_difference(pair, measure, "TS", against) * sign
        for pair in pairs
        for measure in pair.measures_of("TS", against)
    ]
    above = ", above the noise floors" if quantity.judged_by else ""
    contrast = f"{quantity.name} of {first} less that of {second}{above}"
    enough = _have_enough(pairs, ("TS", against), quantity.outcomes)
    return claim.of_questions(contrast, parts, pairs, enough=enough)


def _entropy_contrasts(pairs: Sequence[PairScores]) -> Rows:
    parts = [
        QUANTITIES["SE_conf"].contrast(pair, *key) - QUANTITIES["SE_vanilla"].contrast(pair, *key)
        for pair in pairs
        for key in pair.arrays
    ]
    contrast = "AUROC of SE_conf less that of SE_vanilla, all methods"
    enough = _have_enough(pairs) and _have_enough(pairs, outcomes="vanilla_correct")
    return VARIANTS_CLAIM.of_questions(contrast, parts, pairs, enough=enough)


def _draws_contrasts(scores: GridScores, pairs: Sequence[PairScores]) -> Rows:
    """ACE at the fewest draws and by 15 less that at the most; AUROC of each method from 10 draws on."""
    by_draws = [at_numbers for cell in scores.cells.values() if (at_numbers := cell.by_draws)]
    numbers = sorted(set.intersection(*map(set, by_draws))) if by_draws else []
    if len(numbers) < 2:
        return []
    first, last = numbers[0], numbers[-1]
    enough = _have_enough(pairs, scores.run.methods)

    def less_last(metric: str, number: int, methods: Sequence[str]) -> list[Contrast]:
        return [
            at_numbers[number].resampled.contrast(key, metric)
            - at_numbers[last].resampled.contrast(key, metric)
            for at_numbers in by_draws
            for key in at_numbers[last].arrays
            if key[0] in methods and all(key in at_number.arrays for at_number in at_numbers.values())
        ]

    gains = less_last("ace", first, scores.run.methods)
    contrast = f"ACE at {first} draws less that at {last}"
    rows = _gain(DRAWS, DRAWS_SOURCE).of_questions(contrast, gains, pairs, enough=enough)
    middle = [number for number in numbers if 10 <= number <= 15]
    if first >= 10 or last <= 15 or not middle:
        return rows
    late_gains = less_last("ace", middle[-1], scores.run.methods)
    early = [gain * (1 / 3) - late_gain for gain, late_gain in zip(gains, late_gains)]
    contrast = f"Gain in ACE by {middle[-1]} draws less two thirds of that by {last}"
    if rows and rows[0]["verdict"] == HOLDS:  # of no gain there is no share
        rows += Claim(DRAWS, DRAWS_SOURCE, low=0.0).of_questions(contrast, early, pairs, enough=enough)
    stable = Claim("AUROC hardly moves with the number of answers", DRAWS_SOURCE, low=-STABLE, high=STABLE)
    for method in scores.run.methods:
        contrast = f"AUROC of {method} at {middle[0]} draws less that at {last}"
        changes = less_last("auroc", middle[0], [method])
        rows += stable.of_questions(contrast, changes, pairs, enough=_have_enough(pairs, [method]))
    return rows


def _component_contrasts(pairs: Sequence[PairScores]) -> Rows:
    """The root of the variance component of the method less that of the measure, for ACE and AUROC."""

    def difference_of_roots(table: list[list[Any]]) -> Floats:
        by_method, by_measure = components(np.array(table))
        difference: Floats = np.sqrt(by_method) - np.sqrt(by_measure)
        return difference

    rows = []
    for quantity in (QUANTITIES["ace"], QUANTITIES["auroc"]):
        parts = []
        for pair in pairs:
            methods = list(dict.fromkeys(method for method, _ in pair.arrays))
            measures = pair.measures_of(*methods)
            if min(len(methods), len(measures)) < 2:
                continue
            table = [[quantity.contrast(pair, method, name) for name in measures] for method in methods]
            difference = difference_of_roots([[cell.value for cell in row] for row in table])
            resampled = difference_of_roots([[cell.resampled for cell in row] for row in table])
            parts.append(Contrast(float(difference), resampled))
        contrast = f"standard deviation of {quantity.name} over methods less that over measures"
        rows += COMPONENTS.of_questions(contrast, parts, pairs, enough=_have_enough(pairs))
    return rows


def components(table: Floats) -> tuple[Floats, Floats]:
    r"""Variance components of rows and of columns of a two-way table (I, J, ...) with one value a cell.

    With I rows, J columns, mean squares of rows, columns and residuals,

    .. math:: \sigma^2_\text{rows} = \max(0, (MS_\text{rows} - MS_\text{residuals}) / J), \qquad
              \sigma^2_\text{columns} = \max(0, (MS_\text{columns} - MS_\text{residuals}) / I).
    """
    i, j = table.shape[:2]
    mean = table.mean(axis=(0, 1))
    rows, columns = table.mean(axis=1), table.mean(axis=0)
    residuals = table - rows[:, None] - columns[None] + mean
    ms_rows = j * ((rows - mean) ** 2).sum(0) / (i - 1)
    ms_columns = i * ((columns - mean) ** 2).sum(0) / (j - 1)
    ms_residuals = (residuals**2).sum((0, 1)) / ((i - 1) * (j - 1))
    return np.maximum(0.0, (ms_rows - ms_residuals) / j), np.maximum(0.0, (ms_columns - ms_residuals) / i)


def _open_book_contrasts(scores: GridScores) -> Rows:
    """TS against Base on the open-book sets on which Base is calibrated."""
    calibrated = []
    for (_, dataset), cell in scores.cells.items():
        ace = [cell.pair.by_run["Base", measure]["ace"].mean() for measure in cell.pair.measures_of("Base")]
        if scores.run.open_book(dataset) and ace and np.mean(ace) <= CALIBRATED_AT:
            calibrated.append(cell.pair)
    if not calibrated:
        return []
    no_gain = Claim(OPEN_BOOK, "section 5.1", high=MARGIN)
    return [
        *_benefit(_gain(OPEN_BOOK, "section 5.1"), calibrated, "auroc", "Base"),
        *_benefit(no_gain, calibrated, "ace", "Base"),
    ]


def _token_contrasts(pairs: Sequence[PairScores], cells: Sequence[Pair], fits: Records) -> Rows:
    """What ATS saves of the NLL of tokens, what that does to meanings, and whose fits change their order."""

    def mean_nll(cell: Pair, method: str, nll: Callable[[Record], float | None]) -> float:
        values = [
            value
            for fit in fits
            if (fit["model"], fit["dataset"], fit["method"], fit["loss"]) == (*cell, method, "NLL")
            and (value := nll(fit)) is not None
        ]
        return float(np.mean(values)) if values else float("nan")

    def saved_by_ats(nll: Callable[[Record], float | None]) -> list[float]:
        return [mean_nll(cell, "TS", nll) - mean_nll(cell, "ATS", nll) for cell in cells]

    filler = saved_by_ats(lambda fit: _class_nll(fit, FILLER))
    content = saved_by_ats(lambda fit: _class_nll(fit, ("content",)))
    claim = Claim(FILLER_TOKENS, BIAS, low=0.0)
    rows = claim.of_fits("NLL that ATS saves over TS in training", saved_by_ats(lambda fit: fit["train_nll"]))
    differences = [first - second for first, second in zip(filler, content)]
    rows += claim.of_fits("NLL that ATS saves a filler token less that a content token", differences)
    rows += _benefit(_gain(FILLER_TOKENS, BIAS), pairs, "brier", "ATS")
    for method, claim in (("TS", KEEP_ORDER), ("ATS", KEEP_ORDER), ("Platt", CHANGE_ORDER)):
        changes = [
            max(fit["top_changed"], fit["order_changed"])
            for fit in fits
            if fit["method"] == method and None not in (fit["top_changed"], fit["order_changed"])
        ]
        if changes:
            contrast = f"largest share of positions where {method} changes the order of the ten likeliest"
            rows.append(claim.row(contrast, max(changes), max(changes), max(changes)))
    return rows


def _class_nll(fit: Record, names: Sequence[str]) -> float | None:
    """Mean NLL of the tokens of some classes; None where the fit does not tell."""
    classes = [
        token_class
        for name, token_class in (fit["classes"] or {}).items()
        if name in names and token_class["share"] and token_class["nll"] is not None
    ]
    shares = [token_class["share"] for token_class in classes]
    return float(np.average([row["nll"] for row in classes], weights=shares)) if classes else None


def _rank_contrasts(volatility: Records) -> Rows:
    """Mean change of rank between metrics; with fewer than three methods there is nothing to rank."""
    rows = []
    for metrics in dict.fromkeys(tuple(row["metrics"]) for row in volatility if len(row["per_method"]) > 2):
        means = np.array([row["mean"] for row in volatility if tuple(row["metrics"]) == metrics])
        chance = min(row["chance"] for row in volatility)
        claim = Claim("ACE, ECE and MCB rank the methods alike", "appendix, metrics", high=chance / 2)
        names = " to ".join(metric.upper() for metric in metrics)
        if not np.isnan(means).all():
            mean = float(np.nanmean(means))
            rows.append(claim.row(f"mean change of rank from {names}", mean, mean, mean))
    return rows


def _correlation_contrasts(pairs: Sequence[PairScores]) -> Rows:
    """Mean correlation of the measures where all of them vary under Base, SE and TS alike."""
    correlations = [[mean_correlation(pair, method) for method in SHOWN] for pair in pairs]
    defined = [parts for parts in correlations if None not in parts]
    if not defined:
        return []
    base, se, ts = (Contrast.mean(part for part in parts if part) for parts in zip(*defined))
    high, apart = (Claim(*ALIKE, low=low) for low in (0.9, 0.05))
    return [
        *high.of_questions("mean correlation of the measures under Base", [base], pairs),
        *high.of_questions("mean correlation of the measures under SE", [se], pairs),
        *apart.of_questions("mean correlation under Base less that under TS", [base - ts], pairs),
        *apart.of_questions("mean correlation under SE less that under TS", [se - ts], pairs),
    ]


def wilson(share: float, n: int, *, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share.

    >>> low, high = wilson(0.91, 500)
    >>> round(low, 4), round(high, 4)
    (0.8818, 0.9321)
    """
    deviation = math.sqrt(max(share * (1 - share), 0.0))  # a mean of shares may be 1 + 2e-16
    return wilson_interval(share, deviation / math.sqrt(n), n, level)


def _grading_contrasts(agreement: Records) -> Rows:
    """Agreement of the two gradings with Wilson's interval; models answer the same questions."""
    graded = [row for row in agreement if row["n"]]
    if not graded:
        return []
    sizes = {(row["model"], row["dataset"]): row["n"] for row in graded}
    means = [
        np.mean([row["agreement"] for row in graded if (row["model"], row["dataset"]) == pair])
        for pair in sizes
    ]
    share = float(np.average(means, weights=list(sizes.values())))
    largest = {name: max(n for (_, dataset), n in sizes.items() if dataset == name) for _, name in sizes}
    low, high = wilson(share, sum(largest.values()))
    contrast = "share of Base's answers on which both gradings agree (published: 0.91)"
    return [GRADINGS.row(contrast, share, low, high, "questions")]
