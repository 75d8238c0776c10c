"""What a call of the language model runs: the shared prefix, then its questions, as memory allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from semcal.engine import scheduling
from semcal.engine.ats_state import ats_among, ats_bytes_per_token
from semcal.engine.backend_check import prefill_prefix
from semcal.engine.decoding import Request, Samples, Uniforms, decode
from semcal.engine.distributions import DecodingOptions
from semcal.engine.language_model import Progress, Prompt
from semcal.engine.network import Network
from semcal.engine.scheduling import Scheduler, shared_length, tokens_held
from semcal.engine.tree_cache import TreeCache, tokens_per_pass
from semcal.errors import InputError, QuestionError
from semcal.recalibration.attentive import ATS, AnyRecalibrator

__all__ = ["Answers", "BatchPlanner", "PrefixCache", "answer_lengths"]

Answers = Sequence[Sequence[tuple[int, ...]]]
Batch = tuple[list[int], TreeCache, list[tuple[int, ...]]]


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
        refused = set()
        for error in scheduling.invalid_prompts(self.network, prompts, longest=longest):
            refused.add(error.question_id)
            yield error
        if self._strict:
            size = self._bytes_per_token(ats)
            for error in scheduling.over_budget(prompts, room=room, bytes_per_token=size, budget=self.budget):
                if error.question_id not in refused:
                    yield error

    def invalid_for_decoding(
        self, prompts: Sequence[Prompt], recalibrators: Sequence[AnyRecalibrator], *, m: int, steps: int
    ) -> Iterator[QuestionError]:
        """What `decode` would raise."""
        return self.invalid_prompts(
            prompts,
            longest=[steps] * len(prompts),
            room=[steps * m * len(recalibrators)] * len(prompts),
            ats=ats_among(recalibrators),
        )

    def decode(
        self,
        prompts: Sequence[Prompt],
        uniforms: Uniforms,
        *,
        m: int,
        steps: int,
        options: DecodingOptions,
        progress: Progress | None,
    ) -> Iterator[tuple[int, Samples]]:
        """Each question and its samples, in the order in which the questions are finished."""
        ats = ats_among(options.recalibrators)
        for error in self.invalid_for_decoding(prompts, options.recalibrators, m=m, steps=steps):
            raise error
        if not prompts or not options.recalibrators:
            return
        shared = shared_length(prompts)
        prefix = self._prefixes.get(prompts[0].token_ids[:shared], ats)
        held = tokens_held(self.network, prompts, room=[0] * len(prompts), shared=shared)
        tokens = self._max_tokens(ats)
        min_tokens = min(tokens_per_pass(self.network) // 2, tokens // 8)
        scheduler = Scheduler(held, budget=tokens, min_tokens=min_tokens)
        request = Request([prompt.token_ids for prompt in prompts], uniforms, m, steps)
        for done, (i, samples) in enumerate(decode(prefix, request, scheduler, options), 1):
            yield i, samples
            if progress is not None:
                progress(done)

    def batches(
        self,
        prompts: Sequence[Prompt],
        *,
        longest: Sequence[int],
        room: Sequence[int],
        progress: Progress | None,
        shared: int | None = None,
        ats: Sequence[ATS] = (),
    ) -> Iterator[Batch]:
        """Indices, cache and token ids of batches of questions with room for their answers.

        `longest`, `room` and `ats` are those of `invalid_prompts`; `shared` is the length of the shared
        prefix, by default of the prompts' longest common prefix.
        """
        for error in self.invalid_prompts(prompts, longest=longest, room=room, ats=ats):
            raise error
        if not prompts:
            return
        shared = shared_length(prompts) if shared is None else shared
        prefix, done = self._prefixes.get(prompts[0].token_ids[:shared], ats), 0
        held = tokens_held(self.network, prompts, room=room, shared=shared)
        for batch in scheduling.batches(held, budget=self._max_tokens(ats)):
            yield batch, prefix.empty(), [prompts[i].token_ids for i in batch]
            done += len(batch)
            if progress is not None:
                progress(done)

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
        for prompt, given in zip(prompts, answers, strict=True):
            tokens = [token for answer in given for token in answer]
            unknown = scheduling.unknown_token(self.network, tokens)
            if unknown is not None:
                raise QuestionError(prompt.question_id, f"an answer to it has {unknown}")
        longest, room = answer_lengths(answers)
        yield from self.batches(
            prompts, longest=longest, room=room, progress=progress, shared=shared, ats=ats
        )

    def _bytes_per_token(self, ats: Sequence[ATS]) -> int:
        return self.network.bytes_per_token + ats_bytes_per_token(ats)

    def _max_tokens(self, ats: Sequence[ATS]) -> int:
        return self.budget // self._bytes_per_token(ats)


def answer_lengths(answers: Answers) -> tuple[list[int], list[int]]:
    """By prompt: tokens of its longest answer, and of all its answers together."""
    longest = [max(map(len, given), default=0) for given in answers]
    return longest, [sum(map(len, given)) for given in answers]


@dataclass(frozen=True)
class _Kept:
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
        self._kept: _Kept | None = None  # replaced as a whole, so that threads see one or another

    def get(self, tokens: tuple[int, ...], ats: Sequence[ATS]) -> TreeCache:
        """A cache of these tokens, read by these ATS; the tokens run unless they are kept."""
        kept, weights = self._kept, self._weights()
        if kept is not None and (kept.tokens, kept.weights) == (tokens, weights):
            return kept.cache.with_ats(ats)
        self._kept = kept = None
        cache = prefill_prefix(self._network, tokens)
        if len(tokens) * self._network.bytes_per_token <= self._budget:
            self._kept = _Kept(tokens, weights, cache)
        return cache.with_ats(ats)

    def _weights(self) -> tuple[object, ...]:
        """Changes when a weight is written to, moved or replaced, or the other kind of cache is used."""
        weights = self._network.model.parameters()
        written = ((weight.data_ptr(), weight.is_inference() or weight._version) for weight in weights)
        return (self._network.patched is None, *written)
