"""The state of a training on disk: an interrupted one resumes and gives identical bytes.

A state is a safetensors file: parameters, moments of the optimiser, the losses so far, and a seal over all of
them. It appears whole or not at all, and its name is a hash of everything that the training depends on.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from semcal.errors import StoreError
from semcal.recalibration.saving import write_tensors
from semcal.records import dumps

#: Seconds between two states.
INTERVAL = 60.0
#: At most this share of the time goes into writing states.
SHARE = 0.05


@dataclass(frozen=True)
class TrainingStore:
    """The states of trainings on one set of features."""

    folder: Path  # made when the first state is written
    of: Mapping[str, Any]  # what the features are of: model, data, prompt
    interval: float = field(default_factory=lambda: INTERVAL)  # seconds between two states, or more

    def state(self, settings: Mapping[str, Any]) -> TrainingState:
        """The state of the training with these settings."""
        name = hashlib.sha256(dumps([self.of, settings]).encode()).hexdigest()[:32]
        return TrainingState(self.folder / f"{name}.safetensors", self.interval)


@dataclass
class TrainingState:
    """One training on disk."""

    path: Path
    interval: float  # seconds between two states
    _next: float = field(default_factory=time.monotonic)

    def restore(self, parameters: Sequence[Tensor], optimiser: torch.optim.Optimizer) -> list[float]:
        """Set parameters and optimiser to what was kept, and return the losses so far; none without a state.

        StoreError if the file is damaged.
        """
        self._next = time.monotonic() + self.interval
        if not self.path.exists():
            return []
        try:
            kept = load_file(self.path)
            if not torch.equal(kept.pop("seal"), self._seal(kept)):
                raise ValueError("not what was written, or the state of another training")
            losses: list[float] = kept.pop("losses").tolist()
            state: dict[int, dict[str, Tensor]] = {i: {} for i in range(len(parameters))}
            for name, tensor in kept.items():
                number, _, what = name.partition(".")
                state[int(number)][what] = tensor
            with torch.no_grad():
                for number, parameter in enumerate(parameters):
                    parameter.copy_(state[number].pop("parameter"))
        except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
            raise StoreError(
                f"{self.path}, the state of a training, is damaged; delete it and run the same command again"
            ) from error
        optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
        return losses

    def keep(
        self,
        parameters: Sequence[Tensor],
        optimiser: torch.optim.Optimizer,
        losses: Sequence[float],
        *,
        finished: bool,
    ) -> None:
        """Write the state if it is time, or the training is finished."""
        start = time.monotonic()
        if start < self._next and not finished:
            return
        moments = optimiser.state_dict()["state"]
        tensors = {f"{i}.{what}": tensor for i, of_one in moments.items() for what, tensor in of_one.items()}
        tensors |= {f"{i}.parameter": parameter.detach() for i, parameter in enumerate(parameters)}
        tensors["losses"] = torch.tensor(losses, dtype=torch.float64)
        tensors = {name: tensor.cpu() for name, tensor in tensors.items()}
        write_tensors(self.path, {**tensors, "seal": self._seal(tensors)})
        now = time.monotonic()
        self._next = now + max(self.interval, (now - start) / SHARE)

    def _seal(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The hash of tensors and of whose state they are, as bytes."""
        digest = hashlib.blake2b(self.path.stem.encode(), digest_size=32)
        for name, tensor in sorted(tensors.items()):
            digest.update(f"/{name}/{tensor.dtype}/{list(tensor.shape)}/".encode())
            digest.update(tensor.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
        return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
