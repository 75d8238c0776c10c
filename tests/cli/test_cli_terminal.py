"""What commands print where: tables for people, details on request, nothing of other libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
import tiny_models
import torch
import transformers
from invoking import run as semcal
from invoking import write
from safetensors.torch import load_file, save_file

from semcal.cli import demo
from semcal.cli.console import figure_lines
from semcal.demo.paths import settings_file
from semcal.experiment.grid_settings import GridSettings, read_settings
from semcal.measures import MEASURES
from semcal.models import load_model

#: Tiny models of random weights never end an answer.
pytestmark = pytest.mark.filterwarnings("ignore:.* samples reached the token limit")

QUESTIONS = [{"id": f"q{i}", "question": f"Who built mill number {i}?"} for i in range(3)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a tensor that belongs to nothing, which transformers reports when it is loaded."""
    folder = tiny_models.save(tmp_path_factory.mktemp("model"))
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "left.over": next(iter(tensors.values())).clone()}, path, {"format": "pt"})
    return folder


def test_a_device_whose_memory_is_full_says_what_to_ask_less_of(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 154.00 MiB. GPU 0"))
    monkeypatch.setattr("semcal.models.causal_lm.CausalLanguageModel.sample", full)
    questions = write(tmp_path / "q.jsonl", QUESTIONS)
    code, _, told = semcal("sample", questions, "--model", model, "--workers", 1, "--out", tmp_path / "rows")
    assert code == 1
    assert "error: CUDA out of memory; use less memory at once (--workers, model.memory, --m" in told


@pytest.mark.parametrize("option", [(), ("-v",)])
def test_processes_and_memory_are_told_with_v_alone(
    option: tuple[str, ...], model: Path, tmp_path: Path
) -> None:
    file = write(tmp_path / "q.jsonl", QUESTIONS)
    code, _, stderr = semcal("sample", file, "--model", model, "--m", 2, "--workers", 1, *option)
    told = ["sample: processes: 1" in stderr, "peak memory: " in stderr]
    assert (code, told) == (0, [bool(option)] * 2)


def test_loading_a_model_prints_nothing_and_leaves_the_settings_of_transformers(
    model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    library = transformers.utils.logging
    before = library.get_verbosity()
    library.set_verbosity_info()
    library.enable_progress_bar()
    try:
        load_model(model)
        assert (library.get_verbosity(), library.is_progress_bar_enabled()) == (library.INFO, True)
    finally:
        library.set_verbosity(before)
    assert "".join(capfd.readouterr()) == ""


RESULT = {
    "n": 40,
    "accuracy": 0.5,
    "auroc": 0.71234,
    "mean_confidence": 0.6,
    "gain": -0.0123,
    "ace_p": None,
    "selective_accuracy": {"0.0": 0.5, "0.9": 0.75},
}


def test_metrics_with_intervals_fit_80_columns_each_value_on_a_line_with_its_error() -> None:
    spread = {
        "se": {"auroc": 0.05, "gain": 0.0456},
        "interval": {"auroc": [0.61, 1.0], "gain": [-0.1, 0.08]},
    }
    lines = figure_lines({name: {**RESULT, **spread} for name in MEASURES}, 80)
    assert max(map(len, lines)) <= 80
    assert next(line for line in lines if line.startswith("AUROC")).split()[1:6] == [
        *("0.712", "±", "0.050", "[0.610,", "1.000]")
    ]
    gains = [line for line in lines if line.startswith("gain")]
    assert sum(line.count("-0.012 ± 0.046 [-0.100, 0.080]") for line in gains) == len(MEASURES)
    heads = [name for line in lines if line.strip().startswith(tuple(MEASURES)) for name in line.split()]
    assert heads == list(MEASURES)


@pytest.mark.parametrize("json_too", [False, True])
def test_the_demo_prints_words_into_a_pipe_and_json_on_demand(
    json_too: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work itself is left out: what counts is where its results go."""
    ran: list[GridSettings] = []

    @contextmanager
    def open_grid(settings: GridSettings, *_: object) -> Iterator[Mock]:
        ran.append(settings)
        yield Mock(run=list)

    monkeypatch.setattr(demo, "open_grid", open_grid)
    monkeypatch.setattr("semcal.experiment.finished.read_results", lambda _: {"made": "up"})
    monkeypatch.setattr("semcal.experiment.report.build.in_words", lambda results: [f"words on {results}"])
    options = ("--limit", 8, "--m", 4, "--config", "sampling.seed=3", *(("--json",) if json_too else ()))
    code, stdout, _ = semcal("demo", "--out", tmp_path / "demo", *options)
    assert code == 0
    calibration = tmp_path / "demo" / demo.CALIBRATED / "calibration.json"
    if json_too:
        assert stdout == '{"made": "up"}\n'
    else:
        threshold = json.loads(calibration.read_text())["threshold"]
        assert stdout.splitlines()[-1] == "words on {'made': 'up'}"
        assert f"{threshold['answered']} answered, {threshold['errors']} of them wrong" in stdout
        assert str(calibration) in stdout
    assert calibration.exists() != json_too
    (settings,) = ran
    assert (settings.seed, settings.sampling.m) == (3, 4)
    assert settings.methods == ("Base", "SE", "TS", "Calibrated")
    assert [one.test for one in settings.datasets] == [8, 8, 8]


def test_the_quick_demo_is_one_calibrated_set_of_300_questions_in_a_folder_of_its_own() -> None:
    code, stdout, _ = semcal("demo", "--quick", "--dry-run")
    assert (code, stdout.partition(":")[0]) == (0, "runs/demo-quick")
    settings = read_settings(settings_file(quick=True))
    assert settings.methods == ("Base", "Calibrated")
    assert settings.extras == read_settings(settings_file()).extras


def child(code: str, **more: str) -> str:
    """What a clean process prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **more}, check=True
    )
    return done.stdout


def test_env_tells_versions_and_devices_also_without_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    code, stdout, _ = semcal("env", "--json")
    found = json.loads(stdout)
    assert code == 0
    assert found["versions"]["torch"].startswith("2.")
    assert isinstance(found["threads"], int)
    assert isinstance(found["cuda"], list)
    monkeypatch.setattr("semcal.cli.server_commands.find_spec", lambda _: None)
    code, stdout, _ = semcal("env", "--json")
    assert code == 0
    assert json.loads(stdout).keys() == found.keys() - {"threads", "cuda"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("ask", "missing.jsonl"),
        ("ask", " "),
        ("ask", "Caf\udce9?"),
    ],
)
def test_plain_mistakes_are_told_without_loading_pytorch(arguments: tuple[str, ...]) -> None:
    printing = (
        f"import sys; from semcal.cli.app import app\n"
        f"try: app({arguments!r})\n"
        "except SystemExit as ended: print(ended.code in (1, 2), 'torch' in sys.modules)"
    )
    assert child(printing) == "True False\n"
