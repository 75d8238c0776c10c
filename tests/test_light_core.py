"""What `pip install semcal` brings does without torch, transformers, safetensors and matplotlib."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from semcal.errors import EXTRAS
from semcal.recalibration import Platt, Provenance, TemperatureScaling, save_pretrained
from tests.cli.invoking import write
from tests.servers import fake_model
from tests.servers.fake_server import FakeServer

ABSENT = [name for name, extra in EXTRAS.items() if extra != "serve"]
#: A program that finds none of these packages, as where they are not installed.
LIGHT = f"""
import sys
class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {ABSENT}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""
COMMAND = f"{LIGHT}from semcal.cli.app import app; app(sys.argv[1:])"
#: What runs models, fits or draws figures.
HEAVY = (
    "semcal.models",
    "semcal.recalibration",
    "semcal.experiment.report",
    "semcal.export",
    "semcal.plotting",
)
ROWS = [
    {
        "id": str(i),
        "question": f"Who built mill {i}?",
        "samples": ["Ana", "Ana", "Bo"] if i % 3 else ["Bo", "Ana", "Cy"],
        "log_likelihoods": [-0.5, -0.5, -1.5],
        "answers": ["Ana"],
    }
    for i in range(12)
]
PROVENANCE = Provenance("model", "revision", {}, "hash", "data", "hash", 60)


def light(code: str, folder: Path) -> str:
    """What a program prints that finds none of the packages."""
    done = subprocess.run(
        [sys.executable, "-c", f"{LIGHT}\n{code}"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def command(folder: Path, *arguments: str) -> tuple[int, list[dict], str]:
    """Exit code, rows and messages of a command that finds none of the packages."""
    done = run(folder, *arguments)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command that finds none of the packages."""
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


def test_all_modules_but_those_that_run_models_fit_or_draw_are_imported_without_them(tmp_path: Path) -> None:
    code = """
import importlib, pkgutil, semcal
names = [module.name for module in pkgutil.walk_packages(semcal.__path__, "semcal.")]
heavy = []
for name in names:
    if name == "semcal.__main__":
        continue
    try:
        importlib.import_module(name)
    except ImportError:
        heavy.append(name)
print(heavy)"""
    heavy = ast.literal_eval(light(code, tmp_path))
    assert [name for name in heavy if not name.startswith(HEAVY)] == []


def test_stored_samples_are_scored_and_calibrated(tmp_path: Path) -> None:
    code = f"""
import os, warnings, semcal
warnings.simplefilter("ignore")
for equivalence in ("exact", "default"):
    scored = semcal.score({ROWS}, equivalence=equivalence)
    print(len(scored), scored.calibrate().report.n, semcal.metrics.auroc([.9, .1], [True, False]))
print(os.environ["ORT_DISABLE_TELEMETRY"])"""
    assert light(code, tmp_path).splitlines() == ["12 12 1.0", "12 12 1.0", "1"]


def test_commands_of_rows_need_none_of_them(tmp_path: Path) -> None:
    write(tmp_path / "0", ROWS)
    for number, step in enumerate(("cluster", "measure", "grade")):
        code, _, messages = command(tmp_path, step, str(number), "--out", str(number + 1), "-q")
        assert code == 0, messages
    assert command(tmp_path, "metrics", "3", "-q")[0] == 0
    code, rows, messages = command(tmp_path, "calibrate", "0", "--equivalence", "exact", "--out", "c", "-q")
    assert (code, rows[0]["n"]) == (0, 12), messages


def test_a_fake_is_asked_under_a_temperature_that_was_fitted_and_saved(tmp_path: Path) -> None:
    logits = torch.tensor([[2.0, 0.0]] * 60)
    ts = TemperatureScaling().fit(logits, [0, 0, 1] * 20)
    save_pretrained(ts, tmp_path / "ts", provenance=PROVENANCE)
    code = """
import semcal
from semcal.models.fakes import FakeLanguageModel
from semcal.recalibration import from_pretrained, save_pretrained
model = FakeLanguageModel({"Who?": {"Ana": 0.99999, "Bo": 0.00001}})
recalibrator, provenance = from_pretrained("ts")
save_pretrained(recalibrator, "again", provenance=provenance)
uq = semcal.SemanticUQ(model, recalibrator=recalibrator, equivalence="exact", m=5)
print(recalibrator.temperature_, uq.ask("Who?").text)"""
    assert light(code, tmp_path) == f"{ts.temperature_} Ana"
    again = (tmp_path / "again" / "recalibrator.json").read_bytes()
    assert again == (tmp_path / "ts" / "recalibrator.json").read_bytes()


def test_a_server_answers_is_calibrated_and_judges(tmp_path: Path) -> None:
    asked = [{"id": f"q{i}", "question": text} for i, text in enumerate(fake_model.ANSWERS)]
    labelled = [
        {**row, "id": f"{row['id']}-{k}", "answers": [next(iter(fake_model.ANSWERS[row["question"]]))]}
        for k in range(4)
        for row in asked
    ]
    write(tmp_path / "asked", asked)
    write(tmp_path / "labelled", labelled)
    with FakeServer() as server:
        of = ("--model", server.name, "--equivalence", "exact", "-q")
        made = command(tmp_path, "calibrate", "labelled", "--m", "4", "--out", "c", *of)
        assert (made[0], made[1][0]["n"]) == (0, len(labelled)), made[2]
        answered = command(tmp_path, "ask", "asked", "--calibration", "c", *of)
        assert (answered[0], len(answered[1])) == (0, len(asked)), answered[2]
        judged = command(tmp_path, "grade", "labelled", "--grader", f"judge:{server.name}", "-q")
        assert judged[0] in (0, 1), judged[2]
        assert "not installed" not in judged[2]


@pytest.mark.parametrize(
    ("arguments", "needed_by"),
    [
        (("ask", "Who?", "--equivalence", "exact"), "the language model 'atlas'"),
        (("cluster", "rows", "--equivalence", "atlas", "--out", "out"), "the NLI model 'atlas'"),
        (("fit", "rows", "--model", "atlas", "--out", "out"), "the language model 'atlas'"),
    ],
)
def test_a_command_that_needs_them_names_the_extra(
    tmp_path: Path, arguments: tuple[str, ...], needed_by: str
) -> None:
    write(tmp_path / "rows", ROWS)
    code, _, messages = command(tmp_path, *arguments)
    (error,) = (line for line in messages.splitlines() if line.startswith("error: "))
    assert (code, needed_by in error, "'semcal[models]'" in error) == (1, True, True), messages
    assert not (tmp_path / "out").exists()


def test_the_demo_shows_the_example_set_before_it_names_the_extra(tmp_path: Path) -> None:
    done = run(tmp_path, "demo", "--out", "out")
    (error,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert (done.returncode, "semcal demo" in error, "'semcal[models]'" in error) == (1, True, True)
    assert "Part 1: 419 questions" in done.stdout
    assert (tmp_path / "out" / "example-set" / "calibration.json").is_file()


#: Calls that need an extra, and how their errors begin.
CALLS = {
    "semcal.load_model('atlas')": "the language model 'atlas' needs torch",
    "semcal.load_equivalence('atlas')": "the NLI model 'atlas' needs torch",
    "semcal.fit('atlas', [])": "the language model 'atlas' needs torch",
    "semcal.recalibration.Platt": "semcal.recalibration.Platt needs torch",
    "semcal.recalibration.from_pretrained('platt')": "the recalibrator Platt needs torch",
    "semcal.recalibration.TemperatureScaling().fit([[1.0, 0.0]], [0])": "TemperatureScaling.fit needs torch",
    "semcal.metrics.reliability_diagram([0.5], [True]).plot()": "a plot needs matplotlib",
}


def test_what_needs_them_in_python_names_the_extra(tmp_path: Path) -> None:
    save_pretrained(Platt(3).freeze(None), tmp_path / "platt", provenance=PROVENANCE)
    code = f"""
import semcal
for call in {list(CALLS)}:
    try:
        eval(call)
    except semcal.errors.MissingExtraError as error:
        print(str(error).splitlines()[0])"""
    found = light(code, tmp_path).splitlines()
    assert [line[: len(begin)] for line, begin in zip(found, CALLS.values(), strict=True)] == [
        *CALLS.values()
    ]
