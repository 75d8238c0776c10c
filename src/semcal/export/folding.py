"""Folding a temperature into a checkpoint: a copy whose logits are those of the original, divided by T.

No architecture is known by its name. The places where a factor may go (a scale in the configuration, an
untied head, the layers before a tied head) are tried in turn on the model in memory with T = 2, where a wrong
one is off by half; the first that gives logits / 2 is used. Then the copy is written and loaded like any
checkpoint, and its logits are compared with logits / T before it is moved to its final name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from semcal.engine.loading import load_model
from semcal.errors import ModelError, UsageError
from semcal.export.checkpoint import FOLDED, Checkpoint, is_folded, open_checkpoint, refuse_folded
from semcal.export.sampling_parameters import generation_config
from semcal.recalibration.temperature import Temperature
from semcal.records import atomic_folder, own_files

#: Keys of configurations that multiply or divide all logits, and that cap them (cap · tanh(z / cap)).
SCALES = ("logit_scale", "logits_scaling", "lm_head_multiplier")
CAPS = ("final_logit_softcapping",)
#: Largest |folded − logits/T| / max |logits/T| where nothing is rounded to fewer than 24 bits.
EXACT = 1e-5
#: How many of the last modules before the head are tried.
DEPTH = 3
#: Random token sequences on which logits are compared: how many, and how long.
PROBES = (4, 16)

_SCALINGS: Mapping[str, Callable[[Any, float], Any]] = {
    "divide": lambda w, t: w / t,
    "multiply": lambda w, t: w * t,
    "one plus": lambda w, t: (1 + w) / t - 1,
}


@dataclass(frozen=True)
class Folded:
    """What was folded, where, and how accurately."""

    directory: Path  # the new checkpoint
    temperature: float
    changed: tuple[str, ...]  # tensors and configuration keys that differ
    error: float  # largest |its logits - logits/T| on random sequences, relative to the largest |logits/T|
    tolerance: float  # the error that was allowed
    left_out: tuple[str, ...]  # weights in other formats, which were not copied


@dataclass(frozen=True)
class _Scaling:
    """Changes that together divide the logits by T: (name, kind of scaling) of parameters and config keys."""

    parameters: tuple[tuple[str, str], ...] = ()
    keys: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class _Plan:
    """A scaling that works, in terms of the files, and the original's logits on random sequences."""

    tensors: Mapping[str, str]  # stored name -> kind of scaling
    keys: Mapping[str, tuple[float, str]]  # configuration key -> its value and kind of scaling
    ids: Tensor
    logits: Tensor


def fold(
    model: str | Path | Checkpoint,
    out: str | Path,
    *,
    temperature: float,
    origin: Mapping[str, Any] | None = None,
    device: str | None = None,
    dtype: str = "float32",
    overwrite: bool = False,
) -> Folded:
    """Write a copy of a checkpoint that gives logits / T.

    Parameters
    ----------
    model : str, Path or Checkpoint
        A directory with safetensors weights, or a hub id.
    out : str or Path
        The new directory: missing or empty. It appears whole or not at all.
    temperature : float
        T > 0.
    origin : mapping, optional
        Stored in the copy's generation_config.json under "semcal".
    device, dtype : str, optional
        Device and dtype for comparing the logits; the copy keeps the dtype of the original.
    overwrite : bool
        Replace an existing folded checkpoint; any other existing directory is still refused.

    Raises
    ------
    ModelError
        If a temperature is folded in already, no scaling gives logits/T, or the written copy misses it by
        more than `tolerance`.
    UsageError
        If `out` is taken or T is not a positive number.

    Notes
    -----
    The copy's config.json says ``semcal_folded_temperature``, and its generation config samples at
    temperature 1 from the whole vocabulary.
    """
    t, target = Temperature(temperature).temperature, Path(out)
    if target.exists() and not (
        target.is_dir() and (not own_files(target) or (overwrite and is_folded(target)))
    ):
        raise UsageError(f"{target} is there already; name a new directory for the folded checkpoint")
    checkpoint = model if isinstance(model, Checkpoint) else open_checkpoint(model)
    refuse_folded(checkpoint.config)
    plan = _examine(checkpoint, device, dtype)
    tensors = {name: _scaled(checkpoint.tensor(name), kind, t) for name, kind in plan.tensors.items()}
    with atomic_folder(target) as partial:
        checkpoint.copy(
            partial,
            tensors=tensors,
            config={**_with_keys(checkpoint.config, plan.keys, t), FOLDED: t},
            generation_config=generation_config(1.0, checkpoint=checkpoint.special_tokens(), comment=origin),
        )
        network = load_model(partial, device=device, dtype=dtype).network.model
        error = _distance(_logits(network, plan.ids), plan.logits / t)
        allowed = tolerance(network.dtype, *(tensor.dtype for tensor in tensors.values()))
        if not error <= allowed:
            raise ModelError(
                f"the folded copy of {checkpoint.name} misses logits/T by {error:.1e} of their scale, more "
                f"than {allowed:.0e}; T cannot be folded in, give it as a sampling temperature"
            )
    left_out = tuple(map(str, checkpoint.files()[1]))
    return Folded(target, t, (*plan.tensors, *plan.keys), error, allowed, left_out)


def tolerance(computed: torch.dtype, *stored: torch.dtype) -> float:
    """How far folded logits may be from logits/T, relative to their scale.

    1e-5 in float32. Where a changed weight is stored in fewer bits, the spacing of its numbers (2^-7 for
    bfloat16, 2^-10 for float16): rounding moves each weight by half of that at most. Where the logits are
    computed in fewer bits, four times their spacing.

    >>> tolerance(torch.float32), tolerance(torch.float32, torch.bfloat16)
    (1e-05, 0.0078125)
    >>> tolerance(torch.bfloat16, torch.bfloat16)
    0.03125
    """
    rounding = [torch.finfo(dtype).eps for dtype in stored]
    return max(EXACT, 4 * torch.finfo(computed).eps, *rounding)


def _examine(checkpoint: Checkpoint, device: str | None, dtype: str) -> _Plan:
    """Find a scaling that works by trying them."""
    network = load_model(checkpoint.directory, device=device, dtype=dtype).network.model
    ids = _probes(network)
    reference = _logits(network, ids)
    for scaling in _scalings(network, ids):
        with _applied(network, scaling, 2.0):
            halved = _distance(_logits(network, ids), reference / 2) <= tolerance(network.dtype)
        if halved:
            parameters = dict(network.named_parameters())
            tensors = {
                _stored_name(checkpoint, name, parameters[name]): kind for name, kind in scaling.parameters
            }
            config = network.config.get_text_config()
            keys = {key: (float(getattr(config, key)), kind) for key, kind in scaling.keys}
            return _Plan(tensors, keys, ids, reference)
    raise ModelError(
        f"no way was found to divide the logits of {checkpoint.name} by a temperature through its weights; "
        "give T as a sampling temperature instead"
    )


def _scalings(network: Any, ids: Tensor) -> Iterator[_Scaling]:
    """Scalings to try: first those that need no rounding, then the head, then the modules before it."""
    config = network.config.get_text_config()
    caps = tuple((key, "divide") for key in CAPS if getattr(config, key, None))
    for key in (key for key in SCALES if getattr(config, key, None)):
        yield from (_Scaling(keys=((key, kind), *caps)) for kind in ("multiply", "divide"))
    head = network.get_output_embeddings()
    if head is None:
        return
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    bias = () if getattr(head, "bias", None) is None else ((names[id(head.bias)], "divide"),)
    if head.weight is not network.get_input_embeddings().weight:
        yield _Scaling(((names[id(head.weight)], "divide"), *bias), caps)
    for module in _before_head(network, head, ids):
        own = [(kind, names[id(parameter)]) for kind, parameter in module.named_parameters(recurse=False)]
        if {kind for kind, _ in own} <= {"weight", "bias"}:
            for weights in ("divide", "one plus"):
                places = tuple((name, weights if kind == "weight" else "divide") for kind, name in own)
                yield _Scaling((*places, *bias), caps)


def _before_head(network: Any, head: nn.Module, ids: Tensor) -> list[nn.Module]:
    """The modules with floating-point parameters of their own that ran last before the head, last first."""
    finished: list[nn.Module] = []
    apart = (head, network.get_input_embeddings())

    def own(module: nn.Module) -> list[nn.Parameter]:
        return list(module.parameters(recurse=False))

    with ExitStack() as stack:
        for module in network.modules():
            if own(module) and module not in apart and all(p.is_floating_point() for p in own(module)):
                stack.callback(module.register_forward_hook(lambda m, _i, _o: finished.append(m)).remove)
        _logits(network, ids)
    return list(dict.fromkeys(reversed(finished)))[:DEPTH]


@contextmanager
def _applied(network: Any, scaling: _Scaling, t: float) -> Iterator[None]:
    """The model with a scaling applied, inside the `with` block."""
    parameters = dict(network.named_parameters())
    kept = [(parameters[name], parameters[name].detach().clone(), kind) for name, kind in scaling.parameters]
    settings = [
        (where, key, vars(where)[key], kind) for key, kind in scaling.keys for where in _holders(network, key)
    ]
    with torch.no_grad():
        try:
            for parameter, old, kind in kept:
                parameter.copy_(_scaled(old, kind, t))
            for where, key, value, kind in settings:
                setattr(where, key, _SCALINGS[kind](value, t))
            yield
        finally:
            for parameter, old, _ in kept:
                parameter.copy_(old)
            for where, key, value, _ in settings:
                setattr(where, key, value)


def _holders(network: Any, key: str) -> list[Any]:
    """The config that has a key, and the modules that copied its value."""
    config = network.config.get_text_config()
    value = getattr(config, key)
    return [where for where in (config, *network.modules()) if vars(where).get(key) == value]


def _scaled(weight: Tensor, kind: str, t: float) -> Tensor:
    """Scale in float64 and round once, to the dtype of `weight`."""
    scaled: Tensor = _SCALINGS[kind](weight.double(), t).to(weight.dtype)
    return scaled


def _with_keys(config: Mapping[str, Any], keys: Mapping[str, tuple[float, str]], t: float) -> dict[str, Any]:
    """The config with keys scaled: in its text config, if it has one, and at the top level if present."""
    changed = {key: _SCALINGS[kind](value, t) for key, (value, kind) in keys.items()}
    if "text_config" not in config:
        return {**config, **changed}
    at_top = {key: value for key, value in changed.items() if key in config}
    return {**config, **at_top, "text_config": {**config["text_config"], **changed}}


def _stored_name(checkpoint: Checkpoint, name: str, parameter: Tensor) -> str:
    """The name under which a parameter is stored: its own, or with another prefix.

    transformers drops or adds a prefix ("model.", "transformer.") when it reads a file, so the name with the
    longest common end is taken; its values must be the parameter's.
    """
    ends = {stored: _common_end(name, stored) for stored in checkpoint.shards}
    best = max(ends.values(), default=0)
    found = [stored for stored, length in ends.items() if length == best]
    if name in found:
        found = [name]
    if len(found) == 1 and best > 1:
        tensor = checkpoint.tensor(found[0])
        if tensor.shape == parameter.shape and torch.equal(tensor.to(parameter), parameter):
            return found[0]
    raise ModelError(f"the weight {name} of {checkpoint.name} is not found in its files; it cannot be folded")


def _common_end(a: str, b: str) -> int:
    """How many dotted words two names share at their ends."""
    pairs = list(zip(reversed(a.split(".")), reversed(b.split("."))))
    return next((i for i, (x, y) in enumerate(pairs) if x != y), len(pairs))


def _probes(network: Any) -> Tensor:
    """Random token ids (B, n), the same for every call and device."""
    vocabulary = network.get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocabulary, PROBES, generator=generator).to(network.device)


@torch.no_grad()
def _logits(network: Any, ids: Tensor) -> Tensor:
    """Logits (B, n, V) in float32."""
    logits: Tensor = network(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    return logits.float()


def _distance(a: Tensor, b: Tensor) -> float:
    """Largest difference, relative to the largest |b|."""
    return float((a - b).abs().max() / b.abs().max())
