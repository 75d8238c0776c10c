"""Selection on validation: the highest gain for each measure, ties to the simpler, all scores kept."""

from __future__ import annotations

import random

import numpy as np
import pytest

from semcal import metrics
from semcal.errors import FitError, InputError, UsageError
from semcal.grading.rules import Grade, RuleGrader
from semcal.measures import MEASURES
from semcal.recalibration.select import Candidate
from tests.json_rows import grade_row, measure_rows
from tests.json_rows import select_candidates as select

BASE = Candidate("Base")
NLL = Candidate("TS NLL", "NLL")
SS = [Candidate(f"TS SS {alpha}", "SS", alpha) for alpha in (0.1, 0.25)]


def sampled(n: int, seed: int, spread: float) -> list[dict]:
    """Made-up clustered rows of four draws; the larger the spread, the more meanings."""
    rng = random.Random(seed)
    rows = []
    for number in range(n):
        names = [rng.choice(["Ana", "Bo", "Cy"]) if rng.random() < spread else "Ana" for _ in range(4)]
        meanings = list(dict.fromkeys(names))
        rows.append(
            {
                "id": str(number),
                "question": f"Who built mill {number}?",
                "answers": ["Ana" if random.Random(number).random() < 0.6 else "Bo"],
                "samples": names,
                "log_likelihoods": [rng.uniform(-2, -0.01) for _ in names],
                "clusters": [[i for i, name in enumerate(names) if name == one] for one in meanings],
            }
        )
    return rows


def test_every_score_is_that_of_measuring_and_grading_with_that_a() -> None:
    candidates = {BASE: sampled(60, 1, 0.3), NLL: sampled(60, 2, 0.8)}
    table = select(candidates).table()
    assert len(table) == 2 * (5 + 2 * 3)
    for entry in table:
        a = entry["measure_alpha"] or 0.5
        rows = candidates[{c.name: c for c in candidates}[entry["candidate"]]]
        graded = [grade_row(row, grader=RuleGrader()) for row in measure_rows(rows, t_alpha=a, g_alpha=a)]
        p, c = ([row[key][entry["measure"]] for row in graded] for key in ("confidence", "correct"))
        assert entry["gain"] == pytest.approx(np.mean(2 * np.multiply(p, c) - np.square(p)), abs=1e-12)
        assert entry["brier"] == pytest.approx(metrics.brier(p, c), abs=1e-12)
        assert entry["ace"] == pytest.approx(metrics.ace(p, c), abs=1e-12)
        assert entry["auroc"] == pytest.approx(metrics.auroc(p, c), abs=1e-12)
        assert (entry["n"], entry["accuracy"]) == (60, pytest.approx(np.mean(c)))


@pytest.mark.parametrize(("by", "best"), [("gain", max), ("brier", min)])
def test_the_highest_gain_or_the_lowest_brier_score_of_each_measure_wins(by, best) -> None:
    candidates = {BASE: sampled(80, 1, 0.2), NLL: sampled(80, 2, 0.6), SS[0]: sampled(80, 3, 0.9)}
    selection = select(candidates, by=by)
    assert list(selection.chosen) == list(MEASURES)
    for measure in MEASURES:
        rivals = [row for row in selection.table() if row["measure"] == measure]
        (winner,) = [row for row in rivals if row["chosen"]]
        assert winner[by] == best(row[by] for row in rivals)
        assert selection.chosen[measure].candidate.name == winner["candidate"]
        assert (selection.chosen[measure].measure_alpha is not None) == (measure in ("T-SC", "G-SC"))


ALIKE = sampled(40, 1, 0.5)
DECAYS = [Candidate(f"ATS {decay}", "NLL", None, decay) for decay in (0.01, 0.0)]


@pytest.mark.parametrize(
    ("tied", "simplest"),
    [
        ([*SS, NLL, BASE], "Base"),
        ([*SS[::-1], NLL], "TS NLL"),
        (SS[::-1], "TS SS 0.1"),
        ([*DECAYS, NLL], "TS NLL"),
        (DECAYS, "ATS 0.0"),
        ([SS[0], Candidate("ATS", "NLL", None, 0.01)], "ATS"),
        ([Candidate("SE"), BASE], "SE"),
    ],
)
@pytest.mark.parametrize("by", ["gain", "brier"])
def test_ties_go_to_the_simpler_candidate(tied, simplest, by) -> None:
    chosen = select(dict.fromkeys(tied, ALIKE), by=by).chosen
    assert {entry.candidate.name for entry in chosen.values()} == {simplest}


def test_ties_between_a_go_to_the_one_nearest_to_1() -> None:
    single = [{**row, "clusters": [[0, 1, 2, 3]]} for row in ALIKE]  # confidence 1 whatever a is
    chosen = select({BASE: single}).chosen
    assert (chosen["T-SC"].measure_alpha, chosen["G-SC"].measure_alpha) == (1.25, 1.25)
    assert chosen["B-SC"].measure_alpha is None


def test_a_better_score_wins_over_simplicity() -> None:
    right = [{**row, "samples": row["answers"] * 4, "clusters": [[0, 1, 2, 3]]} for row in ALIKE]
    with pytest.warns(match="AUROC is undefined"):
        chosen = select({BASE: ALIKE, SS[1]: right}).chosen
    assert {entry.candidate for entry in chosen.values()} == {SS[1]}


def test_every_cluster_is_graded_once_whatever_the_number_of_a() -> None:
    class Counting:
        calls = 0

        def grade(self, question, predictions, references) -> Grade:
            self.calls += 1
            return RuleGrader().grade(question, predictions, references)

    grader = Counting()
    select({BASE: ALIKE}, grader=grader, measure_alphas=(0.5, 0.75, 1.0, 1.25))
    assert grader.calls == sum(len(row["clusters"]) for row in ALIKE)


def test_without_log_likelihoods_only_e_sc_is_selected() -> None:
    bare = [{**row, "log_likelihoods": None} for row in ALIKE]
    assert tuple(select({BASE: bare, NLL: ALIKE}).chosen) == ("E-SC",)


def test_the_order_of_the_rows_plays_no_part() -> None:
    other = sampled(40, 9, 0.9)
    assert select({BASE: ALIKE, NLL: other}).table() == select({BASE: ALIKE, NLL: other[::-1]}).table()


def test_what_cannot_be_selected_from_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^candidates: "):
        select({})
    with pytest.raises(UsageError, match=r"^candidates: "):
        select({Candidate("TS", "NLL"): ALIKE, Candidate("TS", "SS", 0.1): ALIKE})
    with pytest.raises(UsageError, match=r"^measure_alphas: "):
        select({BASE: ALIKE}, measure_alphas=())
    with pytest.raises(UsageError, match="unknown measure"):
        select({BASE: ALIKE}, measures=("E-CS",))
    with pytest.raises(InputError, match=r"^candidates: "):
        select({BASE: ALIKE, NLL: ALIKE[1:]})
    with pytest.raises(FitError, match=r"^measures: "):
        select({BASE: []})


def answering(right: int, confidence: int, n: int = 40) -> list[dict]:
    """`right` of n questions right, every answer with a share of `confidence` of ten draws."""
    rows = []
    for number in range(n):
        samples = ["Ana"] * confidence + [f"x{i}" for i in range(10 - confidence)]
        clusters = [list(range(confidence)), *([i] for i in range(confidence, 10))]
        rows.append(
            {
                "id": str(number),
                "question": "Who?",
                "answers": ["Ana" if number < right else "Bo"],
                "samples": samples,
                "log_likelihoods": [-1.0] * 10,
                "clusters": clusters,
            }
        )
    return rows


def test_a_candidate_that_is_nearly_always_wrong_and_knows_it_wins_by_brier_score_and_loses_by_gain() -> None:
    sensible, wrong = Candidate("TS NLL", "NLL"), Candidate("TS SS 0.75", "SS", 0.75)
    candidates = {sensible: answering(20, 5), wrong: answering(1, 2)}
    assert select(candidates, measures=["E-SC"], by="brier").chosen["E-SC"].candidate == wrong
    found = select(candidates, measures=["E-SC"])
    assert found.chosen["E-SC"].candidate == sensible
    gains = {e.candidate: e.score.gain for e in found.entries}
    assert gains[sensible] == pytest.approx(0.5 * (2 * 0.5) - 0.5**2)
    assert gains[wrong] == pytest.approx(0.025 * (2 * 0.2) - 0.2**2)


def test_empty_confidence_does_not_win_by_gain() -> None:
    boasting, sensible = Candidate("TS NLL", "NLL"), Candidate("TS SS 0.75", "SS", 0.75)
    candidates = {boasting: answering(22, 10), sensible: answering(20, 5)}  # two more right, all claimed sure
    assert select(candidates, measures=["E-SC"]).chosen["E-SC"].candidate == sensible


def test_with_the_same_answers_gain_and_brier_score_choose_alike() -> None:
    candidates = {Candidate(f"a{share}"): answering(20, share) for share in (2, 4, 6, 9)}
    chosen = {by: select(candidates, measures=["E-SC"], by=by).chosen["E-SC"] for by in ("gain", "brier")}
    assert chosen["gain"].candidate == chosen["brier"].candidate


def test_an_unknown_rule_of_choice_is_refused() -> None:
    with pytest.raises(UsageError, match=r"unknown rule of choice 'ace'\. Known: gain, brier"):
        select({BASE: ALIKE}, by="ace")
