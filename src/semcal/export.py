"""A fitted temperature for other programs: sampling settings, a logits processor, upload to the hub.

Everything that truncates or reshapes the distribution is switched off by the name that each program gives
it; by default programs truncate (top-k 40 or 50, top-p 0.9, …).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semcal.errors import naming_extra
from semcal.hub_names import LANGUAGE_MODEL, locate, upload
from semcal.models.loading import as_model_error, read_config, revision_of, silenced, unpacked
from semcal.recalibration.provenance import Provenance
from semcal.recalibration.saving import from_pretrained
from semcal.registry import check_name
from semcal.rows import Json

if TYPE_CHECKING:
    from semcal.logits_processor import TemperatureProcessor

__all__ = [
    "SERVERS",
    "TemperatureProcessor",
    "generation_config",
    "origin",
    "push_to_hub",
    "request_parameters",
]

_OPENAI = {"top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
_VLLM = {**_OPENAI, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
_LLAMA_CPP = {
    "samplers": ["temperature"],
    "dynatemp_range": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "xtc_probability": 0.0,
    "mirostat": 0,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
}
_NOT_OF_OLLAMA = ("samplers", "dynatemp_range", "xtc_probability", "dry_multiplier")
_OLLAMA = {name: value for name, value in _LLAMA_CPP.items() if name not in _NOT_OF_OLLAMA}
_OFF: dict[str, Json] = {
    "openai": _OPENAI,
    "vllm": _VLLM,
    "sglang": _VLLM,
    "llama.cpp": _LLAMA_CPP,
    "ollama": _OLLAMA,
}
#: The servers whose parameters are known.
SERVERS = tuple(_OFF)
#: Keys of a checkpoint's generation config that do not concern sampling and are kept.
_KEPT = ("bos_token_id", "eos_token_id", "pad_token_id", "max_length", "max_new_tokens")


def request_parameters(server: str, temperature: float) -> dict[str, Any]:
    """Return the parameters of a request that make a server sample from softmax(z / T).

    Parameters
    ----------
    server : {"openai", "vllm", "sglang", "llama.cpp", "ollama"}
        Determines names and neutral values; "openai" works with every OpenAI-style server.
    temperature : float
        T > 0.

    Returns
    -------
    dict
        To be merged into the request: of llama.cpp's /completion; the sampling parameters of vLLM and
        SGLang; for Ollama below the key "options".

    Raises
    ------
    UsageError
        If the server is not known.

    Examples
    --------
    >>> request_parameters("openai", 1.25)
    {'temperature': 1.25, 'top_p': 1.0, 'presence_penalty': 0.0, 'frequency_penalty': 0.0}
    """
    check_name(server, SERVERS, what="server")
    parameters = {"temperature": temperature, **_OFF[server]}
    return {"options": parameters} if server == "ollama" else parameters


def generation_config(
    temperature: float, *, checkpoint: Json | None = None, comment: Json | None = None
) -> dict[str, Any]:
    """Return the content of a generation_config.json with which transformers samples from softmax(z / T).

    Parameters
    ----------
    temperature : float
        T > 0.
    checkpoint : mapping, optional
        The checkpoint's own generation config (or its config): special tokens and lengths are kept.
    comment : mapping, optional
        Stored under the key "semcal", which transformers keeps and ignores.

    Examples
    --------
    >>> generation_config(1.25, checkpoint={"eos_token_id": 2, "top_p": 0.9})
    {'do_sample': True, 'temperature': 1.25, 'top_k': 0, 'top_p': 1.0, 'repetition_penalty': 1.0,
     'eos_token_id': 2}
    """
    sampling = {
        "do_sample": True,
        "temperature": temperature,
        "top_k": 0,
        "top_p": 1.0,
        "repetition_penalty": 1.0,
    }
    original = checkpoint or {}
    special = {key: original[key] for key in _KEPT if original.get(key) is not None}
    return {**sampling, **special, **({"semcal": dict(comment)} if comment else {})}


@dataclass(frozen=True)
class CheckpointSettings:
    """What an exported temperature needs of the checkpoint that it belongs to."""

    name: str  # with `revision` as `load_model` gives them: what a recalibrator's provenance is compared with
    revision: str
    generation_config: Json  # its own, or that of its config where it has none


def read_checkpoint_settings(path_or_id: str | Path) -> CheckpointSettings:
    """Read the settings of a directory, GGUF or hub id, and no weights; ModelError if it is no checkpoint."""
    with naming_extra("a checkpoint"):
        from torch import float32
        from transformers import GenerationConfig

    location = locate(path_or_id, LANGUAGE_MODEL)
    failure = f"cannot read the settings of {location.name!r}"
    if location.gguf:
        location = unpacked(failure, location, float32)
    config = read_config(failure, location, None)
    with silenced(), as_model_error(failure, location.source):
        try:
            generation = GenerationConfig.from_pretrained(location.source, local_files_only=location.cached)
        except OSError:  # not every checkpoint has one
            generation = GenerationConfig.from_model_config(config)
    return CheckpointSettings(location.name, revision_of(location, config), generation.to_diff_dict())


def origin(temperature: float, provenance: Provenance, *, solver: str | None = None) -> dict[str, Any]:
    """Where an exported temperature comes from: T, how it was found, model, revision, prompt hash, data."""
    fields = asdict(provenance)
    names = ("model", "revision", "prompt_hash", "data", "data_hash", "n_questions")
    found_by = {"solver": solver} if solver else {}
    return {"temperature": temperature, **found_by, **{name: fields[name] for name in names}}


def push_to_hub(
    directory: str | Path,
    repo_id: str,
    *,
    private: bool = True,
    token: str | None = None,
    message: str = "Upload a semcal recalibrator",
) -> str:
    """Upload a recalibrator directory to the Hugging Face hub.

    calibration.json contains the prompt with its few-shot examples, so they are uploaded too.

    Parameters
    ----------
    directory : str or Path
        What `save_pretrained` wrote; it is read first, so that nothing damaged is uploaded.
    repo_id : str
        owner/name; the repository is created if it does not exist.
    private : bool
        Whether a new repository is private.
    token : str, optional
        Hub token; by default the one that the hub's client has stored.
    message : str
        Commit message.

    Returns
    -------
    str
        The commit on the hub, for ``from_pretrained(repo_id, revision=…)``.

    Raises
    ------
    UsageError, StoreError
        If the directory holds no recalibrator or a damaged one, or the hub cannot be reached or refuses.
    """
    from_pretrained(Path(directory))
    return upload(Path(directory), repo_id, private=private, token=token, message=message)


def __getattr__(name: str) -> Any:
    if name == "TemperatureProcessor":  # its base class takes seconds to import, and only it needs that
        with naming_extra("semcal.export.TemperatureProcessor"):
            from semcal.logits_processor import TemperatureProcessor

        return TemperatureProcessor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
