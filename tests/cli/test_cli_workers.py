"""--workers and model.memory on the command line, on a tiny random checkpoint."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from invoking import run as semcal
from invoking import write
from running import finish, start

from semcal.cli.options import open_executor
from semcal.workers import WorkerPlan

pytestmark = pytest.mark.filterwarnings("always::semcal.errors.SemcalWarning")


@pytest.fixture(scope="module")
def questions(tmp_path_factory) -> str:
    rows = [{"id": f"q{i}", "question": f"Who built mill number {i}?"} for i in range(140)]
    return write(tmp_path_factory.mktemp("questions") / "q.jsonl", rows)


@pytest.fixture(scope="module")
def sampled(model: str, questions: str) -> str:
    code, rows, stderr = semcal("sample", questions, "--model", model, "--m", "3", "--workers", "1", "-v")
    assert code == 0
    assert "sample: processes: 1, threads of each: 1" in stderr
    assert "peak memory: " in stderr
    return rows


def test_rows_are_the_same_for_any_number_of_workers(model: str, questions: str, sampled: str) -> None:
    code, rows, stderr = semcal("sample", questions, "--model", model, "--m", "3", "--workers", "2", "-v")
    assert (code, rows) == (0, sampled)
    assert "peak memory of this process and 2 more" in stderr
    code, rows, stderr = semcal("sample", questions, "--model", model, "--m", "3", "-q")
    assert (code, rows) == (0, sampled)
    assert stderr == ""


def test_bad_questions_are_named_and_left_out_by_workers_too(model: str, tmp_path: Path) -> None:
    long = {"id": "long", "question": "Who built " + "the mill of Tarn and " * 400 + "that?"}
    rows = [{"id": f"q{i}", "question": f"Who built {i}?"} for i in range(70)]
    file = write(tmp_path / "q.jsonl", [*rows[:3], long, *rows[3:]])
    code, out, stderr = semcal("sample", file, "--model", model, "--m", "1", "--workers", "2")
    assert code == 1
    assert [json.loads(line)["id"] for line in out.splitlines()] == [row["id"] for row in rows]
    assert stderr.count("line 4 (id 'long'): its prompt has") == 1


def test_clusters_and_answers_are_the_same_for_any_number_of_workers(
    model: str, questions: str, sampled: str, tmp_path: Path
) -> None:
    (tmp_path / "s.jsonl").write_text(sampled)
    for command in (
        ("cluster", str(tmp_path / "s.jsonl"), "--equivalence", "exact"),
        ("ask", questions, "--model", model, "--m", "2", "--limit", "70", "--compare", "--json"),
    ):
        found = {semcal(*command, "--workers", str(count))[:2] for count in (1, 2)}
        assert len(found) == 1
        assert found.pop()[0] == 0


def finished_blocks(folder: Path) -> list[Path]:
    """The blocks that are whole; `os.walk` passes over folders that vanish while it looks."""
    return [
        Path(place, name)
        for place, _, names in os.walk(folder)
        for name in names
        if name.endswith(".jsonl") and ".semcal.part" not in place
    ]


def test_an_interruption_keeps_what_workers_have_finished(
    model: str, questions: str, sampled: str, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    command = ["sample", questions, "--model", model, "--m", "16", "-q", "--workers", "2", "--out", str(out)]
    running = start(*command, said=tmp_path / "said", session=True)
    assert running.pid is not None
    kept = tmp_path / "out.jsonl.unfinished"
    while running.is_alive() and len(finished_blocks(kept)) < 2:
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to the workers as well
    assert finish(running) == 130
    assert "Traceback" not in (tmp_path / "said").read_text()
    finished = {path.name: path.stat().st_mtime_ns for path in finished_blocks(kept)}
    assert len(finished) >= 2
    code, rows, stderr = semcal(*command)
    assert (code, rows) == (0, "")
    assert stderr == ""
    assert not kept.exists()
    code, alone, _ = semcal("sample", questions, "--model", model, "--m", "16", "--workers", "1")
    assert (code, alone) == (0, out.read_text())


def test_a_process_takes_no_more_threads_than_omp_num_threads_allows() -> None:
    """The tests set it to 1: two processes of two threads on two processors mostly wait."""
    with open_executor(WorkerPlan(1, 8), torch.get_num_threads) as (_, state):
        assert state() == 1
    assert torch.get_num_threads() == int(os.environ["OMP_NUM_THREADS"])
