"""Do equivalences judge pairs of real answers as people do, and leave unrelated answers apart?

    SEMCAL_DATA=FOLDER python -m benchmarks equivalence [--minilm FOLDER] [--draws FILE...]

Pairs of answers to one question, both judged right by people or exactly one of them (n_refs = 1: the
question has one reference, so that two right answers mean the same); of the sources that the embedded
model was trained on, only questions that were kept apart. "unrelated": answers to two other questions of
one kind, from questions of NQ-open's development set. `--minilm` adds the cosine of all-MiniLM-L6-v2, at
the threshold that is best on these very pairs. "one order": the share of pairs of other wordings that the
embedded model decides from one order of the two answers; "joined by both": how many of them both orders
would join. `--draws` are files that `semcal sample` wrote of questions with answers: gain and AUROC of
E-SC on each, as every equivalence and linkage groups them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

import numpy as np

import semcal
from semcal.models.clustering import LINKAGES, cluster_answers
from semcal.models.equivalence import EmbeddedEquivalence
from semcal.text.normal_form import normal_form
from tools.equivalence.pairs import JUDGED, Pair, is_held_out, read, unrelated_pairs

#: Judged pairs of a source, at most.
LIMIT = 600
NAMES = ("default", "exact", "atlas")
Decide = Callable[[Sequence[Pair]], np.ndarray]


def data_folder() -> Path:
    """The folder that SEMCAL_DATA names."""
    if "SEMCAL_DATA" not in os.environ:
        raise SystemExit("set SEMCAL_DATA to the folder of judged answers")
    return Path(os.environ["SEMCAL_DATA"])


def judged(folder: Path) -> dict[str, list[Pair]]:
    """Judged pairs by source, in normal form; of questions with one reference, and all."""
    found: dict[str, list[Pair]] = {}
    for row in read(folder, "equivalence_pairs_from_labels_a"):
        if row["source"] in JUDGED and not is_held_out(row["question"]):
            continue
        pair = Pair(row["question"], normal_form(row["a"]), normal_form(row["b"]), row["same"])
        for name in (row["source"], f"{row['source']}, one reference")[: 1 + (row["n_refs"] == 1)]:
            found.setdefault(name, []).append(pair)
    return {name: Random(0).sample(pairs, min(LIMIT, len(pairs))) for name, pairs in found.items()}


def merged(equivalence: Any, pairs: Sequence[Pair]) -> np.ndarray:
    """Whether `semcal cluster` puts the two answers of each pair into one meaning."""
    forms = [[pair.first, pair.second] for pair in pairs]
    found = cluster_answers([pair.question for pair in pairs], forms, equivalence=equivalence)
    return np.array([len(clusters) == 1 for clusters in found.clusters])


def one_order(pairs: Sequence[Pair]) -> dict[str, Any]:
    """How many pairs the embedded model decides from one order, and what reading both would change."""
    model = EmbeddedEquivalence()
    ordered = [
        (pair.question, *sorted((pair.first, pair.second))) for pair in pairs if pair.first != pair.second
    ]
    first = model.logits(ordered)
    means = (first + model.logits([(question, b, a) for question, a, b in ordered])) / 2
    alone = first <= model.apart
    joined = int((alone & (means > model.threshold)).sum())
    return {"one order": round(float(alone.mean()), 3), "joined by both": joined}


def cosine(folder: Path, pairs: Sequence[Pair]) -> np.ndarray:
    """Whether the answers' cosine by all-MiniLM-L6-v2 is above the threshold that suits these pairs best."""
    from tools.equivalence.train import embed, load

    network, tokenizer = load(folder)
    one, other = (
        embed(network.encoder, tokenizer, texts) for texts in zip(*((p.first, p.second) for p in pairs))
    )
    likeness, same = (one * other).sum(axis=1), np.array([p.same for p in pairs])
    best = max(np.linspace(0, 1, 101), key=lambda at: ((likeness >= at) == same).mean())
    return likeness >= best


def on_draws(files: Sequence[Path]) -> list[dict[str, Any]]:
    """One row for each file, equivalence and linkage: how good the shares of E-SC are."""
    rows = []
    for file in files:
        for name in NAMES:
            equivalence = semcal.load_equivalence(name)
            for linkage in LINKAGES if name == "default" else LINKAGES[:1]:
                found = semcal.score(str(file), equivalence=equivalence, linkage=linkage, progress=None)
                measured = found.metrics()["E-SC"]
                several = sum(len(row["clusters"]) < len(row["samples"]) for row in found.rows)
                row = {"draws": file.stem, "equivalence": name, "linkage": linkage, "merged in": several}
                rows.append(row | {key: measured[key] for key in ("n", "accuracy", "gain", "auroc", "ace")})
    return rows


def results(minilm: Path | None = None) -> list[dict[str, Any]]:
    """One row for each set of pairs: accuracy of each equivalence, or the share that it merges."""
    folder = data_folder()
    sets = judged(folder)
    asked = [(row["question"], row["answers"][0]) for row in read(folder, "nq_open_dev_sample")]
    sets["unrelated, merged"] = unrelated_pairs(asked, Random(0), LIMIT)
    deciders: dict[str, Decide] = {name: partial(merged, semcal.load_equivalence(name)) for name in NAMES}
    if minilm is not None:
        deciders["cosine"] = partial(cosine, minilm)
    rows = []
    for name, pairs in sorted(sets.items()):
        row: dict[str, Any] = {"pairs": name, "n": len(pairs)}
        for decider, decide in deciders.items():
            start = process_time()
            said = decide(pairs)
            same = np.array([pair.same for pair in pairs])
            row[decider] = round(float(said.mean() if "unrelated" in name else (said == same).mean()), 4)
            if decider == "default":
                row["ms a pair"] = round(1000 * (process_time() - start) / len(pairs), 1)
                row |= one_order(pairs)
        rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    from benchmarks.__main__ import table

    parser = argparse.ArgumentParser(prog="python -m benchmarks equivalence")
    parser.add_argument("--minilm", type=Path, metavar="FOLDER")
    parser.add_argument("--draws", type=Path, nargs="+", default=[], metavar="FILE")
    options = parser.parse_args(arguments)
    print(table(results(options.minilm)), flush=True)
    if options.draws:
        print(table(on_draws(options.draws)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
