"""Reading checkpoints with transformers: settings are checked first, failures become a ModelError.

Code that comes with a checkpoint is never run: a checkpoint that asks for it is refused. So are sizes for
which building the model would take hours, and quantisation that transformers would silently ignore.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import transformers
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from safetensors import SafetensorError

from semcal.errors import ModelError, SemcalError, UsageError, shown
from semcal.hub_names import Location

_CODE = "auto_map"
_COUNTS = re.compile(r"num_\w+|n_layers?")  # modules, or labels, are made one by one for each of these
_AT_LEAST_ONE = ("vocab_size", "num_hidden_layers", "n_layer")
_MOST = 10**5
_TOKENIZER = ("tokenizer*", "vocab*", "merges.txt", "*.model", "chat_template*", "added_tokens.json")
_WEIGHTS = (
    "*.safetensors",
    "*.safetensors.index.json",
    "pytorch_model*.bin",
    "pytorch_model*.bin.index.json",
)


def read_config(what: str, location: Location, revision: str | None) -> Any:
    """The configuration of a checkpoint, after `check_settings`."""
    check_settings(what, location, revision)
    with silenced(), as_model_error(f"{what}: its configuration", location.source):
        return transformers.AutoConfig.from_pretrained(location.source, **_options(location, revision))


def read_checkpoint(
    what: str, location: Location, revision: str | None, *, kind: Any, dtype: str | torch.dtype
) -> tuple[Any, Any, Any]:
    """Tokenizer and model of a checkpoint, and transformers' report on its weights."""
    options = _options(location, revision)
    tokenizer = _tokenizer(what, location, revision)
    check_settings(what, location, revision)  # a hub checkpoint's files have been fetched by now
    with silenced(), as_model_error(f"{what}: its weights", location.source):
        model, report = kind.from_pretrained(
            location.source, dtype=dtype, output_loading_info=True, weights_only=True, **options
        )
    return tokenizer, model, report


def read_tokenizer(what: str, location: Location) -> tuple[Any, set[int]]:
    """The tokenizer of a checkpoint alone, and the tokens that end a text for its model."""
    check_settings(what, location)
    tokenizer = _tokenizer(what, location, None)
    ends = {tokenizer.eos_token_id}
    with silenced(), suppress(OSError):  # not every checkpoint has one
        found = transformers.GenerationConfig.from_pretrained(location.source, **_options(location, None))
        ends |= set(found.eos_token_id if isinstance(found.eos_token_id, list) else [found.eos_token_id])
    return tokenizer, {token for token in ends if type(token) is int}


def _tokenizer(what: str, location: Location, revision: str | None) -> Any:
    with silenced(), as_model_error(f"{what}: its tokenizer", location.source):
        return transformers.AutoTokenizer.from_pretrained(location.source, **_options(location, revision))


def _options(location: Location, revision: str | None) -> dict[str, Any]:
    """Options of the loaders of transformers.

    By default they ask on stdin, which may hold the questions, whether the checkpoint's code may run.
    """
    wanted: dict[str, Any] = {"revision": revision} if revision else {}
    wanted["trust_remote_code"] = False
    return {**wanted, "local_files_only": True} if location.cached else wanted


def revision_of(location: Location, config: Any) -> str:
    """The hash of a directory's files or of its GGUF, or the hub's commit."""
    if location.revision:
        return location.revision
    if Path(location.source).is_dir():
        return files_hash(Path(location.source))
    return str(getattr(config, "_commit_hash", "") or "")


def files_hash(directory: Path) -> str:
    """sha256 over configuration, tokenizer and weight files and their names."""
    files = {path for pattern in ("config.json", *_TOKENIZER, *_WEIGHTS) for path in directory.glob(pattern)}
    whole = hashlib.sha256()
    for path in sorted(files):
        with path.open("rb") as file:
            whole.update(f"{path.name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return f"sha256:{whole.hexdigest()}"


def choose_device(device: str | torch.device | None = None) -> torch.device:
    """The given device, or the best one of this machine; UsageError if it has no such device."""
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
    if dtype is None:
        return torch.float32 if device.type == "cpu" else "auto"
    if isinstance(dtype, torch.dtype) or dtype == "auto":
        return dtype
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise UsageError(f"no dtype {dtype!r}; give 'float32', 'bfloat16', 'float16' or 'auto'")
    return found


def check_settings(what: str, location: Location, revision: str | None = None) -> None:
    """Refuse a checkpoint whose settings (of model, tokenizer or processor) must not be followed.

    For a checkpoint on the hub, the files that its client has fetched are checked. The ModelError begins with
    `what` and names the file, what it says, and what to do.
    """
    folder = _fetched(location.source, revision) if location.on_hub else Path(location.source)
    for path in sorted(folder.glob("*config*.json")) if folder else ():
        if found := _code_classes(_content(path)):
            raise ModelError(
                f"{what}: {path} asks for code of its own ({_CODE}: {', '.join(found)[:80]}), and code in a "
                f"model's directory is never run; {_remedy(_content(path.parent / 'config.json'), path.name)}"
            )
    config = _content(folder / "config.json") if folder else None
    for problem in _problems(config if isinstance(config, dict) else {}):
        raise ModelError(f"{what}: its config.json says {problem}")


def _problems(config: dict[str, Any]) -> Iterator[str]:
    for key, value in config.items():
        if isinstance(value, dict) and key.endswith("_config") and key != "quantization_config":
            yield from _problems(value)
        if type(value) is int and key in _AT_LEAST_ONE and value < 1:
            yield f"{key} = {value}; at least 1 is needed"
        if type(value) is int and _COUNTS.fullmatch(key) and value > _MOST:
            yield f"{key} = {str(value)[:20]}…; no model has more than {_MOST}"
    if (asked := config.get("quantization_config")) is not None and not _is_known(asked):
        yield (
            f"quantization_config = {shown(asked)}, whose quant_method transformers does not know; use a "
            "checkpoint that is not quantised, or quantised in another way"
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
        return f"transformers has a {kind} of its own: take {_CODE} out of {file} (in a copy) to use that"
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
    named = settings.get(_CODE) or []
    values = named.values() if isinstance(named, dict) else named if isinstance(named, list) else [named]
    nested = [name for part in settings.values() for name in _code_classes(part)]
    return [str(value) for value in values] + nested


def _fetched(repo_id: str, revision: str | None) -> Path | None:
    """The folder in which the hub's client keeps the files of a repository; None if there is none."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo_id, "config.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else None


@contextmanager
def as_model_error(what: str, source: str) -> Iterator[None]:
    """Turn whatever the loaders of transformers raise into a ModelError."""
    try:
        yield
    except SemcalError:
        raise
    except SafetensorError as error:
        raise ModelError(
            f"{what}: a safetensors file is damaged ({error}); fetch or save it again"
        ) from error
    except UnpicklingError as error:
        raise ModelError(
            f"{what}: its pickled weights hold more than tensors, and no such code is run; use a checkpoint "
            "with safetensors, or convert it where you trust it"
        ) from error
    except Exception as error:  # a wrong value in a file may raise anything
        raise ModelError(f"{what}: {_reason(error)}{_advice(source)}") from error


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


def _advice(source: str) -> str:
    if Path(source).is_dir():
        return ""
    return " (no directory here, so the hub was asked; if it cannot be reached, give the path of a directory)"


@contextmanager
def silenced() -> Iterator[None]:
    """Silence progress bars, reports and warnings of transformers and the hub's client, then restore them."""
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
