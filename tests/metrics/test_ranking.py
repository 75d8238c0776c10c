"""AUROC against pairs counted one by one, scikit-learn and the Mann-Whitney statistic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu
from sklearn.metrics import roc_auc_score

from semcal.errors import InputError, UndefinedWarning
from semcal.metrics import auroc

SCORED = st.lists(
    st.tuples(st.one_of(st.integers(-3, 3), st.floats(-1e6, 1e6)), st.booleans()), min_size=2, max_size=40
).map(lambda rows: tuple(np.array(column, float) for column in zip(*rows, strict=True)))


@given(SCORED)
def test_auroc_is_the_share_of_pairs_in_order_with_ties_half(scored):
    s, c = scored
    assume(0 < c.sum() < len(c))
    wins = [(a > b) + 0.5 * (a == b) for a in s[c == 1] for b in s[c == 0]]
    assert auroc(s, c) == pytest.approx(np.mean(wins), abs=1e-12)


@given(SCORED)
def test_auroc_agrees_with_scikit_learn_and_mann_whitney(scored):
    s, c = scored
    assume(0 < c.sum() < len(c))
    assert auroc(s, c) == pytest.approx(roc_auc_score(c, s), abs=1e-12)
    u = mannwhitneyu(s[c == 1], s[c == 0], method="asymptotic").statistic
    assert auroc(s, c) == pytest.approx(u / (c.sum() * (1 - c).sum()), abs=1e-12)


@given(SCORED)
def test_auroc_is_unmoved_by_increasing_and_mirrored_by_decreasing_transforms(scored):
    s, c = scored
    assume(0 < c.sum() < len(c))
    rank = np.searchsorted(np.unique(s), s)
    for increasing in (rank, rank**3, np.exp(rank / 10), rank - 1000):
        assert auroc(increasing, c) == pytest.approx(auroc(s, c), abs=1e-12)
    assert auroc(-rank, c) == pytest.approx(1 - auroc(s, c), abs=1e-12)


@pytest.mark.parametrize("correct", [[1, 1, 1], [0, 0, 0]])
def test_auroc_of_one_class_is_undefined_and_not_a_half(correct):
    with pytest.warns(UndefinedWarning, match="AUROC is undefined"):
        assert np.isnan(auroc([0.1, 0.2, 0.3], correct))


def test_all_ties_are_chance():
    assert auroc([0.3] * 4, [1, 0, 1, 0]) == 0.5


def test_infinite_scores_have_their_place_in_the_ranking():
    assert auroc([-np.inf, 0, np.inf], [0, 1, 1]) == 1.0


def test_a_score_that_is_nan_is_refused_by_name():
    with pytest.raises(InputError, match=r"score\[1\] is NaN"):
        auroc([0.1, np.nan], [0, 1])
