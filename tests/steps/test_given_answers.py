"""An answer that is given or greedy: its meaning among the draws, its probability, verdicts as labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

import semcal
from semcal.calibration.calibration import Calibration, CalibrationConfig
from semcal.calibration.features import ColumnFeature, features_of
from semcal.calibration.learning import calibrate_rows
from semcal.calibration.samples import measure_samples
from semcal.data.question import Question
from semcal.errors import InputError, UsageError
from semcal.models.clustering import ClusterConfig, cluster_rows, match_answers
from semcal.models.distribution import Temperature
from semcal.models.equivalence import ExactMatch
from semcal.models.fakes import FakeEquivalence, FakeLanguageModel
from semcal.models.sample import Sampling, state_answers
from semcal.rows import Row
from tests.cli.invoking import semcal as command
from tests.cli.invoking import write

EXACT = ClusterConfig(ExactMatch())


def stored(n: int = 120, *, verdicts: bool = True) -> list[dict[str, Any]]:
    """Rows whose given answer is right as often as draws agree with it."""
    rng = np.random.default_rng(4)
    rows = []
    for number in range(n):
        agree = int(rng.integers(0, 11))
        samples = ["Ana"] * agree + [f"Bo {k}" for k in range(10 - agree)]
        right = bool(rng.random() < (agree + 0.5) / 11)
        label: dict[str, Any] = {"correct": right} if verdicts else {"answers": ["Ana" if right else "Di"]}
        rows.append({"id": str(number), "question": "Who?", "samples": samples, "answer": "Ana", **label})
    return [{**row, "question": f"Who built mill {row['id']}?"} for row in rows]


def calibrated(rows: list[dict[str, Any]], **options: Any) -> Calibration:
    measured = measure_samples(list(map(Row, rows)), EXACT, answer="given")
    return calibrate_rows(
        measured, ClusterConfig(ExactMatch()), config=CalibrationConfig(answer="given", **options)
    )


@pytest.mark.parametrize(
    ("answer", "cluster"),
    [("Ana.", 0), ("the Bo", 1), ("", 3), ("Cy", None), ("ANA VELIS", 0), ("Bo Tarn", 1)],
)
def test_an_answer_means_what_most_of_the_draws_do_that_it_is_equivalent_to(
    answer: str, cluster: int | None
) -> None:
    """By normal form, then by the equivalence; the empty answer means the empty draws alone."""
    synonyms = FakeEquivalence([{"ana velis", "ana"}, {"bo tarn", "bo"}])
    row = Row({"id": "1", "question": "Who?", "samples": ["Ana", "Bo", "Di", "", "Bo"], "answer": answer})
    clustered = cluster_rows([row], ClusterConfig(synonyms))[0]
    (matched,) = match_answers(clustered, "given", synonyms)
    assert matched["answer_cluster"] == cluster
    assert matched.stated_answer("given").text == answer


@pytest.mark.parametrize("references", [False, True])
def test_score_takes_the_verdicts_that_calibrate_learns_from(references: bool) -> None:
    """References beside a verdict, by which every given answer would be wrong, do not count."""
    rows = [{**row, **({"answers": ["Di"]} if references else {})} for row in stored()]
    results, base = semcal.score(rows, "exact", answer="given"), calibrated(rows).report.base
    figures = results.metrics()["E-SC"]
    assert figures["n"] == len(rows)
    for name in ("accuracy", "mean_confidence", "ace", "brier", "auroc"):
        assert figures[name] == pytest.approx(base[name])
    assert [record["correct"] for record in results.records()] == [row["correct"] for row in rows]
    assert [row["answer_correct"] for row in results.rows] == [row["correct"] for row in rows]


def test_an_answer_that_is_none_of_the_labels_means_no_draw() -> None:
    among = ExactMatch(("Cy", "Di"))
    row = {"id": "1", "question": "Who?", "samples": ["Ana", "Bo", "Cy"], "answer": "banana"}
    (matched,) = match_answers(cluster_rows([Row(row)], ClusterConfig(among))[0], "given", among)
    assert matched["answer_cluster"] is None
    (answer,) = semcal.score([row], "among:Cy,Di", answer="given")
    assert answer.score is None
    assert (
        answer.explanation
        == "none of 3 samples says banana, 2 say nothing that counts as an answer, 1 says Cy"
    )


def test_measure_says_which_meaning_a_given_answer_is(tmp_path: Path) -> None:
    calibrated(stored()).save_pretrained(tmp_path / "c")
    rows = cluster_rows(list(map(Row, stored(20))), EXACT)[0]
    file = write(tmp_path / "rows.jsonl", [row.to_json() for row in rows])
    _, found, _ = command("measure", file, "--calibration", tmp_path / "c")
    assert len(found) == 20
    for row in found:
        share = row["samples"].count("Ana") / 10
        assert row["score"] == pytest.approx(share)
        meaning = row["answer_cluster"]
        assert (meaning is None) == (share == 0)
        assert meaning is None or row["samples"][row["clusters"][meaning][0]] == "Ana"


def test_verdicts_and_features_may_be_the_cells_of_a_table(tmp_path: Path) -> None:
    words = [{**row, "correct": str(row["correct"])} for row in stored()]
    assert calibrated(words).map == calibrated(stored()).map
    column = ColumnFeature("distance")
    assert column.value(Row({"id": "1", "distance": "0.25"})) == 0.25
    assert column.value(Row({"id": "1", "distance": ""})) is None  # an empty cell, as NaN of a DataFrame
    for text in ("far", "nan", "inf"):
        with pytest.raises(InputError, match="'distance'"):
            column.value(Row({"id": "1", "distance": text}))


def test_a_row_without_a_feature_or_label_is_left_out_and_named(tmp_path: Path) -> None:
    rows = [
        {key: value for key, value in row.items() if key != "answer"}
        | {"answers": ["Ana"], "distance": int(row["id"])}
        for row in stored(60, verdicts=False)
    ]
    rows[3]["distance"], rows[5]["answers"] = "far", ["Zoe"]
    labels = ",".join(["Ana", "Di", *(f"Bo {k}" for k in range(10))])
    options = ("--feature", "distance", "--answers-among", labels, "--out", tmp_path / "c")
    code, (found,), said = command("calibrate", write(tmp_path / "rows.jsonl", rows), *options)
    assert (code, found["n"]) == (1, 58)
    assert "'distance' must be a finite number, got 'far'" in said
    assert "'answers': the reference 'Zoe'" in said


@examples(st.lists(st.sampled_from("abcdef"), min_size=2, max_size=12), st.data())
def test_a_given_draw_has_the_share_of_its_meaning(samples: list[str], data: st.DataObject) -> None:
    answer = data.draw(st.sampled_from([*samples, "none of them"]))
    row = Row({"id": "1", "question": "Who?", "samples": samples, "answer": answer, "answers": ["a"]})
    rows = measure_samples([row], EXACT, answer="given")
    values = features_of(rows, "given").values
    assert values["E-SC"] == pytest.approx([samples.count(answer) / len(samples)])
    others = [samples.count(text) for text in set(samples) - {answer}]
    assert values["rival"] == pytest.approx([max(others, default=0) / len(samples)])
    assert values["second"] == [
        float(answer in samples and sum(n > samples.count(answer) for n in others) == 1)
    ]


def test_human_verdicts_are_labels_and_the_probability_is_of_the_given_answer() -> None:
    calibration = calibrated(stored())
    assert (calibration.answer_kind, calibration.report.n) == ("given", 120)
    results = semcal.score(stored(), "exact", calibration=calibration)
    assert {answer.text for answer in results} == {"Ana"}
    by_share = sorted((answer.score, answer.confidence) for answer in results)
    assert [p for _, p in by_share] == sorted(p for _, p in by_share)
    no_draw = next(answer for answer in results if answer.score == 0)
    assert no_draw.explanation.startswith("none of 10 samples says Ana, 1 says Bo")


def test_verdicts_alone_give_no_probability_to_the_meanings_that_nobody_has_judged(tmp_path: Path) -> None:
    """They have one as soon as references show how often another meaning is right."""
    of_verdicts, of_references = calibrated(stored()), calibrated(stored(verdicts=False))
    assert (of_verdicts.further, of_references.further) == (None, pytest.approx(0.0, abs=0.05))
    mixed = [one if n % 2 else other for n, (one, other) in enumerate(zip(stored(), stored(verdicts=False)))]
    assert calibrated(mixed).further is not None
    of_verdicts.save_pretrained(tmp_path)
    loaded = Calibration.from_pretrained(tmp_path)
    assert (loaded.further, loaded.id) == (None, of_verdicts.id)
    for calibration, known in ((of_references, True), (loaded, False)):
        for answer in semcal.score(stored(), "exact", calibration=calibration):
            first, *others = answer.meanings
            assert first.probability == answer.confidence
            assert [meaning.probability is not None for meaning in others] == [known] * len(others)
            total = sum(meaning.probability or 0.0 for meaning in answer.meanings)
            assert total <= 1


def test_a_given_calibration_is_kept_and_refused_for_other_answers(tmp_path: Path) -> None:
    calibration = calibrated(stored())
    calibration.save_pretrained(tmp_path / "given")
    loaded = Calibration.from_pretrained(tmp_path / "given")
    assert loaded.answer_kind == "given"
    with pytest.raises(UsageError, match=r"^answer: 'modal'"):
        semcal.score(stored(), "exact", calibration=loaded, answer="modal")
    modal = calibrate_rows(
        measure_samples([Row({**row, "answers": ["Ana"]}) for row in stored()], EXACT), EXACT
    )
    modal.save_pretrained(tmp_path / "modal")
    with pytest.raises(UsageError, match=r"^answer: 'given'"):
        semcal.score(stored(), "exact", calibration=modal, answer="given")


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"answer": " "}, "'answer' is empty"),
        ({"correct": None}, "'correct' .* are missing"),
        ({"answer_log_likelihood": 0.5}, "at most|≤ 0"),
    ],
)
def test_a_bad_given_row_is_named(row: dict[str, Any], error: str) -> None:
    rows = stored(20)
    rows[3] |= row
    with pytest.raises(InputError, match=error) as caught:
        measure_samples(list(map(Row, rows)), EXACT, answer="given")
    assert "'3'" in str(caught.value)


def test_verdicts_are_no_labels_of_other_answers() -> None:
    with pytest.raises(InputError, match="--answer"):
        measure_samples([Row(row) for row in stored(20)], EXACT)


QUESTIONS = {f"Who built mill {i}?": {"Ana.": 0.7, "Bo.": 0.3} for i in range(60)}


def test_a_greedy_answer_is_the_likeliest_with_its_likelihood() -> None:
    model = FakeLanguageModel(QUESTIONS)
    questions = [Question(str(n), text) for n, text in enumerate(QUESTIONS)]
    stated = state_answers(model, questions[:3], "greedy", Sampling((Temperature(1.0),)))
    assert [answer.text for answer in stated] == ["Ana"] * 3  # type: ignore[union-attr]
    labelled = [
        {"question": question, "answers": "Ana" if n % 3 else "Bo"} for n, question in enumerate(QUESTIONS)
    ]
    calibration = semcal.calibrate(model, labelled, equivalence="exact", answer="greedy", progress=False)
    assert calibration.answer_kind == "greedy"
    answer = semcal.SemanticUQ(model, calibration=calibration).ask("Who built mill 1?")
    assert (answer.text, answer.answer_kind) == ("Ana", "greedy")
    assert answer.row["greedy_log_likelihood"] <= 0
    assert json.loads(calibration.samples.splitlines()[0])["greedy"] == "Ana"  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore:[17] of (3|10) samples have no answer")
def test_no_answer_at_zero_means_the_samples_without_one_and_abstains(tmp_path: Path) -> None:
    row = {"id": "1", "question": "Who?", "samples": ["Ana", None, ""], "greedy": None, "answers": ["Ana"]}
    for samples, cluster in ((row["samples"], 1), (["Ana", "", "Bo"], None)):
        ((matched,),) = measure_samples([Row({**row, "samples": samples})], EXACT, answer="greedy").values()
        stated = matched.stated_answer("greedy")
        assert (stated.text, stated.cluster) == (None, cluster)
    with pytest.raises(InputError, match="'answer'"):
        Row({**row, "answer": None}).stated_answer("given")
    silent = {"Who built mill 0?": {"<think>Hm.": 0.6, "Ana": 0.4}}
    model = FakeLanguageModel(QUESTIONS | silent)
    labelled = [
        {"question": question, "answers": "Ana" if n % 3 else "Bo"} for n, question in enumerate(QUESTIONS)
    ]
    calibration = semcal.calibrate(model, labelled, equivalence="exact", answer="greedy", progress=False)
    assert calibration.report.no_answer == 1
    calibration.save_pretrained(tmp_path / "made")
    kept = (tmp_path / "made" / "samples.jsonl").read_text().splitlines()
    assert [json.loads(line)["greedy"] for line in kept] == [None, *["Ana"] * 59]
    for found in (None, calibration):
        uq = semcal.SemanticUQ(
            model, calibration=found, **({} if found else {"answer": "greedy", "equivalence": "exact"})
        )
        answer = uq.ask("Who built mill 0?")
        assert (answer.text, answer.confidence, answer.abstained, answer.reason) == (
            None,
            None,
            True,
            "no answer",
        )


def test_answers_are_checked_in_python_with_and_without_a_calibration() -> None:
    model = FakeLanguageModel(QUESTIONS)
    texts = ["Ana" if n % 2 else "Cy" for n in range(60)]
    uq = semcal.SemanticUQ(model, equivalence="exact")
    assert uq.check("Who built mill 0?", "Cy").confidence == 0
    rows = [{"question": question, "answer": text} for question, text in zip(QUESTIONS, texts)]
    labelled = [{**row, "correct": row["answer"] == "Ana"} for row in rows]
    calibration = semcal.calibrate(model, labelled, equivalence="exact", answer="given", progress=False)
    wrong, right, *_ = semcal.check(model, list(QUESTIONS), texts, calibration=calibration, progress=False)
    assert right.confidence > 0.8 > 0.2 > wrong.confidence
    asked = semcal.ask_many(model, rows, calibration=calibration, progress=False)
    assert [(one.text, one.answer_kind) for one in asked] == [(text, "given") for text in texts]
    with pytest.raises(UsageError, match=r"^answers: 1 answers to 60 questions"):
        semcal.check(model, list(QUESTIONS), ["Ana"], equivalence="exact")
    with pytest.raises(InputError, match="no 'answer'"):
        semcal.SemanticUQ(model, calibration=calibration).ask("Who built mill 0?")


def test_a_column_is_a_feature_that_must_be_clearly_better() -> None:
    """One that tells right from wrong is taken, and then needed; noise is not."""
    rng = np.random.default_rng(1)
    rows = [
        {**row, "distance": float(not row["correct"]) + rng.normal(0, 0.3), "noise": rng.normal()}
        for row in stored(200)
    ]
    calibration = calibrated(rows, features=("distance:falling", "noise"))
    assert [column.name for column in calibration.columns] == ["distance"]
    p = [answer.confidence for answer in semcal.score(rows, "exact", calibration=calibration)]
    assert np.corrcoef(p, [row["correct"] for row in rows])[0, 1] > 0.8
    with pytest.raises(InputError, match="'distance' is missing"):
        semcal.score(
            [{k: v for k, v in rows[0].items() if k != "distance"}], "exact", calibration=calibration
        )


def test_the_commands_check_given_answers(tmp_path: Path) -> None:
    """calibrate --answer given, then measure, grade and metrics of its rows; a renamed column of verdicts."""
    rows = [{("human" if key == "correct" else key): value for key, value in row.items()} for row in stored()]
    file, folder = write(tmp_path / "human.jsonl", rows), tmp_path / "calibration"
    given = ("--answer", "given")
    options = (*given, "--columns", "correct=human", "--equivalence", "exact", "--out", folder)
    assert command("calibrate", file, *options)[0] == 0
    _, rows, _ = command("cluster", write(tmp_path / "s.jsonl", stored()), "--equivalence", "exact")
    clustered = write(tmp_path / "clustered.jsonl", rows)
    code, rows, _ = command("measure", clustered, "--calibration", folder, *given)
    measured = write(tmp_path / "measured.jsonl", rows)
    assert code == 0
    code, rows, _ = command("grade", measured)
    graded = write(tmp_path / "graded.jsonl", rows)
    assert (code, rows[0]["answer"], rows[0]["answer_correct"]) == (0, "Ana", stored()[0]["correct"])
    assert 0 < rows[0]["probability"] < 1
    _, found, _ = command("metrics", graded)
    assert command("metrics", measured)[1] == found  # verdicts need no grading
    by_measure = {line["measure"]: line for line in found}
    base = Calibration.from_pretrained(folder).report.base
    for name in ("E-SC", "Calibrated"):
        assert by_measure[name]["accuracy"] == pytest.approx(base["accuracy"])
    assert by_measure["E-SC"]["brier"] == pytest.approx(base["brier"])
    assert by_measure["Calibrated"]["brier"] < base["brier"]
    assert command("measure", clustered, "--calibration", folder, "--answer", "modal")[0] == 2
    code, _, told = command("ask", "Who?", "--model", "atlas", "--calibration", folder, "--force")
    assert (code, "'answer'" in told) == (2, True)
