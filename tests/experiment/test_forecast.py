"""What a dry run says: questions that are counted, disk at its peak, time here and on a GPU."""

from __future__ import annotations

import gzip
import itertools
import json
import os
from pathlib import Path
from statistics import mean

import pytest

from semcal.errors import InputError
from semcal.experiment import forecast as forecasting
from semcal.experiment import forecast_cells
from semcal.experiment.forecast import ASSUMED, forecast
from semcal.experiment.forecast_cells import H100, REFERENCES, Machine, shape_of, this_machine
from semcal.experiment.reading import read_settings, settings_of

CONFIGS = Path(__file__).parents[2] / "configs"
GB = 10**9


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
    assert (
        "questions: 86 calibration_train, 30 validation, 40 test (rows of the data that would be left out: 1)"
        in [*plan.lines()]
    )


def test_a_file_with_too_few_questions_is_the_error_that_the_run_would_give(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="data set 'own': 160 different"):
        forecast(of_file(rows(tmp_path / "q.jsonl"), "datasets.0.test=500"))


def test_features_count_the_answers_and_passages_that_are_there(tmp_path: Path) -> None:
    """88 questions, about two references of 5 states each, 100 tokens of passage for every two or fewer."""
    path = rows(tmp_path / "q.jsonl")
    plan = forecast(of_file(path))
    wide = forecast(of_file(path, "methods=[Base, TS]"))
    (width,) = {one.width for one in map(shape_of, of_file(path).models)}
    states = plan.bytes["features"] / 4 / width
    assert 88 * (ASSUMED.question + 1.6 * 5 + 50) < states < 88 * (ASSUMED.question + 2.4 * 5 + 100)
    assert wide.bytes["features"] < plan.bytes["features"] / 5


def test_the_paper_grid_fits_on_100_gb_where_all_that_it_makes_would_take_five_times_that() -> None:
    chosen = forecast(read_settings(CONFIGS / "paper.yaml"))
    every = forecast(read_settings(CONFIGS / "paper.yaml", ["keep=all"]))
    assert chosen.peak.total() < 100 * GB
    assert chosen.bytes.total() < chosen.peak.total()
    assert every.peak.total() > 5 * chosen.peak.total()
    assert "features" not in chosen.bytes
    assert any(line.startswith("disk at its peak: 9") for line in chosen.lines())
    assert chosen.tree()["peak_bytes"] == chosen.peak.total()


def test_time_here_is_said_with_what_it_rests_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def machine(speed: float) -> Machine:
        return Machine("this machine (stated)", speed, reading=0.5, drawing=0.2, training=0.3)

    settings = read_settings(CONFIGS / "paper.yaml")
    plans = []
    for speed in (1e12, 2e12):
        monkeypatch.setattr(forecasting, "this_machine", lambda _device, speed=speed: machine(speed))
        plans.append(forecast(settings))
    assert plans[0].seconds_here.total() == pytest.approx(2 * plans[1].seconds_here.total())
    assert plans[0].seconds == plans[1].seconds
    assert any(line.startswith("time on this machine (stated): ") for line in plans[0].lines())
    assert any(line.startswith(f"time on {H100.name}: ") for line in plans[0].lines())


def test_processors_are_measured_and_a_gpu_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    found = this_machine("cpu")
    assert found.peak > 1e8
    assert "GFLOP/s each in float32 products of numpy, measured now" in found.name
    monkeypatch.setattr("semcal.experiment.forecast_cells.has_gpu", lambda: True)
    assert "without its GPU, whose speed is not measured" in this_machine().name
    assert "GPU" not in this_machine("cpu").name


@pytest.mark.parametrize(
    ("variable", "threads"), [(None, 4), ("OMP_NUM_THREADS", 1), ("OPENBLAS_NUM_THREADS", 2)]
)
def test_the_speed_of_a_processor_does_not_depend_on_the_threads_asked_for(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, threads: int
) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    if variable is not None:
        monkeypatch.setenv(variable, str(threads))
    monkeypatch.setattr(forecast_cells, "cores", lambda: 4)
    clock = itertools.count()
    monkeypatch.setattr(forecast_cells.time, "perf_counter", lambda: next(clock) / threads)
    assert this_machine("cpu").peak == pytest.approx(4 * 2 * forecast_cells.SIDE**3)


@pytest.mark.skipif("SEMCAL_DATA" not in os.environ, reason="needs the public development data")
@pytest.mark.parametrize(
    ("source", "file"), [("triviaqa", "triviaqa"), ("nq-open", "nq_open"), ("squad", "squad")]
)
def test_the_references_of_public_data_sets_are_as_assumed(source: str, file: str) -> None:
    path = Path(os.environ["SEMCAL_DATA"]) / f"{file}_train_sample.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        found = [json.loads(line) for line in lines]
    assert round(mean(len(row["answers"]) for row in found)) == REFERENCES[source]
    if "context" in found[0]:
        characters = mean(len(row["context"]) for row in found)
        assert characters / 5 < ASSUMED.passage < characters / ASSUMED.characters
