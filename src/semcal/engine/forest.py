"""A forest: the shared prefix, the prompts of a batch of questions, and the tree of tokens behind each.

`LevelForest` keeps keys and values at three levels, for every model whose attention can be replaced (that is
measured when it is loaded); `semcal.engine.plain.PlainForest` is the way for all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from semcal.engine.interface import run
from semcal.engine.levels import Layer, Nodes, Pass, Prefix, Prompts
from semcal.engine.network import Network
from semcal.engine.riders import Reading, Rider
from semcal.recalibration import ATS

__all__ = ["Forest", "Growth", "LevelForest", "at_once"]

_AT_ONCE = {"cpu": 1024}  # tokens that run at once: enough for the processor, little memory
_AT_ONCE_ELSEWHERE = 16384


@dataclass(frozen=True)
class Growth:
    """New tokens of the trees.

    Attributes
    ----------
    token : torch.Tensor
        (N,) int64.
    row : torch.Tensor
        (N,) int64, ascending: the question of each.
    path : torch.Tensor
        (N, T) int64: slots of the tokens behind the prompt that each follows, in order, its own the last; -1
        behind that. Slots number all tokens of the trees of a forest in the order in which they have grown.
    asked : torch.Tensor or None
        (N, r) bool: which riders' temperatures behind a token are wanted; what it follows was wanted of the
        same ones. All by default; the plain forest reads all anyway.
    """

    token: Tensor
    row: Tensor
    path: Tensor
    asked: Tensor | None = None

    def __len__(self) -> int:
        return len(self.token)

    @property
    def depth(self) -> Tensor:
        """(N,) length of each path."""
        return (self.path >= 0).sum(1)


class Forest(Protocol):
    """What sampling, beam search and scoring see of either kind of forest."""

    @property
    def network(self) -> Network:
        """What runs."""

    @property
    def prefix(self) -> int:
        """Number of shared tokens."""

    @property
    def prefix_states(self) -> Tensor:
        """(prefix, d), their last hidden states."""

    @property
    def slots(self) -> int:
        """How many tokens the trees have."""

    @property
    def riders(self) -> Sequence[ATS]:
        """Recalibrators that read hidden states."""

    @property
    def bytes_per_token(self) -> int:
        """What the keys and values of one token take in the model's layers."""

    def empty(self) -> Forest:
        """A forest with the same prefix and riders, and no questions."""

    def riding(self, riders: Sequence[ATS]) -> Forest:
        """A forest with the same prefix and no questions, along which these ride; they read it here."""

    def plant(self, prompts: Sequence[Sequence[int]], *, whole: bool = False) -> Reading:
        """Run what the prompts have of their own behind the prefix, once each.

        They become the next questions; a `PlainForest` takes all of its questions at once. Returns what is to
        be read of the last token of each (B, ...), or of all tokens, one prompt after the other.
        """

    def grow(self, new: Growth) -> Reading:
        """Run new tokens of the trees, and keep them. Returns what is to be read of them (N, ...)."""

    def keep(self, rows: Tensor) -> None:
        """Only these questions (ascending) will grow any more."""


@dataclass
class LevelForest:
    """A forest with keys and values at three levels; its attributes are those of `Forest`, and

    Attributes
    ----------
    layers : dict of int to Layer
        Keys and values of the model's layers, and under -1, -2, … those of the riders.
    lengths : torch.Tensor
        (held rows,) how many tokens of its own each prompt has.
    place : torch.Tensor
        (B,) in which held row a question stands.
    """

    network: Network
    carried: tuple[ATS, ...] = ()
    prefix: int = 0
    prefix_states: Tensor = field(default_factory=lambda: torch.zeros((0, 0)))
    slots: int = 0
    layers: dict[int, Layer] = field(default_factory=dict)
    lengths: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    place: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))

    @classmethod
    def planted(cls, network: Network, prefix: tuple[int, ...]) -> LevelForest:
        """A forest of the shared tokens, if there are any; they run here."""
        forest = cls(network, prefix=len(prefix))
        if prefix:
            token_ids = torch.tensor(prefix, device=network.device)
            positions = torch.arange(len(prefix), device=network.device)
            forest.prefix_states = run(network.copied, token_ids, positions, Prefix(forest.layers))
        return forest

    def riding(self, riders: Sequence[ATS]) -> LevelForest:
        forest = replace(self.empty(), carried=tuple(riders))
        positions = torch.arange(self.prefix, device=self.network.device)
        for i, rider in enumerate(forest.carried if self.prefix else ()):
            Rider(rider, -1 - i).read(self.prefix_states, positions, Prefix(forest.layers))
        return forest

    @property
    def riders(self) -> Sequence[ATS]:
        """Recalibrators that read hidden states."""
        return self.carried

    @property
    def bytes_per_token(self) -> int:
        """What the keys and values of one token take in the model's layers."""
        return sum(layer.bytes_per_token for index, layer in self.layers.items() if index >= 0)

    @property
    def tokens_held(self) -> int:
        """How many tokens the buffers of the prompts and the trees are for."""
        return len(self.lengths) * int(self.lengths.max()) + self.slots

    def empty(self) -> LevelForest:
        layers = {index: Layer(layer.rule, layer.last, layer.shared) for index, layer in self.layers.items()}
        none = torch.zeros(0, dtype=torch.long, device=self.network.device)
        return replace(self, slots=0, layers=layers, lengths=none, place=none)

    def plant(self, prompts: Sequence[Sequence[int]], *, whole: bool = False) -> Reading:
        device = self.network.device
        own = [prompt[self.prefix :] for prompt in prompts]
        counts = torch.tensor([len(tokens) for tokens in own], device=device)
        held = len(self.lengths) + torch.arange(len(own), device=device)
        self.lengths, self.place = torch.cat([self.lengths, counts]), torch.cat([self.place, held])
        buffer = len(self.lengths), int(self.lengths.max())
        for layer in self.layers.values():
            layer.widen(*buffer)
        read = []
        for rows in self._parts(counts.tolist()):
            token_ids = torch.tensor([token for row in rows for token in own[row]], device=device)
            lengths = counts[rows.start : rows.stop]
            ends_alone = not whole and not self.carried
            new = Prompts(self.layers, self.prefix, held[rows.start : rows.stop], lengths, buffer, ends_alone)
            part = self._run(token_ids, self.prefix + new.column, new)
            read.append(part if whole else part[new.ends])
        return Reading.joined(read)

    def grow(self, new: Growth) -> Reading:
        most, read = at_once(self.network), []
        path, depth, row = (x.to(self.network.device) for x in (new.path, new.depth, self._held(new.row)))
        token = new.token.to(self.network.device)
        asked = None if new.asked is None else new.asked.to(self.network.device)
        for start in range(0, len(new), most):
            some = slice(start, start + most)
            nodes = Nodes(
                self.layers, self.prefix, self.lengths, row[some], path[some], depth[some], self.slots
            )
            read.append(self._grown(token[some], nodes, None if asked is None else asked[some]))
            self.slots += len(read[-1])
        return Reading.joined(read)

    def keep(self, rows: Tensor) -> None:
        held = self._held(rows)
        if 4 * len(held) > 3 * len(self.lengths):  # moving them costs more than what is saved
            return
        self.lengths = self.lengths[held]
        for layer in self.layers.values():
            layer.keep(held, int(self.lengths.max()))
        self.place = torch.full_like(self.place, -1)
        self.place[rows.to(self.place.device)] = torch.arange(len(rows), device=self.place.device)

    def compact(self, rows: Tensor, slots: Tensor) -> None:
        """Hold these questions and these tokens of their trees alone (ascending), and number both anew."""
        held = self._held(rows)
        self.lengths = self.lengths[held]
        for layer in self.layers.values():
            layer.keep(held, int(self.lengths.max()))
            layer.keep_tree(slots.to(held.device))
        self.place, self.slots = torch.arange(len(rows), device=held.device), len(slots)

    def _held(self, rows: Tensor) -> Tensor:
        return self.place[rows.to(self.place.device)]

    def _grown(self, token: Tensor, nodes: Nodes, asked: Tensor | None) -> Reading:
        if asked is None:
            return self._run(token, nodes.position, nodes)
        states = run(self.network.copied, token, nodes.position, nodes)
        beta = [
            Rider(rider, -1 - i).read_some(states, nodes.position, nodes, asked[:, i].nonzero()[:, 0])
            for i, rider in enumerate(self.carried)
        ]
        return Reading.of(states, beta)

    def _run(self, token_ids: Tensor, positions: Tensor, through: Pass) -> Reading:
        states = run(self.network.copied, token_ids, positions, through)
        beta = [Rider(rider, -1 - i).read(states, positions, through) for i, rider in enumerate(self.carried)]
        return Reading.of(states, beta)

    def _parts(self, lengths: Sequence[int]) -> Iterator[range]:
        """Cut prompts into runs of so many tokens as may be run at once, one prompt at least."""
        start, tokens = 0, 0
        for row, length in enumerate(lengths):
            if row > start and tokens + length > at_once(self.network):
                yield range(start, row)
                start, tokens = row, 0
            tokens += length
        if start < len(lengths):
            yield range(start, len(lengths))


def at_once(network: Network) -> int:
    """How many tokens run at once."""
    return _AT_ONCE.get(network.device.type, _AT_ONCE_ELSEWHERE)
