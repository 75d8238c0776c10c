"""Calibrations: learnt from rows, a model or stored samples; applied, stored, and refused where they must."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache, reduce
from itertools import pairwise
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_calibration import OF_THE_LIKELIHOOD, calibration, threshold
from scipy.stats import binomtest

from semcal.calibration.calibration import Calibration
from semcal.calibration.calibrator import calibrate
from semcal.calibration.features import candidates_for
from semcal.data.question import Question
from semcal.errors import FitError, InputError, SemcalWarning, StoreError
from semcal.hub_names import CALIBRATION
from semcal.inputs import load_equivalence
from semcal.metrics.probability_maps import MapCandidate, ProbabilityMap, choose_map
from semcal.models.fakes import FakeEquivalence, FakeLanguageModel
from semcal.recalibration import TemperatureScaling
from semcal.recalibration.files import write_contents
from semcal.serve.answered import ReplyVerdict
from semcal.uncertainty import SemanticUQ
from tests.json_rows import (
    answer_of,
    calibrate_rows,
    calibrate_samples,
    calibrated_rows,
    cluster_rows,
    features_of,
    measure_at,
    measure_rows,
    rows_by_temperature,
)

EXACT = load_equivalence("exact")


def samples(n: int, seed: int = 0, m: int = 10, likelihoods: bool = True) -> list[dict[str, Any]]:
    """Rows of an overconfident system: the more often an answer is drawn, the likelier it is right."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(n):
        sure = rng.beta(4, 1.2)
        drawn = ["Ana" if rng.random() < sure else f"Bo {rng.integers(4)}" for _ in range(m)]
        right = rng.random() < 0.7 * sure
        row = {"id": f"q{number}", "question": f"Who built mill {number}?", "samples": drawn}
        row["answers"] = ["Ana"] if right else ["Nobody"]
        if likelihoods:
            row["log_likelihoods"] = [float(-rng.exponential()) for _ in drawn]
        rows.append(row)
    return rows


@cache
def learned(n: int, risk: float | None = None) -> Calibration:
    """The calibration of n samples, learned once."""
    return calibrate_samples(samples(n), equivalence=EXACT, risk=risk)


def measured(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return measure_rows(cluster_rows(rows, equivalence=EXACT)[0])


def test_the_answer_is_the_commonest_wording_of_the_commonest_meaning_ties_to_the_first() -> None:
    rows = [
        {"id": "1", "question": "Who?", "samples": ["Bo", "ana", "Ana", "Bo", "ANA", "Ana"]},
        {"id": "2", "question": "Who?", "samples": ["Bo", "Ana", "Ana", "Bo"]},
    ]
    found = features_of({1.0: measured(rows)})
    assert found.answers == ("Ana", "Bo")
    assert found.values["E-SC"] == pytest.approx([4 / 6, 1 / 2])


TIED = {"id": "1", "question": "Who?", "samples": ["Bo", "Ana", "ana", "Cy"], "clusters": [[0], [1, 2], [3]]}


def test_of_equally_frequent_meanings_and_wordings_the_likelier_answers() -> None:
    """Else the one of which more draws at a sharper temperature are, and only then the first."""
    apart = {**TIED, "clusters": [[0], [1], [2], [3]]}

    def answer(row: dict[str, Any], **others: list[str]) -> str:
        rows = {1.0: [row]} | {
            float(t): [{**TIED, "samples": texts, "log_likelihoods": None, "clusters": [[0], [1], [2], [3]]}]
            for t, texts in others.items()
        }
        return features_of(measure_at(rows)).answers[0]

    known = [-3.0, -2.0, -1.0, -2.5]
    assert answer({**apart, "log_likelihoods": known}) == "ana"
    assert answer({**TIED, "log_likelihoods": known}) == "ana"
    assert answer({**TIED, "log_likelihoods": [-3.0, -1.0, -2.0, -2.5]}) == "Ana"
    unknown = {**apart, "log_likelihoods": None}
    assert answer(unknown) == "Bo"
    assert answer(unknown, **{"0.5": ["Cy", "Cy.", "Bo", "Di"]}) == "Cy"
    assert answer(unknown, **{"2": ["Cy", "Cy.", "Bo", "Di"]}) == "Bo"  # that is not sharper
    assert answer({**apart, "log_likelihoods": known}, **{"0.5": ["Cy"] * 4}) == "ana"
    assert answer({**TIED, "log_likelihoods": None}) == "Ana"


def test_a_tie_is_told_in_the_row_and_in_the_answer_and_settled_by_the_row_s_own_sharper_draws() -> None:
    (row,) = measure_rows([{**TIED, "clusters": [[0], [1], [2], [3]], "log_likelihoods": None}])
    assert (row["tied"], row["top_cluster"]["E-SC"]) == (4, 0)
    assert answer_of(row, "E-SC", None, None).tied == 4
    (row,) = measure_rows([{**TIED, "log_likelihoods": None}])
    assert "tied" not in row
    assert answer_of(row, "E-SC", None, None).tied is None
    both = {"samples": [*TIED["samples"], "Cy", "Di"], "temperatures": [1.0] * 4 + [0.5] * 2}
    clusters = [[0], [1], [2], [3], [4], [5]]
    (row,) = measure_rows([{"id": "1", **both, "clusters": clusters, "log_likelihoods": None}])
    assert row["top_cluster"] == {"E-SC": 3}


def at_two_temperatures(n: int) -> list[dict[str, Any]]:
    """Rows of a small model: at T = 1 the draws are noise, at .5 they agree on what is right more often."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(n):
        knows = rng.random() < 0.6
        warm = ["Ana" if rng.random() < 0.15 else f"Bo {rng.integers(500)}" for _ in range(10)]
        cold = ["Ana" if rng.random() < 0.8 * knows else f"Bo {rng.integers(500)}" for _ in range(10)]
        row = {"id": f"q{number}", "question": f"Who built mill {number}?", "answers": ["Ana"]}
        row |= {"samples": warm + cold, "temperatures": [1.0] * 10 + [0.5] * 10}
        rows.append({**row, "log_likelihoods": [float(-rng.exponential() - 1) for _ in range(20)]})
    return rows


def test_answers_are_drawn_at_the_temperature_that_gains_more_and_the_calibration_names_it(
    tmp_path: Path,
) -> None:
    rows = at_two_temperatures(150)
    found = calibrate_samples(rows, equivalence=EXACT)
    assert found.temperature == 0.5
    assert next(iter(found.recalibrators)) == 0.5
    base, warm = found.report.base, found.report.base_at_one
    assert base["accuracy"] == found.report.calibrated["accuracy"] > warm["accuracy"]  # type: ignore[operator]
    found.save_pretrained(tmp_path)
    assert Calibration.from_pretrained(tmp_path) == found
    answers = calibrated_rows(cluster_rows(rows, equivalence=EXACT)[0], found)
    cold = [max(map(row["samples"][10:].count, row["samples"][10:])) / 10 for row in rows]
    assert [one["score"] for one in answers] == pytest.approx(cold)


def test_without_draws_that_gain_more_answers_stay_those_at_one() -> None:
    rows = [
        {**row, "samples": 2 * row["samples"], "temperatures": [1.0] * 10 + [0.5] * 10}
        for row in samples(120, likelihoods=False)
    ]
    found = calibrate_samples(rows, equivalence=EXACT)
    assert found.temperature == 1.0
    assert found.report.base == found.report.base_at_one
    assert found.temperatures == (0.5,)  # without likelihoods these settle ties
    assert learned(120).report.base_at_one is None


@pytest.mark.parametrize(
    ("world", "bounds"),
    [
        ((3, (0.05,), (60,)), {"overstate": (0, 1)}),
        ((3, (0.05,), (250,)), {"overstate": (0, 1)}),
        ((6, (0.15,), (250,)), {"overstate": (0, 1), "with p above 0.5": (1, np.inf)}),
        ((2, (0.85,), (250,)), {"gain lost": (-0.002, 0.002), "AUROC lost": (-0.002, 0.002)}),
    ],
)
def test_maps_of_weak_models_do_not_overstate_and_cap_and_floor_cost_a_good_one_nothing(
    world: Any, bounds: dict[str, tuple[float, float]]
) -> None:
    """A few worlds; `python -m benchmarks.maps_of_weak_models` has them all."""
    from benchmarks.maps_of_weak_models import results

    (row,) = results(*world)
    assert all(low <= row[name] <= high for name, (low, high) in bounds.items())


def test_a_calibrated_probability_is_nearer_to_how_often_answers_are_right() -> None:
    found = learned(400)
    assert found.report.chosen != "none(E-SC)"
    assert found.report.calibrated["gain"] > found.report.base["gain"]  # type: ignore[operator]
    assert found.report.calibrated["accuracy"] == found.report.base["accuracy"]
    new = measured(samples(3000, seed=1))
    answers = found.apply({None: new})
    right = np.array([answer.text in row["answers"] for answer, row in zip(answers, new)])
    p = np.array([answer.probability for answer in answers])
    share = np.array([max(map(len, row["clusters"])) / 10 for row in new])
    assert abs(p.mean() - right.mean()) < 0.1 < abs(share.mean() - right.mean())


def test_with_many_labels_a_threshold_is_set_on_questions_that_nothing_else_was_fitted_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("semcal.calibration.learning.MOST_LABEL_FREE", 500)
    rows = samples(500)
    found = calibrate_samples(rows, equivalence=EXACT, risk=0.55)
    assert found.ordering is None
    assert found.report.n + found.report.apart == 500
    assert found.threshold.n == found.report.apart == 200
    flipped = [
        {**row, "answers": ["Nobody"]} if index in _apart(rows) else row for index, row in enumerate(rows)
    ]
    again = calibrate_samples(flipped, equivalence=EXACT, risk=0.55)
    assert again.map == found.map  # what is kept apart has no say in the map
    assert again.threshold != found.threshold
    assert again.threshold.threshold is None
    assert "no threshold" in again.threshold.sentence


def _apart(rows: list[dict[str, Any]]) -> set[int]:
    from semcal.calibration.thresholds import kept_apart

    return set(np.flatnonzero(kept_apart(len(rows), None, 0)).tolist())


def test_below_the_threshold_it_abstains() -> None:
    rows = samples(500)
    found = learned(500, 0.55)
    assert found.threshold.threshold is not None
    assert (found.ordering, found.report.n, found.report.apart, found.threshold.n) == ("E-SC", 500, 0, 500)
    answers = found.apply({None: measured(rows)})
    assert [a.abstained for a in answers] == [a.score < found.threshold.threshold_score for a in answers]
    assert {a.abstained for a in answers} == {True, False}
    given = [a for a in answers if not a.abstained]
    assert found.threshold.threshold == min(a.probability for a in given)
    assert found.threshold.answered == len(given)


def test_questions_of_one_passage_or_asked_twice_are_kept_apart_together() -> None:
    from semcal.calibration.thresholds import kept_apart

    groups = np.repeat(np.arange(30), 5)
    apart = kept_apart(150, groups, 0)
    assert all(len(set(apart[groups == group])) == 1 for group in range(30))
    assert 0.3 <= apart.mean() <= 0.4


@pytest.mark.parametrize("risk", [0.55, (0.25, 0.45)])
def test_what_was_saved_is_loaded_and_gives_the_same_probabilities(risk: Any, tmp_path: Path) -> None:
    rows = samples(150)
    found = calibrate_samples(rows, equivalence=EXACT, risk=risk)
    found.save_pretrained(tmp_path)
    again = Calibration.from_pretrained(tmp_path)
    assert again == found
    assert again.apply({None: measured(rows)}) == found.apply({None: measured(rows)})
    assert json.loads((tmp_path / "calibration.json").read_text())["kind"] == "calibration"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("m", "ten"),
        ("map", {"candidate": {"kind": "magic", "features": ["E-SC"]}, "parameters": {}, "unknown": [0.0]}),
        ("map.unknown", [1e308]),
        ("threshold", {"threshold": 7, "risk_limit": 0.1, "delta": 0.05, "n": 9, "answered": 1, "errors": 0}),
        ("further", 50),
        ("temperatures", [0.0]),
    ],
)
def test_a_wrong_value_with_a_right_checksum_is_one_error(tmp_path: Path, path: str, value: Any) -> None:
    learned(60).save_pretrained(tmp_path)
    contents = json.loads((tmp_path / "calibration.json").read_text())
    for name in ("sha256", "schema", "kind"):
        del contents[name]
    *outer, key = path.split(".")
    reduce(getitem, outer, contents)[key] = value
    write_contents(tmp_path, CALIBRATION, contents)
    with pytest.raises(StoreError, match=r"calibration\.json"):
        Calibration.from_pretrained(tmp_path)


def test_another_number_of_draws_is_refused_by_name() -> None:
    found = learned(60)
    with pytest.raises(InputError, match=r"'q0' has 5 samples, expected 10"):
        found.apply({None: measured(samples(3, m=5))})
    mixed = [*samples(30), {**samples(1, m=9)[0], "id": "odd"}]
    with pytest.raises(InputError, match=r"'odd' has 9 samples, and others have 10"):
        calibrate_samples(mixed, equivalence=EXACT)


def test_the_number_of_tokens_of_the_likeliest_sample_of_the_answer_is_a_feature() -> None:
    row = {**samples(1, m=3)[0], "samples": ["a", "b", "a"], "log_likelihoods": [-2.0, -0.5, -1.0]}
    found = features_of({None: measured([{**row, "token_counts": [3, 2, count]} for count in (8, None)])})
    assert found.values["token-count"] == pytest.approx([np.log(8), np.nan], nan_ok=True)
    assert "token-count" in found.falling
    for wrong in (0, 2.5, True):
        with pytest.raises(InputError, match="'token_counts'"):
            calibrate_samples([{**row, "token_counts": [3, 2, wrong]}] * 5, equivalence=EXACT)


def test_draws_at_several_temperatures_are_split_with_those_at_one_first() -> None:
    row = {
        "id": "1",
        "samples": ["a", "b", "c", "d"],
        "log_likelihoods": [-1.0, -2.0, -3.0, -4.0],
        "temperatures": [0.5, 1, 0.5, 1],
        "clusters": [[0, 3], [1], [2]],
    }
    split = rows_by_temperature([row])
    assert list(split) == [1.0, 0.5]
    assert split[1.0][0]["samples"] == ["b", "d"]
    assert split[1.0][0]["clusters"] == [[0], [1]]
    assert split[0.5][0]["log_likelihoods"] == [-1.0, -3.0]
    with pytest.raises(InputError, match=r"no sample at T = 0\.5"):
        rows_by_temperature([row, {**row, "id": "2", "temperatures": [1, 1, 1, 1]}])
    with pytest.raises(InputError, match="positive numbers"):
        rows_by_temperature([{**row, "temperatures": [1, 1, 1, 0]}])


def test_a_report_tells_what_is_answered_and_wrong_from_a_threshold_on_without_a_promise() -> None:
    found = learned(150)
    p, correct = np.array(found.labeled.out_of_fold), np.array(found.labeled.correct_out_of_fold)
    for point in found.report.at_thresholds:
        answered = p >= point.threshold
        assert (point.answered, point.wrong) == (answered.sum(), (answered & ~correct).sum())
        assert point.coverage == point.answered / found.report.n
    answered = [point.answered for point in found.report.at_thresholds]
    assert answered == sorted(set(answered), reverse=True)


@pytest.mark.parametrize("right", [True, False])
def test_labels_of_one_kind_give_every_answer_one_probability_and_say_so(right: bool, tmp_path: Path) -> None:
    rows = [{**row, "answers": row["samples"] if right else ["Nobody"]} for row in samples(60)]
    with pytest.warns(SemcalWarning) as caught:
        found = calibrate_samples(rows, equivalence=EXACT)
    n_right, p = (60, 61 / 62) if right else (0, 1 / 62)
    assert [str(one.message).partition(" in ")[0] for one in caught] == [f"{n_right} of 60 answers"]
    assert found.report.chosen == "constant(E-SC)"
    assert found.report.calibrated["auroc"] is None
    assert found.report.why.startswith(f"All answers have the probability {p:.3f}: {n_right} of 60 answers")
    found.save_pretrained(tmp_path)
    answers = Calibration.from_pretrained(tmp_path).apply({None: measured(samples(20, seed=1))})
    assert [one.probability for one in answers] == pytest.approx([p] * 20)


def test_under_a_constant_the_threshold_is_one_of_the_share() -> None:
    alike = ProbabilityMap(MapCandidate("constant", ("E-SC",)), {"value": (0.99,)}, (0.5,))
    found = calibration(map=alike, threshold=threshold(0.75))
    rows = measured(samples(100))
    answers = found.apply({1.0: rows})
    share = [max(map(len, row["clusters"])) / 10 for row in rows]
    assert {one.probability for one in answers} == {0.99}
    assert [one.abstained for one in answers] == [one < 0.75 for one in share]
    assert {one.abstained for one in answers} == {True, False}
    shown = [answer_of(row, "E-SC", one, 0.75) for row, one in zip(rows, answers)]
    assert [one.abstained for one in shown] == [one.abstained for one in answers]


def test_no_map_falls_as_the_draws_agree_more() -> None:
    """Labels that want entropy and meanings to raise the probability do not get it."""
    rows = samples(200)
    turned = [
        {**row, "answers": row["samples"] if len(set(row["samples"])) > 2 else ["Nobody"]} for row in rows
    ]
    features = features_of({None: measured(rows)})
    correct = np.array([float(row["answers"] != ["Nobody"]) for row in turned])
    logistic = next(one for one in candidates_for(features) if one.kind == "logistic")
    found = logistic.fit(features.values, correct)
    slopes = dict(zip(logistic.features, found.parameters["slopes"]))
    assert slopes["entropy"] <= 0
    assert slopes["meanings"] <= 0
    assert min(slopes[name] for name in ("E-SC", "L-SC", "IC-SC", "likelihood")) >= 0
    by_share = [
        {"id": str(n), "question": "Who?", "samples": ["Ana"] * n + [f"Bo {k}" for k in range(10 - n)]}
        for n in range(2, 11)
    ]
    known = features_of({None: measured(by_share)}).values
    p = found.predict({name: np.full(9, np.nan) for name in logistic.features} | dict(known))
    assert (np.diff(p) >= -1e-12).all()


def test_a_regression_takes_five_answers_of_each_kind_a_feature() -> None:
    features = features_of({None: measured(samples(200))})
    candidates = candidates_for(features)
    (logistic,) = (one for one in candidates if one.kind == "logistic")
    assert logistic.fewest == 5 * len(logistic.features) == 30
    for right, tried in ((29, False), (30, True)):
        correct = (np.arange(200) < right).astype(float)
        scores = choose_map(features.values, correct, candidates).scores
        assert (logistic in [one.candidate for one in scores]) == tried


def test_the_probability_of_a_further_meaning_is_how_often_one_is_right_where_there_are_some() -> None:
    """Of the answers that are wrong, half of those with further meanings have the right one among these."""
    rng, rows = np.random.default_rng(0), []
    for number in range(1000):
        drawn = ["Bo"] * 10 if rng.random() < 0.6 else ["Bo"] * 6 + ["Ana"] * 4
        answers = ["Bo"] if rng.random() < 0.3 else ["Ana"] if rng.random() < 0.5 else ["Nobody"]
        rows.append({"id": f"q{number}", "question": f"Who {number}?", "samples": drawn, "answers": answers})
    found = calibrate_samples(rows, equivalence=EXACT)
    assert found.further == pytest.approx(0.5, abs=0.05)
    new = [row for row in rows if len(set(row["samples"])) > 1]
    stated = [one.probabilities[1] for one in found.apply({None: measured(new)})]
    assert np.mean(stated) == pytest.approx(np.mean([row["answers"] == ["Ana"] for row in new]), abs=0.06)


def test_too_few_labels_are_refused_and_few_are_warned_about() -> None:
    with pytest.raises(FitError, match="at least 5"):
        calibrate_samples(samples(4), equivalence=EXACT)
    with pytest.warns(SemcalWarning, match=r"^questions: got only 30 "):
        calibrate_samples(samples(30), equivalence=EXACT)


def test_an_id_that_occurs_twice_is_refused() -> None:
    with pytest.raises(InputError, match="'q0'"):
        calibrate_rows({None: measured([*samples(20), samples(1)[0]])}, equivalence="exact")


def questions(n: int) -> tuple[FakeLanguageModel, list[Question]]:
    table = {f"Who built mill {i}?": {"Ana.": 0.9, "Bo.": 0.1} for i in range(n)}
    return FakeLanguageModel(table), [
        Question(text, text, ("Ana" if i % 3 else "Bo",)) for i, text in enumerate(table)
    ]


def test_under_a_recalibrator_its_draws_are_the_answer_and_it_is_kept_beside_the_map(tmp_path: Path) -> None:
    from semcal.recalibration.fit import fit

    model, labelled = questions(80)
    fitted = fit(model, labelled).recalibrator
    found = calibrate(model, labelled, equivalence=FakeEquivalence(), recalibrator=fitted)
    assert found.temperature is None
    found.save_pretrained(tmp_path)
    again = Calibration.from_pretrained(tmp_path)
    first = next(iter(again.recalibrators.values()))
    assert isinstance(first, TemperatureScaling)
    assert first.temperature_ == fitted.temperature_


def test_questions_with_a_passage_and_without_are_not_mixed_up(tmp_path: Path) -> None:
    model, labelled = questions(80)
    closed = calibrate(model, labelled, equivalence=FakeEquivalence(), temperatures=(1.0,))
    closed.save_pretrained(tmp_path)
    uq = SemanticUQ(model, calibration=tmp_path, equivalence=FakeEquivalence())
    with pytest.raises(InputError, match="'context' is present"):
        uq.ask({"question": labelled[0].question, "context": "A passage."})
    opened = [replace(question, context=f"Passage {i}.") for i, question in enumerate(labelled)]
    mixed = [*labelled[:40], *opened[40:]]
    for kind, expected in ((opened, True), (labelled, False), (mixed, None)):
        found = calibrate(model, kind, equivalence=FakeEquivalence(), temperatures=(1.0,))
        assert found.open_book is expected


@pytest.mark.parametrize(
    ("n", "groups", "found"), [(90, 30, ("exact", 30, 30)), (240, 80, ("betting", 72, 216))]
)
def test_of_few_groups_one_question_counts_for_the_threshold_and_of_many_all(
    n: int, groups: int, found: tuple[str, int, int]
) -> None:
    rows = [{**row, "group": number // 3} for number, row in enumerate(samples(n))]
    limited = calibrate_samples(rows, equivalence=EXACT, risk=0.55)
    limit = limited.threshold
    assert (limited.report.apart, limit.test, limit.groups, limit.n) == (0, *found)
    assert not calibrate_samples(rows, equivalence=EXACT).report.warnings


def test_a_group_too_large_to_be_kept_apart_is_refused_with_a_risk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semcal.calibration.learning.MOST_LABEL_FREE", 61)
    rows = [{**row, "group": min(number, 60)} for number, row in enumerate(samples(120))]
    with pytest.raises(FitError, match=r"^risk: 60 of 120 labeled questions share"):
        calibrate_samples(rows, equivalence=EXACT, risk=0.5)
    assert calibrate_samples(rows, equivalence=EXACT).threshold is None


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_fewer_than_five_groups_leave_a_constant_and_say_so(groups: int) -> None:
    rows = [{**row, "group": number % groups} for number, row in enumerate(samples(80))]
    with pytest.warns(SemcalWarning, match=f"in {groups} groups"):
        found = calibrate_samples(rows, equivalence=EXACT)
    assert found.report.chosen == "constant(E-SC)"
    assert found.report.calibrated["auroc"] == found.report.base["auroc"] != 0.5


def ordered_by_the_share(**changed: Any) -> Calibration:
    """Probabilities of the likelihood, with thresholds of the share: .8 for a risk of .1, .5 for .3."""
    strict = replace(threshold(0.3), threshold_score=0.8)
    loose = replace(threshold(0.3), threshold_score=0.5, risk_limit=0.3)
    bands = {"threshold": loose, "thresholds": (strict, loose), "ordering": "E-SC"}
    return calibration(map=OF_THE_LIKELIHOOD, **bands | changed)


def test_a_feature_that_orders_answers_decides_everywhere_and_the_probability_is_shown() -> None:
    found, rows = ordered_by_the_share(), measured(samples(60))
    share = [row["confidence"]["E-SC"] for row in rows]
    expected = ["answer" if one >= 0.8 else "review" if one >= 0.5 else "abstain" for one in share]
    assert set(expected) == {"answer", "review", "abstain"}
    answers = found.apply({1.0: rows})
    assert [one.decision for one in answers] == expected
    assert any(one.abstained and one.probability >= 0.3 for one in answers)
    decided = calibrated_rows(rows, found)
    assert [row["decision"] for row in decided] == expected
    assert [row["abstained"] for row in decided] == [one == "abstain" for one in expected]
    assert {row["threshold"] for row in decided} == {0.3}
    for row, best, one in zip(rows, answers, expected, strict=True):
        answer = answer_of(row, "E-SC", best, 0.3)
        for band, given in zip(found.thresholds, (("answer",), ("answer", "review")), strict=True):
            verdict = ReplyVerdict.on(answer, found, band=band, covered=True, alarm=False)
            assert (verdict.abstained, verdict.threshold) == (one not in given, 0.3)


def test_if_no_threshold_is_shown_it_is_said_what_can_be_certified(tmp_path: Path) -> None:
    found = calibrate_samples(samples(250), equivalence=EXACT, risk=0.1)
    limit = found.threshold
    assert (limit.threshold, limit.threshold_score) == (None, None)
    error = 1 - found.report.base["accuracy"]
    assert limit.refused == pytest.approx((error - 0.1) / 0.9, abs=1e-3)
    assert f"certify a risk of {limit.least_risk:.0%}" in limit.outlook
    allowed, less = (
        calibrate_samples(samples(250), equivalence=EXACT, risk=risk).threshold
        for risk in (limit.least_risk, limit.least_risk - 0.01)
    )
    assert (allowed.threshold is None, allowed.outlook, less.threshold) == (False, None, None)
    assert less.kept.errors / less.kept.answered <= limit.least_risk - 0.01
    assert "Without a promise" in less.outlook
    found.save_pretrained(tmp_path)
    assert Calibration.from_pretrained(tmp_path).threshold == limit


@pytest.mark.slow
def test_the_guarantee_is_broken_no_more_often_than_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.calibrate_guarantee import ADDED, DELTA, results

    monkeypatch.setattr("benchmarks.calibrate_guarantee.EXACT_WORLDS", 200)
    found = results(200, ("independent", "in groups"))
    exact = [row for row in found if row["questions"].startswith("all labels")]
    *rows, made_up = (row for row in found if not row["questions"].startswith(("all labels", "added")))
    added = [row for row in found if row["questions"].startswith("added")]
    assert len(added) == len(ADDED)
    left_out = [row for row in added if "left out" in row["questions"]]
    rows += exact + [row for row in added if row not in left_out]
    assert min(row["broken"] for row in left_out) > 2 * DELTA
    for row, delta in (*((row, DELTA) for row in rows), (made_up, 0.1)):
        broken = round(row["broken"] * row["worlds"])
        assert binomtest(broken, row["worlds"], delta, alternative="greater").pvalue > 0.001
    assert max(row["with a threshold"] for row in rows) > 0.5  # or it would promise nothing


def of_three_kinds(n: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of which a third is nearly always right, a third often, and a third hardly ever."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(n):
        drawn, right = ((10, 0.98), (7, 0.6), (3, 0.1))[number % 3]
        texts = ["Ana"] * drawn + [f"Bo {k}" for k in range(10 - drawn)]
        answers = ["Ana"] if rng.random() < right else ["Nobody"]
        rows.append({"id": f"q{number}", "question": f"Who? {number}", "samples": texts, "answers": answers})
    return rows


def test_several_risks_give_bands_and_a_decision_each_answer() -> None:
    found = calibrate_samples(of_three_kinds(900), equivalence=EXACT, risk=(0.45, 0.25), delta=0.1)
    strict, loose = found.thresholds
    assert (strict.risk_limit, loose.risk_limit, strict.delta) == (0.25, 0.45, 0.05)
    assert found.threshold == loose
    rows = calibrated_rows(measured(of_three_kinds(30, seed=5)), found)
    decisions = {row["decision"] for row in rows}
    assert decisions == {"answer", "review", "abstain"}
    for row in rows:
        share, expected = row["score"], "review"
        expected = "answer" if share >= strict.threshold_score else expected
        expected = "abstain" if share < loose.threshold_score else expected
        assert (row["decision"], row["abstained"]) == (expected, expected == "abstain")
        assert row["threshold"] == loose.threshold
        assert [band["risk"] for band in row["thresholds"]] == [0.25, 0.45]
        assert row["thresholds"][0] == {"risk": 0.25, "delta": 0.05, "threshold": strict.threshold, "n": 900}


def test_without_a_strict_threshold_nothing_is_answered_unseen_and_one_risk_says_nothing_of_bands() -> None:
    found = calibrate_samples(of_three_kinds(600), equivalence=EXACT, risk=(0.001, 0.45))
    assert found.thresholds[0].threshold is None
    rows = calibrated_rows(measured(of_three_kinds(30, seed=5)), found)
    assert {row["decision"] for row in rows} == {"review", "abstain"}
    one = learned(300, 0.45)
    (row,) = calibrated_rows([{**measured(samples(1))[0], "decision": "mine", "thresholds": 3}], one)
    assert (row["risk"], row["decision"], row["thresholds"]) == (0.45, "mine", 3)  # keys that are not ours


def test_labelled_questions_like_an_answer_are_counted_once_each_and_told() -> None:
    found = learned(300)
    like = found.report.like
    assert sum(one.n for one in like) == 300
    right = round(300 * (found.report.base["accuracy"] or 0.0))
    assert sum(one.right for one in like) == right
    assert all(one.n >= 20 for one in like)
    assert all(a.high < b.low for a, b in pairwise(like))
    (row,) = measured(samples(1, seed=3))
    (best,) = found.apply({1.0: [row]})
    nearest = min(like, key=lambda one: max(one.low - best.probability, best.probability - one.high, 0.0))
    assert best.like == nearest
    text = answer_of(row, "E-SC", best, None).explanation
    assert text.endswith(f" questions with a similar probability, {nearest.right} were right")


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["Ana"], "1 sample says Ana"),
        (["Yes"] * 6 + ["No"] * 4, "6 of 10 samples say Yes, 4 say No"),
        (["A b", "A b", "C", "D", "E"], "2 of 5 samples say A b, 1 says C, 1 says D, 1 says something else"),
        (
            list("AABCDD"),
            "2 of 6 samples say A, 2 say D, 1 says B, 1 says something else: "
            "the samples do not agree on any answer",
        ),
        (["x" * 80] * 2, f"2 of 2 samples say {'x' * 59}…"),
        ([None], "1 sample gave no answer"),
        (["Bo", "Bo", "", None], "2 of 4 samples say Bo, 1 says nothing, 1 gave no answer"),
        (
            [None, *"AAAABCDE"],
            "4 of 9 samples say A, 1 says B, 1 says C, 2 say 2 other things, 1 gave no answer",
        ),
    ],
)
def test_an_explanation_counts_samples(texts: list[str | None], said: str) -> None:
    (row,) = measured([{"id": "1", "question": "Who?", "samples": texts}])
    assert answer_of(row, "E-SC", None, None).explanation == said
