"""Recalibrators with weights: what ATS and Platt share, Platt, and their tensors on disk.

Platt is a diagonal affine map of the logits. The weights of modules lie beside calibration.json in
`model.safetensors`, whose checksum is in that file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from semcal.errors import StoreError, shown
from semcal.files import file_checksum, part_folder
from semcal.hub_names import RECALIBRATOR_FILES
from semcal.recalibration.optimum import check_loss
from semcal.recalibration.provenance import GradientSteps
from semcal.recalibration.temperature import Contents, Strict
from semcal.rows import Json

FILE, _ = RECALIBRATOR_FILES


class TrainedModule(nn.Module):
    """What ATS and Platt share: weights that are trained with a loss, and a record of the training."""

    method: str
    sgd_: GradientSteps | None = None

    def __init__(self, loss: str, alpha: float | None) -> None:
        super().__init__()
        check_loss(loss, alpha)
        self.loss, self.alpha = loss, alpha

    def freeze(self, sgd: GradientSteps | None) -> Self:
        """End the training that `sgd` records: weights on the CPU, without gradients."""
        self.sgd_ = sgd
        return self.requires_grad_(False).cpu()

    def fingerprint(self) -> str:
        """Return a text that identifies settings and weights on every machine."""
        digest = hashlib.sha256()
        for name, weight in sorted(self.state_dict().items()):
            digest.update(name.encode() + weight.detach().cpu().contiguous().numpy().tobytes())
        return f"{self.method}({self.extra_repr()}, weights={digest.hexdigest()[:32]})"


class Platt(TrainedModule):
    """softmax(w ⊙ z + b), w = 1 and b = 0 before training.

    A logit of −inf stays −inf whatever w and b are: what the model rules out cannot come back. `weight` and
    `bias` are w and b, (V,) float32; `loss` and `alpha` are what it is fitted with.

    Examples
    --------
    >>> platt = Platt(2)
    >>> _ = platt.bias.data.copy_(torch.tensor([0.0, 3.0]).log1p())
    >>> platt.log_probs(torch.zeros(2)).exp().detach()
    tensor([0.2000, 0.8000])
    """

    method = "Platt"

    def __init__(self, vocabulary: int, *, loss: str = "NLL", alpha: float | None = None) -> None:
        super().__init__(loss, alpha)
        self.weight = nn.Parameter(torch.ones(vocabulary))
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return log softmax(w ⊙ logits + b) in float32, shape (..., V) unchanged, on the logits' device."""
        impossible = logits == -torch.inf
        weight, bias = self.weight.to(logits.device), self.bias.to(logits.device)
        z = weight * logits.float().masked_fill(impossible, 0.0) + bias
        return torch.log_softmax(z.masked_fill(impossible, -torch.inf), dim=-1)

    def extra_repr(self) -> str:
        """Return what its repr shows."""
        return f"vocabulary={len(self.weight)}, loss={self.loss!r}, alpha={self.alpha}"


class _Weights(Strict):
    file: Literal["model.safetensors"]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ModuleContents(Contents):
    """A module whose weights lie in a file of their own."""

    weights: _Weights

    @classmethod
    def write_weights(cls, recalibrator: Any, path: Path) -> Json:
        """Write the module's tensors, and return the file's name and checksum."""
        checksum = write_tensors(path, recalibrator.state_dict())
        return {"weights": {"file": path.name, "sha256": checksum}}

    def module(self) -> Any:
        """The module of these settings, its weights yet to be loaded."""
        raise NotImplementedError

    def restored(self, weights: Path) -> Any:
        """The module with its weights, frozen, which a wrong size costs no memory; StoreError if damaged."""
        beside = weights.with_name(FILE)
        try:
            with torch.device("meta"):
                module = self.module()
        except (RuntimeError, TypeError, OverflowError) as error:
            shape = shown(getattr(self, "shape", None))
            raise StoreError(f"{beside}: shape: no tensors are as large as {shape}; fit again") from error
        if not weights.is_file():
            raise StoreError(f"{weights} is missing, the weights that {FILE} beside it belongs to; fit again")
        if file_checksum(weights) != self.weights.sha256:
            raise StoreError(
                f"{weights} is damaged or belongs to another fit (its checksum is not the one in {FILE}); "
                "fit again"
            )
        try:
            tensors = load_file(weights)
        except (SafetensorError, RuntimeError) as error:
            raise StoreError(f"{weights} is damaged: it holds no tensors; fit again") from error
        for problem in _problems(tensors, module.state_dict()):
            raise StoreError(
                f"{weights} does not hold the weights that {FILE} describes: {problem}; fit again"
            )
        module.to_empty(device="cpu").load_state_dict(tensors)
        return module.freeze(self.steps)


class _Vocabulary(Strict):
    vocabulary: Annotated[int, Field(ge=1, lt=2**31)]


class PlattContents(ModuleContents):
    """Platt scaling."""

    shape: _Vocabulary

    @classmethod
    def described(cls, recalibrator: Platt) -> Json:
        """The size of the vocabulary, and what it was fitted by."""
        return {"shape": {"vocabulary": len(recalibrator.weight)}, **super().described(recalibrator)}

    def module(self) -> Platt:
        """The affine map."""
        return Platt(self.shape.vocabulary, loss=self.loss, alpha=self.alpha)


def _problems(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> Iterator[str]:
    """What is wrong with tensors: names, shapes, dtypes, NaN or infinite values."""
    for name in sorted(tensors.keys() ^ expected.keys()):
        yield f"{shown(name)} is {'not expected' if name in tensors else 'missing'}"
    for name, model in expected.items():
        tensor = tensors[name]
        if (tensor.shape, tensor.dtype) != (model.shape, model.dtype):
            sizes = list(tensor.shape), list(model.shape)
            yield f"{name} is {tensor.dtype} of shape {sizes[0]}, not {model.dtype} of {sizes[1]}"
        elif not bool(tensor.isfinite().all()):
            yield f"{name} holds NaN or infinite numbers"


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write a safetensors file under a temporary name, flush it, rename it; return its checksum.

    StoreError if it cannot be written: the disk is full, say.
    """
    try:
        with part_folder(path) as folder:  # the library makes files that only their owner may read
            written = folder / path.name
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, written)
            written.chmod(folder.stat().st_mode & 0o666)
            with written.open("rb+") as handle:
                os.fsync(handle.fileno())
            checksum = file_checksum(written)
            written.replace(path)
    except SafetensorError as error:
        raise StoreError(
            f"cannot write {path} ({error}); see that there is space, and run the same command again"
        ) from error
    return checksum
