"""`semcal serve --fallback`: gain and cost of a stronger model behind a certified threshold.

    semcal calibrate FILE --model MODEL --few-shot FILE --config sampling.temperatures=1 --risk R --out DIR
    python -m benchmarks fallback --models SMALL LARGE --calibrations DIR DIR DIR --questions FILE

Calibrate both models first. The questions are asked over HTTP: each model alone, and `semcal serve
--fallback`, in which the large model has the third calibration, of labeled questions from which the small one
abstains. Intervals are Wilson's 95% intervals. --small and --large pass options to one model only, such as
--large="--config server.concurrency=1".
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from scipy.stats import binomtest

from benchmarks import NotRun
from benchmarks.serve import served
from benchmarks.signals import embedded_calibration
from semcal.calibration.calibration import Calibration
from semcal.data.datasets import read_questions
from semcal.data.question import Question, user_turn
from semcal.demo.questions import load_set
from semcal.files import write_rows
from semcal.grading.rules import RuleGrader

CONNECTIONS = 4
ALONE = 2  # number of models that are also asked alone, the small one first
QUICK = {"ALONE": 0}
HEAD = (
    "answers",
    "answered",
    "wrong among answered",
    "correct among all",
    "tokens per question",
    "s per question",
)


@dataclass(frozen=True)
class Reply:
    """The reply to one question."""

    abstained: bool
    correct: bool
    tokens: int
    calibration: str  # its id


def ask(questions: Sequence[Question], options: Sequence[str]) -> tuple[list[Reply], float]:
    """Ask a service with these options; return replies in order, and seconds per question."""
    grader = RuleGrader()
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder), *options) as (host, _),
        httpx.Client(base_url=f"http://{host}", timeout=3600) as client,
    ):
        name = client.get("/v1/models").json()["data"][0]["id"]

        def one(question: Question) -> Reply:
            turn = {"role": "user", "content": user_turn(question).content}
            body: dict[str, Any] = {"model": name, "messages": [turn]}
            reply = client.post("/v1/chat/completions", json=body).raise_for_status().json()
            said, tokens = reply["semcal"], reply["usage"]["total_tokens"]
            grade = grader.grade(question.question, [said["answer"]], question.answers)
            return Reply(said["abstained"], grade.correct, tokens, said["calibration"])

        start = time.perf_counter()
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            replies = list(pool.map(one, questions))
        return replies, (time.perf_counter() - start) / len(questions)


def interval(k: int, n: int) -> str:
    """Return a share with its interval."""
    if not n:
        return "none"
    bounds = binomtest(k, n).proportion_ci(method="wilson")
    return f"{k / n:.3f} [{bounds.low:.3f}, {bounds.high:.3f}]"


def show(name: str, replies: Sequence[Reply], seconds: float) -> None:
    """Print a row of the table."""
    n, answered = len(replies), [reply for reply in replies if not reply.abstained]
    wrong = sum(not reply.correct for reply in answered)
    tokens = sum(reply.tokens for reply in replies) / n
    cells = [f"{len(answered) / n:.3f}", interval(wrong, len(answered)), interval(len(answered) - wrong, n)]
    print(f"| {name} | {' | '.join(cells)} | {tokens:.0f} | {seconds:.1f} |", flush=True)


def quick_runs(folder: Path) -> list[list[str]]:
    calibration, questions = embedded_calibration(folder, 30), folder / "asked.jsonl"
    write_rows(questions, (question.row() for question in load_set("atlas-trivia").test[:3]))
    options = ["--calibrations", *[str(calibration)] * 3, "--questions", str(questions)]
    return [["--models", "atlas", "atlas", *options]]


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks fallback", description=__doc__)
    parser.add_argument("--models", nargs=2, help="small and large model")
    parser.add_argument(
        "--calibrations", nargs=3, help="calibrations of both models, and of the large model as fallback"
    )
    parser.add_argument("--questions", type=Path)
    parser.add_argument(
        "--small", type=shlex.split, default=[], help="options of `serve` for the small model"
    )
    parser.add_argument(
        "--large", type=shlex.split, default=[], help="options of `serve` for the large model"
    )
    options = parser.parse_args(arguments)
    if not (options.models and options.calibrations and options.questions):
        raise NotRun("--models, --calibrations and --questions")
    questions = [row for row in read_questions(options.questions) if isinstance(row, Question)]
    *alone, behind = options.calibrations
    small, large = (
        ["--model", model, "--calibration", folder, *further]
        for model, folder, further in zip(options.models, alone, (options.small, options.large), strict=True)
    )
    print(f"{len(questions)} questions\n\n| {' | '.join(HEAD)} |\n| --- {'| ---: ' * (len(HEAD) - 1)}|")
    for name, options_of_one in zip(("the small model", "the large model")[:ALONE], (small, large)):
        show(name, *ask(questions, options_of_one))
    fallback = ["--fallback", options.models[1], "--fallback-calibration", behind, *options.large]
    replies, seconds = ask(questions, [*small, *fallback])
    show("small, then large", replies, seconds)
    of_small = Calibration.from_pretrained(alone[0]).id
    passed_on = sum(reply.calibration != of_small for reply in replies)
    print(f"\nThe small model passed on {passed_on} of {len(replies)}.")


if __name__ == "__main__":
    main(sys.argv[1:])
