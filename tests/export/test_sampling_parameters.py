"""What other programs are told: one temperature, and nothing that truncates."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from semcal.errors import FitError, StoreError, UsageError
from semcal.export import SERVERS, generation_config, origin, push_to_hub, request_parameters
from semcal.recalibration import (
    SE,
    Base,
    Provenance,
    Temperature,
    TemperatureScaling,
    from_pretrained,
    save_pretrained,
    single_temperature,
)

PROVENANCE = Provenance("tiny", "abc123", {"few_shot": []}, "p0", "made-up", "d0", 3)


class Diagonal:
    """A recalibrator that changes each token's logit in its own way."""

    method = "Platt"

    def log_probs(self, logits: Tensor) -> Tensor:
        return torch.log_softmax(logits * torch.arange(logits.shape[-1]), -1)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    z = torch.eye(4) * 3
    save_pretrained(TemperatureScaling().fit(z, [0, 1, 2, 0]), tmp_path / "ts", provenance=PROVENANCE)
    return tmp_path / "ts"


def test_base_se_and_ts_have_a_single_temperature(saved: Path) -> None:
    fitted, _ = from_pretrained(saved)
    assert [single_temperature(r) for r in (Base(), SE(), Temperature(1.7), fitted)] == [
        1.0,
        0.5,
        1.7,
        fitted.temperature_,
    ]


def test_what_has_no_single_temperature_is_refused() -> None:
    with pytest.raises(UsageError, match="Platt has no single temperature"):
        single_temperature(Diagonal())
    with pytest.raises(FitError, match="call fit first"):
        single_temperature(TemperatureScaling())


@pytest.mark.parametrize(
    ("server", "neutral"),
    [
        ("openai", {"top_p": 1, "presence_penalty": 0, "frequency_penalty": 0}),
        ("vllm", {"top_k": -1, "top_p": 1, "min_p": 0, "repetition_penalty": 1}),
        ("sglang", {"top_k": -1, "top_p": 1, "min_p": 0, "repetition_penalty": 1}),
        ("llama.cpp", {"top_k": 0, "top_p": 1, "min_p": 0, "typical_p": 1, "repeat_penalty": 1}),
        ("ollama", {"top_k": 0, "top_p": 1, "min_p": 0, "typical_p": 1, "repeat_penalty": 1}),
    ],
)
def test_each_server_gets_t_and_its_own_neutral_values(server: str, neutral: dict[str, float]) -> None:
    parameters = request_parameters(server, 1.25)
    if server == "ollama":
        assert set(parameters) == {"options"}
        parameters = parameters["options"]
    assert parameters["temperature"] == 1.25
    assert {name: parameters[name] for name in neutral} == neutral
    assert parameters["presence_penalty"] == parameters["frequency_penalty"] == 0


def test_an_unknown_server_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'llama\.cpp'"):
        request_parameters("llamacpp", 1.0)


@pytest.mark.parametrize("server", SERVERS)
def test_parameters_belong_to_the_caller(server: str) -> None:
    request_parameters(server, 1.0).clear()
    assert "1.25" in json.dumps(request_parameters(server, 1.25))


def test_generate_with_the_generation_config_draws_from_exactly_logits_over_t(tmp_path: Path) -> None:
    own = {"eos_token_id": [2, 5], "pad_token_id": 0, "top_k": 3, "top_p": 0.5, "repetition_penalty": 1.4}
    content = generation_config(1.7, checkpoint=own, comment=origin(1.7, PROVENANCE))
    (tmp_path / "generation_config.json").write_text(json.dumps(content))
    config = GenerationConfig.from_pretrained(tmp_path)
    assert (config.eos_token_id, config.semcal["revision"]) == ([2, 5], "abc123")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=200, initializer_range=0.5, **shape)).eval()
        output = model.generate(
            input_ids=torch.tensor([[7, 8]]),
            attention_mask=torch.ones((1, 2), dtype=torch.long),
            generation_config=config,
            max_new_tokens=3,
            output_scores=True,
            output_logits=True,
            return_dict_in_generate=True,
        )
    assert not any(torch.isinf(scores).any() for scores in output.scores)
    for scores, logits in zip(output.scores, output.logits):
        assert torch.equal(scores, logits / 1.7)


class FakeHub:
    """A hub in a folder, behind the functions of huggingface_hub that are used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.created: dict[str, bool] = {}

    def api(self, token: str | None = None) -> FakeHub:
        return self

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> None:
        self.created[repo_id] = private

    def upload_folder(
        self, *, repo_id: str, folder_path: Path, allow_patterns: list[str], commit_message: str
    ) -> Any:
        (self.folder / repo_id).mkdir(parents=True)
        for name in allow_patterns:
            if (folder_path / name).exists():
                shutil.copy(folder_path / name, self.folder / repo_id / name)
        return SimpleNamespace(oid="c0ffee")

    def snapshot_download(
        self,
        repo_id: str,
        *,
        revision: str | None,
        allow_patterns: list[str],
        local_files_only: bool,
    ) -> str:
        assert not local_files_only
        if revision not in (None, "c0ffee"):
            raise huggingface_hub.errors.LocalEntryNotFoundError("no such revision")
        return str(self.folder / repo_id)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "HfApi", fake.api)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.snapshot_download)
    monkeypatch.setattr("semcal.hub_names.unreachable", lambda: None)
    return fake


def test_what_is_pushed_comes_back_by_its_id_and_commit(saved: Path, hub: FakeHub) -> None:
    (saved / "notes.txt").write_text("not for others")
    commit = push_to_hub(saved, "me/ts")
    assert (commit, hub.created) == ("c0ffee", {"me/ts": True})
    assert [path.name for path in (hub.folder / "me/ts").iterdir()] == ["calibration.json"]
    recalibrator, provenance = from_pretrained("me/ts", revision=commit)
    assert provenance == PROVENANCE
    assert recalibrator.temperature_ == from_pretrained(saved)[0].temperature_


def test_a_damaged_recalibrator_is_not_pushed(saved: Path, hub: FakeHub) -> None:
    (saved / "calibration.json").write_text("{")
    with pytest.raises(StoreError, match="damaged"):
        push_to_hub(saved, "me/ts")
    assert hub.created == {}


def test_a_path_never_asks_the_hub(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: Any, **__: Any) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr("semcal.hub_names.unreachable", asked)
    for path in (Path("me/ts"), "./me/ts", "no-such-ts", "a/b/c"):
        with pytest.raises(UsageError, match=f"no such directory: {path}"):
            from_pretrained(path)
    with pytest.raises(UsageError, match=r"holds no calibration\.json"):
        from_pretrained(str(tmp_path))
    with pytest.raises(UsageError, match="has no revision"):
        from_pretrained(saved, revision="main")


@pytest.mark.parametrize(
    "error", [OSError("Name or service not known"), huggingface_hub.errors.HTTPError("cannot connect")]
)
def test_a_hub_that_cannot_be_reached_is_said(
    error: Exception, saved: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    monkeypatch.setattr(hub, "create_repo", unreachable)
    with pytest.raises(StoreError, match=f"'me/ts' from the hub: {error} .*give the path of a directory"):
        from_pretrained("me/ts")
    with pytest.raises(StoreError, match=f"'me/ts' on the hub: {error} .*log in"):
        push_to_hub(saved, "me/ts")
