"""Tree caches: keys and values of the shared prefix, of prompts, and of the tree after each prompt.

`ThreeLevelCache` stores them at three levels, for every model whose attention can be replaced.
`FallbackCache` supports all other models that accept a four-dimensional mask and a cache: it has one row per
question, each with a copy of the shared prefix, and uses attention masks. No rule depends on the name of an
architecture: `checked_network` compares both with the plain model on two small trees when a model is loaded.
A `Frontier` has the nodes of the trees whose outputs are read next.

For a tree cache an ATS is an additional layer with its own keys and values. Thus one implementation serves
sampling, beam search and scoring, and a temperature depends only on earlier tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from semcal.errors import ModelError, SemcalWarning
from semcal.models.engine.network import (
    SERVE_IT,
    AttentionConfig,
    ForwardPass,
    LayerCache,
    Network,
    PrefixPass,
    PromptPass,
    TreePass,
    ranks,
    token_bytes,
)
from semcal.models.protocols import AnyRecalibrator, StateReader

_TOKENS_PER_PASS, _TOKENS_PER_PASS_ON_GPU = {"cpu": 1024}, 16384  # a CPU needs few tokens for full use
_FAILURES = (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True)
class ModelOutputs:
    """Model outputs for a set of tokens."""

    states: Tensor  # (..., d), last hidden states
    inverse_temperatures: Tensor  # (..., r) float32, 1/T after each token for each ATS

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, index: Any) -> ModelOutputs:
        return ModelOutputs(self.states[index], self.inverse_temperatures[index])

    @classmethod
    def of(cls, states: Tensor, inverse_temperatures: Sequence[Tensor]) -> ModelOutputs:
        """Build outputs from states (..., d) and the 1/T (...) of each ATS."""
        if not inverse_temperatures:
            return cls(states, states.new_zeros((*states.shape[:-1], 0)))
        return cls(states, torch.stack(list(inverse_temperatures), -1))

    @classmethod
    def concatenate(cls, parts: Sequence[ModelOutputs]) -> ModelOutputs:
        """Concatenate outputs."""
        if len(parts) == 1:
            return parts[0]
        states = torch.cat([part.states for part in parts])
        return cls(states, torch.cat([part.inverse_temperatures for part in parts]))


def log_probs(
    recalibrator: AnyRecalibrator, logits: Tensor, outputs: ModelOutputs, ats: Sequence[StateReader]
) -> Tensor:
    """Return recalibrated log-probabilities (n, V) of logits (n, V); `outputs` have the 1/T of each ATS."""
    if not isinstance(recalibrator, StateReader):
        return recalibrator.log_probs(logits)
    beta = outputs.inverse_temperatures[:, ats.index(recalibrator)]
    return recalibrator.log_probs(logits, beta.to(logits.device))


def logits_in_parts(network: Network, outputs: ModelOutputs) -> Iterator[tuple[int, ModelOutputs, Tensor]]:
    """Yield a limited number of outputs at a time: the index of the first, the outputs, and their logits."""
    for first in range(0, len(outputs), network.rows_at_a_time):
        part = outputs[first : first + network.rows_at_a_time]
        yield first, part, network.logits(part.states)


@dataclass(frozen=True)
class NewTokens:
    """New tokens of the trees; slots number all tokens of the trees of a cache in the order of insertion."""

    token: Tensor  # (N,) int64
    row: Tensor  # (N,) int64, ascending: the question of each token
    path: Tensor  # (N, T) int64: slots of the tree tokens up to and including the token, then -1
    #: (N, r) bool, True if an ATS reads a token; it has then read all earlier tokens. None: all ATS read all
    #: tokens, which is always so in a `FallbackCache`.
    read_by: Tensor | None = None

    def __len__(self) -> int:
        return len(self.token)

    @property
    def depth(self) -> Tensor:
        """(N,) length of each path."""
        return (self.path >= 0).sum(1)


@dataclass
class ThreeLevelCache:
    """A cache whose layers store keys and values at three levels."""

    network: Network
    ats: tuple[StateReader, ...] = ()  # recalibrators that read hidden states
    prefix_length: int = 0  # number of shared tokens
    prefix_states: Tensor = field(default_factory=lambda: torch.zeros((0, 0)))  # (prefix_length, d)
    slots: int = 0  # number of tokens in the trees
    layers: dict[int, LayerCache] = field(default_factory=dict)  # the ATS are layers -1, -2, …
    lengths: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))  # by question

    @classmethod
    def of_prefix(cls, network: Network, prefix: tuple[int, ...]) -> ThreeLevelCache:
        """Run the shared tokens, if any."""
        cache = cls(network, prefix_length=len(prefix))
        if prefix:
            token_ids = torch.tensor(prefix, device=network.device)
            positions = torch.arange(len(prefix), device=network.device)
            cache.prefix_states = network.run(token_ids, positions, PrefixPass(cache.layers))
        return cache

    def with_ats(self, ats: Sequence[StateReader]) -> ThreeLevelCache:
        """Return a cache with the same prefix, read by these ATS, without questions."""
        cache = replace(self.empty(), ats=tuple(ats))
        positions = torch.arange(self.prefix_length, device=self.network.device)
        if self.prefix_length:
            cache._inverse_temperatures(self.prefix_states, positions, PrefixPass(cache.layers))
        return cache

    @property
    def bytes_per_token(self) -> int:
        """Size of the keys and values of one token in the model's layers."""
        return sum(layer.bytes_per_token for index, layer in self.layers.items() if index >= 0)

    @property
    def tokens_held(self) -> int:
        """Number of tokens for which the buffers of prompts and trees have room."""
        return len(self.lengths) * int(self.lengths.max()) + self.slots

    def empty(self) -> ThreeLevelCache:
        """Return a cache with the same prefix and ATS, without questions."""
        layers = {i: LayerCache(layer.config, layer.last, layer.prefix) for i, layer in self.layers.items()}
        none = torch.zeros(0, dtype=torch.long, device=self.network.device)
        return replace(self, slots=0, layers=layers, lengths=none)

    def prefill(self, prompts: Sequence[Sequence[int]], *, all_tokens: bool = False) -> ModelOutputs:
        """Run the tokens of each prompt after the prefix; the prompts become the next questions.

        Return the outputs (B, ...) of the last token of each prompt, or of all tokens, ordered by prompt.
        """
        device = self.network.device
        own_tokens = [prompt[self.prefix_length :] for prompt in prompts]
        counts = torch.tensor([len(tokens) for tokens in own_tokens], device=device)
        held = len(self.lengths) + torch.arange(len(own_tokens), device=device)
        self.lengths = torch.cat([self.lengths, counts])
        buffer = len(self.lengths), int(self.lengths.max())
        for layer in self.layers.values():
            layer.reserve(*buffer)
        outputs = []
        for rows in self._passes(counts.tolist()):
            token_ids = torch.tensor(list(chain.from_iterable(own_tokens[rows])), device=device)
            last_only = not all_tokens and not self.ats
            new = PromptPass(self.layers, self.prefix_length, held[rows], counts[rows], buffer, last_only)
            part = self._run(token_ids, self.prefix_length + new.column, new)
            outputs.append(part if all_tokens else part[new.ends])
        return ModelOutputs.concatenate(outputs)

    def extend(self, new: NewTokens) -> ModelOutputs:
        """Run new tokens of the trees, store them, and return their outputs (N, ...)."""
        most, outputs, device = tokens_per_pass(self.network), [], self.network.device
        token, row = new.token.to(device), new.row.to(device)
        path, depth = new.path.to(device), new.depth.to(device)
        read_by = None if new.read_by is None else new.read_by.to(device)
        for first in range(0, len(new), most):
            part = slice(first, first + most)
            readers = None if read_by is None else read_by[part]
            places = row[part], path[part], depth[part], self.slots
            tree = TreePass(self.layers, self.prefix_length, self.lengths, *places, readers)
            outputs.append(self._run(token[part], tree.position, tree))
            self.slots += len(outputs[-1])
        return ModelOutputs.concatenate(outputs)

    def compact(self, rows: Tensor, slots: Tensor) -> None:
        """Keep only these questions and these tokens of their trees (ascending), and renumber both."""
        rows, slots = rows.to(self.network.device), slots.to(self.network.device)
        self.lengths, self.slots = self.lengths[rows], len(slots)
        for layer in self.layers.values():
            layer.keep_prompts(rows, int(self.lengths.max()))
            layer.keep_slots(slots)

    def _run(self, token_ids: Tensor, positions: Tensor, forward_pass: ForwardPass) -> ModelOutputs:
        states = self.network.run(token_ids, positions, forward_pass)
        return ModelOutputs.of(states, self._inverse_temperatures(states, positions, forward_pass))

    @torch.no_grad()
    def _inverse_temperatures(
        self, states: Tensor, positions: Tensor, forward_pass: ForwardPass
    ) -> list[Tensor]:
        """Return 1/T (N,) of each ATS after the N new tokens of a pass, with states (N, d) at positions (N,).

        1/T is NaN after tokens that an ATS does not read. No token attends to these tokens: a sample of an
        ATS was read after every token of its path.
        """
        found = []
        for number, ats in enumerate(self.ats):
            config = AttentionConfig(ats.head_dim**-0.5)
            layer = forward_pass.layers.setdefault(-1 - number, LayerCache(config))
            if not isinstance(forward_pass, TreePass) or forward_pass.read_by is None:
                some, at = states[None], positions[None]
                output = forward_pass.attend(layer, ats.queries(some, at), *ats.keys_values(some, at))
                found.append(ats.inverse_temperature_from(some, output.flatten(2))[0].float())
                continue
            found.append(torch.full((len(states),), torch.nan, device=states.device))
            index = forward_pass.read_by[:, number].nonzero()[:, 0]
            if len(index):
                some, at = states[None, index], positions[None, index]
                query, key_value = ats.queries(some, at), ats.keys_values(some, at)
                output = forward_pass.attend_some(index, layer, query, *key_value)
                found[-1][index] = ats.inverse_temperature_from(some, output.flatten(2))[0].float()
        return found

    def _passes(self, lengths: Sequence[int]) -> Iterator[slice]:
        """Split prompts into runs of at most `tokens_per_pass` tokens and at least one prompt."""
        first, tokens = 0, 0
        for row, length in enumerate(lengths):
            if row > first and tokens + length > tokens_per_pass(self.network):
                yield slice(first, row)
                first, tokens = row, 0
            tokens += length
        if first < len(lengths):
            yield slice(first, len(lengths))


def tokens_per_pass(network: Network) -> int:
    """Return the maximum number of tokens per pass."""
    return _TOKENS_PER_PASS.get(network.device.type, _TOKENS_PER_PASS_ON_GPU)


@dataclass
class FallbackCache:
    """Keys and values of a batch of questions, one row each, with the methods of `ThreeLevelCache`.

    One `prefill` adds all its questions.
    """

    network: Network
    key_values: Cache
    positions: Tensor  # (rows, K) int64, positions of the cached tokens
    prefix_length: int = 0
    prefix_states: Tensor = field(default_factory=lambda: torch.zeros((0, 0)))
    ats: tuple[StateReader, ...] = ()
    ats_layers: tuple[DynamicLayer, ...] = ()  # keys and values of each ATS
    lengths: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))  # whole prompts, by row
    column: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))  # slot -> column

    @classmethod
    def of_prefix(cls, network: Network, prefix: tuple[int, ...]) -> FallbackCache:
        """Run the shared tokens, if any, in one row."""
        positions = torch.zeros((1, 0), dtype=torch.long, device=network.device)
        cache = cls(network, DynamicCache(), positions, len(prefix))
        if prefix:
            count = len(prefix)
            outputs = cache._run(torch.tensor([prefix]), torch.arange(count)[None], _causal_mask(count))
            cache.prefix_states = outputs.states[0]
        return cache

    def with_ats(self, ats: Sequence[StateReader]) -> FallbackCache:
        cache = replace(self._repeated(1), ats=tuple(ats), ats_layers=tuple(DynamicLayer() for _ in ats))
        if self.prefix_length:
            visible = _causal_mask(self.prefix_length).to(self.network.device)
            cache._inverse_temperatures(self.prefix_states[None], self.positions, visible)
        return cache

    @property
    def slots(self) -> int:
        return len(self.column)

    @property
    def bytes_per_token(self) -> int:
        layers = self.key_values.layers
        return sum(token_bytes(states) for layer in layers for states in (layer.keys, layer.values))

    def empty(self) -> FallbackCache:
        return self._repeated(1)

    def prefill(self, prompts: Sequence[Sequence[int]], *, all_tokens: bool = False) -> ModelOutputs:
        rows = self._repeated(len(prompts))
        self.key_values, self.positions, self.ats_layers = rows.key_values, rows.positions, rows.ats_layers
        before = self.prefix_length
        own_tokens = [torch.tensor(prompt[before:]) for prompt in prompts]
        token_ids = pad_sequence(own_tokens, batch_first=True)
        lengths = torch.tensor([len(tokens) for tokens in own_tokens])
        batch, width = token_ids.shape
        self.lengths = before + lengths
        visible = torch.ones((width, before + width), dtype=torch.bool).tril(before).expand(batch, -1, -1)
        outputs = self._run(token_ids, torch.arange(before, before + width).expand(batch, width), visible)
        if all_tokens:
            return outputs[torch.arange(width) < lengths[:, None]]
        return outputs[torch.arange(batch), lengths - 1]

    def extend(self, new: NewTokens) -> ModelOutputs:
        row, rank = new.row, ranks(new.row)
        rows, width, held = len(self.positions), int(rank.max()) + 1, self.positions.shape[1]
        token_ids = torch.zeros((rows, width), dtype=torch.long)
        token_ids[row, rank] = new.token
        positions = torch.zeros_like(token_ids)
        positions[row, rank] = self.lengths[row] + new.depth - 1
        self.column = torch.cat([self.column, held + rank])
        outputs = self._run(token_ids, positions, self._visible(new, row, rank, held + width))
        return outputs[row, rank]

    def compact(self, rows: Tensor, slots: Tensor) -> None:
        for layer in (*self.key_values.layers, *self.ats_layers):
            layer.batch_select_indices(rows.to(self.network.device))
        self.positions, self.lengths = self.positions[rows.to(self.positions.device)], self.lengths[rows]
        self.column = self.column[slots]

    def _visible(self, new: NewTokens, row: Tensor, rank: Tensor, columns: int) -> Tensor:
        """Return a mask (rows, width, K) of the tokens that new tokens see: prompt, path and itself."""
        rows, width = len(self.positions), int(rank.max()) + 1
        visible = torch.eye(width, columns, dtype=torch.bool).roll(columns - width, 1).repeat(rows, 1, 1)
        visible[row, rank] |= torch.arange(columns) < self.lengths[row][:, None]
        node, step = torch.nonzero(new.path >= 0, as_tuple=True)
        visible[row[node], rank[node], self.column[new.path[node, step]]] = True
        return visible

    def _repeated(self, rows: int) -> FallbackCache:
        """Return a cache of `rows` copies of the first row, without questions."""
        layers = [_repeated(layer, rows) for layer in self.key_values.layers]
        key_values = Cache(layers=layers) if layers else DynamicCache()
        return FallbackCache(
            self.network,
            key_values,
            self.positions[:1].expand(rows, -1),
            self.prefix_length,
            self.prefix_states,
            self.ats,
            tuple(_repeated(layer, rows) for layer in self.ats_layers),
        )

    def _run(self, token_ids: Tensor, positions: Tensor, visible: Tensor) -> ModelOutputs:
        """Run new tokens (B, n); `visible` (B, n, K) is a mask of the cached tokens that each token sees."""
        device = self.network.device
        positions, visible = positions.to(device), visible.to(device)
        self.positions = torch.cat([self.positions, positions], 1)
        states = self.network.run_unpatched(token_ids.to(device), visible, self.positions, self.key_values)
        return ModelOutputs.of(states, self._inverse_temperatures(states, positions, visible))

    @torch.no_grad()
    def _inverse_temperatures(self, states: Tensor, positions: Tensor, visible: Tensor) -> list[Tensor]:
        """Return 1/T (B, n) of each ATS after new tokens with states (B, n, d)."""
        found = []
        for ats, layer in zip(self.ats, self.ats_layers):
            keys, values = layer.update(*ats.keys_values(states, positions))
            found.append(ats.inverse_temperature(states, positions, keys, values, visible).float())
        return found


def _repeated(layer: Any, rows: int) -> DynamicLayer:
    """Return a layer of `rows` rows, each with the tokens of the first row of `layer`."""
    copy = DynamicLayer()
    if layer.is_initialized:
        copy.dtype, copy.device, copy.is_initialized = layer.dtype, layer.device, True
        copy.keys = layer.keys[:1].expand(rows, -1, -1, -1)
        copy.values = layer.values[:1].expand(rows, -1, -1, -1)
    return copy


def _causal_mask(count: int) -> Tensor:
    return torch.ones((1, count, count), dtype=torch.bool).tril()


TreeCache = ThreeLevelCache | FallbackCache
"""The cache of sampling, beam search and scoring."""


def prefill_prefix(network: Network, prefix: tuple[int, ...]) -> TreeCache:
    """Run the shared tokens, if any, in the kind of cache for the network."""
    kind = FallbackCache if network.patched is None else ThreeLevelCache
    return kind.of_prefix(network, prefix)


@dataclass(frozen=True)
class Frontier:
    """F nodes of the trees; the nodes of a question are adjacent."""

    outputs: ModelOutputs  # (F, ...), outputs that predict the next token
    row: Tensor  # (F,) int64, ascending: the question of a node
    path: Tensor  # (F, T) int64: slots of the tree tokens up to and including the node, then -1

    @classmethod
    def empty(cls) -> Frontier:
        """Return a frontier without nodes."""
        nothing = torch.zeros((0, 0))
        return cls(ModelOutputs(nothing, nothing), torch.zeros(0, dtype=torch.long), nothing.long())

    def append(self, later: Frontier) -> Frontier:
        """Return these nodes, then the nodes of later questions."""
        if not len(self.row):
            return later
        paths = (nodes.path for nodes in (self, later))
        width = max(self.path.shape[1], later.path.shape[1])
        path = torch.cat([pad(path_part, (0, width - path_part.shape[1]), value=-1) for path_part in paths])
        outputs = ModelOutputs.concatenate([self.outputs, later.outputs])
        return Frontier(outputs, torch.cat([self.row, later.row]), path)

    def compacted(self, nodes: Tensor) -> tuple[Frontier, Tensor]:
        """Return some nodes (ascending), and the slots that lead to them; rows and slots are renumbered."""
        path = self.path[nodes]
        slots = torch.unique(path[path >= 0])
        path = torch.where(path >= 0, torch.searchsorted(slots, path.clamp_min(0)), -1)
        _, row = torch.unique(self.row[nodes], return_inverse=True)
        return Frontier(self.outputs[nodes], row, path), slots

    def slots_by_row(self, rows: int) -> Tensor:
        """Return the number of slots that lead to the nodes of each of `rows` questions (rows,)."""
        node, step = torch.nonzero(self.path >= 0, as_tuple=True)
        slots, slot = torch.unique(self.path[node, step], return_inverse=True)
        owner = torch.zeros_like(slots).scatter_(0, slot, self.row[node])
        return torch.bincount(owner, minlength=rows)


def start(cache: TreeCache, prompts: Sequence[Sequence[int]], first: int = 0) -> Frontier:
    """Prefill prompts, numbered from `first`; the last token of each is the first node of its question."""
    outputs = cache.prefill(prompts)
    row = first + torch.arange(len(prompts))
    return Frontier(outputs, row, torch.zeros((len(prompts), 0), dtype=torch.long))


def advance(
    cache: TreeCache, frontier: Frontier, node: Tensor, token: Tensor, *, ats: Tensor | None = None
) -> tuple[Frontier, Tensor]:
    """Extend nodes (n,) with tokens (n,): equal steps run once.

    `ats` (n,) is the index of the ATS of each step in the cache, -1 for none; by default all ATS read each
    token. Return the new nodes, and the node (n,) after each step.
    """
    parent, token, reached = distinct_steps(cache, node, token)
    row = frontier.row[parent]
    before = frontier.path[parent]  # paths with one more slot, as wide as the longest
    depth, path = (before >= 0).sum(1), pad(before, (0, 1), value=-1)
    path[torch.arange(len(path)), depth] = cache.slots + torch.arange(len(parent))
    path = path[:, : int(depth.max()) + 1]
    read_by = None
    if ats is not None:
        read_by = torch.zeros((len(parent), len(cache.ats)), dtype=torch.bool)
        read_by[reached[ats >= 0], ats[ats >= 0]] = True
    return Frontier(cache.extend(NewTokens(token, row, path, read_by)), row, path), reached


def distinct_steps(cache: TreeCache, node: Tensor, token: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return node and token (k,) of each distinct step, and the index of the distinct step of each (n,)."""
    vocabulary = cache.network.vocabulary
    distinct, reached = torch.unique(node * vocabulary + token, return_inverse=True)
    return distinct // vocabulary, distinct % vocabulary, reached


def checked_network(model: Any) -> Network:
    """Return body and head of a causal language model of transformers, with the fastest exact attention.

    SemcalWarning, with the reason, if the model needs the fallback. ModelError if neither way reproduces its
    logits, for example because it looks ahead or accepts no masks.
    """
    network = Network(model)
    expected = _expected_logits(network)
    try:
        _patch(network, expected)
        _check_windows(network)
    except (ModelError, *_FAILURES) as reason:
        network.patched = None
        try:
            _check(network, expected)
        except _FAILURES as error:
            kind = f"{type(model).__name__} does not run with a shared prefix and attention masks"
            raise ModelError(f"{kind} ({error}). {SERVE_IT}") from error
        warnings.warn(
            f"{type(model).__name__} runs in the plain way, which takes more time and memory: {reason}",
            SemcalWarning,
            stacklevel=4,
        )
    return network


def _patch(network: Network, expected: Tensor) -> None:
    """Patch the body so that its last layer skips tokens if the logits stay exact, and check its logits."""
    with suppress(ModelError, *_FAILURES):
        network.patch(skip_unwanted=True)
        return _check(network, expected)
    network.patch(skip_unwanted=False)
    return _check(network, expected)


#: Maximum root mean square of logit differences, in standard deviations. For real models, rounding causes
#: 0.04 to 0.07 in bfloat16 and 0.012 in float16, and more for single logits; a position error of one causes
#: at least 0.11, and a missing key 0.23.
_TOLERANCE = {torch.bfloat16: 0.1, torch.float16: 0.03}


def _check(network: Network, expected: Tensor) -> None:
    """Compare logits with the expected logits, and measure the sizes of the network."""
    cache, states = _run_trees(network)
    network.bytes_per_token, network.width = cache.bytes_per_token, states.shape[-1]
    logits = network.logits(states).view_as(expected)
    if cache.bytes_per_token < 1:
        raise ModelError(f"{type(network.model).__name__} has no layers with keys and values. {SERVE_IT}")
    tolerance = _TOLERANCE.get(network.dtype, 1e-4)
    difference = (expected - logits).abs()
    furthest = difference.square().mean().sqrt() if network.dtype in _TOLERANCE else difference.max()
    error = float(furthest / expected.std().clamp_min(1e-6))
    if not error <= tolerance:
        rough = f", or another dtype than {network.dtype}" if network.dtype in _TOLERANCE else ""
        raise ModelError(
            f"{type(network.model).__name__} cannot be used: with a shared prefix its logits differ from "
            f"those of the plain model by {error:.1e} standard deviations, more than {tolerance:.0e}. Use a "
            f"model with ordinary causal attention{rough}"
        )


def _check_windows(network: Network) -> None:
    """Compare the windows of layers with the configuration: the trees are too small for a wide window."""
    cache = ThreeLevelCache.of_prefix(network, (0,))
    windows = [cache.layers[index].config.window for index in range(len(cache.layers))]
    if windows != network.windows:
        raise ModelError(
            f"its layers have attention windows of {windows}, its configuration has {network.windows}"
        )


#: Tokens 0 … 8 in three sequences: the first two share four tokens, the third shares three with both.
_PATHS = ((0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 6, 7), (0, 1, 2, 8, 4, 5))


def _tokens(network: Network) -> list[int]:
    start = network.vocabulary // 2
    return [(start + i) % network.vocabulary for i in range(9)]


@torch.no_grad()
def _expected_logits(network: Network) -> Tensor:
    """Return logits (3, 3, V) of the plain model for the last three tokens of the sequences."""
    tokens = _tokens(network)
    kind = type(network.model).__name__
    try:
        ids = torch.tensor([[tokens[i] for i in path] for path in _PATHS], device=network.device)
        output = network.model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    except _FAILURES as error:
        raise ModelError(f"{kind} does not run on plain sequences of tokens: {error}") from error
    logits: Tensor = output.logits[:, 3:]
    return logits.float()


def _run_trees(network: Network) -> tuple[TreeCache, Tensor]:
    """Return the states (9, d) of these tokens: two questions after a prefix of two tokens, with a fork."""
    tokens = _tokens(network)
    cache = prefill_prefix(network, tuple(tokens[:2])).empty()
    prompt_states = cache.prefill([tokens[:4], tokens[:3]]).states
    fork = _new_tokens(tokens, [4, 6, 8], row=[0, 0, 1], path=[[0], [1], [2]])
    leaves = _new_tokens(
        tokens, [5, 7, 4, 5], row=[0, 0, 1, 1], path=[[0, 3, -1], [1, 4, -1], [2, 5, -1], [2, 5, 6]]
    )
    first, second = cache.extend(fork).states, cache.extend(leaves).states
    states = [prompt_states[0], first[0], second[0], prompt_states[0], first[1], second[1], first[2]]
    return cache, torch.stack([*states, second[2], second[3]])


def _new_tokens(tokens: list[int], places: list[int], *, row: list[int], path: list[list[int]]) -> NewTokens:
    return NewTokens(torch.tensor([tokens[i] for i in places]), torch.tensor(row), torch.tensor(path))
