"""Stored samples of 7B models: clusters, accuracy and gain by equivalence.

    SEMCAL_DATA=FOLDER python -m benchmarks stored_samples [--limit N] [--equivalence NAME...]

For each set and equivalence: clusters per question; accuracy, mean confidence, ACE and gain of E-SC; and the
gain of Calibrated, out of fold, with its difference to `exact`. The samples have no likelihoods. The rules on
words grade the answers.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import warnings
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import semcal
from benchmarks import data_folder
from semcal.errors import SemcalWarning

SETS = (
    "mistral-7b-instruct_nq_T1_a",
    "mistral-7b-instruct_triviaqa_T1_a",
    "llama2-7b-chat_nq_T1_a",
    "llama2-7b-chat_triviaqa_T1_a",
)
EQUIVALENCES = ("exact", "default")
#: Maximum number of questions of a set; all by default.
LIMIT: int | None = None
QUICK = {"LIMIT": 30}


def on_set(file: Path, equivalence: str, limit: int | None) -> dict[str, Any]:
    """Return the figures of one set with one equivalence."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        samples = [json.loads(line) for line in islice(lines, limit)]
    scored = semcal.score(samples, equivalence=equivalence, progress=False)
    counts = [len(row["clusters"]) for row in scored.rows]
    figures = scored.metrics()["E-SC"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SemcalWarning)
        report = scored.calibrate().report
    return {
        "set": file.name.removesuffix(".jsonl.gz"),
        "equivalence": equivalence,
        "n": len(counts),
        "clusters": round(sum(counts) / len(counts), 2),
        **{key: figures[key] for key in ("accuracy", "ace", "auroc", "gain")},
        "Calibrated: accuracy": report.base["accuracy"],
        "Calibrated: ace": report.calibrated["ace"],
        "Calibrated: gain": report.calibrated["gain"],
    }


def results(limit: int | None = None, equivalences: Sequence[str] = EQUIVALENCES) -> list[dict[str, Any]]:
    """Return one row for each set and equivalence."""
    folder, rows = data_folder(), []
    for name in SETS:
        file = folder / f"{name}.jsonl.gz"
        of_set = [on_set(file, equivalence, limit or LIMIT) for equivalence in equivalences]
        first = of_set[0]["Calibrated: gain"]
        rows += [row | {"to exact": row["Calibrated: gain"] - first} for row in of_set]
    return rows


def main(arguments: Sequence[str] = ()) -> None:
    """Read the command line and print a table."""
    from benchmarks.__main__ import table

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--equivalence", nargs="+", default=EQUIVALENCES)
    options = parser.parse_args(arguments)
    print(table(results(options.limit, options.equivalence)))


if __name__ == "__main__":
    main(sys.argv[1:])
