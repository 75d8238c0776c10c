"""Fields of structured answers: calibration and ranking out of fold, and the cost of finding fields.

    SEMCAL_DATA=FOLDER python -m benchmarks fields [--seeds N]
    SEMCAL_DATA=FOLDER python -m benchmarks fields --sroie --model openai:URL|DIR --work FOLDER

Documents with 10 samples of GPT-4o-mini for each of six prompts. A field is a value of the list that the
samples of a prompt agree on; it is correct if its normal form stands in the reference's list, so that a list
that the reference leaves out has no correct value. `same` judges a field by the 10 samples of its own prompt,
`others` by one sample of each other prompt. Figures are out of fold over documents, their means over seeds of
the folds. `floor` is the noise floor of ACE for fields that depend on each other within a document, and
`floor, independent` that of independent fields. `largest` leaves out the document with most fields.

Further rows are CPU milliseconds of a document with 12 fields and 10 samples, without an equivalence. The
last rows are the shares of simulated worlds whose true share of wrong accepted fields, or of accepted
documents with an error, exceeds the promise.

With `--sroie`, a model reads receipts: 150 labeled ones and 150 others, with 10 samples each. An interrupted
run resumes in `--work`. The first table has the figures of the other receipts, also for token probabilities,
as structured-logprobs computes them, and self-reflection, as TLM does. The second has the distribution over
random splits of the share of accepted fields that are wrong.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import NotRun, _receipts, data_folder, not_run
from semcal.calibration.fields import calibrate_fields
from semcal.calibration.thresholds import ThresholdLabels, set_thresholds
from semcal.errors import SemcalWarning
from semcal.fields.rows import add_fields
from semcal.fields.schema import Schema, parse_schema
from semcal.models.clustering import ClusterConfig
from semcal.models.equivalence import ExactMatch
from semcal.rows import Row

FILE = "extraction_pii_finance_gpt4omini_60draws_a.jsonl.gz"
PROMPTS = ("VanillaOpenAI", "Instructor", "Mirascope")
#: Seeds of the folds.
SEEDS = 10
#: Samples of a prompt; documents whose cost is measured.
M, COSTLY = 10, 40
#: Simulated worlds of the guarantee.
WORLDS = 20_000
QUICK = {"SEEDS": 1, "COSTLY": 2, "WORLDS": 20}


def documents() -> tuple[list[dict[str, Any]], Schema]:
    """Documents with their samples, and a schema with all fields of the references, lists of strings."""
    with gzip.open(data_folder() / FILE, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    names = sorted({name for row in rows for name in row["reference"]})
    of_field = {"type": ["array", "null"], "items": {"type": "string"}}
    return rows, parse_schema({"type": "object", "properties": dict.fromkeys(names, of_field)})


def rows_of(found: Sequence[dict[str, Any]], schema: Schema, prompt: str, by: str) -> list[Row]:
    """Rows of one prompt, judged `by` its own samples or by one sample of each other prompt."""
    rows = []
    for one in found:
        own = list(map(json.dumps, one["draws"][prompt]))
        row = Row(
            {
                "id": one["id"],
                "question": "Extract the entities.",
                "context": one["text"],
                "samples": [*own, *[None] * (M - len(own))],
                "answers": one["reference"],
            }
        )
        if by == "others":
            others = [draws for name, draws in one["draws"].items() if name != prompt]
            (agreed,) = add_fields([row], schema=schema)
            samples = [json.dumps(draws[0]) if draws else None for draws in others]
            row = row.set(answer=agreed["answer"], samples=samples)
        rows.append(row)
    return rows


def figures(rows: list[Row], schema: Schema, by: str, seeds: int) -> dict[str, Any]:
    """Figures out of fold, averaged over seeds."""
    reports = []
    for seed in range(seeds):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SemcalWarning)
            kind = "given" if by == "others" else "modal"
            learned = calibrate_fields(rows, ClusterConfig(ExactMatch()), schema, answer=kind, seed=seed)
        reports.append(learned.report)
    share, calibrated = reports[0]["share"], [report["calibrated"] for report in reports]

    def mean(values: Sequence[float]) -> float:
        return round(float(np.mean(values)), 3)

    return {
        "fields": share["n"],
        "accuracy": round(share["accuracy"], 3),
        "share: ACE": round(share["ace"], 3),
        "share: AUROC": round(share["auroc"], 3),
        "ACE": mean([one["ace"] for one in calibrated]),
        "floor": mean([one["ace_floor"] for one in calibrated]),
        "ACE / floor": mean([one["ace"] / one["ace_floor"] for one in calibrated]),
        "floor, independent": mean([one["ace_floor_independent"] for one in calibrated]),
        "AUROC": mean([one["auroc"] for one in calibrated]),
        "token probabilities": not_run("token log-probabilities"),
        "self-reflection": not_run("a model"),
    }


def cost(of_type: str, rules: dict[str, Any], value: Any) -> dict[str, Any]:
    """CPU milliseconds for one document of 12 fields and 10 samples; all documents differ."""
    names = [f"{of_type} {number}" for number in range(12)]
    schema = parse_schema({"type": "object", "properties": dict.fromkeys(names, rules)})
    rng = random.Random(0)
    rows = [
        Row(
            {
                "id": str(number),
                "question": "Read it.",
                "samples": [json.dumps({name: value(rng, number) for name in names}) for _ in range(M)],
            }
        )
        for number in range(COSTLY)
    ]
    add_fields(rows[:1], ClusterConfig(ExactMatch()), schema)  # imports
    start = time.process_time()
    add_fields(rows, ClusterConfig(ExactMatch()), schema)
    spent = 1000 * (time.process_time() - start) / len(rows)
    return {"prompt": f"12 fields: {of_type}", "CPU ms a document": round(spent, 1)}


def guarantee(of: str, risk: float, delta: float = 0.05) -> dict[str, Any]:
    """Share of simulated worlds whose true risk exceeds the promise of fields or of documents.

    A world has its own difficulty, spread of difficulty over documents, and error of the scores. The 4 to 12
    fields of a document share its difficulty. 40 to 160 documents test the threshold. A document is right if
    all its fields are; its score is the product of theirs, and its fields are easier.
    """
    exceeded = found = 0
    coverage = []
    for world in range(WORLDS):
        rng = np.random.default_rng(world)
        level, spread, noise = rng.normal(1.5, 1), rng.uniform(0, 2), rng.uniform(0, 1)
        level += 3.0 * (of == "documents")

        def draw(
            n: int, rng: np.random.Generator = rng, at: tuple[float, float, float] = (level, spread, noise)
        ) -> tuple[Any, ...]:
            sizes = rng.integers(4, 13, n)
            groups = np.repeat(np.arange(n), sizes)
            logit = at[0] + at[1] * rng.normal(size=n)[groups] + 2 * rng.normal(size=len(groups))
            score = 1 / (1 + np.exp(-(logit + at[2] * rng.normal(size=len(groups)))))
            correct = (rng.random(len(groups)) < 1 / (1 + np.exp(-logit))).astype(float)
            if of == "fields":
                return score, correct, groups
            starts = np.cumsum(sizes) - sizes
            return np.multiply.reduceat(score, starts), np.minimum.reduceat(correct, starts), None

        tested, future = draw(int(rng.integers(40, 161))), draw(4000)
        (threshold,) = set_thresholds(ThresholdLabels(*tested), [risk], delta, seed=world, explain=False)
        if threshold.threshold is not None:
            accepted = future[0] >= threshold.threshold
            found += 1
            coverage.append(accepted.mean())
            exceeded += bool(accepted.any() and 1 - future[1][accepted].mean() > risk)
    return {
        "prompt": f"{of}: {WORLDS:,} simulated worlds, risk {risk:g}, delta {delta:g}",
        "found": round(found / WORLDS, 3),
        "coverage": round(float(np.mean(coverage or [0.0])), 3),
        "risk exceeded": round(exceeded / WORLDS, 4),
    }


def results(seeds: int | None = None) -> list[dict[str, Any]]:
    """A row for each prompt and kind of samples, without the largest document too, and for each cost."""
    found, schema = documents()
    table = []
    for by in ("same", "others"):
        for prompt in PROMPTS:
            rows = rows_of(found, schema, prompt, by)
            sizes = Counter(
                row.id for row in add_fields(rows, schema=schema) for _ in row["fields"] if row["answer"]
            )
            largest = sizes.most_common(1)[0][0]
            without = [row for row in rows if row.id != largest]
            table.append({"prompt": prompt, "samples": by, **figures(rows, schema, by, seeds or SEEDS)})
            head = {"prompt": f"{prompt}, without the largest document", "samples": by}
            table.append({**head, **figures(without, schema, by, seeds or SEEDS)})
    table.append(cost("text", {"type": "string"}, lambda rng, i: f"Mill {i} of {rng.choice('abcd')}"))
    table.append(cost("amount", {"type": "number"}, lambda rng, i: f"${i},{rng.randrange(3)}00.50"))
    lines = {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}}
    table.append(cost("list of 3 objects", lines, lambda rng, i: [{"name": f"{i} {rng.choice('ab')}"}] * 3))
    return [*table, guarantee("fields", 0.1), guarantee("documents", 0.2)]


def quick_runs(folder: Path) -> list[list[str]]:
    """Return the arguments of tiny runs: receipts of a made-up model behind a server."""
    tiny = ["--labeled", "12", "--others", "4", "--m", "3", "--splits", "2", "--work", str(folder)]
    return [["--seeds", "1"], ["--sroie", "--model", "fake", *tiny]]


@contextmanager
def served(model: str, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the address of the model; "fake" is a server whose answers are right two times of three."""
    if model != "fake":
        yield model
        return
    from tests.servers import fake_model
    from tests.servers.fake_server import FakeServer

    for row in rows:
        right = row["answers"]
        wrong = {**right, "total": 1}
        fake_model.ANSWERS[row["context"]] = {json.dumps(right): 0.65, json.dumps(wrong): 0.35}
    with FakeServer() as server:
        yield server.name


def main(arguments: Sequence[str] = ()) -> None:
    """Read the command line and print the tables."""
    from benchmarks.__main__ import table

    parser = argparse.ArgumentParser(prog="python -m benchmarks fields", description=__doc__)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--sroie", action="store_true", help="read receipts with a model")
    parser.add_argument("--model", help="openai:URL, a directory, or fake")
    parser.add_argument("--work", type=Path, default=Path("runs/sroie"), help="folder of samples")
    for name, usual in {"labeled": 150, "others": 150, "m": M, "splits": 100}.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args(arguments)
    if not options.sroie:
        print(table(results(options.seeds)))
        return
    if options.model is None:
        raise NotRun("--model")
    rows = _receipts.receipts(options.labeled + options.others)
    with served(options.model, rows) as model:
        sampled = _receipts.sample(rows, model, options.work, options.m)
        print(table(_receipts.figures(sampled, options.labeled, model, options.work)))
    over_splits = partial(_receipts.accepted_over_splits, sampled, options.labeled, options.splits)
    print(table([over_splits(risk) for risk in _receipts.RISKS]))


if __name__ == "__main__":
    main(sys.argv[1:])
