"""Probability of given answers of another system, from samples of a model or from other systems' answers.

    semcal calibrate QUESTIONS --model MODEL --out DIR     # samples of the witness: DIR/samples.jsonl
    SEMCAL_DATA=... python -m benchmarks given --samples DIR/samples.jsonl [--greedy MODEL]

EVOUNA has answers of five systems to the same questions of TriviaQA, with human verdicts, which are the
labels. (Its half of Natural Questions is left out, because the embedded equivalence was trained on these
answers.) `--questions` writes the questions for the samples: the first 500 well-posed questions of TriviaQA
that all systems answer. Figures are out of fold. `--greedy` adds the model's greedy answers.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import NotRun, data_folder
from semcal.calibration.calibration import Calibration, CalibrationConfig
from semcal.calibration.learning import calibrate_rows
from semcal.calibration.samples import measure_samples
from semcal.errors import SemcalWarning
from semcal.files import write_rows
from semcal.inputs import as_equivalence
from semcal.models.clustering import ClusterConfig, match_at
from semcal.models.distribution import Temperature
from semcal.models.load import load_model
from semcal.models.sample import Sampling, state_answers
from semcal.rows import AnswerKind, Row, RowsAt, StatedAnswer

SYSTEMS = {"fid": "FiD", "gpt35": "GPT-3.5", "chatgpt": "ChatGPT", "gpt4": "GPT-4", "newbing": "Bing Chat"}
N = 500
QUICK = {"N": 25}
HEAD = ("answers of", "compared with", "right", "says", "ACE", "by chance", "AUROC", "gain", "share's gain")


def judged() -> dict[str, dict[str, Any]]:
    """Return question → system → its answer with a human verdict, for the first 500 common questions."""
    path = data_folder() / "evouna_a.jsonl.gz"
    by_question: dict[str, dict[str, Any]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            if row["dataset"] == "triviaqa":
                by_question.setdefault(row["id"].rpartition("-")[0], {})[row["system"]] = row
    usable = [
        (name, rows)
        for name, rows in by_question.items()
        if len(rows) == len(SYSTEMS) and not any(row["improper"] for row in rows.values())
    ]
    return dict(usable[:N])


def calibrate(rows: RowsAt, kind: AnswerKind, equivalence: Any) -> Calibration:
    """Learn from rows with stated answers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SemcalWarning)
        matched = match_at(rows, kind, equivalence)
        return calibrate_rows(matched, ClusterConfig(equivalence), config=CalibrationConfig(answer=kind))


def given(rows: RowsAt, answers: Mapping[str, Any]) -> RowsAt:
    """Return the rows with a system's answers, and the verdicts of people."""
    return {
        t: [
            row.set(correct=answers[row.id]["human_correct"]).set_stated(
                "given", StatedAnswer(answers[row.id]["answer"])
            )
            for row in part
        ]
        for t, part in rows.items()
    }


def show(name: str, witness: str, calibration: Calibration) -> None:
    """Print a row of the table."""
    base, calibrated = calibration.report.base, calibration.report.calibrated
    keys = ("accuracy", "mean_confidence", "ace", "ace_floor_95", "auroc", "gain")
    values = [calibrated[key] for key in keys] + [base["gain"]]
    cells = [name, witness, *("–" if value is None else f"{value:.3f}" for value in values)]
    print(f"| {' | '.join(cells)} |", flush=True)


def quick_runs(folder: Path) -> list[list[str]]:
    """Use the systems' answers, each twice, as samples of the witness."""
    samples, questions = folder / "samples.jsonl", folder / "questions.jsonl"
    write_rows(
        samples,
        (
            {"id": name, "question": row["question"], "answers": row["answers"]}
            | {"samples": [one["answer"] for one in of_question.values() for _ in range(2)]}
            for name, of_question in judged().items()
            for row in [of_question["fid"]]
        ),
    )
    return [["--samples", str(samples), "--greedy", "atlas"], ["--questions", str(questions)]]


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks given", description=__doc__)
    parser.add_argument("--samples", type=Path, help="file of the witness's samples")
    parser.add_argument("--questions", type=Path, help="only write the questions to this file")
    parser.add_argument("--greedy", metavar="MODEL", help="also evaluate greedy answers of this model")
    options = parser.parse_args(arguments)
    if not (options.samples or options.questions):
        raise NotRun("--samples or --questions")
    systems = judged()
    if options.questions is not None:
        lines = (
            json.dumps({"id": name, "question": row["question"], "answers": row["answers"]}) + "\n"
            for name, (row, *_) in ((name, list(rows.values())) for name, rows in systems.items())
        )
        options.questions.write_text("".join(lines), encoding="utf-8")
        return
    equivalence = as_equivalence(None)
    clustering = ClusterConfig(equivalence)
    draws = [Row(json.loads(line)) for line in options.samples.read_text(encoding="utf-8").splitlines()]
    rows = measure_samples(draws, clustering)
    print(f"| {' | '.join(HEAD)} |\n| {' | '.join(['---', '---'] + ['---:'] * (len(HEAD) - 2))} |")
    show("the witness: modal", "its draws", calibrate(rows, "modal", equivalence))
    if options.greedy:
        questions = [row.to_question() for row in draws]
        stated = state_answers(load_model(options.greedy), questions, "greedy", Sampling((Temperature(1.0),)))
        greedy = {
            t: [row.set_stated("greedy", answer) for row, answer in zip(part, stated)]  # type: ignore[arg-type]
            for t, part in rows.items()
        }
        show("the witness: greedy", "its draws", calibrate(greedy, "greedy", equivalence))
    for system, name in SYSTEMS.items():
        answers = {question: of_question[system] for question, of_question in systems.items()}
        show(name, "the witness's draws", calibrate(given(rows, answers), "given", equivalence))
        others = [
            Row(
                {
                    "id": question,
                    "question": of_question[system]["question"],
                    "answers": of_question[system]["answers"],
                    "samples": [of_question[other]["answer"] for other in SYSTEMS if other != system],
                }
            )
            for question, of_question in systems.items()
        ]
        by_others = given(measure_samples(others, clustering), answers)
        show(name, "the four others", calibrate(by_others, "given", equivalence))


if __name__ == "__main__":
    main(sys.argv[1:])
