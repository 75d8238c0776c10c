"""Gain of a calibration: Base, TS and Calibrated on the embedded models, and on stored samples of others.

    python -m benchmarks.calibrate [LABELS]

Nine cells: three models and three sets of the embedded world. LABELS (250) questions of calibration-train are
labeled, for the fit of TS and for the calibration. The 500 test questions are asked once, at T = 1 and at the
fitted T. Base and Calibrated have the same answer, in one wording. Intervals are 95%; those of differences
are paired over questions. With SEMCAL_DATA, samples of LLaMA-13B and GPT-3.5 are used too, without a model:
out of fold, five folds.
"""

from __future__ import annotations

import gzip
import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import NotRun, data_folder
from semcal import fit, load_equivalence, load_model, metrics
from semcal.calibration.calibrator import calibrate
from semcal.data.question import Question
from semcal.demo.questions import load_set
from semcal.errors import SemcalWarning
from semcal.grading.grade import grade_together
from semcal.grading.rules import Grader, RuleGrader
from semcal.models.distribution import Temperature
from semcal.models.equivalence import Equivalence
from semcal.models.prompting import PromptConfig
from semcal.models.protocols import LanguageModel
from semcal.rows import Row
from tests.json_rows import calibrate_samples, grade_row, measure_rows, sample_candidates

MODELS = ("atlas", "atlas-mistral", "atlas-qwen2")
SETS = ("atlas-trivia", "atlas-rare", "atlas-reading")
LABELS, M, LONGEST = 250, 10, 24
#: Maximum number of test questions of a set, and of rows of a file; all by default.
TEST: int | None = None
ROWS: int | None = None
QUICK = {"MODELS": ("atlas",), "SETS": ("atlas-trivia",), "LABELS": 40, "TEST": 8, "ROWS": 60}
FILES = {
    "LLaMA-13B, TriviaQA": "uqnlg_triviaqa_llama13b_a.jsonl.gz",
    "GPT-3.5, SAC3": "sac3_gpt35_samples_a.jsonl.gz",
}
SHOWN = ("accuracy", "mean_confidence", "ace", "ace_floor", "brier", "auroc", "gain")


def results(labels: int | None = None) -> list[dict[str, Any]]:
    warnings.simplefilter("ignore", SemcalWarning)
    equivalence = load_equivalence("atlas")
    rows = []
    for model in MODELS:
        loaded = load_model(model)
        for name in SETS:
            print(f"{model}, {name}", file=sys.stderr, flush=True)
            rows += cell(
                loaded, equivalence, f"{model.removeprefix('atlas-')}, {name}", name, labels or LABELS
            )
    for name, file in FILES.items():
        try:
            rows += stored(name, data_folder() / file)
        except NotRun as needs:
            rows.append({"cell": f"{name}: {needs}"})
    return rows


def cell(
    model: LanguageModel, equivalence: Equivalence, name: str, data: str, labels: int
) -> Iterator[dict[str, Any]]:
    """Yield rows of Base, TS and Calibrated on the test questions of one set."""
    one = load_set(data)
    test = one.test[:TEST]
    asking = PromptConfig(one.few_shot)
    labelled = one.calibration_train[:labels]
    found = calibrate(
        model, labelled, equivalence=equivalence, few_shot=one.few_shot, m=M, max_new_tokens=LONGEST
    )
    fitted = fit(model, labelled, few_shot=one.few_shot).temperature
    under = {1.0, fitted, *found.temperatures}
    sampled = sample_candidates(
        model,
        test,
        {t: Temperature(t) for t in under},
        asking=asking,
        equivalence=equivalence,
        m=M,
        max_new_tokens=LONGEST,
    )
    rows = {t: measure_rows(of_one) for t, of_one in sampled.items()}
    answers = found.apply({t: rows[t] for t in (1.0, *found.temperatures)})
    base = np.array([len(row["clusters"][a.meaning]) / M for row, a in zip(rows[1.0], answers)])
    right = graded(test, [answer.text for answer in answers])
    cooled = [grade_row(row, grader=RuleGrader()) for row in rows[fitted]]
    share = np.array([row["confidence"]["E-SC"] for row in cooled])
    ts_right = np.array([row["correct"]["E-SC"] for row in cooled], dtype=float)
    probability = np.array([answer.probability for answer in answers])
    yield row_of(name, "Base", base, right, base, right)
    yield row_of(name, f"TS, T = {fitted:.2f}", share, ts_right, base, right)
    yield row_of(
        name, f"Calibrated, {found.report.chosen.partition('(')[0]}", probability, right, base, right
    )


def graded(
    questions: Sequence[Question] | Sequence[Row], texts: Sequence[str], grader: Grader | None = None
) -> np.ndarray:
    """Return the correctness of answers, by rules or another grader."""
    answers: list[tuple[Question | Row, str]] = list(zip(questions, texts))

    def work(by: Grader) -> np.ndarray:
        return np.array([by.grade(q.question, [text], q.answers).correct for q, text in answers], float)

    return grade_together(grader or RuleGrader(), work)


def row_of(
    name: str, method: str, p: np.ndarray, right: np.ndarray, base: np.ndarray, base_right: np.ndarray
) -> dict[str, Any]:
    """Return the figures of one method, and its gain above Base's with a 95% interval."""
    numbers = metrics.summary(p, right)
    above = (right - (p - right) ** 2) - (base_right - (base - base_right) ** 2)
    error = 1.96 * above.std(ddof=1) / len(above) ** 0.5
    return {
        "cell": name,
        "method": method,
        **{key: numbers[key] for key in SHOWN if key in numbers},
        "gain above Base": f"{above.mean():+.3f} [{above.mean() - error:+.3f}, {above.mean() + error:+.3f}]",
    }


def stored(name: str, file: Path) -> Iterator[dict[str, Any]]:
    """Yield rows of Base and Calibrated on stored samples, out of fold."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in islice(lines, ROWS)]
    usable = [
        {**row, "id": str(n)} for n, row in enumerate(rows) if row.get("answers") and row.get("samples")
    ]
    most = max({len(row["samples"]) for row in usable}, key=[len(row["samples"]) for row in usable].count)
    usable = [
        {key: row[key] for key in ("id", "question", "samples", "answers")}
        for row in usable
        if len(row["samples"]) == most
    ]
    found = calibrate_samples(usable, equivalence=load_equivalence("exact"))
    for method, figures in (("Base", found.report.base), ("Calibrated", found.report.calibrated)):
        yield {
            "cell": f"{name} ({len(usable)} questions, {most} samples)",
            "method": method if method == "Base" else f"{method}, {found.report.chosen.partition('(')[0]}",
            **{key: figures[key] for key in SHOWN if key in figures},
            "gain above Base": above_base(found.report.base, figures),
        }


def above_base(base: Mapping[str, float | None], figures: Mapping[str, float | None]) -> str:
    return f"{(base['brier'] or 0.0) - (figures['brier'] or 0.0):+.3f}"


def main(arguments: Sequence[str] = ()) -> None:
    from benchmarks.__main__ import table

    print(table(results(*map(int, arguments))))


if __name__ == "__main__":
    main(sys.argv[1:])
