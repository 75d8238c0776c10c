"""Receipts of SROIE: documents sampled from a model, and the fields that a calibration accepts."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import semcal
from benchmarks import data_folder, not_run
from semcal.calibration.fields import calibrate_fields
from semcal.calibration.signals import Assessment, ask_p_true, ask_verbalised
from semcal.data.question import Turn
from semcal.errors import SemcalWarning
from semcal.fields.rows import features_of_field
from semcal.fields.schema import parse_schema
from semcal.inputs import as_model
from semcal.metrics.overview import dependent_noise_floor
from semcal.models.clustering import ClusterConfig
from semcal.rows import Row

FILE = "extraction_sroie_receipts_a.jsonl.gz"
SCHEMA = {
    "type": "object",
    "required": ["company", "date", "address", "total"],
    "additionalProperties": False,
    "properties": {
        "company": {"type": ["string", "null"], "description": "The company that issued the receipt"},
        "date": {"type": ["string", "null"], "description": "The date, as it is written on the receipt"},
        "address": {"type": ["string", "null"], "description": "The address of the company"},
        "total": {"type": ["number", "null"], "description": "The total amount to pay"},
    },
}
RISKS = (0.1, 0.2, 0.3)
PATIENCE = 3600  # seconds for a reply of a server on the same processor
EXACT = ClusterConfig("exact")


def receipts(n: int) -> list[dict[str, Any]]:
    """Return n receipts in a random order, as rows with references."""
    with gzip.open(data_folder() / FILE, "rt", encoding="utf-8") as lines:
        found = [json.loads(line) for line in lines]
    random.Random(0).shuffle(found)
    schema = parse_schema(SCHEMA)
    question = "Extract the fields of this receipt."
    return [
        {
            "id": one["id"],
            "question": question,
            "context": one["text"],
            "answers": {name: one["reference"].get(name) or None for name in schema.root.properties},
        }
        for one in found[:n]
    ]


def sample(rows: Sequence[dict[str, Any]], model: str, folder: Path, m: int) -> list[Row]:
    """Sample m documents of each receipt; an interrupted run resumes in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schema.json").write_text(json.dumps(SCHEMA))
    (folder / "receipts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = folder / "samples.jsonl"
    if not out.exists():
        command = ["sample", folder / "receipts.jsonl", "--model", model, "--schema", folder / "schema.json"]
        command = [sys.executable, "-m", "semcal", *command, "--m", m, "--out", out]
        if model.startswith("openai:"):
            command += ["--config", f"server.timeout={PATIENCE}", "--config", f"server.concurrency={m}"]
        subprocess.run([str(word) for word in command], check=True)
    with out.open(encoding="utf-8") as lines:
        return [Row(json.loads(line)) for line in lines]


def reflect(rows: Sequence[Row], model: str, folder: Path) -> list[float | None]:
    """Return the probability of each field that the model states when it is asked if the value is right.

    It is the probability of "yes", or a stated number if the server lists no tokens.
    """
    kept = folder / "self-reflection.json"
    if kept.exists():
        return list(json.loads(kept.read_text()))
    is_server = model.startswith("openai:")
    # In turn, so that the server keeps the prompt of a receipt for its other fields.
    loaded = semcal.load_server(model, concurrency=1, timeout=PATIENCE) if is_server else as_model(model)
    items = [
        Assessment(
            row.set(id=f"{row.id}{path}"),
            (Turn("user", f"{row.context}\n\nWhat is the {path[1:]} on this receipt?"),),
            "none" if block["value"] is None else str(block["value"]),
            (),
        )
        for row in rows
        for path, block in row["fields"].items()
    ]
    stated = (ask_p_true if loaded.capabilities.next_tokens else ask_verbalised)(loaded, items)
    kept.write_text(json.dumps(stated))
    return stated


def judged(way: str, p: Sequence[float | None], blocks: Sequence[Any]) -> dict[str, Any]:
    """Return a row with the figures of the fields whose probability is known."""
    known = [place for place, value in enumerate(p) if value is not None and not np.isnan(value)]
    if not known:
        return {"fields": "all", "confidence": way, "n": not_run("token log-probabilities")}
    values = np.array([p[place] for place in known], dtype=float)
    correct = np.array([float(blocks[place][1]["correct"]) for place in known])
    groups = np.unique([blocks[place][0] for place in known], return_inverse=True)[1]
    floor = dependent_noise_floor(values, correct, groups)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SemcalWarning)
        auroc = float(semcal.metrics.auroc(values, correct))
    return {
        "fields": "all",
        "confidence": way,
        "n": len(known),
        "accuracy": float(correct.mean()),
        "ACE": floor.observed,
        "floor": floor.mean,
        "ACE / floor": floor.observed / floor.mean if floor.mean else None,
        "AUROC": None if np.isnan(auroc) else auroc,
    }


def figures(rows: Sequence[Row], labeled: int, model: str, folder: Path) -> list[dict[str, Any]]:
    """Return the figures of the other receipts, with a map learned from the labeled ones."""
    learned = quiet_calibration(rows[:labeled], 0)
    others = semcal.score(rows[labeled:], calibration=learned)
    found = [(row["id"], block, path) for row in others.rows for path, block in row["fields"].items()]
    features = [features_of_field(path, block, learned.m, None) for _, block, path in found]
    known = [one["mean-token"] is not None and not np.isnan(one["mean-token"]) for one in features]
    ways = {
        "share of samples": [one["share"] for one in features],
        "share, if tokens are known": [one["share"] if k else None for one, k in zip(features, known)],
        "mean token probability": [one["mean-token"] for one in features],
        "smallest token probability": [one["smallest-token"] for one in features],
        "self-reflection": reflect([Row(row) for row in others.rows], model, folder),
        "calibrated": [block["probability"] for _, block, _ in found],
    }
    table = [judged(way, p, found) for way, p in ways.items()]
    for name in sorted({path for _, _, path in found}):
        of_name = [one for one in found if one[2] == name]
        p = [block["probability"] for _, block, _ in of_name]
        table.append({**judged("calibrated", p, of_name), "fields": name})
    return table


def quiet_calibration(rows: Sequence[Row], seed: int, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SemcalWarning)
        return calibrate_fields(rows, EXACT, SCHEMA, seed=seed, **options)


def accepted_over_splits(rows: Sequence[Row], labeled: int, splits: int, risk: float) -> dict[str, Any]:
    """Return the distribution, over random splits, of the share of accepted fields that are wrong."""
    wrong, coverage = [], []
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(rows))
        learned = quiet_calibration([rows[i] for i in order[:labeled]], seed, risks=[risk])
        others = semcal.score([rows[i] for i in order[labeled:]], calibration=learned).rows
        blocks = [block for row in others for block in row["fields"].values()]
        accepted = [block["correct"] for block in blocks if block["accepted"]]
        coverage.append(len(accepted) / max(1, len(blocks)))
        if accepted:
            wrong.append(1 - float(np.mean(accepted)))
    quantiles = np.quantile(wrong, [0.05, 0.5, 0.95, 1]) if wrong else [None] * 4
    return {
        "splits": splits,
        "promised": risk,
        "with a threshold": len(wrong),
        "accepted": float(np.mean(coverage)),
        "wrong: mean": float(np.mean(wrong)) if wrong else None,
        **dict(zip(("5%", "median", "95%", "largest"), (None if q is None else float(q) for q in quantiles))),
        "above the promise": float(np.mean(np.array(wrong) > risk)) if wrong else None,
    }
