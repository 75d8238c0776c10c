"""Sampling, greedy answers and beam search over a trie of the distinct token sequences of each question.

1. The common prefix of all prompts runs once; every tree cache starts with it.
2. The rest of each prompt runs once per question. Its last token is the first node of the question.
3. At every step each active sample reads the logits of its node with its recalibrator, chooses a token and
   records its log-probability.
4. Samples that choose the same token at the same node continue together: each distinct continuation runs
   once, all in one pass.
5. Samples that choose an end of turn stop. Questions without active samples leave, and waiting questions are
   admitted.

Beam search follows `transformers` with its defaults (length_penalty 1.0, early_stopping False): the
`num_beams` best unfinished sequences continue. A sequence that ends, or reaches the token limit, counts as an
answer if it is among the `num_beams` best of all; answers are compared by their mean token log-probability. A
search is over when it has `num_beams` answers and the mean of the best unfinished sequence does not exceed
that of the worst answer.

Scheduling: waiting questions enter during decoding if memory allows. Only counts of tokens decide, so that
the same call always takes the same steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semcal.errors import InputError, QuestionError
from semcal.models.distribution import Temperature
from semcal.models.engine.draw import (
    Choose,
    Distributions,
    TemperedDistributions,
    check_not_nan,
    inverse_cdf,
)
from semcal.models.engine.network import Network
from semcal.models.engine.tree_cache import (
    Frontier,
    ModelOutputs,
    ThreeLevelCache,
    TreeCache,
    advance,
    distinct_steps,
    log_probs,
    logits_in_parts,
    prefill_prefix,
    start,
    tokens_per_pass,
)
from semcal.models.prompting import shared_length
from semcal.models.protocols import Answers, AnyRecalibrator, Prompt, StateReader
from semcal.workers import Progress

#: Tokens of given answers and their prompts per pass; progress is reported after each pass.
READ_TOKENS = 2048


Lengths = Sequence[tuple[int, int]]
"""Number of tokens of the longest answer, and of all answers, by question."""


def answer_lengths(answers: Answers) -> Lengths:
    """Return the lengths of given answers."""
    return [(max(map(len, given), default=0), sum(map(len, given))) for given in answers]


def unknown_token(network: Network, token_ids: Sequence[int]) -> str | None:
    """Describe a token outside the vocabulary of the network; None if all tokens are inside."""
    least, most = min(token_ids, default=0), max(token_ids, default=0)
    if least >= 0 and most < network.vocabulary:
        return None
    return (
        f"the token {least if least < 0 else most}, but the model has only 0 to {network.vocabulary - 1}. "
        "Use the tokenizer of the model"
    )


def batches(costs: Sequence[int], *, budget: int) -> Iterator[list[int]]:
    """Split questions into batches of similar cost (number of tokens), and yield the indices of each batch.

    Every question of a batch takes as much as the largest; a question over the budget has its own batch.

    >>> list(batches([5, 9, 4, 30], budget=20))
    [[2, 0], [1], [3]]
    """
    batch: list[int] = []
    for i in sorted(range(len(costs)), key=lambda i: (costs[i], i)):
        if batch and (len(batch) + 1) * costs[i] > budget:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


class TreeSizes:
    """Estimator of the number of tokens in the tree of a question, from the growth of earlier trees.

    A question has `draws` samples, over all recalibrators, of at most `steps` tokens. A new tree counts with
    the longest possible answers.
    """

    def __init__(self, draws: int, steps: int) -> None:
        self._steps = steps
        self._active: list[tuple[int, int]] = []  # age and number of questions that were admitted together
        self._trees = [1] + [0] * steps  # by depth: number of trees that reached it, their tokens and samples
        self._tokens = [0] * (steps + 1)
        self._draws = [draws] + [0] * steps

    def add(self, count: int) -> None:
        """Record the admission of `count` questions."""
        self._active.append((0, count))

    def remove_newest(self, count: int) -> None:
        """Record the eviction of the `count` newest questions."""
        while count:
            age, active = self._active.pop()
            if active > count:
                self._active.append((age, active - count))
            count -= min(count, active)

    def record_step(self, tokens: Sequence[int], draws: Sequence[int]) -> None:
        """Record a step: by depth, the number of added tokens, and of the samples that chose them."""
        self._active = [(age + 1, count) for age, count in self._active if age < self._steps]
        for age, count in self._active:
            self._trees[age] += count
        for depth, (more, choosing) in enumerate(zip(tokens, draws, strict=True)):
            self._tokens[depth] += more
            self._draws[depth] += choosing

    def remaining(self, age: int = 0) -> float:
        """Return the expected further tokens of a tree of `age` steps; beyond known depths no sample ends."""
        depths = [depth for depth, count in enumerate(self._trees) if count]
        grown = sum(self._tokens[depth] / self._trees[depth] for depth in depths if depth > age)
        last = depths[-1]
        return grown + (self._steps - max(last, age)) * self._draws[last] / self._trees[last]


class Scheduler:
    """The waiting questions, shorter prompts first, and the rule for their admission.

    `tokens` are the numbers of tokens of each prompt after the shared prefix, `budget` is the maximum number
    of tokens in memory, and `min_tokens` is the minimum number of prompt tokens for a separate pass.
    """

    def __init__(self, tokens: Sequence[int], *, budget: int, min_tokens: int) -> None:
        self.tokens, self.budget, self._min_tokens = tokens, budget, min_tokens
        self._waiting = deque(sorted(range(len(tokens)), key=lambda i: (tokens[i], i)))

    def __len__(self) -> int:
        return len(self._waiting)

    def admissible(self, tree: float, *, rows: int = 0, columns: int = 0, trees: float = 0.0) -> int:
        """Return the number of questions that may be admitted, each with a tree of `tree` tokens.

        The result is 0 if they are too few for a pass, and at least 1 if no question is active. `rows` is the
        number of active questions, with prompts of up to `columns` tokens and trees of `trees` tokens in all.
        """
        fit = 0
        for i in self._waiting:
            columns = max(columns, self.tokens[i])
            if (rows + fit + 1) * columns + trees + (fit + 1) * tree > self.budget:
                break
            fit += 1
        if not rows:
            return max(fit, min(1, len(self)))
        first = list(self._waiting)[:fit]
        worthwhile = fit == len(self) or sum(self.tokens[i] for i in first) >= self._min_tokens
        return fit if worthwhile else 0

    def take(self, count: int) -> list[int]:
        """Remove and return the next questions."""
        return [self._waiting.popleft() for _ in range(count)]

    def put_back(self, questions: Sequence[int]) -> None:
        """Put questions back at the front, in the order in which they were taken."""
        self._waiting.extendleft(reversed(questions))

    def fitting(self, costs: Sequence[int]) -> int:
        """Return the number of first questions, at least 1, whose total cost is within the budget."""
        return max(1, sum(total <= self.budget for total in accumulate(costs)))


def ats_among(recalibrators: Sequence[AnyRecalibrator]) -> tuple[StateReader, ...]:
    """Return the distinct recalibrators that read hidden states."""
    return tuple(
        dict.fromkeys(recalibrator for recalibrator in recalibrators if isinstance(recalibrator, StateReader))
    )


class BatchPlanner:
    """A planner of the passes of a network within a memory budget.

    `budget` is the maximum of bytes of the keys and values of the questions in a pass, including those of
    ATS. With `strict`, a single question that may need more is rejected; otherwise it runs in its own batch.

    The shared prefix of the last call is stored, because the next call often has the same prefix. It is
    reused only if all of its tokens are equal and no weight was written. Therefore its keys and values are
    equal, bit for bit, to those of another run. At most one prefix exists at a time for each calling thread,
    because the old prefix is dropped before another runs. A prefix larger than the budget is not stored.
    """

    def __init__(self, network: Network, *, budget: int, strict: bool) -> None:
        self.network, self.budget, self._strict = network, budget, strict
        #: Origin of the prefix, and its read-only cache; replaced atomically, so that threads see one pair.
        self._last: tuple[tuple[object, ...], TreeCache] | None = None

    def prefix(self, tokens: tuple[int, ...], ats: Sequence[StateReader]) -> TreeCache:
        """Return a cache of these tokens, read by these ATS, which are moved to the device of the network."""
        ats = [one.to(self.network.device) for one in ats]
        weights = self.network.model.parameters()
        written = ((weight.data_ptr(), weight.is_inference() or weight._version) for weight in weights)
        last, origin = self._last, (tokens, self.network.patched is None, *written)
        if last is not None and last[0] == origin:
            return last[1].with_ats(ats)
        self._last = last = None
        cache = prefill_prefix(self.network, tokens)
        if len(tokens) * self.network.bytes_per_token <= self.budget:
            self._last = origin, cache
        return cache.with_ats(ats)

    def invalid_prompts(
        self, prompts: Sequence[Prompt], lengths: Lengths, ats: Sequence[StateReader] = ()
    ) -> Iterator[QuestionError]:
        """Yield at most one error for each question that cannot run with these ATS."""
        limit, bytes_per_token = self.network.limit, self._bytes_per_token(ats)
        for prompt, (most, extra) in zip(prompts, lengths):
            length = len(prompt.token_ids)
            need = (length + extra) * bytes_per_token
            if length == 0:
                reason = "its prompt has no tokens, expected at least one"
            elif (unknown := unknown_token(self.network, prompt.token_ids)) is not None:
                reason = f"its prompt has {unknown}"
            elif limit is not None and length + most > limit:
                reason = (
                    f"its prompt has {length} tokens and the answer may have {most}, but the model's limit "
                    f"is {limit}{self.network.limit_reason}. Shorten the passage, the examples or the answer"
                )
            elif self._strict and need > self.budget:
                reason = (
                    f"its prompt of {length} tokens and up to {extra} tokens of answers may take {need} "
                    f"bytes of keys and values, more than the memory budget of {self.budget}. Increase the "
                    "budget, or request fewer or shorter answers"
                )
            else:
                continue
            yield QuestionError(prompt.question_id, reason)

    def schedule(self, prompts: Sequence[Prompt], ats: Sequence[StateReader]) -> tuple[TreeCache, Scheduler]:
        """Return the shared prefix, read by these ATS, and a scheduler with all questions waiting."""
        shared = kept_length(prompts, shared_length(prompts))
        prefix = self.prefix(prompts[0].token_ids[:shared], ats)
        held = self._tokens_held(prompts, [0] * len(prompts), shared)
        tokens = self._max_tokens(ats)
        min_tokens = min(tokens_per_pass(self.network) // 2, tokens // 8)
        return prefix, Scheduler(held, budget=tokens, min_tokens=min_tokens)

    def batches(
        self,
        prompts: Sequence[Prompt],
        lengths: Lengths,
        progress: Progress | None = None,
        *,
        shared: int | None = None,
        ats: Sequence[StateReader] = (),
        most: int | None = None,
    ) -> Iterator[tuple[list[int], TreeCache]]:
        """Yield indices of questions that run together, and a cache of the prefix, with room for answers.

        `shared` is the length of the shared prefix, by default of the longest common prefix. A batch of
        several questions has at most `most` tokens. The first error of `invalid_prompts` is raised.
        """
        for error in self.invalid_prompts(prompts, lengths, ats):
            raise error
        if not prompts:
            return
        shared = shared_length(prompts) if shared is None else shared
        prefix, finished = self.prefix(prompts[0].token_ids[:shared], ats), 0
        held = self._tokens_held(prompts, [total for _, total in lengths], shared)
        budget = self._max_tokens(ats)
        for batch in batches(held, budget=budget if most is None else min(most, budget)):
            yield batch, prefix.empty()
            finished += len(batch)
            if progress is not None:
                progress(finished)

    def answer_batches(
        self,
        prompts: Sequence[Prompt],
        answers: Answers,
        progress: Progress | None = None,
        *,
        shared: int | None = None,
        ats: Sequence[StateReader] = (),
    ) -> Iterator[tuple[list[int], TreeCache]]:
        """Yield batches as `batches` does, for given answers to each prompt."""
        if len(answers) != len(prompts):
            raise InputError(
                f"answers: got {len(answers)} lists for {len(prompts)} prompts. Pass one list per prompt"
            )
        for prompt, question_answers in zip(prompts, answers, strict=True):
            tokens = [token for answer in question_answers for token in answer]
            unknown = unknown_token(self.network, tokens)
            if unknown is not None:
                raise QuestionError(prompt.question_id, f"an answer to it has {unknown}")
        lengths = answer_lengths(answers)
        yield from self.batches(prompts, lengths, progress, shared=shared, ats=ats, most=READ_TOKENS)

    def _tokens_held(self, prompts: Sequence[Prompt], room: Sequence[int], shared: int) -> list[int]:
        """Return the number of tokens of each question after the shared prefix, with `room` for answers."""
        saved = shared if self.network.patched else 0  # the plain cache copies the prefix for each question
        return [len(prompt.token_ids) - saved + extra for prompt, extra in zip(prompts, room)]

    def _bytes_per_token(self, ats: Sequence[StateReader]) -> int:
        return self.network.bytes_per_token + sum(one.bytes_per_token for one in ats)

    def _max_tokens(self, ats: Sequence[StateReader]) -> int:
        return self.budget // self._bytes_per_token(ats)


def kept_length(prompts: Sequence[Prompt], shared: int) -> int:
    """Return the number of shared tokens to run as the prefix, which depends only on the prompts.

    The prefix has only the examples, which the next call probably shares, unless repeating the other shared
    tokens for each prompt takes more tokens than the examples have.
    """
    examples = min(prompt.examples for prompt in prompts)
    repeated = (len(prompts) - 1) * (shared - examples)
    return examples if 0 < examples < shared and repeated <= examples else shared


Index = NDArray[np.int64]
_Candidates = list[list[tuple[int, float]]]


@dataclass(frozen=True)
class DecodingRequest:
    """Prompts and settings of one call of the decoder."""

    prompts: Sequence[Sequence[int]]  # all tokens of each prompt
    uniforms: Callable[[int], NDArray[np.float64]]  # index of a question -> uniforms (m, steps)
    m: int  # samples with each recalibrator
    steps: int  # maximum tokens of a sample
    recalibrators: Sequence[AnyRecalibrator]  # each has its own samples, with the same uniforms
    stops: frozenset[int]  # tokens that end the turn
    choose: Choose = inverse_cdf  # or `most_likely`, or a `Truncation`
    closing_tokens: Sequence[int] = ()  # tokens whose log-probabilities are recorded at every node
    #: (question, tokens) -> True if the last token of a sample at the limit must run to record them.
    run_last_token: Callable[[int, tuple[int, ...]], bool] | None = None


@torch.no_grad()
def decode(
    request: DecodingRequest, prefix: TreeCache, scheduler: Scheduler
) -> Iterator[tuple[int, DecodedSamples]]:
    """Decode all questions of a call, which wait in the scheduler; `prefix` is the shared prefix.

    Yield each question with its samples as soon as all its samples have ended.
    """
    batch = ActiveBatch(request, prefix, scheduler)
    while scheduler or batch:
        batch.admit()
        outputs, u = batch.frontier.outputs, batch.next_uniforms()
        yield from batch.advance(*choose_tokens(request, batch.cache, outputs, batch.draws, u))


class _Columns:
    """Arrays with a common first axis, which is selected and extended in all of them."""

    def __getitem__(self, selected: Any) -> Self:
        return type(self)(*(column[selected] for column in vars(self).values()))

    def append(self, later: Self) -> Self:
        """Return these rows, then `later`."""
        return type(self)(*map(np.concatenate, zip(vars(self).values(), vars(later).values(), strict=True)))


@dataclass(frozen=True)
class DecodedSamples(_Columns):
    """The samples of a question, or of several questions with an additional first axis."""

    tokens: NDArray[np.int64]  # (R, m, steps) by recalibrator, sample and step; -1 after the end
    log_probs: NDArray[np.float32]  # (R, m, steps), of each token in its recalibrated distribution
    #: (R, m, steps + 1, W), of each closing token after the first 0, 1, … tokens; NaN if not read.
    closing_log_probs: NDArray[np.float32]

    @classmethod
    def unknown(cls, questions: int, request: DecodingRequest) -> DecodedSamples:
        """Return samples without tokens for `questions` questions."""
        shape = questions, len(request.recalibrators), request.m, request.steps
        closing_shape = (*shape[:-1], request.steps + 1, len(request.closing_tokens))
        return cls(
            np.full(shape, -1, dtype=np.int64),
            np.zeros(shape, dtype=np.float32),
            np.full(closing_shape, np.nan, dtype=np.float32),
        )


@dataclass(frozen=True)
class ActiveDraws(_Columns):
    """The n samples that have not ended."""

    row: Index  # (n,) row of the question
    recalibrator: Index  # (n,) index of the recalibrator
    draw: Index  # (n,) index of the sample
    step: Index  # (n,) number of tokens so far
    node: Index  # (n,) place in the frontier

    @classmethod
    def first(cls, rows: range, request: DecodingRequest, *, node: int = 0) -> ActiveDraws:
        """Return all samples of new questions, whose first nodes have the numbers `node`, `node` + 1, …."""
        shape = len(rows), len(request.recalibrators), request.m
        row, recalibrator, draw = (i.ravel() for i in np.indices(shape, dtype=np.int64))
        return cls(rows.start + row, recalibrator, draw, np.zeros_like(row), node + row)

    @property
    def index(self) -> tuple[Index, Index, Index, Index]:
        """Index of the next tokens in `DecodedSamples` of all rows."""
        return self.row, self.recalibrator, self.draw, self.step

    def __len__(self) -> int:
        return len(self.row)


class ActiveBatch:
    """The questions of a call in progress, and their samples."""

    def __init__(self, request: DecodingRequest, prefix: TreeCache, scheduler: Scheduler) -> None:
        self._request, self._prefix, self._scheduler = request, prefix, scheduler
        draws = request.m * len(request.recalibrators)
        self._max_tree = draws * request.steps
        self._tree_sizes = TreeSizes(draws, request.steps)
        self._enders = np.array(sorted(request.stops), dtype=np.int64)
        ats = list(prefix.ats)
        self._ats = np.array([ats.index(r) if r in ats else -1 for r in request.recalibrators])
        self._clear()

    def _clear(self) -> None:
        self.cache = self._prefix.empty()
        self._questions: list[int] = []  # by row
        self._uniforms = np.zeros((0, self._request.m, self._request.steps))
        self._samples = DecodedSamples.unknown(0, self._request)
        self.draws = ActiveDraws.first(range(0), self._request)
        self.frontier = Frontier.empty()

    def __len__(self) -> int:
        """Return the number of active samples."""
        return len(self.draws)

    def admit(self) -> None:
        """Admit waiting questions if they fit and are enough for a pass."""
        if not (count := self._admissible()):
            return
        if len(self):
            self._compact()
        else:
            self._clear()
        self._prefill(self._scheduler.take(count))

    def _admissible(self) -> int:
        """Return the number of questions that may be admitted; tokens of finished questions do not count."""
        if not isinstance(
            self.cache, ThreeLevelCache
        ):  # rows of the fallback have the size of the largest tree
            return 0 if len(self) else self._scheduler.admissible(self._max_tree)
        if not self._scheduler:
            return 0
        ages = dict(zip(self.draws.row.tolist(), self.draws.step.tolist(), strict=True))
        held = len(self.frontier.compacted(torch.from_numpy(np.unique(self.draws.node)))[1]) if ages else 0
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
        new = range(row, row + len(questions))
        self.draws = self.draws.append(ActiveDraws.first(new, self._request, node=node))
        self._samples = self._samples.append(DecodedSamples.unknown(len(questions), self._request))
        self._uniforms = np.concatenate([self._uniforms, [self._request.uniforms(i) for i in questions]])
        self._questions.extend(questions)
        self._tree_sizes.add(len(questions))

    def _compact(self) -> None:
        """Drop finished questions, and tokens that lead to no active sample."""
        nodes, node = np.unique(self.draws.node, return_inverse=True)
        rows, row = np.unique(self.draws.row, return_inverse=True)
        self.frontier, slots = self.frontier.compacted(torch.from_numpy(nodes))
        self.cache.compact(torch.from_numpy(rows), slots)
        self.draws = replace(self.draws, row=row, node=node)
        self._samples, self._uniforms = self._samples[rows], self._uniforms[rows]
        self._questions = [self._questions[row] for row in rows]

    @property
    def _nodes(self) -> Tensor:
        return torch.from_numpy(self.draws.node)

    def next_uniforms(self) -> Tensor:
        """Return the uniform (n,) of the next token of each sample."""
        step = np.minimum(self.draws.step, self._request.steps - 1)
        return torch.from_numpy(self._uniforms[self.draws.row, self.draws.draw, step])

    def advance(
        self, tokens: Index, log_probs: NDArray[np.float32], closing_log_probs: NDArray[np.float32]
    ) -> list[tuple[int, DecodedSamples]]:
        """Record the token of each sample and run continuing samples; return the questions that finish."""
        draws, steps, samples = self.draws, self._request.steps, self._samples
        samples.closing_log_probs[draws.index] = closing_log_probs
        drawing = draws.step < steps  # the others only read closing tokens after their last token
        index = draws[drawing].index
        samples.tokens[index], samples.log_probs[index] = tokens[drawing], log_probs[drawing]
        continuing = drawing & ~np.isin(tokens, self._enders)
        last = continuing & (draws.step == steps - 1)
        continuing[last] = self._run_last_token(draws[last])
        ended = np.setdiff1d(draws.row, draws.row[continuing]).tolist()
        finished = [(self._questions[row], samples[row]) for row in ended]
        self.draws = draws[continuing]
        self._extend(torch.from_numpy(tokens[continuing]))
        return finished

    def _run_last_token(self, draws: ActiveDraws) -> list[bool]:
        """Return for each sample at the limit whether its last token must run."""
        if (runs := self._request.run_last_token) is None:
            return [False] * len(draws)
        tokens = self._samples.tokens[draws.row, draws.recalibrator, draws.draw].tolist()
        rows = zip(draws.row.tolist(), tokens, strict=True)
        return [runs(self._questions[row], tuple(ids)) for row, ids in rows]

    def _extend(self, token: Tensor) -> None:
        """Run each distinct chosen token once."""
        if not len(self):
            self._tree_sizes.record_step([], [])
            return
        if 4 * len(np.unique(self.draws.row)) <= 3 * len(self._questions):  # worth the move
            self._compact()
        token = self._within_budget(token)
        ats = torch.from_numpy(self._ats[self.draws.recalibrator])
        self.frontier, node = advance(self.cache, self.frontier, self._nodes, token, ats=ats)
        self.draws = replace(self.draws, step=self.draws.step + 1, node=node.numpy())
        depths = (self.frontier.path >= 0).sum(1).bincount().tolist()
        self._tree_sizes.record_step(depths, np.bincount(self.draws.step, minlength=len(depths)).tolist())

    def _within_budget(self, token: Tensor) -> Tensor:
        """Evict the newest questions until the step fits into memory."""
        if not isinstance(self.cache, ThreeLevelCache) or self._fits(self.cache, token):
            return token
        self._compact()
        if self._fits(self.cache, token):
            return token
        parent, *_ = distinct_steps(self.cache, self._nodes, token)
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
        room = self._scheduler.budget - cache.tokens_held
        return len(token) <= room or len(distinct_steps(cache, self._nodes, token)[0]) <= room


def choose_tokens(
    request: DecodingRequest, cache: TreeCache, outputs: ModelOutputs, draws: ActiveDraws, u: Tensor
) -> tuple[Index, NDArray[np.float32], NDArray[np.float32]]:
    """Choose the next token of each sample at its node of `outputs`, by its recalibrator and uniform (n,).

    Return tokens (n,), their log-probabilities (n,), and those of the closing tokens (n, W) at the same node.
    """
    node = torch.from_numpy(draws.node)
    tokens, scores = torch.empty_like(node), torch.empty(len(draws))
    closing = torch.empty((len(draws), len(request.closing_tokens)))
    for first, part, logits in logits_in_parts(cache.network, outputs):
        closers = torch.tensor(request.closing_tokens, dtype=torch.long, device=logits.device)
        inside = (node >= first) & (node < first + len(part))
        for r, recalibrator in enumerate(request.recalibrators):
            index = torch.nonzero(torch.from_numpy(draws.recalibrator == r) & inside)[:, 0]
            if not len(index):
                continue
            distinct, row = torch.unique(node[index] - first, return_inverse=True)
            distinct, row = distinct.to(logits.device), row.to(logits.device)
            some, its_logits = part, logits
            if len(distinct) < len(part):
                some, its_logits = part[distinct], logits[distinct]
            distributions = (
                TemperedDistributions(its_logits, recalibrator.temperature)
                if request.choose is inverse_cdf
                and isinstance(recalibrator, Temperature)
                and logits.device.type != "mps"  # no float64 there
                else Distributions(log_probs(recalibrator, its_logits, some, cache.ats))
            )
            token = distributions.choose(request.choose, row, u[index])
            tokens[index], scores[index] = token.cpu(), distributions.log_probs_at(row, token).cpu()
            closing[index] = distributions.log_probs_at(row[:, None], closers).cpu()
    return tokens.numpy(), scores.numpy(), closing.numpy()


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
    cache: TreeCache,
    prompts: Sequence[Sequence[int]],
    recalibrator: AnyRecalibrator,
    stops: frozenset[int],
    num_beams: int,
    steps: int,
) -> list[Beam]:
    """Return the best answer of at most `steps` tokens to each prompt; the cache is consumed."""
    searches = [_Search(num_beams, [Beam(node=row)]) for row in range(len(prompts))]
    frontier = start(cache, prompts)
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


class _Search:
    """The beams of one question: unfinished beams, and the best answers so far, best first."""

    def __init__(self, width: int, running: list[Beam]) -> None:
        self.width = width
        self.running = running
        self.answers: list[Beam] = []

    def step(self, candidates: _Candidates, stops: frozenset[int], *, last: bool) -> None:
        """Extend the running beams by one token."""
        extended = [
            Beam((*beam.tokens, token), (*beam.log_probs, log_prob), beam.node)
            for beam in self.running
            for token, log_prob in candidates[beam.node]
            if log_prob > -np.inf
        ]
        extended.sort(key=lambda beam: -beam.total)
        ended = [beam for beam in extended[: self.width] if last or beam.tokens[-1] in stops]
        self.answers = sorted(self.answers + ended, key=lambda beam: -beam.mean)[: self.width]
        self.running = [beam for beam in extended if beam.tokens[-1] not in stops][: self.width]
        full = len(self.answers) == self.width
        if last or not self.running or (full and self.running[0].mean <= self.answers[-1].mean):
            self.running = []


def _candidates(
    cache: TreeCache, outputs: ModelOutputs, recalibrator: AnyRecalibrator, enders: Tensor, width: int
) -> _Candidates:
    """Return the `width` most likely tokens of each node, and the `width` most likely that end no turn.

    The result has, by node, pairs of tokens and their log-probabilities.
    """
    tokens, values = [], []
    most = min(width, cache.network.vocabulary)
    for _, part, logits in logits_in_parts(cache.network, outputs):
        scored = log_probs(recalibrator, logits, part, cache.ats)
        best = scored.topk(most)
        check_not_nan(best.values)
        ending = torch.isin(best.indices, enders)
        running = scored.scatter(1, enders.expand(len(scored), -1), -torch.inf).topk(most)
        ends_only = best.values.masked_fill(~ending, -torch.inf)  # the others are in `running`
        tokens.append(torch.cat([best.indices, running.indices], 1).cpu())
        values.append(torch.cat([ends_only, running.values], 1).cpu())
    return [list(zip(*node)) for node in zip(torch.cat(tokens).tolist(), torch.cat(values).tolist())]
