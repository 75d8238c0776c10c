"""A GGUF as a language model: unpacked once, by transformers' reader, into a checkpoint in the user's cache.

Its tensors are dequantised and written one at a time, so that unpacking takes less memory than the model. A
copy is known by the GGUF's sha256 and the dtype, and is made again when a file of it has changed.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import json
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semcal.errors import MissingExtraError, ModelError, SemcalWarning, shown
from semcal.hub_names import Location, llama_cpp_line
from semcal.records import LOCK, atomic_folder, file_lock, own_files, read_sealed, user_cache, write_sealed

if TYPE_CHECKING:
    import torch
    from torch import Tensor

#: Changes when what is unpacked from the same file changes.
FORMAT = 1
#: Bytes of all files but the weights.
REST = 5 * 10**7
#: Seconds to wait for another process that unpacks the same file.
PATIENCE = 3600.0
#: Architectures that write no text: parts of models that see, and what embeds or transcribes.
_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
_NO_TEXT = re.compile(r"clip|mmproj|.*bert.*|t5encoder|whisper|.*embed.*")
#: Names that llama.cpp gives to patterns which split a text before BPE: GPT-2's, and GPT-2's after digits.
_GPT2 = {"gpt-2", "mpt", "olmo", "jais", "trillion", "phi-2", "default"}
_DIGITS = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum"}
#: Texts of control tokens that end an answer, whatever the file says, as in llama.cpp.
_ENDS = {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>"}
_CONTROL = 3
_ARCHITECTURE = "general.architecture"
#: Kinds of numbers by their names in PyTorch and in safetensors.
_KINDS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}


def cache() -> Path:
    """The folder of unpacked models."""
    return user_cache("gguf")


def unpacked_folder(path: Path, kind: str) -> tuple[Path, str]:
    """Where a GGUF is unpacked to, by its content and dtype ("float32"), and its sha256."""
    digest = _sha256(path)
    return cache() / f"{digest[:32]}-{kind}", digest


def unpacked(what: str, location: Location, dtype: torch.dtype | None) -> Location:
    """The checkpoint that a GGUF is unpacked to, made unless there; without a dtype, its tokenizer.

    ModelError, which begins with `what`, if the file is damaged, is no language model, or one that
    transformers does not read, or if there is no room for it.
    """
    import transformers

    path = Path(location.source)
    try:
        folder, digest = unpacked_folder(path, "tokenizer" if dtype is None else str(dtype).split(".")[-1])
        key = {"format": FORMAT, "sha256": digest, "transformers": transformers.__version__}
        if not _is_whole(folder, key):
            folder.parent.mkdir(parents=True, exist_ok=True)
            busy = f"{what}: another process has been unpacking it for an hour; wait for it or end it"
            with file_lock(folder.with_name(f".{folder.name}{LOCK}"), busy, patience=PATIENCE):
                if not _is_whole(folder, key):
                    shutil.rmtree(folder, ignore_errors=True)
                    with atomic_folder(folder) as part:
                        _unpack(what, path, part, dtype)
                    write_sealed(
                        folder.with_suffix(".json"), {"key": key, "of": str(path), "files": _files(folder)}
                    )
    except OSError as error:
        raise ModelError(
            f"{what}: it cannot be read, or unpacked into {cache()} ({error.strerror or error}); "
            "set SEMCAL_CACHE to a folder with room that can be written"
        ) from error
    return replace(location, source=str(folder), revision=f"sha256:{digest}", gguf=False)


def _sha256(path: Path) -> str:
    """Of a file; kept by path, size and times, for hashing takes seconds."""
    found = path.stat()
    whole = str(path.resolve())
    key = [whole, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
    name = hashlib.sha256(whole.encode(errors="surrogateescape")).hexdigest()[:32]
    kept = cache() / "hashes" / f"{name}.json"
    known = read_sealed(kept)
    if known is not None and known.get("key") == key:
        return str(known["sha256"])
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with suppress(OSError):
        write_sealed(kept, {"key": key, "sha256": digest})
    return digest


def _files(folder: Path) -> dict[str, list[int]]:
    """Size and time of change of each file: one that was cut short or edited later has others."""
    return {one.name: [one.stat().st_size, one.stat().st_mtime_ns] for one in own_files(folder)}


def _is_whole(folder: Path, key: dict[str, Any]) -> bool:
    seal = read_sealed(folder.with_suffix(".json"))
    return seal is not None and seal.get("key") == key and folder.is_dir() and seal["files"] == _files(folder)


def _unpack(what: str, path: Path, folder: Path, dtype: torch.dtype | None) -> None:
    """Write a checkpoint with the content of a GGUF."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    from semcal.engine.checkpoints import as_model_error, silenced

    reader = _opened(what, path)
    needed = REST
    if dtype is not None:
        needed += sum(int(one.n_elements) for one in reader.tensors) * dtype.itemsize
    if needed > (free := shutil.disk_usage(folder).free):
        raise ModelError(
            f"{what}: unpacked it takes {needed:,} bytes, and {free:,} are free in {cache()}; make room "
            "there, or set SEMCAL_CACHE to a folder with more"
        )
    link = folder / "model.gguf"  # alone in its folder: what lies beside the file is not read
    link.symlink_to(path.resolve())
    given: Any = {"gguf_file": link.name, "trust_remote_code": False}
    with silenced(), as_model_error(what, str(folder)), _told(what, path):
        config = AutoConfig.from_pretrained(folder, **given)
        tokenizer = AutoTokenizer.from_pretrained(folder, **given)
        _check_positions(reader, config)
    ends = _settle(reader, tokenizer)
    with silenced(), as_model_error(what, str(folder)), _told(what, path):
        reader.fields = {key: reader.fields[key] for key in (_ARCHITECTURE,)}  # the others take much memory
        getattr(ctypes.CDLL(None), "malloc_trim", int)(0)  # glibc would keep it
        if dtype is not None:
            _write_weights(reader, config, folder, dtype)
        link.unlink()
        config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        GenerationConfig(eos_token_id=ends, bos_token_id=config.bos_token_id).save_pretrained(folder)


@contextmanager
def _told(what: str, path: Path) -> Iterator[None]:
    """Name what serves a GGUF where transformers does not read one of its kind."""
    try:
        yield
    except (NotImplementedError, ValueError, KeyError) as error:
        if not re.search("not supported|Supported|Unknown gguf|not yet implemented|no rule", str(error)):
            raise
        reason = f"{what}: transformers does not read it ({error})"
        raise ModelError(f"{reason}; {llama_cpp_line(path)}") from error


def _opened(what: str, path: Path) -> Any:
    """gguf's reader of a file that is a whole GGUF of a language model."""
    try:
        import gguf
    except ImportError as error:
        raise MissingExtraError("gguf", "gguf") from error
    with path.open("rb") as file:
        start = file.read(4)
    if start != b"GGUF":
        raise ModelError(f"{what}: {path} is no GGUF, it begins with {shown(start)}; fetch it again")
    try:
        reader = gguf.GGUFReader(path)
        kind = _value(reader, "general.type", "model")
        architecture = _value(reader, _ARCHITECTURE, "")
    except Exception as error:
        if "GGMLQuantizationType" in str(error):
            raise ModelError(f"{what}: {error}, by the package gguf; {llama_cpp_line(path)}") from error
        raise ModelError(f"{what}: {path} is damaged or was cut short ({error}); fetch it again") from error
    if _SPLIT.search(path.name) or _value(reader, "split.count", 0) > 1:
        raise ModelError(
            f"{what}: it is one part of a split file; join the parts (llama-gguf-split --merge FIRST_PART "
            "whole.gguf) and give the whole"
        )
    if kind != "model" or _NO_TEXT.match(architecture):
        raise ModelError(
            f"{what}: it holds no language model (type {kind!r}, architecture {architecture!r}); give the "
            "GGUF of the model that writes text"
        )
    return reader


def _value(reader: Any, key: str, missing: Any = None) -> Any:
    """What a GGUF says under a key."""
    return reader.fields[key].contents() if key in reader.fields else missing


def _check_positions(reader: Any, config: Any) -> None:
    """Take over what scales the positions of llama models; refuse what transformers' reader would drop."""
    rope = getattr(config, "rope_parameters", None) or {}
    scaling = _value(reader, f"{_value(reader, _ARCHITECTURE)}.rope.scaling.type", "none")
    tensors = {one.name: one.data for one in reader.tensors}
    if rope.get("rope_type", "default") != "default":
        return
    if scaling != "none" or "rope_factors_long.weight" in tensors:
        raise ValueError(f"there is no rule for its positions, scaled by {scaling!r}")
    if "rope_freqs.weight" in tensors:
        factors = [float(one) for one in tensors["rope_freqs.weight"]]
        config.rope_parameters = {
            **rope,
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "attention_factor": 1.0,
            "original_max_position_embeddings": config.max_position_embeddings,
        }


def _settle(reader: Any, tokenizer: Any) -> list[int]:
    """Split texts as llama.cpp does, and return the tokens that end an answer."""
    from tokenizers import pre_tokenizers

    backend = tokenizer.backend_tokenizer
    split = _value(reader, "tokenizer.ggml.pre", "default")
    if isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel) and split in _DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
    elif isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel) and split not in _GPT2:
        told = f"transformers does not know how {split!r} splits texts, so they are split as GPT-2's"
        warnings.warn(f"{told}; tokens may differ from llama.cpp's", SemcalWarning, stacklevel=2)
    kinds = _value(reader, "tokenizer.ggml.token_type", [])
    texts = _value(reader, "tokenizer.ggml.tokens", [])
    ends = {number for number, text in enumerate(texts) if text in _ENDS and kinds[number] == _CONTROL}
    ends |= {_value(reader, f"tokenizer.ggml.{key}_token_id", -1) for key in ("eos", "eot", "eom")}
    return sorted({int(one) for one in ends if one >= 0})


def _write_weights(reader: Any, config: Any, folder: Path, dtype: torch.dtype) -> None:
    """Write safetensors: tensor by tensor, or where that cannot be done by transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    read = _one_by_one(reader, config, model)
    if read is None:
        with redirect_stderr(io.StringIO()):  # a progress bar
            loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf", dtype=dtype)
        model.load_state_dict(loaded.state_dict(), assign=True)
        model.tie_weights()
        model.save_pretrained(folder)
        return
    names, tensor_of = read
    shapes, end = model.state_dict(), 0
    kind = _KINDS[str(dtype).split(".")[-1]]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    tensors = [one for one in reader.tensors if one.name in names]
    for one in tensors:
        start, end = end, end + int(one.n_elements) * dtype.itemsize
        shape = list(shapes[names[one.name]].shape)
        header[names[one.name]] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    told = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(told).to_bytes(8, "little") + told)
        for one in tensors:
            values = tensor_of(one).to(dtype).contiguous()
            file.write(values.view(torch.uint8).numpy().data)


def _one_by_one(reader: Any, config: Any, model: Any) -> tuple[dict[str, str], Callable[..., Tensor]] | None:
    """The model's names of tensors, and what reads one; None where several make one."""
    import torch
    from gguf import dequantize

    try:
        from transformers import modeling_gguf_pytorch_utils as reading
        from transformers.integrations.gguf.utils import is_gguf_arch_supported
    except ImportError:  # another version of transformers
        return None
    architecture = _value(reader, _ARCHITECTURE)
    processor = reading.TENSOR_PROCESSORS.get(architecture, reading.TensorProcessor)(config=config.to_dict())
    names = reading.get_gguf_hf_weights_map(model, processor)
    found = [names[one.name] for one in reader.tensors if one.name in names]
    lacking = set(model.state_dict()) - set(found) - set(model.all_tied_weights_keys)
    if is_gguf_arch_supported(architecture) or lacking or len(found) != len(set(found)):
        return None

    def read(one: Any) -> Tensor:
        values = dequantize(one.data, one.tensor_type)
        held = {"tensor_key_mapping": names, "parsed_parameters": {"tensors": {}}}
        values = processor.process(weights=values, name=one.name, **held).weights
        return torch.from_numpy(values if values.flags.writeable else values.copy())

    return names, read
