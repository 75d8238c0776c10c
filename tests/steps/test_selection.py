"""Selection on validation and TS-grid: the highest gain for each measure, ties to the simpler."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semcal import metrics
from semcal.data.question import Question
from semcal.errors import FitError, InputError, UsageError
from semcal.grading.rules import RuleGrader
from semcal.measures import MEASURES
from semcal.models.fakes import FakeEquivalence, FakeLanguageModel
from semcal.models.protocols import Capabilities
from semcal.recalibration import Temperature
from semcal.recalibration.select import Candidate
from semcal.store import Store
from tests.json_rows import (
    choose_temperatures,
    cluster_rows,
    fields_of,
    fit_grid,
    grade_row,
    measure_rows,
    rows_at_temperatures,
    sample_questions,
)
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
        (SS[::-1], "TS SS 0.1"),
        ([*DECAYS, NLL], "TS NLL"),
        (DECAYS, "ATS 0.0"),
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


def test_without_log_likelihoods_only_e_sc_is_selected() -> None:
    bare = [{**row, "log_likelihoods": None} for row in ALIKE]
    assert tuple(select({BASE: bare, NLL: ALIKE}).chosen) == ("E-SC",)


def test_questions_without_a_measure_are_refused() -> None:
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
    assert select(candidates, by="brier").chosen["E-SC"].candidate == wrong
    found = select(candidates)
    assert found.chosen["E-SC"].candidate == sensible
    gains = {e.candidate: e.score.gain for e in found.entries if e.measure == "E-SC"}
    assert gains[sensible] == pytest.approx(0.5 * (2 * 0.5) - 0.5**2)
    assert gains[wrong] == pytest.approx(0.025 * (2 * 0.2) - 0.2**2)


# ---- TS-grid: the temperature of the highest gain for each measure, from samples alone


pytestmark = pytest.mark.filterwarnings("ignore::semcal.errors.UndefinedWarning")
SAME = FakeEquivalence([{"ana", "dr ana"}])


def world(n: int, *, over: float = 2.0, seed: int = 0) -> tuple[FakeLanguageModel, list[Question]]:
    """A model of two answers whose logits are `over` times what the truth calls for."""
    rng = random.Random(seed)
    table, questions = {}, []
    for number in range(n):
        truth = rng.uniform(-3, 3)
        said = 1 / (1 + math.exp(-over * truth))
        text = f"Who built mill {number}?"
        table[text] = {"Ana.": said, "Bo.": 1 - said}
        right = "Ana" if rng.random() < 1 / (1 + math.exp(-truth)) else "Bo"
        questions.append(Question(f"q{number}", text, (right,)))
    return FakeLanguageModel(table), questions


def row(name: str, p: float | None, right: bool | None, measure: str = "E-SC") -> dict:
    return {"id": name, "confidence": {measure: p}, "correct": {measure: right}}


def five(*rows: dict) -> list[dict]:
    """Each row for five questions, as a choice needs five."""
    return [{**one, "id": f"{one['id']}.{copy}"} for copy in range(5) for one in rows]


class CountingModel:
    """A model that can be sampled and nothing else."""

    capabilities = Capabilities(states=False)

    def __init__(self, model: FakeLanguageModel) -> None:
        self._model, self.passes = model, 0
        self.encode = model.encode

    def sample(self, *args):
        self.passes += 1
        return self._model.sample(*args)


@pytest.mark.parametrize(("by", "chosen"), [("brier", 2), ("gain", 1)])
def test_a_model_twice_too_sure_gets_2_by_brier_score_and_stays_where_it_is_right_more_often_by_gain(
    by, chosen
) -> None:
    model, questions = world(200)
    found = fit_grid(model, questions, equivalence=SAME, temperatures=(0.5, 1, 2, 4), by=by)
    assert found.temperatures["E-SC"] == chosen
    assert found.recalibrators["E-SC"].loss.lower() == by
    right = {row["temperature"]: row["accuracy"] for row in found.table() if row["measure"] == "E-SC"}
    assert right[1] > right[2]  # of ten answers drawn at 2, fewer are the likeliest one


def test_every_score_is_that_of_the_stages_run_one_by_one() -> None:
    model, questions = world(25)
    found = fit_grid(model, questions, equivalence=SAME, temperatures=(0.7, 1.0, 1.9), m=5, seed=3)
    assert [(r["measure"], r["temperature"]) for r in found.table()] == [
        (m, t) for m in MEASURES for t in (0.7, 1.0, 1.9)
    ]
    for temperature in (0.7, 1.9):
        (sampled,) = sample_questions(model, questions, recalibrators=[Temperature(temperature)], m=5, seed=3)
        rows, _ = cluster_rows(
            [{**q.row(), **fields_of(s)} for q, s in zip(questions, sampled)], equivalence=SAME
        )
        rows = [grade_row(r, grader=RuleGrader()) for r in measure_rows(rows)]
        for measure in MEASURES:
            p, c = ([r[key][measure] for r in rows] for key in ("confidence", "correct"))
            (entry,) = [
                r for r in found.table() if (r["measure"], r["temperature"]) == (measure, temperature)
            ]
            assert entry["gain"] == pytest.approx(np.mean(c) - metrics.brier(p, c), abs=1e-12)
            assert entry["brier"] == pytest.approx(metrics.brier(p, c), abs=1e-12)
            assert entry["ace"] == pytest.approx(metrics.ace(p, c), abs=1e-12)
            assert (entry["n"], entry["accuracy"]) == (25, pytest.approx(np.mean(c)))


def test_all_temperatures_share_one_pass_and_only_sampling_is_needed() -> None:
    model, questions = world(10)
    counting, told = CountingModel(model), []
    fit_grid(counting, questions, equivalence=SAME, temperatures=(0.7, 1.9), m=3, progress=told.append)
    assert counting.passes == 1
    assert told[-1] == 10


def test_verdicts_are_asked_for_once_for_all_temperatures() -> None:
    equivalence = FakeEquivalence()
    model, questions = world(20)
    fit_grid(model, questions, equivalence=equivalence, temperatures=(0.7, 1.9))
    assert len(equivalence.asked) == len(set(equivalence.asked))
    assert 0 < len(equivalence.asked) <= 2 * len(questions)


def test_passages_and_their_absence_keep_the_order_of_the_questions() -> None:
    model, questions = world(6)
    mixed = [
        Question(q.id, q.question, q.answers, "A passage." if i % 2 else None)
        for i, q in enumerate(questions)
    ]
    rows = rows_at_temperatures(model, mixed, (1.0, 2.0), equivalence=SAME, m=2)
    assert [[r["id"] for r in rows[t]] for t in (1.0, 2.0)] == [[q.id for q in mixed]] * 2


@pytest.mark.parametrize(
    ("briers", "chosen"),
    [
        ({0.5: 0.2, 1.0: 0.2, 2.0: 0.2}, 1.0),
        ({0.5: 0.2, 2.0: 0.2}, 2.0),
        ({4.0: 0.2, 0.5: 0.2}, 0.5),
    ],
)
def test_ties_go_to_the_temperature_nearest_to_one_and_of_equals_to_the_larger(briers, chosen) -> None:
    rows = {t: five(row("1", 1 - math.sqrt(b), True)) for t, b in briers.items()}
    assert choose_temperatures(rows).temperatures == {"E-SC": chosen}


def test_measures_may_differ_in_temperature() -> None:
    right = {"E-SC": True, "L-SC": True}
    rows = {
        1.0: five({"id": "1", "confidence": {"E-SC": 0.9, "L-SC": 0.5}, "correct": right}),
        2.0: five({"id": "1", "confidence": {"E-SC": 0.8, "L-SC": 0.6}, "correct": right}),
    }
    found = choose_temperatures(rows)
    assert found.temperatures == {"E-SC": 1.0, "L-SC": 2.0}
    recalibrator = found.recalibrators["L-SC"]
    assert (recalibrator.temperature, recalibrator.method) == (2.0, "TS-grid")


def test_a_temperature_gains_nothing_by_having_no_opinion() -> None:
    rows = {
        1.0: five(row("1", 0.9, True), row("2", 0.6, False)),
        2.0: five(row("1", 0.8, True), row("2", None, None)),  # without the common ground: .04 against .185
    }
    found = choose_temperatures(rows)
    assert found.temperatures == {"E-SC": 1.0}
    assert {entry["n"] for entry in found.table()} == {5}


def test_what_cannot_be_chosen_from_is_refused() -> None:
    model, questions = world(6)
    for grid, message in [
        ((), "^temperatures: "),
        ((1, 1), "^temperatures: "),
        ((0,), "positive"),
    ]:
        with pytest.raises(UsageError, match=message):
            fit_grid(model, questions, equivalence=SAME, temperatures=grid)
    with pytest.raises(InputError, match="'q0'"):
        fit_grid(model, [questions[0]] * 5, equivalence=SAME, temperatures=(1,))
    with pytest.raises(FitError, match=r"^measures: "):
        choose_temperatures({1.0: five(row("1", None, None))})
    rows = five(row("1", 0.5, True))
    with pytest.raises(FitError, match=r"^questions: .*at least 5"):
        choose_temperatures({1.0: rows[:4]})


class Stopping(FakeLanguageModel):
    """A model that is killed after so many calls of `sample`, and counts them."""

    def __init__(self, calls: int) -> None:
        super().__init__({f"Who built mill {i}?": {"Ana.": 0.5, "Bo.": 0.5} for i in range(90)})
        self.limit, self.calls = calls, 0

    def sample(self, *args: Any) -> Any:
        if self.calls == self.limit:
            raise KeyboardInterrupt
        self.calls += 1
        return super().sample(*args)


def test_finished_blocks_are_not_sampled_again(tmp_path: Path) -> None:
    _, questions = world(90)

    def rows_of(model: Stopping, *temperatures: float, keep: bool = True) -> Any:
        store = Store(tmp_path) if keep else None
        return rows_at_temperatures(model, questions, temperatures, equivalence=SAME, m=3, keep=store)

    with pytest.raises(KeyboardInterrupt):
        rows_of(Stopping(1), 1.0, 2.0)
    after = Stopping(99)
    rows = rows_of(after, 1.0, 2.0)
    assert after.calls == 1
    assert rows == rows_of(Stopping(99), 1.0, 2.0, keep=False)
    assert [row["id"] for row in rows[2.0]] == [question.id for question in questions]
    other = Stopping(99)
    rows_of(other, 1.0, 3.0)
    assert other.calls == 2
