"""Whole grids from fakes under the presets, and with bad rows in the data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mill_grid as mills
import pytest

from semcal.errors import InputError
from semcal.experiment.answer_steps import GradeMeaningsStep
from semcal.experiment.grid_plan import forecast
from semcal.experiment.grid_settings import PRESETS, Grading, read_settings
from semcal.rows import Row

pytestmark = pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")

CONFIGS = Path(__file__).parents[2] / "configs"
ONE = ("datasets.1.calibration_train=6", "datasets.1.validation=4", "datasets.1.test=4", "sampling.counts=[]")


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in (folder / "samples" / "one" / "mill" / name).read_text().splitlines()
    ]


@pytest.mark.parametrize(("preset", "correct"), [("sound", False), ("paper", True)])
def test_only_the_paper_counts_a_meaning_as_right_for_any_of_its_members(preset: str, correct: bool) -> None:
    merged = {"samples": ["Karun", "Toreth", "Karun"], "clusters": [[0, 1, 2]], "log_likelihoods": None}
    row = Row({"id": "1", "question": "Where?", "answers": ["Toreth"], "run": 0, **merged})
    (graded,) = GradeMeaningsStep(Grading.model_validate(PRESETS[preset].get("grading", {})), (0,))([row])
    assert graded["correct"] == [correct]


def test_runs_of_the_paper_preset_fit_anew_and_share_what_was_chosen(tmp_path: Path) -> None:
    settings = mills.settings(tmp_path, *ONE, "methods=[Base, TS, Platt]", preset="paper")
    mills.run(tmp_path, settings)
    chosen = json.loads((tmp_path / "selection/one/mill.json").read_text())
    platt = chosen["methods"]["Platt"]["E-SC"]["candidate"].replace(" ", "_")
    folder = tmp_path / "recalibrators" / "one" / "mill" / platt
    first, second = ((folder / run / "recalibrator.json").read_text() for run in ("", "run1"))
    assert json.loads(first)["weights"]["sha256"] != json.loads(second)["weights"]["sha256"]
    fits = {fit["candidate"]: fit for fit in chosen["fits"]}
    (ts, *_) = [c["candidate"] for c in chosen["methods"]["TS"].values()]
    assert len(fits[ts]["temperature_of_run"]) == 2
    assert "temperature_of_run" not in fits["Base"]
    found = rows(tmp_path, f"{platt}/run1.jsonl")
    assert {row["run"] for row in found} == {1}


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
    told = [json.loads(line) for line in (dirty / "problems.jsonl").read_text().splitlines()]
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
    assert plan.cells[0].question_tokens is None
    assert plan.seconds is None
    assert "TriviaQA is not on this machine" in plan.timing
