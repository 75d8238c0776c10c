"""Language models from a GGUF: exact, unpacked once, whole or not at all, and refused in words."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import warnings
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import semcal
from semcal.demo.paths import language_model_dir
from semcal.errors import MissingExtraError, ModelError, SemcalWarning, UsageError
from semcal.hub_names import LANGUAGE_MODEL, locate
from semcal.models import gguf as unpacking
from semcal.workers import PRELOAD, start_context

gguf = pytest.importorskip("gguf")
write_gguf = pytest.importorskip("tools.gguf").write_gguf

pytestmark = pytest.mark.filterwarnings("ignore:the rule 'abacus':UserWarning")

IDS = torch.arange(40, 60)[None]


def quantised(source: Path, out: Path, kind: str, **changed: Any) -> Path:
    """A GGUF with the matrices of another in blocks of a kind, and other settings."""
    added = changed.pop("tensors", {})
    blocks, reader = gguf.GGMLQuantizationType[kind], gguf.GGUFReader(source)
    settings = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    architecture = changed.pop("architecture", settings["general.architecture"].contents())
    writer = gguf.GGUFWriter(out, architecture)
    for key, field in settings.items():
        if key == "general.architecture" or key in changed:
            continue
        sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type=sub)
    for key, (value, type_) in ((key, given) for key, given in changed.items() if given is not None):
        writer.add_key_value(key, value, type_)
    for tensor in reader.tensors:
        values = np.asarray(tensor.data)
        if values.ndim > 1 and blocks != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, blocks), raw_dtype=blocks)
        else:
            writer.add_tensor(tensor.name, values.copy())
    for name, values in added.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


TEXT = gguf.GGUFValueType.STRING


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model; do not change it."""
    return tiny_models.save(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def written(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It as a GGUF; do not change it."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(checkpoint, path)
    return path


@pytest.fixture
def model(written: Path, tmp_path: Path) -> Path:
    """A copy, which a test may change."""
    return Path(shutil.copy(written, tmp_path / "tiny.gguf"))


@pytest.fixture
def folder(model: Path, own_cache: Path) -> Path:
    """What it was unpacked to."""
    return Path(unpacking.unpacked("m", locate(model, LANGUAGE_MODEL), torch.float32).source)


def logits(network: Any) -> torch.Tensor:
    with torch.no_grad():
        return network(IDS).logits.float()


def own_logits(path: Path, **options: Any) -> torch.Tensor:
    return logits(semcal.load_model(path, device="cpu", **options).network.model)


def test_the_embedded_model_as_a_gguf_is_the_embedded_model(language_model_gguf: Path) -> None:
    loaded = semcal.load_model(language_model_gguf, device="cpu")
    assert loaded.name == "atlas.gguf"
    assert loaded.revision == f"sha256:{hashlib.sha256(language_model_gguf.read_bytes()).hexdigest()}"
    expected = logits(semcal.load_model("atlas", device="cpu").network.model)
    assert torch.allclose(logits(loaded.network.model), expected, atol=1e-5)
    template = (language_model_dir() / "chat_template.jinja").read_text()
    assert loaded.tokenizer.chat_template == template


@pytest.mark.parametrize("kind", ["BF16", "Q4_1", "Q8_0"])
def test_logits_are_those_of_transformers_own_reading(model: Path, tmp_path: Path, kind: str) -> None:
    path = quantised(model, tmp_path / f"{kind}.gguf", kind)
    own = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32)
    assert torch.allclose(own_logits(path), logits(own), atol=1e-4)


def test_a_dtype_has_a_copy_of_its_own(model: Path) -> None:
    own = AutoModelForCausalLM.from_pretrained(model.parent, gguf_file=model.name, dtype=torch.bfloat16)
    assert torch.equal(own_logits(model, dtype="bfloat16"), logits(own))
    assert own_logits(model, dtype="auto").equal(own_logits(model))
    kinds = {path.name.rpartition("-")[2] for path in unpacking.gguf_cache().glob("*-*") if path.is_dir()}
    assert kinds == {"bfloat16", "float32"}
    with pytest.raises(UsageError, match="dtype"):
        semcal.load_model(model, dtype="int3")


def test_a_second_start_unpacks_nothing(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = semcal.load_model(model, device="cpu")
    monkeypatch.setattr(unpacking, "_unpack", None)
    assert semcal.load_model(model, device="cpu").revision == first.revision
    model.write_bytes(model.read_bytes())  # another time of change
    with pytest.raises(TypeError):
        semcal.load_model(model, device="cpu")


def test_a_copy_without_a_whole_seal_is_made_again(folder: Path, model: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "config.json").unlink()
    folder.with_suffix(".json").write_text("{}")
    assert own_logits(model).isfinite().all()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def _die_at_the_weights(path: Path, cache: Path) -> None:
    unpacking.gguf_cache = lambda: cache
    unpacking._write_weights = lambda *_: os._exit(9)
    unpacking.unpacked("m", locate(path, LANGUAGE_MODEL), torch.float32)


def test_a_killed_process_leaves_nothing_that_is_taken_for_whole(model: Path) -> None:
    process = start_context(PRELOAD).Process(target=_die_at_the_weights, args=(model, unpacking.gguf_cache()))
    process.start()
    process.join(120)
    assert process.exitcode == 9
    parts = list(unpacking.gguf_cache().glob(".*.semcal.part"))
    assert len(parts) == 1
    assert own_logits(model).isfinite().all()
    left = [path.name for path in unpacking.gguf_cache().iterdir() if path.name.startswith(".")]
    assert left == []


def _unpack_counted(path: Path, cache: Path, counted: Path, answers: Any) -> None:
    plain = unpacking._unpack
    unpacking.gguf_cache = lambda: cache

    def unpack(*given: Any) -> None:
        with counted.open("a") as file:
            file.write("x")
        plain(*given)

    unpacking._unpack = unpack
    answers.put(unpacking.unpacked("m", locate(path, LANGUAGE_MODEL), torch.float32).source)


def test_two_processes_unpack_once(model: Path, tmp_path: Path) -> None:
    clean = start_context(PRELOAD)
    answers: Any = clean.Queue()
    how = (model, unpacking.gguf_cache(), tmp_path / "n", answers)
    both = [clean.Process(target=_unpack_counted, args=how) for _ in range(2)]
    for one in both:
        one.start()
    assert answers.get(timeout=120) == answers.get(timeout=120)
    for one in both:
        one.join()
    assert (tmp_path / "n").read_text() == "x"


def test_too_little_room_is_told_before_anything_is_written(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 1234))
    with pytest.raises(ModelError, match=r"1,234 .*SEMCAL_CACHE"):
        semcal.load_model(model)
    assert not any(path.is_dir() for path in unpacking.gguf_cache().iterdir())


def test_without_the_package_the_extra_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtraError, match=r"semcal\[gguf\]"):
        semcal.load_model(model)


def other(**changed: Any) -> Any:
    """Make another file beside it, with other settings."""
    return lambda path: quantised(path, path.with_name("other.gguf"), "F32", **changed)


def cut(share: float) -> Any:
    return lambda path: os.truncate(path, int(path.stat().st_size * share)) or path


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda path: path.with_name("none.gguf"), r"none\.gguf: the file does not exist"),
        (lambda path: path.write_bytes(b"PK\3\4") and path, r"tiny\.gguf"),
        *((cut(share), r"cannot read \S+tiny\.gguf") for share in (0.0005, 0.05, 0.99)),
        (other(**{"split.count": (3, gguf.GGUFValueType.UINT16)}), "--merge"),
        (other(**{"general.type": ("adapter", TEXT)}), "'adapter'"),
        (other(architecture="abacus"), r"llama-server -m \S+other\.gguf"),
        (other(**{"llama.rope.scaling.type": ("yarn", TEXT)}), r"llama-server -m \S+other\.gguf"),
        *(
            (other(**{"llama.block_count": (layers, gguf.GGUFValueType.UINT32)}), r"llama\.block_count")
            for layers in (99, 2**31)
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_words(model: Path, make: Any, named: str) -> None:
    path = make(model)
    with pytest.raises(ModelError, match=named):
        semcal.load_model(path)
    assert not list(unpacking.gguf_cache().glob("*-float32"))


def test_a_file_of_a_kind_that_does_not_run_is_refused_before_it_is_unpacked(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match="GGUF"):
        semcal.load_equivalence(model)
    monkeypatch.setattr(AutoConfig, "from_pretrained", lambda *_, **__: AutoConfig.for_model("bloom"))
    with pytest.raises(ModelError, match="--model"):
        semcal.load_model(model)
    assert not list(unpacking.gguf_cache().glob("*-float32"))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SEMCAL_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="SEMCAL_CACHE"):
        semcal.load_model(model)


def test_its_tokenizer_alone_is_unpacked_for_a_server(model: Path, checkpoint: Path) -> None:
    found = Path(unpacking.unpacked("m", locate(model, LANGUAGE_MODEL), None).source)
    assert not list(found.glob("*.safetensors"))
    own = AutoTokenizer.from_pretrained(checkpoint)
    assert AutoTokenizer.from_pretrained(found)("Who built it?") == own("Who built it?")


@pytest.mark.parametrize(("split", "digits"), [("gpt-2", False), ("smollm", True), ("abacus", False)])
def test_texts_are_split_as_llama_cpp_splits_them(
    model: Path, tmp_path: Path, split: str, digits: bool
) -> None:
    path = quantised(model, tmp_path / "other.gguf", "F32", **{"tokenizer.ggml.pre": (split, TEXT)})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = unpacking.unpacked("m", locate(path, LANGUAGE_MODEL), None).source
    own = [str(one.message) for one in told if one.category is SemcalWarning]
    assert (len(own), "the rule 'abacus'" in "".join(own)) == ((1, True) if split == "abacus" else (0, False))
    pieces = AutoTokenizer.from_pretrained(found).backend_tokenizer.pre_tokenizer.pre_tokenize_str("\n\n12")
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str("\n\n12")
    assert [text for text, _ in pieces] == (["ĊĊ", "1", "2"] if digits else [text for text, _ in plain])


def test_an_answer_ends_where_llama_cpp_ends_it(model: Path, checkpoint: Path, tmp_path: Path) -> None:
    number = gguf.GGUFValueType.UINT32
    path = quantised(model, tmp_path / "other.gguf", "F32", **{"tokenizer.ggml.eot_token_id": (7, number)})
    found = Path(unpacking.unpacked("m", locate(path, LANGUAGE_MODEL), None).source)
    ends = json.loads((found / "generation_config.json").read_text())["eos_token_id"]
    own = json.loads((checkpoint / "config.json").read_text())["eos_token_id"]
    assert {7, own} <= set(ends)


def test_the_scaled_positions_of_llama_3_are_kept(model: Path, tmp_path: Path) -> None:
    plain = semcal.load_model(model, device="cpu").network.model.model.rotary_emb
    factors = np.linspace(1, 8, len(plain.inv_freq)).astype(np.float32)
    path = quantised(model, tmp_path / "scaled.gguf", "F32", tensors={"rope_freqs.weight": factors})
    scaled = semcal.load_model(path, device="cpu").network.model.model.rotary_emb
    assert np.allclose(scaled.inv_freq.numpy() * factors, plain.inv_freq.numpy(), rtol=1e-6)
    assert scaled.attention_scaling == 1.0
