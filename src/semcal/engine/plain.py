"""The plain way: one row per question, with a copy of the shared prefix, under masks of our own.

It asks nothing of a model but that it takes a mask with four dimensions and a cache; it is for those whose
attention cannot be replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from semcal.engine.cache import bytes_per_slot, empty, spread
from semcal.engine.forest import Growth
from semcal.engine.network import Network
from semcal.engine.riders import PlainRider, Reading
from semcal.recalibration import ATS

__all__ = ["PlainForest"]


@dataclass
class PlainForest:
    """Keys and values of a batch of questions, one row each; its attributes are those of `Forest`, and

    Attributes
    ----------
    cache : transformers.Cache
        Keys and values.
    held : torch.Tensor
        (rows, K) int64, the positions of the tokens held.
    lengths : torch.Tensor
        (rows,) how many tokens each prompt has, the shared ones included.
    place : torch.Tensor
        (B,) in which row a question stands.
    column : torch.Tensor
        (slots,) in which column a token of the trees stands.
    """

    network: Network
    cache: Cache
    held: Tensor
    prefix: int = 0
    prefix_states: Tensor = field(default_factory=lambda: torch.zeros((0, 0)))
    along: tuple[PlainRider, ...] = ()
    lengths: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    place: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    column: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))

    @classmethod
    def planted(cls, network: Network, prefix: tuple[int, ...]) -> PlainForest:
        """One row that holds the shared tokens, if there are any; they run here."""
        held = torch.zeros((1, 0), dtype=torch.long, device=network.device)
        forest = cls(network, empty(), held, len(prefix))
        if prefix:
            read = forest._run(torch.tensor([prefix]), torch.arange(len(prefix))[None], _causal(len(prefix)))
            forest.prefix_states = read.states[0]
        return forest

    def riding(self, riders: Sequence[ATS]) -> PlainForest:
        forest = replace(self._spread(1), along=tuple(map(PlainRider, riders)))
        for rider in forest.along if self.prefix else ():
            rider.read(self.prefix_states[None], self.held, _causal(self.prefix).to(self.network.device))
        return forest

    @property
    def riders(self) -> Sequence[ATS]:
        """Recalibrators that read hidden states."""
        return [rider.recalibrator for rider in self.along]

    @property
    def slots(self) -> int:
        """How many tokens the trees have."""
        return len(self.column)

    @property
    def bytes_per_token(self) -> int:
        """What the keys and values of one token take in the model's layers."""
        return bytes_per_slot(self.cache)

    def empty(self) -> PlainForest:
        return self._spread(1)

    def plant(self, prompts: Sequence[Sequence[int]], *, whole: bool = False) -> Reading:
        spread_out = self._spread(len(prompts))
        self.cache, self.held, self.along = spread_out.cache, spread_out.held, spread_out.along
        before = self.prefix
        token_ids, lengths = _padded([prompt[before:] for prompt in prompts])
        batch, width = token_ids.shape
        self.lengths, self.place = before + lengths, torch.arange(batch)
        visible = torch.ones((width, before + width), dtype=torch.bool).tril(before).expand(batch, -1, -1)
        read = self._run(token_ids, torch.arange(before, before + width).expand(batch, width), visible)
        if whole:
            return read[torch.arange(width) < lengths[:, None]]
        return read[torch.arange(batch), lengths - 1]

    def grow(self, new: Growth) -> Reading:
        row = self.place[new.row]
        rank = _rank(row)
        rows, width, held = len(self.held), int(rank.max()) + 1, self.held.shape[1]
        token_ids = torch.zeros((rows, width), dtype=torch.long)
        token_ids[row, rank] = new.token
        positions = torch.zeros_like(token_ids)
        positions[row, rank] = self.lengths[row] + new.depth - 1
        self.column = torch.cat([self.column, held + rank])
        read = self._run(token_ids, positions, self._visible(new, row, rank, held + width))
        return read[row, rank]

    def keep(self, rows: Tensor) -> None:
        held = self.place[rows]
        if len(held) == len(self.held):
            return
        for layer in self.cache.layers:
            layer.batch_select_indices(held.to(self.network.device))
        for rider in self.along:
            rider.keep(held.to(self.network.device))
        self.held, self.lengths = self.held[held.to(self.held.device)], self.lengths[held]
        self.place = torch.full_like(self.place, -1)
        self.place[rows] = torch.arange(len(rows))

    def _visible(self, new: Growth, row: Tensor, rank: Tensor, columns: int) -> Tensor:
        """(rows, width, K) whether a new token sees one held: its prompt and its path; or itself alone."""
        rows, width = len(self.held), int(rank.max()) + 1
        visible = torch.zeros((rows, width, columns), dtype=torch.bool)
        visible[:, torch.arange(width), columns - width + torch.arange(width)] = True
        visible[row, rank] |= torch.arange(columns) < self.lengths[row][:, None]
        node, step = torch.nonzero(new.path >= 0, as_tuple=True)
        visible[row[node], rank[node], self.column[new.path[node, step]]] = True
        return visible

    def _spread(self, rows: int) -> PlainForest:
        """A forest of `rows` rows that all hold what the first of this holds."""
        riders = tuple(rider.spread(rows) for rider in self.along)
        held = self.held[:1].expand(rows, -1)
        return PlainForest(
            self.network, spread(self.cache, rows), held, self.prefix, self.prefix_states, riders
        )

    def _run(self, token_ids: Tensor, positions: Tensor, visible: Tensor) -> Reading:
        """Run new tokens (B, n), of which each sees the tokens held that `visible` (B, n, K) says."""
        device = self.network.device
        positions, visible = positions.to(device), visible.to(device)
        self.held = torch.cat([self.held, positions], 1)
        states = self.network.body(token_ids.to(device), visible, self.held, self.cache)
        return Reading.of(states, [rider.read(states, positions, visible) for rider in self.along])


def _causal(count: int) -> Tensor:
    """(1, n, n): each sees itself and those before."""
    return torch.ones((1, count, count), dtype=torch.bool).tril()


def _rank(row: Tensor) -> Tensor:
    """How many nodes of its row stand before each; `row` ascends."""
    sizes = torch.bincount(row)
    start = sizes.cumsum(0) - sizes
    return torch.arange(len(row)) - start[row]


def _padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Rows of tokens as one matrix (B, n), zeros behind the shorter ones, and their lengths (B,)."""
    lengths = torch.tensor([len(row) for row in rows])
    width = int(lengths.max())
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows]), lengths
