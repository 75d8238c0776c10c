"""A checkpoint with a temperature folded in gives the original's logits, divided by T."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

import semcal
from semcal.errors import ModelError, UsageError
from semcal.export import fold, folding
from semcal.export.checkpoint import FOLDED, open_checkpoint
from semcal.recalibration import Provenance

T = 1.37
BOTH = ("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gpt2", "opt")


def save(
    directory: Path, family: str, *, dtype: torch.dtype = torch.float32, shard: str = "1GB", **options: Any
) -> Path:
    """A tiny checkpoint whose norms and biases are no longer what they are made as (1 or 0)."""
    model = tiny_models.model(family, **options)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.4 * torch.randn(parameter.shape, generator=generator)
    model.to(dtype).save_pretrained(directory, max_shard_size=shard)
    tiny_models.tokenizer().save_pretrained(directory)
    return directory


def logits(directory: Path) -> Tensor:
    """The logits of plain transformers, on other tokens than `fold` looks at."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    ids = torch.randint(model.config.vocab_size, (3, 24), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits


def miss(folded: Path, original: Path, t: float) -> float:
    wanted = logits(original) / t
    return float((logits(folded) - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", BOTH)
def test_folded_logits_are_logits_over_t(family: str, tied: bool, tmp_path: Path) -> None:
    original = save(tmp_path / "model", family, tied=tied)
    done = fold(original, tmp_path / "folded", temperature=T)
    assert miss(tmp_path / "folded", original, T) < 1e-5
    assert done.error < 1e-5
    assert any("lm_head" in name for name in done.changed) is not tied


@pytest.mark.parametrize(
    ("family", "options", "changed"),
    [
        ("gemma2", {"final_logit_softcapping": 2.0}, ("model.norm.weight", "final_logit_softcapping")),
        ("gemma2", {"final_logit_softcapping": None}, ("model.norm.weight",)),
        ("cohere", {}, ("logit_scale",)),
        ("granite", {}, ("logits_scaling",)),
        ("phi", {"tied": False}, ("lm_head.weight", "lm_head.bias")),
        ("opt", {"word_embed_proj_dim": 16}, ("model.decoder.project_out.weight",)),
        (
            "opt",
            {"do_layer_norm_before": False},
            tuple(f"model.decoder.layers.1.final_layer_norm.{kind}" for kind in ("weight", "bias")),
        ),
    ],
)
def test_caps_scales_biases_and_projections_are_found(
    family: str, options: dict[str, Any], changed: tuple[str, ...], tmp_path: Path
) -> None:
    original = save(tmp_path / "model", family, **{"tied": True, **options})
    done = fold(original, tmp_path / "folded", temperature=0.6)
    assert done.changed == changed
    assert miss(tmp_path / "folded", original, 0.6) < 1e-5


def test_a_cap_bends_the_logits_that_are_tested(tmp_path: Path) -> None:
    capped = save(tmp_path / "capped", "gemma2", tied=True, final_logit_softcapping=2.0)
    free = save(tmp_path / "free", "gemma2", tied=True, final_logit_softcapping=None)
    assert logits(capped).abs().max() < 2 < logits(free).abs().max()


def test_only_what_is_folded_differs(tmp_path: Path) -> None:
    original = save(tmp_path / "model", "llama", tied=True)
    (original / "consolidated.safetensors").write_bytes(b"the same weights in another layout")
    (original / "pytorch_model.bin").write_bytes(b"and in another format")
    (original / "templates").mkdir()
    (original / "templates" / "tool.jinja").write_text("{{ messages }}")
    done = fold(original, tmp_path / "folded", temperature=T)
    assert done.left_out == ("consolidated.safetensors", "pytorch_model.bin")
    before, after = ({p.name for p in d.rglob("*")} for d in (original, tmp_path / "folded"))
    assert before - after == set(done.left_out)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "templates/tool.jinja"):
        assert (tmp_path / "folded" / name).read_bytes() == (original / name).read_bytes()
    old, new = (load_file(d / "model.safetensors") for d in (original, tmp_path / "folded"))
    assert {name for name in old if not torch.equal(old[name], new[name])} == {"model.norm.weight"}


def test_weights_in_many_files_are_folded(tmp_path: Path) -> None:
    original = save(tmp_path / "model", "qwen2", tied=False, shard="40KB")
    assert len(list(original.glob("*.safetensors"))) > 2
    fold(original, tmp_path / "folded", temperature=T)
    assert miss(tmp_path / "folded", original, T) < 1e-5


def test_names_without_the_usual_prefix_are_found(tmp_path: Path) -> None:
    original = save(tmp_path / "model", "gpt2", tied=True)
    tensors = load_file(original / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    save_file(bare, original / "model.safetensors", metadata={"format": "pt"})
    assert fold(original, tmp_path / "folded", temperature=T).changed == ("ln_f.weight", "ln_f.bias")
    assert miss(tmp_path / "folded", original, T) < 1e-5


@pytest.mark.parametrize(
    ("dtype", "spacing"), [(torch.bfloat16, 2**-7), (torch.float16, 2**-10)], ids=["bfloat16", "float16"]
)
@pytest.mark.parametrize(("family", "tied"), [("llama", True), ("llama", False), ("gemma2", True)])
def test_half_precision_stays_and_costs_its_rounding(
    family: str, tied: bool, dtype: torch.dtype, spacing: float, tmp_path: Path
) -> None:
    original = save(tmp_path / "model", family, tied=tied, dtype=dtype)
    done = fold(original, tmp_path / "folded", temperature=T)
    assert {tensor.dtype for tensor in load_file(tmp_path / "folded" / "model.safetensors").values()} == {
        dtype
    }
    assert done.tolerance == spacing
    assert 1e-5 < done.error < spacing
    assert miss(tmp_path / "folded", original, T) < spacing


def test_a_scale_in_the_config_is_exact_in_half_precision(tmp_path: Path) -> None:
    original = save(tmp_path / "model", "granite", tied=True, dtype=torch.bfloat16)
    assert fold(original, tmp_path / "folded", temperature=T).error < 1e-6


def test_a_folded_checkpoint_says_so_and_is_not_folded_again(tmp_path: Path) -> None:
    original = save(tmp_path / "model", "llama", tied=True)
    sampling = {"temperature": 0.6, "top_p": 0.9, "do_sample": True, "eos_token_id": [2, 4]}
    (original / "generation_config.json").write_text(json.dumps(sampling))
    fold(original, tmp_path / "folded", temperature=T, origin={"model": "mine"})
    assert json.loads((tmp_path / "folded" / "config.json").read_text())[FOLDED] == T
    assert json.loads((tmp_path / "folded" / "generation_config.json").read_text()) == {
        "do_sample": True,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "repetition_penalty": 1.0,
        "eos_token_id": [2, 4],
        "semcal": {"model": "mine"},
    }
    with pytest.raises(ModelError, match=r"has T = 1\.37 folded in"):
        fold(tmp_path / "folded", tmp_path / "twice", temperature=T)


def test_a_recalibrator_of_the_original_is_refused_by_the_folded_model(tmp_path: Path) -> None:
    original = save(tmp_path / "model", "llama", tied=True)
    fitted_on = open_checkpoint(original)
    assert fitted_on.revision == semcal.load_model(original).revision
    fold(fitted_on, tmp_path / "folded", temperature=T)
    provenance = Provenance("model", fitted_on.revision, {}, "p", "data", "d", 3)
    folded = semcal.load_model(tmp_path / "folded")
    with pytest.raises(UsageError, match="was fitted on model"):
        provenance.check(model=folded.name, revision=folded.revision)


def test_what_cannot_be_folded_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = save(tmp_path / "model", "gemma2", tied=True, final_logit_softcapping=2.0)
    monkeypatch.setattr(folding, "CAPS", ())  # as if the cap went by a name that is not known
    with pytest.raises(ModelError, match="no way was found to divide the logits of model"):
        fold(original, tmp_path / "folded", temperature=T)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_copy_that_misses_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = save(tmp_path / "model", "llama", tied=True)
    monkeypatch.setattr(folding, "_scaled", lambda weight, _kind, t: weight / (t if t == 2 else t + 0.01))
    with pytest.raises(ModelError, match=r"misses logits/T by \d"):
        fold(original, tmp_path / "folded", temperature=T)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_taken_directory_and_a_senseless_temperature_are_refused(tmp_path: Path) -> None:
    original = save(tmp_path / "model", "llama", tied=True)
    with pytest.raises(UsageError, match="is there already"):
        fold(original, original, temperature=T)
    with pytest.raises(UsageError, match="positive"):
        fold(original, tmp_path / "folded", temperature=0.0)


def test_a_checkpoint_without_safetensors_is_refused(tmp_path: Path) -> None:
    original = save(tmp_path / "model", "llama", tied=True)
    (original / "model.safetensors").rename(original / "pytorch_model.bin")
    with pytest.raises(ModelError, match="only safetensors can be folded"):
        fold(original, tmp_path / "folded", temperature=T)


@pytest.mark.parametrize("content", [b"", b"\x10\0\0\0\0\0\0\0{"])
def test_a_truncated_weight_file_is_said_to_be_damaged(content: bytes, tmp_path: Path) -> None:
    original = save(tmp_path / "model", "llama", tied=True)
    (original / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match="is damaged"):
        fold(original, tmp_path / "folded", temperature=T)
