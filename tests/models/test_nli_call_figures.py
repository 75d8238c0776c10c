"""The number of NLI calls on simulated answers: a figure that the documentation states."""

from __future__ import annotations

import pytest

from benchmarks import nli_calls


@pytest.fixture(scope="module")
def counted() -> dict[tuple[str, int], dict]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nli_calls, "QUESTIONS", 150)
        names, runs, model = nli_calls.simulated()
    rows = [
        row
        for linkage in ("components", "greedy")
        for row in nli_calls.counted("simulated", names, runs, model, linkage)
    ]
    return {(row["linkage"], row["runs"]): row for row in rows}


@pytest.mark.parametrize("linkage", ["components", "greedy"])
def test_one_run_takes_a_tenth_of_all_pairs_and_twenty_runs_a_twenty_fifth(counted, linkage):
    assert counted[linkage, 1]["times fewer"] >= 10
    assert counted[linkage, 20]["times fewer"] >= 25


def test_one_run_takes_hardly_more_calls_than_its_clusters_need_at_least(counted):
    row = counted["components", 1]
    assert row["at least"] <= row["calls a question"] <= 1.15 * row["at least"]


def test_different_values_that_share_a_cluster_are_counted():
    assert nli_calls.hold_different(["$5", "few coins", "$6"], [[0, 1, 2]])
    assert not nli_calls.hold_different(["$5", "few coins", "$6"], [[0, 1], [2]])


def test_the_least_is_one_call_a_pair_apart_and_two_a_further_wording():
    assert nli_calls.least_calls(["ash", "elm", "ash", "oak"], [[0, 2, 3], [1]]) == 2 + 2
    assert nli_calls.least_calls(["20", "21", "many", ""], [[0], [1], [2], [3]]) == 2
