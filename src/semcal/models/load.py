"""Load language models and NLI models from checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from semcal.errors import ModelError, UsageError, naming_extra, shown
from semcal.hub_names import LANGUAGE_MODEL, NLI_MODEL, llama_cpp_line, locate
from semcal.models.checkpoint import as_model_error, read_checkpoint, read_config, revision_of
from semcal.models.equivalence import Equivalence, names_a_server
from semcal.models.gguf import unpacked

if TYPE_CHECKING:
    import torch

    from semcal.models.causal_lm import CausalLanguageModel


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

    The end-of-text tokens of the checkpoint's generation config apply. Its temperature, top-p, top-k and
    repetition penalty do not apply.

    Parameters
    ----------
    path_or_id : str or Path
        A directory in the format of `transformers`, a GGUF, an id on the Hugging Face hub, or "atlas", the
        small model in the package.
    device : str or torch.device, optional
        The device of the model. Default: a CUDA GPU, else an Apple GPU, else the CPU.
    dtype : str or torch.dtype, optional
        "float32", "bfloat16", …; "auto" is the type of the checkpoint. Default: float32 on a CPU and for a
        GGUF, otherwise "auto".
    revision : str, optional
        Branch, tag or commit on the hub.
    memory : int or str, optional
        Limit of the keys and values of one batch, in bytes or as "2GB"; a single question that may need more
        is rejected. Default: a quarter of the weights, at least 64 MiB; a question that may need more runs in
        its own batch.

    Returns
    -------
    CausalLanguageModel
        Its `name` is the id or the name of the directory or file. Its `revision` is the commit on the hub, or
        a hash "sha256:…" of a GGUF or of the files of a directory.

    Raises
    ------
    ModelError
        If the model is missing, cannot be reached, is damaged, or is not a causal language model.
    UsageError
        If the device or dtype does not exist, or `memory` is not a size.

    Examples
    --------
    >>> load_model("atlas", device="cpu").name
    'language_model'
    """
    if names_a_server(path_or_id):
        raise UsageError(f"model: {shown(path_or_id)} is a server. Use semcal.load_server to connect to it")
    needed_by = f"the language model {shown(str(path_or_id))}"
    with naming_extra(needed_by):
        location = locate(path_or_id, LANGUAGE_MODEL, revision=revision)
    if location.gguf:
        needed_by += f" ({llama_cpp_line(Path(location.source))})"
    with naming_extra(needed_by):
        import torch
        from transformers import AutoModelForCausalLM, GenerationConfig

        from semcal.models.causal_lm import CausalLanguageModel
        from semcal.models.engine.network import check_supported
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
            f"{failure}: {config.model_type} is an encoder-decoder. Pass a causal language model"
        )
    with as_model_error(f"{failure}: its configuration", location.source):
        check_supported(failure, config)
    # fused attention of transformers 5.17 ignores the soft-capping of scores
    eager = {"attn_implementation": "eager"} if getattr(config, "attn_logit_softcapping", None) else {}
    tokenizer, model, report = read_checkpoint(
        failure, location, revision, kind=AutoModelForCausalLM, dtype=chosen, **eager
    )
    if missing := sorted(report.get("missing_keys", ())):  # they would be random numbers
        raise ModelError(
            f"{failure}: {len(missing)} weights are missing in its files ({', '.join(missing[:3])}, …). Pass "
            "a complete causal language model"
        )
    with as_model_error(failure, location.source):
        language_model = CausalLanguageModel(
            model.to(torch_device),
            tokenizer,
            name=location.name,
            revision=revision_of(location, config),
            memory_budget=budget,
            refuse_larger=budget is not None,
        )
        language_model.encode_answer(chat("Which?"), "That.")  # raises here if the tokenizer is damaged
    settings = model.generation_config  # keep its special tokens, drop its sampling settings
    model.generation_config = GenerationConfig(
        bos_token_id=getattr(settings, "bos_token_id", None),
        eos_token_id=getattr(settings, "eos_token_id", None),
        pad_token_id=getattr(settings, "pad_token_id", None),
    )
    return language_model


def load_cross_encoder(name_or_dir: str | Path, device: str | None, revision: str | None) -> Equivalence:
    """Load an NLI model; ModelError if it cannot be loaded or its label for entailment is unknown."""
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
            f"{failure}: {', '.join(sorted(report['missing_keys']))} is missing in its files. Pass a "
            "checkpoint that was fine-tuned as a sequence classifier for natural language inference"
        )
    rows = model.get_input_embeddings().num_embeddings
    beyond = [token for token in tokenizer.all_special_tokens if tokenizer.vocab.get(token, 0) >= rows]
    if beyond:
        raise ModelError(
            f"{failure}: its tokenizer has {shown(beyond[0])} outside the model's {rows} tokens. Pass a "
            "checkpoint whose tokenizer belongs to the model"
        )
    checkpoint_revision = revision_of(location, model.config)
    with as_model_error(failure, location.source):
        encoder = CrossEncoder(
            model.to(torch_device), tokenizer, name=location.name, revision=checkpoint_revision
        )
    encoder.address = str(name_or_dir)
    return encoder


def parse_size(text: str | int) -> int:
    """Parse a number of bytes with an optional unit: kB, MB, … are powers of 1000, KiB, MiB, … of 1024.

    >>> parse_size("2GB"), parse_size("1.5 GiB"), parse_size(1000)
    (2000000000, 1610612736, 1000)
    """
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        size = TypeAdapter(ByteSize).validate_python(text)
    except ValidationError:
        size = ByteSize(0)
    if not 1 <= size < _ADDRESS_SPACE:
        raise UsageError(
            f"{shown(text)} is not a size of memory. Pass bytes, or a size with a unit such as 1.5GiB"
        )
    return int(size)


def choose_device(device: str | torch.device | None = None) -> torch.device:
    """Return the given device, or the best device of this machine; UsageError if it is missing."""
    import torch

    if device is not None:
        try:
            chosen = torch.device(device)
        except RuntimeError as error:
            raise UsageError(f"device: unknown {device!r}. Pass 'cpu', 'cuda', 'cuda:1' or 'mps'") from error
        counts = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
        count = counts.get(chosen.type, 1)
        if (chosen.index or 0) >= count:
            raise UsageError(f"device: this machine has {count} of the kind of {chosen}. Use --device cpu")
        return chosen
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def choose_dtype(dtype: str | torch.dtype | None, device: torch.device) -> str | torch.dtype:
    """Return the given dtype, by default float32 on a CPU and otherwise the dtype of the checkpoint."""
    import torch

    if dtype is None:
        return torch.float32 if device.type == "cpu" else "auto"
    if isinstance(dtype, torch.dtype) or dtype == "auto":
        return dtype
    torch_dtype = getattr(torch, dtype, None)
    if not isinstance(torch_dtype, torch.dtype) or not torch_dtype.is_floating_point:
        raise UsageError(f"dtype: unknown {dtype!r}. Pass 'float32', 'bfloat16', 'float16' or 'auto'")
    return torch_dtype
