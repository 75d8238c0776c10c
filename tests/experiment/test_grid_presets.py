"""Whole grids from fakes under the presets, and with bad rows in the data."""

from __future__ import annotations

import json
from pathlib import Path

import mill_grid as mills
import pytest

from semcal.demo.paths import settings_file
from semcal.errors import FitError, InputError
from semcal.experiment.analyses import analyse
from semcal.experiment.analyses.answer_analyses import splits
from semcal.experiment.analyses.grid_scores import CellScores
from semcal.experiment.finished import read_finished, state_of
from semcal.experiment.grid import Grid
from semcal.experiment.grid_plan import expected_blocks, forecast, load_parts
from semcal.experiment.grid_settings import PRESETS, Grading, read_settings
from semcal.experiment.grid_steps import GradeMeaningsStep, GridState
from semcal.experiment.report.report_tables import report_tables, resampled_groups
from semcal.metrics import bootstrap
from semcal.models.fakes import FakeEquivalence
from semcal.rows import Row
from semcal.workers import SerialExecutor

pytestmark = pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")

CONFIGS = Path(__file__).parents[2] / "configs"
ONE = ("datasets.1.calibration_train=6", "datasets.1.validation=4", "datasets.1.test=4", "sampling.counts=[]")


@pytest.mark.parametrize(("preset", "correct"), [("sound", False), ("paper", True)])
def test_only_the_paper_counts_a_meaning_as_right_for_any_of_its_members(preset: str, correct: bool) -> None:
    merged = {"samples": ["Karun", "Toreth", "Karun"], "clusters": [[0, 1, 2]], "log_likelihoods": None}
    row = Row({"id": "1", "question": "Where?", "answers": ["Toreth"], "run": 0, **merged})
    (graded,) = GradeMeaningsStep(Grading.model_validate(PRESETS[preset].get("grading", {})), (0,))([row])
    assert graded["correct"] == [correct]


def test_runs_of_the_paper_preset_fit_anew_and_share_what_was_chosen(tmp_path: Path) -> None:
    settings = mills.settings(tmp_path, *ONE, "methods=[Base, TS, Platt]", preset="paper")
    mills.run(tmp_path, settings)
    chosen = mills.selection(tmp_path)
    platt = chosen["methods"]["Platt"]["E-SC"]["candidate"].replace(" ", "_")
    folder = tmp_path / "recalibrators" / "one" / "mill" / platt
    first, second = ((folder / run / "recalibrator.json").read_text() for run in ("", "run1"))
    assert json.loads(first)["weights"]["sha256"] != json.loads(second)["weights"]["sha256"]
    fits = {fit["candidate"]: fit for fit in chosen["fits"]}
    (ts, *_) = [c["candidate"] for c in chosen["methods"]["TS"].values()]
    assert len(fits[ts]["temperature_of_run"]) == 2
    assert "temperature_of_run" not in fits["Base"]
    found = mills.json_lines(tmp_path / f"samples/one/mill/{platt}/run1.jsonl")
    assert {row["run"] for row in found} == {1}


def test_meanings_and_grades_of_the_paper_preset_are_greedy_and_need_more_than_90(tmp_path: Path) -> None:
    """A judge holds the first two of three answers for one, and the last two."""
    chain = FakeEquivalence([{"ana", "dr ana"}, {"dr ana", "bo"}])
    for preset, n_meanings in (("sound", 1), ("paper", 2)):
        folder = tmp_path / preset
        folder.mkdir()
        settings = mills.settings(folder, *ONE, "methods=[Base]", "sampling.m=12", preset=preset)
        state = GridState(folder, mills.model_of, lambda _: chain)
        Grid(settings, folder, SerialExecutor(state), mills.silent).run()
        rows = mills.json_lines(folder / "samples/one/mill/Base/run0.jsonl")
        of_three = [row for row in rows if row["samples"][0] == "Ana" and len(set(row["samples"])) == 3]
        assert {len(row["clusters"]) for row in of_three} == {n_meanings}
        rule = settings.grading.grader().grade("Which?", ["abcdefghij"], ["abcdefghiz"]).rule
        assert rule == ("fuzzy" if preset == "sound" else "none")


BAD = {
    "x1": (b'{"id": "x1", "question": "Who?"}', "answers"),
    "mill0": (b'{"id": "mill0", "question": "Who?", "answers": ["a"]}', "mill0"),
    None: (b"x6", "not JSON"),
}


def test_bad_rows_are_told_one_by_one_and_change_nothing_else(tmp_path: Path) -> None:
    clean, dirty = tmp_path / "clean", tmp_path / "dirty"
    small = (*ONE, "methods=[Base]", "models=[{name: one, path: one}]")
    problems = []
    for folder in (clean, dirty):
        folder.mkdir()
        settings = mills.settings(folder, *small)
        path = Path(settings.datasets[0].source)
        if folder == dirty:
            path.write_bytes(path.read_bytes() + b"\n".join(line for line, _ in BAD.values()) + b"\n")
        problems.append(mills.run(folder, settings))
    assert problems[0] == []
    told = mills.json_lines(dirty / "problems.jsonl")
    assert [(one["dataset"], wanted in one["reason"]) for one, (_, wanted) in zip(told, BAD.values())] == [
        ("mill", True)
    ] * len(BAD)
    first = mills.COUNT + 1
    assert [one["line"] for one in told] == [*range(first, first + len(BAD))]
    assert [one.get("row_id") for one in told] == list(BAD)
    samples = [
        {name: text for name, text in mills.contents(folder).items() if name.startswith("samples")}
        for folder in (clean, dirty)
    ]
    assert samples[0] == samples[1]


def test_too_few_questions_say_how_many_rows_were_refused(tmp_path: Path) -> None:
    settings = mills.settings(tmp_path, "datasets.0.test=90")
    path = Path(settings.datasets[0].source)
    path.write_bytes(path.read_bytes() + b"x\n")
    with pytest.raises(InputError, match=r"'mill'.*1 rows"):
        mills.run(tmp_path / "run", settings)


def test_a_forecast_needs_neither_models_nor_data() -> None:
    settings = read_settings(CONFIGS / "paper.yaml")
    plan = forecast(settings)
    assert plan.questions == {"calibration_train": 180_551, "validation": 6000, "test": 6000}
    assert plan.jobs["sample"] == 9 * (40 + 40)
    assert plan.jobs["features"] == 9
    twice = forecast(settings.model_copy(update={"models": settings.models[:1] * 2}))
    once = forecast(settings.model_copy(update={"models": settings.models[:1]}))
    assert twice.cells == once.cells + once.cells
    assert plan.seconds is None
    assert "TriviaQA is not on this machine" in plan.timing


# ---- Questions in groups: parts that share none, and intervals that draw them ------------------------------

GROUPED = ("methods=[Base, SE]", "sampling.counts=[]", "runs.count=1")


def grouped(folder: Path, *overrides: str):
    """Settings of a grid whose data set `mill` has groups of three questions."""
    chosen = mills.settings(folder, *GROUPED, *overrides)
    path = Path(chosen.datasets[0].source)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row | {"group": n // 3}) + "\n" for n, row in enumerate(rows)))
    return chosen


def test_a_run_keeps_groups_apart_and_its_intervals_draw_them(tmp_path: Path) -> None:
    chosen = grouped(tmp_path)
    parts = load_parts(chosen.datasets[0])
    groups = [
        {q.extra["group"] for q in part} for part in (parts.calibration_train, parts.validation, parts.test)
    ]
    assert sum(map(len, groups)) == len(set.union(*groups))
    mills.run(tmp_path, chosen)
    run = read_finished(tmp_path)
    rows = run.rows("one", "mill", "Base", 0)
    assert [row["group"] for row in rows] == [q.extra["group"] for q in parts.test]
    assert all("group" not in row for row in run.rows("one", "barn", "Base", 0))
    pair, other = (CellScores(run, "one", name).pair for name in ("mill", "barn"))
    assert other.groups is None
    cell = pair.arrays["Base", "E-SC"]
    expected = bootstrap(
        cell.confidence,
        cell.correct,
        metrics=["brier"],
        groups=[row["group"] for row in rows],
        resamples=run.settings.evaluation.resamples,
        seed=pair.seed,  # type: ignore[arg-type]
    )["brier"]
    found = pair.over_runs(("Base", "E-SC"), "brier")["interval"]
    assert found == pytest.approx([expected.low, expected.high], abs=1e-9)
    (mill, barn) = splits(run)
    assert (mill["test_groups"], "test_groups" in barn) == (len(groups[2]), False)
    assert resampled_groups({"analyses": {"splits": [mill, barn]}}) == (
        f"Questions of one passage or group are resampled together: mill ({len(groups[2])} groups)"
    )
    assert resampled_groups({"analyses": {"splits": [barn]}}) == ""


def test_a_run_with_too_few_questions_to_fit_to_is_refused_before_a_model_is_loaded(
    tmp_path: Path,
) -> None:
    chosen = mills.settings(tmp_path, "methods=[Base, TS]", "datasets.0.calibration_train=4")
    with pytest.raises(FitError, match="calibration_train"):
        mills.run(tmp_path, chosen)
    assert not (tmp_path / "blocks").exists()


# ---- Extras: beams, entailment, transfer -------------------------------------------------------------------

ONE_EACH = ("methods=[Base, TS]", "sampling.counts=[]", "fitting.losses=[[NLL, null]]")
ONE_EACH += ("selection.measure_alphas=[0.5]", "runs.count=1")
WITHOUT = (
    *("extras.beams=false", "extras.entailment=false", "extras.transfer=false"),
    "extras.token_losses=false",
)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all extras."""
    folder = tmp_path_factory.mktemp("full")
    mills.run(folder, mills.settings(folder, *ONE_EACH))
    return folder


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run without the extras."""
    folder = tmp_path_factory.mktemp("bare")
    mills.run(folder, mills.settings(folder, *ONE_EACH, *WITHOUT))
    return folder


def test_without_extras_only_the_scores_of_the_methods_are_made(bare: Path) -> None:
    stages = {path.name for path in (bare / "blocks").iterdir()}
    assert stages == {"check", "features", "fit", "sample", "greedy", "cluster", "grade", "measure"}
    assert state_of(bare).complete
    assert {path.parent.name for path in bare.glob("samples/one/mill/*/*")} == {"Base", "TS_NLL"}
    assert len(list((bare / "blocks/sample").iterdir())) == state_of(bare).planned["sample"]  # no validation


def test_rows_are_those_of_a_run_with_all_extras_less_what_these_add(full: Path, bare: Path) -> None:
    added = {"beam", "beam_correct", "correct_nli"}
    for path in bare.glob("samples/*/*/*/*.jsonl"):
        of_full = mills.json_lines(full / path.relative_to(bare))
        assert mills.json_lines(path) == [{k: v for k, v in row.items() if k not in added} for row in of_full]


def test_what_was_not_done_is_null_or_empty_and_the_tables_can_be_made(bare: Path, tmp_path: Path) -> None:
    results = analyse(bare, tmp_path)
    analyses = results["analyses"]
    assert {row["beam"] for row in analyses["base_accuracies"]} == {None}
    assert not any(analyses[name] for name in ("agreement", "transfer", "losses"))
    fits = {row["candidate"]: row for row in analyses["fits"]}
    assert fits["TS NLL"]["temperature"] > 0
    assert fits["TS NLL"]["validation_nll"] is None
    assert {"03-main-one", "fits"} <= {table.name for table in report_tables(results)}


def test_the_settings_of_the_demo_ask_for_nothing_that_its_methods_do_not_need() -> None:
    settings = read_settings(settings_file(), limit=30)
    blocks = expected_blocks(settings, {"calibration_train": 30, "validation": 30, "test": 30})
    assert blocks == {
        "check": 1,
        "features": 1,
        "fit": 1,
        "sample": 2,
        "cluster": 2,
        "grade": 1,
        "greedy": 1,
        "calibrate": 1,
        "apply": 1,
        "measure": 1,
    }
