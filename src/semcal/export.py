"""A fitted temperature for transformers, as a logits processor."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from semcal.errors import naming_extra
from semcal.models.distribution import Temperature
from semcal.recalibration.files import from_pretrained
from semcal.recalibration.recalibrators import single_temperature

with naming_extra("semcal.export"):
    from torch import Tensor
    from transformers import LogitsProcessor

__all__ = ["TemperatureProcessor"]


class TemperatureProcessor(LogitsProcessor):  # type: ignore[misc]
    """Divide the logits of every token by one temperature.

    Put it last among your logits processors. Disable those of `generate`, which come later:
    ``temperature=1.0``, ``top_k=0`` (the default is 50), ``top_p=1.0``.

    Parameters
    ----------
    temperature : float
        T > 0, finite.

    Raises
    ------
    UsageError
        If T is not positive and finite.

    Examples
    --------
    >>> import torch
    >>> TemperatureProcessor(2.0)(torch.tensor([[0]]), torch.tensor([[1.0, -3.0]]))
    tensor([[ 0.5000, -1.5000]])
    """

    def __init__(self, temperature: float) -> None:
        self.temperature = Temperature(temperature).temperature

    @classmethod
    def from_pretrained(cls, path_or_id: str | Path, *, revision: str | None = None) -> Self:
        """Load the temperature from a directory of `semcal fit`, or from the hub (at a `revision`).

        UsageError if there is no recalibrator, or it has no single temperature.
        """
        recalibrator, _ = from_pretrained(path_or_id, revision=revision)
        return cls(single_temperature(recalibrator))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002
        """Return scores / T, shape (batch, V); `input_ids` are ignored and nothing is changed in place."""
        return scores / self.temperature

    def __repr__(self) -> str:
        return f"TemperatureProcessor({self.temperature:.6g})"
