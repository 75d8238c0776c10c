"""A comparison of methods from fakes: what it writes, and that interrupting it changes nothing."""

from __future__ import annotations

import json
import random
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from semcal import metrics
from semcal.engine.fakes import FakeEquivalence, FakeLanguageModel
from semcal.errors import StoreError, UsageError
from semcal.experiment.comparison import METHODS, Comparison
from semcal.experiment.settings import Settings
from semcal.pipeline.executor import SerialExecutor
from semcal.pipeline.worker_state import WorkerState
from semcal.qa.datasets import Question
from semcal.semantics import MEASURES

pytestmark = pytest.mark.filterwarnings("ignore::semcal.errors.SemcalWarning")


@dataclass(frozen=True)
class MadeUpSet:
    name: str
    open_book: bool
    few_shot: tuple[Question, ...]
    calibration_train: tuple[Question, ...]
    test: tuple[Question, ...]


def world(n: int = 30) -> tuple[FakeLanguageModel, MadeUpSet]:
    """A model that is sure of one of three answers, and right less often than it is sure."""
    rng = random.Random(0)
    table, questions = {}, []
    for number in range(2 * n):
        text = f"Who built mill {number}?"
        sure = rng.choice([0.5, 0.7, 0.9])
        table[text] = {"Ana.": sure, "Dr Ana.": 0.6 * (1 - sure), "Bo.": 0.4 * (1 - sure)}
        questions.append(Question(f"q{number}", text, ("Ana",) if rng.random() < 0.5 * sure else ("Bo",)))
    return FakeLanguageModel(table), MadeUpSet("mills", False, (), tuple(questions[:n]), tuple(questions[n:]))


@contextmanager
def silent(_label: str, _total: int | None):
    yield lambda _done: None


def compare(out: Path, *, model=None, seed: int = 0, questions: MadeUpSet | None = None):
    default_model, default_set = world()
    comparison = Comparison(
        executor=SerialExecutor(WorkerState(model or default_model, FakeEquivalence([{"ana", "dr ana"}]))),
        out=out,
        settings=Settings(block=7, resamples=100, seed=seed),
        progress=silent,
    )
    return comparison.run([questions or default_set])


def contents(out: Path) -> dict[str, bytes]:
    """Everything that a run promises to be the same, byte for byte."""
    files = [
        out / "results.json",
        *(out / "samples").rglob("*.jsonl"),
        *(out / "recalibrators").rglob("*.json"),
    ]
    return {str(file.relative_to(out)): file.read_bytes() for file in files}


def test_results_are_those_of_the_rows_that_were_written(tmp_path: Path) -> None:
    results = compare(tmp_path)
    assert json.loads((tmp_path / "results.json").read_text()) == json.loads(json.dumps(results))
    (one,) = results["sets"]
    assert one["fit"]["temperature"] > 1
    assert one["fit"]["nll_after"] < one["fit"]["nll_before"]
    for method in METHODS:
        found = one["methods"][method]
        rows = [json.loads(line) for line in (tmp_path / found["rows"]).read_text().splitlines()]
        assert [row["id"] for row in rows] == [f"q{n}" for n in range(30, 60)]
        assert list(found["measures"]) == list(MEASURES)
        for name, numbers in found["measures"].items():
            kept = [row for row in rows if row["confidence"][name] is not None]
            expected = metrics.ace([r["confidence"][name] for r in kept], [r["correct"][name] for r in kept])
            assert numbers["ace"] == pytest.approx(expected, abs=1e-12)
            assert numbers["n"] + numbers["undefined"] == len(rows)
            assert numbers["interval"]["ace"][0] <= numbers["ace"] <= numbers["interval"]["ace"][1]
        assert found["meanings"] <= found["distinct_answers"]
    assert {row["against"] for row in results["comparisons"]} == {"Base", "SE"}
    (difference,) = [
        row["difference"]
        for row in results["comparisons"]
        if (row["against"], row["measure"], row["metric"]) == ("Base", "E-SC", "ace")
    ]
    of = one["methods"]
    assert difference == pytest.approx(
        of["TS"]["measures"]["E-SC"]["ace"] - of["Base"]["measures"]["E-SC"]["ace"]
    )
    greedy = [question.answers == ("Ana",) for question in world()[1].test]
    assert one["greedy_accuracy"] == pytest.approx(sum(greedy) / len(greedy))


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(tmp_path: Path, whole: Path) -> None:
    for seed in (0, 1):
        compare(tmp_path / str(seed), seed=seed)
    assert contents(tmp_path / "0") == contents(whole)
    assert contents(tmp_path / "1") != contents(whole)


class Tired(FakeLanguageModel):
    """Stops with KeyboardInterrupt after a number of calls."""

    def __init__(self, calls: int) -> None:
        table, _ = world()
        self.__dict__.update(table.__dict__)
        self.left = calls

    def _spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt

    def sample(self, *args, **options):
        self._spend()
        return super().sample(*args, **options)

    def features(self, *args, **options):
        self._spend()
        return super().features(*args, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    compare(out)
    return out


@pytest.mark.parametrize("calls", [0, 3, 5])
def test_an_interrupted_run_goes_on_to_the_same_bytes(tmp_path: Path, whole: Path, calls: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        compare(tmp_path / "cut", model=Tired(calls))
    compare(tmp_path / "cut")
    assert contents(tmp_path / "cut") == contents(whole)


def test_a_finished_run_asks_no_model_again(whole: Path) -> None:
    before = contents(whole)
    compare(whole, model=Tired(0))
    assert contents(whole) == before


def test_a_folder_with_other_settings_is_refused(whole: Path) -> None:
    with pytest.raises(UsageError, match="other settings"):
        compare(whole, seed=1)


def test_an_edited_block_is_named_and_refused(tmp_path: Path, whole: Path) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    block = next((tmp_path / "blocks" / "sample").iterdir())
    block.write_text(block.read_text().replace("Ana", "Eva", 1))
    with pytest.raises(StoreError, match=block.name):
        compare(tmp_path)


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"extra_forbidden|Extra inputs"):
        Settings(draws=5)  # type: ignore[call-arg]
