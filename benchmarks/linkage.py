"""Clusters of components, greedy and complete linkage, compared with real samples clustered by hand.

    python -m benchmarks linkage --draws FILE... [--groups FILE] [--equivalence NAME...]

`--draws` are files of `semcal sample`. `--groups` contains clusters of the distinct normal forms of a
question's samples at one temperature (benchmarks/judged/README.md), identified by the hashes of these forms.
Pairs of distinct forms are counted over all questions: *precision* is the share of merged pairs that mean the
same, *recall* the share of pairs with the same meaning that are merged. *adjusted Rand* is the mean over
questions of the adjusted Rand index of their forms, 1 if all forms are separate in both partitions. *as
judged* is the share of questions with exactly the judged clusters.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import adjusted_rand_score

from benchmarks import NotRun
from benchmarks.grading_quality import rows_of
from semcal.files import write_rows
from semcal.inputs import as_equivalence
from semcal.models import cluster_answers
from semcal.models.clustering import LINKAGES
from semcal.models.equivalence import CachedEquivalence, Equivalence
from semcal.text.normal_form import normal_form

GROUPS = Path(__file__).parent / "judged" / "groups.jsonl"
QUICK: dict[str, Any] = {}


@dataclass(frozen=True)
class Judged:
    """The samples of one question at one temperature, and the meaning of each distinct normal form."""

    question: str
    forms: list[str]  # of each draw
    meaning: dict[str, int]


def hash_of(text: str) -> str:
    """Return the hash of a text in benchmarks/judged."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def judged_draws(draws: Sequence[Path], groups: Path) -> Iterator[Judged]:
    """Return the samples whose question and distinct normal forms were judged, each once."""
    judged = {(row["id"], frozenset(row["forms"])): row for row in rows_of(groups)}
    for row in (row for file in draws for row in rows_of(file)):
        samples = row.get("samples", [])
        at = row.get("temperatures") or [None] * len(samples)
        for temperature in dict.fromkeys(at):
            forms = [normal_form(text) for text, t in zip(samples, at, strict=True) if t == temperature]
            found = judged.pop((row["id"], frozenset(map(hash_of, forms))), None)
            if found is not None:
                meaning = dict(zip(found["forms"], found["meaning"], strict=True))
                yield Judged(row["question"], forms, {form: meaning[hash_of(form)] for form in forms})
    if judged:
        print(f"{len(judged)} judged questions are not in the draws, such as {next(iter(judged))[0]}.\n")


def against(rows: Sequence[Judged], partitions: Sequence[Sequence[Sequence[int]]]) -> dict[str, Any]:
    """Return the agreement of clusters with the judged ones."""
    pairs, rand = [], []
    for row, clusters in zip(rows, partitions, strict=True):
        home = {row.forms[i]: number for number, cluster in enumerate(clusters) for i in cluster}
        rand.append(adjusted_rand_score([row.meaning[form] for form in home], list(home.values())))
        pairs += [(row.meaning[a] == row.meaning[b], home[a] == home[b]) for a, b in combinations(home, 2)]
    same, merged = np.array(pairs).T
    both = int((same & merged).sum())
    return {
        "questions": len(rows),
        "pairs": len(pairs),
        "the same": int(same.sum()),
        "merged": int(merged.sum()),
        "precision": both / merged.sum() if merged.any() else None,
        "recall": both / same.sum() if same.any() else None,
        "F1": 2 * both / (same.sum() + merged.sum()) if same.any() or merged.any() else None,
        "adjusted Rand": float(np.mean(rand)),
        "as judged": float(np.mean([one == 1 for one in rand])),
    }


def results(
    draws: Sequence[Path] = (), groups: Path = GROUPS, equivalences: Sequence[str] = ("exact", "atlas")
) -> list[dict[str, Any]]:
    if not draws:
        raise NotRun("--draws, files that `semcal sample` wrote")
    rows = list(judged_draws(draws, groups))
    if not rows:
        raise SystemExit(f"no question in {groups} is in the draws with these answers")
    measured = []
    for name in equivalences:
        with tempfile.TemporaryDirectory() as folder:  # the linkages share the verdicts
            equivalence = CachedEquivalence(as_equivalence(name), Path(folder) / "verdicts.sqlite")
            for linkage in LINKAGES:
                how = {"equivalence": name, "linkage": linkage}
                measured.append({**how, **of_linkage(rows, equivalence, linkage)})
    return measured


def of_linkage(rows: Sequence[Judged], equivalence: Equivalence, linkage: str) -> dict[str, Any]:
    """Return the calls of a linkage, and the agreement of its clusters with the judged ones."""
    questions, forms = [row.question for row in rows], [row.forms for row in rows]
    found = cluster_answers(questions, forms, equivalence, linkage=linkage)
    return {"calls": found.calls, **against(rows, found.clusters)}


def quick_runs(folder: Path) -> list[list[str]]:
    draws, groups = folder / "draws.jsonl", folder / "groups.jsonl"
    meaning = {"shakespeare": 0, "william shakespeare": 0, "marlowe": 1}
    write_rows(draws, [{"id": "a", "question": "Who wrote Hamlet?", "samples": list(meaning)}])
    hashes = [hash_of(form) for form in meaning]
    write_rows(groups, [{"id": "a", "forms": hashes, "meaning": list(meaning.values())}])
    return [["--draws", str(draws), "--groups", str(groups)]]


def main(arguments: Sequence[str] = ()) -> None:
    from benchmarks.__main__ import table

    parser = argparse.ArgumentParser(prog="python -m benchmarks linkage")
    parser.add_argument("--draws", type=Path, nargs="+", default=[], metavar="FILE")
    parser.add_argument("--groups", type=Path, default=GROUPS, metavar="FILE")
    parser.add_argument("--equivalence", nargs="+", default=["exact", "atlas"], metavar="NAME")
    options = parser.parse_args(arguments)
    print(table(results(options.draws, options.groups, options.equivalence)))


if __name__ == "__main__":
    main(sys.argv[1:])
