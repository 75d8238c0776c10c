"""Sample the answers of the example set again: src/semcal/demo/real.jsonl, questions about the real world.

    python -m tools.real_examples MODEL        # a GGUF, a directory or a hub id; docs/example-set.md

Questions, references and topics of the file stay; only samples, log-likelihoods and `sampled_by` are
replaced. An interrupted command resumes from the folder --work.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from semcal.demo import real

#: Examples that precede each question, with their answers; none of them is in the set.
FEW_SHOT = {
    "What is the capital of Egypt?": "Cairo",
    "Is the Earth flat?": "no",
    'Who wrote the play "Hamlet"?': "William Shakespeare",
    "How many sides does a hexagon have?": "6",
    "What is the chemical symbol of helium?": "He",
    "In which year did the Second World War end?": "1945",
    "Does the Sun rise in the east?": "yes",
    "What is nine plus five?": "14",
    "Which river flows through Paris?": "Seine",
    "Which language do most people in Mexico speak?": "Spanish",
}
SETTINGS = ("--temperature", "1", "--m", "10", "--seed", "0", "--config", "model.dtype=bfloat16")
#: The columns written by people, in the order of the file.
WRITTEN = ("id", "question", "answers", "topic")


def sample(model: str, work: Path) -> list[dict[str, Any]]:
    """Return the rows of the example set with new samples; CalledProcessError if sampling fails."""
    questions, examples, samples = (work / f"{name}.jsonl" for name in ("questions", "few_shot", "samples"))
    work.mkdir(parents=True, exist_ok=True)
    write_rows(questions, ({key: row[key] for key in WRITTEN} for row in real.load()))
    write_rows(examples, ({"question": text, "answers": [answer]} for text, answer in FEW_SHOT.items()))
    command = [sys.executable, "-m", "semcal", "sample", str(questions), "--model", model]
    command += ["--few-shot", str(examples), *SETTINGS, "--out", str(samples), "--overwrite"]
    subprocess.run(command, check=True)
    return [short_row(json.loads(line)) for line in samples.read_text(encoding="utf-8").splitlines()]


def short_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of `semcal sample` without its tokens, with log-likelihoods of four decimals."""
    likelihoods = [round(value, 4) for value in row["log_likelihoods"]]
    short = {key: row[key] for key in (*WRITTEN, "samples", "log_likelihoods", "sampled_by")}
    return short | {"log_likelihoods": likelihoods}


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as JSON Lines."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")


def main() -> None:
    """Read the command line, sample, and replace the file of the package."""
    parser = argparse.ArgumentParser(prog="python -m tools.real_examples", description="Sample again.")
    parser.add_argument("model", help="GGUF, directory or hub id, as for semcal sample --model")
    parser.add_argument(
        "--work", type=Path, default=Path("runs/real-examples"), help="folder of unfinished work"
    )
    arguments = parser.parse_args()
    try:
        write_rows(real.PATH, sample(arguments.model, arguments.work))
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)


if __name__ == "__main__":
    main()
