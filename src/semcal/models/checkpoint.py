"""Read checkpoints with transformers after a check of their settings; failures become ModelErrors.

Code in a checkpoint is never run: a checkpoint that requires it is rejected. Also rejected are sizes for
which building the model would take hours, and quantization that transformers would silently ignore.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from semcal.errors import ModelError, SemcalError, shown
from semcal.hub_names import Location

if TYPE_CHECKING:
    import torch


_CODE_KEY = "auto_map"
_COUNTS = re.compile(r"num_\w+|n_layers?")  # numbers of modules or labels that are created one by one
_AT_LEAST_ONE = ("vocab_size", "num_hidden_layers", "n_layer")
_MOST_MODULES = 10**5
_TOKENIZER_FILES = ("tokenizer*", "vocab*", "merges.txt", "*.model", "chat_template*", "added_tokens.json")
_WEIGHT_FILES = (
    "*.safetensors",
    "*.safetensors.index.json",
    "pytorch_model*.bin",
    "pytorch_model*.bin.index.json",
)


def read_config(failure: str, location: Location, revision: str | None) -> Any:
    """Return the configuration of a checkpoint, after `check_settings`."""
    from transformers import AutoConfig

    check_settings(failure, location, revision)
    with silenced(), as_model_error(f"{failure}: its configuration", location.source):
        return _from_pretrained(AutoConfig, location, revision)


def read_checkpoint(
    failure: str,
    location: Location,
    revision: str | None,
    *,
    kind: Any,
    dtype: str | torch.dtype,
    **options: str,
) -> tuple[Any, Any, Any]:
    """Return tokenizer and model of a checkpoint, and the report of transformers on its weights."""
    tokenizer = _read_tokenizer(failure, location, revision)
    check_settings(failure, location, revision)  # again, because files of a hub checkpoint now exist
    with silenced(), as_model_error(f"{failure}: its weights", location.source):
        model, report = _from_pretrained(
            kind, location, revision, dtype=dtype, output_loading_info=True, weights_only=True, **options
        )
    return tokenizer, model, report


def read_tokenizer(failure: str, location: Location) -> tuple[Any, set[int]]:
    """Return the tokenizer of a checkpoint, and the tokens that end a text for its model."""
    from transformers import GenerationConfig

    check_settings(failure, location)
    tokenizer = _read_tokenizer(failure, location, None)
    ends = {tokenizer.eos_token_id}
    with silenced(), suppress(OSError):  # some checkpoints have no generation config
        eos = _from_pretrained(GenerationConfig, location, None).eos_token_id
        ends |= set(eos if isinstance(eos, list) else [eos])
    return tokenizer, {token for token in ends if type(token) is int}


def _read_tokenizer(failure: str, location: Location, revision: str | None) -> Any:
    from transformers import AutoTokenizer

    with silenced(), as_model_error(f"{failure}: its tokenizer", location.source):
        return _from_pretrained(AutoTokenizer, location, revision)


def _from_pretrained(kind: Any, location: Location, revision: str | None, **options: Any) -> Any:
    """Read with a class of transformers; `trust_remote_code=False` avoids its question on stdin."""
    return kind.from_pretrained(
        location.source,
        revision=revision or "main",
        local_files_only=location.cached,
        trust_remote_code=False,
        **options,
    )


def revision_of(location: Location, config: Any) -> str:
    """Return the hash of the files of a directory or of a GGUF, or the commit on the hub."""
    if location.revision:
        return location.revision
    if Path(location.source).is_dir():
        return files_hash(Path(location.source))
    return str(getattr(config, "_commit_hash", "") or "")


def files_hash(directory: Path) -> str:
    """Return the sha256 of the names and contents of configuration, tokenizer and weight files."""
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


def check_settings(failure: str, location: Location, revision: str | None = None) -> None:
    """Reject a checkpoint with unsafe settings of model, tokenizer or processor.

    For a checkpoint on the hub, this checks the files in the cache of the hub client.
    """
    folder: Path | None = Path(location.source)
    if location.on_hub:  # the folder of the hub client's cache, if it exists
        from huggingface_hub import try_to_load_from_cache

        config_path = try_to_load_from_cache(location.source, "config.json", revision=revision)
        folder = Path(config_path).parent if isinstance(config_path, str) else None
    for path in sorted(folder.glob("*config*.json")) if folder else ():
        if classes := _code_classes(_content(path)):
            raise ModelError(
                f"{failure}: {path} requires the checkpoint's code ({_CODE_KEY}: {', '.join(classes)[:80]}), "
                f"which is never run. {_remedy(_content(path.parent / 'config.json'), path.name)}"
            )
    config = _content(folder / "config.json") if folder else None
    for problem in _problems(config if isinstance(config, dict) else {}):
        raise ModelError(f"{failure}: its config.json has {problem}")


def _problems(config: Mapping[str, object]) -> Iterator[str]:
    for key, value in config.items():
        if isinstance(value, dict) and key.endswith("_config") and key != "quantization_config":
            yield from _problems(value)
        if type(value) is int and key in _AT_LEAST_ONE and value < 1:
            yield f"{key} = {value}, expected at least 1"
        if type(value) is int and _COUNTS.fullmatch(key) and value > _MOST_MODULES:
            yield f"{key} = {str(value)[:20]}…, expected at most {_MOST_MODULES}"
    if (quantization := config.get("quantization_config")) is not None and not _is_known(quantization):
        yield (
            f"quantization_config = {shown(quantization)}, whose quant_method is unknown to transformers. "
            "Use a checkpoint without quantization, or with another quantization"
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
        return f"To use the {kind} of transformers, remove {_CODE_KEY} from {file} (in a copy)"
    return f"Use a checkpoint of a type that transformers supports, not {shown(kind)}"


def _content(path: Path) -> Any:
    """Return the JSON in a file; None if the file is missing or damaged, which the loader will report."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _code_classes(settings: Any) -> list[str]:
    """Return the classes of the checkpoint that settings name, nested settings included."""
    if not isinstance(settings, dict):
        return []
    named = settings.get(_CODE_KEY) or []
    values = named.values() if isinstance(named, dict) else named if isinstance(named, list) else [named]
    nested = [name for part in settings.values() for name in _code_classes(part)]
    return [str(value) for value in values] + nested


@contextmanager
def as_model_error(failure: str, source: str) -> Iterator[None]:
    """Convert any exception of the loaders of transformers to a ModelError."""
    from safetensors import SafetensorError

    try:
        yield
    except SemcalError:
        raise
    except SafetensorError as error:
        raise ModelError(
            f"{failure}: a safetensors file is damaged ({error}). Download or save it again"
        ) from error
    except UnpicklingError as error:
        raise ModelError(
            f"{failure}: its pickled weights contain code, which is never run. Use a checkpoint with "
            "safetensors, or convert it if you trust it"
        ) from error
    except Exception as error:  # an invalid value in a file may raise any exception
        reason = f"{failure}: {_reason(error)}"
        if not Path(source).is_dir():
            reason += (
                f" ({shown(source)} is not a directory, so the name was looked up on the hub. If the hub "
                "cannot be reached, pass the path of a directory)"
            )
        raise ModelError(reason) from error


def _reason(error: Exception) -> str:
    reason = " ".join(str(error).split())[:500]
    if isinstance(error, MemoryError) or "can't allocate memory" in reason:
        return "not enough memory. Use a smaller model or dtype, or another device"
    if "ignore_mismatched_sizes" in reason:
        return "the shapes differ from its config.json"
    if "trust_remote_code" in reason:
        return "it requires its own code, which is never run. Use a checkpoint that transformers supports"
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
