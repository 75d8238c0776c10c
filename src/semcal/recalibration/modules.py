"""Recalibrators that are torch modules: Platt and ATS, and their tensors on disk (spec section 6).

Platt is a diagonal affine map of the logits. ATS computes a temperature for each position, 1/T_t =
exp(psi(h_1 … h_t)); psi is one LLaMA-style decoder block over the last hidden states of the whole sequence
with a linear read-out to one number (paper, "Adaptive Temperature Scaling"). The weights are in
`model.safetensors` next to recalibrator.json, which has their checksum.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from semcal.errors import StoreError, shown
from semcal.files import file_checksum, part_folder
from semcal.hub_names import RECALIBRATOR
from semcal.models.features import BlockShape
from semcal.recalibration.files import Contents, Strict
from semcal.recalibration.fit import Fit, fit_estimator
from semcal.recalibration.records import T_MAX, T_MIN, GradientSteps, check_loss
from semcal.rows import Json

if TYPE_CHECKING:
    from semcal.data.datasets import Questions
    from semcal.inputs import ModelLike
    from semcal.models.prompting import PromptConfig
    from semcal.recalibration.records import Fitted

FILE = RECALIBRATOR.file


class TrainedModule(nn.Module):
    """Base class of ATS and Platt: weights that are trained with a loss, and a record of the training."""

    method: str
    sgd_: GradientSteps | None = None

    def __init__(self, loss: str, alpha: float | None) -> None:
        super().__init__()
        check_loss(loss, alpha)
        self.loss, self.alpha = loss, alpha

    def fit(
        self, model: ModelLike, labeled: Questions, *, prompt: PromptConfig | None = None, **options: Any
    ) -> Fit:
        """Train on labeled questions by the paper's schedule, and return the fit like `semcal.fit`.

        `options` are further keywords of `semcal.fit`: `weight_decay`, `learning_rate`, `seed`, …
        """
        return fit_estimator(cast("Fitted", self), model, labeled, prompt, **options)

    def freeze(self, sgd: GradientSteps | None) -> Self:
        """End a training and store its record `sgd`; move the weights to the CPU, without gradients."""
        self.sgd_ = sgd
        return self.requires_grad_(False).cpu()

    def fingerprint(self) -> str:
        """Return a text that identifies settings and weights on every machine."""
        digest = hashlib.sha256()
        for name, weight in sorted(self.state_dict().items()):
            digest.update(name.encode() + weight.detach().cpu().contiguous().numpy().tobytes())
        return f"{self.method}({self.extra_repr()}, weights={digest.hexdigest()[:32]})"


class Platt(TrainedModule):
    """Platt scaling (paper, "Token-Level Recalibration"): softmax(w ⊙ z + b), with w = 1 and b = 0 at first.

    A logit of −inf stays −inf for every w and b, so impossible tokens stay impossible. `weight` and `bias`
    are w and b, (V,) float32; without a size of the `vocabulary` they exist only after `fit`. `loss` and
    `alpha` are the loss of the fit.

    Examples
    --------
    >>> platt = Platt(2)
    >>> _ = platt.bias.data.copy_(torch.tensor([0.0, 3.0]).log1p())
    >>> platt.log_probs(torch.zeros(2)).exp().detach()
    tensor([0.2000, 0.8000])
    """

    method = "Platt"

    def __init__(
        self, vocabulary: int | None = None, *, loss: str = "NLL", alpha: float | None = None
    ) -> None:
        super().__init__(loss, alpha)
        if vocabulary is not None:
            self.weight = nn.Parameter(torch.ones(vocabulary))
            self.bias = nn.Parameter(torch.zeros(vocabulary))

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return log softmax(w ⊙ logits + b) in float32, shape (..., V) unchanged, on the logits' device."""
        impossible = logits == -torch.inf
        weight, bias = self.weight.to(logits.device), self.bias.to(logits.device)
        z = weight * logits.float().masked_fill(impossible, 0.0) + bias
        return torch.log_softmax(z.masked_fill(impossible, -torch.inf), dim=-1)

    def extra_repr(self) -> str:
        """Return the settings for the repr."""
        size = f"vocabulary={len(self.weight)}, " if self._parameters else ""
        return f"{size}loss={self.loss!r}, alpha={self.alpha}"


class _Weights(Strict):
    file: Literal["model.safetensors"]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ModuleContents(Contents):
    """The contents of the file of a module whose weights are in another file."""

    weights: _Weights

    @classmethod
    def write_weights(cls, recalibrator: Any, path: Path) -> Json:
        """Write the module's tensors, and return the file's name and checksum."""
        checksum = write_tensors(path, recalibrator.state_dict())
        return {"weights": {"file": path.name, "sha256": checksum}}

    def module(self) -> Any:
        """Return the module with these settings, without loaded weights."""
        raise NotImplementedError

    def restored(self, weights: Path) -> Any:
        """Return the frozen module with its weights; StoreError, without allocation, if they are damaged."""
        beside = weights.with_name(FILE)
        try:
            with torch.device("meta"):
                module = self.module()
        except (RuntimeError, TypeError, OverflowError) as error:
            shape = shown(getattr(self, "shape", None))
            raise StoreError(f"{beside}: shape: {shape} is too large for tensors. Fit again") from error
        if not weights.is_file():
            raise StoreError(f"{weights}: missing, but {FILE} refers to it. Fit again")
        if file_checksum(weights) != self.weights.sha256:
            raise StoreError(
                f"{weights}: damaged or from another fit (the checksum differs from {FILE}). Fit again"
            )
        try:
            tensors = load_file(weights)
        except (SafetensorError, RuntimeError) as error:
            raise StoreError(f"{weights}: damaged, it contains no tensors. Fit again") from error
        expected, found = (
            {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}
            for state in (module.state_dict(), tensors)
        )
        if expected != found or not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise StoreError(
                f"{weights}: names, shapes or types differ from {FILE}, or a weight is not finite. Fit again"
            )
        module.to_empty(device="cpu").load_state_dict(tensors)
        return module.freeze(self.sgd)


class _Vocabulary(Strict):
    vocabulary: Annotated[int, Field(ge=1, lt=2**31)]


class PlattContents(ModuleContents):
    """The contents of the file of Platt."""

    shape: _Vocabulary

    @classmethod
    def described(cls, recalibrator: Platt) -> Json:
        """Return the size of the vocabulary, and the loss of the fit."""
        return {"shape": {"vocabulary": len(recalibrator.weight)}, **super().described(recalibrator)}

    def module(self) -> Platt:
        """Return the affine map."""
        return Platt(self.shape.vocabulary, loss=self.loss, alpha=self.alpha)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write a safetensors file atomically and return its checksum.

    StoreError if the file cannot be written, for example because the disk is full.
    """
    try:
        with part_folder(path) as folder:  # the library creates files that only their owner can read
            written = folder / path.name
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, written)
            written.chmod(folder.stat().st_mode & 0o666)
            with written.open("rb+") as handle:
                os.fsync(handle.fileno())
            checksum = file_checksum(written)
            written.replace(path)
    except SafetensorError as error:
        raise StoreError(
            f"{path}: cannot be written ({error}). Check the free space, and run the same command again"
        ) from error
    return checksum


KeysValues = tuple[Tensor, Tensor]
"""Keys and values, each (B, key-value heads, n, head width); keys are rotated to their positions."""
#: Standard deviation of the block's initial matrices, as in LLaMA.
SPREAD = 0.02


class _RMSNorm(nn.Module):
    """x / rms(x) times a weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * self.normalised(x)

    def normalised(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


class _Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bounds = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (x,), (gradient,), (low, high) = ctx.saved_tensors, gradients, ctx.bounds
        outward = ((x >= high) & (gradient < 0)) | ((x <= low) & (gradient > 0))
        return gradient.masked_fill(outward, 0.0), None, None


class ATS(TrainedModule):
    """Attentive temperature scaling (paper, "Adaptive Temperature Scaling"): softmax(z_t / T_t).

    1/T_t = exp(psi(h_1 … h_t)), with a decoder block psi of this `shape`, by default of the model. `loss`
    and `alpha` are the loss of the fit. `seed` is the seed of the initial weights, if a shape is given.

    The read-out starts at zero, so that T = 1 at every position and the fit starts from the model. A random
    read-out would start from random temperatures, and the paper's learning rate of 1e-5 has too few steps to
    correct them.

    T stays in [0.05, 20]. A psi beyond the range is set to its bound. Gradients that lead back into the range
    pass and gradients that lead out of it are masked, so that no position stays at a bound.
    """

    method = "ATS"

    shape: BlockShape

    def __init__(
        self, shape: BlockShape | None = None, *, loss: str = "NLL", alpha: float | None = None, seed: int = 0
    ) -> None:
        super().__init__(loss, alpha)
        if shape is not None:
            self._build(shape, seed)

    def _build(self, shape: BlockShape, seed: int) -> None:
        self.shape = shape
        d, inner = shape.hidden_size, shape.intermediate_size
        wide, narrow = shape.heads * shape.head_dim, shape.key_value_heads * shape.head_dim
        self.attention_norm = _RMSNorm(d, shape.rms_eps)
        self.query = nn.Linear(d, wide, bias=False)
        self.key = nn.Linear(d, narrow, bias=False)
        self.value = nn.Linear(d, narrow, bias=False)
        self.out = nn.Linear(wide, d, bias=False)
        self.mlp_norm = _RMSNorm(d, shape.rms_eps)
        self.gate = nn.Linear(d, inner, bias=False)
        self.up = nn.Linear(d, inner, bias=False)
        self.down = nn.Linear(inner, d, bias=False)
        self.readout = nn.Linear(d, 1)
        generator = torch.Generator().manual_seed(seed)
        for matrix in (self.query, self.key, self.value, self.out, self.gate, self.up, self.down):
            nn.init.normal_(matrix.weight, std=SPREAD, generator=generator)
        nn.init.zeros_(self.readout.weight)
        nn.init.zeros_(self.readout.bias)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.readout.weight.device

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        return self.shape.head_dim

    @property
    def bytes_per_token(self) -> int:
        """Size of the key and the value of one token."""
        return 2 * self.key.weight.shape[0] * self.key.weight.element_size()

    def keys_values(self, states: Tensor, positions: Tensor) -> KeysValues:
        """Return keys and values of last hidden states (B, n, d), to which later positions attend.

        `positions` (B, n) count from 0 in the whole sequence.
        """
        # the norm's weight multiplies the matrices instead of the many states, which then need no gradient
        x = self.attention_norm.normalised(states.to(self.key.weight.dtype))
        scale = self.attention_norm.weight
        keys, values = F.linear(x, self.key.weight * scale), F.linear(x, self.value.weight * scale)
        return self._rotated(self._heads(keys), positions), self._heads(values)

    def inverse_temperature(
        self,
        states: Tensor,  # (B, q, d), last hidden states of the logits to divide by T
        positions: Tensor,  # (B, q), positions in the whole sequence
        keys: Tensor,  # (B, key-value heads, K, head_dim), from `keys_values`, with these positions
        values: Tensor,
        visible: Tensor,  # (B, q, K) bool, the keys up to each position, to which it attends
        *,
        shared: KeysValues | None = None,
    ) -> Tensor:
        """Return 1/T (B, q) at given positions, float32, in [1/20, 1/0.05].

        `shared` are keys and values of a common prefix of all rows, with batch size 1. Every position attends
        to all of them, and they are not copied.
        """
        gathered = self._attended(self.queries(states, positions), keys, values, visible, shared)
        return self.inverse_temperature_from(states, gathered)

    def queries(self, states: Tensor, positions: Tensor) -> Tensor:
        """Return the queries (B, heads, n, head_dim) of states (B, n, d)."""
        x = self.attention_norm(states.to(self.query.weight.dtype))
        return self._rotated(self._heads(self.query(x)), positions)

    def inverse_temperature_from(self, states: Tensor, gathered: Tensor) -> Tensor:
        """Return 1/T (B, n) from states (B, n, d) and the attention output (B, n, heads * head_dim)."""
        x = states.to(self.query.weight.dtype)
        x = x + self.out(gathered)
        inner = self.mlp_norm(x)
        x = x + self.down(F.silu(self.gate(inner)) * self.up(inner))
        psi: Tensor = _Clip.apply(self.readout(x)[..., 0], -math.log(T_MAX), -math.log(T_MIN))  # type: ignore[no-untyped-call]
        return torch.exp(psi)

    def log_probs(self, logits: Tensor, inverse_temperature: Tensor) -> Tensor:
        """Return log softmax(logits / T) in float32, for logits (..., V) and 1/T (...)."""
        return torch.log_softmax(logits.float() * inverse_temperature[..., None], dim=-1)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.shape.head_dim).transpose(1, 2)  # (B, heads, n, head_dim)

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate the pairs (i, i + head_dim/2) of x (B, heads, n, head_dim) by their positions' angles."""
        half = self.shape.head_dim // 2
        exponent = torch.arange(half, device=x.device, dtype=torch.float32) / half
        angle = positions[:, None, :, None].float() * self.shape.rope_theta**-exponent
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        first, second = x[..., :half], x[..., half:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def _attended(
        self, q: Tensor, keys: Tensor, values: Tensor, visible: Tensor, shared: KeysValues | None
    ) -> Tensor:
        """Attention output (B, q, heads * head_dim); scores of shared and own keys share one softmax."""
        q = q.view(len(q), self.shape.key_value_heads, -1, *q.shape[2:])  # (B, k, g, q, head_dim)
        q = q * self.shape.head_dim**-0.5
        scores = torch.einsum("bkgqd,bknd->bkgqn", q, keys)
        # the lowest finite number instead of -inf, because a padded position without keys must not be NaN
        scores = scores.masked_fill(~visible[:, None, None], torch.finfo(scores.dtype).min)
        if shared is not None:
            scores = torch.cat([torch.einsum("bkgqd,knd->bkgqn", q, shared[0][0]), scores], -1)
        p = torch.softmax(scores, -1)
        own_share = p[..., -keys.shape[2] :]
        gathered = torch.einsum("bkgqn,bknd->bkgqd", own_share, values)
        if shared is not None:
            common = p[..., : -keys.shape[2]]
            gathered = gathered + torch.einsum("bkgqn,knd->bkgqd", common, shared[1][0])
        return gathered.flatten(1, 2).transpose(1, 2).flatten(2)

    def extra_repr(self) -> str:
        """Return the settings for the repr, before the layers."""
        shape = f"{self.shape}, " if self._modules else ""
        return f"{shape}loss={self.loss!r}, alpha={self.alpha}"


class ATSContents(ModuleContents):
    """The contents of the file of ATS."""

    keys = ("shape", "loss", "alpha")

    shape: BlockShape

    def module(self) -> ATS:
        """Return the block."""
        return ATS(self.shape, loss=self.loss, alpha=self.alpha)
