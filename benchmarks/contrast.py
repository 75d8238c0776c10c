"""Verdicts of equivalences on contrast pairs, by kind of pair.

    SEMCAL_DATA=FOLDER python -m benchmarks contrast [--errors]

There are two sets of pairs, in which about half of each kind mean the same: `contrast_pairs_a` (public), and
pairs.jsonl beside this file (own), whose writer knew the first set but not the rules. Both sets revealed
missing rules. Columns: the share of correct decisions by `exact` (equal normal forms), by the rules alone
(open pairs count as different), by the embedded model alone (normal forms, no rules), and by `default` (rules
and model, as in `semcal cluster`). `open` is the share of pairs that rules leave to the model. `--errors`
lists the errors of `default`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import NotRun, data_folder
from semcal import load_equivalence
from semcal.meaning.rules import decide
from semcal.models import cluster_answers
from semcal.models.equivalence import EmbeddedEquivalence, Equivalence
from semcal.text.normal_form import normal_form
from tools.equivalence.pairs import read

SET, OWN = "contrast_pairs_a", Path(__file__).with_name("pairs.jsonl")
#: Maximum number of pairs; all by default.
PAIRS: int | None = None
QUICK = {"PAIRS": 30}


def contrast_pairs() -> list[dict[str, Any]]:
    """Return the pairs of the folder SEMCAL_DATA."""
    return read(data_folder(), SET)[:PAIRS]


def own_pairs() -> list[dict[str, Any]]:
    """Return the pairs beside this file."""
    lines = OWN.read_text(encoding="utf-8").splitlines()[:PAIRS]
    return [json.loads(line) for line in lines]


def joined(equivalence: Equivalence, pairs: Sequence[dict[str, Any]]) -> np.ndarray:
    """Return for each pair whether `semcal cluster` puts both answers into one meaning."""
    texts = [[pair["a"], pair["b"]] for pair in pairs]
    found = cluster_answers([pair["question"] for pair in pairs], texts, equivalence)
    return np.array([len(clusters) == 1 for clusters in found.clusters])


def verdicts(pairs: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Return the verdicts of each method, and the pairs that the rules leave open."""
    by_rule = [decide(pair["question"], pair["a"], pair["b"]) for pair in pairs]
    forms = [(pair["question"], normal_form(pair["a"]), normal_form(pair["b"])) for pair in pairs]
    return {
        "exact": joined(load_equivalence("exact"), pairs),
        "rules alone": np.array([verdict is True for verdict in by_rule]),
        "model alone": np.array(EmbeddedEquivalence().entails(forms))
        | np.array([a == b for _, a, b in forms]),
        "default": joined(load_equivalence("default"), pairs),
        "open": np.array([verdict is None for verdict in by_rule]),
    }


def rows_of(name: str, pairs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Yield one row for each kind of pairs of a set, and one for all."""
    found = verdicts(pairs)
    same = np.array([pair["same"] for pair in pairs])
    kinds = np.array([pair["kind"] for pair in pairs])
    left_open = found.pop("open")
    rows = []
    for kind in [*sorted(set(kinds)), "all"]:
        here = (kinds == kind) | (kind == "all")
        row = {"set": name, "kind": kind, "n": int(here.sum()), "same": int(same[here].sum())}
        row |= {name: round(float((one == same)[here].mean()), 3) for name, one in found.items()}
        row |= {
            "wrong": int((found["default"] != same)[here].sum()),
            "open": round(left_open[here].mean(), 3),
        }
        rows.append(row)
    return rows


def results() -> list[dict[str, Any]]:
    """Return the rows of both sets."""
    own = rows_of("own", own_pairs())
    try:
        return [*rows_of("public", contrast_pairs()), *own]
    except NotRun as stop:
        return [{"set": f"public: {stop}"}, *own]


def quick_runs(_: Path) -> list[list[str]]:
    return [[], ["--errors"]]


def main(arguments: Sequence[str] = ()) -> None:
    """Read the command line and print the table, or the pairs with wrong decisions."""
    from benchmarks.__main__ import table

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--errors", action="store_true")
    if not parser.parse_args(arguments).errors:
        print(table(results()))
        return
    pairs = [*contrast_pairs(), *own_pairs()]
    for pair, same in zip(pairs, joined(load_equivalence("default"), pairs)):
        if same != pair["same"]:
            print(f"{pair['kind']}: {pair['question']} | {pair['a']} | {pair['b']} | same: {pair['same']}")


if __name__ == "__main__":
    main(sys.argv[1:])
