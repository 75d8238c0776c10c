"""`load_model`: a language model from a directory or the hub, with errors that say what to do."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import transformers
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from safetensors import SafetensorError

from semcal.engine.causal_lm import CausalLanguageModel
from semcal.engine.checkpoint_settings import check_settings
from semcal.engine.memory import parse_size
from semcal.errors import ModelError, SemcalError, UsageError
from semcal.hub_names import LANGUAGE_MODEL, Location, locate
from semcal.qa.prompts import chat

__all__ = ["choose_device", "files_hash", "in_words", "load_model", "read_checkpoint", "read_config"]

_TOKENIZER = ("tokenizer*", "vocab*", "merges.txt", "*.model", "chat_template*", "added_tokens.json")
_WEIGHTS = (
    "*.safetensors",
    "*.safetensors.index.json",
    "pytorch_model*.bin",
    "pytorch_model*.bin.index.json",
)


def load_model(
    path_or_id: str | Path,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    memory: int | str | None = None,
) -> CausalLanguageModel:
    """Load a causal language model with its tokenizer.

    What the checkpoint's generation config says about temperature, top-p, top-k or repetition penalty is not
    applied; its end-of-text tokens are.

    Parameters
    ----------
    path_or_id : str or Path
        A directory in the format of `transformers`, an id on the Hugging Face hub, or "atlas", the small
        model that comes with the package.
    device : str or torch.device, optional
        Where it runs. Default: a CUDA GPU, else Apple's, else the CPU.
    dtype : str or torch.dtype, optional
        "float32", "bfloat16", …; "auto" is the checkpoint's own. Default: float32 on a CPU, "auto" elsewhere.
    revision : str, optional
        Branch, tag or commit on the hub.
    memory : int or str, optional
        What the keys and values of one batch may take, in bytes or as "2GB": a bound that is kept, a
        question that may need more by itself is refused. By default a quarter of the weights, but 64 MiB at
        least, and such a question is run by itself.

    Returns
    -------
    CausalLanguageModel
        Its `name` is the id or the directory's name; its `revision` is the hub's commit, or "sha256:…" over
        the configuration and weight files of a directory.

    Raises
    ------
    ModelError
        If there is no such directory, the hub cannot be reached, a file is missing or damaged, or it is not a
        causal language model.
    UsageError
        For a device or dtype that does not exist, or a size of memory that is none.

    Examples
    --------
    >>> load_model("atlas", device="cpu").name
    'atlas'
    """
    where = choose_device(device)
    budget = None if memory is None else parse_size(memory)
    place = locate(path_or_id, LANGUAGE_MODEL, revision=revision)
    source, name = place.source, place.name
    what = f"cannot load the language model {name!r}"
    config = read_config(what, place, revision)
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{what}: {config.model_type} is an encoder-decoder, a causal language model is needed"
        )
    tokenizer, model, report = read_checkpoint(
        what, place, revision, kind=transformers.AutoModelForCausalLM, dtype=_dtype(dtype, where)
    )
    _check_complete(what, report)
    found = (
        files_hash(Path(source)) if Path(source).is_dir() else str(getattr(config, "_commit_hash", "") or "")
    )
    with in_words(what, source):
        language_model = CausalLanguageModel(
            model.to(where),
            tokenizer,
            name=name,
            revision=found,
            memory_budget=budget,
            refuse_larger=budget is not None,
        )
        language_model.encode_answer(chat("Which?"), "That.")  # so that a damaged tokenizer is found now
    _reset_generation_config(model)
    return language_model


def read_config(what: str, place: Location, revision: str | None) -> Any:
    """The configuration of a checkpoint whose settings are in order."""
    check_settings(what, place, revision)
    with _quietly(), in_words(f"{what}: its configuration", place.source):
        return transformers.AutoConfig.from_pretrained(place.source, **_options(place, revision))


def read_checkpoint(
    what: str, place: Location, revision: str | None, *, kind: Any, dtype: str | torch.dtype
) -> tuple[Any, Any, Any]:
    """Tokenizer and model of a checkpoint, and what transformers reports of its weights."""
    options = _options(place, revision)
    with _quietly(), in_words(f"{what}: its tokenizer", place.source):
        tokenizer = transformers.AutoTokenizer.from_pretrained(place.source, **options)
    check_settings(what, place, revision)  # on the hub, the files are here by now
    with _quietly(), in_words(f"{what}: its weights", place.source):
        model, report = kind.from_pretrained(
            place.source, dtype=dtype, output_loading_info=True, weights_only=True, **options
        )
    return tokenizer, model, report


def _options(place: Location, revision: str | None) -> dict[str, Any]:
    """What the loaders of transformers are told besides the directory or id.

    Left to themselves they ask whether code of the checkpoint may run, and read the answer from stdin, where
    questions may come from.
    """
    wanted: dict[str, Any] = {"revision": revision} if revision else {}
    wanted["trust_remote_code"] = False
    return {**wanted, "local_files_only": True} if place.cached else wanted


def choose_device(device: str | torch.device | None = None) -> torch.device:
    """The device asked for, or else the best there is.

    Examples
    --------
    >>> choose_device("cpu")
    device(type='cpu')
    """
    if device is not None:
        try:
            chosen = torch.device(device)
        except RuntimeError as error:
            raise UsageError(f"no device {device!r}; give 'cpu', 'cuda', 'cuda:1' or 'mps'") from error
        _check_present(chosen)
        return chosen
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def _check_present(device: torch.device) -> None:
    """Raise UsageError for a device that this machine does not have."""
    there = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    count = there.get(device.type, 1)
    if (device.index or 0) >= count:
        raise UsageError(f"this machine has no {device} ({count} of its kind); use --device cpu")


def files_hash(directory: Path) -> str:
    """sha256 over configuration, tokenizer and weight files, their names included."""
    files = {path for pattern in ("config.json", *_TOKENIZER, *_WEIGHTS) for path in directory.glob(pattern)}
    whole = hashlib.sha256()
    for path in sorted(files):
        with path.open("rb") as file:
            whole.update(f"{path.name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return f"sha256:{whole.hexdigest()}"


def _dtype(dtype: str | torch.dtype | None, device: torch.device) -> str | torch.dtype:
    if dtype is None:
        return torch.float32 if device.type == "cpu" else "auto"
    if isinstance(dtype, torch.dtype) or dtype == "auto":
        return dtype
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise UsageError(f"no dtype {dtype!r}; give 'float32', 'bfloat16', 'float16' or 'auto'")
    return found


@contextmanager
def in_words(what: str, source: str) -> Iterator[None]:
    """Put what the loaders of transformers raise into words: one error, whatever a damaged file led to."""
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
    except Exception as error:  # they raise what a wrong value happens to break
        raise ModelError(f"{what}: {_reason(error)}{_advice(source)}") from error


def _reason(error: Exception) -> str:
    """What a loader's error says, or what it means where that is not plain."""
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
def _quietly() -> Iterator[None]:
    """No bars, reports and warnings of transformers and the hub's client; afterwards all is as it was."""
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


def _check_complete(what: str, report: Any) -> None:
    """Weights that the files lack would be random numbers."""
    lacking = sorted(report.get("missing_keys", ()))
    if lacking:
        raise ModelError(
            f"{what}: the files lack {len(lacking)} of its weights ({', '.join(lacking[:3])}, …); "
            "it is incomplete, or not a causal language model"
        )


def _reset_generation_config(model: Any) -> None:
    """Leave the checkpoint's sampling settings behind; its special tokens stay."""
    old = model.generation_config
    kept = {name: getattr(old, name, None) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = transformers.GenerationConfig(**kept)
