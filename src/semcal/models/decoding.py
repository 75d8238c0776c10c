"""Sampling, greedy answers and beam search over a trie of each question's distinct token sequences.

1. The prefix that all prompts share has run once; every tree cache starts with it.
2. The rest of each prompt runs once per question. Its last token is the question's first node.
3. At every step each active draw reads the logits of its node under its own recalibrator, chooses a token
   and records its log-probability.
4. Draws that choose the same token at the same node continue together: each distinct continuation runs once,
   all in one pass.
5. Draws that chose an end of turn stop; questions without active draws leave, and waiting ones are admitted.

Beam search follows `transformers` at its defaults (length_penalty 1.0, early_stopping False): the `num_beams`
best unfinished sequences continue. One that ends, or reaches the token limit, counts as an answer if it is
among the `num_beams` best of all; answers compare by their mean token log-probability. A search is over when
it has `num_beams` answers and the best unfinished sequence has no higher mean than the worst of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semcal.models.drawing import Choose, Distributions, TemperedDistributions, check_not_nan
from semcal.models.scheduling import Batch, Scheduler, TreeSizes
from semcal.models.tree_cache import (
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
        chosen = choose_tokens(
            batch.cache, batch.frontier.outputs, options, batch.draws, batch.next_uniforms()
        )
        yield from batch.advance(chosen)


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

    def append(self, later: Samples) -> Samples:
        """These questions, then others."""
        pairs = zip(vars(self).values(), vars(later).values(), strict=True)
        return Samples(*(np.concatenate(pair) for pair in pairs))


@dataclass(frozen=True)
class ActiveDraws:
    """The n draws that have not ended."""

    row: Index  # (n,) the question of each
    recalibrator: Index  # the number of its recalibrator
    draw: Index  # its number
    step: Index  # how many tokens it has
    node: Tensor  # its place in the frontier

    @classmethod
    def first(cls, rows: range, recalibrators: int, m: int, *, node: int = 0) -> ActiveDraws:
        """All draws of new questions, whose first nodes are numbered from `node` on."""
        row, recalibrator, draw = (
            i.ravel() for i in np.indices((len(rows), recalibrators, m), dtype=np.int64)
        )
        return cls(rows.start + row, recalibrator, draw, np.zeros_like(row), torch.from_numpy(node + row))

    @property
    def index(self) -> tuple[Index, Index, Index, Index]:
        """Their next tokens in `Samples` of all rows."""
        return self.row, self.recalibrator, self.draw, self.step

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, selected: NDArray[np.bool_]) -> ActiveDraws:
        node = self.node[torch.from_numpy(selected)]
        return ActiveDraws(
            self.row[selected], self.recalibrator[selected], self.draw[selected], self.step[selected], node
        )

    def append(self, later: ActiveDraws) -> ActiveDraws:
        """These and others."""
        pairs = [(self.row, later.row), (self.recalibrator, later.recalibrator)]
        pairs += [(self.draw, later.draw), (self.step, later.step)]
        row, recalibrator, draw, step = map(np.concatenate, pairs)
        return ActiveDraws(row, recalibrator, draw, step, torch.cat([self.node, later.node]))


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
        self.cache = self._prefix.empty()
        self._questions: list[int] = []  # by row
        self._uniforms = np.zeros((0, self._request.m, self._request.steps))
        self._samples, self.draws = self._no_samples(0), self._first_draws(range(0))
        self.frontier = Frontier.empty()

    def _no_samples(self, questions: int) -> Samples:
        shape = questions, len(self._options.recalibrators), self._request.m, self._request.steps
        return Samples.unknown(*shape, closing_tokens=len(self._options.closing_tokens))

    def _first_draws(self, rows: range, node: int = 0) -> ActiveDraws:
        return ActiveDraws.first(rows, len(self._options.recalibrators), self._request.m, node=node)

    def __len__(self) -> int:
        """Number of active draws."""
        return len(self.draws)

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
        if not isinstance(self.cache, ThreeLevelCache):  # its rows are as long as the largest tree needs
            return 0 if len(self) else self._scheduler.admissible(self._max_tree)
        if not self._scheduler:
            return 0
        ages = dict(zip(self.draws.row.tolist(), self.draws.step.tolist(), strict=True))
        held = len(self.frontier.compacted(torch.unique(self.draws.node))[1]) if ages else 0
        return self._scheduler.admissible(
            self._tree_sizes.remaining(),
            rows=len(ages),
            columns=max((self._scheduler.tokens[self._questions[row]] for row in ages), default=0),
            trees=held + sum(map(self._tree_sizes.remaining, ages.values())),
        )

    def _prefill(self, questions: Sequence[int]) -> None:
        row, node = len(self._questions), len(self.frontier.row)
        first = start(self.cache, [self._request.prompts[i] for i in questions], row)
        self.frontier = self.frontier.append(first)
        self.draws = self.draws.append(self._first_draws(range(row, row + len(questions)), node))
        self._samples = self._samples.append(self._no_samples(len(questions)))
        self._uniforms = np.concatenate([self._uniforms, [self._request.uniforms(i) for i in questions]])
        self._questions.extend(questions)
        self._tree_sizes.add(len(questions))

    def _compact(self) -> None:
        """Drop finished questions, and tokens that lead to no active draw."""
        nodes, node = torch.unique(self.draws.node, return_inverse=True)
        rows, row = np.unique(self.draws.row, return_inverse=True)
        self.frontier, slots = self.frontier.compacted(nodes)
        if isinstance(self.cache, ThreeLevelCache):
            self.cache.compact(torch.from_numpy(rows), slots)
        self.draws = replace(self.draws, row=row, node=node)
        self._samples, self._uniforms = self._samples[rows], self._uniforms[rows]
        self._questions = [self._questions[row] for row in rows]

    def next_uniforms(self) -> Tensor:
        """(n,) the uniform of each draw's next token."""
        step = np.minimum(self.draws.step, self._request.steps - 1)
        return torch.from_numpy(self._uniforms[self.draws.row, self.draws.draw, step])

    def advance(self, chosen: ChosenTokens) -> list[tuple[int, Samples]]:
        """Record each draw's token and run what continues; returns the questions that this finishes."""
        draws, steps, samples = self.draws, self._request.steps, self._samples
        samples.closing_log_probs[draws.index] = chosen.closing_log_probs
        drawing = draws.step < steps  # the others only read what follows their last token
        index = draws[drawing].index
        samples.tokens[index], samples.log_probs[index] = chosen.tokens[drawing], chosen.log_probs[drawing]
        continuing = drawing & ~np.isin(chosen.tokens, self._enders)
        last = continuing & (draws.step == steps - 1)
        continuing[last] = self._run_last_token(draws[last])
        ended = np.setdiff1d(draws.row, draws.row[continuing]).tolist()
        finished = [(self._questions[row], samples[row]) for row in ended]
        self.draws = draws[continuing]
        self._extend(torch.from_numpy(chosen.tokens[continuing]))
        return finished

    def _run_last_token(self, draws: ActiveDraws) -> list[bool]:
        """Whether the last token of each draw that has reached the limit is to run."""
        runs = self._options.run_last_token
        tokens = self._samples.tokens[draws.row, draws.recalibrator, draws.draw].tolist()
        rows = zip(draws.row.tolist(), tokens, strict=True)
        return [runs is not None and runs(self._questions[row], tuple(ids)) for row, ids in rows]

    def _extend(self, token: Tensor) -> None:
        """Run the chosen tokens, each distinct one once."""
        if not len(self):
            self._tree_sizes.record_step([], [])
            return
        token = self._within_budget(token)
        ats = self._ats[torch.from_numpy(self.draws.recalibrator)]
        self.frontier, node = advance(self.cache, self.frontier, self.draws.node, token, ats=ats)
        self.draws = replace(self.draws, step=self.draws.step + 1, node=node)
        depths = (self.frontier.path >= 0).sum(1).bincount().tolist()
        self._tree_sizes.record_step(depths, np.bincount(self.draws.step, minlength=len(depths)).tolist())

    def _within_budget(self, token: Tensor) -> Tensor:
        """Evict the newest questions until the step fits in memory."""
        if not isinstance(self.cache, ThreeLevelCache) or self._fits(self.cache, token):
            return token
        self._compact()
        if self._fits(self.cache, token):
            return token
        parent, *_ = distinct_steps(self.cache, self.draws.node, token)
        rows = len(self._questions)
        new = torch.bincount(self.frontier.row[parent], minlength=rows)
        costs = int(self.cache.lengths.max()) + self.frontier.slots_by_row(rows) + new
        fitting = self._scheduler.fitting(costs.tolist())
        self._scheduler.put_back(self._questions[fitting:])
        self._tree_sizes.remove_newest(rows - fitting)
        stays = self.draws.row < fitting
        self.draws, token = self.draws[stays], token[torch.from_numpy(stays)]
        self._compact()
        return token

    def _fits(self, cache: ThreeLevelCache, token: Tensor) -> bool:
        """Whether the tokens of the next step can be held."""
        room = self._scheduler.budget - cache.tokens_held
        return len(token) <= room or len(distinct_steps(cache, self.draws.node, token)[0]) <= room


@dataclass(frozen=True)
class ChosenTokens:
    """The next token of each of n draws."""

    tokens: NDArray[np.int64]  # (n,)
    log_probs: NDArray[np.float32]  # (n,)
    closing_log_probs: NDArray[np.float32]  # (n, W), of the closing tokens at the same node


def choose_tokens(
    cache: TreeCache, outputs: ModelOutputs, options: DecodingOptions, draws: ActiveDraws, uniforms: Tensor
) -> ChosenTokens:
    """The next token of each draw at its node of `outputs`, by its recalibrator and uniform (n,)."""
    tokens, log_probs = torch.empty_like(draws.node), torch.empty(len(draws))
    closing = torch.empty((len(draws), len(options.closing_tokens)))
    for index, distributions, row in _distributions(cache, outputs, options.recalibrators, draws):
        token = distributions.choose(options.choose, row, uniforms[index])
        tokens[index], log_probs[index] = token.cpu(), distributions.log_probs_at(row, token).cpu()
        if options.closing_tokens:
            closers = torch.tensor(options.closing_tokens, device=row.device)
            closing[index] = distributions.log_probs_at(row[:, None], closers).cpu()
    return ChosenTokens(tokens.numpy(), log_probs.numpy(), closing.numpy())


def _distributions(
    cache: TreeCache, outputs: ModelOutputs, recalibrators: Sequence[AnyRecalibrator], draws: ActiveDraws
) -> Iterator[tuple[Tensor, Distributions, Tensor]]:
    """Indices of draws, the distributions at some nodes, and the row of each draw in them.

    Logits exist for a limited number of nodes at a time.
    """
    node, recalibrator_index = draws.node, torch.from_numpy(draws.recalibrator)
    rows = cache.network.rows_at_a_time
    for first in range(0, len(outputs), rows):
        part = outputs[first : first + rows]
        logits = cache.network.logits(part.states)
        inside = (node >= first) & (node < first + rows)
        for r, recalibrator in enumerate(recalibrators):
            index = torch.nonzero((recalibrator_index == r) & inside)[:, 0]
            if not len(index):
                continue
            distinct, row = torch.unique(node[index] - first, return_inverse=True)
            if len(distinct) == len(part):
                distributions = _recalibrated(recalibrator, logits, part, cache.ats)
            else:
                distinct = distinct.to(logits.device)
                distributions = _recalibrated(recalibrator, logits[distinct], part[distinct], cache.ats)
            yield index, distributions, row.to(logits.device)


def _recalibrated(
    recalibrator: AnyRecalibrator, logits: Tensor, outputs: ModelOutputs, ats: Sequence[ATS]
) -> Distributions:
    """The recalibrated distributions of logits (F, V); `outputs` hold the 1/T of each of `ats`."""
    if isinstance(recalibrator, Temperature) and logits.device.type != "mps":  # no float64 there
        return TemperedDistributions(logits, recalibrator)
    return Distributions(log_probs(recalibrator, logits, outputs, ats))


@dataclass(frozen=True)
class Beam:
    """A sequence of tokens, the log-probability of each, and the node that predicts its next token."""

    tokens: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    node: int = 0

    @property
    def total(self) -> float:
        """Log-probability of the sequence."""
        return sum(self.log_probs)

    @property
    def mean(self) -> float:
        """Mean token log-probability."""
        return self.total / len(self.tokens)


def beam_search(
    batch: Batch, recalibrator: AnyRecalibrator, stops: frozenset[int], num_beams: int, steps: int
) -> list[Beam]:
    """The best answer, of at most `steps` tokens, to each prompt of a batch; its cache is used up."""
    cache = batch.cache
    searches = [_Search(num_beams, [Beam(node=row)]) for row in range(len(batch.questions))]
    frontier = start(cache, batch.token_ids)
    possible_stops = sorted(token for token in stops if token < cache.network.vocabulary)
    enders = torch.tensor(possible_stops, dtype=torch.long, device=cache.network.device)
    for step in range(steps):
        table = _candidates(cache, frontier.outputs, recalibrator, enders, num_beams)
        active = [search for search in searches if search.running]
        for search in active:
            search.step(table, stops, last=step == steps - 1)
        running = [beam for search in searches for beam in search.running]
        if not running:
            break
        node = torch.tensor([beam.node for beam in running])
        token = torch.tensor([beam.tokens[-1] for beam in running])
        frontier, reached = advance(cache, frontier, node, token)
        nodes = iter(reached.tolist())
        for search in searches:
            search.running = [Beam(beam.tokens, beam.log_probs, next(nodes)) for beam in search.running]
    return [search.answers[0] for search in searches]


@dataclass(frozen=True)
class _Candidates:
    """For each node the likeliest tokens, and the likeliest that end no turn: (F, k) each, best first."""

    tokens: NDArray[np.int64]
    log_probs: NDArray[np.float32]


class _Search:
    """The beams of one question: those still running and the best answers so far."""

    def __init__(self, width: int, running: list[Beam]) -> None:
        self.width = width
        self.running = running
        self.answers: list[Beam] = []

    def step(self, candidates: _Candidates, stops: frozenset[int], *, last: bool) -> None:
        """Extend the running beams by one token."""
        extended = [beam for running in self.running for beam in _extend(running, candidates)]
        extended.sort(key=lambda beam: -beam.total)
        ended = [beam for beam in extended[: self.width] if last or beam.tokens[-1] in stops]
        self.answers = sorted(self.answers + ended, key=lambda beam: -beam.mean)[: self.width]
        self.running = [beam for beam in extended if beam.tokens[-1] not in stops][: self.width]
        full = len(self.answers) == self.width
        if last or not self.running or (full and self.running[0].mean <= self.answers[-1].mean):
            self.running = []


def _extend(beam: Beam, candidates: _Candidates) -> list[Beam]:
    tokens, log_probs = candidates.tokens[beam.node].tolist(), candidates.log_probs[beam.node].tolist()
    return [
        Beam((*beam.tokens, token), (*beam.log_probs, log_prob), beam.node)
        for token, log_prob in zip(tokens, log_probs, strict=True)
        if log_prob > -np.inf
    ]


def _candidates(
    cache: TreeCache, outputs: ModelOutputs, recalibrator: AnyRecalibrator, enders: Tensor, width: int
) -> _Candidates:
    """The `width` likeliest tokens of each node, and more until `width` of them end no turn."""
    tokens, values = [], []
    rows = cache.network.rows_at_a_time
    for first in range(0, len(outputs), rows):
        part = outputs[first : first + rows]
        scored = log_probs(recalibrator, cache.network.logits(part.states), part, cache.ats)
        best = scored.topk(min(width, scored.shape[1]))
        check_not_nan(best.values)
        ending = torch.isin(best.indices, enders)
        running = scored.scatter(1, enders.expand(len(scored), -1), -torch.inf).topk(
            min(width, scored.shape[1])
        )
        ends_only = best.values.masked_fill(~ending, -torch.inf)  # the rest are among the others
        tokens.append(torch.cat([best.indices, running.indices], 1).cpu())
        values.append(torch.cat([ends_only, running.values], 1).cpu())
    return _Candidates(torch.cat(tokens).numpy(), torch.cat(values).numpy())
