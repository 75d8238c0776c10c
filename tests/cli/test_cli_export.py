"""`semcal export`: a fitted temperature to other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from typer.testing import CliRunner

from semcal import export
from semcal.cli.app import app
from semcal.export import read_checkpoint_settings
from semcal.files import json_checksum
from semcal.recalibration import Provenance, TemperatureScaling, save_pretrained, saving


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def fitted(model: Path, tmp_path: Path) -> tuple[str, float]:
    """A recalibrator of the model, and its T."""
    z = torch.eye(4) * 3
    ts = TemperatureScaling().fit(z, [0, 1, 2, 0])
    revision = read_checkpoint_settings(model).revision
    provenance = Provenance("tiny", revision, {}, "p0", "made-up", "d0", 4)
    save_pretrained(ts, tmp_path / "ts", provenance=provenance)
    return str(tmp_path / "ts"), ts.temperature_


def semcal(*arguments: Any) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("server", export.SERVERS)
def test_request_parameters_go_to_stdout_and_their_origin_to_stderr(
    server: str, fitted: tuple[str, float]
) -> None:
    code, out, err = semcal("export", fitted[0], "--format", server)
    assert (code, json.loads(out)) == (0, export.request_parameters(server, fitted[1]))
    assert "belongs to tiny (revision sha256:" in err


@pytest.mark.parametrize("value", [0, True, float("nan"), float("inf"), 10**400])
def test_a_temperature_that_was_edited_in_is_handed_to_no_program(
    value: Any, model: Path, fitted: tuple[str, float], tmp_path: Path
) -> None:
    """The checksum is right: what `sample` refuses no format exports."""
    path = Path(fitted[0]) / "calibration.json"
    content = {**json.loads(path.read_text()), "temperature": value}
    del content["sha256"]
    path.write_text(json.dumps({**content, "sha256": json_checksum(content)}))
    (tmp_path / "q.jsonl").write_text('{"id": "1", "question": "Which?"}\n')
    ways = [["export", fitted[0], "--format", format] for format in ("vllm", "generation-config")]
    ways += [["sample", tmp_path / "q.jsonl", "--model", model, "--recalibrator", fitted[0]]]
    for way in ways:
        code, out, err = semcal(*way)
        assert (code, out) == (1, "")
        assert f"error: {path}: temperature: " in err
        assert len(err) < 400


def test_a_generation_config_carries_its_origin_and_the_special_tokens_of_the_model(
    model: Path, fitted: tuple[str, float], tmp_path: Path
) -> None:
    options = ("export", fitted[0], "--format", "generation-config", "--out", tmp_path / "out")
    code, out, err = semcal(*options, "--model", model, "--json")
    path = tmp_path / "out" / "generation_config.json"
    assert (code, json.loads(out), "warning" in err) == (0, {"files": [str(path)]}, False)
    written = json.loads(path.read_text())
    assert written["temperature"] == written["semcal"]["temperature"] == fitted[1]
    assert (written["eos_token_id"], written["semcal"]["model"]) == (2, "tiny")
    assert semcal(*options, "--model", model)[0] == 0  # ours is replaced
    assert "no special tokens" in semcal(*options)[2]


def test_a_generation_config_of_somebody_else_is_not_replaced(
    fitted: tuple[str, float], tmp_path: Path
) -> None:
    (tmp_path / "generation_config.json").write_text('{"top_k": 20}')
    options = ("export", fitted[0], "--format", "generation-config", "--out", tmp_path, "--overwrite")
    code, _, err = semcal(*options)
    assert code == 2
    assert "did not write it" in err
    assert (tmp_path / "generation_config.json").read_text() == '{"top_k": 20}'


def test_the_logits_processor_snippet_runs_wherever_it_is_moved(fitted: tuple[str, float]) -> None:
    code, out, _ = semcal("export", fitted[0], "--format", "logits-processor")
    assert code == 0
    assert fitted[0] not in out
    assert "belongs to tiny (revision # sha256:" in " ".join(out.split())
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


def test_another_model_is_refused_unless_forced(fitted: tuple[str, float], tmp_path: Path) -> None:
    other = tiny_models.save(tmp_path / "other", seed=1)
    options = ("export", fitted[0], "--format", "generation-config", "--model", other)
    code, _, err = semcal(*options)
    assert code == 2
    assert "fitted on tiny" in err
    assert semcal(*options, "--force")[0] == 0


def test_a_plan_writes_nothing(fitted: tuple[str, float], tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, text, err = semcal("export", fitted[0], "--format", "vllm", "--out", out, "--dry-run")
    assert (code, text, "would " in err, out.exists()) == (0, "", True, False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "Missing option '--format'"),
        (("--format", "vlm"), "did you mean 'vllm'"),
        (("--fold", "--out", "somewhere"), "--fold is gone: every server takes a temperature"),
    ],
)
def test_wrong_usage_says_what_is_right(
    options: tuple[str, ...], said: str, fitted: tuple[str, float]
) -> None:
    code, _, err = semcal("export", fitted[0], *options)
    assert code == 2
    assert said in err


def test_a_method_without_a_single_temperature_is_refused(
    fitted: tuple[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Diagonal:
        method = "Platt"

    _, provenance = saving.from_pretrained(fitted[0])
    monkeypatch.setattr("semcal.recalibration.saving.from_pretrained", lambda *_: (Diagonal(), provenance))
    code, _, err = semcal("export", fitted[0], "--format", "vllm")
    assert code == 2
    assert "Platt has no single temperature" in err


def test_a_temperature_above_two_warns_users_of_openai_style_servers(
    fitted: tuple[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semcal.recalibration.temperature.single_temperature", lambda _: 2.5)
    assert "refuse more than 2" in semcal("export", fitted[0], "--format", "openai")[2]
    assert "refuse more than 2" not in semcal("export", fitted[0], "--format", "vllm")[2]
