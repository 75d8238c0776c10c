"""Maps from features of a question to the probability that its answer is right (spec section 11).

Learnt from answers of known correctness, and chosen by cross-validated gain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from semcal.errors import InputError, UsageError, shown
from semcal.metrics.frequencies import Floats, Groups
from semcal.metrics.score_recalibration import IsotonicCalibration

#: Folds of a cross-validation, and how often it is repeated with other folds.
FOLDS, REPEATS = 5, 4
#: Logits are taken of 0.01 + 0.98 p, as in `BetaCalibration`.
SQUEEZE = 0.01
#: Right answers, and wrong ones, from which on a map is learnt, and from which on any is.
FEW, PLENTY = 5, 10
#: Labelled answers that bound a stated probability, and decimals of a map's values that count there.
SUPPORT, DECIMALS = 10, 9
#: Weight of half the squared norm of the slopes, beside the summed log loss.
RIDGE = 3.0
#: Gains that differ by less are tied.
TIE = 1e-12

Features = Mapping[str, Floats]
"""Name → (N,) values; NaN where a question lacks the feature."""


class _Kind(NamedTuple):
    """How one kind of map is learnt from values (N, F), outcomes (N,) and directions (F,) of the features."""

    parameters: tuple[str, ...]
    fit: Callable[[Floats, Floats, Floats], tuple[Floats, ...]]
    predict: Callable[[Floats, Mapping[str, Floats]], Floats]


def _fit_constant(_: Floats, correct: Floats, __: Floats) -> tuple[Floats, ...]:
    return (np.array([(correct.sum() + 1) / (len(correct) + 2)]),)


def _fit_isotonic(values: Floats, correct: Floats, _: Floats) -> tuple[Floats, ...]:
    fitted = IsotonicCalibration().fit(values[:, 0], correct)
    return fitted.thresholds_, fitted.values_


def _predict_isotonic(values: Floats, known: Mapping[str, Floats]) -> Floats:
    return np.asarray(np.interp(values[:, 0], known["thresholds"], known["values"]))


def _fit_logistic(values: Floats, correct: Floats, directions: Floats) -> tuple[Floats, ...]:
    """Slopes (F,) and intercept by penalised maximum likelihood; the features are standardised first.

    Directions are those of the slopes: 1 not negative, -1 not positive, 0 either. The loss is strictly convex
    and the bounds are too, so the optimum is one.
    """
    right = correct.sum()
    if right in (0, len(correct)):  # no finite intercept fits outcomes of one kind
        correct = np.full(len(correct), (right + 1) / (len(correct) + 2))
    mean, scale = values.mean(0), values.std(0)
    scale = np.where(scale > 1e-9 * np.maximum(1, np.abs(mean)), scale, np.inf)  # a constant has no say
    z = (values - mean) / scale

    def loss(theta: Floats) -> tuple[float, Floats]:
        score = z @ theta[:-1] + theta[-1]
        residual = scipy.special.expit(score) - correct
        value = (np.logaddexp(0, score) - correct * score).sum() + RIDGE / 2 * (theta[:-1] ** 2).sum()
        return float(value), np.append(residual @ z + RIDGE * theta[:-1], residual.sum())

    theta = scipy.optimize.minimize(
        loss,
        np.append(np.zeros(z.shape[1]), scipy.special.logit(correct.mean())),
        jac=True,
        method="L-BFGS-B",
        bounds=[*((0.0 if one > 0 else None, 0.0 if one < 0 else None) for one in directions), (None, None)],
        options={"ftol": 1e-14, "gtol": 1e-8},
    ).x
    return theta[:-1] / scale, np.array([theta[-1] - (theta[:-1] / scale) @ mean])


def _predict_logistic(values: Floats, known: Mapping[str, Floats]) -> Floats:
    return np.asarray(scipy.special.expit(values @ known["slopes"] + known["intercept"]))


def _fit_beta(values: Floats, correct: Floats, _: Floats) -> tuple[Floats, ...]:
    """Beta calibration with the prior of the logistic regression, which it is on two logarithms."""
    slopes, c = _fit_logistic(_logarithms(values), correct, np.ones(2))
    return slopes[:1], slopes[1:], c


def _predict_beta(values: Floats, known: Mapping[str, Floats]) -> Floats:
    slopes = np.concatenate([known["a"], known["b"]])
    return _predict_logistic(_logarithms(values), {"slopes": slopes, "intercept": known["c"]})


def _logarithms(values: Floats) -> Floats:
    p = SQUEEZE + (1 - 2 * SQUEEZE) * values[:, 0]
    return np.stack([np.log(p), -np.log1p(-p)], axis=1)


#: The kinds of maps, simplest first.
KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        "none": _Kind((), lambda *_: (), lambda values, _: values[:, 0]),
        "constant": _Kind(("value",), _fit_constant, lambda values, known: 0 * values[:, 0] + known["value"]),
        "beta": _Kind(("a", "b", "c"), _fit_beta, _predict_beta),
        "isotonic": _Kind(("thresholds", "values"), _fit_isotonic, _predict_isotonic),
        "logistic": _Kind(("slopes", "intercept"), _fit_logistic, _predict_logistic),
    }
)


@dataclass(frozen=True)
class MapCandidate:
    """A kind of map and the features that it reads: "logistic" some, every other kind one."""

    kind: str
    features: tuple[str, ...]
    probabilities: tuple[str, ...] = ()  # features in [0, 1], of which "logistic" reads the logits
    rising: tuple[str, ...] = ()  # features that "logistic" gives no negative slope
    falling: tuple[str, ...] = ()  # features that it gives no positive one
    fewest: int = PLENTY  # right answers, and wrong ones, that it takes
    tier: int = 0  # those of a higher tier must be a standard error above the best of the lower ones

    @property
    def name(self) -> str:
        """The kind with its features."""
        return f"{self.kind}({', '.join(self.features)})"

    def fit(self, features: Features, correct: Floats) -> ProbabilityMap:
        """Learn from N questions and the outcomes (N,), 0 or 1, of both kinds; "constant" of any."""
        columns = _columns(features, self.features, self.probabilities if self.kind == "logistic" else ())
        known = ~np.isnan(columns)
        unknown = [float(column[k].mean()) if k.any() else 0.0 for column, k in zip(columns.T, known.T)]
        directions = np.array(
            [(name in self.rising) - (name in self.falling) for name in self.features], float
        )
        learnt = KINDS[self.kind].fit(np.where(known, columns, unknown), correct, directions)
        parameters = dict(zip(KINDS[self.kind].parameters, learnt))
        found = ProbabilityMap(
            self, {name: tuple(map(float, value)) for name, value in parameters.items()}, tuple(unknown)
        )
        if self.kind in ("none", "constant"):
            return found
        return replace(found, support=Support.of(found.predict(features), correct))


def _columns(features: Features, names: Sequence[str], logits: Sequence[str]) -> Floats:
    """The features (N, F) that a map reads."""
    return np.stack(
        [
            scipy.special.logit(SQUEEZE + (1 - 2 * SQUEEZE) * features[name])
            if name in logits
            else features[name]
            for name in names
        ],
        axis=1,
    )


@dataclass(frozen=True)
class Support:
    """What labelled answers bear out: cap and floor of a map's values f, rising steps.

    With S(w) = (r + 1) / (n + 2) over the n >= 10 labelled answers with f >= w, r of them right, and L(w)
    over those with f <= w, the cap is the largest S(w) of w <= f, the floor the smallest L(w) of w >= f.
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
        """That of a map's values (N,) and the outcomes (N,) that it was fitted to."""
        at, place = np.unique(np.round(f, DECIMALS), return_inverse=True)
        n, right = np.bincount(place, np.ones(len(f))), np.bincount(place, correct)
        cap = np.maximum.accumulate(_shares(right[::-1], n[::-1])[::-1])
        floor = np.minimum.accumulate(_shares(right, n)[::-1])[::-1]
        last, first = np.append(np.diff(cap) != 0, True), np.append(True, np.diff(floor) != 0)
        return cls(*(tuple(map(float, one)) for one in (at[last], cap[last], at[first], floor[first])))

    def clip(self, f: Floats) -> Floats:
        """The values (N,) between floor and cap."""
        where = np.round(f, DECIMALS)
        below = np.searchsorted(self.cap_at, where).clip(max=len(self.cap) - 1)
        above = np.searchsorted(self.floor_at, where, side="right").clip(min=1) - 1
        clipped: Floats = np.clip(f, np.array(self.floor)[above], np.array(self.cap)[below])
        return clipped


def _shares(rights: NDArray[Any], counts: NDArray[Any]) -> Floats:
    """(r + 1) / (n + 2) of the first 1, 2, … groups of answers; of all where they are too few to count."""
    r, n = np.cumsum(rights), np.cumsum(counts)
    shares: Floats = (np.where(n >= SUPPORT, r, r[-1]) + 1) / (np.where(n >= SUPPORT, n, n[-1]) + 2)
    return shares


@dataclass(frozen=True)
class ProbabilityMap:
    """A learnt map.

    Raises
    ------
    InputError
        If there is no such kind, or it lacks a parameter, or one has another length than it must.
    """

    candidate: MapCandidate
    parameters: Mapping[str, tuple[float, ...]]
    unknown: tuple[float, ...]  # takes the place of a feature that a question lacks: its mean in the fit
    support: Support | None = None  # none of maps that earlier versions learnt

    def __post_init__(self) -> None:
        candidate = self.candidate
        if candidate.kind not in KINDS:
            raise InputError(f"unknown kind of map {shown(candidate.kind)}; known: {', '.join(KINDS)}")
        count = len(candidate.features)
        lengths = {name: len(value) for name, value in self.parameters.items()}
        expected = dict.fromkeys(KINDS[candidate.kind].parameters, 1)
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

    def predict(self, features: Features) -> Floats:
        """Return the probabilities (N,) that answers are right."""
        candidate = self.candidate
        columns = _columns(
            features, candidate.features, candidate.probabilities if candidate.kind == "logistic" else ()
        )
        values = np.where(np.isnan(columns), self.unknown, columns)
        parameters = {name: np.array(value) for name, value in self.parameters.items()}
        f = np.clip(KINDS[candidate.kind].predict(values, parameters), 0.0, 1.0)
        return f if self.support is None else self.support.clip(f)

    def scores(self, features: Features) -> Floats:
        """Return what orders the answers (N,): the probabilities; under a constant its feature."""
        if self.candidate.kind != "constant":
            return self.predict(features)
        values = features[self.candidate.features[0]]
        return np.where(np.isnan(values), self.unknown[0], values)


@dataclass(frozen=True)
class MapScore:
    """The cross-validated gain of one candidate, and by how much it is above that of no map."""

    candidate: MapCandidate
    gain: float
    above: float
    standard_error: float  # of `above`: paired over questions, or over groups of them
    gains: Floats = field(repr=False, compare=False)  # (N,) of the questions


@dataclass(frozen=True)
class MapChoice:
    """The map that was chosen, fitted to all questions, and the scores of all candidates."""

    map: ProbabilityMap
    scores: tuple[MapScore, ...]

    @property
    def score(self) -> MapScore:
        """That of the map."""
        return next(one for one in self.scores if one.candidate == self.map.candidate)


class Labelled(NamedTuple):
    """Answers of one kind to N questions: what maps read of them, what is right (N,), and the candidates."""

    features: Features
    correct: Floats
    candidates: Sequence[MapCandidate]

    def part(self, chosen: NDArray[np.bool_]) -> Labelled:
        """Those to some of the questions."""
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
    """Choose the candidate of the highest cross-validated gain, and fit it to all questions.

    `features` (N,) are what the candidates read, `correct` (N,) is 0 or 1; questions of one of the `groups`
    (N,) stay in one fold. The gain of a question is 2pc − p² (:func:`semcal.metrics.gain`), averaged over
    `repeats` cross-validations of 5 folds, which `seed` draws.

    Candidates stand simplest first, "none" before all others. Beside them stands the constant
    (r + 1) / (N + 2), with r right answers. "none" wins if it gains more than the constant and no other is
    above both by more than one standard error of the paired difference. One of a higher tier (it costs draws,
    or bends to single answers) must be as far above the best of the lower ones. With fewer than 5 right or
    wrong answers, or 5 groups, the constant is the choice; with fewer than 10, "none" is no choice. What is
    chosen is supported, "none" too: a share beyond what labelled answers bear out is no probability.
    """
    if not candidates or candidates[0].kind != "none":
        raise UsageError("the first candidate must be the one without a map")
    none, *maps = candidates
    rarer = min(correct.sum(), (1 - correct).sum()) if _units(correct, groups) >= FOLDS else 0
    tried = [none, replace(none, kind="constant"), *(one for one in maps if one.fewest <= rarer)]
    scores = _scores(features, correct, tried, groups, np.random.default_rng(seed), repeats)
    best = _best(scores, groups, use_none=rarer >= PLENTY).fit(features, correct)
    if best.candidate == none:
        best = replace(best, support=Support.of(best.predict(features), correct))
    return MapChoice(best, scores)


def choose_answers(
    given: Sequence[Labelled], *, groups: Groups | None = None, seed: int = 0, repeats: int = REPEATS
) -> tuple[int, list[MapChoice]]:
    """Choose which of several kinds of answers to give, and a map for each kind.

    It is the first unless another gains more, cross-validated, by one standard error of the difference.
    """
    found = [choose_map(*one, groups=groups, seed=seed, repeats=repeats) for one in given]
    scores = [one.score for one in found]
    ahead = [place for place, one in enumerate(scores) if _beats(one, scores[0], groups)]
    return max(ahead, key=lambda place: scores[place].gain, default=0), found


def predict_out_of_fold(
    given: Sequence[Labelled], *, groups: Groups | None = None, seed: int = 0
) -> tuple[Floats, NDArray[np.intp]]:
    """Return probabilities (N,) for each fold by what :func:`choose_answers` takes on the others, and which.

    So these do not flatter what was chosen. Fewer than 5 groups make no folds: it is the constant of all.
    """
    correct = given[0].correct
    p, kinds = np.empty(len(correct)), np.zeros(len(correct), dtype=np.intp)
    whole = _units(correct, groups) < FOLDS
    folds = (
        [np.ones(len(correct), bool)] if whole else _folds(correct, groups, np.random.default_rng([seed, 1]))
    )
    for number, held_out in enumerate(folds):
        kept = held_out if whole else ~held_out
        part = [one.part(kept) for one in given]
        of_part = None if groups is None else groups[kept]
        kind, found = choose_answers(part, groups=of_part, seed=seed + number, repeats=1)
        p[held_out] = found[kind].map.predict(part_of(given[kind].features, held_out))
        kinds[held_out] = kind
    return p, kinds


def _best(scores: Sequence[MapScore], groups: Groups | None, *, use_none: bool) -> MapCandidate:
    """The highest gain among those that are a standard error above what is to be had for less."""
    none, constant, *others = scores
    best = none if use_none and none.gain > constant.gain + TIE else constant
    for tier in sorted({one.candidate.tier for one in others}):
        rivals = [
            one
            for one in others
            if one.candidate.tier == tier
            and all(_beats(one, rival, groups) for rival in (none, constant, best))
        ]
        highest = max((one.gain for one in rivals), default=0.0)
        best = next((one for one in rivals if one.gain >= highest - TIE), best)
    return best.candidate


def _beats(one: MapScore, other: MapScore, groups: Groups | None) -> bool:
    above, error = paired_difference(one.gains, other.gains, groups)
    return above > error


def paired_difference(one: Floats, other: Floats, groups: Groups | None) -> tuple[float, float]:
    """Return the mean of the paired differences, and its standard error over questions or groups."""
    above = one - other
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
    """Cross-validate the candidates."""
    gains = np.zeros((len(candidates), len(correct)))
    for _ in range(repeats):
        for held_out in _folds(correct, groups, rng):
            part, labels, rest = part_of(features, ~held_out), correct[~held_out], part_of(features, held_out)
            for gain, candidate in zip(gains, candidates):
                p = candidate.fit(part, labels).predict(rest)
                gain[held_out] += p * (2 * correct[held_out] - p) / repeats
    return tuple(
        MapScore(candidate, float(gain.mean()), *paired_difference(gain, gains[0], groups), gain)
        for candidate, gain in zip(candidates, gains)
    )


def _units(correct: Floats, groups: Groups | None) -> int:
    """How many questions, or groups of them, can be told apart."""
    return len(correct) if groups is None else len(np.unique(groups))


def part_of(features: Features, chosen: NDArray[np.bool_]) -> dict[str, Floats]:
    """The features of some of the questions."""
    return {name: values[chosen] for name, values in features.items()}


def _folds(correct: Floats, groups: Groups | None, rng: np.random.Generator) -> list[NDArray[np.bool_]]:
    """Masks of the folds: groups stay whole, and right and wrong answers are dealt out evenly."""
    label = np.arange(len(correct)) if groups is None else groups
    rate = np.bincount(label, correct) / np.maximum(np.bincount(label), 1)
    shuffled = rng.permutation(len(rate))
    fold = np.empty(len(rate), dtype=np.intp)
    fold[shuffled[np.argsort(rate[shuffled], kind="stable")]] = np.arange(len(rate)) % FOLDS
    return [mask for number in range(FOLDS) if (mask := fold[label] == number).any()]
