"""`load_model` and `load_equivalence`, which import torch and transformers only when they are called."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semcal.engine.equivalence import DEFAULT, Equivalence, ExactMatch, names_a_server
from semcal.errors import ModelError, UsageError, shown

if TYPE_CHECKING:
    import torch

    from semcal.engine.causal_lm import CausalLanguageModel
    from semcal.engine.servers.settings import ServerSettings

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{unit}I": 2 ** (10 * power) for power, unit in enumerate("KMGT", 1)}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", re.IGNORECASE)
_ADDRESS_SPACE = 2**63  # no process can address as many bytes


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
        "sha256:…" of a GGUF, or over the configuration and weight files of a directory.

    Raises
    ------
    ModelError
        If there is no such directory, the hub cannot be reached, a file is missing or damaged, or it is not a
        causal language model.
    UsageError
        If the device or dtype does not exist, or `memory` is not a size.

    Examples
    --------
    >>> load_model("atlas", device="cpu").name
    'language_model'
    """
    if names_a_server(path_or_id):
        raise UsageError(f"{shown(path_or_id)} is a server, which semcal.load_server connects to")
    import torch
    from transformers import AutoModelForCausalLM

    from semcal.engine.causal_lm import CausalLanguageModel
    from semcal.engine.checkpoints import (
        as_model_error,
        choose_device,
        choose_dtype,
        read_checkpoint,
        read_config,
        revision_of,
    )
    from semcal.engine.gguf import unpacked
    from semcal.hub_names import LANGUAGE_MODEL, locate
    from semcal.qa.questions import chat

    where = choose_device(device)
    budget = None if memory is None else parse_size(memory)
    location = locate(path_or_id, LANGUAGE_MODEL, revision=revision)
    what = f"cannot load the language model {location.name!r}"
    chosen = choose_dtype(dtype, where)
    if location.gguf:
        chosen = torch.float32 if dtype is None or isinstance(chosen, str) else chosen
        location, revision = unpacked(what, location, chosen), None
    config = read_config(what, location, revision)
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{what}: {config.model_type} is an encoder-decoder, a causal language model is needed"
        )
    tokenizer, model, report = read_checkpoint(
        what, location, revision, kind=AutoModelForCausalLM, dtype=chosen
    )
    _check_complete(what, report)
    found = revision_of(location, config)
    with as_model_error(what, location.source):
        language_model = CausalLanguageModel(
            model.to(where),
            tokenizer,
            name=location.name,
            revision=found,
            memory_budget=budget,
            refuse_larger=budget is not None,
            checkpoint=found,
        )
        language_model.encode_answer(chat("Which?"), "That.")  # fails here if the tokenizer is damaged
    _reset_generation_config(model)
    return language_model


def load_equivalence(
    name_or_dir: str | Path = DEFAULT,
    *,
    device: str | None = None,
    revision: str | None = None,
    cache: str | Path | None = None,
    settings: ServerSettings | None = None,
) -> Equivalence:
    """Load what decides whether two answers mean the same.

    Parameters
    ----------
    name_or_dir : str or Path
        "default", the model for real text that comes with the package; "exact", equality of normal forms;
        "atlas", the NLI model of the invented world; the directory or hub id of a sequence-classification
        checkpoint with a label "entailment" (such as those trained on MNLI); "openai:URL#MODEL", a language
        model that is asked in words; the http or https URL of a cross-encoder behind
        text-embeddings-inference.
    device : str, optional
        Where the model runs: "cpu", "cuda", "cuda:1". By default a GPU if there is one.
    revision : str, optional
        Commit, tag or branch of a hub id.
    cache : str or Path, optional
        A file in which verdicts are kept and looked up, shared by runs and processes.
    settings : ServerSettings, optional
        How a server is asked. The key is SEMCAL_JUDGE_API_KEY, or else that of the settings, which is
        SEMCAL_API_KEY by default.

    Returns
    -------
    Equivalence
        `ExactMatch`, `EmbeddedEquivalence`, `CrossEncoder`, what asks a server, or a `CachedEquivalence`
        around one of the others.

    Raises
    ------
    ModelError
        If the checkpoint cannot be loaded or does not say which label is entailment.
    ServerError
        If the server cannot be reached, or has no label entailment.
    StoreError
        If the cache is damaged or belongs to another program.

    Examples
    --------
    >>> load_equivalence("exact").name
    'exact'
    """
    if str(name_or_dir) == "exact":
        return ExactMatch()
    found: Equivalence
    if str(name_or_dir) == DEFAULT:
        from semcal.engine.embedded_equivalence import EmbeddedEquivalence

        found = EmbeddedEquivalence()
    elif names_a_server(name_or_dir):
        from semcal.engine.servers.entailment import load_verdicts

        found = load_verdicts(str(name_or_dir), settings)
    else:
        from semcal.engine.nli import CrossEncoder

        found = CrossEncoder.from_pretrained(name_or_dir, device=device, revision=revision)
    if cache is None:
        return found
    from semcal.engine.verdicts import CachedEquivalence

    return CachedEquivalence(found, cache)


def parse_size(text: str | int) -> int:
    """Return a number of bytes, given as such or with a unit.

    kB, MB, GB, TB are powers of 1000, KiB, MiB, GiB, TiB of 1024; the B may be left out, and upper or lower
    case does not matter. UsageError if it is no such size, less than one byte, or more than a process can
    address.

    >>> parse_size("2GB"), parse_size("1.5 GiB"), parse_size("512m"), parse_size(1000)
    (2000000000, 1610612736, 512000000, 1000)
    """
    size = text if isinstance(text, int) else _parsed(text)
    if not 1 <= size < _ADDRESS_SPACE:
        raise UsageError(
            f"{shown(text)} is not a size of memory; give bytes or a unit, such as 500MB, 2GB or 1.5GiB"
        )
    return int(size)


def _parsed(text: str) -> float:
    """The number that a text states; 0 if it is not a size."""
    found = _SIZE.fullmatch(text)
    unit = _UNITS.get(found[2].upper()) if found else None
    return float(found[1]) * unit if found and unit else 0.0


def _check_complete(what: str, report: Any) -> None:
    """Refuse a checkpoint that lacks weights: they would be random numbers."""
    missing = sorted(report.get("missing_keys", ()))
    if missing:
        raise ModelError(
            f"{what}: the files lack {len(missing)} of its weights ({', '.join(missing[:3])}, …); "
            "it is incomplete, or not a causal language model"
        )


def _reset_generation_config(model: Any) -> None:
    """Drop the checkpoint's sampling settings and keep its special tokens."""
    from transformers import GenerationConfig

    old = model.generation_config
    kept = {name: getattr(old, name, None) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(**kept)
