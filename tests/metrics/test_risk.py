"""The risk-controlled threshold: its test written out, and its guarantee by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from semcal import metrics
from semcal.errors import InputError, UsageError
from semcal.metrics import risk_controlled_threshold


def plain_threshold(p, c, risk, delta, grid):
    """Threshold after threshold from the strictest that could pass, each by SciPy's exact binomial bound."""
    found = None
    for t in sorted(grid, reverse=True):
        answered = [right for x, right in zip(p, c, strict=True) if x >= t]
        if len(answered) < math.log(delta) / math.log(1 - risk):
            continue
        errors = len(answered) - sum(answered)
        test = binomtest(errors, len(answered), alternative="less")
        if test.proportion_ci(confidence_level=1 - delta, method="exact").high > risk:
            break
        found = t
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_threshold_is_the_last_of_a_row_of_exact_binomial_tests(seed):
    rng = np.random.default_rng(seed)
    p = rng.choice(np.arange(1, 11) / 10, 300) if seed % 2 else rng.beta(3, 1, 300)
    c = rng.uniform(size=300) < p**0.3
    result = risk_controlled_threshold(p, c, risk_limit=0.15, delta=0.1)
    expected = plain_threshold(p.tolist(), c.tolist(), 0.15, 0.1, [k / 100 for k in range(101)])
    assert result.threshold == expected
    if expected is not None:
        assert result.answered == (p >= expected).sum()
        assert result.errors == (p >= expected).sum() - c[p >= expected].sum()
        assert result.coverage == pytest.approx((p >= expected).mean())
        assert result.upper_bound <= 0.15
        assert result.tested_bounds[:-1].max(initial=0) <= 0.15


@pytest.mark.parametrize("curve", ["calibrated", "overconfident", "at the limit"])
def test_the_error_rate_exceeds_the_limit_no_more_often_than_allowed(curve):
    risk, delta, values = 0.1, 0.1, np.arange(1, 11) / 10
    chance = {
        "calibrated": values,
        "overconfident": values**3,
        # Risk is exactly at the limit for the strictest half, and just above it below: the hardest case.
        "at the limit": np.where(values > 0.5, 1 - risk, 1 - risk - 0.002),
    }[curve]
    rng = np.random.default_rng(0)
    exceeded = 0
    for _ in range(600):
        place = rng.integers(10, size=300)
        c = rng.uniform(size=300) < chance[place]
        found = risk_controlled_threshold(values[place], c, risk_limit=risk, delta=delta).threshold
        if found is not None:
            exceeded += (1 - chance[values >= found]).mean() > risk + 1e-12
    assert exceeded / 600 <= delta + 2.5 * math.sqrt(delta * (1 - delta) / 600)


def test_a_useful_threshold_is_found_when_there_is_one():
    rng = np.random.default_rng(1)
    p = rng.uniform(size=2000)
    result = risk_controlled_threshold(p, rng.uniform(size=2000) < p, risk_limit=0.2)
    assert 0.6 <= result.threshold <= 0.7  # at 0.6 the true error rate is 0.2


@pytest.mark.parametrize(("n", "found"), [(58, False), (59, True)])
def test_without_errors_it_takes_as_many_answers_as_could_pass_at_all(n, found):
    # ln 0.05 / ln 0.95 = 58.4
    result = risk_controlled_threshold([0.9] * n, [1] * n, risk_limit=0.05, delta=0.05)
    assert (result.threshold is not None) is found


def test_no_threshold_is_an_answer():
    result = risk_controlled_threshold([0.9] * 100, [0] * 100, risk_limit=0.1)
    assert result.threshold is None
    assert (result.answered, result.errors, result.coverage) == (0, 0, 0.0)
    assert math.isnan(result.upper_bound)
    assert result.tested_thresholds.tolist() == [0.9]
    assert result.tested_bounds.tolist() == [1.0]


def test_testing_stops_at_the_first_failure_although_a_looser_threshold_would_pass():
    # 0.9: all right; 0.8: a run of errors; 0.1: many right answers that would make up for them.
    p = [0.9] * 100 + [0.8] * 20 + [0.1] * 2000
    c = [1] * 100 + [0] * 20 + [1] * 2000
    result = risk_controlled_threshold(p, c, risk_limit=0.05)
    assert result.threshold == pytest.approx(0.81)
    assert result.tested_thresholds[-1] == pytest.approx(0.8)
    assert result.tested_bounds[-1] > 0.05


def test_thresholds_of_ones_own_may_be_of_any_score():
    score = [-0.1] * 100 + [-2.0] * 100
    result = risk_controlled_threshold(
        score, [1] * 100 + [0] * 100, risk_limit=0.05, thresholds=[-3.0, -1.0, -0.5, -1.0]
    )
    assert result.threshold == -1.0
    assert result.answered == 100


@pytest.mark.parametrize(
    "options", [{"risk_limit": 0.0}, {"risk_limit": 1.0}, {"risk_limit": 0.1, "delta": 0}]
)
def test_limits_outside_the_unit_interval_are_refused(options):
    with pytest.raises(UsageError, match="expected a number between 0 and 1"):
        risk_controlled_threshold([0.5], [1], **options)


@pytest.mark.parametrize("thresholds", [[], [0.5, math.nan]])
def test_thresholds_that_are_none_are_refused(thresholds):
    with pytest.raises(UsageError, match="thresholds"):
        risk_controlled_threshold([0.5], [1], risk_limit=0.1, thresholds=thresholds)


def test_scores_need_thresholds_of_their_own():
    with pytest.raises(InputError, match="expected a probability"):
        risk_controlled_threshold([-2.0], [1], risk_limit=0.1)


def passes(errors: int, answered: int, risk: float, delta: float) -> bool:
    test = binomtest(errors, answered, alternative="less")
    return test.proportion_ci(confidence_level=1 - delta, method="exact").high <= risk


@pytest.mark.parametrize(("risk", "delta", "needed"), [(0.05, 0.05, 59), (0.1, 0.05, 29), (0.2, 0.1, 11)])
def test_without_errors_the_questions_needed_are_those_that_could_pass_at_all(risk, delta, needed):
    assert passes(0, needed, risk, delta)
    assert not passes(0, needed - 1, risk, delta)
    result = risk_controlled_threshold([0.9] * 8, [1] * 8, risk_limit=risk, delta=delta)
    assert (result.threshold, result.questions, result.questions_needed) == (None, 8, needed)
    half = risk_controlled_threshold([0.9] * 4 + [0.2] * 4, [1] * 4 + [0] * 4, risk_limit=risk, delta=delta)
    assert half.questions_needed == 2 * needed


@pytest.mark.parametrize("errors", [1, 2, 3])
def test_with_errors_they_are_the_least_that_pass_at_the_same_error_rate(errors):
    n, risk, delta = 60, 0.1, 0.05
    result = risk_controlled_threshold([0.9] * n, [0] * errors + [1] * (n - errors), risk_limit=risk)
    if passes(errors, n, risk, delta):
        assert result.questions_needed is None
        return
    least = next(k for k in range(1, 2000) if passes(math.ceil(k * errors / n - 1e-9), k, risk, delta))
    assert result.questions_needed == max(least, n + 1)


def test_where_even_the_surest_are_wrong_too_often_no_number_of_questions_is_promised():
    result = risk_controlled_threshold([0.9] * 50, [0] * 10 + [1] * 40, risk_limit=0.1)
    assert (result.threshold, result.questions_needed) == (None, None)
    assert "wrong answers within 10 % by these 50 questions, nor would it be by more" in result.sentence


def test_that_even_the_surest_err_too_often_is_said_only_where_the_questions_could_show_it():
    """Of ten per cent 28.4 questions are the fewest that could show it, and 85.3 three times that."""

    def needed(right: int, wrong: int) -> int | None:
        found = risk_controlled_threshold([0.9] * (right + wrong), [1] * right + [0] * wrong, risk_limit=0.1)
        assert found.threshold is None
        return found.questions_needed

    assert needed(10, 10) == needed(0, 3) == 29  # of 20 and of 3 questions, nothing is known
    assert needed(20, 10) is None  # a third wrong of 30: above a tenth beyond doubt
    few = needed(43, 7)  # 14 % of 50 may be a tenth
    assert binomtest(7, 50, 0.1, alternative="greater").pvalue > 0.05
    assert few == next(n for n in range(51, 500) if passes(7, n, 0.1, 0.05))
    assert needed(75, 10) is not None  # of 85 likewise
    assert needed(76, 10) is None  # of 86 as well, and they are enough
    half = risk_controlled_threshold([0.9, 0.4] * 6, [0, 0] * 6, risk_limit=0.1, thresholds=[0.8])
    assert half.questions_needed == 2 * 29
    assert half.sentence.endswith("by these 12 questions; at least 58 would be needed")


def test_the_sentence_says_what_holds_or_what_it_would_take():
    p, c = [0.62] * 48 + [0.3] * 52, [1] * 47 + [0] + [0] * 52
    result = risk_controlled_threshold(p, c, risk_limit=0.1)
    expected = "answer from .31: 48 % answered, at most 10 % of them wrong with 95 % confidence"
    assert (result.sentence, result.questions_needed) == (expected, None)
    few = risk_controlled_threshold([0.62] * 20, [1] * 20, risk_limit=0.1)
    assert few.sentence == (
        "no threshold is shown to keep the share of wrong answers within 10 % by these 20 questions; "
        "at least 29 would be needed"
    )
    some = risk_controlled_threshold([0.62] * 40, [0] * 2 + [1] * 38, risk_limit=0.1)
    assert some.sentence == (
        "no threshold is shown to keep the share of wrong answers within 10 % by these 40 questions; "
        f"about {some.questions_needed} would be needed"
    )
    whole = risk_controlled_threshold([0.5] * 60, [1] * 60, risk_limit=0.125, thresholds=[0, 1, -3])
    assert whole.sentence.startswith("answer from -3: 100 % answered, at most 12.5 % of them wrong")


def test_more_questions_of_the_kind_do_pass_as_often_as_a_good_chance():
    """With the number that is named and the same error rate, a threshold is found about as often as not."""
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(200):
        p = np.repeat([0.9, 0.4], [237, 237])  # 1 % and 40 % wrong
        c = rng.random(474) < np.repeat([0.99, 0.6], [237, 237])
        found += risk_controlled_threshold(p, c, risk_limit=0.05).threshold is not None
    assert found > 100


@pytest.mark.parametrize("grouped", [True, False])
def test_the_bound_holds_for_questions_that_are_right_and_wrong_together_if_their_groups_are_given(grouped):
    risk, delta, worlds, rng = 0.1, 0.05, 1000, np.random.default_rng(0)
    groups = np.repeat(np.arange(60), 5)
    broken = 0
    for seed in range(worlds):
        correct = np.repeat(rng.random(60) > risk + 0.001, 5)  # an error rate just above the limit
        given = {"groups": groups, "seed": seed} if grouped else {}
        found = risk_controlled_threshold(np.full(300, 0.9), correct, risk_limit=risk, delta=delta, **given)
        broken += found.threshold is not None
    honest = binomtest(broken, worlds, delta, alternative="greater").pvalue > 0.001
    assert honest == grouped


def test_one_question_of_each_group_counts_and_which_one_goes_by_the_seed():
    groups = ["a", "a", "b", "b", "b", "c"]
    p, c = [0.9, 0.1] * 3, [1, 0, 1, 0, 1, 1]
    found = [risk_controlled_threshold(p, c, risk_limit=0.9, groups=groups, seed=s) for s in range(20)]
    assert {one.questions for one in found} == {3}
    assert len({one.answered for one in found}) > 1
    again = risk_controlled_threshold(p, c, risk_limit=0.9, groups=groups, seed=3)
    assert (again.threshold, again.answered) == (found[3].threshold, found[3].answered)
    alone = risk_controlled_threshold(p, c, risk_limit=0.9, groups=range(6))
    assert alone.questions == 6
    assert alone.sentence == metrics.risk_controlled_threshold(p, c, risk_limit=0.9).sentence
    with pytest.raises(InputError, match="5 groups for 6 questions"):
        risk_controlled_threshold(p, c, risk_limit=0.9, groups=[1] * 5)
