"""Measures, metrics, recalibrators, equivalences, signals and tables from outside are found everywhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from semcal.calibration.signals import SIGNALS, Assessment, register_signal
from semcal.demo.questions import load_set
from semcal.errors import StoreError, UsageError
from semcal.experiment.report.report_tables import REPORT_TABLES, SECTIONS, ReportTable, Section
from semcal.experiment.report.tables import Field
from semcal.files import json_checksum
from semcal.measures import MEASURES, Measure
from semcal.metrics import METRICS, Metric
from semcal.models.equivalence import EQUIVALENCES, NamedEquivalence, Triple
from semcal.models.protocols import Sampler
from semcal.recalibration import (
    RECALIBRATORS,
    Base,
    Contents,
    FitResult,
    FitTask,
    Method,
    from_pretrained,
)
from semcal.recalibration.exact_solver import token_losses
from semcal.registry import PLUGINS, load_plugins
from semcal.workers import ProcessExecutor
from tests.cli.invoking import semcal, write

pytestmark = pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")

SHARES = (0.0, 0.1, 0.5)
QUESTIONS = [
    {"id": f"q{i}", "question": f"Who built mill number {i}?", "answers": ["Odo"]} for i in range(30)
]
#: A grid as in docs/grid.md, as small as it gets.
GRID = """
preset: sound
models: [{name: atlas, path: atlas}]
datasets: [{name: trivia, source: atlas-trivia, calibration_train: 30, validation: 20, test: 30}]
equivalence: atlas
methods: [Base, Mixture]
fitting: {losses: [[NLL, null]]}
runs: {count: 1}
sampling: {m: 4, counts: [], max_new_tokens: {closed_book: 12, open_book: 12}}
selection: {measure_alphas: [0.5]}
evaluation: {resamples: 100}
extras: {beams: false, entailment: false, transfer: false, token_losses: false, figure_files: false}
"""


class Mixture:
    """The model's distribution, with a share of the uniform one."""

    method = "Mixture"

    def __init__(self, share: float, *, loss: str = "NLL", alpha: float | None = None) -> None:
        self.share, self.loss, self.alpha = share, loss, alpha

    def log_probs(self, logits: Tensor) -> Tensor:
        p = torch.softmax(logits.float(), -1)
        return ((1 - self.share) * p + self.share / logits.shape[-1]).log()

    def __repr__(self) -> str:
        return f"Mixture({self.share})"


class MixtureContents(Contents):
    share: float

    @classmethod
    def described(cls, recalibrator: Mixture) -> dict[str, Any]:
        return {"share": recalibrator.share, "loss": recalibrator.loss, "alpha": recalibrator.alpha}

    def check(self) -> None:
        if not 0 <= self.share < 1:
            raise UsageError(f"share: expected a number in [0, 1), got {self.share}")

    def restored(self, weights: Path) -> Mixture:
        return Mixture(self.share, loss=self.loss, alpha=self.alpha)


def fit_mixture(task: FitTask) -> Sequence[FitResult]:
    """The share of the lowest mean loss."""
    logits = task.model.logits(task.features.states[task.features.predicting_rows()])

    def mean_loss(mixture: Mixture) -> float:
        losses = token_losses(
            mixture.log_probs(logits), task.features.targets, loss=mixture.loss, alpha=mixture.alpha
        )
        return float(losses.mean())

    return [
        FitResult(min((Mixture(share, loss=loss, alpha=alpha) for share in SHARES), key=mean_loss))
        for loss, alpha in task.losses
    ]


SQUARED = Measure("S-SC", lambda c, _: 2 * c.log_size, "Squared: by n².", needs_likelihoods=False)
BOLDNESS = Metric(
    "boldness",
    lambda t, _: ((t.count - t.right) * (t.value > 0.5)).sum(-1) / t.n,
    "bold",
    "The share of answers that are wrong and surer than 0.5.",
    larger_is_better=False,
)
MIXTURE = Method(
    "Mixture",
    "A share of the uniform distribution.",
    colour="#123456",
    dark="#abcdef",
    line=":",
    fit=fit_mixture,
    solvers=("exact",),
    weight_decays=False,
    contents=lambda: MixtureContents,
)
BOLDEST = ReportTable(
    name="boldest",
    section="boldness",
    caption="Bold answers of each method",
    analysis="confidence",
    rows=lambda _, rows: [row for row in rows if row["measure"] == "S-SC"],
    index={"dataset": "Data set", "method": "Method"},
    fields=[Field("Bold", "boldness")],
    in_markdown=True,
)


class FirstLetter:
    """Answers with one first letter mean the same."""

    name, revision = "first-letter", "1"

    def entails(self, triples: Sequence[Triple]) -> list[bool]:
        return [premise[:1] == hypothesis[:1] for _, premise, hypothesis in triples]


def ask_brevity(_: Sampler, assessments: Sequence[Assessment]) -> list[float | None]:
    return [1 / (1 + len(assessment.answer)) for assessment in assessments]


@pytest.fixture(autouse=True, scope="module")
def registered() -> Iterator[None]:
    MEASURES.register(SQUARED)
    METRICS.register(BOLDNESS)
    RECALIBRATORS.register(MIXTURE)
    SECTIONS.register(Section("boldness", "Who is bold", link="Boldness"))
    REPORT_TABLES.register(BOLDEST)
    EQUIVALENCES.register(NamedEquivalence("first-letter", FirstLetter))
    register_signal("brevity", ask_brevity)
    yield
    del EQUIVALENCES["first-letter"], SIGNALS["brevity"]
    del MEASURES["S-SC"], METRICS["boldness"], RECALIBRATORS["Mixture"], REPORT_TABLES["boldest"]
    del SECTIONS["boldness"]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grid run on the embedded model, with its report."""
    folder = tmp_path_factory.mktemp("grid")
    (folder / "grid.yaml").write_text(GRID)
    code, _, stderr = semcal("run", folder / "grid.yaml", "--out", folder / "run", "--workers", 1, "--json")
    assert code == 0, stderr
    return folder / "run"


@pytest.fixture
def questions(tmp_path: Path) -> str:
    return write(tmp_path / "questions.jsonl", QUESTIONS)


# The equivalence and the signal.


def test_an_equivalence_is_named_in_commands_and_calibrations(tmp_path: Path) -> None:
    rows = [
        {
            "id": str(i),
            "question": "Who?",
            "samples": ["Ana", "Abe", "Bo"],
            "answers": ["Ana" if i % 3 else "Bo"],
        }
        for i in range(30)
    ]
    file, named = write(tmp_path / "rows.jsonl", rows), ("--equivalence", "first-letter")
    code, clustered, stderr = semcal("cluster", file, *named)
    assert (code, clustered[0]["clusters"]) == (0, [[0, 1], [2]]), stderr
    assert clustered[0]["clustered_by"]["equivalence"] == "first-letter"
    code, _, stderr = semcal("calibrate", file, *named, "--out", tmp_path / "map")
    assert code == 0, stderr
    clusters = write(tmp_path / "clusters.jsonl", clustered)
    code, (measured, *_), stderr = semcal("measure", clusters, "--calibration", tmp_path / "map")
    assert (code, measured["answer"]) == (0, "Ana"), stderr
    with pytest.raises(UsageError, match="first-letter"):
        EQUIVALENCES.register(NamedEquivalence("first-letter", FirstLetter))


def test_a_signal_is_a_feature_of_a_calibration_that_asks_for_it(tmp_path: Path) -> None:
    labeled = [question.row() for question in load_set("atlas-trivia").calibration_train[:60]]
    questions = write(tmp_path / "labeled.jsonl", labeled)
    how = ("--model", "atlas", "--m", 3, "--equivalence", "exact", "--config", "sampling.temperatures=1")
    code, _, stderr = semcal("calibrate", questions, *how, "--signal", "brevity", "--out", tmp_path / "map")
    assert code == 0, stderr
    kept = (json.loads(line) for line in (tmp_path / "map" / "samples.jsonl").read_text().splitlines())
    assert all(0 < row["signals"][0]["brevity"] <= 0.5 for row in kept)


# The measure and the metric.


def test_measure_and_metrics_show_them_with_intervals(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [
        {
            "id": str(n),
            "samples": ["Ana", "Ana", "Bo"],
            "clusters": [[0, 1], [2]],
            "log_likelihoods": [-0.5, -0.5, -1.0] if n % 2 else None,
            "answers": "Ana" if rng.random() < 0.6 else "Bo",
            "question": f"Who is {n}?",
        }
        for n in range(40)
    ]
    code, measured, _ = semcal("measure", write(tmp_path / "clustered.jsonl", rows))
    assert code == 0
    assert measured[0]["confidence"]["S-SC"] == pytest.approx(4 / 5)
    assert measured[0]["confidences"]["S-SC"] == pytest.approx([4 / 5, 1 / 5])
    _, graded, _ = semcal("grade", write(tmp_path / "measured.jsonl", measured))
    code, assessed, _ = semcal("metrics", write(tmp_path / "graded.jsonl", graded), "--ci", "--json")
    results = {row["measure"]: row for row in assessed}
    assert (code, results["S-SC"]["mean_confidence"]) == (0, pytest.approx(4 / 5))
    for row in (results["S-SC"], results["L-SC"]):
        low, high = row["interval"]["boldness"]
        assert row["boldness"] == pytest.approx(1 - row["accuracy"])
        assert 0 < low < row["boldness"] < high < 1
        assert row["se"]["boldness"] > 0


# The recalibrator.


def test_fit_saves_it_and_sample_draws_under_it(questions: str, tmp_path: Path) -> None:
    out = tmp_path / "mixture"
    code, (fitted,), _ = semcal("fit", questions, "--model", "atlas", "--method", "Mixture", "--out", out)
    assert (code, fitted["method"], fitted["loss"]) == (0, "Mixture", "NLL")
    assert fitted["loss_after"] <= fitted["loss_before"]
    mixture, provenance = from_pretrained(out)
    assert isinstance(mixture, Mixture)
    assert (mixture.share in SHARES, provenance.n_questions) == (True, 30)
    options = ("--model", "atlas", "--m", "3", "--max-new-tokens", "2", "--limit", "2")
    code, rows, _ = semcal("sample", questions, "--recalibrator", out, *options)
    assert code == 0
    assert [row["sampled_by"]["recalibrator"] for row in rows] == [f"Mixture({mixture.share})"] * 2
    path = out / "recalibrator.json"
    content = {**json.loads(path.read_text()), "share": 2.0}
    del content["sha256"]
    path.write_text(json.dumps({**content, "sha256": json_checksum(content)}))
    with pytest.raises(StoreError, match="share"):
        from_pretrained(out)


# All of them in a grid.


def test_a_grid_fits_selects_and_samples_and_its_results_and_tables_have_them(run_folder: Path) -> None:
    (fit,) = run_folder.glob("recalibrators/atlas/trivia/*/recalibrator.json")
    assert json.loads(fit.read_text())["method"] == "Mixture"
    selection = json.loads((run_folder / "selection" / "atlas" / "trivia.json").read_text())
    assert selection["methods"]["Mixture"]["S-SC"]["candidate"] == "Mixture NLL"
    assert (run_folder / "samples" / "atlas" / "trivia" / "Mixture_NLL" / "run0.jsonl").is_file()
    rows = json.loads((run_folder / "results.json").read_text())["analyses"]["confidence"]
    boldness = {(row["method"], row["measure"]): row["boldness"] for row in rows}
    low, high = boldness["Mixture", "S-SC"]["interval"]
    assert 0 <= low <= boldness["Mixture", "S-SC"]["mean"] <= high <= 1
    header, *lines = (run_folder / "tables" / "03-main-atlas.csv").read_text().splitlines()
    assert "S-SC" in header
    assert any("Mixture" in line for line in lines)
    header, *lines = (run_folder / "tables" / "boldest.csv").read_text().splitlines()
    assert "Bold" in header
    assert [line.split(",")[1] for line in lines] == ["Base", "Mixture"]
    assert BOLDEST.caption in (run_folder / "results.md").read_text()


PLUGIN = """
from semcal.measures import MEASURES, Measure

MEASURES.register(Measure("{name}", lambda c, _: 3 * c.log_size, "By n cubed.", needs_likelihoods=False))
"""


@pytest.fixture
def forgotten() -> Iterator[None]:
    """What plugins leave in this process is taken out."""
    names, path, plugins = {*MEASURES}, [*sys.path], [*PLUGINS]
    yield
    for name in MEASURES.keys() - names:
        del MEASURES[name]
    sys.path[:], PLUGINS[:] = path, plugins


@pytest.mark.usefixtures("forgotten")
def test_a_module_of_the_users_is_imported_by_an_option_of_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        Path(f"plugin_of_{number}.py").write_text(PLUGIN.format(name=f"C{number}-SC"))
    Path("plugin_that_fails.py").write_text("1 / 0")
    rows = write(tmp_path / "rows.jsonl", [{"id": "1", "clusters": [[0, 1], [2]], "log_likelihoods": None}])
    plugins = ("--config", "plugins=plugin_of_1", "--config", "plugins=plugin_of_2")
    code, (row,), _ = semcal("measure", rows, *plugins)
    assert (code, {"E-SC", "C1-SC", "C2-SC"} <= row["confidence"].keys()) == (0, True)
    assert row["confidence"]["C1-SC"] == pytest.approx(8 / 9)
    assert semcal("measure", rows, *plugins)[0] == 0  # registered once
    for name, reason in (("plugin_that_fails", "ZeroDivisionError"), ("no_such_plugin", "ModuleNotFound")):
        code, _, stderr = semcal("measure", rows, "--config", f"plugins={name}")
        assert (code, f"plugins: '{name}'" in stderr, reason in stderr) == (2, True, True)


OF_WORKER = """
def held():
    return MEASURES

def job(held, _):
    return "C3-SC" in held
"""


@pytest.mark.usefixtures("forgotten")
def test_worker_processes_import_the_modules_before_what_they_register_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As do tasks on Ray: both call `run_pickled`."""
    monkeypatch.chdir(tmp_path)
    Path("plugin_of_3.py").write_text(PLUGIN.format(name="C3-SC") + OF_WORKER)
    load_plugins(["plugin_of_3"])
    sys.path.remove(str(tmp_path))  # so that the functions cannot be unpickled without it
    module = sys.modules["plugin_of_3"]
    with ProcessExecutor(module.held, 1, preload=()) as executor:
        assert executor.submit(module.job).result()


def test_a_name_that_is_taken_and_one_that_is_unknown_are_refused(questions: str) -> None:
    with pytest.raises(UsageError, match="'E-SC'"):
        MEASURES.register(Measure("E-SC", lambda c, _: c.log_size))
    with pytest.raises(UsageError, match="'Base'"):
        RECALIBRATORS.register(Method("Base", make=Base))
    with pytest.raises(UsageError, match="'boldness'"):
        METRICS["bolness"]
    code, _, stderr = semcal("fit", questions, "--model", "m", "--method", "Mixtur", "--out", "fit")
    assert (code, "'Mixture'" in stderr) == (2, True)
