"""The figures of linkage against judged groups, and what is kept of the judgements."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path

import pytest

from benchmarks import linkage
from benchmarks.grading_quality import rows_of
from semcal.models.fakes import FakeEquivalence

SAME = {"shakespeare": 0, "william shakespeare": 0, "marlowe": 1, "kyd": 2}
DRAWS = ["kyd", "shakespeare", "marlowe", "william shakespeare", "kyd"]
ANSWERS = linkage.GROUPS.parent / "answers.jsonl"


def test_a_wrong_merge_costs_precision_and_a_missing_one_recall():
    row = linkage.Judged("Who wrote Hamlet?", DRAWS, SAME)
    exact = linkage.of_linkage([row], FakeEquivalence(), "components")
    assert (exact["pairs"], exact["the same"], exact["merged"], exact["recall"]) == (6, 1, 0, 0)
    assert exact["precision"] is None
    chained = FakeEquivalence([{"shakespeare", "william shakespeare"}, {"shakespeare", "marlowe"}])
    found = {name: linkage.of_linkage([row], chained, name) for name in ("components", "complete")}
    assert [found[name]["precision"] for name in found] == [1 / 3, 0]
    assert [found[name]["recall"] for name in found] == [1, 0]
    assert found["components"]["F1"] == pytest.approx(0.5)
    right = linkage.of_linkage([row], FakeEquivalence([{"shakespeare", "william shakespeare"}]), "greedy")
    assert (right["F1"], right["adjusted Rand"], right["as judged"]) == (1, 1, 1)


def test_draws_are_matched_with_their_judgement_by_hash_and_temperature(tmp_path, capsys):
    draws = {"id": "q", "question": "Who?", "samples": ["Ada.", "ada", "Bob", "Ada", "Eve"]}
    rows = [{**draws, "id": name, "temperatures": [1, 1, 1, 0.5, 0.5]} for name in "qr"]
    (tmp_path / "draws.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    hashes = [linkage.hash_of(form) for form in ("bob", "ada", "gone")]
    judged = [
        {"id": "q", "forms": hashes[:2], "meaning": [0, 1]},
        {"id": "q", "forms": hashes[1:], "meaning": [0, 0]},
    ]
    (tmp_path / "groups.jsonl").write_text("".join(json.dumps(row) + "\n" for row in judged))
    (found,) = linkage.judged_draws([tmp_path / "draws.jsonl"], tmp_path / "groups.jsonl")
    assert found == linkage.Judged("Who?", ["ada", "ada", "bob"], {"ada": 1, "bob": 0})
    assert "1 judged questions are not in the draws, such as q." in capsys.readouterr().out


def test_judgements_hold_ids_hashes_and_verdicts_and_no_text():
    answers, groups = list(rows_of(ANSWERS)), list(rows_of(linkage.GROUPS))
    assert (len(answers), len(groups)) == (300, 100)
    for row in answers:
        assert set(row) == {"set", "id", "answer_sha256", "model", "correct"}
        assert re.fullmatch("[0-9a-f]{16}", row["answer_sha256"])
        assert isinstance(row["correct"], bool)
    assert len({(row["id"], row["answer_sha256"], row["model"]) for row in answers}) == len(answers)
    for row in groups:
        assert set(row) == {"set", "id", "model", "temperature", "forms", "meaning"}
        assert all(re.fullmatch("[0-9a-f]{16}", form) for form in row["forms"])
        assert len(row["forms"]) == len(set(row["forms"])) == len(row["meaning"]) >= 3
        assert list(dict.fromkeys(row["meaning"])) == list(range(len(set(row["meaning"]))))


def test_judged_questions_are_in_the_public_sets():
    folder = os.environ.get("SEMCAL_DATA")
    if not folder:
        pytest.skip("SEMCAL_DATA is not set")
    judged = [*rows_of(ANSWERS), *rows_of(linkage.GROUPS)]
    for name in {row["set"] for row in judged}:
        with gzip.open(Path(folder) / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            ids = {json.loads(line)["id"] for line in lines}
        assert {row["id"] for row in judged if row["set"] == name} <= ids
