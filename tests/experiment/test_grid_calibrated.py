"""The method Calibrated in a grid: what it learns from and says of Base's answers, resumed and shared."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from pathlib import Path

import mill_grid as mills
import pytest

from semcal.calibration.calibration import Calibration
from semcal.errors import FitError, StoreError, UsageError
from semcal.experiment.analyses import analyse
from semcal.experiment.finished import read_finished, state_of
from semcal.experiment.grid_plan import forecast
from semcal.experiment.grid_settings import read_settings
from semcal.grading.rules import RuleGrader
from semcal.store import read_block

pytestmark = pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")

#: No validation question is asked: Calibrated learns from calibration-train.
ALONE = (
    "methods=[Base, TS, Calibrated]",
    "fitting.losses=[[NLL, null]]",
    "selection.measure_alphas=[0.5]",
    "sampling.counts=[6]",
    "calibrated={questions: 10}",
    "evaluation.resamples=100",
    "grading.members=1",
)
#: Validation is asked anyway, and SE with it.
BESIDE = (
    "methods=[Base, SE, Calibrated]",
    "sampling.counts=[6]",
    "calibrated={questions: 8, risk: 0.5}",
    "evaluation.resamples=100",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A finished run, of 9 validation questions that are asked and of which 8 are learnt from."""
    folder = tmp_path_factory.mktemp("beside")
    mills.run(folder, mills.settings(tmp_path_factory.mktemp("data"), *BESIDE))
    analyse(folder)
    return folder


def asked(folder: Path, part: str, dataset: str = "mill") -> set[str]:
    """The ids of a part's questions that were sampled."""
    blocks = [read_block(path) for path in (folder / "blocks" / "sample").glob("*.jsonl")]
    own = [lines for lines, label in blocks if (label["dataset"], label["part"]) == (dataset, part)]
    return {json.loads(line)["id"] for lines in own for line in lines}


def test_its_answer_is_the_commonest_wording_of_bases_largest_meaning_and_so_is_what_is_graded(run) -> None:
    calibration = Calibration.from_pretrained(run / "calibrations" / "one" / "mill")
    for number in range(2):
        base = mills.json_lines(run / "samples" / "one" / "mill" / "Base" / f"run{number}.jsonl")
        found = mills.json_lines(run / "calibrations" / "one" / "mill" / f"run{number}.jsonl")
        assert [row["id"] for row in found] == [row["id"] for row in base]
        se = mills.json_lines(run / "samples" / "one" / "mill" / "SE" / f"run{number}.jsonl")
        expected = calibration.apply({1.0: base, 0.5: se})
        for row, one, answer in zip(base, found, expected):
            sizes = [len(cluster) for cluster in row["clusters"]]
            likely = [math.exp(float(u)) for u in row["log_likelihoods"]]
            cluster = max(row["clusters"], key=lambda one: (len(one), sum(likely[i] for i in one)))
            texts = Counter(row["samples"][i] for i in cluster)
            summed = {t: sum(likely[i] for i in cluster if row["samples"][i] == t) for t in texts}
            assert one["text"] == max(texts, key=lambda text: (texts[text], summed[text]))
            assert one["share"] == max(sizes) / 4
            assert (
                one["correct"] == RuleGrader().grade(row["question"], [one["text"]], row["answers"]).correct
            )
            assert (one["probability"], one["abstained"]) == (answer.probability, answer.abstained)


def test_its_accuracy_is_that_of_base_in_every_run_and_no_method_of_the_paper_is_touched(run) -> None:
    results = json.loads((run / "results.json").read_text())
    rows = {(row["dataset"], row["method"]): row for row in results["analyses"]["calibrated"]}
    for dataset in ("mill", "barn"):
        base, own = rows[dataset, "Base"], rows[dataset, "Calibrated"]
        assert own["accuracy"] == base["accuracy"]
        assert own["against"]["Base"]["accuracy"] == {"value": 0.0, "interval": [0.0, 0.0], "p": 1.0}
        assert own["gain"]["mean"] == pytest.approx(own["accuracy"]["mean"] - own["brier"]["mean"])
        assert own["against"]["Base"]["gain"]["value"] == pytest.approx(
            own["gain"]["mean"] - base["gain"]["mean"]
        )
        right = [row["correct"] for row in read_finished(run).calibrated_rows("one", dataset, 0)]
        assert own["accuracy"]["runs"][0] == pytest.approx(sum(right) / len(right))
    assert results["methods"] == ["Base", "SE"]
    gains = [row["contrast"] for row in results["contrasts"] if row["claim"] == "Calibrated gains over Base"]
    assert [contrast.rpartition(" on ")[2] for contrast in gains] == ["mill", "barn"]
    of = [(row["method"], row["measure"]) for row in results["analyses"]["selective"]]
    assert of.count(("Calibrated", "E-SC")) == 2


def test_it_learns_from_validation_where_that_is_asked_anyway_and_else_from_calibration_train(
    run, tmp_path: Path
) -> None:
    assert not asked(run, "calibration_train")
    calibration = Calibration.from_pretrained(run / "calibrations" / "one" / "mill")
    assert calibration.report.n + calibration.report.apart == 8
    assert calibration.threshold is not None
    assert calibration.threshold.risk_limit == 0.5
    folder = tmp_path / "alone"
    settings = mills.settings(tmp_path, *ALONE)
    mills.run(folder, settings)
    assert not asked(folder, "validation")
    parts = json.loads((folder / "questions.json").read_text())["mill"]
    assert len(asked(folder, "calibration_train")) == 10 < parts["sizes"]["calibration_train"]
    assert not asked(folder, "calibration_train") & asked(folder, "test")
    state = state_of(folder)
    assert state.complete
    done = Counter(path.parent.name for path in (folder / "blocks").rglob("*.jsonl"))
    for name in ("sample", "cluster", "calibrate", "apply"):
        assert done[name] == state.planned[name]


def test_a_calibration_that_was_removed_is_made_again_and_missing_rows_are_an_error(
    run: Path, tmp_path: Path
) -> None:
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    (tmp_path / "calibrations" / "one" / "mill" / "calibration.json").unlink()
    (tmp_path / "calibrations" / "one" / "mill" / "run0.jsonl").unlink()
    with pytest.raises(StoreError, match=r"run0\.jsonl"):
        analyse(tmp_path)
    mills.run(tmp_path, read_settings(run / "settings.yaml"))
    assert mills.contents(tmp_path) == mills.contents(run)


def test_what_it_needs_is_said_before_anything_is_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="methods"):
        mills.settings(tmp_path, "methods=[TS, Calibrated]")
    with pytest.raises(UsageError, match="calibrated"):
        mills.settings(tmp_path, "calibrated={questions: 3}")
    settings = mills.settings(tmp_path, *ALONE[2:], "methods=[Base, Calibrated]")
    few = settings.model_copy(
        update={
            "datasets": tuple(one.model_copy(update={"calibration_train": 3}) for one in settings.datasets)
        }
    )
    with pytest.raises(FitError, match="mill"):
        mills.run(tmp_path / "run", few)


def test_a_forecast_counts_the_labelled_questions_that_are_asked_beside() -> None:
    config = Path(__file__).parents[2] / "src" / "semcal" / "demo" / "demo.yaml"
    with_it = forecast(read_settings(config, ["methods=[Base, Calibrated]"]))
    without = forecast(read_settings(config, ["methods=[Base]"]))
    labelled = read_settings(config, []).calibrated.questions
    assert with_it.jobs["sample"] - without.jobs["sample"] == 3 * -(-labelled // 100)
    assert (with_it.jobs["calibrate"], with_it.jobs["apply"]) == (3, 9)
    calls = [sum(cell.nli_calls for cell in plan.cells) for plan in (with_it, without)]
    assert calls[0] - calls[1] == 3 * labelled * 10 * 9
