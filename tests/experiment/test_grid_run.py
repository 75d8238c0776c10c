"""A grid from fakes: what stands in its run folder, and that every way of making it gives the same bytes."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import mill_grid as mills
import pytest

from semcal.errors import InputError, SemcalWarning, StoreError, UsageError
from semcal.experiment.finished import state_of
from semcal.experiment.grid_plan import load_parts
from semcal.experiment.grid_settings import DataSet
from semcal.files import write_rows
from semcal.measures import MEASURES, confidence
from semcal.workers import ProcessExecutor

pytestmark = pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A finished run of four methods on two data sets."""
    folder = tmp_path_factory.mktemp("whole")
    mills.run(folder, mills.settings(folder))
    return folder


def test_a_source_may_begin_with_a_variable_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ({"question": f"Who built mill {n}?", "answers": f"man {n}"} for n in range(9))
    write_rows(tmp_path / "mill.jsonl", rows)
    sizes = {"calibration_train": 5, "validation": 1, "test": 1, "few_shot": 2}
    dataset = DataSet(name="mill", source="$FOLDER/mill.jsonl", **sizes)
    with pytest.raises(InputError, match=r"\$FOLDER"):
        load_parts(dataset)
    monkeypatch.setenv("FOLDER", str(tmp_path))
    assert load_parts(dataset).sizes() == {"calibration_train": 5, "validation": 1, "test": 1}


def test_rows_follow_from_their_samples(whole: Path) -> None:
    settings = mills.settings(whole)
    test = load_parts(settings.datasets[0]).test
    chosen = mills.selection(whole)
    for method, choices in chosen["methods"].items():
        for measure, choice in choices.items():
            folder = choice["candidate"].replace(" ", "_")
            found = mills.json_lines(whole / "samples" / "one" / "mill" / folder / "run1.jsonl")
            assert [row["id"] for row in found] == [question.id for question in test]
            assert {(row["model"], row["dataset"], row["candidate"], row["run"]) for row in found} == {
                ("one", "mill", choice["candidate"], 1)
            }
            (again,) = confidence(
                [row["clusters"] for row in found],
                [row["log_likelihoods"] for row in found],
                measure=(measure,),
                t_alpha=choice["measure_alpha"] or 0.5,
                g_alpha=choice["measure_alpha"] or 0.5,
            ).values()
            assert [row["confidence"][measure] for row in found] == pytest.approx(
                again.confidence.tolist(), abs=1e-12
            ), (method, measure)
    assert set(chosen["methods"]["Platt"]) == set(MEASURES)


def test_fewer_draws_are_the_first_of_more(whole: Path) -> None:
    folder = whole / "samples" / "one" / "mill" / "Base"
    counts = {2: "run0.n2", 4: "run0", 6: "run0.n6"}
    draws = {
        count: [row["samples"] for row in mills.json_lines(folder / f"{name}.jsonl")]
        for count, name in counts.items()
    }
    assert {len(samples) for samples in draws[6]} == {6}
    for count, found in draws.items():
        assert found == [samples[:count] for samples in draws[6]]
    assert not (folder / "run1.n6.jsonl").exists()


def test_only_what_was_chosen_is_asked_the_test_questions(whole: Path) -> None:
    chosen = mills.selection(whole)
    tables = [chosen["methods"], *chosen["by_loss"].values()]
    wanted = {choice["candidate"] for table in tables for of in table.values() for choice in of.values()}
    wanted |= {one["candidate"] for one in chosen["transfer"].values()}
    asked = {path.name for path in (whole / "samples" / "one" / "mill").iterdir()}
    assert asked == {name.replace(" ", "_") for name in wanted}
    (moved,) = chosen["transfer"].items()
    assert moved[0] == "barn"
    (fit,) = [fit for fit in mills.selection(whole, "one", "barn")["fits"] if fit["candidate"] == "TS NLL"]
    assert moved[1]["temperature"] == fit["temperature"]


def test_the_answers_to_test_questions_choose_nothing(small: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    settings = mills.settings(data, *mills.SMALL)
    for dataset in settings.datasets:
        test = {question.id for question in load_parts(dataset).test}
        path = Path(dataset.source)
        changed = [
            {**row, "answers": ["Bo"] if row["id"] in test else row["answers"]}
            for row in mills.json_lines(path)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in changed))
    mills.run(tmp_path / "run", settings)
    before, after = mills.selection(small), mills.selection(tmp_path / "run")
    assert after["table"] == before["table"]
    correct = [
        mills.json_lines(folder / "samples/one/mill/Base/run0.jsonl") for folder in (small, tmp_path / "run")
    ]
    assert [row["correct"] for row in correct[0]] != [row["correct"] for row in correct[1]]


@pytest.mark.slow
def test_two_models_share_nothing_but_the_questions(small: Path, tmp_path: Path) -> None:
    two = "models=[{name: one, path: one}, {name: two, path: two}]"
    mills.run(tmp_path, mills.settings(small, *mills.SMALL, two))
    assert mills.contents(small).items() <= mills.contents(tmp_path).items()
    names = [tmp_path / "samples" / model / "mill" / "Base" / "run0.jsonl" for model in ("one", "two")]
    assert [row["samples"] for row in mills.json_lines(names[0])] != [
        row["samples"] for row in mills.json_lines(names[1])
    ]


@pytest.mark.slow
def test_two_processes_give_the_bytes_of_one(small: Path, tmp_path: Path) -> None:
    with ProcessExecutor(partial(mills.state_of, tmp_path), 2) as executor:
        mills.run(tmp_path, mills.settings(small, *mills.SMALL), executor=executor)
    assert mills.contents(tmp_path) == mills.contents(small)


def test_a_finished_run_needs_no_model_and_no_features(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(small, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "work")
    shutil.rmtree(tmp_path / "samples")
    for method in ("sample", "features", "greedy", "beam", "score", "logits"):
        monkeypatch.setattr(f"semcal.models.fakes.FakeLanguageModel.{method}", None)
    mills.run(tmp_path, mills.settings(small, *mills.SMALL))
    assert mills.contents(tmp_path) == mills.contents(small)


def test_a_stage_is_done_again_to_the_same_bytes(small: Path, tmp_path: Path) -> None:
    shutil.copytree(small, tmp_path, dirs_exist_ok=True)
    for name in ("blocks/cluster", "samples", "selection"):
        shutil.rmtree(tmp_path / name)
    assert not state_of(tmp_path).complete
    assert state_of(tmp_path).missing["fit"] == 0
    mills.run(tmp_path, mills.settings(small, *mills.SMALL))
    assert mills.contents(tmp_path) == mills.contents(small)


def damaged(block: Path, damage: str) -> None:
    text = block.read_text()
    block.write_text(text.replace('"', "'", 1) if damage == "edit" else text[: len(text) // 2])


@pytest.mark.parametrize(("stage", "damage"), [("features", "edit"), ("sample", "cut"), ("measure", "edit")])
def test_a_damaged_block_is_named_and_refused(stage: str, damage: str, small: Path, tmp_path: Path) -> None:
    shutil.copytree(small, tmp_path, dirs_exist_ok=True)
    if stage == "features":  # what all fits are there for is not read
        shutil.rmtree(tmp_path / "blocks" / "fit")
    block = sorted((tmp_path / "blocks" / stage).iterdir())[-1]
    damaged(block, damage)
    assert [block.name in reason for reason in state_of(tmp_path).damaged] == [True]
    with pytest.raises(StoreError, match=block.name):
        mills.run(tmp_path, mills.settings(small, *mills.SMALL))
    block.unlink()
    mills.run(tmp_path, mills.settings(small, *mills.SMALL))
    assert mills.contents(tmp_path) == mills.contents(small)


def test_an_edited_recalibrator_is_named_and_refused(whole: Path, tmp_path: Path) -> None:
    """It is read where something is still to be sampled with it."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "blocks" / "sample")
    found = sorted((tmp_path / "recalibrators").glob("*/*/TS_NLL/recalibrator.json"))[0]
    text = found.read_text()
    temperature = json.loads(text)["temperature"]
    found.write_text(text.replace(str(temperature), "9.5"))
    with pytest.raises((StoreError, InputError), match="TS_NLL"):
        mills.run(tmp_path, mills.settings(whole))


def test_going_on_with_another_version_is_warned_of(small: Path, tmp_path: Path) -> None:
    shutil.copytree(small, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "environment.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "versions": {**record["versions"], "torch": "1.0"}}))
    with pytest.warns(SemcalWarning, match="torch"):
        mills.run(tmp_path, mills.settings(small, *mills.SMALL))


def test_other_settings_and_other_questions_are_refused(small: Path, tmp_path: Path) -> None:
    shutil.copytree(small, tmp_path / "run")
    data = tmp_path / "data"
    data.mkdir()
    with pytest.raises(UsageError, match=r"sampling\.m"):
        mills.run(tmp_path / "run", mills.settings(small, *mills.SMALL, "sampling.m=3"))
    settings = mills.settings(small, *mills.SMALL)
    path = Path(settings.datasets[0].source)
    before = path.read_text()
    path.write_text(before.replace("Ana", "Eva"))
    try:
        with pytest.raises(StoreError, match="mill"):
            mills.run(tmp_path / "run", settings)
    finally:
        path.write_text(before)
