"""Unpack GGUFs into checkpoints.

A GGUF is unpacked once, by the reader of transformers, into a checkpoint in the user's cache. The copy is
identified by name, size and time of the GGUF and by the dtype.
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semcal.errors import MissingExtraError, ModelError, SemcalWarning, shown
from semcal.files import LOCK, atomic_folder, file_lock, read_sealed, user_cache, write_sealed
from semcal.hub_names import Location, llama_cpp_line
from semcal.models.checkpoint import as_model_error, silenced

if TYPE_CHECKING:
    import torch


#: Version of the unpacked checkpoint.
_GGUF_FORMAT = 3
#: Bytes of all files except the weights.
_BYTES_BESIDE_WEIGHTS = 5 * 10**7
#: Seconds to wait for another process that unpacks the same file.
_LOCK_SECONDS = 3600.0
_BLOCK = re.compile(r"\bblk\.(\d+)\.")
#: Names in llama.cpp of patterns that split a text before BPE: that of GPT-2, and GPT-2 after single digits.
_GPT2 = {"gpt-2", "mpt", "olmo", "jais", "trillion", "phi-2", "default"}
_DIGITS = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum"}
#: Texts of control tokens that always end an answer, as in llama.cpp.
_ENDS = {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>"}
_CONTROL = 3
_ARCHITECTURE = "general.architecture"


def gguf_cache() -> Path:
    """Return the folder of unpacked models."""
    return user_cache("gguf")


def unpacked_folder(path: Path, kind: str) -> Path:
    """Return the folder of an unpacked GGUF with a dtype ("float32")."""
    status = path.stat()
    identity = f"{path.name}:{status.st_size}:{status.st_mtime_ns}".encode(errors="surrogateescape")
    return gguf_cache() / f"{hashlib.sha256(identity).hexdigest()[:32]}-{kind}"


def unpacked(failure: str, location: Location, dtype: torch.dtype | None) -> Location:
    """Return the checkpoint of a GGUF, and unpack it if needed; without a dtype, only its tokenizer.

    ModelError, which begins with `failure`, if the file is damaged, is not a language model, cannot be read
    by transformers, or if disk space is missing.
    """
    import transformers

    path = Path(location.source)
    try:
        folder = unpacked_folder(path, "tokenizer" if dtype is None else str(dtype).split(".")[-1])
        key = {"format": _GGUF_FORMAT, "transformers": transformers.__version__}
        seal = _seal_of_whole(folder, key)
        if seal is None:
            folder.parent.mkdir(parents=True, exist_ok=True)
            busy = f"{failure}: another process has been unpacking it for an hour. Wait for it, or end it"
            with file_lock(folder.with_name(f".{folder.name}{LOCK}"), busy, patience=_LOCK_SECONDS):
                seal = _seal_of_whole(folder, key)
                if seal is None:
                    shutil.rmtree(folder, ignore_errors=True)
                    with atomic_folder(folder) as part:
                        _unpack(failure, path, part, dtype)
                    with path.open("rb") as file:
                        digest = hashlib.file_digest(file, "sha256").hexdigest()
                    seal = {"key": key, "of": str(path), "sha256": digest}
                    write_sealed(folder.with_suffix(".json"), seal)
    except OSError as error:
        raise ModelError(
            f"{failure}: it cannot be read, or unpacked into {gguf_cache()} ({error.strerror or error}). Set "
            "SEMCAL_CACHE to a writable folder with free space"
        ) from error
    return replace(location, source=str(folder), revision=f"sha256:{seal['sha256']}", gguf=False)


def _seal_of_whole(folder: Path, key: dict[str, Any]) -> dict[str, Any] | None:
    """Return the seal of an unpacked GGUF, which is written last; None without one."""
    seal = read_sealed(folder.with_suffix(".json"))
    return seal if seal is not None and seal.get("key") == key and folder.is_dir() else None


def _unpack(failure: str, path: Path, folder: Path, dtype: torch.dtype | None) -> None:
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    reader = _open_gguf(failure, path)
    needed = _BYTES_BESIDE_WEIGHTS
    if dtype is not None:
        needed += sum(int(tensor.n_elements) for tensor in reader.tensors) * dtype.itemsize
    if needed > (free := shutil.disk_usage(folder).free):
        raise ModelError(
            f"{failure}: unpacking needs {needed:,} bytes, and {free:,} are free in {gguf_cache()}. Free "
            "some space, or set SEMCAL_CACHE to another folder"
        )
    link = folder / "model.gguf"  # alone in its folder, so that no file next to the GGUF is read
    link.symlink_to(path.resolve())
    with _reading_gguf(failure, path):
        config = AutoConfig.from_pretrained(folder, gguf_file=link.name, trust_remote_code=False)
        if dtype is not None:  # a tokenizer alone runs no model
            from semcal.models.engine.network import check_supported

            check_supported(failure, config)
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=link.name, trust_remote_code=False)
        _check_positions(reader, config)
    ends = _settle_tokenizer(reader, tokenizer)
    with _reading_gguf(failure, path):
        if dtype is not None:
            _write_weights(config, folder, dtype)
        link.unlink()
        config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        GenerationConfig(eos_token_id=ends, bos_token_id=config.bos_token_id).save_pretrained(folder)


@contextmanager
def _reading_gguf(failure: str, path: Path) -> Iterator[None]:
    """Add a command for llama.cpp to the error if transformers cannot read this kind of GGUF."""
    with silenced(), as_model_error(failure, str(path.parent)):
        try:
            yield
        except (NotImplementedError, ValueError, KeyError) as error:
            reason = f"{failure}: transformers cannot read it ({error})"
            raise ModelError(f"{reason}; {llama_cpp_line(path)}") from error


def _open_gguf(failure: str, path: Path) -> Any:
    try:
        import gguf
    except ImportError as error:
        raise MissingExtraError("gguf", "gguf") from error
    try:
        reader = gguf.GGUFReader(path)
        kind = _value(reader, "general.type", "model")
        architecture = _value(reader, _ARCHITECTURE, "")
    except Exception as error:
        reason = f"{failure}: the package gguf cannot read {path} ({error}). Download it again"
        raise ModelError(f"{reason}, or {llama_cpp_line(path)}") from error
    if _value(reader, "split.count", 0) > 1:
        raise ModelError(
            f"{failure}: it is one part of a split file. Join the parts (llama-gguf-split --merge FIRST_PART "
            "whole.gguf), and pass the result"
        )
    if kind != "model":
        raise ModelError(f"{failure}: it is of type {kind!r}. Pass the GGUF of the language model")
    stated = _value(reader, f"{architecture}.block_count", 0)
    blocks = {found[1] for tensor in reader.tensors if (found := _BLOCK.search(tensor.name))}
    if not isinstance(stated, int) or stated > len(blocks):  # missing layers would be random numbers
        raise ModelError(
            f"{failure}: {architecture}.block_count is {shown(stated)}, and {path} has {len(blocks)} layers. "
            "Download the file again"
        )
    return reader


def _value(reader: Any, key: str, missing: Any = None) -> Any:
    return reader.fields[key].contents() if key in reader.fields else missing


def _check_positions(reader: Any, config: Any) -> None:
    """Copy the scaling of positions of llama models; reject scaling that the reader would ignore."""
    rope = getattr(config, "rope_parameters", None) or {}
    scaling = _value(reader, f"{_value(reader, _ARCHITECTURE)}.rope.scaling.type", "none")
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    if rope.get("rope_type", "default") != "default":
        return
    if scaling != "none" or "rope_factors_long.weight" in tensors:
        raise ValueError(f"its positions have the scaling {scaling!r}, which is not supported")
    if "rope_freqs.weight" in tensors:
        factors = [float(tensor) for tensor in tensors["rope_freqs.weight"]]
        config.rope_parameters = {
            **rope,
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "attention_factor": 1.0,
            "original_max_position_embeddings": config.max_position_embeddings,
        }


def _settle_tokenizer(reader: Any, tokenizer: Any) -> list[int]:
    """Make the tokenizer split texts like llama.cpp, and return the tokens that end an answer."""
    from tokenizers import pre_tokenizers

    backend = tokenizer.backend_tokenizer
    split = _value(reader, "tokenizer.ggml.pre", "default")
    if isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel) and split in _DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
    elif isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel) and split not in _GPT2:
        message = f"the rule {split!r} of llama.cpp for splitting texts is unknown; that of GPT-2 is used"
        warnings.warn(f"{message}, and tokens may differ from llama.cpp", SemcalWarning, stacklevel=2)
    kinds = _value(reader, "tokenizer.ggml.token_type", [])
    texts = _value(reader, "tokenizer.ggml.tokens", [])
    ends = {number for number, text in enumerate(texts) if text in _ENDS and kinds[number] == _CONTROL}
    ends |= {_value(reader, f"tokenizer.ggml.{key}_token_id", -1) for key in ("eos", "eot", "eom")}
    return sorted({int(number) for number in ends if number >= 0})


def _write_weights(config: Any, folder: Path, dtype: torch.dtype) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    with redirect_stderr(io.StringIO()):  # a progress bar
        loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf", dtype=dtype)
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    model.save_pretrained(folder)
