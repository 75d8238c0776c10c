"""What a dry run says: questions that are counted, answers, tokens and calls, a question timed."""

from __future__ import annotations

import json
from pathlib import Path

import mill_grid as mills
import pytest

from semcal.errors import InputError, ModelError, ServerError
from semcal.experiment.grid_plan import forecast
from semcal.experiment.grid_settings import settings_of
from semcal.experiment.grid_steps import GridState


def of_file(path: Path, *overrides: str):
    content = {
        "models": [{"name": "one", "path": "atlas"}],
        "datasets": [{"name": "own", "source": str(path), "validation": 30, "test": 40, "few_shot": 2}],
        "equivalence": "atlas",
    }
    return settings_of(content, overrides)


def rows(path: Path, count: int = 160) -> Path:
    """Questions in pairs about passages of 400 characters, with one answer or three."""
    lines = [
        {
            "id": str(n),
            "question": f"Which mill has the number {n}?",
            "answers": ["a", "b", "c"] if n % 2 else ["a"],
            "context": f"{n // 2:04d} " * 80,
        }
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_questions_of_a_file_are_counted(tmp_path: Path) -> None:
    path = rows(tmp_path / "q.jsonl")
    path.write_text(path.read_text() + '{"id": "x", "question": "Who?"}\n')
    plan = forecast(of_file(path))
    left = 160 - 30 - 40 - 2 * 2  # the other question on the passage of an example is in no part
    assert plan.questions == {"calibration_train": left, "validation": 30, "test": 40}
    assert plan.problems == 1
    assert "questions: 86 calibration_train, 30 validation, 40 test (bad rows that would be left out: 1)" in [
        *plan.lines()
    ]


def test_a_file_with_too_few_questions_is_the_error_that_the_run_would_give(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'own'"):
        forecast(of_file(rows(tmp_path / "q.jsonl"), "datasets.0.test=500"))


def test_answers_their_tokens_and_nli_calls_are_counted(tmp_path: Path) -> None:
    alone = ("methods=[Base]", "selection.measure_alphas=[0.5]")
    (cell,) = forecast(of_file(rows(tmp_path / "q.jsonl"), *alone)).cells
    draws = 10 * 4 + 15  # of four runs, and 25 in the first
    assert (cell.answers, cell.answer_tokens) == (40 * (draws + 1), 40 * (draws + 1) * 32)
    assert cell.nli_calls == 40 * draws * 9


def test_the_first_question_of_the_first_cell_is_timed_with_its_model_loaded_once(tmp_path: Path) -> None:
    loaded = []

    def load(model):
        loaded.append(model.name)
        return mills.model_of(model)

    plan = forecast(
        mills.settings(tmp_path, "models=[{name: one, path: one}, {name: two, path: two}]"),
        lambda: GridState(tmp_path, load, lambda _: pytest.fail("no equivalence is needed")),
    )
    assert (loaded, plan.seconds is not None and plan.seconds > 0) == (["one"], True)
    assert plan.timing.startswith("4 answers of one ")
    assert "to the first test question of mill took" in plan.timing


def test_what_cannot_be_timed_says_why(tmp_path: Path) -> None:
    def refuse(model):
        raise ModelError(f"no model {model.name}")

    settings = mills.settings(tmp_path)
    state = GridState(tmp_path, refuse, lambda _: pytest.fail("no equivalence is needed"))
    assert forecast(settings, lambda: state).timing.endswith(": no model one")
    assert "one is not on this machine" in forecast(settings).timing
    server = mills.settings(tmp_path, "models=[{name: s, path: 'openai:https://models.example/v1#x'}]")
    assert forecast(server).timing.startswith("not measured")


def test_a_server_of_this_machine_charges_nothing_and_is_timed(tmp_path: Path) -> None:
    settings = mills.settings(tmp_path, "models=[{name: s, path: 'openai:http://127.0.0.1:9/v1#x'}]")
    state = GridState(tmp_path, mills.model_of, lambda _: pytest.fail("no equivalence is needed"))
    plan = forecast(settings, lambda: state)
    assert plan.seconds is not None
    assert plan.timing.startswith("4 answers of s to the first test question of mill took ")
    refused = GridState(tmp_path, refuse, lambda _: pytest.fail("no equivalence is needed"))
    assert forecast(settings, lambda: refused).timing.endswith(": no server s")


def refuse(model):
    raise ServerError(f"no server {model.name}")
