"""ATS inside the engine: recalibrators that read hidden states, with keys and values of their own.

To a tree cache an ATS is one more layer. So one implementation serves sampling, beam search and scoring, and
its temperature depends on nothing but the tokens before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from semcal.engine.attention import AttentionConfig
from semcal.engine.layer_cache import ForwardPass, LayerCache, TreePass
from semcal.recalibration.attentive import ATS, AnyRecalibrator

__all__ = ["ATSState", "ModelOutputs", "ats_among", "ats_bytes_per_token", "log_probs"]


@dataclass(frozen=True)
class ModelOutputs:
    """Model outputs for a set of tokens."""

    states: Tensor  # (..., d), last hidden states
    inverse_temperatures: Tensor  # (..., r) float32, 1/T after each token under each ATS

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, index: Any) -> ModelOutputs:
        return ModelOutputs(self.states[index], self.inverse_temperatures[index])

    @classmethod
    def of(cls, states: Tensor, inverse_temperatures: Sequence[Tensor]) -> ModelOutputs:
        """From states (..., d) and the 1/T (...) of each ATS."""
        if not inverse_temperatures:
            return cls(states, states.new_zeros((*states.shape[:-1], 0)))
        return cls(states, torch.stack(list(inverse_temperatures), -1))

    @classmethod
    def concatenate(cls, parts: Sequence[ModelOutputs]) -> ModelOutputs:
        """One after the other."""
        if len(parts) == 1:
            return parts[0]
        states = torch.cat([part.states for part in parts])
        return cls(states, torch.cat([part.inverse_temperatures for part in parts]))


@dataclass(frozen=True)
class ATSState:
    """One ATS beside a three-level cache, whose keys and values are those of layer `index`."""

    recalibrator: ATS
    index: int

    @torch.no_grad()
    def read(self, states: Tensor, positions: Tensor, forward_pass: ForwardPass) -> Tensor:
        """1/T (N,) after the N new tokens of a pass, with states (N, d) at positions (N,)."""
        ats, states, positions = self.recalibrator, states[None], positions[None]
        query = ats.queries(states, positions)
        layer = self._layer(forward_pass)
        output = forward_pass.attend(layer, query, *ats.keys_values(states, positions))
        return ats.inverse_temperature_from(states, output.flatten(2))[0].float()

    @torch.no_grad()
    def read_subset(self, states: Tensor, positions: Tensor, tree: TreePass, which: Tensor) -> Tensor:
        """1/T (N,) after only these (n,) of the new tokens; NaN after the others.

        The others are never attended to: a draw of this recalibrator that stands on a token was also read
        after every token that leads there.
        """
        found = torch.full((len(states),), torch.nan, device=states.device)
        if not len(which):
            return found
        ats, states, positions = self.recalibrator, states[None, which], positions[None, which]
        layer, (keys, values) = self._layer(tree), ats.keys_values(states, positions)
        tree.store(layer, tree.first + which, keys, values)
        query = ats.queries(states, positions)
        output = tree.subset(which).attend_to_stored(layer, query, keys.shape[1])
        found[which] = ats.inverse_temperature_from(states, output.flatten(2))[0].float()
        return found

    def _layer(self, forward_pass: ForwardPass) -> LayerCache:
        config = AttentionConfig(self.recalibrator.shape.head_dim**-0.5)
        return forward_pass.layers.setdefault(self.index, LayerCache(config))


def ats_among(recalibrators: Sequence[AnyRecalibrator]) -> tuple[ATS, ...]:
    """The distinct recalibrators that read hidden states."""
    return tuple(dict.fromkeys(one for one in recalibrators if isinstance(one, ATS)))


def ats_bytes_per_token(ats: Sequence[ATS]) -> int:
    """Bytes that the keys and values of one token take in all of these.

    Examples
    --------
    >>> from semcal.recalibration import BlockShape
    >>> one = ATS(BlockShape(hidden_size=8, intermediate_size=8, heads=2, key_value_heads=1, head_dim=4))
    >>> ats_bytes_per_token([one, one])  # each has a key and a value of 4 float32
    64
    """
    keys = (one.key.weight for one in ats)
    return sum(2 * weight.shape[0] * weight.element_size() for weight in keys)


def log_probs(
    recalibrator: AnyRecalibrator, logits: Tensor, outputs: ModelOutputs, ats: Sequence[ATS]
) -> Tensor:
    """Recalibrated log-probabilities (n, V) of logits (n, V); `outputs` hold the 1/T of each of `ats`."""
    if not isinstance(recalibrator, ATS):
        return recalibrator.log_probs(logits)
    beta = outputs.inverse_temperatures[:, ats.index(recalibrator)]
    return recalibrator.log_probs(logits, beta.to(logits.device))
