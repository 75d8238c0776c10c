"""The watch: bets as they are defined, levels by simulation, and what is not counted."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binom, norm

from benchmarks.monitor import with_labels
from semcal.calibration.calibration import Calibration, Threshold
from semcal.calibration.watch import ALPHA, COMPARED, PromiseWatch
from semcal.cli.monitor import take_rows
from semcal.metrics import sequential
from semcal.metrics.probability_maps import MapCandidate
from semcal.metrics.sequential import ABOVE, BOTH, NOTICE, EProcess, SequentialTest
from semcal.reply_log import LabelledReply
from semcal.rows import Row

STREAMS = 200
#: More alarms than this come of a watch of level .05 once in a thousand times.
MOST_ALARMS = binom.ppf(0.999, STREAMS, ALPHA)
ATLAS = Calibration.from_pretrained("atlas")

probabilities = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))
outcomes = st.lists(st.tuples(st.sampled_from([0.0, 1.0]), probabilities), max_size=40)
replies = st.builds(
    LabelledReply,
    id=st.just("r"),
    probability=st.none() | probabilities,
    threshold=st.sampled_from([None, 0.0, 0.57]),
    abstained=st.booleans(),
    correct=st.booleans(),
    audited=st.booleans(),
)


def reply_of(correct: bool, probability: float | None = 0.9, **values: Any) -> LabelledReply:
    return LabelledReply(**({"id": "r", "threshold": 0.5, "abstained": False, "audited": False} | values),
                         probability=probability, correct=correct)  # fmt: skip


def alarm_at(name: str, watch: PromiseWatch, stream: Any) -> int | None:
    """When labels raise an alarm of a watch; it ends there."""
    watch.update(*(reply_of(bool(correct), probability) for correct, probability in stream))
    return watch.tests[name].alarm_at


# ---- The bets


@given(pairs=outcomes, odds=st.sampled_from([ABOVE, BOTH]))
def test_in_log_space_the_capital_is_the_sum_of_all_starts_products(
    pairs: list[tuple[float, float]], odds: tuple[float, ...]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequential, "EVERY", 7)
        process = EProcess(odds)
        for some in (pairs[:5], pairs[5:]):
            process.update(*np.array(some, float).reshape(-1, 2).T)
    starts = range(0, max(1, len(pairs)), 7)
    capital = 1.0
    for number, start in enumerate(starts, 1):
        part = 6 / (math.pi**2 * number**2)
        products = []
        for r in odds:
            product = 1.0
            for outcome, p in pairs[start:]:
                product *= 1 + (r - 1) / (1 + (r - 1) * p) * (outcome - p)
            products.append(product)
        capital += part * (np.mean(products) - 1)
    assert math.exp(process.log_e) == pytest.approx(capital, rel=1e-9)


def test_a_fine_grid_of_odds_is_the_mixture_of_ville() -> None:
    ville = pytest.importorskip("ville")
    promised, size = 0.1, 4000
    q = (np.arange(size) + 0.5) / size
    process = EProcess(tuple((q / (1 - q) * (1 - promised) / promised).tolist()))
    wrong = (np.random.default_rng(3).random(90) < 0.2) * 1.0
    process.update(wrong, np.full(len(wrong), promised))
    part = 6 / math.pi**2  # of the first start
    expected = ville.BernoulliTest(promised).fit(wrong).e_values_[-1]
    assert (math.exp(process.log_e) - (1 - part)) / part == pytest.approx(expected, rel=1e-4)


def test_groups_are_combined_as_ville_combines_e_values() -> None:
    ville = pytest.importorskip("ville")
    watch = PromiseWatch.of()
    watch.update(*(reply_of(c < p - 0.2, float(p)) for p, c in np.random.default_rng(4).random((2, 80)).T))
    test = watch.tests["calibration"]
    e_values = [math.exp(process.log_e) for process in test.groups.values()]
    assert len(set(e_values)) == len(e_values) == 6
    assert test.e_value == pytest.approx(ville.evalues.combine(e_values, weights=[5, 1, 1, 1, 1, 1]))


@pytest.mark.parametrize("correct", [True, False])
@pytest.mark.parametrize("probability", [0.0, 1.0, 5e-324, 0.5])
def test_an_e_value_is_always_a_positive_number(probability: float, correct: bool) -> None:
    watch = PromiseWatch.of(risk=0.1)
    watch.update(*[reply_of(correct, probability)] * 3000)
    for test in watch.tests.values():
        assert 0 < test.e_value < math.inf
        assert math.isfinite(test.log_e)
    assert watch.tests["calibration"].alarm == (abs(correct - probability) > 0.1)
    assert watch.tests["risk"].alarm == (not correct)
    assert sum(share for _, share, _, _ in COMPARED.values()) == pytest.approx(1)
    compared = PromiseWatch.of(with_labels(np.full(2000, 0.999), np.ones(2000)))
    compared.update(*[reply_of(False, 0.999)] * 500)
    assert math.isfinite(compared.tests["calibration"].e_value)
    assert compared.alarm


# ---- Levels


def test_at_the_promised_risk_few_streams_raise_an_alarm_and_at_twice_of_it_nearly_all_do() -> None:
    rng = np.random.default_rng(6)
    alarms = {}
    for rate in (0.1, 0.2):
        wrong = rng.random((STREAMS, 500)) < rate
        found = [alarm_at("risk", PromiseWatch.of(risk=0.1), ((not w, None) for w in row)) for row in wrong]
        alarms[rate] = [at for at in found if at is not None]
    assert len(alarms[0.1]) <= MOST_ALARMS
    assert len(alarms[0.2]) > 0.95 * STREAMS
    assert np.median(alarms[0.2]) <= 140


# ---- Comparisons with the labels of a calibration


def learned(rng: np.random.Generator, n: int) -> tuple[Calibration, Any]:
    """A calibration by a map that is learned from n labels, and what draws further replies of its questions.

    These are probabilities and the chances that the answers are right.
    """

    def draw(count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        share = np.clip(rng.binomial(10, rng.beta(4, 1.5, count)), 1, 10) / 10
        return share, 1 / (1 + np.exp(0.6 - 4 * (share - 0.2)))

    share, chance = draw(n)
    correct = (rng.random(n) < chance) * 1.0
    learned_map = MapCandidate("beta", ("E-SC",)).fit({"E-SC": share}, correct)
    calibration = with_labels(learned_map.predict({"E-SC": share}), correct)

    def replies_of(count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        share, chance = draw(count)
        return learned_map.predict({"E-SC": share}), chance

    return calibration, replies_of


def streams_with_an_alarm(n: int, change: Any, *, streams: int, replies: int, seed: int) -> tuple[int, int]:
    """In how many streams an alarm is raised, and a notice given; each learns a map anew from n labels."""
    alarms = notices = 0
    for number in range(streams):
        rng = np.random.default_rng([seed, n, number])
        calibration, replies_of = learned(rng, n)
        p, chance = replies_of(replies)
        right = rng.random(replies) < np.clip(change(chance, p), 0, 1)
        watch = PromiseWatch.of(calibration)
        at = alarm_at("calibration", watch, zip(right, p.tolist()))
        alarms += at is not None
        notice = watch.tests["calibration"].notice_at
        notices += notice is not None
        assert at is None or (notice is not None and notice <= at)
    return alarms, notices


def test_as_good_as_its_labels_make_it_a_calibration_raises_few_alarms() -> None:
    alarms, notices = streams_with_an_alarm(60, lambda chance, _: chance, streams=100, replies=600, seed=1)
    assert alarms <= binom.ppf(0.999, 100, ALPHA)
    assert alarms <= notices <= binom.ppf(0.999, 100, NOTICE * ALPHA)


def test_probabilities_that_are_a_tenth_too_high_are_found_within_2000_labels() -> None:
    alarms, notices = streams_with_an_alarm(250, lambda c, _: c - 0.1, streams=30, replies=2000, seed=2)
    assert alarms >= 23
    assert notices >= alarms


@given(
    labels=st.lists(st.tuples(probabilities, st.booleans()), min_size=1, max_size=30),
    stream=st.lists(st.tuples(probabilities, st.booleans()), min_size=1, max_size=30),
)
def test_a_comparison_is_the_largest_b_value_of_the_difference_of_two_means(
    labels: list[tuple[float, bool]], stream: list[tuple[float, bool]]
) -> None:
    p, correct = np.array(labels, float).T
    watch = PromiseWatch.of(with_labels(p, correct))
    for probability, right in stream:
        watch.update(reply_of(right, probability))
    test = watch.tests["calibration"]
    expected = {}
    for name, (side, share, low, high) in COMPARED.items():
        chosen = [(q, c) for q, c in labels if low <= q < high or q == high == 1]
        if not chosen:
            continue
        q, c = np.array(chosen, float).T
        variance = (np.sum(q * (1 - q)) + 2) / len(q) ** 2
        later = [(q, c) for q, c in stream if low <= q < high or q == high == 1]
        values = [0.0]
        for n in range(1, len(later) + 1):
            said, right = np.array(later[:n], float).T
            error = np.sum(said * (1 - said)) / n**2
            excess = side * (np.mean(said - right) - np.mean(q - c))
            z, time = excess / np.sqrt(variance + error), variance / (variance + error)
            values.append(z * np.sqrt(time))
        expected[name] = min(1.0, 2 * norm.sf(max(values)) / share)
    assert test.e_value == pytest.approx(1 / min(expected.values()), rel=1e-6)
    assert {name: math.exp(-one.log_e) for name, one in test.groups.items()} == pytest.approx(expected)


def test_a_notice_comes_before_the_alarm_and_both_stay_when_the_evidence_falls() -> None:
    watch = PromiseWatch.of(risk=0.1)
    watch.update(*(reply_of(number > 30, None) for number in range(600)))
    test = watch.tests["risk"]
    assert watch.alarm
    assert test.alarm
    assert test.e_value < 1 / ALPHA
    assert test.notice_at is not None
    assert test.alarm_at is not None
    assert test.notice_at < test.alarm_at
    assert watch.lines[0]["notice_at"] == test.notice_at


# ---- Equal questions


def test_of_equal_answers_to_equal_questions_and_of_equal_ids_one_row_counts() -> None:
    row = {"confidence": 0.7, "correct": True}
    for changed in (
        lambda number: {"id": str(number), "answer": "a", "question": str(number % 7)},
        lambda number: {"id": str(number % 7)},
    ):
        watch = PromiseWatch.of()
        take_rows((Row({**row, **changed(number)}) for number in range(20)), watch, None)
        assert watch.tests["calibration"].n == 7


# ---- What counts


def test_without_answered_replies_the_risk_stays_as_it_was() -> None:
    watch = PromiseWatch.of(risk=0.1)
    watch.update(*(reply_of(correct, 0.5, abstained=True) for correct in (True, False) * 50))
    assert (watch.tests["risk"].n, watch.tests["calibration"].n) == (0, 100)
    assert watch.tests["risk"].e_value == pytest.approx(1)
    watch.update(reply_of(False, None, threshold=None))  # not covered
    watch.update(reply_of(False, None, threshold=0.5))  # answered, without a probability
    assert (watch.tests["risk"].n, watch.tests["calibration"].n) == (1, 100)


def test_a_reply_counts_for_the_risk_that_its_threshold_promises() -> None:
    limits = [Threshold(t, risk, 0.05, 100, 50, 1, risk) for t, risk in ((0.8, 0.1), (0.6, 0.3))]
    banded = replace(ATLAS, thresholds=tuple(limits), threshold=limits[1])
    watches = {threshold: PromiseWatch.of(banded) for threshold in (0.8, 0.6, 0.7, None)}
    for threshold, watch in watches.items():
        watch.update(reply_of(False, 0.9, threshold=threshold))
    e_values = {threshold: watch.tests["risk"].e_value for threshold, watch in watches.items()}
    assert e_values[0.8] > e_values[0.6] > 1
    assert [watches[t].tests["risk"].n for t in (0.7, None)] == [0, 0]
    same = tuple(replace(limit, threshold=0.6) for limit in limits)
    assert PromiseWatch.of(replace(banded, thresholds=same)).risks == ((0.6, 0.1),)


def test_risks_of_one_shown_threshold_promise_the_largest_if_different_scores_decide() -> None:
    strict = Threshold(0.7, 0.1, 0.05, 100, 50, 2, 0.09, threshold_score=0.9)
    loose = replace(strict, risk_limit=0.2)
    assert PromiseWatch.of(replace(ATLAS, threshold=loose, thresholds=(strict, loose))).risks == ((0.7, 0.1),)
    loose = replace(loose, threshold_score=0.6)
    assert PromiseWatch.of(replace(ATLAS, threshold=loose, thresholds=(strict, loose))).risks == ((0.7, 0.2),)


def test_a_calibration_without_a_threshold_has_no_risk_to_watch() -> None:
    assert list(PromiseWatch.of(replace(ATLAS, threshold=None)).tests) == ["calibration", "questions"]
    unproven = replace(ATLAS.threshold, threshold=None)
    assert "risk" not in PromiseWatch.of(replace(ATLAS, threshold=unproven)).tests


# ---- Questions


def with_scores(p: Any) -> Calibration:
    """A calibration with the probabilities of labeled answers, of which every second is right."""
    return with_labels(p, np.arange(len(p)) % 2 * 1.0)


def warned(calibration: Calibration, stream: Any) -> SequentialTest:
    watch = PromiseWatch.of(calibration)
    watch.observe(*map(float, stream))
    assert not watch.alarm
    return watch.tests["questions"]


def test_like_questions_rarely_look_different_and_others_soon_do() -> None:
    rng = np.random.default_rng(10)
    tests = [warned(with_scores(rng.beta(4, 2, 200)), rng.beta(4, 2, 100)) for _ in range(100)]
    assert sum(test.alarm for test in tests) <= binom.ppf(0.999, 100, ALPHA)
    for other in (rng.beta(3, 3, 200), np.where(rng.random(200) < 0.5, 0.2, 0.95)):
        assert warned(with_scores(rng.beta(4, 2, 600)), other).alarm


def test_a_probability_is_counted_among_those_that_are_like_it() -> None:
    scores = np.repeat([0.1, 0.2, 0.5, 0.9], [5, 30, 10, 15])
    for probability, place in ((0.0, 0), (0.1, 0), (0.2, 1), (0.3, 1), (0.5, 2), (0.95, 3), (1.0, 3)):
        watch = PromiseWatch.of(with_scores(scores))
        before = list(watch.counts)
        watch.observe(probability)
        assert watch.counts == [count + (number == place) for number, count in enumerate(before)]
    assert before == [5, 30, 10, 15]


def test_probabilities_that_all_are_alike_cannot_be_compared() -> None:
    watch = PromiseWatch.of(with_scores(np.full(50, 0.7)))
    watch.observe(0.5)
    assert "questions" not in watch.tests
