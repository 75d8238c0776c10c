"""`semcal export`: a fitted temperature for other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from invoking import run as semcal

import semcal as package
from semcal.files import json_checksum
from semcal.recalibration import Provenance, TemperatureScaling, files, save_pretrained


@pytest.fixture
def fitted(model: str, tmp_path: Path) -> tuple[str, float]:
    """A recalibrator of the model, and its T."""
    ts = TemperatureScaling().fit(torch.eye(4) * 3, [0, 1, 2, 0])
    revision = package.load_model(model, device="cpu").revision
    provenance = Provenance("tiny", revision, {}, "p0", "made-up", "d0", 4)
    save_pretrained(ts, tmp_path / "ts", provenance=provenance)
    return str(tmp_path / "ts"), ts.temperature_


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_the_temperature_and_its_origin_are_printed_as_json(
    options: tuple[str, ...], fitted: tuple[str, float]
) -> None:
    code, out, err = semcal("export", fitted[0], *options)
    printed = json.loads(out)
    assert (code, printed["temperature"], printed["solver"]) == (0, fitted[1], "exact")
    assert (printed["model"], printed["prompt_hash"], printed["n_questions"]) == ("tiny", "p0", 4)
    assert "tiny (revision sha256:" in err
    assert len(out.splitlines()) == 1 or not options


@pytest.mark.parametrize("value", [0, True, float("nan"), float("inf"), 10**400])
def test_a_temperature_that_was_edited_in_is_handed_to_no_program(
    value: Any, model: str, fitted: tuple[str, float], tmp_path: Path
) -> None:
    """The checksum is right: `export` refuses the same values as `sample`."""
    path = Path(fitted[0]) / "recalibrator.json"
    content = {**json.loads(path.read_text()), "temperature": value}
    del content["sha256"]
    path.write_text(json.dumps({**content, "sha256": json_checksum(content)}))
    (tmp_path / "q.jsonl").write_text('{"id": "1", "question": "Which?"}\n')
    ways = [["export", fitted[0], "--format", format] for format in ("temperature", "logits-processor")]
    ways += [["sample", tmp_path / "q.jsonl", "--model", model, "--recalibrator", fitted[0]]]
    for way in ways:
        code, out, err = semcal(*way)
        assert (code, out) == (1, "")
        assert f"error: {path}: temperature: " in err
        assert len(err) < 400


def test_the_logits_processor_snippet_runs_wherever_it_is_moved(fitted: tuple[str, float]) -> None:
    code, out, _ = semcal("export", fitted[0], "--format", "logits-processor")
    assert code == 0
    assert fitted[0] not in out
    assert "tiny (revision # sha256:" in " ".join(out.split())
    names: dict[str, Any] = {
        "model": tiny_models.model("llama"),
        "inputs": {
            "input_ids": torch.tensor([[1, 9]]),
            "attention_mask": torch.ones((1, 2), dtype=torch.long),
        },
    }
    exec(out, names)
    assert names["processors"][0].temperature == fitted[1]
    assert names["output"].shape[0] == 1


def test_a_method_without_a_single_temperature_is_refused(
    fitted: tuple[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Diagonal:
        method = "Platt"

    _, provenance = files.from_pretrained(fitted[0])
    monkeypatch.setattr("semcal.recalibration.files.from_pretrained", lambda *_: (Diagonal(), provenance))
    code, _, err = semcal("export", fitted[0])
    assert code == 2
    assert "Platt has no single temperature" in err
