"""What a call of the language model runs: the shared prefix, then batches of questions that fit in memory.

While draws are decoded, waiting questions enter when there is room. Everything is decided by counts of tokens
alone, so that the same call takes the same steps every time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from semcal.errors import InputError, QuestionError
from semcal.models.language_model import Progress, Prompt, common_prefix
from semcal.models.network import Network
from semcal.models.tree_cache import TreeCache, prefill_prefix, tokens_per_pass
from semcal.recalibration.attentive import ATS, AnyRecalibrator

Answers = Sequence[Sequence[tuple[int, ...]]]


@dataclass(frozen=True)
class Batch:
    """Questions that run together."""

    questions: list[int]  # their numbers in the call
    cache: TreeCache  # which holds the shared prefix
    token_ids: list[tuple[int, ...]]  # the whole prompt of each


def shared_length(prompts: Sequence[Prompt]) -> int:
    """Length of the common prefix of all prompts, which leaves at least one token of each."""
    shortest = min(len(prompt.token_ids) for prompt in prompts)
    return min(common_prefix([prompt.token_ids for prompt in prompts]), shortest - 1)


def unknown_token(network: Network, token_ids: Sequence[int]) -> str | None:
    """Describe a token that is not in the network's vocabulary; None if there is none."""
    least, most = min(token_ids, default=0), max(token_ids, default=0)
    if least >= 0 and most < network.vocabulary:
        return None
    return (
        f"the token {least if least < 0 else most}, but the model only knows 0 to {network.vocabulary - 1}; "
        "use the tokenizer that it was trained with"
    )


def batches(costs: Sequence[int], *, budget: int) -> Iterator[list[int]]:
    """Split questions into batches of similar cost (tokens held), and yield the indices of each.

    In a batch all take as much as the largest; a question over the budget is a batch by itself.

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
    """Estimates how many tokens a question's tree will hold from how the trees so far have grown.

    A question has `draws` draws, under all recalibrators, of at most `steps` tokens. Until a tree has grown,
    it counts with the longest answers that its draws can have.
    """

    def __init__(self, draws: int, steps: int) -> None:
        self._steps = steps
        self._active: list[tuple[int, int]] = []  # age and number of the questions admitted together
        self._trees = [1] + [0] * steps  # by depth: trees that reached it, their tokens, their draws
        self._tokens = [0] * (steps + 1)
        self._draws = [draws] + [0] * steps

    def add(self, count: int) -> None:
        """Record that `count` questions have been admitted."""
        self._active.append((0, count))

    def remove_newest(self, count: int) -> None:
        """Record that the `count` questions admitted last have been evicted."""
        while count:
            age, active = self._active.pop()
            if active > count:
                self._active.append((age, active - count))
            count -= min(count, active)

    def record_step(self, tokens: Sequence[int], draws: Sequence[int]) -> None:
        """Record a step: by depth, the tokens that it added and the draws that chose them."""
        self._active = [(age + 1, count) for age, count in self._active if age < self._steps]
        for age, count in self._active:
            self._trees[age] += count
        for depth, (more, choosing) in enumerate(zip(tokens, draws, strict=True)):
            self._tokens[depth] += more
            self._draws[depth] += choosing

    def remaining(self, age: int = 0) -> float:
        """Tokens that a tree of `age` steps will still add; beyond the depths reached, no draw ends."""
        depths = [depth for depth, count in enumerate(self._trees) if count]
        grown = sum(self._tokens[depth] / self._trees[depth] for depth in depths if depth > age)
        last = depths[-1]
        return grown + (self._steps - max(last, age)) * self._draws[last] / self._trees[last]


class Scheduler:
    """Waiting questions, shorter prompts first, and how many of them fit beside the active ones.

    `tokens` are those of each prompt that are held for it alone, `budget` limits the tokens held, and
    `min_tokens` prompt tokens are worth a pass of their own.
    """

    def __init__(self, tokens: Sequence[int], *, budget: int, min_tokens: int) -> None:
        self.tokens, self.budget, self._min_tokens = tokens, budget, min_tokens
        self._waiting = deque(sorted(range(len(tokens)), key=lambda i: (tokens[i], i)))

    def __len__(self) -> int:
        return len(self._waiting)

    def admissible(self, tree: float, *, rows: int = 0, columns: int = 0, trees: float = 0.0) -> int:
        """How many questions may be admitted, each with a tree of `tree` tokens.

        None if they are too few to be worth a pass; at least one where none is active. There are `rows`
        active questions with prompts of up to `columns` tokens, whose trees will hold `trees` tokens.
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
        """Put questions (in the order in which they were taken) back at the front."""
        self._waiting.extendleft(reversed(questions))

    def fitting(self, costs: Sequence[int]) -> int:
        """How many questions of these costs, at least the first, fit into the budget."""
        return max(1, sum(total <= self.budget for total in accumulate(costs)))


#: Tokens of given answers and their prompts that are read in a pass: progress is told after each.
READ_TOKENS = 2048


def ats_among(recalibrators: Sequence[AnyRecalibrator]) -> tuple[ATS, ...]:
    """The distinct recalibrators that read hidden states."""
    return tuple(
        dict.fromkeys(recalibrator for recalibrator in recalibrators if isinstance(recalibrator, ATS))
    )


class BatchPlanner:
    """Plans the passes of a network within a memory budget.

    `budget` limits the bytes of the keys and values of the questions in a pass, those of ATS included. If
    `strict`, a question that may need more by itself is refused; otherwise it runs by itself.
    """

    def __init__(self, network: Network, *, budget: int, strict: bool) -> None:
        self.network, self.budget, self._strict = network, budget, strict
        self._prefixes = PrefixCache(network, budget=budget)

    def invalid_prompts(
        self,
        prompts: Sequence[Prompt],
        *,
        longest: Sequence[int],
        room: Sequence[int],
        ats: Sequence[ATS] = (),
    ) -> Iterator[QuestionError]:
        """At most one error for each question that cannot run, with these ATS beside it.

        By question `longest` is the length of its longest answer, `room` that of all its answers together.
        """
        limit, bytes_per_token = self.network.limit, self._bytes_per_token(ats)
        for prompt, most, extra in zip(prompts, longest, room):
            length = len(prompt.token_ids)
            need = (length + extra) * bytes_per_token
            if length == 0:
                reason = "its prompt has no tokens; at least one is needed"
            elif (unknown := unknown_token(self.network, prompt.token_ids)) is not None:
                reason = f"its prompt has {unknown}"
            elif limit is not None and length + most > limit:
                reason = (
                    f"its prompt has {length} tokens and the answer may have {most}, but the model holds "
                    f"{limit}{self.network.limit_reason}; shorten the passage, the examples or the answer"
                )
            elif self._strict and need > self.budget:
                reason = (
                    f"its prompt of {length} tokens and up to {extra} of its answers may take {need} bytes "
                    f"of keys and values, more than the {self.budget} of the memory budget; give more "
                    "memory, or ask for fewer or shorter answers"
                )
            else:
                continue
            yield QuestionError(prompt.question_id, reason)

    def invalid_for_decoding(
        self, prompts: Sequence[Prompt], recalibrators: Sequence[AnyRecalibrator], *, m: int, steps: int
    ) -> Iterator[QuestionError]:
        """At most one error for each question that cannot have `m` draws of up to `steps` tokens."""
        return self.invalid_prompts(
            prompts,
            longest=[steps] * len(prompts),
            room=[steps * m * len(recalibrators)] * len(prompts),
            ats=ats_among(recalibrators),
        )

    def schedule(self, prompts: Sequence[Prompt], ats: Sequence[ATS]) -> tuple[TreeCache, Scheduler]:
        """The shared prefix, read by these ATS, and a scheduler in which all questions wait."""
        shared = kept_length(prompts, shared_length(prompts))
        prefix = self._prefixes.get(prompts[0].token_ids[:shared], ats)
        held = self._tokens_held(prompts, room=[0] * len(prompts), shared=shared)
        tokens = self._max_tokens(ats)
        min_tokens = min(tokens_per_pass(self.network) // 2, tokens // 8)
        return prefix, Scheduler(held, budget=tokens, min_tokens=min_tokens)

    def batches(
        self,
        prompts: Sequence[Prompt],
        *,
        longest: Sequence[int],
        room: Sequence[int],
        progress: Progress | None,
        shared: int | None = None,
        ats: Sequence[ATS] = (),
        most: int | None = None,
    ) -> Iterator[Batch]:
        """Batches of questions with room for their answers.

        `longest`, `room` and `ats` are those of `invalid_prompts`; `shared` is the length of the shared
        prefix, by default of the prompts' longest common prefix. A batch of several questions holds `most`
        tokens at most.
        """
        for error in self.invalid_prompts(prompts, longest=longest, room=room, ats=ats):
            raise error
        if not prompts:
            return
        shared = shared_length(prompts) if shared is None else shared
        prefix, finished = self._prefixes.get(prompts[0].token_ids[:shared], ats), 0
        held = self._tokens_held(prompts, room=room, shared=shared)
        budget = self._max_tokens(ats)
        for batch in batches(held, budget=budget if most is None else min(most, budget)):
            yield Batch(batch, prefix.empty(), [prompts[i].token_ids for i in batch])
            finished += len(batch)
            if progress is not None:
                progress(finished)

    def answer_batches(
        self,
        prompts: Sequence[Prompt],
        answers: Answers,
        progress: Progress | None,
        *,
        shared: int | None = None,
        ats: Sequence[ATS] = (),
    ) -> Iterator[Batch]:
        """As `batches`, for given answers to each prompt."""
        if len(answers) != len(prompts):
            raise InputError(
                f"{len(prompts)} prompts, but {len(answers)} lists of answers; give one per prompt"
            )
        for prompt, question_answers in zip(prompts, answers, strict=True):
            tokens = [token for answer in question_answers for token in answer]
            unknown = unknown_token(self.network, tokens)
            if unknown is not None:
                raise QuestionError(prompt.question_id, f"an answer to it has {unknown}")
        longest, room = answer_lengths(answers)
        yield from self.batches(
            prompts,
            longest=longest,
            room=room,
            progress=progress,
            shared=shared,
            ats=ats,
            most=READ_TOKENS,
        )

    def _tokens_held(self, prompts: Sequence[Prompt], *, room: Sequence[int], shared: int) -> list[int]:
        """Tokens held for each question alone, with a shared prefix and `room` for its answers."""
        saved = shared if self.network.patched else 0  # the plain cache copies the prefix for each question
        return [len(prompt.token_ids) - saved + extra for prompt, extra in zip(prompts, room)]

    def _bytes_per_token(self, ats: Sequence[ATS]) -> int:
        keys = (recalibrator.key.weight for recalibrator in ats)  # each ATS keeps a key and a value as wide
        ats_bytes = sum(2 * weight.shape[0] * weight.element_size() for weight in keys)
        return self.network.bytes_per_token + ats_bytes

    def _max_tokens(self, ats: Sequence[ATS]) -> int:
        return self.budget // self._bytes_per_token(ats)


def kept_length(prompts: Sequence[Prompt], shared: int) -> int:
    """Of the tokens that prompts share, how many are best run apart from the rest.

    Their examples alone, which the next call will begin with too, unless running what else they share once
    for each prompt takes more tokens than the examples have. A function of the prompts alone.
    """
    examples = min(prompt.examples for prompt in prompts)
    repeated = (len(prompts) - 1) * (shared - examples)
    return examples if 0 < examples < shared and repeated <= examples else shared


def answer_lengths(answers: Answers) -> tuple[list[int], list[int]]:
    """By prompt: tokens of its longest answer, and of all its answers together."""
    longest = [max(map(len, question_answers), default=0) for question_answers in answers]
    return longest, [sum(map(len, question_answers)) for question_answers in answers]


@dataclass(frozen=True)
class _Prefix:
    """A cache of a prefix alone, which is not written to any more, and what it was computed from."""

    tokens: tuple[int, ...]
    weights: tuple[object, ...]
    cache: TreeCache


class PrefixCache:
    """Keeps the shared prefix of the last call: the next call often has the same.

    A prefix is the same only if all of its tokens are, and the weights have not been written to. So its keys
    and values are bit for bit those that running it again would give. At most one prefix (for each thread
    that has a call) exists at a time, since the old one is dropped before another runs. One that takes more
    bytes than `budget` is not kept.
    """

    def __init__(self, network: Network, *, budget: int) -> None:
        self._network, self._budget = network, budget
        self._last: _Prefix | None = None  # replaced as a whole, so that threads see one or another

    def get(self, tokens: tuple[int, ...], ats: Sequence[ATS]) -> TreeCache:
        """A cache of these tokens, read by these ATS; the tokens run unless they are kept."""
        prefix, weights = self._last, self._weights()
        if prefix is not None and (prefix.tokens, prefix.weights) == (tokens, weights):
            return prefix.cache.with_ats(ats)
        self._last = prefix = None
        cache = prefill_prefix(self._network, tokens)
        if len(tokens) * self._network.bytes_per_token <= self._budget:
            self._last = _Prefix(tokens, weights, cache)
        return cache.with_ats(ats)

    def _weights(self) -> tuple[object, ...]:
        """Changes when a weight is written to, moved or replaced, or the other kind of cache is used."""
        weights = self._network.model.parameters()
        written = ((weight.data_ptr(), weight.is_inference() or weight._version) for weight in weights)
        return (self._network.patched is None, *written)
