"""Maps from features of a question to the probability that its answer is correct (spec section 11).

Labeled answers fit the maps; the cross-validated gain chooses between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semcal.arrays import Floats
from semcal.errors import InputError, shown
from semcal.metrics.frequencies import Groups, probability_table

#: Folds of a cross-validation, and its repetitions with other folds.
FOLDS, REPEATS = 5, 4
#: Largest number of answers that a map is fitted to in a cross-validation; of more answers one is enough.
MOST = 10_000
#: The squeeze s of confidences: the logarithm of s + (1 - 2s) p is finite for 0 and 1. A confidence of 1 is
#: frequent (all m samples agree), and with s = 1e-6 such answers bend the whole curve (Smithson and Verkuilen
#: 2006, A better lemon squeezer?, Psychological Methods 11).
SQUEEZE = 0.01
#: Minimum numbers of correct and of wrong answers for the simplest maps, and for all maps.
FEW, PLENTY = 5, 10
#: Minimum number of labeled answers that support a probability, and decimals of a map's values there.
SUPPORT, DECIMALS = 10, 9
#: Minimum weight of a map in an average, except for the map with the highest gain.
SLIGHT = 0.02
#: Weight of half the squared norm of the slopes, added to the summed log loss.
RIDGE = 3.0
#: Weight of half the squared logarithm of the slope b of a move: a normal prior with deviation 0.5. Slopes b
#: and 1/b are equally likely, since a move back has the slope 1/b. The logarithm is at most `STEEP`.
NEAR_ONE, STEEP = 4.0, 5.0
#: Probabilities are kept from 0 and 1 by this before their logit is taken.
INSIDE = 1e-9
#: Newton's method stops if no slope of the loss is above `FLAT`, or after `STEPS` steps.
FLAT, STEPS, HALVINGS = 1e-9, 100, 40
#: Added to the curvature, which rounds to 0 where all scores are far from 0.
TINY = 1e-12
#: Gains that differ by less are tied.
TIE = 1e-12
#: The feature with the log odds of correct answers of a category, and the columns of category and group codes
#: that it is computed from. `PRIOR` answers of the overall rate are added to each category.
RATE, CATEGORY, GROUP, PRIOR = "field rate", "field", "document", 5.0

Features = Mapping[str, Floats]
"""Name → (N,) values; NaN for a missing feature."""


def _logarithms(p: Floats) -> Floats:
    """ln p' and -ln(1 - p') of p' = s + (1 - 2s) p: (N, 2)."""
    p = SQUEEZE + (1 - 2 * SQUEEZE) * p
    return np.stack([np.log(p), -np.log1p(-p)], axis=1)


class _Kind(NamedTuple):
    """A kind of map, fitted to values (N, F), outcomes (N,) and directions (F,) of the features."""

    parameters: tuple[str, ...]
    fit: Callable[[Floats, Floats, Floats], tuple[Floats, ...]]
    predict: Callable[[Floats, Mapping[str, Floats]], Floats]


def _fit_isotonic(values: Floats, correct: Floats, _: Floats) -> tuple[Floats, ...]:
    """Distinct values (U,), and the isotonic regression of the outcomes at each (U,)."""
    table = probability_table(values[:, 0], correct)
    return table.value, table.isotonic[0]


def _fit_logistic(values: Floats, correct: Floats, directions: Floats) -> tuple[Floats, ...]:
    """Fit slopes (F,) and intercept by penalized maximum likelihood to standardized features.

    Direction 1 forbids negative slopes, -1 positive slopes. The convex problem has one optimum.
    """
    mean, scale = values.mean(0), values.std(0)
    scale = np.where(scale > 1e-9 * np.maximum(1, np.abs(mean)), scale, np.inf)  # a constant has no say
    slopes, intercept = fit_slopes((values - mean) / scale, correct, directions, RIDGE)
    return slopes / scale, np.array([intercept - (slopes / scale) @ mean])


def fit_slopes(values: Floats, correct: Floats, directions: Floats, ridge: float) -> tuple[Floats, float]:
    """Fit slopes (F,) of values (N, F) with this weight of half their squared norm, and an intercept."""
    x = np.column_stack([values, np.ones(len(values))])
    correct, weights = _of_both_kinds(correct), np.append(np.full(len(directions), ridge), 0.0)

    def loss(theta: Floats) -> tuple[float, Floats, Floats]:
        return _log_loss(x @ theta, x, theta, correct, weights)

    start = np.append(np.zeros(len(directions)), _logit(correct.mean()))  # elsewhere the loss may be flat
    low = np.append(np.where(directions > 0, 0.0, -np.inf), -np.inf)
    high = np.append(np.where(directions < 0, 0.0, np.inf), np.inf)
    theta = _least(loss, start, low, high)
    return theta[:-1], float(theta[-1])


def _of_both_kinds(correct: Floats) -> Floats:
    """Return the outcomes, or a constant for outcomes of one kind, which no finite intercept fits."""
    right, n = correct.sum(), len(correct)
    return np.full(n, (right + 1) / (n + 2)) if right in (0, n) else correct


def _log_loss(
    score: Floats, slopes: Floats, theta: Floats, correct: Floats, weights: Floats
) -> tuple[float, Floats, Floats]:
    """Penalized log loss of scores (N,), its gradient, and its expected curvature.

    `slopes` (N, F) are the derivatives of the scores by the parameters (F,); `weights` are (F,).
    """
    e = np.exp(-np.abs(score))  # for log(1 + exp(score)) and for expit(score)
    q = np.where(score < 0, e, 1.0) / (1 + e)
    value = (np.maximum(score, 0) + np.log1p(e) - correct * score).sum() + (weights * theta**2).sum() / 2
    curvature = (slopes.T * (q * (1 - q))) @ slopes + np.diag(weights)
    return float(value), (q - correct) @ slopes + weights * theta, curvature


def _least(
    loss: Callable[[Floats], tuple[float, Floats, Floats]], theta: Floats, low: Floats, high: Floats
) -> Floats:
    """Minimize a loss within bounds, given its gradient and a positive curvature.

    Projected Newton steps (Bertsekas 1982, doi:10.1137/0320018) are halved until the loss falls.
    """
    value, gradient, curvature = loss(theta)
    for _ in range(STEPS):
        free = ~((theta <= low) & (gradient > 0) | (theta >= high) & (gradient < 0))
        if np.abs(gradient[free]).max(initial=0.0) < FLAT:
            break
        step = np.zeros_like(theta)
        within = curvature[np.ix_(free, free)] + TINY * np.eye(free.sum())
        step[free] = -np.linalg.solve(within, gradient[free])
        for _ in range(HALVINGS):
            there = np.clip(theta + step, low, high)
            reached = loss(there)
            if reached[0] <= value + 1e-4 * gradient @ (there - theta) + 1e-14 * abs(value):  # and rounding
                break
            step /= 2
        theta, (value, gradient, curvature) = there, reached
    return theta


def expit(x: Floats) -> Floats:
    """1 / (1 + exp(-x)), without `scipy.special`, which takes 0.3 s to import."""
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, 1.0) / (1 + e))


def _logit(p: Floats) -> Floats:
    return np.asarray(np.log(p) - np.log1p(-p))


def _predict_logistic(values: Floats, parameters: Mapping[str, Floats]) -> Floats:
    return expit(values @ parameters["slopes"] + parameters["intercept"])


def _fit_beta(values: Floats, correct: Floats, _: Floats) -> tuple[Floats, ...]:
    """Beta calibration (Kull, Silva Filho and Flach 2017): logit q = a ln p' - b ln(1 - p') + c, a, b >= 0.

    The fit is the logistic regression on two logarithms, with its prior.
    """
    slopes, c = _fit_logistic(_logarithms(values[:, 0]), correct, np.ones(2))
    return slopes[:1], slopes[1:], c


def _predict_beta(values: Floats, parameters: Mapping[str, Floats]) -> Floats:
    slopes = np.concatenate([parameters["a"], parameters["b"]])
    return _predict_logistic(_logarithms(values[:, 0]), {"slopes": slopes, "intercept": parameters["c"]})


#: The kinds of maps, simplest first.
KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        "none": _Kind((), lambda *_: (), lambda values, _: values[:, 0]),
        "constant": _Kind(
            ("value",),
            lambda _, correct, __: (np.array([(correct.sum() + 1) / (len(correct) + 2)]),),
            lambda values, parameters: 0 * values[:, 0] + parameters["value"],
        ),
        "beta": _Kind(("a", "b", "c"), _fit_beta, _predict_beta),
        "isotonic": _Kind(
            ("thresholds", "values"),
            _fit_isotonic,
            lambda values, at: np.asarray(np.interp(values[:, 0], at["thresholds"], at["values"])),
        ),
        "logistic": _Kind(("slopes", "intercept"), _fit_logistic, _predict_logistic),
    }
)


@dataclass(frozen=True)
class MapCandidate:
    """A kind of map and its features: one or more for "logistic", one for every other kind."""

    kind: str
    features: tuple[str, ...]
    probabilities: tuple[str, ...] = ()  # features in [0, 1], which "logistic" transforms to logits
    rising: tuple[str, ...] = ()  # features without a negative slope in "logistic"
    falling: tuple[str, ...] = ()  # features without a positive slope in "logistic"
    fewest: int = PLENTY  # minimum number of correct, and of wrong answers
    #: A higher tier must gain a standard error more than the best of the lower tiers; a map of a tier below 0
    #: must only gain more.
    tier: int = 0

    @property
    def name(self) -> str:
        """The kind with its features."""
        return f"{self.kind}({', '.join(self.features)})"

    def columns(self, features: Features) -> Floats:
        """Return the features (N, F) that the map reads."""
        columns = [features[name] for name in self.features]
        for place, name in enumerate(self.features):
            if self.kind == "logistic" and name in self.probabilities:
                columns[place] = _logit(SQUEEZE + (1 - 2 * SQUEEZE) * columns[place])
        return np.stack(columns, axis=1)

    def fit(self, features: Features, correct: Floats) -> ProbabilityMap:
        """Fit the map to N questions and their outcomes (N,), 0 or 1; all but "constant" need both."""
        rates = {}
        if RATE in self.features:
            own, by_category = _field_rates(features[CATEGORY], features[GROUP], correct)
            features, rates = {**features, RATE: own}, {"rates": tuple(map(float, by_category))}
        columns = self.columns(features)
        defined = ~np.isnan(columns)
        unknown = [float(column[k].mean()) if k.any() else 0.0 for column, k in zip(columns.T, defined.T)]
        directions = np.array(
            [(name in self.rising) - (name in self.falling) for name in self.features], float
        )
        learned = KINDS[self.kind].fit(np.where(defined, columns, unknown), correct, directions)
        numbers = (tuple(value.tolist()) for value in learned)
        parameters = dict(zip(KINDS[self.kind].parameters, numbers)) | rates
        fitted = ProbabilityMap(self, parameters, tuple(unknown))
        if self.kind in ("none", "constant"):
            return fitted
        return replace(fitted, support=Support.of(fitted.values(features), correct))


def _field_rates(category: Floats, group: Floats, correct: Floats) -> tuple[Floats, Floats]:
    """Return the rate of each answer's category (N,) without its own group, and of each category (C + 1,).

    The rate of a category with r of n answers correct is log((r + 5 g) / (n - r + 5 (1 - g))), with g the
    overall rate. The last entry is the rate of a category without answers.
    """
    code, unit = category.astype(np.intp), np.unique(group, return_inverse=True)[1]
    n_codes, n_units = int(code.max(initial=-1)) + 2, int(unit.max(initial=-1)) + 1
    n, right = np.zeros((2, n_codes, n_units))
    np.add.at(n, (code, unit), 1.0)
    np.add.at(right, (code, unit), correct)

    def rates(n: Floats, right: Floats, n_all: Floats, right_all: Floats) -> Floats:
        g = (right_all + 0.5) / (n_all + 1)  # finite if all are correct, or none
        return np.asarray(np.log(right + PRIOR * g) - np.log(n - right + PRIOR * (1 - g)))

    without = [total.sum(1, keepdims=True) - total for total in (n, right)]  # (C + 1, G)
    own = rates(*without, *(total.sum() - total.sum(0) for total in (n, right)))
    return own[code, unit], rates(n.sum(1), right.sum(1), n.sum(), right.sum())


@dataclass(frozen=True)
class Support:
    """Cap and floor of a map's values f that labeled answers support, as rising steps.

    S(w) is (r + 1) / (n + 2) over the n >= 10 labeled answers with f >= w, of which r are correct; L(w) is
    that over f <= w. The cap is the largest S(w) with w <= f, the floor the smallest L(w) with w >= f.
    """

    cap_at: tuple[float, ...]  # cap[k] holds up to cap_at[k], the last one also beyond
    cap: tuple[float, ...]
    floor_at: tuple[float, ...]  # floor[k] holds from floor_at[k] on, the first one also below
    floor: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.cap_at) == len(self.cap) > 0 < len(self.floor) == len(self.floor_at):
            raise InputError("the support of a map must have a cap and a floor, as many as their places")

    @classmethod
    def of(cls, f: Floats, correct: Floats) -> Support:
        """Compute the support from a map's values (N,) and the outcomes (N,) of its fit."""
        at, place = np.unique(np.round(f, DECIMALS), return_inverse=True)
        n, right = np.bincount(place, np.ones(len(f))), np.bincount(place, correct)
        cap = np.maximum.accumulate(_shares(right[::-1], n[::-1])[::-1])
        floor = np.minimum.accumulate(_shares(right, n)[::-1])[::-1]
        last, first = np.append(np.diff(cap) != 0, True), np.append(True, np.diff(floor) != 0)
        steps = (at[last], cap[last], at[first], floor[first])
        return cls(*(tuple(column.tolist()) for column in steps))

    def clip(self, f: Floats) -> Floats:
        """Clip the values (N,) between floor and cap."""
        order = np.argsort(f)  # a search for ascending values is twice as fast
        where, clipped = np.round(f[order], DECIMALS), np.empty_like(f)
        below = np.searchsorted(self.cap_at, where).clip(max=len(self.cap) - 1)
        above = np.searchsorted(self.floor_at, where, side="right").clip(min=1) - 1
        clipped[order] = np.clip(f[order], np.array(self.floor)[above], np.array(self.cap)[below])
        return clipped


def _shares(rights: NDArray[Any], counts: NDArray[Any]) -> Floats:
    """(r + 1) / (n + 2) of the first 1, 2, … groups of answers; of all answers if these are too few."""
    r, n = np.cumsum(rights), np.cumsum(counts)
    shares: Floats = (np.where(n >= SUPPORT, r, r[-1]) + 1) / (np.where(n >= SUPPORT, n, n[-1]) + 2)
    return shares


@dataclass(frozen=True)
class ProbabilityMap:
    """A fitted map, alone or averaged with others.

    InputError if the kind is unknown, a parameter is missing or has another length, or the weights are
    invalid.
    """

    candidate: MapCandidate
    parameters: Mapping[str, tuple[float, ...]]
    unknown: tuple[float, ...]  # replaces a missing feature: its mean in the fit
    support: Support | None = None
    others: tuple[ProbabilityMap, ...] = ()  # further maps in the average
    weights: tuple[float, ...] = ()  # weights of the others; the rest is the weight of this map

    def __post_init__(self) -> None:
        candidate = self.candidate
        if len(self.others) != len(self.weights) or min(self.weights, default=0) < 0 or sum(self.weights) > 1:
            raise InputError(f"a map averaged with {len(self.others)} others has the weights {self.weights}")
        if candidate.kind not in KINDS:
            raise InputError(f"unknown kind of map {shown(candidate.kind)}; known: {', '.join(KINDS)}")
        count = len(candidate.features)
        lengths = {name: len(value) for name, value in self.parameters.items()}
        expected = dict.fromkeys(KINDS[candidate.kind].parameters, 1)
        if RATE in candidate.features:
            expected["rates"] = max(lengths.get("rates", 0), 1)
        if candidate.kind == "logistic":
            expected["slopes"] = count
        if candidate.kind == "isotonic":
            points = lengths.get("thresholds", 0)
            expected = {"thresholds": max(points, 1), "values": max(points, 1)}
        right_count = count >= 1 if candidate.kind == "logistic" else count == 1
        if lengths != expected or len(self.unknown) != count or not right_count:
            raise InputError(
                f"the map {candidate.name} has parameters of the lengths {lengths} and {len(self.unknown)} "
                f"values for unknown features; expected {expected} and {count}"
            )

    @property
    def features(self) -> list[str]:
        """The features of this map and the others."""
        return list(dict.fromkeys(name for one in (self, *self.others) for name in one.candidate.features))

    def weight_of(self, candidate: MapCandidate) -> float:
        """Return the weight of a candidate in the average."""
        of_others = {other.candidate: weight for other, weight in zip(self.others, self.weights)}
        return 1 - sum(self.weights) if candidate == self.candidate else of_others.get(candidate, 0.0)

    def predict(self, features: Features) -> Floats:
        """Return the probabilities (N,) that answers are right."""
        if RATE in self.candidate.features:
            rates = np.array(self.parameters["rates"])
            code = features[CATEGORY].astype(np.intp)
            seen = (code >= 0) & (code < len(rates) - 1)
            features = {**features, RATE: rates[np.where(seen, code, -1)]}
        f = self.values(features)
        f = f if self.support is None else self.support.clip(f)
        others = ((w, other.predict(features)) for w, other in zip(self.weights, self.others))
        return sum((w * p for w, p in others), (1 - sum(self.weights)) * f)

    def values(self, features: Features) -> Floats:
        """Return the values (N,) of the map itself, before support and average, given every feature."""
        candidate = self.candidate
        columns = candidate.columns(features)
        values = np.where(np.isnan(columns), self.unknown, columns)
        parameters = {name: np.array(value) for name, value in self.parameters.items()}
        return np.clip(KINDS[candidate.kind].predict(values, parameters), 0.0, 1.0)

    def scores(self, features: Features) -> Floats:
        """Return the scores (N,) that order the answers: the probabilities, or the feature of a constant."""
        if self.candidate.kind != "constant":
            return self.predict(features)
        values = features[self.candidate.features[0]]
        return np.where(np.isnan(values), self.unknown[0], values)


@dataclass(frozen=True)
class Move:
    """A change of probabilities for new data: logit p becomes a + b logit p, within cap and floor.

    The labels of the new data fit the intercept a and the slope b > 0 by penalized maximum likelihood, with a
    normal prior of ln b at 0 (Cox 1958, Two further applications of a model for binary regression, Biometrika
    45).
    """

    intercept: float
    slope: float
    support: Support | None = None

    @classmethod
    def of(cls, p: Floats, correct: Floats) -> Move:
        """Fit the move of probabilities (N,) to outcomes (N,)."""
        x, outcomes, bound = _inner_logit(p), _of_both_kinds(correct), np.array([STEEP, np.inf])

        def loss(theta: Floats) -> tuple[float, Floats, Floats]:
            scaled = np.exp(theta[0]) * x
            slopes = np.column_stack([scaled, np.ones(len(x))])
            return _log_loss(scaled + theta[1], slopes, theta, outcomes, np.array([NEAR_ONE, 0.0]))

        start = np.array([0.0, float(_logit(outcomes.mean()) - x.mean())])
        log_slope, intercept = _least(loss, start, -bound, bound)
        bare = cls(float(intercept), float(np.exp(log_slope)))
        return replace(bare, support=Support.of(bare.apply(p), correct))

    def apply(self, p: Floats) -> Floats:
        """Return the moved probabilities (N,)."""
        moved = expit(self.intercept + self.slope * _inner_logit(p))
        return moved if self.support is None else self.support.clip(moved)


def _inner_logit(p: Floats) -> Floats:
    return _logit(np.clip(p, INSIDE, 1 - INSIDE))


@dataclass(frozen=True)
class MapScore:
    """The cross-validated gain of one candidate, and its difference to the gain without a map."""

    candidate: MapCandidate
    gain: float
    above: float  # without "none", the difference to the gain of the constant
    standard_error: float  # of `above`, paired over questions or groups
    gains: Floats = field(repr=False, compare=False)  # (N,) of the questions


@dataclass(frozen=True)
class MapChoice:
    """The chosen map, fitted to all questions, and the scores of all candidates."""

    map: ProbabilityMap
    scores: tuple[MapScore, ...]

    @property
    def score(self) -> MapScore:
        """The score of the chosen map."""
        return next(score for score in self.scores if score.candidate == self.map.candidate)


class Labelled(NamedTuple):
    """Labeled answers of one kind to N questions: features, correctness (N,) and candidate maps."""

    features: Features
    correct: Floats
    candidates: Sequence[MapCandidate]

    def part(self, chosen: NDArray[np.bool_]) -> Labelled:
        """Return the answers to some of the questions."""
        return Labelled(part_of(self.features, chosen), self.correct[chosen], self.candidates)


def choose_map(
    features: Features,
    correct: Floats,
    candidates: Sequence[MapCandidate],
    *,
    groups: Groups | None = None,
    seed: int = 0,
    repeats: int = REPEATS,
) -> MapChoice:
    """Choose the candidate with the highest cross-validated gain, fit it to all questions, and average it.

    `features` (N,) are those of the candidates, and `correct` (N,) is 0 or 1. Questions of one of the
    `groups` (N,) stay in one fold. The gain of a question is 2pc − p² (:func:`semcal.metrics.gain`), averaged
    over `repeats` cross-validations of 5 folds with random seed `seed`. Of more than 10,000 questions, one
    cross-validation is made, with maps of 10,000 random questions.

    Candidates are sorted from simple to complex, with "none" first. The constant (r + 1) / (N + 2), with r
    correct answers, is added. "none" wins if it gains more than the constant, and no other candidate is above
    both by more than one standard error of the paired difference. A candidate of a higher tier must also be
    as far above the best of the lower tiers. With fewer than 5 correct or wrong answers, or 5 groups, the
    constant is chosen. With fewer than 10, "none" is excluded; if its `fewest` exceeds N, it is not tried.
    Labeled answers limit the probabilities of the chosen map (:class:`Support`), also of "none".

    The best of a few maps is overconfident. It is therefore averaged with maps of its tier and below, if
    these use only its features and those of the lowest tier. The weights exp(N gain / 2) are the exponential
    weights of the square loss, with which an average is never much worse than the best map (Kivinen and
    Warmuth 1999, Averaging expert predictions, EuroCOLT). A constant is neither averaged nor in an average.
    """
    none, *maps = candidates
    rarer = min(correct.sum(), (1 - correct).sum()) if _units(correct, groups) >= FOLDS else 0
    plain = [none, replace(none, kind="constant")][none.fewest > len(correct) :]
    tried = [*plain, *(trial for trial in maps if trial.fewest <= rarer)]
    scores = _scores(features, correct, tried, groups, np.random.default_rng(seed), repeats)
    use_none = rarer >= none.fewest
    best = _best(scores, groups, use_none=use_none)
    left_out = {"constant"} if use_none else {"constant", "none"}  # a constant draws all to the accuracy
    kept = _weights(best, [one for one in scores if one.candidate.kind not in left_out], len(correct))
    others = [candidate for candidate in kept if candidate != best]
    averaged = replace(
        _supported(best, features, correct),
        others=tuple(_supported(candidate, features, correct) for candidate in others),
        weights=tuple(kept[candidate] for candidate in others),
    )
    return MapChoice(averaged, scores)


def _weights(best: MapCandidate, scores: Sequence[MapScore], n: int) -> dict[MapCandidate, float]:
    if best.kind == "constant":
        return {best: 1.0}
    # an average uses no features that cost samples, signals or columns, unless the best map does
    lowest = [score.candidate for score in scores if not score.candidate.tier]
    known = {name for candidate in (best, *lowest) for name in candidate.features}
    rivals = [it for it in scores if it.candidate.tier <= best.tier and known >= {*it.candidate.features}]
    gains = np.array([score.gain for score in rivals])
    weights = np.exp(n * (gains - gains.max()) / 2)
    kept = {
        score.candidate: float(weight)
        for score, weight in zip(rivals, weights / weights.sum())
        if score.candidate == best or weight > SLIGHT
    }
    total = sum(kept.values())
    return {candidate: weight / total for candidate, weight in kept.items()}


def _supported(candidate: MapCandidate, features: Features, correct: Floats) -> ProbabilityMap:
    fitted = candidate.fit(features, correct)
    if candidate.kind == "none":
        fitted = replace(fitted, support=Support.of(fitted.predict(features), correct))
    return fitted


def choose_answers(
    kinds: Sequence[Labelled], *, groups: Groups | None = None, seed: int = 0, repeats: int = REPEATS
) -> tuple[int, list[MapChoice]]:
    """Choose one of several kinds of answers, and a map for each kind.

    The first kind is chosen unless another gains more, cross-validated, by one standard error.
    """
    choices = [choose_map(*labelled, groups=groups, seed=seed, repeats=repeats) for labelled in kinds]
    scores = [choice.score for choice in choices]
    ahead = [place for place, score in enumerate(scores) if _beats(score, scores[0], groups)]
    return max(ahead, key=lambda place: scores[place].gain, default=0), choices


def predict_out_of_fold(
    labelled: Sequence[Labelled], *, groups: Groups | None = None, seed: int = 0
) -> tuple[Floats, NDArray[np.intp]]:
    """Return out-of-fold probabilities (N,) and kinds of answers (N,), by :func:`choose_answers`.

    The choice is made on the other folds, so that the probabilities are honest. With fewer than 5 groups,
    there are no folds, and the probability is the constant.
    """
    correct = labelled[0].correct
    p, kinds = np.empty(len(correct)), np.zeros(len(correct), dtype=np.intp)
    for number, (fitted, held_out) in enumerate(fold_masks(correct, groups, seed)):
        part = [kind_labelled.part(fitted) for kind_labelled in labelled]
        of_part = None if groups is None else groups[fitted]
        kind, choices = choose_answers(part, groups=of_part, seed=seed + number, repeats=1)
        p[held_out] = choices[kind].map.predict(part_of(labelled[kind].features, held_out))
        kinds[held_out] = kind
    return p, kinds


def move_out_of_fold(p: Floats, correct: Floats, *, groups: Groups | None = None, seed: int = 0) -> Floats:
    """Return probabilities (N,) moved by the labels of the other folds of :func:`predict_out_of_fold`."""
    moved = np.empty(len(p))
    for fitted, held_out in fold_masks(correct, groups, seed):
        moved[held_out] = Move.of(p[fitted], correct[fitted]).apply(p[held_out])
    return moved


def fold_masks(
    correct: Floats, groups: Groups | None, seed: int
) -> list[tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    """Return the masks of fitted and held-out questions of each fold; all of them with too few groups."""
    if _units(correct, groups) < FOLDS:
        every = np.ones(len(correct), bool)
        return [(every, every)]
    return [(~fold, fold) for fold in _folds(correct, groups, np.random.default_rng([seed, 1]))]


def _best(scores: Sequence[MapScore], groups: Groups | None, *, use_none: bool) -> MapCandidate:
    plain = [score for score in scores if score.candidate.kind in ("none", "constant")]
    trials, constant = scores[len(plain) :], plain[-1]
    best = plain[0] if use_none and plain[0].gain > constant.gain + TIE else constant
    for tier in sorted({score.candidate.tier for score in trials}):
        rivals = [
            score
            for score in trials
            if score.candidate.tier == tier
            and all(
                score.gain > rival.gain if tier < 0 else _beats(score, rival, groups)
                for rival in (*plain, best)
            )
        ]
        highest = max((rival.gain for rival in rivals), default=0.0)
        best = next((rival for rival in rivals if rival.gain >= highest - TIE), best)
    return best.candidate


def _beats(score: MapScore, rival: MapScore, groups: Groups | None) -> bool:
    above, error = paired_difference(score.gains, rival.gains, groups)
    return above > error


def paired_difference(gains: Floats, rival_gains: Floats, groups: Groups | None) -> tuple[float, float]:
    """Return the mean of the paired differences, and its standard error over questions or groups."""
    above = gains - rival_gains
    sums = np.bincount(np.arange(len(above)) if groups is None else groups, above - above.mean())
    return float(above.mean()), float(np.sqrt((sums**2).sum()) / len(above))


def _scores(
    features: Features,
    correct: Floats,
    candidates: Sequence[MapCandidate],
    groups: Groups | None,
    rng: np.random.Generator,
    repeats: int,
) -> tuple[MapScore, ...]:
    gains = np.zeros((len(candidates), len(correct)))
    repeats = repeats if len(correct) <= MOST else 1
    for _ in range(repeats):
        for held_out in _folds(correct, groups, rng):
            fitted, test = np.flatnonzero(~held_out), part_of(features, held_out)
            fitted = fitted if len(fitted) <= MOST else rng.choice(fitted, MOST, replace=False)
            part, labels = part_of(features, fitted), correct[fitted]
            for gain, candidate in zip(gains, candidates):
                p = candidate.fit(part, labels).predict(test)
                gain[held_out] += p * (2 * correct[held_out] - p) / repeats
    return tuple(
        MapScore(candidate, float(gain.mean()), *paired_difference(gain, gains[0], groups), gain)
        for candidate, gain in zip(candidates, gains)
    )


def _units(correct: Floats, groups: Groups | None) -> int:
    return len(correct) if groups is None else len(np.unique(groups))


def part_of(features: Features, chosen: NDArray[np.bool_ | np.intp]) -> dict[str, Floats]:
    """Return the features of some of the questions."""
    return {name: values[chosen] for name, values in features.items()}


def _folds(correct: Floats, groups: Groups | None, rng: np.random.Generator) -> list[NDArray[np.bool_]]:
    """Masks of the folds, stratified by correctness; groups stay whole."""
    label = np.arange(len(correct)) if groups is None else groups
    rate = np.bincount(label, correct) / np.maximum(np.bincount(label), 1)
    shuffled = rng.permutation(len(rate))
    fold = np.empty(len(rate), dtype=np.intp)
    fold[shuffled[np.argsort(rate[shuffled], kind="stable")]] = np.arange(len(rate)) % FOLDS
    return [mask for number in range(FOLDS) if (mask := fold[label] == number).any()]
