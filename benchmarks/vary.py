"""Varied prompts beside one prompt, at the same number of samples: `semcal sample --vary N`.

    python -m benchmarks vary --model DIR [--questions 300] [--vary 5] [--work FOLDER]

The questions are those of the example set (docs/example-set.md), with its few-shot examples. Each question is
sampled ten times with one prompt, and ten times with N built-in variants of the prompt. The figures are those
of all and of the first five samples: accuracy of the most frequent meaning; gain and AUROC of the share of
samples; gain, AUROC and ACE of the calibrated probability, out of fold; and the prompt tokens that differ
from one another, which a model with a prefix cache reads, per question. The differences are paired over the
questions, ± their standard error. An interrupted command resumes from --work.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import not_run
from benchmarks.__main__ import table
from semcal import load_equivalence, load_model
from semcal.calibration.calibration import CalibrationConfig
from semcal.calibration.learning import calibrate_rows
from semcal.calibration.samples import measure_samples
from semcal.data.question import Question
from semcal.demo import real
from semcal.errors import SemcalWarning
from semcal.models.clustering import ClusterConfig
from semcal.models.prompting import PromptConfig
from semcal.rows import Row
from tools.real_examples import FEW_SHOT, write_rows

SAMPLES = (5, 10)
QUICK = {"SAMPLES": (5,)}
SETTINGS = ("--temperature", "1", "--m", "10", "--seed", "0")


def sample(model: str, questions: Sequence[Any], vary: int, work: Path) -> list[Row]:
    """Return rows with samples, which are read from `work` if they are there."""
    out = work / f"{'varied' if vary > 1 else 'same'}.jsonl"
    asked, shown = work / "questions.jsonl", work / "few_shot.jsonl"
    write_rows(asked, ({key: row[key] for key in ("id", "question", "answers")} for row in questions))
    write_rows(shown, ({"question": text, "answers": [answer]} for text, answer in FEW_SHOT.items()))
    if not out.exists():
        command = [sys.executable, "-m", "semcal", "sample", str(asked), "--model", model]
        command += ["--few-shot", str(shown), *SETTINGS, "--out", str(out)]
        subprocess.run(command + (["--vary", str(vary)] if vary > 1 else []), check=True)
    return [Row(json.loads(line)) for line in out.read_text(encoding="utf-8").splitlines()]


def figures(rows: Sequence[Row], m: int) -> tuple[dict[str, Any], np.ndarray]:
    """Return figures of the first m samples, and accuracy and calibrated gain of each question (2, n)."""
    cluster = ClusterConfig(load_equivalence("default"))
    taken = [
        Row({key: value for key, value in row.take(range(m)).items() if key != "clusters"}) for row in rows
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SemcalWarning)
        calibration = calibrate_rows(measure_samples(taken, cluster), cluster, CalibrationConfig())
    base, calibrated = calibration.report.base, calibration.report.calibrated
    p, correct = np.array(calibration.labeled.out_of_fold), np.array(calibration.labeled.correct, float)
    found = {
        "accuracy": base["accuracy"],
        "gain of shares": base["gain"],
        "AUROC of shares": base["auroc"],
        "gain": calibrated["gain"],
        "AUROC": calibrated["auroc"],
        "ACE": calibrated["ace"],
    }
    return found, np.array([correct, p * (2 * correct - p)])


def prompt_tokens(model: str, questions: Sequence[Any], vary: int) -> float:
    """Return the mean number of prompt tokens of a question, over its variants of the prompt."""
    loaded = load_model(model)
    prompt = PromptConfig(
        [{"question": text, "answers": [answer]} for text, answer in FEW_SHOT.items()], vary=vary
    )
    asked = [Question(row["id"], row["question"]) for row in questions]
    variants = prompt.variants(asked[0])
    return sum(len(one.token_ids) for each in variants for one in each.prompts(loaded, asked)) / len(asked)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks vary", description=__doc__)
    parser.add_argument("--model", help="directory or hub id of an instruct model")
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--vary", type=int, default=5)
    parser.add_argument("--work", type=Path, default=Path("runs/vary"))
    options = parser.parse_args(arguments)
    if options.model is None:
        print(not_run("--model, an instruct model"))
        return 0
    options.work.mkdir(parents=True, exist_ok=True)
    questions = real.load()[: options.questions]
    sampled = {
        "same prompt": sample(options.model, questions, 1, options.work),
        f"{options.vary} variants": sample(options.model, questions, options.vary, options.work),
    }
    tokens = [prompt_tokens(options.model, questions, vary) for vary in (1, options.vary)]
    lines = []
    for m in SAMPLES:
        found = [figures(rows, m) for rows in sampled.values()]
        for name, (values, _), size in zip(sampled, found, tokens):
            cells = {key: "–" if value is None else f"{value:.3f}" for key, value in values.items()}
            lines.append({"samples": m, "prompts": name, **cells, "prompt tokens": f"{size:.0f}"})
        if found[0][1].shape != found[1][1].shape:
            continue  # a question without any answer has no figures, and pairs are not known
        above = found[1][1] - found[0][1]
        errors = above.std(axis=1, ddof=1) / np.sqrt(above.shape[1])
        accuracy, gain = (f"{mean:+.3f} ± {error:.3f}" for mean, error in zip(above.mean(axis=1), errors))
        lines.append({"samples": m, "prompts": "difference", "accuracy": accuracy, "gain": gain})
    print(table([{key: line.get(key, "") for key in lines[0]} for line in lines]))
    return 0


def quick_runs(folder: Path) -> list[list[str]]:
    """Return the arguments of a tiny run on the embedded model."""
    return [["--model", "atlas", "--questions", "20", "--vary", "2", "--work", str(folder)]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
