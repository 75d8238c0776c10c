"""`Results` show, measure and plot what the commands would; progress is shown where somebody watches."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import pandas
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

import semcal
from semcal import progress
from semcal.cli.app import app
from semcal.errors import InputError, MissingExtraError, SemcalWarning, UsageError
from semcal.files import write_rows
from semcal.models.equivalence import ExactMatch
from semcal.models.fakes import FakeEquivalence, FakeLanguageModel
from semcal.progress import shown_progress

TABLE = {f"Who built mill {i}?": {"Ana.": 0.6, "Bo.": 0.3, "Cy.": 0.1} for i in range(60)}
LABELLED = [{"question": q, "answers": "Ana" if i % 3 else "Bo"} for i, q in enumerate(TABLE)]


@pytest.fixture(autouse=True)
def _groups_by_normal_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no equivalence is named answers are grouped by normal forms: that is not what is tested here."""
    monkeypatch.setattr("semcal.inputs.load_equivalence", lambda *_, **__: ExactMatch())


@pytest.fixture(scope="module")
def asked() -> semcal.Results:
    return semcal.ask_many(FakeLanguageModel(TABLE), LABELLED)


@pytest.fixture(scope="module")
def samples(asked: semcal.Results) -> list[dict]:
    """Stored samples, as another system would hand them over."""
    kept = ("id", "question", "samples", "log_likelihoods", "answers")
    return [{key: row[key] for key in kept} for row in asked.rows]


def test_scores_are_those_of_the_commands_in_a_pipe(samples: list[dict], tmp_path: Path) -> None:
    write_rows(tmp_path / "samples.jsonl", samples)
    steps = [("cluster",), ("measure",), ("grade",), ("metrics", "--ci", "--risk", "0.4")]
    source = tmp_path / "samples.jsonl"
    for number, (command, *options) in enumerate(steps):
        target = tmp_path / f"{number}.jsonl"
        done = CliRunner().invoke(app, [command, str(source), *options, "--out", str(target)])
        assert done.exit_code == 0, done.output
        source = target
    piped = {row.pop("measure"): row for row in pandas.read_json(source, lines=True).to_dict("records")}
    found = semcal.score(samples).metrics(ci=True, risk=0.4)
    assert list(found) == list(piped)
    for measure, numbers in found.items():
        for key in ("n", "accuracy", "ace", "ace_floor", "brier", "gain", "auroc", "entropy_auroc"):
            assert numbers[key] == pytest.approx(piped[measure][key], nan_ok=True)
        assert numbers["interval"]["gain"] == pytest.approx(piped[measure]["interval"]["gain"])
        assert numbers["risk"]["sentence"] == piped[measure]["risk"]["sentence"]


def test_a_model_asked_and_its_stored_samples_scored_are_the_same(asked, samples) -> None:
    scored = semcal.score(pandas.DataFrame(samples))
    assert scored.to_df().equals(asked.to_df())
    assert [answer.text for answer in scored] == [answer.text for answer in asked]
    assert len(scored) == 60
    assert scored[0] == asked[0] or scored[0].text == asked[0].text
    assert scored[-2:][1].id == "60"


def test_a_data_frame_has_a_row_a_question_and_no_empty_columns(asked, samples) -> None:
    table = asked.to_df()
    assert list(table)[:7] == ["id", "question", "answer", "confidence", "correct", "entropy", "meanings"]
    assert "abstained" not in table
    assert list(table)[7:] == list(asked[0].by_measure)
    assert table["correct"].mean() == asked.metrics("E-SC")["E-SC"]["accuracy"]
    bare = semcal.score([{"question": row["question"], "samples": row["samples"]} for row in samples])
    assert list(bare.to_df()) == list(table)[:4] + list(table)[5:8]


LABELED = [
    {"question": "Who?", "samples": ["Ana", "Ana"], "answers": ["Ana"]},
    {"question": "Who else?", "samples": ["Ana", "Eva"], "answers": ["Cy"]},
]


def test_answers_that_nobody_graded_have_no_metrics() -> None:
    found = semcal.score([{"question": "Who?", "samples": ["Ana", "Bo"], "answer": "Ana"}])
    assert repr(found) == "Results(1 answers, none graded; meanings by 'exact')"
    for call in (found.metrics, found.plot):
        with pytest.raises(InputError, match="'answers'"):
            call()
    partly = semcal.score([*LABELED, {"question": "Who?", "samples": ["Ana"]}])
    assert repr(partly).startswith(
        "Results(3 answers, 2 graded; E-SC: accuracy 0.500, confidence 0.750, gain "
    )
    assert partly.metrics()["E-SC"]["n"] == 2
    assert partly.to_df()["correct"].tolist() == [True, False, None]


def test_grades_of_others_are_not_taken_for_ours() -> None:
    given = {"question": "Who?", "samples": ["Ana", "Ana"], "correct": True, "confidence": 0.1}
    found = semcal.score([given, {**given, "answers": "Bo"}])
    assert repr(found).startswith("Results(2 answers, 1 graded; E-SC: accuracy 0.000, confidence 1.000")
    assert found.to_df()["correct"].tolist() == [None, False]


def test_plots_stand_side_by_side_or_where_they_are_put(asked, samples, tmp_path: Path) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    pair = asked.plot()
    assert [one.get_title() for one in pair] == ["E-SC, 60 questions"] * 2
    assert pair[0].figure is pair[1].figure
    pair[0].figure.savefig(tmp_path / "both.png", dpi=50)
    assert pyplot.imread(tmp_path / "both.png").shape[:2] == (210, 460)
    limited = semcal.score(samples, calibration=semcal.score(samples).calibrate(risk=0.9))
    (ax,) = limited.plot(kind="selective")
    assert [one.get_xdata()[0] for one in ax.lines if "threshold" in one.get_label()] == [
        limited[0].threshold
    ]
    assert not any("threshold" in one.get_label() for one in limited.plot("E-SC", kind="selective")[0].lines)
    own = Figure().subplots()
    assert asked.plot("L-SC", kind="selective", ax=own) == [own]
    with pytest.raises(UsageError, match="unknown plot 'reliable'"):
        asked.plot(kind="reliable")
    with pytest.raises(UsageError, match="unknown measure"):
        asked.plot("E-CS")
    pyplot.close("all")


def test_stored_samples_are_calibrated_and_the_probability_is_a_measure(samples, tmp_path: Path) -> None:
    found = semcal.score(samples).calibrate()
    assert (found.m, found.equivalence) == (10, "exact")
    found.save_pretrained(tmp_path)
    scored = semcal.score(samples, calibration=tmp_path)
    assert scored[0].measure == "Calibrated"
    assert list(scored.metrics())[-1] == "Calibrated"
    assert scored.to_df()["confidence"].tolist() == [row["probability"] for row in scored.rows]
    assert "Calibrated: accuracy" in repr(scored)
    with pytest.raises(UsageError, match=r"^linkage: "):
        semcal.score(samples, calibration=found, linkage="greedy")
    with pytest.raises(UsageError, match=r"^equivalence: .*'exact'"):
        semcal.score(samples, "fake", calibration=found)


def test_rows_without_answers_are_left_out_of_a_calibration_and_counted(samples) -> None:
    given = [{key: value for key, value in samples[0].items() if key != "answers"}, *samples[1:]]
    said = f"^1 of {len(given)} rows of samples have no reference answers and are left out"
    with pytest.warns(SemcalWarning, match=said):
        found = semcal.score(given).calibrate()
    assert found.report.n == len(given) - 1


def test_clusters_in_stored_samples_are_used_as_they_are(samples) -> None:
    m = len(samples[0]["samples"])
    given = [{**row, "clusters": [[*range(m)]]} for row in samples]
    with pytest.warns(SemcalWarning, match="all .* the same share"):
        found = semcal.score(given).calibrate()
    assert found.report.base["mean_confidence"] == 1
    assert semcal.score(samples).calibrate().report.base["mean_confidence"] < 1
    as_text = pandas.DataFrame(given).assign(clusters=str([[*range(m)]]))
    with pytest.warns(SemcalWarning, match="all .* the same share"):
        assert semcal.score(as_text).calibrate().report == found.report


def test_scored_rows_keep_their_clusters_unless_an_equivalence_or_linkage_is_given(samples) -> None:
    m = len(samples[0]["samples"])
    given = [{**row, "clusters": [[*range(m)]]} for row in samples]
    kept = semcal.score(given)
    assert [row["clusters"] for row in kept.rows] == [[[*range(m)]]] * len(given)
    assert all(answer.confidence == 1 for answer in kept)
    anew = [row["clusters"] for row in semcal.score(samples).rows]
    assert [row["clusters"] for row in semcal.score(given, "exact").rows] == anew
    assert [row["clusters"] for row in semcal.score(given, linkage="components").rows] == anew
    assert anew != [row["clusters"] for row in kept.rows]
    partly = semcal.score([given[0], *samples[1:]])
    assert [row["clusters"] for row in partly.rows] == [[[*range(m)]], *anew[1:]]
    with pytest.raises(InputError, match=r"samples\[0\].*: 'clusters'"):
        semcal.score([{**samples[0], "clusters": [[0]]}])


@pytest.mark.parametrize("options", [{"answer": "given"}, {"grader": "exact"}, {"score": "p"}])
def test_graded_answers_take_no_option_of_their_grades(samples, options: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=f"^{next(iter(options))}: "):
        semcal.score(samples).calibrate(**options)


def test_answers_of_a_model_are_calibrated_with_the_model(asked) -> None:
    with pytest.raises(UsageError, match=r"semcal\.calibrate"):
        asked.calibrate()
    model = FakeLanguageModel(TABLE)
    found = semcal.calibrate(model, pandas.DataFrame(LABELLED), risk=0.5)
    assert found.provenance is not None
    assert (found.report.n, found.report.apart) == (60, 0)
    again = semcal.ask_many(model, [row["question"] for row in LABELLED], calibration=found)
    assert again[0].measure == "Calibrated"
    assert "abstained" in again.to_df()


def test_a_temperature_given_as_a_number_is_that_of_the_calibration() -> None:
    model = FakeLanguageModel(TABLE)
    found = semcal.calibrate(model, LABELLED, recalibrator=0.7, temperatures=(1.0,))
    assert found.temperature == 0.7
    assert found.recalibrators[0.7].temperature == 0.7
    cold = semcal.ask_many(model, list(TABLE), recalibrator=0.5)
    fitted = semcal.ask_many(model, list(TABLE), recalibrator=semcal.fit(model, LABELLED))
    warm = semcal.ask_many(model, list(TABLE))
    assert sum(a.confidence for a in cold) > sum(a.confidence for a in warm)
    assert sum(a.confidence for a in fitted) != sum(a.confidence for a in warm)


def test_without_pandas_a_data_frame_says_what_to_install(asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"pip install pandas$"):
        asked.to_df()


@pytest.mark.parametrize(
    ("terminal", "notebook", "given", "shown"),
    [
        (False, False, True, False),
        (True, False, True, True),
        (True, False, False, False),
        (False, True, True, True),
    ],
)
def test_progress_is_shown_on_a_terminal_and_in_a_notebook_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, notebook: bool, given: bool, shown: bool
) -> None:
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    stream = io.StringIO()
    stream.isatty = lambda: terminal  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", stream)
    if notebook:
        monkeypatch.setitem(sys.modules, "ipykernel", SimpleNamespace())
    semcal.ask_many(FakeLanguageModel(TABLE), list(TABLE), progress=given)
    assert ("ask" in stream.getvalue()) == shown
    assert not notebook or "60 of 60" in stream.getvalue()


def test_a_function_gets_the_number_of_finished_questions() -> None:
    told: list[int] = []
    semcal.ask_many(FakeLanguageModel(TABLE), list(TABLE), progress=told.append)
    assert told[-1] == 60
    with shown_progress(told.append, "any", 3) as update:
        assert update == told.append


def test_a_row_nested_hundreds_deep_is_refused_with_its_place() -> None:
    nested: object = "Ana"
    for _ in range(900):
        nested = [nested]
    row = {"question": "Who?", "samples": ["Ana", "Bo"]}
    with pytest.raises(InputError, match=r"^samples\[1\]: nested more than 100 deep: leave out the key"):
        semcal.score([row, {**row, "notes": nested}])


def test_results_say_what_decided_on_their_meanings() -> None:
    row = {"question": "Who?", "samples": ["Ana", "A. Velis"]}
    stored, judge = {**row, "clusters": [[0, 1]]}, FakeEquivalence([{"Ana", "A. Velis"}], name="<b>\x1b[2J")
    for given, how, expected in (
        ([row], {"equivalence": judge}, "<b>\x1b[2J"),
        ([stored, stored], {}, "stored clusters"),
        ([row, stored, row], {}, "exact, and stored clusters of 1 rows"),
    ):
        found = semcal.score(given, **how)
        assert found.equivalence == expected
        assert f"meanings by {expected!r})" in repr(found)
