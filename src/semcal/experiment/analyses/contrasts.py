"""The paper's claims as contrasts of scores on the same questions, each with an interval and a verdict.

Models share the resamples of a data set's questions, and data sets have separate resamples, so that contrasts
can be pooled over both. Claims that are not differences of scores have their own tables: ranks (11), the
order of tokens (fits), gradings (13), correlations (figure 10).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from semcal.arrays import Floats
from semcal.experiment.analyses.grid_scores import TOO_FEW, PairScores, ScoreRows
from semcal.experiment.analyses.score_analyses import QUANTITIES
from semcal.experiment.finished import FinishedRun, ModelDataset
from semcal.experiment.grid_settings import CALIBRATED
from semcal.metrics import Contrast

#: Verdicts on claims, beside `TOO_FEW`.
HOLDS, FAILS, OPEN = "holds", "does not hold", "not decidable here"
#: Minimum benefit: half a point of ACE, AUROC, accuracy or Brier score.
MARGIN = 0.005
#: Minimum number of questions in a data set for an interval over questions.
FEWEST = 20
#: Maximum ACE of a calibrated Base, averaged over measures; 0.045 to 0.056 in the paper.
CALIBRATED_AT = 0.06
#: Maximum change of a stable AUROC from its value at the largest number of samples.
STABLE = 0.03


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and the region of a contrast if it holds: above `low` and at most `high`."""

    text: str
    source: str  # section of the paper
    low: float = -np.inf
    high: float = np.inf
    margin: float = 0.0  # minimum distance above `low`

    def verdict(self, low: float, high: float) -> str:
        """Return the verdict on a contrast with the interval [low, high].

        >>> gain = Claim("TS gains", "section 5", low=0.0, margin=0.005)
        >>> gain.verdict(0.01, 0.03), gain.verdict(-0.01, 0.004), gain.verdict(-0.01, 0.03)
        ('holds', 'does not hold', 'not decidable here')
        """
        if np.isnan([low, high]).any():
            return OPEN
        if high <= self.low or high < self.low + self.margin or low > self.high:
            return FAILS
        return HOLDS if low > self.low and high <= self.high else OPEN

    def rows(self, contrast: str, parts: Iterable[Contrast], *, enough: bool) -> ScoreRows:
        """Return a row for the mean of contrasts with its 95% interval over questions; none without any.

        `enough` is true if the compared sides have enough questions (`_have_enough`).
        """
        defined = [part for part in parts if not np.isnan(part.value)]
        if not defined:
            return []
        interval = Contrast.mean(defined).interval()
        row = {
            "claim": self.text,
            "source": self.source,
            "contrast": contrast,
            "value": interval.estimate,
            "interval": [interval.low, interval.high],
            "region": [None if np.isinf(end) else end for end in (self.low, self.high)],
            "verdict": self.verdict(interval.low, interval.high) if enough else TOO_FEW,
        }
        return [row]


def _have_enough(
    pairs: Sequence[PairScores], methods: Collection[str] | None = None, outcomes: str = "correct"
) -> bool:
    return all(
        pair.n >= FEWEST
        and pair.has_enough([key for key in pair.arrays if methods is None or key[0] in methods], outcomes)
        for pair in pairs
    )


def _gain(text: str, source: str) -> Claim:
    return Claim(text, source, low=0.0, margin=MARGIN)


OTHERS = ("Base", "SE", "ATS", "Platt")
#: Quantity, methods that TS should exceed in it, and the claim.
TS_CLAIMS = (
    ("ace", ("Base", "SE"), _gain("TS improves semantic calibration over Base and SE", "section 5.1")),
    ("auroc", ("Base", "SE"), _gain("TS improves discrimination over Base and SE", "section 5.1")),
    ("ace", ("ATS", "Platt"), _gain("TS is better calibrated than ATS and Platt", "section 5.1")),
    ("auroc", ("ATS", "Platt"), _gain("TS discriminates better than ATS and Platt", "section 5.1")),
    ("SE_conf", ("Base", "SE"), _gain("TS improves semantic entropy over Base and SE", "section 5.2")),
    ("gain", OTHERS, _gain("TS makes accuracy rise faster as unsure answers are rejected", "section 5.3")),
    ("accuracy", OTHERS, _gain("Cost: answers with TS are right more often", "no claim")),
    ("brier", ("ATS",), _gain("ATS fits tokens better and loses in meaning", "appendix, inductive bias")),
)
VARIANTS_CLAIM = _gain(
    "Entropy discriminates better for the most confident meaning (SE_conf) than for a greedy answer",
    "section 5.2",
)
DRAWS = _gain("Calibration gains with the number of answers", "section 5.4")
STEADY = Claim("AUROC hardly moves with the number of answers", "section 5.4", low=-STABLE, high=STABLE)
COMPONENTS = Claim("The method moves the results more than the measure", "section 6", low=0.0)
OPEN_BOOK = "On a calibrated open-book set TS gains in discrimination only"
CALIBRATED_GAINS = _gain("Calibrated gains over Base", "beyond the paper")


def claim_contrasts(
    run: FinishedRun,
    pairs: Mapping[ModelDataset, PairScores],
    by_draws: Sequence[Mapping[int, PairScores]] = (),
) -> ScoreRows:
    """Compute the contrasts behind the paper's claims, pooled over models, data sets and measures.

    `by_draws` holds the scores of each model and data set at each number of samples, if there are several.

    Rows are {claim, source, contrast, value, interval, region, verdict}; `interval` is the 95% interval over
    questions. The claim "holds" if the interval lies in the region (above its first end, up to the second),
    "does not hold" if it lies outside (benefits below `MARGIN` do not count), and otherwise is "not decidable
    here". With fewer than `FEWEST` questions in a data set, or fewer than ten correct or ten wrong answers of
    a compared method, the verdict is "too few to say". ACE of methods is compared above the noise floors.
    Claims that do not apply to a run have no row.
    """
    several = list(pairs.values())
    rows = [
        row
        for name, methods, claim in TS_CLAIMS
        for method in methods
        for row in _benefit(claim, several, name, method)
    ]
    rows += [*_entropy(several), *_draws(run.methods, several, by_draws), *_components(several)]
    calibrated = []
    for (_, dataset), pair in pairs.items():
        ace = [pair.by_run["Base", measure]["ace"].mean() for measure in pair.measures_of("Base")]
        if run.open_book(dataset) and ace and np.mean(ace) <= CALIBRATED_AT:
            calibrated.append(pair)
    rows += _benefit(_gain(OPEN_BOOK, "section 5.1"), calibrated, "auroc", "Base")
    return rows + _benefit(Claim(OPEN_BOOK, "section 5.1", high=MARGIN), calibrated, "ace", "Base")


def gain_contrasts(pairs: Mapping[ModelDataset, PairScores], measure: str) -> ScoreRows:
    """Return rows as in `claim_contrasts`: gain of Calibrated minus that of Base by model and data set."""
    rows = []
    for (model, dataset), pair in pairs.items():
        after, before = (
            pair.resampled.contrast((method, measure), "gain") for method in (CALIBRATED, "Base")
        )
        contrast = f"gain of Calibrated less that of Base, {model} on {dataset}"
        enough = _have_enough([pair], (CALIBRATED, "Base"))
        rows += CALIBRATED_GAINS.rows(contrast, [after - before], enough=enough)
    return rows


def _benefit(claim: Claim, pairs: Sequence[PairScores], name: str, against: str) -> ScoreRows:
    """Return the benefit of TS over a method across models, data sets and measures; positive is better."""
    quantity = QUANTITIES[name]
    first, second, sign = ("TS", against, 1.0) if quantity.larger_is_better else (against, "TS", -1.0)
    parts = [
        quantity.judged_difference(pair, measure, "TS", against) * sign
        for pair in pairs
        for measure in pair.measures_of("TS", against)
    ]
    above = ", above the noise floors" if quantity.judged_by else ""
    contrast = f"{quantity.name} of {first} less that of {second}{above}"
    return claim.rows(contrast, parts, enough=_have_enough(pairs, ("TS", against), quantity.outcomes))


def _entropy(pairs: Sequence[PairScores]) -> ScoreRows:
    parts = [
        QUANTITIES["SE_conf"].contrast(pair, *key) - QUANTITIES["SE_vanilla"].contrast(pair, *key)
        for pair in pairs
        for key in pair.arrays
    ]
    enough = _have_enough(pairs) and _have_enough(pairs, outcomes="vanilla_correct")
    return VARIANTS_CLAIM.rows("AUROC of SE_conf less that of SE_vanilla, all methods", parts, enough=enough)


def _draws(
    methods: Sequence[str], pairs: Sequence[PairScores], by_draws: Sequence[Mapping[int, PairScores]]
) -> ScoreRows:
    """Return ACE at the fewest samples minus that at the most, and AUROC of methods from 10 samples."""
    numbers = sorted(set.intersection(*map(set, by_draws))) if by_draws else []
    if len(numbers) < 2:
        return []
    first, last = numbers[0], numbers[-1]

    def less_last(metric: str, number: int, methods: Sequence[str]) -> list[Contrast]:
        return [
            at_numbers[number].resampled.contrast(key, metric)
            - at_numbers[last].resampled.contrast(key, metric)
            for at_numbers in by_draws
            for key in at_numbers[last].arrays
            if key[0] in methods and all(key in at_number.arrays for at_number in at_numbers.values())
        ]

    contrast = f"ACE at {first} draws less that at {last}"
    rows = DRAWS.rows(contrast, less_last("ace", first, methods), enough=_have_enough(pairs, methods))
    start = min(number for number in (*numbers, last) if number >= min(10, last))
    for method in methods if start < last else ():
        contrast = f"AUROC of {method} at {start} draws less that at {last}"
        parts = less_last("auroc", start, [method])
        rows += STEADY.rows(contrast, parts, enough=_have_enough(pairs, [method]))
    return rows


def _components(pairs: Sequence[PairScores]) -> ScoreRows:
    """Return the root of the variance component of methods minus that of measures, for ACE and AUROC."""

    def difference_of_roots(table: list[list[Any]]) -> Any:
        by_method, by_measure = components(np.array(table))
        return np.sqrt(by_method) - np.sqrt(by_measure)

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
        rows += COMPONENTS.rows(contrast, parts, enough=_have_enough(pairs))
    return rows


def components(table: Floats) -> tuple[Floats, Floats]:
    r"""Return variance components of rows and columns of a two-way table (I, J, ...), one value per cell.

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
