"""Tree caches: keys and values of the shared prefix, a batch of prompts, and the tree of tokens behind each.

`ThreeLevelCache` keeps them at three levels, for every model whose attention can be replaced (measured at
load); `semcal.engine.fallback.FallbackCache` serves all others. A `Frontier` holds the nodes of the trees
whose outputs are read next.

To a tree cache an ATS is one more layer with keys and values of its own. So one implementation serves
sampling, beam search and scoring, and its temperature depends on nothing but the tokens before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from semcal.engine.attention import AttentionConfig
from semcal.engine.layer_cache import ForwardPass, LayerCache, PrefixPass, PromptPass, TreePass
from semcal.engine.network import Network
from semcal.recalibration.attentive import ATS, AnyRecalibrator

_TOKENS_PER_PASS, _TOKENS_PER_PASS_ON_GPU = {"cpu": 1024}, 16384  # few on a CPU: enough work, little memory


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
class _ATSState:
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


def log_probs(
    recalibrator: AnyRecalibrator, logits: Tensor, outputs: ModelOutputs, ats: Sequence[ATS]
) -> Tensor:
    """Recalibrated log-probabilities (n, V) of logits (n, V); `outputs` hold the 1/T of each of `ats`."""
    if not isinstance(recalibrator, ATS):
        return recalibrator.log_probs(logits)
    beta = outputs.inverse_temperatures[:, ats.index(recalibrator)]
    return recalibrator.log_probs(logits, beta.to(logits.device))


@dataclass(frozen=True)
class NewTokens:
    """New tokens of the trees; slots number all tokens of a cache's trees in the order of their arrival."""

    token: Tensor  # (N,) int64
    row: Tensor  # (N,) int64, ascending: the question of each
    path: Tensor  # (N, T) int64: slots of the tree tokens that each follows, then its own; -1 after them
    #: (N, r) bool: the ATS whose temperature after a token is wanted, where it was wanted after all tokens
    #: before it too. All by default; the fallback reads all in any case.
    wanted: Tensor | None = None

    def __len__(self) -> int:
        return len(self.token)

    @property
    def depth(self) -> Tensor:
        """(N,) length of each path."""
        return (self.path >= 0).sum(1)


class TreeCache(Protocol):
    """The interface of both kinds of cache to sampling, beam search and scoring."""

    @property
    def network(self) -> Network:
        """The model."""

    @property
    def prefix_length(self) -> int:
        """Number of shared tokens."""

    @property
    def prefix_states(self) -> Tensor:
        """(prefix_length, d), their last hidden states."""

    @property
    def slots(self) -> int:
        """Number of tokens in the trees."""

    @property
    def ats(self) -> Sequence[ATS]:
        """Recalibrators that read hidden states."""

    @property
    def bytes_per_token(self) -> int:
        """Size of the keys and values of one token in the model's layers."""

    def empty(self) -> TreeCache:
        """A cache with the same prefix and ATS, and no questions."""

    def with_ats(self, ats: Sequence[ATS]) -> TreeCache:
        """A cache with the same prefix, read by these, and no questions."""

    def prefill(self, prompts: Sequence[Sequence[int]], *, whole: bool = False) -> ModelOutputs:
        """Run what each prompt has after the prefix.

        They become the next questions; a `FallbackCache` takes all of its questions at once. Returns the
        outputs (B, ...) of the last token of each, or of all tokens, one prompt after the other.
        """

    def extend(self, new: NewTokens) -> ModelOutputs:
        """Run new tokens of the trees and store them; returns their outputs (N, ...)."""

    def drop_except(self, rows: Tensor) -> None:
        """Drop all questions but these (ascending)."""


@dataclass
class ThreeLevelCache:
    """A cache whose layers keep keys and values at three levels; see `TreeCache`."""

    network: Network
    ats: tuple[ATS, ...] = ()
    prefix_length: int = 0
    prefix_states: Tensor = field(default_factory=lambda: torch.zeros((0, 0)))
    slots: int = 0
    layers: dict[int, LayerCache] = field(default_factory=dict)  # the ATS are layers -1, -2, …
    lengths: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))  # by held row
    place: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))  # question -> held row

    @classmethod
    def of_prefix(cls, network: Network, prefix: tuple[int, ...]) -> ThreeLevelCache:
        """Run the shared tokens, if there are any."""
        cache = cls(network, prefix_length=len(prefix))
        if prefix:
            token_ids = torch.tensor(prefix, device=network.device)
            positions = torch.arange(len(prefix), device=network.device)
            cache.prefix_states = network.run(token_ids, positions, PrefixPass(cache.layers))
        return cache

    def with_ats(self, ats: Sequence[ATS]) -> ThreeLevelCache:
        cache = replace(self.empty(), ats=tuple(ats))
        positions = torch.arange(self.prefix_length, device=self.network.device)
        for i, one in enumerate(cache.ats if self.prefix_length else ()):
            _ATSState(one, -1 - i).read(self.prefix_states, positions, PrefixPass(cache.layers))
        return cache

    @property
    def bytes_per_token(self) -> int:
        return sum(layer.bytes_per_token for index, layer in self.layers.items() if index >= 0)

    @property
    def tokens_held(self) -> int:
        """How many tokens the buffers of the prompts and the trees have room for."""
        return len(self.lengths) * int(self.lengths.max()) + self.slots

    def empty(self) -> ThreeLevelCache:
        layers = {i: LayerCache(layer.config, layer.last, layer.prefix) for i, layer in self.layers.items()}
        none = torch.zeros(0, dtype=torch.long, device=self.network.device)
        return replace(self, slots=0, layers=layers, lengths=none, place=none)

    def prefill(self, prompts: Sequence[Sequence[int]], *, whole: bool = False) -> ModelOutputs:
        device = self.network.device
        own = [prompt[self.prefix_length :] for prompt in prompts]
        counts = torch.tensor([len(tokens) for tokens in own], device=device)
        held = len(self.lengths) + torch.arange(len(own), device=device)
        self.lengths, self.place = torch.cat([self.lengths, counts]), torch.cat([self.place, held])
        buffer = len(self.lengths), int(self.lengths.max())
        for layer in self.layers.values():
            layer.reserve(*buffer)
        outputs = []
        for rows in self._passes(counts.tolist()):
            token_ids = torch.tensor([token for row in rows for token in own[row]], device=device)
            some = slice(rows.start, rows.stop)
            last_only = not whole and not self.ats
            new = PromptPass(self.layers, self.prefix_length, held[some], counts[some], buffer, last_only)
            part = self._run(token_ids, self.prefix_length + new.column, new)
            outputs.append(part if whole else part[new.ends])
        return ModelOutputs.concatenate(outputs)

    def extend(self, new: NewTokens) -> ModelOutputs:
        most, outputs, device = tokens_per_pass(self.network), [], self.network.device
        token, row = new.token.to(device), self._held(new.row)
        path, depth = new.path.to(device), new.depth.to(device)
        wanted = None if new.wanted is None else new.wanted.to(device)
        for first in range(0, len(new), most):
            some = slice(first, first + most)
            tree = TreePass(
                self.layers, self.prefix_length, self.lengths, row[some], path[some], depth[some], self.slots
            )
            outputs.append(self._run_tree(token[some], tree, None if wanted is None else wanted[some]))
            self.slots += len(outputs[-1])
        return ModelOutputs.concatenate(outputs)

    def drop_except(self, rows: Tensor) -> None:
        held = self._held(rows)
        if 4 * len(held) > 3 * len(self.lengths):  # moving them costs more than it saves
            return
        self._keep_prompts(held)
        self.place = torch.full_like(self.place, -1)
        self.place[rows.to(self.place.device)] = torch.arange(len(rows), device=self.place.device)

    def compact(self, rows: Tensor, slots: Tensor) -> None:
        """Keep only these questions and these tokens of their trees (ascending), and renumber both."""
        held = self._held(rows)
        self._keep_prompts(held)
        for layer in self.layers.values():
            layer.keep_slots(slots.to(held.device))
        self.place, self.slots = torch.arange(len(rows), device=held.device), len(slots)

    def _keep_prompts(self, held: Tensor) -> None:
        self.lengths = self.lengths[held]
        for layer in self.layers.values():
            layer.keep_prompts(held, int(self.lengths.max()))

    def _held(self, rows: Tensor) -> Tensor:
        return self.place[rows.to(self.place.device)]

    def _run_tree(self, token: Tensor, tree: TreePass, wanted: Tensor | None) -> ModelOutputs:
        if wanted is None:
            return self._run(token, tree.position, tree)
        states = self.network.run(token, tree.position, tree)
        beta = [
            _ATSState(one, -1 - i).read_subset(states, tree.position, tree, wanted[:, i].nonzero()[:, 0])
            for i, one in enumerate(self.ats)
        ]
        return ModelOutputs.of(states, beta)

    def _run(self, token_ids: Tensor, positions: Tensor, forward_pass: ForwardPass) -> ModelOutputs:
        states = self.network.run(token_ids, positions, forward_pass)
        beta = [
            _ATSState(one, -1 - i).read(states, positions, forward_pass) for i, one in enumerate(self.ats)
        ]
        return ModelOutputs.of(states, beta)

    def _passes(self, lengths: Sequence[int]) -> Iterator[range]:
        """Split prompts into runs of at most `tokens_per_pass` tokens, one prompt at least."""
        first, tokens = 0, 0
        for row, length in enumerate(lengths):
            if row > first and tokens + length > tokens_per_pass(self.network):
                yield range(first, row)
                first, tokens = row, 0
            tokens += length
        if first < len(lengths):
            yield range(first, len(lengths))


def tokens_per_pass(network: Network) -> int:
    """How many tokens run at once."""
    return _TOKENS_PER_PASS.get(network.device.type, _TOKENS_PER_PASS_ON_GPU)


@dataclass(frozen=True)
class Frontier:
    """F nodes of the trees; those of a question are adjacent."""

    outputs: ModelOutputs  # (F, ...), which predict the next token
    row: Tensor  # (F,) int64, ascending: the question of a node
    path: Tensor  # (F, T) int64: slots of the tree tokens that lead to it, itself included; -1 after them

    @classmethod
    def empty(cls) -> Frontier:
        """No nodes."""
        nothing = torch.zeros((0, 0))
        return cls(ModelOutputs(nothing, nothing), torch.zeros(0, dtype=torch.long), nothing.long())

    def append(self, other: Frontier) -> Frontier:
        """These nodes and those of later questions."""
        if not len(self.row):
            return other
        paths = (nodes.path for nodes in (self, other))
        width = max(self.path.shape[1], other.path.shape[1])
        path = torch.cat([pad(one, (0, width - one.shape[1]), value=-1) for one in paths])
        outputs = ModelOutputs.concatenate([self.outputs, other.outputs])
        return Frontier(outputs, torch.cat([self.row, other.row]), path)

    def compacted(self, nodes: Tensor) -> tuple[Frontier, Tensor]:
        """Some of the nodes (ascending), and the slots that lead to them; rows and slots are renumbered."""
        path = self.path[nodes]
        slots = torch.unique(path[path >= 0])
        path = torch.where(path >= 0, torch.searchsorted(slots, path.clamp_min(0)), -1)
        _, row = torch.unique(self.row[nodes], return_inverse=True)
        return Frontier(self.outputs[nodes], row, path), slots

    def slots_by_row(self, rows: int) -> Tensor:
        """How many slots lead to the nodes of each of `rows` questions (rows,)."""
        node, step = torch.nonzero(self.path >= 0, as_tuple=True)
        slots, slot = torch.unique(self.path[node, step], return_inverse=True)
        owner = torch.zeros_like(slots).scatter_(0, slot, self.row[node])
        return torch.bincount(owner, minlength=rows)


def start(cache: TreeCache, prompts: Sequence[Sequence[int]], first: int = 0) -> Frontier:
    """Prefill prompts, numbered from `first` on; the last token of each is its question's first node."""
    outputs = cache.prefill(prompts)
    row = first + torch.arange(len(prompts))
    return Frontier(outputs, row, torch.zeros((len(prompts), 0), dtype=torch.long))


def advance(
    cache: TreeCache, frontier: Frontier, node: Tensor, token: Tensor, *, ats: Tensor | None = None
) -> tuple[Frontier, Tensor]:
    """Extend nodes (n,) with tokens (n,): equal steps run once, questions without a step leave the cache.

    `ats` (n,) is the index of the cache's ATS under which each step was made, -1 for none; by default all are
    read after each token. Returns the new nodes, and the one (n,) that each step led to.
    """
    parent, token, reached = distinct_steps(cache, node, token)
    row = frontier.row[parent]
    cache.drop_except(torch.unique_consecutive(row))
    path = _extended(frontier.path[parent], cache.slots + torch.arange(len(parent)))
    wanted = None
    if ats is not None:
        wanted = torch.zeros((len(parent), len(cache.ats)), dtype=torch.bool)
        wanted[reached[ats >= 0], ats[ats >= 0]] = True
    return Frontier(cache.extend(NewTokens(token, row, path, wanted)), row, path), reached


def distinct_steps(cache: TreeCache, node: Tensor, token: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Node and token (k,) of each distinct step, and the index among them of each step (n,)."""
    vocabulary = cache.network.vocabulary
    distinct, reached = torch.unique(node * vocabulary + token, return_inverse=True)
    return distinct // vocabulary, distinct % vocabulary, reached


def _extended(path: Tensor, slot: Tensor) -> Tensor:
    """Paths (k, T) with one more slot (k,), no wider than the longest needs."""
    depth = (path >= 0).sum(1)
    path = pad(path, (0, 1), value=-1)
    path[torch.arange(len(path)), depth] = slot
    return path[:, : int(depth.max()) + 1]
