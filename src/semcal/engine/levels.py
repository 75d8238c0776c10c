"""Keys and values at three levels, and the passes that write and read them.

1. The prefix that all prompts share, once.
2. The rest of each prompt, once per question.
3. The tree: tokens drawn or given after a prompt, each distinct beginning once.

A pass runs new tokens of many questions side by side in one row, (1, N); nothing is padded but inside the
attention to the prompts. In each layer every new token gathers from its levels, and the parts are merged.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from semcal.engine.attention import Part, Rule, attend, attend_causally, merged

__all__ = ["Layer", "Nodes", "Pass", "Prefix", "Prompts"]

_ROOM = 256  # tokens of the tree added beyond need when a buffer is full
Pair = tuple[Tensor, Tensor]


@dataclass
class Layer:
    """One layer's keys and values, each level as a pair.

    Attributes
    ----------
    rule : Rule
        How the layer attends.
    last : bool
        Whether its tokens run only where a pass wants their states.
    shared : pair of torch.Tensor or None
        (1, heads, P, D), of the shared prefix.
    own : pair of torch.Tensor or None
        (B, heads, S, D), of the rest of the prompts; zeros behind the shorter ones.
    tree : pair of torch.Tensor or None
        (slots and room, heads, D).
    """

    rule: Rule
    last: bool = False
    shared: Pair | None = None
    own: Pair | None = None
    tree: Pair | None = None

    def keep(self, rows: Tensor, columns: int) -> None:
        """Forget all prompts but these, none of which has more than so many tokens."""
        if self.own is not None:
            self.own = self.own[0][rows, :, :columns], self.own[1][rows, :, :columns]

    def keep_tree(self, slots: Tensor) -> None:
        """Forget all tokens of the trees but those in these slots (ascending), which are numbered anew."""
        if self.tree is not None:
            slots = slots[slots < len(self.tree[0])]  # a rider reads not all of them
            self.tree = self.tree[0][slots], self.tree[1][slots]

    def widen(self, rows: int, columns: int) -> None:
        """Make room for so many prompts of so many tokens, behind those that are held."""
        if self.own is not None:
            self.own = _widened(self.own[0], rows, columns), _widened(self.own[1], rows, columns)

    @property
    def bytes_per_token(self) -> int:
        """Of keys and values of one token."""
        held = self.shared or self.own or ()
        return sum(states.shape[1] * states.shape[3] * states.element_size() for states in held)


class Pass(Protocol):
    """New tokens on their way through the layers."""

    @property
    def layers(self) -> dict[int, Layer]:
        """Keys and values."""

    @property
    def wanted(self) -> Tensor | None:
        """(R,) the tokens whose last states are wanted; None for all."""

    def attend(self, layer: Layer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """What N new tokens gather in a layer.

        (1, N, H, D) of queries (1, H, N, D) and their own keys and values (1, h, N, D), which are kept. In
        the last layer there may be zeros for tokens that are not wanted.
        """


@dataclass(frozen=True)
class Prefix:
    """The shared prefix: N tokens of which each sees those before."""

    layers: dict[int, Layer]
    wanted: ClassVar[None] = None

    def attend(self, layer: Layer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        layer.shared = key.contiguous(), value.contiguous()
        groups = query.shape[1] // key.shape[1]
        part = attend_causally(query, _repeated(key, groups), _repeated(value, groups), layer.rule)
        return part.gathered.transpose(1, 2)


@dataclass(frozen=True)
class Prompts:
    """The rest of some prompts.

    Attributes
    ----------
    layers : dict of int to Layer
        Keys and values.
    before : int
        Length of the shared prefix.
    rows : torch.Tensor
        (b,) which rows of the buffers these prompts get.
    lengths : torch.Tensor
        (b,) their lengths.
    buffer : tuple of int
        Rows and columns that the buffers need for all prompts of the batch.
    ends_alone : bool
        Whether the last states of the last token of each prompt are wanted alone.
    """

    layers: dict[int, Layer]
    before: int
    rows: Tensor
    lengths: Tensor
    buffer: tuple[int, int]
    ends_alone: bool = False

    @cached_property
    def ends(self) -> Tensor:
        """(b,) the last token of each prompt."""
        return self.lengths.cumsum(0) - 1

    @property
    def wanted(self) -> Tensor | None:
        return self.ends if self.ends_alone else None

    @cached_property
    def prompt(self) -> Tensor:
        """(N,) which of the prompts a token is of."""
        return torch.repeat_interleave(torch.arange(len(self.lengths), device=self.rows.device), self.lengths)

    @cached_property
    def column(self) -> Tensor:
        """(N,) how many tokens of its prompt stand before it."""
        start = self.lengths.cumsum(0) - self.lengths
        return torch.arange(len(self.prompt), device=self.rows.device) - start[self.prompt]

    def attend(self, layer: Layer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self._hold(layer, key, value)
        if layer.last and self.ends_alone:
            return self._of_ends(layer, query, key, value)
        groups = query.shape[1] // key.shape[1]
        side_by_side = (self._padded(states) for states in (query, key, value))
        q, k, v = side_by_side
        own = attend_causally(q, _repeated(k, groups), _repeated(v, groups), layer.rule)
        parts = [Part(own.gathered[self.prompt, :, self.column], own.mass[self.prompt, :, self.column])]
        if layer.shared is not None:
            position = self.before + self.column
            parts.append(_of_shared(layer, layer.shared, query[0], position))
        return merged(parts)[None]

    def _of_ends(self, layer: Layer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """What the last tokens gather: (1, N, H, D), zeros for the others. Nothing but scores is padded."""
        groups, rule = query.shape[1] // key.shape[1], layer.rule
        ends, position = query[0][:, self.ends], self.before + self.lengths - 1  # (H, b, D), (b,)
        keys, values = (_repeated(states, groups)[0].float() for states in (key, value))  # (H, N, D)
        scores = (ends.float()[:, self.prompt] * keys).sum(-1) * rule.scaling  # (H, N)
        if rule.softcap is not None:
            scores = torch.tanh(scores / rule.softcap) * rule.softcap
        if rule.window is not None:
            near = self.before + self.column > position[self.prompt] - rule.window
            scores = scores.masked_fill(~near, -torch.inf)
        grid = scores.new_full((len(ends), len(self.lengths), int(self.lengths.max())), -torch.inf)
        grid[:, self.prompt, self.column] = scores
        mass = grid.logsumexp(-1)  # (H, b)
        weights = (scores - mass[:, self.prompt]).exp_()
        gathered = scores.new_zeros((*mass.shape, values.shape[2]))
        gathered.index_add_(1, self.prompt, weights[..., None] * values)
        parts = [Part(gathered.to(query.dtype).transpose(0, 1), mass.transpose(0, 1))]
        if layer.shared is not None:
            parts.append(_of_shared(layer, layer.shared, ends, position))
        found = query.new_zeros((1, query.shape[2], query.shape[1], value.shape[3]))
        found[0, self.ends] = merged(parts)
        return found

    def _hold(self, layer: Layer, *pair: Tensor) -> None:
        if layer.own is None:
            rows, columns = self.buffer
            keys, values = (
                states.new_zeros((rows, len(states[0]), columns, states.shape[3])) for states in pair
            )
            layer.own = keys, values
        for buffer, states in zip(layer.own, pair, strict=True):
            buffer[self.rows[self.prompt], :, self.column] = states[0].transpose(0, 1)

    def _padded(self, states: Tensor) -> Tensor:
        """(1, h, N, D) as (b, h, S, D)."""
        heads, _, width = states.shape[1:]
        rows, columns = len(self.lengths), int(self.column.max()) + 1
        grid = states.new_zeros((rows, columns, heads, width))
        grid[self.prompt, self.column] = states[0].transpose(0, 1)
        return grid.transpose(1, 2)


@dataclass(frozen=True)
class Nodes:
    """New tokens of the trees.

    Attributes
    ----------
    layers : dict of int to Layer
        Keys and values.
    before : int
        Length of the shared prefix.
    lengths : torch.Tensor
        (B,) how many tokens of its own each prompt has, by row of the buffers.
    row : torch.Tensor
        (N,) ascending: the row of a token's prompt.
    path : torch.Tensor
        (N, T) slots of the tokens of the tree that it follows, in order, itself the last; -1 behind.
    depth : torch.Tensor
        (N,) how many these are.
    first : int
        Slot of the first new token; the others follow.
    """

    layers: dict[int, Layer]
    before: int
    lengths: Tensor
    row: Tensor
    path: Tensor
    depth: Tensor
    first: int
    wanted: ClassVar[None] = None
    _masks: dict[tuple[str, int | None], Tensor | None] = field(default_factory=dict)

    def attend(self, layer: Layer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        last = self.first + len(self.row)
        self.hold(layer, torch.arange(self.first, last, device=self.row.device), key, value)
        return self.gather(layer, query, key.shape[1])

    def some(self, which: Tensor) -> Nodes:
        """These (ascending) of the new tokens alone."""
        return replace(self, row=self.row[which], path=self.path[which], depth=self.depth[which], _masks={})

    def hold(self, layer: Layer, slots: Tensor, *pair: Tensor) -> None:
        """Keep keys and values (1, h, n, D) of the tokens in these slots (n,)."""
        keys, values = (states[0].transpose(0, 1) for states in pair)
        last = int(slots[-1]) + 1
        if layer.tree is None:
            layer.tree = keys[:0], values[:0]
        if last > len(layer.tree[0]):
            room = last + max(_ROOM, last // 4)
            layer.tree = _moved(layer.tree[0], room, keys), _moved(layer.tree[1], room, values)
        layer.tree[0][slots], layer.tree[1][slots] = keys, values

    def gather(self, layer: Layer, query: Tensor, heads: int) -> Tensor:
        """What the tokens gather (1, n, H, D), of queries (1, H, n, D), from what is kept for h heads."""
        parts = [self._of_tree(layer, query, heads), self._of_own(layer, query, heads)]
        if layer.shared is not None:
            parts.append(_of_shared(layer, layer.shared, query[0], self.position))
        return merged(parts)[None]

    @cached_property
    def position(self) -> Tensor:
        """(N,) where the tokens stand."""
        return self.before + self.lengths[self.row] + self.depth - 1

    def _of_tree(self, layer: Layer, query: Tensor, heads: int) -> Part:
        assert layer.tree is not None
        keys, values = (states[self._slots].transpose(1, 2) for states in layer.tree)  # (N, h, T, D)
        grouped = _grouped(query, heads).permute(2, 0, 1, 3)  # (N, h, g, D)
        part = attend(grouped, keys, values, layer.rule, self._tree_mask(layer.rule.window))
        return Part(part.gathered.flatten(1, 2), part.mass.flatten(1, 2))

    def _of_own(self, layer: Layer, query: Tensor, heads: int) -> Part:
        """Queries of a question stand side by side, so that its keys are read once for all."""
        assert layer.own is not None
        held = self._rows
        rows, most, groups = held.stop - held.start, self._most, query.shape[1] // heads
        grid = query.new_zeros((rows * most, *query.shape[1:2], query.shape[3]))
        grid[self._place] = query[0].transpose(0, 1)
        grid = grid.view(rows, most, heads, groups, -1).transpose(1, 2).flatten(2, 3)
        keys, values = (states[held] for states in layer.own)
        part = attend(grid, keys, values, layer.rule, self._own_mask(layer.rule.window, groups))
        gathered = part.gathered.view(rows, heads, most, groups, -1).transpose(1, 2)
        mass = part.mass.view(rows, heads, most, groups).transpose(1, 2)
        return Part(
            gathered.reshape(rows * most, heads * groups, -1)[self._place],
            mass.reshape(rows * most, heads * groups)[self._place],
        )

    @cached_property
    def _slots(self) -> Tensor:
        return self.path.clamp_min(0)

    @cached_property
    def _rank(self) -> Tensor:
        """(N,) how many new tokens of its row stand before each."""
        sizes = torch.bincount(self.row, minlength=len(self.lengths))
        start = sizes.cumsum(0) - sizes
        return torch.arange(len(self.row), device=self.row.device) - start[self.row]

    @cached_property
    def _rows(self) -> slice:
        """Rows of the buffers from that of the first token to that of the last."""
        return slice(int(self.row[0]), int(self.row[-1]) + 1)

    @cached_property
    def _most(self) -> int:
        return int(self._rank.max()) + 1

    @cached_property
    def _place(self) -> Tensor:
        place: Tensor = (self.row - self._rows.start) * self._most + self._rank
        return place

    def _tree_mask(self, window: int | None) -> Tensor | None:
        """(N, 1, 1, T), or None where every token sees all of its path."""
        if ("tree", window) not in self._masks:
            seen = self.path >= 0
            if window is not None:
                place = torch.arange(self.path.shape[1], device=self.path.device)
                seen = seen & (place > self.depth[:, None] - 1 - window)
            self._masks["tree", window] = None if bool(seen.all()) else seen[:, None, None]
        return self._masks["tree", window]

    def _own_mask(self, window: int | None, groups: int) -> Tensor | None:
        """(B, 1, 1 or queries, S), or None where every token sees its whole prompt."""
        if ("own", window) not in self._masks:
            column = torch.arange(int(self.lengths.max()), device=self.row.device)
            full = bool((self.lengths == len(column)).all())  # of all, so that it decides no kernel
            seen = column < self.lengths[self._rows, None]
            if window is None:
                mask = seen[:, None, None]
            else:
                near = self.before + column > self.position[:, None] - window  # (N, S)
                grid = torch.ones((len(seen) * self._most, len(column)), dtype=torch.bool, device=seen.device)
                grid[self._place] = near
                grid = grid.view(len(seen), self._most, -1) & seen[:, None]
                mask = grid.repeat_interleave(groups, 1)[:, None]
            self._masks["own", window] = None if full and bool(mask.all()) else mask
        return self._masks["own", window]


def _of_shared(layer: Layer, shared: Pair, query: Tensor, position: Tensor) -> Part:
    """Part of queries (H, N, D) at positions (N,) over the shared prefix: (N, H, D)."""
    heads, count = shared[0].shape[1], query.shape[1]
    groups = query.shape[0] // heads
    visible = None
    if layer.rule.window is not None:
        place = torch.arange(shared[0].shape[2], device=query.device)
        near = place > position[:, None] - layer.rule.window
        visible = None if bool(near.all()) else near.repeat(groups, 1)
    part = attend(query.reshape(1, heads, groups * count, -1), *shared, layer.rule, visible)
    gathered = part.gathered.reshape(heads * groups, count, -1)
    return Part(gathered.transpose(0, 1), part.mass.reshape(heads * groups, count).transpose(0, 1))


def _grouped(query: Tensor, heads: int) -> Tensor:
    """Queries (1, H, N, D) by the head whose keys they read (h, g, N, D)."""
    return query[0].reshape(heads, -1, *query.shape[2:])


def _repeated(states: Tensor, groups: int) -> Tensor:
    """Keys or values (B, h, n, D) once for each head that reads them (B, H, n, D)."""
    return states if groups == 1 else states.repeat_interleave(groups, 1)


def _widened(held: Tensor, rows: int, columns: int) -> Tensor:
    """Keys or values (B, h, S, D) in a buffer of so many rows and columns; zeros beyond them."""
    buffer = held.new_zeros((rows, held.shape[1], columns, held.shape[3]))
    buffer[: held.shape[0], :, : held.shape[2]] = held
    return buffer


def _moved(held: Tensor, slots: int, like: Tensor) -> Tensor:
    """A buffer of `slots` slots with `held` at its front; zeros behind, since what is masked is read too."""
    buffer = like.new_zeros((slots, *like.shape[1:]))
    buffer[: len(held)] = held
    return buffer
