"""Loading checkpoints from directories: what is taken from them, what is not, and what goes wrong."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import tiny_nli
import torch
import transformers
from transformers import T5Config

import semcal
from semcal.data.question import Turn
from semcal.errors import ModelError, UsageError
from semcal.models import Prompt
from semcal.models.checkpoint import as_model_error
from semcal.models.engine.network import check_supported
from semcal.models.load import choose_device
from semcal.recalibration import Base


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tiny_models.save(tmp_path / "tiny")


@pytest.mark.parametrize(("family", "tied"), list(zip(tiny_models.FAMILIES, cycle([False, True]))))
def test_a_directory_is_all_it_takes(tmp_path: Path, family: str, tied: bool) -> None:
    template = tiny_models.TEMPLATE if tied else None
    folder = tiny_models.save(tmp_path / family, family, tied=tied, template=template)
    model = semcal.load_model(folder)
    prompt = Prompt("q", model.encode([Turn("user", "Question: Who built the mill?")]))
    [answer] = model.greedy([prompt], recalibrator=Base(), max_new_tokens=3)
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = plain(torch.tensor([prompt.token_ids]), use_cache=False).logits[0, -1]
    assert answer.token_ids[0] == int(logits.argmax())
    assert answer.token_log_probs[0] == pytest.approx(float(logits.log_softmax(-1).max()), abs=1e-4)
    assert model.name == family
    assert not model.network.model.training
    assert not any(weight.requires_grad for weight in model.network.model.parameters())


def test_the_default_on_a_cpu_is_float32(checkpoint: Path) -> None:
    fast = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16)
    fast.save_pretrained(checkpoint)
    assert semcal.load_model(checkpoint, device="cpu").network.dtype == torch.float32
    assert semcal.load_model(checkpoint, device="cpu", dtype="auto").network.dtype == torch.bfloat16
    assert semcal.load_model(checkpoint, device="cpu", dtype="bfloat16").network.dtype == torch.bfloat16
    assert semcal.load_model(checkpoint, device="cpu", dtype=torch.float64).network.dtype == torch.float64


def test_the_best_device_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert choose_device() == torch.device("cpu")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device() == torch.device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device() == torch.device("cuda")
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    "options",
    [*({"device": name} for name in ("gpu9", "cuda:99", "cpu:1")), {"dtype": "float23"}, {"dtype": "int64"}],
)
def test_a_device_or_dtype_that_does_not_exist_is_wrong_usage(
    checkpoint: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=str(next(iter(options.values())))):
        semcal.load_model(checkpoint, **options)


def test_sampling_settings_of_the_checkpoint_are_left_behind_and_its_ends_of_text_kept(
    checkpoint: Path,
) -> None:
    path = checkpoint / "generation_config.json"
    settings = json.loads(path.read_text())
    path.write_text(
        json.dumps({**settings, "eos_token_id": [2, 9], "temperature": 0.1, "top_k": 1, "top_p": 0.5,
                    "repetition_penalty": 2.0, "do_sample": True})
    )  # fmt: skip
    model = semcal.load_model(checkpoint)
    assert {2, 9} <= model.format.stops
    config = model.network.model.generation_config
    assert (config.temperature, config.top_k, config.top_p, config.repetition_penalty) == (None,) * 4
    assert config.eos_token_id == [2, 9]


def test_the_revision_of_a_directory_changes_with_each_of_its_parts(
    checkpoint: Path,
) -> None:
    first = semcal.load_model(checkpoint).revision
    assert first.startswith("sha256:")
    assert len(first) == len("sha256:") + 64
    (checkpoint / "README.md").write_text("notes")
    assert semcal.load_model(checkpoint).revision == first
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-5}))
    second = semcal.load_model(checkpoint).revision
    tiny_models.model("llama", vocabulary=config["vocab_size"], seed=1).save_pretrained(checkpoint)
    third = semcal.load_model(checkpoint).revision
    (checkpoint / "tokenizer.json").write_text((checkpoint / "tokenizer.json").read_text() + "\n")
    assert len({first, second, third, semcal.load_model(checkpoint).revision}) == 4


ATTENDS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
GLOBAL_AND_LOCAL = [[["global", "local"], 1]]


@pytest.mark.parametrize(
    ("kind", "settings", "part"),
    [
        *((kind, {}, "ALiBi") for kind in ("bloom", "mpt")),
        ("falcon", {"alibi": True}, "ALiBi"),
        *((kind, {}, "recurrent") for kind in ("mamba", "mamba2", "rwkv", "jamba", "falcon_h1", "minimax")),
        *((kind, {}, "recurrent") for kind in ("qwen3_next", "recurrent_gemma", "granitemoehybrid")),
        ("lfm2", {**ATTENDS, "layer_types": ["conv", "full_attention"]}, "recurrent"),
        ("gpt_neo", {"num_layers": 2, "attention_types": GLOBAL_AND_LOCAL}, "local attention"),
        *((kind, {}, "local attention") for kind in ("llama4", "llama4_text")),
    ],
)
def test_a_model_that_cannot_run_says_why_and_what_helps_before_its_weights_are_read(
    tmp_path: Path, kind: str, settings: dict[str, Any], part: str
) -> None:
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} does not know {kind}")
    transformers.AutoConfig.for_model(kind, **settings).save_pretrained(tmp_path / "m")
    with pytest.raises(ModelError, match=f"{kind[:6]}.*{part}.*--model openai:URL#NAME"):
        semcal.load_model(tmp_path / "m")


def test_a_type_is_not_refused_where_its_configuration_has_none_of_these_layers() -> None:
    for kind, settings in (
        ("falcon", {"alibi": False}),
        ("gpt_neo", {"num_layers": 2, "attention_types": [[["global"], 2]]}),
        ("lfm2", {**ATTENDS, "layer_types": ["full_attention"] * 2}),
        (
            "granitemoehybrid",
            {**ATTENDS, "layer_types": ["attention"] * 2, "mamba_n_heads": 8, "mamba_d_head": 8},
        ),
        ("gemma3_text", {}),
        ("gpt_oss", {}),
    ):
        check_supported("m", transformers.AutoConfig.for_model(kind, **settings))


@pytest.mark.parametrize("path", ["./nowhere", "/no/such/model", "~/no/such/model", "a/b/c", Path("nowhere")])
def test_a_directory_that_is_not_there_is_named(path: str | Path) -> None:
    with pytest.raises(ModelError, match=f"{path}"):
        semcal.load_model(path)


def test_a_checkpoint_in_the_hub_s_cache_is_read_there_if_the_hub_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []

    def kept(*_: Any, local_files_only: bool = False, **__: Any) -> None:
        asked.append(local_files_only)
        raise OSError("damaged")

    monkeypatch.setattr(transformers.PretrainedConfig, "get_config_dict", kept)
    monkeypatch.setattr("semcal.hub_names.is_cached", lambda *_, **__: True)
    for reason in ("it rains", None):
        monkeypatch.setattr("semcal.hub_names.unreachable", lambda reason=reason: reason)
        with pytest.raises(ModelError, match=r"'owner/model'.*damaged"):
            semcal.load_model("owner/model")
    assert asked == [True, False]


def test_the_embedded_models_have_names_in_python_too() -> None:
    assert semcal.load_model("atlas").name == "language_model"
    assert semcal.load_equivalence("atlas").name == "nli_model"
    with pytest.raises(ModelError, match=r"atlsa.*'atlas'"):
        semcal.load_equivalence("atlsa")


def test_what_is_no_causal_language_model_is_refused(tmp_path: Path) -> None:
    tiny_nli.save(tmp_path)
    with pytest.raises(ModelError, match="causal"):
        semcal.load_model(tmp_path)
    T5Config(vocab_size=400).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="encoder-decoder"):
        semcal.load_model(tmp_path)
    (tmp_path / "model.bin").write_text("x")
    with pytest.raises(ModelError, match=r"model\.bin': the directory does not exist"):
        semcal.load_model(tmp_path / "model.bin")


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")],
)
def test_too_little_memory_is_not_blamed_on_the_files(error: Exception) -> None:
    with (
        pytest.raises(ModelError, match="memory"),
        as_model_error("its weights", "."),
    ):
        raise error
