"""Sampling and greedy answers: a trie of the distinct token sequences of each question, decoded together.

1. The prefix that all prompts share has run once; every tree cache starts with it.
2. The rest of each prompt runs once per question. Its last token is the question's first node.
3. At every step each active draw reads the logits of its node under its own recalibrator, chooses a token
   and records its log-probability.
4. Draws that choose the same token at the same node continue together: each distinct continuation runs once,
   all in one pass.
5. Draws that chose an end of turn stop; questions without active draws leave, and waiting ones are admitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semcal.engine.drawing import Choose, Distributions, TemperedDistributions
from semcal.engine.scheduling import Scheduler, TreeSizes
from semcal.engine.tree_cache import (
    Frontier,
    ModelOutputs,
    ThreeLevelCache,
    TreeCache,
    advance,
    distinct_steps,
    log_probs,
    start,
)
from semcal.recalibration.attentive import ATS, AnyRecalibrator
from semcal.recalibration.temperature import Temperature

Index = NDArray[np.int64]
Uniforms = Callable[[int], NDArray[np.float64]]
"""From the index of a question to its uniforms (m, steps)."""


@dataclass(frozen=True)
class Request:
    """The questions of a call."""

    prompts: Sequence[Sequence[int]]  # all tokens of each
    uniforms: Uniforms
    m: int  # draws under each recalibrator
    steps: int  # the most tokens of a draw


@dataclass(frozen=True)
class DecodingOptions:
    """What holds for all draws of a call."""

    recalibrators: Sequence[AnyRecalibrator]  # each has its own draws, with the same uniforms
    stops: frozenset[int]  # tokens that end the turn
    choose: Choose  # `inverse_cdf`, `most_likely` or a `Truncation`
    closing_tokens: Sequence[int] = ()  # their log-probabilities are recorded wherever a draw reads
    #: Whether the last token of a draw that reaches the limit runs, so that these are recorded after it too.
    run_last_token: Callable[[int, tuple[int, ...]], bool] | None = None  # of which question, which draw


@torch.no_grad()
def decode(
    prefix: TreeCache, request: Request, scheduler: Scheduler, options: DecodingOptions
) -> Iterator[tuple[int, Samples]]:
    """Decode all questions of a call, which wait in the scheduler; `prefix` holds the shared prefix.

    Yields each question and its samples as soon as all of its draws have ended.
    """
    batch = ActiveBatch(prefix, request, scheduler, options)
    while scheduler or batch:
        batch.admit()
        yield from batch.step()


@dataclass(frozen=True)
class Samples:
    """The draws of a question, or those of several with an axis in front."""

    tokens: NDArray[np.int64]  # (R, m, steps) by recalibrator, draw and step; -1 after the end
    log_probs: NDArray[np.float32]  # (R, m, steps) of each token at its recalibrated distribution
    #: (R, m, steps + 1, W) of each closing token after the first 0, 1, … tokens; NaN where none was read.
    closing_log_probs: NDArray[np.float32]

    @classmethod
    def unknown(cls, *shape: int, closing_tokens: int) -> Samples:
        """No tokens yet, in a shape (questions, R, m, steps)."""
        return cls(
            np.full(shape, -1, dtype=np.int64),
            np.zeros(shape, dtype=np.float32),
            np.full((*shape[:-1], shape[-1] + 1, closing_tokens), np.nan, dtype=np.float32),
        )

    def __getitem__(self, questions: int | Index) -> Samples:
        return Samples(self.tokens[questions], self.log_probs[questions], self.closing_log_probs[questions])

    def append(self, others: Samples) -> Samples:
        """These questions, then others."""
        pairs = zip(vars(self).values(), vars(others).values(), strict=True)
        return Samples(*(np.concatenate(pair) for pair in pairs))


@dataclass(frozen=True)
class ActiveDraws:
    """The n draws that have not ended."""

    row: Index  # (n,) the question of each
    which: Index  # its recalibrator
    draw: Index  # its number
    step: Index  # how many tokens it has
    node: Tensor  # its place in the frontier

    @classmethod
    def first(cls, rows: range, recalibrators: int, m: int, *, node: int = 0) -> ActiveDraws:
        """All draws of new questions, whose first nodes are numbered from `node` on."""
        row, which, draw = (i.ravel() for i in np.indices((len(rows), recalibrators, m), dtype=np.int64))
        return cls(rows.start + row, which, draw, np.zeros_like(row), torch.from_numpy(node + row))

    @property
    def index(self) -> tuple[Index, Index, Index, Index]:
        """Their next tokens in `Samples` of all rows."""
        return self.row, self.which, self.draw, self.step

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, some: NDArray[np.bool_]) -> ActiveDraws:
        node = self.node[torch.from_numpy(some)]
        return ActiveDraws(self.row[some], self.which[some], self.draw[some], self.step[some], node)

    def append(self, others: ActiveDraws) -> ActiveDraws:
        """These and others."""
        pairs = [(self.row, others.row), (self.which, others.which)]
        pairs += [(self.draw, others.draw), (self.step, others.step)]
        row, which, draw, step = map(np.concatenate, pairs)
        return ActiveDraws(row, which, draw, step, torch.cat([self.node, others.node]))


class ActiveBatch:
    """The questions of a call that are being decoded, and their draws."""

    def __init__(
        self, prefix: TreeCache, request: Request, scheduler: Scheduler, options: DecodingOptions
    ) -> None:
        self._prefix, self._request, self._scheduler, self._options = prefix, request, scheduler, options
        draws = request.m * len(options.recalibrators)
        self._max_tree = draws * request.steps
        self._tree_sizes = TreeSizes(draws, request.steps)
        self._enders = np.array(sorted(options.stops), dtype=np.int64)
        ats = list(prefix.ats)
        self._ats = torch.tensor([ats.index(r) if r in ats else -1 for r in options.recalibrators])
        self._clear()

    def _clear(self) -> None:
        self._cache = self._prefix.empty()
        self._questions: list[int] = []  # by row
        self._u = np.zeros((0, self._request.m, self._request.steps))
        self._samples, self._draws = self._no_samples(0), self._first_draws(range(0))
        self._frontier = Frontier.empty()

    def _no_samples(self, questions: int) -> Samples:
        shape = questions, len(self._options.recalibrators), self._request.m, self._request.steps
        return Samples.unknown(*shape, closing_tokens=len(self._options.closing_tokens))

    def _first_draws(self, rows: range, node: int = 0) -> ActiveDraws:
        return ActiveDraws.first(rows, len(self._options.recalibrators), self._request.m, node=node)

    def __len__(self) -> int:
        """Number of active draws."""
        return len(self._draws)

    def admit(self) -> None:
        """Admit waiting questions if there is room for them and they are worth a pass."""
        if not (count := self._admissible()):
            return
        if len(self):
            self._compact()
        else:
            self._clear()
        self._prefill(self._scheduler.take(count))

    def _admissible(self) -> int:
        """How many questions may be admitted; what the finished ones still hold does not count."""
        if not isinstance(self._cache, ThreeLevelCache):  # its rows are as long as the largest tree needs
            return 0 if len(self) else self._scheduler.admissible(self._max_tree)
        if not self._scheduler:
            return 0
        ages = dict(zip(self._draws.row.tolist(), self._draws.step.tolist(), strict=True))
        held = len(self._frontier.compacted(torch.unique(self._draws.node))[1]) if ages else 0
        return self._scheduler.admissible(
            self._tree_sizes.remaining(),
            rows=len(ages),
            columns=max((self._scheduler.tokens[self._questions[row]] for row in ages), default=0),
            trees=held + sum(map(self._tree_sizes.remaining, ages.values())),
        )

    def _prefill(self, questions: Sequence[int]) -> None:
        row, node = len(self._questions), len(self._frontier.row)
        first = start(self._cache, [self._request.prompts[i] for i in questions], row)
        self._frontier = self._frontier.append(first)
        self._draws = self._draws.append(self._first_draws(range(row, row + len(questions)), node))
        self._samples = self._samples.append(self._no_samples(len(questions)))
        self._u = np.concatenate([self._u, [self._request.uniforms(i) for i in questions]])
        self._questions.extend(questions)
        self._tree_sizes.add(len(questions))

    def _compact(self) -> None:
        """Drop finished questions, and tokens that lead to no active draw."""
        nodes, node = torch.unique(self._draws.node, return_inverse=True)
        rows, row = np.unique(self._draws.row, return_inverse=True)
        self._frontier, slots = self._frontier.compacted(nodes)
        if isinstance(self._cache, ThreeLevelCache):
            self._cache.compact(torch.from_numpy(rows), slots)
        self._draws = replace(self._draws, row=row, node=node)
        self._samples, self._u = self._samples[rows], self._u[rows]
        self._questions = [self._questions[row] for row in rows]

    def step(self) -> list[tuple[int, Samples]]:
        """Let every draw choose a token and run what continues; returns the questions that this finishes."""
        draws, steps = self._draws, self._request.steps
        u = torch.from_numpy(self._u[draws.row, draws.draw, np.minimum(draws.step, steps - 1)])
        which = torch.from_numpy(draws.which)
        outputs = self._frontier.outputs
        chosen = choose_tokens(self._cache, outputs, self._options, node=draws.node, which=which, u=u)
        drawing = draws.step < steps  # the others only read what follows their last token
        self._samples.closing_log_probs[draws.index] = chosen.closing_log_probs
        at = draws[drawing].index
        self._samples.tokens[at], self._samples.log_probs[at] = (
            chosen.tokens[drawing],
            chosen.log_probs[drawing],
        )
        continuing = drawing & ~np.isin(chosen.tokens, self._enders)
        last = continuing & (draws.step == steps - 1)
        continuing[last] = self._run_last_token(draws[last])
        ended = np.setdiff1d(draws.row, draws.row[continuing]).tolist()
        found = [(self._questions[row], self._samples[row]) for row in ended]
        self._draws = draws[continuing]
        self._extend(torch.from_numpy(chosen.tokens[continuing]))
        return found

    def _run_last_token(self, draws: ActiveDraws) -> list[bool]:
        """Whether the last token of each draw that has reached the limit is to run."""
        wanted = self._options.run_last_token
        tokens = self._samples.tokens[draws.row, draws.which, draws.draw].tolist()
        rows = zip(draws.row.tolist(), tokens, strict=True)
        return [wanted is not None and wanted(self._questions[row], tuple(ids)) for row, ids in rows]

    def _extend(self, token: Tensor) -> None:
        """Run the chosen tokens, each distinct one once."""
        if not len(self):
            self._tree_sizes.record_step([], [])
            return
        token = self._within_budget(token)
        ats = self._ats[torch.from_numpy(self._draws.which)]
        self._frontier, node = advance(self._cache, self._frontier, self._draws.node, token, ats=ats)
        self._draws = replace(self._draws, step=self._draws.step + 1, node=node)
        depths = (self._frontier.path >= 0).sum(1).bincount().tolist()
        self._tree_sizes.record_step(depths, np.bincount(self._draws.step, minlength=len(depths)).tolist())

    def _within_budget(self, token: Tensor) -> Tensor:
        """Evict the newest questions until the step fits in memory."""
        if not isinstance(self._cache, ThreeLevelCache) or self._fits(self._cache, token):
            return token
        self._compact()
        if self._fits(self._cache, token):
            return token
        parent, *_ = distinct_steps(self._cache, self._draws.node, token)
        rows = len(self._questions)
        new = torch.bincount(self._frontier.row[parent], minlength=rows)
        costs = int(self._cache.lengths.max()) + self._frontier.slots_by_row(rows) + new
        kept = self._scheduler.fitting(costs.tolist())
        self._scheduler.put_back(self._questions[kept:])
        self._tree_sizes.remove_newest(rows - kept)
        stays = self._draws.row < kept
        self._draws, token = self._draws[stays], token[torch.from_numpy(stays)]
        self._compact()
        return token

    def _fits(self, cache: ThreeLevelCache, token: Tensor) -> bool:
        """Whether the tokens of the next step can be held."""
        room = self._scheduler.budget - cache.tokens_held
        return len(token) <= room or len(distinct_steps(cache, self._draws.node, token)[0]) <= room


@dataclass(frozen=True)
class _ChosenTokens:
    """The next token of each of n draws."""

    tokens: NDArray[np.int64]  # (n,)
    log_probs: NDArray[np.float32]  # (n,)
    closing_log_probs: NDArray[np.float32]  # (n, W), of the closing tokens at the same node


def choose_tokens(
    cache: TreeCache,
    outputs: ModelOutputs,
    options: DecodingOptions,
    *,
    node: Tensor,
    which: Tensor,
    u: Tensor,
) -> _ChosenTokens:
    """Next tokens of draws (n,) at nodes of `outputs`, each with its recalibrator `which` and uniform u."""
    tokens, chosen = torch.empty_like(node), torch.empty(len(node))
    closing = torch.empty((len(node), len(options.closing_tokens)))
    for here, found, row in _distributions(cache, outputs, options.recalibrators, node, which):
        token = found.choose(options.choose, row, u[here])
        tokens[here], chosen[here] = token.cpu(), found.log_probs_at(row, token).cpu()
        if options.closing_tokens:
            closers = torch.tensor(options.closing_tokens, device=row.device)
            closing[here] = found.log_probs_at(row[:, None], closers).cpu()
    return _ChosenTokens(tokens.numpy(), chosen.numpy(), closing.numpy())


def _distributions(
    cache: TreeCache,
    outputs: ModelOutputs,
    recalibrators: Sequence[AnyRecalibrator],
    node: Tensor,
    which: Tensor,
) -> Iterator[tuple[Tensor, Distributions, Tensor]]:
    """Indices of draws, the distributions at some nodes, and the row of each draw in them.

    Logits exist for a limited number of nodes at a time.
    """
    rows = cache.network.rows_at_a_time
    for first in range(0, len(outputs), rows):
        part = outputs[first : first + rows]
        logits = cache.network.logits(part.states)
        inside = (node >= first) & (node < first + rows)
        for r, recalibrator in enumerate(recalibrators):
            here = torch.nonzero((which == r) & inside)[:, 0]
            if not len(here):
                continue
            distinct, row = torch.unique(node[here] - first, return_inverse=True)
            if len(distinct) == len(part):
                found = _recalibrated(recalibrator, logits, part, cache.ats)
            else:
                distinct = distinct.to(logits.device)
                found = _recalibrated(recalibrator, logits[distinct], part[distinct], cache.ats)
            yield here, found, row.to(logits.device)


def _recalibrated(
    recalibrator: AnyRecalibrator, logits: Tensor, outputs: ModelOutputs, ats: Sequence[ATS]
) -> Distributions:
    """The recalibrated distributions of logits (F, V); `outputs` hold the 1/T of each of `ats`."""
    if isinstance(recalibrator, Temperature) and logits.device.type != "mps":  # no float64 there
        return TemperedDistributions(logits, recalibrator)
    return Distributions(log_probs(recalibrator, logits, outputs, ats))
