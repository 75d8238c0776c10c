"""Loading models: checkpoints by transformers, GGUFs unpacked into checkpoints, and equivalences.

Settings are checked first, and failures become a ModelError. Code that comes with a checkpoint is never run:
a checkpoint that asks for it is refused. So are sizes for which building the model would take hours, and
quantisation that transformers would silently ignore.

A GGUF is unpacked once, by transformers' reader, into a checkpoint in the user's cache. Its tensors are
dequantised and written one at a time, so that unpacking takes less memory than the model. A copy is known by
the GGUF's sha256 and the dtype, and is made again when a file of it has changed.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import json
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import replace
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from semcal.errors import (
    MissingExtraError,
    ModelError,
    SemcalError,
    SemcalWarning,
    UsageError,
    naming_extra,
    shown,
)
from semcal.files import LOCK, atomic_folder, file_lock, own_files, read_sealed, user_cache, write_sealed
from semcal.hub_names import LANGUAGE_MODEL, NLI_MODEL, Location, llama_cpp_line, locate
from semcal.models.equivalence import Equivalence, names_a_server

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from semcal.models.causal_lm import CausalLanguageModel

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{unit}I": 2 ** (10 * power) for power, unit in enumerate("KMGT", 1)}
_SIZE_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", re.IGNORECASE)
_ADDRESS_SPACE = 2**63  # no process can address as many bytes
_CODE_KEY = "auto_map"
_COUNTS = re.compile(r"num_\w+|n_layers?")  # modules, or labels, are made one by one for each of these
_AT_LEAST_ONE = ("vocab_size", "num_hidden_layers", "n_layer")
_MOST_MODULES = 10**5
_TOKENIZER_FILES = ("tokenizer*", "vocab*", "merges.txt", "*.model", "chat_template*", "added_tokens.json")
_WEIGHT_FILES = (
    "*.safetensors",
    "*.safetensors.index.json",
    "pytorch_model*.bin",
    "pytorch_model*.bin.index.json",
)
#: Changes when what is unpacked from the same file changes.
_GGUF_FORMAT = 1
#: Bytes of all files but the weights.
_BYTES_BESIDE_WEIGHTS = 5 * 10**7
#: Seconds to wait for another process that unpacks the same file.
_LOCK_SECONDS = 3600.0
_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
_BLOCK = re.compile(r"\bblk\.(\d+)\.")
#: Architectures that write no text: parts of models that see, and what embeds or transcribes.
_NO_TEXT = re.compile(r"clip|mmproj|.*bert.*|t5encoder|whisper|.*embed.*")
#: Names that llama.cpp gives to patterns which split a text before BPE: GPT-2's, and GPT-2's after digits.
_GPT2 = {"gpt-2", "mpt", "olmo", "jais", "trillion", "phi-2", "default"}
_DIGITS = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum"}
#: Texts of control tokens that end an answer, whatever the file says, as in llama.cpp.
_ENDS = {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>"}
_CONTROL = 3
_ARCHITECTURE = "general.architecture"
#: Kinds of numbers by their names in PyTorch and in safetensors.
_SAFETENSORS_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}


def load_model(
    path_or_id: str | Path,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    memory: int | str | None = None,
) -> CausalLanguageModel:
    """Load a causal language model with its tokenizer.

    Temperature, top-p, top-k and repetition penalty of the checkpoint's generation config are not applied;
    its end-of-text tokens are.

    Parameters
    ----------
    path_or_id : str or Path
        A directory in the format of `transformers`, a GGUF, an id on the Hugging Face hub, or "atlas", the
        small model that comes with the package.
    device : str or torch.device, optional
        Where it runs. Default: a CUDA GPU, else Apple's, else the CPU.
    dtype : str or torch.dtype, optional
        "float32", "bfloat16", …; "auto" is the checkpoint's own. Default: float32 on a CPU and for a GGUF,
        "auto" elsewhere.
    revision : str, optional
        Branch, tag or commit on the hub.
    memory : int or str, optional
        Limit on the keys and values of one batch, in bytes or as "2GB"; a question that may need more by
        itself is refused. Default: a quarter of the weights, but at least 64 MiB, and a question that may
        need more runs by itself.

    Returns
    -------
    CausalLanguageModel
        Its `name` is the id or the name of the directory or file; its `revision` is the hub's commit, or
        "sha256:…" of a GGUF, or over the files of a directory.

    Raises
    ------
    ModelError
        If it is not there, cannot be reached, is damaged, or is no causal language model.
    UsageError
        If the device or dtype does not exist, or `memory` is not a size.

    Examples
    --------
    >>> load_model("atlas", device="cpu").name
    'language_model'
    """
    if names_a_server(path_or_id):
        raise UsageError(f"{shown(path_or_id)} is a server, which semcal.load_server connects to")
    needed_by = f"the language model {shown(str(path_or_id))}"
    with naming_extra(needed_by):
        location = locate(path_or_id, LANGUAGE_MODEL, revision=revision)
    if location.gguf:
        needed_by += f" ({llama_cpp_line(Path(location.source))})"
    with naming_extra(needed_by):
        import torch
        from transformers import AutoModelForCausalLM, GenerationConfig

        from semcal.models.causal_lm import CausalLanguageModel
        from semcal.models.network import check_supported
    from semcal.data.question import chat

    torch_device = choose_device(device)
    budget = None if memory is None else parse_size(memory)
    failure = f"cannot load the language model {location.name!r}"
    chosen = choose_dtype(dtype, torch_device)
    if location.gguf:
        chosen = torch.float32 if dtype is None or isinstance(chosen, str) else chosen
        location, revision = unpacked(failure, location, chosen), None
    config = read_config(failure, location, revision)
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{failure}: {config.model_type} is an encoder-decoder, a causal language model is needed"
        )
    with as_model_error(f"{failure}: its configuration", location.source):
        check_supported(failure, config)
    tokenizer, model, report = read_checkpoint(
        failure, location, revision, kind=AutoModelForCausalLM, dtype=chosen, **_attention_of(config)
    )
    if missing := sorted(report.get("missing_keys", ())):  # they would be random numbers
        raise ModelError(
            f"{failure}: the files lack {len(missing)} of its weights ({', '.join(missing[:3])}, …); "
            "it is incomplete, or not a causal language model"
        )
    checkpoint_revision = revision_of(location, config)
    with as_model_error(failure, location.source):
        language_model = CausalLanguageModel(
            model.to(torch_device),
            tokenizer,
            name=location.name,
            revision=checkpoint_revision,
            memory_budget=budget,
            refuse_larger=budget is not None,
            checkpoint=checkpoint_revision,
        )
        language_model.encode_answer(chat("Which?"), "That.")  # fails here if the tokenizer is damaged
    settings = model.generation_config  # its sampling settings are dropped, its special tokens stay
    model.generation_config = GenerationConfig(
        bos_token_id=getattr(settings, "bos_token_id", None),
        eos_token_id=getattr(settings, "eos_token_id", None),
        pad_token_id=getattr(settings, "pad_token_id", None),
    )
    return language_model


def load_cross_encoder(name_or_dir: str | Path, device: str | None, revision: str | None) -> Equivalence:
    """Load an NLI model; ModelError if it cannot be loaded or does not say which label is entailment."""
    with naming_extra(f"the NLI model {shown(str(name_or_dir))}"):
        import torch
        from transformers import AutoModelForSequenceClassification

        from semcal.models.nli import CrossEncoder

    torch_device = choose_device(device)
    location = locate(name_or_dir, NLI_MODEL, revision=revision)
    failure = f"cannot load the NLI model {location.name!r}"
    read_config(failure, location, revision)
    tokenizer, model, report = read_checkpoint(
        failure, location, revision, kind=AutoModelForSequenceClassification, dtype=torch.float32
    )
    if report["missing_keys"]:
        raise ModelError(
            f"{failure}: the files lack {', '.join(sorted(report['missing_keys']))}; "
            "give a checkpoint that was fine-tuned as a sequence classifier on natural language inference"
        )
    rows = model.get_input_embeddings().num_embeddings
    beyond = [token for token in tokenizer.all_special_tokens if tokenizer.vocab.get(token, 0) >= rows]
    if beyond:
        raise ModelError(
            f"{failure}: its tokenizer has {shown(beyond[0])} beyond the {rows} tokens that the model "
            "knows; the two do not belong together"
        )
    checkpoint_revision = revision_of(location, model.config)
    with as_model_error(failure, location.source):
        encoder = CrossEncoder(
            model.to(torch_device), tokenizer, name=location.name, revision=checkpoint_revision
        )
    encoder.address = str(name_or_dir)
    return encoder


def parse_size(text: str | int) -> int:
    """Return a number of bytes, given as such or with a unit.

    kB, MB, GB, TB are powers of 1000, KiB, MiB, GiB, TiB of 1024; the B may be left out, and upper or lower
    case does not matter. UsageError if it is no such size, less than one byte, or more than a process can
    address.

    >>> parse_size("2GB"), parse_size("1.5 GiB"), parse_size("512m"), parse_size(1000)
    (2000000000, 1610612736, 512000000, 1000)
    """
    size: float = text if isinstance(text, int) else 0
    if not isinstance(text, int) and (match := _SIZE_PATTERN.fullmatch(text)):
        size = float(match[1]) * _UNITS.get(match[2].upper(), 0)
    if not 1 <= size < _ADDRESS_SPACE:
        raise UsageError(
            f"{shown(text)} is not a size of memory; give bytes or a unit, such as 500MB, 2GB or 1.5GiB"
        )
    return int(size)


def read_config(failure: str, location: Location, revision: str | None) -> Any:
    """The configuration of a checkpoint, after `check_settings`."""
    from transformers import AutoConfig

    check_settings(failure, location, revision)
    with silenced(), as_model_error(f"{failure}: its configuration", location.source):
        return _from_pretrained(AutoConfig, location, revision)


def _attention_of(config: Any) -> dict[str, str]:
    """Eager attention for soft-capped scores: transformers up to 5.17 lets fused attention drop the cap."""
    return {"attn_implementation": "eager"} if getattr(config, "attn_logit_softcapping", None) else {}


def read_checkpoint(
    failure: str,
    location: Location,
    revision: str | None,
    *,
    kind: Any,
    dtype: str | torch.dtype,
    **options: str,
) -> tuple[Any, Any, Any]:
    """Tokenizer and model of a checkpoint, and transformers' report on its weights."""
    tokenizer = _read_tokenizer(failure, location, revision)
    check_settings(failure, location, revision)  # a hub checkpoint's files have been fetched by now
    with silenced(), as_model_error(f"{failure}: its weights", location.source):
        model, report = _from_pretrained(
            kind, location, revision, dtype=dtype, output_loading_info=True, weights_only=True, **options
        )
    return tokenizer, model, report


def read_tokenizer(failure: str, location: Location) -> tuple[Any, set[int]]:
    """The tokenizer of a checkpoint alone, and the tokens that end a text for its model."""
    from transformers import GenerationConfig

    check_settings(failure, location)
    tokenizer = _read_tokenizer(failure, location, None)
    ends = {tokenizer.eos_token_id}
    with silenced(), suppress(OSError):  # not every checkpoint has one
        eos = _from_pretrained(GenerationConfig, location, None).eos_token_id
        ends |= set(eos if isinstance(eos, list) else [eos])
    return tokenizer, {token for token in ends if type(token) is int}


def _read_tokenizer(failure: str, location: Location, revision: str | None) -> Any:
    from transformers import AutoTokenizer

    with silenced(), as_model_error(f"{failure}: its tokenizer", location.source):
        return _from_pretrained(AutoTokenizer, location, revision)


def _from_pretrained(kind: Any, location: Location, revision: str | None, **options: Any) -> Any:
    """What a class of transformers reads; it must not ask on stdin whether the checkpoint's code may run."""
    return kind.from_pretrained(
        location.source,
        revision=revision or "main",
        local_files_only=location.cached,
        trust_remote_code=False,
        **options,
    )


def revision_of(location: Location, config: Any) -> str:
    """The hash of a directory's files or of its GGUF, or the hub's commit."""
    if location.revision:
        return location.revision
    if Path(location.source).is_dir():
        return files_hash(Path(location.source))
    return str(getattr(config, "_commit_hash", "") or "")


def files_hash(directory: Path) -> str:
    """sha256 over configuration, tokenizer and weight files and their names."""
    files = {
        path
        for pattern in ("config.json", *_TOKENIZER_FILES, *_WEIGHT_FILES)
        for path in directory.glob(pattern)
    }
    digest = hashlib.sha256()
    for path in sorted(files):
        with path.open("rb") as file:
            digest.update(f"{path.name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def choose_device(device: str | torch.device | None = None) -> torch.device:
    """The given device, or the best one of this machine; UsageError if it has no such device."""
    import torch

    if device is not None:
        try:
            chosen = torch.device(device)
        except RuntimeError as error:
            raise UsageError(f"no device {device!r}; give 'cpu', 'cuda', 'cuda:1' or 'mps'") from error
        counts = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
        count = counts.get(chosen.type, 1)
        if (chosen.index or 0) >= count:
            raise UsageError(f"this machine has no {chosen} ({count} of its kind); use --device cpu")
        return chosen
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def choose_dtype(dtype: str | torch.dtype | None, device: torch.device) -> str | torch.dtype:
    """The given dtype; by default float32 on a CPU and the checkpoint's own elsewhere."""
    import torch

    if dtype is None:
        return torch.float32 if device.type == "cpu" else "auto"
    if isinstance(dtype, torch.dtype) or dtype == "auto":
        return dtype
    torch_dtype = getattr(torch, dtype, None)
    if not isinstance(torch_dtype, torch.dtype) or not torch_dtype.is_floating_point:
        raise UsageError(f"no dtype {dtype!r}; give 'float32', 'bfloat16', 'float16' or 'auto'")
    return torch_dtype


def check_settings(failure: str, location: Location, revision: str | None = None) -> None:
    """Refuse a checkpoint whose settings (of model, tokenizer or processor) must not be followed.

    For a checkpoint on the hub, the files that its client has fetched are checked.
    """
    folder: Path | None = Path(location.source)
    if location.on_hub:  # the folder in which the hub's client keeps the files, if there is one
        from huggingface_hub import try_to_load_from_cache

        config_path = try_to_load_from_cache(location.source, "config.json", revision=revision)
        folder = Path(config_path).parent if isinstance(config_path, str) else None
    for path in sorted(folder.glob("*config*.json")) if folder else ():
        if classes := _code_classes(_content(path)):
            raise ModelError(
                f"{failure}: {path} asks for code of its own ({_CODE_KEY}: {', '.join(classes)[:80]}), and "
                "code in a model's directory is never run; "
                f"{_remedy(_content(path.parent / 'config.json'), path.name)}"
            )
    config = _content(folder / "config.json") if folder else None
    for problem in _problems(config if isinstance(config, dict) else {}):
        raise ModelError(f"{failure}: its config.json says {problem}")


def _problems(config: Mapping[str, object]) -> Iterator[str]:
    for key, value in config.items():
        if isinstance(value, dict) and key.endswith("_config") and key != "quantization_config":
            yield from _problems(value)
        if type(value) is int and key in _AT_LEAST_ONE and value < 1:
            yield f"{key} = {value}; at least 1 is needed"
        if type(value) is int and _COUNTS.fullmatch(key) and value > _MOST_MODULES:
            yield f"{key} = {str(value)[:20]}…; no model has more than {_MOST_MODULES}"
    if (quantization := config.get("quantization_config")) is not None and not _is_known(quantization):
        yield (
            f"quantization_config = {shown(quantization)}, whose quant_method transformers does not know; "
            "use a checkpoint that is not quantised, or quantised in another way"
        )


def _is_known(quantization: Any) -> bool:
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    if not isinstance(quantization, dict):
        return False
    by_flag = quantization.get("load_in_8bit") or quantization.get("load_in_4bit")
    return bool(by_flag) or quantization.get("quant_method") in list(AUTO_QUANTIZATION_CONFIG_MAPPING)


def _remedy(config: Any, file: str) -> str:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    kind = config.get("model_type") if isinstance(config, dict) else None
    if isinstance(kind, str) and kind in CONFIG_MAPPING_NAMES:
        return f"transformers has a {kind} of its own: take {_CODE_KEY} out of {file} (in a copy) to use that"
    return f"transformers itself does not know {shown(kind)}: use a checkpoint of a kind that it knows"


def _content(path: Path) -> Any:
    """The JSON in a file; None if the file is missing or damaged, which its loader reports."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _code_classes(settings: Any) -> list[str]:
    """The checkpoint's own classes that settings name, nested settings included."""
    if not isinstance(settings, dict):
        return []
    named = settings.get(_CODE_KEY) or []
    values = named.values() if isinstance(named, dict) else named if isinstance(named, list) else [named]
    nested = [name for part in settings.values() for name in _code_classes(part)]
    return [str(value) for value in values] + nested


@contextmanager
def as_model_error(failure: str, source: str) -> Iterator[None]:
    """Turn whatever the loaders of transformers raise into a ModelError."""
    from safetensors import SafetensorError

    try:
        yield
    except SemcalError:
        raise
    except SafetensorError as error:
        raise ModelError(
            f"{failure}: a safetensors file is damaged ({error}); fetch or save it again"
        ) from error
    except UnpicklingError as error:
        raise ModelError(
            f"{failure}: its pickled weights hold more than tensors, and no such code is run; use a "
            "checkpoint with safetensors, or convert it where you trust it"
        ) from error
    except Exception as error:  # a wrong value in a file may raise anything
        reason = f"{failure}: {_reason(error)}"
        if not Path(source).is_dir():
            reason += (
                " (no directory here, so the hub was asked; if it cannot be reached, give the path of a "
            )
            reason += "directory)"
        raise ModelError(reason) from error


def _reason(error: Exception) -> str:
    """The loader's message, or its meaning where that is unclear."""
    reason = " ".join(str(error).split())[:500]
    if isinstance(error, MemoryError) or "can't allocate memory" in reason:
        return "there is not enough memory for it; use a smaller model or dtype, or another device"
    if "ignore_mismatched_sizes" in reason:
        return "their shapes are not those that its config.json says"
    if "trust_remote_code" in reason:
        return "it needs code of its own, which is never run; use a checkpoint that transformers knows"
    if isinstance(error, (OSError, ValueError, ImportError)) or type(error).__module__ != "builtins":
        return reason
    return f"a value in its files is wrong or missing ({type(error).__name__}: {reason})"


@contextmanager
def silenced() -> Iterator[None]:
    """Silence progress bars, reports and warnings of transformers and the hub's client, then restore them."""
    import transformers
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    library = transformers.utils.logging
    level, bars = library.get_verbosity(), library.is_progress_bar_enabled()
    restore_hub_bars = disable_progress_bars if are_progress_bars_disabled() else enable_progress_bars
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.set_verbosity_error()
        library.disable_progress_bar()
        try:
            yield
        finally:
            library.set_verbosity(level)
            if bars:
                library.enable_progress_bar()
            restore_hub_bars()


def gguf_cache() -> Path:
    """The folder of unpacked models."""
    return user_cache("gguf")


def unpacked_folder(path: Path, kind: str) -> tuple[Path, str]:
    """Where a GGUF is unpacked to, by its content and dtype ("float32"), and its sha256."""
    digest = _sha256(path)
    return gguf_cache() / f"{digest[:32]}-{kind}", digest


def unpacked(failure: str, location: Location, dtype: torch.dtype | None) -> Location:
    """The checkpoint that a GGUF is unpacked to, made unless there; without a dtype, its tokenizer.

    ModelError, which begins with `failure`, if the file is damaged, is no language model, or one that
    transformers does not read, or if there is no room for it.
    """
    import transformers

    path = Path(location.source)
    try:
        folder, digest = unpacked_folder(path, "tokenizer" if dtype is None else str(dtype).split(".")[-1])
        key = {"format": _GGUF_FORMAT, "sha256": digest, "transformers": transformers.__version__}
        if not _is_complete(folder, key):
            folder.parent.mkdir(parents=True, exist_ok=True)
            busy = f"{failure}: another process has been unpacking it for an hour; wait for it or end it"
            with file_lock(folder.with_name(f".{folder.name}{LOCK}"), busy, patience=_LOCK_SECONDS):
                if not _is_complete(folder, key):
                    shutil.rmtree(folder, ignore_errors=True)
                    with atomic_folder(folder) as part:
                        _unpack(failure, path, part, dtype)
                    write_sealed(
                        folder.with_suffix(".json"),
                        {"key": key, "of": str(path), "files": _file_stamps(folder)},
                    )
    except OSError as error:
        raise ModelError(
            f"{failure}: it cannot be read, or unpacked into {gguf_cache()} ({error.strerror or error}); "
            "set SEMCAL_CACHE to a folder with room that can be written"
        ) from error
    return replace(location, source=str(folder), revision=f"sha256:{digest}", gguf=False)


def _sha256(path: Path) -> str:
    """Of a file; kept by path, size and times, for hashing takes seconds."""
    status = path.stat()
    resolved = str(path.resolve())
    key = [resolved, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    name = hashlib.sha256(resolved.encode(errors="surrogateescape")).hexdigest()[:32]
    record = gguf_cache() / "hashes" / f"{name}.json"
    seal = read_sealed(record)
    if seal is not None and seal.get("key") == key:
        return str(seal["sha256"])
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with suppress(OSError):
        write_sealed(record, {"key": key, "sha256": digest})
    return digest


def _file_stamps(folder: Path) -> dict[str, list[int]]:
    """Size and time of change of each file: one that was cut short or edited later has others."""
    return {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in own_files(folder)}


def _is_complete(folder: Path, key: Mapping[str, object]) -> bool:
    seal = read_sealed(folder.with_suffix(".json"))
    return (
        seal is not None
        and seal.get("key") == key
        and folder.is_dir()
        and seal["files"] == _file_stamps(folder)
    )


def _unpack(failure: str, path: Path, folder: Path, dtype: torch.dtype | None) -> None:
    """Write a checkpoint with the content of a GGUF."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    reader = _open_gguf(failure, path)
    needed = _BYTES_BESIDE_WEIGHTS
    if dtype is not None:
        needed += sum(int(tensor.n_elements) for tensor in reader.tensors) * dtype.itemsize
    if needed > (free := shutil.disk_usage(folder).free):
        raise ModelError(
            f"{failure}: unpacked it takes {needed:,} bytes, and {free:,} are free in {gguf_cache()}; make "
            "room there, or set SEMCAL_CACHE to a folder with more"
        )
    link = folder / "model.gguf"  # alone in its folder: what lies beside the file is not read
    link.symlink_to(path.resolve())
    with _reading_gguf(failure, path):
        config = AutoConfig.from_pretrained(folder, gguf_file=link.name, trust_remote_code=False)
        if dtype is not None:  # of a tokenizer alone nothing runs
            from semcal.models.network import check_supported

            check_supported(failure, config)
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=link.name, trust_remote_code=False)
        _check_positions(reader, config)
    ends = _settle_tokenizer(reader, tokenizer)
    with _reading_gguf(failure, path):
        reader.fields = {key: reader.fields[key] for key in (_ARCHITECTURE,)}  # the others take much memory
        getattr(ctypes.CDLL(None), "malloc_trim", int)(0)  # glibc would keep it
        if dtype is not None:
            _write_weights(reader, config, folder, dtype)
        link.unlink()
        config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        GenerationConfig(eos_token_id=ends, bos_token_id=config.bos_token_id).save_pretrained(folder)


@contextmanager
def _reading_gguf(failure: str, path: Path) -> Iterator[None]:
    """Name what serves a GGUF where transformers does not read one of its kind."""
    with silenced(), as_model_error(failure, str(path.parent)):
        try:
            yield
        except (NotImplementedError, ValueError, KeyError) as error:
            if not re.search("not supported|Supported|Unknown gguf|not yet implemented|no rule", str(error)):
                raise
            reason = f"{failure}: transformers does not read it ({error})"
            raise ModelError(f"{reason}; {llama_cpp_line(path)}") from error


def _open_gguf(failure: str, path: Path) -> Any:
    """gguf's reader of a file that is a whole GGUF of a language model."""
    try:
        import gguf
    except ImportError as error:
        raise MissingExtraError("gguf", "gguf") from error
    with path.open("rb") as file:
        start = file.read(4)
    if start != b"GGUF":
        raise ModelError(f"{failure}: {path} is no GGUF, it begins with {shown(start)}; fetch it again")
    try:
        reader = gguf.GGUFReader(path)
        kind = _value(reader, "general.type", "model")
        architecture = _value(reader, _ARCHITECTURE, "")
    except Exception as error:
        if "GGMLQuantizationType" in str(error):
            raise ModelError(f"{failure}: {error}, by the package gguf; {llama_cpp_line(path)}") from error
        raise ModelError(
            f"{failure}: {path} is damaged or was cut short ({error}); fetch it again"
        ) from error
    if _SPLIT.search(path.name) or _value(reader, "split.count", 0) > 1:
        raise ModelError(
            f"{failure}: it is one part of a split file; join the parts (llama-gguf-split --merge FIRST_PART "
            "whole.gguf) and give the whole"
        )
    if kind != "model" or _NO_TEXT.match(architecture):
        raise ModelError(
            f"{failure}: it holds no language model (type {kind!r}, architecture {architecture!r}); give the "
            "GGUF of the model that writes text"
        )
    stated = _value(reader, f"{architecture}.block_count", 0)
    blocks = {found[1] for tensor in reader.tensors if (found := _BLOCK.search(tensor.name))}
    if not isinstance(stated, int) or stated > len(blocks):  # the others would be random numbers
        raise ModelError(
            f"{failure}: {architecture}.block_count says {shown(stated)} layers, and {path} holds "
            f"{len(blocks)}; it is damaged, fetch it again"
        )
    return reader


def _value(reader: Any, key: str, missing: Any = None) -> Any:
    """What a GGUF says under a key."""
    return reader.fields[key].contents() if key in reader.fields else missing


def _check_positions(reader: Any, config: Any) -> None:
    """Take over what scales the positions of llama models; refuse what transformers' reader would drop."""
    rope = getattr(config, "rope_parameters", None) or {}
    scaling = _value(reader, f"{_value(reader, _ARCHITECTURE)}.rope.scaling.type", "none")
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    if rope.get("rope_type", "default") != "default":
        return
    if scaling != "none" or "rope_factors_long.weight" in tensors:
        raise ValueError(f"there is no rule for its positions, scaled by {scaling!r}")
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
    """Split texts as llama.cpp does, and return the tokens that end an answer."""
    from tokenizers import pre_tokenizers

    backend = tokenizer.backend_tokenizer
    split = _value(reader, "tokenizer.ggml.pre", "default")
    if isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel) and split in _DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
    elif isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel) and split not in _GPT2:
        message = f"transformers does not know how {split!r} splits texts, so they are split as GPT-2's"
        warnings.warn(f"{message}; tokens may differ from llama.cpp's", SemcalWarning, stacklevel=2)
    kinds = _value(reader, "tokenizer.ggml.token_type", [])
    texts = _value(reader, "tokenizer.ggml.tokens", [])
    ends = {number for number, text in enumerate(texts) if text in _ENDS and kinds[number] == _CONTROL}
    ends |= {_value(reader, f"tokenizer.ggml.{key}_token_id", -1) for key in ("eos", "eot", "eom")}
    return sorted({int(number) for number in ends if number >= 0})


def _write_weights(reader: Any, config: Any, folder: Path, dtype: torch.dtype) -> None:
    """Write safetensors: tensor by tensor, or where that cannot be done by transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    read = _tensor_reader(reader, config, model)
    if read is None:
        with redirect_stderr(io.StringIO()):  # a progress bar
            loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf", dtype=dtype)
        model.load_state_dict(loaded.state_dict(), assign=True)
        model.tie_weights()
        model.save_pretrained(folder)
        return
    names, tensor_of = read
    shapes, end = model.state_dict(), 0
    kind = _SAFETENSORS_DTYPES[str(dtype).split(".")[-1]]
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    tensors = [tensor for tensor in reader.tensors if tensor.name in names]
    for tensor in tensors:
        start, end = end, end + int(tensor.n_elements) * dtype.itemsize
        shape = list(shapes[names[tensor.name]].shape)
        header[names[tensor.name]] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    header_bytes = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header_bytes).to_bytes(8, "little") + header_bytes)
        for tensor in tensors:
            values = tensor_of(tensor).to(dtype).contiguous()
            file.write(values.view(torch.uint8).numpy().data)


def _tensor_reader(
    reader: Any, config: Any, model: Any
) -> tuple[dict[str, str], Callable[..., Tensor]] | None:
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
    matched = [names[tensor.name] for tensor in reader.tensors if tensor.name in names]
    lacking = set(model.state_dict()) - set(matched) - set(model.all_tied_weights_keys)
    if is_gguf_arch_supported(architecture) or lacking or len(matched) != len(set(matched)):
        return None

    def read(tensor: Any) -> Tensor:
        values = dequantize(tensor.data, tensor.tensor_type)
        values = processor.process(
            weights=values, name=tensor.name, tensor_key_mapping=names, parsed_parameters={"tensors": {}}
        ).weights
        return torch.from_numpy(values if values.flags.writeable else values.copy())

    return names, read
