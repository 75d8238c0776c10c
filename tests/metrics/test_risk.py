"""The risk-controlled threshold: its test written out, and its guarantee by simulation."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from semcal import metrics
from semcal.calibration.thresholds import ThresholdLabels, set_threshold, set_thresholds
from semcal.errors import InputError
from semcal.metrics import label_free_threshold, risk_controlled_threshold
from semcal.metrics.thresholds import likeliest_start


def plain_threshold(p, c, risk, delta, grid, start):
    """Threshold after threshold from the start on, each by SciPy's exact binomial bound."""
    found = None
    for t in sorted((t for t in grid if t <= start), reverse=True):
        answered = [right for x, right in zip(p, c, strict=True) if x >= t]
        if not answered:
            break
        errors = len(answered) - sum(answered)
        test = binomtest(errors, len(answered), alternative="less")
        if test.proportion_ci(confidence_level=1 - delta, method="exact").high > risk:
            break
        found = t
    return found


@pytest.mark.parametrize("seed", range(12))
def test_the_threshold_is_the_last_of_a_row_of_exact_binomial_tests(seed):
    rng = np.random.default_rng(seed)
    p = rng.choice(np.arange(1, 11) / 10, 300) if seed % 2 else rng.beta(3, 1, 300)
    c = rng.uniform(size=300) < p**0.3
    start = [0.8, 0.9, 0.985][seed % 3]
    result = risk_controlled_threshold(p, c, risk_limit=0.15, delta=0.1, start=start)
    expected = plain_threshold(p.tolist(), c.tolist(), 0.15, 0.1, [k / 100 for k in range(101)], start)
    assert result.threshold == expected
    if expected is not None:
        assert result.answered == (p >= expected).sum()
        assert result.errors == (p >= expected).sum() - c[p >= expected].sum()
        assert result.coverage == pytest.approx((p >= expected).mean())
        assert result.upper_bound <= 0.15
        assert result.tested_bounds[:-1].max(initial=0) <= 0.15
    assert (result.questions, result.aside) == (300, 0)


def test_the_error_rate_exceeds_the_limit_no_more_often_than_allowed():
    """It is exactly at the limit for the strictest half, and just above it below: the hardest case."""
    risk, delta, values = 0.1, 0.1, np.arange(1, 11) / 10
    chance = np.where(values > 0.5, 1 - risk, 1 - risk - 0.002)
    rng = np.random.default_rng(0)
    exceeded = 0
    for _ in range(200):
        place = rng.integers(10, size=300)
        c = rng.uniform(size=300) < chance[place]
        found = risk_controlled_threshold(values[place], c, risk_limit=risk, delta=delta).threshold
        if found is not None:
            exceeded += (1 - chance[values >= found]).mean() > risk + 1e-12
    assert exceeded / 200 <= delta + 2.5 * math.sqrt(delta * (1 - delta) / 200)


def test_no_threshold_is_an_answer():
    result = risk_controlled_threshold([0.9] * 100, [0] * 100, risk_limit=0.1, start=0.9)
    assert result.threshold is None
    assert (result.answered, result.errors, result.coverage) == (0, 0, 0.0)
    assert math.isnan(result.upper_bound)
    assert result.tested_thresholds.tolist() == [0.9]
    assert result.tested_bounds.tolist() == [1.0]


def test_testing_stops_at_the_first_failure_although_a_looser_threshold_would_pass():
    # 0.9: all right; 0.8: a run of errors; 0.1: many right answers that would make up for them.
    p = [0.9] * 100 + [0.8] * 20 + [0.1] * 2000
    c = [1] * 100 + [0] * 20 + [1] * 2000
    result = risk_controlled_threshold(p, c, risk_limit=0.05, start=0.9)
    assert result.threshold == pytest.approx(0.81)
    assert result.tested_thresholds[-1] == pytest.approx(0.8)
    assert result.tested_bounds[-1] > 0.05


def test_thresholds_of_ones_own_may_be_of_any_score():
    score = [-0.1] * 100 + [-2.0] * 100
    result = risk_controlled_threshold(
        score, [1] * 100 + [0] * 100, risk_limit=0.05, thresholds=[-3.0, -1.0, -0.5, -1.0], start=-0.5
    )
    assert result.threshold == -1.0
    assert result.answered == 100


def passes(errors: int, answered: int, risk: float, delta: float) -> bool:
    test = binomtest(errors, answered, alternative="less")
    return test.proportion_ci(confidence_level=1 - delta, method="exact").high <= risk


@pytest.mark.parametrize(("risk", "delta", "needed"), [(0.05, 0.05, 59), (0.1, 0.05, 29), (0.2, 0.1, 11)])
def test_without_errors_the_questions_needed_are_those_that_could_pass_at_all(risk, delta, needed):
    assert passes(0, needed, risk, delta)
    assert not passes(0, needed - 1, risk, delta)
    how = {"risk_limit": risk, "delta": delta, "start": 0.9}
    result = risk_controlled_threshold([0.9] * 8, [1] * 8, **how)
    assert (result.threshold, result.questions, result.questions_needed) == (None, 8, needed)
    half = risk_controlled_threshold([0.9] * 4 + [0.2] * 4, [1] * 4 + [0] * 4, **how)
    assert half.questions_needed == 2 * needed


@pytest.mark.parametrize("errors", [1, 2, 3])
def test_with_errors_they_are_the_least_that_pass_at_the_same_error_rate(errors):
    n, risk, delta = 60, 0.1, 0.05
    result = risk_controlled_threshold(
        [0.9] * n, [0] * errors + [1] * (n - errors), risk_limit=risk, start=0.9
    )
    if passes(errors, n, risk, delta):
        assert result.questions_needed is None
        return
    least = next(k for k in range(1, 2000) if passes(math.ceil(k * errors / n - 1e-9), k, risk, delta))
    assert result.questions_needed == max(least, n + 1)


def test_that_even_the_surest_err_too_often_is_said_only_where_the_questions_could_show_it():
    """Of ten per cent 28.4 questions are the fewest that could show it, and 85.3 three times that."""

    def needed(right: int, wrong: int) -> int | None:
        p, c = [0.9] * (right + wrong), [1] * right + [0] * wrong
        found = risk_controlled_threshold(p, c, risk_limit=0.1, start=0.9)
        assert found.threshold is None
        return found.questions_needed

    assert needed(10, 10) == needed(0, 3) == 29  # of 20 and of 3 questions, nothing is known
    assert needed(20, 10) is None  # a third wrong of 30: above a tenth beyond doubt
    few = needed(43, 7)  # 14 % of 50 may be a tenth
    assert binomtest(7, 50, 0.1, alternative="greater").pvalue > 0.05
    assert few == next(n for n in range(51, 500) if passes(7, n, 0.1, 0.05))
    assert needed(75, 10) is not None  # of 85 likewise
    assert needed(76, 10) is None  # of 86 as well, and they are enough
    half = risk_controlled_threshold([0.9, 0.4] * 6, [0, 0] * 6, risk_limit=0.1, thresholds=[0.8], start=0.8)
    assert half.questions_needed == 2 * 29


@pytest.mark.parametrize("grouped", [True, False])
def test_the_bound_holds_for_questions_that_are_right_and_wrong_together_if_their_groups_are_given(grouped):
    risk, delta, worlds, rng = 0.1, 0.05, 300, np.random.default_rng(0)
    groups = np.repeat(np.arange(60), 5)
    broken = 0
    for seed in range(worlds):
        correct = np.repeat(rng.random(60) > risk + 0.001, 5)  # an error rate just above the limit
        given = {"groups": groups, "seed": seed} if grouped else {}
        found = risk_controlled_threshold(np.full(300, 0.9), correct, risk_limit=risk, delta=delta, **given)
        broken += found.threshold is not None
    honest = binomtest(broken, worlds, delta, alternative="greater").pvalue > 0.001
    assert honest == grouped


LEVELS = np.array([0.9999, 0.9901, 0.96])


LIMITS = {"risk_limit": 0.1, "delta": 0.1}


def test_no_confidence_of_a_tested_question_moves_the_start():
    tested = np.repeat(LEVELS, [25, 0, 175])
    assert likeliest_start(tested, 1 - tested, 200, **LIMITS) > 0.96 > LEVELS.min() - 0.01
    rng = np.random.default_rng(0)
    p = rng.choice([0.3, 0.5, 0.7, 0.9], size=150)
    c = rng.random(150) < p
    starts = []
    for number in range(150):
        moved = p.copy()
        moved[number] = 1.0 - p[number]
        found = risk_controlled_threshold(moved, c, risk_limit=0.3)
        starts.append(found.tested_thresholds[0])
    (usual, count), *_ = Counter(starts).most_common()
    assert usual == risk_controlled_threshold(p, c, risk_limit=0.3).tested_thresholds[0]
    assert count >= 120  # the 30 others are those set aside


def test_by_default_a_fifth_of_the_questions_says_where_testing_starts_and_only_the_others_count():
    p = np.repeat([0.62, 0.3], [120, 130])
    c = p > 0.5
    found = risk_controlled_threshold(p, c, risk_limit=0.1, seed=3)
    assert (found.questions, found.aside) == (200, 50)
    assert 80 < found.answered < 110
    assert found.coverage == found.answered / 200
    assert found.threshold == pytest.approx(0.31)
    again = risk_controlled_threshold(p, c, risk_limit=0.1, seed=4)
    assert again.answered != found.answered
    few = risk_controlled_threshold([0.9] * 30, [1] * 30, risk_limit=0.1)
    assert (few.questions, few.questions_needed) == (24, math.ceil(29 * 30 / 24))


@pytest.mark.parametrize("n", [1, 4])
def test_of_fewer_than_five_questions_none_is_set_aside_and_the_loosest_threshold_is_tested(n):
    found = risk_controlled_threshold([0.9] * n, [1] * n, risk_limit=0.99)
    assert (found.threshold, found.aside, found.tested_thresholds.tolist()) == (0.0, 0, [0.0])


def test_the_likeliest_start_is_where_a_binomial_of_the_expected_errors_passes_most_often():
    rng = np.random.default_rng(0)
    p, n, risk, delta = rng.beta(4, 1, 300), 200, 0.15, 0.05
    chances = {}
    for t in (k / 100 for k in range(101)):
        answered = int((p >= t).sum() * n / 300)
        allowed = np.flatnonzero(binom.cdf(np.arange(answered), answered, risk) <= delta)
        chances[t] = binom.cdf(allowed[-1], answered, (1 - p[p >= t]).mean()) if len(allowed) else 0.0
    best = max(chances.values())
    expected = min(t for t, chance in chances.items() if chance >= best - 1e-9)
    assert likeliest_start(p, 1 - p, n, risk_limit=risk, delta=delta) == expected
    assert 0.5 < expected < 0.95


def test_one_question_of_each_group_counts_and_which_one_goes_by_the_seed():
    groups = ["a", "a", "b", "b", "b", "c"]
    p, c = [0.9, 0.1] * 3, [1, 0, 1, 0, 1, 1]
    found = [
        risk_controlled_threshold(p, c, risk_limit=0.9, start=0.9, groups=groups, seed=s) for s in range(20)
    ]
    assert {one.questions + one.aside for one in found} == {3}
    assert len({one.answered for one in found}) > 1
    again = risk_controlled_threshold(p, c, risk_limit=0.9, start=0.9, groups=groups, seed=3)
    assert (again.threshold, again.answered) == (found[3].threshold, found[3].answered)
    alone = risk_controlled_threshold(p, c, risk_limit=0.9, groups=range(6))
    assert (alone.questions, alone.aside) == (5, 1)
    assert alone.sentence == metrics.risk_controlled_threshold(p, c, risk_limit=0.9).sentence
    with pytest.raises(InputError, match="groups"):
        risk_controlled_threshold(p, c, risk_limit=0.9, groups=[1] * 5)


@pytest.mark.parametrize("seed", range(4))
def test_each_of_several_thresholds_is_its_own_at_a_part_of_delta_or_a_stricter_one(seed):
    rng = np.random.default_rng(seed)
    p = rng.beta(3, 1, 400)
    correct = rng.random(400) < p**0.4
    risks = (0.05, 0.1, 0.3)
    found = set_thresholds(ThresholdLabels(p, correct), risks, 0.06)
    assert [(one.risk_limit, one.delta) for one in found] == [(risk, 0.02) for risk in risks]
    alone = [set_threshold(p, correct, r, 0.02).threshold for r in risks]
    for k, one in enumerate(found):
        stricter = [t for t in alone[: k + 1] if t is not None]
        assert one.threshold == (min(stricter) if stricter else None)
    assert found == set_thresholds(ThresholdLabels(p, correct), risks, 0.06)


def test_a_larger_risk_takes_the_threshold_that_a_smaller_one_has_where_its_own_is_higher():
    """Testing begins where enough questions for a risk are reached."""
    p = np.repeat([0.95, 0.9, 0.5], [10, 190, 100])
    correct = np.concatenate([np.arange(10) < 5, np.ones(190), np.zeros(100)]).astype(bool)
    strict, loose = (set_threshold(p, correct, r, 0.05).threshold for r in (0.1, 0.3))
    found = set_thresholds(ThresholdLabels(p, correct), (0.1, 0.3), 0.1)
    thresholds = [one.threshold for one in found]
    assert thresholds[0] == strict
    assert thresholds[1] == min(t for t in (strict, loose) if t is not None)


# ---- All labels, by a score that no label chose


def plain_label_free(score, correct, risk, delta):
    """The fallback procedure, score after score, each by SciPy's exact binomial test.

    A failure spends the level. A start adds its own.
    """
    ranked = sorted(score, reverse=True)
    shares = {0.05: 0.2, 0.2: 0.8} if allows_an_error(0.05 * len(score), risk, 0.2 * delta) else {0.2: 1}
    added = dict.fromkeys(ranked, 0.0)
    for start, share in shares.items():
        fewest = math.ceil(max(math.log(delta) / math.log1p(-risk), start * len(score)))
        added[ranked[fewest - 1]] += share
    level, found = 0.0, None
    for t, share in added.items():
        level += share * delta
        answered = [right for x, right in zip(score, correct, strict=True) if x >= t]
        if level and binom.cdf(len(answered) - sum(answered), len(answered), risk) <= level:
            found = t
        else:
            level = 0.0
    return found


def allows_an_error(n, risk, delta):
    return binom.cdf(1, int(n), risk) <= delta


@pytest.mark.parametrize("n", [200, 900])
@pytest.mark.parametrize("seed", range(8))
def test_without_a_choice_by_labels_all_of_them_are_tested(seed, n):
    rng = np.random.default_rng(seed)
    score = rng.choice([-2.0, 0.5, 1.0, 7.0], n) if seed % 2 else rng.normal(size=n)
    correct = rng.uniform(size=n) < 1 / (1 + np.exp(-1.5 - score))
    found = label_free_threshold(score, correct, risk_limit=0.15)
    assert found.threshold == plain_label_free(score.tolist(), correct.tolist(), 0.15, 0.05)
    assert (found.questions, found.aside, found.test, found.groups) == (n, 0, "exact", None)
    if found.threshold is not None:
        assert found.answered == (score >= found.threshold).sum()
        assert found.upper_bound <= 0.15


def test_too_few_labels_and_unknown_scores_give_no_threshold():
    assert label_free_threshold([1.0] * 5, [1] * 5, risk_limit=0.1).threshold is None
    assert label_free_threshold([-np.inf] * 50, [1] * 50, risk_limit=0.1).threshold is None
    half = label_free_threshold([-np.inf] * 50 + [3.0] * 50, [0] * 50 + [1] * 50, risk_limit=0.1)
    assert (half.threshold, half.coverage) == (3.0, 0.5)


@pytest.mark.parametrize("n", [150, 600])
def test_the_limit_is_exceeded_no_more_often_than_allowed_whatever_the_risk_is_along_the_score(n):
    """The share of errors in excess of the limit crosses 0 several times along a score without ties."""
    risk, delta, worlds, exceeded = 0.2, 0.1, 300, 0
    rng = np.random.default_rng(0)
    for number in range(worlds):
        wave = 10 + number % 30
        u = rng.uniform(size=n)  # the share of questions with a larger score
        wrong = np.clip(risk + 0.004 * wave * np.cos(wave * u), 0, 1)
        correct = rng.uniform(size=n) >= wrong
        found = label_free_threshold(-u, correct, risk_limit=risk, delta=delta).threshold
        if found is not None:
            exceeded += 0.004 * np.sin(wave * -found) > 1e-12
    assert binomtest(int(exceeded), worlds, delta, alternative="greater").pvalue > 0.001
    assert exceeded > 0


def groups_at_the_limit(rng, n_groups, risk):
    """Groups of 1 to 6 answers that are wrong together, each with probability `risk`."""
    sizes = rng.integers(1, 7, n_groups)
    groups = np.repeat(np.arange(n_groups), sizes)
    together = rng.uniform(size=n_groups)[groups]
    alone = rng.uniform(size=len(groups))
    correct = np.where(rng.uniform(size=len(groups)) < 0.5, together, alone) >= risk
    return rng.integers(4, size=len(groups)) / 4, correct, groups


@pytest.mark.parametrize("n_groups", [40, 120])
def test_groups_exceed_the_limit_no_more_often_than_allowed(n_groups):
    worlds, delta, exceeded = 100, 0.1, 0
    rng = np.random.default_rng(1)
    for number in range(worlds):
        score, correct, groups = groups_at_the_limit(rng, n_groups, 0.2)
        found = label_free_threshold(score, correct, risk_limit=0.2, delta=delta, groups=groups, seed=number)
        assert found.test == ("exact" if n_groups == 40 else "betting")
        exceeded += found.threshold is not None
    assert binomtest(exceeded, worlds, delta, alternative="greater").pvalue > 0.001


def test_bets_on_all_members_of_groups_find_more_than_the_test_on_one_of_each():
    rng = np.random.default_rng(2)
    score, _, groups = groups_at_the_limit(rng, 300, 0.2)
    correct = rng.uniform(size=len(score)) >= 0.15 - 0.1 * score
    found = label_free_threshold(score, correct, risk_limit=0.2, groups=groups)
    assert (found.test, found.groups, found.threshold) == ("betting", 270, 0.0)
    assert found.upper_bound < 0.2
    one = label_free_threshold(score, correct, risk_limit=0.03, groups=groups)
    assert (one.test, one.questions, one.threshold) == ("exact", 300, None)
    assert "random question of a new group" not in one.sentence
    assert "for all questions of new groups" in found.sentence
    wrong = label_free_threshold(score, np.arange(len(score)) % 2, risk_limit=0.2, groups=groups)
    assert (wrong.test, wrong.threshold, wrong.questions_needed) == ("betting", None, None)
    assert (
        wrong.sentence == "no threshold: these 270 groups of questions do not prove at most 20% wrong answers"
    )


def test_of_a_large_group_so_many_members_count():
    groups = np.repeat(np.arange(150), 8)
    found = label_free_threshold(np.ones(1200), np.ones(1200), risk_limit=0.2, groups=groups, members=2)
    assert (found.questions, found.aside, found.errors) == (270, 30, 0)
