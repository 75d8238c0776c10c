"""Recalibrators that read hidden states (ATS) ride along a forest, with keys and values of their own.

To a forest they are one layer more. So one piece of code serves sampling, beam search and scoring, and a
temperature depends on nothing but the tokens before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from semcal.engine.attention import Rule
from semcal.engine.cache import SlotLayer
from semcal.engine.levels import Layer, Nodes, Pass
from semcal.recalibration import ATS, AnyRecalibrator

__all__ = ["PlainRider", "Reading", "Rider", "bytes_per_token", "log_probs", "riders_of"]


@dataclass(frozen=True)
class Reading:
    """What a forest says of tokens.

    Attributes
    ----------
    states : torch.Tensor
        (..., d), their last hidden states.
    inverse_temperatures : torch.Tensor
        (..., r) float32, 1/T behind each of them under each rider.
    """

    states: Tensor
    inverse_temperatures: Tensor

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, index: Any) -> Reading:
        return Reading(self.states[index], self.inverse_temperatures[index])

    @classmethod
    def of(cls, states: Tensor, inverse_temperatures: Sequence[Tensor]) -> Reading:
        """From states (..., d) and the 1/T (...) of each rider."""
        if not inverse_temperatures:
            return cls(states, states.new_zeros((*states.shape[:-1], 0)))
        return cls(states, torch.stack(list(inverse_temperatures), -1))

    @classmethod
    def joined(cls, parts: Sequence[Reading]) -> Reading:
        """One behind the other."""
        if len(parts) == 1:
            return parts[0]
        states = torch.cat([part.states for part in parts])
        return cls(states, torch.cat([part.inverse_temperatures for part in parts]))


@dataclass(frozen=True)
class Rider:
    """One ATS along a forest of three levels, as the layer of that index."""

    recalibrator: ATS
    index: int

    @torch.no_grad()
    def read(self, states: Tensor, positions: Tensor, through: Pass) -> Tensor:
        """1/T (N,) behind the N new tokens of a pass, with states (N, d) at positions (N,)."""
        ats, states, positions = self.recalibrator, states[None], positions[None]
        query = ats.queries(states, positions)
        gathered = through.attend(self._layer(through), query, *ats.keys_values(states, positions))
        return ats.inverse_temperature_from(states, gathered.flatten(2))[0].float()

    @torch.no_grad()
    def read_some(self, states: Tensor, positions: Tensor, nodes: Nodes, which: Tensor) -> Tensor:
        """As `read`, of these (n,) new tokens alone; NaN behind the others.

        Those are seen by none that will be asked about: whatever a draw of this recalibrator stands on, it
        has stood on all that leads there.
        """
        found = torch.full((len(states),), torch.nan, device=states.device)
        if not len(which):
            return found
        ats, states, positions = self.recalibrator, states[None, which], positions[None, which]
        layer, (keys, values) = self._layer(nodes), ats.keys_values(states, positions)
        nodes.hold(layer, nodes.first + which, keys, values)
        gathered = nodes.some(which).gather(layer, ats.queries(states, positions), keys.shape[1])
        found[which] = ats.inverse_temperature_from(states, gathered.flatten(2))[0].float()
        return found

    def _layer(self, through: Pass) -> Layer:
        return through.layers.setdefault(self.index, Layer(Rule(self.recalibrator.shape.head_dim**-0.5)))


class PlainRider:
    """One ATS along a plain forest.

    Parameters
    ----------
    recalibrator : ATS
        What reads.
    layer : SlotLayer, optional
        Keys and values so far, one row per question.
    """

    def __init__(self, recalibrator: ATS, layer: SlotLayer | None = None) -> None:
        self.recalibrator = recalibrator
        self.layer = layer or SlotLayer()

    @torch.no_grad()
    def read(self, states: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """1/T (B, n) behind new tokens with states (B, n, d); `visible` is (B, n, K) as for the model."""
        keys, values = self.layer.update(*self.recalibrator.keys_values(states, positions))
        return self.recalibrator.inverse_temperature(states, positions, keys, values, visible).float()

    def spread(self, rows: int) -> PlainRider:
        """The same for `rows` rows that all hold what the one row of this holds."""
        layer = SlotLayer()
        if self.layer.is_initialized:
            layer.hold(self.layer.keys.expand(rows, -1, -1, -1), self.layer.values.expand(rows, -1, -1, -1))
        return PlainRider(self.recalibrator, layer)

    def keep(self, rows: Tensor) -> None:
        """Forget all rows but these."""
        self.layer.batch_select_indices(rows)


def riders_of(recalibrators: Sequence[AnyRecalibrator]) -> tuple[ATS, ...]:
    """Those that read hidden states, each once."""
    return tuple(dict.fromkeys(one for one in recalibrators if isinstance(one, ATS)))


def bytes_per_token(riders: Sequence[ATS]) -> int:
    """Bytes that the keys and values of one token take in all of these.

    Examples
    --------
    >>> from semcal.recalibration import BlockShape
    >>> ats = ATS(BlockShape(hidden_size=8, intermediate_size=8, heads=2, key_value_heads=1, head_dim=4))
    >>> bytes_per_token([ats, ats])  # each has a key and a value of 4 float32
    64
    """
    keys = (rider.key.weight for rider in riders)
    return sum(2 * weight.shape[0] * weight.element_size() for weight in keys)


def log_probs(recalibrator: AnyRecalibrator, logits: Tensor, read: Reading, riders: Sequence[ATS]) -> Tensor:
    """Recalibrated log-probabilities (n, V) of the logits (n, V) of what was read beside riders."""
    if not isinstance(recalibrator, ATS):
        return recalibrator.log_probs(logits)
    beta = read.inverse_temperatures[:, riders.index(recalibrator)]
    return recalibrator.log_probs(logits, beta.to(logits.device))
