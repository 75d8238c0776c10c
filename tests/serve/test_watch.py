"""The watch: bets as they are defined, levels by simulation, and what is not counted."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from scipy.stats import binom

from semcal.calibration.calibrated import Calibration, LikeAnswers, Threshold
from semcal.errors import UsageError
from semcal.files import dumps
from semcal.metrics.probability_maps import MapCandidate
from semcal.serve import watch as watch_module
from semcal.serve.log import LabelledReply
from semcal.serve.watch import ABOVE, ALPHA, BOTH, EProcess, PromiseWatch, SequentialTest

STREAMS = 1000
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
    for correct, probability in stream:
        watch.update(reply_of(bool(correct), probability))
        if watch.tests[name].alarm:
            break
    return watch.tests[name].alarm_at


# ---- The bets


@given(pairs=outcomes, odds=st.sampled_from([ABOVE, BOTH]), tolerance=st.sampled_from([0.0, 0.05]))
def test_in_log_space_the_capital_is_the_sum_of_all_starts_products(
    pairs: list[tuple[float, float]], odds: tuple[float, ...], tolerance: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch_module, "EVERY", 7)
        process = EProcess(odds)
        for outcome, mean in pairs:
            process.update(outcome, mean, tolerance)
    starts = range(0, max(1, len(pairs)), 7)
    capital = 1.0
    for number, start in enumerate(starts, 1):
        part = 6 / (math.pi**2 * number**2)
        products = []
        for r in odds:
            product = 1.0
            for outcome, p in pairs[start:]:
                bound = min(1, p + tolerance) if r > 1 else max(0, p - tolerance)
                stake = (r - 1) / (1 + (r - 1) * bound)
                product *= 1 + stake * (outcome - bound)
            products.append(product)
        capital += part * (np.mean(products) - 1)
    assert math.exp(process.log_e) == pytest.approx(capital, rel=1e-9)


@given(p=probabilities, r=st.floats(0.05, 20), tolerance=st.floats(0, 1), off=st.floats(-1, 1))
def test_a_bet_is_worth_no_more_than_its_stake_while_the_mean_is_within_the_tolerance(
    p: float, r: float, tolerance: float, off: float
) -> None:
    mean = min(1.0, max(0.0, p + off * tolerance))
    worth = 0.0
    for outcome, chance in ((1.0, mean), (0.0, 1 - mean)):
        process = EProcess((r,))
        stake = process.log_stakes[0]
        process.update(outcome, p, tolerance)
        worth += chance * math.exp(process.log_stakes[0] - stake)
    assert worth <= 1 + 1e-9
    if tolerance == 0:
        assert worth == pytest.approx(1)


def test_a_fine_grid_of_odds_is_the_mixture_of_ville() -> None:
    ville = pytest.importorskip("ville")
    promised, size = 0.1, 4000
    q = (np.arange(size) + 0.5) / size
    process = EProcess(tuple((q / (1 - q) * (1 - promised) / promised).tolist()))
    wrong = (np.random.default_rng(3).random(90) < 0.2) * 1.0
    for outcome in wrong:
        process.update(float(outcome), promised)
    part = 6 / math.pi**2  # of the first start
    expected = ville.BernoulliTest(promised).fit(wrong).e_values_[-1]
    assert (math.exp(process.log_e) - (1 - part)) / part == pytest.approx(expected, rel=1e-4)


def test_groups_are_combined_as_ville_combines_e_values() -> None:
    ville = pytest.importorskip("ville")
    watch = PromiseWatch.of()
    for p, c in zip(*np.random.default_rng(4).random((2, 80))):
        watch.update(reply_of(c < p - 0.2, float(p)))
    test = watch.tests["calibration"]
    e_values = [math.exp(process.log_e) for process in test.groups.values()]
    assert len(set(e_values)) == len(e_values) == 6
    assert test.e_value == pytest.approx(ville.evalues.combine(e_values, weights=[5, 1, 1, 1, 1, 1]))


@given(pairs=outcomes)
def test_between_two_starts_the_order_of_outcomes_changes_nothing(pairs: list[tuple[float, float]]) -> None:
    processes = EProcess(BOTH), EProcess(BOTH)
    for forth, back in zip(pairs, reversed(pairs)):
        processes[0].update(*forth)
        processes[1].update(*back)
    assert processes[0].log_e == pytest.approx(processes[1].log_e, abs=1e-9)


@pytest.mark.parametrize("correct", [True, False])
@pytest.mark.parametrize("probability", [0.0, 1.0, 5e-324, 0.5])
def test_an_e_value_is_always_a_positive_number(probability: float, correct: bool) -> None:
    watch = PromiseWatch.of(risk=0.1)
    for _ in range(3000):
        watch.update(reply_of(correct, probability))
    for test in watch.tests.values():
        assert 0 < test.e_value < math.inf
        assert math.isfinite(test.log_e)
    assert watch.tests["calibration"].alarm == (abs(correct - probability) > 0.1)
    assert watch.tests["risk"].alarm == (not correct)


def test_starting_again_finds_a_late_change_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    streams = [rng.random(1500) < np.repeat([0.1, 0.2], [1000, 500]) for _ in range(40)]

    def median() -> float:
        alarms = [
            alarm_at("risk", PromiseWatch.of(risk=0.1), ((not wrong, None) for wrong in stream))
            for stream in streams
        ]
        return float(np.median([math.inf if at is None else at for at in alarms]))

    again = median()
    monkeypatch.setattr(watch_module, "EVERY", 10**9)
    assert 1000 < again < 1250 < median()


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
    assert np.median(alarms[0.2]) <= 130


def test_of_probabilities_that_hold_few_streams_raise_an_alarm() -> None:
    rng = np.random.default_rng(7)
    p = rng.beta(0.8, 0.4, (300, 300))
    right = rng.random(p.shape) < p
    alarms = [alarm_at("calibration", PromiseWatch.of(), zip(*rows)) for rows in zip(right, p.tolist())]
    assert sum(at is not None for at in alarms) <= binom.ppf(0.999, len(p), ALPHA)


def test_by_default_what_the_labels_of_a_calibration_cannot_tell_is_tolerated() -> None:
    atlas = Calibration.from_pretrained("atlas")
    n, accuracy = atlas.report.n, atlas.report.base["accuracy"]
    assert accuracy is not None
    standard_error = (accuracy * (1 - accuracy) / n) ** 0.5
    watch = PromiseWatch.of(atlas)
    assert watch.tests["calibration"].tolerance == pytest.approx(2 * standard_error, rel=0.05)
    assert watch.tests["risk"].tolerance == PromiseWatch.of(risk=0.1).tests["calibration"].tolerance == 0
    assert PromiseWatch.of(atlas, tolerance=0.0).tests["calibration"].tolerance == 0


def test_within_the_tolerance_few_streams_raise_an_alarm_and_without_one_many_do() -> None:
    rng = np.random.default_rng(8)
    p = rng.uniform(0.1, 0.9, (40, 2000))
    right = rng.random(p.shape) < p - 0.05
    for tolerance, low, high in ((0.05, 0, binom.ppf(0.999, len(p), ALPHA)), (0.0, 32, 40)):
        watches = (PromiseWatch.of(tolerance=tolerance) for _ in p)
        rows = zip(watches, right, p.tolist())
        alarms = [alarm_at("calibration", watch, zip(c, said)) for watch, c, said in rows]
        assert low <= sum(at is not None for at in alarms) <= high


def test_a_band_that_is_off_is_seen_though_the_mean_is_right() -> None:
    rng = np.random.default_rng(9)
    watch = PromiseWatch.of()
    for p in rng.uniform(0.6, 1, 2000):
        watch.update(reply_of(rng.random() < (p - 0.15 if p >= 0.8 else p + 0.15), float(p)))
    test = watch.tests["calibration"]
    assert test.alarm
    assert test.strongest in ("0.6 to 0.8", "0.8 to 1")


# ---- What counts


def test_without_answered_replies_the_risk_stays_as_it_was() -> None:
    watch = PromiseWatch.of(risk=0.1)
    for correct in (True, False) * 50:
        watch.update(reply_of(correct, 0.5, abstained=True))
    assert (watch.tests["risk"].n, watch.tests["calibration"].n) == (0, 100)
    assert watch.tests["risk"].e_value == pytest.approx(1)


def test_a_watch_that_has_seen_nothing_has_e_values_of_one_and_no_alarm() -> None:
    watch = PromiseWatch.of(ATLAS)
    assert list(watch.tests) == ["risk", "calibration", "questions"]
    assert [test.e_value for test in watch.tests.values()] == pytest.approx([1, 1, 1])
    assert not watch.alarm


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


def test_what_a_calibration_does_not_cover_counts_for_nothing() -> None:
    watch = PromiseWatch.of(risk=0.1)
    watch.update(reply_of(False, None, threshold=None))
    watch.update(reply_of(False, None, threshold=0.5))  # decided by bounds: answered, without a probability
    assert (watch.tests["risk"].n, watch.tests["calibration"].n) == (1, 0)


def test_a_calibration_without_a_threshold_has_no_risk_to_watch() -> None:
    assert list(PromiseWatch.of(replace(ATLAS, threshold=None)).tests) == ["calibration", "questions"]
    unproven = replace(ATLAS.threshold, threshold=None)
    assert "risk" not in PromiseWatch.of(replace(ATLAS, threshold=unproven)).tests


def test_an_alarm_stays_when_the_evidence_falls() -> None:
    watch = PromiseWatch.of(risk=0.1)
    for number in range(600):
        watch.update(reply_of(number > 30, None))
    test = watch.tests["risk"]
    assert test.alarm
    assert test.alarm_at is not None
    assert test.alarm_at <= 31
    assert test.e_value < 1 / ALPHA
    assert watch.alarm


@pytest.mark.parametrize(
    "settings", [{"risk": 0.0}, {"alpha": 1}, {"tolerance": -0.1}, {"tolerance": math.nan}]
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(settings))} is .*; expected a number"):
        PromiseWatch.of(**settings)


# ---- Questions


def with_like(scores: Any) -> Calibration:
    """A calibration that got these probabilities out of fold."""
    parts = np.array_split(np.sort(scores), 10)
    like = tuple(LikeAnswers(float(part[0]), float(part[-1]), len(part), 0) for part in parts)
    return replace(ATLAS, report=replace(ATLAS.report, like=like))


def warned(calibration: Calibration, stream: Any) -> SequentialTest:
    watch = PromiseWatch.of(calibration)
    for probability in stream:
        watch.observe(float(probability))
    assert not watch.alarm
    return watch.tests["questions"]


def test_like_questions_rarely_look_different_and_others_soon_do() -> None:
    rng = np.random.default_rng(10)
    tests = [warned(with_like(rng.beta(4, 2, 200)), rng.beta(4, 2, 100)) for _ in range(300)]
    assert sum(test.alarm for test in tests) <= binom.ppf(0.999, 300, ALPHA)
    for other in (rng.beta(3, 3, 200), np.where(rng.random(200) < 0.5, 0.2, 0.95)):
        assert warned(with_like(rng.beta(4, 2, 600)), other).alarm


def test_a_probability_is_counted_among_those_that_are_like_it() -> None:
    like = ATLAS.report.like
    for place, group in enumerate(like):
        for probability in (group.low, group.high):
            watch = PromiseWatch.of(ATLAS)
            watch.observe(probability)
            assert watch.counts == [other.n + (number == place) for number, other in enumerate(like)]
    watch = PromiseWatch.of(ATLAS)
    for probability in (0.0, 1.0):
        watch.observe(probability)
    assert (watch.counts[0], watch.counts[-1]) == (like[0].n + 1, like[-1].n + 1)


def test_probabilities_that_all_are_alike_cannot_be_compared() -> None:
    constant = MapCandidate("constant", ("E-SC",)).fit({"E-SC": np.array([0.2, 0.7])}, np.array([0.0, 1.0]))
    alike = replace(ATLAS.report, like=ATLAS.report.like[:1])
    for calibration in (
        replace(ATLAS, map=constant),
        replace(ATLAS, report=alike),
    ):
        watch = PromiseWatch.of(calibration)
        watch.observe(0.5)
        assert "questions" not in watch.tests


# ---- State


@given(labels=st.lists(replies, max_size=30), further=st.lists(replies, max_size=10))
def test_a_watch_goes_on_from_its_state_as_if_nothing_had_been(
    labels: list[LabelledReply], further: list[LabelledReply]
) -> None:
    watch = PromiseWatch.of(ATLAS)
    for reply in labels:
        watch.update(reply)
        watch.observe(0.5 if reply.probability is None else reply.probability)
    restored = TypeAdapter(PromiseWatch).validate_json(dumps(asdict(watch)))
    assert restored == watch
    for reply in further:
        watch.update(reply)
        restored.update(reply)
    assert restored == watch
