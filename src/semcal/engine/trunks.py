"""The shared prefix of the last call, kept for the next one, which has the same more often than not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semcal.engine.forest import Forest
from semcal.engine.network import Network
from semcal.engine.planting import planted
from semcal.recalibration import ATS

__all__ = ["Trunks"]


@dataclass(frozen=True)
class _Kept:
    """A forest of a prefix alone, what it was made of, and nothing that is written to any more."""

    tokens: tuple[int, ...]
    weights: tuple[object, ...]
    trunk: Forest


class Trunks:
    """Forests of shared prefixes; the one asked for last is kept.

    The prefix counts as the same only if all of its tokens are, and the weights have not been written to. So
    the keys and values are those that running it again would give, to the last bit. At no time there are more
    than those of one prefix (for each thread that has a call), since another is forgotten before one runs.

    Parameters
    ----------
    network : Network
        The model.
    budget : int
        Bytes that the keys and values of a prefix may take to be kept.
    """

    def __init__(self, network: Network, *, budget: int) -> None:
        self._network, self._budget = network, budget
        self._kept: _Kept | None = None  # replaced as a whole, so that threads see one or another

    def planted(self, tokens: tuple[int, ...], riders: Sequence[ATS]) -> Forest:
        """A forest of these tokens, along which riders read; the tokens run if they are not kept."""
        kept, weights = self._kept, self._weights()
        if kept is not None and (kept.tokens, kept.weights) == (tokens, weights):
            return kept.trunk.riding(riders)
        self._kept = kept = None
        trunk = planted(self._network, tokens)
        if len(tokens) * self._network.bytes_per_token <= self._budget:
            self._kept = _Kept(tokens, weights, trunk)
        return trunk.riding(riders)

    def _weights(self) -> tuple[object, ...]:
        """What changes when a weight is written to, moved or replaced, or the way of running is another."""
        weights = self._network.model.parameters()
        written = ((weight.data_ptr(), weight.is_inference() or weight._version) for weight in weights)
        return (self._network.copied is None, *written)
