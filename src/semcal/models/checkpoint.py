"""Read checkpoints with transformers; failures become ModelErrors.

Code in a checkpoint is never run: a checkpoint of a type that transformers lacks is rejected.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from semcal.errors import ModelError, SemcalError, shown
from semcal.hub_names import Location

if TYPE_CHECKING:
    import torch


_COUNTS = re.compile(r"num_\w+|n_layers?")  # numbers of modules or labels that are created one by one
_MOST_MODULES = 10**5
_TOKENIZER_FILES = ("tokenizer*", "vocab*", "merges.txt", "*.model", "chat_template*", "added_tokens.json")
_WEIGHT_FILES = (
    "*.safetensors",
    "*.safetensors.index.json",
    "pytorch_model*.bin",
    "pytorch_model*.bin.index.json",
)


def read_config(failure: str, location: Location, revision: str | None) -> Any:
    """Return the configuration of a checkpoint; ModelError for too many layers or unknown quantization."""
    from transformers import AutoConfig, PretrainedConfig
    from transformers.quantizers.auto import AutoHfQuantizer

    with silenced(), as_model_error(f"{failure}: its configuration", location.source):
        content, _ = _read(PretrainedConfig.get_config_dict, location, revision)
        for key, value in content.items():
            if _COUNTS.fullmatch(key) and type(value) is int and value > _MOST_MODULES:
                raise ModelError(
                    f"{failure}: its config.json has {key} = {str(value)[:20]}…, expected at most "
                    f"{_MOST_MODULES}. Download it again"
                )
        quantization = content.get("quantization_config")
        if quantization is not None and not AutoHfQuantizer.supports_quant_method(quantization):
            raise ModelError(  # transformers would read quantized weights as plain numbers
                f"{failure}: its config.json has quantization_config = {shown(quantization)}, whose "
                "method is unknown to transformers. Use a checkpoint with another quantization, or without"
            )
        return _read(AutoConfig.from_pretrained, location, revision)


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
    with silenced(), as_model_error(f"{failure}: its weights", location.source):
        model, report = _read(
            kind.from_pretrained,
            location,
            revision,
            dtype=dtype,
            output_loading_info=True,
            weights_only=True,
            **options,
        )
    return tokenizer, model, report


def read_tokenizer(failure: str, location: Location) -> tuple[Any, set[int]]:
    """Return the tokenizer of a checkpoint, and the tokens that end a text for its model."""
    from transformers import GenerationConfig

    tokenizer = _read_tokenizer(failure, location, None)
    ends = {tokenizer.eos_token_id}
    with silenced(), suppress(OSError):  # some checkpoints have no generation config
        eos = _read(GenerationConfig.from_pretrained, location, None).eos_token_id
        ends |= set(eos if isinstance(eos, list) else [eos])
    return tokenizer, {token for token in ends if type(token) is int}


def _read_tokenizer(failure: str, location: Location, revision: str | None) -> Any:
    from transformers import AutoTokenizer

    with silenced(), as_model_error(f"{failure}: its tokenizer", location.source):
        return _read(AutoTokenizer.from_pretrained, location, revision)


def _read(
    from_pretrained: Callable[..., Any], location: Location, revision: str | None, **options: Any
) -> Any:
    """Call a function of transformers; `trust_remote_code=False` avoids its question on stdin."""
    return from_pretrained(
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
    """Silence progress bars, reports and warnings of transformers, then restore them."""
    import transformers

    library = transformers.utils.logging
    level, bars = library.get_verbosity(), library.is_progress_bar_enabled()
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
